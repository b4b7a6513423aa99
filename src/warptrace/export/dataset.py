"""Tables as files: a Parquet data set of many runs, a SQLite database, CSV."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError, WarptraceError
from ..trace import Trace
from ._common import Progress
from .tables import TABLES, Column, Payloads, Table, Tables, arrow_part, metadata, require

PART_ROWS = 1 << 18
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class _Meter:
    """Rows written so far, for a progress callback."""

    def __init__(self, tables: Tables, progress: Progress | None) -> None:
        self._total = sum(tables.rows(name) for name in TABLES)
        self._done = 0
        self._progress = progress

    def advance(self, part: Table) -> None:
        first = next(iter(part.values()))
        self._done += len(first.values if isinstance(first, Column) else first.types)
        if self._progress is not None:
            self._progress(self._done, self._total)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """Faults of the file system as one line."""
    try:
        yield
    except OSError as error:
        raise WarptraceError(f"cannot write {path}: {error.strerror or error}; choose another -o") from error


# ---------------------------------------------------------------------------------------------------- Parquet
def run_label(name: str) -> str:
    """``name`` as the value of a partition: letters, digits, dots, dashes. Raises UsageError where nothing is left."""
    label = NOT_IN_A_NAME.sub("-", name).strip("-.")
    if not label:
        raise UsageError(f"run name {name!r} has no letter or digit: give another --run-name")
    return label


def parquet_targets(folder: str | os.PathLike[str], run: str) -> list[Path]:
    """The partitions that a run has in a data set."""
    return [Path(folder) / name / f"run={run_label(run)}" for name in TABLES]


def write_parquet(
    trace: Trace,
    folder: str | os.PathLike[str],
    run: str,
    *,
    clobber: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Adds a run to the data set in ``folder``: ``<table>/run=<run>/part-0.parquet`` for each of TABLES.

    Readers of Hive partitions (DuckDB, Polars, Spark, pyarrow) get a column ``run``. A run that the data set has
    already is replaced with ``clobber``, else refused. Returns the files. Raises WarptraceError.
    """
    return write_parquet_parts([trace], folder, run, clobber=clobber, progress=progress)


