"""Two clocks against each other, from pairs of their readings: bounds of what is possible, and the middle of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .tables import I64

F64 = NDArray[np.float64]

DRIFT = 50e-6
"""Most that a timer and its host's clock part, whatever their pairs say: quartz is off by less (seen: 2 to 9 ppm)."""
WANDER = 1e-6
"""That rate at any two moments of a run differs by less than this, unless the pairs say otherwise."""
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
    first, second = np.nonzero(x[:, None] < x[None, :])
    span, doubt = x[second] - x[first], u[second] + u[first]
    change = y[second] - y[first]
    least = float(((change - doubt) / span).max(initial=-DRIFT))
    return least, float(((change + doubt) / span).min(initial=DRIFT))


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
