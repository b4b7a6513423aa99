"""SM cycles -> nanoseconds.

The cycle counters of different SMs are unrelated and their rates differ by up to 0.7 %, so every SM of every launch
gets a clock of its own from its *anchors*: the pairs (%clock64, %globaltimer) that its warps read at entry and exit.
%globaltimer steps by 32 ns, so an anchor (c, g) says that the true time at cycle c lies in [g, g + 32), give or take
a small margin. The rate is the one that leaves most room between all these bounds, the offset the middle of what
room is left; half the room is the uncertainty.

All arithmetic is relative: cycles to the first of the SM in the launch, times to the first globaltimer there, as
float64 (exact integers up to 2**53); absolute nanoseconds only ever exist as integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tables import I64, Regions

F64 = NDArray[np.float64]

TICK_NS = 32.0
MARGIN_NS = 4.0
"""How far two SMs' %globaltimer, and the clock inside 10 us, were seen to wander."""
RATE_SPREAD = 0.007
"""Most that the rates of two SMs of a device differ."""
OWN_RATE_NS = 6000.0
"""An SM's own anchors, this far apart, tell its rate better than RATE_SPREAD."""
PIECE_NS = 500_000.0
"""Longer launches are mapped in pieces of this length, where there are anchors: rates move."""
PIECE_RATE_NS = 200_000.0
"""Anchors of one piece, this far apart, tell the piece's own rate; else the SM's rate over the launch is used."""
ANCHORS = 32
"""Anchors used for one fit; more only make the bounds tighter than the clock is steady."""
RATE_STEPS = 16
GOLDEN = 0.6180339887498949
POOLED_GOOD = 0.003
"""Relative error of a launch's pooled rate up to which it is used."""
BAD_NS = 64.0
"""An anchor this far off its map is reported."""


@dataclass(frozen=True)
class ClockMap:
    """Piecewise linear maps, one a group = (launch, SM).

    ``group`` (n,): group of each region. ``cycle0``/``time0`` (g,): origins of a group, in cycles and in ns of
    %globaltimer. Pieces of all groups: group ``k`` has pieces ``first[k] .. first[k + 1] - 1``; a piece maps cycles
    ``x`` since cycle0 to ``t + rate * (x - x0)`` ns since time0, from ``begin`` on. ``uncertainty`` (g,) ns;
    ``violations`` (g,): anchors more than BAD_NS off.
    """

    group: I64
    launch: I64
    sm: I64
    cycle0: I64
    time0: I64
    first: I64
    begin: F64
    x0: F64
    t: F64
    rate: F64
    uncertainty: F64
    violations: I64
    anchors: I64
    source: NDArray[np.str_]

    def part(self, rows: slice) -> ClockMap:
        """The same maps for some of the regions."""
        return replace(self, group=self.group[rows])

    def to_ns(self, group: I64, cycle: I64) -> I64:
        """Rounded ns since the group's time0 of (n,) cycles since the group's cycle0."""
        piece = self.piece(group, cycle)
        relative = cycle - self.x0[piece]
        relative *= self.rate[piece]
        relative += self.t[piece]
        return np.rint(relative).astype(np.int64)

    def piece(self, group: I64, cycle: I64) -> I64:
        """Piece of the group's map that each of (n,) cycles since its cycle0 lies in."""
        piece = self.first[group]
        if len(self.x0) > len(self.cycle0):
            piece = self._pieces(group, cycle.astype(np.float64), piece)
        return piece

    def _pieces(self, group: I64, x: F64, first: I64) -> I64:
        """Piece of each cycle: one search over all groups, laid end to end."""
        counts = np.diff(self.first)
        many = counts[group] > 1
        if not many.any():
            return first
        span = np.maximum.reduceat(self.begin, self.first[:-1]) + 1.0
        shift = np.concatenate([[0.0], np.cumsum(span)])[:-1]
        keys = self.begin + np.repeat(shift, counts)
        wanted = np.clip(x[many], 0.0, span[group[many]] - 0.5) + shift[group[many]]
        piece = first.copy()
        found = np.searchsorted(keys, wanted, side="right") - 1
        piece[many] = np.clip(found, first[many], self.first[group[many] + 1] - 1)
        return piece


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

    def span(self, values: F64) -> F64:
        """Last minus first of each cell."""
        last = self.first + self.counts - 1
        result: F64 = values[last] - values[self.first]
        return result


