"""Raw captures to output files: what ``profile`` does at its end and ``postprocess`` does again."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import WarptraceError
from ._messages import ProgressCallback, debugging, progress_bar

if TYPE_CHECKING:
    from ..report import Summary
    from ..trace import Trace

    Writer = Callable[[Trace, Path, ProgressCallback | None], None]


@dataclass(frozen=True)
class OutputPlan:
    """Which outputs to make, and how."""

    perfetto: bool
    json: bool
    html: bool
    json_gz: bool
    payload_in_name: bool

    @property
    def empty(self) -> bool:
        """Nothing is wanted."""
        return not (self.perfetto or self.json or self.html)


def plan_outputs(choice: str, json_gz: bool, payload_in_name: bool) -> OutputPlan:
    """The outputs that ``choice`` asks for: perfetto, json, html, all or none."""
    perfetto, json, html = (choice in (name, "all") for name in ("perfetto", "json", "html"))
    return OutputPlan(perfetto, json, html, json_gz, payload_in_name)


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

    def html(trace: Trace, path: Path, progress: ProgressCallback | None) -> None:
        from ..export.html import write_html

        write_html(trace, path, progress=progress)

    writers: dict[str, Writer] = {}
    if plan.perfetto:
        writers[f"iket_{capture}.pftrace"] = perfetto
    if plan.json:
        writers[f"iket_{capture}.trace.json{'.gz' if plan.json_gz else ''}"] = json
    if plan.html:
        writers[f"iket_{capture}.html"] = html
    return writers
