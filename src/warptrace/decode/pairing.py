"""Which event ends which range.

Push, pop and switch form one stack per lane of a warp; a pop whose own lane has nothing open closes the innermost
push of another lane. The end of a token range names its start by the low bits of the start's slot address, in a ring
by the start's tag.

Where the oldest events of a warp were overwritten, a pop that finds its own lane's stack empty closes nothing: its push
is gone, or that of another lane's that would have been meant may be. An end whose start is not there has lost it.

Well-formed warps are paired for all warps at once. What that cannot decide (a pop that finds its own lane's stack
empty, links that several starts share, starts that were lost) goes warp by warp through :func:`pair_warp`, which
states the rules plainly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..raw.format import REGION_OFFSET_FIELD
from ..raw.regions import region_sizes
from ..wire import LANE_HEADER_BYTES, LINK_SHIFT, MAX_REGION_BYTES, REGION_HEADER_BYTES, EventKind
from .events import Events, Streams
from .tables import I16, I64, U8, Bool, Regions

LINK_BITS = 0xFFFF
STARTS = (EventKind.PUSH, EventKind.START, EventKind.SWITCH)
"""Kinds of events that start a range."""
UNPAIRED = (
    "unpaired_push", "unpaired_pop", "unpaired_start", "unpaired_end", "ambiguous_end", "lost_push", "lost_start",
)  # fmt: skip
"""The columns of :class:`Pairing` that hold events without a partner; Problem kinds of the same names."""


@dataclass(frozen=True)
class Pairing:
    """``end_of`` (n,): the event that ends the range this event starts, or -1. ``depth`` (n,): of stack ranges.

    The rest are events without a partner: ``unpaired_push``, ``unpaired_start`` (never ended), ``unpaired_pop`` (pop
    or switch that had nothing to end), ``unpaired_end`` (its start is not there), ``ambiguous_end``, and pops and ends
    whose start was overwritten: ``lost_push``, ``lost_start``.
    """

    end_of: I64
    depth: I16
    unpaired_push: I64
    unpaired_pop: I64
    unpaired_start: I64
    unpaired_end: I64
    ambiguous_end: I64
    lost_push: I64
    lost_start: I64
    full: Bool
    """(regions,): of warps that never ended and have a full block that is no ring: what they did since is not known."""


@dataclass(frozen=True)
class Context:
    """The columns that pairing works on. ``kind`` (events,): EventKind or 0; ``position`` as in Events but never
    None where some warp has several streams. ``slack`` (regions,): bytes at a block's end that may stay empty."""

    regions: Regions
    streams: Streams
    events: Events
    kind: U8
    slack: I64

    def beheaded(self) -> Bool:
        """Regions of which some lane's oldest events were overwritten."""
        found = np.zeros(len(self.regions), np.bool_)
        found[self.streams.region[self.streams.beheaded]] = True
        return found

    def lost(self) -> I64:
        """Events of each stream that were or may have been lost: of a warp that never ended any number, where its
        block is full."""
        return np.where(self.open_and_full(), MAX_REGION_BYTES, self.streams.lost)

    def open_and_full(self) -> Bool:
        """Streams of warps that never ended whose block is full."""
        streams, h = self.streams, self.regions.headers
        stride, main, lane = (h[k].astype(np.int64)[streams.region] for k in ("stride", "main_bytes", "lane_bytes"))
        size = np.where(streams.lane == 0, main, lane - LANE_HEADER_BYTES) - self.slack[streams.region]
        full: Bool = ~self.regions.closed[streams.region] & (streams.stored >= size // stride)
        return full


def pair(regions: Regions, streams: Streams, events: Events, kind: U8, slack: I64) -> Pairing:
    """Pairs all events. ``slack`` (regions,): see KernelRecord."""
    context = Context(regions, streams, events, kind, slack)
    end_of = np.full(len(events), -1, np.int64)
    depth = np.zeros(len(events), np.int16)
    ring, beheaded = regions.ring, context.beheaded()
    slow = _hard_tokens(context) & ~ring
    levels = _Levels(context, beheaded)
    slow[events.region[levels.underflow]] = True
    levels.pair(levels.within(~slow), end_of, depth)
    lost_push = levels.popped_nothing(end_of, levels.within(beheaded)) if beheaded.any() else np.zeros(0, np.int64)
    unpaired_end = _pair_tokens(context, ~slow & ~ring, end_of)
    tags = _pair_tags(context, ~slow & ring, beheaded, end_of)
    found = _pair_slow(context, np.flatnonzero(slow), end_of, depth)
    opens = np.flatnonzero((end_of < 0) & _of_kinds(kind, *STARTS))
    open_kinds = kind[opens]
    return Pairing(
        end_of=end_of,
        depth=depth,
        unpaired_push=opens[open_kinds != EventKind.START],
        unpaired_pop=np.array(sorted(found.unpaired_pop), np.int64),
        unpaired_start=opens[open_kinds == EventKind.START],
        unpaired_end=np.sort(np.concatenate([unpaired_end, tags.unpaired, np.array(found.unpaired_end, np.int64)])),
        ambiguous_end=np.sort(np.concatenate([tags.ambiguous, np.array(found.ambiguous_end, np.int64)])),
        lost_push=lost_push,
        lost_start=tags.lost,
        full=(np.bincount(streams.region, context.open_and_full(), len(regions)) > 0) & ~ring,
    )


# --------------------------------------------------------------------------------------------------------- stacks
class _Levels:
    """Push, pop and switch events of all streams with the level of the stack that each works on.

    In ``beheaded`` regions a stream begins as deep as its pops say: nothing there is below the stack's ground.
    """

    def __init__(self, context: Context, beheaded: Bool) -> None:
        kind = context.kind
        self._region = context.events.region
        self.ops = np.flatnonzero(_of_kinds(kind, EventKind.PUSH, EventKind.POP, EventKind.SWITCH))
        self.kind = kind[self.ops]
        used = context.streams.stored > 0
        self.first = context.streams.first[used]
        begin = np.searchsorted(self.ops, self.first)
        step = (self.kind == EventKind.PUSH).view(np.int8) - (self.kind == EventKind.POP).view(np.int8)
        total = np.concatenate([[0], np.cumsum(step, dtype=np.int64)])
        counts = np.diff(begin, append=len(self.ops))
        self.stream = np.repeat(np.arange(len(begin), dtype=np.int32), counts)
        self.level = total[1:] - np.repeat(total[begin], counts)
        self.level += self.kind == EventKind.POP
        if beheaded.any() and len(self.ops):
            self._raise_beheaded(context, begin, counts, beheaded)
        self.underflow = self.ops[(self.level < 1) & (self.kind != EventKind.PUSH)]

    def _raise_beheaded(self, context: Context, begin: I64, counts: I64, beheaded: Bool) -> None:
        ending = np.where(self.kind == EventKind.PUSH, 1, self.level)
        has = np.flatnonzero(counts)
        least = np.ones(len(counts), np.int64)
        least[has] = np.minimum.reduceat(ending, begin[has])
        streams = context.streams
        least[~beheaded[streams.region[streams.stored > 0]]] = 1
        self.level += np.repeat(np.maximum(1 - least, 0), counts)

    def within(self, regions: Bool) -> Bool:
        """Which of the operations are in some of the regions."""
        if regions.all():
            return np.ones(len(self.ops), np.bool_)
        found: Bool = regions[self._region[self.ops]]
        return found

    def popped_nothing(self, end_of: I64, of: Bool) -> I64:
        """Pops and switches, of the operations ``of``, that end no range."""
        ended = np.zeros(len(end_of), np.bool_)
        ended[end_of[end_of >= 0]] = True
        found: I64 = self.ops[of & (self.kind != EventKind.PUSH) & ~ended[self.ops]]
        return found

    def pair(self, use: Bool, end_of: I64, depth: I16) -> None:
        """Within one level of one stream, what starts and what ends a range alternate."""
        ops, kind, stream, level = self.ops, self.kind, self.stream, self.level
        if not use.all():
            ops, kind, stream, level = ops[use], kind[use], stream[use], level[use]
        depth[ops] = np.minimum(level - 1, np.iinfo(np.int16).max)
        top = int(level.max(initial=0))
        stack = stream * np.int64(top + 1) + level
        if top > 1:
            small = level.astype(np.uint8 if top < 256 else np.uint16 if top < 65536 else np.int64)
            order = np.argsort(small, kind="stable")
            ops, kind, stack = ops[order], kind[order], stack[order]
        ends = kind[1:] != EventKind.PUSH
        ends &= kind[:-1] != EventKind.POP
        ends &= stack[1:] == stack[:-1]
        at = np.flatnonzero(ends)
        end_of[ops[at]] = ops[at + 1]


def _of_kinds(kind: U8, *kinds: EventKind) -> Bool:
    found: Bool = kind == kinds[0]
    for one in kinds[1:]:
        found |= kind == one
    return found


# --------------------------------------------------------------------------------------------------------- tokens
def _hard_tokens(context: Context) -> Bool:
    """Regions whose token ends the arithmetic of :func:`_pair_tokens` cannot decide: links that are not unique, or
    that may name a start that was lost while other lanes went on."""
    regions, streams, events = context.regions, context.streams, context.events
    hard = region_sizes(regions.headers) > MAX_REGION_BYTES
    if len(streams) > len(regions):
        n = np.bincount(streams.region, minlength=len(regions))
        lost = np.bincount(streams.region, context.lost(), len(regions))
        hard |= (n > 1) & (lost > 0)
    if hard.any():
        has_end = np.zeros(len(regions), np.bool_)
        has_end[events.region[context.kind == EventKind.END]] = True
        hard &= has_end
    return hard


def _pair_tokens(context: Context, easy: Bool, end_of: I64) -> I64:
    """Pairs the ends of the easy regions with the slots their links name; returns the ends without a start."""
    events = context.events
    ends = np.flatnonzero(context.kind == EventKind.END)
    if not easy.all():
        ends = ends[easy[events.region[ends]]]
    if events.position is not None:
        ends = ends[np.argsort(events.position[ends], kind="stable")]
    start = _linked_event(context, ends)
    # -1 reads the last event, and is no start's place.
    good = (context.kind[start] == EventKind.START) & (start >= 0)
    position = events.position
    good &= start < ends if position is None else position[start] < position[ends]
    rows = np.flatnonzero(good)
    start, paired = start[rows], ends[rows]
    # The last write wins: backwards, so that the first end of a start stays.
    end_of[start[::-1]] = paired[::-1]
    good[rows] = end_of[start] == paired
    unpaired: I64 = ends[~good]
    return unpaired


def _linked_event(context: Context, ends: I64) -> I64:
    """The event whose slot the link of each end names, -1 where no stored slot of the region has that address."""
    streams, headers = context.streams, context.regions.headers
    region = context.events.region[ends]
    link = (context.events.code[ends] >> LINK_SHIFT).astype(np.int64)
    base = headers[REGION_OFFSET_FIELD].astype(np.int64)
    main_bytes = headers["main_bytes"].astype(np.int64)
    stride = headers["stride"].astype(np.int64)[region]
    at = ((link << 3) - base[region] - REGION_HEADER_BYTES) & (MAX_REGION_BYTES - 1)
    stream = streams.main[region]
    other = np.flatnonzero(at >= main_bytes[region])
    if len(other):
        stream[other], at[other] = _lane_slot(context, region[other], at[other] - main_bytes[region[other]])
    slot, rest = np.divmod(at, stride)
    ok = (rest == 0) & (at >= 0) & (slot < streams.stored[stream])
    return np.where(ok, streams.first[stream] + slot, -1)


def _lane_slot(context: Context, region: NDArray[np.int32], at: I64) -> tuple[I64, I64]:
    """(stream, byte offset among the lane's slots) of byte ``at`` of the lane blocks; offset -1: no such slot."""
    streams = context.streams
    lane_bytes = context.regions.headers["lane_bytes"].astype(np.int64)[region]
    lane = at // np.maximum(lane_bytes, 1) + 1
    offset = at - (lane - 1) * lane_bytes - LANE_HEADER_BYTES
    key = streams.region * 32 + streams.lane
    wanted = region.astype(np.int64) * 32 + np.minimum(lane, 31)
    stream = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    ok = (lane_bytes > 0) & (lane < 32) & (key[stream] == wanted)
    return stream, np.where(ok, offset, -1)


@dataclass(frozen=True)
class _Tags:
    """Ends without a partner of rings: as ``unpaired_end``, ``ambiguous_end`` and ``lost_start`` of Pairing."""

    unpaired: I64
    ambiguous: I64
    lost: I64


def _pair_tags(context: Context, use: Bool, beheaded: Bool, end_of: I64) -> _Tags:
    """Pairs the token ends of the rings ``use`` (regions,).

    Ordered by tag and then time, a start and the next event are a pair if that is an end. Tags come again, so a second
    start may stand before the end of the first: then which of them is meant is open.
    """
    events = context.events
    if not use.any():
        none = np.zeros(0, np.int64)
        return _Tags(none, none, none)
    tokens = np.flatnonzero(_of_kinds(context.kind, EventKind.START, EventKind.END))
    tokens = tokens[use[events.region[tokens]]]
    region, tag = events.region[tokens].astype(np.int64), events.code[tokens] >> LINK_SHIFT
    time = tokens if events.position is None else events.position[tokens]
    order = np.lexsort((time, tag, region))
    tokens, region, tag = tokens[order], region[order], tag[order]
    start = context.kind[tokens] == EventKind.START
    new = np.ones(len(tokens), np.bool_)
    new[1:] = (region[1:] != region[:-1]) | (tag[1:] != tag[:-1])
    key = np.cumsum(new) - 1
    twice = np.zeros(int(key[-1]) + 1 if len(key) else 0, np.bool_)
    twice[key[1:][start[1:] & start[:-1] & ~new[1:]]] = True
    pairs = np.flatnonzero(start[:-1] & ~start[1:] & ~new[1:] & ~twice[key[1:]])
    end_of[tokens[pairs]] = tokens[pairs + 1]
    alone = ~start
    alone[pairs + 1] = False
    ambiguous = np.zeros(len(tokens), np.bool_)
    begin = np.flatnonzero(new)
    end = np.append(begin, len(tokens))[1:]
    for k in np.flatnonzero(twice).tolist():
        _pair_one_tag(np.arange(begin[k], end[k]), start, tokens, alone, ambiguous, end_of)
    # Of a token that ended before, the start is there; else it was overwritten, where anything was.
    latest = np.maximum.accumulate(np.where(start, np.arange(len(tokens)), -1))
    known = latest >= begin[key]
    alone &= ~ambiguous
    lost = alone & beheaded[region] & ~known
    return _Tags(np.sort(tokens[alone & ~lost]), np.sort(tokens[ambiguous]), np.sort(tokens[lost]))


def _pair_one_tag(rows: I64, start: Bool, tokens: I64, alone: Bool, ambiguous: Bool, end_of: I64) -> None:
    """The events ``rows`` of one tag, in order of time, whose starts do not alternate with ends."""
    open_: list[int] = []
    for row in rows.tolist():
        if start[row]:
            open_.append(row)
        elif len(open_) == 1:
            end_of[tokens[open_.pop()]] = tokens[row]
            alone[row] = False
        elif open_:
            ambiguous[row] = True


# ---------------------------------------------------------------------------------------------------- warp by warp
@dataclass(frozen=True)
class WarpEvent:
    """One event as :func:`pair_warp` sees it: ``link``: the one it carries (END); ``address``: the link that names
    its own slot, in a ring its tag; ``lost`` (END): some start that was not stored may have that address."""

    index: int
    kind: int
    lane: int
    link: int
    address: int
    lost: bool


@dataclass
class WarpPairs:
    """Results, summed over warps: (start, end, depth) of ranges, (start, depth) of pushes left open, and events without
    a partner."""

    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    unpaired_pop: list[int] = field(default_factory=list)
    unpaired_end: list[int] = field(default_factory=list)
    ambiguous_end: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Open:
    index: int
    depth: int
    seq: int


def pair_warp(events: Iterable[WarpEvent], out: WarpPairs) -> None:
    """Pairs the events of one warp, given in program order. This is the rule; the fast paths only agree with it."""
    stacks: dict[int, list[_Open]] = {}
    tokens: dict[int, list[int]] = {}
    for seq, event in enumerate(events):
        if event.kind in (EventKind.POP, EventKind.SWITCH):
            _pop(stacks, event, out)
        if event.kind in (EventKind.PUSH, EventKind.SWITCH):
            stack = stacks.setdefault(event.lane, [])
            stack.append(_Open(event.index, len(stack), seq))
        elif event.kind == EventKind.START:
            tokens.setdefault(event.address, []).append(event.index)
        elif event.kind == EventKind.END:
            _end(tokens, event, out)
    out.open += [(left.index, left.depth) for stack in stacks.values() for left in stack]


def _pop(stacks: dict[int, list[_Open]], event: WarpEvent, out: WarpPairs) -> None:
    stack = stacks.get(event.lane)
    if not stack:
        others = [s for s in stacks.values() if s]
        stack = max(others, key=lambda s: s[-1].seq) if others else None
    if stack:
        opened = stack.pop()
        out.ranges.append((opened.index, event.index, opened.depth))
    else:
        out.unpaired_pop.append(event.index)


def _end(tokens: dict[int, list[int]], event: WarpEvent, out: WarpPairs) -> None:
    candidates = tokens.get(event.link, [])
    if not candidates:
        out.unpaired_end.append(event.index)
    elif len(candidates) > 1 or event.lost:
        out.ambiguous_end.append(event.index)
    else:
        out.ranges.append((candidates.pop(), event.index, 0))


def _pair_slow(context: Context, regions: I64, end_of: I64, depth: I16) -> WarpPairs:
    out = WarpPairs()
    streams = context.streams
    begin = streams.main[regions]
    end = np.append(streams.main, len(streams))[regions + 1]
    lost = context.lost() if len(regions) else streams.lost
    for region, a, b in zip(regions.tolist(), begin.tolist(), end.tolist(), strict=True):
        pair_warp(_warp_events(context, region, range(a, b), lost), out)
    for start, stop, level in out.ranges:
        end_of[start] = stop
        depth[start] = min(level, np.iinfo(np.int16).max)
    for start, level in out.open:
        depth[start] = min(level, np.iinfo(np.int16).max)
    return out


def _warp_events(context: Context, region: int, rows: range, lost: I64) -> list[WarpEvent]:
    """The events of one warp in program order."""
    streams, events = context.streams, context.events
    header = context.regions.headers[region]
    base = int(header[REGION_OFFSET_FIELD]) + REGION_HEADER_BYTES
    stride, ring = int(header["stride"]), bool(context.regions.ring[region])
    parts: list[tuple[int, WarpEvent]] = []
    gaps: list[_Gap] = []
    for row in rows:
        lane, first, count = int(streams.lane[row]), int(streams.first[row]), int(streams.stored[row])
        at = base
        if lane:
            at += int(header["main_bytes"]) + (lane - 1) * int(header["lane_bytes"]) + LANE_HEADER_BYTES
        codes, kinds = events.code[first : first + count].tolist(), context.kind[first : first + count].tolist()
        order = _order(events, first, count)
        for i in range(count):
            link = codes[i] >> LINK_SHIFT
            address = link if ring else (at + i * stride) >> 3 & LINK_BITS
            parts.append((order[i], WarpEvent(first + i, kinds[i], lane, link, address, False)))
        if lost[row]:
            gaps.append(_Gap(order[-1] if count else -1, at + count * stride, int(lost[row]), stride))
    parts.sort(key=lambda part: part[0])
    return [_with_gaps(place, event, gaps) for place, event in parts] if gaps else [event for _, event in parts]


def _order(events: Events, first: int, count: int) -> Any:
    if events.position is None:
        return range(first, first + count)
    return events.position[first : first + count].tolist()


@dataclass(frozen=True)
class _Gap:
    """``count`` lost slots of a lane, from address ``at`` on; they follow the event at place ``after``."""

    after: int
    at: int
    count: int
    stride: int


def _with_gaps(place: int, event: WarpEvent, gaps: list[_Gap]) -> WarpEvent:
    """Marks an end whose link may name a slot that was not stored. A lane loses only what follows its last slot."""
    if event.kind != EventKind.END:
        return event
    for gap in gaps:
        slot, rest = divmod(((event.link << 3) - gap.at) & (MAX_REGION_BYTES - 1), gap.stride)
        if place > gap.after and rest == 0 and slot < gap.count:
            return WarpEvent(event.index, event.kind, event.lane, event.link, event.address, True)
    return event
