"""Lanes that part: who leads, whose payload is recorded, partial warps, and what comes after lanes meet again."""

from __future__ import annotations

from dataclasses import replace

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket

from .model import Dim3, Payload, Warp, i32, i64
from .table import Array, Case, Const, Launch, Scalar, zeros

ONE = (1, 1, 1)
BLOCK = (64, 1, 1)
T = np.arange(64, dtype=np.int32)


# -------------------------------------------------------------------------------------------------------- odd/even
@cute.kernel
def odd_even(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("before", tidx)
    value = cutlass.Int32(0)
    if tidx % 2 == 1:
        iket.range_push("odd", tidx)
        value = tidx * 3
        iket.range_pop()
    else:
        iket.mark("even", tidx)
        value = tidx + 100
    iket.mark("after", tidx)
    out[tidx] = value


@cute.jit
def odd_even_host(out: cute.Tensor):
    odd_even(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def odd_even_expect(w: Warp, out: np.ndarray) -> None:
    w.mark("before", i32(w.tid(0)))
    odd, even = w.where(lambda t: t % 2 == 1), w.where(lambda t: t % 2 == 0)
    with w.parallel():
        w.push("odd", lambda k: i32(w.tid(k)), odd)
        w.pop(odd)
        w.mark("even", lambda k: i32(w.tid(k)), even)
    w.mark("after", i32(w.tid(0)))


# ---------------------------------------------------------------------------------------------------- single lanes
@cute.kernel
def single_lanes(out: cute.Tensor, a: cutlass.Int32, b: cutlass.Int32):
    """One lane, chosen at run time; a range around it by all lanes; lane 0 inactive; lanes of one warp only."""
    tidx, _, _ = cute.arch.thread_idx()
    out[tidx] = tidx
    iket.range_push("all")
    if tidx == a:
        iket.mark("one", tidx)
        out[tidx] = -1
    iket.range_pop()
    if tidx >= b:
        iket.range_push("from b", tidx)
        out[tidx] = out[tidx] + 1000
        iket.range_pop()
    if tidx == 0:
        iket.mark("thread 0")
    iket.mark("end")


@cute.jit
def single_lanes_host(out: cute.Tensor, a: cutlass.Int32, b: cutlass.Int32):
    single_lanes(out, a, b).launch(grid=[1, 1, 1], block=[64, 1, 1])


def single_lanes_expect(w: Warp, out: np.ndarray, a: int, b: int) -> None:
    w.push("all")
    w.mark("one", i32(a), w.where(lambda t: t == a))
    w.pop()
    high = w.where(lambda t: t >= b)
    w.push("from b", lambda k: i32(w.tid(k)), high)
    w.pop(high)
    w.mark("thread 0", None, w.where(lambda t: t == 0))
    w.mark("end")


def single_lanes_results(out: np.ndarray, a: int, b: int) -> dict[int, np.ndarray]:
    values = np.where(a == T, -1, T)
    return {0: np.where(b <= T, values + 1000, values).astype(np.int32)}


def single_lanes_case(a: int, b: int) -> Case:
    return Case(
        f"single_lane_{a}_{b}",
        single_lanes_host,
        [zeros(64), Scalar(a), Scalar(b)],
        [Launch(single_lanes_expect, ONE, BLOCK)],
        single_lanes_results,
        divergent=True,
    )


# ------------------------------------------------------------------------------------------------------- elect_one
@cute.kernel
def elected(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("work")
    with cute.arch.elect_one():
        iket.mark("elected", n)
        out[tidx // 32] = n
    iket.range_pop()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 1:
        with cute.arch.elect_one():
            iket.range_push("elected in warp 1")
            out[2] = n + 1
            iket.range_pop()


@cute.jit
def elected_host(out: cute.Tensor, n: cutlass.Int32):
    elected(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def elected_expect(w: Warp, out: np.ndarray, n: int) -> None:
    lead = w.lanes[:1]
    w.push("work")
    w.mark("elected", i32(n), lead)
    w.pop()
    if w.warp == 1:
        w.push("elected in warp 1", None, lead)
        w.pop(lead)


# ------------------------------------------------------------------------------------------------- divergent loops
@cute.kernel
def lane_trips(out: cute.Tensor):
    """Lane k runs k % 5 rounds: the set of active lanes shrinks, and with it the leader moves."""
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(tidx % 5, unroll=1):
        iket.mark("round", i * 100 + tidx)
        total += tidx
    iket.mark("after", tidx)
    out[tidx] = total


@cute.jit
def lane_trips_host(out: cute.Tensor):
    lane_trips(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lane_trips_expect(w: Warp, out: np.ndarray) -> None:
    for i in range(5):
        w.mark("round", lambda k, i=i: i32(i * 100 + w.tid(k)), w.where(lambda t, i=i: t % 5 > i))
    w.mark("after", i32(w.tid(0)))


@cute.kernel
def lane_while(out: cute.Tensor):
    """A while whose condition differs between lanes, with an event under a condition inside."""
    tidx, _, _ = cute.arch.thread_idx()
    x = tidx % 32
    steps = cutlass.Int32(0)
    while x > 0:
        iket.range_push("halving", x)
        if x % 2 == 1:
            iket.mark("bit", x)
            steps += 1
        iket.range_pop()
        x = x // 2
    out[tidx] = steps


@cute.jit
def lane_while_host(out: cute.Tensor):
    lane_while(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def lane_while_expect(w: Warp, out: np.ndarray) -> None:
    x = {k: w.tid(k) % 32 for k in w.lanes}

    def value(lane: int) -> Payload:
        return i32(x[lane])

    while active := [k for k in w.lanes if x[k] > 0]:
        w.push("halving", value, active)
        w.mark("bit", value, [k for k in active if x[k] % 2])
        w.pop(active)
        x.update({k: v // 2 for k, v in x.items()})


# ---------------------------------------------------------------------------------------------------------- nested
@cute.kernel
def nested_lanes(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    value = cutlass.Int32(0)
    iket.range_push("outer")
    if lane < 20:
        iket.mark("low", lane)
        if lane % 4 == 3:
            iket.mark("fourth", lane)
            if lane > 10:
                iket.mark("deep", lane)
                value = lane
        iket.mark("low again", lane)
    else:
        if lane >= 30:
            iket.mark("top", lane)
            value = -lane
        iket.mark("high", lane)
    iket.range_pop()
    out[tidx] = value


@cute.jit
def nested_lanes_host(out: cute.Tensor):
    nested_lanes(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def nested_lanes_expect(w: Warp, out: np.ndarray) -> None:
    low, high = w.lanes[:20], w.lanes[20:]
    w.push("outer")
    with w.parallel():
        w.mark("low", i32(0), low)
        w.mark("fourth", i32(3), [k for k in low if k % 4 == 3])
        w.mark("deep", i32(11), [k for k in low if k % 4 == 3 and k > 10])
        w.mark("low again", i32(0), low)
        w.mark("top", i32(30), [k for k in high if k >= 30])
        w.mark("high", i32(20), high)
    w.pop()


def nested_lanes_results(out: np.ndarray) -> dict[int, np.ndarray]:
    lane = T % 32
    value = np.where((lane < 20) & (lane % 4 == 3) & (lane > 10), lane, 0)
    return {0: np.where(lane >= 30, -lane, value).astype(np.int32)}


# ---------------------------------------------------------------------------------------------------- partial warps
@cute.kernel
def shapes(out: cute.Tensor, threads: cutlass.Constexpr):
    """Blocks that are no multiple of 32 threads, with rows that cross warps."""
    x, y, z = cute.arch.thread_idx()
    bx, by, bz = cute.arch.block_dim()
    bidx, bidy, bidz = cute.arch.block_idx()
    gx, gy, gz = cute.arch.grid_dim()
    linear = x + bx * (y + by * z)
    cta = bidx + gx * (bidy + gy * bidz)
    iket.mark("all", x * 10000 + y * 100 + z)
    if y % 2 == 1:
        iket.mark("odd row", linear)
    if x == bx - 1:
        iket.range_push("last column", linear)
        iket.range_pop()
    if linear == threads - 1:
        iket.mark("last thread", cta)
    out[cta * threads + linear] = linear + cta


@cute.jit
def shapes_host(out: cute.Tensor, grid: cutlass.Constexpr, block: cutlass.Constexpr, threads: cutlass.Constexpr):
    shapes(out, threads).launch(grid=grid, block=block)


def shapes_case(grid: Dim3, block: Dim3) -> Case:
    threads, ctas = int(np.prod(block)), int(np.prod(grid))

    def expect(w: Warp, out: np.ndarray, *_: object) -> None:
        cta = w.cta[0] + grid[0] * (w.cta[1] + grid[1] * w.cta[2])

        def position(k: int) -> int:
            x, y, z = w.xyz(k)
            return x * 10000 + y * 100 + z

        w.mark("all", lambda k: i32(position(k)))
        w.mark("odd row", lambda k: i32(w.tid(k)), [k for k in w.lanes if w.xyz(k)[1] % 2 == 1])
        last = [k for k in w.lanes if w.xyz(k)[0] == block[0] - 1]
        w.push("last column", lambda k: i32(w.tid(k)), last)
        w.pop(last)
        w.mark("last thread", i32(cta), w.where(lambda t: t == threads - 1))

    values = np.add.outer(np.arange(ctas), np.arange(threads)).reshape(-1).astype(np.int32)
    return Case(
        "shape_" + "x".join(map(str, block)) + ("" if ctas == 1 else "_grid_" + "x".join(map(str, grid))),
        shapes_host,
        [zeros(threads * ctas), Const(grid), Const(block), Const(threads)],
        [Launch(expect, grid, block)],
        lambda out, *_: {0: values},
        divergent=ctas == 1,
    )


# ------------------------------------------------------------------------------------------------- leader's payload
@cute.kernel
def leaders(data: cute.Tensor, out: cute.Tensor):
    """The first active lane's payload, of values that differ between lanes, 32 and 64 bits wide."""
    tidx, _, _ = cute.arch.thread_idx()
    v = data[tidx]
    iket.mark("all", v)
    if v > 0:
        iket.mark("positive", v)
        token = iket.range_start("wide", v.to(cutlass.Int64) * 1000000007)
        out[tidx] = v * 2
        iket.range_end(token, v.to(cutlass.Int64) - 1)


@cute.jit
def leaders_host(data: cute.Tensor, out: cute.Tensor):
    leaders(data, out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def leaders_expect(w: Warp, data: np.ndarray, out: np.ndarray) -> None:
    value = {k: int(data[w.tid(k)]) for k in w.lanes}
    positive = [k for k in w.lanes if value[k] > 0]
    w.mark("all", lambda k: i32(value[k]))
    w.mark("positive", lambda k: i32(value[k]), positive)
    token = w.start("wide", lambda k: i64(value[k] * 1000000007), positive)
    w.end(token, lambda k: i64(value[k] - 1), positive)


# First positive values: lane 5 of warp 0, the last lane of warp 1.
LEADER_DATA = np.where((T >= 5) & (T < 32), 7 * T - 1, np.where(T == 63, 999, -T)).astype(np.int32)


# ------------------------------------------------------------------------------------------------------ early exits
@cute.kernel
def early(out: cute.Tensor):
    """All that is left of some warps is the end of the kernel; others go on."""
    tidx, _, _ = cute.arch.thread_idx()
    warp = tidx // 32
    if warp != 1:
        iket.range_push("long", warp)
        total = cutlass.Int32(0)
        for i in cutlass.range(warp * 3, unroll=1):
            iket.mark("round", i)
            total += i
        out[tidx] = total
        iket.range_pop()


@cute.jit
def early_host(out: cute.Tensor):
    early(out).launch(grid=[1, 1, 1], block=[128, 1, 1])


def early_expect(w: Warp, out: np.ndarray) -> None:
    if w.warp != 1:
        w.push("long", i32(w.warp))
        for i in range(3 * w.warp):
            w.mark("round", i32(i))
        w.pop()


def early_results(out: np.ndarray) -> dict[int, np.ndarray]:
    warp = np.arange(128) // 32
    return {0: np.where(warp == 1, 0, 3 * warp * (3 * warp - 1) // 2).astype(np.int32)}


ODD_EVEN = Case(
    "odd_even",
    odd_even_host,
    [zeros(64)],
    [Launch(odd_even_expect, ONE, BLOCK)],
    lambda out: {0: np.where(T % 2 == 1, T * 3, T + 100).astype(np.int32)},
    divergent=True,
)
CASES = [
    ODD_EVEN,
    replace(ODD_EVEN, name="odd_even_twice", calls=2),
    *(single_lanes_case(a, b) for a, b in ((5, 3), (0, 0), (63, 33), (31, 64))),
    Case(
        "elect_one",
        elected_host,
        [zeros(3), Scalar(17)],
        [Launch(elected_expect, ONE, BLOCK)],
        lambda out, n: {0: np.array([n, n, n + 1], np.int32)},
        divergent=True,
    ),
    Case(
        "lane_trips",
        lane_trips_host,
        [zeros(64)],
        [Launch(lane_trips_expect, ONE, BLOCK)],
        lambda out: {0: T % 5 * T},
        divergent=True,
    ),
    Case(
        "lane_while",
        lane_while_host,
        [zeros(64)],
        [Launch(lane_while_expect, ONE, BLOCK)],
        lambda out: {0: np.array([bin(t % 32).count("1") for t in T], np.int32)},
        divergent=True,
    ),
    Case(
        "nested_lanes",
        nested_lanes_host,
        [zeros(64)],
        [Launch(nested_lanes_expect, ONE, BLOCK)],
        nested_lanes_results,
        divergent=True,
    ),
    shapes_case(ONE, (1, 1, 1)),
    shapes_case(ONE, (33, 1, 1)),
    shapes_case(ONE, (100, 1, 1)),
    shapes_case(ONE, (7, 9, 1)),
    shapes_case(ONE, (3, 5, 5)),
    shapes_case(ONE, (32, 2, 2)),
    shapes_case((2, 3, 2), (5, 3, 3)),
    Case(
        "first_active_lane",
        leaders_host,
        [Array(LEADER_DATA), zeros(64)],
        [Launch(leaders_expect, ONE, BLOCK)],
        lambda data, out: {1: np.where(data > 0, data * 2, 0).astype(np.int32)},
        divergent=True,
    ),
    Case(
        "early_warps",
        early_host,
        [zeros(128)],
        [Launch(early_expect, ONE, (128, 1, 1))],
        early_results,
        divergent=True,
    ),
]
