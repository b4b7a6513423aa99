"""Ranks against each other: the k-th launch of a kernel on each, who begins and ends late, who waits for peers.

A *place* is a process and a device. Times of two places compare to what the trace states of its devices' alignment and
of the launches' clocks; a skew that is smaller says nothing, and is said to say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..trace import Launch, Trace
from .waits import wait_flags

PEER_WORDS = frozenset(("peer", "peers", "rank", "ranks", "remote", "nvlink", "nvshmem", "symm", "allgather"))
"""A wait with one of these words in its name is a wait for a peer."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class PlaceRow:
    """A process and a device. ``launches``: that are compared; ``busy_ns``: of all it made; ``late_start_ns`` and
    ``late_end_ns``: behind the first place, medians; ``last``: how many rounds it ended last, by more than is
    uncertain. ``uncertainty_ns``: of its times against the first place's, None where it is not aligned;
    ``symmetric_uncertainty_ns``: the same if both ways of direct comparisons are alike.
    ``wait_share``: of its warps' lives in waits for peers, None without any; ``wait_ns``: the longest such time of a
    warp in a launch, median of those with any."""

    name: str
    rank: int | None
    pid: int
    device: int
    uncertainty_ns: float | None
    symmetric_uncertainty_ns: float | None
    launches: int
    busy_ns: int
    late_start_ns: float
    late_end_ns: float
    last: int
    wait_share: float | None
    wait_ns: float | None


@dataclass(frozen=True)
class SkewRow:
    """A kernel that several places launched. ``rounds``: launches of each that are compared, of ``most`` that any has.

    From the first place to the last, over rounds: ``start_*`` of the launches' begins, ``end_*`` of their ends, ns.
    ``uncertainty_ns``: what two places may be off against each other, ``symmetric_uncertainty_ns`` the same if both
    ways of direct comparisons are alike; ``told``: rounds whose ends are farther apart than the first of these.
    ``slowest``: name of the place that ends last in most of these, None without any; ``slowest_rounds``: in how many.
    """

    kernel: str
    places: int
    rounds: int
    most: int
    start_p50_ns: float
    start_max_ns: float
    end_p50_ns: float
    end_max_ns: float
    uncertainty_ns: float
    symmetric_uncertainty_ns: float
    told: int
    slowest: str | None
    slowest_rounds: int


@dataclass(frozen=True)
class RankReport:
    """``kernels``: those that several aligned places launched; ``peer_waits``: names taken as waits for peers."""

    places: tuple[PlaceRow, ...]
    kernels: tuple[SkewRow, ...]
    peer_waits: tuple[str, ...]
    gpus: int


@dataclass(frozen=True)
class _Rounds:
    """A kernel's launches by place and round, (places, rounds) ns each. ``places``: their numbers; ``allowed``: what
    two of them may be off against each other, ``symmetric`` if both ways of links are alike; ``last``: (rounds,) row of
    the place that ends last, -1 where another may have ended as late."""

    kernel: str
    places: list[int]
    start: F64
    end: F64
    most: int
    allowed: float
    symmetric: float
    last: NDArray[np.int64]
    late_start: F64
    late_end: F64


def peer_wait_flags(names: Sequence[str], waits: Sequence[bool], pattern: str | None = None) -> tuple[bool, ...]:
    """For each name whether it is a wait for a peer: by the rule, or where ``pattern`` is found in it. Raises
    UsageError."""
    if pattern is None:
        return tuple(
            wait and any(word.lower() in PEER_WORDS for word in _WORD.findall(name))
            for name, wait in zip(names, waits)
        )
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--peer-wait {pattern!r} is no regular expression: {error}") from None
    return tuple(found.search(name) is not None for name in names)


def rank_report(trace: Trace, *, wait: str | None = None, peer_wait: str | None = None) -> RankReport | None:
    """None where only one place recorded anything. ``wait``, ``peer_wait``: regular expressions of names. Raises
    UsageError for one that is none."""
    waits = wait_flags(trace.strings, wait)
    flags = np.array(peer_wait_flags(trace.strings, waits, peer_wait), np.bool_)
    names = trace.places()
    if len(names) < 2:
        return None
    keys = list(names)
    number = {key: at for at, key in enumerate(keys)}
    place = np.array([number[one.process, one.device] for one in trace.launches])
    doubt, alike = (_doubts(trace, keys, key) for key in ("uncertainty_ns", "symmetric_uncertainty_ns"))
    rounds = _rounds(trace.launches, place, doubt, alike)
    gpus = {(trace.processes[p].host, trace.processes[p].gpu(d) or (p, d)) for p, d in keys}
    used = np.bincount(trace.ranges.name, minlength=len(trace.strings)) > 0
    waits_of = _waiting(trace, flags)
    return RankReport(
        places=tuple(
            _place(trace, keys[at], name, at, place, (float(doubt[at]), float(alike[at])), rounds, waits_of)
            for at, name in enumerate(names.values())
        ),
        kernels=tuple(_skew(one, list(names.values())) for one in rounds),
        peer_waits=tuple(name for name, is_wait, is_used in zip(trace.strings, flags, used) if is_wait and is_used),
        gpus=len(gpus),
    )


def _doubts(trace: Trace, keys: Sequence[tuple[int, int]], which: str) -> F64:
    """Uncertainty of each place's times, NaN where it is not on the common timeline. ``which``: of the facts."""
    known = {(one["process"], one["device"]): float(one[which]) for one in trace.meta.get("alignment", ())}
    gpus = {(trace.processes[p].host, trace.processes[p].gpu(d)) for p, d in keys}
    alone = len(gpus) == 1 and "" not in {gpu for _, gpu in gpus}  # one timer: nothing to align
    return np.array([known.get(key, 0.0 if alone else np.nan) for key in keys])