@dataclass(frozen=True)
class _Fit:
    offset: F64
    rate: F64
    room: F64


def fit_clocks(regions: Regions, launch: I64, nominal_khz: dict[tuple[int, int], int]) -> ClockMap:
    """The clock maps of all (launch, SM). ``nominal_khz``: SM clock by (process, device), used only where no launch
    of the device tells its rate. An empty input gives an empty map."""
    h = regions.headers
    key = launch * (int(h["sm"].max(initial=0)) + 1) + h["sm"]
    unique, first_row, group = np.unique(key, return_index=True, return_inverse=True)
    group = group.reshape(-1).astype(np.int64)
    group_launch, sm = launch[first_row], h["sm"][first_row].astype(np.int64)
    entry, gt = h["entry_clock"].astype(np.int64), h["entry_globaltimer"].astype(np.int64)
    cycle0, time0 = _minimum(entry, group, len(unique)), _minimum(gt, group, len(unique))
    anchors = _collect(regions, group, cycle0, time0)
    device = regions.process[first_row].astype(np.int64) << 32 | regions.device[first_row]
    thin = _thin(anchors)
    prior, source = _prior_rates(thin, group_launch, device, nominal_khz)
    whole = _fit_groups(thin, prior)
    own = thin.span(thin.g) >= OWN_RATE_NS
    source = np.where(own, "sm", source)
    pieces = _pieces(anchors, whole, thin)
    uncertainty, violations = _check(anchors, pieces, whole)
    first, begin, x0, t, rate = pieces
    return ClockMap(
        group, group_launch, sm, cycle0, time0, first, begin, x0, t, rate, uncertainty, violations,
        anchors.counts, source,
    )  # fmt: skip


def _minimum(values: I64, group: I64, n: int) -> I64:
    result = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(result, group, values)
    return result


def _collect(regions: Regions, group: I64, cycle0: I64, time0: I64) -> _Anchors:
    """Entry and exit anchors of all groups, sorted by (group, cycle)."""
    h, closed = regions.headers, regions.closed
    cells = np.concatenate([group, group[closed]])
    x = np.concatenate([h["entry_clock"], h["exit_clock"][closed]]).astype(np.int64) - cycle0[cells]
    g = np.concatenate([h["entry_globaltimer"], h["exit_globaltimer"][closed]]).astype(np.int64) - time0[cells]
    order = _order(cells, x)
    cells = cells[order]
    first = np.searchsorted(cells, np.arange(len(cycle0)))
    return _Anchors(x[order].astype(np.float64), g[order].astype(np.float64), cells, first)


def _order(cells: I64, x: I64) -> I64:
    """Argsort by (cell, x)."""
    span = int(x.max(initial=0)) + 1
    if x.min(initial=0) >= 0 and (int(cells.max(initial=0)) + 1) * span < 2**63:
        return np.argsort(cells * span + x, kind="stable")
    return np.lexsort((x, cells))


def _thin(anchors: _Anchors) -> _Anchors:
    """At most ANCHORS of each cell, evenly by rank, the first and the last among them."""
    counts = anchors.counts
    if not len(counts) or counts.max() <= ANCHORS:
        return anchors
    n = np.repeat(counts, counts)
    rank = np.arange(len(anchors.x)) - np.repeat(anchors.first, counts)
    step = rank * (ANCHORS - 1) // np.maximum(n - 1, 1)
    before = (rank - 1) * (ANCHORS - 1) // np.maximum(n - 1, 1)
    keep = (n <= ANCHORS) | (rank == 0) | (step != before)
    cell = anchors.cell[keep]
    return _Anchors(anchors.x[keep], anchors.g[keep], cell, np.searchsorted(cell, np.arange(len(counts))))


