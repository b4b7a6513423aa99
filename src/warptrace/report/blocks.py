"""A report as headings, lines, bullets and tables: what the renderers for terminal and Markdown both show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .by import ByTable
from .cost import DATE, DEVICE
from .findings import percent
from .flows import FlowRow
from .host import Host
from .placement import Placement
from .ranks import PlaceRow, RankReport, SkewRow
from .report import Detail, Report
from .roles import numbers_text
from .stats import GapRow, LaunchRow, LaunchStats, NameRow, RoleRow, Series
from .summary import duration, shorten

MAX_LAUNCHES = 20
MAX_NAME = 60
MAX_PROBLEMS = 10


@dataclass(frozen=True)
class Heading:
    """``level`` 1 is the report, 2 a launch, 3 a part of it."""

    text: str
    level: int


@dataclass(frozen=True)
class Line:
    """A line of text that is not broken; ``warning`` where it tells of something wrong."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """Sentences."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """A table. ``left``: how many of the first columns are text; the others are numbers."""

    columns: tuple[str, ...]
    left: int
    rows: tuple[tuple[str, ...], ...]


Block = Heading | Line | Bullets | Grid


def blocks(report: Report, top: int = 40) -> Iterator[Block]:
    """The report. ``top``: most rows shown of a table of groups or payloads."""
    count = len(report.launches)
    where = " (emulated: times are not those of a GPU)" if report.emulated else ""
    yield Heading(f"{count} launch{'' if count == 1 else 'es'} recorded{where}", 1)
    if not report.launches:
        return
    yield _launches(report.launches, several=report.ranks is not None)
    if count > MAX_LAUNCHES:
        yield Line(f"... and {count - MAX_LAUNCHES} more launches")
    if report.ranks is not None:
        yield from _ranks(report.ranks, top)
    for detail in report.details:
        yield from _detail(detail, report, top)
    if report.host is not None:
        yield from _host(report.host, top)
    yield from _integrity(report)


def _launches(rows: tuple[LaunchRow, ...], *, several: bool) -> Grid:
    """``several``: processes or devices, which each row then names."""
    rank = ("rank",) if several else ()
    columns = ("#", "kernel", "grid", "block", *rank, "warps", "events", "lost", "clocks", "duration")
    cells = tuple(
        (
            str(row.number),
            shorten(row.kernel, MAX_NAME),
            _dim(row.grid),
            _dim(row.block),
            *((_who(row),) if several else ()),
            str(row.warps_recorded)
            if row.warps_recorded == row.warps_expected
            else f"{row.warps_recorded} of {row.warps_expected}",
            str(row.events),
            str(row.lost_events),
            f"{row.clock_uncertainty_ns:.0f} ns",
            duration(row.duration_ns),
        )
        for row in rows[:MAX_LAUNCHES]
    )
    return Grid(columns, 5 if several else 4, cells)


def _who(row: LaunchRow) -> str:
    return f"{f'pid {row.pid}' if row.rank is None else row.rank}, GPU {row.device}"


def _ranks(ranks: RankReport, top: int) -> Iterator[Block]:
    yield Heading(f"Ranks: {len(ranks.places)} on {ranks.gpus} GPU{'' if ranks.gpus == 1 else 's'}", 2)
    if ranks.kernels:
        yield Bullets(tuple(map(_skew_text, ranks.kernels[:top])))
    else:
        yield Line("no kernel was launched by two of them whose times are aligned")
    columns = ("rank", "uncertain", "if alike", "launches", "busy", "begins late", "ends late", "last in",
               "waits for peers", "longest")  # fmt: skip
    yield Grid(columns, 1, tuple(map(_place_cells, ranks.places[:top])))
    if len(ranks.places) > top:
        yield Line(f"... and {len(ranks.places) - top} more")
    if ranks.peer_waits:
        names = ", ".join(ranks.peer_waits)
        yield Line(f"taken as waits for peers, by name: {names} (--peer-wait REGEX says otherwise)")
    else:
        yield Line("no name looks like a wait for a peer (--peer-wait REGEX says which are)")


def _skew_text(row: SkewRow) -> str:
    """What the skew of a kernel's launches is worth."""
    rounds = f"{row.rounds} rounds" if row.rounds == row.most else f"the first {row.rounds} of up to {row.most} rounds"
    begins, ends = (f"{_ns(a)} (most {_ns(b)})" for a, b in (
        (row.start_p50_ns, row.start_max_ns), (row.end_p50_ns, row.end_max_ns)))  # fmt: skip
    text = (
        f"{shorten(row.kernel, MAX_NAME)}, {row.places} ranks, {rounds}: they begin within {begins}, end within {ends}"
        f"; known to {_ns(row.uncertainty_ns)}{_if_alike(row.uncertainty_ns, row.symmetric_uncertainty_ns)}"
    )
    if not row.told:
        return f"{text}: no skew of the ends can be told from none"
    if row.slowest is None:
        return f"{text}; no rank ends last alone"
    return f"{text}; {row.slowest} ends last in {row.slowest_rounds} of {row.rounds}"


