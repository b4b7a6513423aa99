"""The summary at the end of a run: a row a launch, totals, problems, files.

:func:`summarize` gives plain data; :func:`launch_table` and :func:`print_summary` show it in a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..trace import Launch, Trace
from .room import advice

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MAX_ROWS = 20
MAX_PROBLEMS = 10
MAX_BUILDS = 10
MAX_SELECTIONS = 10
MAX_LEFT_OUT = 4
MAX_NAME = 40
COLUMNS = ("#", "kernel", "grid", "block", "cluster", "warps", "events", "lost", "duration")
NUMERIC = ("#", "warps", "events", "lost", "duration")


@dataclass(frozen=True)
class LaunchRow:
    """A launch in numbers. ``lost`` counts events; ``lost_warps`` warps of which nothing was recorded; ``place``: its
    process and device; ``stream``: that, or which replay of which graph it was, "" where neither is known."""

    index: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    warps_recorded: int
    warps_expected: int
    events: int
    lost: int
    lost_warps: int
    duration_ns: int
    place: str = ""
    stream: str = ""

    @property
    def complete(self) -> bool:
        """Whether every warp and event of the launch was recorded."""
        return self.warps_recorded >= self.warps_expected and self.lost == 0 and self.lost_warps == 0

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of :data:`COLUMNS`."""
        warps = str(self.warps_recorded)
        if self.warps_recorded != self.warps_expected:
            warps = f"{self.warps_recorded} of {self.warps_expected}"
        return (
            str(self.index + 1),
            shorten(self.kernel, MAX_NAME),
            _dim(self.grid),
            _dim(self.block),
            "-" if self.cluster == (1, 1, 1) else _dim(self.cluster),
            warps,
            str(self.events),
            str(self.lost),
            duration(self.duration_ns),
        )


@dataclass(frozen=True)
class Summary:
    """What a run recorded. ``totals`` sums the rows; its duration is first entry to last exit of all launches.
    ``builds``: a line for each launched kernel whose registers or stack tracing changed; ``selections``: a line for
    each kernel of which only a part was recorded, or nothing; ``places``: processes and devices that had launches;
    ``aligned``: how well several devices stand on one timeline; ``advice``: how to keep what was lost."""

    rows: tuple[LaunchRow, ...]
    totals: LaunchRow
    problems: tuple[str, ...]
    outputs: tuple[str, ...]
    emulated: bool
    builds: tuple[str, ...] = ()
    selections: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    aligned: str | None = None
    advice: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """One line: how many launches, and that the trace is emulated if it is."""
        count = len(self.rows)
        where = " (emulated: times are not those of a GPU)" if self.emulated else ""
        return f"{count} launch{'' if count == 1 else 'es'} recorded{where}"

    def to_json(self) -> dict[str, Any]:
        """As plain data for machines; tuples become lists when dumped."""
        return asdict(self)


def summarize(trace: Trace, outputs: Sequence[str] = ()) -> Summary:
    """The summary of a trace; ``outputs`` are the files that were written."""
    places = trace.places()
    rows = tuple(_row(launch, places[launch.process, launch.device]) for launch in trace.launches)
    return Summary(
        rows=rows,
        totals=_totals(trace.launches, rows),
        problems=tuple(f"{problem.kind}: {problem.text}" for problem in trace.problems),
        outputs=tuple(map(str, outputs)),
        emulated=trace.emulated,
        builds=build_lines(trace),
        selections=selection_lines(trace),
        places=tuple(places.values()),
        aligned=_aligned(trace),
        advice=advice(trace),
    )


def selection_lines(trace: Trace) -> tuple[str, ...]:
    """A line for each kernel of which only a part was recorded, and one for those that were left out."""
    chosen = dict.fromkeys((one.kernel, str(one.selection)) for one in trace.launches if one.selection is not None)
    lines = [f"kernel {shorten(kernel, MAX_NAME)}: recorded only {text}" for kernel, text in chosen]
    left_out = trace.meta.get("deselected", ())
    if left_out:
        names = ", ".join(shorten(name, MAX_NAME) for name in left_out[:MAX_LEFT_OUT])
        more = len(left_out) - MAX_LEFT_OUT
        lines.append(f"not recorded, as --kernel asks: {names}{f' and {more} more' if more > 0 else ''}")
    return tuple(lines)


def build_lines(trace: Trace) -> tuple[str, ...]:
    launched = {launch.kernel_id for launch in trace.launches}
    builds = (build for build in trace.meta.get("builds", ()) if build["kernel_id"] in launched)
    return tuple(line for line in map(_build_line, builds) if line is not None)


def _build_line(build: dict[str, Any]) -> str | None:
    """What tracing costs a kernel in registers and stack; None where it costs nothing or that is not known."""
    untraced = build.get("untraced")
    keys = ("registers", "stack_bytes", "code_bytes")
    if not isinstance(untraced, dict):
        return None
    if not all(isinstance(facts.get(key), int) for facts in (build, untraced) for key in keys):
        return None
    (registers, stack, code), (registers0, stack0, code0) = ([f[key] for key in keys] for f in (build, untraced))
    if (registers, stack) == (registers0, stack0):
        return None
    return (
        f"kernel {shorten(build['kernel'], MAX_NAME)}: {registers} registers (untraced {registers0}), "
        f"stack {stack} B (untraced {stack0} B), code {(code - code0) / 1024:+.1f} KiB"
    )


