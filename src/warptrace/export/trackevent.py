"""A column-wise encoder of Perfetto TrackEvent packets: numpy in, bytes out, no protobuf library.

Thousands of messages are made at once. :class:`Rows` is a matrix with a column a message and a row a byte position,
beside a mask that says which bytes a message really has; compacting by the mask gives the serialised messages, so
optional fields and variable-length integers cost no branch. Field numbers are those of Perfetto's public
``track_event.proto``, ``track_descriptor.proto``, ``debug_annotation.proto`` and ``trace_packet.proto``; only features
that viewers since version 52 know are used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..trace import I64, U8, U64
from ._common import OrderedPool
from .deflate import zlib_stream

Bools = NDArray[np.bool_]

SEQUENCE_ID = 1
STATE_CLEARED = 1
NEEDS_STATE = 2
CLOCK_REALTIME = 1
CLOCK_BOOTTIME = 6
"""The clock that packet timestamps are in unless they say otherwise; a trace's own time counts from 0 on it."""

MAX_ROWS = 1 << 16
"""Most messages in one matrix: what keeps it in the processor's cache, and its memory bounded."""

COMPRESSORS = 2
"""Threads that lay out and compress events, beside the one that says what is in them."""

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


def flow(number: int, *, last: bool) -> bytes:
    """A flow id on an event: the flow ends in it, else it begins."""
    return varint((48 if last else 47) << 3 | 1) + struct.pack("<Q", number)


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
    """One argument of events of a group: columns, or one number for all. ``kind`` NONE: absent."""

    name: U64 | int
    """iid of the argument's name"""
    kind: U8 | int
    """Kind"""
    value: U64
    """the value's 64 bits; for STRING the iid"""

    def part(self, rows: I64) -> Argument:
        """The argument of some of the events."""
        return Argument(_part(self.name, rows), _part(self.kind, rows), self.value[rows])


@dataclass(frozen=True)
class Link:
    """A flow id on some of the events of a group: ``last`` where the flow ends in them, else it begins."""

    value: U64
    present: Bools
    last: bool

    def part(self, rows: I64) -> Link:
        """The link of some of the events."""
        return Link(self.value[rows], self.present[rows], self.last)


@dataclass(frozen=True)
class Group:
    """Events of one ``kind`` (BEGIN, END, INSTANT): columns. ``place``: where each stands among those of all groups of
    its block. ``name``: an iid, or one for all; END has none."""

    kind: int
    place: I64
    ns: U64
    track: U64
    name: U64 | int
    arguments: Sequence[Argument] = ()
    links: Sequence[Link] = ()

    def __len__(self) -> int:
        return len(self.ns)

    def part(self, rows: I64, first: int = 0) -> Group:
        """Some of the events, in a block that begins at place ``first`` of this one."""
        return Group(
            kind=self.kind,
            place=self.place[rows] - first,
            ns=self.ns[rows],
            track=self.track[rows],
            name=_part(self.name, rows),
            arguments=[one.part(rows) for one in self.arguments],
            links=[one.part(rows) for one in self.links],
        )


Column = TypeVar("Column", U64, U8)


def _part(column: Column | int, rows: I64) -> Column | int:
    return column if isinstance(column, int) else column[rows]


def block(groups: Sequence[Group]) -> U8:
    """Packets of the events of some groups, by their places.

    Events of one *shape* (kind, kinds of arguments, about how long these are) get packets of one length: integers are
    padded to that of the longest, which the wire format allows. So they are laid out as a matrix, all bytes of a field
    at once, and its rows go to their places whole.
    """
    total = sum(map(len, groups))
    if total > MAX_ROWS:
        return np.concatenate([block(some) for some in _pieces(groups, total)])
    laid = [(one.place, _packets(one)) for group in groups if len(group) for one in _by_shape(group)]
    size = np.empty(total, np.int64)
    for place, packets in laid:
        size[place] = packets.itemsize
    end = np.cumsum(size)
    out = np.empty(int(end[-1]) if total else 0, np.uint8)
    first = end - size
    for place, packets in laid:
        spots = np.ndarray(len(out) + 1 - packets.itemsize, packets.dtype, out, 0, (1,))
        spots[first[place]] = packets
    return out


