"""Several devices on one timeline: their %globaltimer differ (two GPUs of one host: 92 us, drifting apart).

Each device's calibrations against the host clock say how far it is from the first device; what cannot be aligned is
left as it is and reported. A GPU that several processes use is one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..raw import Capture
from ..trace import Problem
from .tables import I32, I64, LostRows, Regions

Key = tuple[int, int]


@dataclass(frozen=True)
class _Calibration:
    """Host time minus %globaltimer, (k,) ns, at increasing %globaltimer ``at``; ``uncertainty``: the worst, ns."""

    at: I64
    offset: I64
    uncertainty: float

    def offset_at(self, time: I64) -> I64:
        """Straight between the calibrations, and on behind them."""
        if len(self.at) == 1:
            return np.full(len(time), self.offset[0])
        left = np.clip(np.searchsorted(self.at, time, side="right") - 1, 0, len(self.at) - 2)
        span = (self.at[left + 1] - self.at[left]).astype(np.float64)
        part = (time - self.at[left]).astype(np.float64) / span
        step = (self.offset[left + 1] - self.offset[left]).astype(np.float64)
        result: I64 = self.offset[left] + np.rint(part * step).astype(np.int64)
        return result


@dataclass(frozen=True)
class Alignment:
    """What to add to a device's times, by (process, device ordinal); empty where nothing is to be done."""

    calibrations: dict[Key, _Calibration]
    reference: _Calibration | None
    problems: tuple[Problem, ...]

    def shift(self, process: I32, device: I32, time: I64) -> I64:
        """ns to add to (n,) %globaltimer times of the given devices."""
        result = np.zeros(len(time), np.int64)
        if self.reference is None:
            return result
        for (p, d), calibration in self.calibrations.items():
            rows = np.flatnonzero((process == p) & (device == d))
            if calibration is not self.reference:
                result[rows] = calibration.offset_at(time[rows]) - self.reference.offset_at(time[rows])
        return result

    def facts(self) -> list[dict[str, Any]]:
        """For ``Trace.meta["alignment"]``: one a (process, device) that is on the first device's timeline."""
        if self.reference is None:
            return []
        return [
            {
                "process": p,
                "device": d,
                "shift_ns": int(c.offset[0] - self.reference.offset_at(c.at[:1])[0]),
                "uncertainty_ns": 0.0 if c is self.reference else c.uncertainty + self.reference.uncertainty,
            }
            for (p, d), c in self.calibrations.items()
        ]


def align_devices(captures: Sequence[Capture], regions: Regions, lost: LostRows) -> Alignment:
    """How to bring all devices that recorded anything onto the timeline of the first of them."""
    process = np.concatenate([regions.process, lost.process])
    device = np.concatenate([regions.device, lost.device])
    used = sorted({(int(k >> 32), int(k & 0xFFFFFFFF)) for k in np.unique(process.astype(np.int64) << 32 | device)})
    identity = {key: _identity(captures[key[0]], key) for key in used}
    if len(set(identity.values())) < 2:
        return Alignment({}, None, ())
    calibrations = {name: _calibration(captures, used, identity, name) for name in set(identity.values())}
    missing = sum(c is None for c in calibrations.values())
    if missing:
        text = f"{missing} of {len(calibrations)} devices have no calibration: the devices' times are not aligned"
        return Alignment({}, None, (Problem("clock", missing, text),))
    known = {key: c for key in used if (c := calibrations[identity[key]]) is not None}
    return Alignment(known, known[used[0]], ())


def _identity(capture: Capture, key: Key) -> tuple[str, str]:
    """(host, device) that tells a GPU from others."""
    for device in capture.manifest.get("devices", []):
        if device.get("ordinal") == key[1] and device.get("uuid"):
            return str(capture.manifest.get("host", "")), str(device["uuid"])
    return "", f"device {key[1]} of capture {key[0]}"


def _calibration(
    captures: Sequence[Capture], used: list[Key], identity: dict[Key, tuple[str, str]], name: tuple[str, str]
) -> _Calibration | None:
    """All calibrations of one GPU, from every process that used it."""
    points = {}
    for process, device in used:
        if identity[process, device] == name:
            for clock in captures[process].manifest.get("clocks", []):
                if clock.get("device") == device:
                    at = int(clock["globaltimer_ns"])
                    points[at] = (int(clock["host_unix_ns"]) - at, float(clock.get("uncertainty_ns", 0)))
    if not points:
        return None
    times = sorted(points)
    offsets = np.array([points[t][0] for t in times], np.int64)
    return _Calibration(np.array(times, np.int64), offsets, max(points[t][1] for t in times))


def shifted_lost(lost: LostRows, alignment: Alignment) -> LostRows:
    """The lost rows with their times on the common timeline."""
    times = lost.records["exit_globaltimer"].astype(np.int64)
    records = lost.records.copy()
    records["exit_globaltimer"] = times + alignment.shift(lost.process, lost.device, times)
    return LostRows(records, lost.process, lost.device)
