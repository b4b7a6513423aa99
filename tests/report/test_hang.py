"""Reports of kernels that had not ended, from a device that is known to the last event."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.report.hang import HangReport, hang_report
from warptrace.runtime import snapshot
from warptrace.runtime.layout import Layout
from warptrace.trace import Trace
from warptrace.wire import PayloadType

LAYOUT = Layout(bank_bytes=1 << 16, slack_bytes=1 << 14)
NOW_NS = 3_000_000_000
FACTS = {"name": "Fake GPU", "uuid": "GPU-0", "compute_capability": "9.0", "sm_count": 132, "clock_khz": 1_980_000,
         "driver": "", "buffer_bytes": 0}  # fmt: skip


class Kernel(FakeKernel):
    def __init__(self) -> None:
        super().__init__("pipe")
        self.outer = self.push("consume", line=1)
        self.wait = self.push("full_wait", PayloadType.I32, line=2)
        self.popped = self.pop()
        self.token = self.start("copy", line=4)
        self.ended = self.end("copy")
        self.tick = self.mark("tick", PayloadType.I32)


class Memory:
    """The device's memory as the snapshot process sees it."""

    def __init__(self, device: FakeDevice) -> None:
        self.layout = LAYOUT
        self._bytes = device.memory

    def read(self, offset: int, nbytes: int):  # type: ignore[no-untyped-def]
        return self._bytes[offset : offset + nbytes].copy()


def snap(
    folder: Path, device: FakeDevice, kernel: FakeKernel, *, clock: bool = True, drained: bool = False
) -> tuple[Trace, HangReport | None]:
    """A capture of the process with, and but for ``drained`` only with, a snapshot at NOW_NS."""
    taken_from = FakeDevice(0, bank_bytes=1 << 16, slack=1 << 14) if not drained else device
    path = write_capture(folder / "pid_4242", [taken_from], [kernel], finish=False)
    now = SimpleNamespace(host_unix_ns=1, globaltimer_ns=EPOCH_NS + NOW_NS, uncertainty_ns=9.0, host_monotonic_ns=2)
    source = snapshot.Source(4242, 0, path, Memory(device), FACTS, lambda: now if clock else None)  # type: ignore[arg-type, return-value]
    (taken,) = snapshot.take([source], pause_s=0)
    assert taken.error is None
    trace = decode([read_capture(path)])
    return trace, hang_report(trace)


def device() -> FakeDevice:
    return FakeDevice(0, bank_bytes=1 << 16, slack=1 << 14)


def waiting(kernel: Kernel, number: int, payload: int, start_ns: int = 1_000_000) -> FakeWarp:
    warp = FakeWarp(warp=number, sm=1, start_ns=start_ns)
    warp.event(kernel.outer, at=198)
    warp.event(kernel.wait, at=1980, payload=payload)
    return warp


