"""Random structured kernels: a strategy, their source text for the DSL, and their plain Python interpretation.

A program is a tree of statements over int32 variables that may differ between lanes. Expressions are texts that mean
the same to the DSL and to Python: only ``+ - * & | ^``, which do not depend on the width, and comparisons of masked
values. The interpretation keeps, for each warp, the lanes that are together: they part where a condition differs and
meet where the structured statement ends; a loop goes on with the lanes that still have rounds to make.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from .model import Place, Warp, i32, i64


@dataclass(frozen=True)
class Mark:
    name: str
    payload: str | None
    wide: bool = False


@dataclass(frozen=True)
class Scope:
    """A pushed range around statements, with a switch between the two halves if ``then`` is given."""

    name: str
    payload: str | None
    body: tuple[Any, ...]
    then: tuple[str, tuple[Any, ...]] | None
    context: bool


@dataclass(frozen=True)
class TokenRange:
    name: str
    payload: str | None
    var: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Assign:
    var: str
    value: str


@dataclass(frozen=True)
class If:
    test: str
    body: tuple[Any, ...]
    other: tuple[Any, ...] | None


@dataclass(frozen=True)
class For:
    """``kind``: "unroll=1", "unroll=2", "range" or "constexpr"."""

    var: str
    count: str
    kind: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class While:
    var: str
    start: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Carried:
    """A token that a loop carries: ended in the next round, or behind the loop."""

    var: str
    name: str
    payload: str | None
    loop: For
    skip: str | None
    """Rounds in which this holds start no range and keep no token."""


@dataclass(frozen=True)
class Chosen:
    """A token that one side of a branch starts, ended behind the join."""

    var: str
    name: str
    payload: str | None
    test: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    block: tuple[int, int, int]
    n: int
    body: tuple[Any, ...]


# -------------------------------------------------------------------------------------------------------- strategy
MASKS = (1, 3, 7, 15, 31)


@dataclass
class _Names:
    """Fresh variable names of one program."""

    count: int = 0

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"


@st.composite
def programs(draw: Any) -> Program:
    block = draw(st.sampled_from([(64, 1, 1), (40, 1, 1), (1, 1, 1), (7, 9, 1), (32, 2, 1), (33, 1, 2)]))
    body = draw(_bodies(_Names(), ("t", "lane", "n", "w", "a", "b"), 3, 6))
    program = Program(block, draw(st.integers(0, 40)), body)
    assume("iket." in "".join(_lines(body)))
    return program


def _exprs(variables: tuple[str, ...]) -> st.SearchStrategy[str]:
    leaf = st.one_of(st.sampled_from(variables), st.integers(-9, 40).map(str))
    pair = st.tuples(leaf, st.sampled_from(["+", "-", "*", "&", "|", "^"]), leaf).map(
        lambda x: f"({x[0]} {x[1]} {x[2]})"
    )
    return st.one_of(st.sampled_from(variables), pair)


def _tests(variables: tuple[str, ...]) -> st.SearchStrategy[str]:
    masked = st.tuples(_exprs(variables), st.sampled_from(MASKS))
    return st.tuples(masked, st.sampled_from(["==", "<", ">=", "!="]), st.integers(0, 20)).map(
        lambda x: f"({x[0][0]} & {x[0][1]}) {x[1]} {x[2] & x[0][1]}"
    )


def _counts(variables: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.tuples(_exprs(variables), st.sampled_from([1, 3])).map(lambda x: f"({x[0]} & {x[1]})")


EVENT_NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta"])


@st.composite
def _bodies(draw: Any, names: _Names, variables: tuple[str, ...], depth: int, most: int) -> tuple[Any, ...]:
    count = draw(st.integers(1, most))
    return tuple(draw(_statements(names, variables, depth)) for _ in range(count))


@st.composite
def _statements(draw: Any, names: _Names, variables: tuple[str, ...], depth: int) -> Any:
    kinds = ["mark", "mark", "assign"]
    if depth > 0:
        kinds += ["scope", "token", "if", "if", "for", "while", "carried", "chosen"]
    kind = draw(st.sampled_from(kinds))
    payload = draw(st.one_of(st.none(), _exprs(variables)))
    name = draw(EVENT_NAMES)

    def body(extra: str | None = None, most: int = 3) -> tuple[Any, ...]:
        inner = variables if extra is None else (*variables, extra)
        return draw(_bodies(names, inner, depth - 1, most))

    if kind == "mark":
        return Mark(name, payload, draw(st.booleans()))
    if kind == "assign":
        return Assign(draw(st.sampled_from(["a", "b"])), draw(_exprs(variables)))
    if kind == "scope":
        second = (draw(EVENT_NAMES), body(most=2)) if draw(st.booleans()) else None
        return Scope(name, payload, body(), second, draw(st.booleans()))
    if kind == "token":
        return TokenRange(name, payload, names.fresh("token"), body())
    if kind == "if":
        return If(draw(_tests(variables)), body(), body() if draw(st.booleans()) else None)
    if kind == "chosen":
        return Chosen(names.fresh("token"), name, payload, draw(_tests(variables)), body(most=2))
    if kind == "while":
        var = names.fresh("k")
        return While(var, draw(_counts(variables)), body(var))
    loop = draw(_loops(names, variables, depth))
    if kind == "for":
        return loop
    skip = draw(st.one_of(st.none(), _tests((*variables, loop.var))))
    return Carried(names.fresh("token"), name, payload, loop, skip)


@st.composite
def _loops(draw: Any, names: _Names, variables: tuple[str, ...], depth: int) -> For:
    var = names.fresh("i")
    kind = draw(st.sampled_from(["unroll=1", "unroll=1", "unroll=2", "range", "constexpr"]))
    if kind == "constexpr":
        count = str(draw(st.integers(0, 3)))
    elif kind == "unroll=2":  # lanes with different counts would meet in other rounds than the loop as written says
        count = draw(_counts(("n", "w")))
    else:
        count = draw(_counts(variables))
    return For(var, count, kind, draw(_bodies(names, (*variables, var), depth - 1, 3)))


# ---------------------------------------------------------------------------------------------------------- source
HEADER = """
import cutlass
import cutlass.cute as cute
import warptrace.cute as iket


