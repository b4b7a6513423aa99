"""What of benchmarks/third_party.py needs no GPU: command line, counts of a capture, table."""

from __future__ import annotations

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
    args = third_party.arguments(["--kernels", "softmax"])
    for mode, options in third_party.OPTIONS.items():
        words = third_party.command(mode, args, tmp_path)
        assert ("profile" in words) == (options is not None)
        assert set(options or ()) <= set(words)
        child = third_party.arguments(words[words.index(str(third_party.HERE)) + 1 :])
        assert (child.child, child.kernels, child.turns) == (tmp_path / f"{mode}.json", ["softmax"], tmp_path)


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


def test_table() -> None:
    found = {
        "off": {"errors": {"a": 0.25}, "times": {"a": [9.0, 10.0, 12.0]}, "failures": {"b": "no luck"}},
        "auto": {"errors": {"a": 0.5}, "times": {"a": [10.0, 11.0, 15.0]}, "failures": {}},
    }
    lines = third_party.table(found, ["a", "b"]).splitlines()
    assert lines[1].split() == ["a", "0.50", "10.0", "1.100"]
    assert lines[2].split() == ["b", "FAILED", "off:", "no", "luck"]
    assert not third_party.right(found)
    found["off"]["failures"] = {}
    assert third_party.right(found)
    found["auto"]["errors"]["a"] = 1.01
    assert not third_party.right(found)