def _if_alike(doubt: float, symmetric: float) -> str:
    """What is known beyond that if a flag takes as long from one GPU to the other as back."""
    return f" ({_ns(symmetric)} if both ways of a link are alike)" if symmetric < doubt else ""


def _place_cells(row: PlaceRow) -> tuple[str, ...]:
    return (
        row.name,
        "not aligned" if row.uncertainty_ns is None else _ns(row.uncertainty_ns),
        "-" if row.symmetric_uncertainty_ns is None else _ns(row.symmetric_uncertainty_ns),
        str(row.launches),
        duration(row.busy_ns),
        _ns(row.late_start_ns) if row.launches else "-",
        _ns(row.late_end_ns) if row.launches else "-",
        str(row.last) if row.launches else "-",
        "-" if row.wait_share is None else percent(row.wait_share),
        "-" if row.wait_ns is None else _ns(row.wait_ns),
    )


def _ns(value: float) -> str:
    return duration(round(value))


def _detail(detail: Detail, report: Report, top: int) -> Iterator[Block]:
    stats = detail.stats
    launch = stats.launch
    which = f", the median of {stats.like} like it" if report.chosen_by == "median" and stats.like > 1 else ""
    yield Heading(f"Launch {launch.number}: {shorten(launch.kernel, MAX_NAME)}{which}", 2)
    yield Line(_facts(stats))
    yield from (Line(text) for text in _placement(stats.placement))
    if detail.clocks is not None:
        yield Line(str(detail.clocks))
    if detail.findings:
        yield Heading("Findings", 3)
        yield Bullets(tuple(finding.text for finding in detail.findings))
    else:
        yield Line("No finding: nothing in the numbers passes a threshold.")
    if report.subtract:
        yield from _net(detail, top)
    if detail.by is not None:
        yield Heading(f"By {detail.by.key}", 3)
        yield from _by(detail.by, top)
        return
    if stats.roles:
        yield Heading("Roles", 3)
        yield _roles(stats)
    for role in stats.roles:
        if role.names or role.markers:
            yield from _role(role, top)
    yield from _critical(stats)
    if stats.flows:
        yield Heading("Flows, cycles from the source's start to the target's end", 3)
        yield _flows(stats.flows)


def _facts(stats: LaunchStats) -> str:
    launch = stats.launch
    device = launch.device_name or f"device {launch.device}"
    cluster = "" if launch.cluster == (1, 1, 1) else f", clusters of {_dim(launch.cluster)}"
    graph = "" if launch.graph is None else f", {launch.graph[0]} replay {launch.graph[1]}"
    stream = "" if launch.stream is None else f", stream {launch.stream}"
    rank = "" if launch.rank is None else f"rank {launch.rank}, "
    return (
        f"{duration(launch.duration_ns)} on {device}, {rank}pid {launch.pid}{graph}{stream}: "
        f"grid {_dim(launch.grid)}, block {_dim(launch.block)}{cluster}, grid id {launch.grid_id}"
    )


def _placement(place: Placement) -> Iterator[str]:
    if not place.ctas:
        return
    of = "" if place.sm_count is None else f" of {place.sm_count}"
    device = "" if place.device_busy_share is None else f" ({percent(place.device_busy_share)} of the whole device)"
    yield (
        f"{place.ctas} CTAs on {place.sms_used}{of} SMs, at most {place.resident_per_sm} at once on one: "
        f"{place.waves:.2f} waves; these SMs were busy {percent(place.busy_share)} of the time{device}, "
        f"{place.mean_resident_warps:.1f} warps each"
    )
    start, end = place.start_skew, place.end_skew
    yield (
        f"SMs start within {duration(start.max_ns)} (median {duration(start.p50_ns)}), end within "
        f"{duration(end.max_ns)} (median {duration(end.p50_ns)}); tail {duration(place.tail_ns)}, "
        f"{percent(place.tail_share)} of their time idle"
    )


