"""``warptrace merge``: several runs, of one host or of many, on one timeline."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError, WarptraceError
from ..rundir import RunDirectory, default_name, write_run
from ._args import duration_ns
from ._messages import note, print_summaries, shown, warn
from ._postprocess import OutputPlan, Result, plan_outputs, postprocess
from .postprocess import FORMATS, run_folder

if TYPE_CHECKING:
    from ._args import Verbs

MERGED = "merged"
"""The outputs are ``iket_merged.*``."""


class Merge:
    """The verb."""

    name = "merge"
    options = frozenset({"output_dir", "clobber", "json_gz", "payload_in_name"})
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="put several runs on one timeline, also of several hosts",
            description="Makes one set of outputs of all processes of several runs, on one timeline. The runs stay as"
            " they are.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", help="results of profile with their raw captures")
        parser.add_argument(
            "-o", "--output-dir", metavar="DIR", help="where the outputs go (default: ./warptrace-<time>-<pid>)"
        )
        parser.add_argument("--clobber", action="store_true", help="replace an earlier result in DIR")
        parser.add_argument("--format", choices=FORMATS, help="outputs to make (default: perfetto and json)")
        parser.add_argument(
            "--clock-uncertainty",
            metavar="TIME",
            type=duration_ns,
            help="how far the clocks of two hosts may be apart, as 50us (default: 1ms)",
        )
        parser.add_argument("--json-gz", action="store_true", help="write the JSON compressed, as .trace.json.gz")
        parser.add_argument("--payload-in-name", action="store_true", help="Perfetto slices named `name(payload=N)`")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0, or 1 where an output could not be made."""
        given = vars(options)
        plan = plan_outputs(
            given.get("format", "all"), given.get("json_gz", False), given.get("payload_in_name", False)
        )
        plan = replace(plan, html=plan.html and "format" in given, name=MERGED, hosts_ns=given.get("clock_uncertainty"))
        captures = _captures(options.run_dirs)
        target = given.get("output_dir") or default_name()
        _check_target(target, captures)
        result, place = _merge(captures, target, given.get("clobber", False), plan)
        return _report(result, place)


def _captures(run_dirs: Sequence[str]) -> list[Path]:
    """All captures of the runs. Raises UsageError where two are of one process, CaptureError where a run has none."""
    from ..raw import find_captures

    found = [Path(os.path.realpath(path)) for run in run_dirs for path in find_captures(run)]
    known: dict[tuple[str, ...], Path] = {}
    for path in dict.fromkeys(found):
        process = _process(path)
        if process is not None and process in known:
            raise UsageError(f"{shown(known[process])} and {shown(path)} are of the same process: name one of the two")
        known[process or (str(path),)] = path
    return list(known.values())


def _process(path: Path) -> tuple[str, ...] | None:
    """What tells a process from all others, None where its manifest cannot be read."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        return tuple(str(manifest.get(key)) for key in ("host", "boot", "pid", "started_unix_ns"))
    except (OSError, ValueError, AttributeError):
        return None


def _check_target(target: str, captures: Sequence[Path]) -> None:
    """The runs stay as they are, so the outputs go beside them."""
    final = Path(os.path.realpath(target))
    for path in captures:
        run = run_folder(path)
        if final in (run, *path.parents) or run in final.parents:
            raise UsageError(f"-o {target} is, holds or lies in the run {shown(run)}: choose a folder beside it")


def _merge(captures: list[Path], target: str, clobber: bool, plan: OutputPlan) -> tuple[Result, Path]:
    """Returns what came of it, and where."""
    directory = RunDirectory.create(target, clobber=clobber)
    try:
        result = postprocess(captures, directory.partial, plan)
        content = {
            "sources": [str(path) for path in captures],
            "clock_uncertainty_ns": plan.hosts_ns,
            "outputs": result.outputs,
            "failures": result.failures,
        }
        write_run(directory.partial, content)
    except OSError as error:
        directory.discard()
        raise WarptraceError(f"cannot write to {target}: {error.strerror}; choose another -o") from None
    except BaseException:
        directory.discard()
        raise
    return result, directory.commit(success=result.recorded and not result.failures)


def _report(result: Result, place: Path) -> int:
    """Name the outputs and the faults; returns the exit status."""
    print_summaries(result.summaries, sys.stdout)
    for failure in result.failures:
        note(f"error: {failure}")
    if not result.recorded and not result.failures:
        warn("none of the runs recorded anything")
    for name in result.outputs:
        note(f"wrote {shown(place / name)}")
    return 0 if result.outputs and not result.failures else 1
