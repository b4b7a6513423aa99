"""Tables and the files made of them: every row, value and type; many runs in one data set."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_traces import random_traces
from traces import TraceScript

from warptrace.errors import UsageError, WarptraceError
from warptrace.export import dataset
from warptrace.export.dataset import run_label, write_csv, write_parquet, write_parquet_parts, write_sqlite
from warptrace.export.tables import TABLES, Tables, flat
from warptrace.trace import Process, Trace
from warptrace.wire import PayloadType

PAYLOADS = [
    (PayloadType.I32, (1 << 32) - 5, -5),
    (PayloadType.U64, (1 << 64) - 1, str((1 << 64) - 1)),
    (PayloadType.U64, 7, 7),
    (PayloadType.F32, 0x3FC00000, 1.5),
    (PayloadType.BF16, 0x7FC0, math.nan),
    (PayloadType.BOOL, 1, 1),
    (PayloadType.NONE, 0, None),
]


def marked() -> Trace:
    """A marker of every kind of payload, in a process of rank 3."""
    script = TraceScript()
    script.processes.append(Process(4242, {"pid": 4242, "rank": 3}))
    warp = script.warp(script.launch(graph=("graph_exec_1", 2)), 0, 100, cta=(1, 2, 3), warp=4, sm=5)
    for at, (kind, bits, _) in enumerate(PAYLOADS):
        warp.mark(at, 'm,"' if at == 0 else "m", (kind, bits))
    return script.build()


def records(trace: Trace, name: str) -> Iterator[dict[str, Any]]:
    """A table as the row by row reading of the trace's columns."""
    w, strings = trace.warps, trace.strings
    for row in range({"ranges": len(trace.ranges), "markers": len(trace.markers), "warps": len(w)}[name]):
        owner = trace.ranges.warp[row] if name == "ranges" else trace.markers.warp[row] if name == "markers" else row
        launch = trace.launches[w.launch[owner]]
        out: dict[str, Any] = {
            "pid": trace.processes[launch.process].pid, "rank": None, "device": launch.device,
            "launch": launch.index + 1, "kernel": launch.kernel, "warp": int(w.warp[owner]), "sm": int(w.sm[owner]),
            "cta_x": int(w.cta[owner, 0]), "cta_z": int(w.cta[owner, 2]),
        }  # fmt: skip
        if name == "ranges":
            r = trace.ranges
            site = trace.sites[r.start_site[row]]
            out |= {
                "name": strings[r.name[row]], "kind": "token" if r.kind[row] == 1 else "stack",
                "start_ns": int(r.start_ns[row]), "duration_ns": int(r.end_ns[row] - r.start_ns[row]),
                "cycles": int(r.end_cycle[row] - r.start_cycle[row]), "lane": int(r.lane[row]),
                "payload_bits": int(r.start_bits[row]) if r.start_type[row] else None,
                "end_payload_bits": int(r.end_bits[row]) if r.end_type[row] else None,
                "site": f"{site.file}:{site.line}",
            }  # fmt: skip
        elif name == "markers":
            m = trace.markers
            kind = PayloadType(m.type[row])
            out |= {
                "name": strings[m.name[row]], "ns": int(m.ns[row]), "cycle": int(m.cycle[row]),
                "payload_type": kind.name.lower() if kind else None,
            }  # fmt: skip
        else:
            out |= {
                "cycles": int(w.cycles[row]) if w.cycles[row] >= 0 else None, "ended": bool(w.closed[row]),
                "gpc": int(w.gpc[row]) if w.gpc[row] >= 0 else None, "lost": int(w.lost[row]),
            }  # fmt: skip
        yield out


def assert_rows(found: list[dict[str, Any]], trace: Trace, name: str) -> None:
    wanted = list(records(trace, name))
    assert [{key: row[key] for key in one} for row, one in zip(found, wanted)] == wanted
    assert len(found) == len(wanted)


