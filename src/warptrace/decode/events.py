"""Slots -> events: one row a stored slot, stream after stream, with unwrapped clocks and an order within the warp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..raw import RegionBatch
from ..wire import events_led, unpack_capacity
from .rings import WRAP, oldest_slots
from .tables import I32, I64, U8, U64, Bool, Regions, SiteTable

U32 = NDArray[np.uint32]

LONG = 64
"""Events a stream from which on streams are copied one by one."""


@dataclass(frozen=True)
class Streams:
    """One row a stream = the slots of one lane of a region, ordered by (region row, lane); lane 0 always has one.

    ``region``: row of the region; ``first``: its first event; ``stored``, ``lost``: its events; ``main`` (regions,):
    row of a region's lane 0. ``source``: first slot in the batch's ``slots`` (lane 0) or ``lane_slots``.
    ``beheaded``: its oldest events were overwritten; ``oldest``: place of its first event among its slots; ``torn``:
    events left out because their order is not known.
    """

    region: I64
    lane: U8
    stored: I64
    lost: I64
    first: I64
    main: I64
    source: I64
    beheaded: Bool
    oldest: I64
    torn: I64

    def __len__(self) -> int:
        return len(self.region)

    def part(self, first: int, stop: int) -> Streams:
        """The streams of regions ``first`` to ``stop`` - 1, counted from there."""
        ends = np.append(self.main, len(self.region))
        a, b = int(ends[first]), int(ends[stop])
        begin = self.first[a] if a < b else 0
        return Streams(
            region=self.region[a:b] - first,
            lane=self.lane[a:b],
            stored=self.stored[a:b],
            lost=self.lost[a:b],
            first=self.first[a:b] - begin,
            main=self.main[first:stop] - a,
            source=self.source[a:b],
            beheaded=self.beheaded[a:b],
            oldest=self.oldest[a:b],
            torn=self.torn[a:b],
        )


@dataclass(frozen=True)
class Events:
    """One row an event, ordered by (region row, lane, slot). ``region``: row of the region; ``cycle``: since the
    warp's entry; ``position``: rank of the event in the order (region row, program order), or None where that is the
    row itself; ``payload``: None where no region has payloads."""

    region: I32
    code: U32
    payload: U64 | None
    cycle: I64
    position: I64 | None

    def __len__(self) -> int:
        return len(self.region)


def build_streams(regions: Regions, batches: Sequence[RegionBatch], table: SiteTable) -> Streams:
    """The streams of the regions, which are taken in their given order."""
    h = regions.headers
    n = len(regions)
    main_source = _main_sources(regions, batches)
    lanes = _lane_streams(regions, batches)
    region = np.concatenate([np.arange(n), lanes["region"]])
    lane = np.concatenate([np.zeros(n, np.int64), lanes["lane"]])
    stored = np.concatenate([regions.stored, lanes["stored"]])
    advance = np.concatenate([h["advance"].astype(np.int64), lanes["advance"]])
    source = np.concatenate([main_source, lanes["source"]])
    if len(lanes["region"]):
        order = np.argsort(region * 32 + lane, kind="stable")
        region, lane, stored, advance, source = (a[order] for a in (region, lane, stored, advance, source))
    ring, closed = regions.ring[region], regions.closed[region]
    stride = h["stride"].astype(np.int64)[region]
    capacity = np.where(lane == 0, *unpack_capacity(h["capacity"][region]))
    lost = np.where(closed, events_led(advance, stride, ring) - stored, 0)
    lost += np.where(closed & ring & (lost < 0), WRAP, 0)  # a count that turned: the ring holds more than it says
    endless = ring & ~closed & (stored * stride == capacity) & (stored > 0)
    oldest, torn = np.zeros(len(region), np.int64), np.zeros(len(region), np.int64)
    if endless.any():
        full = np.flatnonzero(endless)
        oldest[full] = oldest_slots(regions, region, lane, stored, source, full, batches, table)
        torn = np.where(oldest < 0, stored, 0)
        stored = stored - torn
    return Streams(
        region=region,
        lane=lane.astype(np.uint8),
        stored=stored,
        lost=np.maximum(lost, 0),
        first=np.cumsum(stored) - stored,
        main=np.flatnonzero(lane == 0),
        source=source,
        beheaded=ring & (endless | (lost > 0)),
        oldest=np.maximum(oldest, 0),
        torn=torn,
    )


def _main_sources(regions: Regions, batches: Sequence[RegionBatch]) -> I64:
    starts = [np.cumsum(b.stored, dtype=np.int64) - b.stored for b in batches]
    counts = np.array([len(s) for s in starts], np.int64)
    base = np.cumsum(counts) - counts
    flat = np.concatenate([*starts, np.zeros(0, np.int64)])
    result: I64 = flat[base[regions.batch] + regions.row] if len(regions) else np.zeros(0, np.int64)
    return result


def _lane_streams(regions: Regions, batches: Sequence[RegionBatch]) -> dict[str, I64]:
    """Columns of the streams of lanes other than 0: region (row of ``regions``), lane, advance, stored, source."""
    counts = np.array([len(b.headers) for b in batches], np.int64)
    base = np.cumsum(counts) - counts
    row_of = np.full(int(counts.sum()), -1, np.int64)
    row_of[base[regions.batch] + regions.row] = np.arange(len(regions))
    names = ("region", "lane", "advance", "stored", "source")
    columns: dict[str, list[I64]] = {name: [np.zeros(0, np.int64)] for name in names}
    for number, batch in enumerate(batches):
        table = batch.lanes
        if not len(table):
            continue
        region = row_of[base[number] + table["region"].astype(np.int64)]
        stored = table["stored"].astype(np.int64)
        keep = region >= 0
        values = {
            "region": region,
            "lane": table["lane"].astype(np.int64),
            "advance": table["advance"].astype(np.int64),
            "stored": stored,
            "source": np.cumsum(stored) - stored,
        }
        for name, column in values.items():
            columns[name].append(column[keep])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def build_events(regions: Regions, streams: Streams, batches: Sequence[RegionBatch]) -> Events:
    """All stored events, gathered from the batches."""
    total = int(streams.stored.sum())
    clock, code = np.zeros(total, np.uint32), np.zeros(total, np.uint32)
    payload = np.zeros(total, np.uint64) if (regions.headers["stride"] == 16).any() else None
    if total >= LONG * len(streams):
        _copy(regions, streams, batches, clock, code, payload)
    else:
        batch_of = regions.batch[streams.region]
        for number in np.unique(batch_of).tolist():
            batch = batches[number]
            rows = np.flatnonzero((batch_of == number) & (streams.stored > 0))
            for lanes, slots in ((streams.lane[rows] == 0, batch.slots), (streams.lane[rows] != 0, batch.lane_slots)):
                _scatter(streams, rows[lanes], slots, clock, code, payload)
    for row in np.flatnonzero(streams.oldest).tolist():
        part = slice(int(streams.first[row]), int(streams.first[row] + streams.stored[row]))
        for column in (clock, code) if payload is None else (clock, code, payload):
            column[part] = np.roll(column[part], -int(streams.oldest[row]))
    region = np.repeat(streams.region.astype(np.int32), streams.stored)
    cycle = _unwrap(clock, regions.headers["entry_clock"].astype(np.uint32), streams)
    _place_by_exit(regions, streams, cycle)
    return Events(region, code, payload, cycle, positions(streams, region, cycle))


def _copy(
    regions: Regions, streams: Streams, batches: Sequence[RegionBatch], clock: U32, code: U32, payload: U64 | None
) -> None:
    """Copies the slots stream by stream: less work than :func:`_scatter` where streams are long."""
    batch_of = regions.batch[streams.region]
    slots: dict[tuple[int, bool], NDArray[np.void]] = {}
    for number in np.unique(batch_of).tolist():
        slots[number, True], slots[number, False] = batches[number].slots, batches[number].lane_slots
    columns = (batch_of, streams.lane == 0, streams.source, streams.first, streams.stored)
    for number, main, source, first, count in zip(*(column.tolist() for column in columns), strict=True):
        part = slots[number, main][source : source + count]
        stop = first + count
        clock[first:stop] = part["clock"]
        code[first:stop] = part["code"]
        if payload is not None and part.dtype.itemsize == 16:
            payload[first:stop] = part["payload"]


def _scatter(
    streams: Streams, rows: I64, slots: NDArray[np.void], clock: U32, code: U32, payload: U64 | None
) -> None:
    """Copies the slots of some streams of one batch to their events."""
    if not len(rows):
        return
    rows = rows[np.argsort(streams.source[rows], kind="stable")]
    counts = streams.stored[rows]
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    target = within + np.repeat(streams.first[rows], counts)
    if int(ends[-1]) != len(slots):  # some of the batch's regions are left out
        within += np.repeat(streams.source[rows], counts)
        slots = slots[within]
    clock[target] = slots["clock"]
    code[target] = slots["code"]
    if payload is not None and slots.dtype.itemsize == 16:
        payload[target] = slots["payload"]


def _unwrap(clock: U32, entry: U32, streams: Streams) -> I64:
    """Cycles since the warp's entry: steps along a stream are less than 2**32, so differences modulo 2**32 are
    exact."""
    used = streams.stored > 0
    first, counts = streams.first[used], streams.stored[used]
    step = np.empty(len(clock), np.uint32)
    np.subtract(clock[1:], clock[:-1], out=step[1:])
    step[first] = clock[first] - entry[streams.region[used]]
    cycle = np.cumsum(step, dtype=np.int64)
    cycle -= np.repeat(cycle[first] - step[first], counts)
    return cycle


def _place_by_exit(regions: Regions, streams: Streams, cycle: I64) -> None:
    """Where the oldest events are gone the first one left may be any time behind the entry; the last one is less than
    2**32 cycles before the exit."""
    rows = np.flatnonzero(streams.beheaded & regions.closed[streams.region] & (streams.stored > 0))
    first, count = streams.first[rows], streams.stored[rows]
    rest = region_cycles(regions)[streams.region[rows]] - cycle[first + count - 1]
    for begin, size, wraps in zip(first.tolist(), count.tolist(), (rest // WRAP).tolist(), strict=True):
        if wraps:
            cycle[begin : begin + size] += wraps * WRAP


def positions(streams: Streams, region: I32, cycle: I64) -> I64 | None:
    """Rank of each event once the lanes of a warp are merged by cycle; ties go by lane."""
    used = streams.region[streams.stored > 0]
    shared = used[1:][used[1:] == used[:-1]]
    if not len(shared):
        return None
    merged = np.zeros(int(used.max()) + 1, np.bool_)
    merged[shared] = True
    rows = np.flatnonzero(merged[region])
    order = np.lexsort((cycle[rows], region[rows]))
    position = np.arange(len(cycle))
    position[rows[order]] = rows
    return position


def last_cycles(streams: Streams, cycle: I64, regions: int) -> I64:
    """Cycle of the last event of each region, 0 where it has none."""
    last = np.zeros(regions, np.int64)
    used = streams.stored > 0
    np.maximum.at(last, streams.region[used], cycle[streams.first[used] + streams.stored[used] - 1])
    return last


def clock_faults(regions: Regions, streams: Streams, cycle: I64, last: I64) -> tuple[Bool, Bool]:
    """(regions with an event outside the warp's life, regions whose exit is 2**32 cycles or more after their last
    event): in the second, times of events may be too early by a multiple of 2**32 cycles."""
    length = region_cycles(regions)
    closed = regions.closed
    outside = closed & (last > length)
    used = streams.stored > 0
    outside[streams.region[used][cycle[streams.first[used]] < 0]] = True
    return outside, closed & (length - last >= WRAP)


def region_cycles(regions: Regions) -> I64:
    """Cycles from entry to exit; -1 where the warp never ended."""
    h = regions.headers
    length = h["exit_clock"].astype(np.int64) - h["entry_clock"].astype(np.int64)
    return np.where(regions.closed, length, -1)


