"""Several devices on one timeline: their %globaltimer differ (two GPUs of one host: 92 us, drifting apart).

Pairs of a device's timer and its host's clock (see ``runtime.calibrate``) bound how far the two are apart, and how fast
that changes: a device's *offset* is the middle of what is possible, and the uncertainty what is left. All devices are
brought onto the timeline of the first of them. What cannot be aligned is left as it is and reported. A GPU that several
processes use is one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..raw import Capture
from ..trace import Problem
from .tables import I32, I64, LostRows, Regions

Key = tuple[int, int]
F64 = NDArray[np.float64]

DRIFT = 50e-6
"""Most that a timer and its host's clock part, whatever their pairs say: quartz is off by less (seen: 2 to 9 ppm)."""
WANDER = 1e-6
"""That rate at any two moments of a run differs by less than this, unless the pairs say otherwise."""
HOSTS_NS = 1_000_000.0
"""Clocks of two hosts are taken to agree to this, which NTP keeps in a local network."""
SET_NS = 100_000
"""CLOCK_REALTIME that moved so far against CLOCK_MONOTONIC was set by someone."""
MOST_PAIRS = 1024


@dataclass(frozen=True)
class Pairs:
    """Pairs of one GPU, by time: %globaltimer ``at``, host time minus that ``offset``, ``uncertainty``; (k,) ns."""

    at: I64
    offset: I64
    uncertainty: F64


@dataclass(frozen=True)
class Offset:
    """Host time minus %globaltimer, as a function of the latter.

    ``line`` + ``low`` and ``line`` + ``high`` bound it at the times ``at``; its rate is within ``wander`` of ``rate``.
    The line is ``base + rate * (time - at[0])``. ``machine``: whose host time.
    """

    machine: str
    at: I64
    base: int
    rate: float
    wander: float
    low: F64
    high: F64

    def bounds(self, time: I64) -> tuple[F64, F64]:
        """(least, most) host time minus ``time``, less ``base``, in ns."""
        left = np.clip(np.searchsorted(self.at, time, side="right") - 1, 0, len(self.at) - 1)
        right = np.minimum(left + 1, len(self.at) - 1)
        before = np.abs(time - self.at[left]) * self.wander
        after = np.abs(time - self.at[right]) * self.wander
        line = self.rate * (time - self.at[0])
        low = np.maximum(self.low[left] - before, self.low[right] - after)
        high = np.minimum(self.high[left] + before, self.high[right] + after)
        return line + low, line + high

    def at_time(self, time: I64) -> I64:
        """The offset, (n,) ns."""
        low, high = self.bounds(time)
        result: I64 = self.base + np.rint((low + high) / 2).astype(np.int64)
        return result

    def uncertainty(self, time: I64) -> F64:
        """How far the truth can be from ``at_time``, (n,) ns."""
        low, high = self.bounds(time)
        result: F64 = (high - low) / 2
        return result


def fit_offset(machine: str, pairs: Pairs) -> Offset:
    """All that the pairs allow of a clock whose rate keeps DRIFT and moves by WANDER; by twice as much as is needed
    where there can be no such clock."""
    pairs = _thinned(pairs)
    base = int(pairs.offset[0])
    x = (pairs.at - pairs.at[0]).astype(np.float64)
    y = (pairs.offset - base).astype(np.float64)
    u = pairs.uncertainty
    least, most = _rates(x, y, u)
    rate, wander = (least + most) / 2, abs(most - least) / 2 + WANDER
    if least > most:  # no constant rate fits: it moved
        wander = abs(most - least) + WANDER
    rest = y - rate * x
    apart = np.abs(x[:, None] - x[None, :]) * wander
    low = (rest - u - apart).max(axis=1)
    high = (rest + u + apart).min(axis=1)
    return Offset(machine, pairs.at, base, rate, wander, low, np.maximum(high, low))


def _rates(x: F64, y: F64, u: F64) -> tuple[float, float]:
    """(least, most) constant rate that the pairs allow; the least is larger where there is none."""
    least, most = -DRIFT, DRIFT
    for i in range(len(x) - 1):
        span = x[i + 1 :] - x[i]
        change, doubt = y[i + 1 :] - y[i], u[i + 1 :] + u[i]
        far = span > 0
        least = max(least, float(((change - doubt)[far] / span[far]).max(initial=-DRIFT)))
        most = min(most, float(((change + doubt)[far] / span[far]).min(initial=DRIFT)))
    return least, most


def _thinned(pairs: Pairs) -> Pairs:
    """The best of each of MOST_PAIRS stretches of time, where there are more; the first and the last stay."""
    n = len(pairs.at)
    if n <= MOST_PAIRS:
        return pairs
    span = max(int(pairs.at[-1] - pairs.at[0]), 1)
    stretch = (pairs.at - pairs.at[0]) * (MOST_PAIRS - 2) // span
    order = np.lexsort((pairs.uncertainty, stretch))
    first = np.concatenate([[True], np.diff(stretch[order]) > 0])
    keep = np.unique(np.concatenate([[0, n - 1], order[first]]))
    return Pairs(pairs.at[keep], pairs.offset[keep], pairs.uncertainty[keep])


