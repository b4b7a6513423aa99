"""Selections compiled into kernels: what is left out is not there, and the warps that record are exactly those."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
import twin_with
import twin_without
from dsl_build import build, tensor
from test_compile_archs import ARCHS, full_host

import warptrace.cute as iket
from warptrace import registry
from warptrace.decode import decode
from warptrace.emulator import Device
from warptrace.emulator.cute import compile_kernels
from warptrace.frontends.cute import dsl
from warptrace.raw import read_capture
from warptrace.runtime.emulated import EmulatedRecording
from warptrace.selection import EVERYTHING, KernelSelection, Selection
from warptrace.trace import Trace

FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


@pytest.fixture(autouse=True)
def no_selection_stays():
    yield
    registry.select(Selection())
    dsl.keep_newest(False)


# ------------------------------------------------------------------------------------------------------- --kernel
@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_that_is_left_out_is_byte_identical_to_the_untraced_one(frontend, arch):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    using = FRONTENDS[frontend]
    without = build(twin_without.host, tensor(), cutlass.Int32(3), on=False, arch=arch, using=using)
    registry.select(Selection(kernels=("no such kernel",)))
    on = build(twin_with.host, tensor(), cutlass.Int32(3), arch=arch, using=using)  # quiet: no PairingWarning either
    assert (on.ptx, on.cubin) == (without.ptx, without.cubin)
    assert on.records == ()
    assert set(on.entries) <= set(registry.deselected())


def test_one_kernel_of_a_module_is_left_out():
    off = build(twin_with.host, tensor(), cutlass.Int32(3), on=False)
    first, second = off.entries
    registry.select(Selection(kernels=("_first_",)))
    on = build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    assert [r.symbol for r in on.records] == [first]
    assert on.entries[second] == off.entries[second]
    assert on.entries[first] != off.entries[first]
    assert second in registry.deselected() and first not in registry.deselected()
    registry.select(Selection())
    build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    assert second not in registry.deselected()


# ----------------------------------------------------------------------------------------------- clusters and warps
SELECTIONS = [
    Selection(clusters=((0, 0, 0),)),
    Selection(clusters=tuple((i, i % 3, 70000 * (i % 2)) for i in range(64))),
    Selection(cta_stride=132, warps=(0, 5)),
    Selection(cta_stride=64),
]


@pytest.mark.parametrize("arch", [a for a in ARCHS if a not in ("sm_103a", "sm_110a")])
def test_every_target_takes_it(arch):
    """The cubin is there: ptxas assembled it."""
    whole = build(full_host, tensor(), cutlass.Int32(3), arch=arch)
    ids = {whole.record.kernel_id}
    assert whole.record.selection == EVERYTHING
    for selection in SELECTIONS:
        registry.select(selection)
        built = build(full_host, tensor(), cutlass.Int32(3), arch=arch)
        assert built.cubin[:4] == b"\x7fELF"
        assert built.record.selection == selection.of(built.record.symbol) != EVERYTHING
        assert sorted(built.stored()) == sorted(whole.stored())
        assert ("%clusterid" in built.ptx) == (arch != "sm_80")
        ids.add(built.record.kernel_id)
    assert len(ids) == 1 + len(SELECTIONS), "each is a kernel of its own"


def test_without_a_selection_nothing_of_it_is_compiled():
    on = build(full_host, tensor(), cutlass.Int32(3))
    assert "%clusterid" not in on.ptx
    registry.select(Selection(kernels=("full",), launch_skip=3, launch_count=1))
    again = build(full_host, tensor(), cutlass.Int32(3))
    assert (again.ptx, again.cubin, again.records) == (on.ptx, on.cubin, on.records)


@cute.kernel
def whole_warps(g: cute.Tensor, n: cutlass.Int32):
    """Several lanes of a warp store each record."""
    iket.range_push("work", n)
    for i in cutlass.range(n, unroll=1):
        iket.mark("tick", i)
        token = iket.range_start("step")
        iket.range_end(token)
    iket.range_pop()
    g[0] = n


@cute.kernel
def parted_warps(g: cute.Tensor, n: cutlass.Int32):
    """Other lanes than 0 lead events, so that they have regions too."""
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("begin")
    for i in cutlass.range(n, unroll=1):
        if tidx % 32 == 5:
            iket.mark("five", cutlass.Int64(i))
    g[0] = n


@cute.jit
def clustered(g: cute.Tensor, n: cutlass.Int32):
    whole_warps(g, n).launch(grid=[4, 6, 2], block=[32, 3, 1], cluster=[2, 1, 2])


@cute.jit
def flat(g: cute.Tensor, n: cutlass.Int32):
    whole_warps(g, n).launch(grid=[4, 6, 2], block=[32, 3, 1])


@cute.jit
def parted(g: cute.Tensor, n: cutlass.Int32):
    parted_warps(g, n).launch(grid=[5, 1, 3], block=[70, 1, 1])


@cute.jit
def both(g: cute.Tensor, n: cutlass.Int32):
    whole_warps(g, n).launch(grid=[4, 1, 1], block=[64, 1, 1])
    parted_warps(g, n).launch(grid=[3, 1, 1], block=[64, 1, 1])


@dataclass(frozen=True)
class Shape:
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    warps: int
    events: int


SHAPES = {
    clustered: Shape((4, 6, 2), (2, 1, 2), 3, 2 + 3 * 3),
    flat: Shape((4, 6, 2), (1, 1, 1), 3, 2 + 3 * 3),
    parted: Shape((5, 1, 3), (1, 1, 1), 3, 1 + 3),
}


def recorded(host, folder: Path, selection: Selection, calls: int = 1) -> Trace:
    """The trace of the host function's launches on the emulator."""
    fake = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (4,), assumed_align=16)
    registry._records.clear()
    registry.select(selection)
    with iket.tracing():
        kernels = compile_kernels(host, fake, cutlass.Int32(3))
    device = Device()
    recording = EmulatedRecording(folder / "pid_1", device=device, buffer_bytes=16 << 20, selection=selection)
    for _ in range(calls):
        for kernel in kernels:
            if selection.wants(kernel.name):
                recording.launch(kernel, [device.zeros(4, np.int32), 3])
    recording.finish()
    return decode([read_capture(folder / "pid_1")])


