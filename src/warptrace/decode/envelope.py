"""Where the true time can lie, given anchors and limits of the clock's rate: for clocks whose rate moves.

An anchor bounds the true time at its cycle; limits of ns per cycle carry the bounds to all other cycles, growing wider
on the way. The least of all upper bounds and the greatest of all lower ones are the *envelope* of every clock that
fits: they follow from one sweep forward and one back. The middle of the envelope is the best map (it too keeps the
limits of the rate, so it rises), half its width the uncertainty.

The limits come from the anchors themselves, at several scales. Mean rates of neighbouring stretches are known to within
the ticks of the timer; where five in a row can be equal, the clock counts as steady in the middle one, and its rate
lies within what that and the two beside it allow; a longer stretch counts as steady only if its parts do. Where the
rate is seen to move on the finest scale, nothing but the widest limits holds.

Arrays of many groups lie end to end: ``first`` (g,) is the first anchor of each. All times are float64, relative to
the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .tables import I64, Bool

F64 = NDArray[np.float64]

SCALES_NS = tuple(1000.0 * 4**k for k in range(13))
"""1 us to 17 s."""
FINE_NS, SPARSE = 16000.0, 4
"""Longer stretches than these many ns, or this many gaps between anchors, tell nothing of the rate inside them: it may
have moved by what a tick hides."""
BESIDE = 2
"""Stretches on either side that must agree for a clock to count as steady."""
WANDER = 1e-4
"""Relative: a steady clock's rate moves by so much where no anchor can see it (H200: 25 ns in 0.5 ms)."""
END_NS, HIDDEN_NS = 20_000.0, 40.0
"""So near to a group's first or last anchor, none beyond it tells that its rate has moved: a step there looks as a
steady clock does up to the width of an anchor's bounds, 40 ns. From 20 us on that is less than 0.2 %."""
STEEP_NS = 60.0
"""A step in a long gap near the ends takes a clock so much farther off than its anchors say, in the gap and at its
outer anchor: of 40,000 made-up ones, none more."""
LONG_NS, LONGEST_NS = 500.0, 100_000.0
"""Gaps near the ends of such lengths may hide a step of some % close to their outer anchor. In longer ones, a clock
that shows steady is taken at its word."""
EMPTY_NS = 1e-3
"""Rounding of the sums below is far less."""
MOST_OUTLIERS = 32
"""Anchors of a group that may be set aside because they contradict all others."""
MOST_WIDENINGS = 7
ONE_CELL = 62
"""As the log2 of the cycles of a cell: it holds everything."""
SHORT_RUN = 16
"""Cycles in one cell, on average, from which on :meth:`Grid.runs` is worth its while."""


@dataclass(frozen=True)
class Anchors:
    """Anchors sorted by (group, x): ``x`` (n,) cycles, all different within a group, and the ``low`` and ``high``
    bounds of the time there in ns. ``first`` (g,): of a group, none of which is empty."""

    x: F64
    low: F64
    high: F64
    first: I64

    @property
    def counts(self) -> I64:
        return np.diff(self.first, append=len(self.x))

    def steps(self) -> F64:
        """Cycles from each anchor to the next one of its group, 0 at a group's last."""
        step = np.diff(self.x, append=0.0)
        step[self.first + self.counts - 1] = 0.0
        return step

    def take(self, keep: Bool) -> Anchors:
        """The anchors to keep; every group keeps one."""
        kept = np.concatenate([[0], np.cumsum(keep)])
        return Anchors(self.x[keep], self.low[keep], self.high[keep], kept[self.first])


@dataclass(frozen=True)
class Limits:
    """Least and most ns per cycle: of groups, (g,), or between each anchor and the next, (n,), where a group's last is
    meaningless."""

    fast: F64
    slow: F64

    def some(self, rows: I64) -> Limits:
        return Limits(self.fast[rows], self.slow[rows])

    def each(self, counts: I64) -> Limits:
        """Those of groups, for each of their ``counts`` anchors."""
        return Limits(np.repeat(self.fast, counts), np.repeat(self.slow, counts))

    def wider(self, play: F64, most: Limits) -> Limits:
        """Wider by ``play`` on either side, but no wider than ``most``."""
        return Limits(np.maximum(self.fast - play, most.fast), np.minimum(self.slow + play, most.slow))


@dataclass(frozen=True)
class Band:
    """Bounds of the time at anchors, ``low`` and ``high`` (n,), and the ``limits`` that hold between them."""

    anchors: Anchors
    low: F64
    high: F64
    limits: Limits


