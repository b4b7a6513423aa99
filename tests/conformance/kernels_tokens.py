"""Token ranges: run-time values that cross iterations, merge with sentinels, and are closed by whoever holds them."""

# ruff: noqa: B007, SIM108 (kernels are written as the DSL compiles them)

from __future__ import annotations

from dataclasses import replace

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket

from .model import Place, Warp, i32, i64
from .table import Case, Launch, Scalar, zeros

ONE = (1, 1, 1)
BLOCK = (64, 1, 1)
T = np.arange(64, dtype=np.int32)


# ------------------------------------------------------------------------------------------------ across iterations
@cute.kernel
def across(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("tile")
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        if i > 0:
            iket.range_end(token)
        token = iket.range_start("tile")
        total += i
        iket.mark("work", i)
    if n > 0:
        iket.range_end(token)
    out[tidx] = total


@cute.jit
def across_host(out: cute.Tensor, n: cutlass.Int32):
    across(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def across_expect(w: Warp, out: np.ndarray, n: int) -> None:
    token = None
    for i in range(n):
        w.end(token)
        token = w.start("tile")
        w.mark("work", i32(i))
    w.end(token)


@cute.kernel
def across_unguarded(out: cute.Tensor, n: cutlass.Int32):
    """The same without the guards: the end of a sentinel is nothing at run time."""
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("tile")
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token, i)
        token = iket.range_start("tile", i)
        total += i
    iket.range_end(token, n)
    out[tidx] = total


@cute.jit
def across_unguarded_host(out: cute.Tensor, n: cutlass.Int32):
    across_unguarded(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def across_unguarded_expect(w: Warp, out: np.ndarray, n: int) -> None:
    token = None
    for i in range(n):
        w.end(token, i32(i))
        token = w.start("tile", i32(i))
    w.end(token, i32(n))


@cute.kernel
def pipelined(out: cute.Tensor, n: cutlass.Int32):
    """Two ranges of one name in flight: each ends two iterations later."""
    tidx, _, _ = cute.arch.thread_idx()
    older = iket.sentinel_token("stage")
    newer = iket.sentinel_token("stage")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(older)
        older = newer
        newer = iket.range_start("stage")
    iket.range_end(older)
    iket.range_end(newer)
    out[tidx] = n


@cute.jit
def pipelined_host(out: cute.Tensor, n: cutlass.Int32):
    pipelined(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def pipelined_expect(w: Warp, out: np.ndarray, n: int) -> None:
    older = newer = None
    for _ in range(n):
        w.end(older)
        older, newer = newer, w.start("stage")
    w.end(older)
    w.end(newer)


@cute.kernel
def in_while(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("step")
    left = n
    while left > 0:
        iket.range_end(token)
        token = iket.range_start("step")
        if left % 3 == 0:
            iket.range_end(token)
            token = iket.sentinel_token("step")
        left -= 1
    iket.range_end(token)
    out[tidx] = left


@cute.jit
def in_while_host(out: cute.Tensor, n: cutlass.Int32):
    in_while(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def in_while_expect(w: Warp, out: np.ndarray, n: int) -> None:
    token = None
    for left in range(n, 0, -1):
        w.end(token)
        token = w.start("step")
        if left % 3 == 0:
            w.end(token)
            token = None
    w.end(token)


# --------------------------------------------------------------------------------------------------------- branches
@cute.kernel
def merged(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    either = iket.sentinel_token("either")
    if n % 2 == 0:
        either = iket.range_start("even", n)
    else:
        either = iket.range_start("odd", n)
    maybe = iket.sentinel_token("maybe")
    if n > 10:
        maybe = iket.range_start("maybe")
    never = iket.sentinel_token("never")
    if n > 1000:
        never = iket.range_start("never")
    exclusive = iket.range_start("exclusive")
    if n > 5:
        iket.mark("more than five")
        iket.range_end(exclusive)
    else:
        iket.range_end(exclusive)
    iket.range_end(maybe)
    iket.range_end(never)
    iket.range_end(either, n + 1)
    out[tidx] = n


@cute.jit
def merged_host(out: cute.Tensor, n: cutlass.Int32):
    merged(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def merged_expect(w: Warp, out: np.ndarray, n: int) -> None:
    either = w.start("odd" if n % 2 else "even", i32(n))
    maybe = w.start("maybe") if n > 10 else None
    exclusive = w.start("exclusive")
    if n > 5:
        w.mark("more than five")
    w.end(exclusive)
    w.end(maybe)
    w.end(either, i32(n + 1))


def scalar_case(name: str, host: object, expect: object, n: int, value: int) -> Case:
    launch = Launch(expect, ONE, BLOCK)  # type: ignore[arg-type]
    return Case(f"{name}_{n}", host, [zeros(64), Scalar(n)], [launch], lambda out, n: {0: np.full(64, value, np.int32)})


# ------------------------------------------------------------------------------------------------------ overlapping
@cute.kernel
def overlapping(out: cute.Tensor, n: cutlass.Int32):
    """Ranges of one name, open together, closed in another order; with payloads of three widths."""
    tidx, _, _ = cute.arch.thread_idx()
    a = iket.range_start("same")
    b = iket.range_start("same")
    c = iket.range_start("same")
    iket.range_end(b)
    d = iket.range_start("same", n.to(cutlass.Int64))
    iket.range_end(a)
    iket.range_end(d, n.to(cutlass.Int64) * 5000000000)
    out[tidx] = n
    iket.range_end(c)


@cute.jit
def overlapping_host(out: cute.Tensor, n: cutlass.Int32):
    overlapping(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def overlapping_expect(w: Warp, out: np.ndarray, n: int) -> None:
    a, b, c = w.start("same"), w.start("same"), w.start("same")
    w.end(b)
    d = w.start("same", i64(n))
    w.end(a)
    w.end(d, i64(n * 5000000000))
    w.end(c)


# ------------------------------------------------------------------------------------------------- lanes that part
@cute.kernel
def ended_by_subset(out: cute.Tensor):
    """Started by the whole warp, ended by some of its lanes: the end names the slot of the lane that led the start."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    iket.mark("before")
    token = iket.range_start("warp", tidx)
    if lane >= 7:
        iket.mark("high", tidx)
        iket.range_end(token, tidx)
    inner = iket.range_start("second")
    if lane % 8 == 3:
        iket.range_end(inner)
    out[tidx] = lane


@cute.jit
def ended_by_subset_host(out: cute.Tensor):
    ended_by_subset(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def ended_by_subset_expect(w: Warp, out: np.ndarray) -> None:
    base = w.tid(0)
    w.mark("before")
    token = w.start("warp", i32(base))
    high = w.lanes[7:]
    w.mark("high", i32(base + 7), high)
    w.end(token, i32(base + 7), high)
    inner = w.start("second")
    w.end(inner, None, [3, 11, 19, 27])


@cute.kernel
def started_by_subset(out: cute.Tensor):
    """Started where lanes have parted; ended inside by fewer, and behind the join by those that hold a token."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    token = iket.sentinel_token("part")
    if lane >= 5:
        token = iket.range_start("part", tidx)
        outer = iket.range_start("outer")
        if lane >= 9:
            inner = iket.range_start("inner")
            if lane >= 30:
                iket.range_end(outer)
            iket.range_end(inner)
        out[tidx] = 1
    iket.mark("joined")
    iket.range_end(token, tidx)


@cute.jit
def started_by_subset_host(out: cute.Tensor):
    started_by_subset(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def started_by_subset_expect(w: Warp, out: np.ndarray) -> None:
    base = w.tid(0)
    token = w.start("part", i32(base + 5), w.lanes[5:])
    outer = w.start("outer", None, w.lanes[5:])
    inner = w.start("inner", None, w.lanes[9:])
    w.end(outer, None, w.lanes[30:])
    w.end(inner, None, w.lanes[9:])
    w.mark("joined")
    w.end(token, i32(base + 5), w.lanes[5:])


@cute.kernel
def lane_rounds(out: cute.Tensor):
    """Lane k makes k % 4 rounds; each lane holds the token of the last round that it took part in."""
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("round")
    for i in cutlass.range(tidx % 4, unroll=1):
        iket.range_end(token, i)
        token = iket.range_start("round", i)
    iket.mark("done")
    iket.range_end(token, tidx)
    out[tidx] = tidx


@cute.jit
def lane_rounds_host(out: cute.Tensor):
    lane_rounds(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lane_rounds_expect(w: Warp, out: np.ndarray) -> None:
    token: dict[int, Place | None] = dict.fromkeys(w.lanes)
    for i in range(4):
        active = [k for k in w.lanes if k % 4 > i]
        holders = [k for k in active if token[k] is not None]
        if holders:
            w.end(token[holders[0]], i32(i), holders)
        started = w.start("round", i32(i), active)
        token.update(dict.fromkeys(active, started))
    w.mark("done")
    holders = [k for k in w.lanes if token[k] is not None]
    w.end(token[holders[0]], i32(w.tid(holders[0])), holders)


# ---------------------------------------------------------------------------------------------------- many in flight
@cute.kernel
def far_apart(out: cute.Tensor, n: cutlass.Int32):
    """A start and its end with many slots between them."""
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.range_start("far")
    for i in cutlass.range(n, unroll=1):
        iket.mark("between")
    iket.range_end(token)
    out[tidx] = n


@cute.jit
def far_apart_host(out: cute.Tensor, n: cutlass.Int32):
    far_apart(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def far_apart_expect(w: Warp, out: np.ndarray, n: int) -> None:
    token = w.start("far")
    for _ in range(n):
        w.mark("between")
    w.end(token)


CASES = [
    *(scalar_case("token_across_iterations", across_host, across_expect, n, n * (n - 1) // 2) for n in (0, 1, 4)),
    *(
        scalar_case("token_unguarded", across_unguarded_host, across_unguarded_expect, n, n * (n - 1) // 2)
        for n in (0, 1, 4)
    ),
    *(scalar_case("tokens_in_flight", pipelined_host, pipelined_expect, n, n) for n in (0, 1, 2, 5)),
    *(scalar_case("token_in_while", in_while_host, in_while_expect, n, 0) for n in (0, 3, 7)),
    *(scalar_case("token_merged", merged_host, merged_expect, n, n) for n in (2, 7, 20)),
    scalar_case("tokens_overlapping", overlapping_host, overlapping_expect, 3, 3),
    Case(
        "token_ended_by_subset",
        ended_by_subset_host,
        [zeros(64)],
        [Launch(ended_by_subset_expect, ONE, BLOCK)],
        lambda out: {0: T % 32},
        divergent=True,
    ),
    Case(
        "token_started_by_subset",
        started_by_subset_host,
        [zeros(64)],
        [Launch(started_by_subset_expect, ONE, BLOCK)],
        lambda out: {0: (T % 32 >= 5).astype(np.int32)},
        divergent=True,
    ),
    Case(
        "token_of_lanes",
        lane_rounds_host,
        [zeros(64)],
        [Launch(lane_rounds_expect, ONE, BLOCK)],
        lambda out: {0: T},
        divergent=True,
    ),
    replace(scalar_case("token_far_apart", far_apart_host, far_apart_expect, 900, 900), max_events=910),
]
