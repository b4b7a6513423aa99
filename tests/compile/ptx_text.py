"""Reads the instrumented parts of PTX text: kernels with their parameters, and the event stores in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\((.*?)\)(.*?)^\}", re.S | re.M)
_PARAM = re.compile(r"\.param\s+((?:\.align\s+\d+\s+)?\.\w+)\s+[\w$]+(?:\[(\d+)\])?")
_EVENT = re.compile(r"^\s*\{ \.reg \.u64 a,x; \.reg \.u32 t,c,g(?P<wide>,h,k)?,u; (?P<text>.*) \}\s*$", re.M)
_RUN = re.compile(r"^\s*\{ \.reg \.u64 a,x; \.reg \.u32 t,c,h,k,u; \.reg \.pred q; (.*) \}\s*$", re.M)
_RUN_SITE = re.compile(r"^(?:add\.u32 c,%r\d+|mov\.u32 c),(\d+);")
_RUN_COUNT = re.compile(r"setp\.lt\.u32 q,%r\d+,(\d+); and\.pred q,q,%p\d+; @q st\.global\.b32 \[a\+(\d+)\],t;$")
_OF_RECORD = re.compile(r"setp\.eq\.u32 q,%r\d+,(\d+); @q ([^;]+);")
_ADDRESS = re.compile(r"cvt\.u64\.u32 a,(%r\d+|\d+); add\.u64 a,a,%rd\d+;")
_CODE = re.compile(
    r"(?:or\.b32 c,(?P<token>%r\d+|-?\d+),|mad\.lo\.u32 c,u,(?P<high>65536),|mov\.b32 c,)(?P<code>%r\d+|\d+);"
)
_HIGH = "mov.u64 x,%clock64; mov.b64 {t,u},x; "
_RECORD = re.compile(r"@(%p\d+) st\.global\.v2\.b32 \[a\+(\d+)\],\{t,c\};")
_WIDE = re.compile(r"@(%p\d+) st\.global\.b32 \[a\+(\d+)\],t;")
_WIDE_PAYLOAD = re.compile(r"mov\.b(32) h,(%r\d+|-?\d+);|mov\.b(64) \{h,k\},(%rd\d+|-?\d+);")
_PAYLOAD = re.compile(r"@(%p\d+) st\.global\.(?:v2\.)?b(32|64) \[a\+(\d+)\],\{?(%rd?\d+|-?\d+)(?:,g\})?;")
_ANCHOR = re.compile(r"@(%p\d+) st\.global\.b32 \[a\+(\d+)\],g;")
_CONSTANT = re.compile(r"mov\.b(?:32|64)\s+(%rd?\d+), (-?\d+);")


@dataclass(frozen=True)
class StoredEvent:
    """One event store. ``payload``: its constant bits, None where there is no payload or it is not a constant.
    ``anchored``: the record also holds the global timer. ``wide``: it is stored by several lanes; ``run``: how many
    records one store stores with it. ``high``: the record also holds more bits of the clock."""

    site: int
    cursor: str
    offset: int
    is_end: bool
    payload_width: int
    payload: int | None
    anchored: bool
    wide: bool
    run: int = 1
    high: bool = False


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

        found_at: list[tuple[int, list[StoredEvent]]] = []
        for run in _RUN.finditer(self.body):
            found_at.append((run.start(), _run(run[1], constant)))
        for found in _EVENT.finditer(self.body):
            text, wide = found["text"], found["wide"] is not None
            (cursor,) = _ADDRESS.findall(text)
            (code,) = _CODE.finditer(text)
            at, bits, value = _wide(text) if wide else _narrow(text)
            site = constant(code["code"])
            assert site is not None, f"the code of an event is not a constant: {text}"
            payload = constant(value) if value else None
            payload = payload if payload is None else payload & ((1 << bits) - 1)
            anchored = "%globaltimer_lo" in text
            high = code["high"] is not None
            assert high == (_HIGH in text)
            event = StoredEvent(site, cursor, at, code["token"] is not None, bits, payload, anchored, wide, 1, high)
            found_at.append((found.start(), [event]))
        # %clock, or %clock64 in this way, is read by events alone: none has escaped the patterns
        assert len(found_at) == self.body.count("%clock;") + self.body.count(_HIGH)
        return [event for _, events in sorted(found_at, key=lambda one: one[0]) for event in events]

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


def _run(text: str, constant: Callable[[str], int | None]) -> list[StoredEvent]:
    """The records of a run."""
    (cursor,) = _ADDRESS.findall(text)
    ((count, at),) = _RUN_COUNT.findall(text)
    (first,) = _RUN_SITE.findall(text)
    assert text.count("st.global.") == 1
    stride = 16 if "selp.b32 c,c," in text else 8
    following = text.startswith("add.u32")
    high = _HIGH in text
    assert high == ("mad.lo.u32 c,u,65536,c; " in text)
    events = []
    for number in range(int(count)):
        own = [instruction for j, instruction in _OF_RECORD.findall(text) if int(j) == number]
        others = [int(x.rpartition(",")[2]) for x in own if x.startswith("mov.u32 c,")]
        site = int(first) + number if following else others[0] if others else int(first)
        ((bits, value),) = [(int(x[5:7]), x.rpartition(",")[2]) for x in own if x[8:9] in "h{"] or [(0, "")]
        payload = constant(value) if value else None
        payload = payload if payload is None else payload & ((1 << bits) - 1)
        end, anchored = any(x.startswith("or.b32") for x in own), any("globaltimer" in x for x in own)
        assert not high or end == ("mov.u32 u,0" in own)
        offset = int(at) + number * stride
        mine = high and not end
        events.append(StoredEvent(site, cursor, offset, end, bits, payload, anchored, True, int(count), mine))
    return events


def _narrow(text: str) -> tuple[int, int, str | None]:
    """(offset, payload's bits, its operand) of a record that one lane stores."""
    ((store, at),) = _RECORD.findall(text)
    payloads, anchors = _PAYLOAD.findall(text), _ANCHOR.findall(text)
    assert text.count(" st.global.") + text.startswith("st.global.") == 1 + len(payloads) + len(anchors)
    assert all(p[0] == store and int(p[2]) == int(at) + 8 for p in payloads)
    assert all(p[0] == store and int(p[1]) == int(at) + 12 for p in anchors)
    assert ("%globaltimer_lo" in text) == (bool(anchors) or ",g}" in text)
    return int(at), int(payloads[0][1]) if payloads else 0, payloads[0][3] if payloads else None


def _wide(text: str) -> tuple[int, int, str | None]:
    """The same of a record that lanes 0 to 3 store."""
    ((_, at),) = _WIDE.findall(text)
    assert text.count("st.global.") == 1
    assert ("%globaltimer_lo" in text) == ("selp.b32 c,g,c," in text)
    for small, operand, large, large_operand in _WIDE_PAYLOAD.findall(text):
        return int(at), int(small or large), operand or large_operand
    return int(at), 0, None


def entries(ptx: str) -> dict[str, Entry]:
    """The kernels of a module by name."""
    found = {}
    for name, params, body in _ENTRY.findall(ptx):
        types = tuple((t, int(n) if n else None) for t, n in _PARAM.findall(params))
        found[name] = Entry(name, types, body)
    return found