@dataclass(frozen=True)
class Envelope:
    """Bounds at the anchors that were used. ``limits``: those that hold between them; ``sure_low``, ``sure_high`` and
    ``sure``: the same where nothing is taken from what anchors say of the rate; ``ends``: where nothing should be;
    ``moved`` (g,): the largest relative change of the rate that the anchors prove; ``fastest``, ``slowest`` (g,): mean
    ns per cycle of stretches of 10 us or more, NaN where there is none. ``outliers`` (all anchors,): set aside."""

    anchors: Anchors
    low: F64
    high: F64
    limits: Limits
    sure_low: F64
    sure_high: F64
    sure: Limits
    ends: Ends
    moved: F64
    fastest: F64
    slowest: F64
    outliers: Bool


# --------------------------------------------------------------------------------------------------------- sweeps
def _running_min(values: F64, first: I64) -> F64:
    """Least value of the group up to each place, (n,)."""
    shift = _apart(values, first)
    return np.minimum.accumulate(values + shift) - shift


def _running_argmin(values: F64, first: I64) -> I64:
    shifted = values + _apart(values, first)
    found = np.where(np.minimum.accumulate(shifted) == shifted, np.arange(len(values)), 0)
    return np.maximum.accumulate(found)


def _apart(values: F64, first: I64) -> F64:
    """What to add so that every value is below all of the groups before it."""
    most, least = np.maximum.reduceat(values, first), np.minimum.reduceat(values, first)
    fall = np.cumsum(most - least + 1.0)
    shift = -most - np.concatenate([[0.0], fall[:-1]])
    return np.repeat(shift, np.diff(first, append=len(values)))


def _reversed_first(first: I64, n: int) -> I64:
    ends = np.append(first[1:], n)
    result: I64 = (n - ends)[::-1]
    return result


@dataclass(frozen=True)
class _Sweep:
    """The four sets of carried bounds: (n,) each, at the anchors' own cycles."""

    anchors: Anchors
    slow_sum: F64
    fast_sum: F64

    @classmethod
    def of(cls, anchors: Anchors, limits: Limits) -> _Sweep:
        step = anchors.steps()
        sums = []
        for rate in (limits.slow, limits.fast):
            carried = np.concatenate([[0.0], np.cumsum(rate * step)[:-1]])
            sums.append(carried - np.repeat(carried[anchors.first], anchors.counts))
        return cls(anchors, sums[0], sums[1])

    def bounds(self) -> tuple[F64, F64]:
        """(greatest lower, least upper) bound at each anchor."""
        a, back = self.anchors, _reversed_first(self.anchors.first, len(self.anchors.x))
        ahead = self.slow_sum + _running_min(a.high - self.slow_sum, a.first)
        behind = self.fast_sum + _running_min((a.high - self.fast_sum)[::-1], back)[::-1]
        high = np.minimum(ahead, behind)
        ahead = self.fast_sum - _running_min(self.fast_sum - a.low, a.first)
        behind = self.slow_sum - _running_min((self.slow_sum - a.low)[::-1], back)[::-1]
        return np.maximum(ahead, behind), high

    def blame(self, at: I64) -> tuple[I64, I64]:
        """For each of the given anchors the one whose lower and the one whose upper bound holds there."""
        a, n = self.anchors, len(self.anchors.x)
        back = _reversed_first(a.first, n)

        def of(ahead: F64, behind: F64, ahead_sum: F64, behind_sum: F64) -> I64:
            before = _running_argmin(ahead, a.first)[at]
            after = (n - 1 - _running_argmin(behind[::-1], back)[::-1])[at]
            earlier = ahead_sum[at] + ahead[before] <= behind_sum[at] + behind[after]
            result: I64 = np.where(earlier, before, after)
            return result

        high = of(a.high - self.slow_sum, a.high - self.fast_sum, self.slow_sum, self.fast_sum)
        low = of(self.fast_sum - a.low, self.slow_sum - a.low, -self.fast_sum, -self.slow_sum)
        return low, high


def sweep(anchors: Anchors, limits: Limits) -> tuple[F64, F64]:
    """(greatest lower, least upper) bound at each anchor, whether or not a clock fits them."""
    return _Sweep.of(anchors, limits).bounds()


@dataclass(frozen=True)
class Ends:
    """The gaps near the ends of groups, where a step of the rate need not show. ``near`` (n,): anchors there, or at the
    other end of such a gap; ``play`` (n,): ns per cycle by which the mean rate from each anchor to the next may be off
    what the rest of its group tells, 0 elsewhere; ``long`` (n,): those of LONG_NS to LONGEST_NS; ``gap`` (n,):
    at the anchor that ends such a one on its outer side its length in cycles, else 0."""

    near: Bool
    play: F64
    long: Bool
    gap: F64

    @classmethod
    def of(cls, x: F64, t: F64, first: I64) -> Ends:
        """Given cycles, and about the ns, of the anchors of groups."""
        count = np.diff(first, append=len(x))
        last = first + count - 1
        step, length = np.diff(x, append=0.0), np.diff(t, append=0.0)
        inner = np.ones(len(x), np.bool_)
        inner[last] = False
        early = inner & (t - np.repeat(t[first], count) < END_NS)
        late = inner & (np.repeat(t[last], count) - t - length < END_NS)
        either = early | late
        near = either.copy()
        near[1:] |= either[:-1]
        play = np.where(either & (step > 0), HIDDEN_NS / np.where(step > 0, step, 1.0), 0.0)
        long = either & (length > LONG_NS) & (length < LONGEST_NS)
        before = np.where(early & long, step, 0.0)
        after = np.append(0.0, np.where(late & long, step, 0.0)[:-1])
        return cls(near, play, long, np.maximum(before, after))


