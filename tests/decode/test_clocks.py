"""Cycles -> ns on made-up SM clocks whose true time is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from fake_device import EPOCH_NS
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode.clocks import ClockMap, EventAnchors, clock_facts, fit_clocks
from warptrace.decode.envelope import ONE_CELL, SHORT_RUN, WANDER, Grid
from warptrace.decode.tables import Regions

Clock = Callable[[np.ndarray, np.ndarray], np.ndarray]


def make_regions(sm: np.ndarray, start: np.ndarray, end: np.ndarray, clock: Clock, closed: bool = True) -> Regions:
    """One region a warp that ran from ``start`` to ``end`` (true ns); ``clock(sm, ns)``: cycles."""
    headers = np.zeros(len(sm), wire.REGION_DTYPE)
    headers["sm"] = sm
    for name, ns in (("entry", start), ("exit", end)):
        headers[f"{name}_clock"] = clock(sm, ns)
        headers[f"{name}_globaltimer"] = EPOCH_NS + (ns // 32 * 32).astype(np.int64)
    zeros = np.zeros(len(sm), np.int32)
    return Regions(headers, zeros, zeros, zeros, zeros, zeros.astype(np.int64), np.full(len(sm), closed))


def map_ns(clocks: ClockMap, regions: Regions, cycles: np.ndarray) -> np.ndarray:
    """ns since EPOCH_NS of one %clock64 value per region."""
    since = cycles.astype(np.int64) - clocks.cycle0[clocks.group]
    return clocks.time0[clocks.group] + clocks.to_ns(clocks.group, since) - EPOCH_NS


def steady(rates: dict[int, float]) -> Clock:
    table = np.array([rates[k] for k in sorted(rates)])
    return lambda sm, ns: 10_000_000_000 * (sm.astype(np.int64) + 3) + np.floor(ns * table[sm]).astype(np.int64)


def spread_warps(
    rng: np.random.Generator, sms: int, waves: int, warps: int, duration: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sm = np.repeat(np.arange(sms), waves * warps)
    wave = np.tile(np.repeat(np.arange(waves), warps), sms)
    start = wave * duration / waves + rng.uniform(0, 0.1 * duration / waves, len(sm))
    end = (wave + 1) * duration / waves - rng.uniform(0, 0.3 * duration / waves, len(sm))
    return sm, start, end


@settings(max_examples=60, deadline=None)
@example(seed=87, duration=40_000.0, waves=5, warps=12)  # the anchors that were picked first tell another line
@example(seed=96, duration=1e6, waves=5, warps=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    duration=st.sampled_from([300.0, 2_000.0, 7_000.0, 40_000.0, 1e6, 3e9]),
    waves=st.sampled_from([1, 1, 5]),
    warps=st.sampled_from([1, 4, 12]),
)
def test_true_time_lies_within_the_stated_uncertainty(seed: int, duration: float, waves: int, warps: int) -> None:
    rng = np.random.default_rng(seed)
    rates = {k: 1.7 * (1 + rng.uniform(-0.003, 0.003)) for k in range(16)}
    sm, start, end = spread_warps(rng, 16, waves, warps, duration)
    clock = steady(rates)
    regions = make_regions(sm, start, end, clock)
    clocks = fit_clocks(regions, np.zeros(len(sm), np.int64), {(0, 0): 1_700_000})
    allowed = clocks.uncertainty[clocks.group]
    for part in (0.0, 0.3, 0.7, 1.0):
        ns = start + part * (end - start)
        cycles = clock(sm, ns)
        error = np.abs(map_ns(clocks, regions, cycles) - ns)
        doubt = clocks.doubt(clocks.group, cycles - clocks.cycle0[clocks.group])
        assert (error <= doubt).all() and (doubt <= allowed + 1e-3).all()
    # An anchor says 40 ns at worst; a step that none shows may tilt the line by half of that.
    assert (clocks.uncertainty <= 40 + 20 + 2 + WANDER / 2 * duration).all()
    assert clocks.violations.sum() == 0
    assert not clock_facts(clocks, 0)["rate_change"]


def test_more_anchors_leave_less_uncertainty() -> None:
    """In the middle: near the ends of a launch, where a step of the clock may be that none of them shows, it is an
    anchor's own."""
    rng = np.random.default_rng(5)
    clock = steady(dict.fromkeys(range(8), 1.98))
    sms = np.arange(8)
    middle = []
    for warps in (1, 4, 32):
        sm, start, end = spread_warps(rng, 8, 6, warps, 60_000.0)
        clocks = fit_clocks(make_regions(sm, start, end, clock), np.zeros(len(sm), np.int64), {})
        middle.append(clocks.doubt(sms, clock(sms, np.full(8, 30_000.0)) - clocks.cycle0).max())
    assert max(middle[1:]) < 28 < 36 < middle[0] < 40
    # Half of 32 + 2 x 4: nothing but one anchor at each end. 2.3 ns that a steady clock may wander meanwhile; a cycle
    # and the rounding.
    sm, start, end = spread_warps(rng, 8, 1, 1, 50_000.0)
    clocks = fit_clocks(make_regions(sm, start, end, clock), np.zeros(len(sm), np.int64), {})
    assert clocks.uncertainty.max() == pytest.approx(20 + 2.3 + 1, abs=0.3)


