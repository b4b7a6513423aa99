"""Raw captures to output files: what ``profile`` does at its end and ``postprocess`` does again."""

from __future__ import annotations

import json
import os
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import WarptraceError
from ._messages import ProgressCallback, debugging, progress_bar, progress_bars

if TYPE_CHECKING:
    from ..flows import Flow
    from ..raw import Capture
    from ..report import Summary
    from ..report.hang import HangReport
    from ..trace import Trace

    Writer = Callable[[Trace, Path, ProgressCallback | None], None]


CORES_OF_A_WRITER = 4
COMBINED = "run"
"""Outputs of several processes of a run are ``iket_run.*``."""
HANG_TEXT, HANG_JSON = "hang.txt", "hang.json"


@dataclass(frozen=True)
class OutputPlan:
    """Which outputs to make, and how.

    ``per_process``: a file a process, not one of all processes together. ``name``: of outputs of all together, also
    where only one process recorded anything. ``hosts_ns``: how far clocks of two machines may be apart. ``flows``:
    drawn in Perfetto beside those that the program declared.
    """

    perfetto: bool
    json: bool
    html: bool
    json_gz: bool
    payload_in_name: bool
    per_process: bool = False
    name: str | None = None
    hosts_ns: float | None = None
    flows: tuple[Flow, ...] = ()

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
    ``launches``: recorded in all of them together (with an empty plan: chunks of data); ``hang``: where warps are that
    had not ended."""

    outputs: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    summaries: dict[str, Summary] = field(default_factory=dict)
    launches: int = 0
    hang: HangReport | None = None
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
            _look_for_hangs([one for one in read if "snapshot" in one.manifest], result)
        elif not plan.per_process and (plan.name is not None or len(read) > 1):
            _together(read, scratch, plan, result)
        else:
            _one_by_one(read, scratch, plan, result)
        if result.hang is not None:
            _write_hang(result.hang, scratch, result)
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
        result.hang = None
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
    _write_all(_writers(name, plan), trace, scratch, result)
    result.launches += len(trace.launches)
    result.summaries[title] = summarize(trace)
    _note_hang(trace, result)


def _write_all(writers: dict[str, Writer], trace: Trace, scratch: Path, result: Result) -> None:
    """At the same time where there are processors for it: a writer keeps about CORES_OF_A_WRITER of them busy."""
    workers = max(1, min(len(writers), (os.cpu_count() or 1) // CORES_OF_A_WRITER))
    stop = threading.Event()

    def written(file: str, progress: ProgressCallback | None) -> str | None:
        def move(done: int, total: int) -> None:
            if stop.is_set():
                raise WarptraceError("interrupted")
            if progress is not None:
                progress(done, total)

        try:
            writers[file](trace, scratch / file, move)
        except WarptraceError as error:
            return f"{file}: {error}"
        return None

    def note(file: str, failure: str | None) -> None:
        (result.outputs if failure is None else result.failures).append(failure or file)

    if workers == 1:
        for file in writers:
            with progress_bar(file) as bar:
                note(file, written(file, bar))
        return
    with progress_bars(list(writers)) as bars, ThreadPoolExecutor(workers) as pool:
        try:
            for file, failure in zip(writers, pool.map(written, writers, bars), strict=True):
                note(file, failure)
        except BaseException:
            stop.set()  # the others end at their next sign of progress
            raise


def _look_for_hangs(captures: list[Capture], result: Result) -> None:
    """Where no other output is wanted."""
    from ..decode import decode

    try:
        if captures:
            _note_hang(decode(captures), result)
    except Exception as error:
        result.failures.append(_own_fault(HANG_TEXT, error))


def _note_hang(trace: Trace, result: Result) -> None:
    from ..report.hang import HangReport, hang_report

    found = [one for one in (result.hang, hang_report(trace)) if one is not None]
    result.hang = HangReport.of(found) if found else None


def _write_hang(report: HangReport, scratch: Path, result: Result) -> None:
    """Tells where the warps of launches are that had not ended."""
    (scratch / HANG_TEXT).write_text(report.text(), encoding="utf-8")
    (scratch / HANG_JSON).write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    result.outputs += [HANG_TEXT, HANG_JSON]


def _own_fault(what: str, error: Exception) -> str:
    """A line for a fault of ours, so that the other captures still have their turn."""
    if debugging():
        traceback.print_exc()
    return f"{what}: a fault of warptrace itself: {type(error).__name__}: {error} (WARPTRACE_DEBUG=1 shows where)"


def _writers(name: str, plan: OutputPlan) -> dict[str, Writer]:
    """The wanted outputs: file name and what writes it."""

    def perfetto(trace: Trace, path: Path, progress: ProgressCallback | None) -> None:
        from ..export.perfetto import write_perfetto

        write_perfetto(
            trace, path, payload_in_name=plan.payload_in_name, flows=plan.flows, progress=progress
        )

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
