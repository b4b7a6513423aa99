"""Slots -> events, in the plainest way, so that a fault of the decoder or of the capture shows as a difference.

Two sources: the capture directory's batches, and (where the memory can be read before anything was drained) trace
memory itself. Nothing of ``warptrace.decode`` or of the writer's compaction is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warptrace import wire
from warptrace.raw import Capture
from warptrace.sites import KernelRecord, Site
from warptrace.wire import EventKind, PayloadType

from .model import Dim3, Event, Place, Recorded

ReadMemory = Callable[[int, int], np.ndarray]
Key = tuple[int, Dim3, int]
"""(grid id, CTA, warp)."""


@dataclass(frozen=True)
class Slot:
    clock: int
    code: int
    payload: int


@dataclass(frozen=True)
class RawWarp:
    """A region: its header as read, its offset from the control block, and per lane its slots and lost events."""

    header: Any
    offset: int
    slots: dict[int, list[Slot]]
    lost: dict[int, int]

    @property
    def key(self) -> Key:
        h = self.header
        return int(h["grid_id"]), (int(h["cta"][0]), int(h["cta"][1]), int(h["cta"][2])), int(h["warp"])

    def same(self, other: RawWarp) -> bool:
        names = [n for n in self.header.dtype.names if n != "reserved"]
        return all(np.array_equal(self.header[n], other.header[n]) for n in names) and (
            self.offset,
            self.slots,
            self.lost,
        ) == (other.offset, other.slots, other.lost)


def from_capture(capture: Capture) -> list[RawWarp]:
    """The regions of a capture, ordered by (grid id, CTA, warp)."""
    out: list[RawWarp] = []
    for batch in capture.batches():
        slots: list[dict[int, list[Slot]]] = []
        lost: list[dict[int, int]] = []
        at = 0
        for header, stored in zip(batch.headers, batch.stored):
            count = int(stored)
            slots.append({0: _slots(batch.slots[at : at + count])})
            lost.append({0: int(header["advance"]) // _unit(header) - count})
            at += count
        at = 0
        for row in batch.lanes:
            region, lane, count = int(row["region"]), int(row["lane"]), int(row["stored"])
            slots[region][lane] = _slots(batch.lane_slots[at : at + count])
            lost[region][lane] = int(row["advance"]) // _unit(batch.headers[region]) - count
            at += count
        out += [RawWarp(h.copy(), int(h["reserved"]), s, n) for h, s, n in zip(batch.headers, slots, lost)]
    return sorted(out, key=lambda w: w.key)


def _is_ring(header: Any) -> bool:
    return int(header["magic"]) == wire.RING_MAGIC


def _unit(header: Any) -> int:
    """What an event moves a cursor by."""
    return 1 if _is_ring(header) else int(header["stride"])


def _slots(rows: np.ndarray) -> list[Slot]:
    names = rows.dtype.names or ()
    payloads = rows["payload"].tolist() if "payload" in names else [0] * len(rows)
    return [Slot(c, k, p) for c, k, p in zip(rows["clock"].tolist(), rows["code"].tolist(), payloads)]


def from_memory(read: ReadMemory) -> list[RawWarp] | None:
    """The regions in trace memory that nothing was drained from; None where some claim found no room."""
    lines = read(wire.BANKS_OFFSET, wire.BANK_COUNT * wire.BANK_LINE_BYTES).view(wire.BANK_DTYPE)
    if lines["failed_bytes"].any():
        return None
    return sorted((w for line in lines for w in _bank(read, line)), key=lambda w: w.key)


def _bank(read: ReadMemory, line: Any) -> Iterator[RawWarp]:
    at, end = 0, int(line["head"])
    while at < end:
        offset = int(line["base"]) + at
        header = read(offset, wire.REGION_HEADER_BYTES).view(wire.REGION_DTYPE)[0]
        magic = int(header["magic"])
        assert magic in (wire.REGION_MAGIC, wire.RING_MAGIC), f"no region header at bank position {at}"
        assert int(header["position"]) == at, "a region's header names another position"
        assert int(header["closed"]) == wire.CLOSED_MAGIC, "a region is not closed"
        size = wire.region_bytes(int(header["main_bytes"]), int(header["lane_bytes"]))
        yield _region(read(offset, size), header, offset)
        at += size
    assert not read(int(line["base"]) + at, wire.REGION_ALIGN).any(), "something was written behind the last region"


def _region(data: np.ndarray, header: Any, offset: int) -> RawWarp:
    stride, main, block = (int(header[k]) for k in ("stride", "main_bytes", "lane_bytes"))
    assert stride in wire.STRIDES, "a header without a stride"
    counting = [int(n[0]) for n in wire.unpack_capacity(header["capacity"].reshape(1))]
    first = wire.REGION_HEADER_BYTES
    written = _written_ring if _is_ring(header) else _written
    slots = {0: written(data[first : first + main], stride, int(header["advance"]), counting[0])}
    lost = {0: int(header["advance"]) // _unit(header) - len(slots[0])}
    for lane in range(1, 32 if block else 1):
        begin = first + main + (lane - 1) * block
        head = data[begin : begin + wire.LANE_HEADER_BYTES].view(wire.LANE_DTYPE)[0]
        body = data[begin + wire.LANE_HEADER_BYTES : begin + block]
        if int(head["closed"]) == 0 and int(head["advance"]) == 0:
            assert not body.any(), f"lane {lane} wrote slots and no count"
            continue
        assert int(head["closed"]) == wire.CLOSED_MAGIC, f"lane {lane} has a count and is not closed"
        slots[lane] = written(body, stride, int(head["advance"]), counting[1])
        lost[lane] = int(head["advance"]) // _unit(header) - len(slots[lane])
    return RawWarp(header, offset, slots, lost)


def _written(data: np.ndarray, stride: int, advance: int, counting: int) -> list[Slot]:
    """The slots of a block of which the first ``counting`` bytes count."""
    assert advance % stride == 0, "a count that is no whole number of slots"
    count = min(advance, counting) // stride
    words = data[: count * stride].view("<u4").reshape(count, stride // 4).tolist()
    assert all(word[1] for word in words), "a slot was counted and not written"
    assert advance > counting or not data[advance:].any(), "bytes behind the last slot are not zero"
    return [Slot(w[0], w[1], w[2] | w[3] << 32 if stride == 16 else 0) for w in words]


def _written_ring(data: np.ndarray, stride: int, count: int, counting: int) -> list[Slot]:
    """The slots of a block that is a ring of ``counting`` bytes, of whose ``count`` events the last are there."""
    assert counting & counting - 1 == 0, "a ring that is no power of two"
    size = counting // stride
    order = [n % size for n in range(max(count - size, 0), count)]
    words = data[: size * stride].view("<u4").reshape(size, stride // 4).tolist()
    assert all(words[at][1] for at in order), "a slot was counted and not written"
    assert count >= size or not data[count * stride :].any(), "bytes behind the last slot are not zero"
    assert not data[counting:].any(), "bytes behind the ring are not zero"
    return [Slot(w[0], w[1], w[2] | w[3] << 32 if stride == 16 else 0) for w in (words[at] for at in order)]


def recorded(warp: RawWarp, record: KernelRecord) -> Recorded:
    """The events of a region, with partners: what a token's link names, and the stack of pushes of each lane."""
    sites = {s.id: s for s in record.sites}
    h = warp.header
    entry = int(h["entry_clock"]) & 0xFFFFFFFF
    places = [
        ((slot.clock - entry) & 0xFFFFFFFF, lane, i)
        for lane, slots in warp.slots.items()
        for i, slot in enumerate(slots)
    ]
    life = int(h["exit_clock"]) - int(h["entry_clock"])
    ns = int(h["exit_globaltimer"]) - int(h["entry_globaltimer"])
    assert (ns - 64) * 0.2 <= life <= (ns + 64) * 2.5, "clocks and timers of a warp's entry and exit do not go together"
    for slots in warp.slots.values():
        since = [(slot.clock - entry) & 0xFFFFFFFF for slot in slots]
        assert since == sorted(since) and all(0 < t <= life for t in since), (
            "clocks outside the warp's life or unordered"
        )
    order: list[Place] = [(lane, i) for _, lane, i in sorted(places)]
    assert _is_ring(h) == record.ring, "the header and the kernel's record differ about the ring"
    beheaded = record.ring and sum(warp.lost.values()) > 0
    links = _tags(warp, order, sites) if record.ring else {_address(warp, p) >> 3 & 0xFFFF: p for p in order}
    partner = _partners(order, warp, sites, links, beheaded)
    streams = {
        lane: [_event(slot, sites, partner.get((lane, i)), h) for i, slot in enumerate(slots)]
        for lane, slots in warp.slots.items()
    }
    return Recorded(streams, order, sum(warp.lost.values()), beheaded)


