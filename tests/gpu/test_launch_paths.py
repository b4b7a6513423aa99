"""Every way to launch a traced kernel: each launch is recorded once, whole, and the kernel's result is right."""

from __future__ import annotations

import importlib.util
import os
import threading
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
from gpu_kit import (
    BUFFER_BYTES,
    PROGRAMS,
    Figure,
    Out,
    load,
    lossless,
    names,
    payloads,
    profiled,
    python,
    recording,
    run,
)

import warptrace.cute as iket
from warptrace import wire
from warptrace.raw import read_capture
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 4
WARPS = CTAS * k.WARPS


def compile_steps(*, on: bool = True, **options: Any) -> Any:
    with iket.tracing(on):
        return cute.compile(k.steps_host, Out(CTAS).cute, cutlass.Int32(1), cutlass.Int32(CTAS), **options)


def compile_on_stream() -> Any:
    with iket.tracing():
        out, one = Out(CTAS), cutlass.Int32(1)
        return cute.compile(k.steps_on_stream, out.cute, one, cutlass.Int32(CTAS), cuda.CUstream(0))


def launch(compiled: Any, out: Out, n: int) -> None:
    compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))


def assert_steps(trace: Trace, calls: list[int]) -> None:
    """One whole launch of ``steps`` for each number in ``calls``, in that order."""
    assert lossless(trace), trace.problems
    assert [payloads(trace, x, "work") for x in trace.launches] == [[n] for n in calls]
    for one in trace.launches:
        assert (one.grid, one.block) == ((CTAS, 1, 1), (k.THREADS, 1, 1))
        assert names(trace, one) == {"begin": WARPS, "work": WARPS}
        assert one.events == WARPS * k.STEPS_EVENTS


def test_compiled_object(tmp_path: Path, figure: Figure) -> None:
    out = Out(CTAS)
    compiled = compile_steps()
    with recording(tmp_path) as folder:
        for n in (7, 8, 9):
            launch(compiled, out, n)
            assert out.holds(n)
    trace = load(folder)
    assert_steps(trace, [7, 8, 9])
    figure("launch durations (ns)", [x.end_ns - x.start_ns for x in trace.launches])
    figure("clock uncertainty (ns)", [round(x.clock_uncertainty_ns, 1) for x in trace.launches])
    figure("build", [kernel.build for kernel in read_capture(folder).kernels.values() if "steps" in kernel.symbol])