def places(trace: Trace, launch: int = 0) -> set[tuple[tuple[int, ...], int]]:
    mine = trace.warps.launch == launch
    return {(tuple(c), int(w)) for c, w in zip(trace.warps.cta[mine].tolist(), trace.warps.warp[mine])}


def expected(shape: Shape, clusters=None, stride: int = 1, warps=None) -> set[tuple[tuple[int, ...], int]]:
    """(CTA, warp) of all that is to be recorded, by the words of the documentation."""
    counts = [g // c for g, c in zip(shape.grid, shape.cluster)]
    if clusters is not None:
        inside = [c for c in clusters if all(v < n for v, n in zip(c, counts))]
        clusters = set(inside) | ({(0, 0, 0)} if len(inside) < len(clusters) else set())
    found = set()
    for z, y, x in itertools.product(*(range(g) for g in reversed(shape.grid))):
        place = tuple(v // c for v, c in zip((x, y, z), shape.cluster))
        number = (place[2] * counts[1] + place[1]) * counts[0] + place[0]
        if (place in clusters) if clusters is not None else number % stride == 0:
            found |= {((x, y, z), w) for w in range(shape.warps) if warps is None or w in warps}
    return found


CHOICES = [
    {"clusters": ((1, 2, 0),)},
    {"clusters": ((1, 0, 0), (0, 5, 0), (1, 0, 1))},
    {"clusters": ((9, 0, 0),)},
    {"clusters": ((1, 5, 0), (0, 0, 7), (2**31 - 1, 70000, 65536)), "warps": (1, 2)},
    {"stride": 3},
    {"stride": 4, "warps": (0, 2, 31)},
    {"stride": 1000},
    {"warps": (1,)},
]


@pytest.mark.parametrize("host", list(SHAPES), ids=lambda h: h.__name__)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_exactly_the_chosen_warps_record(tmp_path, host, choice):
    shape = SHAPES[host]
    stride, warps = choice.get("stride", 1), choice.get("warps")
    selection = Selection(clusters=choice.get("clusters"), cta_stride=stride, warps=warps)
    trace = recorded(host, tmp_path, selection)
    want = expected(shape, **choice)
    assert places(trace) == want and len(trace.warps) == len(want)
    assert trace.warps.events.tolist() == [shape.events] * len(want)
    assert bool(trace.warps.closed.all()) and not trace.warps.lost.any()
    (launch,) = trace.launches
    assert (launch.warps_recorded, launch.warps_expected) == (len(want), len(want))
    assert (launch.lost_events, launch.lost_warps) == (0, 0)
    chosen = launch.selection
    counts = tuple(g // c for g, c in zip(shape.grid, shape.cluster))
    assert (chosen.cluster_grid, chosen.grid_warps) == (counts, int(np.prod(shape.grid)) * shape.warps)
    outside = [c for c in choice.get("clusters", ()) if any(v >= n for v, n in zip(c, counts))]
    assert list(chosen.outside) == outside
    if "clusters" in choice:
        ctas = {p[0] for p in expected(shape, clusters=choice["clusters"])}
        assert set(chosen.recorded.clusters) == {tuple(v // c for v, c in zip(p, shape.cluster)) for p in ctas}
    problems = [(p.kind, p.count, p.launch) for p in trace.problems if p.kind != "clock"]
    assert problems == ([("selection", 1, 0)] if outside else [])
    if outside:
        (text,) = [p.text for p in trace.problems if p.kind == "selection"]
        named = " ".join(",".join(map(str, c)) for c in outside)
        assert f"{named} " in text and launch.kernel in text
        assert f"outside the cluster grid {'x'.join(map(str, counts))} of kernel" in text


@pytest.mark.parametrize("host", list(SHAPES), ids=lambda h: h.__name__)
@pytest.mark.parametrize("choice", [CHOICES[3], CHOICES[5]], ids=str)
def test_the_same_where_the_newest_events_are_kept(tmp_path, host, choice):
    dsl.keep_newest(True)
    shape, stride, warps = SHAPES[host], choice.get("stride", 1), choice.get("warps")
    trace = recorded(host, tmp_path, Selection(clusters=choice.get("clusters"), cta_stride=stride, warps=warps))
    want = expected(shape, **choice)
    assert places(trace) == want
    assert trace.warps.events.tolist() == [shape.events] * len(want)
    assert bool(trace.warps.closed.all()) and not trace.warps.lost.any()


def test_several_kernels_each_with_its_own(tmp_path):
    selection = Selection(clusters=((3, 0, 0),), clusters_by_kernel=(("parted", ((1, 0, 0), (2, 0, 0))),), warps=(1,))
    trace = recorded(both, tmp_path, selection, calls=2)
    want = [{((3, 0, 0), 1)}, {((1, 0, 0), 1), ((2, 0, 0), 1)}]
    assert [places(trace, i) for i in range(4)] == want * 2
    assert [x.kernel.split("_cutlass_")[1].split("_tensor")[0] for x in trace.launches] == [
        "whole_warps", "parted_warps",
    ] * 2  # fmt: skip
    assert [p.kind for p in trace.problems if p.kind != "clock"] == []


def test_only_one_of_several_kernels(tmp_path):
    trace = recorded(both, tmp_path, Selection(kernels=("_parted_warps_",)))
    (launch,) = trace.launches
    assert "parted_warps" in launch.kernel
    assert launch.selection is None
    assert (launch.warps_recorded, launch.warps_expected) == (6, 6)


def test_a_window_of_launches_on_the_emulator(tmp_path):
    trace = recorded(flat, tmp_path, Selection(launch_skip=2, launch_count=3, cta_stride=1000), calls=7)
    assert [(x.warps_recorded, x.warps_expected) for x in trace.launches] == [(3, 3)] * 3
    (count,) = trace.meta["launch_counts"].values()
    assert count == 7


def test_an_out_of_range_cluster_of_many_launches_is_one_problem(tmp_path):
    trace = recorded(flat, tmp_path, Selection(clusters=((0, 0, 9),)), calls=3)
    (problem,) = [p for p in trace.problems if p.kind == "selection"]
    assert (problem.count, problem.launch) == (3, 0)
    assert problem.text.endswith("cluster 0,0,0 was recorded instead, in 3 launches")


def test_control_pointer_zero_is_as_ever(tmp_path):
    """A kernel with a selection that no recorder waits for computes its result and touches nothing."""
    fake = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (4,), assumed_align=16)
    registry.select(Selection(cta_stride=2, warps=(0,)))
    with iket.tracing():
        (kernel,) = compile_kernels(flat, fake, cutlass.Int32(3))
    device = Device()
    out = device.zeros(4, np.int32)
    kernel.launch(device, [out, 3, 0, 0, 0, 0, 0])
    assert out.read().tolist() == [3, 0, 0, 0]


def test_the_record_says_what_is_compiled_in():
    registry.select(Selection(clusters_by_kernel=(("full", ((4, 5, 6),)),), cta_stride=7))
    assert build(full_host, tensor(), cutlass.Int32(3)).record.selection == KernelSelection(((4, 5, 6),))
