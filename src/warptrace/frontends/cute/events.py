"""The event API of ``warptrace.cute``. Each call leaves a placeholder in the kernel's IR (see ``lower``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import cutlass
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from ... import wire
from ...errors import WarptraceError
from ...wire import EventKind, PayloadType
from . import dsl
from . import payload as payloads
from .ir_tools import constant, enclosing_kernel, is_argument, plain_value, walk

MAX_NAME_BYTES = 255
PLACEHOLDER = "warptrace_event"
"""Attribute that marks a placeholder; its value is the event kind. The others are named PLACEHOLDER_*."""

_forced: ContextVar[bool | None] = ContextVar("warptrace_tracing", default=None)
_at: ContextVar[tuple[str, int] | None] = ContextVar("warptrace_place", default=None)


class EventError(WarptraceError):
    """Misuse of the event API; the text begins with file:line of the call."""


class PairingWarning(UserWarning):
    """A range that looks unpaired on some path of a kernel. Valid programs are never rejected for it."""


def enabled() -> bool:
    """Whether event calls traced now are compiled into kernels."""
    forced = _forced.get()
    return dsl.process_enabled() if forced is None else forced


@contextmanager
def tracing(on: bool = True) -> Iterator[None]:
    """Compiles what is traced inside with events (``on``) or without, whatever the process says::

        with warptrace.cute.tracing():
            traced = cute.compile(host_function, *args)

    The innermost block counts.
    """
    if on:
        dsl.arm()
    mark_of_before = _forced.set(on)
    try:
        yield
    finally:
        _forced.reset(mark_of_before)


class Token:
    """What ``range_start`` returns: a run-time value that may cross iterations and merge with sentinels.

    Off, and outside kernels, it carries nothing. ``name`` is a label: after a merge, that of the value it began with.
    What is known statically of its start is read from the finished IR (see ``lower``), never kept here: one of the
    DSL's front ends learns that a loop carries a token only after it has traced uses of it.
    """

    def __init__(self, value: cutlass.Int32 | None, name: str) -> None:
        self.value = value
        self.name = name

    def __extract_mlir_values__(self) -> list[Any]:
        return [] if self.value is None else [self.value.ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Token:
        return Token(cutlass.Int32(values[0]) if values else None, self.name)


def mark(name: str, payload: Any = None) -> None:
    """Records a point event.

    ``payload``: Python bool, int (32 bits) or float (32 bits), or a DSL scalar; the value of the first active lane is
    recorded. Raises EventError (file:line) for a bad name or payload.
    """
    if recording():
        _event(EventKind.MARK, _checked_name(name), payload)


def range_push(name: str, payload: Any = None) -> None:
    """Opens a range; the next unmatched ``range_pop`` of the warp closes it (LIFO)."""
    if recording():
        _event(EventKind.PUSH, _checked_name(name), payload)


def range_pop() -> None:
    """Closes the range pushed last."""
    if recording():
        _event(EventKind.POP, "", None)


def switch(name: str, payload: Any = None) -> None:
    """Ends the range pushed last and starts the next with the same stamp: half the records of phase-by-phase code."""
    if recording():
        _event(EventKind.SWITCH, _checked_name(name), payload)


@contextmanager
def range(name: str, payload: Any = None) -> Iterator[None]:
    """``with range(name[, payload]):`` pushes on entry and pops at the end of the block."""
    range_push(name, payload)
    yield
    range_pop()


def range_start(name: str, payload: Any = None) -> Token:
    """Opens a range that ends where its token is given to ``range_end``, later or in another iteration."""
    if not recording():
        return Token(None, name)
    return Token(cutlass.Int32(_event(EventKind.START, _checked_name(name), payload)), name)


def range_end(token: Token, payload: Any = None) -> None:
    """Closes the range of ``token``; nothing happens for a sentinel. Raises EventError if ``token`` is not a token, or
    if its payload is known to differ in presence or type from that of the start."""
    if not recording():
        return
    if not isinstance(token, Token):
        raise _error(f"range_end needs a token from range_start or sentinel_token, not {type(token).__name__}")
    if token.value is None:
        raise _error("the token was made outside the kernel or while tracing was off; make it in the same kernel")
    _event(EventKind.END, token.name, payload, token=token)


def sentinel_token(name: str) -> Token:
    """A token that stands for no range: for variables that a loop carries before the first ``range_start``."""
    if not recording():
        return Token(None, name)
    _checked_name(name)
    return Token(cutlass.Int32(constant(wire.SENTINEL_TOKEN, "i32")), name)


def recording() -> bool:
    """Whether an event call made now leaves an event: tracing is on, and a kernel is being traced."""
    return enabled() and enclosing_kernel() is not None


_OWN = __name__.rpartition(".")[0]
_BETWEEN = ("cutlass", "contextlib", "functools", "warnings", "typing_extensions")
"""Packages of frames that are not the user's: the DSL, and what its functions are decorated with."""


