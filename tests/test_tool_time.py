"""What of benchmarks/tool_time.py needs no GPU: its commands, sizes and counts of real outputs, its results file."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import warptrace
from warptrace.export import write_iket_json

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "h200_gemm_512"
sys.path.append(str(ROOT / "benchmarks"))

tool_time: Any = pytest.importorskip("tool_time", reason="this copy of the source has no benchmarks folder")


def test_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the outputs of a real capture in place of a profiler's run."""
    commands = []

    def run(api: str, options: Sequence[str], words: Sequence[str], *, seconds: float) -> None:
        commands.append((api, [*options], [Path(words[0]).name, *words[1:]]))
        if api == "reference":
            raise RuntimeError("it broke")
        output = Path(options[options.index("-o") + 1])
        shutil.copytree(FIXTURE / "raw", output / "raw")
        trace = warptrace.load(output)
        write_iket_json(trace, output / "iket_pid_912.trace.json")

    monkeypatch.setattr(tool_time.profilers, "run", run)
    monkeypatch.setattr(tool_time, "plain", lambda folder, launches: 1.5)
    monkeypatch.setattr(tool_time, "has_reference", lambda: True)
    monkeypatch.setattr(tool_time, "device", lambda: {"name": "Some GPU", "driver": "580.1"})
    monkeypatch.setattr(tool_time, "CHUNK", 1000)
    path = tmp_path / "out.json"
    assert tool_time.main(["--launches", "2", "--json", str(path)]) == 1
    data = json.loads(path.read_text())
    assert data["failures"] == {"reference": "it broke"}
    trace = warptrace.load(FIXTURE)
    ours = data["figures"]["ours"]
    assert ours["records"] == len(trace.ranges) + len(trace.markers)
    assert set(ours["bytes"]) == {"json", "jsonl", "wtraw"}
    assert ours["compressed"]["bytes"]["gz"] < ours["bytes"]["json"] / 5
    assert data["plain_seconds"] == 1.5
    for api, options, words in commands:
        assert words == [f"hopper_gemm_{api}.py", "--launches", "2"]
        assert options[2:] == ["--clobber", "profile", "--postprocess", "all"]
    shown = capsys.readouterr()
    assert f"ours: {ours['seconds']} s, {ours['records']} records" in shown.out
    assert "ours, JSON compressed: " in shown.out and shown.err == "error: reference: it broke\n"


def test_what_is_known_is_there_when_time_runs_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tool_time.profilers, "run", run)
    monkeypatch.setattr(tool_time, "plain", lambda folder, launches: 1.5)
    monkeypatch.setattr(tool_time, "device", lambda: {"name": "Some GPU", "driver": "580.1"})
    path = tmp_path / "out.json"
    with pytest.raises(KeyboardInterrupt):
        tool_time.main(["--json", str(path)])
    assert json.loads(path.read_text())["plain_seconds"] == 1.5
