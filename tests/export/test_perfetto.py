from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import expected_slices as expected
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_traces import random_traces
from trace_processor import TraceProcessor, needs_trace_processor
from traces import EPOCH, TraceScript

from warptrace.errors import WarptraceError
from warptrace.export import perfetto, trackevent, write_perfetto
from warptrace.trace import RANGE_STACK, Problem, Trace
from warptrace.wire import PayloadType as P

pytestmark = needs_trace_processor

PATHS = """
with recursive path(id, path) as (
  select id, '' from track where parent_id is null
  union all
  select track.id, path.path || '/' || track.name from track join path on track.parent_id = path.id
)
"""


def load(trace: Trace, tmp_path: Path, **options: Any) -> TraceProcessor:
    """The exported trace in the trace processor, which must find nothing wrong with it."""
    path = tmp_path / "trace.pftrace"
    write_perfetto(trace, path, **options)
    processor = TraceProcessor(path)
    assert processor.errors() == []
    return processor


def slices(processor: TraceProcessor) -> list[tuple[str, str, int, int, int, dict[str, tuple[str, Any]]]]:
    """(track path, name, ts, dur, depth, arguments) of every slice, root and kernel slices included."""
    arguments: dict[int, dict[str, tuple[str, Any]]] = {}
    for owner, key, kind, integer, text, real in processor.query(
        "select arg_set_id, key, value_type, int_value, string_value, real_value from args"
    ):
        value = real if kind == "real" else text if kind == "string" else integer
        arguments.setdefault(owner, {})[key.removeprefix("debug.")] = (kind, value)
    rows = processor.query(
        PATHS + "select substr(path, 2), name, ts, dur, depth, arg_set_id from slice join path on path.id = track_id"
    )
    return [(*row[:5], arguments.get(row[5], {})) for row in rows]


def first_lane(path: str) -> str:
    return re.sub(r" #\d+$", "", path)


def event_slices(processor: TraceProcessor) -> Counter[expected.Slice]:
    """Everything below the grids, each on its track's first lane."""
    return Counter(
        (first_lane(path), name, ts, dur, frozenset(arguments.items()))
        for path, name, ts, dur, _, arguments in slices(processor)
        if "/" in path
    )


def all_expected(trace: Trace) -> Counter[expected.Slice]:
    return Counter([*expected.life_times(trace), *expected.ranges(trace), *expected.markers(trace)])


# ------------------------------------------------------------------------------------------------------- golden
def test_golden_nested_ranges_tokens_and_markers(tmp_path: Path) -> None:
    script = TraceScript()
    launch = script.launch(grid=(2, 1, 1))
    warp = script.warp(launch, 100, 900, cta=(1, 0, 0), warp=3, sm=17, tpc=8, gpc=2)
    first = warp.start(110, "load", (P.I32, 0xFFFFFFFF))
    warp.push(120, "tile", (P.U32, 7))
    warp.push(130, "mma")
    second = warp.start(140, "load", (P.I32, 1))
    warp.pop(150)
    warp.end(first, 160, (P.I32, 2))
    warp.switch(200, "store")
    warp.pop(200)
    warp.end(second, 260, (P.I32, 3))
    warp.mark(300, "tick", (P.F32, 0xC0500000))
    processor = load(script.build(), tmp_path)

    got = processor.csv(
        PATHS + "select path, name, ts, dur, depth from slice join path on path.id = track_id order by path, ts, depth"
    )
    warp_path = "/Grid1/GPC2/TPC8|SM017/CTA(1, 0, 0)/Warp03"
    assert got == "\n".join(
        [
            '"path","name","ts","dur","depth"',
            '"","trace info",0,0,0',
            '"/Grid1","kernel:gemm, gridId: 7",100,800,0',
            f'"{warp_path}","Warp Life Time",100,800,0',
            f'"{warp_path}/Marker","tick",300,0,0',
            f'"{warp_path}/StackedRanges","tile",120,80,0',
            f'"{warp_path}/StackedRanges","mma",130,20,1',
            f'"{warp_path}/StackedRanges","store",200,0,0',
            f'"{warp_path}/load","load",110,50,0',
            f'"{warp_path}/load #2","load",140,120,0',
        ]
    )
    assert processor.csv(
        "select name, key, value_type, display_value from slice join args using (arg_set_id) "
        "where name in ('load', 'tile', 'tick') order by ts, key"
    ) == "\n".join(
        [
            '"name","key","value_type","display_value"',
            '"load","debug.cycles","uint","100"',
            '"load","debug.end_site","string","kernel.py:50"',
            '"load","debug.payload","int","-1"',
            '"load","debug.payload_end","int","2"',
            '"load","debug.site","string","kernel.py:10"',
            '"tile","debug.cycles","uint","160"',
            '"tile","debug.payload","uint","7"',
            '"tile","debug.site","string","kernel.py:20"',
            '"load","debug.cycles","uint","240"',
            '"load","debug.end_site","string","kernel.py:50"',
            '"load","debug.payload","int","1"',
            '"load","debug.payload_end","int","3"',
            '"load","debug.site","string","kernel.py:10"',
            '"tick","debug.payload","real","-3.25"',
            '"tick","debug.site","string","kernel.py:70"',
        ]
    )


