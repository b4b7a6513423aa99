"""SM cycles -> nanoseconds.

The cycle counters of different SMs are unrelated, their rates differ by up to 0.7 %, and they move inside a launch
(H200 under power limit: from 1.98 to 1.6 GHz in 4 us, and on between 1.6 and 1.3). So every SM of every launch gets a
clock of its own from its *anchors*: the pairs (cycle, %globaltimer) that its warps read at entry, at exit and in the
records of anchor sites. %globaltimer steps by 32 ns, so an anchor (c, g) says that the true time at cycle c lies in
[g, g + 32), give or take a small margin.

Where one line fits all anchors the map is that line: its rate is the one that leaves most room between all bounds, the
offset the middle of what room is left. Where none does, because the rate moved, or where it says less, the map follows
the middle of the envelope of all clocks that fit (see :mod:`.envelope`). ``uncertainty`` says how far the truth can
be from the map.

All arithmetic is relative: cycles to the first of the SM in the launch, times to the first globaltimer there, as
float64 (exact integers up to 2**53); absolute nanoseconds only ever exist as integers.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from . import envelope
from .envelope import ONE_CELL, WANDER
from .tables import I64, Bool, Regions

F64 = NDArray[np.float64]

TICK_NS = 32.0
MARGIN_NS = 4.0
"""How far two SMs' %globaltimer, and the clock inside 10 us, were seen to wander."""
RATE_SPREAD = 0.007
"""Most that the rates of two SMs of a device differ while neither moves."""
OWN_RATE_NS = 6000.0
"""An SM's own anchors, this far apart, tell its rate better than RATE_SPREAD."""
ANCHORS = 32
"""Anchors used for one line; more only make the bounds tighter than the clock is steady."""
REFITS = 4
"""At most so many times anchors are added that a line missed. One or two are enough nearly always."""
RATE_STEPS, EDGE_STEPS = 16, 12
GOLDEN = 0.6180339887498949
NOMINAL_SPREAD = 0.25
"""How far below or above its nominal clock an SM may run where nothing else is known."""
POOLED_GOOD = 0.003
"""Relative error of a launch's pooled rate up to which it is used."""
BENT_NS = 2.0
"""Anchors may be this far off one line before the rate counts as moving."""
BAD_NS = 64.0
"""An anchor this far off its map, and farther than the map's uncertainty, is reported."""
TRY_NS, TRY_ANCHORS = 50_000.0, 8
"""From this length and this many anchors on, the envelope may say more than a line does."""
HIDDEN = 2e-3
"""Relative: the rate may move so much, for a while, and no anchor of a line shows it."""
MOVED = 1e-3
"""Relative change of rate from which a launch's clock counts as having moved."""
QUIET = 0.25
"""An SM whose anchors show less than this share of what its launch's do, shows nothing of it."""
UNSEEN = 10
"""A clock moves by so many times the change that anchors prove, of which most see but the mean over some time."""
BIN_SHIFT, BIN_ANCHORS = 10, 3
"""So many anchors are kept of every 1024 cycles of an SM, about half a microsecond."""
PART_ANCHORS, MOST_THREADS = 1 << 15, 4
CELLS = 4
"""Of a map, for every anchor."""
LINE_CELL, MOST_LINE_CELLS = 16, 4096
"""Log2 of the cycles of a cell of what is known of a line, 33 us, in which WANDER does little; no more than so many."""
LEAST_CELL, MOST_CELL = 8, 11
"""Log2 of the cycles of an even cell; with fewer anchors than that the map runs from anchor to anchor."""


@dataclass(frozen=True)
class EventAnchors:
    """Anchors that events carry: ``region`` (row of Regions), ``cycle`` since its entry, ``timer``: all bits of
    %globaltimer, in ns. (n,) each, in any order."""

    region: I64
    cycle: I64
    timer: I64


@dataclass(frozen=True)
class ClockMap:
    """Piecewise linear maps, one a group = (launch, SM).

    ``group`` (n,): group of each region. ``cycle0``/``time0`` (g,): origins of a group, in cycles and in ns of
    %globaltimer; ``grid`` counts from there.

    ``uncertainty`` (g,) ns: how far the truth can be from the map at worst, anywhere up to the ``last`` anchor (in
    cycles since cycle0), if its clock is steady where no anchor shows otherwise; ``rate_error`` ns more per cycle
    behind it. ``certain`` (g,): the same whatever its clock does; ``silence`` (g,): ns between two neighbouring anchors
    at most. ``typical`` (g,): the uncertainty where it is median.
    ``bounds``: how far at any cycle. ``stated`` (g,): how far at worst where something was recorded, once
    :meth:`with_stamps` was told; ``least`` (g,): no less, because anchors contradict the map. ``fastest``,
    ``slowest`` (g,): mean ns per cycle of stretches of 10 us or more (of the whole, where there are none).
    ``moved`` (g,): largest relative change of rate that its launch shows. ``violations`` (g,): anchors that
    contradict their map; ``anchors`` (g,): of how many.
    """

    group: I64
    launch: I64
    sm: I64
    cycle0: I64
    time0: I64
    grid: envelope.Grid
    bounds: envelope.Bounds
    uncertainty: F64
    certain: F64
    silence: F64
    stated: F64
    least: F64
    typical: F64
    last: F64
    rate_error: F64
    fastest: F64
    slowest: F64
    moved: F64
    violations: I64
    anchors: I64
    source: NDArray[np.str_]

    def part(self, rows: slice) -> ClockMap:
        """The same maps for some of the regions."""
        return replace(self, group=self.group[rows])

    def doubt(self, group: I64, cycle: I64, cell: I64 | None = None) -> F64:
        """How far (n,) ns the truth can be from the map at (n,) cycles since the group's cycle0. ``cell``: as for
        :meth:`envelope.Bounds.away`."""
        away, beside = self.bounds.away(self.grid, group, cycle, cell)
        away += _stated(0.0, self.slowest[group])
        return np.minimum(away, self.uncertainty[group]) + beside * self.rate_error[group]

    def with_stamps(self, *stamps: tuple[I64, F64]) -> ClockMap:
        """The same maps, that state what they are worth at stamps: (group, doubt) of some of them each, of which every
        group has one."""
        stated = self.least.copy()
        for group, doubt in stamps:
            np.maximum.at(stated, group, doubt)
        return replace(self, stated=stated, typical=np.minimum(self.typical, stated))

    def to_ns(self, group: I64, cycle: I64) -> I64:
        """Rounded ns since the group's time0 of (n,) cycles since the group's cycle0."""
        return self.at(self.grid.cell(group, cycle), cycle)

    def at(self, cell: I64, cycle: I64, counts: I64 | None = None) -> I64:
        """As :meth:`to_ns`, with the cells known: of each cycle, or of each run of ``counts`` cycles."""

        def of_each(column: NDArray[Any]) -> NDArray[Any]:
            return column[cell] if counts is None else np.repeat(column[cell], counts)

        ns: F64 = (cycle - of_each(self.grid.begin)).astype(np.float64)
        ns *= of_each(self.grid.rate)
        ns += of_each(self.grid.t)
        np.rint(ns, out=ns)
        return ns.astype(np.int64)