@settings(max_examples=50, deadline=None)
@given(random_traces())
def test_columns_are_the_traces_rows(trace: Trace) -> None:
    tables = Tables(trace)
    for name in ("ranges", "markers", "warps"):
        columns = {title: column.objects() for title, column in flat(tables.part(name)).items()}
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        assert_rows(rows, trace, name)
    launches = {title: column.objects() for title, column in flat(tables.part("launches")).items()}
    assert launches["duration_ns"] == [one.end_ns - one.start_ns for one in trace.launches]
    assert launches["epoch_ns"] == [trace.epoch_ns] * len(trace.launches)


def test_parts_are_the_whole() -> None:
    tables = Tables(marked())
    whole = flat(tables.part("markers"))
    parts = [flat(part) for part in tables.parts("markers", 3)]
    for title, column in whole.items():
        assert repr(sum((part[title].objects() for part in parts), [])) == repr(column.objects())  # nan is not nan
    with pytest.raises(UsageError, match="no table 'events': there are ranges, markers, warps, launches"):
        tables.part("events")


def test_typed_payloads() -> None:
    columns = {title: column.objects() for title, column in flat(Tables(marked()).part("markers")).items()}
    assert columns["payload_type"] == ["i32", "u64", "u64", "f32", "bf16", "bool", None]
    assert columns["payload_int"] == [-5, None, 7, None, None, 1, None]
    assert [value is not None for value in columns["payload_float"]] == [False] * 3 + [True] * 2 + [False] * 2
    assert columns["payload_bits"][1] == (1 << 64) - 1
    assert columns["rank"] == [3] * 7


# ------------------------------------------------------------------------------------------------- libraries
def test_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    table = marked().to_arrow("markers")
    assert table.schema.field("name").type == pa.dictionary(pa.int32(), pa.string())
    assert table.column("payload_int").to_pylist() == [-5, None, 7, None, None, 1, None]
    assert table.column("name").to_pylist() == ['m,"'] + ["m"] * 6
    assert table.schema.metadata[b"epoch_ns"] == b"1700000000000000000"
    assert marked().to_arrow("launches").column("graph").to_pylist() == ["graph_exec_1:2"]


@settings(max_examples=20, deadline=None)
@given(random_traces())
def test_arrow_has_every_row(trace: Trace) -> None:
    pytest.importorskip("pyarrow")
    for name in ("ranges", "markers", "warps"):
        assert_rows(trace.to_arrow(name).to_pylist(), trace, name)


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = marked().to_pandas("markers")
    assert frame["payload_int"].tolist()[0] == -5 and frame["payload_int"].isna().tolist()[1]
    assert str(frame["payload_int"].dtype) == "Int64"
    assert isinstance(frame["name"].dtype, pd.CategoricalDtype) and frame["payload_type"].isna().tolist()[6]
    assert frame.attrs["epoch_ns"] == "1700000000000000000"
    assert frame.groupby("name", observed=True).size().to_dict() == {'m,"': 1, "m": 6}


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    frame = marked().to_polars("markers")
    assert frame["payload_int"].to_list() == [-5, None, 7, None, None, 1, None]
    assert frame["payload_type"].to_list() == ["i32", "u64", "u64", "f32", "bf16", "bool", None]
    assert isinstance(frame["name"].dtype, pl.Enum)
    assert frame["payload_bits"].to_list()[1] == (1 << 64) - 1


