"""Records that hold %globaltimer, from trace memory to decoded times, on a device whose true time is known exactly."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, RateHistory, write_capture

from warptrace.decode import anchors as anchors_module
from warptrace.decode import blocks as blocks_module
from warptrace.decode import decode
from warptrace.decode.envelope import Grid
from warptrace.raw import read_capture
from warptrace.trace import Trace
from warptrace.wire import EventKind, PayloadType

SECOND = 1_980_000_000
"""Cycles."""
WRAP = 2**32
FALL = RateHistory(((0, Fraction(198, 100)), (3_000, Fraction(198, 100)), (9_000, Fraction(150, 100))), smooth=True)
"""1.98 GHz for 3 us, then down to 1.5 within 6 us."""


def run(tmp_path: Path, device: FakeDevice, kernel: FakeKernel) -> Trace:
    return decode([read_capture(write_capture(tmp_path / "capture", [device], [kernel]))])


def one_warp(
    kernel: FakeKernel, events: list[tuple[int, int]], end: int | None, sm: int = 0, start_ns: int = 6400
) -> FakeWarp:
    """A warp with (site, cycle) events."""
    warp = FakeWarp(sm=sm, start_ns=start_ns)
    for site, at in events:
        warp.event(site, at)
    return warp if end is None else warp.exit(end)


def errors(trace: Trace, device: FakeDevice, warps: list[FakeWarp]) -> list[float]:
    """How many ns each mark is off its true time, warp by warp."""
    result = []
    m = trace.markers
    for row, warp in enumerate(warps):
        entry = device.clock64(warp.sm, warp.start_ns)
        for cycle, ns in zip(m.cycle[m.warp == row].tolist(), m.ns[m.warp == row].tolist(), strict=True):
            true = device.ns_of_cycle(warp.sm, entry + cycle) + EPOCH_NS - trace.epoch_ns
            result.append(float(abs(true - ns)))
    return result


def clock_texts(trace: Trace) -> list[str]:
    assert {p.kind for p in trace.problems} <= {"clock"}
    return [p.text for p in trace.problems]


# ------------------------------------------------------------------------------------------------- rates that move
def falling(tmp_path: Path, *, anchored: bool, lane: int = 0) -> tuple[Trace, FakeDevice, list[FakeWarp]]:
    """Two SMs whose clocks fall, four warps each, 60 us, a mark every 400 cycles."""
    kernel = FakeKernel("k")
    plain, anchor = kernel.mark("plain", PayloadType.U32), kernel.mark("anchor", PayloadType.I16, anchor=anchored)
    warps = []
    for number in range(8):
        warp = FakeWarp(warp=number, sm=number % 2, start_ns=6400 * (number // 4) + 100 * number)
        for k in range(230):
            warp.event(anchor if k % 5 == 0 else plain, 400 * k + 37 * number, payload=0xABCD_1234, lane=lane)
        warps.append(warp.exit(92_500))
    sizes = {"main_bytes": 3712} if lane == 0 else {"main_bytes": 128, "lane_bytes": 3840}
    device = FakeDevice(rates={0: FALL, 1: FALL}, offsets={0: 2**32 - 5, 1: 10**13}, bank_bytes=1 << 19)
    device.launch(kernel, warps, block=(256, 1, 1), **sizes)
    return run(tmp_path, device, kernel), device, warps


@pytest.mark.parametrize("lane", [0, 2])
def test_anchors_follow_a_clock_that_falls(tmp_path: Path, lane: int) -> None:
    trace, device, warps = falling(tmp_path, anchored=True, lane=lane)
    off = errors(trace, device, warps)
    assert len(off) == 8 * 230
    assert max(off) <= trace.launches[0].clock_uncertainty_ns < 150
    assert np.median(off) < 15
    assert trace.problems == ()
    (facts,) = trace.meta["clocks"]
    assert facts["rate_change"] > 0.2
    assert facts["anchors"] > 2 * 60
    assert facts["typical_uncertainty_ns"] < 45
    assert facts["ns_per_cycle"][1] == pytest.approx(1 / 1.5, rel=0.01)
    # The timer is no part of the payload.
    assert set(trace.markers.bits.tolist()) == {0x1234, 0xABCD_1234}


def test_without_anchors_the_uncertainty_covers_what_is_not_known(tmp_path: Path) -> None:
    trace, device, warps = falling(tmp_path, anchored=False)
    off = errors(trace, device, warps)
    uncertainty = trace.launches[0].clock_uncertainty_ns
    assert 100 < max(off) <= uncertainty
    (text,) = clock_texts(trace)
    assert "the clock rate changed during the launch" in text
    assert f"times across SMs are good to {uncertainty:.0f} ns" in text
    assert "durations within a warp are exact in cycles" in text


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = falling(tmp_path / "a", anchored=True)[0]
    monkeypatch.setattr(blocks_module, "BLOCK_EVENTS", 50)
    monkeypatch.setattr(anchors_module, "BLOCK_SLOTS", 50)
    parts = falling(tmp_path / "b", anchored=True)[0]
    assert parts.markers.ns.tolist() == whole.markers.ns.tolist()
    assert str(parts.meta["clocks"]) == str(whole.meta["clocks"])


def test_events_looked_up_by_runs_have_the_times_of_those_looked_up_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, search = [], Grid.runs

    def noted(*arguments: Any) -> Any:
        found.append(search(*arguments))
        return found[-1]

    monkeypatch.setattr(Grid, "runs", noted)
    runs = falling(tmp_path / "a", anchored=False)[0]
    assert [int(one.count.sum()) for one in found] == [8 * 230]
    assert max(len(one.cell) for one in found) > 8
    monkeypatch.setattr(Grid, "runs", lambda *arguments: None)
    single = falling(tmp_path / "b", anchored=False)[0]
    assert runs.markers.ns.tolist() == single.markers.ns.tolist()
    assert str(runs.meta["clocks"]) == str(single.meta["clocks"])


def test_several_kernels_in_one_batch_have_their_own_anchors(tmp_path: Path) -> None:
    """In one bank, by turns: one whose first site is an anchor, one whose second is, one without any."""
    kernels = []
    for name, which in (("first", 0), ("second", 1), ("none", -1)):
        kernel = FakeKernel(name, stride=16)
        for k in range(2):
            kernel.mark(f"m{k}", anchor=k == which)
        kernels.append(kernel)
    device = FakeDevice(bank_bytes=1 << 16)
    for turn in range(4):
        for number, kernel in enumerate(kernels):
            start = 640_000 * turn + 64_000 * number
            device.launch(kernel, [one_warp(kernel, [(1, 10), (2, 20_000), (1, 40_000)], 60_000, 0, start)])
    trace = decode([read_capture(write_capture(tmp_path / "capture", [device], kernels))])
    found = {(x.kernel, trace.meta["clocks"][x.index]["anchors"]) for x in trace.launches}
    assert found == {("first", 2 + 2), ("second", 2 + 1), ("none", 2)}
    assert trace.problems == ()


def test_a_record_whose_time_was_not_written_yet_is_no_anchor(tmp_path: Path) -> None:
    """The record of a warp that still runs may be half there: the timer reads 0."""
    kernel = FakeKernel("k")
    anchor = kernel.mark("a", anchor=True)
    warp = one_warp(kernel, [(anchor, 2_000 * k) for k in range(20)], None)
    warp.event(anchor, 40_000, raw_timer=0)
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert [p.kind for p in trace.problems] == ["unclosed_warp"]
    assert trace.meta["clocks"][0]["anchors"] == 21
    assert max(errors(trace, device, [warp])) <= trace.launches[0].clock_uncertainty_ns < 40


def test_an_anchor_that_contradicts_the_others_is_reported(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    anchor = kernel.mark("a", anchor=True)
    device = FakeDevice(bank_bytes=1 << 16)
    warp = one_warp(kernel, [], 80_000)
    for k in range(40):
        late = device.globaltimer(6400 + Fraction(2_000 * k * 100, 198)) + 640 & 0xFFFFFFFF
        warp.event(anchor, 2_000 * k, raw_timer=late if k == 20 else None)
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    (text,) = clock_texts(trace)
    assert text.startswith("1 of 42 clock anchors, on 1 of 1 SMs, contradict the others")
    assert trace.problems[0].count == 1
    assert max(errors(trace, device, [warp])) < 25  # the others hold
    assert trace.launches[0].clock_uncertainty_ns > 600  # and yet it is said what the one would mean


# --------------------------------------------------------------------------------------------------- long silences
def long_kernel() -> tuple[FakeKernel, int, int]:
    kernel = FakeKernel("k", stride=16)
    return kernel, kernel.mark("plain"), kernel.mark("anchor", anchor=True)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("wait", [WRAP - 1, WRAP, WRAP + 5, 2 * WRAP + 77, 5 * SECOND])
def test_an_anchor_behind_a_silence_says_how_long_it_was(tmp_path: Path, wait: int, closed: bool) -> None:
    kernel, plain, anchor = long_kernel()
    at = [(anchor, 10), (plain, 2_000), (anchor, 400_000), (anchor, 400_000 + wait), (plain, 400_000 + wait + 300)]
    warp = one_warp(kernel, at, 400_000 + wait + 500 if closed else None)
    device = FakeDevice(offsets={0: 2**32 - 7}, bank_bytes=1 << 16)
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == [cycle for _, cycle in at]
    assert [p.kind for p in trace.problems] == ([] if closed else ["unclosed_warp"])
    assert max(errors(trace, device, [warp])) <= trace.launches[0].clock_uncertainty_ns


def test_a_long_silence_of_a_warp_that_never_ended_may_have_been_longer(tmp_path: Path) -> None:
    """Without the exit's clock, 13 wraps in 30 s look like 11 in 25.7 s, but for 0.2 % in the rate."""
    kernel, _, anchor = long_kernel()
    at = [(anchor, 400_000), (anchor, 400_000 + 30 * SECOND)]
    for end in (None, 500_000 + 30 * SECOND):
        device = FakeDevice(bank_bytes=1 << 16)
        device.launch(kernel, [one_warp(kernel, at, end)])
        trace = run(tmp_path / str(end), device, kernel)
        assert (trace.markers.cycle[1] == 400_000 + 30 * SECOND) == (end is not None)
        assert {p.kind for p in trace.problems} == (set() if end else {"unclosed_warp", "clock"})