def _rounds(launches: Sequence[Launch], place: NDArray[np.int64], doubt: F64, alike: F64) -> list[_Rounds]:
    """Kernels that several aligned places launched, in order of their first launch."""
    starts = np.array([one.start_ns for one in launches], np.float64)
    ends = np.array([one.end_ns for one in launches], np.float64)
    clocks = np.array([one.clock_uncertainty_ns for one in launches])
    order = sorted(range(len(launches)), key=lambda i: (launches[i].kernel_id, place[i], launches[i].start_ns))
    found = []
    for _, rows in groupby(order, key=lambda i: launches[i].kernel_id):
        by_place = [(int(at), list(mine)) for at, mine in groupby(rows, key=lambda i: place[i])]
        aligned = [(at, mine) for at, mine in by_place if not np.isnan(doubt[at])]
        if len(aligned) < 2:
            continue
        count = min(len(mine) for _, mine in aligned)
        table = np.array([mine[:count] for _, mine in aligned], np.int64)
        places = [at for at, _ in aligned]
        allowed, symmetric = (float(np.sort(u[places])[-2:].sum() + 2 * clocks[table].max()) for u in (doubt, alike))
        start, end = starts[table], ends[table]
        found.append(
            _Rounds(
                kernel=launches[table[0, 0]].kernel,
                places=places,
                start=start,
                end=end,
                most=max(len(mine) for _, mine in aligned),
                allowed=allowed,
                symmetric=symmetric,
                last=_last(end, allowed),
                late_start=start - start.min(axis=0),
                late_end=end - end.min(axis=0),
            )
        )
    return sorted(found, key=lambda one: float(one.start.min()))


def _last(ends: F64, allowed: float) -> NDArray[np.int64]:
    order = np.argsort(ends, axis=0, kind="stable")
    before, last = np.take_along_axis(ends, order[-2:], axis=0)
    result: NDArray[np.int64] = np.where(last - before > allowed, order[-1], -1)
    return result


def _skew(rounds: _Rounds, names: Sequence[str]) -> SkewRow:
    starts, ends = np.ptp(rounds.start, axis=0), np.ptp(rounds.end, axis=0)
    counts = np.bincount(rounds.last[rounds.last >= 0], minlength=len(rounds.places))
    most = int(counts.argmax())
    return SkewRow(
        kernel=rounds.kernel,
        places=len(rounds.places),
        rounds=rounds.start.shape[1],
        most=rounds.most,
        start_p50_ns=float(np.median(starts)),
        start_max_ns=float(starts.max()),
        end_p50_ns=float(np.median(ends)),
        end_max_ns=float(ends.max()),
        uncertainty_ns=rounds.allowed,
        symmetric_uncertainty_ns=rounds.symmetric,
        told=int((ends > rounds.allowed).sum()),
        slowest=names[rounds.places[most]] if counts[most] else None,
        slowest_rounds=int(counts[most]),
    )


def _place(
    trace: Trace,
    key: tuple[int, int],
    name: str,
    at: int,
    place: NDArray[np.int64],
    doubts: tuple[float, float],
    rounds: Sequence[_Rounds],
    waits: tuple[F64, F64, F64],
) -> PlaceRow:
    there = [(one, one.places.index(at)) for one in rounds if at in one.places]
    starts = np.concatenate([one.late_start[row] for one, row in there]) if there else np.zeros(1)
    ends = np.concatenate([one.late_end[row] for one, row in there]) if there else np.zeros(1)
    mine = np.flatnonzero(place == at)
    waiting, life, longest = (column[mine] for column in waits)
    process = trace.processes[key[0]]
    waited = bool(waiting.any())
    return PlaceRow(
        name=name,
        rank=process.rank,
        pid=process.pid,
        device=key[1],
        uncertainty_ns=None if np.isnan(doubts[0]) else doubts[0],
        symmetric_uncertainty_ns=None if np.isnan(doubts[1]) else doubts[1],
        launches=sum(one.start.shape[1] for one, _ in there),
        busy_ns=sum(trace.launches[i].end_ns - trace.launches[i].start_ns for i in mine),
        late_start_ns=float(np.median(starts)),
        late_end_ns=float(np.median(ends)),
        last=sum(int((one.last == row).sum()) for one, row in there),
        wait_share=float(waiting.sum() / life.sum()) if waited else None,
        wait_ns=float(np.median(longest[longest > 0])) if waited else None,
    )


def _waiting(trace: Trace, flags: NDArray[np.bool_]) -> tuple[F64, F64, F64]:
    """By launch: ns in waits for peers of all its warps, ns of these warps' lives, the longest sum of one warp."""
    r, w = trace.ranges, trace.warps
    rows = np.flatnonzero(flags[r.name]) if len(r) else np.zeros(0, np.int64)
    # A wait inside another one of its warp counts already.
    key = r.warp[rows].astype(np.int64) * (int(r.end_seq.max(initial=0)) + 1) + r.end_seq[rows]
    before = np.maximum.accumulate(np.concatenate([np.array([-1], np.int64), key]))[:-1]
    rows = rows[key > before]
    by_warp = np.bincount(r.warp[rows], weights=(r.end_ns - r.start_ns)[rows], minlength=len(w))
    count = len(trace.launches)
    longest = np.zeros(count)
    np.maximum.at(longest, w.launch, by_warp)
    lives = (w.end_ns - w.start_ns).astype(np.float64)
    waiting: F64 = np.bincount(w.launch, weights=by_warp, minlength=count).astype(np.float64)
    life: F64 = np.bincount(w.launch, weights=lives, minlength=count).astype(np.float64)
    return waiting, life, longest
