"""Silences of 2**32 cycles and longer, where the sites say before which events they may lie and records carry more of
the clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.trace import Trace
from warptrace.wire import EventKind

WRAP = 2**32


@dataclass(frozen=True)
class Sites:
    """``brief``: nothing lasts long before it. ``known``: behind a wait, with more of the clock. ``start``, and the
    ends of its ranges at once and behind a wait."""

    kernel: FakeKernel
    brief: int
    known: int
    start: int
    end: int
    late_end: int


def sites(*, ring: bool = False) -> Sites:
    kernel = FakeKernel("k", ring=ring)
    return Sites(
        kernel,
        kernel.site(EventKind.MARK, "brief", late=False),
        kernel.site(EventKind.MARK, "known", high=True),
        kernel.site(EventKind.START, "range", late=False),
        kernel.site(EventKind.END, "range", late=False),
        kernel.site(EventKind.END, "range"),
    )


def traced(folder: Path, kernel: FakeKernel, warp: FakeWarp, entry: int = 2**32 - 7) -> Trace:
    device = FakeDevice(offsets={0: entry}, bank_bytes=1 << 16)
    if kernel.ring:
        device.launch(kernel, [warp], main_bytes=128)
    else:
        device.launch(kernel, [warp])
    return decode([read_capture(write_capture(folder / "capture", [device], [kernel]))])


def clock_problems(trace: Trace) -> int:
    return sum(p.count for p in trace.problems if p.kind == "clock")


@pytest.mark.parametrize("end", [0, 3, 2 * WRAP, None])
def test_a_wait_lasts_what_it_lasts(tmp_path: Path, end: int | None) -> None:
    """Also where the warp waits again before its end, or never ends."""
    s = sites()
    warp = FakeWarp()
    first, second = 5 * WRAP + 1, 7 * WRAP + 8
    at = [(s.brief, 5), (s.known, first), (s.brief, first + 8), (s.known, second), (s.brief, second + 1)]
    for site, cycle in at:
        warp.event(site, cycle)
    if end is not None:
        warp.exit(second + 1 + end)
    trace = traced(tmp_path, s.kernel, warp)
    assert trace.markers.cycle.tolist() == [cycle for _, cycle in at]
    assert clock_problems(trace) == 0


def test_an_end_behind_a_wait_is_placed_by_what_follows_it(tmp_path: Path) -> None:
    s = sites()
    warp = FakeWarp()
    token = warp.event(s.start, 5)
    warp.event(s.late_end, WRAP + 20, token=token)
    warp.event(s.known, WRAP + 21)
    trace = traced(tmp_path, s.kernel, warp.exit(WRAP + 30))
    # The mark itself may follow a wait of its own: which of the two was long is open.
    assert (trace.ranges.end_cycle - trace.ranges.start_cycle).tolist() == [15]
    assert trace.markers.cycle.tolist() == [WRAP + 21]
    assert clock_problems(trace) == 1
    follows = s.kernel.site(EventKind.MARK, "follows", high=True, late=False)
    warp = FakeWarp()
    token = warp.event(s.start, 5)
    warp.event(s.late_end, WRAP + 20, token=token)
    warp.event(follows, WRAP + 21)
    trace = traced(tmp_path / "follows", s.kernel, warp.exit(WRAP + 30))
    assert (trace.ranges.end_cycle - trace.ranges.start_cycle).tolist() == [WRAP + 15]
    assert clock_problems(trace) == 0


def test_nothing_may_last_long_but_the_way_to_the_exit(tmp_path: Path) -> None:
    s = sites()
    warp = FakeWarp()
    warp.event(s.brief, 5)
    trace = traced(tmp_path, s.kernel, warp.exit(3 * WRAP))
    assert trace.markers.cycle.tolist() == [5]
    assert clock_problems(trace) == 0


def test_contradictions_are_reported(tmp_path: Path) -> None:
    """The clock cannot go back by a wrap."""
    s = sites()
    warp = FakeWarp()
    warp.event(s.known, 5 * WRAP + 1)
    warp.event(s.known, WRAP + 1)
    trace = traced(tmp_path, s.kernel, warp.exit(6 * WRAP))
    assert clock_problems(trace) == 1


steps = st.one_of(st.integers(0, 1000), st.integers(WRAP - 3, WRAP + 3), st.integers(0, 40 * WRAP))
briefly = st.integers(0, WRAP // 2)


@settings(max_examples=40)
@given(
    waits=st.lists(st.tuples(steps, st.lists(briefly, max_size=3)), min_size=1, max_size=8),
    rest=st.one_of(st.none(), steps),
    entry=st.integers(0, 2**50),
)
def test_every_time_is_exact(waits: list[tuple[int, list[int]]], rest: int | None, entry: int) -> None:
    """Whatever a warp waits, as long as no two silences have only ends of token ranges between them."""
    s = sites()
    warp = FakeWarp()
    cycle, at = 0, []
    for wait, following in waits:
        cycle += wait
        for k, step in enumerate([0, *following]):
            cycle += step
            warp.event(s.brief if k else s.known, cycle)
            at.append(cycle)
    if rest is not None:
        warp.exit(cycle + rest)
    with TemporaryDirectory() as folder:
        trace = traced(Path(folder), s.kernel, warp, entry)
    assert trace.markers.cycle.tolist() == at
    assert clock_problems(trace) == 0


@settings(max_examples=40)
@given(
    waits=st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=30), rest=steps, entry=st.integers(0, 2**50)
)
def test_rings_are_placed_exactly(waits: list[tuple[int, bool]], rest: int, entry: int) -> None:
    """Sixteen slots keep the newest events; those before the first that knows its time are placed by it, and it is said
    where one of them may lie behind a silence itself."""
    s = sites(ring=True)
    warp = FakeWarp()
    cycle, at, known = 0, [], []
    for wait, tells in waits:
        cycle += wait if tells else wait % 1000
        warp.event(s.known if tells else s.brief, cycle)
        at.append(cycle)
        known.append(tells)
    with TemporaryDirectory() as folder:
        trace = traced(Path(folder), s.kernel, warp.exit(cycle + rest), entry)
    if clock_problems(trace) == 0 and (any(known[-16:]) or rest < WRAP):
        assert trace.markers.cycle.tolist() == at[-16:]
    assert clock_problems(trace) == 0 or len(at) > 16
