"""Statistics of integers by group, without a loop over rows: counts, sums, exact percentiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import I64

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Grouped:
    """A row a group; all zero where a group is empty. Percentiles are by nearest rank: values that occurred."""

    count: I64
    total: I64
    least: I64
    p50: I64
    p95: I64
    p99: I64
    most: I64


def sum_by(values: I64, codes: I64, groups: int) -> I64:
    """Sums by group, exact for any sum below 2^63."""
    out = np.zeros(groups, np.int64)
    if len(values):
        order = np.argsort(codes, kind="stable") if np.any(codes[1:] < codes[:-1]) else slice(None)
        ordered = codes[order]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        out[ordered[first]] = np.add.reduceat(values[order], first)
    return out


def grouped(values: I64, codes: I64, groups: int) -> Grouped:
    """Statistics of ``values`` by ``codes`` (0 <= code < groups)."""
    count = np.bincount(codes, minlength=groups).astype(np.int64)
    ordered = _by_group(values, codes)
    ends = np.cumsum(count)
    some = np.flatnonzero(count)

    def at(index: I64) -> I64:
        out = np.zeros(groups, np.int64)
        out[some] = ordered[index[some]]
        return out

    total = np.zeros(groups, np.int64)
    if len(some):
        total[some] = np.add.reduceat(ordered, (ends - count)[some])
    p50, p95, p99 = (at(ends - count + np.maximum(count * p + 99, 100) // 100 - 1) for p in PERCENTILES)
    return Grouped(count, total, at(ends - count), p50, p95, p99, at(ends - 1))


def _by_group(values: I64, codes: I64) -> I64:
    """Values in order of (code, value)."""
    if not len(values):
        return values
    bits = int(values.max()).bit_length()
    if int(values.min()) >= 0 and bits + int(codes.max()).bit_length() <= 63:
        packed = np.sort(codes.astype(np.int64) << bits | values)
        return packed & ((1 << bits) - 1)
    return values[np.lexsort((values, codes))]


def percentile(values: I64, percent: int) -> int:
    """One percentile by nearest rank; 0 of nothing."""
    if not len(values):
        return 0
    return int(np.sort(values)[max(len(values) * percent + 99, 100) // 100 - 1])