# ---------------------------------------------------------------------------------------------------------- fitting
def fit_envelope(anchors: Anchors, widest: Limits, inner: Limits, trusted: Bool) -> Envelope:
    """The envelope of every group, whose rate keeps the ``widest`` limits (g,) in any case, and ``inner`` ones (g,) but
    for what no anchor shows near the group's ends.

    Anchors that contradict the others even so are set aside, one after the other, the one with most contradictions
    first. Every group has two anchors or more. ``trusted`` (g,): its anchors may tell closer limits.
    """
    outliers = _outliers(anchors, widest)
    used = anchors.take(~outliers) if outliers.any() else anchors
    counts = used.counts
    most, wide = widest.each(counts), inner.each(counts)
    sure_low, sure_high = _ordered(*_Sweep.of(used, wide).bounds())
    rates = _Rates(used, np.repeat(np.arange(len(counts)), counts), sure_low, sure_high)
    limits, moved = rates.limits(wide)
    free = np.repeat(~trusted, counts)
    limits = Limits(np.where(free, wide.fast, limits.fast), np.where(free, wide.slow, limits.slow))
    low, high, limits = _consistent(used, limits, wide)
    fastest, slowest = rates.extremes()
    ends = Ends.of(used.x, (used.low + used.high) / 2, used.first)
    narrow = (wide.fast > most.fast) | (wide.slow < most.slow)
    if narrow.any():
        wide = wide.wider(ends.play, most)
        sure_low, sure_high = _ordered(*_Sweep.of(used, wide).bounds())
        more = np.where((ends.gap > 0) & narrow, STEEP_NS, 0.0)
        sure_low, sure_high = sure_low - more, sure_high + more
    return Envelope(used, low, high, limits, sure_low, sure_high, wide, ends, moved, fastest, slowest, outliers)


def _ordered(low: F64, high: F64) -> tuple[F64, F64]:
    """The bounds, swapped where they exclude each other: what lies between them still covers both."""
    return np.minimum(low, high), np.maximum(low, high)


def _outliers(anchors: Anchors, widest: Limits) -> Bool:
    """The anchors to be set aside, (n,)."""
    outliers = np.zeros(len(anchors.x), np.bool_)
    groups = np.arange(len(anchors.first))
    for _ in range(MOST_OUTLIERS):
        rows = _rows(anchors, groups)
        rows = rows[~outliers[rows]]
        part = _part(anchors, groups, rows)
        counts = part.counts
        sweep = _Sweep.of(part, widest.some(groups).each(counts))
        low, high = sweep.bounds()
        bad = np.flatnonzero(low > high + EMPTY_NS)
        if not len(bad):
            break
        votes = np.zeros(len(rows), np.int64)
        for blamed in sweep.blame(bad):
            np.add.at(votes, blamed, 1)
        group = np.repeat(np.arange(len(groups)), counts)
        worst = np.lexsort((votes, group))[part.first + counts - 1]
        wrong = (votes[worst] > 0) & (counts > 2)
        outliers[rows[worst[wrong]]] = True
        groups = groups[wrong]
        if not len(groups):
            break
    return outliers


def _rows(anchors: Anchors, groups: I64) -> I64:
    """The anchors of some groups."""
    counts = anchors.counts[groups]
    begin = np.cumsum(counts) - counts
    result: I64 = np.arange(int(counts.sum())) + np.repeat(anchors.first[groups] - begin, counts)
    return result


def _part(anchors: Anchors, groups: I64, rows: I64) -> Anchors:
    """Some groups with some of their anchors, at least one each."""
    first = np.searchsorted(rows, anchors.first[groups])
    return Anchors(anchors.x[rows], anchors.low[rows], anchors.high[rows], first)


def _consistent(anchors: Anchors, limits: Limits, wide: Limits) -> tuple[F64, F64, Limits]:
    """(low, high, limits): the limits widened where no clock fits them; after the first sweep only groups where some
    had to be are looked at again."""
    fast, slow = limits.fast.copy(), limits.slow.copy()
    low, high = np.empty(len(fast)), np.empty(len(fast))
    groups, rows, part = np.arange(len(anchors.first)), np.arange(len(fast)), anchors
    for turn in range(MOST_WIDENINGS + 1):
        here = Limits(fast[rows], slow[rows])
        sweep = _Sweep.of(part, here)
        low[rows], high[rows] = least, most = sweep.bounds()
        bad = np.flatnonzero(least > most + EMPTY_NS)
        if not len(bad) or turn == MOST_WIDENINGS:
            break
        here = _widened(sweep.blame(bad), here, Limits(wide.fast[rows], wide.slow[rows]))
        fast[rows], slow[rows] = here.fast, here.slow
        touched = np.zeros(len(groups), np.bool_)
        touched[np.searchsorted(part.first, bad, side="right") - 1] = True
        groups = groups[touched]
        rows = _rows(anchors, groups)
        part = _part(anchors, groups, rows)
    return *_ordered(low, high), Limits(fast, slow)


