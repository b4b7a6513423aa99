"""The host's side in numbers: its ranges by name, and how long launches waited between their call and their start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..trace import Trace


@dataclass(frozen=True)
class RangeRow:
    """Ranges of one name in one process. ``launches``: launch calls of the same thread inside them."""

    pid: int
    source: str
    name: str
    count: int
    total_ns: int
    longest_ns: int
    launches: int


@dataclass(frozen=True)
class CallRow:
    """Launch calls of a kernel, and the time from a call to the start of its launch where both are known (``paired``);
    None where of no call. Good to ``uncertainty_ns``, of the worst of these calls."""

    pid: int
    kernel: str
    calls: int
    paired: int
    median_wait_ns: int | None
    longest_wait_ns: int | None
    uncertainty_ns: float | None


@dataclass(frozen=True)
class Host:
    """Of all processes that recorded their host's side; rows by time."""

    ranges: tuple[RangeRow, ...]
    calls: tuple[CallRow, ...]


def host_rows(trace: Trace) -> Host | None:
    """None where nothing of the host was recorded."""
    facts = trace.meta.get("host", ())
    if not facts:
        return None
    ranges = [row for one in facts for row in _ranges(trace, one)]
    calls = [row for one in facts for row in _calls(trace, one)]
    return Host(tuple(sorted(ranges, key=lambda r: -r.total_ns)), tuple(calls))


def _ranges(trace: Trace, facts: dict[str, Any]) -> list[RangeRow]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in facts["ranges"]:
        groups.setdefault((one["source"], one["name"]), []).append(one)
    inside: Counter[tuple[str, str]] = Counter()
    for call in facts["launches"]:
        around = (facts["ranges"][index] for index in call["around"])
        inside.update({(one["source"], one["name"]) for one in around})
    rows = []
    for (source, name), found in groups.items():
        lengths = [one["end_unix_ns"] - one["begin_unix_ns"] for one in found]
        pid = trace.processes[facts["process"]].pid
        rows.append(RangeRow(pid, source, name, len(found), sum(lengths), max(lengths), inside[source, name]))
    return rows


def _calls(trace: Trace, facts: dict[str, Any]) -> list[CallRow]:
    names = {f"{launch.kernel_id:016x}": launch.kernel for launch in trace.launches}
    groups: dict[str, list[dict[str, Any]]] = {}
    for call in facts["launches"]:
        groups.setdefault(call["kernel_id"], []).append(call)
    rows = []
    for kernel, calls in groups.items():
        known = [c for c in calls if c["launch"] is not None and c["ns"] is not None]
        waits = [trace.launches[c["launch"]].start_ns - c["ns"] for c in known]
        doubt = max((c["uncertainty_ns"] for c in known), default=facts["uncertainty_ns"])
        rows.append(
            CallRow(
                trace.processes[facts["process"]].pid, names.get(kernel, kernel), len(calls), len(waits),
                round(median(waits)) if waits else None, max(waits, default=None), doubt,
            )
        )  # fmt: skip
    return rows
