"""Ranges less what recording the events inside them cost, as ``report --subtract-event-cost`` shows it beside the raw.

The time from one event's stamp to the next holds half of what either costs, and is not made negative: events that were
stored together share a stamp. A range is the sum of such times, so a range's net time is that of what it contains. The
costs are those of :mod:`.cost`, of a tight loop: an upper estimate, for real loops hide part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import I64, RANGE_TOKEN, Trace
from .cost import CYCLES, cost_of
from .groups import grouped
from .stats import LaunchView
from .sweep import LaunchRows

PARTS = 400
"""Costs are counted in this part of a cycle: a pair of events costs hundredths, an event half of that, an interval half
of either of its events."""


@dataclass(frozen=True)
class NetRow:
    """Ranges of one name in one role, in cycles: as recorded, and less the cost of events."""

    role: str
    name: str
    count: int
    total: int
    net_total: int
    mean: float
    net_mean: float
    p50: int
    net_p50: int


def net_rows(view: LaunchView) -> tuple[NetRow, ...]:
    """A row for each role and name of a launch, in the order of the report's tables."""
    net = net_cycles(view.trace, view.rows, view.warps_per_sm)
    names, roles = len(view.strings), len(view.roles.roles)
    code = view.role * names + view.name
    raw, less = grouped(view.cycles, code, roles * names), grouped(net, code, roles * names)
    out = []
    for role in view.present:
        for row in view.name_rows.get(role, ()):
            group = role * names + view.strings.index(row.name)
            count, total = int(raw.count[group]), int(less.total[group])
            out.append(
                NetRow(
                    role=view.roles.roles[role].name,
                    name=row.name,
                    count=count,
                    total=int(raw.total[group]),
                    net_total=total,
                    mean=int(raw.total[group]) / count,
                    net_mean=total / count,
                    p50=int(raw.p50[group]),
                    net_p50=int(less.p50[group]),
                )
            )
    return tuple(out)


def net_cycles(trace: Trace, rows: LaunchRows, warps_per_sm: int) -> I64:
    """Cycles of each range of a launch less the cost of events, rounded to whole cycles."""
    r, m, first = trace.ranges, trace.markers, rows.warps.start
    part, marks = rows.ranges, rows.markers
    half, whole = _pair_parts(trace, rows, warps_per_sm), _mark_parts(trace, rows, warps_per_sm)
    n = len(half)
    warp = np.concatenate([r.warp[part], r.warp[part], m.warp[marks]]).astype(np.int64) - first
    # Where one event ends a range and starts the next (switch) the end comes first, and costs what the start costs.
    seq = np.concatenate([2 * r.start_seq[part] + 1, 2 * r.end_seq[part], 2 * m.seq[marks] + 1])
    cycle = np.concatenate([r.start_cycle[part], r.end_cycle[part], m.cycle[marks]])
    cost = np.concatenate([half, half, whole])
    order = np.lexsort((seq, warp))
    warp, number, cycle, cost = warp[order], seq[order] >> 1, cycle[order], cost[order]
    same = (warp[1:] == warp[:-1]) & (number[1:] == number[:-1])
    cost[:-1][same] = cost[1:][same]
    spent = np.zeros(len(order), np.int64)
    spent[1:] = np.maximum(PARTS * (cycle[1:] - cycle[:-1]) - cost[1:] - cost[:-1], 0)
    spent[1:][warp[1:] != warp[:-1]] = 0
    until = np.empty(len(order), np.int64)
    until[order] = np.cumsum(spent)
    net: I64 = (until[n : 2 * n] - until[:n] + PARTS // 2) // PARTS
    return net


def _pair_parts(trace: Trace, rows: LaunchRows, warps_per_sm: int) -> I64:
    """Half of what either event of each range costs: a quarter of its pair, in parts of a cycle."""
    r, part = trace.ranges, rows.ranges
    parts = {form: round(PARTS / 4 * cost_of(form, warps_per_sm)) for form in CYCLES}
    stack = np.where(r.start_type[part] != 0, parts["push_i32_pop"], parts["push_pop"])
    return np.where(r.kind[part] == RANGE_TOKEN, parts["start_end"], stack).astype(np.int64)


def _mark_parts(trace: Trace, rows: LaunchRows, warps_per_sm: int) -> I64:
    """Half of what each marker costs, in parts of a cycle."""
    parts = {form: round(PARTS / 2 * cost_of(form, warps_per_sm)) for form in CYCLES}
    paid = trace.markers.type[rows.markers] != 0
    return np.where(paid, parts["mark_i32"], parts["mark"]).astype(np.int64)