def step_clock(sm: np.ndarray, ns: np.ndarray) -> np.ndarray:
    """1.98 GHz, then 1.965 from 5 ms on."""
    before, after = np.minimum(ns, 5e6) * 1.98, np.maximum(ns - 5e6, 0) * 1.965
    return 77_000_000_000 + np.floor(before + after).astype(np.int64)


def test_a_moving_rate_is_followed() -> None:
    """Anchors every 20 us keep the map within 25 ns."""
    rng = np.random.default_rng(1)
    sm, start, end = spread_warps(rng, 4, 500, 4, 10e6)
    regions = make_regions(sm, start, end, step_clock)
    clocks = fit_clocks(regions, np.zeros(len(sm), np.int64), {(0, 0): 1_980_000})
    for part in (0.0, 0.5, 1.0):
        ns = start + part * (end - start)
        error = np.abs(map_ns(clocks, regions, step_clock(sm, ns)) - ns)
        assert error.max() < 60  # where the step is
        assert error[(ns < 4.9e6) | (ns > 5.1e6)].max() < 30
    facts = clock_facts(clocks, 0)
    assert facts["knots"] > 1000
    assert facts["anchors"] == 2 * len(sm)
    assert facts["ns_per_cycle"][0] == pytest.approx(1 / 1.98, rel=2e-3)
    assert facts["ns_per_cycle"][1] == pytest.approx(1 / 1.965, rel=2e-3)
    assert facts["rate_change"] == pytest.approx(1.98 / 1.965 - 1, rel=0.3)
    assert facts["typical_uncertainty_ns"] < 45
    assert 60 < facts["uncertainty_ns"] < 300  # the step shows
    assert facts["anchors_off"] == 0


def test_maps_rise() -> None:
    rng = np.random.default_rng(2)

    def clock(sm: np.ndarray, ns: np.ndarray) -> np.ndarray:
        return np.floor(1.98 * ns + 4000 * np.sin(ns / 4e5)).astype(np.int64) + 5_000_000_000

    sm, start, end = spread_warps(rng, 2, 300, 2, 6e6)
    regions = make_regions(sm, start, end, clock)
    clocks = fit_clocks(regions, np.zeros(len(sm), np.int64), {})
    assert clock_facts(clocks, 0)["knots"] > 500
    for group in range(2):
        cycles = np.arange(0, 12_100_000, 1)
        ns = clocks.to_ns(np.full(len(cycles), group), cycles)
        steps = np.diff(ns)
        assert steps.min() >= 0 and steps.max() <= 2


# ---------------------------------------------------------------------------------------------- clocks that move
@dataclasses.dataclass(frozen=True)
class History:
    """A clock of piecewise constant rate: ``rate`` (k,) cycles per ns from ``begin`` (k,) ns on."""

    begin: np.ndarray
    rate: np.ndarray

    def cycles(self, ns: np.ndarray) -> np.ndarray:
        sums = np.concatenate([[0.0], np.cumsum(np.diff(self.begin) * self.rate[:-1])])
        at = np.clip(np.searchsorted(self.begin, ns, side="right") - 1, 0, None)
        return sums[at] + (ns - self.begin[at]) * self.rate[at]


