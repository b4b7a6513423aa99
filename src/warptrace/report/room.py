"""Which options would have kept every event of a run, from what its warps were seen to need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .. import wire
from ..runtime.layout import Layout, exact, most_events, plan
from ..runtime.options import MAX_BUFFER_BYTES, MAX_EVENTS_PER_WARP, MIN_BUFFER_BYTES, format_size
from ..sites import KernelRecord
from ..trace import I64, Launch, Trace


@dataclass(frozen=True)
class _Need:
    """A launch that must fit. ``events``: of one lane at most; ``bank_warps`` (banks,): warps that claim from each;
    ``seen``: bytes of its regions, 0 where there were none."""

    launch: Launch
    record: KernelRecord
    events: int
    bank_warps: I64
    seen: int


def advice(trace: Trace) -> tuple[str, ...]:
    """Lines that say how to keep all: the options, or why none do. Empty where nothing was lost, or where the kernels'
    records are missing."""
    if not any(x.lost_events or x.lost_warps for x in trace.launches) or "room" not in trace.meta:
        return ()
    needs = list(_needs(trace))
    if len(needs) < len(trace.launches):
        return ()
    losing = trace.warps.launch[(trace.warps.lost > 0) & (trace.warps.cycles >= 0)]
    events = max(n.events for n in needs) if len(losing) else None
    together = any(x.lost_warps for x in trace.launches)
    current = _current_buffer(trace)
    for buffer in _buffers(current):
        if _fits(needs, buffer, events, together):
            words = [f"--max-ts-cnt-per-warp {events}"] if events else []
            words += [f"--buffer-size {format_size(buffer)}"] if buffer != current else []
            if not words:  # it fits: what was lost found memory that was not drained yet
                continue
            return ("to keep all of them: " + " ".join(words),)
    return (_hopeless(needs, events, together),)


def _needs(trace: Trace) -> Iterator[_Need]:
    records = trace.meta["kernels"]
    facts = trace.meta["room"]
    for i, launch in enumerate(trace.launches):
        record = records.get(launch.kernel_id)
        if record is not None:
            main, lane = int(facts["main_bytes"][i]), int(facts["lane_bytes"][i])
            seen = wire.region_bytes(main, lane) if main >= 0 else 0
            yield _Need(launch, record, int(facts["events"][i]), facts["bank_warps"][i], seen)


def _buffers(current: int | None) -> Iterator[int]:
    """Sizes to try, the present one first, then larger ones."""
    if current is not None:
        yield current
    size = MIN_BUFFER_BYTES
    while size <= MAX_BUFFER_BYTES:
        if current is None or size > current:
            yield size
        size *= 2


def _current_buffer(trace: Trace) -> int | None:
    """The --buffer-size of the smallest trace memory of the run, None where it is of no known size."""
    devices = [d for p in trace.processes for d in p.manifest.get("devices", [])]
    total = min((int(d.get("buffer_bytes", 0)) for d in devices), default=0)
    return next((b for b in _buffers(None) if plan(b).total_bytes == total), None)


def _fits(needs: list[_Need], buffer: int, events: int | None, together: bool) -> bool:
    """Whether the launches fit a buffer, each alone or all ``together``, with room for ``events`` in each lane, or in
    regions as they were seen."""
    layout = plan(buffer)
    claimed: dict[tuple[int, int], I64] = {}
    for need in needs:
        size = _region(need, layout, events)
        if size is None:
            return False
        key = (need.launch.process, need.launch.device) if together else (need.launch.index, 0)
        claimed[key] = claimed.get(key, np.zeros(wire.BANK_COUNT, np.int64)) + size * need.bank_warps
    return all(int(c.max(initial=0)) <= layout.bank_bytes for c in claimed.values())


def _region(need: _Need, layout: Layout, events: int | None) -> int | None:
    """Bytes of each region of a launch; None if no region can be so large."""
    if events is None and need.seen:
        return need.seen
    events = need.events if events is None else events
    size = exact(need.record, layout, events) if events <= MAX_EVENTS_PER_WARP else None
    return None if size is None else wire.region_bytes(size.main & -wire.REGION_ALIGN, size.lane)


def _hopeless(needs: list[_Need], events: int | None, together: bool) -> str:
    layout = plan(MAX_BUFFER_BYTES)
    worst = min(needs, key=lambda n: most_events(n.record, layout))
    most = min(most_events(worst.record, layout), MAX_EVENTS_PER_WARP)
    if events is not None and events > most:
        return (
            f"no setting keeps all of them: a lane led {events} events, and a lane of {worst.launch.kernel} has room "
            f"for {most} at most (--max-ts-cnt-per-warp {most})"
        )
    size = format_size(MAX_BUFFER_BYTES)
    if together and _fits(needs, MAX_BUFFER_BYTES, events, together=False):
        return (
            f"no setting surely keeps all of them: all launches together need more than {size} of buffer, and they "
            "came faster than it is drained; wait between them, or record fewer"
        )
    return f"no setting keeps all of them: one launch needs more than {size} of buffer; put fewer events into it"
