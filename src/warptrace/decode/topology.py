"""Which GPC and TPC an SM belongs to, as far as a GPU's launches prove it.

Nothing on the device tells this, so it is inferred, and what is not proven is left open (-1):

- CTAs of one cluster run on one GPC (CUDA programming guide): SMs that shared a cluster are one *group*. The tracer
  launches clusters of its own, too, and notes in the capture where they ran.
- Two groups lie *apart*, in different GPCs, where together they have more SMs than a GPC holds, or where their clocks
  ran apart by more than their uncertainties: all SMs of a GPC count one clock (to 0.05 ppm, measured on an H200).
- Groups that lie apart from all others are GPCs. Where there are as many of them as the chip has, every other SM is in
  one of them: in the only one that it can be in, where all others are excluded.

The numbers count GPCs by their lowest SM; they are not the hardware's. The two SMs of a TPC are 2k and 2k + 1 on the
devices where that was measured; elsewhere where clusters of two CTAs ran on such pairs, and on no others: the tracer's
own, where there are any, since the program's need not find two SMs of a TPC free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..raw import Capture
from ..wire import unpack_cluster
from .align import Key, by_device
from .clocks import F64, ClockMap
from .tables import I32, I64, Bool, Regions


@dataclass(frozen=True)
class Chip:
    """Most GPCs of a chip, and most SMs of one of them."""

    gpcs: int
    sms: int


CHIPS = {"9.0": Chip(8, 18)}
"""By compute capability, where one chip has it and is documented: GH100. Its SMs share their GPC's clock."""
PAIRED = {("NVIDIA H200", 132)}
"""(name, SMs) of devices on which clusters of two, where nothing else ran, were seen on every pair (2k, 2k + 1), and on
no other."""
PAIRS = 4
"""So many pairs of neighbours at least must have been seen, elsewhere, before they count as TPCs."""
LAUNCHES = 64
"""Clocks are compared in so many launches of a GPU at most, the longest."""
SAME_CLOCK = 1e-6
"""Relative: SMs of one GPC differ by less."""
SAFETY = 2.0
"""Clocks lie apart where they do so at this many times their uncertainties."""
MOST_SMS = 1 << 16
"""As many as a region's header can name."""
STEPS = 44
"""Of a bisection of cycles."""
WINDOWS = (0.0, 0.1, 0.25)
"""Clocks of a launch are compared over what all its SMs ran through, and over what all but this part of the first to
end and of the last to begin did."""


@dataclass(frozen=True)
class Topology:
    """``gpc`` and ``tpc`` by (process, device): of each SM up to the last one seen, -1: not known. ``facts``: for
    ``Trace.meta["topology"]``."""

    gpc: dict[Key, I32]
    tpc: dict[Key, I32]
    facts: list[dict[str, Any]]

    def of(self, process: I64, device: I64, sm: I64) -> tuple[I32, I32]:
        """(gpc, tpc) of (n,) SMs."""
        gpc, tpc = np.full(len(sm), -1, np.int32), np.full(len(sm), -1, np.int32)
        for key, rows in by_device(process.astype(np.int32), device.astype(np.int32)):
            if key in self.gpc:
                known = rows[sm[rows] < len(self.gpc[key])]
                gpc[known], tpc[known] = self.gpc[key][sm[known]], self.tpc[key][sm[known]]
        return gpc, tpc


def find_topology(
    captures: Sequence[Capture], regions: Regions, launch: I64, clock: ClockMap, names: dict[Key, tuple[str, str]]
) -> Topology:
    """The topology of all GPUs. ``launch`` (n,): of each region; ``names``: which GPU a (process, device) is."""
    result = Topology({}, {}, [])
    keys = list(by_device(regions.process, regions.device))
    gpus: dict[tuple[str, str], list[Key]] = {}
    for key, _ in keys:
        gpus.setdefault(names[key], []).append(key)
    rows_of = dict(keys)
    for name, members in gpus.items():
        rows = np.concatenate([rows_of[key] for key in members])
        gpu = _Gpu.read(captures, members, regions.select(rows), launch[rows], clock)
        for key in members:
            result.gpc[key], result.tpc[key] = gpu.gpc, gpu.tpc
            result.facts.append({"process": key[0], "device": key[1], "gpu": name[1], **gpu.facts()})
    return result