def _aligned(trace: Trace) -> str | None:
    """A line where there are several GPUs; those that are not aligned are told as a problem."""
    facts = trace.meta.get("alignment", ())
    if len({(one["machine"], one["gpu"]) for one in facts}) < 2:
        return None
    worst, alike = (max(one[key] for one in facts) for key in ("uncertainty_ns", "symmetric_uncertainty_ns"))
    text = f"GPUs are on one timeline, each good to {duration(math.ceil(worst))} against the first"
    return text if alike >= worst else f"{text}, to {duration(math.ceil(alike))} if both ways of a link are alike"


def _row(launch: Launch, place: str) -> LaunchRow:
    return LaunchRow(
        index=launch.index,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        warps_recorded=launch.warps_recorded,
        warps_expected=launch.warps_expected,
        events=launch.events,
        lost=launch.lost_events,
        lost_warps=launch.lost_warps,
        duration_ns=launch.end_ns - launch.start_ns,
        place=place,
        stream=launch.origin,
    )


def _totals(launches: Sequence[Launch], rows: Sequence[LaunchRow]) -> LaunchRow:
    span = max(one.end_ns for one in launches) - min(one.start_ns for one in launches) if launches else 0
    return LaunchRow(
        index=-1,
        kernel="total",
        grid=(0, 0, 0),
        block=(0, 0, 0),
        cluster=(1, 1, 1),
        warps_recorded=sum(row.warps_recorded for row in rows),
        warps_expected=sum(row.warps_expected for row in rows),
        events=sum(row.events for row in rows),
        lost=sum(row.lost for row in rows),
        lost_warps=sum(row.lost_warps for row in rows),
        duration_ns=span,
    )


def duration(ns: int) -> str:
    """Nanoseconds with the unit that fits, to three digits: 950 ns, 12.3 us, 4.56 ms, 1.20 s."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        rounded = float(f"{ns / size:.3g}")  # 999,999 ns are 1.00 ms
        if rounded >= 1:
            decimals = 2 if rounded < 10 else 1 if rounded < 100 else 0
            return f"{ns / size:.{decimals}f} {unit}"
    return f"{ns} ns"


def shorten(name: str, width: int) -> str:
    """``name`` in at most ``width`` characters: the middle gives way, since kernels differ at both ends."""
    if len(name) <= width:
        return name
    head = (width - 1) * 2 // 3
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def _dim(dim: Sequence[int]) -> str:
    return "x".join(map(str, dim))


def launch_table(summary: Summary) -> Table:
    """The rows (the first of a long run) and their totals as a rich table; incomplete launches are yellow. Where there
    are several streams or graphs, or several processes or devices, a column says which.

    Names are printed as they are: nothing in them is read as markup.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    several = len(summary.places) > 1
    streams = len({row.stream for row in summary.rows}) > 1
    more = [title for title, shown in (("stream", streams), ("where", several)) if shown]
    for title in (*COLUMNS, *more):
        name = title == "kernel"
        justify: Literal["left", "right"] = "right" if title in NUMERIC else "left"
        table.add_column(title, justify=justify, overflow="fold" if name else "crop", no_wrap=not name)
    for row in summary.rows[:MAX_ROWS]:
        cells = [*row.cells(), *([row.stream] if streams else []), *([row.place] if several else [])]
        table.add_row(*map(Text, cells), style=None if row.complete else "yellow")
    if len(summary.rows) > 1:
        totals = ["", "total", "", "", "", *summary.totals.cells()[5:]]
        table.add_section()
        table.add_row(*map(Text, totals), style="bold")
    return table


def print_summary(summary: Summary, console: Console) -> None:
    """Prints heading, table, problems and files. Lines of text are never broken: a path is for copying."""
    from rich.text import Text

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    line(summary.heading, "bold")
    if summary.rows:
        console.print(launch_table(summary))
    if len(summary.rows) > MAX_ROWS:
        line(f"... and {len(summary.rows) - MAX_ROWS} more launches")
    for text in summary.selections[:MAX_SELECTIONS]:
        line(text)
    if len(summary.selections) > MAX_SELECTIONS:
        line(f"... and {len(summary.selections) - MAX_SELECTIONS} more kernels that were recorded in part")
    if summary.aligned is not None:
        line(summary.aligned)
    for text in summary.builds[:MAX_BUILDS]:
        line(text)
    if len(summary.builds) > MAX_BUILDS:
        line(f"... and {len(summary.builds) - MAX_BUILDS} more kernels whose registers or stack tracing changed")
    for text in summary.problems[:MAX_PROBLEMS]:
        line(f"problem: {text}", "yellow")
    if len(summary.problems) > MAX_PROBLEMS:
        line(f"... and {len(summary.problems) - MAX_PROBLEMS} more problems", "yellow")
    for text in summary.advice:
        line(text, "yellow")
    for path in summary.outputs:
        line(f"wrote {path}")