def _widened(blame: tuple[I64, I64], limits: Limits, wide: Limits) -> Limits:
    """Limits three times as wide between the anchors that exclude each other."""
    depth = np.zeros(len(limits.fast) + 1, np.int64)
    np.add.at(depth, np.minimum(*blame), 1)
    np.add.at(depth, np.maximum(*blame), -1)
    wider = np.cumsum(depth)[:-1] > 0
    more = np.where(wider, limits.slow - limits.fast + WANDER * limits.slow, 0.0)
    return Limits(np.maximum(limits.fast - more, wide.fast), np.minimum(limits.slow + more, wide.slow))


# ------------------------------------------------------------------------------------------------------------- rates
@dataclass(frozen=True)
class _Stretches:
    """Stretches from one anchor to a later one, of one scale: ``first`` (k,) anchor, ``group`` (k,), length in
    ``cycles`` and ``ns``, least and most mean ns per cycle; ``usable``: long enough for its scale."""

    first: I64
    group: I64
    cycles: F64
    ns: F64
    least: F64
    most: F64
    usable: Bool

    def about(self, values: F64, pick: np.ufunc, none: float, beside: int = BESIDE) -> F64:
        """``pick`` (maximum, minimum, add) of the values of each stretch and of ``beside`` ones on either side, where
        they are usable."""
        own = np.where(self.usable, values, none)
        result = own.copy()
        for distance in range(1, min(beside, len(own) - 1) + 1):
            near, far = own[:-distance], own[distance:]
            same = self.group[distance:] == self.group[:-distance]
            result[:-distance] = pick(result[:-distance], np.where(same, far, none))
            result[distance:] = pick(result[distance:], np.where(same, near, none))
        return result


@dataclass(frozen=True)
class _Rates:
    """What the bounds at the anchors say of mean rates, at every scale."""

    anchors: Anchors
    group: I64
    low: F64
    high: F64

    def stretches(self, scale: float) -> _Stretches:
        a = self.anchors
        middle = (self.low + self.high) / 2
        block = np.floor((middle - middle[a.first][self.group]) / scale)
        last = np.zeros(len(a.x), np.bool_)
        last[a.first + a.counts - 1] = True
        begins = np.concatenate([[True], (np.diff(block) != 0) | (np.diff(self.group) != 0)])
        node = np.flatnonzero(begins | last)
        inner = self.group[node[1:]] == self.group[node[:-1]]
        first, stop = node[:-1][inner], node[1:][inner]
        cycles = a.x[stop] - a.x[first]
        ns = middle[stop] - middle[first]
        least, most = (self.low[stop] - self.high[first]) / cycles, (self.high[stop] - self.low[first]) / cycles
        return _Stretches(first, self.group[first], cycles, ns, least, most, ns >= scale / 4)

    def limits(self, wide: Limits) -> tuple[Limits, F64]:
        """(limits of the rate after each anchor, largest proven change of the rate of each group)."""
        steady = np.ones(len(self.group), np.bool_)
        fast, slow = wide.fast.copy(), wide.slow.copy()
        moved = np.zeros(len(self.anchors.first))
        gap = np.maximum(np.diff((self.low + self.high) / 2, append=0.0), FINE_NS / SPARSE)
        longest = float(((self.low + self.high) / 2).max(initial=0.0))
        for scale in SCALES_NS:
            part = self.stretches(scale)
            if scale > 2 * longest or not len(part.first):
                break
            most_least = part.about(part.least, np.maximum, -np.inf)
            least_most = part.about(part.most, np.minimum, np.inf)
            beside = part.about(np.ones(len(part.first)), np.add, 0.0)
            known = beside > 1
            with np.errstate(invalid="ignore"):
                change = np.where(known, most_least / least_most - 1.0, 0.0)
            np.maximum.at(moved, part.group, change)
            calm = known & (change <= 0.0) & np.logical_and.reduceat(steady, part.first)
            least, most = part.about(part.least, np.minimum, np.inf, 1), part.about(part.most, np.maximum, -np.inf, 1)
            # Near a group's ends there are fewer stretches to tell a small move, and anchors on one side only.
            more = np.where(beside < 2 * BESIDE + 1, most - least, 0.0)
            least, most = least - more, most + more
            at, rows = self._each(part)
            steady[at] &= calm[rows]
            use = calm[rows] & (gap[at] >= scale / SPARSE)
            at, rows = at[use], rows[use]
            fast[at] = np.maximum(fast[at], least[rows] * (1 - WANDER))
            slow[at] = np.minimum(slow[at], most[rows] * (1 + WANDER))
        ok = fast <= slow
        return Limits(np.where(ok, fast, wide.fast), np.where(ok, slow, wide.slow)), moved

    def _each(self, part: _Stretches) -> tuple[I64, I64]:
        """(all anchors that a stretch follows, its number)."""
        counts = np.diff(part.first, append=len(self.group))
        at = np.arange(part.first[0], len(self.group))
        rows = np.repeat(np.arange(len(part.first)), counts)
        inner = self.group[at] == part.group[rows]
        return at[inner], rows[inner]

    def extremes(self) -> tuple[F64, F64]:
        """Least and most mean ns per cycle of each group's stretches of about 16 us, NaN without any."""
        part = self.stretches(16000.0)
        long = part.ns >= 10000.0
        fast, slow = np.full(len(self.anchors.first), np.inf), np.full(len(self.anchors.first), -np.inf)
        rate = part.ns[long] / part.cycles[long]
        np.minimum.at(fast, part.group[long], rate)
        np.maximum.at(slow, part.group[long], rate)
        return np.where(np.isfinite(fast), fast, np.nan), np.where(np.isfinite(slow), slow, np.nan)