def _tags(warp: RawWarp, order: list[Place], sites: Mapping[int, Site]) -> dict[int, Place]:
    """The starts by their tags, which follow from lane and number and stand in their own records."""
    lanes = int(warp.header["lane_bytes"]) > 0
    out: dict[int, Place] = {}
    for lane, index in order:
        code = warp.slots[lane][index].code
        if sites[code & wire.SITE_MASK].kind == EventKind.START:
            number = warp.lost[lane] + index
            tag = number % 2048 + lane * 2048 if lanes else number % 65536
            assert code >> wire.LINK_SHIFT == tag, f"event {number} of lane {lane} has the tag {code >> 16}, not {tag}"
            out[tag] = lane, index
    return out


def _address(warp: RawWarp, place: Place) -> int:
    """Offset of a slot from the control block."""
    lane, index = place
    h = warp.header
    at = warp.offset + wire.REGION_HEADER_BYTES
    if lane:
        at += int(h["main_bytes"]) + (lane - 1) * int(h["lane_bytes"]) + wire.LANE_HEADER_BYTES
    return at + index * int(h["stride"])


def _partners(
    order: list[Place], warp: RawWarp, sites: Mapping[int, Site], links: Mapping[int, Place], beheaded: bool
) -> dict[Place, Place | None]:
    out: dict[Place, Place | None] = {}
    stacks: dict[int, list[tuple[int, Place]]] = {}
    for n, place in enumerate(order):
        lane, index = place
        code = warp.slots[lane][index].code
        kind = sites[code & wire.SITE_MASK].kind
        if kind in (EventKind.POP, EventKind.SWITCH):
            others = () if beheaded else (s for s in stacks.values() if s)
            stack = stacks.get(lane) or max(others, key=lambda s: s[-1][0], default=None)
            out[place] = stack.pop()[1] if stack else None
        if kind in (EventKind.PUSH, EventKind.SWITCH):
            stacks.setdefault(lane, []).append((n, place))
        if kind == EventKind.END:
            out[place] = links.get(code >> wire.LINK_SHIFT)
    return out


