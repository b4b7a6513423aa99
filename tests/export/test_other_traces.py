"""Chrome and speedscope files hold every slice, at its time, nested as it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trace_processor
from hypothesis import HealthCheck, given, settings
from random_traces import random_traces
from traces import TraceScript

from warptrace.export.chrome import write_chrome
from warptrace.export.speedscope import LIFE_TIME, write_speedscope
from warptrace.trace import Trace
from warptrace.wire import PayloadType

Slice = tuple[str, int, int]


def ranges(trace: Trace) -> Counter[Slice]:
    """Name, start and duration of every range and life time."""
    r, w = trace.ranges, trace.warps
    rows = zip(r.name.tolist(), r.start_ns.tolist(), r.end_ns.tolist())
    found = Counter((trace.strings[name], start, end - start) for name, start, end in rows)
    found.update((LIFE_TIME, start, end - start) for start, end in zip(w.start_ns.tolist(), w.end_ns.tolist()))
    return found


def written(write: Any, trace: Trace, folder: Path) -> Any:
    write(trace, folder / "trace.json")
    return json.loads((folder / "trace.json").read_text(encoding="utf-8"))


def chrome_slices(data: Any) -> Counter[Slice]:
    slices: Counter[Slice] = Counter()
    for event in data["traceEvents"]:
        if event["ph"] == "X":
            slices[event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000)] += 1
    return slices


def nested(events: list[tuple[int, int]]) -> bool:
    """Whether slices (start, end), in order of the file, nest or follow each other."""
    stack: list[int] = []
    for start, end in events:
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            return False
        stack.append(end)
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_traces())
def test_chrome(tmp_path: Path, trace: Trace) -> None:
    data = written(write_chrome, trace, tmp_path)
    assert chrome_slices(data) == ranges(trace)
    marks = Counter((e["name"], round(e["ts"] * 1000)) for e in data["traceEvents"] if e["ph"] == "i")
    m = trace.markers
    assert marks == Counter((trace.strings[name], ns) for name, ns in zip(m.name.tolist(), m.ns.tolist()))
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in data["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            key = event["pid"], event["tid"]
            threads.setdefault(key, []).append((start, start + round(event["dur"] * 1000)))
    assert min(number for key in threads for number in key) == 1
    assert all(nested(slices) for slices in threads.values())
    named = {(e["pid"], e["tid"]) for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert named == set(threads)


@trace_processor.needs_trace_processor
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_traces())
def test_perfetto_reads_all_of_a_chrome_file(tmp_path: Path, trace: Trace) -> None:
    write_chrome(trace, tmp_path / "trace.json")
    processor = trace_processor.TraceProcessor(tmp_path / "trace.json")
    assert processor.errors() == []
    rows = processor.query("select name, ts, dur, count(*) n from slice where dur > 0 group by 1, 2, 3")
    assert Counter({(name, ts, dur): n for name, ts, dur, n in rows}) == Counter(
        {key: n for key, n in ranges(trace).items() if key[2] > 0}
    )


def test_chrome_payloads_are_exact_or_text(tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    kinds = [
        (PayloadType.I32, (1 << 32) - 5, -5), (PayloadType.U64, (1 << 64) - 1, "18446744073709551615"),
        (PayloadType.F32, 0x3FC00000, 1.5), (PayloadType.F32, 0x7FC00000, "nan"), (PayloadType.BOOL, 1, 1),
        (PayloadType.F64, 0x7FF0000000000000, "inf"),
    ]  # fmt: skip
    for at, (kind, bits, _) in enumerate(kinds):
        warp.mark(at, "m", (kind, bits))
    warp.mark(50, "m")
    data = written(write_chrome, script.build(), tmp_path)
    marks = [event["args"] for event in data["traceEvents"] if event["ph"] == "i"]
    assert [mark.get("payload") for mark in marks] == [value for _, _, value in kinds] + [None]


def test_chrome_times_of_a_long_run_keep_their_nanoseconds(tmp_path: Path) -> None:
    """A double holds whole ns as us up to 2^53 / 1000 us: the file has them exactly in any case."""
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 10**15 + 1)
    warp.push(10**15 - 7, "late")
    warp.pop(10**15 - 4)
    write_chrome(script.build(), tmp_path / "t.json")
    assert '"ts":999999999999.993,"dur":0.003,' in (tmp_path / "t.json").read_text()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_traces())
def test_speedscope(tmp_path: Path, trace: Trace) -> None:
    data = written(write_speedscope, trace, tmp_path)
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = [frame["name"] for frame in data["shared"]["frames"]]
    found: Counter[Slice] = Counter()
    for profile in data["profiles"]:
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        stack: list[tuple[int, int]] = []
        last = profile["startValue"]
        for event in profile["events"]:
            assert last <= event["at"] <= profile["endValue"]
            last = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], event["at"]))
            else:
                frame, start = stack.pop()
                assert frame == event["frame"]
                found[frames[frame], start, event["at"] - start] += 1
        assert stack == []
    assert found == ranges(trace)
    assert len({profile["name"] for profile in data["profiles"]}) == len(data["profiles"])


@pytest.mark.parametrize("write", [write_chrome, write_speedscope])
def test_an_empty_trace(write: Any, tmp_path: Path) -> None:
    data = written(write, TraceScript().build(), tmp_path)
    assert data.get("traceEvents", []) == data.get("profiles", []) == []
