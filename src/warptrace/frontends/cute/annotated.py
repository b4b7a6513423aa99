"""Kernels that are annotated for the DSL's own event module: an event of ours stands beside each of its calls.

The original is called as ever, so that it makes no difference whether the DSL compiles those calls in (``iket`` in its
compiler options) or strips them. Its public functions are all that is known of the module here. What libraries use in
its place, and does nothing, is treated the same.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from ...runtime.log import log
from . import dsl, events, stand_ins
from .payload import supported
from .wrapping import Around, Call, rebind, wrapped

MODULE = "cutlass.cute.experimental.iket"
OLD_PLACE = "cutlass.cute.iket"
"""Where libraries look for it next; if it is not there either they use functions of their own that do nothing."""

_inside: ContextVar[bool] = ContextVar("warptrace_inside_iket", default=False)
_finder = stand_ins.Finder()
_finding = threading.Lock()


def wrap() -> None:
    """Wraps the module's functions, once in a process, and has stand-ins of it wrapped when they are found."""
    _wrap_module()
    _look_before_each_trace()


def _wrap_module() -> None:
    """Nothing is wrapped where this DSL lacks the module or cannot load it."""
    try:
        module = importlib.import_module(MODULE)
        originals = {name: getattr(module, name) for name in _AROUND}
        pairs = [(f, wrapped(f, _around(f, _AROUND[name]))) for name, f in originals.items()]
    except Exception as e:  # older DSLs lack it; others refuse it on the toolkit at hand
        log("debug", f"{MODULE} is not there ({type(e).__name__}: {e}): {OLD_PLACE} stands for it")
        _stand_in()
        return
    rebind(pairs)


def _stand_in() -> None:
    """Puts a module with our events where libraries look for an older DSL's, unless something is there."""
    package = sys.modules["cutlass.cute"]
    name = OLD_PLACE.rpartition(".")[2]
    if hasattr(package, name) or OLD_PLACE in sys.modules:
        return
    module = ModuleType(OLD_PLACE, "Stands for the DSL's event module, which cannot be loaded here.")
    for function in _AROUND:
        setattr(module, function, _unless_off(getattr(events, function)))
    sys.modules[OLD_PLACE] = module
    setattr(package, name, module)


def _unless_off(event: Callable[..., Any]) -> Callable[..., Any]:
    """``event``, doing nothing where these calls are not to be recorded."""

    @functools.wraps(event)
    def call(*args: Any, **kwargs: Any) -> Any:
        return event(*args, **kwargs) if dsl.annotations_recorded() else None

    return call


# ------------------------------------------------------------------------------------------ stand-ins of libraries
def _look_before_each_trace() -> None:
    """What a kernel uses has been imported by then. Nothing is looked for where this DSL traces in another way."""
    try:
        from cutlass.base_dsl.dsl import BaseDSL

        trace = BaseDSL.generate_original_ir
    except (ImportError, AttributeError) as e:
        log("debug", f"no stand-ins of {MODULE} are looked for: {type(e).__name__}: {e}")
        return

    @functools.wraps(trace)
    def looking(*args: Any, **kwargs: Any) -> Any:
        if dsl.annotations_recorded() and events.enabled():
            _wrap_stand_ins()
        return trace(*args, **kwargs)

    BaseDSL.generate_original_ir = looking


def _wrap_stand_ins() -> None:
    with _finding:
        for found in _finder.new():
            try:
                rebind(found.replace(functools.partial(_around_stand_in, found.owner)))
            except Exception as e:  # it cannot be changed
                log("debug", f"{found.place} records nothing: {type(e).__name__}: {e}")
            else:
                log("info", f"calls of {found.place}, which does nothing in place of {MODULE}, are recorded")


def _around_stand_in(owner: Any, name: str) -> Around:
    """An event beside each call in a kernel; what the original gives back is of use only where no token is wanted."""

    @contextmanager
    def around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
        if not dsl.annotations_recorded() or not events.recording():
            yield Call(args, kwargs)
            return
        token = _event_of(name, *stand_ins.given(owner, args, kwargs))
        yield Call(args, kwargs, lambda made: made if token is None else token)

    return around


def _event_of(function: str, first: Any, payload: Any) -> events.Token | None:
    """The event of a call; the token where it is one that returns a token. The stand-in takes names and payloads of any
    kind, so none is an error."""
    payload = payload if supported(payload) or isinstance(payload, float) else None
    if function == "range_pop":
        events.range_pop()
    elif function == "range_end":
        if isinstance(first, events.Token):  # else none of ours began it
            events.range_end(first, payload)
    else:
        name = str(first).encode(errors="replace")[: events.MAX_NAME_BYTES].decode(errors="ignore") or "?"
        values = (name,) if function == "sentinel_token" else (name, payload)
        made: events.Token | None = getattr(events, function)(*values)
        return made
    return None


class BothTokens:
    """A token of the DSL's and ours for the same range: one run-time value that loops carry and branches merge."""

    def __init__(self, theirs: Any, ours: events.Token) -> None:
        self.theirs = theirs
        self.ours = ours

    def __extract_mlir_values__(self) -> list[Any]:
        return [*self.theirs.__extract_mlir_values__(), *self.ours.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: list[Any]) -> BothTokens:
        own = len(values) - len(self.ours.__extract_mlir_values__())
        theirs = self.theirs.__new_from_mlir_values__(values[:own])
        return BothTokens(theirs, self.ours.__new_from_mlir_values__(values[own:]))


Given = dict[str, Any]


def _around(original: Callable[..., Any], event: Callable[[list[str], Given], Callable[[Any], Any]]) -> Around:
    """``event(parameters, given)`` records what comes before the original, or returns what records after it."""
    signature = inspect.signature(original)
    parameters = list(signature.parameters)

    @contextmanager
    def around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
        if _inside.get() or not dsl.annotations_recorded() or not events.recording():
            yield Call(args, kwargs)
            return
        bound = signature.bind(*args, **kwargs)
        result = event(parameters, bound.arguments)
        mark = _inside.set(True)  # one of them may call another
        try:
            yield Call(bound.args, bound.kwargs, result)
        finally:
            _inside.reset(mark)

    return around


def _mark(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    def after(made: Any) -> Any:
        events.mark(given[parameters[0]], given.get("payload"))
        return made

    return after


def _push(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    def after(made: Any) -> Any:
        events.range_push(given[parameters[0]], given.get("payload"))
        return made

    return after


def _pop(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    events.range_pop()
    return lambda made: made


def _start(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    return lambda made: BothTokens(made, events.range_start(given[parameters[0]], given.get("payload")))


def _sentinel(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    return lambda made: BothTokens(made, events.sentinel_token(given[parameters[0]]))


def _end(parameters: list[str], given: Given) -> Callable[[Any], Any]:
    token = given[parameters[0]]
    if isinstance(token, BothTokens):  # else it was made outside the kernel, and the original says what that means
        events.range_end(dsl.read_attribute(token, "ours"), given.get("payload"))
        given[parameters[0]] = dsl.read_attribute(token, "theirs")
    return lambda made: made


_AROUND = {
    "mark": _mark,
    "range_push": _push,
    "range_pop": _pop,
    "range_start": _start,
    "range_end": _end,
    "sentinel_token": _sentinel,
}
