"""Cycles -> ns on made-up SM clocks whose true time is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_device import EPOCH_NS
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode.clocks import ClockMap, clock_facts, fit_clocks
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
    allowed = clocks.uncertainty[clocks.group] + 1.5  # rounding, and a cycle
    for part in (0.0, 0.3, 0.7, 1.0):
        ns = start + part * (end - start)
        error = np.abs(map_ns(clocks, regions, clock(sm, ns)) - ns)
        assert (error <= allowed).all()
    assert (clocks.uncertainty <= 45).all()
    assert clocks.violations.sum() == 0


def test_more_anchors_leave_less_uncertainty() -> None:
    rng = np.random.default_rng(5)
    worst = []
    for warps in (1, 4, 32):
        sm, start, end = spread_warps(rng, 8, 1, warps, 50_000.0)
        regions = make_regions(sm, start, end, steady(dict.fromkeys(range(8), 1.98)))
        worst.append(fit_clocks(regions, np.zeros(len(sm), np.int64), {}).uncertainty.max())
    assert worst[0] > worst[1] > worst[2]
    assert worst[0] == pytest.approx(20, abs=0.1)  # half of 32 + 2 x 4: nothing but one anchor at each end
    assert worst[2] < 12


def test_a_moving_rate_is_followed_in_pieces() -> None:
    """1.98 GHz, then 1.965 from 5 ms on: anchors every 20 us keep the map within tens of ns."""

    def clock(sm: np.ndarray, ns: np.ndarray) -> np.ndarray:
        before, after = np.minimum(ns, 5e6) * 1.98, np.maximum(ns - 5e6, 0) * 1.965
        return 77_000_000_000 + np.floor(before + after).astype(np.int64)

    rng = np.random.default_rng(1)
    sm, start, end = spread_warps(rng, 4, 500, 4, 10e6)
    regions = make_regions(sm, start, end, clock)
    clocks = fit_clocks(regions, np.zeros(len(sm), np.int64), {})
    for part in (0.0, 0.5, 1.0):
        ns = start + part * (end - start)
        error = np.abs(map_ns(clocks, regions, clock(sm, ns)) - ns)
        assert error.max() < 1000  # the piece that holds the step
        assert error[(ns < 4e6) | (ns > 6e6)].max() < 12
    facts = clock_facts(clocks, 0)
    assert facts["pieces"] > 10
    assert facts["ns_per_cycle"][0] == pytest.approx(1 / 1.98, rel=1e-3)
    assert facts["ns_per_cycle"][1] == pytest.approx(1 / 1.965, rel=1e-3)
    assert facts["uncertainty_ns"] > 100  # the step shows


def test_pieces_join_and_rise() -> None:
    rng = np.random.default_rng(2)

    def clock(sm: np.ndarray, ns: np.ndarray) -> np.ndarray:
        return np.floor(1.98 * ns + 4000 * np.sin(ns / 4e5)).astype(np.int64) + 5_000_000_000

    sm, start, end = spread_warps(rng, 2, 300, 2, 6e6)
    regions = make_regions(sm, start, end, clock)
    clocks = fit_clocks(regions, np.zeros(len(sm), np.int64), {})
    assert clock_facts(clocks, 0)["pieces"] > 5
    for group in range(2):
        cycles = np.arange(0, 12_100_000, 1)
        ns = clocks.to_ns(np.full(len(cycles), group), cycles)
        steps = np.diff(ns)
        assert steps.min() >= 0 and steps.max() <= 2


def test_a_short_launch_takes_the_rate_of_its_device() -> None:
    sm = np.array([0, 0, 0])
    start, end = np.array([0.0, 2e6, 3e6]), np.array([1e6, 2e6 + 100, 3e6 + 64])
    regions = make_regions(sm, start, end, steady({0: 1.5}))
    clocks = fit_clocks(regions, np.array([0, 1, 2]), {(0, 0): 1_980_000})
    assert [clock_facts(clocks, k)["rate_from"] for k in range(3)] == [["sm"], ["device"], ["device"]]
    assert clocks.rate == pytest.approx(1 / 1.5, rel=1e-4)


def test_the_nominal_rate_is_the_last_resort() -> None:
    regions = make_regions(np.array([0]), np.array([64.0]), np.array([128.0]), steady({0: 2.0}))
    clocks = fit_clocks(regions, np.zeros(1, np.int64), {(0, 0): 2_000_000})
    assert clock_facts(clocks, 0)["rate_from"] == ["nominal"]
    assert clocks.rate.tolist() == [0.5]
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
