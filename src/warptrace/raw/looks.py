"""Two looks at memory that kernels write and a drain empties meanwhile: what stood there at the first, for certain.

Nothing orders what a running kernel writes for a copy that runs beside it: an exit header may be seen before the last
slots, a slot before its payload. So the first look says *what* is there and the second, some milliseconds later,
gives the bytes, by then settled. A region that was handed back in between is left out: whoever handed it back has
written it to the capture before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..wire import CLOSED_MAGIC, LOST_DTYPE, LOST_MAGIC, REGION_DTYPE, SLOT8_DTYPE
from .format import LANE_STREAM_DTYPE, REGION_OFFSET_FIELD, BankImage
from .regions import CompactRegions, compact, find_regions

I64 = NDArray[np.int64]

_IDENTITY = ("position", "kernel_id", "grid_id", "cta", "warp", "main_bytes", "lane_bytes", "stride", "entry_clock")
"""Header fields that are written once, before the first event."""


@dataclass(frozen=True)
class Look:
    """What the first look found, by offset: headers (n,), main slots ``stored`` (n,), and of other lanes ``lanes``
    (m,) LANE_STREAM_DTYPE, ordered by (region, lane). ``skipped``: claimed bytes in which no header stands."""

    headers: NDArray[np.void]
    stored: NDArray[np.uint32]
    lanes: NDArray[np.void]
    skipped: int

    @property
    def open(self) -> int:
        """Regions of warps that had not ended."""
        return int((self.headers["closed"] != CLOSED_MAGIC).sum())


@dataclass(frozen=True)
class Settled:
    """A part of what both looks agree on. ``moved``: regions that were open in the first look and had gone on by the
    second."""

    regions: CompactRegions
    moved: int


def first_look(images: Iterable[BankImage]) -> Look:
    """The regions of one bank's memory, without their slots."""
    headers, stored, lanes = [np.zeros(0, REGION_DTYPE)], [np.zeros(0, np.uint32)], [np.zeros(0, LANE_STREAM_DTYPE)]
    count = skipped = 0
    for part, missed in _regions(images):
        part.lanes["region"] += count
        count += len(part.headers)
        skipped += missed
        headers.append(part.headers.copy())
        stored.append(part.stored)
        lanes.append(part.lanes)
    return _by_offset(np.concatenate(headers), np.concatenate(stored), np.concatenate(lanes), skipped)


def second_look(images: Iterable[BankImage], first: Look) -> Iterable[Settled]:
    """What the first look saw of the same bank, with the bytes of this one."""
    for part, _ in _regions(images):
        yield _settled(part, first)


def settled_losses(first: NDArray[np.void], second: NDArray[np.void]) -> NDArray[np.void]:
    """Rows of the lost table, (n,) LOST_DTYPE, that were whole at the first look."""
    whole = (first["magic"] == LOST_MAGIC) & (first == second)
    rows: NDArray[np.void] = second[whole].astype(LOST_DTYPE, copy=False)
    return rows


def _regions(images: Iterable[BankImage]) -> Iterable[tuple[CompactRegions, int]]:
    """(part, bytes without a header in its piece, told with one part of each piece)."""
    ends: dict[int, int] = {}
    none = np.zeros(0, REGION_DTYPE)
    for image in images:
        begin = max(0, ends.get(image.base, image.position) - image.position)
        found = find_regions(image, begin)
        ends[image.base] = image.position + found.end
        skipped = found.skipped
        for part in compact(image, found):
            yield part, skipped
            skipped = 0
        if skipped:
            slots = np.zeros(0, SLOT8_DTYPE)
            yield CompactRegions(none, np.zeros(0, np.uint32), np.zeros(0, LANE_STREAM_DTYPE), slots, slots), skipped


