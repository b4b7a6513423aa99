"""A rank of torchrun, on a GPU of its own: traced kernels of different lengths with an all-reduce of NCCL between them.

Every turn a first kernel, the all-reduce, a second kernel. Then some all-gathers of examples/peer_all_gather.py, the
last rank late. Prints a line: pid, rank, whether sums and shards were right.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

TURNS = 40
FIRST_NS, SECOND_NS, MORE_NS = 20_000, 10_000, 60_000
"""The first kernel of a turn lasts longer on one rank after the other."""
PAUSE_S = 0.1
GATHERS, LATE_US = 5, 2000


def main() -> int:
    import clock_kernels as k
    import cutlass
    import cutlass.cute as cute
    import peer_all_gather
    import torch
    import torch.distributed as dist

    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    rank, world = dist.get_rank(), dist.get_world_size()
    one, ctas = cutlass.Int32(1), cutlass.Int32(4)
    compiled = cute.compile(k.waits_host, cutlass.Int64(1), one, ctas)
    data = torch.empty(1 << 20, device="cuda")
    right = True
    for turn in range(-1, TURNS):  # the first one warms up
        data.fill_(rank + 1)
        torch.cuda.synchronize()
        compiled(cutlass.Int64(FIRST_NS + MORE_NS * (turn % world == rank)), one, ctas)
        dist.all_reduce(data)
        compiled(cutlass.Int64(SECOND_NS), one, ctas)
        torch.cuda.synchronize()
        right = right and bool((data == world * (world + 1) // 2).all())
        if turn < 0:
            dist.barrier()
        time.sleep(PAUSE_S)
    gather = peer_all_gather.Rank()
    gather.warm_up()
    time.sleep(0.6)
    for _ in range(GATHERS):
        right = gather.gather(LATE_US) and right
    time.sleep(0.6)
    os.write(1, (json.dumps({"pid": os.getpid(), "rank": rank, "right": right}) + "\n").encode())
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