# -------------------------------------------------------------------------------------------------------------- maps
@dataclass(frozen=True)
class Runs:
    """Cycles that follow each other in one cell: ``cell`` and ``count`` (k,) of each run, and the ``row`` it is of."""

    cell: I64
    count: I64
    row: I64


@dataclass(frozen=True)
class Grid:
    """Maps that run straight inside cells: group ``k`` has ``first[k] .. first[k + 1] - 1`` (``first`` is (g + 1,));
    they begin at ``begin`` cycles (a group's last has no end) and ``t`` ns, and rise by ``rate`` ns a cycle.

    Where anchors are dense, all cells of a group are ``1 << shift[k]`` cycles long, so that a cell is found by a shift;
    elsewhere ``shift`` is ONE_CELL and they run from anchor to anchor.
    """

    first: I64
    shift: I64
    begin: I64
    t: F64
    rate: F64

    def cell(self, group: I64, cycle: I64) -> I64:
        """The cell of each of (n,) cycles."""
        first = self.first[group]
        return self.cell_in(group, first, self.first[group + 1] - 1 - first, self.shift[group], cycle)

    def cell_in(self, group: I64, first: I64, last: I64, shift: I64, cycle: I64) -> I64:
        """As :meth:`cell`, given for each cycle what the columns say of its group: the first cell, how many more there
        are, and the shift."""
        cell: I64 = cycle >> shift
        np.clip(cell, 0, last, out=cell)
        cell += first
        if self._uneven.any():
            rows = np.flatnonzero((shift == ONE_CELL) & (last > 0))
            if len(rows):
                cell[rows] = self._search(group[rows], cycle[rows])
        return cell

    @cached_property
    def _uneven(self) -> Bool:
        result: Bool = (self.shift == ONE_CELL) & (np.diff(self.first) > 1)
        return result

    @cached_property
    def _keys(self) -> tuple[I64, I64]:
        """(begins of all cells, group after group without overlap; what was added to those of each group)."""
        ends = self.begin[self.first[1:] - 1] + 1
        base = np.cumsum(ends) - ends
        return self.begin + np.repeat(base, np.diff(self.first)), base

    def uneven(self, group: I64) -> bool:
        """Whether all of these groups have several cells of no common length."""
        return bool(self._uneven[group].all())

    def search(self, group: I64, row: NDArray[np.integer[Any]], cycle: I64) -> I64:
        """The cell of each of (n,) cycles, which is of the group ``group[row]``; the groups are all uneven."""
        keys, base = self._keys
        found = np.minimum(cycle, self.begin[self.first[group + 1] - 1][row])
        found += base[group][row]
        cell: I64 = np.searchsorted(keys, found, side="right")
        cell -= 1
        if cycle.min(initial=0) < 0:
            np.maximum(cell, self.first[group][row], out=cell)
        return cell

    def runs(self, group: I64, counts: I64, cycle: I64) -> Runs | None:
        """The cells of cycles that follow each other row by row: ``counts`` (rows,) of them, all of the group ``group``
        (rows,); the groups are uneven. None where cycles fall in a row, or where runs would be short."""
        row = np.flatnonzero(counts)
        if not len(row):
            return None
        stop = np.cumsum(counts[row])
        start = stop - counts[row]
        least, most = cycle[start], cycle[stop - 1]
        first, last = self._search(group[row], least), self._search(group[row], most)
        cells = last - first + 1
        if int(cells.min()) < 1 or int(cells.sum()) * SHORT_RUN > len(cycle) + SHORT_RUN * len(row):
            return None
        length = most - least + 1
        shift = np.cumsum(length) - length - least
        line = np.repeat(shift, counts[row])
        line += cycle
        if (line[1:] < line[:-1]).any():
            return None
        of = np.repeat(np.arange(len(row)), cells)
        before = np.cumsum(cells) - cells
        cell = np.arange(len(of)) + (first - before)[of]
        at = np.searchsorted(line, shift[of] + self.begin[cell])
        at[before] = start
        count = np.diff(at, append=len(cycle))
        some = np.flatnonzero(count)
        return Runs(cell[some], count[some], row[of[some]])

    def _search(self, group: I64, cycle: I64) -> I64:
        keys, base = self._keys
        first, stop = self.first[group], self.first[group + 1]
        inside = np.minimum(cycle, self.begin[stop - 1])
        found = np.searchsorted(keys, inside + base[group], side="right") - 1
        result: I64 = np.clip(found, first, stop - 1)
        return result

    def value(self, group: I64, x: F64) -> F64:
        """The maps at (n,) cycles, not rounded."""
        cell = self.cell(group, np.floor(x).astype(np.int64))
        result: F64 = self.t[cell] + self.rate[cell] * (x - self.begin[cell])
        return result


