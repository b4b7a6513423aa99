# SPDX-License-Identifier: Apache-2.0
"""A persistent, warp-specialised Hopper GEMM with a full set of trace events.

    warptrace profile --postprocess all -- python examples/hopper_gemm.py

computes ``C = A @ B.T`` (A is MxK, B is NxK, C is MxN; fp16 in and out, fp32 accumulation) and
checks the result against torch.  Without the tracer the event calls compile to nothing.

How a block of 384 threads works:

* warpgroup 0 is the producer.  One of its warps copies A and B tiles to shared memory with TMA,
  through a ring of stages; the other three warps leave at once.
* warpgroups 1 and 2 are consumers.  Each multiplies 64 rows of the tile with wgmma, keeps one k
  tile in flight, and writes its rows back through shared memory and TMA stores.
* Blocks are persistent: a block takes work ``block, block + grid, block + 2 * grid, ...``.
  With ``--cluster 2`` two blocks form a cluster, work on vertically adjacent tiles and share
  the loads of B by multicast.

Events (see `expected_events` for the exact number of each):

==================  =========  ======================================================
name                warps      meaning
==================  =========  ======================================================
kernel_start        all 12     marker, payload = block index
setup               all 12     everything before the roles part
pipeline_init       all 12     barrier initialisation and the block (cluster) barrier
tile_sched          1 + 8      marker, payload = work index: a role takes its next tile
load_tile           producer   all loads of one tile, payload = work index
ab_empty_wait       producer   wait for a free stage, payload = k tile
tma_issue           producer   issue of the two TMA loads, payload = k tile
load_tail           producer   wait until every stage is released, before exit
mma_tile            8          main loop of one tile, payload = work index
ab_wait             8          wait for a full stage, payload = k tile
wgmma               8          issue of one k tile's wgmma instructions
mma_k_tile          8          token range: issue of a k tile to its completion, which is
                               seen one iteration later, so two of them overlap
mma_drain           8          wait for the last k tile
epilogue            8          write-back of one tile, payload = work index
epi_store_wait      8          wait until the staging buffer was read by its last store,
                               payload = slice of 64 columns
epi_smem_store      8          fp32 to fp16, registers to shared memory, and the barrier
                               that follows; payload = slice
epi_tma_store       2          issue of the TMA store by the first warp of each consumer
                               group; payload = slice
epi_drain           2          wait for the last stores, before exit
==================  =========  ======================================================

Only calls of the common event API are used, so the import of ``iket`` may be pointed at another
implementation of it for comparison.
"""

import argparse
import importlib.util
import statistics
import sys
from dataclasses import dataclass

WARPS_PER_GROUP = 4
CONSUMER_GROUPS = 2
CONSUMER_WARPS = CONSUMER_GROUPS * WARPS_PER_GROUP
WARPS = CONSUMER_WARPS + WARPS_PER_GROUP
THREADS = 32 * WARPS
ROWS_PER_GROUP = 64  # rows of one wgmma instruction
SLICE_N = 64  # columns per epilogue store: 64 fp16 are one 128-byte swizzle row
SLICE_BUFFERS = 2  # staging buffers of each consumer group
SMEM_BYTES = 227 * 1024  # what one block may use on Hopper
MAX_STAGES = 8


# --------------------------------------------------------------------------------------------
# Plain arithmetic: usable without a GPU and without the DSL.
# --------------------------------------------------------------------------------------------


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class CannotRun(ValueError):
    """A problem, a configuration or a machine that this kernel is not made for."""


