"""Silences of 2**32 cycles (2.2 s) and longer.

A record holds 32 bits of the clock, so a stream unwraps exactly only while its steps are shorter than 2**32 cycles. The
exit's 64 bits say how many wraps are missing in all; %globaltimer in the anchor records, which wraps every 4.3 s, says
before which anchors. What that leaves open is reported. Streams whose oldest events were overwritten are placed by the
exit alone; there the anchors say how many wraps before it they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .events import Events, Streams, positions, region_cycles
from .rings import WRAP
from .tables import I64, Bool, Regions

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


@dataclass(frozen=True)
class Wraps:
    """Per region: ``settled``: nothing is open; ``unsure``: before which of several events a silence lies is open."""

    settled: Bool
    unsure: Bool


@dataclass(frozen=True)
class _Silence:
    """``wraps`` are missing before event ``before`` of the stream; ``exact``: it can be before no other event."""

    before: int
    wraps: int
    exact: bool


def settle_wraps(
    regions: Regions, streams: Streams, events: Events, anchor: Bool, nominal: F64
) -> tuple[Events, Wraps]:
    """The events with the missing wraps put in. ``anchor`` (events,): the event's payload holds %globaltimer;
    ``nominal`` (regions,): ns per cycle, 0 where it is not known."""
    settled, unsure = np.zeros(len(regions), np.bool_), np.zeros(len(regions), np.bool_)
    cycle: I64 | None = None
    for stream in _suspects(regions, streams, events, anchor):
        region, first = int(streams.region[stream]), int(streams.first[stream])
        rows = slice(first, first + int(streams.stored[stream]))
        by_exit = bool(streams.beheaded[stream] and regions.closed[region])
        search = _silences_by_exit if by_exit else _silences
        found = search(regions, region, events, rows, anchor, float(nominal[region]))
        if found is None:
            continue
        settled[region] |= streams.lane[stream] == 0
        cycle = events.cycle.copy() if cycle is None else cycle
        for silence in found:
            if by_exit:
                cycle[first : first + silence.before] -= silence.wraps * WRAP
            else:
                cycle[first + silence.before : rows.stop] += silence.wraps * WRAP
            unsure[region] |= not silence.exact
    if cycle is not None:
        events = replace(events, cycle=cycle, position=positions(streams, events.region, cycle))
    return events, Wraps(settled, unsure)


def _suspects(regions: Regions, streams: Streams, events: Events, anchor: Bool) -> list[int]:
    """Streams with anchors whose cycles may lack a wrap: those that end 2**32 cycles or more before the warp's exit,
    those of warps that never ended, and those placed by the exit of a life that long."""
    if events.payload is None or not anchor.any():
        return []
    used = np.flatnonzero(streams.stored > 0)
    region = streams.region[used]
    length = region_cycles(regions)[region]
    rest = length - events.cycle[streams.first[used] + streams.stored[used] - 1]
    used = used[(rest >= WRAP) | ~regions.closed[region] | streams.beheaded[used] & (length >= WRAP)]
    result: list[int] = used[
        [bool(anchor[f : f + n].any()) for f, n in zip(streams.first[used], streams.stored[used], strict=True)]
    ].tolist() if len(used) else []
    return result


def _silences(
    regions: Regions, region: int, events: Events, rows: slice, anchor: Bool, nominal: float
) -> list[_Silence] | None:
    """Where wraps are missing in a stream; None where the anchors cannot tell."""
    assert events.payload is not None
    header, closed = regions.headers[region], bool(regions.closed[region])
    at = np.flatnonzero(anchor[rows])
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
    at = np.flatnonzero(anchor[rows])
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
        result.append(_Silence(int(at[k]) + 1, int(wraps[k]), following == int(at[k]) + 1))
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
