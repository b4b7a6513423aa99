"""Warnings for ranges that look unpaired on a path of a kernel. They never reject a program."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from ...wire import EventKind
from .events import PairingWarning
from .ir_tools import BRANCHES, plain_value


@dataclass(frozen=True)
class _Open:
    name: str
    file: str
    line: int


def check(kernel: Any, events: dict[Any, Any]) -> None:
    """Warns of pushes without a pop, pops that close nothing and tokens never closed.

    ``events`` maps placeholder operations to objects with kind, name, file and line (see ``lower.Event``).
    """
    left = _Walk(events).region(kernel.regions[0], [])
    for opened in left:
        _warn(opened.file, opened.line, f"range '{opened.name}' is pushed and not popped on some path of the kernel")
    for op, event in events.items():
        if event.kind == EventKind.START and not _reaches_end(op.results[0], events):
            _warn(event.file, event.line, f"the token of range '{event.name}' is never given to range_end")


class _Walk:
    """Follows the stack of pushed ranges through structured control flow."""

    def __init__(self, events: dict[Any, Any]) -> None:
        self._events = events

    def region(self, region: Any, stack: list[_Open]) -> list[_Open]:
        for block in region.blocks:
            for op in block.operations:
                stack = self._operation(op.operation, stack)
        return stack

    def _operation(self, op: Any, stack: list[_Open]) -> list[_Open]:
        event = self._events.get(op)
        if event is not None:
            return _apply(event, stack)
        regions = [r for r in op.regions if len(r.blocks)]
        if not regions:
            return stack
        if op.name in BRANCHES:
            outs = [self.region(r, list(stack)) for r in regions]
            return self._join(outs if len(outs) > 1 else [*outs, stack], stack)
        if op.name == "scf.while":  # its condition is a region of its own, after which the loop is left
            left = self.region(regions[0], list(stack))
            popped = len(stack) - len(self._loop(self.region(regions[1], list(left)), stack))
            return left[: len(left) - popped]
        for region in regions:
            stack = self._loop(self.region(region, list(stack)), stack)
        return stack

    def _loop(self, out: list[_Open], before: list[_Open]) -> list[_Open]:
        """A loop body runs any number of times: it must leave the stack as it found it."""
        for opened in out[len(before) :]:
            _warn(opened.file, opened.line, f"range '{opened.name}' is pushed in a loop and not popped in it")
        for opened in before[len(out) :]:
            _warn(opened.file, opened.line, f"range '{opened.name}' is popped in a loop that does not push it")
        return min(before, out, key=len)

    def _join(self, outs: list[list[_Open]], before: list[_Open]) -> list[_Open]:
        longest = max(outs, key=len)
        shortest = min(outs, key=len)
        if len(longest) == len(shortest):
            return longest
        for opened in longest[max(len(shortest), len(before)) :]:
            _warn(opened.file, opened.line, f"range '{opened.name}' is pushed in one branch only and not popped there")
        return shortest if len(shortest) >= len(before) else before


def _apply(event: Any, stack: list[_Open]) -> list[_Open]:
    if event.kind in (EventKind.POP, EventKind.SWITCH):
        if not stack:
            what = "range_pop closes nothing" if event.kind == EventKind.POP else "switch ends nothing"
            _warn(event.file, event.line, f"{what}: no range is open here on this path")
        stack = stack[:-1]
    if event.kind in (EventKind.PUSH, EventKind.SWITCH):
        stack = [*stack, _Open(event.name, event.file, event.line)]
    return stack


def _reaches_end(token: Any, events: dict[Any, Any]) -> bool:
    """Whether the token's value may flow into an END, through yields, loop carries and branches."""
    todo, seen = [token], set()
    while todo:
        value = plain_value(todo.pop())
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            op = use.owner.operation
            event = events.get(op)
            if event is not None:
                if event.kind == EventKind.END:
                    return True
                continue
            todo += _carried(op, use.operand_number)
    return False


def _carried(op: Any, operand: int) -> list[Any]:
    """Values that take over operand number ``operand`` of ``op``."""
    if op.name == "scf.for":
        body = op.regions[0].blocks[0]
        return [] if operand < 3 else [body.arguments[operand - 2], op.results[operand - 3]]
    if op.name == "scf.while":
        return [op.regions[0].blocks[0].arguments[operand]]
    parent = op.block.owner.operation if op.block is not None else None
    if parent is not None and op.name == "scf.condition":
        if operand == 0:
            return []
        return [parent.regions[1].blocks[0].arguments[operand - 1], parent.results[operand - 1]]
    if parent is not None and op.name == "scf.yield":
        if parent.name == "scf.for":
            return [parent.regions[0].blocks[0].arguments[operand + 1], parent.results[operand]]
        if parent.name == "scf.while":
            return [parent.regions[0].blocks[0].arguments[operand]]
        return [parent.results[operand]]
    if op.name == "pyir.store":  # into a cell, whose uses are the loads
        return [op.operands[1]]
    return list(op.results)


def _warn(file: str, line: int, text: str) -> None:
    warnings.warn_explicit(text, PairingWarning, file, line)
