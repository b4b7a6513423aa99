"""What a trace says about each launch, as plain frozen rows: the numbers behind every report.

:func:`analyze` gives an :class:`Analysis`; renderers, the JSON document and findings read it and add nothing. Times
are integer ns where the name says ``_ns``, else SM cycles; shares are 0 to 1. Percentiles are by nearest rank.
Launches are numbered from 1 (``number``), as in the Perfetto tracks ``Grid1``, ``Grid2``, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..export.payload import KIND_OF_TYPE, ValueKind, widen
from ..flows import Flow
from ..flows.match import trace_flows
from ..trace import I64, RANGE_TOKEN, Launch, Trace
from .cost import warp_costs
from .flows import FlowRow, flow_rows
from .groups import grouped, percentile, sum_by
from .placement import Placement, place
from .roles import Roles, find_roles
from .sweep import LaunchRows, Sweep, launch_rows, sweep
from .waits import wait_flags

Bools = NDArray[np.bool_]

GAPS_SHOWN = 5
"""Kinds of gap kept for a role, the largest first."""
CRITICAL_NAMES = 6
SERIES_VALUES = 64
"""Payload values kept of a series, beside its outliers."""
SERIES_OUTLIERS = 8
OUTLIER_MADS = 5.0
OUTLIER_SHARE = 0.5
"""A payload value is an outlier where the median of its ranges is off the median of all values' medians by more than
OUTLIER_MADS scaled median absolute deviations and by more than OUTLIER_SHARE of it."""
OUTLIER_VALUES = 4
"""Fewest payload values of a series in which outliers are looked for."""
MAD_SCALE = 1.4826


@dataclass(frozen=True)
class LaunchRow:
    """One launch in a line. ``device_name`` and ``rank`` are None where the manifest does not tell them.
    ``selection``: what of the launch was to be recorded, in words; None: all of it."""

    number: int
    kernel: str
    symbol: str
    kernel_id: int
    host: str
    pid: int
    rank: int | None
    device: int
    device_name: str | None
    grid_id: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    start_ns: int
    duration_ns: int
    warps_recorded: int
    warps_expected: int
    events: int
    lost_events: int
    lost_warps: int
    clock_uncertainty_ns: float
    graph: tuple[str, int] | None
    stream: str | None
    selection: str | None


@dataclass(frozen=True)
class NameRow:
    """Ranges of one name in one role. ``share`` is total / the role's life, ``self_share`` likewise; ``self_total``
    leaves out the time in which another range that started later was open. ``outermost``: the outermost ranges (by
    name) that hold them with the share of those ranges' time, largest first. ``first_total``: cycles of the first of
    these ranges in each outermost one, and ``first_count`` how many that are (only for waits)."""

    name: str
    wait: bool
    token: bool
    count: int
    total: int
    total_ns: int
    share: float
    self_total: int
    self_share: float
    mean: float
    mean_ns: float
    min: int
    p50: int
    p95: int
    p99: int
    max: int
    outermost: tuple[tuple[str, float], ...]
    first_count: int
    first_total: int


@dataclass(frozen=True)
class MarkRow:
    """Markers of one name in one role; cycles from the warp's entry to the marker."""

    name: str
    count: int
    p50: int
    max: int


@dataclass(frozen=True)
class GapRow:
    """Time in no range between a range named ``after`` and one named ``before`` (None: entry or exit)."""

    after: str | None
    before: str | None
    count: int
    total: int
    share: float
    max: int


@dataclass(frozen=True)
class PayloadRow:
    """Ranges with one payload value."""

    value: int
    count: int
    mean: float
    p50: int
    max: int


@dataclass(frozen=True)
class Series:
    """Ranges of one name in one role by their integer payload. ``rows``: the first values, ``distinct`` how many there
    are; ``median`` is that of all values' medians, which ``outliers`` are far from."""

    name: str
    distinct: int
    median: int
    rows: tuple[PayloadRow, ...]
    outliers: tuple[PayloadRow, ...]


