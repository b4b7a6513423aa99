"""The stream of a launch, and which nodes are one graph, from real streams and graphs."""

from __future__ import annotations

import gc
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import torch
from gpu_kit import Figure, Out, load, lossless, payloads, recording

import warptrace.cute as iket
from warptrace.export.iket_json import write_iket_json
from warptrace.runtime.driver import check
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 2
LEGACY, PER_THREAD = 1, 2
LAUNCHES = 200

Launch = Callable[[int, int], None]
"""A launch with n into the stream of a handle."""


@pytest.fixture(scope="module")
def compiled() -> Any:
    with iket.tracing():
        out, one = Out(CTAS), cutlass.Int32(1)
        return cute.compile(k.steps_on_stream, out.cute, one, cutlass.Int32(CTAS), cuda.CUstream(0))


@pytest.fixture(scope="module")
def launch(compiled: Any) -> Launch:
    """It has run once: no code may be loaded during a capture."""
    out = Out(CTAS)

    def one(n: int, stream: int) -> None:
        compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS), cuda.CUstream(stream))

    one(0, 0)
    torch.cuda.synchronize()
    return one


def numbered(trace: Trace) -> list[Any]:
    """(n, stream, graph) of each launch; all are whole."""
    assert lossless(trace), trace.problems
    return [(*payloads(trace, x, "work"), x.stream, x.graph) for x in trace.launches]


def test_each_launch_has_its_stream(launch: Launch, tmp_path: Path) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    handles = [0, LEGACY, PER_THREAD, *(one.cuda_stream for one in streams)]
    torch.cuda.synchronize()
    with recording(tmp_path) as folder:
        for turn in range(2):
            for number, handle in enumerate(handles):
                launch(10 * turn + number, handle)
                torch.cuda.synchronize()
    trace = load(folder)
    assert numbered(trace) == [(10 * t + n, handle, None) for t in range(2) for n, handle in enumerate(handles)]
    assert [x.stream_name for x in trace.launches][:4] == [
        "default", "legacy default", "per-thread default", f"{handles[3]:#x}",
    ]  # fmt: skip


def test_launches_on_streams_that_run_beside_each_other(launch: Launch, tmp_path: Path) -> None:
    streams = [torch.cuda.Stream().cuda_stream for _ in range(4)]
    torch.cuda.synchronize()
    with recording(tmp_path) as folder:
        for n in range(100):
            launch(n, streams[n % 4])
        torch.cuda.synchronize()
    assert sorted(numbered(load(folder))) == [(n, streams[n % 4], None) for n in range(100)]


def test_a_host_function_without_a_stream(tmp_path: Path) -> None:
    out = Out(CTAS)
    with recording(tmp_path) as folder, iket.tracing():
        k.steps_host(out.cute, cutlass.Int32(7), cutlass.Int32(CTAS))
        assert out.holds(7)
    assert numbered(load(folder)) == [(7, 0, None)]


@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed")
def test_the_stream_that_a_tvm_ffi_function_takes_from_torch(tmp_path: Path) -> None:
    out, stream = Out(CTAS), torch.cuda.Stream()
    fake = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    with iket.tracing():
        one = cutlass.Int32(1)
        function = cute.compile(
            k.steps_on_stream, out.cute, one, cutlass.Int32(CTAS), fake, options="--enable-tvm-ffi"
        )
    torch.cuda.synchronize()
    with recording(tmp_path) as folder:
        with torch.cuda.stream(stream):
            function(out.tensor, 5, CTAS)
        assert out.holds(5)
    assert numbered(load(folder)) == [(5, stream.cuda_stream, None)]


def captured(launch: Launch, numbers: list[int]) -> Any:
    """A graph whose nodes are launches with these numbers: all but the last on the capturing stream, the last on one
    that joins the capture."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    gc.collect()
    torch.cuda.synchronize()
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check("begin", cuda.cuStreamBeginCapture(cuda.CUstream(first.cuda_stream), mode))
    for n in numbers[:-1]:
        launch(n, first.cuda_stream)
    second.wait_stream(first)
    launch(numbers[-1], second.cuda_stream)
    first.wait_stream(second)
    return check("end", cuda.cuStreamEndCapture(cuda.CUstream(first.cuda_stream)))


def test_graphs_of_several_nodes(launch: Launch, tmp_path: Path) -> None:
    """Two graphs, one made executable twice: each replay is one entry with all its nodes, and has no stream."""
    stream = torch.cuda.Stream()
    order = [0, 1, 2, 1, 0, 2]
    with recording(tmp_path) as folder:
        two, three = captured(launch, [20, 21]), captured(launch, [30, 31, 32])
        graphs = [check("instantiate", cuda.cuGraphInstantiate(graph, 0)) for graph in (two, three, three)]
        launch(1, stream.cuda_stream)
        for number in order:
            check("launch", cuda.cuGraphLaunch(graphs[number], cuda.CUstream(stream.cuda_stream)))
        launch(2, stream.cuda_stream)
        torch.cuda.synchronize()
    trace = load(folder)
    seen = numbered(trace)
    assert [one for one in seen if one[2] is None] == [(n, stream.cuda_stream, None) for n in (1, 2)]
    assert all(where is None for _, where, graph in seen if graph is not None)
    replays: dict[tuple[str, int], list[int]] = {}
    for n, _, graph in seen:
        if graph is not None:
            replays.setdefault(graph, []).append(n)
    nodes = [[20, 21], [30, 31, 32], [30, 31, 32]]
    assert [sorted(numbers) for numbers in replays.values()] == [nodes[number] for number in order]
    names = [name for name, _ in replays]
    assert [names.index(names[i]) for i in range(6)] == [0, 1, 2, 1, 0, 2], replays
    assert [number for _, number in replays] == [0, 0, 0, 1, 1, 1]
    write_iket_json(trace, tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    assert sorted(map(len, data["graphLaunches"].values())) == [2, 2, 3, 3, 3, 3]


def test_a_graph_that_is_replayed_once(launch: Launch, tmp_path: Path) -> None:
    with recording(tmp_path) as folder:
        graph = check("instantiate", cuda.cuGraphInstantiate(captured(launch, [40, 41]), 0))
        check("launch", cuda.cuGraphLaunch(graph, cuda.CUstream(0)))
        torch.cuda.synchronize()
    assert sorted(numbered(load(folder))) == [(40, None, ("graph_exec_1", 0)), (41, None, ("graph_exec_1", 0))]


def test_what_asking_for_the_stream_costs(launch: Launch, tmp_path: Path, figure: Figure) -> None:
    """Host time of a launch into the default stream, where nothing is asked, and into one that could be capturing."""
    stream = torch.cuda.Stream().cuda_stream
    with recording(tmp_path):
        launch(0, 0)
        best: dict[str, float] = {}
        for _ in range(5):
            for name, handle in (("default", 0), ("own", stream)):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for n in range(LAUNCHES):
                    launch(n, handle)
                best[name] = min(best.get(name, 1e9), (time.perf_counter() - begin) / LAUNCHES)
                torch.cuda.synchronize()
    figure("host ns a launch, default stream / own stream", [round(1e9 * best[name]) for name in ("default", "own")])
    assert best["own"] < 2 * best["default"]