@dataclass(frozen=True)
class GemmConfig:
    """Compile-time choices.  ``group_m`` work rows are walked before the next column of tiles."""

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    cluster_m: int = 1
    stages: int = 0  # 0: as many as fit
    group_m: int = 0  # 0: chosen so that one wave of blocks covers a roughly square area

    def __post_init__(self) -> None:
        if self.tile_m != ROWS_PER_GROUP * CONSUMER_GROUPS:
            raise CannotRun(f"tile_m must be {ROWS_PER_GROUP * CONSUMER_GROUPS}")
        if self.tile_n not in (64, 128, 256) or self.tile_k != 64:
            raise CannotRun("tile must be 128x64, 128x128 or 128x256 with a depth of 64")
        if self.cluster_m not in (1, 2):
            raise CannotRun("cluster_m must be 1 or 2")
        if not self.stages:
            object.__setattr__(self, "stages", self._stages_that_fit())
        if not self.group_m:
            object.__setattr__(self, "group_m", (16 if self.tile_n == 256 else 8) // self.cluster_m)

    def _stages_that_fit(self) -> int:
        staging = CONSUMER_GROUPS * SLICE_BUFFERS * ROWS_PER_GROUP * SLICE_N * 2
        reserve = 2048  # barriers and alignment
        stage = (self.tile_m + self.tile_n) * self.tile_k * 2
        return min(MAX_STAGES, (SMEM_BYTES - staging - reserve) // stage)


def work_items(m: int, n: int, config: GemmConfig) -> int:
    """Number of work items: tiles, or pairs of vertically adjacent tiles with a cluster."""
    return _ceil_div(m, config.tile_m * config.cluster_m) * _ceil_div(n, config.tile_n)


def grid_size(m: int, n: int, config: GemmConfig, num_sms: int = 132) -> int:
    """Number of blocks to launch: one a multiprocessor, but not more than there is work for."""
    clusters = min(num_sms // config.cluster_m, work_items(m, n, config))
    return clusters * config.cluster_m


def expected_events(
    M: int,
    N: int,
    K: int,
    tile_m: int = 128,
    tile_n: int = 256,
    tile_k: int = 64,
    num_ctas: int = 132,
    cluster_m: int = 1,
) -> dict[str, int]:
    """Number of ranges and markers of each name in one launch, summed over the whole grid.

    A name counts once per warp that executes it; a range counts once, not once per end.
    ``num_ctas`` is the grid size as launched (see `grid_size`).
    """
    config = GemmConfig(tile_m, tile_n, tile_k, cluster_m)
    tiles = work_items(M, N, config) * cluster_m  # a cluster's padding tile runs like any other
    k_tiles = _ceil_div(K, tile_k)
    slices = tile_n // SLICE_N
    return {
        # every warp of every block
        "kernel_start": WARPS * num_ctas,
        "setup": WARPS * num_ctas,
        "pipeline_init": WARPS * num_ctas,
        # the producer warp and the eight consumer warps
        "tile_sched": (1 + CONSUMER_WARPS) * tiles,
        # the producer warp
        "load_tile": tiles,
        "ab_empty_wait": tiles * k_tiles,
        "tma_issue": tiles * k_tiles,
        "load_tail": num_ctas,
        # the eight consumer warps
        "mma_tile": CONSUMER_WARPS * tiles,
        "ab_wait": CONSUMER_WARPS * tiles * k_tiles,
        "wgmma": CONSUMER_WARPS * tiles * k_tiles,
        "mma_k_tile": CONSUMER_WARPS * tiles * k_tiles,
        "mma_drain": CONSUMER_WARPS * tiles,
        "epilogue": CONSUMER_WARPS * tiles,
        "epi_store_wait": CONSUMER_WARPS * tiles * slices,
        "epi_smem_store": CONSUMER_WARPS * tiles * slices,
        # the first warp of each consumer group
        "epi_tma_store": CONSUMER_GROUPS * tiles * slices,
        "epi_drain": CONSUMER_GROUPS * num_ctas,
    }


# --------------------------------------------------------------------------------------------
# The kernel.  Guarded, so that the arithmetic above can be imported without the DSL.
# --------------------------------------------------------------------------------------------

HAVE_DSL = importlib.util.find_spec("cutlass") is not None

if HAVE_DSL:
    import cuda.bindings.driver as cuda
    import cutlass
    import cutlass.utils.hopper_helpers as hopper
    from cutlass import cute, pipeline
    from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

    try:
        from cutlass.memory import SmemAllocator
    except ImportError:  # older DSL
        from cutlass.utils import SmemAllocator

    import warptrace.cute as iket

    PRODUCER_REGISTERS = 40
    CONSUMER_REGISTERS = 232  # 128 * 40 + 256 * 232 is all that 384 threads were given

    class HopperGemm:
        """Host launcher and kernel for one `GemmConfig`; matrix sizes stay dynamic."""

        def __init__(self, config: GemmConfig | None = None) -> None:
            self.config = config or GemmConfig()
            self.tile = (self.config.tile_m, self.config.tile_n, self.config.tile_k)
            self.stages = self.config.stages
            self.cluster_m = self.config.cluster_m
            self.stage_bytes = (self.config.tile_m + self.config.tile_n) * self.config.tile_k * 2

        # ---- host side -----------------------------------------------------------------

        @cute.jit
        def __call__(
            self,
            a: cute.Tensor,
            b: cute.Tensor,
            c: cute.Tensor,
            num_ctas: cutlass.Int32,
            stream: cuda.CUstream,
        ) -> None:
            """Launch on row-major fp16 tensors A (M, K), B (N, K) and C (M, N)."""
            tile_m, tile_n, tile_k = self.tile
            a_smem = self._swizzled((tile_m, tile_k), self.stages)
            b_smem = self._swizzled((tile_n, tile_k), self.stages)
            c_smem = self._swizzled((ROWS_PER_GROUP, SLICE_N), CONSUMER_GROUPS * SLICE_BUFFERS)
            load = cpasync.CopyBulkTensorTileG2SOp()
            load_b = cpasync.CopyBulkTensorTileG2SMulticastOp() if self.cluster_m > 1 else load
            tma_a, tma_a_tensor = cpasync.make_tiled_tma_atom(
                load, a, cute.select(a_smem, mode=[0, 1]), (tile_m, tile_k)
            )
            tma_b, tma_b_tensor = cpasync.make_tiled_tma_atom(
                load_b,
                b,
                cute.select(b_smem, mode=[0, 1]),
                (tile_n, tile_k),
                num_multicast=self.cluster_m,
            )
            tma_c, tma_c_tensor = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(),
                c,
                cute.select(c_smem, mode=[0, 1]),
                (ROWS_PER_GROUP, SLICE_N),
            )
            self.kernel(
                tma_a, tma_a_tensor, tma_b, tma_b_tensor, tma_c, tma_c_tensor,
                self._mma(CONSUMER_GROUPS, tile_n), self._mma(1, SLICE_N),
                a_smem, b_smem, c_smem,
            ).launch(
                grid=(num_ctas, 1, 1),
                block=(THREADS, 1, 1),
                cluster=(self.cluster_m, 1, 1),
                min_blocks_per_mp=1,
                stream=stream,
            )  # fmt: skip

        def _swizzled(self, shape: tuple[int, int], count: int) -> cute.ComposedLayout:
            """`count` row-major fp16 boxes in the 128-byte swizzle that TMA and wgmma share."""
            atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.Float16)
            return cute.tile_to_shape(atom, (*shape, count), order=(0, 1, 2))

        def _mma(self, groups: int, n: int) -> cute.TiledMma:
            """wgmma over `groups` warpgroups stacked in M, each 64 rows by `n` columns."""
            return hopper.make_trivial_tiled_mma(
                cutlass.Float16,
                cutlass.Float16,
                OperandMajorMode.K,
                OperandMajorMode.K,
                cutlass.Float32,
                (groups, 1, 1),
                (ROWS_PER_GROUP, n),
            )

        # ---- device side ---------------------------------------------------------------

        @cute.kernel
        def kernel(
            self,
            tma_a: cute.CopyAtom,
            a: cute.Tensor,
            tma_b: cute.CopyAtom,
            b: cute.Tensor,
            tma_c: cute.CopyAtom,
            c: cute.Tensor,
            mma: cute.TiledMma,
            slice_mma: cute.TiledMma,
            a_smem: cute.ComposedLayout,
            b_smem: cute.ComposedLayout,
            c_smem: cute.ComposedLayout,
        ):
            block, _, _ = cute.arch.block_idx()
            warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
            iket.mark("kernel_start", block)

            iket.range_push("setup")
            if warp_index == 0:
                cpasync.prefetch_descriptor(tma_a)
                cpasync.prefetch_descriptor(tma_b)
                cpasync.prefetch_descriptor(tma_c)
            smem = SmemAllocator()
            barriers = smem.allocate_array(cutlass.Int64, 2 * self.stages)
            sa = smem.allocate_tensor(cutlass.Float16, a_smem.outer, 1024, a_smem.inner)
            sb = smem.allocate_tensor(cutlass.Float16, b_smem.outer, 1024, b_smem.inner)
            sc = smem.allocate_tensor(cutlass.Float16, c_smem.outer, 1024, c_smem.inner)
            iket.range_push("pipeline_init")
            ring = self._make_ring(barriers)
            iket.range_pop()
            iket.range_pop()

            # setmaxnreg is a warpgroup-wide instruction, so it stands where all four warps pass.
            if warp_index < WARPS_PER_GROUP:
                cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
                if warp_index == 0:
                    self._produce(ring, tma_a, a, sa, tma_b, b, sb)
            else:
                cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
                self._consume(ring, mma, sa, sb, slice_mma, tma_c, c, sc, a, b, warp_index)

        def _make_ring(self, barriers: cute.Pointer) -> pipeline.PipelineTmaAsync:
            """The full/empty barriers of the A/B stages; ends with a block or cluster barrier."""
            return pipeline.PipelineTmaAsync.create(
                barrier_storage=barriers,
                num_stages=self.stages,
                producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
                # One thread of each consumer warp releases a stage, once to every block of the
                # cluster: a stage is refilled by multicast from all of them.
                consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMER_WARPS * self.cluster_m),
                tx_count=self.stage_bytes,
                cta_layout_vmnk=cute.make_layout((1, self.cluster_m, 1, 1)),
            )

        def _tiles(self, a: cute.Tensor, b: cute.Tensor) -> tuple:
            """Work rows, columns of tiles, and k tiles of this problem."""
            tile_m, tile_n, tile_k = self.tile
            return (
                cute.ceil_div(cute.size(a, mode=[0]), tile_m * self.cluster_m),
                cute.ceil_div(cute.size(b, mode=[0]), tile_n),
                cute.ceil_div(cute.size(a, mode=[1]), tile_k),
            )

        def _my_work(self) -> tuple:
            """First work item of this block, step to its next one, and its rank in the cluster."""
            block, _, _ = cute.arch.block_idx()
            blocks, _, _ = cute.arch.grid_dim()
            return block // self.cluster_m, blocks // self.cluster_m, block % self.cluster_m

        @cute.jit
        def _schedule(self, work: cutlass.Int32, rows: cutlass.Int32, cols: cutlass.Int32):
            """Tile coordinates of a work item: bands of `group_m` rows, walked column by column.

            Blocks that run at the same time then share rows of A and of B in the L2 cache.
            """
            iket.mark("tile_sched", work)
            band = work // (self.config.group_m * cols)
            first_row = band * self.config.group_m
            height = cutlass.min(rows - first_row, self.config.group_m)
            inside = work - first_row * cols
            row = first_row + inside % height
            _, _, rank = self._my_work()
            return row * self.cluster_m + rank, inside // height

        # ---- producer ------------------------------------------------------------------

        @cute.jit
        def _produce(
            self,
            ring: pipeline.PipelineTmaAsync,
            tma_a: cute.CopyAtom,
            a: cute.Tensor,
            sa: cute.Tensor,
            tma_b: cute.CopyAtom,
            b: cute.Tensor,
            sb: cute.Tensor,
        ):
            """Fill the ring of stages, tile after tile.  Executed by one warp."""
            tile_m, tile_n, tile_k = self.tile
            rows, cols, k_tiles = self._tiles(a, b)
            first, step, rank = self._my_work()
            cluster = cute.make_layout((1, self.cluster_m, 1, 1))
            ga = cute.local_tile(a, (tile_m, tile_k), (None, None))
            gb = cute.local_tile(b, (tile_n, tile_k), (None, None))
            a_dst, a_src = cpasync.tma_partition(
                tma_a, 0, cute.make_layout(1),
                cute.group_modes(sa, 0, 2), cute.group_modes(ga, 0, 2),
            )  # fmt: skip
            # Each block of a cluster loads its share of B and sends it to all of them.
            b_dst, b_src = cpasync.tma_partition(
                tma_b, rank, cute.make_layout(self.cluster_m),
                cute.group_modes(sb, 0, 2), cute.group_modes(gb, 0, 2),
            )  # fmt: skip
            b_mask = None
            if cutlass.const_expr(self.cluster_m > 1):
                b_mask = cpasync.create_tma_multicast_mask(cluster, (0, rank, 0, 0), mcast_mode=1)

            fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.stages)
            for work in cutlass.range(first, rows * cols, step, unroll=1):
                tile_row, tile_col = self._schedule(work, rows, cols)
                iket.range_push("load_tile", work)
                for k in cutlass.range(k_tiles, unroll=1):
                    iket.range_push("ab_empty_wait", k)
                    ring.producer_acquire(fill)
                    iket.range_pop()
                    iket.range_push("tma_issue", k)
                    full = ring.producer_get_barrier(fill)
                    cute.copy(tma_a, a_src[None, tile_row, k], a_dst[None, fill.index], tma_bar_ptr=full)
                    cute.copy(
                        tma_b,
                        b_src[None, tile_col, k],
                        b_dst[None, fill.index],
                        tma_bar_ptr=full,
                        mcast_mask=b_mask,
                    )
                    iket.range_pop()
                    fill.advance()
                iket.range_pop()
            # A block must not exit while another one may still release a stage of it.
            iket.range_push("load_tail")
            ring.producer_tail(fill)
            iket.range_pop()

        # ---- consumers -----------------------------------------------------------------

        @cute.jit
        def _consume(
            self,
            ring: pipeline.PipelineTmaAsync,
            mma: cute.TiledMma,
            sa: cute.Tensor,
            sb: cute.Tensor,
            slice_mma: cute.TiledMma,
            tma_c: cute.CopyAtom,
            c: cute.Tensor,
            sc: cute.Tensor,
            a: cute.Tensor,
            b: cute.Tensor,
            warp_index: cutlass.Int32,
        ):
            """Multiply and write back, tile after tile.  Executed by both consumer groups."""
            rows, cols, k_tiles = self._tiles(a, b)
            first, step, _ = self._my_work()
            group = warp_index // WARPS_PER_GROUP - 1
            part = mma.get_slice(group * 128)  # the same for a whole group: uniform descriptors
            ra = mma.make_fragment_A(part.partition_A(sa))
            rb = mma.make_fragment_B(part.partition_B(sb))
            acc = cute.make_rmem_tensor(mma.partition_shape_C(self.tile[:2]), cutlass.Float32)

            drain = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.stages)
            for work in cutlass.range(first, rows * cols, step, unroll=1):
                tile_row, tile_col = self._schedule(work, rows, cols)
                iket.range_push("mma_tile", work)
                drain = self._main_loop(ring, drain, mma, ra, rb, acc, k_tiles)
                iket.range_pop()
                iket.range_push("epilogue", work)
                self._epilogue(acc, slice_mma, tma_c, c, sc, group, warp_index, tile_row, tile_col)
                iket.range_pop()
            if warp_index % WARPS_PER_GROUP == 0:
                iket.range_push("epi_drain")
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                iket.range_pop()

        @cute.jit
        def _main_loop(
            self,
            ring: pipeline.PipelineTmaAsync,
            drain: pipeline.PipelineState,
            mma: cute.TiledMma,
            ra: cute.Tensor,
            rb: cute.Tensor,
            acc: cute.Tensor,
            k_tiles: cutlass.Int32,
        ):
            """Accumulate one tile.  The wgmma of one k tile run while the next is awaited."""
            previous = drain.clone()
            in_flight = iket.sentinel_token("mma_k_tile")
            for k in cutlass.range(k_tiles, unroll=1):
                iket.range_push("ab_wait", k)
                ring.consumer_wait(drain)
                iket.range_pop()

                issued = iket.range_start("mma_k_tile")
                iket.range_push("wgmma")
                warpgroup.fence()
                mma.set(warpgroup.Field.ACCUMULATE, k != 0)  # the first k tile overwrites
                for step in cutlass.range_constexpr(cute.size(ra, mode=[2])):
                    at = (None, None, step, drain.index)
                    cute.gemm(mma, acc, ra[at], rb[at], acc)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                iket.range_pop()

                # One group may stay in flight, so the k tile before this one is done here.
                warpgroup.wait_group(1)
                iket.range_end(in_flight)
                in_flight = issued
                if k != 0:
                    ring.consumer_release(previous)
                    previous.advance()
                drain.advance()
            iket.range_push("mma_drain")
            warpgroup.wait_group(0)
            iket.range_pop()
            iket.range_end(in_flight)
            ring.consumer_release(previous)
            return drain

        @cute.jit
        def _epilogue(
            self,
            acc: cute.Tensor,
            slice_mma: cute.TiledMma,
            tma_c: cute.CopyAtom,
            c: cute.Tensor,
            sc: cute.Tensor,
            group: cutlass.Int32,
            warp_index: cutlass.Int32,
            tile_row: cutlass.Int32,
            tile_col: cutlass.Int32,
        ):
            """Write 64 rows back, 64 columns at a time.  The two groups work independently."""
            tile_m, tile_n, _ = self.tile
            slices = tile_n // SLICE_N
            gc = cute.local_tile(c, (ROWS_PER_GROUP, SLICE_N), (None, None))
            c_src, c_dst = cpasync.tma_partition(
                tma_c, 0, cute.make_layout(1),
                cute.group_modes(sc, 0, 2), cute.group_modes(gc, 0, 2),
            )  # fmt: skip
            row = tile_row * (tile_m // ROWS_PER_GROUP) + group

            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), cutlass.Float16)
            to_smem = cute.make_tiled_copy_C(atom, slice_mma)
            thread, _, _ = cute.arch.thread_idx()
            writer = to_smem.get_slice(thread % 128)
            half = cute.make_rmem_tensor(slice_mma.partition_shape_C((ROWS_PER_GROUP, SLICE_N)), cutlass.Float16)
            # A thread holds the accumulators of a slice next to each other, in the slice's order.
            per_slice = cute.size(half)
            acc_slices = cute.make_tensor(acc.iterator, cute.make_layout((per_slice, slices)))
            half_flat = cute.make_tensor(half.iterator, cute.make_layout(per_slice))
            half_out = to_smem.retile(half)
            smem_out = writer.partition_D(sc)
            barrier = pipeline.NamedBarrier(barrier_id=group + 1, num_threads=128)
            is_storer = warp_index % WARPS_PER_GROUP == 0

            for s in cutlass.range_constexpr(slices):
                buffer = group * SLICE_BUFFERS + s % SLICE_BUFFERS
                iket.range_push("epi_store_wait", s)
                if is_storer:
                    cute.arch.cp_async_bulk_wait_group(SLICE_BUFFERS - 1, read=True)
                barrier.arrive_and_wait()
                iket.range_pop()

                # The conversion has no range of its own: it is register arithmetic, which the compiler
                # is free to move, and it moves next to the store that needs it.
                iket.range_push("epi_smem_store", s)
                half_flat.store(acc_slices[None, s].load().to(cutlass.Float16))
                cute.copy(to_smem, half_out, smem_out[None, None, None, buffer])
                cute.arch.fence_proxy("async.shared", space="cta")  # TMA reads what was written
                barrier.arrive_and_wait()
                iket.range_pop()

                if is_storer:
                    iket.range_push("epi_tma_store", s)
                    cute.copy(tma_c, c_src[None, buffer], c_dst[None, row, tile_col * slices + s])
                    cute.arch.cp_async_bulk_commit_group()
                    iket.range_pop()

    def as_cute(matrix) -> cute.Tensor:
        """View a contiguous fp16 matrix as a CuTe tensor of dynamic size, rows 16-byte aligned."""
        from cutlass.cute.runtime import from_dlpack

        tensor = from_dlpack(matrix, assumed_align=16).mark_layout_dynamic(leading_dim=1)
        tensor = tensor.mark_compact_shape_dynamic(mode=0, stride_order=(0, 1))
        return tensor.mark_compact_shape_dynamic(mode=1, stride_order=(0, 1), divisibility=8)

    def fake_matrix() -> cute.Tensor:
        """A stand-in with the type of `as_cute`, for compiling without data."""
        shape = (cute.sym_int(), cute.sym_int(divisibility=8))
        return cute.runtime.make_fake_compact_tensor(cutlass.Float16, shape, stride_order=(1, 0), assumed_align=16)

    def compile_gemm(config: GemmConfig | None = None, tensors=None, options: str | None = None):
        """Compile the GEMM for matrices of any size.

        `tensors` are the three CuTe tensors of the first call.  Without them stand-ins are used,
        and no GPU is needed if the environment names the target: ``CUTE_DSL_ARCH=sm_90a``.
        Call the result with ``(a, b, c, cutlass.Int32(num_ctas), stream)``.
        """
        a, b, c = tensors or (fake_matrix(), fake_matrix(), fake_matrix())
        stream = cuda.CUstream(0) if tensors else cute.runtime.make_fake_stream()
        extra = {} if options is None else {"options": options}
        return cute.compile(HopperGemm(config), a, b, c, cutlass.Int32(1), stream, **extra)