@cute.kernel
def program(out: cute.Tensor, n: cutlass.Int32):
    x, y, z = cute.arch.thread_idx()
    bx, by, bz = cute.arch.block_dim()
    t = x + bx * (y + by * z)
    lane = t & 31
    w = cute.arch.make_warp_uniform(t // 32)
    a = t * 3 + n
    b = cutlass.Int32(1)
"""
FOOTER = """
    out[t] = a ^ (b * 7)


@cute.jit
def host(out: cute.Tensor, n: cutlass.Int32):
    program(out, n).launch(grid=[1, 1, 1], block=[{block}])
"""


def source(program: Program) -> str:
    """A module with a ``host`` function."""
    block = ", ".join(map(str, program.block))
    return HEADER + textwrap.indent("\n".join(_lines(program.body)), "    ") + FOOTER.format(block=block)


def _lines(body: tuple[Any, ...]) -> Iterator[str]:
    for statement in body:
        yield from _statement_lines(statement)


def _indented(body: tuple[Any, ...]) -> Iterator[str]:
    yield from ("    " + line for line in _lines(body))


def _call(name: str, payload: str | None, wide: bool = False) -> str:
    if payload is None:
        return f'"{name}"'
    return f'"{name}", cutlass.Int64({payload})' if wide else f'"{name}", cutlass.Int32({payload})'


def _end(var: str, payload: str | None) -> str:
    return f"iket.range_end({var})" if payload is None else f"iket.range_end({var}, cutlass.Int32({payload}))"


def _for_line(loop: For) -> str:
    calls = {"range": "range({})", "constexpr": "cutlass.range_constexpr({})"}
    return f"for {loop.var} in " + calls.get(loop.kind, f"cutlass.range({{}}, {loop.kind})").format(loop.count) + ":"


def _statement_lines(s: Any) -> Iterator[str]:
    if isinstance(s, Mark):
        yield f"iket.mark({_call(s.name, s.payload, s.wide)})"
    elif isinstance(s, Assign):
        yield f"{s.var} = {s.var} + {s.value}"
    elif isinstance(s, Scope):
        if s.context:
            yield f"with iket.range({_call(s.name, s.payload)}):"
        else:
            yield f"iket.range_push({_call(s.name, s.payload)})"
        pad = "    " if s.context else ""
        yield from (pad + line for line in _lines(s.body))
        if s.then is not None:
            yield f'{pad}iket.switch("{s.then[0]}")'
            yield from (pad + line for line in _lines(s.then[1]))
        if not s.context:
            yield "iket.range_pop()"
    elif isinstance(s, TokenRange):
        yield f"{s.var} = iket.range_start({_call(s.name, s.payload)})"
        yield from _lines(s.body)
        yield _end(s.var, s.payload)
    elif isinstance(s, If):
        yield f"if {s.test}:"
        yield from _indented(s.body)
        if s.other is not None:
            yield "else:"
            yield from _indented(s.other)
    elif isinstance(s, For):
        yield _for_line(s)
        yield from _indented(s.body)
    elif isinstance(s, While):
        yield f"{s.var} = cutlass.Int32({s.start})"
        yield f"while {s.var} > 0:"
        yield from _indented(s.body)
        yield f"    {s.var} = {s.var} - 1"
    elif isinstance(s, Carried):
        yield f'{s.var} = iket.sentinel_token("{s.name}")'
        yield _for_line(s.loop)
        yield "    " + _end(s.var, s.payload)
        yield f"    {s.var} = iket.range_start({_call(s.name, s.payload)})"
        yield from _indented(s.loop.body)
        if s.skip is not None:
            yield f"    if {s.skip}:"
            yield "        " + _end(s.var, s.payload)
            yield f'        {s.var} = iket.sentinel_token("{s.name}")'
        yield _end(s.var, s.payload)
    elif isinstance(s, Chosen):
        yield f'{s.var} = iket.sentinel_token("{s.name}")'
        yield f"if {s.test}:"
        yield f"    {s.var} = iket.range_start({_call(s.name, s.payload)})"
        yield from _indented(s.body)
        yield _end(s.var, s.payload)
    else:
        raise AssertionError(s)


# -------------------------------------------------------------------------------------------------- interpretation
@dataclass
class Interpreter:
    """Runs a program for one warp; adds its events to ``warp``. ``env``: the variables of each lane."""

    warp: Warp
    env: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(self, program: Program) -> list[int]:
        """The results of the warp's lanes."""
        for lane in self.warp.lanes:
            t = self.warp.tid(lane)
            self.env[lane] = {"t": t, "lane": lane, "n": program.n, "w": self.warp.warp, "a": t * 3 + program.n, "b": 1}
        self._body(program.body, self.warp.lanes)
        return [e["a"] ^ (e["b"] * 7) for e in self.env.values()]

    def _value(self, text: str, lane: int) -> int:
        return int(eval(text, {"__builtins__": {}}, self.env[lane]))

    def _payload(self, text: str | None, wide: bool = False) -> Any:
        """64-bit payloads are widened from the 32-bit value."""
        if text is None:
            return None
        if wide:
            return lambda lane: i64(_signed(self._value(text, lane)))
        return lambda lane: i32(self._value(text, lane))

    def _body(self, body: tuple[Any, ...], lanes: list[int]) -> None:
        for statement in body:
            if lanes:
                self._statement(statement, lanes)

    def _statement(self, s: Any, lanes: list[int]) -> None:
        w = self.warp
        if isinstance(s, Mark):
            w.mark(s.name, self._payload(s.payload, s.wide), lanes)
        elif isinstance(s, Assign):
            for lane in lanes:
                self.env[lane][s.var] += self._value(s.value, lane)
        elif isinstance(s, Scope):
            w.push(s.name, self._payload(s.payload), lanes)
            self._body(s.body, lanes)
            if s.then is not None:
                w.switch(s.then[0], None, lanes)
                self._body(s.then[1], lanes)
            w.pop(lanes)
        elif isinstance(s, TokenRange):
            self._start(s, lanes)
            self._body(s.body, lanes)
            self._end(s, lanes)
        elif isinstance(s, If):
            taken = [k for k in lanes if self._value(s.test, k)]
            rest = [k for k in lanes if k not in taken]
            with w.parallel() if taken and rest else nullcontext():
                self._body(s.body, taken)
                self._body(s.other or (), rest)
        elif isinstance(s, For):
            self._loop(s, lanes, lambda active: self._body(s.body, active))
        elif isinstance(s, While):
            for lane in lanes:
                self.env[lane][s.var] = self._value(s.start, lane)
            while active := [k for k in lanes if self.env[k][s.var] > 0]:
                self._body(s.body, active)
                for lane in active:
                    self.env[lane][s.var] -= 1
        elif isinstance(s, Carried):
            self._carried(s, lanes)
        elif isinstance(s, Chosen):
            self._set(s.var, None, lanes)
            taken = [k for k in lanes if self._value(s.test, k)]
            if taken:
                self._start(s, taken)
                self._body(s.body, taken)
            self._end(s, lanes)
        else:
            raise AssertionError(s)

    def _loop(self, loop: For, lanes: list[int], body: Any) -> None:
        count = {k: self._value(loop.count, k) for k in lanes}
        for i in range(max(count.values())):
            active = [k for k in lanes if count[k] > i]
            for lane in active:
                self.env[lane][loop.var] = i
            body(active)

    def _carried(self, s: Carried, lanes: list[int]) -> None:
        self._set(s.var, None, lanes)

        def one_round(active: list[int]) -> None:
            self._end(s, active)
            self._start(s, active)
            self._body(s.loop.body, active)
            skipping = [] if s.skip is None else [k for k in active if self._value(s.skip, k)]
            if skipping:
                self._end(s, skipping)
                self._set(s.var, None, skipping)

        self._loop(s.loop, lanes, one_round)
        self._end(s, lanes)

    def _set(self, var: str, token: Place | None, lanes: list[int]) -> None:
        for lane in lanes:
            self.env[lane][var] = token

    def _start(self, s: TokenRange | Carried | Chosen, lanes: list[int]) -> None:
        self._set(s.var, self.warp.start(s.name, self._payload(s.payload), lanes), lanes)

    def _end(self, s: TokenRange | Carried | Chosen, lanes: list[int]) -> None:
        """Of lanes that hold a token, the first one's range ends."""
        holders = [k for k in lanes if self.env[k][s.var] is not None]
        if holders:
            self.warp.end(self.env[holders[0]][s.var], self._payload(s.payload), holders)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
