"""Before which events the clock may pass 2**32 cycles (2.2 s), and which of them therefore tell more of it.

A record holds the low 32 bits of the clock. Along arithmetic, loads and issues nothing can take that long; along a
wait, a loop or text that is not known it may. An event behind such a stretch also stores the clock's bits 32 to 47,
where it has room for them (it is not linked to a start): 3 cycles more on an H200, where a wait was just paid for.
Events that follow at once need none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cutlass._mlir import ir

from ...wire import EventKind
from .ir_tools import BRANCHES, KERNEL_OPS

_BRIEF = (
    "arith.", "math.", "vector.", "cute.", "cute_nvgpu.", "pyir.", "ub.", "builtin.", "scf.yield", "scf.condition",
    "llvm.mlir.", "llvm.extractvalue", "llvm.insertvalue", "llvm.bitcast", "llvm.load", "llvm.store", "llvm.add",
    "llvm.getelementptr", "llvm.inttoptr", "llvm.ptrtoint", "llvm.alloca", "nvvm.read.", "nvvm.elect", "nvvm.fence",
    "nvvm.redux", "nvvm.shfl", "nvvm.vote", "nvvm.prefetch", "nvvm.mbarrier.init", "nvvm.mbarrier.arrive",
    "nvvm.cp.async", "nvvm.wgmma",
)  # fmt: skip
"""Operations that end at once, or as soon as memory answers."""

_PATIENT = re.compile("wait|sleep|griddep")
"""In the name of an operation, whatever it begins with: it waits for others."""

_BRIEF_ASM = re.compile(
    r"(?:[\s{};]|(?:@!?\$?\w+\s+)?(?:mov|cvt|add|sub|and|or|xor|shl|shr|setp|selp|mad|mul|prmt|lop3|fma|st|ld|red|"
    r"atom|elect|redux|shfl|activemask|fence|\.reg)\b[^;]*;)*"
)
"""Inline PTX of nothing but such."""


@dataclass(frozen=True)
class Gap:
    """Of an event: ``late``: 2**32 cycles may pass between the event before it, whichever that is, and it; ``high``:
    its records carry the clock's bits 32 to 47; ``waited``: a wait, a loop without events or unknown text lies right
    before it, not just a loop that may pass its events by."""

    late: bool
    high: bool
    waited: bool


@dataclass(frozen=True)
class _State:
    """``long``: much time may have passed since the last event; ``lost``: since the last whose time is known whatever
    passed before it; ``waited``: on some way here. A kernel's begin is known."""

    long: bool = False
    lost: bool = False
    waited: bool = False

    def __or__(self, other: _State) -> _State:
        return _State(self.long or other.long, self.lost or other.lost, self.waited or other.waited)


_ANYTHING = _State(True, True)
_WAITED = _State(True, True, True)


def analyse(kernel: Any, events: Mapping[Any, Any], *, ring: bool) -> dict[Any, Gap]:
    """For the operation of each event (see ``lower.Event``) what is known of the time before it. ``ring``: starts
    carry their own tag, so they have no room for the clock's bits either."""
    walk = _Walk(events, ring)
    blocks = list(kernel.regions[0].blocks)
    for block in blocks:
        walk.block(block, _State() if len(blocks) == 1 else _ANYTHING, note=True)
    return walk.gaps


class _Walk:
    def __init__(self, events: Mapping[Any, Any], ring: bool) -> None:
        self._events = events
        self._linked = {EventKind.END, EventKind.START} if ring else {EventKind.END}
        self._outs: dict[tuple[Any, _State], _State] = {}
        self._holders = {parent for op in events for parent in _parents(op)}
        self.gaps: dict[Any, Gap] = {}

    def block(self, block: Any, state: _State, *, note: bool) -> _State:
        """The state behind a block; ``note``: with ``state`` before it, so the gaps of its events are known."""
        for op in (o.operation for o in block.operations):
            event = self._events.get(op)
            if event is not None:
                linked = event.kind in self._linked
                if note:
                    self.gaps[op] = Gap(state.long, state.lost and not linked, state.waited)
                state = _State(False, state.lost and linked)
            elif len(op.regions):
                state = self._behind(op, state, note)
            elif not is_brief(op):
                state = _WAITED
        return state

    def _behind(self, op: Any, state: _State, note: bool) -> _State:
        """The state behind an operation with regions. Kept: a loop asks for those inside it again and again."""
        out = self._outs.get((op, state))
        if out is None or (note and op in self._holders):
            inside = self._branches if op.name in BRANCHES else self._loop
            out = self._outs[op, state] = inside(op, state, note)
        return out

    def _branches(self, op: Any, state: _State, note: bool) -> _State:
        result = _State()
        for region in op.regions:
            blocks = list(region.blocks)
            for out in [self.block(b, state, note=note) for b in blocks] or [state]:
                result |= out
        return result

    def _loop(self, op: Any, state: _State, note: bool) -> _State:
        """A pass begins behind what is before the loop, or behind another pass; a pass without events on some path
        may come any number of times."""
        if op not in self._holders:
            return _WAITED
        after = self._body(op, _ANYTHING, note=False)
        before = state | self._body(op, state | after, note=False)
        self._body(op, before, note=note)
        out = before | after
        # The condition of a while is looked at once more.
        return self.block(op.regions[0].blocks[0], out, note=False) if len(op.regions) > 1 else out

    def _body(self, op: Any, state: _State, *, note: bool) -> _State:
        for region in op.regions:
            for block in region.blocks:
                state = self.block(block, state, note=note)
        return state


def _parents(op: Any) -> Iterator[Any]:
    parent = op.block.owner.operation
    while parent.name not in KERNEL_OPS:
        yield parent
        parent = parent.block.owner.operation


def is_brief(op: Any) -> bool:
    if op.name == "llvm.inline_asm":
        return _BRIEF_ASM.fullmatch(ir.StringAttr(op.attributes["asm_string"]).value) is not None
    return op.name.startswith(_BRIEF) and _PATIENT.search(op.name) is None
