# SPDX-License-Identifier: Apache-2.0
"""A pipeline that hangs: what the hang report is for.

A producer warp fills a ring of three stages in shared memory, and four consumer warps add up what they find there.
Where a stage has nothing but zeros the consumers skip it, and forget to release it. So the producer waits for ever for
that stage to be free, and the consumers for the next one to be filled.

warptrace profile --timeout 5 -- python examples/deadlock.py           hangs; after 5 s tells where
warptrace profile -- python examples/deadlock.py                       the same at a Ctrl-C
warptrace profile -- python examples/deadlock.py --fixed               releases every stage, and ends
"""

import argparse
import sys

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_ptr

import warptrace.cute as iket

STAGES = 3
TILES = 16
CONSUMERS = 4
BLOCKS = 4
EMPTY_TILE = 7
"""The tile of zeros, in every second block."""
THREADS = 32 * (1 + CONSUMERS)


@cute.kernel
def pipeline(source: cute.Tensor, sums: cute.Tensor, fixed: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = thread % 32
    iket.mark("kernel_start", block)

    ring = cute.make_tensor(cute.arch.alloc_smem(cutlass.Int32, 32 * STAGES), cute.make_layout((32, STAGES)))
    full = cute.arch.alloc_smem(cutlass.Int64, STAGES)
    free = cute.arch.alloc_smem(cutlass.Int64, STAGES)
    if thread == 0:
        for stage in cutlass.range_constexpr(STAGES):
            cute.arch.mbarrier_init(full + stage, 32)  # the lanes of the producer
            cute.arch.mbarrier_init(free + stage, 32 * CONSUMERS)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    if warp == 0:
        with iket.range("produce"):
            for tile in cutlass.range(TILES, unroll=1):
                stage = tile % STAGES
                with iket.range("free_wait", tile):
                    cute.arch.mbarrier_wait(free + stage, (tile // STAGES + 1) % 2)
                with iket.range("fill", tile):
                    ring[lane, stage] = source[lane, tile, block]
                    cute.arch.mbarrier_arrive(full + stage)
    else:
        with iket.range("consume"):
            total = cutlass.Int32(0)
            for tile in cutlass.range(TILES, unroll=1):
                stage = tile % STAGES
                with iket.range("full_wait", tile):
                    cute.arch.mbarrier_wait(full + stage, tile // STAGES % 2)
                value = ring[lane, stage]
                if cutlass.const_expr(fixed):
                    total += value
                    cute.arch.mbarrier_arrive(free + stage)
                elif cute.arch.vote_any_sync(value != 0):
                    with iket.range("add", tile):
                        total += value
                        cute.arch.mbarrier_arrive(free + stage)
                # else: nothing to add. The bug: the stage is not released.
            sums[lane, warp - 1, block] = total


@cute.jit
def launch(source: cute.Pointer, sums: cute.Pointer, fixed: cutlass.Constexpr):
    """``source``: TILES tiles of 32 i32 a block; ``sums``: 32 i32 for each consumer warp of a block."""
    tiles = cute.make_tensor(source, cute.make_layout((32, TILES, BLOCKS)))
    out = cute.make_tensor(sums, cute.make_layout((32, CONSUMERS, BLOCKS)))
    pipeline(tiles, out, fixed).launch(grid=(BLOCKS, 1, 1), block=(THREADS, 1, 1))


def pointer(address: int):
    """An argument of :func:`launch`."""
    return make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=128)


def wait_for(how: str, sums, again) -> None:
    """What the program does while the kernel runs: ``again`` launches it once more."""
    import torch

    if how == "copy":
        sums.cpu()
    elif how == "queue":  # a launch waits where too many are under way
        for _ in range(5000):
            again()
    torch.cuda.synchronize()


def main() -> int:
    """Runs it, and compares the sums with torch's, if it gets there."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="release stages that have nothing to add too")
    parser.add_argument("--wait", choices=("synchronize", "copy", "queue"), default="synchronize")
    options = parser.parse_args()

    source = torch.randint(1, 100, (BLOCKS, TILES, 32), dtype=torch.int32, device="cuda")
    source[1::2, EMPTY_TILE] = 0
    sums = torch.zeros((BLOCKS, CONSUMERS, 32), dtype=torch.int32, device="cuda")
    arguments = pointer(source.data_ptr()), pointer(sums.data_ptr())
    compiled = cute.compile(launch, *arguments, options.fixed)
    compiled(*arguments)
    print("deadlock: launched", flush=True)
    wait_for(options.wait, sums, lambda: compiled(*arguments))
    ok = torch.equal(sums, source.sum(dim=1, dtype=torch.int32)[:, None].expand_as(sums))
    print(f"deadlock: it ended, {'ok' if ok else 'WRONG'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
