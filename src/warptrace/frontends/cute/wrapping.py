"""Puts something around functions of the DSL without its noticing: name, signature and module stay what they were, and
so do the source locations that it gives its operations."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

DISGUISE = "cutlass.warptrace"
"""Module that wrappers pretend to be of."""


@dataclass(frozen=True)
class Call:
    """What is to be called with, and what makes of its result that of the wrapped function."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Callable[[Any], Any] = lambda made: made


Around = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Call]]


def wrapped(original: Callable[..., Any], around: Around) -> Callable[..., Any]:
    """``original``, called inside ``around(args, kwargs)`` with what that says."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs) as inner:
            return inner.result(original(*inner.args, **inner.kwargs))

    # The DSL takes for the user's line the innermost frame that is not of a module of its own.
    disguised = types.FunctionType(call.__code__, {"__name__": DISGUISE}, None, None, call.__closure__)
    return functools.wraps(original)(disguised)


def rebind(replaced: Sequence[tuple[Any, Any]]) -> None:
    """Has every name of a loaded module that stands for the first of a pair stand for the second: other modules have
    their own names for what they imported."""
    by_id = {id(old): new for old, new in replaced}
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if id(value) in by_id:
                    names[name] = by_id[id(value)]