def test_golden_launch_facts_and_wall_clock(tmp_path: Path) -> None:
    script = TraceScript()
    launch = script.launch(
        grid=(4, 2, 1), block=(128, 1, 1), cluster=(2, 1, 1), grid_id=12, lost_warps=1, warps_expected=32,
        graph=("graph_exec_1", 3),
    )  # fmt: skip
    script.warp(launch, 10, 50, lost=5).mark(20, "x")
    processor = load(script.build(), tmp_path)
    facts = processor.csv(
        "select key, value_type, display_value from slice join args using (arg_set_id) where name glob 'kernel:*' "
        "order by key"
    )
    assert facts == "\n".join(
        [
            '"key","value_type","display_value"',
            '"debug.block","string","(128, 1, 1)"',
            '"debug.clock_uncertainty_ns","real","4.5"',
            '"debug.cluster","string","(2, 1, 1)"',
            '"debug.context_id","int","1"',
            '"debug.device","int","0"',
            f'"debug.epoch_ns","int","{EPOCH}"',
            '"debug.events","int","1"',
            '"debug.graph","string","graph_exec_1:3"',
            '"debug.grid","string","(4, 2, 1)"',
            '"debug.grid_id","int","12"',
            '"debug.lost_events","int","5"',
            '"debug.lost_warps","int","1"',
            '"debug.process_id","int","4242"',
            '"debug.symbol","string","kernel_gemm_0"',
            '"debug.warps_expected","int","32"',
            '"debug.warps_recorded","int","1"',
        ]
    )
    clocks = "select clock_name, clock_value from clock_snapshot where ts = 0 order by clock_name"
    assert processor.query(clocks) == [("BOOTTIME", 0), ("REALTIME", EPOCH)]


def test_emulated_and_problems_are_said(tmp_path: Path) -> None:
    script = TraceScript(emulated=True)
    script.warp(script.launch(), 0, 10).mark(5, "x")
    script.problems.append(Problem("unpaired_pop", 2, "2 pops close nothing"))
    processor = load(script.build(), tmp_path)
    assert processor.query("select name from track where parent_id is null") == [("warptrace (emulated)",)]
    found = {name: arguments for _, name, _, _, _, arguments in slices(processor)}
    assert found["kernel:gemm [emulated], gridId: 7"]["emulated"] == ("bool", 1)
    info = found["trace info"]
    assert info["emulated"] == ("bool", 1)
    assert info["epoch_ns"] == ("int", EPOCH)
    assert info["problem_1"] == ("string", "unpaired_pop: 2 pops close nothing")


def test_lost_events_and_unfinished_warps_are_on_the_life_time(tmp_path: Path) -> None:
    script = TraceScript()
    launch = script.launch()
    script.warp(launch, 0, 10, warp=0)
    script.warp(launch, 0, 10, warp=1, lost=9)
    script.warp(launch, 0, 10, warp=2, closed=0)
    rows = slices(load(script.build(), tmp_path))
    found = {path[-6:]: arguments for path, *_, arguments in rows if "/" in path}
    assert found == {
        "Warp00": {"events": ("uint", 0), "cycles": ("uint", 20)},
        "Warp01": {"events": ("uint", 0), "cycles": ("uint", 20), "lost_events": ("uint", 9)},
        "Warp02": {"events": ("uint", 0), "ended": ("bool", 0)},
    }


