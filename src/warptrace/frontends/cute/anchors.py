"""Which events also read %globaltimer, so that a long kernel can be placed in time all along.

The SM clock is not constant inside a kernel: on an H200 under power limit a GEMM of 190 us began at 1.98 GHz, fell to
1.6 in 4 us and moved on between 1.6 and 1.3. Clock pairs at warp entry and exit alone place its middle 4 to 10 us
wrong, and those of a relay of 0.6 s 1 us. A pair costs one more read and four more bytes, so it is taken where it
disappears: once per pass of a loop body with at least EVENTS_PER_ANCHOR events, in loops that have deeper loops with
events inside them, in wide records by an event that is alone in its block (H200, a mark with 4 and 16 warps an SM: 33.5
and 52 cycles with the timer, 32.5 and 53 without), and by an event behind a wait: what it adds (a push and a pop: 54 to
64 and 113 cycles against 36 and 62) is little beside the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...wire import PAYLOAD_BITS
from .ir_tools import BRANCHES, KERNEL_OPS

EVENTS_PER_ANCHOR = 4


def choose(events: Sequence[Any], *, wide: bool) -> list[bool]:
    """For each event (see ``lower.Event``), in the order of the kernel, whether it is an anchor. ``wide``: of the
    kernel's records.

    The first event of a block that has room beside its payload (at most 32 bits) is taken; where only events behind a
    wait pay, the first of those.
    """
    depths = [_loops_around(e.op) for e in events]
    deepest = max(depths, default=0)
    in_block: dict[Any, int] = {}
    for event in events:
        in_block[event.op.block] = in_block.get(event.op.block, 0) + 1
    taken: set[Any] = set()
    chosen = []
    for event, depth in zip(events, depths, strict=True):
        block = event.op.block
        hidden = in_block[block] >= EVENTS_PER_ANCHOR or (wide and in_block[block] == 1)
        pays = depth > 0 and (depth < deepest or hidden or event.gap.late)
        anchor = pays and block not in taken and PAYLOAD_BITS[event.payload] <= 32
        if anchor:
            taken.add(block)
        chosen.append(anchor)
    return chosen


def _loops_around(op: Any) -> int:
    depth = 0
    parent = op.block.owner.operation
    while parent.name not in KERNEL_OPS:
        depth += parent.name not in BRANCHES
        parent = parent.block.owner.operation
    return depth