@pytest.mark.parametrize(
    ("method", "module"), [("to_arrow", "pyarrow"), ("to_pandas", "pandas"), ("to_polars", "polars")]
)
def test_a_library_that_is_missing(method: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(WarptraceError, match=rf"needs {module}: pip install 'warptrace\[data\]'"):
        getattr(marked(), method)()


def test_tables_need_none_of_the_libraries() -> None:
    block = "import sys; sys.modules.update({m: None for m in ('pyarrow', 'pandas', 'polars')})"
    code = f"{block}; import warptrace.export.dataset"
    subprocess.run([sys.executable, "-c", code], check=True)


# --------------------------------------------------------------------------------------------------- Parquet
def two_runs(folder: Path) -> tuple[Trace, Trace]:
    """Two runs of two ranks each in one data set."""
    pytest.importorskip("pyarrow")
    traces = []
    for number, run in enumerate(("before", "after")):
        script = TraceScript()
        for rank in (0, 1):
            script.processes.append(Process(100 * number + rank, {"rank": rank}))
            launch = script.launch(process=rank)
            warp = script.warp(launch, 0, 10_000)
            for step in range(3):
                warp.push(100 * step, "ab_wait", (PayloadType.I32, step))
                warp.pop(100 * step + 10 * (step + 1) * (2 - number) + rank)
        traces.append(script.build())
        write_parquet(traces[-1], folder, run)
    return traces[0], traces[1]


QUERY = """
select run, rank, payload_int as k_tile, count(*) n, avg(cycles) mean
from read_parquet('{folder}/ranges/*/*.parquet', hive_partitioning = true)
where name = 'ab_wait' group by all order by all
"""


def test_duckdb_reads_many_runs_and_ranks(tmp_path: Path) -> None:
    """The query of docs/outputs.md."""
    duckdb = pytest.importorskip("duckdb")
    two_runs(tmp_path)
    rows = duckdb.sql(QUERY.format(folder=tmp_path)).fetchall()
    assert rows == [
        (run, rank, step, 1, 2.0 * (10 * (step + 1) * scale + rank))
        for run, scale in (("after", 1), ("before", 2))
        for rank in (0, 1)
        for step in (0, 1, 2)
    ]


SKEW = """
with rounds as (
  select *, epoch_ns + start_ns as begins,
    row_number() over (partition by run, rank, kernel order by start_ns) as round
  from read_parquet('{folder}/launches/*/*.parquet', hive_partitioning = true)
)
select kernel, round, max(begins) - min(begins) as skew_ns, arg_max(rank, begins) as last,
  max(alignment_uncertainty_ns) as uncertain_ns
from rounds group by all order by skew_ns desc limit 3
"""


def test_duckdb_compares_ranks_that_were_never_in_memory_together(tmp_path: Path) -> None:
    """The query of docs/several-gpus.md, on traces of one process each, whose epochs differ."""
    duckdb = pytest.importorskip("duckdb")

    def traces() -> Iterator[Trace]:
        for rank in range(3):
            script = TraceScript()
            script.processes.append(Process(100 + rank, {"rank": rank}))
            for turn in range(4):
                launch = script.launch(start_ns=10_000 * turn, end_ns=10_000 * turn + 500)
                script.warp(launch, 10_000 * turn, 10_000 * turn + 500)
            doubt = 250.0 * (rank > 0)
            facts = {"process": 0, "device": 0, "uncertainty_ns": doubt, "symmetric_uncertainty_ns": doubt / 5}
            late = 700 if rank == 1 else 0
            yield replace(script.build(), epoch_ns=1_000_000 + late, meta={"alignment": [facts]})

    written = write_parquet_parts(traces(), tmp_path, "job")
    assert sorted(path.name for path in written if path.parent.parent.name == "launches") == [
        f"part-{n}.parquet" for n in range(3)
    ]
    page = Path(__file__).resolve().parents[2] / "docs" / "several-gpus.md"
    if page.exists():
        assert SKEW.format(folder="data") in page.read_text(encoding="utf-8")
    rows = duckdb.sql(SKEW.format(folder=tmp_path)).fetchall()
    assert rows[0][2:] == (700, 1, 250.0)
    assert sorted(row[1] for row in rows)[-1] <= 4
    both = "max(alignment_uncertainty_ns), max(alignment_symmetric_uncertainty_ns)"
    launches = f"read_parquet('{tmp_path}/launches/*/*.parquet')"
    assert duckdb.sql(f"select {both} from {launches}").fetchall() == [(250.0, 50.0)]


def test_polars_reads_many_runs(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    two_runs(tmp_path)
    frame = pl.scan_parquet(f"{tmp_path}/ranges/*/*.parquet", hive_partitioning=True)
    rows = frame.group_by("run", "rank").agg(pl.col("cycles").sum()).sort("run", "rank").collect().rows()
    assert rows == [("after", 0, 120), ("after", 1, 126), ("before", 0, 240), ("before", 1, 246)]


def test_a_data_set_by_pyarrow_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.dataset

    first, second = two_runs(tmp_path)
    table = pyarrow.dataset.dataset(tmp_path / "ranges", partitioning="hive").to_table()
    assert table.num_rows == len(first.ranges) + len(second.ranges)
    assert set(table.column("run").to_pylist()) == {"before", "after"}


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_traces())
def test_parquet_has_every_row(tmp_path: Path, trace: Trace) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "PART_ROWS", 4)
        write_parquet(trace, tmp_path, "x", clobber=True)
    for name in ("ranges", "markers", "warps"):
        rows = pq.ParquetFile(tmp_path / name / "run=x" / "part-0.parquet").read().to_pylist()
        assert_rows(rows, trace, name)