def _call_site() -> tuple[str, int]:
    """File and line of the user's call: the first frame outside this front end and the DSL."""
    place = _at.get()
    if place is not None:
        return place
    frame = outside(sys._getframe(1))
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one on, outside this front end and the DSL."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in _BETWEEN and not module.startswith(f"{_OWN}."):
            return frame
        frame = frame.f_back
    return None


@contextmanager
def placed(place: tuple[str, int]) -> Iterator[None]:
    """Events made inside have this file and line, wherever they are called."""
    mark_of_before = _at.set(place)
    try:
        yield
    finally:
        _at.reset(mark_of_before)


def _error(text: str) -> EventError:
    file, line = _call_site()
    return EventError(f"{file}:{line}: {text}")


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise _error(f"event name must be a str, not {type(name).__name__}")
    if not name:
        raise _error("event name is empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _error("event name is not valid Unicode (it holds a lone surrogate)") from None
    if size > MAX_NAME_BYTES:
        raise _error(f"event name has {size} UTF-8 bytes; at most {MAX_NAME_BYTES} are allowed")
    return name


def _event(kind: EventKind, name: str, payload: Any, token: Token | None = None) -> Any | None:
    """Leaves a placeholder; returns the token value of a START."""
    try:
        made = None if payload is None else payloads.make(payload)
    except payloads.PayloadError as e:
        raise _error(str(e)) from None
    payload_type = PayloadType.NONE if made is None else made.type
    operands = [] if made is None else [made.bits]
    if token is not None:
        bits = plain_value(dsl.read_attribute(token, "value").ir_value())
        if not dsl.frontend_next() and (reason := payload_mismatch(bits, payload_type)):
            raise _error(reason)
        operands = [bits, *operands]
    file, line = _call_site()
    constraints = ["=r"] if kind == EventKind.START else []
    constraints += ["r"] * (token is not None) + (["l" if made.width == "i64" else "r"] if made is not None else [])
    starts = kind == EventKind.START
    op = llvm.InlineAsmOp(
        ir.IntegerType.get_signless(32) if starts else None,
        operands,
        "// warptrace event",
        ",".join(constraints),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    ).operation
    _annotate(op, kind, name, payload_type, file, line)
    return op.results[0] if starts else None


def payload_mismatch(token: Any, end: PayloadType) -> str | None:
    """Why an END with this payload cannot close the range of the token value; None where it can or nothing is known,
    as control flow lies between. FrontendNext shows control flow only when the whole kernel has been traced."""
    if is_argument(token) or PLACEHOLDER not in token.owner.attributes:
        return None
    op = token.owner.operation
    name = str(ir.StringAttr(op.attributes[f"{PLACEHOLDER}_name"]).value)
    start = PayloadType(int(ir.IntegerAttr(op.attributes[f"{PLACEHOLDER}_payload"]).value))
    if start == end:
        return None
    if PayloadType.NONE in (start, end):
        which = ("start", "end") if end == PayloadType.NONE else ("end", "start")
        return f"token range '{name}' has a payload at its {which[0]} only; give one at its {which[1]} too"
    return f"token range '{name}' starts with a payload of type {start.name} and ends with {end.name}"


def _annotate(op: Any, kind: EventKind, name: str, payload: PayloadType, file: str, line: int) -> None:
    i32 = ir.IntegerType.get_signless(32)
    op.attributes[PLACEHOLDER] = ir.IntegerAttr.get(i32, int(kind))
    op.attributes[f"{PLACEHOLDER}_payload"] = ir.IntegerAttr.get(i32, int(payload))
    op.attributes[f"{PLACEHOLDER}_name"] = ir.StringAttr.get(name)
    op.attributes[f"{PLACEHOLDER}_file"] = ir.StringAttr.get(file)
    op.attributes[f"{PLACEHOLDER}_line"] = ir.IntegerAttr.get(i32, line)


def placeholders(kernel: Any) -> list[Any]:
    """The events that stand in a kernel whose placeholders are not lowered yet."""
    found: list[Any] = []
    walk(kernel, lambda op: found.append(op) if PLACEHOLDER in op.attributes else None)
    return found


def erase_events(kernel: Any) -> bool:
    """Takes all events out of a kernel, which is then what it is with tracing off. False where it holds none."""
    found = placeholders(kernel)
    for op in found:
        if len(op.results):
            with ir.InsertionPoint(op), op.location:
                none = constant(wire.SENTINEL_TOKEN, "i32")
            plain_value(op.results[0]).replace_all_uses_with(none)
        op.erase()
    return bool(found)
