"""The kernel that benchmarks/event_cost.py measures. Imported by its child processes only.

The environment names the event API (``BENCHMARK_API``): ours, or the DSL's own that the reference profiler records.
"""

from __future__ import annotations

import os
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

if os.environ["BENCHMARK_API"] == "reference":
    iket = cute.experimental.iket
else:
    import warptrace.cute as iket


@dsl_user_op
def cycles(*, loc: Any = None, ip: Any = None) -> cutlass.Int64:
    """The SM's cycle counter; keeps its place among other operations with side effects."""
    value = llvm.inline_asm(
        T.i64(),
        [],
        "mov.u64 $0, %clock64;",
        "=l",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return cutlass.Int64(value)


@cute.jit
def work(value: cutlass.Float32) -> cutlass.Float32:
    for _ in cutlass.range_constexpr(24):
        value = value * 0.5 + 1.0
    return value


@cute.kernel
def loop(out: cute.Tensor, n: cutlass.Int32, mode: cutlass.Constexpr, warps: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("before")
    value = cutlass.Float32(tidx)
    begin = cycles()
    for i in cutlass.range(n, unroll=1):
        if cutlass.const_expr(mode == "mark"):
            iket.mark("mark")
        if cutlass.const_expr(mode == "mark_i32"):
            iket.mark("mark", i)
        if cutlass.const_expr(mode == "mark_i64"):
            iket.mark("mark", cutlass.Int64(i))
        if cutlass.const_expr(mode == "push_pop"):
            iket.range_push("range")
            iket.range_pop()
        if cutlass.const_expr(mode == "push_i32_pop"):
            iket.range_push("range", i)
            iket.range_pop()
        if cutlass.const_expr(mode == "start_end"):
            token = iket.range_start("range")
            iket.range_end(token)
        if cutlass.const_expr(mode == "work"):
            value = work(value)
        if cutlass.const_expr(mode == "work_mark"):
            value = work(value)
            iket.mark("mark")
        if cutlass.const_expr(mode == "push_work_pop"):
            iket.range_push("range")
            value = work(value)
            iket.range_pop()
        if cutlass.const_expr(mode == "push_i32_work_pop"):
            iket.range_push("range", i)
            value = work(value)
            iket.range_pop()
        if cutlass.const_expr(mode == "start_work_end"):
            token = iket.range_start("range")
            value = work(value)
            iket.range_end(token)
    end = cycles()
    if tidx % 32 == 0:
        out[bidx * warps + tidx // 32] = end - begin
    if value < 0.0:  # never: keeps the work
        out[0] = 0


@cute.jit
def host(
    out: cute.Tensor, n: cutlass.Int32, blocks: cutlass.Int32, mode: cutlass.Constexpr, warps: cutlass.Constexpr
):
    loop(out, n, mode, warps).launch(grid=[blocks, 1, 1], block=[32 * warps, 1, 1])
