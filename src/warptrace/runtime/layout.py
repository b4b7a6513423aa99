"""How trace memory is divided: banks, and the region sizes that a kernel's descriptor asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import wire
from ..errors import WarptraceError
from ..sites import KernelRecord

LANE_SHIFT = 5
"""Automatic sizes give each other lane's block 1/32 of the main slots: together they double a region."""
LOG2_LEAST = 10
LAUNCH_SHARE = 4
"""A launch that sizes itself by its grid takes at most 1/4 of the banks."""


@dataclass(frozen=True)
class Layout:
    """Division of one device's trace memory. ``bank_bytes`` is a power of two; ``slack_bytes`` follow each bank, for a
    region that begins just before its end. ``total_bytes``: the whole allocation."""

    bank_bytes: int
    slack_bytes: int

    @property
    def stride(self) -> int:
        """Bytes from one bank to the next."""
        return self.bank_bytes + self.slack_bytes

    @property
    def total_bytes(self) -> int:
        return wire.ARENA_OFFSET + wire.BANK_COUNT * self.stride

    @property
    def most_main_bytes(self) -> int:
        """Most main bytes of a region, so that with its lanes' blocks it fits a bank's slack."""
        return (self.slack_bytes - wire.REGION_HEADER_BYTES) // 2 // wire.REGION_ALIGN * wire.REGION_ALIGN

    def base(self, bank: int) -> int:
        """Offset of a bank from the control block."""
        return wire.ARENA_OFFSET + bank * self.stride

    def pieces(self, bank: int, tail: int, end: int) -> list[tuple[int, int, int]]:
        """(position, offset, bytes) of a bank's memory from position ``tail`` to ``end``: one piece, or two where it
        wraps. Nothing beyond a bank's size behind the tail is anyone's: claims there found no room."""
        end = min(end, tail + self.bank_bytes)
        if end <= tail:
            return []
        base = self.base(bank)
        start = tail % self.bank_bytes
        # A region that begins before the bank's end runs on into the slack behind it.
        pieces = [(tail, base + start, min(end - tail, self.stride - start))]
        wrap = tail - start + self.bank_bytes
        if end > wrap:
            pieces.append((wrap, base, end - wrap))
        return pieces

    def bank_lines(self, *, enabled: bool = True) -> NDArray[np.void]:
        """(BANK_COUNT,) BANK_DTYPE, empty banks."""
        lines = np.zeros(wire.BANK_COUNT, wire.BANK_DTYPE)
        lines["mask"] = self.bank_bytes - 1 if enabled else 0
        lines["base"] = [self.base(k) for k in range(wire.BANK_COUNT)]
        return lines


