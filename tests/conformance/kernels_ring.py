"""Rings: kernels compiled to keep the newest events of each lane (keep_events "last")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket
from warptrace import wire

from . import kernels_api, kernels_flow, kernels_lanes, kernels_limits, kernels_payload, kernels_roles, kernels_tokens
from .model import Warp, i32
from .table import Case, Launch, Scalar, zeros

ONE = (1, 1, 1)
BLOCK = (64, 1, 1)


def power_of_two(count: int) -> int:
    """Slots of a ring for ``count`` events."""
    return 1 << (count - 1).bit_length()


def lane_slots(events: int, stride: int) -> int:
    """Slots of another lane's ring where ``events`` are asked for: what a block of whole lines of 128 bytes holds."""
    block = wire.LANE_HEADER_BYTES + power_of_two(events * stride)
    block = max(-(-block // wire.REGION_ALIGN), 1) * wire.REGION_ALIGN
    return wire.ring_bytes(block - wire.LANE_HEADER_BYTES) // stride


def in_ring(case: Case, room: int, stride: int) -> Case:
    """A case that keeps the newest events, at least ``room`` of each lane."""
    (launch,) = case.launches

    def expect(w: Warp, *args: Any) -> None:
        assert launch.expect is not None
        launch.expect(w, *args)
        for lane in list(w.streams):
            w.newest(lane, lane_slots(room, stride) if lane else power_of_two(room))

    return replace(case, name=f"ring_{case.name}", keep="last", launches=[replace(launch, expect=expect)])


# ------------------------------------------------------------------------------------------------------- counted
def counted_case(n: int, room: int, payload: bool) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int, payload: bool) -> None:
        for i in range(n):
            w.mark("event", i32(i) if payload else None)

    case = kernels_limits.counted_case(n, room, payload)
    case = replace(case, launches=[Launch(expect, ONE, BLOCK)])
    return in_ring(case, room, 16 if payload else 8)


# ------------------------------------------------------------------------------------------------------- grouped
def grouped_case(room: int) -> Case:
    """Lines of events that cross the ring's end at every place."""

    def expect(w: Warp, out: np.ndarray) -> None:
        for i in range(10):
            w.push(f"range {i}", i32(i))
            w.pop()

    return in_ring(replace(kernels_limits.grouped_case(room), launches=[Launch(expect, ONE, BLOCK)]), room, 16)


def grouped_later_case(room: int) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int) -> None:
        w.mark("alone", i32(n))
        for i in range(16):
            w.mark(f"event {i}")

    return in_ring(replace(kernels_limits.grouped_later_case(room), launches=[Launch(expect, ONE, BLOCK)]), room, 16)


# --------------------------------------------------------------------------------------------------------- lanes
def lanes_case(n: int, room: int, payload: bool) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int, payload: bool) -> None:
        w.mark("before")
        for i in range(n):
            w.mark("five", i32(i) if payload else None, [5])
            w.mark("last", i32(i - 1000) if payload else None, [31])
            w.mark("last but one", i32(-1) if payload else None, [30])
        w.mark("after")

    case = replace(kernels_limits.lanes_case(n, room, payload), launches=[Launch(expect, ONE, BLOCK)])
    return in_ring(case, room, 16 if payload else 8)


def lanes_grouped_case(room: int) -> Case:
    def expect(w: Warp, out: np.ndarray) -> None:
        for i in range(12):
            w.mark(f"event {i}", i32(i), [9])

    return in_ring(replace(kernels_limits.lanes_grouped_case(room), launches=[Launch(expect, ONE, BLOCK)]), room, 16)


# -------------------------------------------------------------------------------------- ranges over what is gone
@cute.kernel
def enclosing(out: cute.Tensor, n: cutlass.Int32):
    """A pushed range and a token range around a loop of both; a second token that begins half way."""
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("all")
    token = iket.range_start("all tokens")
    late = iket.sentinel_token("late")
    for i in cutlass.range(n, unroll=1):
        if i == n // 2:
            late = iket.range_start("late")
        iket.range_push("round")
        step = iket.range_start("step")
        iket.switch("second half")
        iket.range_end(step)
        iket.range_pop()
    iket.range_end(late)
    iket.range_end(token)
    iket.range_pop()
    out[tidx] = n