@dataclass
class _Gpu:
    """What is known of one GPU. ``probed``: sizes of the tracer's own clusters; ``group`` (s,): number of the group of
    each SM, -1: not seen; ``members``: SMs of each group; ``apart`` (g, g): groups in different GPCs; ``neighbours``:
    SMs seen as pairs."""

    chip: Chip | None
    paired: bool
    probed: list[int]
    group: I64
    members: list[list[int]]
    apart: Bool
    neighbours: set[int]
    gpc: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    tpc: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    clocks_used: int = 0
    contradictions: int = 0

    @classmethod
    def read(
        cls, captures: Sequence[Capture], keys: Sequence[Key], regions: Regions, launch: I64, clock: ClockMap
    ) -> _Gpu:
        facts = _device_facts(captures, keys[0])
        emulated = bool(captures[keys[0][0]].manifest.get("emulated"))
        sm = regions.headers["sm"].astype(np.int64)
        probes = [one for key in keys for one in _probes(_device_facts(captures, key))]
        seen = np.unique(np.concatenate([sm, *(np.array(sms) for _, sms in probes)]))
        size = int(seen.max(initial=-1)) + 1
        shared, pairs = _shared(regions, launch, sm)
        joined = np.concatenate([shared, *(_chain(sms) for _, sms in probes)])
        group, members = _groups(seen, joined, size)
        twos = [sms for ctas, sms in probes if ctas == 2]
        neighbours = _neighbours(np.concatenate([_chain(sms) for sms in twos]) if twos else pairs)
        chip = None if emulated else CHIPS.get(str(facts.get("compute_capability")))
        paired = not emulated and (facts.get("name"), facts.get("sm_count")) in PAIRED
        sizes = sorted({ctas for ctas, _ in probes})
        gpu = cls(chip, paired, sizes, group, members, np.zeros((len(members),) * 2, np.bool_), neighbours)
        gpu._set_apart(np.unique(launch), clock)
        gpu.gpc = np.full(size, -1, np.int32)
        for number, one in enumerate(gpu._placed()):
            gpu.gpc[one] = number
        gpu.tpc = gpu._tpcs()
        return gpu

    def facts(self) -> dict[str, Any]:
        """As Trace.meta["topology"] has them."""
        found = [np.flatnonzero(self.gpc == number).tolist() for number in range(int(self.gpc.max(initial=-1)) + 1)]
        return {
            "gpcs": found,
            "unplaced": np.flatnonzero((self.group >= 0) & (self.gpc < 0)).tolist(),
            "tpcs": len(np.unique(self.tpc[self.tpc >= 0])),
            "probed": self.probed,
            "clocks_compared": self.clocks_used,
            "clocks_contradict": self.contradictions,
        }

    # ---------------------------------------------------------------------------------------------------- apart
    def _set_apart(self, launches: I64, clock: ClockMap) -> None:
        if self.chip is None:
            return
        sizes = np.array([len(one) for one in self.members])
        self.apart |= sizes[:, None] + sizes[None, :] > self.chip.sms
        np.fill_diagonal(self.apart, False)
        for one in _longest(launches, clock):
            bounds = [self._of_groups(clock, one, part) for part in WINDOWS]
            if any((least > most).any() for least, most in bounds):
                self.contradictions += 1
                continue
            self.clocks_used += 1
            for least, most in bounds:
                beyond = least[:, None] > most[None, :] * (1 + SAME_CLOCK)
                self.apart |= beyond | beyond.T

    def _of_groups(self, clock: ClockMap, rows: I64, part: float) -> tuple[F64, F64]:
        """(least, most) cycles that each group's clock counted; the least is larger where its SMs disagree."""
        low, high = _cycles_passed(clock, rows, part)
        of_group = self.group[clock.sm[rows]]
        least, most = np.full(len(self.members), -np.inf), np.full(len(self.members), np.inf)
        np.maximum.at(least, of_group, low)
        np.minimum.at(most, of_group, high)
        return least, most

    # --------------------------------------------------------------------------------------------------- placed
    def _placed(self) -> list[list[int]]:
        """SMs of each GPC, by the lowest."""
        if self.chip is None:
            return []
        chosen: list[int] = []
        for one in sorted(range(len(self.members)), key=lambda i: (-len(self.members[i]), self.members[i][0])):
            if all(self.apart[one, other] for other in chosen):
                chosen.append(one)
        if len(chosen) > self.chip.gpcs or any(len(one) > self.chip.sms for one in self.members):
            return []  # not the chip that it is taken for
        if len(chosen) == self.chip.gpcs:
            return sorted(self._filled([[one] for one in chosen]))
        several = [i for i, one in enumerate(self.members) if len(one) > 1]
        alone = [i for i in several if all(self.apart[i, other] for other in several if other != i)]
        return sorted(self.members[i] for i in alone)

    def _filled(self, gpcs: list[list[int]]) -> list[list[int]]:
        """The SMs of all GPCs of the chip: each group that has but one left to be in is put there."""
        assert self.chip is not None
        rest = set(range(len(self.members))) - {one for gpc in gpcs for one in gpc}
        changed = True
        while changed:
            changed = False
            for one in sorted(rest):
                room = [gpc for gpc in gpcs if self._fits(one, gpc)]
                if len(room) == 1:
                    room[0].append(one)
                    rest.discard(one)
                    changed = True
        return [sorted(sm for one in gpc for sm in self.members[one]) for gpc in gpcs]

    def _fits(self, one: int, gpc: list[int]) -> bool:
        assert self.chip is not None
        sms = len(self.members[one]) + sum(len(self.members[other]) for other in gpc)
        return sms <= self.chip.sms and not self.apart[one, gpc].any()

    # ----------------------------------------------------------------------------------------------------- TPCs
    def _tpcs(self) -> I32:
        tpc = np.full(len(self.group), -1, np.int32)
        known = np.zeros(len(tpc), np.bool_)
        known[sorted(self.neighbours)] = True
        known |= self.paired
        known &= self.group >= 0
        even, odd = self.gpc[0 : len(tpc) // 2 * 2 : 2], self.gpc[1::2]
        if ((even >= 0) & (odd >= 0) & (even != odd)).any():
            return tpc
        tpc[known] = np.flatnonzero(known) // 2
        return tpc


def _device_facts(captures: Sequence[Capture], key: Key) -> dict[str, Any]:
    devices = captures[key[0]].manifest.get("devices", [])
    return next((dict(d) for d in devices if d.get("ordinal") == key[1]), {})


def _probes(facts: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """(CTAs of a cluster, SMs that such clusters joined) of the tracer's own launches; without what no SM is called."""
    found = []
    for one in facts.get("clusters") or ():
        for sms in one.get("sms") or ():
            if sms and all(type(sm) is int and 0 <= sm < MOST_SMS for sm in sms):
                found.append((int(one.get("ctas") or 0), sorted(set(sms))))
    return found


def _chain(sms: list[int]) -> I64:
    """(n - 1, 2): each of n SMs and the next."""
    return np.array([sms[:-1], sms[1:]], np.int64).T


def _shared(regions: Regions, launch: I64, sm: I64) -> tuple[I64, I64]:
    """(pairs of SMs that CTAs of one cluster ran on, those of clusters of two CTAs), (n, 2) each, without doubles."""
    h = regions.headers
    shape = unpack_cluster(h["cluster"]).astype(np.int64)
    ctas = shape.prod(axis=1)
    rows = np.flatnonzero(ctas > 1)
    none = np.zeros((0, 2), np.int64)
    if not len(rows):
        return none, none
    place = h["cta"][rows].astype(np.int64) // shape[rows]
    keys = np.stack([launch[rows], *place.T, ctas[rows], sm[rows]], axis=1)
    keys = np.unique(keys, axis=0)
    new = np.concatenate([[True], np.any(keys[1:, :4] != keys[:-1, :4], axis=1)])
    first = keys[np.flatnonzero(new)[np.cumsum(new) - 1], 5]
    pairs, two = np.stack([first, keys[:, 5]], axis=1), keys[:, 4] == 2
    apart = first != keys[:, 5]
    return np.unique(pairs[apart], axis=0), np.unique(pairs[apart & two], axis=0)


def _groups(seen: I64, pairs: I64, size: int) -> tuple[I64, list[list[int]]]:
    """(number of each SM's group, -1: not seen; the groups), by lowest SM."""
    parent = list(range(size))

    def root(sm: int) -> int:
        while parent[sm] != sm:
            parent[sm] = parent[parent[sm]]
            sm = parent[sm]
        return sm

    for a, b in pairs.tolist():
        low, high = sorted((root(a), root(b)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for sm in seen.tolist():
        members.setdefault(root(sm), []).append(sm)
    group = np.full(size, -1, np.int64)
    for number, one in enumerate(members.values()):
        group[one] = number
    return group, list(members.values())


def _neighbours(pairs: I64) -> set[int]:
    """SMs seen as pairs (2k, 2k + 1); none where other pairs, or too few, were seen."""
    pairs = np.unique(pairs, axis=0)
    if len(pairs) < PAIRS or (pairs[:, 0] >> 1 != pairs[:, 1] >> 1).any():
        return set()
    return set(pairs.reshape(-1).tolist())


# ---------------------------------------------------------------------------------------------------------- clocks
def sm_clocks(
    clock: ClockMap, groups: Sequence[I64], topology: Topology, keys: Sequence[Key], epoch: int
) -> list[dict[str, Any]]:
    """What ``Trace.meta["clocks"]`` says of the SMs and GPCs of each launch, given its groups and (process, device).

    ``by_sm``: columns; the SM's %clock64 read ``cycle`` at ``ns`` of the trace, good to ``uncertainty_ns`` as are all
    times of the SM in the launch, and it ran at ``ns_per_cycle`` on average. ``by_gpc``: the median of that over the
    SMs of a GPC; GPC -1: those whose GPC is not known.
    """
    every = np.concatenate(groups) if groups else np.zeros(0, np.int64)
    counts = [len(one) for one in groups]
    process, device = (np.repeat(np.array([key[i] for key in keys], np.int64), counts) for i in (0, 1))
    gpc, tpc = topology.of(process, device, clock.sm[every])
    columns: dict[str, NDArray[Any]] = {
        "sm": clock.sm[every].astype(np.int32),
        "gpc": gpc,
        "tpc": tpc,
        "cycle": clock.cycle0[every],
        "ns": clock.time0[every] + clock.to_ns(every, np.zeros(len(every), np.int64)) - epoch,
        "ns_per_cycle": np.round(_mean_rate(clock, every), 9),
        "uncertainty_ns": np.round(clock.stated[every], 1),
    }
    ends = np.cumsum(counts, dtype=np.int64).tolist()
    parts = (slice(end - count, end) for end, count in zip(ends, counts, strict=True))
    return [_of_launch({name: column[part] for name, column in columns.items()}) for part in parts]


def _of_launch(by_sm: dict[str, NDArray[Any]]) -> dict[str, Any]:
    gpc, rate = by_sm["gpc"], by_sm["ns_per_cycle"]
    if not len(gpc):
        return {}
    of_gpc = [(number, rate[gpc == number]) for number in np.unique(gpc).tolist()]
    by_gpc = [{"gpc": number, "sms": len(rates), "ns_per_cycle": float(np.median(rates))} for number, rates in of_gpc]
    return {"by_sm": by_sm, "by_gpc": by_gpc}


def _mean_rate(clock: ClockMap, groups: I64) -> F64:
    """ns per cycle from an SM's first anchor to its last."""
    last = clock.last[groups]
    passed = clock.grid.value(groups, last) - clock.grid.value(groups, np.zeros(len(groups)))
    rate: F64 = np.where(last > 0, passed / np.maximum(last, 1), clock.slowest[groups])
    return rate


def _longest(launches: I64, clock: ClockMap) -> list[I64]:
    """The clock groups of those launches that lasted longest, of SMs whose anchors agree, launch by launch."""
    wanted = np.zeros(int(max(launches.max(initial=0), clock.launch.max(initial=0))) + 1, np.bool_)
    wanted[launches] = True
    rows = np.flatnonzero(wanted[clock.launch] & (clock.violations == 0) & (clock.last > 0))
    rows = rows[np.argsort(clock.launch[rows], kind="stable")]
    parts = np.split(rows, np.flatnonzero(np.diff(clock.launch[rows])) + 1) if len(rows) else []
    parts = [part for part in parts if len(part) > 1]
    return sorted(parts, key=lambda part: -float(np.median(clock.last[part])))[:LAUNCHES]


def _cycles_passed(clock: ClockMap, groups: I64, part: float) -> tuple[F64, F64]:
    """(least, most) cycles that each SM can have counted in a time that all but ``part`` of them ran through; no bounds
    for SMs that did not."""
    none, last = np.zeros(len(groups), np.int64), clock.last[groups].astype(np.int64)
    start, end = (clock.time0[groups] + clock.to_ns(groups, at) for at in (none, last))
    begin, stop = np.quantile(start, 1 - part, method="lower"), np.quantile(end, part, method="higher")
    through = (start <= begin) & (end >= stop) & (begin < stop)
    first, last = (_cycle_at(clock, groups, int(ns)) for ns in (begin, stop))
    passed = last - first
    doubt = SAFETY * (clock.doubt(groups, first) + clock.doubt(groups, last))
    doubt = np.ceil(doubt / clock.fastest[groups]) + 2
    return np.where(through, passed - doubt, -np.inf), np.where(through, passed + doubt, np.inf)


def _cycle_at(clock: ClockMap, groups: I64, ns: int) -> I64:
    """The cycle, since its group's cycle0, at which each map reaches a time."""
    low, high = np.zeros(len(groups), np.int64), clock.last[groups].astype(np.int64)
    for _ in range(STEPS):
        middle = (low + high) >> 1
        late = clock.time0[groups] + clock.to_ns(groups, middle) >= ns
        low, high = np.where(late, low, middle), np.where(late, middle, high)
    return high
