# mypy: disable-error-code="untyped-decorator,misc"
"""A warp-specialised matrix product with trace events: C = A B^T, fp16 in, fp32 out.

A block has five warps. Warp 0, the producer, brings 64x64 tiles of A and B to shared memory with TMA, through a ring
of three stages. Warps 1 to 4, the consumers, multiply them on tensor cores (``mma.sync``), 32x32 of the tile each, and
write their part of C. Each block computes two tiles of C, so that the producer can load the second one while the
consumers still store the first.

What the events show:

============  =========  =======  ==========================================================
name          kind       warps    meaning (payload)
============  =========  =======  ==========================================================
kernel_start  marker     all      the warp is there (block)
setup         range      all      barriers of the ring are made; ends with a block barrier
load_tile     range      0        all loads for one tile of C (tile)
empty_wait    range      0        wait for a free stage (k tile)
tma_issue     range      0        issue of both TMA loads
load_tail     range      0        wait until the consumers have left every stage
mma_tile      range      1 to 4   main loop of one tile of C (tile)
full_wait     range      1 to 4   wait for a filled stage (k tile)
mma           range      1 to 4   shared memory to registers, and the products
k_step        token      1 to 4   from the arrival of one k tile to that of the next
epilogue      range      1 to 4   registers to C (tile)
tile_done     marker     1 to 4   the warp's part of C is written (tile)
============  =========  =======  ==========================================================

While tracing is off the event calls compile to nothing.
"""

import cutlass
from cutlass import cute, pipeline
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.cute.runtime import make_ptr

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # older DSL
    from cutlass.utils import SmemAllocator

import warptrace.cute as iket

from .problem import (
    CONSUMER_WARPS,
    CTAS,
    K_TILES,
    STAGES,
    TILE_K,
    TILE_M,
    TILE_N,
    TILES,
    TILES_N,
    WARPS,
    K,
    M,
    N,
)

STAGE_BYTES = (TILE_M + TILE_N) * TILE_K * 2


def pointer(dtype: type, address: int) -> cute.Pointer:
    """An argument of :func:`matmul`: a matrix in global memory."""
    return make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=128)


@cute.jit
def matmul(a_ptr: cute.Pointer, b_ptr: cute.Pointer, c_ptr: cute.Pointer) -> None:
    """Launch on row-major A (M, K) and B (N, K) in fp16, and C (M, N) in fp32, given by their addresses."""
    a = cute.make_tensor(a_ptr, cute.make_layout((M, K), stride=(K, 1)))
    b = cute.make_tensor(b_ptr, cute.make_layout((N, K), stride=(K, 1)))
    c = cute.make_tensor(c_ptr, cute.make_layout((M, N), stride=(N, 1)))

    # A stage row is 128 bytes; TMA and ldmatrix agree on a swizzle that keeps both free of bank conflicts.
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.Float16)
    ring_a = cute.tile_to_shape(atom, (TILE_M, TILE_K, STAGES), order=(0, 1, 2))
    ring_b = cute.tile_to_shape(atom, (TILE_N, TILE_K, STAGES), order=(0, 1, 2))
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, a_tma = cpasync.make_tiled_tma_atom(load, a, cute.select(ring_a, mode=[0, 1]), (TILE_M, TILE_K))
    tma_b, b_tma = cpasync.make_tiled_tma_atom(load, b, cute.select(ring_b, mode=[0, 1]), (TILE_N, TILE_K))

    mma_op = warp.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, (16, 8, 16))
    mma = cute.make_tiled_mma(mma_op, (2, 2, 1), permutation_mnk=(32, 32, 16))  # 2x2 consumer warps

    matmul_kernel(tma_a, a_tma, tma_b, b_tma, c, mma, ring_a, ring_b).launch(
        grid=(CTAS, 1, 1), block=(32 * WARPS, 1, 1)
    )


@cute.kernel
def matmul_kernel(
    tma_a: cute.CopyAtom,
    a: cute.Tensor,
    tma_b: cute.CopyAtom,
    b: cute.Tensor,
    c: cute.Tensor,
    mma: cute.TiledMma,
    ring_a: cute.ComposedLayout,
    ring_b: cute.ComposedLayout,
) -> None:
    """One block: makes the ring, then each warp takes its role."""
    block, _, _ = cute.arch.block_idx()
    warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    iket.mark("kernel_start", block)

    with iket.range("setup"):
        smem = SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
        sa = smem.allocate_tensor(cutlass.Float16, ring_a.outer, 1024, ring_a.inner)
        sb = smem.allocate_tensor(cutlass.Float16, ring_b.outer, 1024, ring_b.inner)
        filler, drainer = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMER_WARPS),  # one thread a warp
            tx_count=STAGE_BYTES,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        ).make_participants()

    if warp_index == 0:
        produce(filler, tma_a, a, sa, tma_b, b, sb, block)
    else:
        consume(drainer, mma, sa, sb, c, block)


