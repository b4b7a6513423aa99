"""Two runs, or two launches, side by side: what changed, whether it is more than chance, and what cannot be compared.

Launches of a kernel are repetitions: each gives one value (its duration; for a name in a role the mean of its ranges),
and two sets of values are compared by Welch's test, those of names corrected for their number. Where payloads tell
ranges apart, the median launches are compared range by range too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..errors import UsageError
from ..export.payload import KIND_OF_TYPE, ValueKind, widen
from ..trace import I64, Launch, Trace
from .findings import LOST_LIMIT
from .groups import percentile, sum_by
from .roles import Role, Roles, find_roles
from .significance import holm, welch
from .stats import device_name, representative
from .sweep import launch_rows

VERSION = 1
"""Version of the JSON document."""
SIGNIFICANT = 0.05
WARM_UP = 1
WARM_UP_FROM = 4
"""With this many launches of a kernel or more, the first WARM_UP of them are left out."""
CLOCK_CHANGE = 0.02
ALIKE = 0.5
"""Share of names (of the union) from which roles of different name are taken for the same."""
INSTANCES = 5
"""Payload values kept of each name, the largest change first."""


@dataclass(frozen=True)
class Side:
    """One of the two: a run, with the launches to take (indices)."""

    label: str
    trace: Trace
    launches: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """A value in A and B: means over the launches of each, B / A - 1 (None where A is 0), Welch's p (None where there
    are fewer than 3 launches on a side; corrected where there are many tests), and whether that is below 0.05."""

    a: float
    b: float
    change: float | None
    p: float | None
    significant: bool | None


@dataclass(frozen=True)
class NameChange:
    """Ranges of a name in a role. ``mean``: cycles of one; ``count_*`` and ``total_*``: a launch, on average."""

    role: str
    name: str
    count_a: float
    count_b: float
    total_a: float
    total_b: float
    mean: Change


@dataclass(frozen=True)
class PayloadChange:
    """Ranges with one payload value that are in both: how many, and their mean cycles."""

    payload: int
    count: int
    a: float
    b: float


@dataclass(frozen=True)
class InstanceChange:
    """Ranges of a name that are the same in the median launches of both by CTA, warp, payload and turn. ``p50``,
    ``p95``: of B - A in cycles. ``payloads``: the values that changed most in all."""

    role: str
    name: str
    matched: int
    only_a: int
    only_b: int
    p50: int
    p95: int
    payloads: tuple[PayloadChange, ...]


@dataclass(frozen=True)
class KernelDiff:
    """A kernel in both. ``launches_a``: how many are compared, ``left_out_a`` warm-up launches before. ``refused``: why
    its ranges are not compared; ``cautions``: what to know before believing the figures. Names in one side only are in
    ``only_a`` and ``only_b`` as (role, name)."""

    kernel_a: str
    kernel_b: str
    launches_a: int
    launches_b: int
    left_out_a: int
    left_out_b: int
    refused: tuple[str, ...]
    cautions: tuple[str, ...]
    duration_ns: Change | None
    names: tuple[NameChange, ...]
    only_a: tuple[tuple[str, str], ...]
    only_b: tuple[tuple[str, str], ...]
    instances: tuple[InstanceChange, ...]


@dataclass(frozen=True)
class Diff:
    """``missing_in_b``: kernels that only A has, and the other way round. ``refused``: why nothing is compared."""

    label_a: str
    label_b: str
    refused: tuple[str, ...]
    kernels: tuple[KernelDiff, ...]
    missing_in_a: tuple[str, ...]
    missing_in_b: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of ``diff --format json``."""
        out = asdict(self)
        for kernel in out["kernels"]:
            for side in ("only_a", "only_b"):
                kernel[side] = [{"role": role, "name": name} for role, name in kernel[side]]
        return {"format": "warptrace-diff", "version": VERSION, **out}

    @property
    def comparable(self) -> bool:
        """Whether anything could be compared."""
        return not self.refused and any(kernel.duration_ns is not None for kernel in self.kernels)


