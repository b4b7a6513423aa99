"""The host's side of processes: where it lies on the timeline, and which of its calls each launch is of."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given
from hypothesis import strategies as st

from warptrace.decode import decode
from warptrace.decode.host import name_ranges
from warptrace.export.chrome import write_chrome
from warptrace.export.dataset import write_csv, write_parquet, write_sqlite
from warptrace.export.host_tracks import host_tracks, lanes_of
from warptrace.export.iket_json import write_iket_json
from warptrace.export.tables import Tables, flat
from warptrace.raw import read_capture
from warptrace.raw.dump import dump
from warptrace.raw.format import text_crc
from warptrace.report import report as reports
from warptrace.report.blocks import Grid, Heading, Line, blocks
from warptrace.trace import Trace
from warptrace.wire import LAUNCH_CAPTURED

sys.path.append(str(Path(__file__).resolve().parents[1] / "export"))

import trace_processor

APART = 5_000_000
"""Host time minus %globaltimer, ns."""
ME, OTHER = 0x7F00_0000_0001, 0x7F00_0000_0002
SCHEMAS = Path(reports.__file__).parents[1]


def at(ns: int) -> int:
    """Host time at ns after EPOCH_NS on the device."""
    return EPOCH_NS + APART + ns


def recorded(folder: Path, host: list[list[Any]], *, launches: int = 2, pairs: bool = True) -> Trace:
    """A kernel's launches of one warp, one every 1,000 ns."""
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12)
    for number in range(1, launches + 1):
        warp = FakeWarp(start_ns=1000 * number)
        warp.event(mark, at=10)
        device.launch(kernel, [warp.exit(at=40)])
    path = write_capture(folder, [device], [kernel])
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["clocks"] = [
        {"device": 0, "globaltimer_ns": t, "host_unix_ns": t + APART, "host_monotonic_ns": t, "uncertainty_ns": 100.0}
        for t in (EPOCH_NS - 10**6, EPOCH_NS + 10**6)
        if pairs
    ]
    (path / "manifest.json").write_text(json.dumps(manifest | {"crc32": text_crc(manifest)}))
    (kernel_id,) = read_capture(path).kernels
    rows = [[f"{kernel_id:016x}" if part == "k" else part for part in row] for row in host]
    (path / "host.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return decode([read_capture(path)])


SIDE: list[list[Any]] = [
    ["thread", ME, "MainThread"],
    ["range", "nvtx", "step", at(300), at(1900), ME],
    ["range", "record_function", "forward", at(-700), at(2500), ME],
    ["launch", "k", at(400), ME, 0, 0],
    ["launch", "k", at(1950), OTHER, 0, 0],
    ["launch", "k", at(1960), OTHER, 0, LAUNCH_CAPTURED | 1 << 24 | 1],
    ["mark", "nvtx", "here", at(350), ME],
    ["open", "nvtx", "late", at(2600), at(9000), OTHER],
]


def test_on_the_timeline(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE)
    (host,) = trace.meta["host"]
    shift = trace.epoch_ns - EPOCH_NS
    assert 100 <= host["uncertainty_ns"] < 300
    assert (host["threads"], host["lost_launches"], host["process"]) == ({ME: "MainThread"}, 0, 0)
    found = [(r["source"], r["name"], r["begin_ns"] + shift, r["end_ns"] + shift, r["open"]) for r in host["ranges"]]
    assert [f[:2] + f[4:] for f in found] == [
        ("record_function", "forward", False), ("nvtx", "step", False), ("nvtx", "late", True)
    ]  # fmt: skip
    for (_, _, begin, end, _), (wanted_begin, wanted_end) in zip(found, [(-700, 2500), (300, 1900), (2600, 9000)]):
        assert (begin, end) == (pytest.approx(wanted_begin, abs=2), pytest.approx(wanted_end, abs=2))
    assert host["marks"][0]["ns"] + shift == pytest.approx(350, abs=2)
    assert [(c["launch"], c["captured"]) for c in host["launches"]] == [(0, False), (1, False), (None, True)]
    assert [c["within"] for c in host["launches"]] == [["forward", "step"], [], []]
    assert [p for p in trace.problems if p.kind in ("host", "clock")] == []


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([1, 2])), max_size=12),
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 2])), max_size=12),
)
def test_calls_know_the_ranges_around_them(spans: list[tuple[int, int, int]], times: list[tuple[int, int]]) -> None:
    ranges = [
        {"name": f"{i}", "begin_unix_ns": min(a, b), "end_unix_ns": max(a, b), "thread": thread}
        for i, (a, b, thread) in enumerate(spans)
    ]
    ranges.sort(key=lambda r: (r["begin_unix_ns"], -r["end_unix_ns"]))
    calls = [{"unix_ns": at, "thread": thread} for at, thread in times]
    name_ranges(calls, ranges)
    for call in calls:
        around = [
            r["name"] for r in ranges
            if r["thread"] == call["thread"] and r["begin_unix_ns"] <= call["unix_ns"] <= r["end_unix_ns"]
        ]  # fmt: skip
        assert call["within"] == around == [ranges[index]["name"] for index in call["around"]]