@dataclass(frozen=True)
class Loop:
    """The outermost ranges of a role that hold most of its waiting, by name, and that waiting: a role's main loop.

    ``cycles`` sums these ranges, ``waiting`` the waits in them (those inside of waits once). ``first_waiting``: the
    part of the first wait of each name in each range, in which a pipeline fills; the steady share leaves it out.
    ``wait_count`` and ``first_count`` are how many waits that are."""

    name: str
    count: int
    cycles: int
    waiting: int
    wait_count: int
    first_waiting: int
    first_count: int
    waits: tuple[str, ...]

    @property
    def share(self) -> float:
        """Waiting, of the ranges' time."""
        return _share(self.waiting, self.cycles)

    @property
    def steady_share(self) -> float:
        """The same without the first waits."""
        return _share(self.waiting - self.first_waiting, self.cycles - self.first_waiting)


@dataclass(frozen=True)
class RoleRow:
    """A role in one launch. ``life`` sums its warps' cycles from entry to exit; ``covered`` is the part in any range,
    ``waiting`` in waits, ``work`` in ranges but not in waits, ``gap`` in none. ``loop``: None where no wait lies in
    another range. ``cost``: estimated cycles spent on recording."""

    role: int
    name: str
    warps: int
    warps_in_cta: tuple[int, ...]
    variants: int
    life: int
    life_p50: int
    life_max: int
    covered: int
    waiting: int
    work: int
    gap: int
    loop: Loop | None
    cost: int
    events: int
    lost_events: int
    unclosed: int
    last_end_ns: int
    names: tuple[NameRow, ...]
    markers: tuple[MarkRow, ...]
    gaps: tuple[GapRow, ...]
    series: tuple[Series, ...]

    def share(self, cycles: int) -> float:
        """Part of the role's life."""
        return cycles / self.life if self.life else 0.0


@dataclass(frozen=True)
class CriticalWarp:
    """The recorded warp that ended last. ``row``: of Trace.warps; ``late_ns``: after the median end of its role;
    ``names``: its largest self times, with their share of its life."""

    row: int
    role: str
    cta: tuple[int, int, int]
    warp: int
    sm: int
    start_ns: int
    end_ns: int
    late_ns: int
    life: int
    waiting: int
    names: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True)
class LaunchStats:
    """Everything about one launch. ``like``: launches of the same kernel and shape, itself included."""

    launch: LaunchRow
    placement: Placement
    roles: tuple[RoleRow, ...]
    critical: CriticalWarp | None
    flows: tuple[FlowRow, ...]
    like: int


@dataclass(frozen=True)
class Analysis:
    """Everything about a trace. ``launches``: a line for each; ``details``: of those gone into; ``chosen_by``:
    "median" where each kernel and shape is stood for by its launch of median duration, else "all"."""

    emulated: bool
    epoch_ns: int
    launches: tuple[LaunchRow, ...]
    details: tuple[LaunchStats, ...]
    chosen_by: str
    roles: Roles
    waits: tuple[bool, ...]
    problems: tuple[tuple[str, int, str, int | None], ...]


def analyze(
    trace: Trace,
    launches: Sequence[int] | None = None,
    *,
    wait: str | None = None,
    flows: Sequence[Flow] = (),
) -> Analysis:
    """The analysis of a trace.

    ``launches``: indices into ``trace.launches`` of those to go into; None: of each kernel and shape the one of median
    duration. ``wait``: a regular expression that says which names are waits. ``flows``: beside those that the traced
    program declared. Raises UsageError.
    """
    waits = wait_flags(trace.strings, wait)
    roles = find_roles(trace)
    chosen = representative(trace.launches) if launches is None else tuple(launches)
    known = trace_flows(trace, flows)
    return Analysis(
        emulated=trace.emulated,
        epoch_ns=trace.epoch_ns,
        launches=tuple(launch_row(trace, launch) for launch in trace.launches),
        details=tuple(launch_stats(trace, trace.launches[i], roles, waits, known) for i in chosen),
        chosen_by="median" if launches is None else "all",
        roles=roles,
        waits=waits,
        problems=tuple(
            (p.kind, p.count, p.text, None if p.launch is None else p.launch + 1) for p in trace.problems
        ),
    )