def write_parquet_parts(
    traces: Iterable[Trace],
    folder: str | os.PathLike[str],
    run: str,
    *,
    clobber: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """The same of a run that comes in several traces, which need not be in memory together: ``part-<n>.parquet`` for
    the n-th. ``progress``: of each trace from its begin."""
    pq = require("pyarrow.parquet", "a Parquet data set")
    targets = parquet_targets(folder, run)
    for target in targets:
        if target.exists() and not clobber:
            raise UsageError(f"{target} is there already: give another --run-name, or --clobber to replace it")
    scratch = Path(folder) / f".{run_label(run)}.{os.getpid()}.part"
    made: list[str] = []
    with _os_errors(Path(folder)):
        try:
            for name in TABLES:
                (scratch / name).mkdir(parents=True)
            for trace in traces:
                made.append(f"part-{len(made)}.parquet")
                tables = Tables(trace)
                meter = _Meter(tables, progress)
                for name in TABLES:
                    _parquet_file(pq, tables, name, scratch / name / made[-1], meter)
                del trace, tables, meter  # before the next one is made
            for name, target in zip(TABLES, targets):
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(scratch / name, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return [target / part for target in targets for part in made]


def _parquet_file(pq: Any, tables: Tables, name: str, path: Path, meter: _Meter) -> None:
    writer = None
    for part in tables.parts(name, PART_ROWS):
        rows = arrow_part(part)
        if writer is None:
            schema = rows.schema.with_metadata(metadata(tables.trace))
            writer = pq.ParquetWriter(path, schema, compression="zstd")
        writer.write_table(rows.replace_schema_metadata(metadata(tables.trace)))
        meter.advance(part)
    if writer is not None:
        writer.close()


# ----------------------------------------------------------------------------------------------------- SQLite
SQL_TYPES = {"i": "INTEGER", "u": "INTEGER", "b": "INTEGER", "f": "REAL"}


def write_sqlite(trace: Trace, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """A SQLite database with the tables of TABLES, ``problems`` and ``meta``.

    A payload is a column of its natural type beside one that names the type: integers, reals, and the digits as text
    for unsigned numbers from 2^63, and ``nan``. Raises WarptraceError.
    """
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    tables = Tables(trace)
    meter = _Meter(tables, progress)
    with _os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            connection = sqlite3.connect(scratch)
            try:
                connection.execute("PRAGMA journal_mode = OFF")
                connection.execute("PRAGMA synchronous = OFF")
                for name in TABLES:
                    _sqlite_table(connection, tables, name, meter)
                _sqlite_facts(connection, trace)
                connection.commit()
            finally:
                connection.close()
            os.replace(scratch, target)
        except sqlite3.Error as error:
            raise WarptraceError(f"cannot write {target}: {error}; choose another -o") from error
        finally:
            scratch.unlink(missing_ok=True)


def _sqlite_table(connection: sqlite3.Connection, tables: Tables, name: str, meter: _Meter) -> None:
    made = False
    for part in tables.parts(name, PART_ROWS):
        columns: dict[str, tuple[str, list[Any]]] = {}
        for title, column in part.items():
            if isinstance(column, Payloads):
                columns[f"{title}_type"] = ("TEXT", column.columns(title)[f"{title}_type"].objects())
                # SQLite keeps a NaN as NULL.
                columns[title] = ("", [str(v) if isinstance(v, float) and v != v else v for v in column.objects()])
            elif column.values.dtype == "uint64":  # SQLite's integers are signed
                columns[title] = ("INTEGER", Column(column.values.view("int64"), None, column.valid).objects())
            else:
                kind = "TEXT" if column.labels is not None else SQL_TYPES[column.values.dtype.kind]
                columns[title] = (kind, column.objects())
        if not made:
            fields = ", ".join(f'"{title}" {kind}'.rstrip() for title, (kind, _) in columns.items())
            connection.execute(f"CREATE TABLE {name} ({fields})")
            made = True
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", zip(*(v for _, v in columns.values())))
        meter.advance(part)


def _sqlite_facts(connection: sqlite3.Connection, trace: Trace) -> None:
    connection.execute("CREATE TABLE problems (kind TEXT, count INTEGER, text TEXT, launch INTEGER)")
    rows = [(p.kind, p.count, p.text, None if p.launch is None else p.launch + 1) for p in trace.problems]
    connection.executemany("INSERT INTO problems VALUES (?, ?, ?, ?)", rows)
    connection.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    connection.executemany("INSERT INTO meta VALUES (?, ?)", metadata(trace).items())


# -------------------------------------------------------------------------------------------------------- CSV
def csv_targets(folder: str | os.PathLike[str]) -> list[Path]:
    """The files that :func:`write_csv` makes."""
    return [Path(folder) / f"{name}.csv" for name in TABLES]


def write_csv(
    trace: Trace, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> list[Path]:
    """``ranges.csv`` and the others of TABLES in ``folder``, RFC 4180 in UTF-8; nothing between two commas: no value.

    A payload is one column, as a person reads it, beside one that names its type. Raises WarptraceError.
    """
    tables = Tables(trace)
    meter = _Meter(tables, progress)
    targets = csv_targets(folder)
    with _os_errors(Path(folder)):
        Path(folder).mkdir(parents=True, exist_ok=True)
        scratch = [target.with_name(f".{target.name}.{os.getpid()}.part") for target in targets]
        try:
            for name, path in zip(TABLES, scratch):
                with path.open("w", encoding="utf-8", newline="") as file:
                    _csv_file(file, tables, name, meter)
            for path, target in zip(scratch, targets):
                os.replace(path, target)
        finally:
            for path in scratch:
                path.unlink(missing_ok=True)
    return targets


def _csv_file(file: io.TextIOWrapper, tables: Tables, name: str, meter: _Meter) -> None:
    writer = csv.writer(file)
    begun = False
    for part in tables.parts(name, PART_ROWS):
        columns: dict[str, list[Any]] = {}
        for title, column in part.items():
            if isinstance(column, Payloads):
                columns[f"{title}_type"] = column.columns(title)[f"{title}_type"].objects()
                columns[title] = column.texts()
            else:
                columns[title] = column.objects()
        if not begun:
            writer.writerow(columns)
            begun = True
        writer.writerows(zip(*columns.values()))
        meter.advance(part)