def _event(slot: Slot, sites: Mapping[int, Site], partner: Place | None, header: Any) -> Event:
    site = sites[slot.code & wire.SITE_MASK]
    linked = (EventKind.END, EventKind.START) if _is_ring(header) else (EventKind.END,)
    upper = slot.code >> wire.LINK_SHIFT
    if site.kind in linked:
        assert not site.high, "a site whose records have a link cannot tell more of the clock"
    elif site.high or upper:
        _check_clock(slot.clock | upper << 32, header)
    bits = slot.payload
    if site.anchor:
        _check_anchor(bits >> 32, header)
    if wire.PAYLOAD_BITS[site.payload] <= 32:
        bits &= 0xFFFFFFFF  # what stands above it is no one's
    payload = None if site.payload == PayloadType.NONE else (site.payload, bits)
    return Event(site.kind, "" if site.kind in (EventKind.POP, EventKind.END) else site.name, payload, partner)


def _check_clock(clock: int, header: Any) -> None:
    """48 bits of a record's clock lie between the warp's entry and its exit."""
    entry = int(header["entry_clock"])
    assert (clock - entry) & (1 << 48) - 1 <= int(header["exit_clock"]) - entry, "more bits of the clock are wrong"


def _check_anchor(timer: int, header: Any) -> None:
    """An anchor's time (low half of %globaltimer) lies between the warp's entry and its exit."""
    entry = int(header["entry_globaltimer"])
    since = (timer - entry) & 0xFFFFFFFF
    assert since <= int(header["exit_globaltimer"]) - entry, "an anchor's time is not within its warp's life"