def diff(a: Side, b: Side, warm_up: int | None = None) -> Diff:
    """Compares two sides; ``warm_up`` launches of each kernel are left out (None: by the rule). Raises UsageError where
    a side has no launch."""
    for side in (a, b):
        if not side.launches:
            raise UsageError(f"{side.label} has no launch to compare")
    refused = []
    if a.trace.emulated != b.trace.emulated:
        which, other = (a, b) if a.trace.emulated else (b, a)
        refused.append(f"{which.label} was emulated and {other.label} ran on a GPU: their times have nothing in common")
    pairs, only_a, only_b = _pair_kernels(a, b)
    kernels = () if refused else tuple(_kernel(a, b, mine, theirs, warm_up) for mine, theirs in pairs)
    return Diff(a.label, b.label, tuple(refused), kernels, only_b, only_a)


Launches = list[Launch]


def _pair_kernels(a: Side, b: Side) -> tuple[list[tuple[Launches, Launches]], tuple[str, ...], tuple[str, ...]]:
    """Launches of the same kernel and shape; then, of a kernel that is left once on each side, those of any shape; then
    the one kernel left on each side, if that is all."""
    mine, theirs = (_groups(side) for side in (a, b))
    pairs = [(mine.pop(key), theirs.pop(key)) for key in list(mine) if key in theirs]
    for kernel in dict.fromkeys(key[0] for key in mine):
        left = [[key for key in groups if key[0] == kernel] for groups in (mine, theirs)]
        if len(left[0]) == len(left[1]) == 1:
            pairs.append((mine.pop(left[0][0]), theirs.pop(left[1][0])))
    if len(mine) == len(theirs) == 1:
        pairs.append((mine.popitem()[1], theirs.popitem()[1]))
    only_a, only_b = (tuple(f"{key[0]} (grid {_dim(key[1])})" for key in groups) for groups in (mine, theirs))
    return pairs, only_a, only_b


Key = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _groups(side: Side) -> dict[Key, Launches]:
    found: dict[Key, Launches] = {}
    for one in (side.trace.launches[index] for index in side.launches):
        found.setdefault((one.kernel, one.grid, one.block, one.cluster), []).append(one)
    return found


def _dim(dim: Sequence[int]) -> str:
    return "x".join(map(str, dim))


def _kernel(a: Side, b: Side, mine: Launches, theirs: Launches, warm_up: int | None) -> KernelDiff:
    left = [_warm_up(len(group), warm_up) for group in (mine, theirs)]
    mine, theirs = mine[left[0] :], theirs[left[1] :]
    cautions, refused = _cautions(a, b, mine, theirs)
    durations = [[float(one.end_ns - one.start_ns) for one in group] for group in (mine, theirs)]
    out = KernelDiff(
        kernel_a=mine[0].kernel, kernel_b=theirs[0].kernel, launches_a=len(mine), launches_b=len(theirs),
        left_out_a=left[0], left_out_b=left[1], refused=tuple(refused), cautions=tuple(cautions),
        duration_ns=_change(*durations) if not _different_devices(a, b, mine, theirs) else None,
        names=(), only_a=(), only_b=(), instances=(),
    )  # fmt: skip
    return out if refused else _names(a, b, mine, theirs, out)


def _warm_up(launches: int, asked: int | None) -> int:
    if asked is not None:
        return min(asked, launches - 1)
    return WARM_UP if launches >= WARM_UP_FROM else 0


def _different_devices(a: Side, b: Side, mine: Launches, theirs: Launches) -> bool:
    names = [{device_name(side.trace, one) for one in group} for side, group in ((a, mine), (b, theirs))]
    return names[0] != names[1]


