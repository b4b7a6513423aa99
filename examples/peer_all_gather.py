# SPDX-License-Identifier: Apache-2.0
"""An all-gather between GPUs: each stores its shard into every other's memory, and waits for theirs.

python examples/peer_all_gather.py                            runs it on all GPUs that see each other, in one process
torchrun --nproc-per-node 8 examples/peer_all_gather.py       one process a GPU, through CUDA's IPC
warptrace profile --postprocess all -- python examples/peer_all_gather.py
warptrace report RESULT                                                  how far ranks are apart, who waits for whom

Every block brings one tile to all peers. A flag, released at system scope behind the tile (``signal``), tells the peer
that it is there; ``wait_peer`` is the time until a peer's own flag is seen, with the peer's rank as its payload.
"""

import argparse
import ctypes
import os
import sys
import time

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_ptr

import warptrace.cute as iket

THREADS = 128
TILE = 4096
"""Elements (int32) that a block brings to each peer."""
TILES = 64
"""Of a shard: as many blocks a GPU, which all run at once."""
PATIENCE_NS = 2_000_000_000
"""A wait is given up, so that a peer that never comes hangs nothing."""


@cute.kernel
def all_gather(table: cute.Tensor, first: cutlass.Int32, turn: cutlass.Int32, world: cutlass.Constexpr):
    """``table``: addresses of each rank's output (world x TILES x TILE), then of its flags (world x TILES). The rank is
    ``first`` where the grid has TILES blocks; further blocks are those of the next ranks."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = first + block // TILES
    tile = block % TILES
    mine = cute.make_ptr(cutlass.Int32, table[rank], cute.AddressSpace.gmem, assumed_align=16)
    flags = cute.make_ptr(cutlass.Int32, table[world + rank], cute.AddressSpace.gmem, assumed_align=16)
    at = (rank * TILES + tile) * TILE

    for step in cutlass.range(1, world, unroll=1):
        peer = (rank + step) % world
        with iket.range("store", peer):
            source = cute.make_tensor(mine + at, cute.make_layout(TILE))
            there = cute.make_ptr(cutlass.Int32, table[peer], cute.AddressSpace.gmem, assumed_align=16)
            target = cute.make_tensor(there + at, cute.make_layout(TILE))
            for i in cutlass.range(TILE // THREADS, unroll=4):
                target[i * THREADS + thread] = source[i * THREADS + thread]
            cute.arch.sync_threads()
        with iket.range("signal", peer):  # lasts until all that was stored has arrived
            if thread == 0:
                flag = cute.make_ptr(cutlass.Int32, table[world + peer], cute.AddressSpace.gmem, assumed_align=16)
                cute.arch.store(flag + rank * TILES + tile, turn, sem="release", scope="sys")

    for step in cutlass.range(1, world, unroll=1):
        peer = (rank + step) % world
        with iket.range("wait_peer", peer):
            flag = flags + peer * TILES + tile
            end = cute.arch.globaltimer() + PATIENCE_NS
            seen = cute.arch.load(flag, cutlass.Int32, sem="acquire", scope="sys")
            while seen != turn and cute.arch.globaltimer() < end:
                seen = cute.arch.load(flag, cutlass.Int32, sem="acquire", scope="sys")


@cute.jit
def gather(
    address: cute.Pointer, first: cutlass.Int32, turn: cutlass.Int32, blocks: cutlass.Int32, world: cutlass.Constexpr
):
    """Launches one rank, or with more blocks several."""
    table = cute.make_tensor(address, cute.make_layout(2 * world))
    all_gather(table, first, turn, world).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


def pointer(address: int):
    """The table as an argument of :func:`gather`."""
    return make_ptr(cutlass.Int64, address, cute.AddressSpace.gmem, assumed_align=16)


def see_each_other(world: int) -> bool:
    """Lets each GPU use the memory of all others; false where one cannot."""
    import torch
    from cuda.bindings import driver

    for device in range(world):
        with torch.cuda.device(device):
            torch.zeros(1, device="cuda")  # its context is current now
            for peer in range(world):
                if peer == device:
                    continue
                if not torch.cuda.can_device_access_peer(device, peer):
                    return False
                _, context = driver.cuDevicePrimaryCtxRetain(peer)
                (code,) = driver.cuCtxEnablePeerAccess(context, 0)
                if code not in (0, driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED):
                    return False
    return True


class Ranks:
    """The buffers of all ranks, one a GPU, and the compiled kernel."""

    def __init__(self, world: int) -> None:
        import torch

        self.world = world
        self.turn = 0
        self.shards = [torch.randint(1, 1 << 30, (TILES * TILE,), dtype=torch.int32) for _ in range(world)]
        self.outs = [torch.zeros((world, TILES * TILE), dtype=torch.int32, device=f"cuda:{r}") for r in range(world)]
        self.flags = [torch.zeros((world, TILES), dtype=torch.int32, device=f"cuda:{r}") for r in range(world)]
        words = [t.data_ptr() for t in (*self.outs, *self.flags)]
        self.tables = [torch.tensor(words, dtype=torch.int64, device=f"cuda:{r}") for r in range(world)]
        number = cutlass.Int32(0)
        with torch.cuda.device(0):
            self.compiled = cute.compile(gather, pointer(self.tables[0].data_ptr()), number, number, number, world)

    def begin(self) -> None:
        """Clears the outputs, but for each rank's own shard."""
        import torch

        for rank, out in enumerate(self.outs):
            out.zero_()
            out[rank] = self.shards[rank].to(out.device)
        self.synchronize()
        self.turn += 1
        torch.cuda.set_device(0)

    def launch(self, rank: int) -> None:
        """Starts one rank."""
        import torch

        with torch.cuda.device(rank):
            table = pointer(self.tables[rank].data_ptr())
            self.compiled(table, cutlass.Int32(rank), cutlass.Int32(self.turn), cutlass.Int32(TILES))

    def warm_up(self) -> None:
        """One launch on each GPU that waits for nobody: all code is loaded, and the tracer has its memory, before ranks
        wait for each other."""
        import torch

        for rank in range(self.world):
            with torch.cuda.device(rank):
                table = pointer(self.tables[rank].data_ptr())
                self.compiled(table, cutlass.Int32(rank), cutlass.Int32(0), cutlass.Int32(TILES))
                torch.cuda.synchronize()

    def synchronize(self) -> None:
        """Waits for all GPUs."""
        import torch

        for rank in range(self.world):
            torch.cuda.synchronize(rank)

    def right(self) -> bool:
        """Whether every rank has all shards."""
        import torch

        whole = torch.stack(self.shards)
        return all(torch.equal(out.cpu(), whole) for out in self.outs)


