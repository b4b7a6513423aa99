"""Sessions and capture windows: exactly the launches inside, on every launch path."""

from __future__ import annotations

import gc
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
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
from gpu_kit import PROGRAMS, Figure, Out, load, lossless, names, payloads, profiled, python, run

import warptrace
import warptrace.cute as iket
from warptrace.cli import main
from warptrace.runtime import memory
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 4
WARPS = CTAS * k.WARPS
SMALL: dict[str, Any] = {"buffer_size": "64M"}


@pytest.fixture(autouse=True)
def own_memory() -> Iterator[None]:
    """Memory of other tests is not taken over."""
    memory.forget()
    yield


def compile_steps(**options: Any) -> Any:
    with iket.tracing():
        return cute.compile(k.steps_host, Out(CTAS).cute, cutlass.Int32(1), cutlass.Int32(CTAS), **options)


def on_streams() -> Callable[[Out, int], None]:
    """``steps`` as a function that launches it on torch's current stream; it has run once."""
    with iket.tracing():
        out, ctas = Out(CTAS), cutlass.Int32(CTAS)
        compiled = cute.compile(k.steps_on_stream, out.cute, cutlass.Int32(1), ctas, cuda.CUstream(0))

    def launch(out: Out, n: int) -> None:
        compiled(out.cute, cutlass.Int32(n), ctas, cuda.CUstream(torch.cuda.current_stream().cuda_stream))

    launch(out, 1)
    assert out.holds(1)
    return launch


def captured(launch: Callable[[Out, int], None], out: Out, n: int) -> Any:
    gc.collect()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        launch(out, n)
    return graph


def calls(trace: Trace) -> list[int]:
    """The n of each launch of ``steps``, each of them whole, in order."""
    assert lossless(trace), trace.problems
    found = []
    for one in trace.launches:
        assert names(trace, one) == {"begin": WARPS, "work": WARPS}
        (n,) = payloads(trace, one, "work")
        found.append(n)
    return found


# ---------------------------------------------------------------------------------------------------- launch paths
def test_compiled_object(figure: Figure) -> None:
    out, compiled = Out(CTAS), compile_steps()

    def launch(n: int) -> None:
        compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))

    found = []
    for first in (1, 11, 21):
        launch(100 + first)
        begin = time.perf_counter()
        with warptrace.capture(**SMALL) as c:
            entered = time.perf_counter()
            for n in range(first, first + 3):
                launch(n)
            left = time.perf_counter()
        figure(f"enter, leave (ms), session {first // 10 + 1}", [
            round(1e3 * (entered - begin), 2), round(1e3 * (time.perf_counter() - left), 2)
        ])  # fmt: skip
        launch(200 + first)
        found.append(c)
    assert out.holds(221)
    assert [calls(c.trace) for c in found] == [[1, 2, 3], [11, 12, 13], [21, 22, 23]]