def make_history(rng: np.random.Generator, kind: str, duration: float) -> History:
    """``constant``; ``step``: one of 1 to 25 %; ``edge``: one, up or down, within 20 us of either end; ``nudge``: by
    0.01 to 1 %, and back; ``drift``: 25 % in a smooth wave; ``walk``: a new rate every 2 to 60 us; ``dip``: short
    excursions from a constant rate."""
    top = rng.choice([1.98, 1.755, 1.5])
    if kind == "constant":
        return History(np.zeros(1), np.array([top]))
    if kind == "step":
        at = rng.uniform(0, duration)
        return History(np.array([0.0, at]), np.array([1.98, 1.98 * rng.uniform(0.75, 0.99)]))
    if kind == "edge":
        away = 10 ** rng.uniform(2, np.log10(min(duration, 20_000)))
        rate = np.array([1.98, 1.98 * rng.uniform(0.75, 0.99)])
        at = away if rng.random() < 0.5 else duration - away
        return History(np.array([0.0, at]), rate if rng.random() < 0.7 else rate[::-1])
    if kind == "nudge":
        begin = np.sort(rng.uniform(0, duration, 2))
        return History(np.concatenate([[0.0], begin]), top * (1 - np.array([0.0, 10 ** rng.uniform(-4, -2), 0.0])))
    if kind == "drift":
        begin = np.arange(0, duration, 200.0)
        depth, period = rng.uniform(0.01, 0.25), rng.uniform(50_000, 400_000)
        return History(begin, 1.98 * (1 - depth / 2 + depth / 2 * np.sin(begin / period * 2 * np.pi)))
    if kind == "walk":
        begin = np.concatenate([[0.0], np.cumsum(rng.uniform(2_000, 60_000, int(duration / 10_000)))])
        return History(begin, 1.98 * rng.uniform(0.75, 1, len(begin)))
    begin = np.sort(rng.uniform(0, duration, 8))
    length = rng.uniform(500, 10_000, 8)
    edges = np.stack([begin, begin + length], axis=1).reshape(-1)
    edges = np.concatenate([[0.0], np.maximum.accumulate(edges)])
    rate = np.where(np.arange(len(edges)) % 2 == 1, top * rng.uniform(0.75, 0.97), top)
    return History(edges, rate)


