"""The whole report of a trace as plain data, and as the JSON document of ``report --format json``.

:func:`build` gathers; :mod:`.text` and :mod:`.markdown` show it. The JSON's schema is ``schema/report.schema.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .. import __version__
from ..flows import Flow
from ..flows.match import trace_flows
from ..trace import Trace
from .by import ByTable, table_by
from .clocks import Clocks, launch_clocks
from .cost import DATE, DEVICE
from .findings import Finding, findings, sound
from .host import Host, host_rows
from .net import NetRow, net_rows
from .ranks import RankReport, rank_report
from .roles import Roles
from .stats import Analysis, LaunchRow, LaunchStats, LaunchView, RoleRow, analyze
from .summary import build_lines

VERSION = 1
"""Version of the JSON document."""


@dataclass(frozen=True)
class Detail:
    """One launch gone into. ``sound``: its times can be trusted to say where time went. ``clocks``: None where nothing
    is known of them. ``net``: ranges less the cost of events; None where that was not asked for, or times are emulated.
    """

    stats: LaunchStats
    clocks: Clocks | None
    findings: tuple[Finding, ...]
    by: ByTable | None
    sound: bool
    net: tuple[NetRow, ...] | None = None


@dataclass(frozen=True)
class Report:
    """``launches``: a line for each launch of the trace; ``chosen_by``: "median" where each kernel and shape is stood
    for by its launch of median duration, "all" where the launches were asked for. ``builds``: what tracing changed in
    the kernels' registers and stack. ``problems``: kind, count, text, launch number. ``ranks``: None where only one
    process and device recorded anything. ``subtract``: figures less the cost of events were asked for."""

    emulated: bool
    epoch_ns: int
    launches: tuple[LaunchRow, ...]
    details: tuple[Detail, ...]
    chosen_by: str
    roles: Roles
    names: tuple[str, ...]
    wait_names: tuple[str, ...]
    flows: tuple[Flow, ...]
    builds: tuple[str, ...]
    problems: tuple[tuple[str, int, str, int | None], ...]
    ranks: RankReport | None = None
    subtract: bool = False
    host: Host | None = None

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format": "warptrace-report",
            "version": VERSION,
            "warptrace": __version__,
            "emulated": self.emulated,
            "epoch_ns": self.epoch_ns,
            "units": "SM cycles where a name does not end in _ns; shares are 0 to 1; percentiles are by nearest rank",
            "event_cost": {"device": DEVICE, "date": DATE},
            "wait_names": list(self.wait_names),
            "flows": [flow.to_json() for flow in self.flows],
            "launches": [_launch_json(row) for row in self.launches],
            "chosen_by": self.chosen_by,
            "details": [self._detail_json(detail) for detail in self.details],
            "builds": list(self.builds),
            "problems": [
                {"kind": kind, "count": count, "text": text, "launch": launch}
                for kind, count, text, launch in self.problems
            ],
        } | ({} if self.ranks is None else {"ranks": asdict(self.ranks)}) | self._host_json()

    def _host_json(self) -> dict[str, Any]:
        return {} if self.host is None else {"host": asdict(self.host)}

    def _detail_json(self, detail: Detail) -> dict[str, Any]:
        stats = detail.stats
        out: dict[str, Any] = {
            "launch": stats.launch.number,
            "like": stats.like,
            "sound": detail.sound,
            "findings": [asdict(finding) for finding in detail.findings],
            "clocks": None if detail.clocks is None else asdict(detail.clocks),
            "placement": asdict(stats.placement),
            "roles": [self._role_json(role) for role in stats.roles],
            "critical": None if stats.critical is None else _named(asdict(stats.critical), "names", "self_cycles"),
            "flows": [asdict(row) | {"mean": row.mean} for row in stats.flows],
        }
        if detail.by is not None:
            out["by"] = _by_json(detail.by)
        if detail.net is not None:
            out["net"] = [asdict(row) for row in detail.net]
        return out

    def _role_json(self, role: RoleRow) -> dict[str, Any]:
        out = asdict(role)
        del out["role"]
        for row in out["names"]:
            row["outermost"] = [{"name": name, "share": share} for name, share in row["outermost"]]
        if role.loop is not None:
            out["loop"] |= {"share": role.loop.share, "steady_share": role.loop.steady_share}
        out["own_names"] = [self.names[i] for i in self.roles.roles[role.role].own]
        return out


def build(
    trace: Trace,
    launches: Sequence[int] | None = None,
    *,
    wait: str | None = None,
    flows: Sequence[Flow] = (),
    by: str | None = None,
    peer_wait: str | None = None,
    subtract: bool = False,
) -> Report:
    """The report of a trace; the arguments are those of :func:`~.stats.analyze`, ``by`` one of :data:`.by.KEYS`, and
    ``peer_wait`` as for :func:`~.ranks.rank_report`. ``subtract``: also figures less the cost of events."""
    analysis = analyze(trace, launches, wait=wait, flows=flows)
    return Report(
        emulated=analysis.emulated,
        epoch_ns=analysis.epoch_ns,
        launches=analysis.launches,
        details=tuple(_detail(trace, analysis, stats, by, subtract) for stats in analysis.details),
        chosen_by=analysis.chosen_by,
        roles=analysis.roles,
        names=trace.strings,
        wait_names=tuple(name for name, is_wait in zip(trace.strings, analysis.waits) if is_wait),
        flows=trace_flows(trace, flows),
        builds=build_lines(trace),
        problems=analysis.problems,
        ranks=rank_report(trace, wait=wait, peer_wait=peer_wait),
        subtract=subtract,
        host=host_rows(trace),
    )


def _detail(trace: Trace, analysis: Analysis, stats: LaunchStats, by: str | None, subtract: bool) -> Detail:
    table, launch = None, trace.launches[stats.launch.number - 1]
    view = None
    if by is not None or subtract:
        view = LaunchView(trace, launch, analysis.roles, np.array(analysis.waits, np.bool_))
    if view is not None and by is not None:
        table = table_by(view, by)
    return Detail(
        stats=stats,
        clocks=launch_clocks(trace, launch),
        findings=findings(stats, emulated=trace.emulated),
        by=table,
        sound=sound(stats, trace.emulated),
        net=net_rows(view) if view is not None and subtract and not trace.emulated else None,
    )


def _launch_json(row: LaunchRow) -> dict[str, Any]:
    return asdict(row) | {"kernel_id": f"{row.kernel_id:016x}", "graph": None if row.graph is None else list(row.graph)}


def _named(row: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    return row | {key: [{"name": name, value: cycles, "share": share} for name, cycles, share in row[key]]}


def _by_json(table: ByTable) -> dict[str, Any]:
    warps = []
    for row in table.warps:
        top = None if row.top is None else {"name": row.top[0], "share": row.top[1]}
        warps.append(asdict(row) | {"top": top})
    return {"key": table.key, "ranges": [asdict(row) for row in table.ranges], "warps": warps}