def test_times_count_to_the_clock_of_the_snapshot(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    gpu.launch(kernel, [waiting(kernel, n, 5 + n) for n in range(2)], block=(64, 1, 1))
    trace, report = snap(tmp_path, gpu, kernel)
    assert report is not None and report.time_from == "clock"
    (group,) = report.launches[0].groups
    outer, inner = group.stack
    for frame, cycles in ((outer, 198), (inner, 1980)):
        true = NOW_NS - 1_000_000 - cycles * 100 // 198
        assert abs(frame.least_ns - true) < 100 and frame.most_ns - frame.least_ns < 100
    assert inner.payloads == ("5", "6")
    assert abs(report.launches[0].ran_ns - (NOW_NS - 1_000_000)) < 100
    assert trace.meta["snapshots"][0]["time_from"] == "clock"
    assert "are in `full_wait` (payload 5, 6) (kernel.py:2), in `consume`, for 3.00 s." in report.findings[0]


def test_without_a_clock_durations_are_the_least_possible(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    late = FakeWarp(warp=1, sm=1, start_ns=1_000_000).exit(at=198_000)
    gpu.launch(kernel, [waiting(kernel, 0, 5), late], block=(64, 1, 1))
    _, report = snap(tmp_path, gpu, kernel, clock=False)
    assert report is not None and report.time_from == "last event"
    inner = report.launches[0].groups[0].stack[-1]
    assert abs(inner.least_ns - 99_000) < 100, "to the exit of the other warp"
    assert "times are counted to the last event of any warp" in report.text()


def test_warps_in_one_place_are_a_group_and_others_are_not(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    through = waiting(kernel, 2, 7)
    through.event(kernel.popped, at=2500)
    idle = FakeWarp(warp=3, sm=1, start_ns=1_000_000)
    token = FakeWarp(warp=4, sm=1, start_ns=1_000_000)
    token.event(kernel.token, at=50)
    warps = [waiting(kernel, 0, 5), waiting(kernel, 1, 5), through, idle, token]
    gpu.launch(kernel, warps, grid=(2, 1, 1), block=(160, 1, 1))
    _, report = snap(tmp_path, gpu, kernel)
    assert report is not None
    (launch,) = report.launches
    places = {g.warps_in_cta: ([f.name for f in g.stack], g.last) for g in launch.groups}
    assert places == {
        (0, 1): (["consume", "full_wait"], "begin of full_wait"),
        (2,): (["consume"], "end of full_wait"),
        (3,): ([], ""),
        (4,): (["copy"], "begin of copy"),
    }
    assert (launch.expected, launch.running, launch.missing, launch.begun) == (10, 5, 5, False)
    assert "5 without a record (not begun)" in report.text()
    assert "is in no range, silent for 3.00 s" in "\n".join(report.findings)


def test_warps_that_began_without_an_event_are_told_from_those_that_did_not(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    gpu.launch(kernel, [waiting(kernel, 0, 5)], block=(64, 1, 1))
    gpu.banks["head"][9] += 1152  # claimed; its header is to come
    _, report = snap(tmp_path, gpu, kernel)
    assert report is not None and report.launches[0].begun
    assert "1 without a record (some have begun, and not come to their first event)" in report.text()


def test_a_full_warp_is_nowhere(tmp_path: Path) -> None:
    """What it did after its memory was full is not known; so its open ranges are none."""
    kernel, gpu = Kernel(), device()
    full = FakeWarp(warp=0, sm=1, start_ns=1_000_000)
    full.event(kernel.outer, at=10)
    for n in range(20):
        full.event(kernel.tick, at=100 + n, payload=n)
    gpu.launch(kernel, [full, waiting(kernel, 1, 5)], block=(64, 1, 1), main_bytes=128)
    trace, report = snap(tmp_path, gpu, kernel)
    assert trace.full.tolist() == [0]
    assert trace.open.warp.tolist() == [1, 1]
    assert report is not None
    known, unknown = report.launches[0].groups
    assert (known.full, unknown.full, unknown.stack, unknown.last) == (False, True, (), "mark of tick")
    assert "is somewhere behind `mark of tick`: the memory of each was full" in report.findings[1]
    assert [p.kind for p in trace.problems if p.kind == "unpaired_push"] == ["unpaired_push"]


def test_what_was_drained_before_is_not_told_twice(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    done = waiting(kernel, 0, 1)
    done.event(kernel.popped, at=3000)
    done.event(kernel.popped, at=3100)
    done.exit(at=4000)
    gpu.launch(kernel, [done], block=(32, 1, 1))
    gpu.launch(kernel, [waiting(kernel, 0, 5, 2_000_000)], block=(32, 1, 1))
    trace, report = snap(tmp_path, gpu, kernel, drained=True)
    assert (len(trace.launches), len(trace.warps), len(trace.ranges), len(trace.open)) == (2, 2, 2, 2)
    assert report is not None
    assert [(launch.index, launch.running) for launch in report.launches] == [(1, 1)]


def test_a_trace_that_ended_has_no_report(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    done = waiting(kernel, 0, 1)
    done.exit(at=4000)
    gpu.launch(kernel, [done], block=(32, 1, 1))
    trace, report = snap(tmp_path, gpu, kernel)
    assert report is None
    assert [(p.kind, p.count) for p in trace.problems if p.kind == "unpaired_push"] == [("unpaired_push", 2)]


def test_reports_of_several_processes_are_one(tmp_path: Path) -> None:
    kernel, gpu = Kernel(), device()
    gpu.launch(kernel, [waiting(kernel, 0, 5)], block=(32, 1, 1))
    reports = [snap(tmp_path / str(k), gpu, kernel, clock=k > 0)[1] for k in range(2)]
    both = HangReport.of([one for one in reports if one is not None])
    assert (len(both.launches), len(both.findings), both.time_from, both.moved) == (2, 2, "last event", 0)