@dataclass(frozen=True)
class _Anchors:
    """Anchors sorted by (cell, x): ``x`` cycles and ``g`` ns since their group's origin; ``first`` (c,) of a cell."""

    x: F64
    g: F64
    cell: I64
    first: I64

    @property
    def counts(self) -> I64:
        return np.diff(self.first, append=len(self.x))

    def only(self, keep: Bool) -> _Anchors:
        """The anchors to keep; every cell keeps one."""
        cell = self.cell[keep]
        return _Anchors(self.x[keep], self.g[keep], cell, np.searchsorted(cell, np.arange(len(self.first))))

    def rows(self, cells: I64) -> I64:
        """The rows of some cells, in order."""
        counts = self.counts[cells]
        begin = np.cumsum(counts) - counts
        rows: I64 = np.arange(int(counts.sum())) + np.repeat(self.first[cells] - begin, counts)
        return rows

    def some(self, cells: I64) -> _Anchors:
        """The anchors of some cells, which get new numbers."""
        counts, rows = self.counts[cells], self.rows(cells)
        cell = np.repeat(np.arange(len(cells)), counts)
        return _Anchors(self.x[rows], self.g[rows], cell, np.cumsum(counts) - counts)

    def span(self, values: F64) -> F64:
        """Last minus first of each cell."""
        last = self.first + self.counts - 1
        result: F64 = values[last] - values[self.first]
        return result

    def steps(self, values: F64) -> F64:
        """From each anchor to the next of its cell, 0 at a cell's last."""
        step = np.diff(values, append=0.0)
        step[self.first + self.counts - 1] = 0.0
        return step


@dataclass(frozen=True)
class _Fit:
    offset: F64
    rate: F64
    room: F64


