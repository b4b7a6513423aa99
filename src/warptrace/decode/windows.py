"""When recording was on, on the trace's timeline: windows that the program opened (see ``runtime.recorder``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..raw import Capture
from .align import Alignment, machine


def window_facts(captures: Sequence[Capture], alignment: Alignment, epoch_ns: int) -> list[dict[str, Any]]:
    """For ``Trace.meta["windows"]``: those of each process, in order. ``begin_ns`` and ``end_ns`` are on the trace's
    timeline, and good to ``uncertainty_ns``; None where host and device clocks were not compared. An end is None where
    the process died in the window."""
    facts = []
    for process, capture in enumerate(captures):
        for window in capture.manifest.get("windows") or ():
            moments = [None if t is None else int(t) for t in (window["begin_unix_ns"], window["end_unix_ns"])]
            found = [None if t is None else alignment.of_host(t, machine(capture)) for t in moments]
            begin, end = (None if f is None else f[0] - epoch_ns for f in found)
            doubt = max((f[1] for f in found if f is not None), default=None)
            facts.append(
                {
                    "process": process,
                    "begin_unix_ns": moments[0],
                    "end_unix_ns": moments[1],
                    "begin_ns": begin,
                    "end_ns": end,
                    "uncertainty_ns": doubt,
                }
            )
    return facts
