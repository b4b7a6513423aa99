"""Clocks of devices and hosts on one timeline: made-up clocks whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given
from hypothesis import strategies as st

from warptrace.decode import decode
from warptrace.decode.fit import DRIFT, MOST_PAIRS, WANDER, Pairs, fit_offset
from warptrace.raw import read_capture
from warptrace.trace import Trace

S = 10**9


# ------------------------------------------------------------------------------------------------ one timer, one host
@dataclass(frozen=True)
class Clock:
    """Host time minus %globaltimer: ``start`` ns, and rates in 1e-9 from each of ``steps`` (ns) on."""

    start: int
    steps: tuple[int, ...]
    rates: tuple[int, ...]

    def offset(self, at: int) -> Fraction:
        value, ends = Fraction(self.start), (*self.steps[1:], None)
        for begin, end, rate in zip(self.steps, ends, self.rates, strict=True):
            value += Fraction(rate, 10**9) * max(min(at, end if end is not None else at) - begin, 0)
        return value


@st.composite
def clocks(draw: st.DrawFn, most_change: int) -> Clock:
    """A clock of up to 120 s; its rate is up to 50 ppm and moves by ``most_change`` in 1e-9 at most."""
    count = draw(st.integers(1, 5))
    steps = (0, *sorted(draw(st.lists(st.integers(1, 119 * S), min_size=count, max_size=count, unique=True))))
    low = draw(st.integers(-50_000, 50_000 - most_change))
    rates = tuple(draw(st.integers(low, low + most_change)) for _ in steps)
    return Clock(draw(st.integers(-(10**9), 10**9)), steps, rates)


def measured(draw: st.DrawFn, clock: Clock, times: list[int]) -> Pairs:
    rows = []
    for at in times:
        uncertainty = draw(st.integers(1, 3000))
        error = draw(st.integers(-uncertainty, uncertainty))
        rows.append((at, int(clock.offset(at)) + error, uncertainty + 1))
    at, offset, uncertainty = zip(*rows, strict=True)
    return Pairs(np.array(at), np.array(offset), np.array(uncertainty, np.float64))


@st.composite
def measurements(draw: st.DrawFn, most_change: int) -> tuple[Clock, Pairs]:
    clock = draw(clocks(most_change))
    times = sorted(draw(st.lists(st.integers(0, 120 * S), min_size=1, max_size=12)))
    return clock, measured(draw, clock, times)


@given(measurements(int(WANDER * 1e9)), st.lists(st.integers(0, 120 * S), min_size=1, max_size=20))
def test_the_truth_lies_within_the_uncertainty(made: tuple[Clock, Pairs], times: list[int]) -> None:
    clock, pairs = made
    offset = fit_offset("", pairs)
    at = np.array(times, np.int64)
    truth = np.array([float(clock.offset(t)) for t in times])
    assert (np.abs(offset.at_time(at) - truth) <= offset.uncertainty(at) + 2).all()


@given(measurements(20_000))
def test_pairs_of_a_clock_that_moves_more_are_kept(made: tuple[Clock, Pairs]) -> None:
    """Whatever the clock does, the pairs themselves are within the bounds that they give."""
    _, pairs = made
    offset = fit_offset("", pairs)
    apart = np.abs(offset.at_time(pairs.at) - pairs.offset)
    assert (apart <= offset.uncertainty(pairs.at) + pairs.uncertainty + 1).all()
    assert (offset.uncertainty(pairs.at) <= pairs.uncertainty + 1).all()


def test_one_pair_grows_doubtful_with_distance() -> None:
    offset = fit_offset("", Pairs(np.array([5 * S]), np.array([700]), np.array([1000.0])))
    assert offset.at_time(np.array([0, 5 * S, 9 * S])).tolist() == [700, 700, 700]
    assert offset.uncertainty(np.array([5 * S, 6 * S, 3 * S])) == pytest.approx(
        [1000, 1000 + (DRIFT + WANDER) * S, 1000 + 2 * (DRIFT + WANDER) * S]
    )


def test_two_pairs_know_the_rate() -> None:
    """100 s apart and good to 1 us: 5 ppm, give or take 0.02. Between them the rate may wander by 1 ppm."""
    offset = fit_offset("", Pairs(np.array([0, 100 * S]), np.array([0, 500_000]), np.array([1000.0, 1000.0])))
    assert offset.rate == pytest.approx(5e-6)
    assert offset.wander == pytest.approx(WANDER + 2e-8)
    at = np.array([0, 1 * S, 50 * S, 100 * S, 110 * S])
    assert offset.at_time(at).tolist() == [0, 5000, 250_000, 500_000, 550_000]
    assert offset.uncertainty(at) == pytest.approx([1000, 2020, 52_000, 1000, 11_200])


def test_near_pairs_sharpen_each_other() -> None:
    """Two processes on one GPU: pairs 1 ms apart whose bounds overlap by 200 ns only."""
    offset = fit_offset("", Pairs(np.array([0, 1_000_000]), np.array([0, 1800]), np.array([1000.0, 1000.0])))
    assert abs(int(offset.at_time(np.array([0]))[0]) - 900) <= 55
    assert float(offset.uncertainty(np.array([0]))[0]) <= 100 + 55


def test_more_pairs_than_are_used() -> None:
    n = 3 * MOST_PAIRS
    at = np.arange(n) * 10_000_000
    uncertainty = np.where(np.arange(n) % 5 == 2, 300.0, 3000.0)
    offset = fit_offset("", Pairs(at, 40 + at // 200_000, uncertainty))
    assert len(offset.at) <= MOST_PAIRS
    assert (offset.at[0], offset.at[-1]) == (at[0], at[-1])
    assert (np.abs(offset.at_time(at) - (40 + at // 200_000)) <= 2).all()


# -------------------------------------------------------------------------------------------------------- whole traces
@dataclass(frozen=True)
class Rank:
    """A process on one GPU. ``gpu``: its uuid; ``behind``: host time minus %globaltimer, ns; ``set``: CLOCK_REALTIME
    is ahead of true time by this at the end of the run; ``pairs``: true times, ns."""

    pid: int
    gpu: str = "GPU-a"
    host: str = "one"
    boot: str | None = None
    behind: int = 0
    set: int = 0
    pairs: tuple[int, ...] = (0, 1_000_000)
    start: int = 500_000


def captured(folder: Path, rank: Rank) -> Path:
    """A capture of two warps that begin at ``rank.start``, true time, which is Unix time minus EPOCH_NS."""
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12, timer_ahead_ns=-rank.behind)
    warps = []
    for number in range(2):
        warp = FakeWarp(warp=number, start_ns=rank.start + 6400 * number)
        warp.event(mark, at=100)
        warps.append(warp.exit(at=40_000))
    device.launch(kernel, warps, block=(64, 1, 1))
    clocks = [
        {"device": 0, "host_unix_ns": EPOCH_NS + ns + (rank.set if k else 0), "host_monotonic_ns": 10**12 + ns,
         "globaltimer_ns": EPOCH_NS + ns - rank.behind, "uncertainty_ns": 1000.0}
        for k, ns in enumerate(rank.pairs)
    ]  # fmt: skip
    facts = {"host": rank.host, "boot": rank.boot, "clocks": clocks}
    return write_capture(folder / f"pid_{rank.pid}", [device], [kernel], pid=rank.pid, uuid=rank.gpu, facts=facts)


def decoded(folder: Path, *ranks: Rank, **options: Any) -> Trace:
    return decode([read_capture(captured(folder / str(i), rank)) for i, rank in enumerate(ranks)], **options)


def starts(trace: Trace) -> list[int]:
    """Unix time of each launch's start by the reference's host, less EPOCH_NS, by process."""
    host = trace.meta["host_start"]["unix_ns"] - EPOCH_NS
    return [x.start_ns + host for x in sorted(trace.launches, key=lambda x: x.process)]


def test_two_processes_of_one_gpu_need_no_pairs_between_them(tmp_path: Path) -> None:
    trace = decoded(tmp_path, Rank(1, behind=7000), Rank(2, behind=7000, pairs=(), start=600_000))
    assert [(x["shift_ns"], x["uncertainty_ns"]) for x in trace.meta["alignment"]] == [(0, 0.0), (0, 0.0)]
    assert starts(trace) == pytest.approx([500_000, 600_000], abs=40)
    assert trace.problems == ()


def test_a_single_process_tells_its_unix_time(tmp_path: Path) -> None:
    trace = decoded(tmp_path, Rank(1, behind=860_000))
    assert starts(trace) == pytest.approx([500_000], abs=40)
    assert trace.meta["host_start"]["uncertainty_ns"] == pytest.approx(1000 + 0.5e6 * (DRIFT + WANDER), abs=3)
    assert [x["uncertainty_ns"] for x in trace.meta["alignment"]] == [0.0]


def test_without_pairs_nothing_is_said(tmp_path: Path) -> None:
    trace = decoded(tmp_path, Rank(1, pairs=()))
    assert trace.meta["host_start"] is None
    assert trace.meta["alignment"] == []
    assert trace.problems == ()


def test_gpus_of_one_host(tmp_path: Path) -> None:
    ranks = [Rank(k, gpu=f"GPU-{k}", behind=91_000 * k, start=500_000 + 10_000 * k) for k in range(4)]
    trace = decoded(tmp_path, *ranks)
    assert starts(trace) == pytest.approx([500_000, 510_000, 520_000, 530_000], abs=50)
    # Each side: 1 us, and what the rate may do in 0.5 ms.
    for facts in trace.meta["alignment"][1:]:
        assert facts["uncertainty_ns"] == pytest.approx(2 * (1000 + 0.5e6 * (DRIFT + WANDER)), abs=15)
    assert trace.problems == ()


def test_one_gpu_without_pairs_does_not_spoil_the_others(tmp_path: Path) -> None:
    ranks = [Rank(k, gpu=f"GPU-{k}", behind=90_000 * k, pairs=(0, 1_000_000) if k != 1 else ()) for k in range(3)]
    trace = decoded(tmp_path, *ranks)
    assert [(x["process"], x["shift_ns"]) for x in trace.meta["alignment"]] == [(0, 0), (2, 180_000)]
    assert [p.count for p in trace.problems if p.kind == "clock"] == [1]
    assert "1 of 3 devices have no clock pairs" in trace.problems[0].text


def test_a_host_clock_that_is_set_moves_nothing_within_the_host(tmp_path: Path) -> None:
    """By 3 s between the pairs of rank 0: CLOCK_MONOTONIC goes on."""
    ranks = [Rank(0, gpu="GPU-0", set=3 * S), Rank(1, gpu="GPU-1", behind=90_000)]
    trace = decoded(tmp_path, *ranks)
    assert trace.meta["alignment"][1]["shift_ns"] == pytest.approx(90_000, abs=50)
    assert trace.meta["alignment"][1]["uncertainty_ns"] < 2100
    (problem,) = trace.problems
    assert "the clock of one was set meanwhile, by 3000.000 ms" in problem.text
    assert trace.meta["host_start"]["uncertainty_ns"] > 3 * S


def test_hosts_apart_are_as_good_as_their_clocks(tmp_path: Path) -> None:
    ranks = [Rank(1, gpu="GPU-a", behind=500), Rank(1, gpu="GPU-b", host="two", behind=-4_000_000, start=700_000)]
    trace = decoded(tmp_path / "a", *ranks)
    assert starts(trace) == pytest.approx([500_000, 700_000], abs=300)
    assert 1_000_000 + 2000 <= trace.meta["alignment"][1]["uncertainty_ns"] <= 1_000_000 + 2200
    trace = decoded(tmp_path / "b", *ranks, hosts_ns=50_000.0)
    assert 52_000 <= trace.meta["alignment"][1]["uncertainty_ns"] <= 52_200


def test_containers_of_one_machine_are_one_host(tmp_path: Path) -> None:
    ranks = [Rank(1, host="x", boot="B", gpu="GPU-a"), Rank(1, host="y", boot="B", gpu="GPU-b", behind=5000)]
    assert decoded(tmp_path / "a", *ranks).meta["alignment"][1]["uncertainty_ns"] < 2100
    ranks = [Rank(1, host="x", boot="B", gpu="GPU-a"), Rank(1, host="x", boot="C", gpu="GPU-b", behind=5000)]
    assert decoded(tmp_path / "b", *ranks).meta["alignment"][1]["uncertainty_ns"] > 1_000_000


def test_two_devices_of_one_process(tmp_path: Path) -> None:
    """Each record stands under its own device; the second is on the timeline of the first."""
    kernel = FakeKernel("k")
    kernel.mark("m")
    devices = [FakeDevice(k, bank_bytes=1 << 12, slack=1 << 12, timer_ahead_ns=92_000 * k) for k in (0, 1)]
    for device in devices:
        device.launch(kernel, [FakeWarp(start_ns=6400 * (1 + device.ordinal)).exit(20_000)])
    clocks = [
        {"device": k, "host_unix_ns": EPOCH_NS + ns, "host_monotonic_ns": ns, "uncertainty_ns": 700.0,
         "globaltimer_ns": EPOCH_NS + ns + 92_000 * k}
        for k in (0, 1) for ns in (0, S)
    ]  # fmt: skip
    path = write_capture(tmp_path / "c", devices, [kernel], facts={"clocks": clocks})
    trace = decode([read_capture(path)])
    found = [(x.process, x.device, x.context_id, x.grid_id, x.graph) for x in trace.launches]
    assert found == [(0, 0, 1, 1, None), (0, 1, 2, 1, None)]
    assert trace.launches[1].start_ns - trace.launches[0].start_ns == pytest.approx(6400, abs=40)
    assert [x["gpu"] for x in trace.meta["alignment"]] == ["GPU-0", "GPU-1"]
