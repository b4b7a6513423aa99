"""Kernels that show what clocks are worth: messages between SMs, and waits of a known length.

In the relays every warp of a CTA is a station of its own ring of CTAs: it passes a flag on, round after round. A
"send" is marked right before its flag is stored, a "recv" right after the flag was seen; payloads are the low half of
the raw %globaltimer at the same place.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

import warptrace.cute as iket

RELAY_WARPS = 8
CLUSTER = 8


def _asm(result: Any, operands: list[Any], text: str, constraints: str, loc: Any, ip: Any) -> Any:
    return llvm.inline_asm(
        result,
        operands,
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )


@dsl_user_op
def globaltimer(*, loc: Any = None, ip: Any = None) -> cutlass.Int64:
    return cutlass.Int64(_asm(T.i64(), [], "mov.u64 $0, %globaltimer;", "=l", loc, ip))


@dsl_user_op
def timer_low(*, loc: Any = None, ip: Any = None) -> cutlass.Uint32:
    return cutlass.Uint32(_asm(T.i32(), [], "mov.u32 $0, %globaltimer_lo;", "=r", loc, ip))


def _post(space: str, scope: str, pointer: Any, value: Any, loc: Any, ip: Any) -> None:
    address, number = pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip), value.ir_value(loc=loc, ip=ip)
    letter = "l" if space == "global" else "r"
    _asm(None, [address, number], f"st.release.{scope}.{space}.u32 [$0], $1;", f"{letter},r", loc, ip)


def _await(space: str, scope: str, pointer: Any, value: Any, loc: Any, ip: Any) -> None:
    address, number = pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip), value.ir_value(loc=loc, ip=ip)
    letter = "l" if space == "global" else "r"
    text = (
        "{ .reg .u32 t; .reg .pred p; AGAIN: "
        f"ld.acquire.{scope}.{space}.u32 t, [$0]; setp.ne.u32 p, t, $1; @p bra AGAIN; }}"
    )
    _asm(None, [address, number], text, f"{letter},r", loc, ip)


@dsl_user_op
def post(pointer: cute.Pointer, value: cutlass.Int32, *, loc: Any = None, ip: Any = None) -> None:
    _post("global", "gpu", pointer, value, loc, ip)


@dsl_user_op
def await_flag(pointer: cute.Pointer, value: cutlass.Int32, *, loc: Any = None, ip: Any = None) -> None:
    _await("global", "gpu", pointer, value, loc, ip)


@dsl_user_op
def post_cluster(
    pointer: cute.Pointer, rank: cutlass.Int32, value: cutlass.Int32, *, loc: Any = None, ip: Any = None
) -> None:
    """Stores to the same place of the shared memory of the cluster's CTA ``rank``."""
    operands = [x.ir_value(loc=loc, ip=ip) for x in (pointer.toint(loc=loc, ip=ip), rank, value)]
    text = (
        "{ .reg .u32 a; mapa.shared::cluster.u32 a, $0, $1; st.release.cluster.shared::cluster.u32 [a], $2; }"
    )
    _asm(None, operands, text, "r,r,r", loc, ip)


@dsl_user_op
def await_shared(pointer: cute.Pointer, value: cutlass.Int32, *, loc: Any = None, ip: Any = None) -> None:
    _await("shared", "cluster", pointer, value, loc, ip)


@dsl_user_op
def sleep(ns: cutlass.Constexpr, *, loc: Any = None, ip: Any = None) -> None:
    _asm(None, [], f"nanosleep.u32 {ns};", "", loc, ip)


@cute.jit
def sent():
    iket.mark("send", timer_low())


@cute.jit
def received():
    iket.mark("recv", timer_low())


@cute.kernel
def relay(flags: cute.Tensor, rounds: cutlass.Int32, ctas: cutlass.Int32):
    """Ring w visits the CTAs in steps of ``flags[w]``, which shares no factor with their number."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(tidx // 32)
    following = (bidx + flags[warp]) % ctas
    mine = flags.iterator + 32 * (1 + warp * ctas + bidx)
    other = flags.iterator + 32 * (1 + warp * ctas + following)
    for i in cutlass.range(rounds, unroll=1):
        if bidx != 0:
            await_flag(mine, i + 1)
            received()
        sent()
        post(other, i + 1)
        if bidx == 0:
            await_flag(mine, i + 1)
            received()


@cute.jit
def relay_host(flags: cute.Tensor, rounds: cutlass.Int32, ctas: cutlass.Int32):
    relay(flags, rounds, ctas).launch(grid=[ctas, 1, 1], block=[32 * RELAY_WARPS, 1, 1])


@cute.kernel
def cluster_relay(rounds: cutlass.Int32):
    """The same inside clusters, through distributed shared memory; every ring visits the CTAs in turn."""
    tidx, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(tidx // 32)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    flags = cutlass.utils.SmemAllocator().allocate_array(cutlass.Int32, 32 * RELAY_WARPS)
    flags[tidx] = 0
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    mine = flags + 32 * warp
    following = (rank + 1) % CLUSTER
    for i in cutlass.range(rounds, unroll=1):
        if rank != 0:
            await_shared(mine, i + 1)
            received()
        sent()
        post_cluster(mine, following, i + 1)
        if rank == 0:
            await_shared(mine, i + 1)
            received()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def cluster_relay_host(rounds: cutlass.Int32, clusters: cutlass.Int32):
    cluster_relay(rounds).launch(
        grid=[clusters * CLUSTER, 1, 1], block=[32 * RELAY_WARPS, 1, 1], cluster=[CLUSTER, 1, 1]
    )


@cute.kernel
def waits(ns: cutlass.Int64, times: cutlass.Int32):
    """Ranges that last ``ns`` of %globaltimer, one after the other, with nothing recorded inside."""
    for i in cutlass.range(times, unroll=1):
        iket.range_push("wait", i)
        end = globaltimer() + ns
        while globaltimer() < end:
            sleep(200)
        iket.range_pop()


@cute.jit
def waits_host(ns: cutlass.Int64, times: cutlass.Int32, ctas: cutlass.Int32):
    waits(ns, times).launch(grid=[ctas, 1, 1], block=[32, 1, 1])
