"""Traces with a host's side, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from traces import TraceScript

from warptrace.decode.host import name_ranges
from warptrace.trace import Trace

ME, OTHER = 0x7F00_0000_0001, 0x7F00_0000_0002
UNIX = 1_700_000_000_000_000_000
Span = tuple[str, str, int, int | None]
"""Source, name, begin and end; no end: a mark."""


def side(
    spans: Sequence[Span], calls: Sequence[tuple[int, int | None]], *, thread: int = ME, process: int = 0
) -> dict[str, Any]:
    """One process's entry of ``Trace.meta["host"]``. ``calls``: when, and which launch."""
    ranges = [
        {"source": source, "name": name, "thread": thread, "begin_ns": begin, "end_ns": end, "open": False,
         "uncertainty_ns": 900.0, "begin_unix_ns": UNIX + begin, "end_unix_ns": UNIX + end}
        for source, name, begin, end in sorted(spans, key=lambda s: (s[2], -(s[3] or 0)))
        if end is not None
    ]  # fmt: skip
    marks = [
        {"source": source, "name": name, "thread": thread, "ns": begin, "unix_ns": UNIX + begin,
         "uncertainty_ns": 900.0}
        for source, name, begin, end in spans
        if end is None
    ]  # fmt: skip
    launches = [
        {"kernel_id": f"{99:016x}", "thread": thread, "device": 0, "ns": at, "unix_ns": UNIX + at, "launch": launch,
         "captured": launch is None, "uncertainty_ns": 900.0}
        for at, launch in calls
    ]  # fmt: skip
    name_ranges(launches, ranges)
    return {
        "process": process, "uncertainty_ns": 900.0, "threads": {ME: "MainThread"}, "ranges": ranges, "marks": marks,
        "launches": launches, "lost_launches": 0,
    }  # fmt: skip


def with_host(trace: Trace, *sides: dict[str, Any]) -> Trace:
    return replace(trace, meta={**trace.meta, "host": list(sides)})


def two_steps() -> Trace:
    """Two launches from 10,000 and 20,000 ns, each of 1,000, called 2,000 before in a step of its own."""
    script = TraceScript()
    for at in (10_000, 20_000):
        warp = script.warp(script.launch(start_ns=at, end_ns=at + 1000), at, at + 1000)
        warp.push(at + 100, "work")
        warp.pop(at + 900)
    spans: list[Span] = [
        ("record_function", "epoch", 1_000, 30_000),
        ("nvtx", "step 0", 6_000, 12_000), ("nvtx", "forward", 7_000, 9_000), ("nvtx", "here", 6_500, None),
        ("nvtx", "step 1", 16_000, 22_000),
    ]  # fmt: skip
    return with_host(script.build(), side(spans, [(8_000, 0), (18_000, 1)]))