@pytest.mark.parametrize(
    ("kind", "bits", "argument"),
    [
        (P.BOOL, 0, ("bool", 0)),
        (P.BOOL, 1, ("bool", 1)),
        (P.I8, 0x80, ("int", -128)),
        (P.U8, 0xFF, ("uint", 255)),
        (P.I16, 0x8000, ("int", -32768)),
        (P.U16, 0xFFFF, ("uint", 65535)),
        (P.I32, 0xFFFFFFE0, ("int", -32)),
        (P.U32, 0xFFFFFFFF, ("uint", 4294967295)),
        (P.I64, 1 << 63, ("int", -(1 << 63))),
        (P.U64, (1 << 63) - 1, ("uint", (1 << 63) - 1)),
        (P.U64, 1 << 63, ("string", "9223372036854775808")),
        (P.U64, (1 << 64) - 1, ("string", "18446744073709551615")),
        (P.F16, 0x3555, ("real", 0.333251953125)),
        (P.F16, 0x0001, ("real", 2.0**-24)),
        (P.BF16, 0x3EAB, ("real", 0.333984375)),
        (P.F32, 0xC0500000, ("real", -3.25)),
        (P.F32, 0x7F800000, ("real", float("inf"))),
        (P.F32, 0xFF800000, ("real", float("-inf"))),
        (P.F32, 0x7FC00000, ("string", "NaN")),
        (P.F16, 0x7C01, ("string", "NaN")),
        (P.F64, 0x401A000000000000, ("real", 6.5)),
        (P.F64, 0x0000000000000001, ("real", 5e-324)),
    ],
)
def test_payload_types(tmp_path: Path, kind: P, bits: int, argument: tuple[str, Any]) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 10)
    warp.mark(1, "m", (kind, bits))
    warp.end(warp.start(2, "r", (kind, bits)), 3, (kind, bits))
    found = {name: arguments for _, name, *_, arguments in slices(load(script.build(), tmp_path))}
    assert found["m"]["payload"] == argument
    assert found["r"]["payload"] == found["r"]["payload_end"] == argument


def test_payload_in_name(tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 10)
    for bits in (1, 2, 1):
        warp.push(1, "tile", (P.I32, bits))
        warp.pop(1)
        warp.push(1, "tile")
        warp.pop(1)
    warp.mark(3, "tile", (P.F32, 0x3DCCCCCD))
    warp.mark(4, "flag", (P.BOOL, 1))
    processor = load(script.build(), tmp_path, payload_in_name=True)
    names = Counter(name for path, name, *_ in slices(processor) if "Warp" in path)
    assert names == {
        "tile(payload=1)": 2,
        "tile(payload=2)": 1,
        "tile": 3,
        "tile(payload=0.1)": 1,
        "flag(payload=1)": 1,
        "Warp Life Time": 1,
    }


# ----------------------------------------------------------------------------------------------------- structure
def test_one_group_per_process_and_device_where_there_are_several(tmp_path: Path) -> None:
    script = TraceScript()
    pids = [script.process(100), script.process(200)]
    for process, device in ((pids[0], 0), (pids[0], 1), (pids[1], 0)):
        script.warp(script.launch(process=process, device=device), 0, 10)
    processor = load(script.build(), tmp_path)
    rows = processor.query(PATHS + "select path from path where path glob '*Grid?' order by path")
    assert rows == [
        ("/Process 100, GPU 0/Grid1",),
        ("/Process 100, GPU 1/Grid2",),
        ("/Process 200, GPU 0/Grid3",),
    ]