@dataclass(frozen=True)
class Away:
    """How far (n,) ns the truth can be from maps between each anchor and the next: if a clock does nothing that anchors
    do not ``show``; if it does, but only near the ``ends`` of its group; and ``surely``."""

    show: F64
    ends: F64
    surely: F64


def draw(envelope: Envelope, shift: I64) -> tuple[Grid, Away, Bounds]:
    """(the maps along the middles of the envelopes; how far the truth can be from them; how far at each place for
    sure). ``shift`` (g,): see Grid."""
    a = envelope.anchors
    even = shift != ONE_CELL
    last = a.x[a.first + a.counts - 1].astype(np.int64)
    points = np.where(even, (last >> shift) + 2, a.counts)
    point_first = np.cumsum(points) - points
    group = np.repeat(np.arange(len(points)), points)
    number = np.arange(int(points.sum())) - point_first[group]
    anchor = a.first[group] + np.minimum(number, a.counts[group] - 1)
    begin = np.where(even[group], number << np.where(even, shift, 0)[group], a.x[anchor].astype(np.int64))
    x = begin.astype(np.float64)
    gap = _gap_of(a, group, x)
    shown = Band(a, envelope.low, envelope.high, envelope.limits)
    low, high = _between(shown, gap, x)
    t = (low + high) / 2
    inner = np.ones(len(t), np.bool_)
    inner[point_first + points - 1] = False
    cell = np.flatnonzero(inner)
    rate = (t[cell + 1] - t[cell]) / (x[cell + 1] - x[cell])
    first = np.concatenate([[0], np.cumsum(points - 1)]).astype(np.int64)
    grid = Grid(first, shift, begin[cell], t[cell], rate)
    worst = farthest(shown, grid)
    inside = (x >= a.x[gap]) & (x <= a.x[np.minimum(gap + 1, len(a.x) - 1)])
    np.maximum.at(worst, gap[inside], (high - low)[inside] / 2)
    sure = Band(a, envelope.sure_low, envelope.sure_high, envelope.sure)
    low, high = _between(sure, gap, x)
    away = np.maximum(high - t, t - low)
    most, least = np.maximum(away[cell], away[cell + 1]), np.minimum(away[cell], away[cell + 1])
    surely = farthest(sure, grid, most)
    np.maximum.at(surely, gap[inside], away[inside])
    hidden = np.where(envelope.ends.play > 0, np.minimum(_at_ends(sure, envelope.ends, grid), surely), 0.0)
    # Between dense anchors a cell says enough.
    silence = np.maximum(a.steps()[gap[cell]], a.steps()[gap[cell + 1]])
    dense = even[group[cell]] & (silence < SILENCE * (x[cell + 1] - x[cell]))
    least = np.where(dense, most, least)
    anchors, limits = np.append(a.first, len(a.x)), sure.limits
    as_map = np.full(len(a.first), AS_MAP)
    bounds = Bounds(anchors, a.x, sure.low, sure.high, limits.fast, limits.slow, as_map, first, most, least)
    return grid, Away(worst, np.maximum(worst, hidden), surely), bounds


def _gap_of(a: Anchors, group: I64, x: F64) -> I64:
    """The anchor at or before each x, of those that another one of the group follows."""
    ends = a.x[a.first + a.counts - 1]
    base = np.concatenate([[0.0], np.cumsum(ends + 1.0)])[:-1]
    key = a.x + np.repeat(base, a.counts)
    at = np.searchsorted(key, np.minimum(x, ends[group]) + base[group], side="right") - 1
    result: I64 = np.clip(at, a.first[group], a.first[group] + a.counts[group] - 2)
    return result


