"""Small kernels that benchmarks/kernel_overhead.py measures. The line that imports the event API is replaced there."""

from __future__ import annotations

from cutlass import cute

import warptrace.cute as iket

THREADS = 256


@cute.kernel
def stream_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """Bound by memory: one range around load, add and store, one mark."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    iket.mark("begin", block)
    i = block * THREADS + thread
    iket.range_push("add")
    c[i] = a[i] + b[i]
    iket.range_pop()


@cute.jit
def stream(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    stream_kernel(a, b, c).launch(grid=(cute.size(c) // THREADS, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def entry_kernel(c: cute.Tensor):
    """Next to nothing beside one mark."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    iket.mark("begin")
    c[block * THREADS + thread] = thread


@cute.jit
def entry(c: cute.Tensor):
    entry_kernel(c).launch(grid=(cute.size(c) // THREADS, 1, 1), block=(THREADS, 1, 1))
