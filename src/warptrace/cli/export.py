"""``warptrace export``: a run as tables or as a trace for other tools."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError, WarptraceError
from ._messages import ProgressCallback, note, progress_bar, shown
from .postprocess import run_folder

if TYPE_CHECKING:
    from ..trace import Trace
    from ._args import Verbs


@dataclass(frozen=True)
class Target:
    """Where an export goes by default, in the run directory; ``folder``: the target is one."""

    name: str
    folder: bool
    about: str


FORMATS = {
    "parquet": Target("parquet", True, "a data set of Parquet files, which may hold many runs"),
    "sqlite": Target("trace.sqlite", False, "a SQLite database"),
    "csv": Target("csv", True, "a folder of CSV files"),
    "chrome": Target("trace.chrome.json", False, "Chrome's trace JSON"),
    "speedscope": Target("trace.speedscope.json", False, "speedscope's JSON"),
}


class Export:
    """The verb."""

    name = "export"
    options: frozenset[str] = frozenset({"output_dir", "clobber", "per_process"})
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="write a run as Parquet, SQLite, CSV, Chrome or speedscope files",
            description="Writes all that was decoded from RUN for other tools: "
            + "; ".join(f"{name}: {target.about}" for name, target in FORMATS.items())
            + ".",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument(
            "run_dirs", metavar="RUN", nargs="+", help="a result of profile, or one capture in it"
        )
        parser.add_argument("--to", choices=tuple(FORMATS), required=True, help="what to write")
        parser.add_argument(
            "-o", "--output", dest="output_dir", metavar="PATH", help="where to (default: a name in RUN)"
        )
        parser.add_argument("--run-name", metavar="NAME", help="parquet: what this run is called (default: RUN's name)")
        parser.add_argument("--clobber", action="store_true", help="replace what is there")
        parser.add_argument(
            "--per-process",
            action="store_true",
            help="parquet: decode one process after the other, all on one timeline: what does not fit memory together",
        )

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0. Raises WarptraceError."""
        from .. import load

        given = vars(options)
        first, *more = options.run_dirs
        run = Path(os.path.realpath(first))
        if more and "per_process" not in given:
            raise UsageError("several runs are exported with --per-process; `warptrace merge` makes one trace of them")
        if "per_process" in given and options.to != "parquet":
            raise UsageError("--per-process belongs to --to parquet")
        target = Path(given.get("output_dir") or run_folder(run) / FORMATS[options.to].name)
        clobber = given.get("clobber", False)
        if "run_name" in given and options.to != "parquet":
            raise UsageError("--run-name belongs to --to parquet")
        if FORMATS[options.to].folder != target.is_dir() and target.exists():
            kind = "folder" if FORMATS[options.to].folder else "file"
            raise UsageError(f"{shown(target)} is no {kind}: choose another -o")
        run_name = given.get("run_name", run_folder(run).name)
        if "per_process" in given:
            _each(options.run_dirs, target, run_name, clobber)
            return 0
        write = _writer(options.to, target, run_name, clobber)
        trace = load(first)
        with progress_bar(f"writing {target.name}") as progress:
            written = write(trace, progress)
        for path in written:
            note(f"wrote {shown(path)}")
        return 0


def _each(run_dirs: list[str], target: Path, run_name: str, clobber: bool) -> None:
    """One process after the other into a data set."""
    from ..decode import decode_each
    from ..export.dataset import parquet_targets, write_parquet_parts
    from ..raw import find_captures

    _refuse(parquet_targets(target, run_name), clobber, "give another --run-name, or ")
    paths = [path for run in run_dirs for path in find_captures(run)]
    if not paths:
        raise WarptraceError(f"{' and '.join(run_dirs)} hold no capture: their runs started no Python with the tracer")
    with progress_bar(f"writing {target.name}") as progress:
        done = 0

        def advance(part: int, whole: int) -> None:
            if progress is not None:
                progress(min(done, len(paths) - 1) * 1000 + part * 1000 // max(whole, 1), len(paths) * 1000)

        def traces() -> Iterator[Trace]:
            nonlocal done
            for trace in decode_each(paths):
                yield trace
                del trace  # before the next one is decoded
                done += 1

        write_parquet_parts(traces(), target, run_name, clobber=clobber, progress=advance)
    note(f"wrote {done} processes to {shown(target)}")


Writer = Callable[["Trace", "ProgressCallback | None"], "list[Path]"]


def _writer(to: str, target: Path, run_name: str, clobber: bool) -> Writer:
    """What writes a format, after a check that it may. Raises UsageError."""
    if to == "parquet":
        from ..export.dataset import parquet_targets, write_parquet

        _refuse(parquet_targets(target, run_name), clobber, "give another --run-name, or ")
        return lambda trace, progress: write_parquet(trace, target, run_name, clobber=clobber, progress=progress)
    if to == "csv":
        from ..export.dataset import csv_targets, write_csv

        _refuse(csv_targets(target), clobber)
        return lambda trace, progress: write_csv(trace, target, progress=progress)
    _refuse([target], clobber)

    def one_file(trace: Trace, progress: ProgressCallback | None) -> list[Path]:
        if to == "sqlite":
            from ..export.dataset import write_sqlite as write
        elif to == "chrome":
            from ..export.chrome import write_chrome as write
        else:
            from ..export.speedscope import write_speedscope as write
        write(trace, target, progress=progress)
        return [target]

    return one_file


def _refuse(targets: list[Path], clobber: bool, or_else: str = "") -> None:
    for target in targets:
        if target.exists() and not clobber:
            raise UsageError(f"{shown(target)} is there already: {or_else}--clobber to replace it")
