"""Silences of 2**32 cycles (2.2 s) and longer.

A record holds 32 bits of the clock, so a stream unwraps exactly only while its steps are shorter than 2**32 cycles. The
front end knows before which events a step may be longer, and has those that can carry bits 32 to 47 as well. Ends of
token ranges cannot: which of several a silence lies before is open then, and reported.

Captures of kernels whose sites do not tell that are older. There the exit's 64 bits say how many wraps are missing in
all; %globaltimer in the anchor records, which wraps every 4.3 s, says before which anchors. Streams whose oldest events
were overwritten are placed by the exit alone; there the anchors say how many wraps before it they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..wire import LINK_SHIFT
from .events import Events, Streams, positions, region_cycles
from .rings import WRAP
from .tables import I32, I64, Bool, Regions, SiteTable

F64 = NDArray[np.float64]

MOST_WRAPS = 64
"""Of one silence, of a warp that never ended."""
TICKS_NS = 100.0
"""What two readings of the timer may be off."""
CLOSE = 0.02
"""Explanations whose rates are so near to each other, relative, are equally good: then the one with fewest wraps."""
FASTEST = 0.998
"""Of the nominal ns per cycle: no clock runs faster."""
PLAUSIBLE = 0.45
"""How far, relative, a stretch's rate may be from the usual one."""
USUAL = 0.55
"""ns per cycle where nothing is known."""
HIGH_MASK = 0xFFFF
"""Bits of the clock above the low 32 in a record: 2**48 cycles are 39 hours."""


@dataclass(frozen=True)
class Wraps:
    """Per region: ``settled``: nothing is open; ``unsure``: before which of several events a silence lies is open."""

    settled: Bool
    unsure: Bool


@dataclass(frozen=True)
class _Silence:
    """``wraps`` are missing before event ``before`` of the stream: it and what follows is later by them, or what stands
    before it ``earlier``. ``exact``: it can be before no other event."""

    before: int
    wraps: int
    exact: bool
    earlier: bool = False


def settle_wraps(
    regions: Regions, streams: Streams, events: Events, table: SiteTable, site: I32, nominal: F64
) -> tuple[Events, Wraps]:
    """The events with the missing wraps put in. ``site`` (events,): their rows of ``table``; ``nominal`` (regions,): ns
    per cycle, 0 where it is not known."""
    settled, unsure = np.zeros(len(regions), np.bool_), np.zeros(len(regions), np.bool_)
    cycle: I64 | None = None
    for stream in _suspects(regions, streams, events):
        region, first = int(streams.region[stream]), int(streams.first[stream])
        rows = slice(first, first + int(streams.stored[stream]))
        by_exit = bool(streams.beheaded[stream] and regions.closed[region])
        high, late = table.high[site[rows]], table.late[site[rows]]
        if high.any() or not late.all():
            headless = bool(streams.beheaded[stream])
            found = _silences_by_high(regions, region, events, rows, high, late, headless)
        elif (anchor := table.anchor[site[rows]]).any() and events.payload is not None:
            search = _silences_by_exit if by_exit else _silences
            found = search(regions, region, events, rows, anchor, float(nominal[region]))
        else:
            continue
        if found is None:
            continue
        settled[region] |= streams.lane[stream] == 0
        cycle = events.cycle.copy() if cycle is None else cycle
        for silence in found:
            if silence.earlier:
                cycle[first : first + silence.before] -= silence.wraps * WRAP
            else:
                cycle[first + silence.before : rows.stop] += silence.wraps * WRAP
            unsure[region] |= not silence.exact
    if cycle is not None:
        events = replace(events, cycle=cycle, position=positions(streams, events.region, cycle))
    return events, Wraps(settled, unsure)


