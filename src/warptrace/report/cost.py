"""What recording an event costs the warp, as measured: the report's estimate of tracing's own share.

Cycles an iteration of a tight loop with one event (or pair) in it, or those that it adds to a loop that works,
whichever is more, by warps an SM, on :data:`DEVICE`; from ``benchmarks/results/event-cost-h200-2026-11-30.json``. Real
loops hide part of it, so it is an upper estimate.
"""

from __future__ import annotations

import numpy as np

from ..trace import I64, RANGE_TOKEN, Trace
from .groups import sum_by
from .sweep import LaunchRows

DEVICE = "NVIDIA H200"
DATE = "2026-11-30"
WARPS_PER_SM = (1, 4, 8, 16)
CYCLES = {
    "mark": (31.51, 31.52, 36.02, 45.72),
    "mark_i32": (31.52, 31.52, 38.53, 44.93),
    "push_pop": (39.56, 39.58, 39.66, 51.75),
    "push_i32_pop": (37.62, 37.64, 39.76, 60.33),
    "start_end": (48.63, 46.67, 48.83, 65.7),
}


def cost_of(form: str, warps_per_sm: int) -> float:
    """Cycles of one event (or pair) of a form, by the measured number of warps that is next above."""
    column = next((i for i, warps in enumerate(WARPS_PER_SM) if warps >= warps_per_sm), len(WARPS_PER_SM) - 1)
    return CYCLES[form][column]


def warp_costs(trace: Trace, rows: LaunchRows, warps_per_sm: int) -> I64:
    """Estimated cycles that each warp of a launch spent on its events."""
    r, m, first = trace.ranges, trace.markers, rows.warps.start
    hundredths = {form: round(100 * cost_of(form, warps_per_sm)) for form in CYCLES}
    paid, token = r.start_type[rows.ranges] != 0, r.kind[rows.ranges] == RANGE_TOKEN
    stack = np.where(paid, hundredths["push_i32_pop"], hundredths["push_pop"])
    ranges = np.where(token, hundredths["start_end"], stack).astype(np.int64)
    marks = np.where(m.type[rows.markers] != 0, hundredths["mark_i32"], hundredths["mark"]).astype(np.int64)
    total = sum_by(ranges, r.warp[rows.ranges].astype(np.int64) - first, rows.warp_count)
    total += sum_by(marks, m.warp[rows.markers].astype(np.int64) - first, rows.warp_count)
    return total // 100
