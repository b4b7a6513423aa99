"""``warptrace profile`` as a user meets it: real processes, real directories."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, environment

import warptrace
from warptrace.cli import main
from warptrace.cli._child import BOOTSTRAP
from warptrace.selection import Selection

PLAIN = ["env", "WARPTRACE=0", sys.executable]
"""A Python without the tracer."""


def run_record(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return data


def tree(folder: Path) -> list[str]:
    """All files below a folder, relative to it."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def events(file: Path) -> list[int]:
    """Ranges and markers of each launch of a JSON output."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt") as stream:
        return [len(launch["ranges"]) + len(launch["markers"]) for launch in json.load(stream)["launches"]]


# ------------------------------------------------------------------------------------------------------ the command
@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status_is_passed_on(cli: Cli, status: int) -> None:
    assert cli("profile", "--", *PLAIN, "-c", f"raise SystemExit({status})").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_command_ended_by_a_signal(cli: Cli, number: signal.Signals) -> None:
    done = cli("profile", "-o", "run", "--", "sh", "-c", f"kill -{number.value} $$")
    assert done.returncode == 128 + number
    assert f"the command ended with exit status {128 + number}" in done.stderr


def test_a_command_that_does_not_exist(cli: Cli, tmp_path: Path) -> None:
    done = cli("profile", "--", "no-such-program")
    assert (done.returncode, done.stderr) == (127, "warptrace: error: command not found: no-such-program\n")
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_is_not_executable(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("")
    done = cli("profile", "-o", "run", "--", "./k.py")
    assert done.returncode == 126
    hint = "put python before it, as `python ./k.py`"
    assert done.stderr == f"warptrace: error: command is not executable: ./k.py: {hint}\n"
    assert not (tmp_path / "run").exists()


def test_standard_streams_are_the_commands(cli: Cli) -> None:
    done = cli("profile", "-o", "run", "--", "sh", "-c", "cat; echo theirs >&2", stdin="fed\n")
    assert (done.returncode, done.stdout) == (0, "fed\n")
    lines = done.stderr.splitlines()
    assert "theirs" in lines
    assert all(line.startswith(("warptrace: ", "theirs")) for line in lines)


def test_a_working_directory(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    done = cli("profile", "-o", "run", "--working-dir", "inner", "--", "pwd")
    assert done.stdout == f"{tmp_path / 'inner'}\n"
    assert run_record(tmp_path / "run")["working_dir"] == str(tmp_path / "inner")


def test_a_missing_working_directory(cli: Cli, tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--working-dir", "nowhere", "--", "pwd")
    assert (done.returncode, done.stderr) == (2, "warptrace: error: --working-dir nowhere: no such folder\n")
    assert list(tmp_path.iterdir()) == []


def test_flags_that_look_like_ours_reach_the_command(cli: Cli, tmp_path: Path) -> None:
    words = ["--clobber", "-o", "theirs", "--postprocess=all", "--", "profile", "a b", ""]
    done = cli("profile", "-o", "run", "--", *PLAIN, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    assert run_record(tmp_path / "run")["command"][-len(words) :] == words


SHOW = """
import json, os
def show():
    with open("shown.json", "w") as file:
        json.dump({"pid": os.getpid(), **os.environ}, file)
if __name__ == "__main__":
    show()
"""
PARENT = """
import multiprocessing, subprocess, sys
from show import show
if __name__ == "__main__":
    if sys.argv[1] == "subprocess":
        subprocess.run([sys.executable, "show.py"])
    else:
        child = multiprocessing.get_context("spawn").Process(target=show)
        child.start()
        child.join()
