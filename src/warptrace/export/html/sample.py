"""Which part of a large trace a page holds: whole clusters of CTAs, chosen so that no wave and no SM is preferred."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...trace import I64, Trace

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """What of a trace is kept. ``warps``: whether each warp's ranges and markers are; ``groups`` counts clusters."""

    warps: Mask
    groups: int
    groups_of: int
    slices: int
    slices_of: int

    @property
    def whole(self) -> bool:
        """Nothing is left out."""
        return self.slices == self.slices_of


def choose(trace: Trace, most: int) -> Sample:
    """The warps whose events fit into ``most`` slices (ranges and markers).

    Clusters are kept whole, in an order that depends only on their number, first one of every launch; the choice ends
    at the first that does not fit.
    """
    count = len(trace.warps)
    load = np.bincount(trace.ranges.warp, minlength=count) + np.bincount(trace.markers.warp, minlength=count)
    total = int(load.sum())
    group, launch = _groups(trace)
    groups = len(launch)
    if total <= most:
        return Sample(np.ones(count, np.bool_), groups, groups, total, total)
    load_of_group = np.zeros(groups, np.int64)
    np.add.at(load_of_group, group, load)
    shuffled = np.argsort(_mixed(groups), kind="stable")
    turn = np.empty(groups, np.int64)  # each group's turn among those of its launch
    by_launch = shuffled[np.argsort(launch[shuffled], kind="stable")]
    first = np.searchsorted(launch[by_launch], launch[by_launch])
    turn[by_launch] = np.arange(groups) - first
    # Turns in proportion to what a launch has: launch after launch would starve the later ones.
    size = np.bincount(launch)[launch]
    order = np.lexsort((shuffled.argsort(), np.where(turn == 0, -1.0, turn / size)))
    fitting = np.cumsum(load_of_group[order]) <= most
    kept_groups = np.zeros(groups, np.bool_)
    kept_groups[order[: int(np.argmin(fitting)) if not fitting.all() else groups]] = True
    kept = kept_groups[group]
    return Sample(kept, int(kept_groups.sum()), groups, int(load[kept].sum()), total)


def _groups(trace: Trace) -> tuple[I64, I64]:
    """The cluster of each warp as a number from 0, and the launch of each cluster."""
    warps = trace.warps
    if not len(warps):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    dims = np.array([one.cluster for one in trace.launches], np.int64).reshape(-1, 3)
    cluster = warps.cta // np.maximum(dims[warps.launch], 1)
    keys = np.column_stack([warps.launch.astype(np.int64), cluster])
    distinct, index = np.unique(keys, axis=0, return_inverse=True)
    return index.reshape(-1).astype(np.int64), distinct[:, 0]


def _mixed(count: int) -> NDArray[np.uint64]:
    """A fixed pseudo-random number for each of 0 .. count - 1 (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
