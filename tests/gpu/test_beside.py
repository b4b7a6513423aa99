"""Beside other tools: the traced program runs under them with the right result, and its trace is complete."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import gpu_kernels as k
from gpu_kit import PROGRAMS, Figure, Out, Run, load, lossless, names, profiled, python, recording, run, totals

pytestmark = pytest.mark.gpu

CTAS = 4
WARPS = CTAS * k.WARPS
SANITIZER = shutil.which("compute-sanitizer")
NCU = shutil.which("ncu")


# -------------------------------------------------------------------------------------------------- compute-sanitizer
def sanitized(folder: Path, *options: str) -> Run:
    """The program of test_sanitizer.py under a tool: its result is right, and its trace has or counts every event."""
    assert SANITIZER is not None
    words = python(PROGRAMS / "sanitized.py", str(folder / "raw"))
    done = run([SANITIZER, *options, "--error-exitcode", "99", *words], folder)
    assert "sanitized: ok" in done.stdout, done.said
    trace = load(folder / "raw")
    assert sum(totals(trace)) == 16 * (2 * 40 + 2) + 16 * 3
    assert names(trace, trace.launches[1]) == {"begin": 16, "work": 16}
    return done


def summary(done: Run) -> str:
    """The tool's last word."""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
    return lines[-1].strip("= ") if lines else "none"


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not on PATH")
def test_racecheck(tmp_path: Path, figure: Figure) -> None:
    done = sanitized(tmp_path, "--tool", "racecheck")
    figure("racecheck", summary(done))
    assert done.status == 0, done.said
    assert "RACECHECK SUMMARY: 0 hazards" in done.stdout + done.stderr, done.said


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not on PATH")
def test_initcheck(tmp_path: Path, figure: Figure) -> None:
    done = sanitized(tmp_path, "--tool", "initcheck")
    figure("initcheck", summary(done))
    assert done.status == 0, done.said
    assert "ERROR SUMMARY: 0 errors" in done.stdout + done.stderr, done.said


# ----------------------------------------------------------------------------------------------------- Nsight Compute
def under_ncu(folder: Path, *options: str) -> Run:
    """The good day of bad_days.py (five launches), under ncu under warptrace."""
    assert NCU is not None
    # All kernels: ours that compares the clocks is replayed too, and ends by itself.
    ncu = [NCU, "--target-processes", "all", *options]
    program = python(PROGRAMS / "bad_days.py", "none")
    done = run(profiled(folder / "out", [*ncu, *program], "--buffer-size", "64M"), folder)
    said = done.stdout + done.stderr
    refused = re.search(r"==ERROR==.*(ERR_NVGPUCTRPERM|permission|not supported|driver resource).*", said)
    if refused is not None:
        pytest.skip(f"ncu: {refused.group(0).strip()}")
    assert done.status == 0, done.said
    return done


@pytest.mark.skipif(NCU is None, reason="ncu is not on PATH")
def test_ncu_that_replays_kernels(tmp_path: Path, figure: Figure) -> None:
    """It restores memory before each pass, trace memory included: every launch is recorded once, by its last pass."""
    done = under_ncu(tmp_path, "--replay-mode", "kernel", "--section", "SpeedOfLight", "--cache-control", "none")
    figure("passes", sorted(set(re.findall(r"(\d+) pass", done.stdout + done.stderr))))
    assert "right" in done.stdout
    trace = load(tmp_path / "out")
    assert [x.events for x in trace.launches] == [WARPS * k.STEPS_EVENTS] * 5
    assert lossless(trace), trace.problems


@pytest.mark.skipif(NCU is None, reason="ncu is not on PATH")
def test_ncu_that_replays_the_program(tmp_path: Path, figure: Figure) -> None:
    """Each run of the program is a process with a capture of its own."""
    metrics = "sm__cycles_elapsed.max"
    done = under_ncu(tmp_path, "--replay-mode", "application", "--metrics", metrics)
    runs = done.stdout.count("right")
    figure("runs", runs)
    assert runs >= 1
    trace = load(tmp_path / "out")
    assert [x.events for x in trace.launches] == [WARPS * k.STEPS_EVENTS] * 5 * runs
    assert len(trace.processes) == runs
    assert lossless(trace), trace.problems


# ----------------------------------------------------------------------------------------------------- torch.profiler
def test_torch_profiler(tmp_path: Path, figure: Figure) -> None:
    """Both see each launch of the kernel."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import cutlass
    import cutlass.cute as cute
    from torch.profiler import ProfilerActivity, profile

    import warptrace.cute as iket

    out = Out(CTAS)
    with iket.tracing():
        compiled = cute.compile(k.steps_host, out.cute, cutlass.Int32(1), cutlass.Int32(CTAS))
    with recording(tmp_path) as folder, profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for n in range(5):
            compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
            assert out.holds(n)
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    assert names(trace) == {"begin": 5 * WARPS, "work": 5 * WARPS}
    kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    mine = [event for event in kernels if "steps" in event.name]
    figure("kernels that torch.profiler saw, and of these steps", [len(kernels), len(mine)])
    if not kernels:
        pytest.skip("torch.profiler sees no kernels here (CUPTI); the trace was complete")
    assert len(mine) == 5
