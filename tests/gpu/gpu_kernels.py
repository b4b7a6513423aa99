"""The kernels of the GPU tests. Blocks have 128 threads; every thread writes ``n + its number`` to its element of out.

``steps`` records 3 events a warp, a number that follows from the code; ``ticks`` n + 2, in a loop.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_ptr

import warptrace.cute as iket

THREADS = 128
WARPS = THREADS // 32
STEPS_EVENTS = 3


@cute.kernel
def steps(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("begin", bidx)
    iket.range_push("work", n)
    out[bidx * THREADS + tidx] = n + bidx * THREADS + tidx
    iket.range_pop()


@cute.jit
def steps_host(out: cute.Tensor, n: cutlass.Int32, ctas: cutlass.Int32):
    steps(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def steps_on_stream(out: cute.Tensor, n: cutlass.Int32, ctas: cutlass.Int32, stream: cuda.CUstream):
    steps(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1], stream=stream)


@cute.kernel
def ticks(out: cute.Tensor, n: cutlass.Int32, call: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.range_push("body", call)
    for i in cutlass.range(n, unroll=1):
        iket.mark("tick", i)
    out[bidx * THREADS + tidx] = n + bidx * THREADS + tidx
    iket.range_pop()


@cute.jit
def ticks_host(out: cute.Tensor, n: cutlass.Int32, call: cutlass.Int32, ctas: cutlass.Int32):
    ticks(out, n, call).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])


@cute.kernel
def untraced_kernel(out: cute.Tensor, n: cutlass.Int32):
    """Compiled only with tracing off: its name must be in no trace."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("never recorded", bidx)
    out[bidx * THREADS + tidx] = n + bidx * THREADS + tidx


@cute.jit
def untraced_host(out: cute.Tensor, n: cutlass.Int32, ctas: cutlass.Int32):
    untraced_kernel(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])


# ------------------------------------------------------------------------------------- without any array library
@cute.kernel
def lanes(out: cute.Tensor, n: cutlass.Int32):
    """Events of lane 0, and of lane 5 in a divergent loop: n + 2 of the one, n of the other."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    token = iket.range_start("all", n)
    for i in cutlass.range(n, unroll=1):
        iket.mark("tick", i)
        if tidx % 32 == 5:
            iket.mark("five", i)
    out[bidx * THREADS + tidx] = n + bidx * THREADS + tidx
    iket.range_end(token, n)


@cute.jit
def lanes_at(address: cute.Pointer, n: cutlass.Int32, ctas: cutlass.Int32, size: cutlass.Constexpr):
    out = cute.make_tensor(address, cute.make_layout(size))
    lanes(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])


@cute.jit
def steps_at(address: cute.Pointer, n: cutlass.Int32, ctas: cutlass.Int32, size: cutlass.Constexpr):
    out = cute.make_tensor(address, cute.make_layout(size))
    steps(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1])


def pointer(address: int) -> cute.Pointer:
    """An int32 array in global memory."""
    return make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=16)
