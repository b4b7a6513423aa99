"""The uncertainty that a trace states: the largest at any stamp that was recorded, on clocks whose truth is known."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, RateHistory, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace.decode import blocks, decode, decoder
from warptrace.decode.clocks import ClockMap
from warptrace.decode.envelope import LOOSE_NS, ONE_CELL
from warptrace.raw import read_capture
from warptrace.trace import Trace
from warptrace.wire import EventKind

STEADY = RateHistory(((0, Fraction(198, 100)),))
DROP = RateHistory(((0, Fraction(198, 100)), (1_000_000_000, Fraction(180, 100))))
"""From 1.98 to 1.8 GHz after a second."""
SLACK_NS = 3 * LOOSE_NS
"""More than this is not said beyond what holds at a stamp, for what places of a cell differ in."""
US = 1980
"""Cycles at 1.98 GHz."""


class Decoded:
    """A trace, the clocks that it was made with, and how far each of its stamps is off the truth, by SM."""

    def __init__(self, folder: Path, device: FakeDevice, kernel: FakeKernel, warps: list[FakeWarp], **sizes: int):
        device.launch(kernel, warps, block=(32 * len(warps), 1, 1), **sizes)
        kept: list[ClockMap] = []
        real = decoder._with_stamps

        def keep(*args: Any) -> ClockMap:
            kept.append(real(*args))
            return kept[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "_with_stamps", keep)
            self.trace: Trace = decode([read_capture(write_capture(folder / "capture", [device], [kernel]))])
        (self.clock,) = kept
        self.doubts: dict[int, list[float]] = {}
        self.off: dict[int, list[float]] = {}
        for row, warp in enumerate(warps):
            self._add(device, row, warp)

    def _add(self, device: FakeDevice, row: int, warp: FakeWarp) -> None:
        t = self.trace
        mine = t.markers.warp == row
        stamps = [(0, int(t.warps.start_ns[row]))]
        stamps += zip(t.markers.cycle[mine].tolist(), t.markers.ns[mine].tolist(), strict=True)
        if t.warps.closed[row]:
            stamps.append((int(t.warps.cycles[row]), int(t.warps.end_ns[row])))
        group = int(np.flatnonzero(self.clock.sm == warp.sm)[0])
        entry = device.clock64(warp.sm, warp.start_ns)
        cycles = np.array([entry - int(self.clock.cycle0[group]) + cycle for cycle, _ in stamps])
        self.doubts.setdefault(warp.sm, []).extend(self.clock.doubt(np.full(len(cycles), group), cycles).tolist())
        for cycle, ns in stamps:
            true = device.ns_of_cycle(warp.sm, entry + cycle) if cycle else Fraction(warp.start_ns)
            self.off.setdefault(warp.sm, []).append(float(abs(true + EPOCH_NS - t.epoch_ns - ns)))

    def stated(self) -> dict[int, float]:
        by_sm = self.trace.meta["clocks"][0]["by_sm"]
        return dict(zip(by_sm["sm"].tolist(), by_sm["uncertainty_ns"].tolist(), strict=True))

    def check(self, *, exact: bool, seen: bool = True) -> None:
        """No stamp is off by more than is stated of its SM, and of all; no more is stated than holds at some stamp.
        ``seen``: anchors show what the clock did."""
        stated = self.stated()
        assert set(stated) == set(self.off)
        for sm, off in self.off.items():
            assert max(off) <= max(self.doubts[sm]) or not seen
            assert max(self.doubts[sm]) <= stated[sm] + 0.05  # rounded to a tenth
            if exact:
                assert stated[sm] <= max(self.doubts[sm]) + SLACK_NS
        (launch,) = self.trace.launches
        assert launch.clock_uncertainty_ns == pytest.approx(max(stated.values()), abs=0.05)
        facts = self.trace.meta["clocks"][0]
        assert facts["uncertainty_ns"] == launch.clock_uncertainty_ns >= facts["typical_uncertainty_ns"]


def waits(kernel: FakeKernel, lengths: list[int], *, middle: bool = False, end: bool = True) -> FakeWarp:
    """A warp that waits so many cycles, again and again, with an anchor 200 cycles before and behind each wait and
    plain marks nearer to it; ``middle``: and one in the middle of the last."""
    plain, anchor = 1, 2
    warp, at = FakeWarp(sm=0, start_ns=6400), 100
    for number, length in enumerate(lengths, 1):
        for site, cycle in ((anchor, at), (plain, at + 200)):
            warp.event(site, cycle)
        if middle and number == len(lengths):
            warp.event(plain, at + 200 + length // 2)
        at += 200 + length
        for site, cycle in ((plain, at), (anchor, at + 200)):
            warp.event(site, cycle)
        at += 400
    return warp.exit(at) if end else warp


def waiting(tmp_path: Path, rate: RateHistory, **options: bool) -> Decoded:
    kernel = FakeKernel("k", stride=16)
    kernel.mark("plain")
    kernel.mark("anchor", anchor=True)
    device = FakeDevice(rates={0: rate}, bank_bytes=1 << 16)
    warp = waits(kernel, [1_000_000 * US] * 2, **options)  # less than 2**32 cycles
    return Decoded(tmp_path, device, kernel, [warp], main_bytes=1024)


def test_waits_in_which_the_clock_moved_cost_nothing_where_nothing_was_recorded(tmp_path: Path) -> None:
    """Two waits of a second, in which the rate drops by a tenth: in their middle nothing is known to 10 ms."""
    found = waiting(tmp_path, DROP)
    assert found.trace.meta["clocks"][0]["rate_change"] > 0.09
    assert found.clock.uncertainty[0] > 10_000_000
    # What an anchor says, and what 200 cycles can be of which nothing is known but how fast a clock may run at all.
    assert found.trace.launches[0].clock_uncertainty_ns < 250
    found.check(exact=True)
    assert found.trace.problems == ()


def test_a_mark_in_their_middle_is_not_known_better(tmp_path: Path) -> None:
    found = waiting(tmp_path, DROP, middle=True)
    assert found.trace.launches[0].clock_uncertainty_ns > 10_000_000
    found.check(exact=True)
    (problem,) = found.trace.problems
    assert "the clock rate changed" in problem.text


def test_waits_of_a_steady_clock(tmp_path: Path) -> None:
    """The rate may have moved by 0.01 % meanwhile, and back: 50 us in the middle of a wait."""
    found = waiting(tmp_path, STEADY)
    assert found.clock.uncertainty[0] > 40_000
    assert found.trace.launches[0].clock_uncertainty_ns < 40
    found.check(exact=True)
    middle = waiting(tmp_path / "middle", STEADY, middle=True)
    assert 40_000 < middle.trace.launches[0].clock_uncertainty_ns < 60_000
    middle.check(exact=True)


def test_events_behind_the_last_anchor_are_worth_less_the_later_they_are(tmp_path: Path) -> None:
    """Of a warp that never ended."""
    kernel = FakeKernel("k", stride=16)
    kernel.mark("plain")
    kernel.mark("anchor", anchor=True)
    stated = []
    for late in (1_000, 100_000, 10_000_000):
        warp = waits(kernel, [5_000] * 3, end=False)
        warp.event(1, 20_000 + late)
        found = Decoded(tmp_path / str(late), FakeDevice(bank_bytes=1 << 16), kernel, [warp], main_bytes=1024)
        found.check(exact=True)
        stated.append(found.trace.launches[0].clock_uncertainty_ns)
    assert stated[0] < stated[1] < stated[2]
    assert stated[2] > 1_000


@st.composite
def launches(draw: st.DrawFn) -> tuple[FakeDevice, FakeKernel, list[FakeWarp], bool]:
    """One to four warps on two SMs, bursts of events apart by anything up to 20 ms, any of them anchors; clocks that
    move, or do not. Sites do not say that 2**32 cycles may lie before their events, as the front end finds it: else the
    decoder looks for such silences by the anchors, and where the rate drops by a quarter it may find some."""
    kernel = FakeKernel("k", stride=16)
    kernel.site(EventKind.MARK, "plain", late=False)
    kernel.site(EventKind.MARK, "anchor", anchor=True, late=False)
    steps = draw(st.lists(st.tuples(st.integers(1_000, 20_000_000), st.sampled_from([198, 197, 180, 150])), max_size=3))
    times = sorted({at for at, _ in steps})
    rate = RateHistory(((0, Fraction(198, 100)), *((at, Fraction(r, 100)) for at, (_, r) in zip(times, steps))))
    warps = []
    for number in range(draw(st.integers(1, 4))):
        warp, at = FakeWarp(warp=number, sm=number % 2, start_ns=draw(st.integers(0, 100_000))), 50
        for _ in range(draw(st.integers(0, 6))):
            at += draw(st.sampled_from([300, 3_000, 40_000, 1_000_000, 40_000_000]))
            for _ in range(draw(st.integers(1, 8))):
                at += draw(st.integers(20, 2_000))
                warp.event(draw(st.sampled_from([1, 1, 2])), at)
        warps.append(warp.exit(at + draw(st.integers(10, 100_000))) if draw(st.booleans()) or not warp.events else warp)
    return FakeDevice(rates={0: rate, 1: rate}, bank_bytes=1 << 16), kernel, warps, not steps


@settings(max_examples=60, deadline=None)
@given(launches())
def test_what_is_stated_holds_at_every_stamp_and_at_one_just_so(made: Any) -> None:
    device, kernel, warps, steady = made
    with TemporaryDirectory() as folder:
        found = Decoded(Path(folder), device, kernel, warps, main_bytes=1024)
        found.check(exact=bool((found.clock.grid.shift == ONE_CELL).all()), seen=steady)


def test_few_looks_find_what_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 events of a warp in silences of its clock, of which one is worth least."""
    kernel = FakeKernel("k", stride=16)
    kernel.mark("plain")
    kernel.mark("anchor", anchor=True)
    found = []
    for number, (few, some) in enumerate(((64, 8), (1, 1))):
        monkeypatch.setattr(blocks, "FEW", few)
        monkeypatch.setattr(blocks, "SOME", some)
        warp = FakeWarp(sm=0, start_ns=6400)
        for k in range(100):
            warp.event(2, 100 * US * k)
            warp.event(1, 100 * US * k + 2 * (37 * k % 101) * US // 3)
            warp.event(1, 100 * US * k + 70 * US)
        device = FakeDevice(rates={0: RateHistory(((0, Fraction(198, 100)), (4_321_000, Fraction(150, 100))))})
        found.append(Decoded(tmp_path / str(number), device, kernel, [warp.exit(100 * 100 * US)], main_bytes=8192))
        found[-1].check(exact=True)
    assert found[0].stated() == found[1].stated()
