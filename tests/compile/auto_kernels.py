"""Kernels without a word of tracing, whose calls wrap one another."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import pipeline


@cute.kernel
def plain(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    stores = pipeline.PipelineTmaStore.create(
        num_stages=2, producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)
    )
    for i in cutlass.range(n, unroll=1):
        stores.producer_acquire()
        g[tidx] = g[tidx] + i
        cute.arch.sync_threads()
        stores.producer_commit()
    try:
        cute.arch.barrier(no_such_keyword=3)
    except TypeError:
        cute.arch.barrier(barrier_id=3, number_of_threads=64)
    stores.producer_tail()


@cute.jit
def plain_host(g: cute.Tensor, n: cutlass.Int32):
    plain(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])
