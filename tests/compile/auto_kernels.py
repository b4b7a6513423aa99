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


class Tiles(pipeline.PipelineTmaStore):
    """A pipeline as libraries derive theirs: of more methods, one of which is made of a fence of its own."""

    @cute.jit
    def producer_acquire_twice(self, again: cutlass.Boolean):
        if again:
            self.sync_object_full.wait()
        self.sync_object_full.wait()

    def producer_commit_now(self):
        self.producer_commit()

    @staticmethod
    def create(stages: int):
        made = pipeline.PipelineTmaStore.create(
            num_stages=stages, producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)
        )
        object.__setattr__(made, "__class__", Tiles)
        return made


@cute.kernel
def derived(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    tiles = Tiles.create(2)
    for i in cutlass.range(n, unroll=1):
        tiles.producer_acquire_twice(n > 3)
        g[tidx] = g[tidx] + i
        tiles.producer_commit_now()


@cute.jit
def derived_host(g: cute.Tensor, n: cutlass.Int32):
    derived(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


@cute.kernel
def tensor_memory(g: cute.Tensor):
    cute.arch.fence_view_async_tmem_load()
    cute.arch.fence_view_async_tmem_store()
    tidx, _, _ = cute.arch.thread_idx()
    g[tidx] = tidx


@cute.jit
def tensor_memory_host(g: cute.Tensor):
    tensor_memory(g).launch(grid=[1, 1, 1], block=[64, 1, 1])