@cute.jit
def produce(
    filler: pipeline.PipelineProducer,
    tma_a: cute.CopyAtom,
    a: cute.Tensor,
    sa: cute.Tensor,
    tma_b: cute.CopyAtom,
    b: cute.Tensor,
    sb: cute.Tensor,
    block: cutlass.Int32,
) -> None:
    """Fill the ring, k tile after k tile, as far ahead of the consumers as it has stages."""
    a_from, a_to = tma_parts(tma_a, a, sa, (TILE_M, TILE_K))
    b_from, b_to = tma_parts(tma_b, b, sb, (TILE_N, TILE_K))
    for tile in cutlass.range(block, TILES, CTAS, unroll=1):
        with iket.range("load_tile", tile):
            for k in cutlass.range(K_TILES, unroll=1):
                iket.range_push("empty_wait", k)
                stage = filler.acquire_and_advance()
                iket.switch("tma_issue")
                cute.copy(tma_a, a_from[None, tile // TILES_N, k], a_to[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(tma_b, b_from[None, tile % TILES_N, k], b_to[None, stage.index], tma_bar_ptr=stage.barrier)
                iket.range_pop()
    with iket.range("load_tail"):
        filler.tail()


def tma_parts(
    atom: cute.CopyAtom, matrix: cute.Tensor, ring: cute.Tensor, tile: tuple[int, int]
) -> tuple[cute.Tensor, cute.Tensor]:
    """Source (TMA, tile row, k tile) and destination (TMA, stage) of a matrix's loads."""
    tiles = cute.local_tile(matrix, tile, (None, None))
    to, source = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(ring, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    return source, to


@cute.jit
def consume(
    drainer: pipeline.PipelineConsumer,
    mma: cute.TiledMma,
    sa: cute.Tensor,
    sb: cute.Tensor,
    c: cute.Tensor,
    block: cutlass.Int32,
) -> None:
    """Multiply what arrives in the ring and write C, tile after tile."""
    thread, _, _ = cute.arch.thread_idx()
    lane = thread - 32  # of the four consumer warps
    part = mma.get_slice(lane)
    ra = mma.make_fragment_A(part.partition_A(sa[None, None, 0]))
    rb = mma.make_fragment_B(part.partition_B(sb[None, None, 0]))
    acc = cute.make_rmem_tensor(mma.partition_shape_C((TILE_M, TILE_N)), cutlass.Float32)

    ldmatrix = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), cutlass.Float16)
    copy_a = cute.make_tiled_copy_A(ldmatrix, mma)
    copy_b = cute.make_tiled_copy_B(ldmatrix, mma)
    a_from, a_to = copy_a.get_slice(lane).partition_S(sa), copy_a.retile(ra)
    b_from, b_to = copy_b.get_slice(lane).partition_S(sb), copy_b.retile(rb)

    for tile in cutlass.range(block, TILES, CTAS, unroll=1):
        with iket.range("mma_tile", tile):
            acc.fill(0.0)
            step = iket.sentinel_token("k_step")  # so that the first range_end ends nothing
            for k in cutlass.range(K_TILES, unroll=1):
                iket.range_push("full_wait", k)
                stage = drainer.wait_and_advance()
                iket.range_end(step)
                step = iket.range_start("k_step")
                iket.switch("mma")
                for slice_k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
                    cute.copy(copy_a, a_from[None, None, slice_k, stage.index], a_to[None, None, slice_k])
                    cute.copy(copy_b, b_from[None, None, slice_k, stage.index], b_to[None, None, slice_k])
                    cute.gemm(mma, acc, ra[None, None, slice_k], rb[None, None, slice_k], acc)
                stage.release()
                iket.range_pop()
            iket.range_end(step)

        with iket.range("epilogue", tile):
            c_tile = cute.local_tile(c, (TILE_M, TILE_N), (tile // TILES_N, tile % TILES_N))
            cute.autovec_copy(acc, part.partition_C(c_tile))
        iket.mark("tile_done", tile)
