"""Room: what is kept and what is counted as lost when a warp outgrows its region, or finds none."""

# ruff: noqa: B007, SIM102 (kernels are written as the DSL compiles them)

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket
from warptrace import wire
from warptrace.runtime.layout import Layout, plan
from warptrace.runtime.options import MIN_BUFFER_BYTES

from .model import Warp, differences, i32
from .table import Case, Const, Launch, Scalar, zeros

ONE = (1, 1, 1)
BLOCK = (64, 1, 1)
T = np.arange(64, dtype=np.int32)


def lane_room(events: int, stride: int, group: int = 1) -> int:
    """Slots that a lane other than 0 gets where ``events`` are asked for and groups have ``group`` events at most.

    Its block is whole lines of 128 bytes, and four slots at least. Its header is in it too, and room for one group
    behind the last slot that counts.
    """
    slack = group * stride
    trim = -wire.LANE_HEADER_BYTES % stride
    asked = events * stride + slack + wire.LANE_HEADER_BYTES
    least = 4 * stride + slack + wire.LANE_HEADER_BYTES + stride
    block = max(-(-size // wire.REGION_ALIGN) * wire.REGION_ALIGN for size in (asked, least))
    return (block - wire.LANE_HEADER_BYTES - slack - trim) // stride


# ------------------------------------------------------------------------------------------------------------ plain
@cute.kernel
def counted(out: cute.Tensor, n: cutlass.Int32, payload: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(n, unroll=1):
        if cutlass.const_expr(payload):
            iket.mark("event", i)
        else:
            iket.mark("event")
    out[tidx] = n


@cute.jit
def counted_host(out: cute.Tensor, n: cutlass.Int32, payload: cutlass.Constexpr):
    counted(out, n, payload).launch(grid=[1, 1, 1], block=[64, 1, 1])


def counted_case(n: int, room: int, payload: bool) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int, payload: bool) -> None:
        for i in range(n):
            w.mark("event", i32(i) if payload else None)
        w.cut(0, room)

    return Case(
        f"room_{room}_for_{n}{'_payload' if payload else ''}",
        counted_host,
        [zeros(64), Scalar(n), Const(payload)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n, _: {0: np.full(64, n, np.int32)},
        max_events=room,
    )


# ---------------------------------------------------------------------------------------------------------- grouped
@cute.kernel
def grouped(out: cute.Tensor):
    """20 events in one straight line: groups of at most 8 share one room test, and still exactly ``room`` are kept."""
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(10):
        iket.range_push(f"range {i}", i)
        iket.range_pop()
    out[tidx] = tidx


@cute.jit
def grouped_host(out: cute.Tensor):
    grouped(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def grouped_case(room: int) -> Case:
    def expect(w: Warp, out: np.ndarray) -> None:
        for i in range(10):
            w.push(f"range {i}", i32(i))
            w.pop()
        w.cut(0, room)

    return Case(
        f"room_{room}_for_20_grouped",
        grouped_host,
        [zeros(64)],
        [Launch(expect, ONE, BLOCK)],
        lambda out: {0: T},
        max_events=room,
    )


@cute.kernel
def grouped_later(out: cute.Tensor, n: cutlass.Int32):
    """One event alone, then 16 in one line: the second group of 8 begins at slot 9 and ends where no line ends."""
    tidx, _, _ = cute.arch.thread_idx()
    if n > 0:
        iket.mark("alone", n)
    for i in cutlass.range_constexpr(16):
        iket.mark(f"event {i}")
    out[tidx] = n


@cute.jit
def grouped_later_host(out: cute.Tensor, n: cutlass.Int32):
    grouped_later(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def grouped_later_case(room: int) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int) -> None:
        w.mark("alone", i32(n))
        for i in range(16):
            w.mark(f"event {i}")
        w.cut(0, room)

    return Case(
        f"room_{room}_for_17_grouped",
        grouped_later_host,
        [zeros(64), Scalar(6)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n: {0: np.full(64, n, np.int32)},
        max_events=room,
    )


# ------------------------------------------------------------------------------------------------------------ lanes
@cute.kernel
def lanes_counted(out: cute.Tensor, n: cutlass.Int32, payload: cutlass.Constexpr):
    """Lane 5 records n events, lanes 30 and 31 record n each, lane 0 two."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    iket.mark("before")
    for i in cutlass.range(n, unroll=1):
        if lane == 5:
            if cutlass.const_expr(payload):
                iket.mark("five", i)
            else:
                iket.mark("five")
        if lane == 31:
            if cutlass.const_expr(payload):
                iket.mark("last", i - 1000)
            else:
                iket.mark("last")
        if lane == 30:
            if cutlass.const_expr(payload):
                iket.mark("last but one", -1)
            else:
                iket.mark("last but one")
    iket.mark("after")
    out[tidx] = n


@cute.jit
def lanes_counted_host(out: cute.Tensor, n: cutlass.Int32, payload: cutlass.Constexpr):
    lanes_counted(out, n, payload).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lanes_case(n: int, room: int, payload: bool) -> Case:
    slots = lane_room(room, 16 if payload else 8)

    def expect(w: Warp, out: np.ndarray, n: int, payload: bool) -> None:
        w.mark("before")
        for i in range(n):
            w.mark("five", i32(i) if payload else None, [5])
            w.mark("last", i32(i - 1000) if payload else None, [31])
            w.mark("last but one", i32(-1) if payload else None, [30])
        w.mark("after")
        w.cut(0, room)
        for lane in (5, 30, 31):
            w.cut(lane, slots)

    return Case(
        f"lanes_room_{room}_for_{n}{'_payload' if payload else ''}",
        lanes_counted_host,
        [zeros(64), Scalar(n), Const(payload)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n, _: {0: np.full(64, n, np.int32)},
        max_events=room,
    )


# ---------------------------------------------------------------------------------------------------- grouped lanes
@cute.kernel
def lanes_grouped(out: cute.Tensor):
    """Twelve events of lane 9 in one straight line: a group of 8 and one of 4."""
    tidx, _, _ = cute.arch.thread_idx()
    if tidx % 32 == 9:
        for i in cutlass.range_constexpr(12):
            iket.mark(f"event {i}", i)
    out[tidx] = tidx


@cute.jit
def lanes_grouped_host(out: cute.Tensor):
    lanes_grouped(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lanes_grouped_case(room: int) -> Case:
    slots = lane_room(room, 16, 8)

    def expect(w: Warp, out: np.ndarray) -> None:
        for i in range(12):
            w.mark(f"event {i}", i32(i), [9])
        w.cut(9, slots)

    return Case(
        f"lanes_room_{room}_for_12_grouped",
        lanes_grouped_host,
        [zeros(64)],
        [Launch(expect, ONE, BLOCK)],
        lambda out: {0: T},
        max_events=room,
    )


# ---------------------------------------------------------------------------------------------------- no room at all
CROWD = 32
"""Warps of the block; all claim from the bank of their one SM."""
CROWD_ROOM = 1000


@cute.kernel
def crowded(out: cute.Tensor, lanes: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    warp = tidx // 32
    for i in cutlass.range(warp + 1, unroll=1):
        iket.mark("round")
    if cutlass.const_expr(lanes):
        if tidx % 32 >= 12:
            iket.mark("twelve")
            iket.mark("again")
    out[tidx] = tidx


@cute.jit
def crowded_host(out: cute.Tensor, lanes: cutlass.Constexpr):
    crowded(out, lanes).launch(grid=[1, 1, 1], block=[1024, 1, 1])


def crowded_expect(w: Warp, out: np.ndarray, lanes: bool) -> None:
    for _ in range(w.warp + 1):
        w.mark("round")
    if lanes:
        w.mark("twelve", None, w.lanes[12:])
        w.mark("again", None, w.lanes[12:])


def crowded_judge(case: Case, outcome: Any, launches: list[Any]) -> list[str]:
    """As many warps have a region as the bank holds, whichever came first; each other one is in the lost table, one
    row a lane that led, with its exact count."""
    (got,) = launches
    (warps,) = case.expected()
    layout = _layout(int(outcome.capture.manifest["devices"][0]["buffer_bytes"]))
    header = next(iter(got.values()))[0].header
    size = wire.region_bytes(int(header["main_bytes"]), int(header["lane_bytes"]))
    unit = 1 if case.keep == "last" else int(header["stride"])
    out = []
    if len(got) != layout.bank_bytes // size or len(got) >= CROWD:
        out.append(f"{len(got)} warps have a region, {layout.bank_bytes // size} fit")
    lost: dict[int, dict[int, int]] = {}
    for row in outcome.capture.lost().get(0, []):
        fields = (row["cta"].tolist(), int(row["stride"]), int(row["kernel_id"]), int(row["grid_id"]), int(row["sm"]))
        same = ([0, 0, 0], unit, int(header["kernel_id"]), int(header["grid_id"]), int(header["sm"]))
        if fields != same:
            out.append(f"a lost row has {fields}, expected {same}")
        lanes = lost.setdefault(int(row["warp"]), {})
        lanes[int(row["lane"])] = lanes.get(int(row["lane"]), 0) + int(row["advance"]) // unit
    for warp in warps:
        found = got.get((warp.cta, warp.warp))
        if found is not None:
            out += [f"warp {warp.warp}: {t}" for t in differences(warp, found[1])]
        counts = {} if found is not None else {k: len(v) for k, v in warp.streams.items()}
        if lost.get(warp.warp, {}) != counts:
            out.append(f"warp {warp.warp} lost {lost.get(warp.warp)}, expected {counts}")
    total = sum(sum(v.values()) for v in lost.values())
    launch = outcome.trace.launches[0]
    words = outcome.capture.control()[0][-1]
    if len(outcome.trace.launches) != 1:
        out.append(f"the decoder has {len(outcome.trace.launches)} launches")
    numbers = (launch.warps_recorded, launch.lost_warps, launch.lost_events, int(words["lost_events"]))
    if numbers != (len(got), CROWD - len(got), total, total):
        out.append(f"(recorded, lost warps, lost events, control's) are {numbers}, with {total} lost")
    return out


def _layout(total_bytes: int) -> Layout:
    """Of trace memory of that size: a recorder takes over that of an earlier recording, which may be larger."""
    return next(x for x in (plan(MIN_BUFFER_BYTES << k) for k in range(8)) if x.total_bytes == total_bytes)


def crowded_case(lanes: bool) -> Case:
    return Case(
        f"no_room_at_all{'_lanes' if lanes else ''}",
        crowded_host,
        [zeros(1024), Const(lanes)],
        [Launch(crowded_expect, ONE, (1024, 1, 1))],
        lambda out, lanes: {0: np.arange(1024, dtype=np.int32)},
        max_events=60 if lanes else CROWD_ROOM,
        divergent=True,
        judge=crowded_judge,
    )


CASES = [
    *(counted_case(n, room, payload) for room in (1, 20) for n in (room, room + 1) for payload in (False, True)),
    counted_case(0, 1, False),
    counted_case(100, 31, True),
    *(grouped_case(room) for room in (1, 8, 9, 16, 17, 19, 20)),
    *(grouped_later_case(room) for room in (1, 2, 9, 10)),
    *(lanes_case(lane_room(room, 8) + more, room, False) for room in (2, 14, 15, 16) for more in (0, 1, 9)),
    *(lanes_case(lane_room(room, 16) + more, room, True) for room in (2, 6, 7, 8) for more in (0, 1, 9)),
    lanes_case(3, 1, True),
    *(lanes_grouped_case(room) for room in (1, 3, 4, 5, 11, 12)),
    crowded_case(False),
    crowded_case(True),
]
