"""What of benchmarks/event_cost.py needs no GPU: its command line, its child's command, its table and its figures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

event_cost: Any = pytest.importorskip("event_cost", reason="this copy of the source has no benchmarks folder")

# Stands for a profiler: runs nothing, writes what a child would, and what it was told.
PROFILER = """
import json, os, sys
words = sys.argv[1:]
told = {"words": words, "api": os.environ["BENCHMARK_API"], "on": "WARPTRACE" in os.environ}
path = words[words.index("--child") + 1]
if "--fail" not in words:
    open(path, "w").write(json.dumps(told))
sys.exit(3 if "--fail" in words else 0)
"""


def test_arguments() -> None:
    args = event_cost.arguments([])
    assert (args.iterations, args.repeats, args.warps) == (100, 5, [1, 4, 8, 16])
    assert args.modes[:6] == ["mark", "mark_i32", "mark_i64", "push_pop", "push_i32_pop", "start_end"]
    assert args.modes[6:] == ["work", "work_mark", "push_work_pop", "push_i32_work_pop", "start_work_end"]
    args = event_cost.arguments(["--warps", "2,32", "--modes", "mark,start_end"])
    assert (args.warps, args.modes) == ([2, 32], ["mark", "start_end"])


@pytest.mark.parametrize("words", [["--warps", "0"], ["--warps", "33"], ["--modes", "mark,pop"]])
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        event_cost.arguments(words)
    assert "error: argument" in capsys.readouterr().err


def test_figures() -> None:
    found = event_cost.figures({"mark/4": [40.0, 37.126, 39.0]})
    assert found == {"mark/4": {"median": 39.0, "min": 37.13, "max": 40.0}}


def test_table_of_both() -> None:
    found: dict[str, dict[str, Any]] = {
        "ours": {"mark/1": {"median": 30.0}, "mark/4": {"median": 33.0}},
        "reference": {"mark/1": {"median": 40.0}, "mark/4": {"median": 44.0}},
    }
    assert event_cost.table(found, ["mark"], [1, 4]).splitlines() == [
        "cycles an iteration, ours / reference",
        "warps an SM                         1                     4",
        "mark               30.0 / 40.0 (0.75)    33.0 / 44.0 (0.75)",
    ]


def test_table_of_the_newest_beside_the_first() -> None:
    found: dict[str, dict[str, Any]] = {"ours": {"mark/4": {"median": 32.0}}, "last": {"mark/4": {"median": 34.0}}}
    assert event_cost.table(found, ["mark"], [4], event_cost.LAST, event_cost.OURS).splitlines() == [
        "cycles an iteration, last / ours",
        "warps an SM                         4",
        "mark               34.0 / 32.0 (1.06)",
    ]


def test_table_of_ours_alone() -> None:
    found: dict[str, dict[str, Any]] = {"ours": {"mark/8": {"median": 51.25}}}
    assert event_cost.table(found, ["mark"], [8]).splitlines() == [
        "cycles an iteration, ours",
        "warps an SM             8",
        "mark                 51.2",
    ]


@pytest.mark.parametrize("api", ["ours", "reference"])
def test_the_child_runs_under_the_profiler(api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(event_cost.profilers.CLI, api, [sys.executable, "-c", PROFILER])
    monkeypatch.setenv("WARPTRACE", "1")
    args = event_cost.arguments(["--iterations", "50", "--warps", "4", "--modes", "mark"])
    told = event_cost.profiled(api, args, tmp_path)
    assert (told["api"], told["on"]) == (api, False)
    script = str(Path(event_cost.__file__).resolve())
    assert told["words"] == [
        "-o", str(tmp_path / api), "--clobber", "profile", "--postprocess", "none", "--max-ts-cnt-per-warp", "164",
        "--", sys.executable, script, "--child", str(tmp_path / f"{api}.json"),
        "--iterations", "50", "--repeats", "5", "--warps", "4", "--modes", "mark",
    ]  # fmt: skip


def test_the_newest_are_measured_under_their_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(event_cost.profilers.CLI, "ours", [sys.executable, "-c", PROFILER])
    told = event_cost.profiled(event_cost.LAST, event_cost.arguments(["--last"]), tmp_path)
    words = told["words"]
    assert told["api"] == "ours"
    assert words[words.index("--keep-events") + 1] == "last"
    assert words.index("--keep-events") < words.index("--")


def test_a_child_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(event_cost.profilers.CLI, "ours", [sys.executable, "-c", PROFILER, "--fail"])
    with pytest.raises(RuntimeError, match="ours: exit status 3"):
        event_cost.profiled("ours", event_cost.arguments([]), tmp_path)


def test_main_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(event_cost.profilers.CLI, "ours", [sys.executable, "-c", PROFILER, "--fail"])
    path = tmp_path / "out.json"
    assert event_cost.main(["--no-reference", "--json", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: ours: exit status 3\n")
    assert not path.exists()


def test_results_of_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the children's samples to the file and the table."""

    def profiled(api: str, args: Any, folder: Path) -> dict[str, Any]:
        cost = {"ours": 30.0, "reference": 40.0}[api]
        names = [event_cost.key(mode, count) for mode in args.modes for count in args.warps]
        samples = {name: [cost, cost + 1, cost + 2] for name in names}
        return {"samples": samples, "blocks": 132, "versions": {"torch": "2.11"}}

    monkeypatch.setattr(event_cost, "profiled", profiled)
    monkeypatch.setattr(event_cost, "check_recorded", lambda *args: None)
    monkeypatch.setattr(event_cost, "device", lambda: {"name": "Some GPU", "driver": "580.1"})
    monkeypatch.setattr(event_cost, "has_reference", lambda: True)
    path = tmp_path / "made" / "out.json"
    assert event_cost.main(["--warps", "1", "--modes", "mark", "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert data["figures"] == {
        "ours": {"mark/1": {"median": 31.0, "min": 30.0, "max": 32.0}},
        "reference": {"mark/1": {"median": 41.0, "min": 40.0, "max": 42.0}},
    }
    assert (data["device"], data["blocks"]) == ({"name": "Some GPU", "driver": "580.1"}, 132)
    assert {"warptrace", "python", "torch"} == set(data["versions"])
    assert "31.0 / 41.0 (0.76)" in capsys.readouterr().out


def test_a_reference_that_fails_leaves_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def profiled(api: str, args: Any, folder: Path) -> dict[str, Any]:
        if api == "reference":
            raise RuntimeError("reference: exit status 9")
        return {"samples": {"mark/1": [30.0]}, "blocks": 132, "versions": {}}

    monkeypatch.setattr(event_cost, "profiled", profiled)
    monkeypatch.setattr(event_cost, "check_recorded", lambda *args: None)
    monkeypatch.setattr(event_cost, "device", lambda: {"name": "Some GPU", "driver": "580.1"})
    monkeypatch.setattr(event_cost, "has_reference", lambda: True)
    path = tmp_path / "out.json"
    assert event_cost.main(["--warps", "1", "--modes", "mark", "--json", str(path)]) == 1
    data = json.loads(path.read_text())
    assert (list(data["figures"]), data["reference_failed"]) == (["ours"], "reference: exit status 9")
    shown = capsys.readouterr()
    assert shown.err == "error: reference: exit status 9\n"
    assert "mark                 30.0" in shown.out


def test_events_that_are_missing_void_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from types import SimpleNamespace

    import warptrace

    args = event_cost.arguments(["--iterations", "10", "--repeats", "1", "--warps", "2", "--modes", "mark,push_pop"])
    wanted = (1 + 10 + 1 + 20) * 3 * 2 * 2
    launch = SimpleNamespace(events=wanted)
    monkeypatch.setattr(warptrace, "load", lambda folder: SimpleNamespace(launches=[launch], problems=[]))
    event_cost.check_recorded(tmp_path, args, 3)
    launch.events -= 1
    with pytest.raises(RuntimeError, match=f"{wanted - 1} of {wanted} events recorded, 0 lost"):
        event_cost.check_recorded(tmp_path, args, 3)


def test_it_needs_no_dsl_to_be_imported() -> None:
    code = "import sys, event_cost; sys.exit('cutlass' in sys.modules or 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(event_cost.__file__).parent)}
    assert event_cost.subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
