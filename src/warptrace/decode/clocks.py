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
NOMINAL_SPREAD = 0.25
"""How far below or above its nominal clock an SM may run."""
POOLED_GOOD = 0.003
"""Relative error of a launch's pooled rate up to which it is used."""
BENT_NS = 2.0
"""A long launch's anchors may be this far off one line before it is mapped in pieces."""
BAD_NS = 64.0
"""An anchor this far off its map is reported."""


@dataclass(frozen=True)
class ClockMap:
    """Piecewise linear maps, one a group = (launch, SM).

    ``group`` (n,): group of each region. ``cycle0``/``time0`` (g,): origins of a group, in cycles and in ns of
    %globaltimer. Pieces of all groups: group ``k`` has pieces ``first[k] .. first[k + 1] - 1``; a piece maps cycles
    ``x`` since cycle0 to ``t + rate * (x - x0)`` ns since time0, from ``begin`` on. ``uncertainty`` (g,) ns
    up to the ``last`` anchor (in cycles since cycle0), and ``rate_error`` ns more per cycle behind it;
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
    last: F64
    rate_error: F64
    violations: I64
    anchors: I64
    source: NDArray[np.str_]

    def part(self, rows: slice) -> ClockMap:
        """The same maps for some of the regions."""
        return replace(self, group=self.group[rows])

    def extended(self, cycle: I64) -> ClockMap:
        """The same maps, with the uncertainty up to ``cycle`` (n,), of each region since its group's cycle0: events
        of a warp that never ended may lie far behind the last anchor."""
        behind = np.zeros(len(self.last))
        np.maximum.at(behind, self.group, cycle - self.last[self.group])
        return replace(self, uncertainty=self.uncertainty + behind * self.rate_error)

    def to_ns(self, group: I64, cycle: I64) -> I64:
        """Rounded ns since the group's time0 of (n,) cycles since the group's cycle0."""
        piece = self.piece(group, cycle)
        relative = cycle - self.x0[piece]
        relative *= self.rate[piece]
        relative += self.t[piece]
        return np.rint(relative).astype(np.int64)

    def piece(self, group: I64, cycle: I64 | F64) -> I64:
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
    prior, spread, source = _prior_rates(thin, group_launch, device, nominal_khz)
    whole, uncertainty, rate_error = _fit_groups(thin, prior, spread)
    source = np.where(thin.span(thin.g) >= OWN_RATE_NS, "sm", source)
    pieces, uncertainty = _split(anchors, whole, uncertainty)
    off = _distance(anchors, pieces)
    worst = _worst(anchors, off)
    return ClockMap(
        group=group,
        launch=group_launch,
        sm=sm,
        cycle0=cycle0,
        time0=time0,
        first=pieces.first,
        begin=pieces.begin,
        x0=pieces.x0,
        t=pieces.t,
        rate=pieces.rate,
        uncertainty=np.where(worst > 0, np.maximum(uncertainty, worst + MARGIN_NS), uncertainty),
        last=anchors.span(anchors.x),
        rate_error=rate_error,
        violations=np.bincount(anchors.cell[off > BAD_NS], minlength=len(unique)).astype(np.int64),
        anchors=anchors.counts,
        source=source,
    )


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
) -> tuple[F64, F64, NDArray[np.str_]]:
    """(ns per cycle that each group starts from, how far from it the group's rate may be, relative, and where it
    comes from): the launch's SMs pooled, else the device's launches pooled, else the nominal clock."""
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
    for _ in range(RATE_STEPS - 4):
        middle = (inside + outside) / 2
        good = _room(anchors, middle) >= enough
        inside, outside = np.where(good, middle, inside), np.where(good, outside, middle)
    return inside


# --------------------------------------------------------------------------------------------------------- pieces
@dataclass(frozen=True)
class _Pieces:
    """The maps of all groups, as in ClockMap."""

    first: I64
    begin: F64
    x0: F64
    t: F64
    rate: F64


def _one_piece(fit: _Fit) -> _Pieces:
    zero = np.zeros(len(fit.rate))
    return _Pieces(np.arange(len(fit.rate) + 1), zero, zero, fit.offset, fit.rate)


def _distance(anchors: _Anchors, pieces: _Pieces) -> F64:
    """How far each anchor is outside of its bounds, in ns; negative inside. The anchors' cells are all groups."""
    none = np.zeros(len(pieces.first) - 1, np.int64)
    clock = ClockMap(
        none, none, none, none, none, pieces.first, pieces.begin, pieces.x0, pieces.t, pieces.rate,
        pieces.t, pieces.t, pieces.t, none, none, np.zeros(0, dtype="<U1"),
    )  # fmt: skip
    piece = clock.piece(anchors.cell, anchors.x)
    mapped = pieces.t[piece] + pieces.rate[piece] * (anchors.x - pieces.x0[piece])
    return np.maximum(anchors.g - MARGIN_NS - mapped, mapped - anchors.g - TICK_NS - MARGIN_NS)