@cute.jit
def enclosing_host(out: cute.Tensor, n: cutlass.Int32):
    enclosing(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def enclosing_case(n: int, room: int) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int) -> None:
        w.push("all")
        token, late = w.start("all tokens"), None
        for i in range(n):
            if i == n // 2:
                late = w.start("late")
            w.push("round")
            step = w.start("step")
            w.switch("second half")
            w.end(step)
            w.pop()
        w.end(late)
        w.end(token)
        w.pop()

    stride = 16  # a pass of five events has an anchor
    case = Case(
        f"enclosing_{n}_room_{room}",
        enclosing_host,
        [zeros(64), Scalar(n)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n: {0: np.full(64, n, np.int32)},
        max_events=room,
    )
    return in_ring(case, room, stride)


# ------------------------------------------------------------------------------------------------ tokens of lanes
@cute.kernel
def lane_tokens(out: cute.Tensor, n: cutlass.Int32):
    """The upper half of each warp carries tokens over rounds in which lane 3 and all lanes record too."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    token = iket.sentinel_token("carried")
    for i in cutlass.range(n, unroll=1):
        if lane >= 16:
            iket.range_end(token, i)
            token = iket.range_start("carried", i)
        if lane == 3:
            iket.mark("three")
        iket.mark("round")
    if lane >= 16:
        iket.range_end(token, n)
    out[tidx] = n


@cute.jit
def lane_tokens_host(out: cute.Tensor, n: cutlass.Int32):
    lane_tokens(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lane_tokens_case(n: int, room: int) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int) -> None:
        upper, token = w.lanes[16:], None
        for i in range(n):
            w.end(token, i32(i), upper)
            token = w.start("carried", i32(i), upper)
            w.mark("three", None, [3])
            w.mark("round")
        w.end(token, i32(n), upper)

    case = Case(
        f"lane_tokens_{n}_room_{room}",
        lane_tokens_host,
        [zeros(64), Scalar(n)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n: {0: np.full(64, n, np.int32)},
        max_events=room,
        divergent=True,
    )
    return in_ring(case, room, 16)


# -------------------------------------------------------------------------------------------------------- anchors
@cute.kernel
def anchored(out: cute.Tensor, n: cutlass.Int32):
    """Four events a round: one of them holds %globaltimer."""
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(n, unroll=1):
        iket.mark("a", i)
        iket.mark("b")
        iket.mark("c", i + 1)
        iket.mark("d")
    out[tidx] = n


@cute.jit
def anchored_host(out: cute.Tensor, n: cutlass.Int32):
    anchored(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def anchored_case(n: int, room: int) -> Case:
    def expect(w: Warp, out: np.ndarray, n: int) -> None:
        for i in range(n):
            w.mark("a", i32(i))
            w.mark("b")
            w.mark("c", i32(i + 1))
            w.mark("d")

    case = Case(
        f"anchored_{n}_room_{room}",
        anchored_host,
        [zeros(64), Scalar(n)],
        [Launch(expect, ONE, BLOCK)],
        lambda out, n: {0: np.full(64, n, np.int32)},
        max_events=room,
    )
    return in_ring(case, room, 16)


# ------------------------------------------------------------------------------------------------- the other tables
def _of(cases: list[Case], wanted: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    return [replace(c, name=f"ring_{c.name}", keep="last") for c in cases if wanted(c)]


API = (
    "every_call", "only_event", "several_calls", "several_kernels", "drained_between_calls", "beside_silent_kernel",
    "experimental",
)  # fmt: skip
PAYLOADS = ("payload_every_kind", "payload_f64", "payload_integers")

CASES = [
    *(counted_case(n, 16, payload) for n in (15, 16, 17, 48, 51) for payload in (False, True)),
    *(counted_case(n, 1, False) for n in (1, 2, 5)),
    counted_case(100, 20, True),
    *(grouped_case(room) for room in (1, 2, 4, 8, 16, 20)),
    *(grouped_later_case(room) for room in (4, 8, 16)),
    *(lanes_case(lane_slots(room, 8) + more, room, False) for room in (2, 14, 16) for more in (0, 1, 9, 40)),
    *(lanes_case(lane_slots(room, 16) + more, room, True) for room in (2, 7, 8) for more in (0, 1, 9, 40)),
    *(lanes_grouped_case(room) for room in (1, 5, 8)),
    *(enclosing_case(n, room) for n, room in ((3, 32), (3, 8), (9, 4), (10, 8), (20, 32), (13, 64))),
    *(lane_tokens_case(n, room) for n, room in ((3, 16), (9, 4), (30, 8), (41, 16))),
    *(anchored_case(n, room) for n, room in ((4, 16), (7, 16), (9, 2))),
    *_of([kernels_limits.crowded_case(False), kernels_limits.crowded_case(True)]),
    *_of(kernels_tokens.CASES),
    *_of(kernels_flow.CASES),
    *_of(kernels_lanes.CASES),
    *_of(kernels_roles.CASES),
    *_of(kernels_api.CASES, lambda case: case.name in API),
    *_of(kernels_payload.CASES, lambda case: case.name in PAYLOADS),
]
