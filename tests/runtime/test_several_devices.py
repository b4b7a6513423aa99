"""Several devices of one process, one of which fails: the others stay. The devices are made of numpy arrays."""

from __future__ import annotations

from pathlib import Path

from test_bad_days import problems, profile

import warptrace


def devices(trace: warptrace.trace.Trace) -> list[int]:
    return sorted(launch.device for launch in trace.launches)


def test_every_launch_stands_under_its_device(tmp_path: Path) -> None:
    done = profile(tmp_path, "for turn in range(6): steps.launch(device=turn % 3)\n", "--postprocess", "json")
    assert done.returncode == 0, done.stderr
    trace = warptrace.load(tmp_path / "run")
    assert devices(trace) == [0, 0, 1, 1, 2, 2]
    assert problems(trace) == []
    assert [one["gpu"] for one in trace.meta["alignment"]] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_device_without_memory_for_tracing_is_told_and_the_others_record(tmp_path: Path) -> None:
    body = "for turn in range(6): steps.launch(device=turn % 3)\nprint('went on')\n"
    done = profile(tmp_path, body, "--postprocess", "json", FAKE_GPU="full 1")
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    trace = warptrace.load(tmp_path / "run")
    assert devices(trace) == [0, 0, 2, 2]
    text = "not recording on device 1: cuMemAlloc failed: out of memory"
    assert f"warptrace: error: {text}" in done.stderr
    assert any(text in problem for problem in trace.processes[0].manifest["problems"])


def test_a_device_that_is_reset_costs_what_it_had_not_saved_and_the_others_go_on(tmp_path: Path) -> None:
    """What the other device records behind the reset is still saved while the program runs, as its sudden end shows."""
    body = """
    import os, signal, time
    for device in (0, 1):
        for _ in range(5): steps.launch(device=device)
    for device in (0, 1): fake_gpu.saved(5, device=device)
    for _ in range(3): steps.launch(device=1)
    fake_gpu.poison(1)
    time.sleep(0.3)
    for _ in range(5): steps.launch(device=0)
    fake_gpu.saved(10)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    assert done.returncode == 137
    trace = warptrace.load(tmp_path / "run")
    found = devices(trace)
    assert found.count(0) == 10
    assert 5 <= found.count(1) < 8
    lost = 8 - found.count(1)
    assert ("lost_launches", lost) in problems(trace)


def test_the_end_tells_of_the_device_that_was_reset(tmp_path: Path) -> None:
    body = """
    for device in (0, 1):
        for _ in range(4): steps.launch(device=device)
    fake_gpu.poison(1)
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    trace = warptrace.load(tmp_path / "run")
    assert devices(trace).count(0) == 4
    said = "device 1: what was not saved before is lost: cuMemcpyDtoHAsync failed"
    assert said in done.stderr
    assert "device 0:" not in done.stderr