def _worst(anchors: _Anchors, values: F64) -> F64:
    return np.maximum.reduceat(values, anchors.first) if len(anchors.first) else np.zeros(0)


def _split(anchors: _Anchors, whole: _Fit, uncertainty: F64) -> tuple[_Pieces, F64]:
    """(pieces, uncertainty) of all groups: one line each, unless a group is long and one line does not fit it.

    Then the anchors of every PIECE_NS give one knot in their middle; the map runs straight from knot to knot, so it is
    continuous and increasing.
    """
    simple = _one_piece(whole)
    if not len(whole.rate):
        return simple, uncertainty
    bent = (anchors.span(anchors.g) > 2 * PIECE_NS) & (_worst(anchors, _distance(anchors, simple)) > BENT_NS)
    if not bent.any():
        return simple, uncertainty
    group, x, t, room = _knots(anchors, whole, bent)
    same = group[1:] == group[:-1]
    owner, x0, t0 = group[:-1][same], x[:-1][same], t[:-1][same]
    rate = (t[1:][same] - t0) / (x[1:][same] - x0)
    counts = np.where(bent, np.bincount(owner, minlength=len(bent)), 1)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    inside = np.repeat(bent, counts)
    columns = [np.zeros(int(first[-1])) for _ in range(4)]
    for column, plain, knotted in zip(
        columns, (np.zeros(len(bent)), np.zeros(len(bent)), whole.offset, whole.rate), (x0, x0, t0, rate), strict=True
    ):
        column[~inside], column[inside] = plain[~bent], knotted
    columns[0][first[:-1]] = 0.0
    return _Pieces(first, *columns), np.where(bent, room / 2, uncertainty)


def _knots(anchors: _Anchors, whole: _Fit, bent: NDArray[np.bool_]) -> tuple[I64, F64, F64, F64]:
    """(group, x, t) of the knots of the bent groups, sorted, and the room (groups,) of their worst piece."""
    use = bent[anchors.cell]
    group, x, g = anchors.cell[use], anchors.x[use], anchors.g[use]
    number = np.floor(x * whole.rate[group] / PIECE_NS)
    new = np.concatenate([[True], (group[1:] != group[:-1]) | (number[1:] != number[:-1])])
    cell = np.cumsum(new) - 1
    cells = _thin(_Anchors(x, g, cell, np.flatnonzero(new)))
    owner = group[new]
    low, high = _own_bounds(cells)
    own = cells.span(cells.g) >= PIECE_RATE_NS
    fit = _fit(cells, np.where(own, low, whole.rate[owner]), np.where(own, high, whole.rate[owner]))
    left = cells.x[cells.first]
    right = left + cells.span(cells.x)
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    ends = np.append(starts[1:], len(owner)) - 1
    which = np.concatenate([starts, np.arange(len(owner)), ends])
    at = np.concatenate([left[starts], (left + right) / 2, right[ends]])
    order = np.lexsort((at, owner[which]))
    which, at = which[order], at[order]
    distinct = np.concatenate([[True], (np.diff(at) > 0) | (np.diff(owner[which]) != 0)])
    which, at = which[distinct], at[distinct]
    room = np.zeros(len(bent))
    np.maximum.at(room, owner, np.abs(fit.room))
    return owner[which], at, _rising(owner[which], fit.offset[which] + fit.rate[which] * at), room


def _rising(group: I64, t: F64) -> F64:
    """The times, each at least the one before it in its group: only clocks that are beyond trust need it."""
    falling = (np.diff(t) < 0) & (group[1:] == group[:-1])
    for k in np.unique(group[1:][falling]):
        rows = group == k
        t[rows] = np.maximum.accumulate(t[rows])
    return t


def _uncertainty(anchors: _Anchors, fit: _Fit, low: F64, high: F64) -> tuple[F64, F64]:
    """How far another line that fits all anchors, with a rate in [low, high], can be from the chosen one, (c,): in ns
    at the first or the last anchor, and in ns per cycle behind it."""
    if not len(low):
        return np.zeros(0), np.zeros(0)
    zero = np.zeros(len(low))
    low, high = np.minimum(low, fit.rate), np.maximum(high, fit.rate)
    least, most = (_edge(anchors, fit.rate, end, zero) for end in (low, high))
    ends = (anchors.x[anchors.first], anchors.x[anchors.first] + anchors.span(anchors.x))
    worst = np.abs(fit.room) / 2
    for part in (0.0, 0.5, 1.0):
        for edge in (least, most):
            rate = edge + (fit.rate - edge) * part
            for bound in _bounds(anchors, rate):
                for x in ends:
                    worst = np.maximum(worst, np.abs(bound - fit.offset + (rate - fit.rate) * x))
    return worst, np.maximum(most - fit.rate, fit.rate - least)


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
