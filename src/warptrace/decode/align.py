"""Several devices on one timeline: their %globaltimer differ (two GPUs of one host: 92 us, drifting apart).

Pairs of a device's timer and its host's clock (see ``runtime.calibrate``) bound how far the two are apart, and how fast
that changes: a device's *offset* is the middle of what is possible, and the uncertainty what is left. Devices that see
each other were compared directly too (:mod:`.peers`); what is possible is what both allow. All devices are brought
onto the timeline of the first of them. What cannot be aligned is left as it is and reported. A GPU that several
processes use is one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..raw import Capture
from ..trace import Problem
from .fit import F64, Offset, Pairs, fit_offset
from .peers import Difference, Link, Links, Name, along, find_links
from .tables import I32, I64, LostRows, Regions

Key = tuple[int, int]

HOSTS_NS = 1_000_000.0
"""Clocks of two hosts are taken to agree to this, which NTP keeps in a local network."""
SET_NS = 100_000
"""CLOCK_REALTIME that moved so far against CLOCK_MONOTONIC was set by someone."""


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
class Placed:
    """(n,) ns to add to a GPU's times, how far the truth can be from that, and how far if both ways of direct
    comparisons are alike."""

    shift: I64
    uncertainty: F64
    symmetric: F64


@dataclass(frozen=True)
class Alignment:
    """What to add to a device's times, by (process, device ordinal); empty where nothing is known.

    ``names``: what GPU it is; ``offsets``: of GPUs from their host's clock, by name; ``paths``: direct comparisons that
    lead from a GPU to the reference; ``relays``: of a GPU that none lead so far, comparisons that lead to another one,
    which its host's clock brings on; ``reference``: the GPU whose timeline is everyone's; ``doubt``: by machine, how
    far its clock may be from the reference's.
    """

    names: dict[Key, Name]
    offsets: dict[Name, Offset]
    paths: dict[Name, list[Link]]
    relays: dict[Name, tuple[list[Link], Name]]
    reference: Name | None
    doubt: dict[str, float]
    problems: tuple[Problem, ...]

    def shift(self, process: I32, device: I32, time: I64) -> I64:
        """ns to add to (n,) %globaltimer times of the given devices."""
        result = np.zeros(len(time), np.int64)
        if self.reference is None:
            return result
        for key, rows in by_device(process, device):
            name = self.names.get(key)
            if name is not None and name != self.reference:
                found = self.placed(name, time[rows])
                if found is not None:
                    result[rows] = found.shift
        return result

    def placed(self, name: Name, time: I64) -> Placed | None:
        """How a GPU's (n,) times are brought onto the timeline; None where nothing is known."""
        sure, _ = self.difference(name, time)
        if sure is None:
            return None
        path = self.paths.get(name) or self.relays.get(name, ((), name))[0]
        alike = self.difference(name, time, symmetric=True)[0] if any(link.symmetric for link in path) else sure
        assert alike is not None  # the same comparisons
        shift = sure.nearest(alike.middle)
        doubt = sure.farthest(shift)
        return Placed(shift, doubt, np.minimum(alike.farthest(shift), doubt))

    def difference(self, name: Name, time: I64, *, symmetric: bool = False) -> tuple[Difference | None, int]:
        """(the reference's timer minus that of a GPU, at (n,) times of the latter; None where nothing is known, at how
        many of them direct comparisons and those with the host exclude each other). ``symmetric``: if both ways of
        direct comparisons are alike."""
        path = self.paths.get(name)
        if path is not None:
            return along(path, time, symmetric=symmetric).with_other(self._by_host(name, time))
        if name in self.relays:
            path, relay = self.relays[name]
            direct = along(path, time, symmetric=symmetric)
            further = self._by_host(relay, time + direct.middle)
            if further is not None:
                return direct.then(further), 0
        return self._by_host(name, time), 0

    def _by_host(self, name: Name, time: I64) -> Difference | None:
        offset, reference = self.offsets.get(name), self._reference()
        if offset is None or reference is None:
            return None
        host = time + offset.at_time(time)
        near = host - reference.at_time(host - reference.at_time(host))
        low, high = offset.bounds(time)
        least, most = reference.bounds(near)
        far = self.doubt[offset.machine] if offset.machine != reference.machine else 0.0
        return Difference(offset.base - reference.base, low - most - far, high - least + far)

    def facts(self, regions: Regions) -> list[dict[str, Any]]:
        """For ``Trace.meta["alignment"]``: one a (process, device) that is on the common timeline.

        ``uncertainty_ns`` is the worst at the entries and exits of its recorded warps, against the reference;
        ``symmetric_uncertainty_ns`` the same if both ways of direct comparisons are alike (:data:`.peers.ASYMMETRY`).
        """
        result = []
        for key, rows in by_device(regions.process, regions.device):
            name = self.names.get(key)
            if name is None:  # a file that the manifest does not name
                continue
            headers = regions.headers[rows]
            exits = headers["exit_globaltimer"][regions.closed[rows]]
            times = np.concatenate([headers["entry_globaltimer"], exits]).astype(np.int64)
            same = name == self.reference
            found = None if self.reference is None or same else self.placed(name, times)
            if found is None and not same:
                continue
            offset, path = self.offsets.get(name), self.paths.get(name) or self.relays.get(name, ((), name))[0]
            result.append(
                {
                    "process": key[0],
                    "device": key[1],
                    "gpu": name[1],
                    "machine": name[0] if offset is None else offset.machine,
                    "pairs": 0 if offset is None else len(offset.at),
                    "peer_pairs": path[0].pairs if path else 0,
                    "shift_ns": 0 if found is None else int(found.shift[0]),
                    "uncertainty_ns": 0.0 if found is None else float(found.uncertainty.max()),
                    "symmetric_uncertainty_ns": 0.0 if found is None else float(found.symmetric.max()),
                    "drift_ppm": None if offset is None else offset.rate * 1e6,
                    "drift_uncertainty_ppm": None if offset is None else offset.wander * 1e6,
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
        found = self.of_host_times(np.array([unix_ns], np.int64), machine)
        return None if found is None else (int(found[0][0]), float(found[1][0]))

    def of_host_times(self, unix_ns: I64, machine: str) -> tuple[I64, F64] | None:
        """The same of (n,) times."""
        reference = self._reference()
        if reference is None:
            return None
        time = unix_ns - reference.at_time(unix_ns - reference.base)
        far = self.doubt.get("" if machine == reference.machine else machine)
        return None if far is None else (time, reference.uncertainty(time) + far)

    def _reference(self) -> Offset | None:
        return None if self.reference is None else self.offsets.get(self.reference)

    def of_process(self, process: int, *, tell: bool) -> Alignment:
        """That of one process alone, which is then the first; ``tell``: with the problems."""
        names = {(0, device): name for (number, device), name in self.names.items() if number == process}
        return replace(self, names=names, problems=self.problems if tell else ())


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
    return _align(captures, [key for key, _ in by_device(process, device)], hosts_ns)


def align_captures(captures: Sequence[Capture], hosts_ns: float = HOSTS_NS) -> Alignment:
    """The same of all devices that any capture names, without a look at what they recorded."""
    used = [
        (process, int(device["ordinal"]))
        for process, capture in enumerate(captures)
        for device in capture.manifest.get("devices", ())
    ]
    return _align(captures, used, hosts_ns)


def _align(captures: Sequence[Capture], used: Sequence[Key], hosts_ns: float) -> Alignment:
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
    links = find_links(captures, lambda i, device: _name(captures[i], (i, device)), list(map(machine, captures)))
    reference = next((names[key] for known in (offsets, links.names()) for key in used if names[key] in known), None)
    paths: dict[Name, list[Link]] = {}
    doubt = {}
    if reference is not None:
        paths = links.paths(reference)
        own = clocks[offsets[reference].machine].doubt if reference in offsets else 0.0
        doubt = {"": own, **{m: hosts_ns + clock.doubt + own for m, clock in clocks.items()}}
    hosts = {machines[key]: str(captures[key[0]].manifest.get("host", "")) for key in used}
    relays = _relays(dict.fromkeys(names.values()), offsets, links, paths)
    found = Alignment(names, offsets, paths, relays, reference, doubt, ())
    problems = [*_not_aligned(found), *_contradicted(found)]
    problems += _set_clocks({hosts[m]: clock for m, clock in clocks.items()})
    return replace(found, problems=tuple(problems))


def _relays(
    names: Iterable[Name], offsets: dict[Name, Offset], links: Links, paths: dict[Name, list[Link]]
) -> dict[Name, tuple[list[Link], Name]]:
    """Of each group of GPUs that direct comparisons connect, but not with the reference, the way to the first of them
    that its host knows: among themselves they are then as good as these comparisons."""
    found: dict[Name, tuple[list[Link], Name]] = {}
    for relay in names:
        if relay in offsets and relay not in paths and relay not in found:
            there = {name: (path, relay) for name, path in links.paths(relay).items() if path}
            found.update(there)
            found[relay] = ([], relay)
    return {name: way for name, way in found.items() if way[0]}


def _not_aligned(found: Alignment) -> list[Problem]:
    gpus = dict.fromkeys(found.names.values())
    nowhere = np.zeros(0, np.int64)
    own = found.reference
    without = [gpu for gpu in gpus if gpu != own and (own is None or found.difference(gpu, nowhere)[0] is None)]
    if len(gpus) < 2 or not without:
        return []
    text = f"{len(without)} of {len(gpus)} devices have no clock pairs with their host: their times are not aligned"
    return [Problem("clock", len(without), text)]


def _contradicted(found: Alignment) -> list[Problem]:
    """Told where direct comparisons of two GPUs lie outside of what those with the host allow."""
    wrong = [
        gpu
        for gpu in dict.fromkeys(found.names.values())
        if found.paths.get(gpu) and found.difference(gpu, found.paths[gpu][0].offset.at)[1]
    ]
    if not wrong:
        return []
    text = (
        f"direct comparisons of the timers of {len(wrong)} devices do not agree with those through the host: times "
        "across devices are as uncertain as both together"
    )
    return [Problem("clock", len(wrong), text)]


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


def _name(capture: Capture, key: Key) -> Name:
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
