"""What recording costs a program's kernels: a run of lifetimes only against a run with every event.

The specification's method: durations as the trace reports them, never host time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trace import Launch, Trace
from .summary import duration, shorten

if TYPE_CHECKING:
    from rich.table import Table

MAX_NAME = 40


@dataclass(frozen=True)
class Overhead:
    """A kernel in both runs. ``launches``: pairs of launches of one shape, in order; ``unpaired``: launches of either
    run without such a partner. Durations are medians in ns, ``ratio`` the median of the pairs' ratios, ``low`` and
    ``high`` their quartiles (equal to it for one pair). ``cycles_per_event``: what the lifetimes of all warps grew by,
    over all events; it holds waiting too, and may be negative where the runs differ by more than events cost.
    ``lost_events``: of the full run; its durations then hold less than all events cost."""

    kernel: str
    launches: int
    unpaired: int
    lifetimes_ns: float
    full_ns: float
    ratio: float
    low: float
    high: float
    events: int
    cycles_per_event: float | None
    lost_events: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def overhead(lifetimes: Trace, full: Trace) -> tuple[Overhead, ...]:
    """What events cost each kernel that was launched in both runs, dearest first. Empty where there is none."""
    found = []
    for kernel in dict.fromkeys(x.kernel for x in full.launches):
        base, other = (_by_shape(t.launches, kernel) for t in (lifetimes, full))
        pairs = [pair for shape in other for pair in zip(base.get(shape, []), other[shape], strict=False)]
        if pairs:
            total = sum(map(len, base.values())) + sum(map(len, other.values()))
            found.append(_compare(lifetimes, full, kernel, pairs, total - 2 * len(pairs)))
    return tuple(sorted(found, key=lambda row: -row.ratio))


def _by_shape(launches: Iterable[Launch], kernel: str) -> dict[Any, list[Launch]]:
    shapes: dict[Any, list[Launch]] = {}
    for launch in launches:
        if launch.kernel == kernel and launch.end_ns > launch.start_ns:
            shapes.setdefault((launch.grid, launch.block, launch.cluster), []).append(launch)
    return shapes


def _compare(
    lifetimes: Trace, full: Trace, kernel: str, pairs: list[tuple[Launch, Launch]], unpaired: int
) -> Overhead:
    base = [a.end_ns - a.start_ns for a, _ in pairs]
    other = [b.end_ns - b.start_ns for _, b in pairs]
    ratios = [b / a for a, b in zip(base, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    events = sum(b.events for _, b in pairs)
    growth = _warp_cycles(full, [b for _, b in pairs]) - _warp_cycles(lifetimes, [a for a, _ in pairs])
    return Overhead(
        kernel=kernel,
        launches=len(pairs),
        unpaired=unpaired,
        lifetimes_ns=statistics.median(base),
        full_ns=statistics.median(other),
        ratio=middle,
        low=low,
        high=high,
        events=events,
        cycles_per_event=growth / events if events else None,
        lost_events=sum(b.lost_events for _, b in pairs),
    )


def _warp_cycles(trace: Trace, launches: list[Launch]) -> int:
    """Lifetimes of all warps of these launches together."""
    rows = np.isin(trace.warps.launch, [x.index for x in launches]) & (trace.warps.cycles > 0)
    return int(trace.warps.cycles[rows].sum())


def overhead_table(rows: tuple[Overhead, ...]) -> Table:
    """For a terminal."""
    from rich.table import Table

    table = Table(title="what recording costs (lifetimes only against all events)", title_justify="left", box=None)
    for name in ("kernel", "launches", "lifetimes", "full", "ratio (quartiles)", "events", "cycles per event"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for row in rows:
        cost = "-" if row.cycles_per_event is None else f"{row.cycles_per_event:.1f}"
        table.add_row(
            shorten(row.kernel, MAX_NAME), str(row.launches), duration(round(row.lifetimes_ns)),
            duration(round(row.full_ns)), f"{row.ratio:.4f} ({row.low:.4f}-{row.high:.4f})", str(row.events), cost,
        )  # fmt: skip
    return table
