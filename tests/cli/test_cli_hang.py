"""Programs that do not end, under ``warptrace profile``: real processes, with a GPU made of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import environment

import warptrace
from warptrace.cli import _child
from warptrace.cli._processes import processes, send
from warptrace.runtime.options import DIRECTORY_ENV

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"

HEAD = f"""
import sys
sys.path.insert(0, {str(FAKES)!r})  # a DSL that is installed puts itself first
import os, signal, subprocess, time
import fake_gpu
from fake_device import FakeKernel, FakeWarp
from warptrace import registry
from warptrace.wire import PayloadType

class Pipeline(fake_gpu.Kernel):
    '''One producer and two consumer warps; "stuck": none of them ends.'''
    def __init__(self):
        self._kernel = k = FakeKernel("pipeline")
        self.wait = k.push("full_wait", PayloadType.I32, line=20)
        self.free = k.push("free_wait", PayloadType.I32, line=10)
        self.pop, self.done = k.pop(), k.mark("done")
        self._launched = 0
        registry.announce(k.record)

    def _run(self, device, stuck):
        now = time.time_ns() - fake_gpu.BEGAN_NS
        warps = []
        for number in range(3):
            warp = FakeWarp(warp=number, sm=0, start_ns=now)
            warp.event(self.done, at=100)
            warp.event(self.free if number == 0 else self.wait, at=200 + number, payload=7)
            if not stuck:
                warp.event(self.pop, at=300)
                warp.exit(at=1000)
            warps.append(warp)
        device.launch(self._kernel, warps, block=(96, 1, 1), main_bytes=128)
        self._launched += 1
        if stuck:
            fake_gpu.busy(1000)

def deaf():
    '''As while the main thread waits in the driver.'''
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def say(text):
    print(text, flush=True)