"""


@pytest.mark.parametrize("how", ["direct", "shell", "subprocess", "spawn"])
def test_every_child_python_gets_the_environment(cli: Cli, tmp_path: Path, how: str) -> None:
    # A stub takes the tracer's place, so that the test sees that it was started, and in which process.
    runtime = tmp_path / "stub" / "warptrace" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").touch()
    (runtime / "__init__.py").touch()
    (runtime / "autostart.py").write_text("import os\ndef start():\n    open(f'armed_{os.getpid()}', 'x').close()\n")
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "parent.py").write_text(PARENT)
    command = {
        "direct": [sys.executable, "show.py"],
        "shell": ["sh", "-c", f"'{sys.executable}' show.py"],
        "subprocess": [sys.executable, "parent.py", "subprocess"],
        "spawn": [sys.executable, "parent.py", "spawn"],
    }[how]
    # The stub must be found by the command only: `env` sets its path after warptrace itself has started.
    path = f"{BOOTSTRAP}:{tmp_path / 'stub'}"
    done = cli("profile", "-o", "run", "--buffer-size", "64M", "--", "env", f"PYTHONPATH={path}", *command)
    assert done.returncode == 0, done.stderr
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert shown["WARPTRACE"] == "1"
    assert os.path.basename(shown["WARPTRACE_DIR"]) == "raw"
    assert json.loads(shown["WARPTRACE_OPTIONS"]) == {
        "directory": shown["WARPTRACE_DIR"],
        "buffer_bytes": 64 << 20,
        "log_level": "warn",
        "max_events_per_warp": None,
        "untraced_build": True,
        "window": False,
        "selection": Selection().to_json(),
        "keep_events": "first",
        "iket_calls": True,
        "auto": [],
        "peer_clocks": True,
        "auto_nested": False,
        "auto_names": [],
        "host_ranges": False,
    }
    assert shown["PYTHONPATH"] == path
    armed = {p.name for p in tmp_path.glob("armed_*")}
    assert f"armed_{shown['pid']}" in armed
    # multiprocessing's resource tracker is a Python of its own.
    assert len(armed) == {"direct": 1, "shell": 1, "subprocess": 2, "spawn": 3}[how]


def test_a_python_path_is_kept_behind_ours(cli: Cli) -> None:
    done = cli("profile", "-o", "run", "--", "sh", "-c", 'echo "$PYTHONPATH"')
    assert done.stdout == f"{BOOTSTRAP}:{environment()['PYTHONPATH']}\n"


# ------------------------------------------------------------------------------------------------------ the results
def test_outputs_of_every_process(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    line = ("profile", "-o", "run", "--postprocess", "all", "--per-process", "--", *workload, "4242", "77")
    done = cli(*line)
    assert (done.returncode, done.stdout) == (0, "workload done\n"), done.stderr
    outputs = [f"iket_pid_{pid}.{kind}" for pid in (4242, 77) for kind in ("html", "pftrace", "trace.json")]
    raw = [f"raw/pid_{pid}/{name}" for pid in (4242, 77) for name in ("dev0.wtraw", "kernels.jsonl", "manifest.json")]
    assert tree(tmp_path / "run") == sorted([*outputs, *raw, "run.json"])
    for pid in (4242, 77):
        assert events(tmp_path / "run" / f"iket_pid_{pid}.trace.json") == [4]
        assert (tmp_path / "run" / f"iket_pid_{pid}.pftrace").stat().st_size > 100
        assert (tmp_path / "run" / f"iket_pid_{pid}.html").read_text().startswith("<!doctype html>")
    assert done.stderr.count("demo") >= 2  # the kernel, in the summary of each process
    for name in outputs:
        assert f"\n  run/{name}" in done.stderr


def test_the_record_of_a_run(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    command = [*workload, "4242", "exit:5"]
    done = cli("profile", "-o", "run", "--postprocess", "json", "--max-ts-cnt-per-warp", "9", "--", *command)
    assert done.returncode == 5
    record = run_record(tmp_path / "run")
    started, seconds = record.pop("started"), record.pop("seconds")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", started)
    assert 0 < seconds < 60
    assert record == {
        "format": "warptrace run",
        "version": 1,
        "command": command,
        "working_dir": str(tmp_path),
        "exit_status": 5,
        "ended_by": "itself",
        "timeout": None,
        "options": {
            "directory": "raw",
            "buffer_bytes": 1 << 30,
            "max_events_per_warp": 9,
            "log_level": "warn",
            "untraced_build": True,
            "window": False,
            "selection": Selection().to_json(),
            "keep_events": "first",
            "iket_calls": True,
            "auto": [],
            "peer_clocks": True,
        "auto_nested": False,
        "auto_names": [],
        "host_ranges": False,
        },
        "versions": {
            "warptrace": warptrace.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "captures": ["raw/pid_4242"],
        "outputs": ["iket_pid_4242.trace.json"],
        "failures": [],
    }


def test_the_default_is_perfetto_in_a_new_folder(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    for _ in range(2):
        assert cli("profile", "--", *workload, "4242").returncode == 0
    made = set(tmp_path.iterdir()) - before
    assert len(made) == 2
    for folder in made:
        assert re.fullmatch(r"warptrace-\d{8}-\d{6}-\d+", folder.name)
        assert "iket_pid_4242.pftrace" in tree(folder)
        assert "iket_pid_4242.trace.json" not in tree(folder)


def test_without_the_raw_capture(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--no-keep", "--postprocess", "json", "--json-gz", "--", *workload, "4242")
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "run") == ["iket_pid_4242.trace.json.gz", "run.json"]
    assert events(tmp_path / "run" / "iket_pid_4242.trace.json.gz") == [4]


def test_a_value_out_of_range_is_refused_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--buffer-size", "1M", "--", "touch", "ran")
    assert done.returncode == 2
    assert done.stderr == "warptrace: error: buffer size 1M is out of range: choose 16M to 4G\n"
    assert list(tmp_path.iterdir()) == []


def test_a_failing_command_leaves_its_trace(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--postprocess", "json", "--", *workload, "4242", "exit:3")
    assert done.returncode == 3
    assert events(tmp_path / "run" / "iket_pid_4242.trace.json") == [4]


def test_one_damaged_capture_does_not_stop_the_others(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    line = ("profile", "-o", "run", "--no-keep", "--postprocess", "json", "--", *workload, "damaged:1", "2")
    done = cli(*line)
    assert (done.returncode, done.stdout) == (1, "workload done\n")
    assert events(tmp_path / "run" / "iket_pid_2.trace.json") == [4]
    (failure,) = run_record(tmp_path / "run")["failures"]
    assert "has capture version 99, this warptrace reads version" in failure
    assert f"warptrace: error: {failure}" in done.stderr
    # Kept in spite of --no-keep, and named.
    assert (tmp_path / "run" / "raw" / "pid_1" / "manifest.json").exists()
    assert done.stderr.endswith("the raw capture is kept: warptrace postprocess run\n")


def test_our_failure_does_not_hide_the_commands(cli: Cli, workload: list[str]) -> None:
    assert cli("profile", "-o", "run", "--", *workload, "damaged:1", "exit:9").returncode == 9


# ------------------------------------------------------------------------------------------------- nothing recorded
def test_nothing_recorded_without_python(cli: Cli) -> None:
    done = cli("profile", "-o", "run", "--", "true")
    assert done.returncode == 0
    assert "warning: nothing was recorded: no Python process started with the tracer; " in done.stderr


def test_nothing_recorded_with_python_but_no_kernels(cli: Cli, tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--", "sh", "-c", f"'{sys.executable}' -c ''; '{sys.executable}' -c ''")
    assert done.returncode == 0
    wanted = "nothing was recorded: 2 Python processes started with the tracer, but none imported the CuTe DSL"
    assert wanted in done.stderr
    assert "not recording" not in done.stderr


def test_nothing_recorded_names_the_kernels(cli: Cli, workload: list[str]) -> None:
    done = cli("profile", "-o", "run", "--", *workload, "empty:7")
    assert done.returncode == 0
    wanted = "nothing was recorded: 1 kernel with events (demo) compiled in 1 Python process, but no launch was seen"
    assert wanted in done.stderr


# -------------------------------------------------------------------------------------------- existing directories
def test_an_existing_directory_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = cli("profile", "-o", "run", "--", "touch", "ran")
    assert done.returncode == 2
    assert done.stderr == (
        "warptrace: error: output directory run exists: add --clobber to replace it, or choose another --output-dir\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_clobber_replaces_an_earlier_result(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    assert cli("profile", "-o", "run", "--", *workload, "1").returncode == 0
    (tmp_path / "run" / "note.txt").write_text("old")
    assert cli("--output-dir", "run", "--clobber", "profile", "--", *workload, "2").returncode == 0
    assert "iket_pid_2.pftrace" in tree(tmp_path / "run")
    assert not any("pid_1" in name or name == "note.txt" for name in tree(tmp_path / "run"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "workload.py"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["2", "exit:3"], 3), (["damaged:2"], 1), (["empty:2"], 0), ([], 0)],
    ids=["command failed", "we failed", "nothing recorded", "no capture"],
)
def test_a_failing_run_keeps_the_earlier_result(
    cli: Cli, workload: list[str], tmp_path: Path, arguments: list[str], status: int
) -> None:
    assert cli("profile", "-o", "run", "--", *workload, "1").returncode == 0
    before = {name: (tmp_path / "run" / name).read_bytes() for name in tree(tmp_path / "run")}
    done = cli("profile", "-o", "run", "--clobber", "--", *workload, *arguments)
    assert done.returncode == status
    assert {name: (tmp_path / "run" / name).read_bytes() for name in tree(tmp_path / "run")} == before
    (other,) = (p for p in tmp_path.iterdir() if p.name.startswith("run.failed-"))
    assert run_record(other)["exit_status"] == (3 if status == 3 else 0)
    assert "run was left as it is" in done.stderr
    assert f"results in {other.name}" in done.stderr


def test_a_command_that_cannot_start_keeps_the_earlier_result(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    assert cli("profile", "-o", "run", "--", *workload, "1").returncode == 0
    assert cli("profile", "-o", "run", "--clobber", "--", "no-such-program").returncode == 127
    assert "iket_pid_1.pftrace" in tree(tmp_path / "run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "workload.py"]


def test_clobber_takes_an_empty_directory(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert cli("profile", "-o", "run", "--clobber", "--", *workload, "1").returncode == 0
    assert "iket_pid_1.pftrace" in tree(tmp_path / "run")


def test_clobber_leaves_other_peoples_directories(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "run.json").write_text('{"format": "something else"}')
    done = cli("profile", "-o", "thesis", "--clobber", "--", "touch", "ran")
    assert done.returncode == 2
    assert "thesis is not a result of warptrace" in done.stderr
    assert tree(tmp_path) == ["thesis/run.json"]


def test_a_file_is_no_directory(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    done = cli("profile", "-o", "file", "--clobber", "--", "true")
    assert done.returncode == 2
    assert "output file exists and is not a directory" in done.stderr
    assert (tmp_path / "file").read_text() == "text"


def test_a_link_is_followed_not_replaced(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    assert cli("profile", "-o", "real", "--", *workload, "1").returncode == 0
    (tmp_path / "link").symlink_to("real")
    assert cli("profile", "-o", "link", "--clobber", "--", *workload, "2").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert "iket_pid_2.pftrace" in tree(tmp_path / "real")


def test_a_directory_that_appears_meanwhile_is_left_alone(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--", "sh", "-c", f"mkdir run; echo mine > run/file; {' '.join(workload)} 1")
    assert done.returncode == 0
    assert tree(tmp_path / "run") == ["file"]
    (other,) = (p for p in tmp_path.iterdir() if p.name.startswith("run.new-"))
    assert "iket_pid_1.pftrace" in tree(other)


def test_the_result_appears_only_when_it_is_complete(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    done = cli("profile", "-o", "deep/run", "--", "sh", "-c", f"ls -A deep; {' '.join(workload)} 1")
    assert re.fullmatch(r"\.run\.partial-\d+\nworkload done\n", done.stdout)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["run"]


# ---------------------------------------------------------------------------------------------------------- signals
WAITS = """
import signal, sys, time
got = []
def on_signal(number, frame):
    got.append(signal.Signals(number).name)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), on_signal)
