"""GPCs and TPCs of SMs, from captures of made-up GPUs whose topology is known."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode import decode
from warptrace.decode.clocks import fit_clocks
from warptrace.decode.tables import Regions
from warptrace.decode.topology import Topology, find_topology
from warptrace.emulator.topology import h200_gpc
from warptrace.raw import Capture, read_capture
from warptrace.trace import Trace

H200 = "NVIDIA H200"
SMS = 132
TRUTH = np.array([h200_gpc(sm) for sm in range(SMS)])
ALONE = list(range(124, 132))
"""SMs on which no cluster of four or more was ever seen. They count GPC0's clock."""
Clusters = list[dict[str, Any]]


def clusters_of(size: int, truth: np.ndarray, order: np.random.Generator) -> list[list[int]]:
    """SMs of one wave of clusters: each GPC is filled at random."""
    found = []
    for gpc in np.unique(truth):
        sms = order.permutation(np.flatnonzero(truth == gpc))
        found += [sms[i : i + size].tolist() for i in range(0, len(sms) // size * size, size)]
    return found


def make(rows: list[tuple[int, int, int, int]], rate: np.ndarray, length_ns: int) -> tuple[Regions, np.ndarray]:
    """(regions, launch of each) of (launch, CTA, cluster size, SM); ``rate``: cycles per ns by SM."""
    launch, cta, size, sm = np.array(rows, np.int64).T
    headers = np.zeros(len(rows), wire.REGION_DTYPE)
    headers["sm"], headers["cta"][:, 0], headers["cluster"] = sm, cta, np.where(size > 1, size, 0)
    start = launch * 10 * length_ns + sm * 7
    for name, ns in (("entry", start), ("exit", start + length_ns)):
        headers[f"{name}_clock"] = 10_000_000_000 * (sm + 3) + np.floor(ns * rate[sm]).astype(np.int64)
        headers[f"{name}_globaltimer"] = EPOCH_NS + ns // 32 * 32
    zeros = np.zeros(len(rows), np.int32)
    closed = np.ones(len(rows), np.bool_)
    return Regions(headers, zeros, zeros, zeros, zeros, zeros.astype(np.int64), closed), launch


def found(
    regions: Regions, launch: np.ndarray, *clusters: Clusters, name: str = H200, emulated: bool = False
) -> Topology:
    """``clusters``: what clusters of the tracer's own showed, a process each."""
    device = {"ordinal": 0, "name": name, "sm_count": SMS, "compute_capability": "9.0"}
    manifests = [{"devices": [{**device, "clusters": one}], "emulated": emulated} for one in clusters]
    manifests = manifests or [{"devices": [device], "emulated": emulated}]
    captures = [cast(Capture, SimpleNamespace(manifest=one)) for one in manifests]
    process = (np.arange(len(regions)) % len(captures)).astype(np.int32)
    regions = dataclasses.replace(regions, process=process)
    clock = fit_clocks(regions, launch, {(0, 0): 1_980_000})
    return find_topology(captures, regions, launch, clock, {(k, 0): ("", "GPU-0") for k in range(len(captures))})


def waves(size: int, launches: int, *, everywhere: bool = True) -> list[tuple[int, int, int, int]]:
    """Launches of clusters on an H200, and one more of single CTAs on all SMs."""
    order = np.random.default_rng(size)
    truth = TRUTH.copy()
    if size > 2:
        truth[ALONE] = -1
    rows = []
    for launch in range(launches):
        placed = [one for one in clusters_of(size, truth, order) if truth[one[0]] >= 0]
        rows += [(launch, size * i + j, size, sm) for i, one in enumerate(placed) for j, sm in enumerate(one)]
    if everywhere:
        rows += [(launches, sm, 1, sm) for sm in range(SMS)]
    return rows


ONE_RATE = np.full(SMS, 1.98)
OWN_RATE = np.where(TRUTH == 0, 1.9740, 1.98)
"""GPC0 slower by 0.3 %, as was seen."""


def test_clusters_tell_the_gpcs() -> None:
    """All but the SMs that never join a cluster: they could belong to several."""
    topology = found(*make(waves(4, 6), ONE_RATE, 100_000))
    assert topology.gpc[0, 0].tolist() == [-1 if sm in ALONE else TRUTH[sm] for sm in range(SMS)]
    (facts,) = topology.facts
    assert (facts["process"], facts["device"], facts["gpu"]) == (0, 0, "GPU-0")
    assert facts["gpcs"] == [[sm for sm in range(124) if TRUTH[sm] == gpc] for gpc in range(8)]
    assert facts["unplaced"] == ALONE
    assert facts["clocks_contradict"] == 0


def test_a_clock_of_their_own_places_the_rest() -> None:
    topology = found(*make(waves(4, 6), OWN_RATE, 400_000))
    assert topology.gpc[0, 0].tolist() == TRUTH.tolist()
    assert topology.facts[0]["unplaced"] == []
    assert topology.facts[0]["clocks_compared"] == 7


def test_a_difference_within_the_uncertainty_places_nothing() -> None:
    """0.3 % of 10 us are 30 ns."""
    topology = found(*make(waves(4, 6), OWN_RATE, 10_000))
    assert topology.facts[0]["unplaced"] == ALONE


def test_few_clusters_leave_it_open() -> None:
    """One wave of clusters of four: 30 groups, of which nothing says which share a GPC."""
    topology = found(*make(waves(4, 1), ONE_RATE, 100_000))
    assert set(topology.gpc[0, 0].tolist()) == {-1}
    assert topology.facts[0]["gpcs"] == []


def test_eight_clocks_tell_the_gpcs_without_clusters() -> None:
    topology = found(*make(waves(1, 0), 1.98 * (1 - 0.002 * TRUTH), 400_000))
    assert topology.gpc[0, 0].tolist() == TRUTH.tolist()


def test_two_clocks_do_not() -> None:
    topology = found(*make(waves(1, 0), OWN_RATE, 400_000))
    assert set(topology.gpc[0, 0].tolist()) == {-1}


def test_clocks_that_contradict_clusters_say_nothing() -> None:
    rate = OWN_RATE.copy()
    rate[1] = 1.90
    topology = found(*make(waves(4, 6), rate, 400_000))
    assert topology.facts[0]["clocks_contradict"] == 7
    assert topology.facts[0]["clocks_compared"] == 0
    assert topology.facts[0]["unplaced"] == ALONE


def test_more_sms_in_a_gpc_than_the_chip_has() -> None:
    """Not the chip that its number says: nothing is placed."""
    rows = [(0, i, 19, sm) for i, sm in enumerate(range(19))] + [(0, 19 + i, 19, 40 + i) for i in range(19)]
    assert set(found(*make(rows, ONE_RATE, 100_000)).gpc[0, 0].tolist()) == {-1}


def test_pairs_of_a_measured_device() -> None:
    topology = found(*make(waves(1, 0), ONE_RATE, 100_000))
    assert topology.tpc[0, 0].tolist() == [sm // 2 for sm in range(SMS)]


@pytest.mark.parametrize(("pairs", "known"), [(3, 0), (4, 8), (60, 120)])
def test_pairs_of_another_device_are_those_that_were_seen(pairs: int, known: int) -> None:
    rows = [(0, sm, 2, sm) for sm in range(2 * pairs)] + [(1, sm, 1, sm) for sm in range(SMS)]
    topology = found(*make(rows, ONE_RATE, 100_000), name="NVIDIA H100")
    assert topology.tpc[0, 0].tolist() == [sm // 2 if sm < known else -1 for sm in range(SMS)]


def test_one_pair_that_is_none_makes_all_doubtful() -> None:
    rows = [(0, sm, 2, sm) for sm in range(20)] + [(1, 0, 2, 40), (1, 1, 2, 43)]
    assert set(found(*make(rows, ONE_RATE, 100_000), name="NVIDIA H100").tpc[0, 0].tolist()) == {-1}


def test_nothing_of_an_emulated_device() -> None:
    topology = found(*make(waves(4, 6), OWN_RATE, 400_000), emulated=True)
    assert set(topology.gpc[0, 0].tolist()) == set(topology.tpc[0, 0].tolist()) == {-1}


# ---------------------------------------------------------------------------------------- clusters of the tracer's own
GPCS = [
    [0, 1, 16, 17, 32, 33, 48, 49],
    [2, 3, 18, 19, 34, 35, 50, 51, 64, 65, 78, 79, 92, 93, 106, 107],
    [4, 5, 20, 21, 36, 37, 52, 53, 66, 67, 80, 81, 94, 95, 108, 109],
    [6, 7, 22, 23, 38, 39, 54, 55, 68, 69, 82, 83, 96, 97, 110, 111],
    [8, 9, 24, 25, 40, 41, 56, 57, 70, 71, 84, 85, 98, 99, 112, 113],
    [10, 11, 26, 27, 42, 43, 58, 59, 72, 73, 86, 87, 100, 101, 114, 115],
    [12, 13, 28, 29, 44, 45, 60, 61, 74, 75, 88, 89, 102, 103, 116, 117, 120, 121],
    [14, 15, 30, 31, 46, 47, 62, 63, 76, 77, 90, 91, 104, 105, 118, 119, 122, 123],
]
"""As one launch of 100 clusters of 7 CTAs showed them on an H200, and one of 100 clusters of 5."""
PAIRS = [[sm, sm + 1] for sm in range(0, SMS, 2)]
PLACES = [next((number for number, gpc in enumerate(GPCS) if sm in gpc), -1) for sm in range(SMS)]


def seen(*shown: tuple[int, list[list[int]]]) -> Clusters:
    return [{"ctas": ctas, "sms": sms} for ctas, sms in shown]


def test_clusters_of_the_tracers_own_tell_the_gpcs_of_any_launch() -> None:
    """One CTA on SM 5."""
    topology = found(*make([(0, 0, 1, 5)], ONE_RATE, 1000), seen((7, GPCS), (5, GPCS), (2, PAIRS)))
    assert topology.gpc[0, 0].tolist() == PLACES
    assert topology.tpc[0, 0].tolist() == [sm // 2 for sm in range(SMS)]
    (facts,) = topology.facts
    assert (facts["gpcs"], facts["unplaced"], facts["tpcs"], facts["probed"]) == (GPCS, ALONE, 66, [2, 5, 7])


def test_a_clock_of_their_own_places_the_rest_beside_them() -> None:
    topology = found(*make(waves(1, 0), OWN_RATE, 400_000), seen((7, GPCS), (2, PAIRS)))
    assert topology.gpc[0, 0].tolist() == TRUTH.tolist()
    assert topology.facts[0]["unplaced"] == []


def test_the_programs_clusters_join_what_the_tracers_left_apart() -> None:
    """Here GPC1 is seen as two sets, which one cluster of the program connects."""
    halves = [*GPCS[:1], GPCS[1][:8], GPCS[1][8:], *GPCS[2:]]
    alone = [(0, sm, 1, sm) for sm in range(SMS)]
    assert found(*make(alone, ONE_RATE, 1000), seen((7, halves))).gpc[0, 0].tolist() != PLACES
    both = [(1, 0, 2, GPCS[1][0]), (1, 1, 2, GPCS[1][8])]
    assert found(*make(alone + both, ONE_RATE, 1000), seen((7, halves))).gpc[0, 0].tolist() == PLACES


def test_pairs_of_the_tracers_own_tell_tpcs_of_any_device() -> None:
    """Whatever pairs a cluster of the program ran on: it need not have found two SMs of a TPC free."""
    straddling = make([(0, 0, 2, 1), (0, 1, 2, 4)], ONE_RATE, 1000)
    topology = found(*straddling, seen((2, PAIRS)), name="NVIDIA H100")
    assert topology.tpc[0, 0].tolist() == [sm // 2 for sm in range(SMS)]
    for wrong in ([*PAIRS[1:], [0, 3]], [*PAIRS[2:], [0, 1, 2, 3]], PAIRS[:3]):
        topology = found(*straddling, seen((2, wrong)), name="NVIDIA H100")
        assert set(topology.tpc[0, 0].tolist()) == {-1}


def test_the_same_pairs_in_two_processes_are_not_more() -> None:
    topology = found(
        *make([(0, 0, 1, 0), (0, 1, 1, 1)], ONE_RATE, 1000), seen((2, PAIRS[:3])), seen((2, PAIRS[:3])), name="other"
    )
    assert set(topology.tpc[0, 0].tolist()) == set(topology.tpc[1, 0].tolist()) == {-1}


def test_what_no_sm_is_called_is_left_out() -> None:
    odd = [[-1, 2], ["4", 5], [1 << 16, 3], [True, 7], []]
    topology = found(*make([(0, 0, 1, 131)], ONE_RATE, 1000), seen((7, [*GPCS, *cast(Any, odd)])))
    assert topology.gpc[0, 0].tolist() == PLACES


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_order_of_what_is_joined_changes_nothing(data: st.DataObject) -> None:
    """Parts of the sets, in any order, by clusters of any size, in one or two processes."""
    parts: list[tuple[int, list[int]]] = []
    for gpc in GPCS:
        mixed = data.draw(st.permutations(gpc))
        cut = data.draw(st.integers(1, len(gpc) - 1))
        parts += [(7, list(mixed[: cut + 1])), (5, list(mixed[cut:]))]  # both have the SM at the cut
    parts = list(data.draw(st.permutations(parts)))
    share = data.draw(st.integers(0, len(parts)))
    processes = [[(ctas, [sms]) for ctas, sms in some] for some in (parts[:share], parts[share:])]
    regions = make([(0, 0, 1, 5), (0, 1, 1, 99)], ONE_RATE, 1000)
    topology = found(*regions, *(seen(*one) for one in processes))
    assert topology.gpc[0, 0].tolist() == topology.gpc[1, 0].tolist() == PLACES[:124]
    assert [facts["gpcs"] for facts in topology.facts] == [GPCS] * 2


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_said_is_true(data: st.DataObject) -> None:
    """Any GPCs, any clusters, any rates: SMs of one number share a GPC, those of two do not."""
    sizes = data.draw(st.lists(st.integers(1, 18), min_size=1, max_size=8))
    order = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    truth = order.permutation(np.repeat(np.arange(len(sizes)), sizes))
    apart = data.draw(st.sampled_from([0.0, 1e-5, 1e-3, 5e-3]))
    rate = (1.9 * (1 - apart * order.random(len(sizes))))[truth]
    rows = []
    for launch, size in enumerate(data.draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6))):
        placed = clusters_of(size, truth, order)
        keep = order.random(len(placed)) < data.draw(st.sampled_from([0.3, 1.0]))
        rows += [
            (launch, size * i + j, size, sm) for i, one in enumerate(placed) if keep[i] for j, sm in enumerate(one)
        ]
    if not rows:
        return
    gpc = found(*make(rows, rate, data.draw(st.sampled_from([3_000, 200_000, 3_000_000])))).gpc[0, 0]
    truth = truth[: len(gpc)]
    known = np.flatnonzero(gpc >= 0)
    same = gpc[known][:, None] == gpc[known][None, :]
    assert (same == (truth[known][:, None] == truth[known][None, :])).all()
    seen = np.unique([sm for *_, sm in rows])
    assert set(known.tolist()) <= set(seen.tolist())


# ------------------------------------------------------------------------------------------------- in the trace
@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Three launches on an H200: clusters of four, twice, then single CTAs on the first 16 SMs."""
    rates = {sm: Fraction(198 if TRUTH[sm] else 197, 100) for sm in range(SMS)}
    device = FakeDevice(name=H200, bank_bytes=1 << 14, rates=cast(Any, rates))
    kernel = FakeKernel("k")
    kernel.mark("m")
    for launch, rows in enumerate((waves(4, 6, everywhere=False), [(0, sm, 1, sm) for sm in range(16)])):
        for one in sorted({row[0] for row in rows}):
            mine = [row for row in rows if row[0] == one]
            begin = (launch * 6 + one) * 400_000
            warps = [FakeWarp(cta=(cta, 0, 0), sm=sm, start_ns=begin).exit(500_000) for _, cta, _, sm in mine]
            cluster = (mine[0][2], 1, 1) if mine[0][2] > 1 else None
            device.launch(kernel, warps, grid=(len(mine), 1, 1), cluster=cluster, main_bytes=128)
    folder = tmp_path_factory.mktemp("topology") / "capture"
    return decode([read_capture(write_capture(folder, [device], [kernel], emulated=False))])


def test_warps_have_their_places(trace: Trace) -> None:
    w = trace.warps
    assert trace.problems == ()
    assert w.gpc.tolist() == TRUTH[w.sm].tolist()
    assert w.tpc.tolist() == (w.sm // 2).tolist()
    assert [facts["gpcs"] for facts in trace.meta["topology"]] == [
        [np.flatnonzero(TRUTH[:124] == gpc).tolist() for gpc in range(8)]
    ]


def test_the_trace_states_rates_and_offsets(trace: Trace) -> None:
    """Per launch and GPC the rate; per SM what its counter read when, and how well that is known."""
    facts = trace.meta["clocks"][-1]
    assert facts["launch"] == 6
    sms, by_gpc = {name: column.tolist() for name, column in facts["by_sm"].items()}, facts["by_gpc"]
    assert sms["sm"] == list(range(16))
    assert sms["gpc"] == TRUTH[:16].tolist()
    assert sms["tpc"] == [sm // 2 for sm in range(16)]
    assert [(one["gpc"], one["sms"]) for one in by_gpc] == [(gpc, 2) for gpc in range(8)]
    for one in by_gpc:
        assert one["ns_per_cycle"] == pytest.approx(1 / (1.98 if one["gpc"] else 1.97), rel=3e-4)
    for sm, cycle, ns, rate, doubt in zip(
        sms["sm"], sms["cycle"], sms["ns"], sms["ns_per_cycle"], sms["uncertainty_ns"], strict=True
    ):
        clock = Fraction(198 if TRUTH[sm] else 197, 100)
        true = Fraction(cycle - 7_777_777_777 * (sm + 1)) / clock + EPOCH_NS - trace.epoch_ns
        assert abs(true - ns) <= doubt < 60
        assert rate == pytest.approx(float(1 / clock), rel=3e-4)


def test_the_report_states_them(trace: Trace) -> None:
    from warptrace.report.blocks import blocks
    from warptrace.report.markdown import to_markdown
    from warptrace.report.report import build

    report = build(trace, [6])
    text = to_markdown(blocks(report))
    assert "SM clocks: GPC0 1.970 GHz (2 SMs), GPC1 1.980 GHz (2 SMs), " in text
    (detail,) = report.to_json()["details"]
    assert [(one["gpc"], one["sms"]) for one in detail["clocks"]["gpcs"]] == [(gpc, 2) for gpc in range(8)]
    assert detail["clocks"]["uncertainty_ns"] == trace.launches[6].clock_uncertainty_ns
