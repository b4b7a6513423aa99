# SPDX-License-Identifier: Apache-2.0
"""The smallest traced kernel: ``c = a + b``, one element per thread.

python examples/vector_add.py                                            runs it
warptrace profile --postprocess all -- python examples/vector_add.py     runs and traces it
"""

import sys

from cutlass import cute
from cutlass.cute.runtime import from_dlpack

import warptrace.cute as iket

THREADS = 256


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    iket.mark("block_start", block)  # a point in time, with a value

    i = block * THREADS + thread
    iket.range_push("add", i)  # recorded once per warp, with the value of its first thread
    if i < cute.size(c):
        c[i] = a[i] + b[i]
    iket.range_pop()


@cute.jit
def vector_add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """Launch one thread per element."""
    blocks = cute.ceil_div(cute.size(c), THREADS)
    add_kernel(a, b, c).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


def expected_events(n: int) -> dict[str, int]:
    """Events of one launch: every warp of every block records one of each."""
    warps = -(-n // THREADS) * (THREADS // 32)
    return {"block_start": warps, "add": warps}


def main(n: int = 100_000) -> int:
    """Add two random vectors and compare with torch."""
    import torch

    a = torch.rand(n, device="cuda")
    b = torch.rand(n, device="cuda")
    c = torch.full_like(a, float("nan"))
    vector_add(from_dlpack(a), from_dlpack(b), from_dlpack(c))
    ok = torch.equal(c, a + b)
    print(f"vector_add: {n} elements, {'ok' if ok else 'WRONG'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
