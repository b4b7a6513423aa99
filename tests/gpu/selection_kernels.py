"""Kernels of the tests of selections. Blocks have 128 threads; every thread writes ``n + its number`` to out."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from clock_kernels import _asm
from cutlass.cutlass_dsl import T, dsl_user_op

import warptrace.cute as iket

THREADS = 128
WARPS = THREADS // 32
GRID = (8, 3, 2)
CLUSTER = (2, 3, 1)
PLACED_EVENTS = 2


@dsl_user_op
def cycles(*, loc: Any = None, ip: Any = None) -> cutlass.Int64:
    return cutlass.Int64(_asm(T.i64(), [], "mov.u64 $0, %clock64;", "=l", loc, ip))


@cute.kernel
def placed(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    x, y, z = cute.arch.block_idx()
    number = (z * GRID[1] + y) * GRID[0] + x
    with iket.range("place", number):
        out[number * THREADS + tidx] = n + number * THREADS + tidx


@cute.jit
def placed_in_clusters(out: cute.Tensor, n: cutlass.Int32):
    placed(out, n).launch(grid=list(GRID), block=[THREADS, 1, 1], cluster=list(CLUSTER))


@cute.jit
def placed_alone(out: cute.Tensor, n: cutlass.Int32):
    placed(out, n).launch(grid=list(GRID), block=[THREADS, 1, 1])


@cute.kernel
def stepping(out: cute.Tensor, spent: cute.Tensor, n: cutlass.Int32):
    """A push and a pop around 64 cycles or so of arithmetic, n times; ``spent``: the cycles of each warp."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    value = cutlass.Float32(tidx)
    begin = cycles()
    for _ in cutlass.range(n, unroll=1):
        iket.range_push("step")
        for _ in cutlass.range_constexpr(16):
            value = value * 0.5 + 1.0
        iket.range_pop()
    end = cycles()
    out[bidx * THREADS + tidx] = value
    if tidx % 32 == 0:
        spent[bidx * WARPS + tidx // 32] = end - begin


@cute.jit
def stepping_host(out: cute.Tensor, spent: cute.Tensor, n: cutlass.Int32, ctas: cutlass.Int32):
    stepping(out, spent, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])