# ---------------------------------------------------------------------------------------------------------- rates
def _prior_rates(
    anchors: _Anchors, launch: I64, device: I64, nominal_khz: dict[tuple[int, int], int]
) -> tuple[F64, NDArray[np.str_]]:
    """(ns per cycle that each group starts from, where it comes from): the launch's SMs pooled, else the device's
    launches pooled, else the nominal clock."""
    dx, dg = anchors.span(anchors.x), anchors.span(anchors.g)
    rate, error = _pooled(dx, dg, launch)
    source = np.full(len(dx), "launch", dtype="<U8")
    device_code = np.unique(device, return_inverse=True)[1].reshape(-1).astype(np.int64)
    device_rate, device_error = _pooled(dx, dg, device_code)
    nominal = np.array([_nominal(int(d), nominal_khz) for d in device], np.float64)
    use_device = (error > POOLED_GOOD) & (device_error < error)
    rate, error = np.where(use_device, device_rate, rate), np.where(use_device, device_error, error)
    source[use_device] = "device"
    use_nominal = ~(error < 3 * RATE_SPREAD) & (nominal > 0)
    rate = np.where(use_nominal, nominal, rate)
    source[use_nominal] = "nominal"
    nothing = ~np.isfinite(rate) | (rate <= 0)
    source[nothing] = "none"
    return np.where(nothing, 1.0, rate), source


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


def _nominal(device: int, nominal_khz: dict[tuple[int, int], int]) -> float:
    khz = nominal_khz.get((device >> 32, device & 0xFFFFFFFF), 0)
    return 1e6 / khz if khz > 0 else 0.0


def _fit_groups(anchors: _Anchors, prior: F64) -> _Fit:
    """One line a group: with its own rate where its anchors are far enough apart, else with the prior one; where
    that leaves no room, with the best rate within RATE_SPREAD of it."""
    low, high = _own_bounds(anchors)
    pool_low, pool_high = prior * (1 - RATE_SPREAD), prior * (1 + RATE_SPREAD)
    clipped_low, clipped_high = np.maximum(low, pool_low), np.minimum(high, pool_high)
    outside = clipped_low > clipped_high
    clipped_low, clipped_high = np.where(outside, low, clipped_low), np.where(outside, high, clipped_high)
    own = anchors.span(anchors.g) >= OWN_RATE_NS
    fit = _fit(anchors, np.where(own, clipped_low, prior), np.where(own, clipped_high, prior))
    stuck = ~own & (fit.room < 0)
    if stuck.any():
        fit = _fit(anchors, np.where(stuck, clipped_low, fit.rate), np.where(stuck, clipped_high, fit.rate))
    return fit


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
    for _ in range(RATE_STEPS - 4):
        middle = (inside + outside) / 2
        good = _room(anchors, middle) >= enough
        inside, outside = np.where(good, middle, inside), np.where(good, outside, middle)
    return inside


# --------------------------------------------------------------------------------------------------------- pieces
_Pieces = tuple[I64, F64, F64, F64, F64]


def _pieces(anchors: _Anchors, whole: _Fit, thin: _Anchors) -> _Pieces:
    """(first, begin, x0, t, rate) of all groups: one piece, or several where a group is long.

    The anchors of every PIECE_NS give one knot in their middle; the map runs straight from knot to knot, so it is
    continuous and increasing.
    """
    n = len(whole.rate)
    zero = np.zeros(n)
    simple = (np.arange(n + 1), zero, zero, whole.offset, whole.rate)
    long = np.flatnonzero(thin.span(thin.g) > 2 * PIECE_NS)
    if not len(long):
        return simple
    knots = {int(k): _knots(anchors, whole, int(k)) for k in long}
    counts = np.array([max(len(knots[k][0]) - 1, 1) if k in knots else 1 for k in range(n)], np.int64)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    begin, x0, t, rate = (np.zeros(int(first[-1])) for _ in range(4))
    x0[first[:-1]], t[first[:-1]], rate[first[:-1]] = zero, whole.offset, whole.rate
    for k, (x, y) in knots.items():
        if len(x) < 2:
            continue
        part = slice(int(first[k]), int(first[k + 1]))
        begin[part], x0[part], t[part] = x[:-1], x[:-1], y[:-1]
        rate[part] = np.diff(y) / np.diff(x)
        begin[part.start] = 0.0
    return first, begin, x0, t, rate


