"""``warptrace postprocess``, ``warptrace dump`` and ``warptrace.load`` on what a run left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, environment

import warptrace
import warptrace.decode
from warptrace.cli._postprocess import plan_outputs, postprocess


def files(folder: Path) -> list[str]:
    """The files of a folder, without its raw capture."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "raw" not in p.parts)


def test_outputs_in_the_run_directory(cli: Cli, run_dir: Path) -> None:
    assert files(run_dir) == ["run.json"]
    done = cli("postprocess", "run")
    assert done.returncode == 0, done.stderr
    assert files(run_dir) == ["iket_pid_4242.html", "iket_pid_4242.pftrace", "iket_pid_4242.trace.json", "run.json"]
    record = json.loads((run_dir / "run.json").read_text())
    assert record["outputs"] == ["iket_pid_4242.html", "iket_pid_4242.pftrace", "iket_pid_4242.trace.json"]
    assert record["exit_status"] == 0
    # The summary is the result here, so it is on stdout.
    assert "pid 4242: 1 launch recorded" in done.stdout
    assert "demo" in done.stdout
    assert "wrote run/iket_pid_4242.pftrace\n" in done.stderr


def test_outputs_are_those_of_profile(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    cli("profile", "-o", "run", "--postprocess", "all", "--", *workload, "4242")
    first = {name: (tmp_path / "run" / name).read_bytes() for name in files(tmp_path / "run") if name != "run.json"}
    assert len(first) == 3
    for name in first:
        (tmp_path / "run" / name).unlink()
    assert cli("postprocess", "run").returncode == 0
    assert {name: (tmp_path / "run" / name).read_bytes() for name in first} == first


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["--format", "perfetto"], ["iket_pid_4242.pftrace"]),
        (["--format", "json"], ["iket_pid_4242.trace.json"]),
        (["--format", "json", "--json-gz"], ["iket_pid_4242.trace.json.gz"]),
        (["--format", "html"], ["iket_pid_4242.html"]),
        (["--format=all"], ["iket_pid_4242.html", "iket_pid_4242.pftrace", "iket_pid_4242.trace.json"]),
    ],
)
def test_formats(cli: Cli, run_dir: Path, words: list[str], made: list[str]) -> None:
    assert cli("postprocess", "run", *words, "-o", "new").returncode == 0
    assert files(run_dir.parent / "new") == [*made, "run.json"]
    assert files(run_dir) == ["run.json"]


def test_options_before_the_verb(cli: Cli, run_dir: Path) -> None:
    assert cli("-o", "new", "--json-gz", "postprocess", "--format", "json", str(run_dir)).returncode == 0
    assert files(run_dir.parent / "new") == ["iket_pid_4242.trace.json.gz", "run.json"]


def test_one_capture_of_a_run(cli: Cli, run_dir: Path) -> None:
    assert cli("postprocess", "run/raw/pid_4242", "--format", "json").returncode == 0
    assert files(run_dir) == ["iket_pid_4242.trace.json", "run.json"]


def test_a_capture_by_itself(cli: Cli, run_dir: Path) -> None:
    alone = run_dir.parent / "elsewhere" / "pid_4242"
    shutil.copytree(run_dir / "raw" / "pid_4242", alone)
    assert cli("postprocess", str(alone), "--format", "json").returncode == 0
    assert (alone / "iket_pid_4242.trace.json").exists()


def test_an_existing_directory_is_left_alone(cli: Cli, run_dir: Path) -> None:
    (run_dir.parent / "new").mkdir()
    done = cli("postprocess", "run", "-o", "new")
    assert done.returncode == 2
    assert "output directory new exists: add --clobber" in done.stderr
    assert cli("postprocess", "run", "-o", "new", "--clobber").returncode == 0
    assert cli("postprocess", "run", "-o", "new", "--clobber", "--format", "json").returncode == 0
    assert files(run_dir.parent / "new") == ["iket_pid_4242.trace.json", "run.json"]


