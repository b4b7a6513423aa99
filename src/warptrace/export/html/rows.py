"""Where ranges stand in the timeline: the row of each within its warp.

Slices of one row do not overlap. Stack ranges stand by their nesting, a block of rows for each lane of stacks that
cross; below them token ranges, each in the lowest row that is free.
"""

from __future__ import annotations

import numpy as np

from ...trace import I64, RANGE_STACK, Ranges
from ..perfetto import stack_lanes, token_lanes


def timeline_rows(ranges: Ranges) -> I64:
    """The row of every range within its warp, from 0. Ranges are ordered by (warp, start)."""
    row = np.zeros(len(ranges), np.int64)
    # The end of one range comes before a start that shares its stamp.
    start, end = ranges.start_seq * 2 + 1, ranges.end_seq * 2
    warp = ranges.warp.astype(np.int64)
    stacked = ranges.kind == RANGE_STACK
    stacks, tokens = np.flatnonzero(stacked), np.flatnonzero(~stacked)
    heights = np.zeros(int(warp.max(initial=-1)) + 1, np.int64)
    if len(stacks):
        lane = stack_lanes(warp[stacks], ranges.lane[stacks], start[stacks], end[stacks])
        depth = _depth(warp[stacks], lane, start[stacks], end[stacks])
        first = _first_row(warp[stacks], lane, depth)
        row[stacks] = first + depth
        np.maximum.at(heights, warp[stacks], row[stacks] + 1)
    if len(tokens):
        same = np.zeros(len(tokens), np.int32)
        row[tokens] = heights[warp[tokens]] + token_lanes(warp[tokens], same, start[tokens], end[tokens])
    return row


def _depth(warp: I64, lane: I64, start: I64, end: I64) -> I64:
    """How many ranges of the same (warp, lane) are open where each starts."""
    count = len(warp)
    key = np.concatenate([start, end])
    order = np.lexsort((key, np.tile(lane, 2), np.tile(warp, 2)))
    step = np.where(order < count, 1, -1)
    depth = np.empty(2 * count, np.int64)
    depth[order] = np.cumsum(step)  # every (warp, lane) begins and ends with nothing open
    return depth[:count] - 1


def _first_row(warp: I64, lane: I64, depth: I64) -> I64:
    """The first row of the block of each range's (warp, lane): what the lanes before it need."""
    lanes = int(lane.max()) + 1
    if lanes == 1:
        return np.zeros(len(warp), np.int64)
    distinct, index = np.unique(warp * lanes + lane, return_inverse=True)
    index = index.reshape(-1)
    rows = np.zeros(len(distinct), np.int64)
    np.maximum.at(rows, index, depth + 1)
    before = np.cumsum(rows) - rows
    owner = distinct // lanes
    new = np.concatenate([[True], owner[1:] != owner[:-1]])
    first: I64 = before - before[new][np.cumsum(new) - 1]
    return first[index]
