"""Memory of a bank -> its regions, compacted to the slots that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..wire import (
    CLOSED_MAGIC,
    LANE_HEADER_BYTES,
    REGION_ALIGN,
    REGION_DTYPE,
    REGION_HEADER_BYTES,
    RING_MAGIC,
    events_led,
    unpack_capacity,
)
from .format import (
    LANE_STREAM_DTYPE,
    REGION_OFFSET_FIELD,
    BankImage,
    slot_dtype,
    valid_headers,
)

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

LANES = 32
GATHER_BYTES = 16 << 20
"""Region memory that one step copies: bounds the peak of the writer."""


@dataclass(frozen=True)
class FoundRegions:
    """Regions of one piece: ``starts`` (n,) byte offsets in the piece, ``headers`` (n,) REGION_DTYPE.

    ``end``: where the last region ends (may lie in the slack); ``skipped``: bytes of the piece outside regions.
    """

    starts: I64
    headers: NDArray[np.void]
    end: int
    skipped: int


@dataclass(frozen=True)
class CompactRegions:
    """Regions of one stride: headers (n,), stored (n,) u32, lanes (m,) LANE_STREAM_DTYPE, slots and lane_slots."""

    headers: NDArray[np.void]
    stored: NDArray[np.uint32]
    lanes: NDArray[np.void]
    slots: NDArray[np.void]
    lane_slots: NDArray[np.void]


def piece_bytes(piece: BankImage) -> U8:
    """The piece's memory as (n,) u8, cut to whole lines of REGION_ALIGN bytes."""
    data = piece.data if isinstance(piece.data, np.ndarray) else np.frombuffer(piece.data, np.uint8)
    return np.ascontiguousarray(data[: len(data) // REGION_ALIGN * REGION_ALIGN])


def find_regions(piece: BankImage, begin: int = 0) -> FoundRegions:
    """The regions of a piece from byte ``begin`` on.

    A header proves itself: its magic, its sizes, and that its position is where it was found, so what an earlier
    lap left behind is never taken. A line that would lie inside the region before it is no header.
    """
    data = piece_bytes(piece)
    lines = data.view("<u4").reshape(-1, REGION_ALIGN // 4)
    expected = (piece.position + REGION_ALIGN * np.arange(len(lines), dtype=np.int64)) & 0xFFFFFFFF
    candidates = np.flatnonzero(lines[:, 1] == expected)
    headers = data.reshape(-1, REGION_ALIGN)[candidates].view(REGION_DTYPE).reshape(-1)
    starts = candidates * REGION_ALIGN
    sizes = region_sizes(headers)
    limit = min(len(data), piece.mask + 1 - (piece.position & piece.mask))
    keep = valid_headers(headers) & (starts >= begin) & (starts < limit) & (starts + sizes <= len(data))
    starts, sizes, headers = starts[keep], sizes[keep], headers[keep]
    if np.any(starts[1:] < (starts + sizes)[:-1]):
        chain = _chain(starts, sizes)
        starts, sizes, headers = starts[chain], sizes[chain], headers[chain]
    ends = starts + sizes
    covered = int((np.minimum(ends, limit) - starts).sum())
    end = int(ends[-1]) if len(ends) else min(begin, limit)
    headers[REGION_OFFSET_FIELD] = piece.base + (piece.position & piece.mask) + starts
    return FoundRegions(starts, headers, end, max(limit - begin, 0) - covered)


def region_sizes(headers: NDArray[np.void]) -> I64:
    """Bytes that each region takes from its bank, (n,) i64 (:func:`wire.region_bytes`, vectorised)."""
    main, lane = (headers[k].astype(np.int64) for k in ("main_bytes", "lane_bytes"))
    sizes: I64 = REGION_HEADER_BYTES + main + (LANES - 1) * lane
    return sizes


def _chain(starts: I64, sizes: I64) -> I64:
    """Indices of the candidates met by walking from region to region (only where candidates overlap)."""
    chain = []
    end = 0
    for i, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        if start >= end:
            chain.append(i)
            end = start + size
    return np.array(chain, np.int64)


def compact(piece: BankImage, found: FoundRegions) -> Iterator[CompactRegions]:
    """The found regions without their unwritten slots, in parts of one geometry and a bounded size."""
    data = piece_bytes(piece).reshape(-1, REGION_ALIGN)
    headers = found.headers
    if not len(headers):
        return
    groups = _groups(headers)
    for group in groups:
        size = int(region_sizes(headers[group[:1]])[0])
        step = max(1, GATHER_BYTES // size)
        for at in range(0, len(group), step):
            part = group[at : at + step]
            yield _compact_part(_gather(data, found.starts[part], size), headers[part])


def _groups(headers: NDArray[np.void]) -> list[I64]:
    """Indices of the regions of each geometry (main_bytes, lane_bytes, stride, ring), in order of first appearance."""
    main, lane, stride = (headers[k].astype(np.int64) for k in ("main_bytes", "lane_bytes", "stride"))
    ring = (headers["magic"] == RING_MAGIC).astype(np.int64)
    key = (main // REGION_ALIGN) << 33 | (lane // REGION_ALIGN) << 8 | stride | ring
    if (key == key[0]).all():
        return [np.arange(len(key))]
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    return sorted(groups, key=lambda group: int(group[0]))


def _gather(lines: U8, starts: I64, size: int) -> U8:
    """(n, size) bytes of n regions; a view where they follow each other."""
    first = int(starts[0])
    if len(starts) * size == int(starts[-1]) - first + size:
        flat = lines.reshape(-1)[first : first + len(starts) * size]
        return flat.reshape(len(starts), size)
    rows = starts[:, None] // REGION_ALIGN + np.arange(size // REGION_ALIGN)
    gathered: U8 = lines[rows].reshape(len(starts), size)
    return gathered


def _compact_part(memory: U8, headers: NDArray[np.void]) -> CompactRegions:
    main_bytes, lane_bytes, stride = (int(headers[k][0]) for k in ("main_bytes", "lane_bytes", "stride"))
    most_main, most_lane = unpack_capacity(headers["capacity"])
    main = memory[:, REGION_HEADER_BYTES : REGION_HEADER_BYTES + main_bytes]
    closed = headers["closed"] == CLOSED_MAGIC
    ring = int(headers["magic"][0]) == RING_MAGIC
    stored, slots = _written(main, stride, closed, headers["advance"], most_main, ring)
    behind = memory[:, REGION_HEADER_BYTES + main_bytes :]
    lanes, lane_slots = _compact_lanes(behind, lane_bytes, stride, most_lane, ring)
    return CompactRegions(headers, stored, lanes, slots, lane_slots)


def _written(
    blocks: U8, stride: int, closed: NDArray[np.bool_], advance: NDArray[np.uint32], most: I64, ring: bool
) -> tuple[NDArray[np.uint32], NDArray[np.void]]:
    """(stored (n,), slots) of n blocks of slots: the prefix whose codes are not 0, at most ``advance`` if closed, and
    ``most`` bytes: what lies behind is what found no room. Of closed rings the oldest slot comes first; of others,
    whose count is not known, the slots come as they lie."""
    capacity = blocks.shape[1] // stride
    whole = blocks[:, : capacity * stride]
    codes = whole.view("<u4")[:, 1 :: stride // 4]
    empty = codes == 0
    if capacity:
        stored = np.where(empty.any(axis=1), empty.argmax(axis=1), capacity)
    else:
        stored = np.zeros(len(blocks), np.int64)
    stored = np.minimum(stored, most // stride)
    led = events_led(advance, stride, ring)
    counted = closed & (stored * stride < most) if ring else closed
    stored = np.where(counted, np.minimum(stored, led), stored)
    mask = np.arange(capacity) < stored[:, None]
    words = whole.view("<u8" if stride == 8 else "<c16")
    if ring:
        words = _turned(words, stored, np.where(closed & ~counted, led % np.maximum(stored, 1), 0))
    slots = words[mask]
    return stored.astype(np.uint32), slots.view(slot_dtype(stride))


def _turned(words: NDArray[Any], count: I64, oldest: I64) -> NDArray[Any]:
    """The rings' slots, words (n, slots), of which the first ``count`` are in use, from the ``oldest`` on."""
    rows = np.flatnonzero(oldest)
    if not len(rows):
        return words
    at, size = np.arange(words.shape[1]), count[rows, None]
    index = np.where(at < size, (at + oldest[rows, None]) % np.maximum(size, 1), at)
    words = words.copy()
    words[rows] = np.take_along_axis(words[rows], index, axis=1)
    return words


def _compact_lanes(
    memory: U8, lane_bytes: int, stride: int, most: I64, ring: bool
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """(table, slots) of the lane blocks of regions, memory (n, 31 * lane_bytes), that led any event."""
    if lane_bytes == 0:
        return np.zeros(0, LANE_STREAM_DTYPE), np.zeros(0, slot_dtype(stride))
    blocks = memory.reshape(len(memory), LANES - 1, lane_bytes)
    words: NDArray[Any] = blocks.view("<u4")
    used = (words[:, :, 0] != 0) | (words[:, :, LANE_HEADER_BYTES // 4 + 1] != 0)
    region, lane = np.nonzero(used)
    rows = blocks[region, lane]
    head = rows[:, :LANE_HEADER_BYTES].copy().view("<u4")
    closed = head[:, 1] == CLOSED_MAGIC
    body = np.ascontiguousarray(rows[:, LANE_HEADER_BYTES:])
    stored, slots = _written(_cut(body, stride), stride, closed, head[:, 0], most[region], ring)
    table = np.zeros(len(region), LANE_STREAM_DTYPE)
    table["region"], table["lane"], table["stored"] = region, lane + 1, stored
    table["advance"] = np.where(closed, head[:, 0], 0)
    return table, slots


def _cut(body: U8, stride: int) -> U8:
    """Whole slots only: a block of 128 B holds seven slots of 16 B behind its header."""
    return np.ascontiguousarray(body[:, : body.shape[1] // stride * stride])
