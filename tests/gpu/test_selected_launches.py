"""What is recorded of real launches: clusters, CTAs, warps and launches that were chosen, and no others."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import selection_kernels as s
import torch
from cutlass.cute.runtime import from_dlpack
from gpu_kit import Figure, Out, doubts, load, lossless, payloads, recording

import warptrace.cute as iket
from warptrace.raw import read_capture
from warptrace.selection import Selection
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 4
PLACES = s.GRID[0] * s.GRID[1] * s.GRID[2]


@contextmanager
def selected(folder: Path, selection: Selection, **options: Any) -> Iterator[Path]:
    """A recording; what is compiled inside is compiled with the selection."""
    with recording(folder, selection=selection, **options) as capture, iket.tracing():
        yield capture


# ---------------------------------------------------------------------------------------------- clusters and warps
CHOICES = [
    {"clusters": ((1, 0, 0),)},
    {"clusters": ((1, 0, 1), (3, 0, 0), (0, 0, 1))},
    {"clusters": ((7, 1, 1), (99, 0, 0))},
    {"stride": 3},
    {"stride": 5, "warps": (0, 3, 31)},
    {"stride": 132},
    {"warps": (1, 2)},
]


def chosen(cluster: tuple[int, int, int], clusters: Any = None, stride: int = 1, warps: Any = None) -> set[Any]:
    """(CTA, warp) of all that is to be recorded."""
    counts = [g // c for g, c in zip(s.GRID, cluster)]
    if clusters is not None:
        inside = {c for c in clusters if all(v < n for v, n in zip(c, counts))}
        clusters = inside | ({(0, 0, 0)} if len(inside) < len(clusters) else set())
    found = set()
    for z, y, x in itertools.product(*(range(g) for g in reversed(s.GRID))):
        place = tuple(v // c for v, c in zip((x, y, z), cluster))
        number = (place[2] * counts[1] + place[1]) * counts[0] + place[0]
        if (place in clusters) if clusters is not None else number % stride == 0:
            found |= {((x, y, z), w) for w in range(s.WARPS) if warps is None or w in warps}
    return found


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("host", [s.placed_in_clusters, s.placed_alone], ids=["clusters", "ctas"])
def test_exactly_the_chosen_warps_record(tmp_path: Path, host: Any, choice: dict[str, Any]) -> None:
    if host is s.placed_in_clusters and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("no clusters before compute capability 9.0")
    cluster = s.CLUSTER if host is s.placed_in_clusters else (1, 1, 1)
    stride, warps = choice.get("stride", 1), choice.get("warps")
    out = Out(PLACES)
    with selected(tmp_path, Selection(clusters=choice.get("clusters"), cta_stride=stride, warps=warps)) as folder:
        compiled = cute.compile(host, out.cute, cutlass.Int32(1))
        for n in (5, 6):
            compiled(out.cute, cutlass.Int32(n))
            assert out.holds(n)
    trace = load(folder)
    want = chosen(cluster, **choice)
    for launch in trace.launches:
        mine = trace.warps.launch == launch.index
        rows = zip(trace.warps.cta[mine].tolist(), trace.warps.warp[mine].tolist())
        assert {(tuple(c), w) for c, w in rows} == want
        assert (launch.warps_recorded, launch.warps_expected) == (len(want), len(want))
        assert launch.events == s.PLACED_EVENTS * len(want)
        assert launch.cluster == cluster
        assert launch.selection is not None and launch.selection.grid_warps == PLACES * s.WARPS
    assert len(trace.launches) == 2
    outside = [p for p in trace.problems if p.kind == "selection"]
    counts = "x".join(str(g // c) for g, c in zip(s.GRID, cluster))
    if any(v >= g // c for place in choice.get("clusters", ()) for v, g, c in zip(place, s.GRID, cluster)):
        (problem,) = outside
        assert problem.count == 2
        assert f"outside the cluster grid {counts} of kernel " in problem.text
    assert len(doubts(trace)) == len(outside) <= 1


# ------------------------------------------------------------------------------------------------ kernels, launches
def counted(folder: Path) -> list[int]:
    """Launches that host code counted, of each kernel that was launched."""
    return [n for n in read_capture(folder).manifest["launches"].values() if n]


def compiled_object() -> Callable[[Out, int], None]:
    compiled = cute.compile(k.steps_host, Out(CTAS).cute, cutlass.Int32(1), cutlass.Int32(CTAS))
    return lambda out, n: compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))


def direct_call() -> Callable[[Out, int], None]:
    return lambda out, n: k.steps_host(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))


def tvm_ffi_function() -> Callable[[Out, int], None]:
    if importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("apache-tvm-ffi is not installed")
    arguments = Out(CTAS).cute, cutlass.Int32(1), cutlass.Int32(CTAS)
    compiled = cute.compile(k.steps_host, *arguments, options="--enable-tvm-ffi")
    return lambda out, n: compiled(out.tensor, n, CTAS)


def steps_recorded(trace: Trace) -> list[int]:
    """``n`` of each launch of ``steps``, which is whole."""
    assert lossless(trace), trace.problems
    return [n for launch in trace.launches for n in payloads(trace, launch, "work")]


@pytest.mark.parametrize("path", [compiled_object, direct_call, tvm_ffi_function], ids=lambda f: f.__name__)
def test_a_window_of_launches(tmp_path: Path, path: Callable[[], Callable[[Out, int], None]]) -> None:
    out = Out(CTAS)
    with selected(tmp_path, Selection(launch_skip=3, launch_count=4)) as folder:
        launch = path()
        for n in range(10):
            launch(out, n)
            assert out.holds(n)
    assert steps_recorded(load(folder)) == [3, 4, 5, 6]
    assert counted(folder) == [10]


def test_a_window_of_launches_from_several_threads(tmp_path: Path) -> None:
    outs = [Out(CTAS) for _ in range(4)]
    faults: list[Exception] = []
    with selected(tmp_path, Selection(launch_skip=30, launch_count=20)) as folder:
        arguments = cutlass.Int32(1), cutlass.Int32(CTAS), cuda.CUstream(0)
        compiled = cute.compile(k.steps_on_stream, outs[0].cute, *arguments)

        def work(number: int) -> None:
            try:
                stream = cuda.CUstream(torch.cuda.Stream().cuda_stream)
                for n in range(25):
                    compiled(outs[number].cute, cutlass.Int32(100 * number + n), cutlass.Int32(CTAS), stream)
            except Exception as error:
                faults.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert [out.holds(100 * number + 24) for number, out in enumerate(outs)] == [True] * 4
    found = steps_recorded(load(folder))
    assert len(found) == len(set(found)) == 20
    assert counted(folder) == [100]


def test_one_of_two_kernels(tmp_path: Path) -> None:
    out = Out(CTAS)
    with selected(tmp_path, Selection(kernels=("_steps_",))) as folder:
        one, ctas = cutlass.Int32(1), cutlass.Int32(CTAS)
        steps = cute.compile(k.steps_host, out.cute, one, ctas)
        ticks = cute.compile(k.ticks_host, out.cute, one, one, ctas)
        for n in (4, 5):
            ticks(out.cute, cutlass.Int32(n), cutlass.Int32(0), ctas)
            assert out.holds(n)
            steps(out.cute, cutlass.Int32(n), ctas)
            assert out.holds(n)
    assert steps_recorded(load(folder)) == [4, 5]
    assert [symbol for symbol in read_capture(folder).manifest["deselected"] if "_ticks_" in symbol] != []


def test_a_kernel_compiled_with_events_before_is_left_out_too(tmp_path: Path) -> None:
    out = Out(CTAS)
    one, ctas = cutlass.Int32(1), cutlass.Int32(CTAS)
    with iket.tracing():
        ticks = cute.compile(k.ticks_host, out.cute, one, one, ctas)
        steps = cute.compile(k.steps_host, out.cute, one, ctas)
    with recording(tmp_path, selection=Selection(kernels=("_steps_",))) as folder:
        ticks(out.cute, cutlass.Int32(7), cutlass.Int32(0), ctas)
        assert out.holds(7)
        steps(out.cute, cutlass.Int32(8), ctas)
        assert out.holds(8)
    assert steps_recorded(load(folder)) == [8]


def test_the_size_is_learned_from_the_first_recorded_launch(tmp_path: Path) -> None:
    """A kernel with events in a loop: the launches before it are not there to learn from."""
    out = Out(CTAS)
    with selected(tmp_path, Selection(launch_skip=3, launch_count=3), fresh=True) as folder:
        compiled = cute.compile(k.ticks_host, out.cute, cutlass.Int32(1), cutlass.Int32(0), cutlass.Int32(CTAS))
        for call in range(8):
            compiled(out.cute, cutlass.Int32(50), cutlass.Int32(call), cutlass.Int32(CTAS))
        assert out.holds(50)
    trace = load(folder)
    assert lossless(trace), trace.problems
    assert [payloads(trace, x, "body") for x in trace.launches] == [[3], [4], [5]]
    assert {x.events for x in trace.launches} == {CTAS * k.WARPS * 52}
    sizes = [set(b.headers["main_bytes"].tolist()) for b in read_capture(folder).batches()]
    assert len(set.union(*sizes)) == 2, "the first is sized by its grid, the others by what it used"


@pytest.mark.parametrize(("count", "recorded"), [(2, [1, 2, 2, 2]), (1, [1])], ids=["inside", "outside"])
def test_a_launch_captured_into_a_graph_counts_once(tmp_path: Path, count: int, recorded: list[int]) -> None:
    """Its capture decides for all replays."""
    out = Out(CTAS)
    with selected(tmp_path, Selection(launch_count=count)) as folder:
        arguments = cutlass.Int32(1), cutlass.Int32(CTAS), cuda.CUstream(0)
        compiled = cute.compile(k.steps_on_stream, out.cute, *arguments)

        def launch(n: int) -> None:
            stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
            compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS), stream)

        launch(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(2)
        for _ in range(3):
            graph.replay()
        assert out.holds(2)
        launch(3)
        assert out.holds(3)
    trace = load(folder)
    assert [payloads(trace, x, "work") for x in trace.launches] == [[n] for n in recorded]
    assert counted(folder) == [3]


# --------------------------------------------------------------------------------------------------------- its cost
STEPS = 400


def step_cycles(launches: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Cycles a pass of each launch's loop, the mean of its warps: the median of 8, taken in turns."""
    found = {name: [launch() for _ in range(2)] for name, launch in launches.items()}
    for _ in range(8):
        for name, launch in launches.items():
            found[name].append(launch())
    return {name: statistics.median(cycles[2:]) for name, cycles in found.items()}