def _by_offset(
    headers: NDArray[np.void], stored: NDArray[np.uint32], lanes: NDArray[np.void], skipped: int
) -> Look:
    order = np.argsort(headers[REGION_OFFSET_FIELD], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lanes["region"] = rank[lanes["region"]]
    lanes = lanes[np.lexsort((lanes["lane"], lanes["region"]))]
    return Look(headers[order], stored[order], lanes, skipped)


def _settled(part: CompactRegions, first: Look) -> Settled:
    at = np.searchsorted(first.headers[REGION_OFFSET_FIELD], part.headers[REGION_OFFSET_FIELD])
    at = np.minimum(at, max(len(first.headers) - 1, 0))
    known = np.zeros(len(part.headers), np.bool_)
    if len(first.headers):
        earlier = first.headers[at]
        known = earlier[REGION_OFFSET_FIELD] == part.headers[REGION_OFFSET_FIELD]
        for name in _IDENTITY:
            same = earlier[name] == part.headers[name]
            known &= same.all(axis=1) if same.ndim > 1 else same
        known &= part.stored >= first.stored[at]
    if not known.any():
        return Settled(_cut(part, known, part.headers, part.stored, _no_lanes(part)), 0)
    earlier = first.headers[at]
    was_open = earlier["closed"] != CLOSED_MAGIC
    headers = np.where(was_open, earlier, part.headers)
    part.lanes["advance"][was_open[part.lanes["region"]]] = 0
    stored = np.where(was_open, np.minimum(part.stored, first.stored[at]), part.stored).astype(np.uint32)
    lane_stored = _lane_counts(part, first, at, was_open)
    went_on = part.headers["closed"] == CLOSED_MAGIC
    went_on |= part.stored > stored
    grown = part.lanes["region"][part.lanes["stored"].astype(np.int64) > lane_stored]
    went_on[grown] = True
    moved = int((known & was_open & went_on).sum())
    return Settled(_cut(part, known, headers, stored, lane_stored), moved)


def _no_lanes(part: CompactRegions) -> I64:
    return np.zeros(len(part.lanes), np.int64)


def _lane_counts(part: CompactRegions, first: Look, at: I64, was_open: NDArray[np.bool_]) -> I64:
    """Slots of each lane stream of the part that count: of an open region those of the first look, 0 if it had none
    then."""
    region = part.lanes["region"].astype(np.int64)
    stored: I64 = part.lanes["stored"].astype(np.int64)
    key = first.lanes["region"].astype(np.int64) * 32 + first.lanes["lane"]
    wanted = at[region] * 32 + part.lanes["lane"]
    earlier = np.zeros(len(region), np.int64)
    if len(key):
        place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        earlier = np.where(key[place] == wanted, first.lanes["stored"][place], 0).astype(np.int64)
    return np.where(was_open[region], np.minimum(stored, earlier), stored)


def _cut(
    part: CompactRegions,
    keep: NDArray[np.bool_],
    headers: NDArray[np.void],
    stored: NDArray[np.uint32],
    lane_stored: I64,
) -> CompactRegions:
    """The part with only the regions of ``keep``, and of each of their streams only the first slots."""
    lane_region = part.lanes["region"].astype(np.int64)
    lane_keep = keep[lane_region] & ((lane_stored > 0) | (part.lanes["advance"] > 0))
    lanes = part.lanes[lane_keep].copy()
    lanes["stored"] = lane_stored[lane_keep]
    lanes["region"] = (np.cumsum(keep) - 1)[lane_region[lane_keep]]
    return replace(
        part,
        headers=headers[keep],
        stored=stored[keep],
        lanes=lanes,
        slots=_prefixes(part.slots, part.stored, np.where(keep, stored, 0)),
        lane_slots=_prefixes(part.lane_slots, part.lanes["stored"], np.where(lane_keep, lane_stored, 0)),
    )


def _prefixes(slots: NDArray[np.void], counts: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.void]:
    """The first ``wanted`` of each stream's ``counts`` slots."""
    counts = counts.astype(np.int64)
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.arange(int(counts.sum())) - begin
    kept: NDArray[np.void] = slots[within < np.repeat(wanted.astype(np.int64), counts)]
    return kept