def test_direct_calls_are_compiled_with_events_inside_only() -> None:
    out = Out(CTAS)

    def call(n: int) -> None:
        k.steps_host(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
        assert out.holds(n)

    call(100)
    with warptrace.capture(**SMALL) as c:
        call(1)
        call(2)
    call(101)
    assert calls(c.trace) == [1, 2]


@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed")
def test_tvm_ffi_function() -> None:
    out = Out(CTAS)
    compiled = compile_steps(options="--enable-tvm-ffi")
    compiled(out.tensor, 100, CTAS)
    warptrace.start(**SMALL)
    compiled(out.tensor, 1, CTAS)
    compiled(out.tensor, 2, CTAS)
    c = warptrace.stop()
    compiled(out.tensor, 101, CTAS)
    assert out.holds(101)
    assert calls(c.trace) == [1, 2]


def test_several_threads() -> None:
    launch = on_streams()
    outs = [Out(CTAS) for _ in range(3)]

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(10):
                launch(outs[number], 10 * number + n)

    torch.cuda.synchronize()
    with warptrace.capture(**SMALL) as c:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(calls(c.trace)) == list(range(30))


def test_the_end_waits_for_kernels_that_still_run() -> None:
    """The kernel of a loop, 200,000 rounds: its launch returns long before its end."""
    out = Out(CTAS)
    with iket.tracing():
        one = cutlass.Int32(1)
        compiled = cute.compile(k.ticks_host, out.cute, one, one, cutlass.Int32(CTAS))
    rounds = 200_000
    with warptrace.capture(**SMALL) as c:
        compiled(out.cute, cutlass.Int32(rounds), cutlass.Int32(5), cutlass.Int32(CTAS))
    (launched,) = c.trace.launches
    assert (launched.events + launched.lost_events, launched.warps_recorded) == (WARPS * (rounds + 2), WARPS)
    assert bool(c.trace.warps.closed.all())


# ---------------------------------------------------------------------------------------------------------- graphs
def test_graphs_inside_and_outside() -> None:
    launch, out = on_streams(), Out(CTAS)
    before = captured(launch, out, 50)
    with warptrace.capture(**SMALL) as first:
        before.replay()  # it was captured without trace memory
        graph = captured(launch, out, 7)
        for _ in range(3):
            graph.replay()
    for _ in range(300):
        graph.replay()
    with warptrace.capture(**SMALL) as second:  # no launch but replays
        graph.replay()
        graph.replay()
    graph.replay()
    assert out.holds(7)
    assert [calls(c.trace) for c in (first, second)] == [[7, 7, 7], [7, 7]]
    assert [one.graph for one in second.trace.launches] == [("graph_exec_1", 0), ("graph_exec_1", 1)]


def test_replays_that_are_still_queued_when_a_session_begins_are_not_of_it() -> None:
    launch, out = on_streams(), Out(CTAS)
    with warptrace.capture(**SMALL):
        graph = captured(launch, out, 7)
        graph.replay()
    for _ in range(2000):
        graph.replay()
    with warptrace.capture(**SMALL) as c:
        graph.replay()
    assert calls(c.trace) == [7]


# --------------------------------------------------------------------------------------------------------- results
def test_the_trace_is_that_of_the_written_directory(tmp_path: Path) -> None:
    out, compiled = Out(CTAS), compile_steps()
    with warptrace.capture(tmp_path / "run", **SMALL) as c:
        for n in (1, 2):
            compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
    trace, again = c.trace, load(tmp_path / "run")
    assert calls(trace) == [1, 2]
    assert (trace.launches, trace.epoch_ns, trace.strings) == (again.launches, again.epoch_ns, again.strings)
    for table in ("warps", "ranges", "markers"):
        ours, theirs = vars(getattr(trace, table)), vars(getattr(again, table))
        assert all((ours[name] == theirs[name]).all() for name in ours)
    assert main(["postprocess", str(tmp_path / "run"), "--format", "json"]) == 0
    (file,) = (tmp_path / "run").glob("*.trace.json")
    data = json.loads(file.read_text())
    assert [len(one["ranges"]) for one in data["launches"]] == [WARPS, WARPS]
    spans = [(one["warptrace"]["startTs"], one["warptrace"]["endTs"]) for one in data["launches"]]
    assert spans == [(one.start_ns + trace.epoch_ns, one.end_ns + trace.epoch_ns) for one in trace.launches]


def test_windows_of_a_profiled_program(tmp_path: Path, figure: Figure) -> None:
    """Exactly the launches inside, and each lies in its window on the timeline."""
    words = python(PROGRAMS / "windows.py")
    done = run(profiled(tmp_path / "run", words, "--window", "--buffer-size", "64M"), tmp_path)
    assert done.status == 0, done.said
    trace = load(tmp_path / "run")
    numbers = [int(word) for word in done.stdout.split()]
    assert numbers == [1, 2, 3, 3, 3, 3, 4]
    assert calls(trace) == numbers
    windows = trace.meta["windows"]
    figure("windows (us)", [round((w["end_ns"] - w["begin_ns"]) / 1000) for w in windows])
    figure("uncertainty of the windows (ns)", [round(w["uncertainty_ns"]) for w in windows])
    of_window = [windows[0]] * 2 + [windows[1]] * 3 + [windows[2]] * 2
    for one, window in zip(trace.launches, of_window, strict=True):
        doubt = window["uncertainty_ns"] + one.clock_uncertainty_ns
        assert window["begin_ns"] - doubt <= one.start_ns <= one.end_ns <= window["end_ns"] + doubt


def test_the_same_program_without_the_window_option(tmp_path: Path) -> None:
    """Everything is recorded: 2 + 1 launches and 1 replay before and in the first window, and so on."""
    done = run(profiled(tmp_path / "run", python(PROGRAMS / "windows.py"), "--buffer-size", "64M"), tmp_path)
    assert done.status == 0, done.said
    trace = load(tmp_path / "run")
    counted = {n: calls(trace).count(n) for n in (100, 1, 2, 101, 102, 3, 103, 4)}
    assert counted == {100: 1, 1: 1, 2: 1, 101: 2, 102: 1, 3: 3 + 200 + 1 + 1, 103: 1, 4: 1}
    assert trace.meta["windows"] == []
