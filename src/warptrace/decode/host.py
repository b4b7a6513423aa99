"""What the host did, on the timeline of the devices: its ranges, and which of its calls each launch is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..raw import Capture
from ..trace import Launch, Problem
from ..wire import LAUNCH_CAPTURED, stream_word
from .align import Alignment, machine

Facts = dict[str, Any]


def host_facts(
    captures: Sequence[Capture], alignment: Alignment, epoch_ns: int, launches: Sequence[Launch]
) -> tuple[list[Facts], list[Problem]]:
    """For ``Trace.meta["host"]``: one a process that recorded its host's side, with ``threads`` (names by number),
    ``ranges``, ``marks``, ``launches`` and ``lost_launches``, in order of begin. Times are Unix times, and ns of the
    trace's timeline good to the ``uncertainty_ns`` of the item, that of the process being the worst; None where host
    and device clocks were not compared. It grows with the time from the nearest comparison.

    ``around`` of a launch: which of ``ranges``, in its thread, were open at the call, outermost first; ``within``:
    their names.

    A call of the host and a launch belong together where a kernel's launches into one stream are as many on either
    side: a stream keeps their order. ``launch`` is None for all of them where they are not.
    """
    facts, problems = [], []
    for process, capture in enumerate(captures):
        if capture.host:
            found, unpaired = _of_process(process, capture, alignment, epoch_ns, launches)
            facts.append(found)
            problems += _problems(capture, found, unpaired)
    return facts, problems


def _of_process(
    process: int, capture: Capture, alignment: Alignment, epoch_ns: int, launches: Sequence[Launch]
) -> tuple[Facts, int]:
    threads, lost = {}, 0
    ranges, marks, calls = [], [], []
    for kind, *fields in capture.host:
        if kind == "thread":
            threads[fields[0]] = fields[1]
        elif kind == "lost":
            lost += fields[0]
        elif kind == "mark":
            source, name, at, thread = fields
            marks.append({"source": source, "name": name, "thread": thread, "unix_ns": at})
        elif kind == "launch":
            kernel, at, thread, device, word = fields
            calls.append({"kernel_id": kernel, "thread": thread, "device": device, "word": word, "unix_ns": at})
        else:
            source, name, begin, end, thread = fields
            ranges.append(
                {"source": source, "name": name, "thread": thread, "begin_unix_ns": begin,
                 "end_unix_ns": max(begin, end), "open": kind == "open"}
            )  # fmt: skip
    for rows in (ranges, marks, calls):
        for name in ("unix_ns", "begin_unix_ns", "end_unix_ns"):
            if rows and name in rows[0]:
                _place(rows, name, capture, alignment, epoch_ns)
    items = [*ranges, *marks, *calls]
    known = [item["uncertainty_ns"] for item in items if item["uncertainty_ns"] is not None]
    unpaired = _pair(process, calls, launches)
    for call in calls:
        del call["word"]
    ranges.sort(key=lambda r: (r["begin_unix_ns"], -r["end_unix_ns"]))
    name_ranges(calls, ranges)
    marks.sort(key=lambda m: m["unix_ns"])
    return {
        "process": process,
        "uncertainty_ns": max(known, default=None),
        "threads": threads,
        "ranges": ranges,
        "marks": marks,
        "launches": calls,
        "lost_launches": lost,
    }, unpaired


def _place(rows: list[Facts], name: str, capture: Capture, alignment: Alignment, epoch_ns: int) -> None:
    """Gives the rows the times of the timeline beside their Unix times, and how far the worst of a row may be off."""
    found = alignment.of_host_times(np.array([row[name] for row in rows], np.int64), machine(capture))
    times = [None] * len(rows) if found is None else (found[0] - epoch_ns).tolist()
    doubts = [None] * len(rows) if found is None else found[1].tolist()
    for row, time, doubt in zip(rows, times, doubts, strict=True):
        row[name.replace("unix_", "")] = time
        row["uncertainty_ns"] = doubt if doubt is None else max(doubt, row.get("uncertainty_ns", 0.0))


def _pair(process: int, calls: list[Facts], launches: Sequence[Launch]) -> int:
    """Gives every call its launch; returns how many have none though they were no captures into graphs."""
    theirs: dict[tuple[int | None, str, int], list[int]] = {}
    for launch in launches:
        if launch.process == process and launch.graph is None:
            word = 0 if launch.stream is None else stream_word(launch.stream)
            theirs.setdefault((launch.device, f"{launch.kernel_id:016x}", word), []).append(launch.index)
    ours: dict[tuple[int | None, str, int], list[Facts]] = {}
    for call in calls:
        call["launch"] = None
        call["captured"] = call["word"] >= LAUNCH_CAPTURED
        if not call["captured"]:
            ours.setdefault((call["device"], call["kernel_id"], call["word"]), []).append(call)
    unpaired = 0
    for key, rows in ours.items():
        found = theirs.get(key, [])
        if len(found) != len(rows):
            unpaired += len(rows)
            continue
        for row, index in zip(rows, found, strict=True):
            row["launch"] = index
    return unpaired


def name_ranges(calls: Sequence[Facts], ranges: Sequence[Facts]) -> None:
    """Gives every call ``within`` and ``around``. ``ranges``: by begin, outer before inner."""
    by_thread: dict[int, list[int]] = {}
    for index, one in enumerate(ranges):
        by_thread.setdefault(one["thread"], []).append(index)
    state: dict[int, tuple[int, list[int]]] = {}
    for call in sorted(calls, key=lambda c: int(c["unix_ns"])):
        mine, at = by_thread.get(call["thread"], []), call["unix_ns"]
        begun, around = state.get(call["thread"], (0, []))
        while begun < len(mine) and ranges[mine[begun]]["begin_unix_ns"] <= at:
            around.append(mine[begun])
            begun += 1
        around = [index for index in around if ranges[index]["end_unix_ns"] >= at]
        state[call["thread"]] = begun, around
        call["around"] = list(around)
        call["within"] = [ranges[index]["name"] for index in around]


def _problems(capture: Capture, facts: Facts, unpaired: int) -> list[Problem]:
    problems = []
    pid = capture.manifest.get("pid")
    if facts["uncertainty_ns"] is None:
        text = f"process {pid}: its host's clock was compared with no device's: host ranges are not on the timeline"
        problems.append(Problem("clock", 1, text))
    if unpaired:
        text = f"process {pid}: {unpaired} launch calls of the host cannot be told which launch they are"
        problems.append(Problem("host", unpaired, text))
    if facts["lost_launches"]:
        text = f"process {pid}: {facts['lost_launches']} launch calls of the host were not noted"
        problems.append(Problem("host", facts["lost_launches"], text))
    return problems
