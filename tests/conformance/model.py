"""What the table says: events expected of a warp, built by plain Python, and the comparison with what was recorded.

A warp's events lie in one stream per leading lane. Inside a stream the order is exact. Between streams it is exact
too, except for events expected inside ``with w.parallel():``, whose interleaving is not defined (sides of a divergent
branch); those still come after everything before the block and before everything behind it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from warptrace.wire import EventKind, PayloadType

WARP = 32
Dim3 = tuple[int, int, int]
Payload = tuple[PayloadType, int]
Place = tuple[int, int]
"""(lane, index in the lane's stream)."""


# ------------------------------------------------------------------------------------------------------- payloads
def integer(kind: PayloadType, bits: int) -> Callable[[int], Payload]:
    """A maker of payloads of an integer type: the value modulo 2**bits."""
    return lambda value: (kind, int(value) & ((1 << bits) - 1))


i8, u8 = integer(PayloadType.I8, 8), integer(PayloadType.U8, 8)
i16, u16 = integer(PayloadType.I16, 16), integer(PayloadType.U16, 16)
i32, u32 = integer(PayloadType.I32, 32), integer(PayloadType.U32, 32)
i64, u64 = integer(PayloadType.I64, 64), integer(PayloadType.U64, 64)


def boolean(value: Any) -> Payload:
    return PayloadType.BOOL, int(bool(value))


def f16(value: float) -> Payload:
    return PayloadType.F16, int(np.float16(value).view(np.uint16))


def bf16(value: float) -> Payload:
    """Of a value that bfloat16 holds exactly."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    assert bits & 0xFFFF == 0 or value != value
    return PayloadType.BF16, bits >> 16


def f32(value: float) -> Payload:
    return PayloadType.F32, int(np.float32(value).view(np.uint32))


def f64(value: float) -> Payload:
    return PayloadType.F64, int(np.float64(value).view(np.uint64))


# --------------------------------------------------------------------------------------------------------- events
@dataclass(frozen=True)
class Event:
    """One record. ``name`` is empty for POP and END. ``partner``: of an event that ends a range, the one that began it;
    None where it has none."""

    kind: EventKind
    name: str
    payload: Payload | None
    partner: Place | None

    def __str__(self) -> str:
        text = self.kind.name.lower() + (f" {self.name}" if self.name else "")
        if self.payload is not None:
            text += f" {self.payload[0].name}:{self.payload[1]:#x}"
        return text + (f" <- lane {self.partner[0]} #{self.partner[1]}" if self.partner else "")


Lanes = Sequence[int] | None
Value = Payload | Callable[[int], Payload] | None
"""A payload, or what each lane would give."""


@dataclass
class Warp:
    """The expectation for one warp of a launch.

    Event methods take the lanes that execute the call together (None: all lanes of the warp; none at all: nothing is
    recorded) and record it once, led by the first of them, with its payload.
    """

    cta: Dim3
    warp: int
    grid: Dim3
    block: Dim3
    streams: dict[int, list[Event]] = field(default_factory=dict)
    steps: list[tuple[int, Place]] = field(default_factory=list)
    lost: int = 0
    _step: Iterator[int] = field(default_factory=itertools.count)
    _together: int | None = None
    _stacks: dict[int, list[tuple[int, Place]]] = field(default_factory=dict)

    @property
    def threads(self) -> list[int]:
        """Linear thread numbers of the warp's lanes."""
        count = self.block[0] * self.block[1] * self.block[2]
        return list(range(self.warp * WARP, min(count, (self.warp + 1) * WARP)))

    @property
    def lanes(self) -> list[int]:
        return list(range(len(self.threads)))

    def tid(self, lane: int) -> int:
        """Linear thread number of a lane."""
        return self.warp * WARP + lane

    def xyz(self, lane: int) -> Dim3:
        """threadIdx of a lane."""
        x, y, _ = self.block
        t = self.tid(lane)
        return t % x, t // x % y, t // (x * y)

    @property
    def bidx(self) -> int:
        return self.cta[0]

    def where(self, test: Callable[[int], Any]) -> list[int]:
        """The lanes whose linear thread number passes the test."""
        return [lane for lane in self.lanes if test(self.tid(lane))]

    def mark(self, name: str, payload: Value = None, lanes: Lanes = None) -> None:
        self._add(EventKind.MARK, name, payload, lanes, None)

    def push(self, name: str, payload: Value = None, lanes: Lanes = None) -> None:
        at = self._add(EventKind.PUSH, name, payload, lanes, None)
        if at is not None:
            self._stacks.setdefault(at[0], []).append((self.steps[-1][0], at))

    def pop(self, lanes: Lanes = None) -> None:
        lead = self._lead(lanes)
        if lead is not None:
            self._add(EventKind.POP, "", None, lanes, self._innermost(lead))

    def switch(self, name: str, payload: Value = None, lanes: Lanes = None) -> None:
        lead = self._lead(lanes)
        if lead is not None:
            at = self._add(EventKind.SWITCH, name, payload, lanes, self._innermost(lead))
            assert at is not None
            self._stacks.setdefault(at[0], []).append((self.steps[-1][0], at))

    def start(self, name: str, payload: Value = None, lanes: Lanes = None) -> Place | None:
        """The token: where the start lies; None (a sentinel) if no lane executes the call."""
        return self._add(EventKind.START, name, payload, lanes, None)

    def end(self, token: Place | None, payload: Value = None, lanes: Lanes = None) -> None:
        """Nothing is recorded for a sentinel (None)."""
        if token is not None:
            self._add(EventKind.END, "", payload, lanes, token)

    @contextmanager
    def parallel(self) -> Iterator[None]:
        """Events whose interleaving between lanes is not defined."""
        outer = self._together
        if outer is None:
            self._together = next(self._step)
        yield
        self._together = outer

    def cut(self, lane: int, stored: int) -> None:
        """Keeps the first ``stored`` events of a lane and counts the others, if any, as lost."""
        stream = self.streams.get(lane, [])
        self.lost += max(len(stream) - stored, 0)
        self.streams[lane] = stream[:stored]
        self.steps = [(s, (k, i)) for s, (k, i) in self.steps if k != lane or i < stored]

    def newest(self, lane: int, kept: int) -> None:
        """Keeps the last ``kept`` events of a lane; counts the others, if any, as lost. Called last, for every lane: a
        range whose begin is gone has no partner, nor, in a warp that lost any, a pop of another lane's push."""
        gone = max(len(self.streams[lane]) - kept, 0)
        self.lost += gone
        self.streams[lane] = self.streams[lane][gone:]
        self.steps = [(s, (k, i - gone if k == lane else i)) for s, (k, i) in self.steps if k != lane or i >= gone]
        for stream_lane, stream in self.streams.items():
            for at, event in enumerate(stream):
                if event.partner is None:
                    continue
                owner, index = event.partner
                index -= gone if owner == lane else 0
                borrowed = event.kind != EventKind.END and owner != stream_lane and self.lost
                stream[at] = replace(event, partner=None if index < 0 or borrowed else (owner, index))

    def _lead(self, lanes: Lanes) -> int | None:
        active = self.lanes if lanes is None else sorted(lanes)
        return active[0] if active else None

    def _add(self, kind: EventKind, name: str, payload: Value, lanes: Lanes, partner: Place | None) -> Place | None:
        lead = self._lead(lanes)
        if lead is None:
            return None
        value = payload(lead) if callable(payload) else payload
        stream = self.streams.setdefault(lead, [])
        stream.append(Event(kind, name, value, partner))
        place = (lead, len(stream) - 1)
        step = next(self._step) if self._together is None else self._together
        self.steps.append((step, place))
        return place

    def _innermost(self, lead: int) -> Place | None:
        """The push that a pop led by ``lead`` closes: its own lane's innermost, else that of the lane pushed last."""
        stack = self._stacks.get(lead)
        if not stack:
            stack = max((s for s in self._stacks.values() if s), key=lambda s: s[-1], default=None)
        return stack.pop()[1] if stack else None


# ------------------------------------------------------------------------------------------------------- recorded
@dataclass
class Recorded:
    """What one warp recorded. ``order``: the places of all events by time. ``lost``: events without a slot;
    ``beheaded``: they are the oldest."""

    streams: dict[int, list[Event]]
    order: list[Place]
    lost: int
    beheaded: bool = False

    def at(self, place: Place) -> Event:
        return self.streams[place[0]][place[1]]


def differences(expected: Warp, got: Recorded | None) -> list[str]:
    """In words, where the two differ; empty if they agree."""
    if got is None:
        return ["the warp has no region"]
    out = []
    if got.lost != expected.lost:
        out.append(f"lost {got.lost} events, expected {expected.lost}")
    wanted = {k: v for k, v in expected.streams.items() if v}
    found = {k: v for k, v in got.streams.items() if v}
    for lane in sorted({*wanted, *found}):
        out += _stream_differences(lane, wanted.get(lane, []), found.get(lane, []))
    return out or _order_differences(expected, got)


def _stream_differences(lane: int, wanted: list[Event], found: list[Event]) -> list[str]:
    if wanted == found:
        return []
    first = next((i for i, (a, b) in enumerate(zip(wanted, found)) if a != b), min(len(wanted), len(found)))
    texts = [str(s[first]) if first < len(s) else "nothing" for s in (wanted, found)]
    sizes = f"{len(wanted)} events expected, {len(found)} found"
    return [f"lane {lane} #{first}: expected {texts[0]}, found {texts[1]} ({sizes})"]


def _order_differences(expected: Warp, got: Recorded) -> list[str]:
    step_of = {place: step for step, place in expected.steps}
    steps = [step_of[place] for place in got.order]
    for i, (a, b) in enumerate(itertools.pairwise(steps)):
        if b < a:
            first, second = (f"'{got.at(p)}' of lane {p[0]}" for p in got.order[i : i + 2])
            return [f"{first} was recorded before {second}, expected after"]
    return []


def check_open(expected: Warp, got: Recorded | None) -> list[str]:
    """For what hardware leaves open: every expected (kind, name) occurs, and nothing else."""
    if got is None:
        return ["the warp has no region"]
    wanted = {(e.kind, e.name) for s in expected.streams.values() for e in s}
    found = {(e.kind, e.name) for s in got.streams.values() for e in s}
    return [] if wanted == found else [f"expected {sorted(wanted)}, found {sorted(found)}"]