def _knots(anchors: _Anchors, whole: _Fit, group: int) -> tuple[F64, F64]:
    """(x, t) of the knots of one long group: the middle of each piece, and both ends of the group."""
    at = int(anchors.first[group])
    end = at + int(anchors.counts[group])
    x, g = anchors.x[at:end], anchors.g[at:end]
    number = np.floor(x * whole.rate[group] / PIECE_NS).astype(np.int64)
    cell = np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)
    cells = _thin(_Anchors(x, g, cell, np.searchsorted(cell, np.arange(int(cell[-1]) + 1))))
    low, high = _own_bounds(cells)
    own = cells.span(cells.g) >= PIECE_RATE_NS
    rate = whole.rate[group]
    fit = _fit(cells, np.where(own, low, rate), np.where(own, high, rate))
    left = cells.x[cells.first]
    right = left + cells.span(cells.x)
    middle = (left + right) / 2
    knots = np.concatenate([left[:1], middle, right[-1:]])
    which = np.concatenate([[0], np.arange(len(middle)), [len(middle) - 1]])
    times = fit.offset[which] + fit.rate[which] * knots
    distinct = np.concatenate([[True], np.diff(knots) > 0])
    return knots[distinct], np.maximum.accumulate(times[distinct])


def _check(anchors: _Anchors, pieces: _Pieces, whole: _Fit) -> tuple[F64, I64]:
    """(uncertainty of each group in ns, anchors that lie more than BAD_NS off its map)."""
    n = len(whole.rate)
    if not n:
        return np.zeros(0), np.zeros(0, np.int64)
    first, begin, x0, t, rate = pieces
    none = np.zeros(n, np.int64)
    labels = np.zeros(n, dtype="<U1")
    clock = ClockMap(none, none, none, none, none, first, begin, x0, t, rate, x0, none, none, labels)
    mapped = clock.to_ns(anchors.cell, anchors.x.astype(np.int64)).astype(np.float64)
    off = np.maximum(anchors.g - MARGIN_NS - mapped, mapped - anchors.g - TICK_NS - MARGIN_NS)
    worst = np.maximum(np.maximum.reduceat(off, anchors.first), 0.0)
    room = np.where(np.diff(first) > 1, np.minimum(np.abs(whole.room), TICK_NS), np.abs(whole.room))
    uncertainty = room / 2 + np.where(worst > 0, worst + MARGIN_NS, 0.0)
    violations = np.bincount(anchors.cell[off > BAD_NS], minlength=n)
    return uncertainty, violations.astype(np.int64)


def clock_facts(clock: ClockMap, launch: int) -> dict[str, Any]:
    """What ``Trace.meta["clocks"]`` says of one launch."""
    groups = np.flatnonzero(clock.launch == launch)
    first, last = clock.first[groups], clock.first[groups + 1]
    if not len(groups):
        return {"sms": 0}
    rate = clock.rate[np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])]
    return {
        "sms": len(groups),
        "anchors": int(clock.anchors[groups].sum()),
        "pieces": int((last - first).max()),
        "ns_per_cycle": [float(rate.min()), float(rate.max())],
        "rate_from": sorted(set(clock.source[groups].tolist())),
        "uncertainty_ns": float(clock.uncertainty[groups].max()),
        "anchors_off": int(clock.violations[groups].sum()),
    }
