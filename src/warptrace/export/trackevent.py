"""A column-wise encoder of Perfetto TrackEvent packets: numpy in, bytes out, no protobuf library.

Thousands of messages are made at once. :class:`Rows` is a matrix with a column a message and a row a byte position,
beside a mask that says which bytes a message really has; compacting by the mask gives the serialised messages, so
optional fields and variable-length integers cost no branch. Field numbers are those of Perfetto's public
``track_event.proto``, ``track_descriptor.proto``, ``debug_annotation.proto`` and ``trace_packet.proto``; only features
that viewers since version 52 know are used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..trace import I64, U8, U64
from ._common import OrderedPool

Bools = NDArray[np.bool_]

SEQUENCE_ID = 1
STATE_CLEARED = 1
NEEDS_STATE = 2
CLOCK_REALTIME = 1
CLOCK_BOOTTIME = 6
"""The clock that packet timestamps are in unless they say otherwise; a trace's own time counts from 0 on it."""

MAX_ROWS = 1 << 15
"""Most messages in one matrix: what keeps it in the processor's cache, and its memory bounded."""

BEGIN = 1
END = 2
INSTANT = 3


class Kind(IntEnum):
    """Which field of a debug annotation holds the value. The numbers up to BOOL are those of ValueKind."""

    NONE = 0
    INT = 1
    UINT = 2
    DOUBLE = 3
    BOOL = 4
    STRING = 5
    """The value is the iid of an interned string."""


# --------------------------------------------------------------------------------------------- single messages
def varint(value: int) -> bytes:
    """A base-128 varint; negative numbers as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes | str) -> bytes:
    """A string, bytes or message field."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def annotation(name: str, value: int | float | bool | str) -> bytes:
    """A debug annotation (field 4 of TrackEvent) with its name in line."""
    body = blob(10, name)
    if isinstance(value, bool):
        body += number(2, value)
    elif isinstance(value, int):
        body += number(3 if value >= 1 << 63 else 4, value)
    elif isinstance(value, float):
        body += varint(5 << 3 | 1) + struct.pack("<d", value)
    else:
        body += blob(6, value)
    return blob(4, body)


def packet(*fields: bytes, flags: int = NEEDS_STATE) -> bytes:
    """A TracePacket of the one sequence."""
    return blob(1, b"".join(fields) + number(10, SEQUENCE_ID) + number(13, flags))


def event(ns: int, kind: int, track: int, name: str = "", *annotations: bytes) -> bytes:
    """One TrackEvent packet with everything in line, for the few events that are not worth a column."""
    body = number(9, kind) + number(11, track) + (blob(23, name) if name else b"") + b"".join(annotations)
    return packet(number(8, ns), blob(11, body))


def clock_snapshot(epoch_ns: int) -> bytes:
    """Says that trace time 0 is ``epoch_ns`` on the wall clock, so that viewers can show both."""
    clocks = ((CLOCK_BOOTTIME, 0), (CLOCK_REALTIME, epoch_ns))
    body = b"".join(blob(1, number(1, clock) + number(2, time)) for clock, time in clocks)
    return packet(blob(6, body + number(2, CLOCK_BOOTTIME)))


def interned(
    names: Sequence[tuple[int, str]] = (),
    annotation_names: Sequence[tuple[int, str]] = (),
    strings: Sequence[tuple[int, str]] = (),
    *,
    flags: int = NEEDS_STATE,
) -> bytes:
    """A packet that defines (iid, text) pairs: event names, annotation names, annotation string values."""
    fields = ((2, names), (3, annotation_names), (29, strings))
    entries = [blob(field, number(1, iid) + blob(2, text)) for field, table in fields for iid, text in table]
    return packet(blob(12, b"".join(entries)), flags=flags)