pipeline = Pipeline()
"""


class Tool:
    """``warptrace profile`` with a program, its head above and ``body``."""

    def __init__(self, folder: Path, body: str, *options: str, **variables: str) -> None:
        self.folder = folder
        script = folder / "program.py"
        script.write_text(HEAD + textwrap.dedent(body))
        paths = [ROOT / "src", ROOT / "tests", FAKES, ROOT / "tests" / "fakes_cuda"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FAKE_CUDA_DIR": str(folder), **variables}
        env["CUDA_VISIBLE_DEVICES"] = "3"  # the program's own view
        own = ["-m", "warptrace", "profile", "-o", "run", "--postprocess", "json", *options, "--"]
        self.process = subprocess.Popen(
            [sys.executable, *own, sys.executable, str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=env,
        )  # fmt: skip
        self.stderr = ""

    def says(self, text: str) -> None:
        """Waits for a line of the program."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == text + "\n", self.process.communicate(timeout=5)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout: float = 60) -> int:
        """Waits for it; returns the exit status."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run" / "run.json").read_text())
        return found

    @property
    def hang(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run" / "hang.json").read_text())
        return found


def check_report(tool: Tool, least_s: float, most_s: float) -> None:
    """All three warps hang, for about so long, and are told with their places and roles."""
    (launch,) = tool.hang["launches"]
    assert (launch["running"], launch["ended"], launch["missing"]) == (3, 0, 0)
    found = {g["role"]: (g["warps"], g["warps_in_cta"], [f["name"] for f in g["stack"]]) for g in launch["groups"]}
    assert found == {"full_wait": (2, [1, 2], ["full_wait"]), "free_wait": (1, [0], ["free_wait"])}
    for group in launch["groups"]:
        assert group["stack"][0]["payloads"] == ["7"]
        assert least_s * 1e9 <= group["stack"][0]["least_ns"] <= group["stack"][0]["most_ns"] <= most_s * 1e9
        assert [e["name"] for e in group["recent"]] == ["done", group["stack"][0]["name"]]
    text = (tool.folder / "run" / "hang.txt").read_text()
    assert "- pipeline: 2 full_wait warps of CTA (0,0,0) are in `full_wait` (payload 7) (kernel.py:20) for " in text
    assert text in tool.stderr
    assert {"hang.txt", "hang.json"} < set(tool.record["outputs"])
    trace = warptrace.load(tool.folder / "run")
    assert len(trace.open) == 3 and len(trace.markers) == 3 and len(trace.ranges) == 0


STUCK = """
pipeline.launch(True)
deaf()
say("stuck")
time.sleep(100)
"""


def test_a_timeout_tells_where_the_kernel_is_and_ends_the_program(tmp_path: Path) -> None:
    tool = Tool(tmp_path, STUCK, "--timeout", "5.5")
    assert tool.end() == 124, tool.stderr
    check_report(tool, 0.1, 20)
    assert tool.hang["time_from"] in ("clock", "host clock")  # the fake device may be too slow on a busy machine
    assert tool.hang["moved"] == 0
    assert (tool.record["exit_status"], tool.record["ended_by"], tool.record["timeout"]) == (124, "timeout", 5.5)
    assert "warptrace: the command was ended after 5.5 s: exit status 124" in tool.stderr
    assert not list((tmp_path / "run" / "raw").glob("pid_*/*.ipc.json"))
    told = (tmp_path / "run" / "hang.txt").read_text()
    again = subprocess.run(
        [sys.executable, "-m", "warptrace", "postprocess", "run", "--format", "json"], capture_output=True, text=True,
        cwd=tmp_path, env=environment(), timeout=60,
    )  # fmt: skip
    assert (again.returncode, told in again.stdout) == (0, True), again.stderr


def test_a_control_c_does_so_too_once_the_program_had_time_to_end(tmp_path: Path) -> None:
    tool = Tool(tmp_path, STUCK)
    tool.says("stuck")
    begun = time.monotonic()
    tool.interrupt()
    assert tool.end() == 130, tool.stderr
    assert time.monotonic() - begun > 3
    check_report(tool, 3, 30)
    assert tool.record["ended_by"] == "interrupt"


def test_a_program_that_ends_in_time_is_left_alone(tmp_path: Path) -> None:
    body = """
    def handler(number, frame):
        time.sleep(1)
        sys.exit(7)
    signal.signal(signal.SIGINT, handler)
    pipeline.launch(False)
    say("ready")
    time.sleep(100)
    """
    tool = Tool(tmp_path, body)
    tool.says("ready")
    tool.interrupt()
    assert tool.end() == 7, tool.stderr
    assert tool.record["ended_by"] == "itself"
    assert not list((tmp_path / "run" / "raw").glob("pid_*/snapshot"))
    assert len(warptrace.load(tmp_path / "run").ranges) == 3


def test_a_program_without_a_hang_may_take_its_time(tmp_path: Path) -> None:
    """It may be saving its work."""
    body = """
    pipeline.launch(False)
    deaf()
    say("ready")
    time.sleep(6)
    say("saved")
    """
    tool = Tool(tmp_path, body)
    tool.says("ready")
    tool.interrupt()
    assert tool.end() == 0, tool.stderr
    assert tool.stdout == "saved\n"
    assert "no traced kernel hangs: waiting (Ctrl-C again ends it)" in tool.stderr
    assert not (tmp_path / "run" / "hang.txt").exists()
    trace = warptrace.load(tmp_path / "run")
    assert (len(trace.warps), len(trace.ranges), len(trace.markers)) == (3, 3, 3), "nothing counts twice"


def test_the_second_control_c_ends_it_in_any_case(tmp_path: Path) -> None:
    body = """
    pipeline.launch(False)
    deaf()
    say("ready")
    time.sleep(100)
    """
    tool = Tool(tmp_path, body)
    tool.says("ready")
    begun = time.monotonic()
    tool.interrupt()
    time.sleep(0.3)
    tool.interrupt()
    assert tool.end() == 130, tool.stderr
    assert time.monotonic() - begun < 10
    assert len(warptrace.load(tmp_path / "run").ranges) == 3, "SIGTERM saved it"


def test_the_third_control_c_kills_it_at_once(tmp_path: Path) -> None:
    """Even where the snapshot never comes back."""
    tool = Tool(tmp_path, STUCK, FAKE_CUDA_FAULT="stuck")
    tool.says("stuck")
    begun = time.monotonic()
    for _ in range(3):
        tool.interrupt()
        time.sleep(0.5)
    assert tool.end() == 130, tool.stderr
    assert time.monotonic() - begun < 8
    assert "no snapshot: it took too long" in tool.stderr


@pytest.mark.parametrize("watch", [True, False])
def test_a_killed_program_can_be_looked_into_where_its_memory_was_watched(tmp_path: Path, watch: bool) -> None:
    body = """
    pipeline.launch(True)
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    tool = Tool(tmp_path, body, *(["--watch"] if watch else []))
    assert tool.end() == 137, tool.stderr
    assert tool.record["ended_by"] == "itself"
    if watch:
        check_report(tool, 1.5, 20)
    else:
        assert not (tmp_path / "run" / "hang.txt").exists()