def test_tracks_are_ordered_and_never_merged(tmp_path: Path) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100, warp=11)
    tokens = [warp.start(i, "t") for i in range(3)]
    warp.push(5, "p")
    warp.mark(6, "m")
    warp.pop(7)
    for token in tokens:
        warp.end(token, 8)
    path = tmp_path / "t.pftrace"
    write_perfetto(script.build(), path, compress=False)
    packets = pb.Trace.FromString(path.read_bytes()).packet
    tracks = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    assert {t.sibling_merge_behavior for t in tracks} == {pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE}
    assert {t.child_ordering for t in tracks} == {pb.TrackDescriptor.EXPLICIT}
    uuid = {t.name: t.uuid for t in tracks}
    assert len(set(uuid.values())) == len(tracks)
    below = sorted((t for t in tracks if t.parent_uuid == uuid["Warp11"]), key=lambda t: t.sibling_order_rank)
    assert [t.name for t in below] == ["t", "t #2", "t #3", "StackedRanges", "Marker"]
    assert len({t.sibling_order_rank for t in below}) == 5


def test_stacks_of_two_leaders_share_a_track_only_where_they_nest(tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    warp.push(10, "outer")
    warp.push(20, "nested", lane=5)
    warp.pop(30, lane=5)
    warp.push(40, "crossing", lane=7)
    warp.pop(50)
    warp.pop(60, lane=7)
    rows = slices(load(script.build(), tmp_path))
    assert sorted((path.split("/")[-1], name, depth) for path, name, _, _, depth, _ in rows if "Stacked" in path) == [
        ("StackedRanges", "nested", 1),
        ("StackedRanges", "outer", 0),
        ("StackedRanges #2", "crossing", 0),
    ]


def test_times_before_the_origin_move_it(tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), -50, 100)
    warp.mark(-20, "m")
    processor = load(script.build(), tmp_path)
    assert processor.query("select ts from slice where name = 'm'") == [(30,)]
    assert processor.query("select clock_value from clock_snapshot where clock_name = 'REALTIME'") == [(EPOCH - 50,)]


def test_empty_trace_opens(tmp_path: Path) -> None:
    assert [name for _, name, *_ in slices(load(TraceScript().build(), tmp_path))] == ["trace info"]


# ---------------------------------------------------------------------------------------------------- properties
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=random_traces(), compress=st.booleans(), rows=st.sampled_from([1, 7, 1 << 14]))
def test_everything_equals_the_columns(tmp_path: Path, trace: Trace, compress: bool, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perfetto, "CHUNK_ROWS", rows)
        patch.setattr(perfetto, "TRACK_ROWS", rows)
        patch.setattr(trackevent, "MAX_ROWS", rows)
        processor = load(trace, tmp_path, compress=compress)
    assert event_slices(processor) == all_expected(trace)
    found = slices(processor)
    grids = {path: (ts, dur) for path, _, ts, dur, *_ in found if path.startswith("Grid") and "/" not in path}
    assert grids == {f"Grid{i}": (one.start_ns, one.end_ns - one.start_ns) for i, one in enumerate(trace.launches, 1)}
    paths = {path for path, *_ in found}
    assert {first_lane(path) for path in paths} <= paths


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=random_traces(lanes=(0,)))
def test_depth_equals_the_columns(tmp_path: Path, trace: Trace) -> None:
    r, paths = trace.ranges, expected.warp_paths(trace)
    columns = Counter(
        (f"{paths[r.warp[i]]}/{'StackedRanges' if r.kind[i] == RANGE_STACK else trace.strings[r.name[i]]}",
         trace.strings[r.name[i]], int(r.start_ns[i]), int(r.end_ns[i] - r.start_ns[i]), int(r.depth[i]))
        for i in range(len(r))
    )  # fmt: skip
    got = Counter(
        (first_lane(path), name, ts, dur, depth)
        for path, name, ts, dur, depth, arguments in slices(load(trace, tmp_path))
        if "cycles" in arguments and name != "Warp Life Time"
    )
    assert got == columns


intervals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)), max_size=40)


@given(intervals)
def test_token_lanes_are_few_and_do_not_overlap(rows: list[tuple[int, int, int]]) -> None:
    # Each row: warp, name, how many of the following stamps until its end. Stamps are unique within a warp.
    rows.sort(key=lambda row: row[0])
    warp, name = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.int32)
    start = np.arange(len(rows), dtype=np.int64) * 10
    end = start + np.array([r[2] for r in rows], np.int64) * 10 + 5
    lane = perfetto.token_lanes(warp, name, start, end)
    for key in set(zip(warp.tolist(), name.tolist(), strict=True)):
        members = [i for i in range(len(rows)) if (warp[i], name[i]) == key]
        most = max(sum(start[j] <= start[i] < end[j] for j in members) for i in members)
        assert sorted({int(lane[i]) for i in members}) == list(range(most))
        for i in members:
            for j in members:
                assert i >= j or lane[i] != lane[j] or end[j] <= start[i] or end[i] <= start[j]


