"""Which events also read %globaltimer, so that a long kernel can be placed in time all along.

The SM clock is not constant inside a kernel: on an H200 under power limit a GEMM of 190 us began at 1.98 GHz, fell to
1.6 in 4 us and moved on between 1.6 and 1.3. Clock pairs at warp entry and exit alone place its middle 4 to 10 us
wrong, and those of a relay of 0.6 s 1 us. A pair costs one more read and four more bytes: some 20 cycles beside work
(H200, 4 warps an SM: a mark 32 cycles with the timer, a push and a pop without 23 together). So it is taken where that
disappears: once per pass of a loop body with at least EVENTS_PER_ANCHOR events, in loops that have deeper loops with
events inside them, and in loops with a wait, right before it where an event stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...wire import PAYLOAD_BITS
from .ir_tools import BRANCHES, KERNEL_OPS

EVENTS_PER_ANCHOR = 4


def choose(events: Sequence[Any]) -> list[bool]:
    """For each event (see ``lower.Event``), in the order of the kernel, whether it is an anchor: at most one of each
    block, that has room beside its payload (at most 32 bits)."""
    depths = [_loops_around(e.op) for e in events]
    deepest = max(depths, default=0)
    blocks: dict[Any, list[int]] = {}
    for number, event in enumerate(events):
        if depths[number]:
            blocks.setdefault(event.op.block, []).append(number)
    chosen = [False] * len(events)
    for numbers in blocks.values():
        many = depths[numbers[0]] < deepest or len(numbers) >= EVENTS_PER_ANCHOR
        behind = [n for n in numbers if events[n].gap.waited]
        before = [n for n, following in zip(numbers, numbers[1:], strict=False) if events[following].gap.waited]
        for number in [*before, *(numbers if many else behind)]:
            if PAYLOAD_BITS[events[number].payload] <= 32:
                chosen[number] = True
                break
    return chosen


def _loops_around(op: Any) -> int:
    depth = 0
    parent = op.block.owner.operation
    while parent.name not in KERNEL_OPS:
        depth += parent.name not in BRANCHES
        parent = parent.block.owner.operation
    return depth
