from __future__ import annotations

import gzip
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iket_reader import read
from random_traces import random_traces
from traces import EPOCH, TraceScript

from warptrace.errors import WarptraceError
from warptrace.export import iket_json, write_iket_json
from warptrace.export.iket_json import Number, Text
from warptrace.trace import RANGE_STACK, Problem, Trace
from warptrace.wire import PayloadType as P

SAMPLE = Path(__file__).parent / "data" / "run_iket_4.8.1_trimmed.trace.json"
RUN_IKET_ONLY = ("enabledCluster", "singleClusterActive")


def export(trace: Trace, tmp_path: Path, **options: Any) -> dict[str, Any]:
    path = tmp_path / "trace.json"
    write_iket_json(trace, path, **options)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


@pytest.fixture(scope="session")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((files("warptrace.export") / "schema" / "iket_trace.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def sample_trace() -> Trace:
    """The real sample as columns, its zero being its first time."""
    data = json.loads(SAMPLE.read_text())
    epoch = min(row["startTs"] for launch in data["launches"] for row in launch["warpLifetimes"])
    script = TraceScript(epoch_ns=epoch)
    names = data["stringTable"]
    for launch in data["launches"]:
        index = script.launch(
            grid=tuple(launch[f"gridDim{axis}"] for axis in "XYZ"),
            block=tuple(launch[f"blockDim{axis}"] for axis in "XYZ"),
            grid_id=launch["gridId"], symbol=launch["kernelName"], context_id=launch["contextId"],
        )  # fmt: skip
        for life in launch["warpLifetimes"]:
            place = data["locationTable"][life["locIdx"]]
            warp = script.warp(
                index, life["startTs"] - epoch, life["endTs"] - epoch, cta=tuple(place["ctaId"]),
                warp=place["warpId"], sm=place["smId"], tpc=place["tpcId"], gpc=place["gpcId"],
            )  # fmt: skip
            for mark in launch["markers"]:
                if mark["locIdx"] == life["locIdx"]:
                    payload = (P(mark["payloadType"]), mark["payloadVal"])
                    warp.mark(mark["timestamp"] - epoch, names[mark["markerNameIdx"]], payload)
            for row in launch["ranges"]:
                if row["warpLocIdxs"][0] == life["locIdx"]:
                    first = row["internalEvents"][0]
                    payload = (P(first.get("payloadType", 0)), first.get("payloadVal", 0))
                    warp.push(row["startTs"] - epoch, names[row["rangeNameIdx"]], payload)
                    warp.pop(row["endTs"] - epoch)
    return script.build()


# --------------------------------------------------------------------------------------------- the real sample
def test_the_same_data_gives_the_same_document_as_run_iket(tmp_path: Path) -> None:
    ours, theirs = export(sample_trace(), tmp_path), json.loads(SAMPLE.read_text())
    del ours["warptrace"]
    for launch in ours["launches"]:
        del launch["warptrace"]
    for launch in ours["launches"] + theirs["launches"]:
        for key in RUN_IKET_ONLY:
            launch.pop(key, None)
    assert ours == theirs
    compact = [json.dumps(data, separators=(",", ":")) for data in (ours, theirs)]
    assert compact[0] == compact[1]  # the order of the keys too


def test_the_text_of_the_records_is_that_of_run_iket(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_iket_json(sample_trace(), path)
    for key in ("markers", "ranges", "warpLifetimes", "locationTable", "stringTable"):
        ours, theirs = (_value_text(text, key) for text in (path.read_text(), SAMPLE.read_text()))
        assert ours == theirs


def _value_text(text: str, key: str) -> str:
    """The text of the first value of a key, as it stands in the file."""
    start = text.index(f'"{key}":') + len(key) + 3
    return text[start : json.JSONDecoder().raw_decode(text, start)[1]]


def test_a_script_for_run_iket_reads_both_alike(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    write_iket_json(sample_trace(), path)
    ours, theirs = read(path), read(SAMPLE)
    assert ours == theirs
    assert [sum(map(len, one.durations.values())) for one in ours] == [30, 30]
    assert [dict(one.markers) for one in ours] == [{"tma_prefetch": 4}, {"tma_prefetch": 4}]
    assert ours[0].durations["wgmma"][:2] == [384, 320]
    assert ours[0].payloads["wait_full"][:2] == [(1, None), (2, None)]


def test_range_ids_are_those_of_run_iket() -> None:
    data = json.loads(SAMPLE.read_text())
    for row in data["launches"][0]["ranges"]:
        assert iket_json.range_id(data["stringTable"][row["rangeNameIdx"]]) == row["rangeId"]


def test_schema_accepts_run_iket_and_us_and_refuses_what_is_wrong(tmp_path: Path, validator: Any) -> None:
    sample = json.loads(SAMPLE.read_text())
    ours = export(sample_trace(), tmp_path)
    assert list(validator.iter_errors(sample)) == []
    assert list(validator.iter_errors(ours)) == []
    for spoil in (
        lambda d: d["launches"][0]["ranges"][0].pop("startTs"),
        lambda d: d["launches"][0]["ranges"][0]["internalEvents"].pop(),
        lambda d: d["launches"][0]["markers"][0].pop("payloadVal"),
        lambda d: d["launches"][0]["markers"][0].update(timestamp=1.5),
        lambda d: d["launches"][0]["warptrace"].pop("lostEvents"),
        lambda d: d["stringTable"].append(""),
        lambda d: d["warptrace"].update(version=2),
        lambda d: d.update(extra=1),
    ):
        data = json.loads(json.dumps(ours))
        spoil(data)
        assert list(validator.iter_errors(data)) != []


def test_windows_in_which_recording_was_on(tmp_path: Path, validator: Any) -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 90)
    trace = script.build()
    known = {"process": 0, "begin_unix_ns": 7, "end_unix_ns": 9, "begin_ns": -5, "end_ns": 95, "uncertainty_ns": 1.5}
    unknown = {**known, "end_unix_ns": None, "begin_ns": None, "end_ns": None, "uncertainty_ns": None}
    trace.meta["windows"] = [known, unknown]
    data = export(trace, tmp_path)
    validator.validate(data)
    pid = trace.processes[0].pid
    assert data["warptrace"]["windows"] == [
        {"pid": pid, "beginUnixNs": 7, "endUnixNs": 9, "startTs": EPOCH - 5, "endTs": EPOCH + 95, "uncertaintyNs": 1.5},
        {"pid": pid, "beginUnixNs": 7, "endUnixNs": None, "startTs": None, "endTs": None, "uncertaintyNs": None},
    ]


def test_builds_of_kernels(tmp_path: Path, validator: Any) -> None:
    trace = sample_trace()
    code = {"registers": 168, "stack_bytes": 0, "code_bytes": 9_856}
    trace.meta["builds"] = [
        {"kernel_id": 99, "kernel": "gemm", "arch": "sm_90a", **code, "untraced": code | {"registers": 160}},
        {"kernel_id": 98, "kernel": "sum", "arch": "sm_80", "registers": 40, "code_bytes": "?", "untraced": None},
    ]
    data = export(trace, tmp_path)
    assert list(validator.iter_errors(data)) == []
    plain = {"registers": 168, "stackBytes": 0, "codeBytes": 9_856}
    assert data["warptrace"]["builds"] == [
        {"kernelId": f"{99:016x}", "kernel": "gemm", "arch": "sm_90a", **plain, "untraced": plain | {"registers": 160}},
        {"kernelId": f"{98:016x}", "kernel": "sum", "arch": "sm_80", "registers": 40},
    ]
    data["warptrace"]["builds"][0]["stackBytes"] = -1
    assert list(validator.iter_errors(data)) != []


# -------------------------------------------------------------------------------------------------- properties
def columns(data: dict[str, Any], trace: Trace) -> None:
    """Every record of a document against the columns it came from."""
    launches = {one["warptrace"]["index"]: one for one in data["launches"]}
    for launches_of_graph in data["graphLaunches"].values():
        launches |= {one["warptrace"]["index"]: one for one in launches_of_graph}
    strings, places = data["stringTable"], data["locationTable"]
    w, r, m = trace.warps, trace.ranges, trace.markers
    seen = {index: {"ranges": 0, "markers": 0, "warpLifetimes": 0} for index in launches}

    def following(warp: int, table: str) -> dict[str, Any]:
        index = int(w.launch[warp])
        seen[index][table] += 1
        row: dict[str, Any] = launches[index][table][seen[index][table] - 1]
        return row

    def check_place(location: int, warp: int) -> None:
        assert places[location] == {
            "ctaId": w.cta[warp].tolist(), "gpcId": w.gpc[warp], "smId": w.sm[warp], "tpcId": w.tpc[warp],
            "warpId": w.warp[warp],
        }  # fmt: skip

    def check_payload(event: dict[str, Any], kind: int, bits: int) -> None:
        expected = {} if kind == P.NONE else {"payloadType": 2 if kind == P.BOOL else kind, "payloadVal": bits}
        assert {key: value for key, value in event.items() if key.startswith("payload")} == expected

    for i in range(len(w)):
        row = following(i, "warpLifetimes")
        check_place(row["locIdx"], i)
        assert (row["startTs"] - EPOCH, row["endTs"] - EPOCH) == (w.start_ns[i], w.end_ns[i])
    for i in range(len(r)):
        row = following(int(r.warp[i]), "ranges")
        assert strings[row["rangeNameIdx"]] == trace.strings[r.name[i]]
        assert (row["startTs"] - EPOCH, row["endTs"] - EPOCH) == (r.start_ns[i], r.end_ns[i])
        assert (row["rangeType"], row["rangeScope"]) == (r.kind[i], 0)
        assert row["rangeId"] == iket_json.range_id(trace.strings[r.name[i]])
        first, last = row["internalEvents"]
        assert (first["timestamp"], last["timestamp"]) == (row["startTs"], row["endTs"])
        assert last["eventId"] == (31 if r.kind[i] == RANGE_STACK else first["eventId"])
        check_payload(first, int(r.start_type[i]), int(r.start_bits[i]))
        check_payload(last, int(r.end_type[i]), int(r.end_bits[i]))
        for location in row["warpLocIdxs"]:
            check_place(location, int(r.warp[i]))
    for i in range(len(m)):
        row = following(int(m.warp[i]), "markers")
        assert strings[row["markerNameIdx"]] == trace.strings[m.name[i]]
        assert row["timestamp"] - EPOCH == m.ns[i]
        check_payload(row, int(m.type[i]), int(m.bits[i]))
        check_place(row["locIdx"], int(m.warp[i]))
    for index, counts in seen.items():
        assert counts == {table: len(launches[index][table]) for table in counts}
    assert len({json.dumps(place) for place in places}) == len(places)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=random_traces(), rows=st.sampled_from([1, 5, 1 << 14]), graph=st.booleans())
def test_everything_equals_the_columns(tmp_path: Path, validator: Any, trace: Trace, rows: int, graph: bool) -> None:
    if graph:
        launches = tuple(replace(one, graph=("graph_exec_1", one.index // 2)) for one in trace.launches[1:])
        trace = replace(trace, launches=(trace.launches[0], *launches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iket_json, "CHUNK_ROWS", rows)
        data = export(trace, tmp_path)
    assert list(validator.iter_errors(data)) == []
    columns(data, trace)


numbers = st.integers(0, (1 << 64) - 1) | st.integers(0, 100_000) | st.integers(0, 9)
texts = st.lists(st.binary(max_size=12), min_size=1, max_size=4)


@given(st.lists(numbers, max_size=12), st.data())
def test_rows_are_their_fields_one_after_another(values: list[int], data: st.DataObject) -> None:
    """Also where the cells of a field are wider than all that stands before them."""
    count = len(values)
    column = np.array(values, np.uint64)
    fields: list[Number | Text] = []
    rows = [b""] * count
    for kind in data.draw(st.lists(st.sampled_from(("number", "some", "text", "one")), min_size=1, max_size=5)):
        if kind == "number":
            fields.append(Number(column))
            parts = [b"%d" % value for value in values]
        elif kind == "some":
            present = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
            fields.append(Number(column, np.array(present, np.bool_)))
            parts = [b"%d" % value if shown else b"" for value, shown in zip(values, present)]
        else:
            table = data.draw(texts)
            index = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=count, max_size=count))
            fields.append(Text(table, np.array(index, np.int64)) if kind == "text" else Text(table[:1]))
            parts = [table[i if kind == "text" else 0] for i in index]
        rows = [row + part for row, part in zip(rows, parts)]
    assert iket_json.render(count, fields) == b"".join(rows)


@given(st.lists(st.lists(st.integers(0, 9)), min_size=1, max_size=3))
def test_first_appearance(rows: list[list[int]]) -> None:
    order, place = iket_json.first_appearance(*(np.array(row, np.int64) for row in rows), size=10)
    expected = list(dict.fromkeys(value for row in rows for value in row))
    assert order.tolist() == expected
    assert place.tolist() == [expected.index(value) if value in expected else -1 for value in range(10)]


# --------------------------------------------------------------------------------------------------- specials
def test_event_ids_follow_the_sites_and_leave_room_for_the_pop(tmp_path: Path) -> None:
    for count, base in ((30, 1), (31, 64)):
        script = TraceScript()
        warp = script.warp(script.launch(), 0, 10)
        for i in range(count):
            warp.push(1, f"n{i}")
            warp.pop(1)
        events = [row["internalEvents"] for row in export(script.build(), tmp_path)["launches"][0]["ranges"]]
        assert [tuple(event["eventId"] for event in pair) for pair in events] == [(base + i, 31) for i in range(count)]


def test_event_ids_of_two_kernels_are_their_own(tmp_path: Path) -> None:
    script = TraceScript()
    for kernel, names in ((1, "ab"), (2, "ba")):
        warp = script.warp(script.launch(kernel_id=kernel), 0, 10)
        for name in names:
            warp.end(warp.start(1, name), 2)
    data = export(script.build(), tmp_path)
    names = data["stringTable"]
    got = [
        [(names[row["rangeNameIdx"]], *(event["eventId"] for event in row["internalEvents"])) for row in one["ranges"]]
        for one in data["launches"]
    ]
    assert got == [[("a", 1, 1), ("b", 2, 2)], [("b", 1, 1), ("a", 2, 2)]]


def test_graph_launches_are_keyed_by_graph_and_replay(tmp_path: Path) -> None:
    script = TraceScript()
    for grid_id, graph in ((1, None), (2, ("graph_exec_1", 0)), (3, ("graph_exec_1", 0)), (2, ("graph_exec_1", 1))):
        script.warp(script.launch(grid_id=grid_id, graph=graph), 0, 10)
    data = export(script.build(), tmp_path)
    assert [one["gridId"] for one in data["launches"]] == [1]
    graphs = {key: [one["gridId"] for one in launches] for key, launches in data["graphLaunches"].items()}
    assert graphs == {"graph_exec_1:0": [2, 3], "graph_exec_1:1": [2]}


def test_locations_are_shared_between_launches(tmp_path: Path) -> None:
    script = TraceScript()
    for sm in (3, 3, 4):
        script.warp(script.launch(), 0, 10, sm=sm, cta=(1, 2, 3), warp=5)
    data = export(script.build(), tmp_path)
    assert [(place["smId"], place["ctaId"]) for place in data["locationTable"]] == [(3, [1, 2, 3]), (4, [1, 2, 3])]
    assert [one["warpLifetimes"][0]["locIdx"] for one in data["launches"]] == [0, 0, 1]


def test_extensions_tell_what_is_missing(tmp_path: Path, validator: Any) -> None:
    script = TraceScript(emulated=True)
    launch = script.launch(cluster=(2, 1, 1), warps_expected=3, lost_warps=1, clock_uncertainty_ns=float("nan"))
    script.warp(launch, 0, 10, warp=0, lost=7).mark(1, "é")
    script.warp(launch, 5, 20, warp=1, closed=0)
    script.problems.append(Problem("lost_events", 7, "7 events lost", launch=0))
    trace = replace(script.build(), meta={"clocks": {"rate": np.float64(1.755), "offset": np.arange(2)}})
    data = export(trace, tmp_path)
    assert list(validator.iter_errors(data)) == []
    assert data["launches"][0]["warptrace"] == {
        "index": 0, "kernel": "gemm", "kernelId": "0000000000000063", "cluster": [2, 1, 1], "device": 0, "pid": 4242,
        "stream": None, "streamName": None,
        "process": 0, "startTs": EPOCH, "endTs": EPOCH + 20, "warpsRecorded": 2, "warpsExpected": 3, "events": 1,
        "lostEvents": 7, "lostWarps": 1, "clockUncertaintyNs": None, "selection": None, "lostPerWarp": [[0, 7]],
        "lastSeenTs": EPOCH + 20, "openRanges": [], "fullWarps": [],
        "unfinishedWarps": [1],
    }  # fmt: skip
    extension = data["warptrace"]
    assert (extension["version"], extension["emulated"], extension["epochNs"]) == (1, True, EPOCH)
    assert extension["problems"] == [{"kind": "lost_events", "count": 7, "text": "7 events lost", "launch": 0}]
    assert extension["clocks"] == {"rate": 1.755, "offset": [0, 1]}
    assert extension["processes"] == [{"pid": 4242, "rank": None, "host": "", "manifest": {"pid": 4242}}]
    assert extension["sites"] == [
        {"kernelId": "0000000000000063", "id": 1, "kind": "mark", "name": "é", "payloadType": 0, "file": "kernel.py",
         "line": 10}
    ]  # fmt: skip
    assert data["stringTable"] == ["é"]


def test_gzip_holds_the_same_document(tmp_path: Path) -> None:
    write_iket_json(sample_trace(), tmp_path / "a.json")
    write_iket_json(sample_trace(), tmp_path / "a.json.gz", gzip=True)
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


def test_empty_trace(tmp_path: Path, validator: Any) -> None:
    data = export(TraceScript().build(), tmp_path)
    assert list(validator.iter_errors(data)) == []
    assert (data["launches"], data["locationTable"], data["stringTable"]) == ([], [], [])


def test_a_fault_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")
    trace = sample_trace()
    with pytest.raises(WarptraceError, match="a time lies before 1970"):
        write_iket_json(replace(trace, epoch_ns=-1), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_iket_json(sample_trace(), tmp_path / "t.json", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(36, 72), (72, 72)]