@given(st.lists(st.integers(0, 9) | st.integers(0, 10**9), min_size=1, max_size=40))
def test_distinct_numbers(numbers: list[int]) -> None:
    distinct, place = perfetto._distinct(np.array(numbers, np.int64))
    assert distinct.tolist() == sorted(set(numbers))
    assert distinct[place].tolist() == numbers


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 60)), min_size=1, max_size=60),
    lanes=st.sampled_from([0, 1, 8, 64]),
)
def test_lanes_by_jumps_are_those_by_rows(rows: list[tuple[int, int, int]], lanes: int) -> None:
    """Each range takes the lowest lane that is free at its start."""
    rows = [(group, 10 * i + step % 10, length) for i, (group, step, length) in enumerate(sorted(rows))]
    group, start, length = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perfetto, "VECTOR_LANES", lanes)
        lane = perfetto._colour(group, start, start + length).tolist()
    free: dict[tuple[int, int], int] = {}
    for row, (of, begin, lasts) in enumerate(rows):
        lowest = next(i for i in range(len(rows)) if free.get((of, i), -1) <= begin)
        assert lane[row] == lowest
        free[of, lowest] = begin + lasts


# -------------------------------------------------------------------------------------------------------- faults
def two_events() -> Trace:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    warp.push(10, "a")
    warp.pop(20)
    warp.mark(30, "m")
    return script.build()


def broken(faults: Iterable[tuple[str, str, int]]) -> Trace:
    trace = two_events()
    for table, column, value in faults:
        rows = getattr(trace, table)
        values = getattr(rows, column).copy()
        values[0] = value
        trace = replace(trace, **{table: replace(rows, **{column: values})})
    return trace


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ([("ranges", "end_ns", 5)], "1 ranges end before they start"),
        ([("ranges", "end_seq", 0)], "1 ranges end before they start"),
        ([("warps", "end_ns", -1)], "1 warps end before they start"),
        ([("markers", "ns", 15)], "run backwards in time"),
        ([("markers", "warp", 7)], "markers are not ordered by warp"),
    ],
)
def test_inconsistent_traces_are_refused_and_leave_the_old_file(
    tmp_path: Path, faults: list[tuple[str, str, int]], text: str
) -> None:
    path = tmp_path / "old.pftrace"
    path.write_bytes(b"old")
    with pytest.raises(WarptraceError, match=text):
        write_perfetto(broken(faults), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(WarptraceError, match=r"cannot write .*none/t\.pftrace: No such file"):
        write_perfetto(two_events(), tmp_path / "none" / "t.pftrace")


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_perfetto(two_events(), tmp_path / "t", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 3)]