def _cautions(a: Side, b: Side, mine: Launches, theirs: Launches) -> tuple[list[str], list[str]]:
    """What limits the comparison, and what forbids it."""
    cautions, refused = [], []
    first, second = mine[0], theirs[0]
    if _different_devices(a, b, mine, theirs):
        names = [", ".join(sorted({str(device_name(s.trace, one)) for one in g})) for s, g in ((a, mine), (b, theirs))]
        refused.append(f"not comparable: {a.label} ran on {names[0]}, {b.label} on {names[1]}")
    if {one.selection for one in mine} != {one.selection for one in theirs}:
        refused.append("not comparable: different parts of the launches were recorded")
    for side, group in ((a, mine), (b, theirs)):
        lost = sum(one.lost_events for one in group)
        share = lost / max(lost + sum(one.events for one in group), 1)
        if share > LOST_LIMIT:
            refused.append(f"not comparable: {side.label} lost {100 * share:.1f} % of its events")
        unclosed = sum(int((side.trace.warps.closed[launch_rows(side.trace, one).warps] == 0).sum()) for one in group)
        if unclosed:
            refused.append(f"not comparable: {unclosed} warps of {side.label} were not seen to end")
    if first.kernel != second.kernel:
        cautions.append("the kernels have different names; they are compared because each is the only one left")
    for what in ("grid", "block", "cluster"):
        shapes = [sorted({getattr(one, what) for one in group}) for group in (mine, theirs)]
        if shapes[0] != shapes[1]:
            texts = [", ".join(map(_dim, group)) for group in shapes]
            cautions.append(f"{what} {texts[0]} in {a.label}, {texts[1]} in {b.label}: ranges may stand for other work")
    rates = [_cycle_ns(side.trace, group) for side, group in ((a, mine), (b, theirs))]
    if min(rates) > 0 and abs(rates[1] / rates[0] - 1) > CLOCK_CHANGE:
        ghz = [1 / rate for rate in rates]
        cautions.append(
            f"the SMs ran at {ghz[0]:.2f} GHz in {a.label} and {ghz[1]:.2f} GHz in {b.label}: times in ns change with "
            "it, cycles do not"
        )
    if a.trace.emulated:
        cautions.append("both were emulated: times are not those of a GPU")
    if min(len(mine), len(theirs)) < 3:
        cautions.append(
            f"{len(mine)} and {len(theirs)} launches: with fewer than 3 on a side nobody can say what is chance"
        )
    return cautions, refused


def _cycle_ns(trace: Trace, group: Launches) -> float:
    """ns of a cycle, over the lives of all warps; 0 where unknown."""
    ns = cycles = 0
    w = trace.warps
    for one in group:
        part = launch_rows(trace, one).warps
        known = w.cycles[part] > 0
        ns += int((w.end_ns[part] - w.start_ns[part])[known].sum())
        cycles += int(w.cycles[part][known].sum())
    return ns / cycles if cycles else 0.0


def _change(a: Sequence[float], b: Sequence[float]) -> Change:
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    p = welch(a, b)
    return Change(mean_a, mean_b, mean_b / mean_a - 1 if mean_a else None, p, None if p is None else p < SIGNIFICANT)


# -------------------------------------------------------------------------------------------------------- names
Sample = dict[tuple[str, str], tuple[list[int], list[int]]]
"""By (role, name): count and total cycles of each launch."""


