"""The host's ranges and launch calls as rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..trace import Trace

WITHIN = " > "
"""Between the names of the ranges around a call, outermost first."""


@dataclass(frozen=True)
class Field:
    """A column: ``kind`` is "text", "bool", or a numpy dtype; ``of`` gives a row's value, None where there is none."""

    name: str
    kind: str
    of: Callable[[Trace, dict[str, Any]], Any]


def _key(name: str) -> Callable[[Trace, dict[str, Any]], Any]:
    return lambda trace, row: row[name]


def _launch(row: dict[str, Any]) -> int | None:
    index: int | None = row["launch"]
    return index


def _number(trace: Trace, row: dict[str, Any]) -> int | None:
    index = _launch(row)
    return None if index is None else index + 1


def _after(trace: Trace, row: dict[str, Any]) -> int | None:
    index = _launch(row)
    return None if index is None or row["ns"] is None else trace.launches[index].start_ns - row["ns"]


def _long(trace: Trace, row: dict[str, Any]) -> int | None:
    return None if row["end_unix_ns"] is None else row["end_unix_ns"] - row["begin_unix_ns"]


_PLACE = (
    Field("host", "text", lambda trace, row: trace.processes[row["process"]].host),
    Field("pid", "int64", lambda trace, row: trace.processes[row["process"]].pid),
    Field("rank", "int64", lambda trace, row: trace.processes[row["process"]].rank),
)
_THREAD = (Field("thread", "int64", _key("thread")), Field("thread_name", "text", _key("thread_name")))
_DOUBT = Field("clock_uncertainty_ns", "float64", _key("uncertainty_ns"))

FIELDS: dict[str, tuple[Field, ...]] = {
    "host_ranges": (
        *_PLACE, *_THREAD,
        Field("source", "text", _key("source")),
        Field("kind", "text", _key("kind")),
        Field("name", "text", _key("name")),
        Field("start_ns", "int64", _key("begin_ns")),
        Field("end_ns", "int64", _key("end_ns")),
        Field("duration_ns", "int64", _long),
        Field("start_unix_ns", "int64", _key("begin_unix_ns")),
        Field("end_unix_ns", "int64", _key("end_unix_ns")),
        Field("ended", "bool", _key("ended")),
        _DOUBT,
    ),
    "host_launches": (
        *_PLACE,
        Field("device", "int64", _key("device")),
        Field("launch", "int64", _number),
        Field("kernel", "text", lambda trace, row: row["kernels"].get(row["kernel_id"])),
        Field("kernel_id", "uint64", lambda trace, row: int(row["kernel_id"], 16)),
        *_THREAD,
        Field("within", "text", lambda trace, row: WITHIN.join(row["within"]) or None),
        Field("ns", "int64", _key("ns")),
        Field("unix_ns", "int64", _key("unix_ns")),
        Field("start_after_ns", "int64", _after),
        Field("captured", "bool", _key("captured")),
        _DOUBT,
    ),
}  # fmt: skip
"""By table, its columns in order."""


def host_rows(trace: Trace, table: str) -> list[dict[str, Any]]:
    """Rows of one of FIELDS: ranges and marks by begin, or launch calls, process by process."""
    kernels = {f"{one.kernel_id:016x}": one.kernel for one in trace.launches}
    return [
        {**row, "process": facts["process"], "thread_name": facts["threads"].get(row["thread"]), "kernels": kernels}
        for facts in trace.meta.get("host", ())
        for row in (_ranges(facts) if table == "host_ranges" else facts["launches"])
    ]  # fmt: skip


def _ranges(facts: dict[str, Any]) -> list[dict[str, Any]]:
    nothing = {"end_ns": None, "end_unix_ns": None, "ended": None}
    marks = [
        {**mark, **nothing, "kind": "mark", "begin_ns": mark["ns"], "begin_unix_ns": mark["unix_ns"]}
        for mark in facts["marks"]
    ]
    ranges = [{**one, "kind": "range", "ended": not one["open"]} for one in facts["ranges"]]
    return sorted([*ranges, *marks], key=lambda row: int(row["begin_unix_ns"]))


def column(trace: Trace, field: Field, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Values of a column, None where there is none."""
    return [field.of(trace, row) for row in rows]