def _between(e: Band, gap: I64, x: F64) -> tuple[F64, F64]:
    """Bounds at x, in or beside the given gaps; beside them (only before the first and behind the last anchor) they
    go on with the gap's middle rate."""
    a, fast, slow = e.anchors, e.limits.fast[gap], e.limits.slow[gap]
    left, right = x - a.x[gap], a.x[gap + 1] - x
    high = np.minimum(e.high[gap] + slow * left, e.high[gap + 1] - fast * right)
    low = np.maximum(e.low[gap] + fast * left, e.low[gap + 1] - slow * right)
    middle = (fast + slow) / 2
    for beside, end, away in ((left < 0, gap, left), (right < 0, gap + 1, -right)):
        high = np.where(beside, e.high[end] + middle * away, high)
        low = np.where(beside, e.low[end] + middle * away, low)
    return low, high


def farthest(e: Band, grid: Grid, most: F64 | None = None) -> F64:
    """Farthest of the band from the map at each anchor and at the kinks behind it, (n,). ``most``, of each cell, is
    raised to what is found in it.

    The points of the grid are the other places where it may be farthest.
    """
    a = e.anchors
    group = np.repeat(np.arange(len(a.first)), a.counts)
    here = grid.value(group, a.x)
    worst = np.maximum(e.high - here, here - e.low)
    if most is not None:
        _raise(grid, most, group, a.x, worst)
    gap = np.flatnonzero(a.steps() > 0)
    step = a.x[gap + 1] - a.x[gap]
    fast, slow = e.limits.fast[gap], e.limits.slow[gap]
    play = np.maximum(slow - fast, 1e-12)
    worst[gap] = np.maximum(worst[gap], worst[gap + 1])
    for rise, first_rate, sign, bound in (
        ((e.high[gap + 1] - e.high[gap] - fast * step) / play, slow, 1.0, e.high),
        ((slow * step - e.low[gap + 1] + e.low[gap]) / play, fast, -1.0, e.low),
    ):
        at = np.clip(rise, 0.0, step)
        away = sign * (bound[gap] + first_rate * at - grid.value(group[gap], a.x[gap] + at))
        if most is not None:
            _raise(grid, most, group[gap], a.x[gap] + at, away)
        worst[gap] = np.maximum(worst[gap], away)
    return worst


def _at_ends(e: Band, ends: Ends, grid: Grid) -> F64:
    """How far a clock can be from the map between each anchor and the next, (n,), that makes one step there: as far as
    at the anchors, and half of what it leaves open between them; more in a long gap, in which it tilts the map."""
    here = grid.value(np.repeat(np.arange(len(e.anchors.first)), e.anchors.counts), e.anchors.x)
    away = np.maximum(e.high - here, here - e.low)
    result: F64 = np.maximum(away, np.append(away[1:], 0.0)) + np.where(ends.long, STEEP_NS, HIDDEN_NS / 2)
    return result


def certain(anchors: Anchors, widest: Limits, grid: Grid) -> F64:
    """How far (g,) ns the truth can be from maps at worst, anywhere between a group's first and last anchor, whatever
    its clock does within the ``widest`` limits (g,)."""
    limits = widest.each(anchors.counts)
    band = Band(anchors, *_ordered(*sweep(anchors, limits)), limits)
    worst: F64 = np.maximum.reduceat(farthest(band, grid), anchors.first)
    group = np.repeat(np.arange(len(worst)), np.diff(grid.first))
    x = grid.begin.astype(np.float64)
    ends = anchors.x[anchors.first], anchors.x[anchors.first + anchors.counts - 1]
    inside = np.flatnonzero((x >= ends[0][group]) & (x <= ends[1][group]))
    group, x = group[inside], x[inside]
    low, high = _between(band, _gap_of(anchors, group, x), x)
    np.maximum.at(worst, group, np.maximum(high - grid.t[inside], grid.t[inside] - low))
    return worst


def _raise(grid: Grid, most: F64, group: I64, x: F64, away: F64) -> None:
    """Raises what is farthest in the cells of some places."""
    np.maximum.at(most, grid.cell(group, np.floor(x).astype(np.int64)), away)


# ------------------------------------------------------------------------------------------------------------ bounds
AS_MAP = -1
SILENCE = 4
"""Anchors farther apart than this many cells are no dense ones."""
LOOSE_NS = 4.0
"""Where what holds anywhere in a cell is no more than this above what holds at one of its ends, the cell's places are
not told apart."""