# ------------------------------------------------------------------------------------------------ many messages
class Rows:
    """``count`` messages in the making, all of the same field order; see the module's text."""

    def __init__(self, count: int, width: int) -> None:
        self._bytes: U8 = np.empty((width, count), np.uint8)
        self._mask: Bools = np.empty((width, count), np.bool_)
        self._used = 0

    def byte(self, value: U8 | int, when: Bools | bool = True) -> None:
        """One byte in every message for which ``when`` holds."""
        self._bytes[self._used] = value
        self._mask[self._used] = when
        self._used += 1

    def put(self, values: bytes, when: Bools | bool = True) -> None:
        """The same bytes in every message for which ``when`` holds."""
        for value in values:
            self.byte(value, when)

    def varint(self, values: U64, when: Bools | bool = True) -> None:
        """A base-128 varint; ``values`` is a column (u64, negative numbers in two's complement)."""
        rest = values
        while True:
            following = rest >> np.uint64(7)
            more = following != 0
            low = rest.astype(np.uint8)
            self.byte((low & np.uint8(0x7F)) | (more.view(np.uint8) << np.uint8(7)), when)
            if not more.any():
                return
            when = more if when is True else more & when
            rest = following

    def fixed64(self, values: U64, when: Bools) -> None:
        """Eight little-endian bytes."""
        columns = np.ascontiguousarray(values.astype("<u8").view(np.uint8).reshape(-1, 8).T)
        for column in columns:
            self.byte(column, when)

    def text(self, table: TextTable, index: I64) -> None:
        """A length-delimited string: row ``index`` of a table, for every message."""
        lengths = table.lengths[index]
        self.varint(lengths.astype(np.uint64))
        for position in range(int(lengths.max(initial=0))):
            self.byte(table.bytes[position][index], lengths > position)

    def open(self, tag: bytes, when: Bools | bool = True) -> tuple[int, Bools | bool]:
        """Starts a nested message; its length is filled in by :meth:`close`."""
        self.put(tag, when)
        self.byte(0, when)
        self.byte(0, False)
        return self._used, when

    def close(self, opened: tuple[int, Bools | bool]) -> None:
        """Ends the message that ``open`` returned: at most 16383 bytes."""
        start, when = opened
        length = self._mask[start : self._used].sum(axis=0, dtype=np.uint16)
        long = length > 0x7F
        self._bytes[start - 2] = length.astype(np.uint8) & np.uint8(0x7F)
        if long.any():
            self._bytes[start - 2] |= long.view(np.uint8) << np.uint8(7)
            self._bytes[start - 1] = (length >> np.uint16(7)).astype(np.uint8)
            self._mask[start - 1] = long & when

    def done(self) -> U8:
        """The messages, one after another."""
        return self._bytes[: self._used].T[self._mask[: self._used].T]


@dataclass(frozen=True)
class TextTable:
    """Strings as columns of bytes: ``bytes`` is (longest, strings), ``lengths`` (strings,)."""

    bytes: U8
    lengths: I64


def text_table(texts: Sequence[str]) -> TextTable:
    """A :class:`TextTable` of UTF-8 strings."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], np.int64)
    width = max(int(lengths.max(initial=0)), 1)
    table = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in encoded), np.uint8).reshape(-1, width)
    return TextTable(np.ascontiguousarray(table.T), lengths)


def tracks(uuid: U64, parent: U64, names: TextTable, name: I64, rank: U64) -> U8:
    """Packets of track descriptors, one a row.

    ``parent`` 0 is none. Children of every track are shown by ``rank`` (below 2**31) and never merged with a
    sibling of the same name.
    """
    rows = Rows(len(uuid), 64 + int(names.lengths.max(initial=0)))
    whole = rows.open(b"\x0a")
    rows.put(b"\x50\x01")
    body = rows.open(b"\xe2\x03")
    rows.put(b"\x08")
    rows.varint(uuid)
    nested = parent != 0
    rows.put(b"\x28", nested)
    rows.varint(parent, nested)
    rows.put(b"\x12")
    rows.text(names, name)
    rows.put(b"\x58\x03\x60")  # child_ordering: explicit; sibling_order_rank
    rows.varint(rank)
    rows.put(b"\x78\x02")  # sibling_merge_behavior: none
    rows.close(body)
    rows.close(whole)
    return rows.done()


@dataclass(frozen=True)
class Argument:
    """One optional argument of each event of a block: columns, or one number for all. ``kind`` NONE: absent."""

    name: U64 | int
    """iid of the argument's name"""
    kind: U8
    """Kind"""
    value: U64
    """the value's 64 bits; for STRING the iid"""

    def part(self, rows: slice) -> Argument:
        """The argument of some of the events."""
        return Argument(self.name if isinstance(self.name, int) else self.name[rows], self.kind[rows], self.value[rows])


