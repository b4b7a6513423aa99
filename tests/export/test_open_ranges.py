"""Kernels that had not ended, in a Perfetto trace: what is open is drawn until the snapshot, and says so."""

from __future__ import annotations

from pathlib import Path

from hung_trace import NOW_NS, START_NS, hung
from trace_processor import TraceProcessor, needs_trace_processor

from warptrace.export.perfetto import write_perfetto

pytestmark = needs_trace_processor


def test_open_ranges_last_until_the_snapshot(tmp_path: Path) -> None:
    write_perfetto(hung(tmp_path), tmp_path / "x.pftrace")
    perfetto = TraceProcessor(tmp_path / "x.pftrace")
    assert perfetto.errors() == []
    rows = perfetto.query(
        "select name, dur, extract_arg(arg_set_id, 'debug.ended'), extract_arg(arg_set_id, 'debug.cycles') from slice "
        "where name in ('consume', 'full_wait', 'step') order by name, ts, dur"
    )
    long = NOW_NS - START_NS
    shown = [(name, int(dur) < 1000 or abs(int(dur) - long) < 2000, ended, cycles) for name, dur, ended, cycles in rows]
    assert shown == [
        ("consume", True, None, 202),
        ("consume", True, 0, None),
        ("full_wait", True, None, 100),
        ("full_wait", True, 0, None),
        ("step", True, 0, None),
    ]
    lives = perfetto.query("select dur from slice where name = 'Warp Life Time' order by dur")
    assert [abs(int(dur) - true) < 100 for (dur,), true in zip(lives, (303, long))] == [True, True]
    (kernel,) = perfetto.query("select dur from slice where name like 'kernel:%'")
    assert abs(int(kernel[0]) - long) < 100