print("ready", flush=True)
deadline = time.monotonic() + 30
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)  # a second one would arrive by now
print(got, flush=True)
sys.exit(40)
"""


def start(tmp_path: Path, code: str, **keywords: Any) -> subprocess.Popen[str]:
    """The tool with a Python of ``code`` under it, once that says that it is ready."""
    words = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", *PLAIN, "-c", code]
    keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | keywords
    tool = subprocess.Popen(words, cwd=tmp_path, env=environment(), **keywords)
    if tool.stdout is not None:
        assert tool.stdout.readline() == "ready\n"
    return tool


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_to_us_reaches_the_command_once(tmp_path: Path, name: str) -> None:
    tool = start(tmp_path, WAITS)
    tool.send_signal(getattr(signal, name))
    out, err = tool.communicate(timeout=30)
    assert (out, tool.returncode) == (f"['{name}']\n", 40)
    assert run_record(tmp_path / "run")["exit_status"] == 40
    assert "Traceback" not in err


def test_a_signal_that_ends_the_command_does_not_end_us(tmp_path: Path) -> None:
    tool = start(tmp_path, "import time; print('ready', flush=True); time.sleep(30)")
    tool.send_signal(signal.SIGTERM)
    _, err = tool.communicate(timeout=30)
    assert tool.returncode == 128 + signal.SIGTERM
    assert run_record(tmp_path / "run")["exit_status"] == 128 + signal.SIGTERM
    assert "results in run" in err


def test_control_c_at_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    leader, follower = os.openpty()
    # setsid, then the terminal becomes the controlling one of the new session by being opened in it.
    code = (
        "import os, sys; os.setsid(); os.close(os.open(sys.argv[1], os.O_RDWR));"
        " os.execvp(sys.argv[2], sys.argv[2:])"
    )
    words = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", *PLAIN, "-c", WAITS]
    launcher = [sys.executable, "-c", code, os.ttyname(follower), *words]
    tool = subprocess.Popen(
        launcher, cwd=tmp_path, env=environment(), stdin=follower, stdout=subprocess.PIPE, stderr=follower, text=True
    )
    os.close(follower)
    try:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "ready\n"
        os.write(leader, b"\x03")
        out, _ = tool.communicate(timeout=30)
    finally:
        os.close(leader)
    assert (out, tool.returncode) == ("['SIGINT']\n", 40)


def test_a_process_that_outlives_the_command_is_waited_for(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    # The command ends at once; its background child has a capture folder and goes on writing for half a second.
    late = tmp_path / "late.sh"
    late.write_text('#!/bin/sh\nmkdir "$WARPTRACE_DIR/pid_$$"\nsleep 0.5\nrmdir "$WARPTRACE_DIR/pid_$$"\n')
    wait = 'while [ -z "$(ls "$WARPTRACE_DIR")" ]; do sleep 0.01; done'
    script = f"sh late.sh >/dev/null 2>&1 & {wait}; {' '.join(workload)} 1"
    before = time.monotonic()
    done = cli("profile", "-o", "run", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - before > 0.5
    assert run_record(tmp_path / "run")["captures"] == ["raw/pid_1"]
    assert "still running" not in done.stderr


def test_an_interrupt_during_post_processing_keeps_the_capture(
    workload: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setattr("warptrace.cli.profile.postprocess", interrupted)
    assert main(["profile", "-o", "run", "--no-keep", "--", *workload, "4242"]) == 130
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "warptrace: error: post-processing was interrupted",
        "warptrace: results in run",
        "warptrace: the raw capture is kept: warptrace postprocess run",
        "warptrace: interrupted",
    ]
    assert (tmp_path / "run" / "raw" / "pid_4242" / "manifest.json").exists()
    assert run_record(tmp_path / "run")["failures"] == ["post-processing was interrupted"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# ------------------------------------------------------------------------------------------------------------ debug
def test_faults_have_no_traceback_unless_asked_for(cli: Cli) -> None:
    quiet = cli("profile", "-o", "run", "--", "no-such-program")
    assert "Traceback" not in quiet.stderr
    loud = cli("profile", "-o", "run", "--", "no-such-program", WARPTRACE_DEBUG="1")
    assert "Traceback" in loud.stderr
    assert "WarptraceError: command not found: no-such-program" in loud.stderr


def test_a_closed_stderr_costs_no_result(workload: list[str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", *workload, "4242", "exit:6"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(words, cwd=tmp_path, env=environment(), stderr=writer, stdout=subprocess.PIPE, timeout=60)
    finally:
        os.close(writer)
    assert done.returncode == 6
    assert "iket_pid_4242.pftrace" in tree(tmp_path / "run")