def _names(a: Side, b: Side, mine: Launches, theirs: Launches, base: KernelDiff) -> KernelDiff:
    roles = [find_roles(side.trace) for side in (a, b)]
    labels = _role_labels(a, b, roles, mine[0].kernel_id, theirs[0].kernel_id)
    first, second = (_sample(s.trace, g, r, n) for s, g, r, n in zip((a, b), (mine, theirs), roles, labels))
    rows = []
    for key in (key for key in first if key in second):
        (counts_a, totals_a), (counts_b, totals_b) = first[key], second[key]
        means = [
            [total / count for count, total in zip(counts, totals) if count]
            for counts, totals in ((counts_a, totals_a), (counts_b, totals_b))
        ]
        rows.append(
            NameChange(
                role=key[0], name=key[1], count_a=sum(counts_a) / len(mine), count_b=sum(counts_b) / len(theirs),
                total_a=sum(totals_a) / len(mine), total_b=sum(totals_b) / len(theirs), mean=_change(*means),
            )
        )  # fmt: skip
    corrected = holm([row.mean.p for row in rows])
    rows = [
        replace(row, mean=replace(row.mean, p=p, significant=None if p is None else p < SIGNIFICANT))
        for row, p in zip(rows, corrected)
    ]
    rows.sort(key=lambda row: -abs(row.total_b - row.total_a))
    return replace(
        base,
        names=tuple(rows),
        only_a=tuple(key for key in first if key not in second),
        only_b=tuple(key for key in second if key not in first),
        instances=_instances(a, b, mine, theirs, roles, labels),
    )


def _role_labels(a: Side, b: Side, roles: Sequence[Roles], kernel_a: int, kernel_b: int) -> list[dict[int, str]]:
    """By role index a name that both sides share: A's, for a role of B that is alike."""
    mine, theirs = roles[0].of_kernel(kernel_a), roles[1].of_kernel(kernel_b)
    names_a, names_b = ({role.index: role.name for role in group} for group in (mine, theirs))
    taken = {role.name for role in theirs} & {role.name for role in mine}
    for role in theirs:
        free = [one for one in mine if one.name not in taken]
        if role.name in taken or not free:
            continue
        best = max(free, key=lambda one: _alike(a.trace, one, b.trace, role))
        if _alike(a.trace, best, b.trace, role) >= ALIKE:
            names_b[role.index] = best.name
            taken.add(best.name)
    return [names_a, names_b]


def _alike(trace_a: Trace, a: Role, trace_b: Trace, b: Role) -> float:
    mine, theirs = {trace_a.strings[i] for i in a.names}, {trace_b.strings[i] for i in b.names}
    return len(mine & theirs) / max(len(mine | theirs), 1)


def _sample(trace: Trace, group: Launches, roles: Roles, labels: dict[int, str]) -> Sample:
    values: Sample = {}
    r, names = trace.ranges, len(trace.strings)
    for at, launch in enumerate(group):
        part = launch_rows(trace, launch).ranges
        code = roles.of_warp[r.warp[part]].astype(np.int64) * names + r.name[part]
        size = len(roles.roles) * names
        counts = np.bincount(code, minlength=size)
        totals = sum_by((r.end_cycle - r.start_cycle)[part], code, size)
        for key in np.flatnonzero(counts).tolist():
            role, name = divmod(key, names)
            count, total = values.setdefault(
                (labels.get(role, roles.roles[role].name), trace.strings[name]), ([0] * len(group), [0] * len(group))
            )
            count[at] += int(counts[key])
            total[at] += int(totals[key])
    return values


# ---------------------------------------------------------------------------------------------------- instances
@dataclass(frozen=True)
class _Ranges:
    """Ranges with an integer payload of one launch: (5, n) identity (number of the role and name, CTA, warp, payload,
    turn), and cycles."""

    identity: I64
    cycles: I64


