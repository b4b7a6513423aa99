"""Which range feeds which: pairs of rows, and the time between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace import I64, Trace
from . import Flow, flows_of


@dataclass(frozen=True)
class Pairs:
    """``source`` and ``target``: rows of Ranges; a source may feed several targets, in several warps.

    ``unfed``: targets for which no source was found. ``unused``: sources that feed none. ``left_out``: ranges of CTAs
    in which a warp with a source or target lost events, so that counting does not tell which is which. ``backwards``:
    pairs whose target ended before the source began: the key does not tell them apart, and they are not in the rows.
    """

    source: I64
    target: I64
    unfed: int
    unused: int
    left_out: int
    backwards: int


def trace_flows(trace: Trace, more: Sequence[Flow] = ()) -> tuple[Flow, ...]:
    """The flows declared in the traced processes, and ``more``."""
    found = [flow for process in trace.processes for flow in flows_of(process.manifest)]
    return tuple(dict.fromkeys([*found, *more]))


def match(trace: Trace, flow: Flow, ranges: slice | None = None) -> Pairs:
    """The pairs of a flow among all ranges, or those of a slice of whole launches."""
    part = slice(0, len(trace.ranges)) if ranges is None else ranges
    sources, targets = (_rows(trace, name, part) for name in (flow.source, flow.target))
    cta = _cta_numbers(trace)
    keep, left_out = [], 0
    lossy = np.zeros(int(cta.max(initial=-1)) + 1, np.bool_)
    for rows in (sources, targets):
        warps = trace.ranges.warp[rows]
        lossy[cta[warps[trace.warps.lost[warps] > 0]]] = True
    for rows in (sources, targets):
        bad = lossy[cta[trace.ranges.warp[rows]]]
        left_out += int(bad.sum())
        keep.append(rows[~bad])
    sources, targets = keep
    # A range without the payload that the flow goes by has no partner.
    with_key = [rows[trace.ranges.start_type[rows] != 0] if flow.key == "payload" else rows for rows in keep]
    source, target = _join(trace, flow, cta, *with_key)
    forward = _cycle(trace, target, trace.ranges.end_cycle) >= _cycle(trace, source, trace.ranges.start_cycle)
    return Pairs(
        source=source[forward],
        target=target[forward],
        unfed=len(targets) - len(target),
        unused=len(sources) - len(np.unique(source)),
        left_out=left_out,
        backwards=int((~forward).sum()),
    )


def _rows(trace: Trace, name: str, part: slice) -> I64:
    """Rows of the ranges of a name."""
    if name not in trace.strings:
        return np.empty(0, np.int64)
    out: I64 = np.flatnonzero(trace.ranges.name[part] == trace.strings.index(name)) + part.start
    return out


def _cta_numbers(trace: Trace) -> I64:
    """For each warp the number of its CTA, counted over the trace; warps are ordered by launch and CTA."""
    w = trace.warps
    new = np.ones(len(w), np.bool_)
    new[1:] = (w.launch[1:] != w.launch[:-1]) | np.any(w.cta[1:] != w.cta[:-1], axis=1)
    out: I64 = np.cumsum(new) - 1
    return out


def _cycle(trace: Trace, rows: I64, column: I64) -> I64:
    """A moment of ranges on their SM's clock."""
    out: I64 = trace.warps.start_cycle[trace.ranges.warp[rows]] + column[rows]
    return out


def _join(trace: Trace, flow: Flow, cta: I64, sources: I64, targets: I64) -> tuple[I64, I64]:
    """Rows of each target that has a source, and of that source."""
    none = np.empty(0, np.int64)
    if not len(sources) or not len(targets):
        return none, none
    keys = np.zeros(len(trace.ranges), np.int64)
    both = np.concatenate([sources, targets])
    if flow.key == "payload":
        keys[both] = np.unique(trace.ranges.start_bits[both], return_inverse=True)[1].reshape(-1)
    sides = [_identity(trace, cta, keys, rows) for rows in (sources, targets)]
    cta_key, rank = (np.concatenate(columns) for columns in zip(*sides))
    cta_key = np.unique(cta_key, return_inverse=True)[1].reshape(-1)
    ids, identity = np.unique(cta_key * (int(rank.max()) + 1) + rank, return_inverse=True)
    identity = identity.reshape(-1)
    source_id = identity[: len(sources)]
    # Of several sources of one identity (two warps that load a part each) the last to begin counts.
    order = np.lexsort((_cycle(trace, sources, trace.ranges.start_cycle), source_id))
    source_of = np.full(len(ids), -1, np.int64)
    source_of[source_id[order]] = sources[order]
    found = source_of[identity[len(sources) :]]
    return found[found >= 0], targets[found >= 0]


def _identity(trace: Trace, cta: I64, keys: I64, rows: I64) -> tuple[I64, I64]:
    """CTA and key as one number, and how many ranges of the warp with that key came before."""
    warp, key = trace.ranges.warp[rows].astype(np.int64), keys[rows]
    order = np.lexsort((rows, key, warp))
    new = np.ones(len(rows), np.bool_)
    new[1:] = (warp[order][1:] != warp[order][:-1]) | (key[order][1:] != key[order][:-1])
    first = np.flatnonzero(new)
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    return cta[warp] * (int(keys.max()) + 1) + key, rank
