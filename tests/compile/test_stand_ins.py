"""What is taken for a stand-in of the DSL's event module, and what is not. Needs no DSL."""

from __future__ import annotations

import functools
import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from warptrace.frontends.cute import stand_ins
from warptrace.frontends.cute.stand_ins import FUNCTIONS, Finder, StandIn, does_nothing, given, is_stand_in
from warptrace.frontends.cute.wrapping import Call

MODULE = Path(__file__).with_name("no_op_iket.py")
EFFECTS: list[Any] = []


def fresh_module(name: str = "no_op_iket") -> ModuleType:
    """Its own for each test: none of it is replaced yet."""
    spec = importlib.util.spec_from_file_location(name, MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nothing(*args, **kwargs):
    return None


class Shim:
    """As FlashInfer has it: no sentinel, no payload of its own."""

    @staticmethod
    def range_push(_name, *_args, **_kwargs):
        return None

    @staticmethod
    def range_pop(*_args, **_kwargs):
        return None

    @staticmethod
    def range_start(_name, *_args, **_kwargs):
        return None

    @staticmethod
    def range_end(_token=None, *_args, **_kwargs):
        return None

    @staticmethod
    def mark(_name, *_args, **_kwargs):
        return None


class Methods:
    def range_push(self, name, payload=None, *, loc=None, ip=None):
        """Nothing."""

    def range_pop(self):
        return self

    @classmethod
    def mark(cls, name, payload=None):
        _ = name, payload


class Namespace:
    def range_start(event_name, payload=None):
        return event_name

    def range_end(token, payload=None):
        del token, payload


class AnyName:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class OneForAll:
    def __getattr__(self, name):
        return nothing


@pytest.mark.parametrize(
    "owner",
    [
        fresh_module(), Shim, Shim(), Methods, Methods(), Namespace, AnyName(), OneForAll(),
        SimpleNamespace(range_push=lambda *a, **k: None, range_pop=lambda *a, **k: None),
        SimpleNamespace(range_push=lambda name, value=0: ..., range_pop=lambda handle=None: 0, mark=lambda name: name),
    ],
    ids=lambda owner: type(owner).__name__,
)  # fmt: skip
def test_stand_ins(owner):
    assert is_stand_in(owner)


def effect(name, payload=None):
    EFFECTS.append(name)


def reads_global(name, payload=None):
    return EFFECTS


def reads_attribute(name, payload=None):
    return name.attribute


def raises(name, payload=None):
    raise ImportError(name)


def asserts(name, payload=None):
    assert name


def branches(name, payload=None):
    if payload:
        return name
    return None


def stores_global(name, payload=None):
    global EFFECTS
    EFFECTS = name


def yields(name, payload=None):
    yield


async def awaits(name, payload=None):
    pass


def imports(name, payload=None):
    import json  # noqa: F401


def closes(name, payload=None):
    def inner():
        return name


def adds(name, payload=None):
    name += payload


@contextmanager
def context(name, payload=None):
    yield


DO_SOMETHING = [
    effect, reads_global, reads_attribute, raises, asserts, branches, stores_global, yields, awaits, imports, closes,
    adds, context,
]  # fmt: skip


@pytest.mark.parametrize("function", DO_SOMETHING)
def test_a_function_that_does_something(function):
    assert not does_nothing(function)
    assert not is_stand_in(SimpleNamespace(range_push=function, range_pop=nothing))
    assert not is_stand_in(SimpleNamespace(range_push=nothing, range_pop=nothing, mark=function))


class Raising:
    def __getattr__(self, name):
        raise ImportError(name)


class Proxy:
    def __getattr__(self, name):
        EFFECTS.append(name)
        return nothing


class Refusing:
    @property
    def __class__(self):
        raise RuntimeError("no object is bound")


class NoNames:
    @property
    def __dict__(self):
        raise RuntimeError("no names")


class Unset(NamedTuple):
    range_push: Any = None
    range_pop: Any = None


@pytest.mark.parametrize(
    "owner",
    [
        None, 1, "iket", [], {"range_push": nothing, "range_pop": nothing}, nothing, sys, Raising(), Proxy(), Unset(),
        SimpleNamespace(), SimpleNamespace(mark=nothing), SimpleNamespace(range_push=nothing),
        SimpleNamespace(range_push=nothing, range_end=nothing), SimpleNamespace(range_push=print, range_pop=nothing),
        SimpleNamespace(range_push=nothing, range_pop=lambda handle: None),
        SimpleNamespace(range_push=lambda: None, range_pop=nothing),
        SimpleNamespace(range_push=lambda name, level=1: None, range_pop=nothing),
        SimpleNamespace(range_push=lambda name, payload: None, range_pop=nothing),
        SimpleNamespace(range_push=lambda name, *, color: None, range_pop=nothing),
        SimpleNamespace(range_push=lambda **named: None, range_pop=nothing),
    ],
    ids=lambda owner: type(owner).__name__,
)  # fmt: skip
def test_others(owner):
    EFFECTS.clear()
    assert not is_stand_in(owner)
    assert EFFECTS == []


def test_what_a_call_gives():
    shim, methods = Shim(), Methods()
    assert given(shim, ("a", 3), {}) == ("a", 3)
    assert given(shim, ("a",), {"payload": 4, "loc": 1}) == ("a", 4)
    assert given(shim, (), {"event_name": "a", "payload": 5}) == ("a", 5)
    assert given(shim, (), {}) == (None, None)
    assert given(methods, (methods, "a", 6), {}) == ("a", 6)
    assert given(methods, (Methods, "a"), {"value": 7}) == ("a", 7)
    assert given(Methods, (methods, "a"), {}) == ("a", None)
    assert given(fresh_module(), ("a", 0), {"ip": 1}) == ("a", 0)


def calls_of(found: StandIn) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """What is called of it from now on; the pairs of ``replace``."""
    calls: list[Any] = []

    def around(name: str) -> Any:
        @contextmanager
        def noted(args, kwargs):
            calls.append((name, args, kwargs))
            yield Call(args, kwargs)

        return noted

    return calls, found.replace(around)


def test_modules_are_looked_through():
    """By the name of the stand-in, or its module's; again where a module has gained names, and until it is replaced."""
    module, shim = fresh_module(), type("Kind", (Shim,), {})()
    library, other = ModuleType("library"), ModuleType("other")
    library.my_IKET_ = shim
    other.nvtx, other.tiket, other.proxy_iket = shim, "a ticket", Refusing()
    modules = {"nothing": None, "odd": NoNames(), "library": library, "other": other, "pack._iket_noop": module}
    finder = Finder()
    found = [(one.place, one.owner) for one in finder.new(modules)]
    assert found == [("library.my_IKET_", shim), ("pack._iket_noop", module)]
    del other.tiket, other.proxy_iket
    assert [one.place for one in finder.new(modules)] == ["library.my_IKET_", "pack._iket_noop"]
    for one in finder.new(modules):
        calls_of(one)
    assert list(finder.new(modules)) == []
    other.iket = Methods()
    assert [one.place for one in finder.new(modules)] == ["other.iket"]


def test_functions_are_called_as_before():
    module = fresh_module()
    module.range_start = lambda name, payload=None: name
    calls, pairs = calls_of(StandIn("m", module))
    assert [(old.__name__, new.__name__) for old, new in pairs] == [(n, n) for n in FUNCTIONS if n != "range_start"]
    assert all(getattr(module, old.__name__) is new for old, new in pairs)
    assert module.range_start("a", payload=3) == "a"
    assert module.mark("b") is None
    assert calls == [("range_start", ("a",), {"payload": 3}), ("mark", ("b",), {})]
    with pytest.raises(TypeError):
        module.range_pop(1, 2)


@pytest.mark.parametrize("make", [Shim, Methods, AnyName, OneForAll], ids=lambda cls: cls.__name__)
def test_of_an_instance_all_of_its_class_are_replaced(make):
    kind = type("Kind", (make,), {})  # its base is left alone
    one, two = kind(), kind()
    calls, _ = calls_of(StandIn("m", one))
    one.range_push("a"), two.range_pop(), one.mark("b", 2)
    given_to = [(name, *given(one, args, kwargs)) for name, args, kwargs in calls]
    assert given_to == [("range_push", "a", None), ("range_pop", None, None), ("mark", "b", 2)]
    make().range_push("c")
    assert len(calls) == 3 and not is_stand_in(one) and is_stand_in(make())


def test_of_a_namespace_only_that_one_is_replaced():
    shared = dict.fromkeys(FUNCTIONS, nothing)
    one, two = SimpleNamespace(**shared), SimpleNamespace(**shared)
    calls, pairs = calls_of(StandIn("m", one))
    one.mark("a"), two.mark("b"), nothing("c")
    assert (calls, pairs) == ([("mark", ("a",), {})], [])


def test_what_cannot_be_changed_is_an_error_of_its_own():
    class Fixed(NamedTuple):
        range_push: Any = nothing
        range_pop: Any = nothing

    class Frozen:
        __slots__ = ()
        range_push = range_pop = staticmethod(nothing)

        def __setattr__(self, name, value):
            raise AttributeError(name)

    assert not is_stand_in(Fixed())  # its functions are items
    calls, _ = calls_of(StandIn("m", Frozen()))
    Frozen().range_push("a")
    assert calls == [("range_push", ("a",), {})]


def test_modules_of_the_dsl_are_none():
    module = fresh_module("cutlass.cute.experimental.iket")
    assert not is_stand_in(module)
    assert list(Finder().new({module.__name__: module})) == []


def test_decorated_by_the_dsl():
    """What it decorates is looked at; what we put around functions is not."""
    def decorate(function, name):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        made = FunctionType(wrapper.__code__, {"__name__": name}, None, None, wrapper.__closure__)
        return functools.wraps(function)(made)

    assert does_nothing(decorate(nothing, "cutlass._mlir_helpers.op"))
    assert not does_nothing(decorate(effect, "cutlass._mlir_helpers.op"))
    assert not does_nothing(decorate(nothing, "library"))
    assert not does_nothing(decorate(nothing, stand_ins.DISGUISE))
