"""A kernel that hangs on a GPU: examples/deadlock.py under ``warptrace profile``, whatever its main thread waits in.

Nothing stays on the GPU: every test kills all processes of its run at its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gpu_kit import EXAMPLES, Figure, environment, load, profiled, python

from warptrace.cli._processes import processes, send

pytestmark = pytest.mark.gpu
START_S = 60.0
"""Until the kernel runs: imports and compilation."""
END_S = 40.0


class Run:
    """``warptrace profile`` of the example. ``raw``: the folder of its raw captures while it runs."""

    def __init__(self, folder: Path, *words: str, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        command = profiled(folder / "run", python(EXAMPLES / "deadlock.py", *words), *options)
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )

    @property
    def raw(self) -> Path:
        (partial,) = self.folder.glob(".run.partial-*")
        return partial / "raw"

    def launched(self) -> None:
        """Waits for the program's line, and then until its main thread waits."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        deadline, text = time.monotonic() + START_S, b""
        while b"launched" not in text:
            assert time.monotonic() < deadline and self.process.poll() is None, self.said
            text += self.process.stdout.read() or b""
            time.sleep(0.05)
        time.sleep(1.0)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def says(self, text: str) -> None:
        """Waits until the command line has said so."""
        deadline = time.monotonic() + END_S
        while text not in self.said:
            assert time.monotonic() < deadline and self.process.poll() is None, self.said
            time.sleep(0.05)

    @property
    def said(self) -> str:
        return self.errors.read_text(errors="replace")

    def ended(self, seconds: float = END_S) -> int:
        return self.process.wait(seconds)

    @property
    def hang(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run" / "hang.json").read_text())
        return found


@contextmanager
def started(folder: Path, *words: str, options: tuple[str, ...] = ()) -> Iterator[Run]:
    """A run of which nothing is left behind."""
    run = Run(folder, *words, options=options)
    mark = f"WARPTRACE_DIR={run_raw(folder, run)}".encode()
    try:
        yield run
    finally:
        left = processes(run.process.pid, mark)
        send([*left, run.process.pid], signal.SIGKILL)
        run.process.wait(20)
    assert not left, run.said


def run_raw(folder: Path, run: Run) -> Path:
    """The raw folder, once it is there."""
    deadline = time.monotonic() + START_S
    while not list(folder.glob(".run.partial-*/raw")):
        assert time.monotonic() < deadline and run.process.poll() is None, run.said
        time.sleep(0.02)
    return run.raw


def check(run: Run, figure: Figure, least_s: float, most_s: float) -> None:
    """Both sides of the deadlock are told: of every second block the producer and all consumers."""
    (launch,) = run.hang["launches"]
    assert (launch["expected"], launch["running"], launch["ended"], launch["missing"]) == (20, 10, 10, 0), run.said
    found = {
        g["role"]: (g["warps"], g["ctas"], g["warps_in_cta"], [f["name"] for f in g["stack"]], g["last"])
        for g in launch["groups"]
    }
    ctas = [[1, 0, 0], [3, 0, 0]]
    assert found == {
        "consume": (8, ctas, [1, 2, 3, 4], ["consume", "full_wait"], "begin of full_wait"),
        "produce": (2, ctas, [0], ["produce", "free_wait"], "begin of free_wait"),
    }, run.said
    for group in launch["groups"]:
        inner = group["stack"][-1]
        assert inner["payloads"] == ["10"]
        assert least_s * 1e9 < inner["least_ns"] <= inner["most_ns"] < most_s * 1e9
        assert [e["name"] for e in group["recent"]][-1] == inner["name"] and len(group["recent"]) == 5
    assert run.hang["moved"] == 0
    assert run.hang["time_from"] in ("clock", "host clock")
    figure("snapshot time from", run.hang["time_from"])
    figure("snapshot took ms", run.hang["pause_ns"] / 1e6)
    trace = load(run.folder / "run")
    assert len(trace.open) == 20 and int(trace.warps.closed.sum()) == 10


@pytest.mark.parametrize("wait", ["copy", "queue"])
def test_a_hang_is_told_whatever_the_main_thread_waits_in(tmp_path: Path, figure: Figure, wait: str) -> None:
    with started(tmp_path, "--wait", wait) as run:
        run.launched()
        run.interrupt()
        time.sleep(0.3)
        run.interrupt()
        run.says("ending the command")
        run.interrupt()
        assert run.ended() == 130, run.said
        check(run, figure, 0.5, 60)


def test_a_timeout_tells_where_the_kernel_hangs(tmp_path: Path, figure: Figure) -> None:
    with started(tmp_path, options=("--timeout", "12")) as run:
        assert run.ended(60) == 124, run.said
        check(run, figure, 0.5, 60)


def test_the_memory_of_a_killed_program_can_be_read(tmp_path: Path, figure: Figure) -> None:
    with started(tmp_path, options=("--watch",)) as run:
        run.launched()
        (capture,) = run.raw.glob("pid_*")
        os.kill(int(capture.name.removeprefix("pid_")), signal.SIGKILL)
        assert run.ended() == 137, run.said
        check(run, figure, 0.5, 60)


def test_the_mended_pipeline_ends(tmp_path: Path) -> None:
    with started(tmp_path, "--fixed", options=("--timeout", "60")) as run:
        assert run.ended(90) == 0, run.said
        assert not (tmp_path / "run" / "hang.json").exists()
        trace = load(tmp_path / "run")
        assert (len(trace.warps), len(trace.open), int(trace.warps.closed.sum())) == (20, 0, 20)
