"""Kernels on two GPUs that pass flags to each other through peer memory.

Every warp is a ring of its own with the same warp on the other GPU: a "send" is marked right before its flag is stored,
a "recv" right after it was seen, as in ``clock_kernels``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from clock_kernels import RELAY_WARPS, _asm, _post, received, sent
from cutlass.cute.runtime import make_ptr
from cutlass.cutlass_dsl import T, dsl_user_op

LINE = 32
"""int32 from one ring's flag to the next: a cache line."""
LOOKS = 2_000_000
"""After so many a flag does not come any more, nor do those after it."""


@dsl_user_op
def post_peer(pointer: cute.Pointer, value: cutlass.Int32, *, loc: Any = None, ip: Any = None) -> None:
    _post("global", "sys", pointer, value, loc, ip)


@dsl_user_op
def await_peer(
    pointer: cute.Pointer, value: cutlass.Int32, looks: cutlass.Int32, *, loc: Any = None, ip: Any = None
) -> cutlass.Int32:
    """Waits for the flag, ``looks`` times at most; returns them, or 0 where it did not come."""
    operands = [x.ir_value(loc=loc, ip=ip) for x in (pointer.toint(loc=loc, ip=ip), value, looks)]
    text = (
        "{ .reg .u32 t; .reg .u32 n; .reg .pred p; .reg .pred q; mov.u32 n, 0; AGAIN: "
        "ld.acquire.sys.global.u32 t, [$1]; setp.eq.u32 p, t, $2; add.u32 n, n, 1; "
        "setp.lt.and.u32 q, n, $3, !p; @q bra AGAIN; selp.u32 $0, $3, 0, p; }"
    )
    return cutlass.Int32(_asm(T.i32(), operands, text, "=r,l,r,r", loc, ip))


@cute.kernel
def peer_relay(table: cute.Tensor, first: cutlass.Int32, rounds: cutlass.Int32, ctas: cutlass.Int32):
    """``table``: addresses of the flags of both GPUs. The side is ``first`` where the grid has ``ctas`` blocks; further
    blocks are those of the other side."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(tidx // 32)
    side = first + bidx // ctas
    ring = bidx % ctas * RELAY_WARPS + warp
    mine = cute.make_ptr(cutlass.Int32, table[side], cute.AddressSpace.gmem, assumed_align=16) + LINE * ring
    other = cute.make_ptr(cutlass.Int32, table[1 - side], cute.AddressSpace.gmem, assumed_align=16) + LINE * ring
    looks = cutlass.Int32(LOOKS)
    for i in cutlass.range(rounds, unroll=1):
        if side != 0:
            looks = await_peer(mine, i + 1, looks)
            received()
        sent()
        post_peer(other, i + 1)
        if side == 0:
            looks = await_peer(mine, i + 1, looks)
            received()


@cute.jit
def peer_relay_host(
    address: cute.Pointer, first: cutlass.Int32, rounds: cutlass.Int32, ctas: cutlass.Int32, blocks: cutlass.Int32
):
    table = cute.make_tensor(address, cute.make_layout(2))
    peer_relay(table, first, rounds, ctas).launch(grid=[blocks, 1, 1], block=[32 * RELAY_WARPS, 1, 1])


def words(address: int) -> cute.Pointer:
    """An int64 array in global memory."""
    return make_ptr(cutlass.Int64, address, cute.AddressSpace.gmem, assumed_align=16)