@dataclass(frozen=True)
class HostClock:
    """A machine's clock: Unix time is its CLOCK_MONOTONIC plus ``base``, give or take ``doubt`` where it was set
    meanwhile. ``base`` None: some pairs have no CLOCK_MONOTONIC, so that CLOCK_REALTIME itself is used."""

    base: int | None
    doubt: float

    def time(self, pair: dict[str, Any]) -> int:
        """The host time of a pair."""
        if self.base is None:
            return int(pair["host_unix_ns"])
        return int(pair["host_monotonic_ns"]) + self.base


def host_clock(pairs: Sequence[dict[str, Any]]) -> HostClock:
    """The clock of one machine, from all its pairs."""
    if any(pair.get("host_monotonic_ns") is None for pair in pairs):
        return HostClock(None, 0.0)
    relation = sorted(int(pair["host_unix_ns"]) - int(pair["host_monotonic_ns"]) for pair in pairs)
    spread = relation[-1] - relation[0]
    return HostClock(relation[len(relation) // 2], float(spread) if spread > SET_NS else 0.0)


@dataclass(frozen=True)
class Alignment:
    """What to add to a device's times, by (process, device ordinal); empty where nothing is known.

    ``names``: what GPU it is; ``offsets``: by name; ``reference``: the device whose timeline is everyone's;
    ``doubt``: by machine, how far its clock may be from the reference's.
    """

    names: dict[Key, tuple[str, str]]
    offsets: dict[tuple[str, str], Offset]
    reference: Key | None
    doubt: dict[str, float]
    problems: tuple[Problem, ...]

    def shift(self, process: I32, device: I32, time: I64) -> I64:
        """ns to add to (n,) %globaltimer times of the given devices."""
        result = np.zeros(len(time), np.int64)
        reference = self._reference()
        if reference is None or len(self.names) == 1:
            return result
        for key, rows in by_device(process, device):
            offset = self.offsets.get(self.names[key])
            if offset is not None and offset is not reference:
                result[rows] = _onto(offset, reference, time[rows])
        return result

    def facts(self, regions: Regions) -> list[dict[str, Any]]:
        """For ``Trace.meta["alignment"]``: one a (process, device) that is on the common timeline.

        ``uncertainty_ns`` is the worst at the entries and exits of its recorded warps, against the reference.
        """
        result = []
        reference = self._reference()
        for key, rows in by_device(regions.process, regions.device):
            offset = self.offsets.get(self.names[key])
            if offset is None or reference is None:
                continue
            headers = regions.headers[rows]
            exits = headers["exit_globaltimer"][regions.closed[rows]]
            times = np.concatenate([headers["entry_globaltimer"], exits]).astype(np.int64)
            same = offset is reference
            result.append(
                {
                    "process": key[0],
                    "device": key[1],
                    "gpu": self.names[key][1],
                    "machine": offset.machine,
                    "pairs": len(offset.at),
                    "shift_ns": 0 if same else int(_onto(offset, reference, times[:1])[0]),
                    "uncertainty_ns": 0.0 if same else self._uncertainty(offset, reference, times),
                    "drift_ppm": offset.rate * 1e6,
                    "drift_uncertainty_ppm": offset.wander * 1e6,
                }
            )
        return result

    def host_start(self, epoch_ns: int) -> dict[str, Any] | None:
        """For ``Trace.meta["host_start"]``: Unix time, by the reference's host, at ``epoch_ns`` of the timeline."""
        reference = self._reference()
        if reference is None:
            return None
        time = np.array([epoch_ns], np.int64)
        doubt = float(reference.uncertainty(time)[0]) + self.doubt.get("", 0.0)
        return {"unix_ns": epoch_ns + int(reference.at_time(time)[0]), "uncertainty_ns": doubt}

    def of_host(self, unix_ns: int, machine: str) -> tuple[int, float] | None:
        """(ns of the timeline, how far that may be off) at a Unix time of a machine; None where nothing is known."""
        reference = self._reference()
        if reference is None:
            return None
        time = np.array([unix_ns - reference.base], np.int64)
        time = unix_ns - reference.at_time(time)
        far = self.doubt.get("" if machine == reference.machine else machine)
        return None if far is None else (int(time[0]), float(reference.uncertainty(time)[0]) + far)

    def _reference(self) -> Offset | None:
        return None if self.reference is None else self.offsets[self.names[self.reference]]

    def _uncertainty(self, offset: Offset, reference: Offset, times: I64) -> float:
        there = times + _onto(offset, reference, times)
        own = float((offset.uncertainty(times) + reference.uncertainty(there)).max())
        return own + (self.doubt[offset.machine] if offset.machine != reference.machine else 0.0)


def _onto(offset: Offset, reference: Offset, time: I64) -> I64:
    """ns to add to ``time`` of one device for the reference's timer at the same moment."""
    host = time + offset.at_time(time)
    near = host - reference.at_time(time)
    result: I64 = host - reference.at_time(near) - time
    return result


def by_device(process: I32, device: I32) -> Iterable[tuple[Key, I64]]:
    """Each (process, device) and its rows, in order."""
    code = process.astype(np.int64) << 32 | device
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    for rows in np.split(order, bounds) if len(code) else ():
        yield (int(code[rows[0]] >> 32), int(code[rows[0]] & 0xFFFFFFFF)), rows


def align_devices(
    captures: Sequence[Capture], regions: Regions, lost: LostRows, hosts_ns: float = HOSTS_NS
) -> Alignment:
    """How to bring all devices that recorded anything onto the timeline of the first of them.

    ``hosts_ns``: how far the clocks of two machines may be apart.
    """
    process = np.concatenate([regions.process, lost.process])
    device = np.concatenate([regions.device, lost.device])
    used = [key for key, _ in by_device(process, device)]
    names = {key: _name(captures[key[0]], key) for key in used}
    machines = {key: machine(captures[key[0]]) for key in used}
    clocks = {
        m: host_clock([p for k in used if machines[k] == m for p in _pairs_of(captures[k[0]], k[1])])
        for m in set(machines.values())
        if any(_pairs_of(captures[k[0]], k[1]) for k in used if machines[k] == m)
    }
    offsets = {}
    for name in dict.fromkeys(names.values()):
        keys = [key for key in used if names[key] == name]
        pairs = [pair for process, device in keys for pair in _pairs_of(captures[process], device)]
        if pairs:
            where = machines[keys[0]]
            offsets[name] = fit_offset(where, _sorted(pairs, clocks[where]))
    reference = next((key for key in used if names[key] in offsets), None)
    doubt = {}
    if reference is not None:
        own = clocks[machines[reference]].doubt
        doubt = {"": own, **{m: hosts_ns + clock.doubt + own for m, clock in clocks.items()}}
    hosts = {machines[key]: str(captures[key[0]].manifest.get("host", "")) for key in used}
    problems = [*_without_pairs(names, offsets), *_set_clocks({hosts[m]: clock for m, clock in clocks.items()})]
    return Alignment(names, offsets, reference, doubt, tuple(problems))


def _without_pairs(names: dict[Key, tuple[str, str]], offsets: dict[tuple[str, str], Offset]) -> list[Problem]:
    gpus = dict.fromkeys(names.values())
    without = [gpu for gpu in gpus if gpu not in offsets]
    if len(gpus) < 2 or not without:
        return []
    text = f"{len(without)} of {len(gpus)} devices have no clock pairs with their host: their times are not aligned"
    return [Problem("clock", len(without), text)]


def _set_clocks(clocks: dict[str, HostClock]) -> list[Problem]:
    return [
        Problem("clock", 1, f"the clock of {name} was set meanwhile, by {clock.doubt / 1e6:.3f} ms: its Unix times are "
                "good to that; times within the machine are not touched, they follow CLOCK_MONOTONIC")
        for name, clock in clocks.items()
        if clock.doubt
    ]  # fmt: skip


def machine(capture: Capture) -> str:
    """What tells the machine of a capture from others, and from itself before it was started again: containers of one
    machine have different host names, machines may share one."""
    return str(capture.manifest.get("boot") or capture.manifest.get("host", ""))


def _name(capture: Capture, key: Key) -> tuple[str, str]:
    """(machine, device) that tells a GPU from others."""
    for device in capture.manifest.get("devices", []):
        if device.get("ordinal") == key[1] and device.get("uuid"):
            return machine(capture), str(device["uuid"])
    return "", f"device {key[1]} of capture {key[0]}"


def _pairs_of(capture: Capture, device: int) -> list[dict[str, Any]]:
    return [pair for pair in capture.manifest.get("clocks", []) if pair.get("device") == device]


def _sorted(pairs: Sequence[dict[str, Any]], clock: HostClock) -> Pairs:
    rows = sorted((int(p["globaltimer_ns"]), clock.time(p), float(p.get("uncertainty_ns", 0))) for p in pairs)
    at = np.array([row[0] for row in rows], np.int64)
    host = np.array([row[1] for row in rows], np.int64)
    return Pairs(at, host - at, np.array([row[2] for row in rows], np.float64))


def shifted_lost(lost: LostRows, alignment: Alignment) -> LostRows:
    """The lost rows with their times on the common timeline."""
    times = lost.records["exit_globaltimer"].astype(np.int64)
    records = lost.records.copy()
    records["exit_globaltimer"] = times + alignment.shift(lost.process, lost.device, times)
    return LostRows(records, lost.process, lost.device)