def _pieces(groups: Sequence[Group], total: int) -> Iterator[list[Group]]:
    """The groups in blocks of MAX_ROWS places."""
    orders = [np.argsort(group.place, kind="stable") for group in groups]
    for first in range(0, total, MAX_ROWS):
        some = []
        for group, order in zip(groups, orders, strict=True):
            a, b = np.searchsorted(group.place, [first, first + MAX_ROWS], sorter=order)
            some.append(group.part(order[a:b], first))
        yield some


_TAGS = np.array([0, 0x20, 0x18, 0x29, 0x10, 0], np.uint8)
"""By Kind."""
_SHORT = np.array([0, 1, 1, 0, 1, 1], np.uint8)
"""By Kind: whether the length of the value depends on it."""
_MANY_SHAPES = 1 << 16
_SMALL, _MIDDLE = 0x3FFF, 0xFFFFFFF
"""Integers of 2 and 4 bytes."""
_STRING_TAG = b"\x88\x01"
_SPILL = 8
"""Bytes behind a row that writing its last integer may touch."""

Field = bytes | tuple[U64, int]
"""A part of a message: constant bytes, or a column and in how many bytes it is written: 1 to 10, FIXED as they are."""
FIXED = -8


def _by_shape(group: Group) -> Iterator[Group]:
    """The events of each shape."""
    shape = _shapes(group)
    if shape is None:
        yield group
        return
    for number in range(int(shape.max()) + 1):
        yield group.part(np.flatnonzero(shape == number))


def _shapes(group: Group) -> NDArray[np.int32] | None:
    """The number of each event's shape, from 0 without gaps; None where all have one."""
    shape, bound = np.zeros(len(group), np.int32), 1

    def part(numbers: NDArray[Any], most: int) -> None:
        nonlocal shape, bound
        shape, bound = _denser(shape, bound, most + 1)
        shape *= most + 1
        shape += numbers

    for one in group.arguments:
        if int(one.value.max(initial=0)) > _SMALL:
            length = (one.value > np.uint64(_SMALL)).view(np.uint8) + (one.value > np.uint64(_MIDDLE))
            part(length * _SHORT[one.kind], 2)
        if not isinstance(one.kind, int):
            part(one.kind, len(Kind) - 1)
    for link in group.links:
        part(link.present, 1)
    return _dense(shape) if bound > 1 else None


def _denser(number: NDArray[np.int32], bound: int, factor: int) -> tuple[NDArray[np.int32], int]:
    """(numbers as different as these, a bound of them times ``factor``): without gaps where they would grow large."""
    if bound * factor <= _MANY_SHAPES:
        return number, bound * factor
    number = _dense(number).astype(np.int32)
    return number, (int(number.max(initial=0)) + 1) * factor


def _dense(number: NDArray[np.int32]) -> NDArray[np.int32]:
    used = np.flatnonzero(np.bincount(number))
    table = np.zeros(int(used[-1]) + 1 if len(used) else 0, np.int32)
    table[used] = np.arange(len(used))
    return table.take(number)


def _packets(group: Group) -> NDArray[np.void]:
    """Packets of events that have one shape. What tells events of one place in the source from others stands first, and
    what differs from event to event last, before the time: zlib takes long by the number of its matches."""
    event: list[Field] = [] if group.kind == END else [b"\x50", _integer(group.name)]
    event += [bytes([0x48, group.kind, 0x58]), _integer(group.track)]
    for argument in group.arguments:
        kind = argument.kind if isinstance(argument.kind, int) else int(argument.kind[0])
        if kind != Kind.NONE:
            event += _annotation(argument, Kind(kind))
    for link in group.links:
        if link.present[0]:
            event += [b"\x81\x03" if link.last else b"\xf9\x02", (link.value, FIXED)]
    flags = number(10, SEQUENCE_ID) + number(13, NEEDS_STATE)
    packet: list[Field] = [b"\x5a" + varint(_size(event)), *event, flags + b"\x40", _integer(group.ns)]
    return _matrix(len(group), [b"\x0a" + varint(_size(packet)), *packet])