def call(name, *arguments):
    """What a function of the CUDA driver returns. Raises RuntimeError."""
    from cuda.bindings import driver

    code, *values = getattr(driver, name)(*arguments)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {code.name}")
    return values[0] if len(values) == 1 else values


def mapped(buffer) -> list[int]:
    """Address of every rank's ``buffer`` as this process sees it."""
    import torch.distributed as dist
    from cuda.bindings import driver

    base, _ = call("cuMemGetAddressRange", buffer.data_ptr())
    handle = ctypes.string_at(call("cuIpcGetMemHandle", base).getPtr(), 64)
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, (handle, buffer.data_ptr() - int(base)))
    found = []
    for rank, (handle, offset) in enumerate(told):
        if rank == dist.get_rank():
            found.append(buffer.data_ptr())
            continue
        theirs = driver.CUipcMemHandle()
        ctypes.memmove(theirs.getPtr(), handle, 64)
        lazy = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        found.append(int(call("cuIpcOpenMemHandle", theirs, lazy)) + offset)
    return found


class Rank:
    """One of several processes that torch.distributed connects, on the current GPU, with the others' memory mapped."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.turn = 0
        size = self.world * TILES * TILE
        random = torch.Generator().manual_seed(7)
        shards = torch.randint(1, 1 << 30, (self.world, TILES * TILE), dtype=torch.int32, generator=random)
        self.shards = shards.to("cuda")
        self.buffer = torch.zeros(size + self.world * TILES, dtype=torch.int32, device="cuda")
        self.out = self.buffer[:size].view(self.world, -1)
        outs = mapped(self.buffer)
        words = [*outs, *(out + self.buffer.element_size() * size for out in outs)]
        self.table = torch.tensor(words, dtype=torch.int64, device="cuda")
        number = cutlass.Int32(0)
        self.compiled = cute.compile(gather, pointer(self.table.data_ptr()), number, number, number, self.world)

    def warm_up(self) -> None:
        """A launch that waits for nobody."""
        self.launch()
        self.meet()

    def launch(self) -> None:
        """Starts this rank's part."""
        table = pointer(self.table.data_ptr())
        self.compiled(table, cutlass.Int32(self.rank), cutlass.Int32(self.turn), cutlass.Int32(TILES))

    def meet(self) -> None:
        """Waits for the GPU, and for all ranks."""
        import torch
        import torch.distributed as dist

        torch.cuda.synchronize()
        dist.barrier()

    def gather(self, late_us: int = 0) -> bool:
        """Once more, the last rank so much later; whether this one has all shards."""
        import torch

        self.turn += 1
        self.out.zero_()
        self.out[self.rank] = self.shards[self.rank]
        self.meet()
        if self.rank == self.world - 1:
            time.sleep(late_us * 1e-6)
        self.launch()
        self.meet()
        return torch.equal(self.out, self.shards)


def one_of_many(times: int, late_us: int) -> int:
    """What each process of torchrun does."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    rank = Rank()
    rank.warm_up()
    right = [rank.gather(late_us) for _ in range(times)]
    ok = all(right)
    print(f"peer_all_gather: rank {rank.rank} of {rank.world}, {times} times, {'ok' if ok else 'WRONG'}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if ok else 1


def main() -> int:
    """Gathers some times, and compares with torch."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--late-us", type=int, default=0, help="the last rank is launched so much later")
    options = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        return one_of_many(options.times, options.late_us)
    world = torch.cuda.device_count()
    if world < 2 or not see_each_other(world):
        print("peer_all_gather: needs two GPUs that see each other")
        return 2
    ranks = Ranks(world)
    ranks.warm_up()
    ok = True
    for _ in range(options.times):
        ranks.begin()
        for rank in range(world):
            if rank == world - 1:
                time.sleep(options.late_us * 1e-6)
            ranks.launch(rank)
        ranks.synchronize()
        ok = ok and ranks.right()
    print(f"peer_all_gather: {world} GPUs, {options.times} times, {'ok' if ok else 'WRONG'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
