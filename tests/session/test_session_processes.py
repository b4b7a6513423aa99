"""Sessions in processes of their own: under ``warptrace profile``, with ``--window``, and without the command line.

The GPU is made of numpy (``tests/fakes``). A launch is known by its number of warps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import warptrace
from warptrace.raw import read_capture

ROOT = Path(__file__).resolve().parents[2]
PATHS = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "fakes"]
HEAD = """
import os, signal, sys, threading
import warptrace
import fake_gpu
kernel = fake_gpu.Kernel("steps")
def launch(*warps):
    for n in warps:
        kernel.launch(n)
def refused(action, kind=warptrace.UsageError):
    try:
        action()
    except kind as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        raise SystemExit("not refused")
"""


def run(
    folder: Path, body: str, *words: str, head: str = HEAD, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program, behind ``words``, in ``folder``."""
    script = folder / "program.py"
    script.write_text(head + textwrap.dedent(body))
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([*map(str, PATHS), *rest])
    command = [*words, sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env | variables, timeout=60)


def profile(folder: Path, body: str, *options: str, head: str = HEAD) -> subprocess.CompletedProcess[str]:
    """Runs a program under ``warptrace profile`` with its results in ``run``."""
    own = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--postprocess", "none", *options, "--"]
    return run(folder, body, *own, head=head)


def launches(folder: Path) -> list[int]:
    """Warps of each launch of a run, each whole."""
    found = warptrace.load(folder)
    assert [p for p in found.problems if p.kind != "clock"] == []
    assert all(x.warps_recorded == x.warps_expected for x in found.launches)
    return [x.warps_recorded for x in found.launches]


def windows(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "raw").glob("pid_*")
    found: list[dict[str, Any]] = read_capture(path).manifest["windows"]
    return found


# ---------------------------------------------------------------------------------------------------- profile --window
def test_window_follows_the_calls(tmp_path: Path) -> None:
    body = """
    launch(1)
    with warptrace.capture(output="elsewhere") as c:
        launch(2, 3)
    launch(4)
    warptrace.start()
    launch(5)
    stopped = warptrace.stop()
    launch(6)
    refused(lambda: c.trace, warptrace.WarptraceError)
    refused(lambda: stopped.directory, warptrace.WarptraceError)
    """
    done = profile(tmp_path, body, "--window")
    assert done.returncode == 0, done.stderr
    assert launches(tmp_path / "run") == [2, 3, 5]
    first, second = windows(tmp_path / "run")
    assert first["begin_unix_ns"] <= first["end_unix_ns"] <= second["begin_unix_ns"] <= second["end_unix_ns"]
    line = (
        "WarptraceError: this process is recorded as a whole (`warptrace profile`, or WARPTRACE=1), and results are "
        "written at its end: run it without them for results in the program"
    )
    assert done.stdout.splitlines() == [line, line]
    assert not (tmp_path / "elsewhere").exists()
    assert "warn: nothing is written to elsewhere: this process is recorded as a whole" in done.stderr


def test_window_that_is_never_opened(tmp_path: Path) -> None:
    done = profile(tmp_path, "launch(1)", "--window")
    assert done.returncode == 0, done.stderr
    assert (
        "nothing was recorded: recording began off (--window), and no window was opened in 1 Python process: call "
        "warptrace.start() and stop(), or use `with warptrace.capture():`, around the launches"
    ) in done.stderr
    assert windows(tmp_path / "run") == []


def test_window_without_a_launch(tmp_path: Path) -> None:
    done = profile(tmp_path, "launch(1)\nwith warptrace.capture(): pass\nlaunch(2)", "--window")
    assert "but no launch was seen in 1 window of recording; launch them" in done.stderr


def test_window_that_is_open_at_the_end(tmp_path: Path) -> None:
    done = profile(tmp_path, "launch(1)\nwarptrace.start()\nlaunch(2)", "--window")
    assert done.returncode == 0, done.stderr
    assert launches(tmp_path / "run") == [2]
    (window,) = windows(tmp_path / "run")
    assert window["end_unix_ns"] > window["begin_unix_ns"]


def test_window_opened_before_the_dsl_is_there(tmp_path: Path) -> None:
    head = "import warptrace\nwarptrace.start()\n" + HEAD
    done = profile(tmp_path, "launch(1)\nwarptrace.stop()\nlaunch(2)", "--window", head=head)
    assert done.returncode == 0, done.stderr
    assert launches(tmp_path / "run") == [1]


def test_misuse_is_the_same_under_the_command_line(tmp_path: Path) -> None:
    body = """
    refused(warptrace.stop)
    warptrace.start()
    refused(warptrace.start)
    launch(1)
    refused(lambda: warptrace.capture(no_such=1))
    warptrace.stop()
    refused(warptrace.stop)
    """
    for options in ((), ("--window",)):
        done = profile(tmp_path, body, *options, "--clobber")
        assert done.returncode == 0, done.stderr
        assert [line.split(";")[0].split(":")[1] for line in done.stdout.splitlines()] == [
            " no session is open in this process",
            " a session is open already",
            " no_such is not an option of warptrace.capture and start",
            " no session is open in this process",
        ]
        assert launches(tmp_path / "run") == [1]