@dataclass(frozen=True)
class Bounds:
    """How far the truth can be from maps, place by place. Of group ``k`` (``first`` and ``cells`` are (g + 1,)):

    anchors ``first[k] .. first[k + 1] - 1``: ``x`` cycles, ``low`` and ``high`` bounds of the time there in ns,
    ``fast`` and ``slow`` least and most ns per cycle up to the next one;
    cells ``cells[k] .. cells[k + 1] - 1``, of ``1 << shift[k]`` cycles or, where that is AS_MAP, those of the map:
    ``most`` ns that the truth can be from the map anywhere in a cell, and the ``least`` that this is at one of its
    ends, if a look at places is worth it.
    """

    ANCHORS: ClassVar = ("x", "low", "high", "fast", "slow")
    CELLS: ClassVar = ("most", "least")

    first: I64
    x: F64
    low: F64
    high: F64
    fast: F64
    slow: F64
    shift: I64
    cells: I64
    most: F64
    least: F64

    @cached_property
    def told(self) -> F64:
        """(cells,) ``most``, negative where it says more to look at a place than at its cell."""
        return np.where(self.most > self.least + LOOSE_NS, -self.most, self.most)

    @cached_property
    def any_untold(self) -> Bool:
        """(g,) whether a group has such a cell."""
        count = np.concatenate([[0], np.cumsum(self.told < 0)])
        result: Bool = count[self.cells[1:]] > count[self.cells[:-1]]
        return result

    @cached_property
    def _keys(self) -> tuple[F64, F64]:
        """(cycles of all anchors, group after group without overlap; what was added to those of each group)."""
        ends = self.x[self.first[1:] - 1] + 1.0
        base = np.concatenate([[0.0], np.cumsum(ends)])[:-1]
        return self.x + np.repeat(base, np.diff(self.first)), base

    def away(self, grid: Grid, group: I64, cycle: I64, cell: I64 | None = None) -> tuple[F64, F64]:
        """(how far (n,) ns the truth can be from the map at some cycles, or at the first or last anchor where they lie
        beside; how many cycles they lie beside). ``cell``: of the map, where all are of groups whose cells run from
        anchor to anchor."""
        first, last = self.first[group], self.first[group + 1] - 1
        x = np.clip(cycle.astype(np.float64), self.x[first], self.x[last])
        if cell is None:
            keys, base = self._keys
            gap = np.searchsorted(keys, x + base[group], side="right") - 1
            gap = np.clip(gap, first, np.maximum(last - 1, first))
            here = grid.value(group, x)
        else:
            gap = cell + first - grid.first[group]
            here = grid.t[cell] + grid.rate[cell] * (x - grid.begin[cell])
        following = np.minimum(gap + 1, last)
        left, right = x - self.x[gap], self.x[following] - x
        fast, slow = self.fast[gap], self.slow[gap]
        high = np.minimum(self.high[gap] + slow * left, self.high[following] - fast * right)
        low = np.maximum(self.low[gap] + fast * left, self.low[following] - slow * right)
        return np.maximum(high - here, here - low), np.abs(cycle - x)

    def some(self, which: Bool) -> Bounds:
        """Those of some of the groups."""
        columns: dict[str, Any] = {"shift": self.shift[which]}
        for start, names in (("first", self.ANCHORS), ("cells", self.CELLS)):
            counts = np.diff(getattr(self, start))
            rows = np.repeat(which, counts)
            columns |= {name: getattr(self, name)[rows] for name in names}
            columns[start] = np.concatenate([[0], np.cumsum(counts[which])]).astype(np.int64)
        return Bounds(**columns)

    def put(self, groups: I64, other: Bounds) -> Bounds:
        """These, with those of ``groups`` (in order) taken from ``other``."""
        columns: dict[str, Any] = {"shift": self.shift.copy()}
        columns["shift"][groups] = other.shift
        for start, names in (("first", self.ANCHORS), ("cells", self.CELLS)):
            pairs = [(getattr(self, name), getattr(other, name)) for name in names]
            counts, others = np.diff(getattr(self, start)), np.diff(getattr(other, start))
            columns[start], found = spliced(counts, groups, others, pairs)
            columns |= dict(zip(names, found, strict=True))
        return Bounds(**columns)

    @classmethod
    def joined(cls, parts: list[Bounds]) -> Bounds:
        """Those of all groups, part after part."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("shift", *cls.ANCHORS, *cls.CELLS)
        }
        for start in ("first", "cells"):
            counts = np.concatenate([np.diff(getattr(part, start)) for part in parts])
            columns[start] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(**columns)


def spliced(
    counts: I64, groups: I64, others: I64, columns: list[tuple[NDArray[Any], NDArray[Any]]]
) -> tuple[I64, list[NDArray[Any]]]:
    """(first row of each group, and their number; columns), where ``groups`` (in order) have ``others`` rows of the
    second of each pair of columns, and the rest ``counts`` rows of the first."""
    changed = np.zeros(len(counts), np.bool_)
    changed[groups] = True
    kept = np.repeat(~changed, counts)
    counts = counts.copy()
    counts[groups] = others
    inside = np.repeat(changed, counts)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def mixed(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
        rows = np.empty(int(first[-1]), ours.dtype)
        rows[inside], rows[~inside] = theirs, ours[kept]
        return rows

    return first, [mixed(*pair) for pair in columns]
