"""Anchor events: records that hold %globaltimer beside the clock, gathered before any event is decoded.

Only 32 bits of both are in a record. Where a warp lived for less than 2**32 cycles its cycle follows from the record
alone, so nothing but the anchors is looked at; the events of longer lives are unwrapped as decoding does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..raw import RegionBatch
from ..wire import SITE_MASK
from .clocks import BIN_SHIFT, F64, EventAnchors
from .events import Streams, build_events, build_streams, region_cycles
from .rings import WRAP
from .tables import I64, Bool, Regions, SiteTable
from .wraps import USUAL, settle_wraps

BLOCK_SLOTS = 1 << 19
SITE_FIELD = np.dtype({"names": ["clock", "site", "timer"], "formats": ["<u4", "<u2", "<u4"], "offsets": [0, 4, 12],
                       "itemsize": 16})  # fmt: skip
assert SITE_MASK == 0xFFFF


def collect_anchors(regions: Regions, batches: Sequence[RegionBatch], table: SiteTable, nominal: F64) -> EventAnchors:
    """The anchors of all events, one a microsecond of each stream. ``nominal`` (regions,): ns per cycle, 0: unknown."""
    h = regions.headers
    rows = np.flatnonzero(np.isin(h["kernel_id"], table.with_anchors()) & (h["stride"] == 16))
    parts: list[EventAnchors] = []
    if len(rows):
        length = region_cycles(regions)[rows]
        short = (length >= 0) & (length < WRAP)
        for chosen, found in ((rows[short], _short(regions, rows[short], batches, table)),
                              (rows[~short], _long(regions, rows[~short], batches, table, nominal))):  # fmt: skip
            parts += [EventAnchors(chosen[a.region], a.cycle, a.timer) for a in found]
    none = np.zeros(0, np.int64)
    return EventAnchors(
        *(np.concatenate([none, *(getattr(a, name) for a in parts)]) for name in ("region", "cycle", "timer"))
    )


# ----------------------------------------------------------------------------------------------------- short lives
def _short(
    regions: Regions, rows: I64, batches: Sequence[RegionBatch], table: SiteTable
) -> Iterator[EventAnchors]:
    regions = regions.select(rows)
    streams = build_streams(regions, batches, table)
    batch_of = regions.batch[streams.region]
    for number in np.unique(batch_of).tolist():
        batch = batches[number]
        chosen = np.flatnonzero((batch_of == number) & (streams.stored > 0))
        for lanes, slots in ((streams.lane[chosen] == 0, batch.slots), (streams.lane[chosen] != 0, batch.lane_slots)):
            for part in _blocks(streams, chosen[lanes]):
                yield _in_slots(regions, streams, part, slots.view(SITE_FIELD), table)


def _blocks(streams: Streams, chosen: I64) -> Iterator[I64]:
    """The streams in parts that lie next to each other in the batch, of about BLOCK_SLOTS."""
    if not len(chosen):
        return
    chosen = chosen[np.argsort(streams.source[chosen], kind="stable")]
    begin, count = streams.source[chosen], streams.stored[chosen]
    cut = begin[1:] != begin[:-1] + count[:-1]
    total = (np.cumsum(count) - count) // BLOCK_SLOTS
    cut |= total[1:] != total[:-1]
    yield from np.split(chosen, np.flatnonzero(cut) + 1)


def _in_slots(
    regions: Regions, streams: Streams, part: I64, slots: NDArray[np.void], table: SiteTable
) -> EventAnchors:
    begin, count = int(streams.source[part[0]]), streams.stored[part]
    ends = np.cumsum(count)
    slots = slots[begin : begin + int(ends[-1])]
    kernel = regions.headers["kernel_id"][streams.region[part]]
    one = bool((kernel == kernel[0]).all())
    stream = np.zeros(0, np.int64) if one else np.repeat(np.arange(len(part)), count)
    at = np.flatnonzero(table.anchor[table.rows(kernel[:1] if one else kernel, stream, slots["site"])])
    picked = slots[at]
    at = np.searchsorted(ends, at, side="right")
    region = streams.region[part][at]
    h = regions.headers
    entry, start = h["entry_clock"].astype(np.int64)[region], h["entry_globaltimer"].astype(np.int64)[region]
    cycle = (picked["clock"].astype(np.int64) - entry) & (WRAP - 1)
    timer = picked["timer"].astype(np.int64)
    keep = _one_a_bin(part[at], (entry + cycle) >> BIN_SHIFT) & (timer != 0)
    region, cycle, timer, start = region[keep], cycle[keep], timer[keep], start[keep]
    length = np.maximum(region_cycles(regions)[region], 1)
    duration = h["exit_globaltimer"].astype(np.int64)[region] - start
    expected = start + np.rint(cycle * (duration / length)).astype(np.int64)
    return EventAnchors(region, cycle, _nearest(timer, expected))


def _one_a_bin(stream: NDArray[np.integer], number: I64) -> Bool:
    keep = np.ones(len(number), np.bool_)
    keep[1:] = (number[1:] != number[:-1]) | (stream[1:] != stream[:-1])
    return keep


def _nearest(timer: I64, expected: I64) -> I64:
    """The time with the given low 32 bits that is nearest to the expected one."""
    result: I64 = expected + ((timer - expected + WRAP // 2) & (WRAP - 1)) - WRAP // 2
    return result


# ------------------------------------------------------------------------------------------------------ long lives
def _long(
    regions: Regions, rows: I64, batches: Sequence[RegionBatch], table: SiteTable, nominal: F64
) -> Iterator[EventAnchors]:
    if not len(rows):
        return
    total = np.cumsum(regions.stored[rows]) // BLOCK_SLOTS
    begin = 0
    for part in np.split(rows, np.flatnonzero(np.diff(total)) + 1):
        found = _unwrapped(regions.select(part), batches, table, nominal[part])
        yield EventAnchors(found.region + begin, found.cycle, found.timer)
        begin += len(part)


def _unwrapped(regions: Regions, batches: Sequence[RegionBatch], table: SiteTable, nominal: F64) -> EventAnchors:
    streams = build_streams(regions, batches, table)
    events = build_events(regions, streams, batches)
    site = table.rows(regions.headers["kernel_id"], events.region, events.code & SITE_MASK)
    events, _ = settle_wraps(regions, streams, events, table, site, nominal)
    anchor = table.anchor[site]
    if events.payload is None:
        anchor &= False
        timer = np.zeros(0, np.int64)
    else:
        timer = (events.payload[anchor] >> np.uint64(32)).astype(np.int64)
    at = np.flatnonzero(anchor)[timer != 0]
    timer = timer[timer != 0]
    region, cycle = events.region[at].astype(np.int64), events.cycle[at]
    stream = np.repeat(np.arange(len(streams)), streams.stored)[at]
    keep = _one_a_bin(stream, cycle >> BIN_SHIFT)
    region, cycle, timer, stream = region[keep], cycle[keep], timer[keep], stream[keep]
    return EventAnchors(region, cycle, _unwrapped_timer(regions, region, stream, cycle, timer, nominal))


def _unwrapped_timer(
    regions: Regions, region: I64, stream: I64, cycle: I64, timer: I64, nominal: F64
) -> I64:
    """All bits of the timer: along a stream it rises by about what the cycles between two anchors take."""
    h = regions.headers
    entry = h["entry_globaltimer"].astype(np.int64)
    length, duration = region_cycles(regions), h["exit_globaltimer"].astype(np.int64) - entry
    usual = np.where(nominal > 0, nominal, USUAL)
    known = (length > 0) & (duration > 0)
    usual[known] = duration[known] / length[known]
    new = np.ones(len(stream), np.bool_)
    new[1:] = stream[1:] != stream[:-1]
    step, rise = np.diff(cycle, prepend=0), np.diff(timer, prepend=0)
    step[new], rise[new] = cycle[new], timer[new] - (entry[region[new]] & (WRAP - 1))
    rise = _nearest(rise, np.rint(step * usual[region]).astype(np.int64))
    total = np.cumsum(rise)
    first = np.flatnonzero(new)
    counts = np.diff(first, append=len(stream))
    total -= np.repeat(total[first] - rise[first], counts)
    result: I64 = total + entry[region]
    return result