def test_what_is_far_from_a_comparison_is_less_sure(tmp_path: Path) -> None:
    """The devices' clock may drift by 50 ppm: a second before the first pair that is 50 us, right after it nothing."""
    far = [["range", "nvtx", "setup", at(-(10**9)), at(-(10**6)), ME], ["launch", "k", at(500), ME, 0, 0]]
    trace = recorded(tmp_path / "c", far, launches=1)
    (host,) = trace.meta["host"]
    (setup,), (call,) = host["ranges"], host["launches"]
    assert 100 <= call["uncertainty_ns"] < 300 < 10_000 < setup["uncertainty_ns"] == host["uncertainty_ns"]
    (row,) = reports.build(trace).host.calls  # type: ignore[union-attr]
    assert row.uncertainty_ns == call["uncertainty_ns"]
    facts = {s.name: s.facts["clock_uncertainty_ns"] for t in host_tracks(trace) for s in t.slices}
    assert facts == {"setup": setup["uncertainty_ns"], "launch k": call["uncertainty_ns"]}


def test_numbers_that_do_not_agree_are_not_guessed(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", [*SIDE, ["lost", 3]], launches=3)
    assert [c["launch"] for c in trace.meta["host"][0]["launches"]] == [None, None, None]
    texts = [(p.count, p.text) for p in trace.problems if p.kind == "host"]
    assert [count for count, _ in texts] == [2, 3]
    assert "2 launch calls of the host cannot be told which launch they are" in texts[0][1]
    assert "3 launch calls of the host were not noted" in texts[1][1]


def test_streams_are_paired_for_themselves(tmp_path: Path) -> None:
    other = [["launch", "k", at(100), ME, 0, 17], *SIDE]
    trace = recorded(tmp_path / "c", other)
    assert [c["launch"] for c in trace.meta["host"][0]["launches"]] == [None, 0, 1, None]


def test_clocks_that_were_not_compared(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE, pairs=False)
    (host,) = trace.meta["host"]
    assert (host["uncertainty_ns"], host["ranges"][0]["begin_ns"], host["launches"][0]["launch"]) == (None, None, 0)
    assert any(p.kind == "clock" and "host ranges are not on the timeline" in p.text for p in trace.problems)
    assert host_tracks(trace) == []
    assert reports.build(trace).host is not None


def test_no_host(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", [])
    assert trace.meta["host"] == []
    assert reports.build(trace).host is None and "host" not in reports.build(trace).to_json()


def test_tracks(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE)
    tracks = host_tracks(trace)
    kernel = f"{trace.launches[0].kernel_id:016x}"
    assert [(t.name, [s.name for s in t.slices]) for t in tracks] == [
        ("MainThread: launches", ["launch k"]),
        ("MainThread: NVTX", ["step", "here"]),
        ("MainThread: record_function", ["forward"]),
        (f"thread {OTHER:#x}: launches", ["launch k", f"captured into a graph: kernel {kernel}"]),
        (f"thread {OTHER:#x}: NVTX", ["late"]),
    ]
    call = tracks[0].slices[0]
    assert (call.launch, call.facts["grid"], call.facts["within"]) == (0, 1, "forward > step")
    assert call.facts["start_after_ns"] == pytest.approx(600, abs=2)
    assert tracks[-1].slices[0].facts["ended"] is False


def test_report(tmp_path: Path) -> None:
    report = reports.build(recorded(tmp_path / "c", SIDE))
    assert report.host is not None
    rows = [(r.name, r.source, r.count, r.total_ns, r.longest_ns, r.launches) for r in report.host.ranges]
    assert rows == [
        ("late", "nvtx", 1, 6400, 6400, 0), ("forward", "record_function", 1, 3200, 3200, 1),
        ("step", "nvtx", 1, 1600, 1600, 1),
    ]  # fmt: skip
    (call,) = report.host.calls
    assert (call.kernel, call.calls, call.paired) == ("k", 3, 2)
    assert call.longest_wait_ns == pytest.approx(600, abs=2) and call.median_wait_ns == pytest.approx(325, abs=3)
    document = json.loads(json.dumps(report.to_json()))
    jsonschema.validate(document, json.loads((SCHEMAS / "report/schema/report.schema.json").read_text()))
    assert document["host"]["calls"] == [asdict(call)] and len(document["host"]["ranges"]) == 3
    shown = list(blocks(report))
    at_host = shown.index(Heading("Host", 2))
    first, second, line = shown[at_host + 1 : at_host + 4]
    assert isinstance(first, Grid) and first.rows[0][:4] == ("late", "nvtx", "4242", "1")
    assert isinstance(second, Grid) and second.rows[0][0] == "k"
    assert isinstance(line, Line) and line.text.startswith("host and device clocks compare to ")


def test_json_and_dump(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE)
    write_iket_json(trace, tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    jsonschema.validate(data, json.loads((SCHEMAS / "export/schema/iket_trace.schema.json").read_text()))
    (host,) = data["warptrace"]["host"]
    step = next(r for r in host["ranges"] if r["name"] == "step")
    assert (step["beginUnixNs"], step["source"], step["open"]) == (at(300), "nvtx", False)
    assert step["startTs"] == pytest.approx(EPOCH_NS + 300, abs=2)
    assert [(c["launch"], c["within"]) for c in host["launches"]] == [(0, ["forward", "step"]), (1, []), (None, [])]
    out = io.StringIO()
    dump(tmp_path / "c", out)
    assert f'host "mark" "nvtx" "here" "{at(350)}" "{ME}"' in out.getvalue()


# ----------------------------------------------------------------------------------------------------- as tables
def rows(trace: Trace, name: str) -> list[dict[str, Any]]:
    columns = {title: column.objects() for title, column in flat(Tables(trace).part(name)).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_tables(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE)
    (host,) = trace.meta["host"]
    ranges = rows(trace, "host_ranges")
    assert [(r["source"], r["kind"], r["name"], r["thread_name"], r["ended"]) for r in ranges] == [
        ("record_function", "range", "forward", "MainThread", True), ("nvtx", "range", "step", "MainThread", True),
        ("nvtx", "mark", "here", "MainThread", None), ("nvtx", "range", "late", None, False),
    ]  # fmt: skip
    assert [r["duration_ns"] for r in ranges] == [3200, 1600, None, 6400]
    step = ranges[1]
    assert (step["start_unix_ns"], step["end_unix_ns"], step["pid"], step["thread"]) == (at(300), at(1900), 4242, ME)
    assert (step["start_ns"], step["end_ns"]) == (host["ranges"][1]["begin_ns"], host["ranges"][1]["end_ns"])
    assert ranges[2]["start_ns"] == host["marks"][0]["ns"] and ranges[2]["end_ns"] is None
    calls = rows(trace, "host_launches")
    assert [(c["launch"], c["kernel"], c["within"], c["captured"], c["device"]) for c in calls] == [
        (1, "k", "forward > step", False, 0), (2, "k", None, False, 0), (None, "k", None, True, 0),
    ]  # fmt: skip
    assert calls[0]["start_after_ns"] == trace.launches[0].start_ns - calls[0]["ns"] > 0
    assert (calls[2]["start_after_ns"], calls[2]["unix_ns"]) == (None, at(1960))
    assert {c["kernel_id"] for c in calls} == {trace.launches[0].kernel_id}
    doubts = [row["clock_uncertainty_ns"] for row in ranges + calls]
    items = [*host["ranges"][:2], *host["marks"], *host["ranges"][2:], *host["launches"]]
    assert doubts == [item["uncertainty_ns"] for item in items]
    assert max(doubts) == host["uncertainty_ns"]


def test_tables_without_a_timeline_or_a_host(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", SIDE, pairs=False)
    names = ("start_ns", "end_ns", "clock_uncertainty_ns", "duration_ns")
    assert [rows(trace, "host_ranges")[0][name] for name in names] == [None, None, None, 3200]
    call = rows(trace, "host_launches")[0]
    assert (call["launch"], call["ns"], call["start_after_ns"], call["unix_ns"]) == (1, None, None, at(400))
    nothing = recorded(tmp_path / "d", [])
    assert rows(nothing, "host_ranges") == rows(nothing, "host_launches") == []


def test_parquet_sqlite_and_csv(tmp_path: Path) -> None:
    """Same values everywhere, and the types of a data set do not depend on what a run has."""
    trace = recorded(tmp_path / "c", SIDE)
    wanted = {name: rows(trace, name) for name in ("host_ranges", "host_launches")}
    write_sqlite(trace, tmp_path / "t.sqlite")
    connection = sqlite3.connect(tmp_path / "t.sqlite")
    connection.row_factory = sqlite3.Row
    for name, found in wanted.items():
        assert [dict(row) for row in connection.execute(f"select * from {name}")] == found
    connection.close()
    write_csv(trace, tmp_path / "csv")
    with (tmp_path / "csv" / "host_launches.csv").open(newline="") as file:
        assert [row["within"] for row in csv.DictReader(file)] == ["forward > step", "", ""]
    pq = pytest.importorskip("pyarrow.parquet")
    write_parquet(trace, tmp_path / "data", "with")
    write_parquet(recorded(tmp_path / "d", []), tmp_path / "data", "without")
    for name, found in wanted.items():
        folder = tmp_path / "data" / name
        files = [pq.ParquetFile(folder / f"run={run}" / "part-0.parquet") for run in ("with", "without")]
        assert files[0].read().to_pylist() == found and files[1].read().num_rows == 0
        assert files[0].schema_arrow.equals(files[1].schema_arrow)


def test_chrome(tmp_path: Path) -> None:
    """Times count from the first thing that happened, which here the host did, and are exact."""
    trace = recorded(tmp_path / "c", SIDE)
    write_chrome(trace, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text(), parse_float=str)["traceEvents"]
    (process,) = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"].startswith("Host")}
    assert process == len(trace.launches) + 1
    ours = [e for e in events if e["pid"] == process and e["ph"] != "M"]
    (host,) = trace.meta["host"]
    first = host["ranges"][0]["begin_ns"]
    assert first < 0

    def text(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03d}"

    wanted = [(r["name"], "X", text(r["begin_ns"] - first), text(r["end_ns"] - r["begin_ns"])) for r in host["ranges"]]
    wanted += [("here", "i", text(host["marks"][0]["ns"] - first), None)]
    found = [(e["name"], e["ph"], e["ts"], e.get("dur")) for e in ours]
    assert sorted(one for one in found if one[0] in ("forward", "step", "late", "here")) == sorted(wanted)
    calls = [e for e in ours if e["name"] == "launch k"]
    assert [(e["ph"], e["args"]["grid"], e["args"].get("within")) for e in calls] == [
        ("i", 1, "forward > step"), ("i", 2, None),
    ]  # fmt: skip
    lives = [e["ts"] for e in events if e["name"] == "Warp Life Time"]
    assert lives == [text(int(ns) - first) for ns in trace.warps.start_ns]


@trace_processor.needs_trace_processor
def test_perfetto_reads_the_host_of_a_chrome_file(tmp_path: Path) -> None:
    write_chrome(recorded(tmp_path / "c", SIDE), tmp_path / "t.json")
    processor = trace_processor.TraceProcessor(tmp_path / "t.json")
    assert processor.errors() == []
    rows = processor.query(
        "select slice.name, dur, thread.name as thread from slice join thread_track on track_id = thread_track.id"
        " join thread using (utid) where category = 'host' order by ts"
    )
    assert [(name, dur, thread) for name, dur, thread in rows if not name.startswith(("launch", "captured"))] == [
        ("forward", 3200, "MainThread: record_function"), ("step", 1600, "MainThread: NVTX"),
        ("here", 0, "MainThread: NVTX"), ("late", 6400, f"thread {OTHER:#x}: NVTX"),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda p: (min(p), max(p))), max_size=20))
def test_no_two_ranges_of_a_lane_cross(ranges: list[tuple[int, int]]) -> None:
    ranges.sort(key=lambda r: (r[0], -r[1]))
    lanes = list(lanes_of(ranges))
    for i, (a, b) in enumerate(ranges):
        for (c, d), lane in zip(ranges[i + 1 :], lanes[i + 1 :]):
            if lane == lanes[i]:
                assert c >= b or d <= b, ((a, b), (c, d))
    assert sorted(set(lanes)) == list(range(max([-1, *lanes]) + 1))
