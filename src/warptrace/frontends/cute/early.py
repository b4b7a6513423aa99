"""Which events are stamped before the warp's region is there, and where it is opened then.

The claim of a region is an atomic whose result comes 600 cycles later, or more where many warps claim at once. A kernel
that marks its begin would wait for it before its own first loads: a kernel of 66 us with three events took 120 us
longer for that and what else a warp's begin costs. So the first events of a kernel only read the clock where they
stand, and the region is opened, and they are stored, behind what follows them and cannot wait: address arithmetic,
loads, branches of such. Before anything that may wait for others, and before a loaded value is used, they are stored:
a warp that hangs has its last event in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from ...wire import EventKind
from . import gaps
from .ir_tools import BRANCHES, TERMINATORS, plain_value, walk

MOST_EARLY = 4
"""Each holds a register until the region is there."""


@dataclass(frozen=True)
class Early:
    """``events``: operations of the events that are stamped where they stand and stored before the operation ``sink``,
    where the region is opened."""

    events: frozenset[Any]
    sink: Any


def find(entry: Any, first: Any, events: Mapping[Any, Any], led_by_lane_0: Set[Any]) -> Early | None:
    """What can be early in a kernel's entry block; None where nothing can. ``first``: its first operation that is, or
    holds, an event; ``events``: all of them by operation (see ``lower.Event``); ``led_by_lane_0``: operations of those
    that may be early."""
    early: list[Any] = []
    loaded: set[Any] = set()
    begun = passed = False
    for op in (o.operation for o in entry.operations):
        begun = begun or op == first.operation
        if not begun:
            continue
        event = events.get(op)
        if event is not None and op in led_by_lane_0 and _is_simple(event) and len(early) < MOST_EARLY:
            early.append(op)
            continue
        if event is not None or op.name in TERMINATORS or not _passes(op, events, loaded):
            return Early(frozenset(early), op) if early and passed else None
        passed = passed or not _is_nothing(op)
        if any("load" in inner.name for inner in _all(op)):
            loaded.update(map(plain_value, op.results))
    return None


def _is_simple(event: Any) -> bool:
    """A token's value, the upper bits of the clock and the timer are there with the region only."""
    simple = event.kind not in (EventKind.START, EventKind.END)
    return simple and not event.anchor and not event.gap.high


def _passes(op: Any, events: Mapping[Any, Any], loaded: set[Any]) -> bool:
    """Whether the region need not be there before ``op``: nothing in it takes long, is an event or needs a load."""
    for inner in _all(op):
        if len(inner.regions):
            if inner.name not in BRANCHES:
                return False
        elif inner in events or not gaps.is_brief(inner):
            return False
        if any(plain_value(value) in loaded for value in inner.operands):
            return False
    return True


def _all(op: Any) -> list[Any]:
    found: list[Any] = []
    walk(op, found.append)
    return found


def _is_nothing(op: Any) -> bool:
    """Whether an operation takes no time of its own worth hiding anything behind."""
    return not len(op.regions) and "load" not in op.name and "copy" not in op.name
