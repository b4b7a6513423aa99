"""Writes the page: frame, style, scripts, columns, facts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...errors import WarptraceError
from ...flows import Flow
from ...flows.match import match
from ...report.hang import file_text, hang_report, payloads_text
from ...report.report import Detail, Report, build
from ...trace import I64, Launch, Markers, Ranges, Trace, Warps
from ...wire import PAYLOAD_BITS, PayloadType
from .._common import Progress, replacing, row_bounds
from ..payload import KIND_OF_TYPE, ValueKind
from .columns import column, element
from .histogram import histograms
from .host import HostSide, host_side
from .rows import timeline_rows
from .sample import Sample, choose

MAX_SLICES = 1_000_000
"""Ranges and markers that a page holds at most; of a larger trace it holds a sample, and says so."""
MAX_WARPS = 1_000_000
"""Warps whose lives a page shows, whether their events are in the sample or not. Of more, those of the sample."""
MAX_ANALYSED = 64
"""Launches up to which each is analysed; with more, the one of median duration of each kernel and shape."""
SCRIPTS = (
    "inflate.js", "data.js", "format.js", "colours.js", "tree.js", "paint.js", "timeline.js", "tables.js",
    "charts.js", "main.js",
)  # fmt: skip
EXACT = 1 << 53
"""Integers up to here are exact in the numbers of JavaScript."""

Rows = TypeVar("Rows", Warps, Ranges, Markers)
Columns = Iterator[tuple[str, NDArray[Any], bool]]


def write_html(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    max_slices: int = MAX_SLICES,
    flows: Sequence[Flow] = (),
    progress: Progress | None = None,
) -> None:
    """Writes ``trace`` to ``path`` as a page that needs nothing else.

    ``title`` names it (default: the file's stem). With more than ``max_slices`` ranges and markers the timeline holds
    whole clusters of CTAs that make up at most so many; tables and distributions are of the whole trace.
    ``flows``: beside those that the traced program declared. Raises
    :class:`~warptrace.errors.WarptraceError` where the file cannot be written or times do not fit.
    """
    row_bounds(trace)
    _check(trace)
    total = len(trace.warps) + len(trace.ranges) + len(trace.markers)
    sample = choose(trace, max_slices)
    every = range(len(trace.launches)) if len(trace.launches) <= MAX_ANALYSED else None
    report = build(trace, every, flows=flows)
    host = host_side(trace)
    columns = [*_columns(trace, sample, report), *host.columns()]
    with replacing(path) as file:
        head, tail = _frame(title or Path(path).stem)
        file.write(head)
        for number, (name, values, delta) in enumerate(columns, 1):
            file.writelines(column(name, values, delta=delta))
            if progress is not None:
                progress(total * number // len(columns), total)
        facts = json.dumps(_finite(_facts(trace, sample, report, host)), allow_nan=False, default=str).encode()
        file.writelines(element("facts", facts, bytes=len(facts)))
        file.write(tail)


def _check(trace: Trace) -> None:
    """Refuses what would silently become a wrong picture."""
    ranges, warps = trace.ranges, trace.warps
    for what, wrong in {
        "ranges end before they start": (ranges.end_ns < ranges.start_ns) | (ranges.end_seq <= ranges.start_seq),
        "warps end before they start": warps.end_ns < warps.start_ns,
        "times are more than 104 days from the start": np.abs(np.concatenate([ranges.end_ns, warps.end_ns])) >= EXACT,
    }.items():
        if wrong.any():
            raise WarptraceError(f"inconsistent trace: {int(wrong.sum())} {what}; decode the capture again")


def _frame(title: str) -> tuple[bytes, bytes]:
    """What stands before and after the data."""
    here = files(__package__)
    page = (here / "page.html").read_text(encoding="utf-8")
    script = "\n".join((here / name).read_text(encoding="utf-8") for name in SCRIPTS)
    for mark, text in {  # the title last: it may read like one of the marks
        "/* style */": (here / "page.css").read_text(encoding="utf-8"),
        "/* script */": script,
        "<!-- title -->": escape(title),
    }.items():
        page = page.replace(mark, text, 1)
    head, _, tail = page.partition("<!-- data -->")
    return head.encode(), tail.encode()


# ----------------------------------------------------------------------------------------------------------- columns
def _columns(trace: Trace, sample: Sample, report: Report) -> Columns:
    kept = np.ones(len(trace.warps), np.bool_) if len(trace.warps) <= MAX_WARPS else sample.warps
    number = np.cumsum(kept) - 1  # row of a warp in the page
    yield from _warp_columns(_take(trace.warps, kept))
    yield "warps.clock", since_first(trace)[kept], True
    yield "warps.role", report.roles.of_warp[kept], False
    yield "warps.shown", sample.warps[kept].astype(np.uint8), False
    chosen = np.flatnonzero(sample.warps[trace.ranges.warp])
    ranges = _take(trace.ranges, chosen)
    row = timeline_rows(ranges)
    order = np.lexsort((ranges.start_seq, row, ranges.warp))
    yield "ranges.row", row[order], False
    yield from _range_columns(_take(ranges, order), number)
    yield from _flow_columns(trace, report.flows, chosen[order])
    yield from _marker_columns(_take(trace.markers, sample.warps[trace.markers.warp]), number)
    counts = histograms(trace)
    for name in ("launch", "name", "bin", "count"):
        yield f"histogram.{name}", getattr(counts, name), name != "count"


def _take(rows: Rows, chosen: NDArray[Any]) -> Rows:
    return replace(rows, **{one.name: getattr(rows, one.name)[chosen] for one in fields(rows)})


def since_first(trace: Trace) -> I64:
    """Cycles from the first entry of a warp on each SM to every warp's entry: small enough to be exact in a page."""
    warps = trace.warps
    place = np.array([(one.process, one.device) for one in trace.launches], np.int64).reshape(-1, 2)[warps.launch]
    sm, index = np.unique(np.column_stack([place, warps.sm]), axis=0, return_inverse=True)
    first = np.full(len(sm), np.iinfo(np.int64).max)
    np.minimum.at(first, index.reshape(-1), warps.start_cycle)
    since: I64 = warps.start_cycle - first[index.reshape(-1)]
    return since


def _warp_columns(warps: Warps) -> Columns:
    for axis, name in enumerate("xyz"):
        yield f"warps.cta_{name}", warps.cta[:, axis], False
    for name in ("launch", "warp", "sm", "tpc", "gpc", "start_ns", "cycles", "events", "lost", "closed"):
        yield f"warps.{name}", getattr(warps, name), name in ("launch", "start_ns")
    yield "warps.ns", warps.end_ns - warps.start_ns, False


def _range_columns(ranges: Ranges, number: I64) -> Columns:
    yield "ranges.warp", number[ranges.warp], True
    for name in ("name", "kind", "lane", "depth", "start_type", "start_bits", "end_type", "end_bits", "start_site",
                 "end_site"):  # fmt: skip
        yield f"ranges.{name}", getattr(ranges, name), False
    yield "ranges.start_ns", ranges.start_ns, True
    yield "ranges.ns", ranges.end_ns - ranges.start_ns, False
    yield "ranges.start_cycle", ranges.start_cycle, True
    yield "ranges.cycles", ranges.end_cycle - ranges.start_cycle, False


def _flow_columns(trace: Trace, flows: Sequence[Flow], shown: I64) -> Columns:
    """Which range of the page feeds which, of the pairs that it holds. ``shown``: the trace's row of each range."""
    place = np.full(len(trace.ranges), -1, np.int64)
    place[shown] = np.arange(len(shown))
    pairs = [match(trace, flow) for flow in flows]
    empty = [np.empty(0, np.int64)]
    source = place[np.concatenate([*empty, *(one.source for one in pairs)])]
    target = place[np.concatenate([*empty, *(one.target for one in pairs)])]
    held = (source >= 0) & (target >= 0)
    yield "flows.source", source[held], True
    yield "flows.target", target[held], True


def _marker_columns(markers: Markers, number: I64) -> Columns:
    yield "markers.warp", number[markers.warp], True
    for name in ("name", "lane", "type", "bits", "site"):
        yield f"markers.{name}", getattr(markers, name), False
    yield "markers.ns", markers.ns, True
    yield "markers.cycle", markers.cycle, True


# ------------------------------------------------------------------------------------------------------------- facts
def _facts(trace: Trace, sample: Sample, report: Report, host: HostSide) -> dict[str, Any]:
    """Everything that is no column."""
    waits = set(report.wait_names)
    return {
        "version": __version__,
        "epoch_ns": str(trace.epoch_ns),  # more digits than JavaScript's numbers have
        "emulated": trace.emulated,
        "strings": trace.strings,
        "sites": [[site.name, site.file, site.line] for site in trace.sites],
        "processes": [_process(one.pid, one.manifest) for one in trace.processes],
        "launches": [_launch(one) for one in trace.launches],
        "problems": [{"kind": p.kind, "count": p.count, "text": p.text, "launch": p.launch} for p in trace.problems],
        "roles": [role.name for role in report.roles.roles],
        "waits": [index for index, name in enumerate(trace.strings) if name in waits],
        "details": [_details(one) for one in report.details],
        "builds": report.builds,
        "hang": _hang(trace),
        "host": host.facts(trace, report.host),
        "payload_types": {int(one): _payload_type(one) for one in PayloadType},
        "sample": {
            "clusters": any(one.cluster != (1, 1, 1) for one in trace.launches),
            "whole": sample.whole,
            "groups": sample.groups,
            "groups_of": sample.groups_of,
            "slices": sample.slices,
            "slices_of": sample.slices_of,
        },
    }


def _hang(trace: Trace) -> dict[str, Any] | None:
    """Where warps were that had not ended, by launch and group; None: all ended."""
    report = hang_report(trace)
    if report is None:
        return None
    groups = [
        {
            "launch": launch.index,
            "role": group.role,
            "warps": group.warps,
            "where": group.where,
            "full": group.full,
            "ranges": [f"{frame.name}{payloads_text(frame)}" for frame in group.stack],
            "site": file_text(group.stack[-1]) if group.stack else "",
            "open_ns": [group.stack[-1].least_ns, group.stack[-1].most_ns] if group.stack else None,
            "last": group.last,
            "silent_ns": [group.least_silent_ns, group.most_silent_ns],
        }
        for launch in report.launches
        for group in launch.groups
    ]
    return {"time_from": report.time_from, "groups": groups}


def _process(pid: int, manifest: dict[str, Any]) -> dict[str, Any]:
    devices = manifest.get("devices", ())
    return {
        "pid": pid,
        "host": manifest.get("host"),
        "argv": manifest.get("argv"),
        "devices": [{key: one.get(key) for key in ("ordinal", "name", "sm_count", "driver")} for one in devices],
    }


def _details(detail: Detail) -> dict[str, Any]:
    """What the page shows of a launch's analysis."""
    stats = detail.stats
    facts = asdict(stats)
    facts["launch"] = {"number": stats.launch.number, "start_ns": stats.launch.start_ns}
    facts["findings"] = [finding.text for finding in detail.findings]
    for role in facts["roles"]:
        for unused in ("series", "gaps", "markers", "loop"):
            del role[unused]
    return facts


def _payload_type(kind: PayloadType) -> list[Any]:
    """How the page reads a payload: [none, bool, int, uint or float; bits; the form of a 16-bit float]."""
    form = ["bfloat"] if kind == PayloadType.BF16 else []
    return [ValueKind(int(KIND_OF_TYPE[kind])).name.lower(), PAYLOAD_BITS[kind], *form]


def _finite(value: Any) -> Any:
    """``value`` with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _launch(launch: Launch) -> dict[str, Any]:
    facts = {one.name: getattr(launch, one.name) for one in fields(launch)}
    for name in ("context_id", "grid_id", "kernel_id"):
        facts[name] = str(facts[name])
    facts["stream"] = launch.stream_name
    return facts
