"""Direct comparisons of GPUs' timers: made-up clocks whose truth is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode import decode, decode_each
from warptrace.decode.align import align_devices
from warptrace.decode.fit import WANDER, Pairs
from warptrace.decode.peers import ASYMMETRY, SLEW, along, find_links, fit_link, symmetric_uncertainty
from warptrace.decode.tables import LostRows, Regions
from warptrace.raw import read_capture
from warptrace.report.summary import summarize
from warptrace.trace import Trace

S = 10**9


# ------------------------------------------------------------------------------------------------------- two timers
@dataclass(frozen=True)
class Bend:
    """One timer minus another: ``start`` ns, then a rate that changes by ``bends`` 1e-9 a second, for 10 s each."""

    start: int
    rate: Fraction
    bends: tuple[Fraction, ...]

    def at(self, ns: int) -> Fraction:
        """The difference at a time (s: the rate's changes add up)."""
        value, rate, left = Fraction(self.start), self.rate, Fraction(ns)
        for bend in self.bends:
            step = min(left, Fraction(10 * S))
            value += rate * step + bend * step * step / 2 / S
            rate += bend * step / S
            left -= step
        return value + rate * left


@st.composite
def bends(draw: st.DrawFn) -> Bend:
    """Up to 120 s; the rate is within 20 ppm, changes by SLEW at most, and by less than WANDER in all."""
    count, most, total = 12, SLEW * 10**9, 0
    changes: list[Fraction] = []
    low = high = 0.0
    for _ in range(count):
        bend = draw(st.integers(-int(most), int(most)))
        if not -WANDER * 1e9 / 2 <= total + 10 * bend <= WANDER * 1e9 / 2:
            bend = 0
        total += 10 * bend
        low, high = min(low, total), max(high, total)
        changes.append(Fraction(bend, 10**9))
    rate = Fraction(draw(st.integers(-20_000, 20_000)), 10**9)
    return Bend(draw(st.integers(-(10**9), 10**9)), rate, tuple(changes))


@st.composite
def links(draw: st.DrawFn) -> tuple[Bend, Pairs]:
    bend = draw(bends())
    rows = []
    for at in sorted(draw(st.lists(st.integers(0, 120 * S), min_size=1, max_size=30, unique=True))):
        doubt = draw(st.integers(1, 1000))
        rows.append((at, int(bend.at(at)) + draw(st.integers(-doubt, doubt)), doubt + 1))
    at, offset, uncertainty = zip(*rows, strict=True)
    return bend, Pairs(np.array(at), np.array(offset), np.array(uncertainty, np.float64))


@settings(deadline=None)
@given(links(), st.lists(st.integers(0, 120 * S), min_size=1, max_size=20))
def test_the_truth_lies_within_the_bounds(made: tuple[Bend, Pairs], times: list[int]) -> None:
    bend, pairs = made
    found = along([fit_link(pairs)], np.array(times, np.int64))
    truth = np.array([float(bend.at(t)) for t in times])
    assert (np.abs(found.middle - truth) <= found.uncertainty + 2).all()
    assert (found.low <= found.high).all()


def test_pairs_a_second_apart_are_as_good_between_them() -> None:
    """60 s of a pair a second, each good to 250 ns: 30 ns are what the rate may do in between."""
    at = np.arange(61) * S
    link = fit_link(Pairs(at, (at * 2.5e-6).astype(np.int64) + 92_000, np.full(61, 250.0)))
    found = along([link], np.arange(0, 60 * S, 7_654_321))
    assert found.uncertainty.max() <= 250 + SLEW / 1e9 * S * S / 8 + 2
    assert found.middle[0] == pytest.approx(92_000, abs=2)
    # Half a second behind the last pair.
    assert 250 < along([link], np.array([60 * S + S // 2])).uncertainty[0] < 700


def test_a_rate_that_changes_faster_than_it_should_costs_certainty() -> None:
    at = np.arange(11) * S
    bent = np.where(at > 5 * S, (at - 5 * S) * 5e-6, 0).astype(np.int64)
    link = fit_link(Pairs(at, bent, np.full(11, 100.0)))
    assert link.slew * 1e9 > 10 * SLEW
    found = along([link], np.arange(0, 10 * S, S // 8))
    truth = np.maximum(np.arange(0, 10 * S, S // 8) - 5 * S, 0) * 5e-6
    assert (np.abs(found.middle - truth) <= found.uncertainty + 2).all()


def test_good_pairs_nearby_narrow_what_a_bad_one_allows() -> None:
    """Pairs four times a second, one of which is off and says that it may be: its neighbours tell more than it does."""
    at = np.arange(21) * S // 4
    doubt = np.where(np.arange(21) == 10, 5000.0, 250.0)
    offset = np.where(np.arange(21) == 10, 4000, 0)
    link = fit_link(Pairs(at, offset, doubt))
    found = along([link], at[10:11])
    sag = SLEW / 1e9 * (S / 4) ** 2 / 2
    assert found.uncertainty[0] == pytest.approx(250 + sag, abs=2)
    assert found.middle[0] == pytest.approx(0, abs=2)
    # What is stated at a good pair stays.
    assert along([link], at[4:5]).uncertainty[0] == pytest.approx(250, abs=2)


@st.composite
def flown(draw: st.DrawFn) -> tuple[Bend, list[dict[str, Any]]]:
    """Pairs whose flights there and back differ by up to ASYMMETRY of their mean, and what is written of them."""
    bend = draw(bends())
    rows = []
    for at in sorted(draw(st.lists(st.integers(0, 120 * S), min_size=1, max_size=12, unique=True))):
        there = draw(st.integers(300, 900))
        back = draw(st.integers(int(there * (1 - ASYMMETRY / 2)), int(there * (1 + ASYMMETRY / 2))))
        least, steps = draw(st.integers(0, 200)), draw(st.integers(20, 60))
        error = (back - there) // 2 + draw(st.integers(-steps // 2, steps // 2))
        rows.append({
            "device": 0, "peer": "GPU-1", "globaltimer_ns": at, "peer_globaltimer_ns": at + int(bend.at(at)) + error,
            "uncertainty_ns": (there + back) / 2 - least + steps, "least_ns": least, "flights_ns": there + back,
        })  # fmt: skip
    return bend, rows


@settings(deadline=None)
@given(flown(), st.lists(st.integers(0, 120 * S), min_size=1, max_size=20))
def test_the_truth_lies_within_the_symmetric_bounds(made: tuple[Bend, list[dict[str, Any]]], times: list[int]) -> None:
    bend, rows = made
    captures: Any = [SimpleNamespace(manifest={"peer_clocks": rows})]
    link = find_links(captures, lambda i, d: ("m", "GPU-0"), ["m"]).link(("m", "GPU-0"), ("m", "GPU-1"))
    assert link.symmetric is not None
    truth = np.array([float(bend.at(t)) for t in times])
    sure, alike = (along([link], np.array(times, np.int64), symmetric=which) for which in (False, True))
    assert (np.abs(alike.middle - truth) <= alike.uncertainty + 2).all()
    # Away from pairs the second figure may be the wider: the smaller of both is stated.
    shift = sure.nearest(alike.middle)
    assert (np.abs(shift - truth) <= np.minimum(alike.farthest(shift), sure.farthest(shift)) + 2).all()
    assert (sure.farthest(sure.nearest(alike.middle)) >= sure.uncertainty - 1).all()


def test_what_is_left_of_a_pair_if_both_ways_are_alike() -> None:
    pair = {"uncertainty_ns": 454.0, "least_ns": 128, "flights_ns": 1066}
    assert symmetric_uncertainty(pair) == pytest.approx(454 - (533 - 128) + ASYMMETRY * 1066 / 4)
    assert symmetric_uncertainty({"uncertainty_ns": 454.0, "least_ns": 128}) == 454  # of an older version
    assert symmetric_uncertainty({"uncertainty_ns": 40.0, "least_ns": 128, "flights_ns": 200}) == 40


# ----------------------------------------------------------------------------------------------------- many devices
@dataclass(frozen=True)
class Gpu:
    """A process with a GPU whose timer is ``behind`` true time and has host pairs good to 1 us, but for ``host_error``.
    ``peers``: (UUID, behind, error, uncertainty) of GPUs that it was compared with."""

    number: int
    behind: int
    start: int = 500_000
    host: bool = True
    host_error: int = 0
    peers: tuple[tuple[str, int, int, float], ...] = ()
    flights: int | None = None
    machine: str = "one"


def captured(folder: Path, gpu: Gpu) -> Path:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12, timer_ahead_ns=-gpu.behind)
    warp = FakeWarp(start_ns=gpu.start)
    warp.event(mark, at=100)
    device.launch(kernel, [warp.exit(at=40_000)])
    moments = (0, 1_000_000)
    clocks = [
        {"device": 0, "host_unix_ns": EPOCH_NS + ns + gpu.host_error, "host_monotonic_ns": 10**12 + ns + gpu.host_error,
         "globaltimer_ns": EPOCH_NS + ns - gpu.behind, "uncertainty_ns": 1000.0}
        for ns in moments
    ]  # fmt: skip
    peers = [
        {"device": 0, "peer": uuid, "globaltimer_ns": EPOCH_NS + ns - gpu.behind,
         "peer_globaltimer_ns": EPOCH_NS + ns - behind + error, "uncertainty_ns": doubt,
         "round_trip_ns": 1000, "least_ns": 200}
        for uuid, behind, error, doubt in gpu.peers for ns in moments
    ]  # fmt: skip
    for pair in peers if gpu.flights is not None else ():
        pair["flights_ns"] = gpu.flights
    facts = {"host": gpu.machine, "boot": None, "clocks": clocks if gpu.host else [], "peer_clocks": peers}
    name = f"GPU-{gpu.number}"
    path = folder / f"pid_{gpu.number}"
    return write_capture(path, [device], [kernel], pid=gpu.number, uuid=name, facts=facts)


def decoded(folder: Path, *gpus: Gpu) -> Trace:
    return decode([read_capture(captured(folder, gpu)) for gpu in gpus])


def shifts(trace: Trace) -> list[int]:
    return [one["shift_ns"] for one in trace.meta["alignment"]]


def test_direct_pairs_are_better_than_those_through_the_host(tmp_path: Path) -> None:
    trace = decoded(tmp_path, Gpu(0, 0), Gpu(1, 92_000, host_error=600, peers=(("GPU-0", 0, 0, 250.0),)))
    assert shifts(trace) == pytest.approx([0, 92_000], abs=3)
    second = trace.meta["alignment"][1]
    assert (second["pairs"], second["peer_pairs"]) == (2, 2)
    assert second["uncertainty_ns"] == pytest.approx(250, abs=30)
    assert trace.problems == ()
    apart = [one.start_ns for one in sorted(trace.launches, key=lambda x: x.process)]
    assert apart[1] - apart[0] == pytest.approx(0, abs=40)


def test_both_figures_are_stated(tmp_path: Path) -> None:
    """A pair good to 450 ns, of flights of 1000 ns together and at least 200 each: 150 + 62.5 if both are alike."""
    trace = decoded(tmp_path, Gpu(0, 0), Gpu(1, 92_000, peers=(("GPU-0", 0, 0, 450.0),), flights=1000))
    one, two = trace.meta["alignment"]
    assert (one["uncertainty_ns"], one["symmetric_uncertainty_ns"]) == (0, 0)
    assert two["uncertainty_ns"] == pytest.approx(450, abs=30)
    assert two["symmetric_uncertainty_ns"] == pytest.approx(150 + ASYMMETRY * 250, abs=30)
    said = r"GPUs are on one timeline, each good to 4\d\d ns against the first, to 2\d\d ns if both ways of a link are "
    assert re.fullmatch(said + "alike", summarize(trace).aligned or "")


def test_a_hub_that_is_not_the_first_connects_the_others(tmp_path: Path) -> None:
    hub = ("GPU-2", 7_000, 0, 200.0)
    gpus = [Gpu(0, -50_000, peers=(hub,)), Gpu(1, 92_000, peers=(hub,)), Gpu(2, 7_000)]
    trace = decoded(tmp_path, *gpus)
    assert shifts(trace) == pytest.approx([0, 142_000, 57_000], abs=5)
    doubts = [one["uncertainty_ns"] for one in trace.meta["alignment"]]
    assert doubts == pytest.approx([0, 400, 200], abs=50)


def test_gpus_without_host_pairs_are_aligned_with_each_other(tmp_path: Path) -> None:
    gpus = [Gpu(0, 0, host=False), Gpu(1, 92_000, host=False, peers=(("GPU-0", 0, 0, 250.0),)), Gpu(2, 5, host=False)]
    trace = decoded(tmp_path, *gpus)
    assert [(x["gpu"], x["pairs"], x["drift_ppm"]) for x in trace.meta["alignment"]] == [
        ("GPU-0", 0, None), ("GPU-1", 0, None),
    ]  # fmt: skip
    assert shifts(trace) == pytest.approx([0, 92_000], abs=3)
    assert trace.meta["host_start"] is None
    assert [p.text for p in trace.problems] == [
        "1 of 3 devices have no clock pairs with their host: their times are not aligned"
    ]


def test_comparisons_that_contradict_the_host_are_told(tmp_path: Path) -> None:
    trace = decoded(tmp_path, Gpu(0, 0), Gpu(1, 92_000, peers=(("GPU-0", 0, 10_000, 250.0),)))
    (problem,) = trace.problems
    assert "direct comparisons of the timers of 1 devices do not agree" in problem.text
    # What either allows: from 2 us below the one to 0.25 us above the other.
    assert trace.meta["alignment"][1]["uncertainty_ns"] == pytest.approx((10_000 + 2_000 + 250) / 2, abs=60)


def test_hosts_apart_keep_their_hubs(tmp_path: Path) -> None:
    """Equal UUIDs on two machines are two GPUs."""
    gpus = [Gpu(0, 0), Gpu(1, 92_000, machine="two", peers=(("GPU-0", 0, 0, 250.0),))]
    trace = decoded(tmp_path, *gpus)
    assert trace.meta["alignment"][1]["peer_pairs"] == 0
    assert trace.meta["alignment"][1]["uncertainty_ns"] > 1_000_000


# ------------------------------------------------------------------------------------------------------- simulation
def simulated(ranks: int, per_host: int, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """(alignment, error of the shifts of some records, what they may be off: for certain, if both ways are alike).

    Every rank has a GPU whose timer is off by up to 1 s, drifts by up to 10 ppm and bends. A run of 60 s, a host pair
    every 10 s, good to 1 us, hosts apart by up to 0.4 ms, a direct pair with its host's first GPU every second, good to
    440 ns, and to 103 ns as long as flights there and back, of 1000 ns together, differ by 125 ns at most.
    """
    random = np.random.default_rng(seed)
    behind = random.integers(-S, S, ranks)
    drift = random.uniform(-10e-6, 10e-6, ranks)
    bend = random.uniform(-1e-9, 1e-9, ranks)  # a second
    hosts = random.integers(-400_000, 400_000, -(-ranks // per_host))

    def timer(rank: int, ns: np.ndarray) -> np.ndarray:
        s = ns / 1e9
        return EPOCH_NS + ns - behind[rank] + np.rint((drift[rank] * s + bend[rank] * s * s / 2) * 1e9).astype(np.int64)

    captures = []
    for rank in range(ranks):
        host, hub = rank // per_host, rank // per_host * per_host
        moments = np.arange(0, 61 * S, 10 * S)
        errors = random.integers(-1000, 1001, len(moments))
        clocks = [
            {"device": 0, "host_unix_ns": EPOCH_NS + int(t) + int(hosts[host]) + int(e), "uncertainty_ns": 1001.0,
             "host_monotonic_ns": int(t) + int(e) + 7, "globaltimer_ns": int(g)}
            for t, e, g in zip(moments, errors, timer(rank, moments), strict=True)
        ]  # fmt: skip
        moments = np.arange(S // 2, 60 * S, S)
        errors = random.integers(-62, 63) + random.integers(-40, 41, len(moments))
        peers = [
            {"device": 0, "peer": f"GPU-{hub}", "uncertainty_ns": 441.0, "globaltimer_ns": int(own),
             "peer_globaltimer_ns": int(other) + int(e), "flights_ns": 1000, "least_ns": 100}
            for own, other, e in zip(timer(rank, moments), timer(hub, moments), errors, strict=True)
        ]  # fmt: skip
        manifest = {"host": f"h{host}", "boot": f"b{host}", "devices": [{"ordinal": 0, "uuid": f"GPU-{rank}"}],
                    "clocks": clocks, "peer_clocks": peers if rank != hub else []}  # fmt: skip
        captures.append(SimpleNamespace(manifest=manifest))
    times = np.sort(random.integers(0, 60 * S, (ranks, 4)), axis=1)
    headers = np.zeros(4 * ranks, wire.REGION_DTYPE)
    own = np.concatenate([timer(rank, times[rank]) for rank in range(ranks)])
    headers["entry_globaltimer"] = headers["exit_globaltimer"] = own
    process = np.repeat(np.arange(ranks, dtype=np.int32), 4)
    zeros = np.zeros(4 * ranks, np.int32)
    regions = Regions(headers, process, zeros, zeros, zeros, zeros.astype(np.int64), np.ones(4 * ranks, np.bool_))
    lost = LostRows(np.zeros(0, wire.LOST_DTYPE), zeros[:0], zeros[:0])
    alignment = align_devices(captures, regions, lost)  # type: ignore[arg-type]
    found = alignment.shift(process, zeros, own)
    truth = timer(0, times.reshape(-1)) - own
    facts = alignment.facts(regions)
    stated = [np.repeat([one[key] for one in facts], 4) for key in ("uncertainty_ns", "symmetric_uncertainty_ns")]
    return alignment, found - truth, np.array(stated)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_eight_ranks_of_a_host(seed: int) -> None:
    alignment, error, stated = simulated(8, 8, seed)
    assert alignment.problems == ()
    assert (np.abs(error) <= stated + 2).all()
    # Half a second before the first pair or behind the last at worst.
    assert (stated.max(axis=1) < (1100, 600)).all()


def test_a_thousand_ranks_of_128_hosts() -> None:
    alignment, error, stated = simulated(1024, 8, 8)
    assert alignment.problems == ()
    assert (np.abs(error) <= stated + 2).all()
    assert (stated[:, :32].max(axis=1) < (1100, 600)).all()
    assert 1_000_000 < stated[:, 32:].min() < stated[:, 32:].max() < 1_020_000
    # Ranks of another host are as close to each other as their direct comparisons; its clock moves them together.
    for host in error.reshape(128, 8, 4):
        assert np.ptp(np.median(host, axis=1)) < 8_000


def test_processes_one_after_the_other_stand_where_they_stand_together(tmp_path: Path) -> None:
    """Decoded alone, each on the common timeline; GPU 3 has no comparisons at all."""
    hub = ("GPU-2", 7_000, 0, 200.0)
    gpus = [Gpu(0, -50_000, peers=(hub,)), Gpu(1, 92_000, start=600_000, peers=(hub,)), Gpu(2, 7_000, start=700_000),
            Gpu(3, 5, host=False)]  # fmt: skip
    paths = [captured(tmp_path, gpu) for gpu in gpus]
    together, alone = decode([read_capture(path) for path in paths]), list(decode_each(paths))
    starts = {x.process: together.epoch_ns + x.start_ns for x in together.launches}
    for number, trace in enumerate(alone):
        (launch,) = trace.launches
        assert trace.epoch_ns + launch.start_ns == starts[number]
        facts = [one for one in together.meta["alignment"] if one["process"] == number]
        assert trace.meta["alignment"] == [one | {"process": 0} for one in facts]
    assert [len(trace.problems) for trace in alone] == [1, 0, 0, 0] == [len(together.problems), 0, 0, 0]


def test_ranks_of_another_host_stay_together(tmp_path: Path) -> None:
    """The clock pairs of rank 2 with its host are 600 ns wrong; its comparison with rank 1 tells."""
    peers = (("GPU-1", 5_000, 0, 200.0),)
    gpus = [Gpu(0, 0), Gpu(1, 5_000, machine="two"), Gpu(2, -80_000, machine="two", host_error=600, peers=peers)]
    trace = decoded(tmp_path, *gpus)
    first, second = (x.start_ns for x in sorted(trace.launches, key=lambda x: x.process)[1:])
    assert second - first == pytest.approx(0, abs=40)
    one, two = trace.meta["alignment"][1:]
    assert two["uncertainty_ns"] - one["uncertainty_ns"] == pytest.approx(200, abs=40)
    assert (one["peer_pairs"], two["peer_pairs"]) == (0, 2)
