"""How much of a launch was to be recorded, as the decoder tells it from the kernel's record."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from warptrace.decode import decode
from warptrace.decode.selected import expected_warps
from warptrace.export import write_iket_json, write_perfetto
from warptrace.raw import read_capture
from warptrace.report.summary import print_summary, summarize
from warptrace.selection import EVERYTHING, KernelSelection
from warptrace.sites import KernelRecord
from warptrace.trace import Trace

GRID, BLOCK, CLUSTER = (4, 3, 2), (96, 1, 1), (2, 1, 2)
DIM = st.tuples(*[st.integers(1, 5)] * 3)


class SelectedKernel(FakeKernel):
    """A kernel with a selection compiled in."""

    selection = EVERYTHING

    @property
    def record(self) -> KernelRecord:
        return replace(super().record, selection=self.selection)


def trace_of(
    folder: Path,
    selection: KernelSelection,
    ctas: list[tuple[int, int, int]],
    warps: tuple[int, ...] = (0, 1, 2),
    *,
    launches: int = 1,
) -> Trace:
    """Launches in which exactly these CTAs and warps recorded a mark each."""
    kernel = SelectedKernel("gemm")
    kernel.selection = selection
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 14, slack=1 << 13)
    for number in range(launches):
        made = []
        for cta in ctas:
            for warp in warps:
                one = FakeWarp(cta=cta, warp=warp, start_ns=10_000 * number)
                one.event(mark, at=10)
                made.append(one.exit(at=100))
        device.launch(kernel, made, grid=GRID, block=BLOCK, cluster=CLUSTER, main_bytes=128)
    return decode([read_capture(write_capture(folder / "pid_1", [device], [kernel]))])


def ctas_of(x: int, y: int, z: int) -> list[tuple[int, int, int]]:
    """The CTAs of a cluster."""
    return [(2 * x + i, y, 2 * z + k) for k in range(2) for i in range(2)]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(DIM, DIM, st.integers(1, 1024), st.data())
def test_expected_warps(counts: Any, cluster: Any, threads: int, data: st.DataObject) -> None:
    """Against a count, warp by warp."""
    grid = tuple(n * c for n, c in zip(counts, cluster))
    of_cta = -(-threads // 32)
    warps = data.draw(st.none() | st.sets(st.integers(0, 31), min_size=1).map(lambda w: tuple(sorted(w))))
    named = data.draw(st.none() | st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=4).map(tuple))
    stride = 1 if named is not None else data.draw(st.integers(1, 9))
    selection = KernelSelection(named, stride, warps)
    number, chosen = expected_warps(selection, grid, (threads, 1, 1), cluster)
    places = [(x, y, z) for z in range(counts[2]) for y in range(counts[1]) for x in range(counts[0])]
    meant = places[::stride]
    if named is not None:
        inside = {c for c in named if c in places}
        meant = sorted(inside | ({(0, 0, 0)} if len(inside) < len(set(named)) else set()), key=lambda p: p[::-1])
    ctas = cluster[0] * cluster[1] * cluster[2]
    assert number == len(meant) * ctas * len([w for w in range(of_cta) if warps is None or w in warps])
    assert (chosen is None) == selection.everything
    if chosen is not None:
        assert chosen.cluster_grid == counts
        assert chosen.grid_warps == len(places) * ctas * of_cta
        assert chosen.recorded.clusters == (None if named is None else tuple(meant))
        assert chosen.outside == (() if named is None else tuple(c for c in named if c not in places))


def test_unknown_grid_has_no_warps() -> None:
    number, chosen = expected_warps(KernelSelection(((1, 0, 0),)), (0, 0, 0), (0, 0, 0), (1, 1, 1))
    assert number == 0
    assert chosen is not None and (chosen.outside, chosen.recorded.clusters) == ((), ((1, 0, 0),))


def test_unchosen_warps_are_neither_missing_nor_lost(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, KernelSelection(((1, 2, 0),), 1, (0, 2)), ctas_of(1, 2, 0), (0, 2))
    (launch,) = trace.launches
    assert (launch.warps_recorded, launch.warps_expected) == (8, 8)
    assert launch.selection is not None and launch.selection.grid_warps == 72
    assert str(launch.selection) == "cluster 1,2,0, warps 0,2"
    assert [p.kind for p in trace.problems if p.kind != "clock"] == []


def test_a_chosen_warp_that_did_not_record_is_missing(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, KernelSelection(((1, 2, 0),)), ctas_of(1, 2, 0)[:3])
    (launch,) = trace.launches
    assert (launch.warps_recorded, launch.warps_expected) == (9, 12)


def test_a_cluster_outside_is_a_problem_of_its_kernel(tmp_path: Path) -> None:
    selection = KernelSelection(((1, 2, 0), (2, 0, 0), (0, 0, 1)))
    trace = trace_of(tmp_path, selection, ctas_of(0, 0, 0) + ctas_of(1, 2, 0), launches=2)
    (problem,) = [p for p in trace.problems if p.kind == "selection"]
    assert (problem.count, problem.launch) == (2, 0)
    assert problem.text == (
        "clusters 2,0,0 0,0,1 are outside the cluster grid 2x3x1 of kernel gemm: cluster 0,0,0 was recorded instead,"
        " in 2 launches"
    )
    assert {x.warps_expected for x in trace.launches} == {24}


# ------------------------------------------------------------------------------------------------------- the outputs
def json_of(trace: Trace, folder: Path) -> dict[str, Any]:
    write_iket_json(trace, folder / "t.json")
    data: dict[str, Any] = json.loads((folder / "t.json").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    from importlib.resources import files

    schema = json.loads((files("warptrace.export") / "schema" / "iket_trace.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(data)
    launch: dict[str, Any] = data["launches"][0]
    return launch


def test_json_says_which_cluster_was_recorded(tmp_path: Path) -> None:
    launch = json_of(trace_of(tmp_path, KernelSelection(((9, 9, 9),)), ctas_of(0, 0, 0)), tmp_path)
    assert (launch["singleClusterActive"], launch["enabledCluster"]) == (1, {"x": 0, "y": 0, "z": 0})
    assert launch["warptrace"]["selection"] == {
        "clusters": [[0, 0, 0]], "ctaStride": 1, "warps": None, "outside": [[9, 9, 9]], "clusterGrid": [2, 3, 1],
        "warpsOfGrid": 72,
    }  # fmt: skip
    assert launch["warptrace"]["warpsExpected"] == 12


def test_json_of_several_clusters_and_of_none(tmp_path: Path) -> None:
    several = KernelSelection(((1, 0, 0), (0, 1, 0)), 1, (1,))
    launch = json_of(trace_of(tmp_path / "a", several, ctas_of(1, 0, 0) + ctas_of(0, 1, 0), (1,)), tmp_path)
    assert launch["singleClusterActive"] == 0 and "enabledCluster" not in launch
    chosen = launch["warptrace"]["selection"]
    assert (chosen["clusters"], chosen["warps"], chosen["outside"]) == ([[1, 0, 0], [0, 1, 0]], [1], [])
    launch = json_of(trace_of(tmp_path / "b", KernelSelection(None, 4), ctas_of(0, 0, 0)), tmp_path)
    assert launch["singleClusterActive"] == 0
    assert launch["warptrace"]["selection"]["clusters"] is None
    assert launch["warptrace"]["selection"]["ctaStride"] == 4
    launch = json_of(trace_of(tmp_path / "c", EVERYTHING, ctas_of(0, 0, 0)), tmp_path)
    assert launch["singleClusterActive"] == 0 and "enabledCluster" not in launch
    assert launch["warptrace"]["selection"] is None


def test_perfetto_and_summary_say_it(tmp_path: Path) -> None:
    selection = KernelSelection(((1, 2, 0), (5, 0, 0)))
    trace = trace_of(tmp_path, selection, ctas_of(0, 0, 0) + ctas_of(1, 2, 0), launches=2)
    words = "clusters 0,0,0 1,2,0 (cluster 5,0,0 is not in the grid)"
    write_perfetto(trace, tmp_path / "t.pftrace", compress=False)
    assert (tmp_path / "t.pftrace").read_bytes().count(words.encode()) >= 1
    trace = replace(trace, meta={**trace.meta, "deselected": [f"kernel_{i}" for i in range(6)]})
    summary = summarize(trace)
    assert summary.selections == (
        f"kernel gemm: recorded only {words}",
        "not recorded, as --kernel asks: kernel_0, kernel_1, kernel_2, kernel_3 and 2 more",
    )
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=100))
    assert summary.selections[0] in out.getvalue() and summary.selections[1] in out.getvalue()
    assert "24 of" not in out.getvalue(), "a launch with all its chosen warps is complete"