def test_many_silences(tmp_path: Path) -> None:
    kernel, plain, anchor = long_kernel()
    at, cycle = [], 0
    for wait in (WRAP + 1, 100, 3 * WRAP - 9, WRAP - 1, 7, 2 * WRAP):
        cycle += wait
        at += [(anchor, cycle), (plain, cycle + 1), (anchor, cycle + 2)]
        cycle += 2
    warp = one_warp(kernel, at, cycle + 2 * WRAP)
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == [c for _, c in at]
    assert clock_texts(trace) == []


def test_a_silence_before_several_events_is_placed_and_reported(tmp_path: Path) -> None:
    """Between the anchors lie two steps, and either may have been the long one: what follows is exact, and it is said
    that something is open."""
    kernel, plain, anchor = long_kernel()
    at = [(anchor, 10), (plain, WRAP + 500), (anchor, WRAP + 900), (plain, WRAP + 1_000)]
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [one_warp(kernel, at, WRAP + 2_000)])
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == [10, 500, WRAP + 900, WRAP + 1_000]
    (text,) = clock_texts(trace)
    assert "2**32" in text


def test_a_silence_behind_the_last_anchor_stays_open(tmp_path: Path) -> None:
    kernel, plain, anchor = long_kernel()
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [one_warp(kernel, [(anchor, 10), (plain, 900)], WRAP + 2_000)])
    trace = run(tmp_path / "open", device, kernel)
    assert len(clock_texts(trace)) == 1
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [one_warp(kernel, [(plain, 10), (anchor, 900)], WRAP + 2_000)])
    trace = run(tmp_path / "shut", device, kernel)
    assert clock_texts(trace) == []


