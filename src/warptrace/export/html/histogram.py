"""How long the ranges of each name took, as counts in bins: what the page draws distributions from.

A bin is a part of a doubling of the duration in SM cycles, which is exact where nanoseconds are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...trace import I32, I64, Trace

PER_DOUBLING = 32
ZERO = -1
"""The bin of ranges that took no cycle."""
MOST_LAUNCHES = 256
"""With more launches than this, counts are of all of them together (launch -1)."""


@dataclass(frozen=True)
class Histograms:
    """One row a bin that is not empty, ordered by (launch, name, bin): durations of 2^(bin/32) to
    2^((bin+1)/32) cycles."""

    launch: I32
    name: I32
    bin: I32
    count: I64


def histograms(trace: Trace) -> Histograms:
    """The counts of every range of the trace."""
    ranges = trace.ranges
    launch = trace.warps.launch[ranges.warp].astype(np.int64)
    if len(trace.launches) > MOST_LAUNCHES:
        launch = np.full(len(launch), -1, np.int64)
    bins = bin_of(ranges.end_cycle - ranges.start_cycle)
    code = ((launch + 1) << 40) | (ranges.name.astype(np.int64) << 16) | (bins - ZERO)
    distinct, count = np.unique(code, return_counts=True)
    return Histograms(
        ((distinct >> 40) - 1).astype(np.int32),
        (distinct >> 16 & 0xFFFFFF).astype(np.int32),
        ((distinct & 0xFFFF) + ZERO).astype(np.int32),
        count.astype(np.int64),
    )


def bin_of(cycles: I64) -> NDArray[np.int64]:
    """The bin of each duration."""
    out = np.full(len(cycles), ZERO, np.int64)
    some = cycles > 0
    out[some] = np.searchsorted(_edges(), cycles[some], side="right") - 1
    return out


def _edges() -> NDArray[np.float64]:
    """Lower edges of the bins from 0 on."""
    edges: NDArray[np.float64] = np.exp2(np.arange(62 * PER_DOUBLING) / PER_DOUBLING)
    edges[::PER_DOUBLING] = 2.0 ** np.arange(62)  # exact, whatever exp2 rounds
    return edges
