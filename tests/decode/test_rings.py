"""Rings by hand: what is kept, where it lies in time, what of it is not known. Every figure is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_decode_property import check, ring_programs

from warptrace import wire
from warptrace.decode import decode
from warptrace.decode import rings as rings_module
from warptrace.raw import read_capture
from warptrace.trace import Trace
from warptrace.wire import PayloadType

WRAP = 1 << 32


def traced(folder: Path, kernel: FakeKernel, warp: FakeWarp, main: int = 128, lane: int = 0) -> Trace:
    device = FakeDevice(bank_bytes=1 << 17, slack=1 << 15)
    device.launch(kernel, [warp], main_bytes=main, lane_bytes=lane)
    return decode([read_capture(write_capture(folder / "c", [device], [kernel]))])


def kinds(trace: Trace) -> dict[str, int]:
    return {p.kind: p.count for p in trace.problems}


def plain() -> FakeKernel:
    """Sites: 1 mark, 2 push, 3 pop, 4 start, 5 end."""
    kernel = FakeKernel("k", ring=True)
    kernel.mark("m")
    kernel.push("p")
    kernel.pop()
    kernel.start("t")
    kernel.end()
    return kernel


# ----------------------------------------------------------------------------------------------------------- wire
def test_tags() -> None:
    assert [wire.tag(n, 0, lanes=False) for n in (0, 5, 65535, 65536, 65541)] == [0, 5, 65535, 0, 5]
    assert [wire.tag(n, 3, lanes=True) for n in (0, 5, 2047, 2048)] == [6144, 6149, 8191, 6144]
    assert wire.tag(2047, 31, lanes=True) == 65535


def test_rings_are_the_largest_power_of_two() -> None:
    assert [wire.ring_bytes(n) for n in (8, 120, 128, 136, 256)] == [8, 64, 128, 128, 256]


# ------------------------------------------------------------------------------------------------------ what is kept
@pytest.mark.parametrize(("count", "kept"), [(15, 15), (16, 16), (17, 16), (32, 16), (53, 16)])
def test_the_last_events_are_kept(tmp_path: Path, count: int, kept: int) -> None:
    kernel, warp = plain(), FakeWarp(start_ns=1000)
    for i in range(count):
        warp.event(1, 10 * i + 3)
    trace = traced(tmp_path, kernel, warp.exit(10_000))
    assert trace.markers.cycle.tolist() == [10 * i + 3 for i in range(count)][-kept:]
    assert trace.markers.seq.tolist() == list(range(kept))
    assert (trace.warps.events.tolist(), trace.warps.lost.tolist()) == ([kept], [count - kept])
    lost = count - kept
    assert kinds(trace) == ({"lost_events": lost} if lost else {})
    texts = [p.text for p in trace.problems]
    assert texts == [
        f"{lost} events of 1 warps of k (grid id 1) were overwritten by newer ones: CTA 0,0,0 warp 0 lost {lost}"
    ] * bool(lost)


def test_ranges_whose_begin_is_gone_are_counted_and_close_nothing(tmp_path: Path) -> None:
    kernel, warp = plain(), FakeWarp()
    warp.event(2, 1)  # gone
    outer = warp.event(4, 2)  # gone
    for i in range(4):
        warp.event(2, 10 + 20 * i)
        inner = warp.event(4, 12 + 20 * i)
        warp.event(5, 14 + 20 * i, token=inner)
        warp.event(3, 16 + 20 * i)
    warp.event(5, 100, token=outer)
    warp.event(3, 101)
    trace = traced(tmp_path, kernel, warp.exit(200))
    r = trace.ranges
    names = [trace.strings[name] for name in r.name]
    rows = list(zip(names, r.start_cycle.tolist(), r.end_cycle.tolist(), r.depth.tolist(), strict=True))
    # Of 20 events 16 are left: of the first round the end and the pop.
    rounds = [20 * k for k in range(1, 4)]
    assert rows == [x for k in rounds for x in (("p", 10 + k, 16 + k, 1), ("t", 12 + k, 14 + k, 0))]
    assert kinds(trace) == {"lost_events": 4, "lost_push": 2, "lost_start": 2}


def test_a_token_that_ends_twice_is_no_loss(tmp_path: Path) -> None:
    kernel, warp = plain(), FakeWarp()
    for i in range(16):
        warp.event(1, i + 1)
    token = warp.event(4, 50)
    warp.event(5, 60, token=token)
    warp.event(5, 70, token=token)
    trace = traced(tmp_path, kernel, warp.exit(100))
    assert kinds(trace) == {"lost_events": 3, "unpaired_end": 1}
    assert trace.ranges.end_cycle.tolist() == [60]


def test_lanes_lose_for_themselves(tmp_path: Path) -> None:
    kernel, warp = plain(), FakeWarp()
    for i in range(12):  # a lane's block of 128 bytes is a ring of 8 slots
        warp.event(1, 10 * i + 1)
        warp.event(1, 10 * i + 2, lane=7)
    trace = traced(tmp_path, kernel, warp.exit(1000), lane=128)
    assert trace.warps.lost.tolist() == [4]
    assert trace.markers.lane.tolist().count(7) == 8
    assert trace.markers.cycle[trace.markers.lane == 7].tolist() == [10 * i + 2 for i in range(4, 12)]
    assert trace.markers.cycle[trace.markers.lane == 0].tolist() == [10 * i + 1 for i in range(12)]


def test_tags_that_two_open_starts_share_are_ambiguous(tmp_path: Path) -> None:
    kernel, warp = plain(), FakeWarp()
    first = warp.event(4, 1)
    for i in range(2047):
        warp.event(1, 2 + i)
    second = warp.event(4, 5000)
    warp.event(5, 6000, token=first)
    warp.event(5, 6001, token=second)
    warp.event(1, 6002, lane=1)
    trace = traced(tmp_path, kernel, warp.exit(7000), main=1 << 15, lane=128)
    assert kinds(trace) == {"ambiguous_end": 2, "unpaired_start": 2}


# --------------------------------------------------------------------------------------------------------- clocks
def test_long_lives_are_placed_by_the_exit(tmp_path: Path) -> None:
    """The first event that is left lies 5 wraps behind the entry."""
    kernel, warp = plain(), FakeWarp(start_ns=77)
    base = 5 * WRAP + 123
    for i in range(20):
        warp.event(1, i + 1 if i < 3 else base + 100 * i)
    trace = traced(tmp_path, kernel, warp.exit(base + 4000))
    assert trace.markers.cycle.tolist() == [base + 100 * i for i in range(4, 20)]
    assert kinds(trace) == {"lost_events": 4}


def test_a_long_silence_before_the_exit_of_a_ring_needs_anchors(tmp_path: Path) -> None:
    """Two wraps between the last anchor and the exit, one between two anchors: both are put right."""
    kernel = FakeKernel("k", ring=True)
    kernel.mark("a", anchor=True)
    warp = FakeWarp(start_ns=1000)
    at = [7 * i + 1 for i in range(9)] + [3 * WRAP + 1000 * i for i in range(4)]
    at += [5 * WRAP + 77 + 9 * i for i in range(4)]
    for cycle in at:
        warp.event(1, cycle)
    trace = traced(tmp_path, kernel, warp.exit(7 * WRAP + 900), main=128)
    assert trace.markers.cycle.tolist() == at[-8:]
    assert kinds(trace) == {"lost_events": 9}


def test_a_count_that_may_have_turned_is_said(tmp_path: Path) -> None:
    kernel, warp = plain(), FakeWarp()
    for i in range(17):
        warp.event(1, 8 * WRAP - 1000 + i)
    trace = traced(tmp_path, kernel, warp.exit(8 * WRAP))
    assert kinds(trace) == {"lost_events": 1, "uncertain_count": 1}


def test_a_count_that_turned_shows_where_the_ring_is_full(tmp_path: Path) -> None:
    """2**32 + 3 events: the count says 3, sixteen slots are written."""
    kernel, warp = plain(), FakeWarp()
    for i in range(19):
        warp.event(1, 10 * i + 1)
    device = FakeDevice(bank_bytes=1 << 17, slack=1 << 15)
    device.launch(kernel, [warp.exit(1000)], main_bytes=128)
    (bank,) = np.flatnonzero(device.banks["head"])
    header = device.memory[int(device.banks["base"][bank]) :][:128].view(wire.REGION_DTYPE)
    assert header["advance"][0] == 19
    header["advance"] = 3  # as after 2**32 + 3 events, since 16 divides 2**32
    trace = decode([read_capture(write_capture(tmp_path / "c", [device], [kernel]))])
    assert trace.markers.cycle.tolist() == [10 * i + 1 for i in range(3, 19)]
    assert trace.warps.lost.tolist() == [WRAP + 3 - 16]


# ------------------------------------------------------------------------------------------- warps that never ended
ALONE: dict[int, dict[str, int]] = {15: {}, 16: {}, 17: {}, 40: {}, 42: {"lost_start": 1}}


@pytest.mark.parametrize("count", list(ALONE))
def test_a_warp_that_never_ended_is_put_in_order_by_its_clocks(tmp_path: Path, count: int) -> None:
    kernel, warp = plain(), FakeWarp()
    token = -1
    for i in range(count):
        if i % 3 == 1:
            token = warp.event(4, 100 * i + 1)
        elif i % 3 == 2:
            warp.event(5, 100 * i + 1, token=token)
        else:
            warp.event(1, 100 * i + 1)
    trace = traced(tmp_path, kernel, warp)
    left = [100 * i + 1 for i in range(count)][-16:]
    r, m = trace.ranges, trace.markers
    starts = [100 * i + 1 for i in range(1, count - 1, 3) if 100 * i + 1 in left]
    assert m.cycle.tolist() == [100 * i + 1 for i in range(0, count, 3) if 100 * i + 1 in left]
    assert (r.start_cycle.tolist(), r.end_cycle.tolist()) == (starts, [at + 100 for at in starts])
    assert trace.warps.lost.tolist() == [0]
    assert trace.open.start_cycle.tolist() == ([1601] if count == 17 else [])
    assert kinds(trace) == {"unclosed_warp": 1} | ALONE[count]


@pytest.mark.parametrize("silence", [1 << 30, (1 << 31) + 5, 3_000_000_000])
def test_an_order_that_is_in_doubt_is_not_guessed(tmp_path: Path, silence: int) -> None:
    kernel, warp = plain(), FakeWarp()
    for i in range(20):
        warp.event(1, 10 * i + 1 + (silence if i >= 12 else 0))
    trace = traced(tmp_path, kernel, warp)
    assert len(trace.markers) == 0
    assert kinds(trace) == {"torn_ring": 16, "unclosed_warp": 1}
    assert trace.warps.events.tolist() == [0]


def test_tags_of_starts_contradict_a_wrong_order(tmp_path: Path) -> None:
    """A silence of nearly 2**32 cycles looks like the place where the newest event stands before the oldest."""
    kernel, warp = plain(), FakeWarp()
    for i in range(20):
        warp.event(4, 10 * i + 1 + (WRAP - 5000 if i >= 12 else 0))
    assert kinds(traced(tmp_path, kernel, warp)) == {"torn_ring": 16, "unclosed_warp": 1}


def test_payloads_turn_with_their_events(tmp_path: Path) -> None:
    kernel = FakeKernel("k", ring=True)
    kernel.mark("v", PayloadType.I32)
    for end in (False, True):
        warp = FakeWarp()
        for i in range(21):
            warp.event(1, 10 * i + 1, payload=1000 + i)
        if end:
            warp.exit(500)
        trace = traced(tmp_path / str(end), kernel, warp)
        assert trace.markers.bits.tolist() == [1000 + i for i in range(13, 21)]


# ------------------------------------------------------------------------------------------------- tags that repeat
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(ring_programs(), st.integers(1, 3))
def test_tags_that_come_again_agree_with_the_plain_decoder(
    program: tuple[int, int, int, list[FakeWarp]], bits: int
) -> None:
    """With tags of 1 to 3 bits: every warp has starts that share one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "tag", lambda number, lane, *, lanes: number & (1 << bits) - 1 | lane << 11)
        patch.setattr(rings_module, "TAG_LANE_SHIFT", bits)
        check(program, ring=True)