def test_without_anchors_a_silence_is_reported(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [one_warp(kernel, [(mark, 10), (mark, WRAP + 10)], WRAP + 2_000)])
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == [10, 10]
    (text,) = clock_texts(trace)
    assert "do not say where" in text


@pytest.mark.parametrize("anchored", [True, False])
def test_a_kernel_of_five_seconds(tmp_path: Path, anchored: bool) -> None:
    """Steps of 50 ms, across wraps of the clock (2.2 s) and of the timer (4.3 s); the rate drops after 2 s."""
    kernel = FakeKernel("k", stride=16)
    mark = kernel.mark("m", anchor=anchored)
    rate = RateHistory(((0, Fraction(198, 100)), (2_000_000_000, Fraction(1935, 1000))))
    device = FakeDevice(rates={0: rate}, bank_bytes=1 << 16)
    end = device.clock64(0, 5_300_000_000) - device.clock64(0, 6400)
    at = [(mark, cycle) for cycle in range(0, end, SECOND // 20)]
    warps = [one_warp(kernel, at, end)]
    device.launch(kernel, warps, main_bytes=2048)
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == [cycle for _, cycle in at]
    length = trace.warps.end_ns - trace.warps.start_ns
    assert abs(int(length[0]) - 5_299_993_600) < 80
    off = errors(trace, device, warps)
    if anchored:  # what stands between 50 ms is not known better than the rate; at the anchors it is
        assert max(off) <= trace.launches[0].clock_uncertainty_ns < 40
        assert trace.meta["clocks"][0]["rate_change"] > 0.02
        assert clock_texts(trace) == []
    else:  # two anchors see no motion: the line between them is what can be said
        assert max(off) > 1_000_000
        assert clock_texts(trace) == []


def test_sites_say_what_is_an_anchor() -> None:
    kernel = FakeKernel("k")
    kernel.mark("a", anchor=True)
    kernel.push("p")
    assert kernel.stride == 16
    assert [(s.kind, s.anchor) for s in kernel.record.sites] == [(EventKind.MARK, True), (EventKind.PUSH, False)]


def test_the_fake_clock_is_exact() -> None:
    device = FakeDevice(rates={0: FALL}, offsets={0: 0})
    assert FALL.cycles(3_000) == 5_940
    assert FALL.cycles(6_000) == 5_940 + 3_000 * (Fraction(198) + Fraction(174)) / 200
    assert FALL.cycles(9_000) == 5_940 + 6_000 * Fraction(174, 100)
    assert FALL.cycles(10_000) == FALL.cycles(9_000) + 1_500
    for clock in (0, 1, 5_939, 5_940, 9_999, 123_456):
        ns = device.ns_of_cycle(0, clock)
        assert FALL.cycles(ns) <= clock < FALL.cycles(ns + Fraction(1, 1024))
