"""Events of many warps -> rows of the trace, block by block: bounded memory, warm caches, several threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..raw import RegionBatch
from ..trace import RANGE_STACK, RANGE_TOKEN, Markers, OpenRanges, Ranges
from ..wire import SITE_MASK, EventKind
from .clocks import F64, ClockMap
from .envelope import AS_MAP, ONE_CELL, Runs
from .events import Events, Streams, build_events, clock_faults, last_cycles
from .pairing import UNPAIRED, Pairing, pair
from .tables import I32, I64, U8, U64, Bool, Regions, SiteTable
from .wraps import settle_wraps

BLOCK_EVENTS = 1 << 18
MOST_THREADS = 4
FEW, SOME = 64, 8
"""Of events whose times may be worth less than others, every so many are looked at first, and next: after that few
are left of which that is still possible."""
SPARE, SPARE_ROWS = 1.05, 1000
"""So many times the rows that are expected, and so many more, have room."""

Table = TypeVar("Table", Ranges, Markers, OpenRanges)


@dataclass(frozen=True)
class Source:
    """All that a block is decoded from. ``launch``, ``row`` (in Warps), ``cycles`` (of the entry, since its clock's
    origin), ``time0`` (that origin in ns since the epoch) and ``nominal`` (ns per cycle, 0: unknown): one a region."""

    regions: Regions
    streams: Streams
    batches: Sequence[RegionBatch]
    table: SiteTable
    clock: ClockMap
    launch: I64
    row: I64
    cycles: I64
    time0: I64
    nominal: F64

    def part(self, first: int, stop: int) -> Source:
        """The regions ``first`` to ``stop`` - 1."""
        rows = slice(first, stop)
        return Source(
            regions=self.regions.select(rows),
            streams=self.streams.part(first, stop),
            batches=self.batches,
            table=self.table,
            clock=self.clock.part(rows),
            launch=self.launch[rows],
            row=self.row[rows],
            cycles=self.cycles[rows],
            time0=self.time0[rows],
            nominal=self.nominal[rows],
        )


@dataclass(frozen=True)
class Doubt:
    """Events that are a problem, of one kind: their launch and their row of the site table (of kind "unknown_site":
    the site's id)."""

    kind: str
    launch: I64
    site: I64


@dataclass(frozen=True)
class Found:
    """Rows of a block or of the whole. Per region: ``last_ns`` and ``last_cycle`` (of its last event, or
    of its entry), ``doubt`` (ns that any event up to the clock's last anchor may be off at most, 0 without any),
    ``outside`` and ``long_gap`` as :func:`clock_faults` has them, ``full`` as Pairing has it."""

    ranges: Ranges
    markers: Markers
    open: OpenRanges
    last_ns: I64
    last_cycle: I64
    doubt: F64
    outside: Bool
    long_gap: Bool
    full: Bool
    doubts: tuple[Doubt, ...]


def decode_events(source: Source) -> Found:
    """Decodes all events."""
    total = np.cumsum(source.streams.stored)
    by_region = total[np.append(source.streams.main, len(source.streams))[1:] - 1] if len(total) else total
    bounds = _bounds(by_region)
    joined = _Joined()
    for found, stop in zip(_decoded(source, bounds), bounds[1:], strict=True):
        joined.add(found, float(by_region[stop - 1] / max(by_region[-1], 1)) if stop else 1.0)
    return joined.found()


def _decoded(source: Source, bounds: list[int]) -> Iterator[Found]:
    """The blocks in order; not many are ahead of the one that is taken, for they are memory beside what they become."""
    threads = max(min(len(bounds) - 1, os.cpu_count() or 1, MOST_THREADS), 1)
    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for first, stop in zip(bounds, bounds[1:], strict=False):
            waiting.append(pool.submit(lambda a, b: _decode_block(source.part(a, b)), first, stop))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _bounds(events: I64) -> list[int]:
    """First region of each block, and their number, from the running sum of their events."""
    total = int(events[-1]) if len(events) else 0
    cuts = np.searchsorted(events, np.arange(BLOCK_EVENTS, total, BLOCK_EVENTS), side="left") + 1
    return np.unique(np.concatenate([[0], cuts, [len(events)]])).tolist() if len(events) else [0, 0]


class _Joined:
    """Blocks one after another."""

    def __init__(self) -> None:
        self._ranges, self._markers, self._open = _Growing(Ranges), _Growing(Markers), _Growing(OpenRanges)
        self._blocks: list[Found] = []

    def add(self, block: Found, share: float) -> None:
        """The next block; with it ``share`` of all events are there."""
        none = self._ranges.add(block.ranges, share), self._markers.add(block.markers, share)
        opened = self._open.add(block.open, share)
        self._blocks.append(replace(block, ranges=none[0], markers=none[1], open=opened))

    def found(self) -> Found:
        """All of it."""
        names = ("last_ns", "last_cycle", "doubt", "outside", "long_gap", "full")
        columns: dict[str, Any] = {name: np.concatenate([getattr(b, name) for b in self._blocks]) for name in names}
        return Found(
            ranges=self._ranges.table(),
            markers=self._markers.table(),
            open=self._open.table(),
            doubts=tuple(d for b in self._blocks for d in b.doubts),
            **columns,
        )


class _Growing(Generic[Table]):
    """A table that blocks are put into as they come.

    Memory is taken once, for as many rows as there will be if the rest is as what came so far, and again only where
    that was too little; what is not filled was never touched.
    """

    def __init__(self, kind: type[Table]) -> None:
        self._kind: type[Table] = kind
        self._names = [f.name for f in fields(kind)]
        self._columns: dict[str, NDArray[Any]] = {}
        self._rows = self._room = 0

    def add(self, table: Table, share: float) -> Table:
        """Puts a block's rows behind the others; with it ``share`` of all events are there. Returns no rows."""
        rows = self._rows + len(table)
        if rows > self._room or not self._columns:
            self._room = rows if share >= 1 else int(rows / max(share, 1e-6) * SPARE) + SPARE_ROWS
            self._columns = {name: self._larger(name, getattr(table, name)) for name in self._names}
        for name, column in self._columns.items():
            column[self._rows : rows] = getattr(table, name)
        self._rows = rows
        return self._table(lambda name: getattr(table, name)[:0].copy())

    def _larger(self, name: str, like: NDArray[Any]) -> NDArray[Any]:
        column = np.empty((self._room, *like.shape[1:]), like.dtype)
        if self._rows:
            column[: self._rows] = self._columns[name][: self._rows]
        return column

    def table(self) -> Table:
        """All rows."""
        return self._table(lambda name: self._columns[name][: self._rows])

    def _table(self, column: Callable[[str], NDArray[Any]]) -> Table:
        columns: dict[str, Any] = {name: column(name) for name in self._names}
        table: Table = self._kind(**columns)
        return table


def _decode_block(source: Source) -> Found:
    regions, streams, table = source.regions, source.streams, source.table
    events = build_events(regions, streams, source.batches)
    site = table.rows(regions.headers["kernel_id"], events.region, events.code & SITE_MASK)
    events, wraps = settle_wraps(regions, streams, events, table, site, source.nominal)
    kind = table.kind.take(site)
    pairing = pair(regions, streams, events, kind, _slack(source))
    last = last_cycles(streams, events.cycle, len(regions))
    outside, long_gap = clock_faults(regions, streams, events.cycle, last)
    ns, doubt = _event_ns(source, events)
    columns = _Columns(source, events, site, ns)
    open_, pairing = _split_open(regions, streams, events, pairing)
    return Found(
        ranges=columns.ranges(kind, pairing),
        markers=columns.markers(kind),
        open=columns.open(open_, kind, pairing),
        last_ns=source.time0 + source.clock.to_ns(source.clock.group, source.cycles + last),
        last_cycle=last,
        doubt=doubt,
        outside=outside,
        long_gap=(long_gap & ~wraps.settled) | wraps.unsure,
        full=pairing.full,
        doubts=_doubts(source, events, site, pairing),
    )


def _split_open(regions: Regions, streams: Streams, events: Events, pairing: Pairing) -> tuple[I64, Pairing]:
    """(starts of ranges that are open because their warps had not ended, the pairing without them): nothing is wrong
    with these. Not where they may have ended: where a warp's memory was full, one of its ends is ambiguous, or one of
    its rings has no order."""
    running = ~regions.closed & ~pairing.full
    running[streams.region[streams.torn > 0]] = False
    running[events.region[pairing.ambiguous_end]] = False
    push, start = (running[events.region[at]] for at in (pairing.unpaired_push, pairing.unpaired_start))
    opened = np.sort(np.concatenate([pairing.unpaired_push[push], pairing.unpaired_start[start]]))
    rest = replace(
        pairing, unpaired_push=pairing.unpaired_push[~push], unpaired_start=pairing.unpaired_start[~start]
    )
    return opened, rest


def _slack(source: Source) -> I64:
    """Bytes at the end of each region's blocks that a full block may leave empty."""
    ids, number = np.unique(source.regions.headers["kernel_id"], return_inverse=True)
    kernels = source.table.kernels
    slack = np.array([kernels[int(k)].slack if int(k) in kernels else 0 for k in ids], np.int64)
    return slack[number.reshape(-1)]


def _event_ns(source: Source, events: Events) -> tuple[I64, F64]:
    """(ns since the epoch of each event, doubt of each region as Found has it)."""
    clock, grid, region, streams = source.clock, source.clock.grid, events.region, source.streams
    group = clock.group
    counts = np.add.reduceat(streams.stored, streams.main) if len(streams) else streams.stored
    first, last = grid.first[group], grid.first[group + 1] - 1 - grid.first[group]

    def of_each(column: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(column, counts)

    cycle: I64 = of_each(source.cycles)
    cycle += events.cycle
    cell: I64 | None = None
    runs: Runs | None = None
    if len(group) and grid.uneven(group):
        runs = grid.runs(group, counts, cycle)
        cell = grid.search(group, region, cycle) if runs is None else None
    elif last.any():
        cell = grid.cell_in(of_each(group), of_each(first), of_each(last), of_each(grid.shift[group]), cycle)
    if runs is not None:
        ns = clock.at(runs.cell, cycle, runs.count)
    elif cell is not None:
        ns = clock.at(cell, cycle)
    else:
        x = cycle.astype(np.float64)
        x *= of_each(grid.rate[first])
        x += of_each(grid.t[first])
        ns = np.rint(x, out=x).astype(np.int64)
    ns += of_each(source.time0)
    return ns, _doubt_of_events(source, counts, events.region, cycle, cell, runs)


def _doubt_of_events(
    source: Source, counts: I64, region: I32, cycle: I64, cell: I64 | None, runs: Runs | None
) -> F64:
    """As Found has it, but that a region may have less than is so, where another one of its clock has as much.
    ``counts``: events of each region; ``cycle``: of each event since its clock's origin; ``cell`` or ``runs``: of its
    map, None where each has but one."""
    clock, bounds = source.clock, source.clock.bounds
    doubt = np.zeros(len(clock.group))
    has = np.flatnonzero(counts)
    if not len(has):
        return doubt
    group = clock.group[has]
    if runs is not None and (bounds.shift[clock.group] != AS_MAP).any():
        cell, runs = np.repeat(runs.cell, runs.count), None
    if runs is not None:
        place: I64 | None = runs.cell + (bounds.cells[clock.group] - clock.grid.first[clock.group])[runs.row]
        begin = np.flatnonzero(np.diff(runs.row, prepend=-1))
    else:
        place = _place(source, region, cycle, cell)
        begin = np.cumsum(counts[has]) - counts[has]
    if place is None:
        doubt[has] = bounds.most[bounds.cells[group]]
        return doubt
    told = bounds.told[place]
    doubt[has] = np.maximum(np.maximum.reduceat(told, begin), 0.0)
    if bounds.any_untold[group].any():
        if runs is not None:
            told, cell = np.repeat(told, runs.count), np.repeat(runs.cell, runs.count)
        uneven = cell is not None and clock.grid.uneven(clock.group)
        _look(clock, region, group, told, cycle, cell if uneven else None, doubt)
    return doubt


def _look(
    clock: ClockMap, region: I32, groups: I64, told: F64, cycle: I64, cell: I64 | None, doubt: F64
) -> None:
    """Raises the doubt of regions to that of events, all of these ``groups``, whose cells do not tell it (``told`` is
    negative): of a few of them, then of those that may have more than was found in their clock."""
    highest = np.zeros(len(clock.launch))
    np.maximum.at(highest, clock.group, doubt)

    def look(rows: I64) -> None:
        rows = rows[-told[rows] > highest[clock.group][region[rows]]]
        if len(rows):
            found = clock.doubt(clock.group[region[rows]], cycle[rows], None if cell is None else cell[rows])
            np.maximum.at(doubt, region[rows], found)
            np.maximum.at(highest, clock.group[region[rows]], found)

    look(np.arange(0, len(region), FEW))
    if (highest[groups] < clock.uncertainty[groups]).any():
        rows = np.flatnonzero(told < -highest[clock.group][region])
        look(rows[::SOME])
        look(rows)


def _place(source: Source, region: I32, cycle: I64, cell: I64 | None) -> I64 | None:
    """The cell of the clock's bounds of each event; None where each group has but one."""
    clock, bounds = source.clock, source.clock.bounds
    group, shift = clock.group, bounds.shift[clock.group]
    if cell is None and (shift == ONE_CELL).all():
        return None
    first = bounds.cells[group]
    if cell is not None:
        place = cell + (first - clock.grid.first[group])[region]
        if (shift == AS_MAP).all():
            return place
        rows = np.flatnonzero((shift != AS_MAP)[region])
    else:
        place, rows = np.empty(len(region), np.int64), np.arange(len(region))
    own = region[rows]
    last = bounds.cells[group + 1] - 1 - first
    place[rows] = first[own] + np.clip(cycle[rows] >> shift[own], 0, last[own])
    return place


def _doubts(source: Source, events: Events, site: I32, pairing: Pairing) -> tuple[Doubt, ...]:
    doubts = []
    for kind in UNPAIRED:
        at: I64 = getattr(pairing, kind)
        if len(at):
            doubts.append(Doubt(kind, source.launch[events.region[at]], site[at].astype(np.int64)))
    unknown = np.flatnonzero(site == len(source.table.sites))
    if len(unknown):
        known = np.array([int(k) in source.table.kernels for k in source.regions.headers["kernel_id"]], np.bool_)
        unknown = unknown[known[events.region[unknown]]]
        launch = source.launch[events.region[unknown]]
        doubts.append(Doubt("unknown_site", launch, (events.code[unknown] & SITE_MASK).astype(np.int64)))
    return tuple(doubts)


@dataclass(frozen=True)
class _Columns:
    """Builds the event tables of the trace."""

    source: Source
    events: Events
    site: I32
    ns: I64

    def ranges(self, kind: U8, pairing: Pairing) -> Ranges:
        start = self._sorted(np.flatnonzero(pairing.end_of >= 0))
        end = pairing.end_of[start]
        start_site, end_site = self.site[start], self.site[end]
        start_type, start_bits = self._payload(start, start_site)
        end_type, end_bits = self._payload(end, end_site, ends=True)
        token = kind[start] == EventKind.START
        first = self._place(start)
        region = self._region(first)
        start_seq = self._seq(first, region)
        return Ranges(
            warp=self._warp(region),
            name=self.source.table.name.take(start_site),
            kind=np.where(token, np.uint8(RANGE_TOKEN), np.uint8(RANGE_STACK)),
            lane=self._lane(start),
            depth=pairing.depth[start],
            start_ns=self.ns[start],
            end_ns=self.ns[end],
            start_cycle=self.events.cycle[start],
            end_cycle=self.events.cycle[end],
            start_seq=start_seq,
            end_seq=start_seq + (self._place(end) - first),
            start_type=start_type,
            start_bits=start_bits,
            end_type=end_type,
            end_bits=end_bits,
            start_site=start_site,
            end_site=end_site,
        )

    def open(self, at: I64, kind: U8, pairing: Pairing) -> OpenRanges:
        at = self._sorted(at)
        site, place = self.site[at], self._place(at)
        region = self._region(place)
        start_type, start_bits = self._payload(at, site)
        return OpenRanges(
            warp=self._warp(region),
            name=self.source.table.name.take(site),
            kind=np.where(kind[at] == EventKind.START, np.uint8(RANGE_TOKEN), np.uint8(RANGE_STACK)),
            lane=self._lane(at),
            depth=pairing.depth[at],
            start_ns=self.ns[at],
            start_cycle=self.events.cycle[at],
            start_seq=self._seq(place, region),
            start_type=start_type,
            start_bits=start_bits,
            start_site=site,
        )

    def markers(self, kind: U8) -> Markers:
        at = self._sorted(np.flatnonzero(kind == EventKind.MARK))
        site, place = self.site[at], self._place(at)
        region = self._region(place)
        payload_type, bits = self._payload(at, site)
        return Markers(
            warp=self._warp(region),
            name=self.source.table.name.take(site),
            lane=self._lane(at),
            ns=self.ns[at],
            cycle=self.events.cycle[at],
            seq=self._seq(place, region),
            type=payload_type,
            bits=bits,
            site=site,
        )

    def _sorted(self, at: I64) -> I64:
        """By (warp, seq)."""
        position = self.events.position
        return at if position is None else at[np.argsort(position[at], kind="stable")]

    def _place(self, at: I64) -> I64:
        return at if self.events.position is None else self.events.position[at]

    def _region(self, place: I64) -> _Rows:
        """The regions of events, given by their places, which are in order."""
        streams = self.source.streams
        first = streams.first[streams.main]
        return _Rows(first, np.diff(np.searchsorted(place, first), append=len(place)))

    def _warp(self, region: _Rows) -> I32:
        return np.repeat(self.source.row.astype(np.int32), region.counts)

    def _seq(self, place: I64, region: _Rows) -> I64:
        seq: I64 = place - np.repeat(region.first, region.counts)
        return seq

    def _lane(self, at: I64) -> U8:
        streams = self.source.streams
        if len(streams) == len(streams.main):
            return np.zeros(len(at), np.uint8)
        used = streams.stored > 0
        stream = np.searchsorted(streams.first[used], at, side="right") - 1
        return streams.lane[used][stream]

    def _payload(self, at: I64, site: I32, *, ends: bool = False) -> tuple[U8, U64]:
        """(type, bits) of events; the bits beyond the type are cleared. ``ends``: as what ends a range, which is
        nothing where that is a pop or a switch."""
        if self.events.payload is None:
            return np.zeros(len(at), np.uint8), np.zeros(len(at), np.uint64)
        table = self.source.table
        types, masks = table.payload, table.mask
        if ends:
            silent = (table.kind == EventKind.POP) | (table.kind == EventKind.SWITCH)
            types, masks = np.where(silent, np.uint8(0), types), np.where(silent, np.uint64(0), masks)
        kinds, bits = types.take(site), self.events.payload[at]
        bits &= masks.take(site)
        without = self.source.regions.headers["stride"] == 8
        if without.any():
            kinds[without[self.events.region[at]]] = 0
        return kinds, bits


@dataclass(frozen=True)
class _Rows:
    """Of each region: the place of its first event, and how many of some events it has."""

    first: I64
    counts: I64