def test_a_run_of_the_data_set_is_not_replaced_unasked(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_parquet(marked(), tmp_path, "a b")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet"))
    with pytest.raises(UsageError, match=r"ranges/run=a-b is there already: give another --run-name, or --clobber"):
        write_parquet(TraceScript().build(), tmp_path, "a b")
    write_parquet(marked(), tmp_path, "a b", clobber=True)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.parquet")) == before
    assert run_label("../x y/") == "x-y"
    with pytest.raises(UsageError, match="run name '//' has no letter"):
        run_label("//")


# -------------------------------------------------------------------------------------------- SQLite and CSV
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random_traces())
def test_sqlite_has_every_row(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "trace.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "PART_ROWS", 5)
        write_sqlite(trace, path)
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    for name in ("ranges", "markers", "warps"):
        rows = [dict(row) for row in connection.execute(f"select * from {name}")]
        for row, wanted in zip(rows, records(trace, name), strict=True):
            assert all(row[key] == value for key, value in wanted.items() if key in row)
    connection.close()


def test_sqlite_payloads_problems_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    write_sqlite(marked(), path)
    connection = sqlite3.connect(path)
    values = [row[0] for row in connection.execute("select payload from markers")]
    assert values == [-5, str((1 << 64) - 1), 7, 1.5, "nan", 1, None]
    assert dict(connection.execute("select key, value from meta"))["epoch_ns"] == "1700000000000000000"
    assert [row[0] for row in connection.execute("select name from sqlite_master order by 1")] == sorted(
        [*TABLES, "meta", "problems"]
    )
    connection.close()
    assert [one.name for one in tmp_path.iterdir()] == ["trace.sqlite"]


def test_csv_files(tmp_path: Path) -> None:
    write_csv(marked(), tmp_path / "out")
    with (tmp_path / "out" / "markers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["payload"] for row in rows] == ["-5", str((1 << 64) - 1), "7", "1.5", "nan", "1", ""]
    assert (rows[0]["name"], rows[0]["cta_y"], rows[0]["rank"], rows[0]["site"]) == ('m,"', "2", "3", "kernel.py:10")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(f"{name}.csv" for name in TABLES)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for write in (write_csv, write_sqlite):
        with pytest.raises(WarptraceError, match="cannot write .*choose another -o"):
            write(marked(), tmp_path / "file" / "deeper")


def test_json_of_numpy_free_values() -> None:
    """Objects are plain Python: they go through json."""
    for name in TABLES:
        for column in flat(Tables(marked()).part(name)).values():
            json.dumps(column.objects())
    assert np.asarray(Tables(marked()).part("warps")["warp"].values).tolist() == [4]