def _suspects(regions: Regions, streams: Streams, events: Events) -> list[int]:
    """Streams whose cycles may lack a wrap: those that end 2**32 cycles or more before the warp's exit, those of warps
    that never ended, and those placed by the exit of a life that long."""
    used = np.flatnonzero(streams.stored > 0)
    region = streams.region[used]
    length = region_cycles(regions)[region]
    rest = length - events.cycle[streams.first[used] + streams.stored[used] - 1]
    result: list[int] = used[
        (rest >= WRAP) | ~regions.closed[region] | streams.beheaded[used] & (length >= WRAP)
    ].tolist()
    return result


def _silences_by_high(
    regions: Regions, region: int, events: Events, rows: slice, high: Bool, late: Bool, headless: bool
) -> list[_Silence] | None:
    """Where wraps are missing in a stream some of whose records carry more of the clock; None where they contradict
    each other. ``headless``: its oldest events are gone.

    A wrap that one record lacks and the next that knows does not is missing before one of the ``late`` events between
    them, or before the exit.
    """
    header, closed = regions.headers[region], bool(regions.closed[region])
    cycle = events.cycle[rows]
    at = np.flatnonzero(high)
    told = (events.code[rows][at] >> LINK_SHIFT).astype(np.int64)
    missing = told - (int(header["entry_clock"]) + cycle[at] >> 32) & HIGH_MASK
    by_exit = headless and closed
    if by_exit:  # wraps too many
        missing = -(-missing & HIGH_MASK)
    count = len(cycle)
    if not headless:
        at, missing = np.append(-1, at), np.append(0, missing)
    if closed:
        rest = 0 if by_exit else int(region_cycles(regions)[region] - cycle[-1]) // WRAP
        at, missing = np.append(at, count), np.append(missing, rest)
    if not len(at):
        return []
    result = []
    if headless and int(missing[0]):
        unsure = bool(late[1 : int(at[0]) + 1].any())
        result.append(_Silence(0, int(missing[0]), not unsure))
    step = np.diff(missing)
    if (step < 0).any():
        return None
    for k in np.flatnonzero(step).tolist():
        begin, end = int(at[k]) + 1, int(at[k + 1]) + 1
        before = begin + np.flatnonzero(np.append(late[begin:end], True) if end > count else late[begin:end])
        place = int(before[-1]) if len(before) else end - 1
        if place < count or len(before) > 1:
            result.append(_Silence(place, int(step[k]), len(before) == 1))
    return result


def _silences(
    regions: Regions, region: int, events: Events, rows: slice, anchor: Bool, nominal: float
) -> list[_Silence] | None:
    """Where wraps are missing in a stream; None where the anchors cannot tell."""
    assert events.payload is not None
    header, closed = regions.headers[region], bool(regions.closed[region])
    at = np.flatnonzero(anchor)
    timer = (events.payload[rows][at] >> np.uint64(32)).astype(np.int64)
    at, timer = at[timer != 0], timer[timer != 0]
    if not len(at):
        return None
    cycle = np.concatenate([[0], events.cycle[rows][at]])
    entry = int(header["entry_globaltimer"])
    low = np.concatenate([[entry & (WRAP - 1)], timer])
    length, duration = 0, 0
    if closed:
        length = int(header["exit_clock"]) - int(header["entry_clock"])
        duration = int(header["exit_globaltimer"]) - entry
        cycle, low = np.append(cycle, length), np.append(low, (entry + duration) & (WRAP - 1))
    step, ticks = np.diff(cycle), np.diff(low) & (WRAP - 1)
    missing = (length - int(events.cycle[rows][-1])) // WRAP if closed else MOST_WRAPS
    usual = duration / length if closed and duration > 0 else _usual(step, ticks, nominal)
    if closed:
        step[-1] %= WRAP
    fastest = FASTEST * nominal if usual >= FASTEST * nominal else 0.0
    costs = _costs(step, ticks, usual, fastest, int(missing))
    best = costs.min(axis=0)
    if best.max() > PLAUSIBLE:
        return None
    close = costs <= best + CLOSE
    wraps = np.argmax(close, axis=0)
    likely = np.arange(len(costs))[:, None] <= 2 * wraps + 2
    several = np.count_nonzero(close & likely, axis=0) > 1
    if closed:
        total = (length - int(step.sum())) // WRAP
        nearest = np.argmin(costs, axis=0)
        wraps = nearest if int(nearest.sum()) == total else wraps
        if int(wraps.sum()) != total:
            return None
        several[:] = False
    before = np.concatenate([[-1], at])
    result = []
    for k in np.flatnonzero(wraps).tolist():
        if k < len(at):
            alone = int(at[k]) - int(before[k]) == 1
            result.append(_Silence(int(at[k]), int(wraps[k]), alone and not several[k]))
        elif int(at[-1]) != rows.stop - rows.start - 1:
            result.append(_Silence(rows.stop - rows.start, int(wraps[k]), False))
    return result


