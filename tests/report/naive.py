"""The statistics again, by plain loops over rows: the referee of the column-wise ones."""

from __future__ import annotations

from dataclasses import dataclass

from warptrace.trace import Trace

Gap = tuple[str | None, str | None, int]


@dataclass(frozen=True)
class Interval:
    """A range of one warp; keys are program order."""

    row: int
    name: str
    start_key: int
    end_key: int
    start: int
    end: int


def intervals(trace: Trace, warp: int) -> list[Interval]:
    """The ranges of a warp."""
    r = trace.ranges
    return [
        Interval(
            row,
            trace.strings[r.name[row]],
            2 * int(r.start_seq[row]) + 1,
            2 * int(r.end_seq[row]),
            int(r.start_cycle[row]),
            int(r.end_cycle[row]),
        )
        for row in range(len(r))
        if r.warp[row] == warp
    ]


def life(trace: Trace, warp: int) -> int:
    """Cycles from entry to exit, else to the last event."""
    if trace.warps.cycles[warp] >= 0:
        return int(trace.warps.cycles[warp])
    r, m = trace.ranges, trace.markers
    ends = [int(cycle) for cycle, owner in zip(r.end_cycle, r.warp) if owner == warp]
    return max(ends + [int(cycle) for cycle, owner in zip(m.cycle, m.warp) if owner == warp], default=0)


def walk(trace: Trace, warp: int, waits: set[str]) -> tuple[dict[int, int], int, list[Gap]]:
    """Self time by row, time in waits, and gaps as (after, before, cycles)."""
    found = intervals(trace, warp)
    events = [(one.start_key, one.start, one) for one in found] + [(one.end_key, one.end, one) for one in found]
    own, waiting = {one.row: 0 for one in found}, 0
    gaps: list[Gap] = []
    open_now: list[Interval] = []
    before, at = None, 0
    for key, cycle, one in sorted(events, key=lambda event: event[0]):
        if open_now:
            own[max(open_now, key=lambda other: other.start_key).row] += cycle - at
            waiting += (cycle - at) * any(other.name in waits for other in open_now)
        else:
            gaps.append((before, one.name, cycle - at))
        if key == one.start_key:
            open_now.append(one)
        else:
            open_now.remove(one)
        before, at = one.name, cycle
    if events:
        gaps.append((before, None, life(trace, warp) - at))
    return own, waiting, gaps


def container(mine: Interval, found: list[Interval]) -> int:
    """Row of the nearest earlier range that ends later; -1: none."""
    holders = [one for one in found if one.start_key < mine.start_key and one.end_key > mine.end_key]
    return max((one.row for one in holders), default=-1)


def nearest_rank(values: list[int], percent: int) -> int:
    """The percentile that occurred."""
    return sorted(values)[max(-(-percent * len(values) // 100), 1) - 1]