def plan(buffer_bytes: int) -> Layout:
    """The division of about ``buffer_bytes`` of memory. Raises WarptraceError if that is too little."""
    bank = 1 << (max(buffer_bytes // wire.BANK_COUNT, 1).bit_length() - 1)
    slack = min(wire.MAX_REGION_BYTES + wire.REGION_HEADER_BYTES, bank // 4)
    slack = slack // wire.REGION_ALIGN * wire.REGION_ALIGN
    layout = Layout(bank, slack)
    if bank < 64 * 1024:
        raise WarptraceError(f"a trace buffer of {buffer_bytes} bytes is too small; give at least 16M (--buffer-size)")
    if layout.total_bytes > 2**32 - 1:
        return Layout(bank // 2, slack)
    return layout


@dataclass(frozen=True)
class RegionSize:
    """What a kernel's descriptor asks for: see ``wire.CELL_KERNEL_DTYPE``."""

    main: int
    lane: int

    @property
    def automatic(self) -> bool:
        """The launch's grid decides."""
        return bool(self.main & 1)

    def __or__(self, other: RegionSize) -> RegionSize:
        """One size for two kernels that share an entry of the cell."""
        if self.automatic or other.automatic:
            first = self if self.automatic else other
            return RegionSize(first.main, self.lane or other.lane and first.lane)
        return RegionSize(max(self.main, other.main), max(self.lane, other.lane))


def automatic(layout: Layout, *, lanes: bool) -> RegionSize:
    """A size that the grid of the launch decides. Blocks for other ``lanes`` double a region."""
    budget = layout.bank_bytes * wire.BANK_COUNT // LAUNCH_SHARE >> lanes
    most = layout.most_main_bytes.bit_length() - 1
    # Half a bank: what is left holds the headers, and other launches.
    bank = layout.bank_bytes.bit_length() - 2 - lanes
    main = wire.auto_main(budget.bit_length() - 1, LOG2_LEAST, most, bank)
    return RegionSize(main, 1 | LANE_SHIFT << 1 if lanes else 0)


def exact(record: KernelRecord, layout: Layout, events: int) -> RegionSize | None:
    """Room for ``events`` events of each lane that may lead, in rings for the next power of two; None if no region can
    be so large."""
    if record.ring:
        needed = _power_of_two(events * record.stride)
        lane = wire.aligned(wire.LANE_HEADER_BYTES + needed) if record.lane_events else 0
        fits = wire.region_bytes(wire.aligned(needed), lane) <= layout.slack_bytes
        return RegionSize(wire.exact_main(needed), lane) if fits else None
    needed = events * record.stride + record.slack
    # The slots of a lane's block begin behind its header; a slot that would not be whole at its end is not used.
    trim = -wire.LANE_HEADER_BYTES % record.stride
    lane = wire.aligned(needed + wire.LANE_HEADER_BYTES + trim) if record.lane_events else 0
    if wire.region_bytes(wire.aligned(needed), lane) > layout.slack_bytes:
        return None
    return RegionSize(wire.exact_main(needed), lane)


def most_events(record: KernelRecord, layout: Layout) -> int:
    """Most events a warp for which ``exact`` finds a size."""
    low, high = 0, layout.slack_bytes // record.stride
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if exact(record, layout, middle) else (low, middle - 1)
    return low


def learned(record: KernelRecord, layout: Layout, main: int, lane: int) -> RegionSize:
    """The size for a kernel whose warps were seen to advance by at most ``main`` and ``lane`` bytes: twice that, so
    that a warp may record twice as many events as any before it (for rings see :func:`_learned_ring`)."""
    if record.ring:
        return _learned_ring(record, layout, main, lane)
    main_bytes = wire.aligned(2 * max(main, 8 * record.stride) + record.slack)
    lane_bytes = wire.aligned(2 * max(lane, 4 * record.stride) + record.slack + wire.LANE_HEADER_BYTES)
    most = layout.most_main_bytes
    if not record.lane_events:
        return RegionSize(min(main_bytes, most), 0)
    return RegionSize(min(main_bytes, most), min(lane_bytes, most // 32 // wire.REGION_ALIGN * wire.REGION_ALIGN))


def _learned_ring(record: KernelRecord, layout: Layout, main: int, lane: int) -> RegionSize:
    """A quarter more, rounded up to a power of two: what a warp records beyond it costs its oldest events only."""
    most = layout.most_main_bytes if record.lane_events else layout.slack_bytes - wire.REGION_HEADER_BYTES
    main_ring = min(_power_of_two(max(main, 8 * record.stride) * 5 // 4), wire.ring_bytes(most))
    main_bytes = max(main_ring, wire.REGION_ALIGN)
    if not record.lane_events:
        return RegionSize(main_bytes, 0)
    most_lane = wire.ring_bytes(most // 32 - wire.LANE_HEADER_BYTES)
    lane_ring = min(_power_of_two(max(lane, 4 * record.stride) * 5 // 4), most_lane)
    return RegionSize(main_bytes, wire.aligned(wire.LANE_HEADER_BYTES + lane_ring))


def _power_of_two(size: int) -> int:
    """The least power of two that is not below ``size``."""
    return 1 << (size - 1).bit_length()
