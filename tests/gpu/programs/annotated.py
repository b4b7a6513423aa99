"""A kernel annotated for the DSL's own event module, run once. Imports nothing of warptrace."""

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.experimental import iket
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def annotated(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("begin", bidx)
    iket.range_push("all")
    token = iket.sentinel_token("step")
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        if i > 0:
            iket.range_end(token, i)
        token = iket.range_start("step", i)
        total += i
    if n > 0:
        iket.range_end(token, n)
    iket.range_pop()
    g[bidx * 64 + tidx] = total


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    annotated(g, n).launch(grid=[4, 1, 1], block=[64, 1, 1])


out = torch.zeros(256, dtype=torch.int32, device="cuda")
host(from_dlpack(out, assumed_align=16), cutlass.Int32(5))
torch.cuda.synchronize()
assert out.tolist() == [10] * 256
print("annotated: ok")
