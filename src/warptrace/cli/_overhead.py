"""``profile --measure-overhead``: the command runs once more, before, with lifetimes only."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import WarptraceError
from ..runtime.options import RuntimeOptions
from ._captures import captures_in
from ._messages import note, print_text, progress_bar

if TYPE_CHECKING:
    from ..trace import Trace

LIFETIMES_DIR = "lifetimes"
OVERHEAD_FILE = "overhead.json"


def lifetimes_options(options: RuntimeOptions, folder: Path) -> RuntimeOptions:
    """The tracer's settings of the run before."""
    selection = replace(options.selection, lifetimes=True)
    return replace(options, directory=str(folder), selection=selection, untraced_build=False)


def report_overhead(lifetimes: Path, raw: Path, folder: Path) -> str | None:
    """Compare the captures of both runs, print the table and write ``overhead.json`` into ``folder``.

    Returns the name of the file, or None where there is nothing to compare: a line then says why.
    """
    from ..report.overhead import overhead, overhead_table

    try:
        with progress_bar("comparing both runs"):
            base, full = _decoded(lifetimes), _decoded(raw)
    except WarptraceError as error:
        note(f"no overhead measured: {error}")
        return None
    rows = overhead(base, full)
    if not rows:
        note("no overhead measured: no kernel was launched with one shape in both runs")
        return None
    print_text(lambda console: console.print(overhead_table(rows)), sys.stderr)
    data = {"format": "warptrace overhead", "version": 1, "kernels": [row.to_json() for row in rows]}
    (folder / OVERHEAD_FILE).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return OVERHEAD_FILE


def _decoded(raw: Path) -> Trace:
    """All captures of a run. Raises WarptraceError where there is none."""
    from ..decode import decode
    from ..raw import read_capture

    captures = captures_in(raw)
    if not captures:
        raise WarptraceError("one of the two runs left no capture")
    return decode([read_capture(path) for path in captures])