def _instances(
    a: Side, b: Side, mine: Launches, theirs: Launches, roles: Sequence[Roles], labels: Sequence[dict[int, str]]
) -> tuple[InstanceChange, ...]:
    numbers: dict[tuple[str, str], int] = {}
    sides = []
    for side, group, of, names in zip((a, b), (mine, theirs), roles, labels):
        middle = group[representative(_renumbered(group))[0]]
        sides.append(_identified(side.trace, middle, of, names, numbers))
    ids, index = _join_rows(sides[0].identity, sides[1].identity)
    size = sides[0].identity.shape[1]
    row_a, row_b = np.full(ids, -1, np.int64), np.full(ids, -1, np.int64)
    row_a[index[:size]] = np.arange(size)
    row_b[index[size:]] = np.arange(sides[1].identity.shape[1])
    both = np.flatnonzero((row_a >= 0) & (row_b >= 0))
    out = []
    for (role, name), number in numbers.items():
        in_a, in_b = (side.identity[0] == number for side in sides)
        rows = both[in_a[row_a[both]]]
        if not len(rows):
            continue
        cycles_a, cycles_b = sides[0].cycles[row_a[rows]], sides[1].cycles[row_b[rows]]
        change = cycles_b - cycles_a
        out.append(
            InstanceChange(
                role=role, name=name, matched=len(rows), only_a=int(in_a.sum()) - len(rows),
                only_b=int(in_b.sum()) - len(rows), p50=percentile(change, 50), p95=percentile(change, 95),
                payloads=_payload_changes(sides[0].identity[3][row_a[rows]], cycles_a, cycles_b),
            )
        )  # fmt: skip
    return tuple(sorted(out, key=lambda one: -abs(one.p50 * one.matched)))


def _renumbered(group: Launches) -> Launches:
    """The launches with their place in the group for an index, as one kernel and shape."""
    return [
        replace(one, index=at, kernel_id=0, grid=(0, 0, 0), block=(0, 0, 0), cluster=(0, 0, 0))
        for at, one in enumerate(group)
    ]


def _identified(
    trace: Trace, launch: Launch, roles: Roles, labels: dict[int, str], numbers: dict[tuple[str, str], int]
) -> _Ranges:
    r, w = trace.ranges, trace.warps
    part = launch_rows(trace, launch).ranges
    kinds = KIND_OF_TYPE[r.start_type[part]]
    rows = np.flatnonzero((kinds == ValueKind.INT) | (kinds == ValueKind.UINT)) + part.start
    warp = r.warp[rows]
    x, y, z = w.cta[warp].astype(np.int64).T
    _, bits = widen(r.start_type[rows], r.start_bits[rows])
    names = len(trace.strings)
    pair = roles.of_warp[warp].astype(np.int64) * names + r.name[rows]
    number = np.zeros(len(rows), np.int64)
    for key in np.unique(pair).tolist():
        role, name = divmod(key, names)
        label = labels.get(role, roles.roles[role].name), trace.strings[name]
        number[pair == key] = numbers.setdefault(label, len(numbers))
    columns = [number, (z << 42) | (y << 21) | x, w.warp[warp].astype(np.int64), bits.view(np.int64)]
    columns.append(_turns(columns))
    return _Ranges(np.stack(columns), (r.end_cycle - r.start_cycle)[rows])


def _turns(columns: Sequence[I64]) -> I64:
    """How many earlier rows are equal."""
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    first = np.flatnonzero(new)
    out = np.empty(len(order), np.int64)
    out[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return out


def _join_rows(a: I64, b: I64) -> tuple[int, I64]:
    """Numbers equal columns of both; returns how many differ, and the number of each column of a, then of b."""
    columns = np.concatenate([a, b], axis=1)
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any(columns[:, order][:, 1:] != columns[:, order][:, :-1], axis=0)
    index = np.empty(len(order), np.int64)
    index[order] = np.cumsum(new) - 1
    return int(new.sum()), index


def _payload_changes(payload: I64, a: I64, b: I64) -> tuple[PayloadChange, ...]:
    values, index = np.unique(payload, return_inverse=True)
    index = index.reshape(-1)
    count = np.bincount(index)
    sums = [sum_by(cycles, index, len(values)) for cycles in (a, b)]
    order = np.argsort(-np.abs(sums[1] - sums[0]), kind="stable")[:INSTANCES]
    return tuple(
        PayloadChange(int(values[i]), int(count[i]), int(sums[0][i]) / int(count[i]), int(sums[1][i]) / int(count[i]))
        for i in order.tolist()
        if sums[0][i] != sums[1][i]
    )
