"""One pass over the events of a launch: what each moment of each warp belongs to.

A moment belongs to the range of its warp that started last among those open (the innermost, where ranges nest); the
sum of these *self times* is what ranges cover, the rest of a warp's life is *gaps*. All in cycles of the warp's SM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..trace import I64, Launch, Trace

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class LaunchRows:
    """Where the rows of a launch stand; all tables are ordered by launch."""

    warps: slice
    ranges: slice
    markers: slice

    @property
    def warp_count(self) -> int:
        """Recorded warps."""
        return int(self.warps.stop - self.warps.start)


def launch_rows(trace: Trace, launch: Launch) -> LaunchRows:
    """The rows of ``launch``."""

    def part(column: np.ndarray, first: int, last: int) -> slice:
        low, high = np.searchsorted(column, [first, last])
        return slice(int(low), int(high))

    warps = part(trace.warps.launch, launch.index, launch.index + 1)
    ranges, markers = (part(t.warp, warps.start, warps.stop) for t in (trace.ranges, trace.markers))
    return LaunchRows(warps, ranges, markers)


@dataclass(frozen=True)
class Gaps:
    """A row a gap: ``warp`` in the launch; names (index into Trace.strings) of the ranges around it, -1: the warp's
    begin or end."""

    warp: I64
    after: I64
    before: I64
    cycles: I64


@dataclass(frozen=True)
class Sweep:
    """Columns over the ranges of a launch, then over its warps. Rows are numbered within the launch.

    ``container``: the nearest earlier range of the warp that holds the whole range, -1: none; ``outermost``: the last
    of that chain, the range itself where it has none."""

    container: I64
    outermost: I64
    self_cycles: I64
    life: I64
    covered: I64
    waiting: I64
    gaps: Gaps


def sweep(trace: Trace, rows: LaunchRows, waits: Bools) -> Sweep:
    """The pass; ``waits`` says of each name (index into Trace.strings) whether it is a wait."""
    r = trace.ranges
    part = rows.ranges
    warp = r.warp[part].astype(np.int64) - rows.warps.start
    first_row = np.searchsorted(warp, np.arange(rows.warp_count + 1))
    start, end = program_order(r.start_seq[part], r.end_seq[part], warp)
    container = containers(end, first_row[warp])
    life = lives(trace, rows)
    moments = _Moments(r.start_cycle[part], r.end_cycle[part], start, end, warp, container)
    self_cycles, gaps = moments.split(r.name[part].astype(np.int64), life)
    covered = np.bincount(warp, self_cycles.astype(np.float64), rows.warp_count).astype(np.int64)
    waiting = moments.waiting(waits[r.name[part]], rows.warp_count)
    return Sweep(container, outermost(container), self_cycles, life, covered, waiting, gaps)


def program_order(start_seq: I64, end_seq: I64, warp: I64) -> tuple[I64, I64]:
    """Program order as one number for the launch; where one stamp ends a range and starts another the end is first."""
    span = 2 * (int(end_seq.max(initial=0)) + 2)
    return warp * span + start_seq * 2 + 1, warp * span + end_seq * 2


def containers(end: I64, first_row: I64) -> I64:
    """For each range, in order of start, the nearest earlier one of its warp with a later end; -1: none.

    Each round doubles how far a row looks: no row between it and its candidate ends later.
    """
    out = np.arange(len(end)) - 1
    out[out < first_row] = -1
    active = np.flatnonzero(out >= 0)
    while len(active := active[end[out[active]] < end[active]]):
        out[active] = out[out[active]]
        active = active[out[active] >= 0]
    return out


def outermost(container: I64) -> I64:
    """The end of each row's chain of containers."""
    out = np.where(container < 0, np.arange(len(container)), container)
    while np.any((further := out[out]) != out):
        out = further
    return out


def lives(trace: Trace, rows: LaunchRows) -> I64:
    """Cycles from entry to exit of every warp of a launch; to its last event where the exit was not seen."""
    w, r, m = trace.warps, trace.ranges, trace.markers
    last = np.zeros(rows.warp_count, np.int64)
    np.maximum.at(last, r.warp[rows.ranges] - rows.warps.start, r.end_cycle[rows.ranges])
    np.maximum.at(last, m.warp[rows.markers] - rows.warps.start, m.cycle[rows.markers])
    cycles = w.cycles[rows.warps]
    return np.where(cycles >= 0, cycles, last)


class _Moments:
    """The starts and ends of a launch's ranges in program order, and the time from each to the next."""

    def __init__(self, start_cycle: I64, end_cycle: I64, start: I64, end: I64, warp: I64, container: I64) -> None:
        count = len(start)
        self.order = np.argsort(np.concatenate([start, end]), kind="stable")
        self.row = self.order % count if count else self.order
        self.is_end = self.order >= count
        self.warp = warp[self.row]
        self.cycle = np.concatenate([start_cycle, end_cycle])[self.order]
        self.last = np.ones(2 * count, np.bool_)
        self.last[:-1] = self.warp[1:] != self.warp[:-1]
        self.length = np.zeros(2 * count, np.int64)
        self.length[:-1] = np.maximum(self.cycle[1:] - self.cycle[:-1], 0)
        self.length[self.last] = 0
        self.innermost = self._innermost(end, container)

    def _innermost(self, end: I64, container: I64) -> I64:
        """Row that started last among those open after each event; -1: none is open."""
        starts = np.cumsum(~self.is_end) - 1  # the row that started last, open or not
        out = np.where(self.is_end, starts, self.row)
        now = np.zeros(len(out), np.int64)
        now[self.is_end] = end[self.row[self.is_end]]
        active = np.flatnonzero(self.is_end)
        while len(active := active[end[out[active]] <= now[active]]):
            out[active] = container[out[active]]
            active = active[out[active] >= 0]
        return out

    def split(self, name: I64, life: I64) -> tuple[I64, Gaps]:
        """Self time of every range, and the gaps."""
        count = len(name)
        held = self.innermost >= 0
        sums = np.bincount(self.innermost[held], self.length[held].astype(np.float64), count)
        bare = np.flatnonzero(~held)
        after = name[self.row[bare]]
        following = np.minimum(bare + 1, max(len(self.row) - 1, 0))
        before = np.where(self.last[bare], -1, name[self.row[following]])
        tail = np.where(self.last[bare], np.maximum(life[self.warp[bare]] - self.cycle[bare], 0), self.length[bare])
        first = np.flatnonzero(np.concatenate([[True], self.last[:-1]])) if count else bare
        gaps = Gaps(
            warp=np.concatenate([self.warp[first], self.warp[bare]]),
            after=np.concatenate([np.full(len(first), -1), after]),
            before=np.concatenate([name[self.row[first]], before]),
            cycles=np.concatenate([np.maximum(self.cycle[first], 0), tail]),
        )
        return sums.astype(np.int64), gaps

    def waiting(self, wait: Bools, warps: int) -> I64:
        """Cycles of every warp in which a wait is open, those inside of waits once."""
        step = np.where(self.is_end, -1, 1) * wait[self.row]
        open_waits = np.cumsum(step) > 0
        lengths = self.length[open_waits].astype(np.float64)
        return np.bincount(self.warp[open_waits], lengths, warps).astype(np.int64)
