"""The kernels of ``twin_with`` as they would be had warptrace never been heard of."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute


@cute.jit
def helper(g: cute.Tensor, i: cutlass.Int32):
    g[i] = i + 1


@cute.kernel
def first(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=2):
        helper(g, i)
        total += g[i + tidx]
    j = cutlass.Int32(0)
    while j < n:
        g[j] = total
        j += 2
    g[tidx] = total


@cute.kernel
def second(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(4):
        cute.arch.sync_threads()
        g[tidx] = g[tidx + i] + n


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    first(g, n).launch(grid=[n, 1, 1], block=[128, 1, 1])
    second(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])