def _silences_by_exit(
    regions: Regions, region: int, events: Events, rows: slice, anchor: Bool, nominal: float
) -> list[_Silence] | None:
    """Where wraps are missing in a stream that is placed by the exit: what lies before each is earlier by them."""
    assert events.payload is not None
    header = regions.headers[region]
    at = np.flatnonzero(anchor)
    timer = (events.payload[rows][at] >> np.uint64(32)).astype(np.int64)
    at, timer = at[timer != 0], timer[timer != 0]
    if not len(at):
        return None
    length = int(header["exit_clock"]) - int(header["entry_clock"])
    exit_timer = int(header["exit_globaltimer"])
    duration = exit_timer - int(header["entry_globaltimer"])
    step = np.diff(np.append(events.cycle[rows][at], length))
    ticks = np.diff(np.append(timer, exit_timer & (WRAP - 1))) & (WRAP - 1)
    usual = duration / length if duration > 0 else nominal or USUAL
    fastest = FASTEST * nominal if usual >= FASTEST * nominal else 0.0
    costs = _costs(step, ticks, usual, fastest, length // WRAP)
    best = costs.min(axis=0)
    if best.max() > PLAUSIBLE:
        return None
    wraps = np.argmax(costs <= best + CLOSE, axis=0)
    if int(events.cycle[rows][0]) - int(wraps.sum()) * WRAP < 0:
        return None
    result = []
    for k in np.flatnonzero(wraps).tolist():
        following = int(at[k + 1]) if k + 1 < len(at) else rows.stop - rows.start
        # Events between the two anchors stay behind the silence; on which side they were is open.
        result.append(_Silence(int(at[k]) + 1, int(wraps[k]), following == int(at[k]) + 1, earlier=True))
    return result


def _usual(step: I64, ticks: I64, nominal: float) -> float:
    """ns per cycle of a warp that never ended: what most of its short stretches say; hardly a silence hides there."""
    clear = (step > 100_000) & (step < WRAP // 64) & (ticks < WRAP // 64)
    rate = ticks[clear] / step[clear]
    rate = rate[(rate > 0.3) & (rate < 1.5)]
    return float(np.median(rate)) if len(rate) else nominal or USUAL


def _costs(step: I64, ticks: I64, usual: float, fastest: float, most: int) -> F64:
    """How far, relative, the usual rate is from the rate of each of (k,) stretches of ``step`` cycles and ``ticks`` ns,
    both modulo 2**32, if 0 .. ``most`` wraps of the cycle counter are missing: (most + 1, k). The timer's turns are
    those that fit best; rates beyond ``fastest`` do not."""
    wraps = np.arange(most + 1, dtype=np.int64)[:, None]
    cycles = (step + wraps * WRAP).astype(np.float64)
    expected = cycles * usual
    turns = np.maximum(np.rint((expected - ticks) / WRAP), 0.0)
    ns = ticks + turns * WRAP
    cost: F64 = np.maximum(np.abs(ns - expected) - TICKS_NS, 0.0) / np.maximum(expected, 1.0)
    cost[ns + TICKS_NS < cycles * fastest] = np.inf
    return cost
