"""The trace of a kernel that had not ended, with a snapshot."""

from __future__ import annotations

from pathlib import Path

from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace import wire
from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.runtime import snapshot
from warptrace.runtime.calibrate import ClockPair
from warptrace.runtime.layout import Layout
from warptrace.trace import Trace

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
    device.launch(kernel, [stuck, done.exit(at=600)], block=(64, 1, 1), word=wire.stream_word(0x7F00))
    path = write_capture(folder / "pid_1", [FakeDevice(0, bank_bytes=1 << 16, slack=1 << 14)], [kernel], finish=False)
    pair = ClockPair(1, 2, EPOCH_NS + NOW_NS, 9.0, 9)
    facts = {"name": "", "uuid": "", "compute_capability": "9.0", "sm_count": 132, "clock_khz": 1_980_000,
             "driver": "", "buffer_bytes": 0}  # fmt: skip
    (taken,) = snapshot.take([snapshot.Source(4242, 0, path, Memory(device), facts, lambda: pair)], pause_s=0)
    assert taken.error is None
    return decode([read_capture(path)])