def test_direct_calls(tmp_path: Path) -> None:
    """The first call compiles, the second finds that build."""
    out = Out(CTAS)
    with recording(tmp_path) as folder, iket.tracing():
        for n in (20, 21):
            k.steps_host(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
            assert out.holds(n)
    assert_steps(load(folder), [20, 21])


@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed")
def test_tvm_ffi_function(tmp_path: Path) -> None:
    out = Out(CTAS)
    compiled = compile_steps(options="--enable-tvm-ffi")
    with recording(tmp_path) as folder:
        for n in (30, 31):
            compiled(out.tensor, n, CTAS)
            assert out.holds(n)
    assert_steps(load(folder), [30, 31])


def test_several_streams_at_once(tmp_path: Path) -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = [Out(CTAS) for _ in streams]
    compiled = compile_on_stream()
    torch.cuda.synchronize()
    with recording(tmp_path) as folder:
        for n in range(25):
            for number, (stream, out) in enumerate(zip(streams, outs)):
                arguments = cutlass.Int32(100 * number + n), cutlass.Int32(CTAS), cuda.CUstream(stream.cuda_stream)
                compiled(out.cute, *arguments)
        assert [out.holds(100 * number + 24) for number, out in enumerate(outs)] == [True] * 4
    assert_each_once(load(folder))


def test_several_threads_launching(tmp_path: Path) -> None:
    compiled = compile_on_stream()
    outs = [Out(CTAS) for _ in range(4)]
    faults: list[Exception] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            for n in range(25):
                arguments = cutlass.Int32(100 * number + n), cutlass.Int32(CTAS), cuda.CUstream(stream.cuda_stream)
                compiled(outs[number].cute, *arguments)
        except Exception as error:
            faults.append(error)

    torch.cuda.synchronize()
    with recording(tmp_path) as folder:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert [out.holds(100 * number + 24) for number, out in enumerate(outs)] == [True] * 4
    assert_each_once(load(folder))


def assert_each_once(trace: Trace) -> None:
    """25 launches of each of 4 streams, each whole; on a stream they come in order."""
    order = [payloads(trace, x, "work") for x in trace.launches]
    assert sorted(order) == sorted([100 * s + n] for s in range(4) for n in range(25))
    for s in range(4):
        mine = [n for (n,) in order if n // 100 == s]
        assert mine == sorted(mine)
    assert lossless(trace), trace.problems


def test_first_launch_in_a_fresh_thread(tmp_path: Path) -> None:
    """Trace memory is taken on a thread that has made no CUDA call before."""
    out, compiled = Out(CTAS), compile_steps()
    launch(compiled, out, 1)
    assert out.holds(1)
    faults: list[Exception] = []

    def work() -> None:
        try:
            launch(compiled, out, 40)
        except Exception as error:
            faults.append(error)

    with recording(tmp_path, fresh=True) as folder:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert faults == []
        assert out.holds(40)
    assert read_capture(folder).manifest["problems"] == []
    assert_steps(load(folder), [40])


def test_two_recordings_one_after_another(tmp_path: Path) -> None:
    """Launches between them belong to none. The kernel is the same compiled object all the time."""
    out, compiled = Out(CTAS), compile_steps()
    with recording(tmp_path / "first") as first:
        launch(compiled, out, 1)
        launch(compiled, out, 2)
    assert out.holds(2)
    launch(compiled, out, 3)
    assert out.holds(3)
    with recording(tmp_path / "second") as second:
        for n in (4, 5, 6):
            launch(compiled, out, n)
    assert out.holds(6)
    assert_steps(load(first), [1, 2])
    assert_steps(load(second), [4, 5, 6])
    counted = [max(read_capture(folder).manifest["launches"].values()) for folder in (first, second)]
    assert counted == [2, 3]


def test_second_recording_with_more_memory(tmp_path: Path) -> None:
    """It cannot take over the first one's memory."""
    out, compiled = Out(CTAS), compile_steps()
    folders = []
    for number, size in enumerate((BUFFER_BYTES, 2 * BUFFER_BYTES)):
        with recording(tmp_path / str(number), buffer_bytes=size, fresh=number == 0) as folder:
            launch(compiled, out, number)
            assert out.holds(number)
        folders.append(folder)
    sizes = [read_capture(folder).manifest["devices"][0]["buffer_bytes"] for folder in folders]
    assert sizes[1] > 1.5 * sizes[0]
    assert_steps(load(folders[0]), [0])
    assert_steps(load(folders[1]), [1])


def test_traced_kernel_without_a_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is that of the kernel without events, nothing is written, and a later recording finds it."""
    monkeypatch.chdir(tmp_path)
    out = Out(CTAS)
    on, off = compile_steps(), compile_steps(on=False)
    assert wire.CELL_ENV not in os.environ
    results = []
    for compiled in (off, on):
        launch(compiled, out, 50)
        torch.cuda.synchronize()
        results.append(out.tensor.clone())
        assert out.holds(50)
    assert torch.equal(*results)
    assert list(tmp_path.iterdir()) == []
    with recording(tmp_path) as folder:
        launch(on, out, 51)
    assert out.holds(51)
    assert_steps(load(folder), [51])


def test_off_means_off(tmp_path: Path) -> None:
    """A kernel compiled without tracing takes no trace memory and leaves no trace; the capture names it."""
    out = Out(CTAS)
    with recording(tmp_path, fresh=True) as folder:
        with iket.tracing(False):
            compiled = cute.compile(k.untraced_host, out.cute, cutlass.Int32(1), cutlass.Int32(CTAS))
        launch(compiled, out, 60)
        assert out.holds(60)
    capture = read_capture(folder)
    assert capture.manifest["devices"] == []
    assert list(folder.glob("*.wtraw")) == []
    assert not any("untraced_kernel" in kernel.symbol for kernel in capture.kernels.values())
    assert any("untraced_kernel" in symbol for symbol in capture.manifest["uninstrumented"])
    assert load(folder).launches == ()


# ------------------------------------------------------------------------------------------------- exported objects
@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    compile_steps().export_to_c(file_path=str(folder), file_name="steps", function_prefix="steps")
    return folder / "steps.o"


def test_exported_object_without_a_tracer(exported: Path, tmp_path: Path) -> None:
    """In another process it records nothing, writes nothing and does not fault, also where the environment holds the
    cell of a process that is not this one."""
    words = python(PROGRAMS / "load_exported.py", str(exported), str(CTAS))
    done = run(words, tmp_path)
    assert done.status == 0, done.said
    assert done.stdout.splitlines() == ["no cell: ok", "stale cell: ok", "unreadable cell: ok"]
    assert list(tmp_path.iterdir()) == []


def test_exported_object_with_a_tracer(exported: Path, tmp_path: Path) -> None:
    """Its launches are recorded; the process has no table of its sites, and the trace says so."""
    words = python(PROGRAMS / "load_exported.py", str(exported), str(CTAS), "--once")
    done = run(profiled(tmp_path / "out", words), tmp_path)
    assert done.status == 0, done.said
    assert done.stdout.splitlines() == ["no cell: ok"]
    trace = load(tmp_path / "out")
    (one,) = trace.launches
    assert (one.events, one.lost_events, one.warps_recorded) == (WARPS * k.STEPS_EVENTS, 0, WARPS)
    if not one.kernel.startswith("unknown_kernel_"):  # known after all: then it is a trace like any other
        assert names(trace) == {"begin": WARPS, "work": WARPS}
        return
    (problem,) = [p for p in trace.problems if p.kind == "unknown_kernel"]
    assert (problem.count, problem.launch) == (one.events, 0)
    assert names(trace) == {}