def _annotation(argument: Argument, kind: Kind) -> list[Field]:
    """A debug annotation."""
    tag = _STRING_TAG if kind == Kind.STRING else bytes([_TAGS[kind]])
    value: Field = (argument.value, FIXED) if kind == Kind.DOUBLE else _integer(argument.value)
    body: list[Field] = [b"\x08", _integer(argument.name), tag, value]
    return [b"\x22" + varint(_size(body)), *body]


def _integer(values: U64 | int) -> Field:
    """A column of varints, as long as the longest of them is; constant bytes where all are equal."""
    if isinstance(values, int):
        return varint(values)
    most = int(values.max())
    if int(values.min()) == most:
        return varint(most)
    return values, -(-max(most.bit_length(), 1) // 7)


def _size(fields: Sequence[Field]) -> int:
    return sum(len(one) if isinstance(one, bytes) else abs(one[1]) for one in fields)


def _matrix(count: int, fields: Sequence[Field]) -> NDArray[np.void]:
    """``count`` messages of one length."""
    size = _size(fields)
    template = b"".join(one if isinstance(one, bytes) else bytes(abs(one[1])) for one in fields)
    width = size + _SPILL
    rows = bytearray(template + bytes(_SPILL)) * count
    at = 0
    # A column is written in words of 8 bytes: what they hold behind it is constant, or written next.
    for one in fields:
        if isinstance(one, bytes):
            at += len(one)
            continue
        values, length = one
        for offset, part, used in _words(values, length):
            behind = template[at + offset + used : at + offset + 8].ljust(8 - used, b"\0")
            part |= np.uint64(int.from_bytes(behind, "little") << 8 * used) if used < 8 else np.uint64(0)
            np.ndarray(count, "<u8", rows, at + offset, (width,))[...] = part
        at += abs(length)
    return np.ndarray(count, f"V{size}", rows, 0, (width,))


def _words(values: U64, length: int) -> list[tuple[int, U64, int]]:
    """(offset, 8 bytes, how many of them count) of a column of integers."""
    if length == FIXED:
        return [(0, values.copy(), 8)]
    if length <= 8:
        return [(0, _spread(values, length), length)]
    low = _spread(values & np.uint64((1 << 56) - 1), 8) | np.uint64(1 << 63)
    return [(0, low, 8), (8, _spread(values >> np.uint64(56), length - 8), length - 8)]


def _spread(values: U64, length: int) -> U64:
    """Varints of ``length`` bytes (8 at most), each in the low bytes of a word."""
    out = values
    for bits, low, high, shift in _SPREAD:
        if 7 * length > bits:
            out = (out & np.uint64(low)) | ((out & np.uint64(high)) << np.uint64(shift))
    return out | np.uint64(0x8080808080808080 & ((1 << 8 * (length - 1)) - 1))


_SPREAD = (
    (28, 0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
    (14, 0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
    (7, 0x007F007F007F007F, 0x3F803F803F803F80, 1),
)
"""Halves of 56, 28 and 14 bits move apart: (bits of a half, mask of the lower ones, of the upper ones, by how much)."""


class PacketFile:
    """Writes packets in order, in blocks of about a megabyte that other threads make and compress.

    A context manager.
    """

    BLOCK_BYTES = 1 << 20

    def __init__(self, file: BinaryIO, compress: bool) -> None:
        self._finish = _compressed if compress else bytes
        self._pool = OrderedPool(file, COMPRESSORS if compress else 0)
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

    def write_later(self, make: Callable[[], U8]) -> None:
        """Appends the packets that ``make`` returns; it is called on another thread where there are any."""
        self._flush()
        self._pool.submit(lambda: self._finish(make().data))

    def _flush(self) -> None:
        if self._held:
            self._pool.submit(self._finish, b"".join(self._held))
        self._held.clear()
        self._size = 0


def _compressed(data: bytes | memoryview) -> bytes:
    return blob(1, blob(50, zlib_stream()(data)))
