"""Whether two samples have different means: Welch's t-test, and Holm's correction for many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEWEST = 3
"""Fewest values of each sample from which significance is told."""


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of equal means, variances as they are; None where a sample has fewer than FEWEST values."""
    if min(len(first), len(second)) < FEWEST:
        return None
    (m1, v1), (m2, v2) = (_mean_variance(sample) for sample in (first, second))
    e1, e2 = v1 / len(first), v2 / len(second)
    if e1 + e2 == 0.0:
        return 1.0 if m1 == m2 else 0.0
    t2 = (m1 - m2) ** 2 / (e1 + e2)
    freedom = (e1 + e2) ** 2 / (e1**2 / (len(first) - 1) + e2**2 / (len(second) - 1))
    return incomplete_beta(freedom / (freedom + t2), freedom / 2, 0.5)


def _mean_variance(sample: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(sample) / len(sample)
    return mean, math.fsum((value - mean) ** 2 for value in sample) / (len(sample) - 1)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p of each test, raised so that among all of them a false alarm is as likely as among one."""
    known = sorted((p, at) for at, p in enumerate(values) if p is not None)
    out: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, at) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        out[at] = least
    return out


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 1000):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1.0 + factor * d, tiny)
            c = _away(1.0 + factor / c, tiny)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return min(1.0, math.exp(log_front) * fraction / a)


def _away(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value
