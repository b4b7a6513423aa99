"""Runs an exported ``steps`` object (see gpu_kernels.py): OBJECT CTAS [--once]. It knows nothing of the tracer."""

from __future__ import annotations

import os
import sys

import cutlass
import torch
from cutlass.cute.runtime import from_dlpack, load_module

THREADS = 128


def check(what: str, path: str, ctas: int, n: int) -> None:
    out = torch.zeros(ctas * THREADS, dtype=torch.int32, device="cuda")
    # A module of its own: host code keeps the cell that it has found.
    function = load_module(path)["steps"]
    function(from_dlpack(out, assumed_align=16), cutlass.Int32(n), cutlass.Int32(ctas))
    torch.cuda.synchronize()
    right = torch.equal(out, torch.arange(n, n + len(out), dtype=torch.int32, device="cuda"))
    print(f"{what}: {'ok' if right else 'WRONG'}")


def main() -> None:
    path, ctas = sys.argv[1], int(sys.argv[2])
    check("no cell", path, ctas, 5)
    if "--once" in sys.argv:
        return
    os.environ["WARPTRACE_CELL"] = f"{os.getppid()}:7f0000001000"
    check("stale cell", path, ctas, 6)
    os.environ["WARPTRACE_CELL"] = "nonsense"
    check("unreadable cell", path, ctas, 7)


if __name__ == "__main__":
    main()
