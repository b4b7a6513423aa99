"""The host's ranges and launch calls as tracks: of each thread one for each kind of range, on which slices nest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..trace import Trace
from .host_tables import WITHIN

SOURCES = {"nvtx": "NVTX", "record_function": "record_function"}
Fact = int | float | bool | str


@dataclass(frozen=True)
class Slice:
    """``end_ns`` None: a moment. ``launch``: the launch that it called, by its index."""

    name: str
    begin_ns: int
    end_ns: int | None
    facts: dict[str, Fact]
    launch: int | None = None


@dataclass(frozen=True)
class HostTrack:
    """``slices`` by begin, outer before inner; no two of them cross."""

    process: int
    name: str
    slices: tuple[Slice, ...]


def host_tracks(trace: Trace) -> list[HostTrack]:
    """Those of all processes whose host's clock is on the timeline."""
    known = [one for one in trace.meta.get("host", ()) if one["uncertainty_ns"] is not None]
    return [track for one in known for track in _of(trace, one)]


def _of(trace: Trace, facts: dict[str, Any]) -> Iterator[HostTrack]:
    process = facts["process"]
    threads = facts["threads"]
    numbers = dict.fromkeys(r["thread"] for name in ("launches", "ranges", "marks") for r in facts[name])
    for thread in numbers:
        who = threads.get(thread, f"thread {thread:#x}")
        calls = [c for c in facts["launches"] if c["thread"] == thread]
        if calls:
            yield HostTrack(process, f"{who}: launches", tuple(_call(trace, c) for c in calls))
        for source, title in SOURCES.items():
            mine = [r for r in facts["ranges"] if (r["thread"], r["source"]) == (thread, source)]
            marks = [m for m in facts["marks"] if (m["thread"], m["source"]) == (thread, source)]
            lanes = list(lanes_of([(r["begin_ns"], r["end_ns"]) for r in mine]))
            for lane in range(max([-1, *lanes]) + 1 or bool(marks)):
                some = [_range(r) for r, at in zip(mine, lanes, strict=True) if at == lane]
                if lane == 0:
                    some += [Slice(m["name"], m["ns"], None, _doubt(m)) for m in marks]
                    some.sort(key=lambda s: s.begin_ns)
                yield HostTrack(process, f"{who}: {title}" + (f" ({lane + 1})" if lane else ""), tuple(some))


def _doubt(facts: dict[str, Any]) -> dict[str, Fact]:
    return {"clock_uncertainty_ns": float(facts["uncertainty_ns"])}


def _range(facts: dict[str, Any]) -> Slice:
    more: dict[str, Fact] = {"ended": False} if facts["open"] else {}
    return Slice(facts["name"], facts["begin_ns"], facts["end_ns"], {**_doubt(facts), **more})


def _call(trace: Trace, facts: dict[str, Any]) -> Slice:
    index = facts["launch"]
    more = _doubt(facts)
    if facts["within"]:
        more["within"] = WITHIN.join(facts["within"])
    if index is None:
        text = "captured into a graph" if facts["captured"] else "launch"
        return Slice(f"{text}: kernel {facts['kernel_id']}", facts["ns"], None, more)
    launch = trace.launches[index]
    more |= {"grid": index + 1, "start_after_ns": launch.start_ns - facts["ns"]}
    return Slice(f"launch {launch.kernel}", facts["ns"], None, more, index)


def lanes_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """For each of (begin, end), sorted by (begin, -end), the first lane in which it crosses no other."""
    lanes: list[list[int]] = []
    for begin, end in ranges:
        for number, ends in enumerate(lanes):
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                yield number
                break
        else:
            lanes.append([end])
            yield len(lanes) - 1
