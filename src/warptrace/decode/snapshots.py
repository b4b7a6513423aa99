"""When snapshots were taken, on the timeline of the trace, and what they say of kernels that had not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..raw import Capture
from ..trace import Launch, Warps
from .align import Alignment


def snapshot_facts(
    captures: Sequence[Capture], launches: Sequence[Launch], warps: Warps, epoch: int, alignment: Alignment
) -> list[dict[str, Any]]:
    """For ``Trace.meta["snapshots"]``, one a (process, device): ``ns`` since the epoch at which it was taken, and
    ``time_from``, how that is known: "clock" (the device's own), "host clock", or "last event": at least then.
    ``open``, ``moved`` and ``unopened_bytes`` are those of :class:`warptrace.runtime.snapshot.Taken`."""
    facts = []
    for process, capture in enumerate(captures):
        snapshot = capture.manifest.get("snapshot")
        if not isinstance(snapshot, dict) or not isinstance(snapshot.get("snapshot"), dict):
            continue
        taken = snapshot["snapshot"]
        for device in taken.get("devices", []):
            ordinal = int(device["ordinal"])
            ns, known_from = _time(capture, snapshot, ordinal)
            if known_from == "last event" or (process, ordinal) not in alignment.names:
                ns, known_from = _last_seen(launches, warps, process, ordinal), "last event"
            else:
                where = np.array([[process], [ordinal]], np.int32)
                ns += int(alignment.shift(where[0], where[1], np.array([ns], np.int64))[0]) - epoch
            counts = {k: int(device.get(k, 0)) for k in ("open", "moved", "unopened_bytes")}
            pause = int(taken.get("pause_ns", 0))
            facts.append(
                {"process": process, "device": ordinal, "ns": ns, "time_from": known_from, "pause_ns": pause, **counts}
            )
    return facts


def _time(capture: Capture, snapshot: dict[str, Any], ordinal: int) -> tuple[int, str]:
    """(%globaltimer at the snapshot, how it is known)."""
    for clock in _clocks(snapshot, ordinal):
        return int(clock["globaltimer_ns"]), "clock"
    started = int(snapshot.get("started_unix_ns") or 0)
    nearest = min(
        _clocks(capture.manifest, ordinal), key=lambda c: abs(int(c["host_unix_ns"]) - started), default=None
    )
    if nearest is None:
        return 0, "last event"
    return started + int(nearest["globaltimer_ns"]) - int(nearest["host_unix_ns"]), "host clock"


def _clocks(manifest: dict[str, Any], ordinal: int) -> Iterator[dict[str, Any]]:
    return (c for c in manifest.get("clocks") or [] if int(c["device"]) == ordinal)


def _last_seen(launches: Sequence[Launch], warps: Warps, process: int, device: int) -> int:
    mine = np.array([x.process == process and x.device == device for x in launches], np.bool_)
    return int(warps.end_ns[mine[warps.launch]].max(initial=0)) if len(warps) else 0