# --------------------------------------------------------------------------------------------
# Running it.
# --------------------------------------------------------------------------------------------


def check_problem(m: int, n: int, k: int) -> None:
    """TMA needs row starts that are multiples of 16 bytes; any other size works."""
    if min(m, n, k) < 1:
        raise CannotRun(f"M, N and K must be positive, got {m},{n},{k}")
    if n % 8 or k % 8:
        raise CannotRun(f"N and K must be multiples of 8 (16-byte rows for TMA), got {m},{n},{k}")


@dataclass
class Result:
    """What `run` measured; `error` and `microseconds` are None where not asked for."""

    num_ctas: int
    error: float | None = None
    microseconds: float | None = None

    @property
    def correct(self) -> bool:
        """False for a NaN as well."""
        return self.error is None or self.error < 1e-3


def run(
    m: int,
    n: int,
    k: int,
    config: GemmConfig | None = None,
    launches: int = 1,
    check: bool = True,
    bench: bool = False,
    seed: int = 0,
) -> Result:
    """Multiply random matrices on the current GPU, `launches` times, then check and measure."""
    check_problem(m, n, k)
    if not HAVE_DSL:
        raise CannotRun("this needs the CuTe DSL: pip install 'warptrace[cute]'")
    try:
        import torch
    except ImportError:
        raise CannotRun("this needs torch, for the matrices and the check") from None
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        raise CannotRun("this kernel needs a Hopper GPU (compute capability 9.0)")
    config = config or GemmConfig()
    torch.manual_seed(seed)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(n, k, device="cuda", dtype=torch.float16)
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)

    tensors = as_cute(a), as_cute(b), as_cute(c)
    gemm = compile_gemm(config, tensors)
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    result = Result(grid_size(m, n, config, sms))
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)

    def launch() -> None:
        gemm(*tensors, cutlass.Int32(result.num_ctas), stream)

    for _ in range(launches):
        launch()
    torch.cuda.synchronize()
    if check:
        reference = a.float() @ b.float().T
        result.error = ((c.float() - reference).norm() / reference.norm()).item()
    if bench:
        result.microseconds = _median_microseconds(launch)
    return result


