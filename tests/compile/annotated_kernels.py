"""A kernel annotated for the DSL's own event module, with a token that a loop carries. The tests set ``events`` to that
module, or to its functions as they were before they were wrapped."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

events: Any = None


@cute.kernel
def annotated(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    events.mark("begin", n)
    events.range_push("all")
    token = events.sentinel_token("step")
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        if i > 0:
            events.range_end(token, i)
        token = events.range_start("step", i)
        total += g[i]
    if n > 0:
        events.range_end(token, n)
    events.range_pop()
    g[tidx] = total


@cute.jit
def annotated_host(g: cute.Tensor, n: cutlass.Int32):
    annotated(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])
