"""The order of rings whose warps never ended.

A warp that ends leaves its count, and the capture has its ring in order. Without the count the order has to show
itself: along the slots the clock rises, but for one place, where the newest event stands before the oldest. A silence
inside the ring can look like that place: what is kept would then seem to span the rest of 2**32 cycles, so a ring that
seems to span 2**30 or more is left out, and counted; and so is one whose order the tags of token starts, which count
events, contradict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..raw import RegionBatch
from ..wire import LINK_SHIFT, SITE_MASK, TAG_BITS, TAG_LANE_SHIFT, EventKind
from .tables import I64, Regions, SiteTable

WRAP = 1 << 32
LONGEST_SPAN = 1 << 30


def oldest_slots(
    regions: Regions, region: I64, lane: I64, stored: I64, source: I64, full: I64,
    batches: Sequence[RegionBatch], table: SiteTable,
) -> I64:  # fmt: skip
    """The slot of the oldest event of each of the streams ``full`` (rows of the (n,) columns), -1 where that is not
    known."""
    found = np.zeros(len(full), np.int64)
    for i, row in enumerate(full.tolist()):
        at = int(region[row])
        batch = batches[int(regions.batch[at])]
        slots = batch.lane_slots if lane[row] else batch.slots
        slots = slots[int(source[row]) : int(source[row]) + int(stored[row])]
        found[i] = _oldest(slots, regions.headers[at], table)
    return found


def _oldest(slots: NDArray[np.void], header: np.void, table: SiteTable) -> int:
    if len(slots) == 1:
        return 0
    rise = np.roll(slots["clock"], -1) - slots["clock"]
    fall = int(np.argmax(rise))
    if int(rise.astype(np.int64).sum()) != WRAP or WRAP - int(rise[fall]) >= LONGEST_SPAN:
        return -1
    oldest = (fall + 1) % len(slots)
    code = np.roll(slots["code"], -oldest).astype(np.int64)
    site = table.rows(np.array([header["kernel_id"]]), np.zeros(len(code), np.int64), code & SITE_MASK)
    starts = np.flatnonzero(table.kind[site] == EventKind.START)
    bits = TAG_LANE_SHIFT if header["lane_bytes"] else TAG_BITS
    number = (code[starts] >> LINK_SHIFT) - starts & (1 << bits) - 1
    return oldest if len(np.unique(number)) <= 1 else -1
