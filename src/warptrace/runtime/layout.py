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


def automatic(layout: Layout) -> tuple[int, int]:
    """(main, lane) of a descriptor that lets the grid of the launch decide."""
    budget = layout.bank_bytes * wire.BANK_COUNT // LAUNCH_SHARE
    most = layout.most_main_bytes.bit_length() - 1
    return wire.auto_main(budget.bit_length() - 1, 10, most), 1 | LANE_SHIFT << 1


def descriptor(record: KernelRecord, layout: Layout, max_events_per_warp: int | None) -> tuple[int, int]:
    """(main, lane) for a kernel: exact where the events of a warp are bounded, else sized by the grid.

    Raises WarptraceError if ``max_events_per_warp`` asks for more than a region can hold.
    """
    events = record.max_events if max_events_per_warp is None else max_events_per_warp
    if events is None:
        main, lane = automatic(layout)
        return main, lane if record.lane_events else 0
    needed = events * record.stride + record.slack
    main = wire.exact_main(needed)
    lane = -(-(needed + wire.LANE_HEADER_BYTES) // wire.REGION_ALIGN) * wire.REGION_ALIGN if record.lane_events else 0
    if wire.region_bytes(main & -wire.REGION_ALIGN, lane) > layout.slack_bytes:
        if max_events_per_warp is not None:
            most = _most_events(record, layout)
            raise WarptraceError(
                f"--max-ts-cnt-per-warp {events} does not fit kernel {record.symbol}: at most {most} with this buffer "
                "(enlarge it with --buffer-size)"
            )
        main, lane = automatic(layout)
        return main, lane if record.lane_events else 0
    return main, lane


def learned(record: KernelRecord, layout: Layout, main: int, lane: int) -> tuple[int, int]:
    """(main, lane) for a kernel whose warps were seen to advance by at most ``main`` and ``lane`` bytes: twice that, so
    that a warp may record twice as many events as any before it."""
    main_bytes = _aligned(2 * max(main, 8 * record.stride) + record.slack)
    lane_bytes = _aligned(2 * max(lane, 4 * record.stride) + record.slack + wire.LANE_HEADER_BYTES)
    most = layout.most_main_bytes
    if not record.lane_events:
        return min(main_bytes, most), 0
    return min(main_bytes, most), min(lane_bytes, most // 32 // wire.REGION_ALIGN * wire.REGION_ALIGN)


def _aligned(size: int) -> int:
    return -(-size // wire.REGION_ALIGN) * wire.REGION_ALIGN


def _most_events(record: KernelRecord, layout: Layout) -> int:
    room = layout.slack_bytes - wire.REGION_HEADER_BYTES
    if record.lane_events:
        room = room // 32 - wire.LANE_HEADER_BYTES - wire.REGION_ALIGN
    return max((room - record.slack) // record.stride, 0)
