"""Why a run recorded nothing: told from the manifests of its captures, with the mend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import CaptureError
from .selection import Selection, number_list

NAMES_SHOWN = 4
ARMED_FILE = "armed"
"""Written by the bootstrap's sitecustomize: a line a process."""


@dataclass(frozen=True)
class Seen:
    """What the tracer saw in all processes. ``with_events``, ``without_events`` and ``deselected`` (with events, not
    wanted): names of compiled kernels; ``launches``: of kernels with events, ``most_launches``: of one of them in one
    process; ``windows``: in which recording was on, None where it was on all the time in some process;
    ``unfinished``: pids whose capture was not closed; ``problems``: what the tracer noted itself; ``selection``: what
    was asked for."""

    processes: int
    with_events: tuple[str, ...]
    without_events: tuple[str, ...]
    deselected: tuple[str, ...]
    launches: int
    most_launches: int
    windows: int | None
    unfinished: tuple[int, ...]
    problems: tuple[str, ...]
    selection: Selection


def why_nothing_recorded(captures: Iterable[Path], armed: int) -> list[str]:
    """Lines that say why there is no trace. ``captures``: the capture directories, of which none holds a launch;
    ``armed``: Python processes that started with the tracer."""
    seen = look(captures)
    lines = [f"nothing was recorded: {_reason(seen, armed)}"]
    lines += [f"the tracer noted: {text}" for text in seen.problems]
    if seen.unfinished:
        pids = ", ".join(map(str, seen.unfinished))
        lines.append(f"pid {pids} ended without closing its capture (killed, crashed, or left through os._exit)")
    return lines


def why_session_is_empty(capture: Path, *, dsl: bool) -> str:
    """Why a session of this process (:mod:`warptrace.session`) recorded nothing, with the mend. ``dsl``: it is
    installed."""
    seen = look([capture])
    return "; ".join([_session_reason(seen, dsl), *(f"the tracer noted: {text}" for text in seen.problems)])


def _session_reason(seen: Seen, dsl: bool) -> str:
    kernels = _count(len(seen.with_events), "kernel", "kernels")
    if seen.launches:
        times = _count(seen.launches, "time", "times")
        why = _unrecorded(seen, python=True)
        return f"{kernels} with events {_names(seen.with_events)} launched {times}, but {why}"
    if seen.with_events:
        return f"{kernels} with events {_names(seen.with_events)} compiled so far, but none was launched in it"
    if seen.deselected:
        left_out = _count(len(seen.deselected), "kernel with events was", "kernels with events were")
        asked = f"kernels={list(seen.selection.kernels)}"
        return f"{left_out} compiled, and left out by {asked} {_names(seen.deselected)}; give another expression"
    if seen.without_events:
        return (
            f"this process compiled only kernels without events {_names(seen.without_events)}: compile them inside the"
            " session, or with WARPTRACE=1 set, with calls of warptrace.cute in the @cute.kernel code"
        )
    if not dsl:
        return "the CuTe DSL (cutlass) is not installed: pip install 'warptrace[cute]'"
    return (
        "no kernel was compiled that the tracer saw: import warptrace.cute, and compile kernels inside the session (one"
        " that comes compiled, from a cache or an exported object, has no events)"
    )


def unmatched(captures: Iterable[Path], selection: Selection) -> list[str]:
    """The names of kernels in ``selection`` that no kernel with events of these captures has; [] where there is none:
    then :func:`why_nothing_recorded` tells more."""
    if not selection.kernels and not selection.clusters_by_kernel:
        return []
    seen = look(captures)
    kernels = (*seen.with_events, *seen.deselected)
    return selection.unmatched(kernels) if kernels else []


def armed_processes(raw: Path) -> int:
    """How many Python processes signed in the raw folder of a run when they started with the tracer."""
    try:
        return (raw / ARMED_FILE).read_bytes().count(b"\n")
    except OSError:
        return 0


