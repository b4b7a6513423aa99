"""CUDA graphs: a captured launch keeps the parameters that it was captured with, whatever the recorder does later."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
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
from gpu_kit import Figure, Out, load, lossless, names, payloads, recording

import warptrace.cute as iket
from warptrace.raw import read_capture

pytestmark = pytest.mark.gpu

CTAS = 4
WARPS = CTAS * k.WARPS
EVENTS = WARPS * k.STEPS_EVENTS


@dataclass
class Captured:
    """A graph of one launch of ``steps`` with ``n``."""

    graph: Any
    out: Out
    n: int
    launch: Callable[[Out, int], None]

    def replay(self, times: int) -> bool:
        """Whether the last of ``times`` replays wrote what it should."""
        for _ in range(times):
            self.graph.replay()
        return self.out.holds(self.n)


def compiled_steps() -> Callable[[Out, int], None]:
    """``steps`` with events, as a function that launches it on torch's current stream. It has run once: no code may be
    loaded during a capture."""
    with iket.tracing():
        out, one = Out(CTAS), cutlass.Int32(1)
        compiled = cute.compile(k.steps_on_stream, out.cute, one, cutlass.Int32(CTAS), cuda.CUstream(0))

    def launch(out: Out, n: int) -> None:
        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS), stream)

    launch(out, 1)
    assert out.holds(1)
    return launch


def new_graph() -> Any:
    """A graph to capture into. Dead compiled kernels of other tests are collected first: where Python's collector frees
    one inside a capture, its module is unloaded, which breaks a capture in torch's default mode, traced or not."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.CUDAGraph()


def capture(launch: Callable[[Out, int], None], n: int) -> Captured:
    out = Out(CTAS)
    graph = new_graph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        launch(out, n)
    return Captured(graph, out, n, launch)


def test_captured_before_the_recorder_starts(tmp_path: Path) -> None:
    """It was captured without trace memory: its replays record nothing, a launch beside them does."""
    launch = compiled_steps()
    before = capture(launch, 10)
    assert before.replay(2)
    with recording(tmp_path) as folder:
        assert before.replay(3)
        out = Out(CTAS)
        launch(out, 11)
        assert before.replay(2)
        assert out.holds(11)
    trace = load(folder)
    assert [payloads(trace, x, "work") for x in trace.launches] == [[11]]
    assert lossless(trace), trace.problems
    assert before.replay(1)


def test_captured_while_recording(tmp_path: Path, figure: Figure) -> None:
    """The capture itself is the first launch on the device, so trace memory is taken during it. Every replay is a
    launch of its own in the trace."""
    launch = compiled_steps()
    with recording(tmp_path, fresh=True) as folder:
        captured = capture(launch, 20)
        assert captured.replay(5)
    assert read_capture(folder).manifest["problems"] == []
    trace = load(folder)
    assert [payloads(trace, x, "work") for x in trace.launches] == [[20]] * 5
    assert [(x.events, names(trace, x)) for x in trace.launches] == [(EVENTS, {"begin": WARPS, "work": WARPS})] * 5
    assert lossless(trace), trace.problems
    assert [x.graph for x in trace.launches] == [("graph_exec_1", number) for number in range(5)]
    figure("replay durations (ns)", [x.end_ns - x.start_ns for x in trace.launches])


def test_replays_after_the_recording_has_stopped(tmp_path: Path) -> None:
    """They record nothing and change nothing in the finished capture. In a later recording they are recorded again,
    from the first launch on that takes up trace memory."""
    launch = compiled_steps()
    with recording(tmp_path / "first", fresh=True) as first:
        captured = capture(launch, 30)
        assert captured.replay(2)
    files = {path: path.read_bytes() for path in first.iterdir()}
    assert captured.replay(1000)
    assert {path: path.read_bytes() for path in first.iterdir()} == files
    assert [payloads(load(first), x, "work") for x in load(first).launches] == [[30]] * 2

    with recording(tmp_path / "second") as second:
        out = Out(CTAS)
        launch(out, 31)
        assert out.holds(31)
        assert captured.replay(3)
    trace = load(second)
    assert [payloads(trace, x, "work") for x in trace.launches] == [[31], [30], [30], [30]]
    assert lossless(trace), trace.problems
    assert captured.replay(1)


def test_graph_of_several_nodes(tmp_path: Path) -> None:
    """The nodes of a replay are launches of one entry; replays are told apart by the return of warps."""
    launch = compiled_steps()
    outs = [Out(CTAS) for _ in range(3)]
    with recording(tmp_path) as folder:
        graph = new_graph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            for number, out in enumerate(outs):
                launch(out, 40 + number)
        for _ in range(4):
            graph.replay()
        assert [out.holds(40 + number) for number, out in enumerate(outs)] == [True] * 3
    trace = load(folder)
    assert [payloads(trace, x, "work") for x in trace.launches] == [[40], [41], [42]] * 4
    assert [x.graph for x in trace.launches] == [("graph_exec_1", number // 3) for number in range(12)]
    assert lossless(trace), trace.problems
