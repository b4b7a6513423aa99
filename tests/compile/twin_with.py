"""Kernels with calls of every kind; ``twin_without`` holds the same kernels without them."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

import warptrace.cute as iket


@cute.jit
def helper(g: cute.Tensor, i: cutlass.Int32, token):
    iket.range_end(token, i)
    g[i] = i + 1
    return iket.range_start("helper", i)


@cute.kernel
def first(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("begin", bidx * 3 + tidx)
    iket.range_push("outer", cutlass.Int64(n) << 3)
    total = cutlass.Int32(0)
    token = iket.sentinel_token("helper")
    other = iket.sentinel_token("other")
    for i in cutlass.range(n, unroll=2):
        if i > 0:
            iket.range_end(other, cutlass.Float32(i) * 0.5)
        other = iket.range_start("other", cutlass.Float32(i) + 1.5)
        token = helper(g, i, token)
        with iket.range("inner", i % 7):
            total += g[i + tidx]
        if tidx == 5:
            iket.mark("lane", total)
    iket.range_end(token, n)
    iket.switch("tail", total.to(cutlass.Float16))
    j = cutlass.Int32(0)
    while j < n:
        iket.mark("while", j)
        g[j] = total
        j += 2
    iket.range_pop()
    g[tidx] = total
    iket.mark("end")


@cute.kernel
def second(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    with iket.range("only"):
        for i in cutlass.range_constexpr(4):
            with iket.range("step", i):
                cute.arch.sync_threads()
                g[tidx] = g[tidx + i] + n


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    first(g, n).launch(grid=[n, 1, 1], block=[128, 1, 1])
    iket.mark("host code")
    second(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])
