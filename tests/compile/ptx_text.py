"""Reads the instrumented parts of PTX text: kernels with their parameters, and the event stores in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\((.*?)\)(.*?)^\}", re.S | re.M)
_PARAM = re.compile(r"\.param\s+((?:\.align\s+\d+\s+)?\.\w+)\s+[\w$]+(?:\[(\d+)\])?")
_EVENT = re.compile(
    r"cvt\.u64\.u32 a,(?P<cursor>%r\d+|\d+); add\.u64 a,a,(?P<control>%rd\d+); "
    r"(?:or\.b32 c,(?P<token>%r\d+|-?\d+),(?P<code>%r\d+|\d+)|mov\.b32 c,(?P<code2>%r\d+|\d+)); "
    r"mov\.u32 t,%clock; (?P<anchor>mov\.u32 g,%globaltimer_lo; )?"
    r"@(?P<store>%p\d+) st\.global\.v2\.b32 \[a\+(?P<at>\d+)\],\{t,c\};"
    r"(?: @(?P=store) st\.global\.(?:b32 \[a\+(?P<at3>\d+)\],g"
    r"|(?:v2\.)?b(?P<bits>32|64) \[a\+(?P<at2>\d+)\],\{?(?P<payload>%rd?\d+|-?\d+)(?:,g\})?);)?"
)
_CONSTANT = re.compile(r"mov\.b(?:32|64)\s+(%rd?\d+), (-?\d+);")


@dataclass(frozen=True)
class StoredEvent:
    """One event store. ``payload``: its constant bits, None where there is no payload or it is not a constant.
    ``anchored``: the record also holds the global timer."""

    site: int
    cursor: str
    offset: int
    is_end: bool
    payload_width: int
    payload: int | None
    anchored: bool


@dataclass(frozen=True)
class Entry:
    """A kernel: its parameters as (type, bytes or None) and its body's text."""

    name: str
    params: tuple[tuple[str, int | None], ...]
    body: str

    @cached_property
    def events(self) -> list[StoredEvent]:
        constants: dict[str, set[int]] = {}
        for register, value in _CONSTANT.findall(self.body):
            constants.setdefault(register, set()).add(int(value))

        def constant(operand: str) -> int | None:
            if not operand.startswith("%"):
                return int(operand)
            found = constants.get(operand, set())
            return next(iter(found)) if len(found) == 1 else None

        out = []
        for m in _EVENT.finditer(self.body):
            site = constant(m["code"] or m["code2"])
            assert site is not None, f"the code of an event is not a constant: {m[0]}"
            bits = int(m["bits"] or 0)
            payload = constant(m["payload"]) if bits else None
            payload = payload if payload is None else payload & ((1 << bits) - 1)
            assert not bits or int(m["at2"]) == int(m["at"]) + 8
            assert not m["at3"] or int(m["at3"]) == int(m["at"]) + 12
            anchored = m["anchor"] is not None
            out.append(StoredEvent(site, m["cursor"], int(m["at"]), m["token"] is not None, bits, payload, anchored))
        # %clock is read by events alone (the header takes %clock64): none has escaped the pattern
        assert len(out) == len(re.findall(r"%clock;", self.body))
        return out

    @property
    def votes(self) -> int:
        """Elections of a leader."""
        return self.body.count("%lanemask_lt")

    @property
    def broadcasts(self) -> int:
        """Tokens handed from the leader to the other lanes."""
        return self.body.count("brev.b32")

    @property
    def groups(self) -> list[list[int]]:
        """Site ids of events that share one cursor update, in the order of the text: a group begins at offset 0."""
        out: list[tuple[str, list[int]]] = []
        for event in self.events:
            if event.offset == 0:
                out.append((event.cursor, []))
            assert event.cursor == out[-1][0]
            out[-1][1].append(event.site)
        return [group for _, group in out]


def entries(ptx: str) -> dict[str, Entry]:
    """The kernels of a module by name."""
    found = {}
    for name, params, body in _ENTRY.findall(ptx):
        types = tuple((t, int(n) if n else None) for t, n in _PARAM.findall(params))
        found[name] = Entry(name, types, body)
    return found
