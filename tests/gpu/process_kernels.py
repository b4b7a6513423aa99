"""A kernel that waits for another that is launched later."""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from clock_kernels import _asm, globaltimer, post
from cutlass.cutlass_dsl import T, dsl_user_op

import warptrace.cute as iket

PATIENCE_NS = 2_000_000_000
WORDS = 64
"""int32: the flag at 0, whether it was seen at 32."""


@dsl_user_op
def peek(pointer: cute.Pointer, *, loc: Any = None, ip: Any = None) -> cutlass.Int32:
    address = pointer.toint(loc=loc, ip=ip).ir_value(loc=loc, ip=ip)
    return cutlass.Int32(_asm(T.i32(), [address], "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", loc, ip))


@cute.kernel
def meet(flags: cute.Tensor, waits: cutlass.Int32, n: cutlass.Int32):
    """With ``waits`` 1 it waits for the flag, at most PATIENCE_NS, and says whether it came; else it sets it."""
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("meet", waits)
    for i in cutlass.range(n, unroll=1):
        iket.mark("tick", i)
    if waits == 1:
        end = globaltimer() + PATIENCE_NS
        seen = peek(flags.iterator)
        while seen == 0 and globaltimer() < end:
            seen = peek(flags.iterator)
        if tidx == 0:
            flags[32] = seen
    else:
        post(flags.iterator, cutlass.Int32(1))
    iket.range_pop()


@cute.jit
def meet_host(address: cute.Pointer, waits: cutlass.Int32, n: cutlass.Int32, stream: cuda.CUstream):
    flags = cute.make_tensor(address, cute.make_layout(WORDS))
    meet(flags, waits, n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
