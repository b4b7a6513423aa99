"""Launches ``steps`` inside and outside of capture windows: its n is below 100 inside, and 100 or more outside.

Prints the numbers launched inside, in order. Two graphs are captured, one outside and one inside, and replayed in both.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import torch
from gpu_kit import Out

import warptrace

CTAS = 4
inside: list[int] = []


def main() -> None:
    out = Out(CTAS)
    ctas = cutlass.Int32(CTAS)
    compiled = cute.compile(k.steps_on_stream, out.cute, cutlass.Int32(1), ctas, cuda.CUstream(0))

    def launch(n: int) -> None:
        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        compiled(out.cute, cutlass.Int32(n), ctas, stream)

    def captured(n: int) -> Any:
        gc.collect()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            launch(n)
        return graph

    launch(100)
    before = captured(101)
    before.replay()
    with warptrace.capture():
        for n in (1, 2):
            launch(n)
            inside.append(n)
        before.replay()  # it was captured without trace memory
    launch(102)
    warptrace.start()
    graph = captured(3)
    for _ in range(3):
        graph.replay()
        inside.append(3)
    warptrace.stop()
    for _ in range(200):
        graph.replay()
    launch(103)
    with warptrace.capture():
        graph.replay()
        launch(4)
        inside.extend([3, 4])
    graph.replay()
    assert out.holds(3)
    print(*inside)


if __name__ == "__main__":
    main()