def _roles(stats: LaunchStats) -> Grid:
    columns = ("role", "warps", "count", "life p50", "life max", "work", "wait", "gap", "events", "lost", "event cost")
    rows = tuple(
        (
            role.name,
            numbers_text(role.warps_in_cta),
            str(role.warps),
            str(role.life_p50),
            str(role.life_max),
            percent(role.share(role.work)),
            percent(role.share(role.waiting)),
            percent(role.share(role.gap)),
            str(role.events),
            str(role.lost_events),
            f"<= {percent(role.share(role.cost))}",
        )
        for role in stats.roles
    )
    return Grid(columns, 2, rows)


def _net(detail: Detail, top: int) -> Iterator[Block]:
    """Ranges less the cost of events, beside what was recorded."""
    yield Heading("Less the cost of events: cycles", 3)
    if detail.net is None:
        yield Line("nothing is subtracted from emulated times")
        return
    columns = ("role", "range", "count", "total", "net total", "mean", "net mean", "p50", "net p50")
    rows = tuple(
        (
            row.role,
            row.name,
            *map(str, (row.count, row.total, row.net_total)),
            f"{row.mean:.0f}",
            f"{row.net_mean:.0f}",
            str(row.p50),
            str(row.net_p50),
        )
        for row in detail.net[:top]
    )
    yield Grid(columns, 2, rows)
    if len(detail.net) > top:
        yield Line(f"... and {len(detail.net) - top} more names")
    yield Line(
        f"net: less what the events inside cost in a tight loop on an {DEVICE} ({DATE}), an upper estimate; all other "
        "figures are as recorded"
    )


NAME_COLUMNS = ("range", "", "count", "total", "self", "mean", "p50", "p95", "p99", "max", "mean ns")


def _role(role: RoleRow, top: int) -> Iterator[Block]:
    yield Heading(f"{role.name}: cycles; total and self as a share of the role's life", 3)
    if role.names:
        yield Grid(NAME_COLUMNS, 2, tuple(_name_cells(row) for row in role.names[:top]))
    if len(role.names) > top:
        yield Line(f"... and {len(role.names) - top} more names")
    if role.loop is not None:
        loop = role.loop
        yield Line(
            f"main loop {loop.name}: {percent(loop.share)} waiting, {percent(loop.steady_share)} without the first "
            f"waits ({', '.join(loop.waits)})"
        )
    if role.markers:
        marks = ", ".join(f"{row.name} x{row.count} (median at {row.p50})" for row in role.markers[:top])
        yield Line(f"markers: {marks}")
    if role.gaps:
        yield Line(f"time in no range: {'; '.join(map(_gap, role.gaps))}")
    for series in role.series:
        yield Line(_series(series))


def _name_cells(row: NameRow) -> tuple[str, ...]:
    kind = " ".join(["wait"] * row.wait + ["token"] * row.token)
    counts = (row.p50, row.p95, row.p99, row.max)
    shares = (percent(row.share), percent(row.self_share))
    return (row.name, kind, str(row.count), *shares, f"{row.mean:.0f}", *map(str, counts), f"{row.mean_ns:.0f}")


def _gap(row: GapRow) -> str:
    return f"{row.after or 'entry'} to {row.before or 'exit'} {percent(row.share)} (longest {row.max})"


def _series(series: Series) -> str:
    text = f"{series.name} by payload: {series.distinct} values, median {series.median}"
    if not series.outliers:
        return f"{text}, no outlier"
    far = ", ".join(f"{row.value}: {row.p50}" for row in series.outliers)
    return f"{text}, outliers {far}"


def _critical(stats: LaunchStats) -> Iterator[Block]:
    critical = stats.critical
    if critical is None:
        return
    names = ", ".join(f"{name} {percent(share)}" for name, _, share in critical.names)
    yield Line(
        f"critical warp: warp {critical.warp} of CTA {critical.cta} on SM {critical.sm} ({critical.role}) ends last, "
        f"{duration(critical.late_ns)} after the median of its role" + (f"; self time: {names}" if names else "")
    )


