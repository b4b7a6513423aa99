"""Control flow that a whole warp takes together: branches, loops of every kind, and their nesting."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket

from .model import Warp, i32
from .table import Array, Case, Const, Launch, Scalar, zeros

ONE = (1, 1, 1)
TWO = (2, 1, 1)
BLOCK = (64, 1, 1)
T = np.arange(64, dtype=np.int32)


# -------------------------------------------------------------------------------------------------------- branches
@cute.kernel
def branches(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    result = cutlass.Int32(0)
    if bidx == 0:
        iket.mark("first block")
        result = tidx
    else:
        iket.mark("other block", bidx)
        result = -tidx
    if n > 3:
        iket.range_push("large")
        if n > 100:
            iket.mark("huge")
            result += 1000
        elif n > 10:
            iket.mark("big", n)
            result += 100
        else:
            iket.mark("medium")
            result += 10
        iket.range_pop()
    if n < 0:
        iket.mark("negative")
    iket.mark("after")
    out[bidx * 64 + tidx] = result


@cute.jit
def branches_host(out: cute.Tensor, n: cutlass.Int32):
    branches(out, n).launch(grid=[2, 1, 1], block=[64, 1, 1])


def branches_expect(w: Warp, out: np.ndarray, n: int) -> None:
    if w.bidx == 0:
        w.mark("first block")
    else:
        w.mark("other block", i32(w.bidx))
    if n > 3:
        w.push("large")
        if n > 100:
            w.mark("huge")
        elif n > 10:
            w.mark("big", i32(n))
        else:
            w.mark("medium")
        w.pop()
    if n < 0:
        w.mark("negative")
    w.mark("after")


def branches_case(n: int) -> Case:
    def results(out: np.ndarray, n: int) -> dict[int, np.ndarray]:
        extra = 0 if n <= 3 else 1000 if n > 100 else 100 if n > 10 else 10
        return {0: np.concatenate([T + extra, extra - T])}

    return Case(f"branches_{n}", branches_host, [zeros(128), Scalar(n)], [Launch(branches_expect, TWO, BLOCK)], results)


# ----------------------------------------------------------------------------------------------------------- loops
@cute.kernel
def loops(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    """Rolled, unrolled by 4 (with a rest), unrolled fully, with a step, and constexpr."""
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        iket.range_push("rolled", i)
        total += data[i]
        iket.range_pop()
    iket.mark("between")
    for i in cutlass.range(n, unroll=4):
        iket.mark("unrolled", i)
        total += 2 * data[i]
    for i in cutlass.range(5, unroll_full=True):
        iket.mark("full", i)
        total += 3 * data[i]
    for i in cutlass.range(1, n, 2):
        iket.mark("stepped", i)
        total += 5 * data[i]
    for i in cutlass.range_constexpr(3):
        iket.mark("constexpr", i)
        iket.mark(f"name {i}")
        total += 7 * data[i]
    for i in range(n):
        iket.mark("python range")
        total += 11 * data[i]
    out[tidx] = total + tidx


@cute.jit
def loops_host(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    loops(data, out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def loops_expect(w: Warp, data: np.ndarray, out: np.ndarray, n: int) -> None:
    for i in range(n):
        w.push("rolled", i32(i))
        w.pop()
    w.mark("between")
    for i in range(n):
        w.mark("unrolled", i32(i))
    for i in range(5):
        w.mark("full", i32(i))
    for i in range(1, n, 2):
        w.mark("stepped", i32(i))
    for i in range(3):
        w.mark("constexpr", i32(i))
        w.mark(f"name {i}")
    for _ in range(n):
        w.mark("python range")


DATA = np.arange(3, 19, dtype=np.int32) ** 2


def loops_case(n: int) -> Case:
    def results(data: np.ndarray, out: np.ndarray, n: int) -> dict[int, np.ndarray]:
        total = (1 + 2 + 11) * data[:n].sum() + 3 * data[:5].sum() + 5 * data[1:n:2].sum() + 7 * data[:3].sum()
        return {1: (T + total).astype(np.int32)}

    args = [Array(DATA), zeros(64), Scalar(n)]
    return Case(f"loops_{n}", loops_host, args, [Launch(loops_expect, ONE, BLOCK)], results)


# ----------------------------------------------------------------------------------------------------------- while
@cute.kernel
def whiles(out: cute.Tensor, n: cutlass.Int32):
    """Collatz steps, and a while that never runs."""
    tidx, _, _ = cute.arch.thread_idx()
    x = n
    steps = cutlass.Int32(0)
    while x > 1:
        iket.mark("step", x)
        if x % 2 == 0:
            x = x // 2
        else:
            iket.mark("odd")
            x = 3 * x + 1
        steps += 1
    while x > 1:
        iket.mark("never")
        x -= 1
    out[tidx] = steps + tidx


@cute.jit
def whiles_host(out: cute.Tensor, n: cutlass.Int32):
    whiles(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def collatz(n: int) -> list[int]:
    out = []
    while n > 1:
        out.append(n)
        n = 3 * n + 1 if n % 2 else n // 2
    return out


def whiles_expect(w: Warp, out: np.ndarray, n: int) -> None:
    for x in collatz(n):
        w.mark("step", i32(x))
        if x % 2:
            w.mark("odd")


def whiles_case(n: int) -> Case:
    return Case(
        f"while_{n}",
        whiles_host,
        [zeros(64), Scalar(n)],
        [Launch(whiles_expect, ONE, BLOCK)],
        lambda out, n: {0: (T + len(collatz(n))).astype(np.int32)},
    )


# ---------------------------------------------------------------------------------------------------------- nested
@cute.kernel
def nested(out: cute.Tensor, n: cutlass.Int32, m: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    iket.range_push("all")
    for i in cutlass.range(n, unroll=1):
        iket.range_push("row", i)
        for j in cutlass.range(i, unroll=1):
            if (i + j) % 2 == 0:
                iket.range_push("even", j)
                k = m
                while k > 0:
                    iket.mark("inner", k)
                    total += k
                    k -= 2
                iket.range_pop()
            else:
                iket.mark("odd", j)
        iket.range_pop()
    iket.range_pop()
    out[tidx] = total


@cute.jit
def nested_host(out: cute.Tensor, n: cutlass.Int32, m: cutlass.Int32):
    nested(out, n, m).launch(grid=[1, 1, 1], block=[64, 1, 1])


def nested_expect(w: Warp, out: np.ndarray, n: int, m: int) -> None:
    w.push("all")
    for i in range(n):
        w.push("row", i32(i))
        for j in range(i):
            if (i + j) % 2 == 0:
                w.push("even", i32(j))
                for k in range(m, 0, -2):
                    w.mark("inner", i32(k))
                w.pop()
            else:
                w.mark("odd", i32(j))
        w.pop()
    w.pop()


def nested_results(out: np.ndarray, n: int, m: int) -> dict[int, np.ndarray]:
    evens = sum((i + j) % 2 == 0 for i in range(n) for j in range(i))
    return {0: np.full(64, evens * sum(range(m, 0, -2)), np.int32)}


# -------------------------------------------------------------------------------------------------- prefetch loops
@cute.kernel
def prefetched(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    """A loop that the DSL software-pipelines. What it records, and how often, is that of the loop as written."""
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(n, prefetch_stages=2):
        iket.range_push("stage", i)
        total += data[i]
        iket.mark("added")
        iket.range_pop()
    out[tidx] = total


@cute.jit
def prefetched_host(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    prefetched(data, out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def prefetched_expect(w: Warp, data: np.ndarray, out: np.ndarray, n: int) -> None:
    for i in range(n):
        w.push("stage", i32(i))
        w.mark("added")
        w.pop()


def prefetched_case(n: int) -> Case:
    return Case(
        f"prefetch_stages_{n}",
        prefetched_host,
        [Array(DATA), zeros(64), Scalar(n)],
        [Launch(prefetched_expect, ONE, BLOCK)],
        lambda data, out, n: {1: np.full(64, data[:n].sum(), np.int32)},
    )


# ---------------------------------------------------------------------------------------------------- groups
@cute.kernel
def straight(out: cute.Tensor, count: cutlass.Constexpr):
    """More events in one straight line than share a room test, with memory operations between them."""
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(count):
        iket.mark(f"event {i}")
        if cutlass.const_expr(i % 3 == 0):
            out[tidx] = out[tidx] + i
        iket.mark("again")


@cute.jit
def straight_host(out: cute.Tensor, count: cutlass.Constexpr):
    straight(out, count).launch(grid=[1, 1, 1], block=[64, 1, 1])


def straight_expect(w: Warp, out: np.ndarray, count: int) -> None:
    for i in range(count):
        w.mark(f"event {i}")
        w.mark("again")


# ------------------------------------------------------------------------------------------------- shared memory
@cute.kernel
def barriers(data: cute.Tensor, out: cute.Tensor):
    """Events between barriers, shared memory and exchanges of a warp stay where they are written."""
    tidx, _, _ = cute.arch.thread_idx()
    smem = cutlass.utils.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Int32, cute.make_layout(64), 16)
    iket.range_push("load")
    tile[tidx] = data[tidx]
    iket.switch("wait")
    cute.arch.sync_threads()
    iket.switch("reverse", tile[0])
    value = tile[63 - tidx]
    iket.range_pop()
    value += cute.arch.shuffle_sync(value, 0)
    iket.mark("shuffled")
    out[tidx] = value


@cute.jit
def barriers_host(data: cute.Tensor, out: cute.Tensor):
    barriers(data, out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def barriers_expect(w: Warp, data: np.ndarray, out: np.ndarray) -> None:
    w.push("load")
    w.switch("wait")
    w.switch("reverse", i32(data[0]))
    w.pop()
    w.mark("shuffled")


def barriers_results(data: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    reverse = data[::-1]
    return {1: reverse + np.repeat(reverse[::32], 32)}


CASES = [
    *(branches_case(n) for n in (-1, 3, 5, 50, 500)),
    *(loops_case(n) for n in (0, 1, 4, 7)),
    *(whiles_case(n) for n in (1, 7)),
    Case(
        "nested",
        nested_host,
        [zeros(64), Scalar(4), Scalar(5)],
        [Launch(nested_expect, ONE, BLOCK)],
        nested_results,
    ),
    Case(
        "nested_zero_trips",
        nested_host,
        [zeros(64), Scalar(3), Scalar(-1)],
        [Launch(nested_expect, ONE, BLOCK)],
        nested_results,
    ),
    *(prefetched_case(n) for n in (0, 1, 2, 9)),
    Case(
        "straight_line",
        straight_host,
        [zeros(64), Const(11)],
        [Launch(straight_expect, ONE, BLOCK)],
        lambda out, count: {0: np.full(64, sum(range(0, count, 3)), np.int32)},
    ),
    Case(
        "barriers",
        barriers_host,
        [Array(T * 3 + 1), zeros(64)],
        [Launch(barriers_expect, ONE, BLOCK)],
        barriers_results,
    ),
]
