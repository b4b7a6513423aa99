"""Traces of kernels that had not ended, for those who show them: open ranges with an end, warps until last seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .trace import I64, OpenRanges, Ranges, Trace


def until_last_seen(trace: Trace) -> Trace:
    """The trace with what had not ended drawn out to the snapshot: warps, their launches, and open ranges as
    :func:`with_open_ended` has them."""
    running = trace.warps.closed == 0
    if not running.any() or not trace.meta.get("snapshots"):
        return trace
    now = last_seen(trace)
    trace = with_open_ended(trace, now)
    end = np.where(running, np.maximum(now, trace.warps.end_ns), trace.warps.end_ns)
    latest = np.full(len(trace.launches), np.iinfo(np.int64).min)
    np.maximum.at(latest, trace.warps.launch, end)
    launches = tuple(replace(x, end_ns=max(x.end_ns, int(latest[x.index]))) for x in trace.launches)
    return replace(trace, warps=replace(trace.warps, end_ns=end), launches=launches)


def with_open_ended(trace: Trace, now: I64) -> Trace:
    """The trace with its open ranges among the others, as if they ended at ``now`` (warps,), ns, innermost first: they
    have no site at the end, and end a cycle before they start."""
    o, r = trace.open, trace.ranges
    if not len(o):
        return trace
    order = np.lexsort((-o.start_seq, o.warp))
    end_seq = np.empty(len(o), np.int64)
    first = np.searchsorted(o.warp, o.warp)
    end_seq[order] = trace.warps.events[o.warp[order]] + np.arange(len(o)) - first[order]
    none, silent = np.zeros(len(o), np.uint8), np.zeros(len(o), np.uint64)
    ended = Ranges(
        **{name: getattr(o, name) for name in OpenRanges.__dataclass_fields__},
        end_ns=np.maximum(now[o.warp], o.start_ns),
        end_cycle=o.start_cycle - 1,
        end_seq=end_seq,
        end_type=none,
        end_bits=silent,
        end_site=np.full(len(o), -1, np.int32),
    )
    names = Ranges.__dataclass_fields__
    both = {name: np.concatenate([getattr(r, name), getattr(ended, name)]) for name in names}
    place = np.lexsort((both["start_seq"], both["warp"]))
    return replace(trace, ranges=Ranges(**{name: column[place] for name, column in both.items()}))


def last_seen(trace: Trace) -> I64:
    """ns of the snapshot of each warp's device; where there is none, the last that was seen of the device."""
    now = np.zeros(len(trace.warps), np.int64)
    taken = {(s["process"], s["device"]): int(s["ns"]) for s in trace.meta.get("snapshots", [])}
    places = [(launch.process, launch.device) for launch in trace.launches]
    for place in dict.fromkeys(places):
        mine = np.array([p == place for p in places], np.bool_)[trace.warps.launch]
        last = int(trace.warps.end_ns[mine].max(initial=0))
        now[mine] = max(taken.get(place, last), last)
    return now
