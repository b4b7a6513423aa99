"""Traces built by hand for the tests: events are written in program order with a fake clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from warptrace.trace import (
    RANGE_STACK,
    RANGE_TOKEN,
    Launch,
    Markers,
    Problem,
    Process,
    Ranges,
    Trace,
    TraceSite,
    Warps,
)
from warptrace.wire import EventKind, PayloadType

EPOCH = 1_700_000_000_000_000_000
CYCLES_PER_NS = 2

Payload = tuple[PayloadType, int]
NO_PAYLOAD: Payload = (PayloadType.NONE, 0)


@dataclass
class Open:
    """A range that is still open."""

    row: dict[str, Any]


@dataclass
class WarpScript:
    """The events of one warp, in program order. Times are ns; a push or pop belongs to the stack of its lane."""

    trace: TraceScript
    row: dict[str, Any]
    ranges: list[dict[str, Any]] = field(default_factory=list)
    markers: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[int, list[Open]] = field(default_factory=dict)
    seq: int = 0

    def mark(self, ns: int, name: str, payload: Payload = NO_PAYLOAD, lane: int = 0) -> None:
        site = self.trace.site(EventKind.MARK, name, payload[0], self.row["launch"])
        self.markers.append(
            {"name": self.trace.string(name), "lane": lane, "ns": ns, "cycle": self._cycle(ns), "seq": self._next(),
             "type": payload[0], "bits": payload[1], "site": site}
        )  # fmt: skip

    def push(self, ns: int, name: str, payload: Payload = NO_PAYLOAD, lane: int = 0) -> Open:
        stack = self.stacks.setdefault(lane, [])
        opened = self._open(ns, name, payload, lane, EventKind.PUSH, RANGE_STACK, len(stack))
        stack.append(opened)
        return opened

    def pop(self, ns: int, lane: int = 0) -> None:
        self._close(self.stacks[lane].pop(), ns, NO_PAYLOAD, EventKind.POP, "")

    def switch(self, ns: int, name: str, payload: Payload = NO_PAYLOAD, lane: int = 0) -> None:
        """One stamp ends the innermost range and starts the next: they share a sequence number."""
        self.pop(ns, lane)
        self.seq -= 1
        self.push(ns, name, payload, lane)

    def start(self, ns: int, name: str, payload: Payload = NO_PAYLOAD, lane: int = 0) -> Open:
        return self._open(ns, name, payload, lane, EventKind.START, RANGE_TOKEN, 0)

    def end(self, opened: Open, ns: int, payload: Payload = NO_PAYLOAD) -> None:
        name = self.trace.strings[opened.row["name"]]
        self._close(opened, ns, payload, EventKind.END, name)

    def _open(
        self, ns: int, name: str, payload: Payload, lane: int, event: EventKind, kind: int, depth: int
    ) -> Open:
        row = {
            "name": self.trace.string(name), "kind": kind, "lane": lane, "depth": depth, "start_ns": ns,
            "start_cycle": self._cycle(ns), "start_seq": self._next(),
            "start_type": payload[0], "start_bits": payload[1],
            "start_site": self.trace.site(event, name, payload[0], self.row["launch"]),
        }  # fmt: skip
        self.ranges.append(row)
        return Open(row)

    def _close(self, opened: Open, ns: int, payload: Payload, event: EventKind, name: str) -> None:
        opened.row.update(
            end_ns=ns, end_cycle=self._cycle(ns), end_seq=self._next(), end_type=payload[0], end_bits=payload[1],
            end_site=self.trace.site(event, name, payload[0], self.row["launch"]),
        )  # fmt: skip

    def _next(self) -> int:
        self.seq += 1
        return self.seq - 1

    def _cycle(self, ns: int) -> int:
        return (ns - self.row["start_ns"]) * CYCLES_PER_NS


class TraceScript:
    """Collects launches and warps; :meth:`build` makes the columns."""

    def __init__(self, *, emulated: bool = False, epoch_ns: int = EPOCH) -> None:
        self.strings: list[str] = []
        self.sites: list[TraceSite] = []
        self.launches: list[Launch] = []
        self.processes: list[Process] = []
        self.warps: list[WarpScript] = []
        self.problems: list[Problem] = []
        self.emulated = emulated
        self.epoch_ns = epoch_ns

    def string(self, name: str) -> int:
        if name not in self.strings:
            self.strings.append(name)
        return self.strings.index(name)

    def site(self, kind: EventKind, name: str, payload: PayloadType, launch: int) -> int:
        kernel = self.launches[launch].kernel_id
        for index, site in enumerate(self.sites):
            if (site.kernel_id, site.kind, site.name, site.payload) == (kernel, kind, name, payload):
                return index
        number = 1 + sum(site.kernel_id == kernel for site in self.sites)
        self.sites.append(TraceSite(kernel, number, kind, name, payload, "kernel.py", 10 * number))
        return len(self.sites) - 1

    def process(self, pid: int) -> int:
        self.processes.append(Process(pid, {"pid": pid}))
        return len(self.processes) - 1

    def launch(self, **facts: Any) -> int:
        if not self.processes:
            self.process(4242)
        index = len(self.launches)
        default = Launch(
            index=index, process=0, device=0, context_id=1, grid_id=index + 7, kernel="gemm", symbol="kernel_gemm_0",
            kernel_id=99, grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), start_ns=0, end_ns=0,
            warps_recorded=0, warps_expected=1, events=0, lost_events=0, lost_warps=0, clock_uncertainty_ns=4.5,
        )  # fmt: skip
        self.launches.append(replace(default, **facts))
        return index

    def warp(
        self, launch: int, start_ns: int, end_ns: int, *, cta: tuple[int, int, int] = (0, 0, 0), warp: int = 0,
        sm: int = 0, tpc: int = -1, gpc: int = -1, lost: int = 0, closed: int = 1,
    ) -> WarpScript:  # fmt: skip
        row = {
            "launch": launch, "cta": cta, "warp": warp, "sm": sm, "tpc": tpc, "gpc": gpc,
            "start_ns": start_ns, "end_ns": end_ns,
            "start_cycle": 1000 * sm, "cycles": (end_ns - start_ns) * CYCLES_PER_NS if closed else -1, "lost": lost,
            "closed": closed,
        }  # fmt: skip
        self.warps.append(WarpScript(self, row))
        return self.warps[-1]

    def build(self) -> Trace:
        """The trace; launches get their counts and times from their warps."""
        self.warps.sort(key=lambda w: (w.row["launch"], w.row["cta"][::-1], w.row["warp"]))
        for script in self.warps:
            script.row["events"] = script.seq
        launches = tuple(self._finished(launch) for launch in self.launches)
        return Trace(
            epoch_ns=self.epoch_ns,
            strings=tuple(self.strings),
            sites=tuple(self.sites),
            processes=tuple(self.processes),
            launches=launches,
            warps=_columns(Warps, [script.row for script in self.warps]),
            ranges=_columns(
                Ranges,
                [
                    {**row, "warp": i}
                    for i, script in enumerate(self.warps)
                    for row in sorted(script.ranges, key=lambda r: r["start_seq"])
                ],
            ),
            markers=_columns(Markers, [{**row, "warp": i} for i, s in enumerate(self.warps) for row in s.markers]),
            problems=tuple(self.problems),
            emulated=self.emulated,
        )

    def _finished(self, launch: Launch) -> Launch:
        rows = [script.row for script in self.warps if script.row["launch"] == launch.index]
        if not rows:
            return launch
        return replace(
            launch,
            start_ns=min(row["start_ns"] for row in rows),
            end_ns=max(row["end_ns"] for row in rows),
            warps_recorded=len(rows),
            events=sum(row["events"] for row in rows),
            lost_events=sum(row["lost"] for row in rows),
        )


_DTYPES = {
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "U32": np.uint32,
    "U64": np.uint64,
}  # fmt: skip


def _columns(kind: Any, rows: list[dict[str, Any]]) -> Any:
    columns = {}
    for name, annotation in kind.__annotations__.items():
        values = np.array([row[name] for row in rows], _DTYPES[annotation])
        columns[name] = values.reshape(-1, 3) if name == "cta" else values
    return kind(**columns)