def test_window_in_a_forked_child(tmp_path: Path) -> None:
    """It begins off, whatever the parent does."""
    body = """
    warptrace.start()
    launch(1)
    child = os.fork()
    if child == 0:
        launch(2)
        refused(warptrace.stop)
        with warptrace.capture():
            launch(3)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    launch(4)
    warptrace.stop()
    """
    done = profile(tmp_path, body, "--window")
    assert done.returncode == 0, done.stderr
    found = [[x.warps_recorded for x in warptrace.load(p).launches] for p in (tmp_path / "run" / "raw").glob("pid_*")]
    assert sorted(found) == [[1, 4], [3]]


# ------------------------------------------------------------------------------------------------- profile without it
@pytest.mark.parametrize("how", ["profile", "environment"])
def test_sessions_in_a_process_that_is_recorded_as_a_whole(tmp_path: Path, how: str) -> None:
    body = """
    launch(1)
    with warptrace.capture() as c:
        launch(2)
    launch(3)
    refused(lambda: c.trace, warptrace.WarptraceError)
    """
    if how == "profile":
        done = profile(tmp_path, body)
    else:
        # As `import warptrace.cute` does.
        head = f"{HEAD}from warptrace.runtime import autostart\nautostart.start()\n"
        done = run(tmp_path, body, head=head, WARPTRACE="1", WARPTRACE_DIR=str(tmp_path / "run" / "raw"))
    assert done.returncode == 0, done.stderr
    assert launches(tmp_path / "run") == [1, 2, 3]
    assert "is recorded as a whole" in done.stdout
    (path,) = (tmp_path / "run" / "raw").glob("pid_*")
    assert read_capture(path).manifest["windows"] is None


# --------------------------------------------------------------------------------------------- without the command line
ENDS = {
    "falls off": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("raise ZeroDivisionError", 1),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait(30)", -15),
    "SIGHUP": ("os.kill(os.getpid(), signal.SIGHUP); threading.Event().wait(30)", -1),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_session_that_is_open_at_the_end_is_written(tmp_path: Path, how: str) -> None:
    code, status = ENDS[how]
    done = run(tmp_path, f"launch(1)\nwarptrace.start('run', log_level='info')\nlaunch(2)\n{code}\n")
    assert done.returncode == status, done.stderr
    assert launches(tmp_path / "run") == [2]
    assert "program.py:17 is open at the end of the process: it ends now" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "run"]


def test_a_session_of_a_process_that_is_killed(tmp_path: Path) -> None:
    """What was drained is beside the directory's name, and says what is missing."""
    body = """
    warptrace.start("run")
    launch(2)
    fake_gpu.saved(1)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(tmp_path, body).returncode == -9
    assert not (tmp_path / "run").exists()
    (partial,) = tmp_path.glob(".run.partial-*")
    assert [x.warps_recorded for x in warptrace.load(partial).launches] == [2]


def test_a_session_without_output_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    body = """
    warptrace.start()
    launch(2)
    print([x.warps_recorded for x in warptrace.stop().trace.launches])
    with warptrace.capture() as c:
        launch(3)
    warptrace.start()
    """
    done = run(tmp_path, body, TMPDIR=str(tmp_path / "temporary"))
    assert (done.returncode, done.stdout) == (0, "[2]\n"), done.stderr
    assert list((tmp_path / "temporary").glob("warptrace-*")) == []


def test_a_fork_inside_a_session(tmp_path: Path) -> None:
    """The child has no session, and may begin its own; leaving the parent's block is nothing."""
    (tmp_path / "temporary").mkdir()
    body = """
    with warptrace.capture() as c:
        launch(1)
        child = os.fork()
        if child == 0:
            refused(lambda: c.trace, warptrace.WarptraceError)
            refused(warptrace.stop)
            launch(2)
            with warptrace.capture("child"):
                launch(3)
        else:
            assert os.waitpid(child, 0)[1] == 0
            launch(4)
    if child == 0:
        sys.exit(0)
    print([x.warps_recorded for x in c.trace.launches])
    """
    done = run(tmp_path, body, TMPDIR=str(tmp_path / "temporary"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "WarptraceError: the session has not begun in this process: its results are there after its end",
        "UsageError: no session is open in this process: call warptrace.start first",
        "[1, 4]",
    ]
    assert launches(tmp_path / "child") == [3]
    assert list((tmp_path / "temporary").glob("warptrace-*")) == []


def test_without_the_dsl_and_without_cuda(tmp_path: Path) -> None:
    head = "import sys\nsys.modules.update({m: None for m in ('cutlass', 'cuda', 'torch')})\n"
    body = """
    import warptrace
    with warptrace.capture("run") as c:
        pass
    print(len(c.trace.launches), c.reason)
    """
    done = run(tmp_path, body, head=head)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 the CuTe DSL (cutlass) is not installed: pip install 'warptrace[cute]'\n"
    assert launches(tmp_path / "run") == []


def test_a_dsl_that_is_too_old(tmp_path: Path) -> None:
    head = f"import sys\nsys.path.insert(0, {str(PATHS[-1])!r})\nimport cutlass, warptrace\n"
    body = """
    try:
        warptrace.start("run")
    except warptrace.WarptraceError as error:
        print(error)
    """
    done = run(tmp_path, body, head=head, FAKE_DSL="old")
    assert done.returncode == 0, done.stderr
    assert "has no trace-finalize hook; install 4.6 or newer" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