def test_the_run_directory_as_output_is_the_run_directory(cli: Cli, run_dir: Path) -> None:
    assert cli("postprocess", "run", "-o", "run", "--clobber", "--format", "json").returncode == 0
    assert files(run_dir) == ["iket_pid_4242.trace.json", "run.json"]
    assert (run_dir / "raw" / "pid_4242" / "manifest.json").exists()


@pytest.mark.parametrize("target", [".", "run/raw"])
def test_no_output_over_the_raw_capture(cli: Cli, run_dir: Path, target: str) -> None:
    done = cli("postprocess", "run", "-o", target, "--clobber")
    assert done.returncode == 2
    assert done.stderr == f"warptrace: error: -o {target} holds the raw capture itself: choose a folder outside it\n"
    assert (run_dir / "raw" / "pid_4242" / "manifest.json").exists()


def test_a_failure_keeps_the_earlier_outputs(cli: Cli, run_dir: Path) -> None:
    assert cli("postprocess", "run", "--format", "json").returncode == 0
    before = (run_dir / "iket_pid_4242.trace.json").read_bytes()
    manifest = run_dir / "raw" / "pid_4242" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 99}))
    done = cli("postprocess", "run", "--format", "json")
    assert done.returncode == 1
    assert "has capture version 99" in done.stderr
    assert (run_dir / "iket_pid_4242.trace.json").read_bytes() == before
    assert files(run_dir) == ["iket_pid_4242.trace.json", "run.json"]


