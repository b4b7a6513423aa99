"""What of benchmarks/third_party.py needs no GPU: command line, counts of a capture, table."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
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


class FakeCuda:
    """torch.cuda of a device that waits as it is told, and takes ``device_us``; a call takes the host ``host_us``."""

    def __init__(self, host_us: list[float], device_us: float) -> None:
        self.calls = iter(host_us)
        self.device_us = device_us
        self.now = self.free = 0.0
        self.waits: list[int] = []

    def _sleep(self, cycles: int) -> None:
        self.waits.append(cycles)
        self.free = max(self.free, self.now) + cycles / 2000

    def Event(self, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def launch(self) -> None:
        self.now += next(self.calls)
        self.free = max(self.free, self.now) + self.device_us


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def record(self) -> None:
        self.at = max(self.cuda.free, self.cuda.now)

    def query(self) -> bool:
        return self.at <= self.cuda.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) / 1e3


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Any:
    def take(host_us: list[float], rounds: int) -> tuple[Any, list[int]]:
        cuda = FakeCuda(host_us, device_us=200.0)
        clock = SimpleNamespace(perf_counter=lambda: cuda.now / 1e6, process_time=lambda: cuda.now / 2e6)
        clock.sleep = lambda seconds: None
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(third_party, "time", clock)
        made = third_party.Timings()
        for _ in range(rounds):
            made.take(cuda.launch, third_party.Collections())
        return made, cuda.waits

    return take


def test_the_device_waits_for_the_host(timings: Any) -> None:
    """5 ms, else 50: a launch that the host was too slow for has the host's time in it, and is taken again."""
    short, long = third_party.WAIT_CYCLES[:2]
    made, waits = timings([800.0, 18_000.0, 900.0, 700.0], rounds=3)
    assert waits == [short, short, long, short]
    found = [(round(sample.us), round(sample.host_us), round(sample.cpu_us)) for sample in made.counted]
    assert found == [(200, 800, 400), (200, 900, 450), (200, 700, 350)]
    (late,) = made.late
    assert (round(late.us), round(late.host_us), late.late) == (13_200, 18_000, True)
    assert not any(sample.late for sample in made.counted)


def test_a_host_that_is_always_too_slow_is_counted_and_told(timings: Any) -> None:
    made, waits = timings([60_000.0] * 3, rounds=1)
    assert (waits, len(made.late)) == (list(third_party.WAIT_CYCLES), 3)
    assert made.counted == made.late[-1:] and round(made.counted[0].us) == 10_200


def test_time_of_collections_is_known() -> None:
    collections = third_party.Collections().watch()
    try:
        assert collections.seconds == 0
        begin = time.perf_counter()
        gc.collect()
        assert 0 < collections.seconds < time.perf_counter() - begin
    finally:
        gc.callbacks.remove(collections._told)


def test_what_stands_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {"us": 13_164.0, "host_us": 18_100.0, "cpu_us": 17_900.0, "gc_us": 6_000.0, "late": True}
    modes: dict[str, Any] = {
        "off": {"errors": {"a": 0.5}, "times": {"a": [9.0, 10.0]}, "failures": {}},
        "auto": {
            "errors": {"a": 0.5}, "times": {"a": [10.0, 11.0, 30.0]}, "failures": {},
            "host": {"a": [500.0, 600.0, 700.0]}, "late": {"a": [late]},
        },
    }  # fmt: skip
    lines = [
        "auto: a: a call took the host 600 (550 to 650) us, 700 at most",
        "auto: a: too late, taken again: 13164 us; of the host's 18100 us 6000 collecting garbage, "
        "the process had 17900 us of processors",
        "auto: a: 30 us where the median is 11; host 700 us",
    ]
    assert third_party.host_side(modes, ["a", "b"]) == lines
    modes["auto"]["times"]["a"][2] = 13_164.0
    assert "too late, counted: 13164 us" in third_party.host_side(modes, ["a"])[1]
    modes["off"]["times"]["a"].append(9.5)
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"modes": modes}))
    assert third_party.main(["--read", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[3:] == third_party.host_side(modes, ["a"])


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