def fit_clocks(
    regions: Regions,
    launch: I64,
    nominal_khz: dict[tuple[int, int], int],
    events: EventAnchors | None = None,
) -> ClockMap:
    """The clock maps of all (launch, SM). ``nominal_khz``: SM clock by (process, device): the rate where no launch of
    the device tells it, and the fastest that a clock which moves is thought to run. No regions give an empty map."""
    h = regions.headers
    key = launch * (int(h["sm"].max(initial=0)) + 1) + h["sm"]
    unique, first_row, group = np.unique(key, return_index=True, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    group_launch, sm = launch[first_row], h["sm"][first_row].astype(np.int64)
    entry, gt = h["entry_clock"].astype(np.int64), h["entry_globaltimer"].astype(np.int64)
    cycle0, time0 = _minimum(entry, group, len(unique)), _minimum(gt, group, len(unique))
    anchors, counts = _collect(regions, group, cycle0, time0, events)
    device = regions.process[first_row].astype(np.int64) << 32 | regions.device[first_row]
    nominal = ns_per_cycle(regions, nominal_khz)[first_row]
    kept = _evenly(anchors)
    thin = anchors.only(kept)
    prior, spread, source = _prior_rates(thin, group_launch, device, nominal)
    whole, uncertainty, rate_error = _fit_groups(thin, prior, spread)
    source = np.where(thin.span(thin.g) >= OWN_RATE_NS, "sm", source)
    lines, kept = _through_all(anchors, kept, prior, spread, whole, _lines(thin, whole, uncertainty, rate_error))
    widest = _widest(lines, group_launch, nominal)
    bounds, known = _line_bounds(anchors, kept, lines)
    known = replace(known, surely=_surely(anchors, lines, widest, nominal))
    maps, bounds, moved = _follow(anchors, lines, known, bounds, group_launch, widest)
    off = _distance(anchors, maps)
    worst = _worst(anchors, off)
    least = np.where(worst <= 0, 0.0, worst + MARGIN_NS)
    everywhere = _stated(np.maximum(maps.worst, least), maps.slowest)
    wrong = off > np.maximum(maps.worst, BAD_NS)[anchors.cell]
    return ClockMap(
        group=group,
        launch=group_launch,
        sm=sm,
        cycle0=cycle0,
        time0=time0,
        grid=maps.grid,
        bounds=_capped(bounds, everywhere, maps.slowest),
        uncertainty=everywhere,
        certain=np.maximum(_stated(maps.surely, maps.slowest), everywhere),
        silence=_worst(anchors, anchors.steps(anchors.g)),
        stated=everywhere,
        least=_stated(least, maps.slowest),
        typical=_stated(maps.typical, maps.slowest),
        last=anchors.span(anchors.x),
        rate_error=maps.rate_error,
        fastest=maps.fastest,
        slowest=maps.slowest,
        moved=moved,
        violations=np.bincount(anchors.cell[wrong], minlength=len(unique)).astype(np.int64),
        anchors=counts,
        source=source,
    )


def _capped(bounds: envelope.Bounds, most: F64, slowest: F64) -> envelope.Bounds:
    """What cells say as it is stated, and never more than ``most`` (g,)."""
    group = np.repeat(np.arange(len(most)), np.diff(bounds.cells))
    cells = (np.minimum(_stated(one, slowest[group]), most[group]) for one in (bounds.most, bounds.least))
    return replace(bounds, **dict(zip(envelope.Bounds.CELLS, cells, strict=True)))


def _stated(uncertainty: F64 | float, slowest: F64) -> F64:
    """With the rounding to whole ns, and the cycle within which an event took place."""
    return uncertainty + 0.5 + slowest


def _minimum(values: I64, group: I64, n: int) -> I64:
    result = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(result, group, values)
    return result


def _collect(
    regions: Regions, group: I64, cycle0: I64, time0: I64, events: EventAnchors | None
) -> tuple[_Anchors, I64]:
    """(anchors of all groups, sorted by (group, cycle), not more than BIN_ANCHORS of 2**BIN_SHIFT cycles; how many each
    group had)."""
    h, closed = regions.headers, regions.closed
    entry, timer = h["entry_clock"].astype(np.int64), h["entry_globaltimer"].astype(np.int64)
    cells = [group, group[closed]]
    x = [entry, h["exit_clock"][closed].astype(np.int64)]
    g = [timer, h["exit_globaltimer"][closed].astype(np.int64)]
    if events is not None:
        cells.append(group[events.region])
        x.append(entry[events.region] + events.cycle)
        g.append(events.timer)
    cell = np.concatenate(cells)
    xs, gs = np.concatenate(x) - cycle0[cell], np.concatenate(g) - time0[cell]
    order = _order(cell, xs)
    cell, xs, gs = cell[order], xs[order], gs[order]
    counts = np.bincount(cell, minlength=len(cycle0)).astype(np.int64)
    if len(cell) > BIN_ANCHORS * len(counts):
        keep = _few_a_bin(cell, xs >> BIN_SHIFT)
        cell, xs, gs = cell[keep], xs[keep], gs[keep]
    first = np.searchsorted(cell, np.arange(len(cycle0)))
    return _Anchors(xs.astype(np.float64), gs.astype(np.float64), cell, first), counts


def _few_a_bin(cell: I64, number: I64) -> Bool:
    """BIN_ANCHORS of each bin of each cell, evenly by rank, and the first and the last of each cell."""
    new_cell = np.concatenate([[True], cell[1:] != cell[:-1]])
    new = new_cell.copy()
    new[1:] |= number[1:] != number[:-1]
    first = np.flatnonzero(new)
    counts = np.diff(first, append=len(cell))
    rank = np.arange(len(cell)) - np.repeat(first, counts)
    n = np.repeat(counts, counts)
    keep = (n <= BIN_ANCHORS) | (rank * BIN_ANCHORS // n != (rank - 1) * BIN_ANCHORS // n)
    keep |= new_cell
    keep[:-1] |= new_cell[1:]
    keep[-1:] = True
    result: Bool = keep
    return result


def _order(cells: I64, x: I64) -> I64:
    """Argsort by (cell, x)."""
    span = int(x.max(initial=0)) + 1
    if x.min(initial=0) >= 0 and (int(cells.max(initial=0)) + 1) * span < 2**63:
        return np.argsort(cells * span + x, kind="stable")
    return np.lexsort((x, cells))


def _evenly(anchors: _Anchors) -> Bool:
    """(n,) which anchors a line is fitted to first: ANCHORS of each cell, evenly by rank, the first and the last among
    them."""
    counts = anchors.counts
    if not len(counts) or counts.max() <= ANCHORS:
        return np.ones(len(anchors.x), np.bool_)
    n = np.repeat(counts, counts)
    rank = np.arange(len(anchors.x)) - np.repeat(anchors.first, counts)
    step = rank * (ANCHORS - 1) // np.maximum(n - 1, 1)
    before = (rank - 1) * (ANCHORS - 1) // np.maximum(n - 1, 1)
    keep: Bool = (n <= ANCHORS) | (rank == 0) | (step != before)
    return keep


# ---------------------------------------------------------------------------------------------------------- rates
def _prior_rates(
    anchors: _Anchors, launch: I64, device: I64, nominal: F64
) -> tuple[F64, F64, NDArray[np.str_]]:
    """(ns per cycle that each group starts from, how far from it the group's rate may be, relative, and where it
    comes from): the launch's SMs pooled, else the device's launches pooled, else the nominal clock."""
    dx, dg = anchors.span(anchors.x), anchors.span(anchors.g)
    rate, error = _pooled(dx, dg, launch)
    source = np.full(len(dx), "launch", dtype="<U8")
    device_code = np.unique(device, return_inverse=True)[1].reshape(-1).astype(np.int64)
    device_rate, device_error = _pooled(dx, dg, device_code)
    use_device = (error > POOLED_GOOD) & (device_error < error)
    rate, error = np.where(use_device, device_rate, rate), np.where(use_device, device_error, error)
    source[use_device] = "device"
    use_nominal = ~(error < 3 * RATE_SPREAD) & (nominal > 0)
    rate = np.where(use_nominal, nominal, rate)
    spread = np.where(use_nominal, NOMINAL_SPREAD, RATE_SPREAD + 3 * error)
    source[use_nominal] = "nominal"
    nothing = ~np.isfinite(rate) | (rate <= 0)
    source[nothing] = "none"
    return np.where(nothing, 1.0, rate), np.minimum(np.where(nothing, 1.0, spread), 0.99), source


def _pooled(dx: F64, dg: F64, pool: I64) -> tuple[F64, F64]:
    """(ns per cycle, relative error) of each group's pool, by least squares over the groups' spans."""
    n = int(pool.max(initial=-1)) + 1
    xx = np.bincount(pool, dx * dx, n)
    xg = np.bincount(pool, dx * dg, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = xg / xx
        error = TICK_NS / np.sqrt(6.0) / (rate * np.sqrt(xx))
    error[~(rate > 0)] = np.inf
    return rate[pool], error[pool]


def ns_per_cycle(regions: Regions, nominal_khz: dict[tuple[int, int], int]) -> F64:
    """Nominal ns per cycle of each region's SM, 0 where it is not known."""
    device = regions.process.astype(np.int64) << 32 | regions.device
    unique, number = np.unique(device, return_inverse=True)
    values = np.array([_nominal(int(d), nominal_khz) for d in unique], np.float64)
    result: F64 = values[number.reshape(-1)]
    return result


def _nominal(device: int, nominal_khz: dict[tuple[int, int], int]) -> float:
    khz = nominal_khz.get((device >> 32, device & 0xFFFFFFFF), 0)
    return 1e6 / khz if khz > 0 else 0.0


def _fit_groups(anchors: _Anchors, prior: F64, spread: F64) -> tuple[_Fit, F64, F64]:
    """(one line a group, its uncertainty in ns, that of its rate in ns per cycle).

    The rate is the group's own where its anchors are far enough apart, else the prior one; where that leaves no room,
    the best within ``spread`` of it.
    """
    low, high = _own_bounds(anchors)
    pool_low, pool_high = prior * (1 - spread), prior * (1 + spread)
    near = np.maximum(low, pool_low) <= np.minimum(high, pool_high)
    low, high = np.where(near, np.maximum(low, pool_low), low), np.where(near, np.minimum(high, pool_high), high)
    own = anchors.span(anchors.g) >= OWN_RATE_NS
    fit = _fit(anchors, np.where(own, low, prior), np.where(own, high, prior))
    stuck = ~own & (fit.room < 0)
    if stuck.any():
        fit = _fit(anchors, np.where(stuck, low, fit.rate), np.where(stuck, high, fit.rate))
    return fit, *_uncertainty(anchors, fit, low, high)


def _own_bounds(anchors: _Anchors) -> tuple[F64, F64]:
    """Least and most ns per cycle that the first and the last anchor of each cell allow."""
    dx, dg = anchors.span(anchors.x), anchors.span(anchors.g)
    slack = TICK_NS + 2 * MARGIN_NS
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (dg - slack) / dx, (dg + slack) / dx
    known = dx > 0
    return np.where(known, np.maximum(low, 1e-3), 1e-3), np.where(known, np.maximum(high, 1e-3), 1e3)


def _bounds(anchors: _Anchors, rate: F64) -> tuple[F64, F64]:
    """Least and most offset of each cell at the given rates (least > most: none fits all anchors)."""
    rest = anchors.g - rate[anchors.cell] * anchors.x
    least = np.maximum.reduceat(rest, anchors.first) - MARGIN_NS
    most = np.minimum.reduceat(rest, anchors.first) + TICK_NS + MARGIN_NS
    return least, most


def _room(anchors: _Anchors, rate: F64) -> F64:
    least, most = _bounds(anchors, rate)
    return most - least


def _fit(anchors: _Anchors, low: F64, high: F64) -> _Fit:
    """Per cell the rate in [low, high] that leaves most room (the middle, where several do), and the offset.

    The room is a concave function of the rate, so a golden-section search finds its top and a bisection on either
    side the edges of the top.
    """
    if not len(low):
        return _Fit(low, low, low)
    rate = (low + high) / 2
    if np.any(high > low):
        top = _golden(anchors, low, high)
        enough = _room(anchors, top) - 0.25
        rate = (_edge(anchors, top, low, enough) + _edge(anchors, top, high, enough)) / 2
        rate = np.where(high > low, rate, low)
    least, most = _bounds(anchors, rate)
    return _Fit((least + most) / 2, rate, most - least)


def _golden(anchors: _Anchors, low: F64, high: F64) -> F64:
    a, b = low, high
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d = _room(anchors, c), _room(anchors, d)
    for _ in range(RATE_STEPS):
        left = at_c > at_d
        a, b = np.where(left, a, c), np.where(left, d, b)
        new = np.where(left, b - GOLDEN * (b - a), a + GOLDEN * (b - a))
        at_new = _room(anchors, new)
        c, d = np.where(left, new, d), np.where(left, c, new)
        at_c, at_d = np.where(left, at_new, at_d), np.where(left, at_c, at_new)
    return np.where(at_c > at_d, c, d)


def _edge(anchors: _Anchors, inside: F64, outside: F64, enough: F64) -> F64:
    """The rate nearest to ``outside`` that still leaves ``enough`` room, from ``inside`` which does."""
    inside = np.where(_room(anchors, outside) >= enough, outside, inside)
    for _ in range(EDGE_STEPS):
        middle = (inside + outside) / 2
        good = _room(anchors, middle) >= enough
        inside, outside = np.where(good, middle, inside), np.where(good, outside, middle)
    return inside


# ----------------------------------------------------------------------------------------------------------- maps
@dataclass(frozen=True)
class _Maps:
    """The maps of some groups, as in ClockMap. ``near``: how far the truth can be from a line at the anchors that it
    was fitted to, or from another map, if its clock does nothing that no anchor shows; ``surely``: whatever it does."""

    COLUMNS: ClassVar = ("near", "worst", "surely", "typical", "rate_error", "fastest", "slowest")

    grid: envelope.Grid
    near: F64
    worst: F64
    surely: F64
    typical: F64
    rate_error: F64
    fastest: F64
    slowest: F64

    def put(self, groups: I64, other: _Maps) -> _Maps:
        """These maps, with those of ``groups`` (in order) taken from ``other``."""
        columns = [getattr(self, name).copy() for name in self.COLUMNS]
        for column, name in zip(columns, self.COLUMNS, strict=True):
            column[groups] = getattr(other, name)
        a, b = self.grid, other.grid
        shift = a.shift.copy()
        shift[groups] = b.shift
        pairs = [(a.begin, b.begin), (a.t, b.t), (a.rate, b.rate)]
        first, cells = envelope.spliced(np.diff(a.first), groups, np.diff(b.first), pairs)
        return _Maps(envelope.Grid(first, shift, cells[0], cells[1], cells[2]), *columns)

    def some(self, which: Bool) -> _Maps:
        """The maps of some of the groups."""
        counts = np.diff(self.grid.first)
        cells = np.repeat(which, counts)
        first = np.concatenate([[0], np.cumsum(counts[which])]).astype(np.int64)
        g = self.grid
        grid = envelope.Grid(first, g.shift[which], g.begin[cells], g.t[cells], g.rate[cells])
        return _Maps(grid, *(getattr(self, name)[which] for name in self.COLUMNS))


def _lines(anchors: _Anchors, fit: _Fit, uncertainty: F64, rate_error: F64) -> _Maps:
    """One cell a group."""
    n = len(fit.rate)
    grid = envelope.Grid(np.arange(n + 1), np.full(n, ONE_CELL), np.zeros(n, np.int64), fit.offset, fit.rate)
    span = anchors.span(anchors.g) if n else uncertainty
    near = np.maximum(uncertainty, _hidden(anchors, fit)) if n else uncertainty
    worst = near + WANDER / 2 * span
    return _Maps(grid, near, worst, worst, worst, rate_error + WANDER * fit.rate, fit.rate, fit.rate)


def _line_bounds(anchors: _Anchors, kept: Bool, lines: _Maps) -> tuple[envelope.Bounds, _Maps]:
    """(how far the truth can be from lines; the lines, with how far at worst and how far typically): what is known of
    them at the anchors that they were fitted to (``kept``), and what a clock does whose rate moves by WANDER between
    those; other anchors say no more than they do by themselves, nor do those near the ends, where a step may be that no
    anchor shows."""
    if not len(anchors.first):
        none, zero = np.zeros(0), np.zeros(1, np.int64)
        return envelope.Bounds(zero, none, none, none, none, none, zero[:0], zero, none, none), lines
    line, rate = lines.grid.value(anchors.cell, anchors.x), lines.grid.rate[anchors.cell]
    ends = envelope.Ends.of(anchors.x, line, anchors.first)
    away, wander = _line_away(anchors, kept, lines, line, ends), WANDER * rate
    step = anchors.steps(anchors.x)
    following = np.append(away[1:], 0.0)
    # One step in a gap takes the clock no farther off than it is at the gap's ends.
    wander += np.where(ends.play > 0, np.abs(following - away) / np.where(step > 0, step, 1.0), 0.0)
    limits = envelope.Limits(rate - wander, rate + wander)
    between = np.where(step > 0, (away + following + wander * step) / 2, away)
    most, least = np.maximum(_worst(anchors, between), lines.near), lines.near
    first, cells = np.append(anchors.first, len(anchors.x)), np.arange(len(least) + 1)
    shift = np.full(len(least), ONE_CELL)
    low, high = line - away, line + away
    bounds = envelope.Bounds(first, anchors.x, low, high, limits.fast, limits.slow, shift, cells, most, least)
    long = np.flatnonzero(most > least + envelope.LOOSE_NS)
    typical = _median(envelope.Anchors(anchors.x, low, high, anchors.first), between)
    known = replace(lines, worst=np.maximum(lines.worst, most), typical=typical)
    return _divided(bounds, lines, long) if len(long) else bounds, known


def _line_away(anchors: _Anchors, kept: Bool, lines: _Maps, line: F64, ends: envelope.Ends) -> F64:
    """How far (n,) ns the truth can be from lines, which have the value ``line`` there, at each anchor."""
    near, rate = lines.near[anchors.cell], lines.grid.rate[anchors.cell]
    own = np.maximum(line - anchors.g, anchors.g + TICK_NS - line) + MARGIN_NS
    # A step in a long gap near an end tilts the line, by what anchors leave open over the rest of it.
    rest = anchors.span(anchors.x)[anchors.cell] - ends.gap
    tilt = np.where(rest > 2 * ends.gap, (TICK_NS + 2 * MARGIN_NS) * ends.gap / np.maximum(rest, 1.0), 0.0)
    away = np.where(kept & ~ends.near, near, np.maximum(near, own)) + tilt
    play = WANDER * rate + ends.play
    bounds = envelope.Anchors(anchors.x, line - away, line + away, anchors.first)
    away = envelope.sweep(bounds, envelope.Limits(rate - play, rate + play))[1] - line
    # Nor is either end of a long gap known better than the other: the step may be near to it.
    both = np.where(ends.long, np.maximum(away, np.append(away[1:], 0.0)), 0.0)
    result: F64 = np.maximum(away, np.maximum(both, np.append(0.0, both[:-1])))
    return result


def _divided(bounds: envelope.Bounds, lines: _Maps, groups: I64) -> envelope.Bounds:
    """The bounds of lines with several cells for some of the groups."""
    last = bounds.x[bounds.first[groups + 1] - 1]
    shift = np.maximum(np.ceil(np.log2(np.maximum(last, 1.0) / MOST_LINE_CELLS)), LINE_CELL).astype(np.int64)
    counts = (last.astype(np.int64) >> shift) + 1
    cells = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    of = np.repeat(np.arange(len(groups)), counts)
    begin = (np.arange(cells[-1]) - cells[of]) << shift[of]
    end = np.minimum(begin + (1 << shift[of]), last[of].astype(np.int64))
    ends = [bounds.away(lines.grid, groups[of], at)[0] for at in (begin, end)]
    which = np.zeros(len(bounds.shift), np.bool_)
    which[groups] = True
    part = bounds.some(which)
    most = np.maximum(*ends)
    anchors = envelope.Anchors(part.x, part.low, part.high, part.first[:-1])
    band = envelope.Band(anchors, part.low, part.high, envelope.Limits(part.fast, part.slow))
    lines_in_cells = envelope.Grid(
        cells, shift, begin, lines.grid.value(groups[of], begin.astype(np.float64)), lines.grid.rate[groups[of]]
    )
    envelope.farthest(band, lines_in_cells, most)
    part = replace(part, shift=shift, cells=cells, most=most, least=np.minimum(*ends))
    return bounds.put(groups, part)


def _through_all(
    anchors: _Anchors, kept: Bool, prior: F64, spread: F64, fit: _Fit, lines: _Maps
) -> tuple[_Maps, Bool]:
    """(the lines, the anchors that they were fitted to), again where some anchor lies outside although one line fitted
    all anchors that it was made of: those farthest outside are added, on either side, until the line fits all of them
    or there is none."""
    kept, room = kept.copy(), fit.room.copy()
    for _ in range(REFITS):
        outside = _worst(anchors, _distance(anchors, lines)) > 0
        groups = np.flatnonzero(outside & (room > 0))
        if not len(groups):
            break
        part = anchors.some(groups)
        rest = part.g - lines.grid.value(groups[part.cell], part.x)
        used = kept[anchors.rows(groups)]
        used[_argmax(part, rest)] = used[_argmax(part, -rest)] = True
        kept[anchors.rows(groups)] = used
        thin = part.only(used)
        again, uncertainty, rate_error = _fit_groups(thin, prior[groups], spread[groups])
        lines = lines.put(groups, _lines(thin, again, uncertainty, rate_error))
        room[groups] = again.room
    return lines, kept


def _argmax(anchors: _Anchors, values: F64) -> I64:
    """The row of the greatest value of each cell."""
    order = np.lexsort((values, anchors.cell))
    rows: I64 = order[anchors.first + anchors.counts - 1]
    return rows


def _hidden(anchors: _Anchors, fit: _Fit) -> F64:
    """How far from its line a clock whose rate moves within HIDDEN of the line's can be at a group's anchors, (g,)."""
    bounds = envelope.Anchors(anchors.x, anchors.g - MARGIN_NS, anchors.g + TICK_NS + MARGIN_NS, anchors.first)
    rate = fit.rate[anchors.cell]
    low, high = envelope.sweep(bounds, envelope.Limits(rate * (1 - HIDDEN), rate * (1 + HIDDEN)))
    here = fit.offset[anchors.cell] + rate * anchors.x
    return _worst(anchors, np.maximum(high - here, here - low))


def _distance(anchors: _Anchors, maps: _Maps) -> F64:
    """How far each anchor is outside of its bounds, in ns; negative inside. The anchors' cells are all groups."""
    mapped = maps.grid.value(anchors.cell, anchors.x)
    return np.maximum(anchors.g - MARGIN_NS - mapped, mapped - anchors.g - TICK_NS - MARGIN_NS)


def _worst(anchors: _Anchors, values: F64) -> F64:
    return np.maximum.reduceat(values, anchors.first) if len(anchors.first) else np.zeros(0)


def _follow(
    anchors: _Anchors, lines: _Maps, known: _Maps, bounds: envelope.Bounds, launch: I64, widest: envelope.Limits
) -> tuple[_Maps, envelope.Bounds, F64]:
    """(the maps, how far the truth can be from them, the change of rate that each group's launch shows), given lines,
    by themselves and with all that is ``known`` of them.

    Groups whose anchors fit no line get a map that follows them; so do those where that says more. In a launch whose
    clock moved, the rest get one too: nothing says that it did not move in them. Where anchors show little motion
    although the launch's do, no more is known than of those that do.
    """
    moved = np.zeros(len(lines.worst))
    if not len(moved):
        return known, bounds, moved
    bent = _worst(anchors, _distance(anchors, lines)) > BENT_NS
    worth = (anchors.span(anchors.g) >= TRY_NS) & (anchors.counts >= TRY_ANCHORS)
    groups = np.flatnonzero((bent | worth) & (anchors.span(anchors.x) > 0))
    maps, own = known, moved.copy()
    if len(groups):
        found, limits, own[groups] = _envelopes(anchors, groups, widest, widest, bent | worth)
        better = bent[groups] | (found.near < lines.worst[groups])
        maps, bounds = maps.put(groups[better], found.some(better)), bounds.put(groups[better], limits.some(better))
    moved = _launch_motion(own, launch)
    rest = np.flatnonzero((moved > MOVED) & ~bent & (anchors.span(anchors.x) > 0))
    if len(rest):
        low, high = lines.slowest[rest] * (1 - UNSEEN * moved[rest]), lines.slowest[rest] * (1 + UNSEEN * moved[rest])
        inner = envelope.Limits(widest.fast.copy(), widest.slow.copy())
        inner.fast[rest], inner.slow[rest] = np.maximum(inner.fast[rest], low), np.minimum(inner.slow[rest], high)
        found, limits, _ = _envelopes(anchors, rest, widest, inner, worth)
        surely = envelope.certain(_bounds_of(anchors, rest), widest.some(rest), found.grid)
        maps, bounds = maps.put(rest, replace(found, surely=surely)), bounds.put(rest, limits)
    quiet = (moved > MOVED) & (own < np.maximum(MOVED, QUIET * moved))
    theirs = _medians(maps.worst, launch, (moved > MOVED) & ~quiet)
    worst = np.where(quiet, np.clip(theirs, maps.worst, np.maximum(maps.surely, maps.worst)), maps.worst)
    return replace(maps, worst=worst), bounds, moved


def _widest(lines: _Maps, launch: I64, nominal: F64) -> envelope.Limits:
    """Least and most ns per cycle that a clock which moves may have: from nominal, or a little faster than the fastest
    line of its launch, to half of that, or a third slower than the slowest line."""
    n = int(launch.max(initial=-1)) + 1
    fastest, slowest = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(fastest, launch, lines.fastest)
    np.maximum.at(slowest, launch, lines.slowest)
    unknown = np.where(nominal > 0, 0.99 * nominal, (1 - NOMINAL_SPREAD) * fastest[launch])
    fast = np.minimum(unknown, 0.97 * fastest[launch])
    return envelope.Limits(fast, np.maximum(2 * fast, slowest[launch] * 4 / 3))


def _surely(anchors: _Anchors, lines: _Maps, widest: envelope.Limits, nominal: F64) -> F64:
    """How far (g,) ns the truth can be from lines, whatever clocks do between any two anchors."""
    if not len(anchors.first):
        return np.zeros(0)
    rate = lines.grid.rate
    # An SM may be a little faster than the nominal clock of its device: by 0.35 % on an H200.
    top = 0.99 * nominal
    fast = np.minimum(np.where((top > widest.fast) & (top < rate), top, widest.fast), rate)
    low, high = anchors.g - MARGIN_NS, anchors.g + TICK_NS + MARGIN_NS
    limits = envelope.Limits(fast, np.maximum(widest.slow, rate)).each(anchors.counts)
    band = envelope.Band(envelope.Anchors(anchors.x, low, high, anchors.first), low, high, limits)
    return _worst(anchors, envelope.farthest(band, lines.grid))


def _launch_motion(own: F64, launch: I64) -> F64:
    """The largest change of rate in each group's launch; the second largest where three groups or more could tell: one
    SM with false anchors is no sign that the clock moved."""
    order = np.lexsort((-own, launch))
    first = np.flatnonzero(np.concatenate([[True], np.diff(launch[order]) != 0]))
    counts = np.diff(first, append=len(order))
    pick = order[first + (counts >= 3)]
    result = np.zeros(int(launch.max()) + 1)
    result[launch[pick]] = own[pick]
    return result[launch]


def _medians(values: F64, launch: I64, which: Bool) -> F64:
    """The median of the values ``which`` are of each group's launch, 0 without any."""
    rows = np.flatnonzero(which)
    order = rows[np.lexsort((values[rows], launch[rows]))]
    count = np.bincount(launch[rows], minlength=int(launch.max()) + 1)
    middle = np.cumsum(count) - count + count // 2
    result = np.zeros(len(count))
    result[count > 0] = values[order[middle[count > 0]]]
    return result[launch]


def _envelopes(
    anchors: _Anchors, groups: I64, widest: envelope.Limits, inner: envelope.Limits, trusted: Bool
) -> tuple[_Maps, envelope.Bounds, F64]:
    """(maps that follow the anchors, how far the truth can be from them, the change of rate that they prove) of some
    groups, part by part: the arrays of a part stay in the cache. ``widest``, ``inner``, ``trusted``: of all groups, see
    :func:`envelope.fit_envelope`."""
    total = np.cumsum(anchors.counts[groups]) // PART_ANCHORS
    parts = np.split(groups, np.flatnonzero(np.diff(total)) + 1)
    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1, MOST_THREADS)) as pool:
        found = list(pool.map(lambda part: _envelope(anchors, part, widest, inner, trusted), parts))
    maps, bounds, moved = zip(*found, strict=True)
    return _joined(list(maps)), envelope.Bounds.joined(list(bounds)), np.concatenate(moved)


def _joined(parts: list[_Maps]) -> _Maps:
    counts = np.concatenate([np.diff(p.grid.first) for p in parts])
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    cells = (np.concatenate([getattr(p.grid, n) for p in parts]) for n in ("shift", "begin", "t", "rate"))
    columns = (np.concatenate([getattr(p, n) for p in parts]) for n in _Maps.COLUMNS)
    return _Maps(envelope.Grid(first, *cells), *columns)


def _envelope(
    anchors: _Anchors, groups: I64, widest: envelope.Limits, inner: envelope.Limits, trusted: Bool
) -> tuple[_Maps, envelope.Bounds, F64]:
    """As :func:`_envelopes`, of one part."""
    e = envelope.fit_envelope(_bounds_of(anchors, groups), widest.some(groups), inner.some(groups), trusted[groups])
    a = e.anchors
    last = a.x[a.first + a.counts - 1]
    cells = np.maximum(last / (CELLS * a.counts), 1.0)
    shift = np.maximum(np.ceil(np.log2(cells)), LEAST_CELL).astype(np.int64)
    shift[shift > MOST_CELL] = ONE_CELL
    grid, away, bounds = envelope.draw(e, shift)
    gap = a.first + a.counts - 2
    rate_error = e.limits.slow[gap] - e.limits.fast[gap]
    mean = (e.low[gap + 1] + e.high[gap + 1] - e.low[a.first] - e.high[a.first]) / 2 / (a.x[gap + 1] - a.x[a.first])
    fastest, slowest = (np.where(np.isfinite(r), r, mean) for r in (e.fastest, e.slowest))
    near, worst, surely = (np.maximum.reduceat(one, a.first) for one in (away.show, away.ends, away.surely))
    typical = _median(a, away.ends)
    return _Maps(grid, near, worst, surely, typical, rate_error, fastest, slowest), bounds, e.moved


def _bounds_of(anchors: _Anchors, groups: I64) -> envelope.Anchors:
    """The bounds of some groups; anchors at one cycle become one."""
    rows = anchors.rows(groups)
    x, g, cell = anchors.x[rows], anchors.g[rows], anchors.cell[rows]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(x) != 0) | (np.diff(cell) != 0)]))
    low = np.maximum.reduceat(g, first) - MARGIN_NS
    high = np.minimum.reduceat(g, first) + TICK_NS + MARGIN_NS
    cell = cell[first]
    return envelope.Anchors(x[first], low, high, np.flatnonzero(np.concatenate([[True], np.diff(cell) != 0])))