def _flows(rows: tuple[FlowRow, ...]) -> Grid:
    columns = ("flow", "key", "pairs", "mean", "p50", "p95", "p99", "max", "exposed", "unfed", "unused", "left out",
               "backwards")  # fmt: skip
    cells = tuple(
        (
            f"{row.source} -> {row.target}",
            row.key,
            str(row.pairs),
            f"{row.mean:.0f}",
            *map(str, (row.p50, row.p95, row.p99, row.max)),
            percent(row.exposed / row.total) if row.total else "-",
            *map(str, (row.unfed, row.unused, row.left_out, row.backwards)),
        )
        for row in rows
    )
    return Grid(columns, 2, cells)


def _by(table: ByTable, top: int) -> Iterator[Block]:
    if table.ranges:
        payload = ("payload",) if table.key == "payload" else ()
        columns = ("range", *payload, "count", "total", "self", "mean", "min", "p50", "p95", "p99", "max")
        rows = tuple(
            (
                row.name,
                *((row.payload or "",) if payload else ()),
                *map(str, (row.count, row.total, row.self_total)),
                f"{row.mean:.0f}",
                *map(str, (row.min, row.p50, row.p95, row.p99, row.max)),
            )
            for row in table.ranges[:top]
        )
        yield Grid(columns, 1 + len(payload), rows)
    if table.warps:
        columns = (table.key, "top range", "warps", "life", "work", "wait", "gap", "events", "lost", "start", "end")
        rows = tuple(
            (
                row.key,
                "-" if row.top is None else f"{row.top[0]} {percent(row.top[1])}",
                str(row.warps),
                str(row.life),
                *(percent(part / row.life) if row.life else "-" for part in (row.work, row.waiting, row.gap)),
                str(row.events),
                str(row.lost_events),
                f"{row.start_ns} ns",
                f"{row.end_ns} ns",
            )
            for row in table.warps[:top]
        )
        yield Grid(columns, 2, rows)
    hidden = len(table.ranges) + len(table.warps) - top
    if hidden > 0:
        yield Line(f"... and {hidden} more rows (--top N shows more, --format json all)")
    if not table.ranges and not table.warps:
        yield Line("nothing to show")


def _host(host: Host, top: int) -> Iterator[Block]:
    yield Heading("Host", 2)
    if host.ranges:
        rows = tuple(
            (shorten(r.name, MAX_NAME), r.source, str(r.pid), str(r.count), duration(r.total_ns),
             duration(r.longest_ns), str(r.launches))
            for r in host.ranges[:top]
        )  # fmt: skip
        yield Grid(("range", "of", "pid", "count", "total", "longest", "launches"), 2, rows)
    if len(host.ranges) > top:
        yield Line(f"... and {len(host.ranges) - top} more")
    if host.calls:
        calls = tuple(
            (shorten(c.kernel, MAX_NAME), str(c.pid), str(c.calls), str(c.paired),
             *("-" if ns is None else duration(ns) for ns in (c.median_wait_ns, c.longest_wait_ns)))
            for c in host.calls
        )  # fmt: skip
        yield Grid(("launch calls of", "pid", "calls", "known", "median to start", "longest"), 1, calls)
        doubts = [c.uncertainty_ns for c in host.calls if c.uncertainty_ns is not None]
        if doubts:
            yield Line(f"host and device clocks compare to {duration(round(max(doubts)))}")


def _integrity(report: Report) -> Iterator[Block]:
    yield Heading("Integrity", 2)
    lost = sum(row.lost_events for row in report.launches)
    lost_warps = sum(row.lost_warps for row in report.launches)
    yield Line(f"{lost} events and {lost_warps} whole warps lost in all launches", warning=bool(lost or lost_warps))
    for kind, _, text, _ in report.problems[:MAX_PROBLEMS]:
        yield Line(f"problem: {kind}: {text}", warning=True)
    if len(report.problems) > MAX_PROBLEMS:
        yield Line(f"... and {len(report.problems) - MAX_PROBLEMS} more problems", warning=True)
    if not report.problems:
        yield Line("no problem: every event was paired and placed")
    yield from (Line(text) for text in report.builds)
    yield Line(f"event cost: at most, by a tight loop on an {DEVICE} ({DATE}); real loops hide part of it")
    if report.wait_names:
        yield Line(f"taken as waits, by name: {', '.join(report.wait_names)} (--wait REGEX says otherwise)")
    else:
        yield Line("no name looks like a wait (--wait REGEX says which are)")


def _dim(dim: tuple[int, int, int]) -> str:
    return "x".join(map(str, dim))
