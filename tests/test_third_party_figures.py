"""What of benchmarks/third_party.py needs no GPU: command line, counts of a capture, table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

third_party: Any = pytest.importorskip("third_party", reason="this copy of the source has no benchmarks folder")


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    args = third_party.arguments(["--kernels", "gemm,softmax", "--modes", "off,waits"])
    assert (args.kernels, args.modes, args.rounds) == (["gemm", "softmax"], ["off", "waits"], 12)
    with pytest.raises(SystemExit):
        third_party.arguments(["--kernels", "gem"])
    assert "unknown gem; there are softmax, rmsnorm, gemm, " in capsys.readouterr().err


def test_every_mode_has_a_command(tmp_path: Path) -> None:
    args = third_party.arguments(["--kernels", "softmax", "--modes", ",".join(third_party.OPTIONS)])
    for mode, options in third_party.OPTIONS.items():
        words = third_party.command(mode, args, tmp_path)
        assert ("profile" in words) == (options is not None)
        assert set(options or ()) <= set(words)
        child = third_party.arguments(words[words.index(str(third_party.HERE)) + 1 :])
        assert (child.child, child.kernels, child.turns) == (tmp_path / f"{mode}.json", ["softmax"], tmp_path)
        assert (child.place, child.places) == (args.modes.index(mode), 5)


def test_a_capture_is_counted() -> None:
    import warptrace

    fixture = ROOT / "tests" / "fixtures" / "h200_gemm_512"
    (counts,) = third_party.recorded(fixture).values()
    trace = warptrace.load(fixture)
    assert counts == {"launches": len(trace.launches), "events": max(x.events for x in trace.launches), "lost_warps": 0}


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(third_party.importlib.util, "find_spec", lambda name: name == "quack" or None)
    assert third_party.installed(["softmax", "attention_fwd", "gemm"]) == ["softmax", "gemm"]
    assert capsys.readouterr().err == "attention_fwd: left out, flash_attn.cute is not installed\n"


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "off": {"errors": {"a": 0.25}, "times": {"a": [9.0, 10.0, 12.0]}, "failures": {"b": "no luck"}},
        "auto": {"errors": {"a": 0.5}, "times": {"a": [9.9, 11.5, 12.0]}, "failures": {}, "said": "/a/path"},
    }
    lines = third_party.table(found, ["a", "b"]).splitlines()
    assert lines == [
        "| kernel | off, us | auto, ratio | error |",
        "|---|---|---|---|",
        "| a | 10.0 (9.5 to 11.0) | 1.100 (1.050 to 1.125) | 0.50 |",
        "| b | FAILED off: no luck |",
    ]
    assert third_party.spread([2.0], 2) == "2.00 (2.00 to 2.00)"
    assert not third_party.right(found)
    found["off"]["failures"] = {}
    assert third_party.right(found)
    found["auto"]["errors"]["a"] = 1.01
    assert not third_party.right(found)


def test_results_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read back it gives the same table; what the processes said, with the paths of a machine, is not in it."""
    monkeypatch.setattr(third_party, "device", lambda: {"name": "NVIDIA H200", "driver": "1"})
    found = {
        mode: {"errors": {"a": 0.25}, "times": {"a": [9.0, 10.0]}, "failures": {}, "said": "/a/path"}
        for mode in ("off", "auto")
    }
    document = third_party.document(found, third_party.package_versions())
    assert "/a/path" not in json.dumps(document) and "nvidia-cutlass-dsl" in document["versions"]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    assert third_party.main(["--read", str(path)]) == 0
    assert capsys.readouterr().out == third_party.table(found, ["a"]) + "\n"


TAKES_TURNS = """
import sys, time
from pathlib import Path
sys.path.append(sys.argv[1])
from third_party import Turns
folder, place = Path(sys.argv[2]), int(sys.argv[3])
turns = Turns(folder, place, 3)
turns.wait_for_all()
for number in range(20):
    with turns.mine():
        with open(folder / "order", "a") as file:
            file.write(f"{number}:{place} ")
        if place == 1 and number == 7:
            time.sleep(0.05)
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TAKES_TURNS, str(ROOT / "benchmarks"), str(tmp_path)]
    processes = [subprocess.Popen([*words, str(place)]) for place in range(3)]
    (tmp_path / "go").touch()
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("ready-*"))) == 3
    assert (tmp_path / "order").read_text().split() == [f"{n}:{place}" for n in range(20) for place in range(3)]


def test_a_turn_is_passed_on_after_a_failure(tmp_path: Path) -> None:
    turns = third_party.Turns(tmp_path, 0, 2)
    with pytest.raises(ValueError), turns.mine():
        raise ValueError
    assert (tmp_path / "done-0").exists()
    (tmp_path / "done-1").touch()
    with turns.mine():
        assert not (tmp_path / "done-2").exists()
    assert (tmp_path / "done-2").exists()