def look(captures: Iterable[Path]) -> Seen:
    """Gather what the manifests and kernel tables say."""
    from .raw import read_capture

    processes = launches = most = 0
    selection = Selection()
    deselected: dict[str, None] = {}
    with_events: dict[str, None] = {}
    without_events: dict[str, None] = {}
    problems: dict[str, None] = {}
    windows: int | None = 0
    unfinished = []
    for path in captures:
        processes += 1
        try:
            capture = read_capture(path)
        except CaptureError as error:
            problems[str(error)] = None
            continue
        manifest = capture.manifest
        left_out = dict.fromkeys(map(str, manifest.get("deselected", [])))
        deselected.update(left_out)
        with_events.update(dict.fromkeys(k.name for k in capture.kernels.values() if k.symbol not in left_out))
        without_events.update(dict.fromkeys(map(str, manifest.get("uninstrumented", []))))
        counts = list(map(int, manifest.get("launches", {}).values()))
        launches, most = launches + sum(counts), max([most, *counts])
        opened = manifest.get("windows")
        windows = None if windows is None or opened is None else windows + len(opened)
        if manifest.get("selection") is not None:
            selection = Selection.from_json(manifest["selection"])
        problems.update(dict.fromkeys(map(str, manifest.get("problems", []))))
        problems.update(dict.fromkeys(p.text for p in capture.problems))
        if manifest.get("state") != "complete":
            unfinished.append(int(manifest["pid"]))
    return Seen(
        processes, tuple(with_events), tuple(without_events), tuple(deselected), launches, most, windows,
        tuple(unfinished), tuple(problems), selection,
    )  # fmt: skip


def _reason(seen: Seen, armed: int) -> str:
    if armed and not seen.processes:
        started = _count(armed, "Python process", "Python processes")
        return f"{started} started with the tracer, but none imported the CuTe DSL (cutlass)"
    if not seen.processes:
        return (
            "no Python process started with the tracer; the command must start a Python that has warptrace installed,"
            " without -I, -E or -S and with PYTHONPATH passed on"
        )
    where = f"in {_count(seen.processes, 'Python process', 'Python processes')}"
    if seen.windows == 0:
        return (
            f"recording began off (--window), and no window was opened {where}: call warptrace.start() and stop(), or"
            " use `with warptrace.capture():`, around the launches"
        )
    kernels = _count(len(seen.with_events), "kernel", "kernels")
    if seen.launches:
        launched = f"{kernels} with events {_names(seen.with_events)} launched {_count(seen.launches, 'time', 'times')}"
        return f"{launched} {where}, but {_unrecorded(seen)}"
    if seen.with_events:
        when = f" in {_count(seen.windows, 'window', 'windows')} of recording" if seen.windows else ""
        known = f"{kernels} with events {_names(seen.with_events)} compiled {where}"
        return f"{known}, but no launch was seen{when}; launch them"
    if seen.deselected:
        left_out = _count(len(seen.deselected), "kernel with events was", "kernels with events were")
        asked = " ".join(f"--kernel {text}" for text in seen.selection.kernels)
        return f"{left_out} compiled {where}, and left out by {asked} {_names(seen.deselected)}; give another REGEX"
    if seen.without_events:
        return (
            f"only kernels without events compiled {where} {_names(seen.without_events)}; put calls of warptrace.cute"
            " into the @cute.kernel code"
        )
    return (
        f"no kernel was compiled {where}; the program must import warptrace.cute and compile its kernels in this run:"
        " one that comes compiled (from a cache or an exported object) has no events"
    )


def _unrecorded(seen: Seen, *, python: bool = False) -> str:
    """Why launches left nothing. ``python``: options were keywords."""
    selection = seen.selection
    skip, warps, level = ("--launch-skip ", "--warps ", "run again with --log-level debug")
    if python:
        skip, warps, level = ("launch_skip=", "warps=", "log_level='debug' tells more")
    if selection.launch_skip >= seen.most_launches:
        launched = _count(seen.most_launches, "time", "times")
        return f"{skip}{selection.launch_skip} leaves them all out: no kernel was launched more than {launched}"
    if selection.warps is not None:
        return f"no warp of {warps}{number_list(selection.warps)} ran; name warps that their CTAs have"
    return f"no data came back; {level}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return f"({', '.join(names[:NAMES_SHOWN])}{f' and {rest} more' if rest > 0 else ''})"
