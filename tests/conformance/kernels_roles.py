"""Warps with roles, with and without setmaxnreg, and clusters."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket

from .model import Warp, i32
from .table import Array, Case, Const, Launch, Scalar, zeros

ONE = (1, 1, 1)


# ------------------------------------------------------------------------------------------------ producer, consumer
@cute.kernel
def roles(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    """Warp 0 fills a two-stage buffer, warps 1 and 2 read it, warp 3 has nothing to do; named barriers between."""
    tidx, _, _ = cute.arch.thread_idx()
    lane = tidx % 32
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Int32, cute.make_layout(64), 16)
    iket.range_push("role", warp)
    if warp == 0:
        token = iket.sentinel_token("fill")
        for i in cutlass.range(n, unroll=1):
            iket.range_end(token)
            token = iket.range_start("fill")
            iket.range_push("produce", i)
            buffer[i % 2 * 32 + lane] = data[i * 32 + lane]
            iket.switch("hand over")
            cute.arch.barrier(barrier_id=1, number_of_threads=96)
            iket.range_pop()
        iket.range_end(token)
    elif warp < 3:
        total = cutlass.Int32(0)
        for i in cutlass.range(n, unroll=1):
            iket.range_push("wait", i)
            cute.arch.barrier(barrier_id=1, number_of_threads=96)
            iket.switch("consume", i)
            total += buffer[i % 2 * 32 + lane] * warp
            if lane == 4:
                iket.mark("lane 4", i)
            iket.range_pop()
        out[(warp - 1) * 32 + lane] = total
    else:
        iket.mark("idle")
    iket.range_pop()


@cute.jit
def roles_host(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    roles(data, out, n).launch(grid=[1, 1, 1], block=[128, 1, 1])


def roles_expect(w: Warp, data: np.ndarray, out: np.ndarray, n: int) -> None:
    w.push("role", i32(w.warp))
    if w.warp == 0:
        token = None
        for i in range(n):
            w.end(token)
            token = w.start("fill")
            w.push("produce", i32(i))
            w.switch("hand over")
            w.pop()
        w.end(token)
    elif w.warp < 3:
        for i in range(n):
            w.push("wait", i32(i))
            w.switch("consume", i32(i))
            w.mark("lane 4", i32(i), [4])
            w.pop()
    else:
        w.mark("idle")
    w.pop()


def roles_results(data: np.ndarray, out: np.ndarray, n: int) -> dict[int, np.ndarray]:
    total = data.reshape(-1, 32)[:n].sum(axis=0)
    return {1: np.concatenate([total, 2 * total]).astype(np.int32)}


# ------------------------------------------------------------------------------------------------------- setmaxnreg
@cute.kernel
def registers(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    """A warp group that gives registers away, two that take them; mbarriers between them."""
    tidx, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.utils.SmemAllocator()
    buffer = smem.allocate_tensor(cutlass.Int32, cute.make_layout(128), 16)
    full = smem.allocate_array(cutlass.Int64, 1)
    empty = smem.allocate_array(cutlass.Int64, 1)
    if tidx == 0:
        iket.mark("init")
        cute.arch.mbarrier_init(full, 128)
        cute.arch.mbarrier_init(empty, 256)
    cute.arch.sync_threads()
    if warp < 4:
        iket.range_push("producer")
        cute.arch.setmaxregister_decrease(40)
        for i in cutlass.range(n, unroll=1):
            iket.range_push("wait empty", i)
            cute.arch.mbarrier_wait(empty, (i + 1) % 2)
            iket.switch("write")
            buffer[tidx] = data[tidx] + i
            cute.arch.mbarrier_arrive(full)
            iket.range_pop()
        iket.range_pop()
    else:
        iket.range_push("consumer")
        cute.arch.setmaxregister_increase(232)
        total = cutlass.Int32(0)
        for i in cutlass.range(n, unroll=1):
            token = iket.range_start("wait full", i)
            cute.arch.mbarrier_wait(full, i % 2)
            iket.range_end(token, i)
            total += buffer[tidx % 128]
            cute.arch.mbarrier_arrive(empty)
        out[tidx - 128] = total
        iket.range_pop()


@cute.jit
def registers_host(data: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    registers(data, out, n).launch(grid=[1, 1, 1], block=[384, 1, 1], min_blocks_per_mp=1)


def registers_expect(w: Warp, data: np.ndarray, out: np.ndarray, n: int) -> None:
    if w.warp == 0:
        w.mark("init", None, [0])
    if w.warp < 4:
        w.push("producer")
        for i in range(n):
            w.push("wait empty", i32(i))
            w.switch("write")
            w.pop()
        w.pop()
    else:
        w.push("consumer")
        for i in range(n):
            w.end(w.start("wait full", i32(i)), i32(i))
        w.pop()


# --------------------------------------------------------------------------------------------------------- clusters
@cute.kernel
def clusters(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    iket.mark("rank", rank)
    iket.range_push("cluster barrier")
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    iket.range_pop()
    if rank == 1:
        iket.mark("second of the cluster", bidx)
    out[bidx * 64 + tidx] = rank


@cute.jit
def clusters_host(out: cute.Tensor, grid: cutlass.Constexpr, cluster: cutlass.Constexpr):
    clusters(out).launch(grid=grid, block=[64, 1, 1], cluster=cluster)


def clusters_case(size: int) -> Case:
    def expect(w: Warp, out: np.ndarray, *_: object) -> None:
        w.mark("rank", i32(w.bidx % size))
        w.push("cluster barrier")
        w.pop()
        if w.bidx % size == 1:
            w.mark("second of the cluster", i32(w.bidx))

    grid, cluster = (8, 1, 1), (size, 1, 1)
    return Case(
        f"cluster_{size}x1",
        clusters_host,
        [zeros(512), Const(grid), Const(cluster)],
        [Launch(expect, grid, (64, 1, 1), cluster)],
        lambda out, *_: {0: np.repeat(np.arange(8) % size, 64).astype(np.int32)},
    )


CASES = [
    Case(
        "roles",
        roles_host,
        [Array(np.arange(160, dtype=np.int32)), zeros(64), Scalar(5)],
        [Launch(roles_expect, ONE, (128, 1, 1))],
        roles_results,
        divergent=True,
    ),
    Case(
        "roles_setmaxnreg",
        registers_host,
        [Array(np.arange(128, dtype=np.int32)), zeros(256), Scalar(4)],
        [Launch(registers_expect, ONE, (384, 1, 1))],
        lambda data, out, n: {1: np.tile(data * n + n * (n - 1) // 2, 2).astype(np.int32)},
        max_events=32,
        buffer_bytes=64 << 20,
        divergent=True,
    ),
    clusters_case(2),
    clusters_case(4),
]
