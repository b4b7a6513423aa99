"""Why nothing was recorded: each cause has its own line, with the mend."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from fake_device import FakeKernel

from warptrace.cli._captures import wait_for_processes
from warptrace.explain import armed_processes, why_nothing_recorded
from warptrace.raw import CaptureWriter
from warptrace.selection import Selection


def capture(
    folder: Path,
    *,
    events: int = 0,
    launches: int = 0,
    plain: tuple[str, ...] = (),
    problem: str = "",
    selection: Selection | None = None,
    finish: bool = True,
) -> Path:
    """A capture without data, by a process that compiled ``events`` kernels with events and those in ``plain``."""
    writer = CaptureWriter(
        folder, pid=11, argv=["p"], host="h", python="3", warptrace="0", dsl=None, started_unix_ns=0
    )
    kernels = [FakeKernel(f"k{number}") for number in range(events)]
    for kernel in kernels:
        kernel.mark("m")
        writer.add_kernel(kernel.record)
    for symbol in plain:
        writer.add_uninstrumented(symbol)
    if selection is not None:
        writer.set_selection(selection)
    if problem:
        writer.add_problem(problem)
    if launches:
        writer.set_launches({kernels[0].id: launches})
    if finish:
        writer.finish(ended_unix_ns=1)
    return folder


def test_no_python() -> None:
    (line,) = why_nothing_recorded([], armed=0)
    assert line.startswith("nothing was recorded: no Python process started with the tracer; ")
    assert "without -I, -E or -S and with PYTHONPATH passed on" in line


def test_no_dsl() -> None:
    (line,) = why_nothing_recorded([], armed=1)
    assert line == (
        "nothing was recorded: 1 Python process started with the tracer, but none imported the CuTe DSL (cutlass)"
    )


def test_no_kernel(tmp_path: Path) -> None:
    (line,) = why_nothing_recorded([capture(tmp_path / "a")], armed=1)
    assert line.startswith("nothing was recorded: no kernel was compiled in 1 Python process; ")
    assert "must import warptrace.cute and compile its kernels in this run" in line


def test_only_kernels_without_events(tmp_path: Path) -> None:
    captures = [
        capture(tmp_path / "a", plain=("k1", "k2", "k3")),
        capture(tmp_path / "b", plain=("k3", "k4", "k5", "k6")),
    ]
    (line,) = why_nothing_recorded(captures, armed=2)
    assert line == (
        "nothing was recorded: only kernels without events compiled in 2 Python processes (k1, k2, k3, k4 and 2 more);"
        " put calls of warptrace.cute into the @cute.kernel code"
    )


def test_no_launch(tmp_path: Path) -> None:
    (line,) = why_nothing_recorded([capture(tmp_path / "a", events=2, plain=("x",))], armed=1)
    assert line == (
        "nothing was recorded: 2 kernels with events (k0, k1) compiled in 1 Python process, but no launch was seen;"
        " launch them"
    )


def test_launches_without_data(tmp_path: Path) -> None:
    path = capture(tmp_path / "a", events=1, launches=3, problem="no room on device 0", finish=False)
    first, second, third = why_nothing_recorded([path], armed=1)
    # set_launches is written by finish: without it the launches are not known.
    assert "1 kernel with events (k0) compiled in 1 Python process, but no launch was seen" in first
    assert second == "the tracer noted: no room on device 0"
    assert third == "pid 11 ended without closing its capture (killed, crashed, or left through os._exit)"

    (line,) = why_nothing_recorded([capture(tmp_path / "b", events=1, launches=3)], armed=1)
    assert line == (
        "nothing was recorded: 1 kernel with events (k0) launched 3 times in 1 Python process, but no data came back;"
        " run again with --log-level debug"
    )


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection(warps=(8, 9)), "no warp of --warps 8-9 ran; name warps that their CTAs have"),
        (Selection(launch_skip=3), "--launch-skip 3 leaves them all out: no kernel was launched more than 3 times"),
        (Selection(launch_skip=2), "no data came back; run again with --log-level debug"),
        (Selection(cta_stride=9), "no data came back; run again with --log-level debug"),
    ],
    ids=str,
)
def test_launches_of_which_nothing_was_selected(tmp_path: Path, selection: Selection, reason: str) -> None:
    """A cluster is always left: only warps and launches can all be left out."""
    path = capture(tmp_path / "a", events=1, launches=3, selection=selection)
    (line,) = why_nothing_recorded([path], armed=1)
    launched = "1 kernel with events (k0) launched 3 times in 1 Python process"
    assert line == f"nothing was recorded: {launched}, but {reason}"


def test_a_capture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pid_1").mkdir()
    _, line = why_nothing_recorded([tmp_path / "pid_1"], armed=1)
    assert line.startswith(f"the tracer noted: {tmp_path / 'pid_1'} holds no capture")


def test_armed_processes_are_counted(tmp_path: Path) -> None:
    assert armed_processes(tmp_path) == 0
    (tmp_path / "armed").write_text("12\n13\n12\n")
    assert armed_processes(tmp_path) == 3


def test_a_process_that_stays_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"pid_{os.getpid()}").mkdir()
    (tmp_path / "pid_other").mkdir()
    before = time.monotonic()
    wait_for_processes(tmp_path, seconds=0.1)
    assert 0.1 <= time.monotonic() - before < 5
    assert capsys.readouterr().err == (
        f"warptrace: warning: still running after the command ended: pid {os.getpid()};"
        " what they record from now on is not in the result\n"
    )


def test_a_process_that_has_ended_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = subprocess.Popen(["true"])
    (tmp_path / f"pid_{child.pid}").mkdir()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    before = time.monotonic()
    wait_for_processes(tmp_path, seconds=20)  # a zombie: nobody has waited for it
    assert time.monotonic() - before < 5
    child.wait()
    assert capsys.readouterr().err == ""
