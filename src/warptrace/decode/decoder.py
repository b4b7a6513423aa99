"""Captures -> Trace: puts the steps together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..raw import Capture, read_capture, read_head
from ..selection import EVERYTHING
from ..trace import Launch, Process, Trace, Warps
from ..wire import unpack_block, unpack_cluster
from .align import HOSTS_NS, Alignment, align_captures, align_devices, shifted_lost
from .anchors import collect_anchors
from .blocks import Found, Source, decode_events
from .clocks import ClockMap, fit_clocks, group_facts, groups_by_launch, ns_per_cycle
from .events import Streams, build_streams, region_cycles
from .host import host_facts
from .launches import LaunchKey, LaunchTable, assign_launches, codes, linear_warps
from .problems import (
    capture_problems,
    clock_problems,
    event_problems,
    launch_problems,
    region_problems,
    stride_problems,
    unsaved_problems,
)
from .room import room_facts
from .selected import expected_warps, selection_problems
from .snapshots import snapshot_facts
from .tables import I32, I64, LostRows, Regions, SiteTable, read_lost, read_regions, site_table
from .topology import Topology, find_topology, sm_clocks
from .windows import window_facts

EPOCH_STEP = 32
EPOCH_MARGIN_NS = 64


@dataclass(frozen=True)
class Identity:
    """Who is who, in trace order. ``regions``: ordered by (launch, cta z, y, x, warp); ``launch`` (n,): of each;
    ``row`` (n,): its row of Warps. ``keys``: one a launch, in start order; ``lost_launch`` (m,): of each lost row."""

    regions: Regions
    launch: I64
    row: I64
    keys: list[LaunchKey]
    lost_launch: I64


@dataclass(frozen=True)
class LostWarps:
    """Warps without a region, one row each: launch, row of Warps, cta (k, 3), warp, sm, events lost, exit in ns of
    %globaltimer."""

    launch: I64
    row: I64
    cta: I32
    warp: I64
    sm: I64
    lost: I64
    time: I64


@dataclass(frozen=True)
class Times:
    """ns of %globaltimer are counted from ``epoch``: of regions ``time0`` (their clock's origin), ``entry`` and
    ``end`` (its exit; the entry where the warp never ended), and of lost warps. ``cycles``: of the entry, since the
    clock's origin."""

    epoch: int
    cycles: I64
    time0: I64
    entry: I64
    end: I64
    lost: I64


def decode_each(paths: Sequence[Path], *, hosts_ns: float = HOSTS_NS) -> Iterator[Trace]:
    """A Trace of each capture that holds anything, one after the other, all on one timeline: what does not fit memory
    together.

    ``epoch_ns`` of each is its own, and on that timeline; what the alignment lacks is told with the first.
    ``hosts_ns``: as for ``decode``. Raises CaptureError where one cannot be read.
    """
    alignment = align_captures([read_head(path) for path in paths], hosts_ns)
    first = True
    for number, path in enumerate(paths):
        capture = read_capture(path)
        if capture.recorded:
            yield decode([capture], alignment=alignment.of_process(number, tell=first))
            first = False


def decode(
    captures: Sequence[Capture], *, hosts_ns: float = HOSTS_NS, alignment: Alignment | None = None
) -> Trace:
    """Decodes the captures of one run, or of several, into one Trace; no captures give an empty one.

    ``hosts_ns``: how far the clocks of two machines may be apart, where the captures are of several. ``alignment``: of
    their devices, where it is known already. Damage, loss and
    doubt are counted in ``Trace.problems``; nothing in the captures' data raises.
    """
    table = site_table(captures)
    regions, batches, problems = read_regions(captures)
    lost = read_lost(captures)
    launches = assign_launches(regions, lost)
    regions, launch = regions.select(launches.keep), launches.of_region[launches.keep]
    if alignment is None:
        alignment = align_devices(captures, regions, lost, hosts_ns)
    aligned = alignment.facts(regions)
    lost = shifted_lost(lost, alignment)
    nominal = _nominal_clocks(captures)
    anchors = collect_anchors(regions, batches, table, ns_per_cycle(regions, nominal))
    clock = _aligned(fit_clocks(regions, launch, nominal, anchors), regions, alignment)
    identity, lost_warps, clock = _order(regions, launch, launches, lost, clock)
    streams = build_streams(identity.regions, batches, table)
    times = _times(identity.regions, lost_warps, clock, alignment)
    source = Source(
        identity.regions, streams, batches, table, clock, identity.launch, identity.row, times.cycles, times.time0,
        ns_per_cycle(identity.regions, nominal),
    )  # fmt: skip
    found = decode_events(source)
    end = np.where(identity.regions.closed, times.end, found.last_ns)
    topology = find_topology(captures, identity.regions, identity.launch, clock, alignment.names)
    warps = _placed(_warps(identity, lost_warps, streams, times, end), identity.keys, topology)
    clock = _with_stamps(clock, identity.regions, times.cycles, found)
    groups = groups_by_launch(clock, len(identity.keys))
    places = [(key.process, key.device) for key in identity.keys]
    facts = [group_facts(clock, one) for one in groups]
    trace_launches = _launches(identity, warps, table, facts, _contexts(captures))
    problems += capture_problems(captures)
    problems += [*unsaved_problems(captures, trace_launches, identity.keys), *alignment.problems]
    problems += selection_problems(trace_launches)
    problems += launch_problems(trace_launches, warps, table)
    problems += region_problems(identity, streams)
    problems += event_problems(found.doubts, table)
    problems += stride_problems(identity, table)
    problems += clock_problems(identity, facts, found.outside, found.long_gap)
    host, doubts = host_facts(captures, alignment, times.epoch, trace_launches)
    problems += doubts
    return Trace(
        epoch_ns=times.epoch,
        strings=table.strings,
        sites=table.sites,
        processes=tuple(Process(int(c.manifest.get("pid", 0)), c.manifest) for c in captures),
        launches=trace_launches,
        warps=warps,
        ranges=found.ranges,
        markers=found.markers,
        open=found.open,
        full=np.sort(identity.row[found.full]),
        problems=tuple(problems),
        emulated=any(bool(c.manifest.get("emulated")) for c in captures),
        meta={
            "clocks": [
                {"launch": i, **fact, **of_sms}
                for i, (fact, of_sms) in enumerate(
                    zip(facts, sm_clocks(clock, groups, topology, places, times.epoch), strict=True)
                )
            ],
            "topology": topology.facts,
            "kernels": table.kernels,
            "room": room_facts(identity, streams, lost, lost_warps, table),
            "alignment": aligned,
            "snapshots": snapshot_facts(captures, trace_launches, warps, times.epoch, alignment),
            "host_start": alignment.host_start(times.epoch),
            "windows": window_facts(captures, alignment, times.epoch),
            "host": host,
            **_meta(captures),
        },
    )


def _aligned(clock: ClockMap, regions: Regions, alignment: Alignment) -> ClockMap:
    """The clock maps on the common timeline of all devices."""
    process, device = (np.zeros(len(clock.time0), np.int32) for _ in range(2))
    process[clock.group], device[clock.group] = regions.process, regions.device
    return replace(clock, time0=clock.time0 + alignment.shift(process, device, clock.time0))


def _with_stamps(clock: ClockMap, regions: Regions, entry: I64, found: Found) -> ClockMap:
    """The clock maps, with what they are worth at entries, exits and events. ``entry``: cycles since a clock's origin.
    Events of a warp that never ended may lie far behind the last anchor: its last one farthest."""
    group = clock.group
    ended = np.flatnonzero(regions.closed)
    exits = entry[ended] + region_cycles(regions)[ended]
    return clock.with_stamps(
        (group, clock.doubt(group, entry)),
        (group[ended], clock.doubt(group[ended], exits)),
        (group, clock.doubt(group, entry + found.last_cycle)),
        (group, found.doubt),
    )


def _meta(captures: Sequence[Capture]) -> dict[str, Any]:
    """Host-side knowledge of all processes together."""
    counts: Counter[str] = Counter()
    uninstrumented: list[str] = []
    deselected: list[str] = []
    for capture in captures:
        counts.update({str(k): int(v) for k, v in capture.manifest.get("launches", {}).items()})
        uninstrumented += capture.manifest.get("uninstrumented", [])
        deselected += capture.manifest.get("deselected", [])
    records = {k.kernel_id: k for capture in captures for k in capture.kernels.values() if k.build}
    return {
        "launch_counts": dict(sorted(counts.items())),
        "uninstrumented": sorted(set(uninstrumented)),
        "deselected": sorted(set(deselected)),
        "builds": [{"kernel_id": k.kernel_id, "kernel": k.name, "arch": k.arch, **k.build} for k in records.values()],
    }


def _nominal_clocks(captures: Sequence[Capture]) -> dict[tuple[int, int], int]:
    return {
        (process, int(d["ordinal"])): int(d.get("clock_khz") or 0)
        for process, capture in enumerate(captures)
        for d in capture.manifest.get("devices", [])
    }


# ----------------------------------------------------------------------------------------------------- the order
def _order(
    regions: Regions, launch: I64, table: LaunchTable, lost: LostRows, clock: ClockMap
) -> tuple[Identity, LostWarps, ClockMap]:
    """Launches by start, warps by (launch, cta z, y, x, warp); lost warps take their place among the others."""
    rank, keys = _rank(regions, launch, table, lost, clock)
    launch, lost_launch = rank[launch], rank[table.of_lost]
    missing = _lost_warps(lost, lost_launch)
    linear = linear_warps(regions.headers)
    if len(missing.row):
        order, row_of_region, row_of_lost = _mixed_order(regions, launch, missing)
        missing = replace(missing, row=row_of_lost)
    else:
        span = int(linear.max(initial=0)) + 1
        order = np.argsort(launch * span + linear, kind="stable")
        row_of_region = np.arange(len(regions))
    clock = replace(clock, group=clock.group[order], launch=rank[clock.launch] if len(clock.launch) else clock.launch)
    identity = Identity(regions.select(order), launch[order], row_of_region, keys, lost_launch)
    return identity, missing, clock


def _rank(
    regions: Regions, launch: I64, table: LaunchTable, lost: LostRows, clock: ClockMap
) -> tuple[I64, list[LaunchKey]]:
    """(place of each launch in start order, the keys in that order)."""
    start = np.full(len(table.keys), np.iinfo(np.int64).max)
    entry = clock.time0[clock.group] + clock.to_ns(clock.group, _entry_cycles(regions, clock))
    np.minimum.at(start, launch, entry)
    only_lost = np.flatnonzero(start[table.of_lost] == np.iinfo(np.int64).max)
    exits = lost.records["exit_globaltimer"].astype(np.int64)
    np.minimum.at(start, table.of_lost[only_lost], exits[only_lost])
    ties = [(int(start[i]), k.process, k.device, k.grid_id, k.replay) for i, k in enumerate(table.keys)]
    order = sorted(range(len(ties)), key=ties.__getitem__)
    rank = np.empty(len(ties), np.int64)
    rank[order] = np.arange(len(ties))
    return rank, [table.keys[i] for i in order]


def _entry_cycles(regions: Regions, clock: ClockMap) -> I64:
    """Cycles of each region's entry since its clock group's origin."""
    cycles: I64 = regions.headers["entry_clock"].astype(np.int64) - clock.cycle0[clock.group]
    return cycles


def _lost_warps(lost: LostRows, launch: I64) -> LostWarps:
    """Rows of the lost tables, a warp's lanes added up."""
    r = lost.records
    columns = [launch, *(r["cta"][:, i].astype(np.int64) for i in (2, 1, 0)), r["warp"].astype(np.int64)]
    number = np.zeros(len(r), np.int64)
    for column in columns:
        code = codes(column)
        number = codes(number * (int(code.max(initial=0)) + 1) + code)
    n = int(number.max(initial=-1)) + 1
    first = np.zeros(n, np.int64)
    first[number[::-1]] = np.arange(len(r))[::-1]
    events = r["advance"].astype(np.int64) // np.maximum(r["stride"], 1)
    time = np.zeros(n, np.int64)
    np.maximum.at(time, number, r["exit_globaltimer"].astype(np.int64))
    return LostWarps(
        launch=launch[first],
        row=np.zeros(n, np.int64),
        cta=r["cta"][first].astype(np.int32),
        warp=r["warp"][first].astype(np.int64),
        sm=r["sm"][first].astype(np.int64),
        lost=np.bincount(number, events, n).astype(np.int64),
        time=time,
    )


def _mixed_order(regions: Regions, launch: I64, lost: LostWarps) -> tuple[I64, I64, I64]:
    """(order of the regions, row of Warps of each region so ordered, row of Warps of each lost warp)."""
    h = regions.headers
    cta = np.concatenate([h["cta"].astype(np.int64), lost.cta.astype(np.int64)])
    warp = np.concatenate([h["warp"].astype(np.int64), lost.warp])
    everywhere = np.concatenate([launch, lost.launch])
    order = np.lexsort((warp, cta[:, 0], cta[:, 1], cta[:, 2], everywhere))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    region_order = order[order < len(regions)]
    return region_order, row[region_order], row[len(regions) :]


def _times(regions: Regions, lost: LostWarps, clock: ClockMap, alignment: Alignment) -> Times:
    """Times of entries and exits, from an epoch that is before all of them (and so before all events)."""
    cycles = _entry_cycles(regions, clock)
    time0 = clock.time0[clock.group]
    entry = time0 + clock.to_ns(clock.group, cycles)
    end = time0 + clock.to_ns(clock.group, cycles + np.maximum(region_cycles(regions), 0))
    timer = regions.headers["entry_globaltimer"].astype(np.int64)
    timer += alignment.shift(regions.process, regions.device, timer)
    known = [a.min() for a in (entry, end, lost.time, timer) if len(a)]
    epoch = (int(min(known)) // EPOCH_STEP) * EPOCH_STEP - EPOCH_MARGIN_NS if known else 0
    return Times(epoch, cycles, time0 - epoch, entry - epoch, end - epoch, lost.time - epoch)


# ------------------------------------------------------------------------------------------------ warps, launches
def _warps(identity: Identity, lost: LostWarps, streams: Streams, times: Times, end: I64) -> Warps:
    regions = identity.regions
    h, n = regions.headers, len(regions)
    total = n + len(lost.row)

    def column(ours: Any, theirs: Any, dtype: Any) -> Any:
        values = np.empty((total, *np.shape(ours)[1:]), dtype)
        values[identity.row] = ours
        values[lost.row] = theirs
        return values

    stored = np.bincount(streams.region, streams.stored, n)
    unknown = np.full(total, -1, np.int32)
    return Warps(
        launch=column(identity.launch, lost.launch, np.int32),
        cta=column(h["cta"], lost.cta, np.int32),
        warp=column(h["warp"], lost.warp, np.int32),
        sm=column(h["sm"], lost.sm, np.int32),
        tpc=unknown,
        gpc=unknown.copy(),
        start_ns=column(times.entry, times.lost, np.int64),
        end_ns=column(end, times.lost, np.int64),
        start_cycle=column(h["entry_clock"], 0, np.int64),
        cycles=column(region_cycles(regions), -1, np.int64),
        events=column(stored, 0, np.int64),
        lost=column(np.bincount(streams.region, streams.lost, n), lost.lost, np.int64),
        closed=column(regions.closed, 1, np.uint8),
    )


def _placed(warps: Warps, keys: list[LaunchKey], topology: Topology) -> Warps:
    """The warps with their GPCs and TPCs."""
    process, device = (np.array([getattr(k, name) for k in keys], np.int64) for name in ("process", "device"))
    gpc, tpc = topology.of(process[warps.launch], device[warps.launch], warps.sm.astype(np.int64))
    return replace(warps, gpc=gpc, tpc=tpc)


def _contexts(captures: Sequence[Capture]) -> dict[tuple[int, int], int]:
    """Number of the context of each (process, device): a process records in one context a device."""
    return {
        (process, int(d["ordinal"])): number
        for process, capture in enumerate(captures)
        for number, d in enumerate(capture.manifest.get("devices", []), 1)
    }


def _launches(
    identity: Identity,
    warps: Warps,
    table: SiteTable,
    facts: list[dict[str, Any]],
    contexts: dict[tuple[int, int], int],
) -> tuple[Launch, ...]:
    n = len(identity.keys)
    recorded = np.zeros(len(warps), np.bool_)
    recorded[identity.row] = True
    sums = {k: np.bincount(warps.launch, getattr(warps, k), n).astype(np.int64) for k in ("events", "lost")}
    with_region = np.bincount(warps.launch[recorded], minlength=n)
    without = np.bincount(warps.launch[~recorded], minlength=n)
    start, end = _spans(warps, recorded, with_region)
    headers = identity.regions.headers
    first = np.searchsorted(identity.launch, np.arange(n))
    graphs = _graphs(identity.keys)
    result = []
    for i, key in enumerate(identity.keys):
        header = headers[int(first[i])] if with_region[i] else None
        record = table.kernels.get(key.kernel_id)
        grid, block, cluster = _dims(header)
        expected, selection = expected_warps(record.selection if record else EVERYTHING, grid, block, cluster)
        name = record.name if record else f"unknown_kernel_{key.kernel_id:016x}"
        result.append(
            Launch(
                index=i,
                process=key.process,
                device=key.device,
                context_id=contexts.get((key.process, key.device), 1),
                grid_id=key.grid_id,
                kernel=name,
                symbol=record.symbol if record else name,
                kernel_id=key.kernel_id,
                grid=grid,
                block=block,
                cluster=cluster,
                start_ns=int(start[i]),
                end_ns=int(end[i]),
                warps_recorded=int(with_region[i]),
                warps_expected=expected,
                events=int(sums["events"][i]),
                lost_events=int(sums["lost"][i]),
                lost_warps=int(without[i]),
                clock_uncertainty_ns=float(facts[i].get("uncertainty_ns", 0.0)),
                graph=(graphs[key.unit], key.replay) if key.graph else None,
                stream=key.stream,
                selection=selection,
            )
        )
    return tuple(result)


def _spans(warps: Warps, recorded: Any, with_region: Any) -> tuple[I64, I64]:
    """First entry and last exit of each launch's recorded warps; of its lost ones where none was recorded."""
    n = len(with_region)
    start, end = np.full(n, np.iinfo(np.int64).max), np.full(n, np.iinfo(np.int64).min)
    use = recorded | (with_region == 0)[warps.launch]
    np.minimum.at(start, warps.launch[use], warps.start_ns[use])
    np.maximum.at(end, warps.launch[use], warps.end_ns[use])
    return start, end


def _graphs(keys: list[LaunchKey]) -> dict[int, str]:
    """Names of graphs by unit, numbered by process and grid id: no two of a trace share one."""
    names: dict[int, str] = {}
    for key in sorted(keys, key=lambda k: (k.process, k.grid_id, k.device, k.kernel_id)):
        if key.graph and key.unit not in names:
            names[key.unit] = f"graph_exec_{len(names) + 1}"
    return names


def _dims(header: Any) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]:
    """(grid, block, cluster); zeros and cluster 1 where no region tells them."""
    if header is None:
        return (0, 0, 0), (0, 0, 0), (1, 1, 1)
    x, y, z = (int(v) for v in header["grid"])
    bx, by, bz = (int(v) for v in unpack_block(header["block"].reshape(1))[0])
    cx, cy, cz = (int(v) for v in unpack_cluster(header["cluster"].reshape(1))[0])
    return (x, y, z), (bx, by, bz), (cx, cy, cz)


