"""Random streams, well-formed and not: the vectorised decoder must agree with the plain one in every column."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import WarpResult, decode_ring, decode_warp

from warptrace.decode import blocks as blocks_module
from warptrace.decode import decode
from warptrace.decode import events as events_module
from warptrace.raw import read_capture
from warptrace.raw.format import REGION_OFFSET_FIELD
from warptrace.trace import Trace
from warptrace.wire import PayloadType

KINDS = ("mark", "push", "pop", "start", "end", "switch")
PAIRING = (
    "unpaired_push", "unpaired_pop", "unpaired_start", "unpaired_end", "ambiguous_end", "lost_push", "lost_start",
    "torn_ring",
)  # fmt: skip


def make_kernel(stride: int, ring: bool = False) -> FakeKernel:
    kernel = FakeKernel("random", stride=stride, ring=ring)
    payload = PayloadType.I16 if stride == 16 else PayloadType.NONE
    kernel.mark("m", payload)
    kernel.push("p", payload)
    kernel.pop()
    kernel.start("t", payload)
    kernel.end("", payload)
    kernel.switch("s", payload)
    kernel.push("q")
    return kernel


@st.composite
def warps(draw: st.DrawFn, number: int) -> FakeWarp:
    """A warp of random events; with ``tidy`` lane 0 never pops too much, with ``once`` a token ends once."""
    warp = FakeWarp(cta=(number, 0, 0), sm=draw(st.integers(0, 2)), start_ns=1000 + 100 * number)
    lanes = draw(st.sampled_from([(0,), (0,), (0, 3), (0, 1, 31), (5,)]))
    tidy, once = draw(st.booleans()), draw(st.booleans())
    tokens: list[int] = []
    depth = 0
    at = 0
    for _ in range(draw(st.integers(0, 40))):
        at += draw(st.sampled_from([0, 1, 7, 300]))
        site = draw(st.integers(1, 7))
        lane = draw(st.sampled_from(lanes))
        payload = draw(st.integers(0, 2**17))
        if tidy and lanes == (0,):
            if site in (3, 6) and depth == 0:
                continue
            depth += {2: 1, 7: 1, 3: -1}.get(site, 0)
        if site == 5:
            choice = draw(st.integers(0, 9))
            if choice == 0 and not once:
                warp.event(site, at, lane=lane, payload=payload, raw_link=draw(st.integers(0, 65535)))
            elif tokens:
                token = tokens[draw(st.integers(0, len(tokens) - 1))]
                if once or choice < 6:
                    tokens.remove(token)
                warp.event(site, at, lane=lane, payload=payload, token=token)
            continue
        index = warp.event(site, at, lane=lane, payload=payload)
        if site == 4:
            tokens.append(index)
    if draw(st.integers(0, 9)):
        warp.exit(at + draw(st.integers(0, 50)))
    return warp


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, int, int, list[FakeWarp]]:
    stride = draw(st.sampled_from([8, 16]))
    main_bytes = draw(st.sampled_from([128, 256, 1024]))
    lane_bytes = draw(st.sampled_from([128, 512]))
    count = draw(st.integers(1, 4))
    return stride, main_bytes, lane_bytes, [draw(warps(n)) for n in range(count)]


def rows(trace: Trace, warp: int) -> tuple[list[tuple], list[tuple]]:
    r, m = trace.ranges, trace.markers
    ranges = [
        (
            trace.strings[r.name[i]], int(r.kind[i]), int(r.lane[i]), int(r.depth[i]), int(r.start_cycle[i]),
            int(r.end_cycle[i]), int(r.start_seq[i]), int(r.end_seq[i]),
            (int(r.start_type[i]), int(r.start_bits[i])), (int(r.end_type[i]), int(r.end_bits[i])),
        )
        for i in range(len(r)) if r.warp[i] == warp
    ]  # fmt: skip
    markers = [
        (trace.strings[m.name[i]], int(m.lane[i]), int(m.cycle[i]), int(m.seq[i]), (int(m.type[i]), int(m.bits[i])))
        for i in range(len(m))
        if m.warp[i] == warp
    ]
    return ranges, markers


@st.composite
def ring_programs(draw: st.DrawFn) -> tuple[int, int, int, list[FakeWarp]]:
    """Rings of 4 to 64 slots, where all lanes lead; few enough for warps to turn them several times."""
    stride = draw(st.sampled_from([8, 16]))
    main_bytes = draw(st.sampled_from([128, 256, 512]))
    count = draw(st.integers(1, 4))
    return stride, main_bytes, 128, [draw(warps(n)) for n in range(count)]


def open_rows(trace: Trace, warp: int) -> list[tuple]:
    r = trace.open
    return [
        (
            trace.strings[r.name[i]], int(r.kind[i]), int(r.lane[i]), int(r.depth[i]), int(r.start_cycle[i]),
            int(r.start_seq[i]), (int(r.start_type[i]), int(r.start_bits[i])),
        )
        for i in range(len(r)) if r.warp[i] == warp
    ]  # fmt: skip


def check(program: tuple[int, int, int, list[FakeWarp]], *, ring: bool = False) -> None:
    stride, main_bytes, lane_bytes, warp_list = program
    kernel = make_kernel(stride, ring)
    device = FakeDevice(bank_bytes=1 << 17, slack=1 << 15)
    device.launch(kernel, warp_list, grid=(len(warp_list), 1, 1), main_bytes=main_bytes, lane_bytes=lane_bytes)
    with tempfile.TemporaryDirectory() as folder:
        capture = read_capture(write_capture(Path(folder) / "c", [device], [kernel]))
        offsets = {int(h["cta"][0]): int(h[REGION_OFFSET_FIELD]) for b in capture.batches() for h in b.headers}
        trace = decode([capture])
    assert len(offsets) == len(warp_list)
    if ring:
        lane_slots = 64 // stride
        expected = [decode_ring(kernel, w, main_bytes // stride, lane_slots, lanes=True) for w in warp_list]
    else:
        expected = [decode_warp(kernel, w, offsets[w.cta[0]], main_bytes, lane_bytes) for w in warp_list]
    for number, result in enumerate(expected):
        assert rows(trace, number) == (result.ranges, result.markers)
        assert open_rows(trace, number) == result.open
        closed = warp_list[number].exit_at is not None
        assert int(trace.warps.events[number]) == result.stored
        assert int(trace.warps.lost[number]) == (result.lost if closed else 0)
    check_problems(trace, expected)
    check_times(trace)


def check_problems(trace: Trace, expected: list[WarpResult]) -> None:
    for kind in PAIRING:
        found = sum(p.count for p in trace.problems if p.kind == kind)
        assert found == sum(r.counts.get(kind, 0) for r in expected), kind


def check_times(trace: Trace) -> None:
    """Program order is never contradicted, and a range lies inside its warp."""
    r, w = trace.ranges, trace.warps
    assert (r.start_ns <= r.end_ns).all()
    assert ((r.start_cycle == r.end_cycle) <= (r.start_ns == r.end_ns)).all()
    assert (r.start_ns >= w.start_ns[r.warp]).all()
    assert (r.end_ns <= w.end_ns[r.warp]).all()
    assert (w.start_ns >= 0).all()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_agrees_with_the_plain_decoder(program: tuple[int, int, int, list[FakeWarp]]) -> None:
    check(program)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(ring_programs())
def test_rings_agree_with_the_plain_decoder(program: tuple[int, int, int, list[FakeWarp]]) -> None:
    check(program, ring=True)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(ring_programs())
def test_blocks_of_rings_do_not_show(program: tuple[int, int, int, list[FakeWarp]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_EVENTS", 5)
        check(program, ring=True)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_blocks_do_not_show(program: tuple[int, int, int, list[FakeWarp]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_EVENTS", 5)
        check(program)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), ring_programs())
def test_streams_copied_one_by_one_agree_too(
    program: tuple[int, int, int, list[FakeWarp]], of_rings: tuple[int, int, int, list[FakeWarp]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module, "LONG", 0)
        check(program)
        check(of_rings, ring=True)
