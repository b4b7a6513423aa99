"""Decoding small hand-made captures: exact columns, identities and problems."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace import wire
from warptrace.decode import decode
from warptrace.export import write_iket_json
from warptrace.raw import Capture, read_capture
from warptrace.trace import RANGE_STACK, RANGE_TOKEN, Problem, Trace
from warptrace.wire import EventKind, PayloadType

START_NS = 80
"""Where an entry at a multiple of 32 ns comes to lie if it is the earliest: the epoch is 64 ns before it, and of
[g - 4, g + 36) the middle is taken."""


def one_to_one() -> FakeDevice:
    """A device whose SMs run at one cycle a ns, so that cycles and ns can be compared exactly."""
    return FakeDevice(rates={k: Fraction(1) for k in range(8)}, bank_bytes=1 << 16)


def run(tmp_path: Path, device: FakeDevice, *kernels: FakeKernel) -> Trace:
    return decode([capture(tmp_path, device, *kernels)])


def capture(tmp_path: Path, device: FakeDevice, *kernels: FakeKernel) -> Capture:
    return read_capture(write_capture(tmp_path / "capture", [device], kernels))


def problems(trace: Trace) -> list[tuple[str, int, int | None]]:
    return [(p.kind, p.count, p.launch) for p in trace.problems]


def kinds(trace: Trace) -> dict[str, int]:
    counts: dict[str, int] = {}
    for p in trace.problems:
        counts[p.kind] = counts.get(p.kind, 0) + p.count
    return counts


# ------------------------------------------------------------------------------------------------------- columns
def test_every_column_of_a_small_trace(tmp_path: Path) -> None:
    kernel = FakeKernel("gemm")
    load, load_end = kernel.start("load", PayloadType.I32), kernel.end("load", PayloadType.I32)
    push, pop = kernel.push("tile", PayloadType.U64), kernel.pop()
    mark = kernel.mark("tick", PayloadType.F32)
    switch = kernel.switch("store")
    warp = FakeWarp(cta=(1, 0, 0), warp=2, sm=5, start_ns=3200)
    token = warp.event(load, 10, payload=0xFFFFFFFF)
    warp.event(push, 20, payload=2**63)
    warp.event(mark, 20, payload=0x7FC00000)
    warp.event(load_end, 300, token=token, payload=7)
    warp.event(switch, 400)
    warp.event(pop, 500)
    warp.exit(32000)
    device = one_to_one()
    grid_id = device.launch(kernel, [warp], grid=(2, 1, 1), block=(96, 1, 1), cluster=(2, 1, 1), grid_id=17)
    trace = run(tmp_path, device, kernel)

    assert trace.epoch_ns == EPOCH_NS + 3200 - 64
    assert trace.strings == ("load", "tile", "tick", "store")
    assert [(s.id, s.kind, s.name, s.payload, s.file, s.line) for s in trace.sites[:2]] == [
        (1, EventKind.START, "load", PayloadType.I32, "kernel.py", 10),
        (2, EventKind.END, "load", PayloadType.I32, "kernel.py", 20),
    ]
    (launch,) = trace.launches
    assert grid_id == 17
    uncertainty = launch.clock_uncertainty_ns
    assert 23 <= uncertainty <= 23.2  # 20, 1.6 that the clock may wander in 32 us, a cycle and the rounding
    assert dataclasses.asdict(launch) == {
        "index": 0, "process": 0, "device": 0, "context_id": 1, "grid_id": 17, "kernel": "gemm",
        "symbol": "kernel_gemm_0", "kernel_id": kernel.id, "grid": (2, 1, 1), "block": (96, 1, 1),
        "cluster": (2, 1, 1), "start_ns": START_NS, "end_ns": START_NS + 32000, "warps_recorded": 1,
        "warps_expected": 6, "events": 6, "lost_events": 0, "lost_warps": 0,
        "clock_uncertainty_ns": uncertainty, "graph": None, "selection": None, "stream": None,
    }  # fmt: skip
    warps = {f.name: getattr(trace.warps, f.name).tolist() for f in dataclasses.fields(trace.warps)}
    assert warps == {
        "launch": [0], "cta": [[1, 0, 0]], "warp": [2], "sm": [5], "tpc": [-1], "gpc": [-1],
        "start_ns": [START_NS], "end_ns": [START_NS + 32000], "start_cycle": [device.clock64(5, 3200)],
        "cycles": [32000], "events": [6], "lost": [0], "closed": [1],
    }  # fmt: skip
    ranges = {f.name: getattr(trace.ranges, f.name).tolist() for f in dataclasses.fields(trace.ranges)}
    assert ranges == {
        "warp": [0, 0, 0],
        "name": [0, 1, 3],
        "kind": [RANGE_TOKEN, RANGE_STACK, RANGE_STACK],
        "lane": [0, 0, 0],
        "depth": [0, 0, 0],
        "start_ns": [START_NS + 10, START_NS + 20, START_NS + 400],
        "end_ns": [START_NS + 300, START_NS + 400, START_NS + 500],
        "start_cycle": [10, 20, 400],
        "end_cycle": [300, 400, 500],
        "start_seq": [0, 1, 4],
        "end_seq": [3, 4, 5],
        "start_type": [PayloadType.I32, PayloadType.U64, PayloadType.NONE],
        "start_bits": [0xFFFFFFFF, 2**63, 0],
        "end_type": [PayloadType.I32, PayloadType.NONE, PayloadType.NONE],
        "end_bits": [7, 0, 0],
        "start_site": [0, 2, 5],
        "end_site": [1, 5, 3],
    }
    markers = {f.name: getattr(trace.markers, f.name).tolist() for f in dataclasses.fields(trace.markers)}
    assert markers == {
        "warp": [0], "name": [2], "lane": [0], "ns": [START_NS + 20], "cycle": [20], "seq": [2],
        "type": [PayloadType.F32], "bits": [0x7FC00000], "site": [4],
    }  # fmt: skip
    assert trace.problems == ()
    assert trace.emulated
    assert trace.processes[0].pid == 4242
    assert trace.meta["clocks"][0]["rate_from"] == ["sm"]


def test_column_types_are_those_of_the_trace(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    push, pop = kernel.push("p"), kernel.pop()
    warp = FakeWarp().exit(100)
    warp.event(push, 1)
    warp.event(pop, 2)
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    types = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "U64": np.uint64}
    for table in (trace.warps, trace.ranges, trace.markers):
        for f in dataclasses.fields(table):
            assert getattr(table, f.name).dtype == types[str(f.type)], f.name


def test_nothing_at_all() -> None:
    trace = decode([])
    assert (trace.epoch_ns, trace.launches, len(trace.warps), len(trace.ranges), len(trace.markers)) == (0, (), 0, 0, 0)
    assert trace.warps.cta.shape == (0, 3)
    assert trace.problems == ()


def test_a_warp_without_events(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("never")
    device = one_to_one()
    device.launch(kernel, [FakeWarp(start_ns=64).exit(960)])
    trace = run(tmp_path, device, kernel)
    assert trace.launches[0].events == 0
    assert (trace.warps.end_ns - trace.warps.start_ns).tolist() == [960]


# -------------------------------------------------------------------------------------------------------- pairing
def test_nesting_depth_and_order(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    a, b, pop = kernel.push("a"), kernel.push("b"), kernel.pop()
    warp = FakeWarp().exit(1000)
    for at, site in enumerate((a, b, b, pop, pop, b, pop, pop)):
        warp.event(site, at)
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    r = trace.ranges
    assert [trace.strings[n] for n in r.name] == ["a", "b", "b", "b"]
    assert r.depth.tolist() == [0, 1, 2, 1]
    assert list(zip(r.start_seq.tolist(), r.end_seq.tolist(), strict=True)) == [(0, 7), (1, 4), (2, 3), (5, 6)]
    assert trace.problems == ()


def test_deeper_than_one_byte(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    push, pop = kernel.push("p"), kernel.pop()
    warp = FakeWarp().exit(10_000)
    for at in range(300):
        warp.event(push, at)
    for at in range(300, 600):
        warp.event(pop, at)
    device = one_to_one()
    device.launch(kernel, [warp], main_bytes=8192)
    trace = run(tmp_path, device, kernel)
    assert trace.ranges.depth.tolist() == list(range(300))
    assert trace.ranges.end_seq.tolist() == list(range(599, 299, -1))


def test_a_pop_of_another_lane_closes_the_innermost_push(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    outer, inner, pop = kernel.push("outer"), kernel.push("inner"), kernel.pop()
    warp = FakeWarp().exit(1000)
    warp.event(outer, 1)
    warp.event(inner, 2, lane=4)
    warp.event(pop, 3, lane=9)
    warp.event(pop, 4, lane=9)
    warp.event(pop, 5, lane=9)
    device = one_to_one()
    device.launch(kernel, [warp], lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    r = trace.ranges
    names = [trace.strings[n] for n in r.name]
    assert list(zip(names, r.lane.tolist(), r.start_seq.tolist(), r.end_seq.tolist(), strict=True)) == [
        ("outer", 0, 0, 3),
        ("inner", 4, 1, 2),
    ]
    assert problems(trace) == [("unpaired_pop", 1, 0)]


def test_lanes_merge_by_cycle_and_ties_go_by_lane(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    marks = [kernel.mark(name) for name in ("zero", "one", "last")]
    warp = FakeWarp().exit(1000)
    warp.event(marks[0], 5)
    warp.event(marks[2], 5, lane=31)
    warp.event(marks[1], 5, lane=1)
    warp.event(marks[0], 4, lane=31)  # the lane's own order holds for its stream, but this is earlier in cycles
    warp.events.sort(key=lambda e: (e.lane, e.at))
    device = one_to_one()
    device.launch(kernel, [warp], lane_bytes=128)
    m = run(tmp_path, device, kernel).markers
    assert list(zip(m.lane.tolist(), m.cycle.tolist(), m.seq.tolist(), strict=True)) == [
        (31, 4, 0),
        (0, 5, 1),
        (1, 5, 2),
        (31, 5, 3),
    ]


def test_tokens_cross_lanes_and_iterations(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    start, end = kernel.start("t"), kernel.end()
    warp = FakeWarp().exit(1000)
    first = warp.event(start, 1)
    second = warp.event(start, 2, lane=3)
    warp.event(end, 3, lane=7, token=first)
    third = warp.event(start, 4)
    warp.event(end, 5, token=second)
    warp.event(end, 6, lane=3, token=third)
    device = one_to_one()
    device.launch(kernel, [warp], lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    r = trace.ranges
    assert list(zip(r.start_cycle.tolist(), r.end_cycle.tolist(), r.lane.tolist(), strict=True)) == [
        (1, 3, 0),
        (2, 5, 3),
        (4, 6, 0),
    ]
    assert trace.problems == ()


def test_what_has_no_partner_is_counted_with_its_place(tmp_path: Path) -> None:
    kernel = FakeKernel("k", file="gemm.py")
    push, pop = kernel.push("tile", line=3), kernel.pop(line=4)
    start, end = kernel.start("load", line=5), kernel.end(line=6)
    warp = FakeWarp(sm=1).exit(1000)
    warp.event(pop, 0)
    token = warp.event(start, 1)
    warp.event(end, 2, token=token)
    warp.event(end, 3, token=token)
    warp.event(start, 4)
    warp.event(push, 5)
    warp.event(push, 6)
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert [(p.kind, p.count, p.text) for p in trace.problems] == [
        ("unpaired_push", 2, "2 ranges pushed but never popped: tile (gemm.py:3) x 2"),
        ("unpaired_pop", 1, "1 ranges popped or switched with nothing open: (gemm.py:4) x 1"),
        ("unpaired_start", 1, "1 ranges started but never ended: load (gemm.py:5) x 1"),
        ("unpaired_end", 1, "1 ranges ended without a start that is open: (gemm.py:6) x 1"),
    ]
    assert trace.ranges.start_seq.tolist() == [1]
    assert trace.ranges.end_seq.tolist() == [2]


def test_a_token_ends_once(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    start, end = kernel.start("t"), kernel.end()
    warp = FakeWarp().exit(1000)
    token = warp.event(start, 1)
    for at in (2, 3, 4):
        warp.event(end, at, token=token)
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert trace.ranges.end_cycle.tolist() == [2]
    assert kinds(trace) == {"unpaired_end": 2}


def test_an_end_before_its_start_is_none(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    start, end = kernel.start("t"), kernel.end()
    warp = FakeWarp().exit(1000)
    token = warp.event(start, 10)
    warp.event(end, 5, lane=3, token=token)
    device = one_to_one()
    device.launch(kernel, [warp], lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    assert len(trace.ranges) == 0
    assert kinds(trace) == {"unpaired_end": 1, "unpaired_start": 1}


@pytest.mark.parametrize(("at", "expected"), [(50, {"ambiguous_end": 1, "unpaired_start": 1}), (15, {})])
def test_a_start_that_was_lost_may_be_meant(tmp_path: Path, at: int, expected: dict[str, int]) -> None:
    """Lane 0 runs out of slots; the addresses that its lost events would have had are slots of lane 1."""
    kernel = FakeKernel("k")
    mark, start, end = kernel.mark("m"), kernel.start("t"), kernel.end()
    warp = FakeWarp().exit(1000)
    own = warp.event(start, 1, lane=1)
    for k in range(17):
        warp.event(mark, 2 + k)  # 16 fit
    lost_start = warp.event(start, 20)
    # Before lane 0's last stored event (17) no start of it can have been lost yet.
    warp.event(end, at, lane=2, token=lost_start if at == 50 else own)
    device = one_to_one()
    device.launch(kernel, [warp], main_bytes=128, lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    found = kinds(trace)
    assert found.pop("lost_events") == 2
    assert found == expected
    assert trace.ranges.end_cycle.tolist() == ([15] if at == 15 else [])


def test_a_link_that_names_no_start_is_not_a_range(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark, end, start = kernel.mark("m"), kernel.end(), kernel.start("t")
    warp = FakeWarp().exit(1000)
    place = wire.ARENA_OFFSET + wire.REGION_HEADER_BYTES
    warp.event(mark, 0)
    warp.event(end, 1, raw_link=place // 8 & 0xFFFF)  # a mark
    warp.event(end, 2, raw_link=(place + 24) // 8 & 0xFFFF)  # the start that only follows
    warp.event(start, 3)
    warp.event(end, 4, raw_link=(place - 8) // 8 & 0xFFFF)  # the header
    warp.event(end, 5, raw_link=(place + 48) // 8 & 0xFFFF)  # a slot that was never written
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert len(trace.ranges) == 0
    assert kinds(trace) == {"unpaired_end": 4, "unpaired_start": 1}


def test_links_of_a_region_beyond_the_limit_are_taken_only_when_clear(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    start, end, mark = kernel.start("t"), kernel.end(), kernel.mark("m")
    warp = FakeWarp().exit(10**6)
    count = wire.MAX_REGION_BYTES // 8  # after as many slots the links repeat
    first = warp.event(start, 0)
    for at in range(1, count):
        warp.event(mark, at)
    again = warp.event(start, count)
    warp.event(end, count + 1, token=again)
    warp.event(mark, count + 2)
    device = FakeDevice(bank_bytes=1 << 20, slack=1 << 16)
    device.launch(kernel, [warp], main_bytes=wire.MAX_REGION_BYTES + 1024)
    trace = run(tmp_path / "a", device, kernel)
    assert len(trace.ranges) == 0
    assert kinds(trace) == {"ambiguous_end": 1, "unpaired_start": 2}

    # An end before the links repeat has one start that is open, and so has the end of the second range then.
    warp.events[1] = dataclasses.replace(warp.events[1], site=end, token=first)
    device = FakeDevice(bank_bytes=1 << 20, slack=1 << 16)
    device.launch(kernel, [warp], main_bytes=wire.MAX_REGION_BYTES + 1024)
    trace = run(tmp_path / "b", device, kernel)
    assert trace.problems == ()
    assert list(zip(trace.ranges.start_seq.tolist(), trace.ranges.end_seq.tolist(), strict=True)) == [
        (0, 1),
        (count, count + 1),
    ]


# ---------------------------------------------------------------------------------------------------------- clocks
def test_clocks_unwrap_along_the_stream(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    step = 2**32 - 1
    at = [0, step, 2 * step, 2 * step, 3 * step + 5]
    at = [at[0], at[1], at[2], at[3], at[3] + step]
    warp = FakeWarp(sm=2).exit(at[-1] + step)
    for cycle in at:
        warp.event(mark, cycle)
    device = one_to_one()
    device.offsets[2] = 2**32 - 7
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert trace.markers.cycle.tolist() == at
    assert (trace.markers.ns - trace.warps.start_ns[0]).tolist() == pytest.approx(at, abs=40)
    assert trace.problems == ()


def test_a_silence_of_a_whole_wrap_is_reported(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    silent = FakeWarp(warp=0).exit(2**32 + 10)
    silent.event(mark, 10)
    short = FakeWarp(warp=1).exit(2**32 + 9)
    short.event(mark, 10)
    device = one_to_one()
    device.launch(kernel, [silent, short], block=(64, 1, 1))
    trace = run(tmp_path, device, kernel)
    assert problems(trace) == [("clock", 1, 0)]
    assert "2**32" in trace.problems[0].text


def test_an_event_after_the_exit_is_reported(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warp = FakeWarp().exit(100)
    warp.event(mark, 101)
    device = one_to_one()
    device.launch(kernel, [warp])
    trace = run(tmp_path, device, kernel)
    assert problems(trace) == [("clock", 1, 0)]
    assert trace.markers.cycle.tolist() == [101]


def test_an_unclosed_warp_ends_with_its_last_event(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    hung, idle = FakeWarp(warp=0, start_ns=0), FakeWarp(warp=1, start_ns=0)
    hung.event(mark, 7)
    hung.event(mark, 5_000_000, lane=2)
    hung.event(mark, 10_000, lane=3)
    done = FakeWarp(warp=2, start_ns=0).exit(32_000)
    device = one_to_one()
    device.launch(kernel, [hung, idle, done], block=(96, 1, 1), lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    w = trace.warps
    assert w.closed.tolist() == [0, 0, 1]
    assert w.cycles.tolist() == [-1, -1, 32_000]
    length = (w.end_ns - w.start_ns).tolist()
    assert length[1:] == [0, 32_000]
    assert length[0] == trace.markers.ns.max() - w.start_ns[0] == pytest.approx(5_000_000, rel=2e-3)
    assert problems(trace) == [("unclosed_warp", 2, 0)]
    # Far behind the last anchor the rate counts, and that is stated.
    assert abs(length[0] - 5_000_000) < trace.launches[0].clock_uncertainty_ns < 20_000


def test_equal_cycles_give_equal_ns_and_zero_length_stays_zero(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    push, pop = kernel.push("p"), kernel.pop()
    warps = []
    for number in range(4):
        warp = FakeWarp(warp=number, sm=0, start_ns=Fraction(123457, 10)).exit(90_001)
        for at in range(0, 3000, 3):
            warp.event(push, at)
            warp.event(pop, at)
        warps.append(warp)
    device = FakeDevice(rates={0: Fraction(17, 10)}, bank_bytes=1 << 20)
    device.launch(kernel, warps, block=(128, 1, 1), main_bytes=16384)
    trace = run(tmp_path, device, kernel)
    r = trace.ranges
    assert (r.end_ns == r.start_ns).all()
    by_warp = r.start_ns.reshape(4, -1)
    assert (by_warp == by_warp[0]).all()
    assert (np.diff(by_warp[0]) >= 1).all() and (np.diff(by_warp[0]) <= 2).all()


# ------------------------------------------------------------------------------------------------------------ loss
@pytest.mark.parametrize("stride", [8, 16])
def test_lost_events_at_the_limit_and_beyond(tmp_path: Path, stride: int) -> None:
    kernel = FakeKernel("k", stride=stride)
    mark = kernel.mark("m")
    room = 256 // stride
    lane_room = (128 - wire.LANE_HEADER_BYTES) // stride
    warps = []
    for number, (main, lane) in enumerate(((room, lane_room), (room + 1, lane_room), (room, lane_room + 2))):
        warp = FakeWarp(warp=number).exit(10_000)
        for at in range(main):
            warp.event(mark, at)
        for at in range(lane):
            warp.event(mark, at, lane=3)
        warps.append(warp)
    device = one_to_one()
    device.launch(kernel, warps, block=(96, 1, 1), main_bytes=256, lane_bytes=128)
    trace = run(tmp_path, device, kernel)
    assert trace.warps.events.tolist() == [room + lane_room] * 3
    assert trace.warps.lost.tolist() == [0, 1, 2]
    assert problems(trace) == [("lost_events", 3, 0)]
    assert (trace.launches[0].events, trace.launches[0].lost_events) == (3 * (room + lane_room), 3)


def test_warps_without_room_keep_their_place_and_count(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warps = []
    for number in range(4):
        warp = FakeWarp(cta=(number // 2, 0, 0), warp=number % 2, start_ns=320 * number, sm=0).exit(3200)
        for at in range(5):
            warp.event(mark, at)
        warp.event(mark, 9, lane=2)
        warps.append(warp)
    big = 1024 * 13
    device = FakeDevice(rates={0: Fraction(1)}, bank_bytes=1 << 16)
    size = wire.region_bytes(big, 128)
    device.launch(kernel, warps, grid=(2, 1, 1), block=(64, 1, 1), main_bytes=big, lane_bytes=128)
    assert 3 * size < 1 << 16 < 4 * size
    trace = run(tmp_path, device, kernel)
    w = trace.warps
    assert w.events.tolist() == [6, 6, 6, 0]
    assert w.lost.tolist() == [0, 0, 0, 6]
    assert w.cta[:, 0].tolist() == [0, 0, 1, 1]
    assert w.warp.tolist() == [0, 1, 0, 1]
    assert w.start_ns[3] == w.end_ns[3]
    assert w.end_ns[3] == EPOCH_NS + 960 + 3200 - trace.epoch_ns
    assert w.cycles.tolist() == [3200, 3200, 3200, -1]
    launch = trace.launches[0]
    assert (launch.warps_recorded, launch.lost_warps, launch.events, launch.lost_events) == (3, 1, 18, 6)
    assert problems(trace) == [("lost_events", 6, 0), ("lost_warps", 1, 0)]
    assert trace.markers.warp.max() == 2


def test_a_launch_of_which_nothing_was_recorded(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warp = FakeWarp(cta=(3, 0, 0), start_ns=640).exit(320)
    warp.event(mark, 1)
    device = one_to_one()
    device.launch(kernel, [warp], grid=(4, 1, 1), main_bytes=1 << 17)
    trace = run(tmp_path, device, kernel)
    (launch,) = trace.launches
    assert (launch.kernel, launch.grid, launch.warps_recorded, launch.lost_warps, launch.lost_events) == (
        "k", (0, 0, 0), 0, 1, 1,
    )  # fmt: skip
    assert launch.start_ns == launch.end_ns == EPOCH_NS + 960 - trace.epoch_ns


def test_loss_beyond_the_lost_table_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LOST_CAPACITY", 2)
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warps = []
    for number in range(5):
        warp = FakeWarp(warp=number).exit(10)
        for at in range(number + 1):
            warp.event(mark, at)
        warps.append(warp)
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, warps, block=(160, 1, 1), main_bytes=1 << 17)
    trace = run(tmp_path, device, kernel)
    assert [(p.kind, p.count, p.launch) for p in trace.problems] == [
        ("lost_events", 3 + 4 + 5, None),
        ("lost_warps", 3, None),
        ("lost_events", 1 + 2, 0),
        ("lost_warps", 2, 0),
    ]


def test_a_lost_table_that_was_drained_twice_counts_once(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warp = FakeWarp().exit(10)
    warp.event(mark, 1)
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [warp], main_bytes=1 << 17)
    whole = capture(tmp_path, device, kernel)
    doubled = dataclasses.replace(whole, chunks=whole.chunks + whole.chunks)
    assert problems(decode([doubled])) == problems(decode([whole])) == [("lost_events", 1, 0), ("lost_warps", 1, 0)]


# -------------------------------------------------------------------------------------------------------- launches
def two_warps(kernel: FakeKernel, start: int, sm: int = 0) -> list[FakeWarp]:
    warps = []
    for number in range(2):
        warp = FakeWarp(warp=number, sm=sm, start_ns=start + 32 * number).exit(640)
        warp.event(1, 10)
        warps.append(warp)
    return warps


def test_launches_come_in_start_order_and_warps_by_cta(tmp_path: Path) -> None:
    first, second = FakeKernel("first"), FakeKernel("second")
    for kernel in (first, second):
        kernel.mark("m")
    device = one_to_one()
    ctas = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    late = [FakeWarp(cta=c, warp=w, sm=w, start_ns=64_000).exit(960) for c in ctas for w in (1, 0)]
    device.launch(second, late, grid=(2, 2, 2), block=(64, 1, 1), grid_id=1)
    device.launch(first, two_warps(first, 0), block=(64, 1, 1), grid_id=2)
    trace = run(tmp_path, device, second, first)
    assert [(x.kernel, x.grid_id, x.index) for x in trace.launches] == [("first", 2, 0), ("second", 1, 1)]
    w = trace.warps
    assert w.launch.tolist() == [0, 0] + [1] * 8
    assert [(*c, n) for c, n in zip(w.cta.tolist(), w.warp.tolist(), strict=True)][2:] == [
        (0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (1, 0, 0, 1),
        (0, 1, 0, 0), (0, 1, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1),
    ]  # fmt: skip


def test_replays_of_a_graph_are_launches_of_their_own(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    for replay in range(3):
        device.launch(kernel, two_warps(kernel, 100_000 * replay), block=(64, 1, 1), grid_id=9)
        device.launch(kernel, two_warps(kernel, 100_000 * replay + 50_000), block=(64, 1, 1), grid_id=4)
    device.launch(kernel, two_warps(kernel, 400_000), block=(64, 1, 1), grid_id=5)
    trace = run(tmp_path, device, kernel)
    assert [(x.grid_id, x.graph) for x in trace.launches] == [
        (9, ("graph_exec_2", 0)), (4, ("graph_exec_1", 0)), (9, ("graph_exec_2", 1)), (4, ("graph_exec_1", 1)),
        (9, ("graph_exec_2", 2)), (4, ("graph_exec_1", 2)), (5, None),
    ]  # fmt: skip
    assert all(x.warps_recorded == 2 and x.events == 2 for x in trace.launches)
    assert trace.problems == ()


def test_replays_are_split_in_time_even_where_warps_are_missing(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    device.launch(kernel, two_warps(kernel, 0)[:1], block=(64, 1, 1), grid_id=9)
    device.launch(kernel, two_warps(kernel, 100_000), block=(64, 1, 1), grid_id=9)
    trace = run(tmp_path, device, kernel)
    assert [x.warps_recorded for x in trace.launches] == [1, 2]
    assert [x.graph for x in trace.launches] == [("graph_exec_1", 0), ("graph_exec_1", 1)]


def test_lost_warps_go_to_the_replay_they_ended_in(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    parts = []
    for start, size in ((0, 1024), (100_000, 1 << 17), (200_000, 1024)):
        device.launch(kernel, two_warps(kernel, start)[:1], block=(64, 1, 1), grid_id=9)
        device.launch(kernel, two_warps(kernel, start, sm=1)[1:], block=(64, 1, 1), grid_id=9, main_bytes=size)
        parts.append(capture(tmp_path / str(start), device, kernel))
        device.clear()
    chunks = tuple(chunk for part in parts for chunk in part.chunks)
    trace = decode([dataclasses.replace(parts[0], chunks=chunks)])
    assert [(x.warps_recorded, x.lost_warps) for x in trace.launches] == [(2, 0), (1, 1), (2, 0)]
    assert [x.graph for x in trace.launches] == [("graph_exec_1", k) for k in range(3)]
    assert kinds(trace) == {"lost_events": 1, "lost_warps": 1}


def test_replays_of_which_nothing_but_loss_is_left(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    for start, size in ((0, 1024), (100_000, 1 << 17), (200_000, 1 << 17)):
        device.launch(kernel, two_warps(kernel, start), block=(64, 1, 1), grid_id=9, main_bytes=size)
    trace = run(tmp_path, device, kernel)
    assert [(x.warps_recorded, x.lost_warps, x.graph) for x in trace.launches] == [
        (2, 0, ("graph_exec_1", 0)),
        (0, 2, ("graph_exec_1", 1)),
        (0, 2, ("graph_exec_1", 2)),
    ]


def test_graph_nodes_of_two_processes_and_devices_do_not_meet(tmp_path: Path) -> None:
    """All have grid id 9: in JSON each replay of each node is an entry of its own."""
    kernel = FakeKernel("k")
    kernel.mark("m")
    captures = []
    for pid in (10, 11):
        devices = [FakeDevice(k, bank_bytes=1 << 16) for k in (0, 1)]
        for device in devices:
            for start in (0, 100_000):
                device.launch(kernel, two_warps(kernel, start), block=(64, 1, 1), grid_id=9)
        captures.append(read_capture(write_capture(tmp_path / str(pid), devices, [kernel], pid=pid)))
    trace = decode(captures)
    found = {(x.process, x.device, x.graph) for x in trace.launches}
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found == {(*place, (f"graph_exec_{i}", k)) for i, place in enumerate(places, 1) for k in (0, 1)}
    write_iket_json(trace, tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    assert data["launches"] == []
    entries = {key: [x["warptrace"] for x in launches] for key, launches in data["graphLaunches"].items()}
    assert {key: [(x["process"], x["device"]) for x in launches] for key, launches in entries.items()} == {
        f"graph_exec_{i}:{k}": [place] for i, place in enumerate(places, 1) for k in (0, 1)
    }


@pytest.mark.parametrize("seen", [1, 2])
def test_a_snapshot_and_the_final_region_are_one_warp(tmp_path: Path, seen: int) -> None:
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    warp = FakeWarp()
    for at in range(1, seen + 1):
        warp.event(mark, at)
    device = one_to_one()
    device.launch(kernel, [warp], grid_id=3)
    early = capture(tmp_path / "early", device, kernel)
    for at in range(seen + 1, 3):
        warp.event(mark, at)
    device = one_to_one()
    device.launch(kernel, [warp.exit(640)], grid_id=3)
    final = capture(tmp_path / "final", device, kernel)
    for chunks in (early.chunks + final.chunks, final.chunks + early.chunks):
        trace = decode([dataclasses.replace(final, chunks=chunks)])
        assert len(trace.launches) == 1
        assert trace.launches[0].graph is None
        assert trace.warps.closed.tolist() == [1]
        assert trace.markers.cycle.tolist() == [1, 2]
        assert trace.problems == ()


def test_processes_and_devices_stay_apart(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    devices = [FakeDevice(k, bank_bytes=1 << 16) for k in (0, 1)]
    for number, device in enumerate(devices):  # no calibration: as they are
        device.launch(kernel, two_warps(kernel, 10_000 * number), block=(64, 1, 1), grid_id=1)
    a = read_capture(write_capture(tmp_path / "a", devices, [kernel], pid=10))
    b = read_capture(write_capture(tmp_path / "b", devices[:1], [kernel], pid=11))
    trace = decode([a, b])
    assert [(x.process, x.device) for x in trace.launches] == [(0, 0), (1, 0), (0, 1)]
    assert [p.pid for p in trace.processes] == [10, 11]
    assert len(trace.sites) == 1
    assert len(trace.markers) == 6
    assert all(x.graph is None for x in trace.launches)


def two_devices(tmp_path: Path, clocks: list[tuple[int, int, int]]) -> Trace:
    """Two devices that run at the same true times; the timer of the second is 92 us ahead. ``clocks``: (device, true
    ns, error of the calibration)."""
    kernel = FakeKernel("k")
    kernel.mark("m")
    devices = [FakeDevice(k, bank_bytes=1 << 16, timer_ahead_ns=92_000 * k) for k in (0, 1)]
    for device in devices:
        device.launch(kernel, two_warps(kernel, 6_400), block=(64, 1, 1))
    whole = read_capture(write_capture(tmp_path / "c", devices, [kernel]))
    manifest = dict(whole.manifest)
    manifest["clocks"] = [
        {"device": d, "host_unix_ns": EPOCH_NS + ns + 500, "globaltimer_ns": EPOCH_NS + ns + 92_000 * d + error,
         "uncertainty_ns": 1000}
        for d, ns, error in clocks
    ]  # fmt: skip
    return decode([dataclasses.replace(whole, manifest=manifest)])


def apart(trace: Trace) -> np.ndarray:
    """How much later the two warps of device 1 start than those of device 0."""
    device = np.array([x.device for x in trace.launches])[trace.warps.launch]
    return trace.warps.start_ns[device == 1] - trace.warps.start_ns[device == 0]


def test_calibrated_devices_share_a_timeline(tmp_path: Path) -> None:
    trace = two_devices(tmp_path, [(0, 0, 0), (0, 10**9, 0), (1, 0, 0), (1, 10**9, 64)])
    assert np.abs(apart(trace)).max() <= 32
    first, second = trace.meta["alignment"]
    assert (first["process"], first["device"], first["shift_ns"], first["uncertainty_ns"]) == (0, 0, 0, 0.0)
    assert (second["process"], second["device"], second["shift_ns"]) == (0, 1, -92_000)
    # Two pairs, each good to 1 us, a second apart: the warps stand at their beginning.
    assert 2000 <= second["uncertainty_ns"] <= 2001
    assert second["drift_ppm"] == pytest.approx(-0.064)
    assert second["drift_uncertainty_ppm"] == pytest.approx(2 + 1)
    assert trace.problems == ()


def test_devices_that_cannot_be_aligned_are_reported(tmp_path: Path) -> None:
    trace = two_devices(tmp_path, [(0, 0, 0)])
    assert problems(trace) == [("clock", 1, None)]
    assert np.abs(apart(trace) - 92_000).max() <= 33
    assert [(x["device"], x["shift_ns"]) for x in trace.meta["alignment"]] == [(0, 0)]


# --------------------------------------------------------------------------------------------------- what is unknown
def test_an_unknown_kernel_keeps_its_warps(tmp_path: Path) -> None:
    known, unknown = FakeKernel("known"), FakeKernel("unknown")
    for kernel in (known, unknown):
        kernel.mark("m")
    device = one_to_one()
    device.launch(unknown, two_warps(unknown, 0), block=(64, 1, 1))
    device.launch(known, two_warps(known, 64_000), block=(64, 1, 1))
    trace = run(tmp_path, device, known)
    assert [x.kernel for x in trace.launches] == [f"unknown_kernel_{unknown.id:016x}", "known"]
    assert trace.launches[0].symbol == trace.launches[0].kernel
    assert problems(trace) == [("unknown_kernel", 2, 0)]
    assert trace.warps.events.tolist() == [1, 1, 1, 1]
    assert trace.markers.warp.tolist() == [2, 3]


def test_an_unknown_site_is_counted_and_keeps_its_place(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    mark, extra = kernel.mark("m"), kernel.mark("extra")
    warp = FakeWarp().exit(100)
    for at, site in enumerate((mark, extra, mark)):
        warp.event(site, at)
    device = one_to_one()
    device.launch(kernel, [warp])
    whole = capture(tmp_path, device, kernel)
    short = dataclasses.replace(kernel.record, sites=kernel.record.sites[:1])
    trace = decode([dataclasses.replace(whole, kernels={kernel.id: short})])
    assert trace.problems == (
        Problem("unknown_site", 1, "1 events of sites that the kernel's record does not have: 2", 0),
    )
    assert trace.markers.seq.tolist() == [0, 2]


def test_impossible_headers_are_left_out_and_counted(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    warps = two_warps(kernel, 0)
    warps[1].cta = (1, 0, 0)
    device.launch(kernel, warps, grid=(1, 1, 1), block=(64, 1, 1))
    trace = run(tmp_path, device, kernel)
    assert len(trace.warps) == 1
    assert kinds(trace) == {"damaged_region": 1}
    assert "with 1 events" in trace.problems[0].text


def test_the_bits_beyond_a_payloads_type_are_cleared(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    for kind in (PayloadType.I8, PayloadType.BOOL, PayloadType.U16, PayloadType.F64, PayloadType.NONE):
        kernel.mark(kind.name, kind)
    warp = FakeWarp().exit(100)
    for site in range(1, 6):
        warp.event(site, site, payload=2**64 - 1)
    device = one_to_one()
    device.launch(kernel, [warp])
    m = run(tmp_path, device, kernel).markers
    assert m.bits.tolist() == [0xFF, 1, 0xFFFF, 2**64 - 1, 0]
    assert m.type.tolist() == [1, 15, 4, 14, 0]


def test_damage_of_the_capture_is_a_problem_of_the_trace(tmp_path: Path) -> None:
    kernel = FakeKernel("k")
    kernel.mark("m")
    device = one_to_one()
    device.launch(kernel, two_warps(kernel, 0), block=(64, 1, 1))
    base = int(device.banks["base"][0])
    device.memory[base : base + 4] = 0  # the first region's magic
    trace = run(tmp_path, device, kernel)
    assert kinds(trace) == {"damaged_region": 1}
    assert "1152 bytes" in trace.problems[0].text
    assert trace.warps.warp.tolist() == [1]
