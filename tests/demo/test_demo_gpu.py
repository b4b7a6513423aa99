"""``warptrace demo`` on a GPU: the same kernel, its result and its events, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo_runs import run_demo

import warptrace
from warptrace.cli.demo import count_events
from warptrace.demo.problem import EXPECTED_EVENTS

pytestmark = pytest.mark.gpu


def test_demo_on_a_gpu(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "-o", "out")
    assert done.status == 0, done.stderr
    assert "emulated" not in done.stderr
    assert done.stdout.endswith("correct\n")
    trace = warptrace.load(tmp_path / "out")
    assert not trace.emulated
    assert [launch.lost_events + launch.lost_warps for launch in trace.launches] == [0, 0]
    assert count_events(trace) == {name: 2 * n for name, n in EXPECTED_EVENTS.items()}
    assert len(list((tmp_path / "out").glob("iket_pid_*.pftrace"))) == 1
    print(f"warptrace demo took {done.seconds:.1f} s")