@dataclasses.dataclass(frozen=True)
class Moving:
    """A launch of one warp an SM, all with the same history but for 0.3 %, that lasted ``duration`` ns, with an anchor
    in every ``spacing`` ns (none if that is longer). ``start`` (SMs,): true ns of the entries."""

    regions: Regions
    fitted: ClockMap
    clocks: list[History]
    start: np.ndarray
    duration: float

    @classmethod
    def run(cls, seed: int, kind: str, spacing: float, duration: float, sms: int = 6) -> Moving:
        rng = np.random.default_rng(seed)
        common = make_history(rng, kind, duration)
        clocks = [History(common.begin, common.rate * (1 + rng.uniform(-0.003, 0.003))) for _ in range(sms)]
        offset = rng.integers(10**9, 10**12, sms)

        def clock(sm: np.ndarray, ns: np.ndarray) -> np.ndarray:
            parts = [np.floor(clocks[k].cycles(t)).astype(np.int64) + offset[k] for k, t in zip(sm, ns, strict=True)]
            return np.array(parts)

        start = rng.uniform(0, 2000.0, sms)
        regions = make_regions(np.arange(sms), start, start + duration, clock)
        found = []
        for k in range(sms):
            bins = np.arange(int(duration / spacing))
            ns = start[k] + (bins + rng.uniform(0, 1, len(bins))) * spacing
            cycle = np.floor(clocks[k].cycles(ns)).astype(np.int64) + offset[k]
            cycle -= int(regions.headers["entry_clock"][k])
            found.append((np.full(len(ns), k), cycle, EPOCH_NS + (ns // 32 * 32).astype(np.int64)))
        events = EventAnchors(*(np.concatenate(column) for column in zip(*found, strict=True)))
        fitted = fit_clocks(regions, np.zeros(sms, np.int64), {(0, 0): 1_980_000}, events)
        return cls(regions, fitted, clocks, start, duration)

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """(SMs, 20000) ns that decoded times are off the truth, evenly over the launch, and may be off."""
        rows, doubts = [], []
        for k, history in enumerate(self.clocks):
            ns = self.start[k] + np.linspace(0, self.duration, 20_000)
            cycle = np.floor(history.cycles(ns)).astype(np.int64)
            cycle -= cycle[0]
            group = np.full(len(ns), k)
            rows.append(self.fitted.time0[k] - EPOCH_NS + self.fitted.to_ns(group, cycle) - ns)
            doubts.append(self.fitted.doubt(group, cycle))
        return np.array(rows), np.array(doubts)


KINDS = ("constant", "step", "edge", "nudge", "drift", "walk", "dip")


@settings(max_examples=100, deadline=None)
@example(seed=179849, kind="step", spacing=50_000.0, duration=150_000.0)  # 0.9 us before the end
@example(seed=1192287816, kind="step", spacing=1_000.0, duration=150_000.0)
@example(seed=3296600763, kind="step", spacing=50_000.0, duration=150_000.0)
@example(seed=807339249, kind="edge", spacing=5_000.0, duration=1_000_000.0)
@example(seed=1441477807, kind="dip", spacing=50_000.0, duration=150_000.0)  # one SM's anchors do not show it
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    spacing=st.sampled_from([1_000.0, 5_000.0, 50_000.0]),
    duration=st.sampled_from([10_000.0, 150_000.0, 1_000_000.0]),
)
def test_a_moving_clock_lies_within_the_stated_uncertainty(
    seed: int, kind: str, spacing: float, duration: float
) -> None:
    assume(kind != "nudge" or spacing < 50_000.0)  # so small and so short that no anchor need show it
    assume(spacing < duration / 3)  # else there are hardly any but those at its ends
    run = Moving.run(seed, kind, spacing, duration)
    error, doubt = run.errors()
    assert (np.abs(error) <= doubt).all()
    assert (doubt <= run.fitted.uncertainty[:, None] + 1e-3).all()
    assert run.fitted.violations.sum() == 0
    # What came later on another SM is never decoded as earlier by more than both uncertainties.
    assert np.ptp(error, axis=0).max() <= np.sort(run.fitted.uncertainty)[-2:].sum()
    assert (run.fitted.grid.rate > 0).all()
    # Followed closely, all the same: a quarter of the clock moves inside a few microseconds.
    if spacing == 1_000.0 and duration > 10_000.0:
        assert np.median(np.abs(error)) < 15
        assert np.median(run.fitted.typical) < 100


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    spacing=st.sampled_from([300.0, 5_000.0, 50_000.0, 1e9]),
    duration=st.sampled_from([2_000.0, 10_000.0, 150_000.0]),
)
def test_a_clock_that_no_anchor_shows_lies_within_what_is_certain(
    seed: int, kind: str, spacing: float, duration: float
) -> None:
    """Whatever it does, and be there none but the anchors of entry and exit."""
    run = Moving.run(seed, kind, spacing, duration)
    error, _ = run.errors()
    certain, facts = run.fitted.certain, clock_facts(run.fitted, 0)
    assert (np.abs(error) <= certain[:, None]).all()
    assert (certain >= run.fitted.uncertainty).all()
    assert facts["certain_uncertainty_ns"] == certain.max() >= facts["uncertainty_ns"]
    assert abs(facts["silence_ns"] - min(duration, 2 * spacing)) <= spacing + 32


def test_a_clock_at_its_fastest_hides_little() -> None:
    """It can only be back on the mean if it was faster for as long as it was slower."""
    for ghz, expected in ((1.98, 989), (1.6, 15_000)):
        regions = make_regions(np.array([0]), np.array([0.0]), np.array([100_000.0]), steady({0: ghz}))
        clocks = fit_clocks(regions, np.zeros(1, np.int64), {(0, 0): 1_980_000})
        assert clocks.uncertainty[0] < 30
        assert clocks.silence.tolist() == [100_000 // 32 * 32]
        # As slow as it may be at first, then as fast: 1 % more than the nominal clock.
        fast, slow, rate = 0.5, 2 * min(0.5, 0.97 / ghz), 1 / ghz
        assert round((slow - rate) * (100_000 - fast * 100_000 * ghz) / (slow - fast)) == expected
        assert clocks.certain[0] == pytest.approx(expected, abs=60)


def test_a_short_launch_takes_the_rate_of_its_device() -> None:
    sm = np.array([0, 0, 0])
    start, end = np.array([0.0, 2e6, 3e6]), np.array([1e6, 2e6 + 100, 3e6 + 64])
    regions = make_regions(sm, start, end, steady({0: 1.5}))
    clocks = fit_clocks(regions, np.array([0, 1, 2]), {(0, 0): 1_980_000})
    assert [clock_facts(clocks, k)["rate_from"] for k in range(3)] == [["sm"], ["device"], ["device"]]
    assert clocks.grid.rate == pytest.approx(1 / 1.5, rel=1e-4)


def test_the_nominal_rate_is_the_last_resort() -> None:
    regions = make_regions(np.array([0]), np.array([64.0]), np.array([128.0]), steady({0: 2.0}))
    clocks = fit_clocks(regions, np.zeros(1, np.int64), {(0, 0): 2_000_000})
    assert clock_facts(clocks, 0)["rate_from"] == ["nominal"]
    assert clocks.grid.rate.tolist() == [0.5]
    clocks = fit_clocks(make_regions(np.array([0]), np.array([64.0]), np.array([64.0]), steady({0: 2.0}), False),
                        np.zeros(1, np.int64), {})  # fmt: skip
    assert clock_facts(clocks, 0)["rate_from"] == ["none"]


def test_an_anchor_that_cannot_be_is_counted() -> None:
    sm = np.zeros(40, np.int64)
    start = np.arange(40) * 1000.0
    regions = make_regions(sm, start, start + 900, steady({0: 1.98}))
    regions.headers["entry_globaltimer"][20] += 32 * 10
    clocks = fit_clocks(regions, np.zeros(40, np.int64), {})
    assert clocks.violations.tolist() == [1]
    assert clocks.uncertainty[0] > 100


def test_no_regions() -> None:
    regions = make_regions(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), steady({0: 1.0}))
    clocks = fit_clocks(regions, np.zeros(0, np.int64), {})
    assert len(clocks.uncertainty) == 0
    assert clock_facts(clocks, 0) == {"sms": 0}


@given(
    cells=st.lists(st.lists(st.integers(1, 5000), min_size=1, max_size=6), min_size=1, max_size=5),
    asked=st.lists(st.tuples(st.integers(0, 99), st.integers(-50, 40_000)), min_size=1, max_size=40),
)
def test_cells_of_uneven_groups(cells: list[list[int]], asked: list[tuple[int, int]]) -> None:
    """A cell is the last that begins at or before the cycle, the first if none does."""
    begins = [np.cumsum([0, *lengths]) for lengths in cells]
    first = np.cumsum([0, *map(len, begins)])
    count = int(first[-1])
    shift = np.full(len(cells), ONE_CELL)
    grid = Grid(first, shift, np.concatenate(begins), np.zeros(count), np.ones(count))
    row = np.array([i % len(cells) for i, _ in asked], np.int32)
    cycle = np.array([cycle for _, cycle in asked], np.int64)
    groups = np.arange(len(cells))
    assert grid.uneven(groups)
    wanted = [int(first[r]) + max(int((begins[r] <= c).sum()) - 1, 0) for r, c in zip(row, cycle)]
    assert grid.search(groups, row, cycle).tolist() == wanted
    assert grid.cell(row.astype(np.int64), cycle).tolist() == wanted


@given(
    cells=st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=6), min_size=1, max_size=5),
    rows=st.lists(st.tuples(st.integers(0, 99), st.integers(-50, 3000), st.integers(0, 20)), min_size=1, max_size=8),
    step=st.integers(0, 9),
)
def test_runs_of_cycles_in_uneven_groups(
    cells: list[list[int]], rows: list[tuple[int, int, int]], step: int
) -> None:
    """Rows of many cycles from some cycle on: their runs say of each what a search of it says."""
    begins = [np.cumsum([0, *lengths]) for lengths in cells]
    first = np.cumsum([0, *map(len, begins)])
    count = int(first[-1])
    grid = Grid(
        first, np.full(len(cells), ONE_CELL), np.concatenate(begins), np.zeros(count), np.ones(count)
    )
    group = np.array([number % len(cells) for number, _, _ in rows])
    counts = np.array([20 * many for _, _, many in rows])
    cycle = np.concatenate([start + step * np.arange(20 * many) for _, start, many in rows])
    row = np.repeat(np.arange(len(rows)), counts)
    runs = grid.runs(group, counts, cycle)
    wanted = grid.search(group, row, cycle)
    spans = [wanted[row == r][-1] - wanted[row == r][0] for r in range(len(rows)) if counts[r]]
    if runs is None:
        assert not len(cycle) or sum(spans) * SHORT_RUN > len(cycle)
        return
    assert (runs.count > 0).all()
    assert np.repeat(runs.cell, runs.count).tolist() == wanted.tolist()
    assert np.repeat(runs.row, runs.count).tolist() == row.tolist()


def test_no_runs_of_cycles_that_fall() -> None:
    grid = Grid(np.array([0, 2]), np.array([ONE_CELL]), np.array([0, 100]), np.zeros(2), np.ones(2))
    rising = np.arange(200)
    falling = rising.copy()
    falling[50] = 10
    runs = grid.runs(np.zeros(1, np.int64), np.array([200]), rising)
    assert runs is not None and (runs.cell.tolist(), runs.count.tolist()) == ([0, 1], [100, 100])
    assert grid.runs(np.zeros(1, np.int64), np.array([200]), falling) is None
    assert grid.runs(np.zeros(1, np.int64), np.array([200]), rising[::-1]) is None
    assert grid.runs(np.zeros(1, np.int64), np.array([0]), rising[:0]) is None
