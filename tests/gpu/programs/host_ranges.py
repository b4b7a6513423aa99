"""Marks what it does for torch's profiler and for NVTX, and launches an annotated kernel inside, also from a thread."""

import threading
import time

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

import warptrace.cute as iket


@cute.kernel
def work(out: cute.Tensor):
    iket.mark("begin")
    tidx, _, _ = cute.arch.thread_idx()
    out[tidx] = tidx


@cute.jit
def host(out: cute.Tensor):
    work(out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def main() -> None:
    out = from_dlpack(torch.zeros(32, dtype=torch.int32, device="cuda"))
    compiled = cute.compile(host, out)
    compiled(out)
    for step in range(3):
        with torch.cuda.nvtx.range("step {}", step), torch.profiler.record_function("forward"):
            time.sleep(0.002)
            compiled(out)
            torch.cuda.synchronize()
    torch.cuda.nvtx.mark("between")
    other = threading.Thread(target=lambda: compiled(out), name="second")
    other.start()
    other.join()
    torch.cuda.synchronize()
    print("host ranges: ok")


main()
