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
    (name, kind, lane, depth, start cycle, start seq, start payload) of ranges that are open as the warp never ended;
    (name, lane, cycle, seq, payload) of marks; counts of events without a partner."""

    ranges: list[tuple] = field(default_factory=list)
    open: list[tuple] = field(default_factory=list)
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
    left = [(seq, RANGE_STACK, depth) for stack in stacks.values() for seq, depth in stack]
    left += [(seq, RANGE_TOKEN, 0) for seq in starts]
    running = warp.exit_at is None and not gaps and "ambiguous_end" not in result.counts
    _leave_open(result, kernel, order, left, running)
    return result


def _pop(result: WarpResult, kernel: FakeKernel, order: list[Slot] | list[RingSlot], stacks: dict, seq: int) -> None:
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


def _range(
    kernel: FakeKernel, order: list[Slot] | list[RingSlot], start: int, end: int, kind: int, depth: int
) -> tuple:
    a, b = order[start], order[end]
    end_bits = (0, 0) if kind == RANGE_STACK else _bits(kernel, b)
    name = kernel.sites[a.site - 1].name
    return (name, kind, a.lane, depth, a.cycle, b.cycle, start, end, _bits(kernel, a), end_bits)


def _bits(kernel: FakeKernel, slot: Slot | RingSlot) -> tuple[int, int]:
    payload = kernel.sites[slot.site - 1].payload
    return (int(payload), slot.payload & ((1 << wire.PAYLOAD_BITS[payload]) - 1))


# ----------------------------------------------------------------------------------------------------------- rings
@dataclass(frozen=True)
class RingSlot:
    """An event of a ring. ``number``: of its lane; ``tag``: its own; ``link``: what it carries as an END."""

    site: int
    kind: EventKind
    cycle: int
    lane: int
    number: int
    payload: int
    tag: int
    link: int


def ring_slots(kernel: FakeKernel, warp: FakeWarp, lanes: bool) -> list[RingSlot]:
    """All events of a warp, kept or not."""
    counts: dict[int, int] = {}
    slots: list[RingSlot] = []
    for event in warp.events:
        number = counts.get(event.lane, 0)
        counts[event.lane] = number + 1
        tag = wire.tag(number, event.lane, lanes=lanes)
        link = slots[event.token].tag if event.token >= 0 else event.raw_link or 0
        kind = kernel.sites[event.site - 1].kind
        slots.append(RingSlot(event.site, kind, event.at, event.lane, number, event.payload, tag, link))
    return slots


def decode_ring(kernel: FakeKernel, warp: FakeWarp, main_slots: int, lane_slots: int, lanes: bool) -> WarpResult:
    """What is to be known of a warp whose lanes keep their last ``main_slots`` or ``lane_slots`` events."""
    result = WarpResult()
    slots = ring_slots(kernel, warp, lanes)
    open_warp = warp.exit_at is None
    kept: list[RingSlot] = []
    beheaded = False
    for lane in sorted({s.lane for s in slots}):
        own = [s for s in slots if s.lane == lane]
        room = lane_slots if lane else main_slots
        last = own[-room:]
        # Without a count a full ring may or may not have turned; and if its clocks are all equal, it has no order.
        beheaded |= len(own) > room or (open_warp and len(own) == room)
        if open_warp and len(own) >= room > 1 and len({s.cycle for s in last}) == 1:
            result.counts["torn_ring"] = result.counts.get("torn_ring", 0) + room
            last = []
        kept += last
        result.lost += len(own) - len(own[-room:])
    order = sorted(kept, key=lambda s: (s.cycle, s.lane, s.number))
    result.stored = len(order)
    stacks: dict[int, list[tuple[int, int]]] = {}
    starts: list[int] = []
    gone = _pushes_gone(order) if beheaded else {}
    for seq, slot in enumerate(order):
        name = kernel.sites[slot.site - 1].name
        if slot.kind == EventKind.MARK:
            result.markers.append((name, slot.lane, slot.cycle, seq, _bits(kernel, slot)))
        if slot.kind in (EventKind.POP, EventKind.SWITCH):
            if beheaded and not stacks.get(slot.lane):
                gone[slot.lane] -= 1
                result.count("lost_push")
            else:
                _pop(result, kernel, order, stacks, seq)
        if slot.kind in (EventKind.PUSH, EventKind.SWITCH):
            stack = stacks.setdefault(slot.lane, [])
            stack.append((seq, len(stack) + gone.get(slot.lane, 0)))
        if slot.kind == EventKind.START:
            starts.append(seq)
        if slot.kind == EventKind.END:
            _end_in_ring(result, kernel, order, starts, seq, beheaded)
    left = [(seq, RANGE_STACK, depth) for stack in stacks.values() for seq, depth in stack]
    left += [(seq, RANGE_TOKEN, 0) for seq in starts]
    _leave_open(result, kernel, order, left, open_warp and not {"ambiguous_end", "torn_ring"} & result.counts.keys())
    return result


def _leave_open(result: WarpResult, kernel: FakeKernel, order: list, left: list, running: bool) -> None:
    """What is left without an end: open where the warp is ``running`` and its ends are known."""
    if running:
        result.open = [_range(kernel, order, seq, seq, kind, depth) for seq, kind, depth in sorted(left)]
        result.open = [(*r[:5], r[6], r[8]) for r in result.open]
    else:
        for _, kind, _ in left:
            result.count("unpaired_push" if kind == RANGE_STACK else "unpaired_start")
    result.ranges.sort(key=lambda r: r[6])


def _pushes_gone(order: list[RingSlot]) -> dict[int, int]:
    """By lane, how many ranges that are popped were open when what is left of the lane begins."""
    gone: dict[int, int] = {}
    depth: dict[int, int] = {}
    for slot in order:
        gone.setdefault(slot.lane, 0)
        depth.setdefault(slot.lane, 0)
        if slot.kind in (EventKind.POP, EventKind.SWITCH):
            if depth[slot.lane] == 0:
                gone[slot.lane] += 1
            else:
                depth[slot.lane] -= 1
        if slot.kind in (EventKind.PUSH, EventKind.SWITCH):
            depth[slot.lane] += 1
    return gone


def _end_in_ring(
    result: WarpResult, kernel: FakeKernel, order: list[RingSlot], starts: list[int], seq: int, beheaded: bool
) -> None:
    link = order[seq].link
    open_starts = [s for s in starts if order[s].tag == link]
    if len(open_starts) == 1:
        starts.remove(open_starts[0])
        result.ranges.append(_range(kernel, order, open_starts[0], seq, RANGE_TOKEN, 0))
    elif open_starts:
        result.count("ambiguous_end")
    elif beheaded and not any(s.kind == EventKind.START and s.tag == link for s in order[:seq]):
        result.count("lost_start")
    else:
        result.count("unpaired_end")