def _median(a: envelope.Anchors, away: F64) -> F64:
    """Median over the cycles of each group."""
    group, step = np.repeat(np.arange(len(a.first)), a.counts), a.steps()
    order = np.lexsort((away, group))
    total = np.cumsum(step[order])
    begin = np.concatenate([[0.0], total])[a.first]
    half = (begin + total[a.first + a.counts - 1]) / 2
    at = np.clip(np.searchsorted(total, half), a.first, a.first + a.counts - 1)
    result: F64 = away[order][at]
    return result


def _uncertainty(anchors: _Anchors, fit: _Fit, low: F64, high: F64) -> tuple[F64, F64]:
    """How far another line that fits all anchors, with a rate in [low, high], can be from the chosen one, (c,): in ns
    at the first or the last anchor, and in ns per cycle behind it."""
    if not len(low):
        return np.zeros(0), np.zeros(0)
    zero = np.zeros(len(low))
    low, high = np.minimum(low, fit.rate), np.maximum(high, fit.rate)
    least, most = (_edge(anchors, fit.rate, end, zero) for end in (low, high))
    step = 0.5**EDGE_STEPS  # the edges lie up to so much farther
    least, most = least - step * (fit.rate - low), most + step * (high - fit.rate)
    ends = (anchors.x[anchors.first], anchors.x[anchors.first] + anchors.span(anchors.x))
    worst = np.abs(fit.room) / 2
    for part in (0.0, 0.5, 1.0):
        for edge in (least, most):
            rate = edge + (fit.rate - edge) * part
            for bound in _bounds(anchors, rate):
                for x in ends:
                    worst = np.maximum(worst, np.abs(bound - fit.offset + (rate - fit.rate) * x))
    return worst, np.maximum(most - fit.rate, fit.rate - least)