@pytest.mark.parametrize("a_processor", [1, 4])
def test_what_is_not_wanted_costs_next_to_nothing(tmp_path: Path, figure: Figure, a_processor: int) -> None:
    """A loop of a push, 64 cycles of arithmetic and a pop, in 1 or 4 CTAs an SM: without events, all warps recording,
    one CTA recording, one warp of each CTA; then all these where nothing records."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count * a_processor
    result = torch.zeros(blocks * s.THREADS, device="cuda")
    spent = torch.zeros(blocks * s.WARPS, device="cuda", dtype=torch.int64)
    arrays = from_dlpack(result, assumed_align=16), from_dlpack(spent)

    def build() -> Callable[[], float]:
        n, ctas = cutlass.Int32(STEPS), cutlass.Int32(blocks)
        compiled = cute.compile(s.stepping_host, *arrays, n, ctas)

        def launch() -> float:
            compiled(*arrays, n, ctas)
            return spent.double().mean().item() / STEPS

        return launch

    launches = {}
    with iket.tracing(False):
        launches["untraced"] = build()
    selections = {"all": Selection(), "one CTA": Selection(cta_stride=1 << 30), "one warp": Selection(warps=(0,))}
    recorded = {}
    options = {"buffer_bytes": 1 << 31, "max_events": 2 * STEPS, "fresh": True}
    for name, selection in selections.items():
        with selected(tmp_path / name.replace(" ", "_"), selection, **options) as folder:
            launches[name] = build()
            launches[name]()
        trace = load(folder)
        recorded[name] = {x.warps_recorded for x in trace.launches}
        assert sum(x.lost_events for x in trace.launches) == 0
    assert recorded == {"all": {blocks * s.WARPS}, "one CTA": {s.WARPS}, "one warp": {blocks}}
    with selected(tmp_path / "together", Selection(), **options):
        times = step_cycles(launches)
    times |= {f"{name}, no recorder": time for name, time in step_cycles(launches).items()}
    figure(f"{a_processor} CTAs an SM, cycles a pass", {name: round(time, 1) for name, time in times.items()})
    assert times["one CTA"] < times["all"]