def test_a_fault_of_ours_in_one_capture_does_not_stop_the_others(
    cli: Cli, workload: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("profile", "-o", "run", "--postprocess", "none", "--", *workload, "1", "2").returncode == 0
    real = warptrace.decode.decode

    def decode(captures: list[Any], **options: Any) -> Any:
        if captures[0].manifest["pid"] == 1:
            raise IndexError("out of bounds")
        return real(captures, **options)

    monkeypatch.setattr(warptrace.decode, "decode", decode)
    plan = plan_outputs("json", json_gz=False, payload_in_name=False)
    result = postprocess([tmp_path / "run" / "raw" / f"pid_{pid}" for pid in (1, 2)], tmp_path / "run", plan)
    assert result.outputs == ["iket_pid_2.trace.json"]
    fault = "a fault of warptrace itself: IndexError: out of bounds (WARPTRACE_DEBUG=1 shows where)"
    assert result.failures == [f"2 processes together: {fault}", f"pid_1: {fault}"]
    assert files(tmp_path / "run") == ["iket_pid_2.trace.json", "run.json"]


@pytest.mark.parametrize("verb", ["postprocess", "dump"])
@pytest.mark.parametrize("path", ["missing", "."])
def test_what_is_no_run_directory(cli: Cli, verb: str, path: str) -> None:
    done = cli(verb, path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"warptrace: error: {path} holds no capture")
    assert done.stderr.count("\n") == 1


def test_a_run_that_recorded_nothing(cli: Cli, tmp_path: Path) -> None:
    assert cli("profile", "-o", "run", "--", "true").returncode == 0
    reason = "warptrace: warning: nothing was recorded: no Python process started with the tracer"
    again = cli("postprocess", "run")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.splitlines()[-1].startswith(reason)
    printed = cli("dump", "run")
    assert (printed.returncode, printed.stdout) == (0, "")
    assert printed.stderr.startswith(reason)
    with pytest.raises(warptrace.CaptureError, match="holds no capture"):
        warptrace.load(tmp_path / "run")


def test_dump_is_one_record_a_line(cli: Cli, run_dir: Path) -> None:
    done = cli("dump", str(run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [line.split()[0] for line in done.stdout.splitlines()]
    assert kinds[0] == "capture"
    counts = {kind: kinds.count(kind) for kind in ("kernel", "site", "region", "slot", "lost", "problem")}
    assert counts == {"kernel": 1, "site": 3, "region": 2, "slot": 6, "lost": 0, "problem": 0}


def test_dump_into_a_closed_pipe(run_dir: Path) -> None:
    line = f"'{sys.executable}' -m warptrace dump '{run_dir}' | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("capture")


def test_postprocess_into_a_closed_pipe(run_dir: Path) -> None:
    line = f"'{sys.executable}' -m warptrace postprocess '{run_dir}' | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert files(run_dir) == ["iket_pid_4242.html", "iket_pid_4242.pftrace", "iket_pid_4242.trace.json", "run.json"]


def test_load(run_dir: Path) -> None:
    trace = warptrace.load(run_dir)
    assert [launch.kernel for launch in trace.launches] == ["demo"]
    assert [trace.strings[i] for i in trace.ranges.name] == ["load", "load"]
    assert [trace.strings[i] for i in trace.markers.name] == ["tick", "tick"]
    assert warptrace.load(os.fspath(run_dir / "raw" / "pid_4242")).launches == trace.launches


def test_load_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(warptrace.CaptureError, match="holds no capture"):
        warptrace.load(tmp_path)


def test_flows_are_arrows_and_checked_first(cli: Cli, run_dir: Path) -> None:
    before = cli("postprocess", "run", "--format", "perfetto")
    assert before.returncode == 0
    (trace,) = run_dir.glob("*.pftrace")
    without = trace.stat().st_size
    done = cli("postprocess", "run", "--format", "perfetto", "--flow", "load:load")
    assert (done.returncode, trace.stat().st_size > without) == (0, False)  # no payloads: nothing is fed
    done = cli("postprocess", "run", "--format", "perfetto", "--flow", "load:load:order")
    assert (done.returncode, trace.stat().st_size > without) == (0, True)
    done = cli("postprocess", "run", "--flow", "load")
    assert done.returncode == 2 and "flow 'load' is not SOURCE:TARGET" in done.stderr


# ------------------------------------------------------------------------------------- outputs at the same time
FILES = ["iket_pid_4242.pftrace", "iket_pid_4242.trace.json", "iket_pid_4242.html"]


def written(run_dir: Path, folder: Path, cores: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, bytes]]:
    """What became of all outputs on a machine of so many cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    folder.mkdir()
    result = postprocess([run_dir / "raw" / "pid_4242"], folder, plan_outputs("all", False, False))
    return result, {path.name: path.read_bytes() for path in folder.iterdir()}


def test_outputs_are_the_same_where_they_are_made_at_once(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, first = written(run_dir, tmp_path / "one", 2, monkeypatch)
    all_, second = written(run_dir, tmp_path / "all", 64, monkeypatch)
    assert one.outputs == all_.outputs == FILES
    assert first == second and sorted(first) == sorted(FILES)


@pytest.mark.parametrize("cores", [2, 64])
def test_an_output_that_fails_leaves_the_others(
    run_dir: Path, tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise warptrace.WarptraceError("no space left")

    monkeypatch.setattr("warptrace.export.iket_json.write_iket_json", failing)
    result, made = written(run_dir, tmp_path / "out", cores, monkeypatch)
    assert result.outputs == [FILES[0], FILES[2]] == sorted(made, reverse=True)
    assert result.failures == [f"{FILES[1]}: no space left"]


@pytest.mark.parametrize("cores", [2, 64])
def test_an_interrupt_ends_all_of_them(
    run_dir: Path, tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are being written end at their next sign of progress, and nothing of them is left."""
    ended = threading.Event()

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    def endless(trace: object, path: Path, *, progress: Any, **kwargs: object) -> None:
        try:
            while True:
                progress(0, 1)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr("warptrace.export.perfetto.write_perfetto", interrupted)
    monkeypatch.setattr("warptrace.export.html.write_html", endless)
    with pytest.raises(KeyboardInterrupt):
        written(run_dir, tmp_path / "out", cores, monkeypatch)
    assert list((tmp_path / "out").iterdir()) == []
    assert ended.is_set() == (cores > 2)
