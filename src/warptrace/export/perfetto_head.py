"""Where the first kernel of a written ``.pftrace`` lies in time: what a viewer should show first.

Reads the few fields that this needs, by the protobuf wire format, from the file's beginning, where
:mod:`~warptrace.export.perfetto` puts the kernel slices.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from . import trackevent as te

MAX_PACKETS = 300_000
MAX_BYTES = 1 << 24
KERNEL = b"kernel:"
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
TRACE_PACKET, TIMESTAMP, TRACK_EVENT, COMPRESSED_PACKETS = 1, 8, 11, 50
EVENT_TYPE, EVENT_TRACK, EVENT_NAME = 9, 11, 23


def first_kernel(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Start and end of the first kernel slice, ns of the trace; None where the file's beginning has none."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES)
    begun: tuple[int, int] | None = None  # time and track
    try:
        for _, packet in zip(range(MAX_PACKETS), _packets(data), strict=False):
            found = _event(packet)
            if found is None:
                continue
            ns, kind, track, name = found
            if begun is None and kind == te.BEGIN and name.startswith(KERNEL):
                begun = ns, track
            elif begun is not None and kind == te.END and track == begun[1]:
                return begun[0], ns
    except (IndexError, ValueError, zlib.error):
        pass  # cut off, or no trace of ours
    return None


def _packets(data: bytes) -> Iterator[bytes]:
    for field, value in _fields(data):
        if field != TRACE_PACKET or not isinstance(value, bytes):
            continue
        inner = next((v for f, v in _fields(value) if f == COMPRESSED_PACKETS and isinstance(v, bytes)), None)
        if inner is None:
            yield value
        else:
            yield from _packets(zlib.decompress(inner))


def _event(packet: bytes) -> tuple[int, int, int, bytes] | None:
    """Time, type, track and name of a packet's event."""
    fields = dict(_fields(packet))
    body, ns = fields.get(TRACK_EVENT), fields.get(TIMESTAMP, 0)
    if not isinstance(body, bytes) or not isinstance(ns, int):
        return None
    event = dict(_fields(body))
    kind, track, name = event.get(EVENT_TYPE, 0), event.get(EVENT_TRACK, 0), event.get(EVENT_NAME, b"")
    if isinstance(kind, int) and isinstance(track, int) and isinstance(name, bytes):
        return ns, kind, track, name
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: an integer, or the bytes of what has a length. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