def groups_by_launch(clock: ClockMap, launches: int) -> list[I64]:
    """The groups of each launch, by SM."""
    order = np.lexsort((clock.sm, clock.launch))
    bounds = np.searchsorted(clock.launch[order], np.arange(launches + 1))
    return [order[first:stop] for first, stop in zip(bounds, bounds[1:], strict=False)]


def clock_facts(clock: ClockMap, launch: int) -> dict[str, Any]:
    """:func:`group_facts` of one launch."""
    return group_facts(clock, np.flatnonzero(clock.launch == launch))


def group_facts(clock: ClockMap, groups: I64) -> dict[str, Any]:
    """What ``Trace.meta["clocks"]`` says of one launch, given its groups. ``ns_per_cycle``: least and most, over 10 us
    or more; ``rate_change``: the largest relative change that its anchors prove; ``uncertainty_ns``: at worst, where
    something was recorded, and ``typical_uncertainty_ns``: at most moments of most SMs;
    ``certain_uncertainty_ns``: at worst, anywhere between its anchors, if a clock does what it can where none shows it,
    which is for ``silence_ns`` at most."""
    if not len(groups):
        return {"sms": 0}
    return {
        "sms": len(groups),
        "anchors": int(clock.anchors[groups].sum()),
        "knots": int((clock.grid.first[groups + 1] - clock.grid.first[groups] + 1).sum()),
        "ns_per_cycle": [float(clock.fastest[groups].min()), float(clock.slowest[groups].max())],
        "rate_from": sorted(set(clock.source[groups].tolist())),
        "rate_change": float(clock.moved[groups].max()),
        "uncertainty_ns": float(clock.stated[groups].max()),
        "typical_uncertainty_ns": float(np.median(clock.typical[groups])),
        "certain_uncertainty_ns": float(max(clock.certain[groups].max(), clock.stated[groups].max())),
        "silence_ns": float(clock.silence[groups].max()),
        "anchors_off": int(clock.violations[groups].sum()),
        "sms_off": int((clock.violations[groups] > 0).sum()),
    }
