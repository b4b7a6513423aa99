"""examples/deadlock.py on the emulator: its trace memory at the deadlock is the snapshot of a kernel that hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.report.hang import HangReport, hang_report
from warptrace.trace import Trace

pytest.importorskip("cutlass")
pytestmark = pytest.mark.dsl

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "examples"))


def run(folder: Path, *, fixed: bool) -> tuple[Trace, bool]:
    """(the trace of one launch, whether it ended with the right sums)."""
    import deadlock

    from warptrace.cute import tracing
    from warptrace.emulator import Deadlock
    from warptrace.emulator.cute import compile_kernel
    from warptrace.runtime import snapshot
    from warptrace.runtime.emulated import EmulatedRecording

    with tracing():
        kernel = compile_kernel(deadlock.launch, deadlock.pointer(0), deadlock.pointer(0), fixed)
    recording = EmulatedRecording(folder)
    tiles = (deadlock.BLOCKS, deadlock.TILES, 32)
    source = np.random.default_rng(1).integers(1, 100, tiles).astype(np.int32)
    source[1::2, deadlock.EMPTY_TILE] = 0
    sums = np.zeros((deadlock.BLOCKS, deadlock.CONSUMERS, 32), np.int32)
    arrays = recording.device.alloc(source), recording.device.alloc(sums)
    right = False
    try:
        recording.launch(kernel, list(arrays))
        right = bool((arrays[1].read() == source.sum(axis=1)[:, None]).all())
        recording.finish()
    except Deadlock:
        facts = recording.memory.describe()
        where = snapshot.Source(1, 0, folder, recording.memory, facts, lambda: None)
        (taken,) = snapshot.take([where], pause_s=0)
        assert (taken.regions, taken.open, taken.moved, taken.error) == (20, 10, 0, None)
    return decode([read_capture(folder)]), right


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> HangReport:
    trace, right = run(tmp_path_factory.mktemp("hang") / "pid_1", fixed=False)
    assert not right
    assert [p.kind for p in trace.problems if p.kind.startswith("unpaired")] == [], "nothing is wrong with open ranges"
    found = hang_report(trace)
    assert found is not None
    return found


def test_the_report_names_both_sides_of_the_deadlock(report: HangReport) -> None:
    (launch,) = report.launches
    assert (launch.expected, launch.ended, launch.running, launch.missing, launch.lost) == (20, 10, 10, 0, 0)
    consumers, producer = launch.groups
    assert (consumers.role, consumers.warps, consumers.warps_in_cta) == ("consume", 8, (1, 2, 3, 4))
    assert (producer.role, producer.warps, producer.warps_in_cta) == ("produce", 2, (0,))
    for group, wait in ((consumers, "full_wait"), (producer, "free_wait")):
        assert group.ctas == ((1, 0, 0), (3, 0, 0))
        assert [f.name for f in group.stack] == [group.role, wait]
        assert [f.payloads for f in group.stack] == [("",), ("10",)]
        assert all(f.file.endswith("deadlock.py") for f in group.stack)
        assert group.last == f"begin of {wait}"
        assert group.stack[0].least_ns > group.stack[1].most_ns >= group.least_silent_ns
    assert [(e.what, e.name, e.payload) for e in producer.recent] == [
        ("begin", "free_wait", "9"),
        ("end", "free_wait", ""),
        ("begin", "fill", "9"),
        ("end", "fill", ""),
        ("begin", "free_wait", "10"),
    ]


def test_the_report_in_sentences(report: HangReport) -> None:
    first, second = report.findings
    assert "8 consume warps of CTAs (1,0,0), (3,0,0) are in `full_wait` (payload 10) (deadlock.py:" in first
    assert "2 produce warps of CTAs (1,0,0), (3,0,0) are in `free_wait` (payload 10) (deadlock.py:" in second
    text = report.text()
    assert "  20 warps: 10 running, 10 ended\n" in text
    assert "  8 x consume (warps 1-4 of CTAs (1,0,0), (3,0,0))\n" in text
    assert "0 of the 10 running warps recorded an event during the " in text


def test_the_report_as_json(report: HangReport) -> None:
    data: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    (launch,) = data["launches"]
    assert len(launch["warps"]) == 10
    first = launch["warps"][0]
    assert (first["cta"], first["warp"], first["role"], first["group"]) == ([1, 0, 0], 0, "produce", 1)
    assert [(name, payload) for name, payload, _ in first["ranges"]] == [("produce", ""), ("free_wait", "10")]


def test_the_mended_pipeline_ends(tmp_path: Path) -> None:
    trace, right = run(tmp_path / "pid_1", fixed=True)
    assert right
    assert hang_report(trace) is None
    assert len(trace.open) == 0