def test_without_the_devices_clock_the_hosts_tells_the_time(tmp_path: Path) -> None:
    tool = Tool(tmp_path, STUCK, "--timeout", "5", FAKE_CUDA_FAULT="clock")
    assert tool.end() == 124, tool.stderr
    check_report(tool, 0.1, 20)
    assert tool.hang["time_from"] == "host clock"


def test_memory_that_cannot_be_mapped_is_told_and_the_program_ended(tmp_path: Path) -> None:
    tool = Tool(tmp_path, STUCK, "--timeout", "5", FAKE_CUDA_FAULT="open")
    assert tool.end() == 124, tool.stderr
    assert "device 0: cuIpcOpenMemHandle failed: fake error 1" in tool.stderr


def test_all_processes_of_the_run_are_ended(tmp_path: Path) -> None:
    """A child that ignores SIGTERM, and one that has lost its parent and cleared its signals."""
    body = """
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM INT; sleep 987 & wait; sleep 987"])
    subprocess.run(["sh", "-c", "setsid sleep 987 & "])
    say("ready")
    time.sleep(100)
    """
    tool = Tool(tmp_path, body, "--timeout", "5.5")
    tool.says("ready")
    mark = f"WARPTRACE_DIR={next(tmp_path.glob('.run.partial-*'))}/raw".encode()
    assert len(processes(tool.process.pid, mark)) >= 4
    assert tool.end() == 124, tool.stderr
    assert processes(tool.process.pid, mark) == set()


def test_what_begins_while_processes_are_killed_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell's command dies a while before the shell, which has begun the next one by then."""

    def slowly_the_children_first(pids: set[int], number: int) -> None:
        for pid in sorted(pids, reverse=True):
            send({pid}, number)
            time.sleep(0.3 if number == signal.SIGKILL else 0)

    monkeypatch.setattr(_child, "send", slowly_the_children_first)
    raw = tmp_path / "raw"
    raw.mkdir()
    shell = ["sh", "-c", "trap '' INT TERM; sleep 987; sleep 988; sleep 989; true"]
    patience = _child.Patience(sigint=0.1, sigterm=0.1)
    ended = _child.run_command(shell, {**os.environ, DIRECTORY_ENV: str(raw)}, None, raw, timeout=1, patience=patience)
    assert (ended.status, ended.by) == (124, "timeout")
    assert processes(-1, f"{DIRECTORY_ENV}={raw}".encode()) == set()
    assert "still there" not in capsys.readouterr().err


def test_a_timeout_that_is_no_time_is_refused(tmp_path: Path) -> None:
    tool = Tool(tmp_path, "", "--timeout", "-1")
    assert tool.end() == 2
    assert "'-1' is not a number of seconds above 0" in tool.stderr
