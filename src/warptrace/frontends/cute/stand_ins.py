"""Libraries' own stand-ins for the DSL's event module: objects named after it, with functions of its names that do
nothing. Nothing is called to find out: what a function does is read from its instructions."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from .wrapping import DISGUISE, Around, wrapped

FUNCTIONS = ("mark", "range_push", "range_pop", "range_start", "range_end", "sentinel_token")
"""The functions of the DSL's event module."""
HINT = "iket"
"""Part of a stand-in's name, or of its module's, in any case."""

_DSL = "cutlass"
_PAIRS = ({"range_push", "range_pop"}, {"range_start", "range_end"})
_PAYLOADS = ("payload", "value")
_NEITHER = ("loc", "ip", *_PAYLOADS)
_HARMLESS = {
    "RESUME", "NOP", "EXTENDED_ARG", "POP_TOP", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "STORE_FAST_LOAD_FAST",
    "STORE_FAST_STORE_FAST", "DELETE_FAST", "BUILD_TUPLE", "RETURN_VALUE", "RETURN_CONST",
}  # fmt: skip
"""Instructions of Python 3.10 to 3.14 that only move constants and arguments."""
_MAKES_FUNCTIONS = _HARMLESS | {"LOAD_GLOBAL", "MAKE_FUNCTION"}
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class StandIn:
    """``place``: the module and its name for ``owner``, the module, class or instance that has the functions."""

    place: str
    owner: Any

    def replace(self, around: Callable[[str], Around]) -> list[tuple[Any, Any]]:
        """Puts ``around(name)`` around each function. Returns pairs of functions before and after, of those that are
        called as they are known: another may stand for something else as well."""
        pairs = []
        for name in FUNCTIONS:
            held = _held(self.owner, name)
            original = _function(held)
            if original is None:
                continue
            made = wrapped(original, around(name))
            _put(self.owner, name, type(held)(made) if isinstance(held, (staticmethod, classmethod)) else made)
            if original.__name__ == name:
                pairs.append((original, made))
        return pairs


class Finder:
    """Looks through the modules that have been imported. Those that gained no name since are passed over."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def new(self, modules: Mapping[str, Any] = sys.modules) -> Iterator[StandIn]:
        """Stand-ins whose functions are as their library made them."""
        for module_name, module in list(modules.items()):
            names = _names(module)
            if names is None or self._sizes.get(module_name) == len(names):
                continue
            owners = [(f"{module_name}.{n}", v) for n, v in list(names.items()) if isinstance(n, str) and _hinted(n)]
            if _hinted(module_name.rpartition(".")[2]):
                owners.append((module_name, module))
            if not owners:
                self._sizes[module_name] = len(names)
            yield from (StandIn(place, owner) for place, owner in owners if _asked(owner))


def is_stand_in(owner: Any) -> bool:
    """Whether it has functions to open and to close a range, and all that it has of the six could be called in place
    of the DSL's and do nothing."""
    if isinstance(owner, ModuleType) and owner.__name__.partition(".")[0] == _DSL:
        return False
    held = {name: _held(owner, name) for name in FUNCTIONS}
    there = {name: _function(one) for name, one in held.items() if one is not None}
    if not any(pair <= set(there) for pair in _PAIRS):
        return False
    return all(f is not None and does_nothing(f) and _fits(f, name) for name, f in there.items())


def does_nothing(function: FunctionType) -> bool:
    """Whether all that a call can do is give back a constant or an argument."""
    return _only(_undecorated(function), _HARMLESS)


def given(owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of a call of one of ``owner``'s functions: its name or token, and its payload; None where there is none."""
    kind = owner if isinstance(owner, type) else type(owner)
    if args and (args[0] is kind or isinstance(args[0], kind)):  # a bound method's
        args = args[1:]
    first = [*args[:1], *(v for name, v in kwargs.items() if name.strip("_") not in _NEITHER), None]
    payload = [*args[1:2], *(v for name, v in kwargs.items() if name.strip("_") in _PAYLOADS), None]
    return first[0], payload[0]


def _names(module: Any) -> dict[Any, Any] | None:
    with suppress(Exception):  # what stands among the modules, or in one, may raise whatever it is asked
        return module.__dict__ if isinstance(module.__dict__, dict) else None
    return None


def _asked(owner: Any) -> bool:
    with suppress(Exception):
        return is_stand_in(owner)
    return False


def _hinted(name: str) -> bool:
    return HINT in name.lower()


def _only(function: FunctionType, instructions: set[str]) -> bool:
    code = function.__code__
    return not code.co_flags & _RUNS_LATER and all(i.opname in instructions for i in dis.get_instructions(code))


def _held(owner: Any, name: str) -> Any:
    """What ``owner.name`` is looked up as; no code of the owner's runs but one that only makes functions."""
    found = inspect.getattr_static(owner, name, None)
    if found is None and not isinstance(owner, (type, ModuleType)):
        maker = inspect.getattr_static(type(owner), "__getattr__", None)
        if isinstance(maker, FunctionType) and _only(maker, _MAKES_FUNCTIONS):
            made = maker(owner, name)
            return staticmethod(made) if isinstance(made, FunctionType) else None
    return found


def _function(held: Any) -> FunctionType | None:
    inner = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
    return inner if isinstance(inner, FunctionType) else None


def _undecorated(function: FunctionType) -> FunctionType:
    """What a decorator of the DSL's was given: those add source locations."""
    while (module := str(function.__globals__.get("__name__"))).partition(".")[0] == _DSL and module != DISGUISE:
        inner = getattr(function, "__wrapped__", None)
        if not isinstance(inner, FunctionType):
            break
        function = inner
    return function


def _fits(function: FunctionType, name: str) -> bool:
    """Whether it can be called as the DSL's function of that name is, and means by its second argument a payload."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name.strip("_") in ("self", "cls"):
        parameters = parameters[1:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if name == "range_pop":
        return not needed
    takes_one = bool(named) or any(p.kind == p.VAR_POSITIONAL for p in parameters)
    return takes_one and needed in ([], named[:1]) and all(p.name.strip("_") in _PAYLOADS for p in named[1:2])


def _put(owner: Any, name: str, value: Any) -> None:
    own = None if isinstance(owner, type) else getattr(owner, "__dict__", None)
    if isinstance(own, dict) and name in own:
        own[name] = value  # also where assignments are refused
    else:
        setattr(owner if isinstance(owner, type) else type(owner), name, value)