@dataclass(frozen=True)
class Link:
    """A flow id on some of the events of a block: ``last`` where the flow ends in them, else it begins."""

    value: U64
    present: Bools
    last: bool

    def part(self, rows: slice) -> Link:
        """The link of some of the events."""
        return Link(self.value[rows], self.present[rows], self.last)


def events(
    ns: U64, kind: U8, track: U64, name: U64, arguments: Sequence[Argument], links: Sequence[Link] = ()
) -> U8:
    """Packets of track events, one a row. ``name`` (an iid) is written for all but END events."""
    if len(ns) > MAX_ROWS:
        parts = [slice(start, start + MAX_ROWS) for start in range(0, len(ns), MAX_ROWS)]

        def block(r: slice) -> U8:
            some, few = [one.part(r) for one in arguments], [one.part(r) for one in links]
            return events(ns[r], kind[r], track[r], name[r], some, few)

        return np.concatenate([block(rows) for rows in parts])
    rows = Rows(len(ns), 48 + 48 * len(arguments) + 10 * len(links))
    whole = rows.open(b"\x0a")
    rows.put(b"\x40")
    rows.varint(ns)
    rows.put(b"\x50\x01\x68\x02")
    body = rows.open(b"\x5a")
    rows.put(b"\x48")
    rows.byte(kind)
    rows.put(b"\x58")
    rows.varint(track)
    named = kind != END
    rows.put(b"\x50", named)
    rows.varint(name, named)
    for argument in arguments:
        _argument(rows, argument)
    for link in links:
        if link.present.any():
            rows.put(b"\x81\x03" if link.last else b"\xf9\x02", link.present)  # terminating_flow_ids, flow_ids
            rows.fixed64(link.value, link.present)
    rows.close(body)
    rows.close(whole)
    return rows.done()


_TAGS = np.array([0, 0x20, 0x18, 0, 0x10, 0], np.uint8)


def _argument(rows: Rows, argument: Argument) -> None:
    present = argument.kind != Kind.NONE
    if not present.any():
        return
    body = rows.open(b"\x22", present)
    rows.put(b"\x08", present)
    if isinstance(argument.name, int):
        rows.put(varint(argument.name), present)
    else:
        rows.varint(argument.name, present)
    double, string = argument.kind == Kind.DOUBLE, argument.kind == Kind.STRING
    integer = present & ~double & ~string
    if integer.any():
        rows.byte(_TAGS[argument.kind], integer)
        rows.varint(np.where(integer, argument.value, np.uint64(0)), integer)
    if double.any():
        rows.put(b"\x29", double)
        rows.fixed64(argument.value, double)
    if string.any():
        rows.put(b"\x88\x01", string)
        rows.varint(np.where(string, argument.value, np.uint64(0)), string)
    rows.close(body)


class PacketFile:
    """Writes packets in order, in blocks of about a megabyte that other threads compress. A context manager."""

    BLOCK_BYTES = 1 << 20

    def __init__(self, file: BinaryIO, compress: bool) -> None:
        self._finish = _compressed if compress else bytes
        self._pool = OrderedPool(file, 1 if compress else 0)
        self._held: list[bytes] = []
        self._size = 0

    def __enter__(self) -> PacketFile:
        self._pool.__enter__()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._flush()
        self._pool.__exit__(kind, *rest)

    def write(self, packets: bytes | U8) -> None:
        """Appends serialised packets."""
        data = packets if isinstance(packets, bytes) else packets.tobytes()
        self._held.append(data)
        self._size += len(data)
        if self._size >= self.BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._pool.submit(self._finish, b"".join(self._held))
        self._held.clear()
        self._size = 0


def _compressed(data: bytes) -> bytes:
    return blob(1, blob(50, zlib.compress(data, 1)))
