"""Kernels of the CuTe DSL that test_cute.py compiles for sm_90a and runs on the emulator."""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # older DSL
    from cutlass.utils import SmemAllocator


@cute.kernel
def scale_kernel(a: cute.Tensor, b: cute.Tensor, o: cute.Tensor, alpha: Float32):
    tx, _, _ = cute.arch.thread_idx()
    bx, _, _ = cute.arch.block_idx()
    i = bx * 128 + tx
    if i < cute.size(o):
        o[i] = a[i] * alpha + b[i]


@cute.jit
def scale(a: cute.Tensor, b: cute.Tensor, o: cute.Tensor, alpha: Float32):
    scale_kernel(a, b, o, alpha).launch(grid=[8, 1, 1], block=[128, 1, 1])


@cute.kernel
def vector_kernel(a: cute.Tensor, o: cute.Tensor):
    tx, _, _ = cute.arch.thread_idx()
    src = cute.local_tile(a, (8,), (tx,))
    dst = cute.local_tile(o, (8,), (tx,))
    v = src.load()
    dst.store(cute.math.tanh((v * v).to(Float32)).to(cutlass.Float16))


@cute.jit
def vector(a: cute.Tensor, o: cute.Tensor):
    vector_kernel(a, o).launch(grid=[1, 1, 1], block=[64, 1, 1])


@cute.kernel
def reduce_kernel(a: cute.Tensor, o: cute.Tensor):
    tx, _, _ = cute.arch.thread_idx()
    bx, _, _ = cute.arch.block_idx()
    shared = SmemAllocator().allocate_tensor(Float32, cute.make_layout(4), 16)
    v = a[bx * 128 + tx]
    for offset in (16, 8, 4, 2, 1):
        v = v + cute.arch.shuffle_sync_bfly(v, offset=offset)
    if tx % 32 == 0:
        shared[tx // 32] = v
    cute.arch.sync_threads()
    if tx == 0:
        o[bx] = shared[0] + shared[1] + shared[2] + shared[3]


@cute.jit
def reduce(a: cute.Tensor, o: cute.Tensor):
    reduce_kernel(a, o).launch(grid=[6, 1, 1], block=[128, 1, 1])


@cute.kernel
def collatz_kernel(a: cute.Tensor, o: cute.Tensor):
    tx, _, _ = cute.arch.thread_idx()
    bx, _, _ = cute.arch.block_idx()
    n = a[bx * 64 + tx]
    steps = Int32(0)
    while n != 1:
        if n % 2 == 0:  # noqa: SIM108 - the branch is the point
            n = n // 2
        else:
            n = 3 * n + 1
        steps = steps + 1
    o[bx * 64 + tx] = steps


@cute.jit
def collatz(a: cute.Tensor, o: cute.Tensor):
    collatz_kernel(a, o).launch(grid=[2, 1, 1], block=[64, 1, 1])


@cute.kernel
def pipeline_kernel(a: cute.Tensor, o: cute.Tensor):
    tx, _, _ = cute.arch.thread_idx()
    bx, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    memory = SmemAllocator()
    ring = memory.allocate_tensor(Float32, cute.make_layout((32, 2)), 16)
    bars = memory.allocate_array(cutlass.Int64, 4)
    if tx == 0:
        for i in cutlass.range_constexpr(4):
            cute.arch.mbarrier_init(bars + i, 32)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        for it in cutlass.range(8):
            stage = it % 2
            cute.arch.mbarrier_wait(bars + 2 + stage, (it // 2) % 2 ^ 1)
            ring[tx % 32, stage] = a[bx * 256 + it * 32 + tx % 32]
            cute.arch.mbarrier_arrive(bars + stage)
    else:
        total = Float32(0)
        for it in cutlass.range(8):
            stage = it % 2
            cute.arch.mbarrier_wait(bars + stage, (it // 2) % 2)
            total = total + ring[tx % 32, stage]
            cute.arch.mbarrier_arrive(bars + 2 + stage)
        o[bx * 32 + tx % 32] = total


@cute.jit
def pipeline(a: cute.Tensor, o: cute.Tensor):
    pipeline_kernel(a, o).launch(grid=[3, 1, 1], block=[64, 1, 1])


@dsl_user_op
def load_remote(pointer, *, loc=None, ip=None):
    """Load an f32 from another CTA's shared memory."""
    address = pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip)
    value = llvm.inline_asm(
        ir.F32Type.get(),
        [address],
        "{ .reg .f32 t; ld.shared::cluster.f32 t, [$1]; mov.f32 $0, t; }",
        "=f,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return Float32(value)


@cute.kernel
def exchange_kernel(a: cute.Tensor, o: cute.Tensor):
    tx, _, _ = cute.arch.thread_idx()
    bx, _, _ = cute.arch.block_idx()
    shared = SmemAllocator().allocate_tensor(Float32, cute.make_layout(32), 16)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    shared[tx] = a[bx * 32 + tx]
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    o[bx * 32 + tx] = load_remote(cute.arch.map_dsmem_ptr(shared.iterator + (31 - tx), rank ^ 1))
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def exchange(a: cute.Tensor, o: cute.Tensor):
    exchange_kernel(a, o).launch(grid=[4, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1])


@cute.kernel
def two_kernel(a: cute.Tensor, k: cutlass.Constexpr):
    tx, _, _ = cute.arch.thread_idx()
    a[tx] = a[tx] * k + 1


@cute.jit
def two(a: cute.Tensor):
    two_kernel(a, 2).launch(grid=[1, 1, 1], block=[32, 1, 1])
    two_kernel(a, 3).launch(grid=[1, 1, 1], block=[32, 1, 1])