def shape(launch: Launch) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What launches must share to be repetitions of one another."""
    return launch.kernel_id, launch.grid, launch.block, launch.cluster


def representative(launches: Sequence[Launch]) -> tuple[int, ...]:
    """Of each kernel and shape the launch of median duration (the lower of two), in order of the first ones."""
    groups: dict[object, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(shape(launch), []).append(launch)
    ordered = (sorted(group, key=lambda one: (one.end_ns - one.start_ns, one.index)) for group in groups.values())
    return tuple(group[(len(group) - 1) // 2].index for group in ordered)


def select_launches(trace: Trace, kernel: str | None = None, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
    """Indices of the launches whose kernel or symbol contains ``kernel`` and whose number is among ``numbers``.

    Raises UsageError where there is none.
    """
    out = tuple(
        one.index
        for one in trace.launches
        if (kernel is None or kernel in one.kernel or kernel in one.symbol)
        and (numbers is None or one.index + 1 in numbers)
    )
    if not out:
        have = ", ".join(dict.fromkeys(one.kernel for one in trace.launches)) or "no launches"
        wanted = [f"kernel {kernel!r}"] * (kernel is not None) + [f"number {', '.join(map(str, numbers or ()))}"] * (
            numbers is not None
        )
        raise UsageError(f"no launch with {' and '.join(wanted) or 'anything'}: the trace has {have}")
    return out


def launch_row(trace: Trace, launch: Launch) -> LaunchRow:
    """The line of a launch."""
    process = trace.processes[launch.process]
    return LaunchRow(
        number=launch.index + 1,
        kernel=launch.kernel,
        symbol=launch.symbol,
        kernel_id=launch.kernel_id,
        host=process.host,
        pid=process.pid,
        rank=process.rank,
        device=launch.device,
        device_name=device_name(trace, launch),
        grid_id=launch.grid_id,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        start_ns=launch.start_ns,
        duration_ns=launch.end_ns - launch.start_ns,
        warps_recorded=launch.warps_recorded,
        warps_expected=launch.warps_expected,
        events=launch.events,
        lost_events=launch.lost_events,
        lost_warps=launch.lost_warps,
        clock_uncertainty_ns=launch.clock_uncertainty_ns,
        graph=launch.graph,
        stream=launch.stream_name or None,
        selection=None if launch.selection is None else str(launch.selection),
    )


def device_name(trace: Trace, launch: Launch) -> str | None:
    """The device's name, where the manifest has it."""
    for device in trace.processes[launch.process].manifest.get("devices") or ():
        if isinstance(device, dict) and device.get("ordinal") == launch.device and device.get("name"):
            return str(device["name"])
    return None


def launch_stats(
    trace: Trace, launch: Launch, roles: Roles, waits: Sequence[bool], flows: Sequence[Flow] = ()
) -> LaunchStats:
    """All about one launch."""
    return LaunchView(trace, launch, roles, np.array(waits, np.bool_)).stats(flows)


