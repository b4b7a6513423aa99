"""Assertions on a trace, for tests of kernels: ``Check(trace).complete().names("load").count("load", 4, per="warp")``.

Each method raises AssertionError, with the first row that is not as asked, or returns the check. The pytest fixture
``warptrace_capture`` (:mod:`warptrace.pytest_plugin`) records a block and gives the check of it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .trace import I64, Trace

Bools = NDArray[np.bool_]
Per = Literal["trace", "launch", "cta", "warp"]

UNPAIRED = ("unpaired_push", "unpaired_pop", "unpaired_start", "unpaired_end", "ambiguous_end")


class Check:
    """Assertions on the launches of ``trace`` whose kernel or symbol contains ``kernel`` (None: all)."""

    def __init__(self, trace: Trace, kernel: str | None = None) -> None:
        self.trace = trace
        self._launches = [
            one for one in trace.launches if kernel is None or kernel in one.kernel or kernel in one.symbol
        ]
        if not self._launches:
            have = ", ".join(dict.fromkeys(one.kernel for one in trace.launches)) or "none"
            of = "" if kernel is None else f" of {kernel!r}"
            raise AssertionError(f"no launch{of} was recorded (kernels: {have})")
        chosen = np.zeros(len(trace.launches), np.bool_)
        chosen[[one.index for one in self._launches]] = True
        self._warps: Bools = chosen[trace.warps.launch]

    def kernel(self, text: str) -> Check:
        """The same trace, only launches whose kernel or symbol contains ``text``."""
        return Check(self.trace, text)

    def launches(self, count: int) -> Check:
        """There are exactly so many."""
        if len(self._launches) != count:
            raise AssertionError(f"{len(self._launches)} launches were recorded, not {count}")
        return self

    def complete(self) -> Check:
        """Every warp was recorded from entry to exit, no event was lost, and every range was closed."""
        for one in self._launches:
            if one.lost_events or one.lost_warps:
                raise AssertionError(f"{_launch(one.index)} lost {one.lost_events} events and {one.lost_warps} warps")
            if one.warps_recorded != one.warps_expected:
                raise AssertionError(
                    f"{one.warps_recorded} of {one.warps_expected} warps of {_launch(one.index)} were recorded"
                )
        open_warps = np.flatnonzero(self._warps & (self.trace.warps.closed == 0))
        if len(open_warps):
            raise AssertionError(f"{self._warp(int(open_warps[0]))} was not seen to end")
        return self.closed()

    def closed(self) -> Check:
        """Every start has its end, every push its pop, and the other way round."""
        chosen = {one.index for one in self._launches}
        for problem in self.trace.problems:
            if problem.kind in UNPAIRED and (problem.launch is None or problem.launch in chosen):
                raise AssertionError(problem.text)
        return self

    def names(self, *names: str) -> Check:
        """There is at least one range or marker of each name."""
        for name in names:
            if not len(self._ranges(name)) and not len(self._markers(name)):
                used = ", ".join(sorted(self._used())) or "none"
                raise AssertionError(f"no range or marker is named {name!r} (names: {used})")
        return self

    def only_names(self, *names: str) -> Check:
        """Ranges and markers have these names and no others."""
        more = sorted(self._used() - set(names))
        if more:
            raise AssertionError(f"there are more names: {', '.join(more)}")
        return self.names(*names)

    def count(self, name: str, count: int, *, per: Per = "trace") -> Check:
        """So many ranges and markers of a name: in all, in each launch, in each CTA or in each warp that has any."""
        ranges, markers = self.trace.ranges.warp[self._ranges(name)], self.trace.markers.warp[self._markers(name)]
        warps = np.concatenate([ranges, markers])
        groups = self._groups(warps.astype(np.int64), per)
        if per == "trace" or not len(warps):
            if len(warps) != count:
                raise AssertionError(f"{name!r} was recorded {len(warps)} times, not {count}")
            return self
        found, first, number = np.unique(groups, return_index=True, return_counts=True)
        wrong = np.flatnonzero(number != count)
        if len(wrong):
            at = self._warp(int(warps[first[wrong[0]]]), per)
            raise AssertionError(f"{name!r} was recorded {int(number[wrong[0]])} times in {at}, not {count}")
        if per == "launch" and len(found) != len(self._launches):
            missing = {one.index for one in self._launches} - set(found.tolist())
            raise AssertionError(f"{name!r} was not recorded in {_launch(min(missing))}")
        return self

    def nested(self, inner: str, outer: str) -> Check:
        """Every range ``inner`` lies in a range ``outer`` of its warp, and both exist."""
        r = self.trace.ranges
        inside, outside = self._some_ranges(inner), self._some_ranges(outer)
        span = 2 * (int(r.end_seq.max(initial=0)) + 2)

        def keys(rows: I64) -> tuple[I64, I64]:
            """Program order over all warps; where one stamp ends a range and starts another the end is first."""
            warp = r.warp[rows].astype(np.int64) * span
            return warp + 2 * r.start_seq[rows] + 1, warp + 2 * r.end_seq[rows]

        (begin, end), (start, stop) = keys(outside), keys(inside)
        # Of the outer ranges that started before, the one that ends last; in an earlier warp it ends before any start.
        latest = np.maximum.accumulate(end)
        at = np.searchsorted(begin, start) - 1
        wrong = inside[(at < 0) | (latest[at] < stop)]
        if len(wrong):
            raise AssertionError(f"{self._range(int(wrong[0]))} lies in no {outer!r}")
        return self

    def no_overlap(self, name: str) -> Check:
        """No two ranges of a name are open at once in a warp."""
        r, rows = self.trace.ranges, self._some_ranges(name)
        same = r.warp[rows][1:] == r.warp[rows][:-1]
        # Rows are in order of start: a range crosses the next if it ends after that one starts.
        wrong = np.flatnonzero(same & (r.end_seq[rows][:-1] > r.start_seq[rows][1:]))
        if len(wrong):
            row = int(rows[wrong[0] + 1])
            raise AssertionError(f"{self._range(row)} begins before the {name!r} before it has ended")
        return self

    def budget(self, name: str, cycles: int, *, percentile: int = 100) -> Check:
        """Ranges of a name take at most so many cycles: all of them, or the ``percentile``-th by nearest rank."""
        if not 0 < percentile <= 100:
            raise UsageError(f"percentile {percentile} is not between 1 and 100")
        r, rows = self.trace.ranges, self._some_ranges(name)
        took = r.end_cycle[rows] - r.start_cycle[rows]
        value = np.sort(took)[max(-(-percentile * len(rows) // 100), 1) - 1]
        at = int(np.argmax(took == value))
        if took[at] > cycles:
            which = "" if percentile == 100 else f", the {percentile}th percentile of {len(rows)},"
            what = f"{self._range(int(rows[at]))}{which} takes {int(took[at])} cycles"
            raise AssertionError(f"{what}, more than {cycles}")
        return self

    # ------------------------------------------------------------------------------------------------- rows
    def _rows(self, name: str, names: NDArray[np.int32], warp: NDArray[np.int32]) -> I64:
        if name not in self.trace.strings:
            return np.empty(0, np.int64)
        out: I64 = np.flatnonzero((names == self.trace.strings.index(name)) & self._warps[warp])
        return out

    def _ranges(self, name: str) -> I64:
        return self._rows(name, self.trace.ranges.name, self.trace.ranges.warp)

    def _some_ranges(self, name: str) -> I64:
        rows = self._ranges(name)
        if not len(rows):
            self.names(name)
            raise AssertionError(f"{name!r} is a marker, not a range")
        return rows

    def _markers(self, name: str) -> I64:
        return self._rows(name, self.trace.markers.name, self.trace.markers.warp)

    def _used(self) -> set[str]:
        tables = (self.trace.ranges, self.trace.markers)
        codes = np.unique(np.concatenate([table.name[self._warps[table.warp]] for table in tables]))
        return {self.trace.strings[code] for code in codes.tolist()}

    def _groups(self, warps: I64, per: Per) -> I64:
        w = self.trace.warps
        if per == "launch":
            return w.launch[warps].astype(np.int64)
        if per == "cta":
            x, y, z = w.cta[warps].astype(np.int64).T
            key = np.stack([w.launch[warps].astype(np.int64), x, y, z])
            return np.unique(key, axis=1, return_inverse=True)[1].reshape(-1) if len(warps) else warps
        if per in ("warp", "trace"):
            return warps
        raise UsageError(f"per {per!r} is none of trace, launch, cta, warp")

    def _warp(self, row: int, per: Per = "warp") -> str:
        w = self.trace.warps
        launch = _launch(int(w.launch[row]))
        if per == "launch":
            return launch
        cta = f"CTA ({', '.join(map(str, w.cta[row].tolist()))}) of {launch}"
        return cta if per == "cta" else f"warp {int(w.warp[row])} of {cta}"

    def _range(self, row: int) -> str:
        r = self.trace.ranges
        name = self.trace.strings[r.name[row]]
        return f"{name!r} at cycle {int(r.start_cycle[row])} of {self._warp(int(r.warp[row]))}"


def _launch(index: int) -> str:
    return f"launch {index + 1}"
