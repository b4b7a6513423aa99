"""A decoder in plain Python, one warp at a time, straight from what the warp did: the referee of the fast one."""

from __future__ import annotations

from dataclasses import dataclass, field

from fake_device import FakeKernel, FakeWarp

from warptrace import wire
from warptrace.wire import EventKind

RANGE_TOKEN, RANGE_STACK = 1, 2


@dataclass(frozen=True)
class Slot:
    """An event with what its place in memory implies."""

    site: int
    kind: EventKind
    cycle: int
    lane: int
    index: int
    payload: int
    address: int
    link: int
    stored: bool


@dataclass
class WarpResult:
    """(name, kind, lane, depth, start cycle, end cycle, start seq, end seq, start payload, end payload) by start seq;
    (name, lane, cycle, seq, payload) of marks; counts of events without a partner."""

    ranges: list[tuple] = field(default_factory=list)
    markers: list[tuple] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    stored: int = 0
    lost: int = 0

    def count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1


def place(kernel: FakeKernel, warp: FakeWarp, offset: int, main_bytes: int, lane_bytes: int) -> list[Slot]:
    """Where each event's slot lies, from the control block, for a region at ``offset``."""
    used: dict[int, int] = {}
    slots: list[Slot] = []
    for event in warp.events:
        index = used.get(event.lane, 0)
        used[event.lane] = index + 1
        if event.lane == 0:
            begin, size = offset + 128, main_bytes
        else:
            begin, size = offset + 128 + main_bytes + (event.lane - 1) * lane_bytes + 8, lane_bytes - 8
        address = begin + index * kernel.stride
        link = slots[event.token].address // 8 % 65536 if event.token >= 0 else event.raw_link or 0
        site = kernel.sites[event.site - 1]
        stored = (index + 1) * kernel.stride <= size
        slots.append(Slot(event.site, site.kind, event.at, event.lane, index, event.payload, address, link, stored))
    return slots


@dataclass(frozen=True)
class Gap:
    """Slots that were, or may have been, lost: ``count`` of them from ``address`` on (None: any number)."""

    lane: int
    address: int
    count: int | None
    stride: int

    def covers(self, link: int) -> bool:
        if self.count is None:
            return (link * 8 - self.address) % self.stride == 0
        return any((self.address + i * self.stride) // 8 % 65536 == link for i in range(self.count))


def find_gaps(slots: list[Slot], stride: int, *, open_warp: bool, sizes: tuple[int, int]) -> list[Gap]:
    """A warp that ended left exact counts; one that did not may have lost any number once a block is full."""
    gaps = []
    for lane in sorted({s.lane for s in slots}):
        own = [s for s in slots if s.lane == lane]
        stored = sum(s.stored for s in own)
        end = own[0].address + stored * stride
        if open_warp and stored == sizes[lane > 0] // stride:
            gaps.append(Gap(lane, end, None, stride))
        elif not open_warp and stored < len(own):
            gaps.append(Gap(lane, end, len(own) - stored, stride))
    return gaps


def decode_warp(kernel: FakeKernel, warp: FakeWarp, offset: int, main_bytes: int, lane_bytes: int) -> WarpResult:
    result = WarpResult()
    slots = place(kernel, warp, offset, main_bytes, lane_bytes)
    lost = [s for s in slots if not s.stored]
    order = sorted((s for s in slots if s.stored), key=lambda s: (s.cycle, s.lane, s.index))
    result.stored, result.lost = len(order), len(lost)
    gaps = find_gaps(slots, kernel.stride, open_warp=warp.exit_at is None, sizes=(main_bytes, lane_bytes - 8))
    last = {s.lane: seq for seq, s in enumerate(order)}
    stacks: dict[int, list[tuple[int, int]]] = {}
    starts: list[int] = []
    for seq, slot in enumerate(order):
        site = kernel.sites[slot.site - 1]
        if slot.kind == EventKind.MARK:
            result.markers.append((site.name, slot.lane, slot.cycle, seq, _bits(kernel, slot)))
        if slot.kind in (EventKind.POP, EventKind.SWITCH):
            _pop(result, kernel, order, stacks, seq)
        if slot.kind in (EventKind.PUSH, EventKind.SWITCH):
            stack = stacks.setdefault(slot.lane, [])
            stack.append((seq, len(stack)))
        if slot.kind == EventKind.START:
            starts.append(seq)
        if slot.kind == EventKind.END:
            _end(result, kernel, order, starts, seq, gaps, last)
    for stack in stacks.values():
        for _ in stack:
            result.count("unpaired_push")
    for _ in starts:
        result.count("unpaired_start")
    result.ranges.sort(key=lambda r: r[6])
    return result


def _pop(result: WarpResult, kernel: FakeKernel, order: list[Slot], stacks: dict, seq: int) -> None:
    stack = stacks.get(order[seq].lane) or max((s for s in stacks.values() if s), key=lambda s: s[-1][0], default=None)
    if not stack:
        result.count("unpaired_pop")
        return
    start, depth = stack.pop()
    result.ranges.append(_range(kernel, order, start, seq, RANGE_STACK, depth))


def _end(
    result: WarpResult,
    kernel: FakeKernel,
    order: list[Slot],
    starts: list[int],
    seq: int,
    gaps: list[Gap],
    last: dict[int, int],
) -> None:
    link = order[seq].link
    open_starts = [s for s in starts if order[s].address // 8 % 65536 == link]
    # A slot that was not stored comes after all stored ones of its lane; was the start perhaps one of these?
    phantom = any(g.covers(link) and last.get(g.lane, -1) < seq for g in gaps)
    if not open_starts:
        result.count("unpaired_end")
    elif phantom or len(open_starts) > 1:
        result.count("ambiguous_end")
    else:
        starts.remove(open_starts[0])
        result.ranges.append(_range(kernel, order, open_starts[0], seq, RANGE_TOKEN, 0))


def _range(kernel: FakeKernel, order: list[Slot], start: int, end: int, kind: int, depth: int) -> tuple:
    a, b = order[start], order[end]
    end_bits = (0, 0) if kind == RANGE_STACK else _bits(kernel, b)
    name = kernel.sites[a.site - 1].name
    return (name, kind, a.lane, depth, a.cycle, b.cycle, start, end, _bits(kernel, a), end_bits)


def _bits(kernel: FakeKernel, slot: Slot) -> tuple[int, int]:
    payload = kernel.sites[slot.site - 1].payload
    return (int(payload), slot.payload & ((1 << wire.PAYLOAD_BITS[payload]) - 1))