class LaunchView:
    """The columns of one launch, with what several statistics need."""

    def __init__(self, trace: Trace, launch: Launch, roles: Roles, waits: Bools) -> None:
        self.trace, self.launch, self.roles, self.waits = trace, launch, roles, waits
        self.rows: LaunchRows = launch_rows(trace, launch)
        self.placement = place(trace, launch, self.rows)
        self.swept: Sweep = sweep(trace, self.rows, waits)
        self.strings = trace.strings
        r, part = trace.ranges, self.rows.ranges
        self.role_of_warp = roles.of_warp[self.rows.warps].astype(np.int64)
        self.warp = r.warp[part].astype(np.int64) - self.rows.warps.start
        self.name = r.name[part].astype(np.int64)
        self.cycles = (r.end_cycle - r.start_cycle)[part]
        self.role = self.role_of_warp[self.warp]
        self.present = np.unique(self.role_of_warp).tolist()
        self.warps_per_sm = self.placement.resident_per_sm * -(-int(np.prod(launch.block)) // 32)
        self.cost = warp_costs(trace, self.rows, self.warps_per_sm)
        self.name_rows = self._name_rows()

    def stats(self, flows: Sequence[Flow] = ()) -> LaunchStats:
        """All of it."""
        return LaunchStats(
            launch=launch_row(self.trace, self.launch),
            placement=self.placement,
            roles=tuple(self.role_row(role) for role in self.present),
            critical=self.critical(),
            flows=flow_rows(self.trace, self.rows, flows),
            like=sum(shape(one) == shape(self.launch) for one in self.trace.launches),
        )

    # ------------------------------------------------------------------------------------------------ roles
    def role_row(self, role: int) -> RoleRow:
        """The row of a role that some warp of the launch has."""
        w, part, swept = self.trace.warps, self.rows.warps, self.swept
        warps = self.role_of_warp == role
        life, covered, waiting = (int(column[warps].sum()) for column in (swept.life, swept.covered, swept.waiting))
        facts = self.roles.roles[role]
        return RoleRow(
            role=role,
            name=facts.name,
            warps=int(warps.sum()),
            warps_in_cta=tuple(np.unique(w.warp[part][warps]).tolist()),
            variants=len(facts.variants),
            life=life,
            life_p50=percentile(swept.life[warps], 50),
            life_max=int(swept.life[warps].max(initial=0)),
            covered=covered,
            waiting=waiting,
            work=covered - waiting,
            gap=life - covered,
            loop=self._loop(role),
            cost=int(self.cost[warps].sum()),
            events=int(w.events[part][warps].sum()),
            lost_events=int(w.lost[part][warps].sum()),
            unclosed=int((w.closed[part][warps] == 0).sum()),
            last_end_ns=int(w.end_ns[part][warps].max(initial=0)),
            names=self.name_rows.get(role, ()),
            markers=self._markers(warps),
            gaps=self._gaps(warps, life),
            series=self._series(role),
        )

    def _first_waits(self, rows: I64) -> I64:
        """Of ``rows`` (waits) the first of each name in each outermost range that is not the wait itself."""
        inner = rows[self.swept.outermost[rows] != rows]
        key = self.swept.outermost[inner] * len(self.strings) + self.name[inner]
        first: I64 = np.sort(np.unique(key, return_index=True)[1])
        out: I64 = inner[first]
        return out

    def _loop(self, role: int) -> Loop | None:
        rows = np.flatnonzero((self.role == role) & self.waits[self.name])
        # Waits inside of waits count once, with the outer one.
        container = self.swept.container[rows]
        inner = rows[(container >= 0) & ~self.waits[self.name[container]]]
        if not len(inner):
            return None
        holder = self.name[self.swept.outermost[inner]]
        name = int(np.argmax(sum_by(self.cycles[inner], holder, len(self.strings))))
        inner = inner[holder == name]
        outer = np.flatnonzero(
            (self.role == role) & (self.name == name) & (self.swept.outermost == np.arange(len(self.name)))
        )
        totals = sum_by(self.cycles[inner], self.name[inner], len(self.strings))
        order = [i for i in np.argsort(-totals, kind="stable").tolist() if totals[i]]
        firsts = self._first_waits(inner)
        return Loop(
            name=self.strings[name],
            count=len(outer),
            cycles=int(self.cycles[outer].sum()),
            waiting=int(self.cycles[inner].sum()),
            wait_count=len(inner),
            first_waiting=int(self.cycles[firsts].sum()),
            first_count=len(firsts),
            waits=tuple(self.strings[i] for i in order),
        )

    # ------------------------------------------------------------------------------------------------ names
    def _name_rows(self) -> dict[int, tuple[NameRow, ...]]:
        """By role, the rows of its names, the largest self time first."""
        names = len(self.strings)
        groups = len(self.roles.roles) * names
        code = self.role * names + self.name
        r, part = self.trace.ranges, self.rows.ranges
        spread = grouped(self.cycles, code, groups)
        total_ns = sum_by((r.end_ns - r.start_ns)[part], code, groups)
        self_total = sum_by(self.swept.self_cycles, code, groups)
        tokens = np.bincount(code[r.kind[part] == RANGE_TOKEN], minlength=groups)
        life = sum_by(self.swept.life, self.role_of_warp, len(self.roles.roles))
        holders = self._holders(code, groups)
        out: dict[int, list[NameRow]] = {}
        for group in np.flatnonzero(spread.count).tolist():
            role, name = divmod(group, names)
            count, total = int(spread.count[group]), int(spread.total[group])
            firsts = np.empty(0, np.int64)
            if self.waits[name]:
                firsts = self._first_waits(np.flatnonzero(code == group))
            out.setdefault(role, []).append(
                NameRow(
                    name=self.strings[name],
                    wait=bool(self.waits[name]),
                    token=int(tokens[group]) > 0,
                    count=count,
                    total=total,
                    total_ns=int(total_ns[group]),
                    share=_share(total, int(life[role])),
                    self_total=int(self_total[group]),
                    self_share=_share(int(self_total[group]), int(life[role])),
                    mean=total / count,
                    mean_ns=int(total_ns[group]) / count,
                    min=int(spread.least[group]),
                    p50=int(spread.p50[group]),
                    p95=int(spread.p95[group]),
                    p99=int(spread.p99[group]),
                    max=int(spread.most[group]),
                    outermost=holders.get(group, ()),
                    first_count=len(firsts),
                    first_total=int(self.cycles[firsts].sum()),
                )
            )
        return {role: tuple(sorted(rows, key=lambda row: (-row.self_total, row.name))) for role, rows in out.items()}

    def _holders(self, code: I64, groups: int) -> dict[int, tuple[tuple[str, float], ...]]:
        """By (role, name): names of the outermost ranges that hold its ranges, and their share of those."""
        swept, names = self.swept, len(self.strings)
        inner = np.flatnonzero(swept.outermost != np.arange(len(code)))
        whole = sum_by(self.cycles, code, groups)
        if not len(inner):
            return {}
        outer = swept.outermost[inner]
        pair, index = np.unique(code[inner] * names + self.name[outer], return_inverse=True)
        part = sum_by(self.cycles[inner], index.reshape(-1), len(pair))
        out: dict[int, list[tuple[str, float]]] = {}
        for key, cycles in zip(pair.tolist(), part.tolist()):
            group, name = divmod(key, names)
            holder = group // names * names + name
            out.setdefault(group, []).append((self.strings[name], _share(cycles, int(whole[holder]))))
        return {group: tuple(sorted(rows, key=lambda row: (-row[1], row[0]))) for group, rows in out.items()}

    def _markers(self, warps: Bools) -> tuple[MarkRow, ...]:
        m, part = self.trace.markers, self.rows.markers
        mine = warps[m.warp[part].astype(np.int64) - self.rows.warps.start]
        names = m.name[part][mine].astype(np.int64)
        spread = grouped(np.maximum(m.cycle[part][mine], 0), names, len(self.strings))
        return tuple(
            MarkRow(self.strings[i], int(spread.count[i]), int(spread.p50[i]), int(spread.most[i]))
            for i in np.flatnonzero(spread.count).tolist()
        )

    # ------------------------------------------------------------------------------------------------- gaps
    def _gaps(self, warps: Bools, life: int) -> tuple[GapRow, ...]:
        gaps, names = self.swept.gaps, len(self.strings) + 1
        mine = warps[gaps.warp] & (gaps.cycles > 0)
        code = (gaps.after[mine] + 1) * names + gaps.before[mine] + 1
        kinds, index = np.unique(code, return_inverse=True)
        spread = grouped(gaps.cycles[mine], index.reshape(-1), len(kinds))
        text = (None, *self.strings)
        rows = [
            GapRow(text[kind // names], text[kind % names], count, total, _share(total, life), most)
            for kind, count, total, most in zip(
                kinds.tolist(), spread.count.tolist(), spread.total.tolist(), spread.most.tolist()
            )
        ]
        return tuple(sorted(rows, key=lambda row: -row.total)[:GAPS_SHOWN])

    # ----------------------------------------------------------------------------------------------- series
    def _series(self, role: int) -> tuple[Series, ...]:
        r, part = self.trace.ranges, self.rows.ranges
        kind = KIND_OF_TYPE[r.start_type[part]]
        mine = np.flatnonzero((self.role == role) & ((kind == ValueKind.INT) | (kind == ValueKind.UINT)))
        _, bits = widen(r.start_type[part][mine], r.start_bits[part][mine])
        values = bits.view(np.int64)
        out = []
        for name in np.unique(self.name[mine]).tolist():
            rows = self.name[mine] == name
            one = self._one_series(self.strings[name], values[rows], self.cycles[mine[rows]])
            if one is not None:
                out.append(one)
        return tuple(out)

    @staticmethod
    def _one_series(name: str, values: I64, cycles: I64) -> Series | None:
        distinct, index = np.unique(values, return_inverse=True)
        if len(distinct) < 2:
            return None
        spread = grouped(cycles, index.reshape(-1), len(distinct))
        median = percentile(spread.p50, 50)
        off = np.abs(spread.p50 - median)
        limit = max(OUTLIER_MADS * MAD_SCALE * percentile(off, 50), OUTLIER_SHARE * median)
        far = np.flatnonzero(off > limit) if len(distinct) >= OUTLIER_VALUES else np.empty(0, np.int64)
        far = far[np.argsort(-off[far], kind="stable")][:SERIES_OUTLIERS]

        def row(i: int) -> PayloadRow:
            count, total = int(spread.count[i]), int(spread.total[i])
            return PayloadRow(int(distinct[i]), count, total / count, int(spread.p50[i]), int(spread.most[i]))

        rows = tuple(row(i) for i in range(min(len(distinct), SERIES_VALUES)))
        return Series(name, len(distinct), median, rows, tuple(row(i) for i in far.tolist()))

    # --------------------------------------------------------------------------------------------- critical
    def critical(self) -> CriticalWarp | None:
        """The warp that ended last; None where no warp was recorded."""
        w, part = self.trace.warps, self.rows.warps
        if not self.rows.warp_count:
            return None
        last = int(np.argmax(w.end_ns[part]))
        role = int(self.role_of_warp[last])
        peers = w.end_ns[part][self.role_of_warp == role]
        mine = self.warp == last
        own = sum_by(self.swept.self_cycles[mine], self.name[mine], len(self.strings))
        life = int(self.swept.life[last])
        top = [i for i in np.argsort(-own, kind="stable")[:CRITICAL_NAMES].tolist() if own[i]]
        row = part.start + last
        x, y, z = w.cta[row].tolist()
        return CriticalWarp(
            row=row,
            role=self.roles.roles[role].name,
            cta=(x, y, z),
            warp=int(w.warp[row]),
            sm=int(w.sm[row]),
            start_ns=int(w.start_ns[row]),
            end_ns=int(w.end_ns[row]),
            late_ns=int(w.end_ns[row]) - percentile(peers, 50),
            life=life,
            waiting=int(self.swept.waiting[last]),
            names=tuple((self.strings[i], int(own[i]), _share(int(own[i]), life)) for i in top),
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
