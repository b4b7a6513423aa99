"""Processes that launch in turns: "spawn" or "fork" starts two, "rank" is one of torchrun's.

Each prints a line: its pid, its rank, and the host's time before and after each of its launches.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZE = 2
TURNS = 10
WAIT_NS = 20_000


def work(rank: int, size: int, wait: Callable[[], object]) -> None:
    import clock_kernels as k
    import cutlass
    import cutlass.cute as cute
    import torch

    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.zeros(1, device="cuda")
    arguments = (cutlass.Int64(WAIT_NS), cutlass.Int32(2), cutlass.Int32(4))
    compiled = cute.compile(k.waits_host, *arguments)
    times = []
    for turn in range(TURNS * size):
        wait()
        if turn % size == rank:
            before = time.time_ns()
            compiled(*arguments)
            torch.cuda.synchronize()
            times.append([before, time.time_ns()])
    wait()
    # In one write: other ranks share the stream.
    os.write(1, (json.dumps({"pid": os.getpid(), "rank": rank, "times": times}) + "\n").encode())


def child(rank: int, barrier: object) -> None:
    work(rank, SIZE, lambda: barrier.wait(120))  # type: ignore[attr-defined]


def main() -> int:
    how = sys.argv[1]
    if how == "rank":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        work(dist.get_rank(), dist.get_world_size(), dist.barrier)
        dist.destroy_process_group()
        return 0
    if how == "fork":
        import cutlass  # noqa: F401  # the tracer has started before the fork, CUDA has not
    context = multiprocessing.get_context(how)
    barrier = context.Barrier(SIZE)
    children = [context.Process(target=child, args=(rank, barrier)) for rank in range(SIZE)]
    for one in children:
        one.start()
    for one in children:
        one.join()
    return max(abs(one.exitcode or 0) for one in children)


if __name__ == "__main__":
    sys.exit(main())