def test_a_folder_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with pytest.raises(WarptraceError, match="cannot write .*/t: Is a directory; choose another place"):
        write_perfetto(two_events(), tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


# ---------------------------------------------------------------------------------------------- capture windows
def windowed(*windows: tuple[int | None, int | None]) -> Trace:
    """A launch from 100 to 900 ns, recorded in windows (their begin and end on the timeline, None: unknown)."""
    script = TraceScript()
    script.warp(script.launch(), 100, 900).mark(500, "m")
    facts = [
        {"process": 0, "begin_unix_ns": 7, "end_unix_ns": None if end is None else 9, "begin_ns": begin, "end_ns": end,
         "uncertainty_ns": None if begin is None else 1.5}
        for begin, end in windows
    ]  # fmt: skip
    return replace(script.build(), meta={"windows": facts})


def window_slices(trace: Trace, tmp_path: Path) -> list[tuple[str, int, int, dict[str, Any]]]:
    found = [row for row in slices(load(trace, tmp_path)) if row[1] == "capture window"]
    return [(path, ts, dur, {key: value for key, (_, value) in facts.items()}) for path, _, ts, dur, _, facts in found]


def test_windows_are_slices_of_a_track(tmp_path: Path) -> None:
    """One that begins before the trace's zero moves that: times in the file cannot be negative."""
    facts = {"begin_unix_ns": 7, "end_unix_ns": 9, "clock_uncertainty_ns": 1.5}
    trace = windowed((-200, 950), (2000, 2500))
    assert window_slices(trace, tmp_path) == [
        ("Capture windows", 0, 1150, facts),
        ("Capture windows", 2200, 500, facts),
    ]
    (kernel,) = [row for row in slices(load(trace, tmp_path)) if row[1].startswith("kernel:")]
    assert (kernel[2], kernel[5]["epoch_ns"][1]) == (300, EPOCH - 200)


def test_a_window_in_which_the_process_died(tmp_path: Path) -> None:
    ((path, ts, dur, facts),) = window_slices(windowed((50, None)), tmp_path)
    assert (path, ts, dur, facts["ended"]) == ("Capture windows", 50, 850, 0)
    assert "end_unix_ns" not in facts


def test_windows_whose_place_is_unknown_are_left_out(tmp_path: Path) -> None:
    assert window_slices(windowed((None, None)), tmp_path) == []


# ------------------------------------------------------------------------------------------------------- the host
def hosted(uncertainty: float | None) -> Trace:
    """A launch from 100 to 900 ns that a thread called 150 ns before, inside two ranges."""
    script = TraceScript()
    script.warp(script.launch(), 100, 900).mark(500, "m")
    ranges = [
        {"source": "nvtx", "name": name, "thread": 7, "begin_unix_ns": 1, "end_unix_ns": 2, "open": name == "late",
         "begin_ns": begin, "end_ns": end, "uncertainty_ns": uncertainty}
        for name, begin, end in (("step", -200, 1200), ("load", -100, 0), ("late", 1100, 1300))
    ]  # fmt: skip
    call = {"kernel_id": "0", "thread": 7, "device": 0, "unix_ns": 1, "launch": 0, "captured": False, "ns": -50,
            "uncertainty_ns": uncertainty, "within": ["step", "load"]}  # fmt: skip
    host = {"process": 0, "uncertainty_ns": uncertainty, "threads": {7: "MainThread"}, "ranges": ranges,
            "marks": [], "launches": [call], "lost_launches": 0}  # fmt: skip
    return replace(script.build(), meta={"host": [host]})


def test_the_host_has_tracks(tmp_path: Path) -> None:
    """Ranges that cross are on two; the file begins with the first of them."""
    found = [row for row in slices(load(hosted(2.5), tmp_path)) if row[0].startswith("Host")]
    assert [(path, name, ts, dur) for path, name, ts, dur, *_ in found] == [
        ("Host/MainThread: NVTX", "step", 0, 1400),
        ("Host/MainThread: NVTX", "load", 100, 100),
        ("Host/MainThread: launches", "launch gemm", 150, 0),
        ("Host/MainThread: NVTX (2)", "late", 1300, 200),
    ]
    facts = {key: value for key, (_, value) in found[2][5].items()}
    assert facts == {"clock_uncertainty_ns": 2.5, "grid": 1, "start_after_ns": 150, "within": "step > load"}


def test_a_launch_says_in_which_ranges_of_the_host_it_was_called(tmp_path: Path) -> None:
    (kernel,) = [row for row in slices(load(hosted(2.5), tmp_path)) if row[1].startswith("kernel:")]
    facts = {key: value for key, (_, value) in kernel[5].items()}
    assert (facts["called_in"], facts["called_before_ns"]) == ("step > load", 150)


def test_an_arrow_leads_from_a_launch_call_to_its_launch(tmp_path: Path) -> None:
    processor = load(hosted(2.5), tmp_path)
    rows = processor.query(
        "select o.name source, i.name target from flow join slice o on slice_out = o.id join slice i on slice_in = i.id"
    )
    assert [tuple(row) for row in rows] == [("launch gemm", "kernel:gemm, gridId: 7")]


def test_a_host_whose_clock_is_not_known_is_left_out(tmp_path: Path) -> None:
    assert [row for row in slices(load(hosted(None), tmp_path)) if row[0].startswith("Host")] == []
