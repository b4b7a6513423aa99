"""Kernels that had not ended, in a Perfetto trace: what is open is drawn until the snapshot, and says so."""

from __future__ import annotations

from pathlib import Path

from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from trace_processor import TraceProcessor, needs_trace_processor

from warptrace.decode import decode
from warptrace.export.perfetto import write_perfetto
from warptrace.raw import read_capture
from warptrace.runtime import snapshot
from warptrace.runtime.calibrate import ClockPair
from warptrace.runtime.layout import Layout
from warptrace.trace import Trace

pytestmark = needs_trace_processor

NOW_NS = 3_000_000_000
START_NS = 1_000_000


class Memory:
    def __init__(self, device: FakeDevice) -> None:
        self.layout = Layout(bank_bytes=1 << 16, slack_bytes=1 << 14)
        self._bytes = device.memory

    def read(self, offset: int, nbytes: int):  # type: ignore[no-untyped-def]
        return self._bytes[offset : offset + nbytes].copy()


def hung(folder: Path) -> Trace:
    """Two warps: one has ended, the other waits in a push within a push, and has a token open."""
    kernel = FakeKernel("pipe")
    outer, wait, pop = kernel.push("consume"), kernel.push("full_wait"), kernel.pop()
    token = kernel.start("step")
    device = FakeDevice(0, bank_bytes=1 << 16, slack=1 << 14)
    stuck = FakeWarp(warp=0, sm=1, start_ns=START_NS)
    for site, at in ((outer, 198), (token, 300), (wait, 400), (pop, 500), (wait, 1980)):
        stuck.event(site, at=at)
    done = FakeWarp(warp=1, sm=1, start_ns=START_NS)
    done.event(outer, at=198)
    done.event(pop, at=400)
    device.launch(kernel, [stuck, done.exit(at=600)], block=(64, 1, 1))
    path = write_capture(folder / "pid_1", [FakeDevice(0, bank_bytes=1 << 16, slack=1 << 14)], [kernel], finish=False)
    pair = ClockPair(1, 2, EPOCH_NS + NOW_NS, 9.0, 9)
    facts = {"name": "", "uuid": "", "compute_capability": "9.0", "sm_count": 132, "clock_khz": 1_980_000,
             "driver": "", "buffer_bytes": 0}  # fmt: skip
    (taken,) = snapshot.take([snapshot.Source(4242, 0, path, Memory(device), facts, lambda: pair)], pause_s=0)
    assert taken.error is None
    return decode([read_capture(path)])


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
