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
    from ..raw import Capture
    from ..report import Summary
    from ..trace import Trace

    Writer = Callable[[Trace, Path, ProgressCallback | None], None]


COMBINED = "run"
"""Outputs of several processes of a run are ``iket_run.*``."""


@dataclass(frozen=True)
class OutputPlan:
    """Which outputs to make, and how.

    ``per_process``: a file a process, not one of all processes together. ``name``: of outputs of all together, also
    where only one process recorded anything. ``hosts_ns``: how far clocks of two machines may be apart.
    """

    perfetto: bool
    json: bool
    html: bool
    json_gz: bool
    payload_in_name: bool
    per_process: bool = False
    name: str | None = None
    hosts_ns: float | None = None

    @property
    def empty(self) -> bool:
        """Nothing is wanted."""
        return not (self.perfetto or self.json or self.html)


def plan_outputs(choice: str, json_gz: bool, payload_in_name: bool, *, per_process: bool = False) -> OutputPlan:
    """The outputs that ``choice`` asks for: perfetto, json, html, all or none."""
    perfetto, json, html = (choice in (name, "all") for name in ("perfetto", "json", "html"))
    return OutputPlan(perfetto, json, html, json_gz, payload_in_name, per_process)


@dataclass
class Result:
    """What became of the captures of a run. ``outputs``: file names in the output folder; ``failures``: a line for
    each capture or output that could not be made; ``summaries``: by the name of the capture, or how many there are;
    ``launches``: recorded in all of them together (with an empty plan: chunks of data)."""

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
    """Decode the captures and write their outputs into ``folder``: of all processes together where several recorded
    something.

    A capture that cannot be read does not stop the others. Files are replaced whole: what stood there before stays
    until the new one is complete. Raises OSError where ``folder`` cannot be written.
    """
    result = Result()
    scratch = folder / f".outputs.partial-{os.getpid()}"
    scratch.mkdir(parents=True)
    try:
        read = _read(captures, result)
        if plan.empty:
            result.launches = sum(1 for one in read for _ in one.batches())
        elif not plan.per_process and (plan.name is not None or len(read) > 1):
            _together(read, scratch, plan, result)
        else:
            _one_by_one(read, scratch, plan, result)
        for name in result.outputs:
            os.replace(scratch / name, folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _read(captures: Iterable[Path], result: Result) -> list[Capture]:
    """The captures that can be read and hold anything."""
    from ..raw import read_capture

    read = []
    for path in captures:
        try:
            capture = read_capture(path)
        except WarptraceError as error:
            result.failures.append(str(error))
        except Exception as error:
            result.failures.append(_own_fault(path.name, error))
        else:
            if capture.recorded:
                read.append(capture)
    return read


def _together(captures: list[Capture], scratch: Path, plan: OutputPlan, result: Result) -> None:
    """One set of outputs. A fault of ours leaves each process its own."""
    try:
        _outputs(captures, plan.name or COMBINED, f"{len(captures)} processes", scratch, plan, result)
    except Exception as error:
        if not isinstance(error, WarptraceError):
            result.failures.append(_own_fault(f"{len(captures)} processes together", error))
        else:
            result.failures.append(f"{len(captures)} processes together: {error}")
        result.outputs.clear()
        _one_by_one(captures, scratch, plan, result)


def _one_by_one(captures: list[Capture], scratch: Path, plan: OutputPlan, result: Result) -> None:
    for capture in captures:
        name = capture.path.name
        try:
            _outputs([capture], name, name, scratch, plan, result)
        except WarptraceError as error:
            result.failures.append(str(error))
        except Exception as error:
            result.failures.append(_own_fault(name, error))


def _outputs(
    captures: list[Capture], name: str, title: str, scratch: Path, plan: OutputPlan, result: Result
) -> None:
    """Decodes the captures together and writes ``iket_<name>.*``; the summary is that of ``title``."""
    from ..decode import decode
    from ..decode.align import HOSTS_NS
    from ..report import summarize

    with progress_bar(f"decoding {title.replace('_', ' ')}"):
        trace = decode(captures, hosts_ns=HOSTS_NS if plan.hosts_ns is None else plan.hosts_ns)
    if not trace.launches:
        return
    for file, write in _writers(name, plan).items():
        try:
            with progress_bar(file) as progress:
                write(trace, scratch / file, progress)
            result.outputs.append(file)
        except WarptraceError as error:
            result.failures.append(f"{file}: {error}")
    result.launches += len(trace.launches)
    result.summaries[title] = summarize(trace)


def _own_fault(what: str, error: Exception) -> str:
    """A line for a fault of ours, so that the other captures still have their turn."""
    if debugging():
        traceback.print_exc()
    return f"{what}: a fault of warptrace itself: {type(error).__name__}: {error} (WARPTRACE_DEBUG=1 shows where)"


def _writers(name: str, plan: OutputPlan) -> dict[str, Writer]:
    """The wanted outputs: file name and what writes it."""

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
        writers[f"iket_{name}.pftrace"] = perfetto
    if plan.json:
        writers[f"iket_{name}.trace.json{'.gz' if plan.json_gz else ''}"] = json
    if plan.html:
        writers[f"iket_{name}.html"] = html
    return writers
