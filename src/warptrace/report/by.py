"""One launch grouped another way: ranges by name or payload, warps by role, warp, CTA or SM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..export.payload import texts
from ..trace import I64
from .groups import grouped, sum_by
from .stats import LaunchView

KEYS = ("name", "role", "warp", "cta", "sm", "payload")
LIFE_KEYS = ("role", "warp", "cta", "sm")


@dataclass(frozen=True)
class RangeGroup:
    """Ranges of one name (and payload, as text; "" where they have none) in all roles; cycles."""

    name: str
    payload: str | None
    count: int
    total: int
    self_total: int
    mean: float
    min: int
    p50: int
    p95: int
    p99: int
    max: int


@dataclass(frozen=True)
class WarpGroup:
    """Warps of one role, CTA or SM, or one warp. Cycles as in a role's row; times of first entry and last exit in ns
    from the start of the trace. ``top``: the name with most self time, and its share of the life."""

    key: str
    warps: int
    life: int
    waiting: int
    work: int
    gap: int
    events: int
    lost_events: int
    start_ns: int
    end_ns: int
    top: tuple[str, float] | None


@dataclass(frozen=True)
class ByTable:
    """``key``: one of KEYS. One of the two lists is empty: ranges, the largest self time first; groups of warps, in
    order of the key, single warps and CTAs with the last to end first."""

    key: str
    ranges: tuple[RangeGroup, ...]
    warps: tuple[WarpGroup, ...]


def table_by(view: LaunchView, key: str) -> ByTable:
    """The launch of ``view`` grouped by ``key``."""
    if key in LIFE_KEYS:
        return ByTable(key, (), _warps(view, key))
    return ByTable(key, _ranges(view, with_payload=key == "payload"), ())


def _ranges(view: LaunchView, *, with_payload: bool) -> tuple[RangeGroup, ...]:
    r, part = view.trace.ranges, view.rows.ranges
    columns = [view.name]
    if with_payload:
        columns += [r.start_type[part].astype(np.int64), r.start_bits[part].view(np.int64)]
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    code = np.empty(len(order), np.int64)
    code[order] = np.cumsum(new) - 1
    first = order[new]
    spread = grouped(view.cycles, code, len(first))
    own = sum_by(view.swept.self_cycles, code, len(first))
    payloads = texts(r.start_type[part][first], r.start_bits[part][first]) if with_payload else [None] * len(first)
    rows = [
        RangeGroup(
            name=view.strings[view.name[first[i]]],
            payload=payloads[i],
            count=int(spread.count[i]),
            total=int(spread.total[i]),
            self_total=int(own[i]),
            mean=int(spread.total[i]) / int(spread.count[i]),
            min=int(spread.least[i]),
            p50=int(spread.p50[i]),
            p95=int(spread.p95[i]),
            p99=int(spread.p99[i]),
            max=int(spread.most[i]),
        )
        for i in range(len(first))
    ]
    return tuple(sorted(rows, key=lambda row: (-row.self_total, -row.total, row.name)))


def _warps(view: LaunchView, key: str) -> tuple[WarpGroup, ...]:
    w, part, swept = view.trace.warps, view.rows.warps, view.swept
    code, labels = _codes(view, key)
    groups = len(labels)
    sums = {
        name: sum_by(column.astype(np.int64), code, groups)
        for name, column in (
            ("life", swept.life), ("waiting", swept.waiting), ("covered", swept.covered),
            ("events", w.events[part]), ("lost", w.lost[part]),
        )
    }  # fmt: skip
    start = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(start, code, w.start_ns[part])
    end = np.zeros(groups, np.int64)
    np.maximum.at(end, code, w.end_ns[part])
    count = np.bincount(code, minlength=groups)
    top = _top_names(view, code, groups)
    rows = [
        WarpGroup(
            key=labels[i],
            warps=int(count[i]),
            life=int(sums["life"][i]),
            waiting=int(sums["waiting"][i]),
            work=int(sums["covered"][i] - sums["waiting"][i]),
            gap=int(sums["life"][i] - sums["covered"][i]),
            events=int(sums["events"][i]),
            lost_events=int(sums["lost"][i]),
            start_ns=int(start[i]),
            end_ns=int(end[i]),
            top=_top(view, top[i], int(sums["life"][i])),
        )
        for i in range(groups)
    ]
    return tuple(sorted(rows, key=lambda row: -row.end_ns)) if key in ("warp", "cta") else tuple(rows)


def _codes(view: LaunchView, key: str) -> tuple[I64, list[str]]:
    """The group of every warp, and what each group is called."""
    w, part = view.trace.warps, view.rows.warps
    if key == "role":
        present, code = np.unique(view.role_of_warp, return_inverse=True)
        return code.reshape(-1), [view.roles.roles[i].name for i in present.tolist()]
    if key == "sm":
        sms, code = np.unique(w.sm[part], return_inverse=True)
        return code.reshape(-1), [f"SM {sm}" for sm in sms.tolist()]
    cta = w.cta[part]
    if key == "warp":
        rows = zip(cta.tolist(), w.warp[part].tolist())
        return np.arange(len(cta)), [f"({x}, {y}, {z}) warp {warp}" for (x, y, z), warp in rows]
    new = np.ones(len(cta), np.bool_)
    new[1:] = np.any(cta[1:] != cta[:-1], axis=1)
    return np.cumsum(new) - 1, [f"({x}, {y}, {z})" for x, y, z in cta[new].tolist()]


def _top_names(view: LaunchView, code: I64, groups: int) -> list[tuple[int, int]]:
    """For each group the name with most self time and that time; (-1, 0) where it has no range."""
    names = len(view.strings)
    pair, index = np.unique(code[view.warp] * names + view.name, return_inverse=True)
    total = sum_by(view.swept.self_cycles, index.reshape(-1), len(pair))
    out = [(-1, 0)] * groups
    for key, cycles in zip(pair.tolist(), total.tolist()):
        group, name = divmod(key, names)
        if cycles > out[group][1]:
            out[group] = (name, cycles)
    return out


def _top(view: LaunchView, top: tuple[int, int], life: int) -> tuple[str, float] | None:
    return None if top[0] < 0 else (view.strings[top[0]], top[1] / life if life else 0.0)
