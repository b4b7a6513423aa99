"""Direct comparisons of GPUs' timers: what they say of two GPUs, and of two that a chain of such pairs connects.

Both timers of a pair run on quartz that nobody steers, so their relation bends slowly: between two pairs it stays near
the straight line that connects them (``SLEW``), and beyond the last it goes on as before. Where the pairs themselves
show a faster change, that counts twice.

Most of a pair's uncertainty is that nobody can tell how a round trip divides into its two ways. So a second figure
stands beside it, which holds if they are alike (``ASYMMETRY``); nothing rests on it but the choice of the most likely
value within what is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
NEAR_PAIRS = 2
"""So many pairs before and behind one narrow what it allows; farther ones may have bent away."""
ASYMMETRY = 0.25
"""The assumption that figures called symmetric rest on: the least flights of a flag from one GPU to the other and back
differ by no more than this share of their mean."""


@dataclass(frozen=True)
class Link:
    """A GPU's timer minus another's, as a function of the latter, in ns: ``offset`` with its bounds, and that its rate
    changes by less than ``slew`` a ns. ``symmetric``: the same if both ways are alike, where more is known then."""

    offset: Offset
    slew: float
    symmetric: Link | None = None

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


def fit_link(pairs: Pairs, symmetric: F64 | None = None) -> Link:
    """All that the pairs allow. ``symmetric``: their uncertainties if both ways are alike."""
    _, first = np.unique(pairs.at, return_index=True)
    kept = Pairs(pairs.at[first], pairs.offset[first], pairs.uncertainty[first])
    alike = symmetric is not None and bool((symmetric < pairs.uncertainty).any())
    further = fit_link(Pairs(kept.at, kept.offset, symmetric[first])) if symmetric is not None and alike else None
    offset = fit_offset("", kept)
    slew = max(SLEW / 1e9, 2 * _bend(offset))
    return Link(_narrowed(offset, slew), slew, further)


def _narrowed(offset: Offset, slew: float) -> Offset:
    """With what the pairs nearby leave of each: the relation does not leave the line between two of them by more than
    it can bend."""
    at = (offset.at - offset.at[0]).astype(np.float64)
    least, most = offset.low + offset.rate * at, offset.high + offset.rate * at
    low, high = least.copy(), most.copy()
    for back in range(1, NEAR_PAIRS + 1):
        for ahead in range(1, NEAR_PAIRS + 1):
            k = np.arange(back, len(at) - ahead)
            before, after = at[k] - at[k - back], at[k + ahead] - at[k]
            share, sag = before / (before + after), slew * before * after / 2
            low[k] = np.maximum(low[k], least[k - back] * (1 - share) + least[k + ahead] * share - sag)
            high[k] = np.minimum(high[k], most[k - back] * (1 - share) + most[k + ahead] * share + sag)
    kept = low <= high
    line = offset.rate * at
    return replace(
        offset, low=np.where(kept, low - line, offset.low), high=np.where(kept, high - line, offset.high)
    )


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

    def farthest(self, time: I64) -> F64:
        """How far the truth can be from given values."""
        given = (time - self.base).astype(np.float64)
        result: F64 = np.maximum(self.high - given, given - self.low)
        return result

    def nearest(self, time: I64) -> I64:
        """The allowed values that are nearest to given ones."""
        inside = np.clip((time - self.base).astype(np.float64), self.low, self.high)
        result: I64 = self.base + np.rint(inside).astype(np.int64)
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


_Row = tuple[int, int, float, float]
"""Own timer, the other's, the uncertainty, that if both ways are alike."""


@dataclass(frozen=True)
class Links:
    """All direct comparisons, by the GPU whose time is asked with and the one whose timer is wanted. Those on the way
    to some GPU are fitted when it is asked for."""

    rows: Mapping[tuple[Name, Name], Sequence[_Row]]
    _made: dict[tuple[Name, Name], Link] = field(default_factory=dict)

    def names(self) -> set[Name]:
        """GPUs that were compared with another."""
        return {name for name, _ in self.rows}

    def link(self, start: Name, end: Name) -> Link:
        """What the comparisons of two GPUs say of the timer of ``end``, at times of ``start``."""
        if (start, end) not in self._made:
            self._made[start, end] = _link(self.rows[start, end])
        return self._made[start, end]

    def paths(self, target: Name) -> dict[Name, list[Link]]:
        """From each GPU that comparisons connect with ``target`` the fewest of them that lead there."""
        near: dict[Name, list[Name]] = {}
        for start, end in self.rows:
            near.setdefault(end, []).append(start)
        found: dict[Name, list[Link]] = {target: []}
        waiting = [target]
        for name in waiting:  # grows
            for start in near.get(name, ()):
                if start not in found:
                    found[start] = [self.link(start, name), *found[name]]
                    waiting.append(start)
        return found


def along(path: Sequence[Link], time: I64, *, symmetric: bool = False) -> Difference:
    """The difference of timers at the two ends of a path, at times of its start. ``symmetric``: if both ways of each
    link are alike."""
    base, low, high = 0, np.zeros(len(time)), np.zeros(len(time))
    now = time
    for sure in path:
        link = sure.symmetric if symmetric and sure.symmetric is not None else sure
        least, most = link.bounds(now)
        base, low, high = base + link.offset.base, low + least, high + most
        now = now + link.offset.base + np.rint((least + most) / 2).astype(np.int64)
    return Difference(base, low, high)


def find_links(captures: Sequence[Capture], name: Callable[[int, int], Name], machines: Sequence[str]) -> Links:
    """All comparisons in the captures. ``name``: of a device, by number of its capture and ordinal; ``machines``: of
    each capture."""
    rows: dict[tuple[Name, Name], list[_Row]] = {}
    for process, capture in enumerate(captures):
        for one in capture.manifest.get("peer_clocks", ()):
            own, peer = name(process, one["device"]), (machines[process], str(one["peer"]))
            here, there, doubt = (one[k] for k in ("globaltimer_ns", "peer_globaltimer_ns", "uncertainty_ns"))
            doubts = float(doubt), symmetric_uncertainty(one)
            rows.setdefault((own, peer), []).append((int(here), int(there), *doubts))
            rows.setdefault((peer, own), []).append((int(there), int(here), *doubts))
    return Links({key: found for key, found in rows.items() if key[0] != key[1]})


def symmetric_uncertainty(pair: Mapping[str, Any]) -> float:
    """Of a pair of the manifest, ns: nothing is left of a round trip but how far its two ways may differ, and what the
    timers' steps leave."""
    doubt, flights = float(pair["uncertainty_ns"]), pair.get("flights_ns")
    if flights is None:
        return doubt
    divided = float(flights) / 2 - float(pair.get("least_ns", 0))
    return min(doubt, doubt - divided + ASYMMETRY * float(flights) / 4)


def _link(rows: Iterable[_Row]) -> Link:
    at, other, doubt, alike = zip(*sorted(rows), strict=True)
    here = np.array(at, np.int64)
    pairs = Pairs(here, np.array(other, np.int64) - here, np.array(doubt, np.float64))
    return fit_link(pairs, np.array(alike, np.float64))
