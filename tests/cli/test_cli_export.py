"""``warptrace export`` as a user runs it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command_line import Cli

from warptrace.export.tables import TABLES


@pytest.mark.parametrize(
    ("to", "files"),
    [
        ("sqlite", ["trace.sqlite"]),
        ("chrome", ["trace.chrome.json"]),
        ("speedscope", ["trace.speedscope.json"]),
        ("csv", [f"csv/{name}.csv" for name in TABLES]),
    ],
)
def test_into_the_run_directory(cli: Cli, run_dir: Path, to: str, files: list[str]) -> None:
    done = cli("export", "run", "--to", to)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [f"warptrace: wrote run/{name}" for name in files]
    assert all((run_dir / name).stat().st_size for name in files)
    again = cli("export", "run", "--to", to)
    assert (again.returncode, again.stderr) == (
        2, f"warptrace: error: run/{files[0]} is there already: --clobber to replace it\n",
    )  # fmt: skip
    assert cli("export", "run", "--to", to, "--clobber").returncode == 0


def test_two_runs_in_one_data_set(cli: Cli, run_dir: Path) -> None:
    pytest.importorskip("pyarrow")
    for name in ("one", "two"):
        done = cli("export", "run", "--to", "parquet", "-o", "data", "--run-name", name)
        assert (done.returncode, done.stderr.count("wrote data/")) == (0, len(TABLES)), done.stderr
    folder = run_dir.parent / "data"
    assert sorted(path.parent.name for path in folder.glob("ranges/*/part-0.parquet")) == ["run=one", "run=two"]
    again = cli("export", "run", "--to", "parquet", "-o", "data", "--run-name", "two")
    assert again.returncode == 2 and "give another --run-name, or --clobber to replace it" in again.stderr


def test_one_process_after_the_other_also_of_several_runs(cli: Cli, run_dir: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    shutil.copytree(run_dir, run_dir.parent / "again")
    words = ("--to", "parquet", "--per-process", "-o", "data", "--run-name", "job")
    done = cli("export", "run", "again", *words)
    assert (done.returncode, done.stderr) == (0, "warptrace: wrote 2 processes to data\n")
    folder = run_dir.parent / "data"
    parts = sorted((folder / "ranges" / "run=job").iterdir())
    assert [path.name for path in parts] == ["part-0.parquet", "part-1.parquet"]
    assert [parquet.ParquetFile(path).metadata.num_rows for path in parts] == [2, 2]
    assert cli("export", "run", *words).returncode == 2
    assert cli("export", "run", *words, "--clobber").returncode == 0
    assert [path.name for path in (folder / "ranges" / "run=job").iterdir()] == ["part-0.parquet"]


def test_the_content(cli: Cli, run_dir: Path) -> None:
    assert cli("export", "run", "--to", "sqlite", "-o", "x.db").returncode == 0
    connection = sqlite3.connect(run_dir.parent / "x.db")
    rows = connection.execute("select name, count(*), sum(cycles) from ranges group by 1").fetchall()
    assert rows == [("load", 2, 40)]
    connection.close()
    assert cli("export", "run", "--to", "chrome", "-o", "x.json").returncode == 0
    events = json.loads((run_dir.parent / "x.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "i" for event in events) == 2


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["run", "run", "--to", "csv"], 2, "several runs are exported with --per-process"),
        (["run", "--to", "csv", "--per-process"], 2, "--per-process belongs to --to parquet"),
        (["run"], 2, "the following arguments are required: --to"),
        (["run", "--to", "xml"], 2, "invalid choice: 'xml'"),
        (["nowhere", "--to", "csv"], 1, "nowhere"),
        (["run", "--to", "csv", "--run-name", "x"], 2, "--run-name belongs to --to parquet"),
        (["run", "--to", "csv", "-o", "file"], 2, "file is no folder: choose another -o"),
        (["run", "--to", "sqlite", "-o", "run", "--clobber"], 2, "run is no file: choose another -o"),
        (["run", "--to", "sqlite", "-o", "file/x"], 1, "cannot write file/x"),
    ],
)
def test_mistakes(cli: Cli, run_dir: Path, words: list[str], status: int, error: str) -> None:
    (run_dir.parent / "file").write_text("x")
    done = cli("export", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert error in done.stderr and done.stderr.count("\n") == 1
    assert (run_dir.parent / "file").read_text() == "x"
