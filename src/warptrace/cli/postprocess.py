"""``warptrace postprocess``: make the outputs of a run again from its raw capture."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError, WarptraceError
from ..explain import armed_processes, why_nothing_recorded
from ..flows import parse_flow
from ..rundir import RAW_DIR, RunDirectory, is_result, record_outputs, write_run
from ._args import add_flows
from ._messages import note, print_summaries, shown, warn
from ._postprocess import OutputPlan, Result, plan_outputs, postprocess

if TYPE_CHECKING:
    from ._args import Verbs

FORMATS = ("perfetto", "json", "html", "all")


class Postprocess:
    """The verb."""

    name = "postprocess"
    options = frozenset({"output_dir", "clobber", "json_gz", "payload_in_name", "per_process"})
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="make the outputs again from a kept raw capture",
            description="Makes the outputs of RUN_DIR again from its raw capture, in RUN_DIR itself or in DIR.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("run_dir", metavar="RUN_DIR", help="a result of profile, or one capture in it")
        parser.add_argument("--format", choices=FORMATS, help="outputs to make (default: all)")
        parser.add_argument("-o", "--output-dir", metavar="DIR", help="a new folder for the outputs (default: RUN_DIR)")
        parser.add_argument("--clobber", action="store_true", help="replace an earlier result in DIR")
        parser.add_argument("--json-gz", action="store_true", help="write the JSON compressed, as .trace.json.gz")
        parser.add_argument("--payload-in-name", action="store_true", help="Perfetto slices named `name(payload=N)`")
        parser.add_argument(
            "--per-process", action="store_true", help="outputs for each process, not for all processes together"
        )
        add_flows(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0, or 1 where an output could not be made."""
        from ..raw import find_captures

        given = vars(options)
        plan = plan_outputs(
            given.get("format", "all"), given.get("json_gz", False), given.get("payload_in_name", False),
            per_process=given.get("per_process", False),
        )
        plan = replace(plan, flows=tuple(map(parse_flow, given.get("flow", ()))))
        captures = [Path(os.path.realpath(path)) for path in find_captures(options.run_dir)]
        place = run_folder(Path(os.path.realpath(options.run_dir)))
        if "output_dir" in given:
            clobber = given.get("clobber", False)
            result, place = _into_new(captures, place, options.output_dir, clobber, plan)
        else:
            result = _into_run(captures, place, plan)
        return _report(result, place, captures, armed_processes(Path(options.run_dir) / RAW_DIR))


def run_folder(path: Path) -> Path:
    """The run directory that a run directory, its raw folder or one of its captures belongs to; a capture that lies
    by itself is its own."""
    for candidate in (path, path.parent, path.parent.parent):
        if is_result(candidate) or (candidate / RAW_DIR).is_dir():
            return candidate
    return path


def _into_run(captures: list[Path], folder: Path, plan: OutputPlan) -> Result:
    """Outputs into the run directory; earlier ones stay until the new ones are complete."""
    try:
        result = postprocess(captures, folder, plan)
    except OSError as error:
        raise WarptraceError(f"cannot write to {shown(folder)}: {error.strerror}; choose another -o") from None
    record_outputs(folder, result.outputs)
    return result


def _into_new(captures: list[Path], source: Path, target: str, clobber: bool, plan: OutputPlan) -> tuple[Result, Path]:
    """Outputs into a directory of their own. Returns where they are."""
    final = Path(os.path.realpath(target))
    if final == source:
        return _into_run(captures, source, plan), source
    if any(final in capture.parents for capture in captures):
        raise UsageError(f"-o {target} holds the raw capture itself: choose a folder outside it")
    directory = RunDirectory.create(target, clobber=clobber)
    try:
        result = postprocess(captures, directory.partial, plan)
        write_run(directory.partial, {"source": str(source), "outputs": result.outputs, "failures": result.failures})
    except BaseException:
        directory.discard()
        raise
    return result, directory.commit(success=result.recorded and not result.failures)


def _report(result: Result, place: Path, captures: list[Path], armed: int) -> int:
    """Name the outputs and the faults; returns the exit status."""
    print_summaries(result.summaries, sys.stdout)
    if result.hang is not None:
        print(result.hang.text())
    for failure in result.failures:
        note(f"error: {failure}")
    if not result.recorded and not result.failures:
        for line in why_nothing_recorded(captures, armed):
            warn(line)
    for name in result.outputs:
        note(f"wrote {shown(place / name)}")
    return 0 if result.outputs and not result.failures else 1
