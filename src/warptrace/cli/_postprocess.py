"""Raw captures to output files: what ``profile`` does at its end and ``postprocess`` does again."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError, WarptraceError
from ._messages import ProgressCallback, debugging, note, progress_bar

if TYPE_CHECKING:
    from ..report import Summary
    from ..trace import Trace

    Writer = Callable[[Trace, Path, ProgressCallback | None], None]


@dataclass(frozen=True)
class OutputPlan:
    """Which outputs to make, and how."""

    perfetto: bool
    json: bool
    json_gz: bool
    payload_in_name: bool

    @property
    def empty(self) -> bool:
        """Nothing is wanted."""
        return not (self.perfetto or self.json)


def plan_outputs(choice: str, option: str, json_gz: bool, payload_in_name: bool) -> OutputPlan:
    """The outputs that ``choice`` of ``option`` asks for: html, none, all, or perfetto and json with a comma between.

    Raises UsageError."""
    if choice == "html":
        raise UsageError(f"{option} html is not there yet: use {option} perfetto and open the .pftrace in Perfetto")
    wanted = {"perfetto", "json"} if choice == "all" else set(choice.split(","))
    return OutputPlan("perfetto" in wanted, "json" in wanted, json_gz, payload_in_name)


def note_missing_html(choice: str, option: str) -> None:
    """Say that ``all`` is not all yet, where it was asked for."""
    if choice == "all":
        note(f"{option} all makes perfetto and json; html is not there yet")


@dataclass
class Result:
    """What became of the captures of a run. ``outputs``: file names in the output folder; ``failures``: a line for
    each capture or output that could not be made; ``summaries``: by the name of the capture; ``launches``: recorded
    in all of them together (with an empty plan: chunks of data)."""

    outputs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    summaries: dict[str, Summary] = field(default_factory=dict)
    launches: int = 0
    interrupted: bool = False

    @property
    def recorded(self) -> bool:
        """Some launch left a trace."""
        return self.launches > 0


def postprocess(captures: Iterable[Path], folder: Path, plan: OutputPlan) -> Result:
    """Decode each capture and write its outputs into ``folder``.

    A capture that cannot be read does not stop the others. Files are replaced whole: what stood there before stays
    until the new one is complete. Raises OSError where ``folder`` cannot be written.
    """
    result = Result()
    scratch = folder / f".outputs.partial-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        for path in captures:
            try:
                _one_capture(path, scratch, plan, result)
            except WarptraceError as error:
                result.failures.append(str(error))
            except Exception as error:
                result.failures.append(_own_fault(path, error))
        for name in result.outputs:
            os.replace(scratch / name, folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _one_capture(path: Path, scratch: Path, plan: OutputPlan, result: Result) -> None:
    from ..decode import decode
    from ..raw import read_capture
    from ..report import summarize

    capture = read_capture(path)
    if plan.empty:
        result.launches += sum(1 for _ in capture.batches())
        return
    with progress_bar(f"decoding {path.name}"):
        trace = decode([capture])
    result.launches += len(trace.launches)
    if not trace.launches:
        return
    for name, write in _writers(path.name, plan).items():
        try:
            with progress_bar(name) as progress:
                write(trace, scratch / name, progress)
            result.outputs.append(name)
        except WarptraceError as error:
            result.failures.append(f"{name}: {error}")
    result.summaries[path.name] = summarize(trace)


def _own_fault(path: Path, error: Exception) -> str:
    """A line for a fault of ours, so that the other captures still have their turn."""
    if debugging():
        traceback.print_exc()
    return f"{path.name}: a fault of warptrace itself: {type(error).__name__}: {error} (WARPTRACE_DEBUG=1 shows where)"


def _writers(capture: str, plan: OutputPlan) -> dict[str, Writer]:
    """The wanted outputs of a capture: file name and what writes it."""

    def perfetto(trace: Trace, path: Path, progress: ProgressCallback | None) -> None:
        from ..export.perfetto import write_perfetto

        write_perfetto(trace, path, payload_in_name=plan.payload_in_name, progress=progress)

    def json(trace: Trace, path: Path, progress: ProgressCallback | None) -> None:
        from ..export.iket_json import write_iket_json

        write_iket_json(trace, path, gzip=plan.json_gz, progress=progress)

    writers: dict[str, Writer] = {}
    if plan.perfetto:
        writers[f"iket_{capture}.pftrace"] = perfetto
    if plan.json:
        writers[f"iket_{capture}.trace.json{'.gz' if plan.json_gz else ''}"] = json
    return writers
