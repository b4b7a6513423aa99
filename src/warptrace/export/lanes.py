"""Lines of a timeline on which slices nest, for formats whose readers cannot draw others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import I64, RANGE_STACK, Trace
from ._common import Chunk
from .perfetto import stack_lanes, token_lanes

WARP = ""
"""Name of the line of a warp's life time, markers and push/pop ranges."""


@dataclass(frozen=True)
class Lanes:
    """The lines of some warps, in order of warp: ``names`` and ``warp`` (row of Warps) say what each is; ``of_life``,
    ``of_range`` and ``of_marker`` give the line of each row of the chunk. ``range_order``: rows in an order in which
    of ranges that begin together on a line the outer comes first."""

    names: list[str]
    warp: I64
    of_life: I64
    of_range: I64
    of_marker: I64
    range_order: I64


def assign_lanes(trace: Trace, chunk: Chunk) -> Lanes:
    """A line for each warp and its stack ranges, and further ones for token ranges by name, as many as overlap."""
    r, m, first = trace.ranges, trace.markers, chunk.warps.start
    part = chunk.ranges
    warps = chunk.warps.stop - first
    warp = r.warp[part].astype(np.int64) - first
    start, end = r.start_seq[part] * 2 + 1, r.end_seq[part] * 2
    stacked = r.kind[part] == RANGE_STACK
    lane = np.zeros(len(warp), np.int64)
    lane[~stacked] = token_lanes(warp[~stacked], r.name[part][~stacked], start[~stacked], end[~stacked])
    lane[stacked] = stack_lanes(warp[stacked], r.lane[part][stacked], start[stacked], end[stacked])
    slots, lanes = len(trace.strings) + 1, int(lane.max(initial=0)) + 1
    slot = np.where(stacked, 0, r.name[part].astype(np.int64) + 1)
    code = (warp * slots + slot) * lanes + lane
    life = np.arange(warps) * slots * lanes
    distinct, index = np.unique(np.concatenate([life, code]), return_inverse=True)
    index = index.reshape(-1)
    names = []
    for one in (distinct % (slots * lanes)).tolist():
        slot_of, lane_of = divmod(one, lanes)
        base = WARP if slot_of == 0 else trace.strings[slot_of - 1]
        names.append(base if lane_of == 0 else f"{base} #{lane_of + 1}".lstrip())
    return Lanes(
        names=names,
        warp=distinct // (slots * lanes) + first,
        of_life=index[:warps],
        of_range=index[warps:],
        of_marker=index[:warps][m.warp[chunk.markers].astype(np.int64) - first],
        range_order=np.lexsort((start, r.start_ns[part], warp)),
    )