def _median_microseconds(launch, warmup: int = 20, repeats: int = 100) -> float:
    """Median time between CUDA events; the warm-up keeps the GPU busy while launches queue up."""
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for _ in range(warmup):
        launch()
    for start, end in pairs:
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1e3


def _numbers(text: str, separator: str, count: int) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(separator))
    if len(values) != count:
        raise argparse.ArgumentTypeError(f"expected {count} numbers, got {text!r}")
    return values


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Persistent Hopper GEMM with trace events.")
    parser.add_argument("--mnk", type=lambda s: _numbers(s, ",", 3), default=(4096, 4096, 4096), metavar="M,N,K")
    parser.add_argument(
        "--tile", type=lambda s: _numbers(s, "x", 2), default=(128, 256), metavar="MxN",
        help="tile of one block: 128x256 (default), 128x128 or 128x64",
    )  # fmt: skip
    parser.add_argument("--cluster", type=int, default=1, help="blocks per cluster, 1 or 2")
    parser.add_argument("--launches", type=int, default=1, help="number of kernel launches")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--bench", action="store_true", help="measure (many more launches)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: correct; 1: wrong result; 2: cannot run this."""
    args = parse_arguments(argv)
    m, n, k = args.mnk
    try:
        config = GemmConfig(*args.tile, cluster_m=args.cluster)
        result = run(m, n, k, config, args.launches, args.check, args.bench)
    except CannotRun as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    line = f"{m}x{n}x{k} tile {config.tile_m}x{config.tile_n}x{config.tile_k}"
    line += f" cluster {config.cluster_m} stages {config.stages} blocks {result.num_ctas}"
    if result.error is not None:
        line += f": relative error {result.error:.2e} {'ok' if result.correct else 'WRONG'}"
    print(line)
    if result.microseconds is not None:
        teraflops = 2 * m * n * k / result.microseconds / 1e6
        print(f"median {result.microseconds:.1f} us, {teraflops:.0f} TFLOP/s")
    return 0 if result.correct else 1


if __name__ == "__main__":
    sys.exit(main())
