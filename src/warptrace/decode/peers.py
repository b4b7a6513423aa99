"""Direct comparisons of GPUs' timers: what they say of two GPUs, and of two that a chain of such pairs connects.

Both timers of a pair run on quartz that nobody steers, so their relation bends slowly: between two pairs it stays near
the straight line that connects them (``SLEW``), and beyond the last it goes on as before. Where the pairs themselves
show a faster change, that counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..raw import Capture
from .fit import F64, Offset, Pairs, fit_offset
from .tables import I64

Name = tuple[str, str]
"""(machine, device) that tells a GPU from others."""

SLEW = 2.5e-7
"""Most that the rate of one GPU's timer against another's changes in a second, as a share: a quartz that warms."""
LAST_PAIRS = 16
"""Of so many pairs the rate at an end is taken."""


@dataclass(frozen=True)
class Link:
    """A GPU's timer minus another's, as a function of the latter, in ns: ``offset`` with its bounds, and that its rate
    changes by less than ``slew`` a ns."""

    offset: Offset
    slew: float

    @property
    def pairs(self) -> int:
        """How many it is made of."""
        return len(self.offset.at)

    def bounds(self, time: I64) -> tuple[F64, F64]:
        """(least, most) at ``time`` of the other timer, less ``offset.base``."""
        low, high = self.offset.bounds(time)
        if self.pairs < 2:
            return low, high
        x = (time - self.offset.at[0]).astype(np.float64)
        at = (self.offset.at - self.offset.at[0]).astype(np.float64)
        least, most = self.offset.low + self.offset.rate * at, self.offset.high + self.offset.rate * at
        near_low, near_high = _between(x, at, least, most, self.slew)
        for rows, mirrored in ((x > at[-1], False), (x < at[0], True)):
            if rows.any():
                near_low[rows], near_high[rows] = _beyond(x[rows], at, least, most, self.slew, mirrored)
        low, high = np.maximum(low, near_low), np.minimum(high, near_high)
        return np.minimum(low, high), np.maximum(low, high)


def _between(x: F64, at: F64, least: F64, most: F64, slew: float) -> tuple[F64, F64]:
    left = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
    before, after = x - at[left], at[left + 1] - x
    share = before / (before + after)
    sag = slew * np.maximum(before * after, 0) / 2
    low = least[left] * (1 - share) + least[left + 1] * share - sag
    high = most[left] * (1 - share) + most[left + 1] * share + sag
    return low, high


def _beyond(x: F64, at: F64, least: F64, most: F64, slew: float, mirrored: bool) -> tuple[F64, F64]:
    """Behind the last pair; ``mirrored``: before the first."""
    if mirrored:
        x, at, least, most = -x, -at[::-1], least[::-1], most[::-1]
    far = (x - at[-1])[:, None]
    earlier = slice(max(len(at) - 1 - LAST_PAIRS, 0), len(at) - 1)
    span = at[-1] - at[earlier]
    on = far / span
    sag = slew * far * (span + far) / 2
    low = least[-1] * (1 + on) - most[earlier] * on - sag
    high = most[-1] * (1 + on) - least[earlier] * on + sag
    return low.max(axis=1), high.min(axis=1)


def fit_link(pairs: Pairs) -> Link:
    """All that the pairs allow."""
    _, first = np.unique(pairs.at, return_index=True)
    offset = fit_offset("", Pairs(pairs.at[first], pairs.offset[first], pairs.uncertainty[first]))
    return Link(offset, max(SLEW / 1e9, 2 * _bend(offset)))


def _bend(offset: Offset) -> float:
    """Least change of the rate, a ns, without which a pair cannot lie where its neighbours let it."""
    if len(offset.at) < 3:
        return 0.0
    at = (offset.at - offset.at[0]).astype(np.float64)
    before, after = np.diff(at)[:-1], np.diff(at)[1:]
    share = before / (before + after)
    low = offset.low[:-2] * (1 - share) + offset.low[2:] * share
    high = offset.high[:-2] * (1 - share) + offset.high[2:] * share
    missing = np.maximum(low - offset.high[1:-1], offset.low[1:-1] - high)
    return float(np.maximum(missing / (before * after / 2), 0).max())


@dataclass(frozen=True)
class Difference:
    """A GPU's timer minus another's, at given times of the latter: from ``base + low`` to ``base + high``, (n,) ns."""

    base: int
    low: F64
    high: F64

    @property
    def middle(self) -> I64:
        """The best guess."""
        result: I64 = self.base + np.rint((self.low + self.high) / 2).astype(np.int64)
        return result

    @property
    def uncertainty(self) -> F64:
        """How far the truth can be from it."""
        result: F64 = (self.high - self.low) / 2
        return result

    def then(self, further: Difference) -> Difference:
        """The way on from there: both differences, and both uncertainties."""
        return Difference(self.base + further.base, self.low + further.low, self.high + further.high)

    def with_other(self, other: Difference | None) -> tuple[Difference, int]:
        """(what both allow, at how many times they exclude each other: there, all that either allows)."""
        if other is None:
            return self, 0
        low, high = (part + (other.base - self.base) for part in (other.low, other.high))
        least, most = np.maximum(self.low, low), np.minimum(self.high, high)
        apart = least > most
        least = np.where(apart, np.minimum(self.low, low), least)
        most = np.where(apart, np.maximum(self.high, high), most)
        return Difference(self.base, least, most), int(apart.sum())


@dataclass(frozen=True)
class Links:
    """All direct comparisons, by the GPU whose time is asked with and the one whose timer is wanted."""

    by_pair: Mapping[tuple[Name, Name], Link]

    def names(self) -> set[Name]:
        """GPUs that were compared with another."""
        return {name for name, _ in self.by_pair}

    def paths(self, target: Name) -> dict[Name, list[Link]]:
        """From each GPU that comparisons connect with ``target`` the fewest of them that lead there."""
        near: dict[Name, list[tuple[Name, Link]]] = {}
        for (start, end), link in self.by_pair.items():
            near.setdefault(end, []).append((start, link))
        found: dict[Name, list[Link]] = {target: []}
        waiting = [target]
        for name in waiting:  # grows
            for start, link in near.get(name, ()):
                if start not in found:
                    found[start] = [link, *found[name]]
                    waiting.append(start)
        return found


def along(path: Sequence[Link], time: I64) -> Difference:
    """The difference of timers at the two ends of a path, at times of its start."""
    base, low, high = 0, np.zeros(len(time)), np.zeros(len(time))
    now = time
    for link in path:
        least, most = link.bounds(now)
        base, low, high = base + link.offset.base, low + least, high + most
        now = now + link.offset.base + np.rint((least + most) / 2).astype(np.int64)
    return Difference(base, low, high)


def find_links(captures: Sequence[Capture], name: Callable[[int, int], Name], machines: Sequence[str]) -> Links:
    """All comparisons in the captures. ``name``: of a device, by number of its capture and ordinal; ``machines``: of
    each capture."""
    rows: dict[tuple[Name, Name], list[tuple[int, int, float]]] = {}
    for process, capture in enumerate(captures):
        for one in capture.manifest.get("peer_clocks", ()):
            own, peer = name(process, one["device"]), (machines[process], str(one["peer"]))
            here, there, doubt = (one[k] for k in ("globaltimer_ns", "peer_globaltimer_ns", "uncertainty_ns"))
            rows.setdefault((own, peer), []).append((int(here), int(there), float(doubt)))
            rows.setdefault((peer, own), []).append((int(there), int(here), float(doubt)))
    return Links({key: fit_link(_pairs(found)) for key, found in rows.items() if key[0] != key[1]})


def _pairs(rows: Iterable[tuple[int, int, float]]) -> Pairs:
    at, other, doubt = zip(*sorted(rows), strict=True)
    here = np.array(at, np.int64)
    return Pairs(here, np.array(other, np.int64) - here, np.array(doubt, np.float64))
