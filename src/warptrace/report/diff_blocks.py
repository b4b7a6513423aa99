"""A comparison as headings, lines and tables, for the renderers of reports."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import MAX_NAME, Block, Bullets, Grid, Heading, Line
from .diff import SIGNIFICANT, Change, Diff, InstanceChange, KernelDiff, NameChange
from .summary import duration, shorten

NAME_COLUMNS = (
    "role", "range", "count A", "count B", "mean A", "mean B", "change", "p", "total A", "total B", "B - A",
)  # fmt: skip
INSTANCE_COLUMNS = ("role", "range", "same", "only A", "only B", "p50", "p95", "most changed payloads")


def diff_blocks(diff: Diff, top: int = 40) -> Iterator[Block]:
    """The comparison. ``top``: most rows of a table."""
    yield Heading(f"A: {diff.label_a}, B: {diff.label_b}", 1)
    for text in diff.refused:
        yield Line(f"not comparable: {text}", warning=True)
    for kernel in diff.kernels:
        yield from _kernel(kernel, top)
    for side, names in (("A", diff.missing_in_b), ("B", diff.missing_in_a)):
        for name in names:
            yield Line(f"only in {side}: {shorten(name, MAX_NAME)}", warning=True)
    if not diff.refused and not diff.kernels:
        yield Line("not comparable: A and B have no kernel in common", warning=True)


def _kernel(kernel: KernelDiff, top: int) -> Iterator[Block]:
    yield Heading(shorten(kernel.kernel_b, MAX_NAME), 2)
    for text in kernel.refused:
        yield Line(text, warning=True)
    if kernel.duration_ns is not None:
        yield Line(_duration(kernel, kernel.duration_ns))
    if kernel.cautions:
        yield Bullets(tuple(f"note: {text}" for text in kernel.cautions))
    if kernel.names:
        yield Heading("Ranges, mean cycles; total a launch", 3)
        yield Grid(NAME_COLUMNS, 2, tuple(map(_name, kernel.names[:top])))
        if len(kernel.names) > top:
            yield Line(f"... and {len(kernel.names) - top} more rows")
    for side, keys in (("A", kernel.only_a), ("B", kernel.only_b)):
        if keys:
            yield Line(f"only in {side}: {', '.join(f'{name} ({role})' for role, name in keys)}", warning=True)
    if kernel.instances:
        yield Heading("The same ranges in the median launches, B - A in cycles", 3)
        yield Grid(INSTANCE_COLUMNS, 2, tuple(map(_instance, kernel.instances[:top])))


def _duration(kernel: KernelDiff, change: Change) -> str:
    counts = f"{kernel.launches_a} and {kernel.launches_b} launches"
    left_out = kernel.left_out_a or kernel.left_out_b
    warm = f", without {kernel.left_out_a} and {kernel.left_out_b} warm-up launches" if left_out else ""
    return (
        f"duration {duration(round(change.a))} -> {duration(round(change.b))}, {_percent(change.change)}: "
        f"{verdict(change)} ({counts}{warm})"
    )


def verdict(change: Change) -> str:
    """What a change of a duration comes to, in words."""
    if change.p is None:
        return "nothing is known of chance"
    if not change.significant:
        return f"no significant change (p {_relation(change.p)})"
    return f"{'slower' if change.b > change.a else 'faster'} (p {_relation(change.p)})"


def _name(row: NameChange) -> tuple[str, ...]:
    mean = row.mean
    mark = "" if mean.p is None else f"{_p(mean.p)}{' *' if mean.significant else ''}"
    numbers = (f"{value:.0f}" for value in (row.total_a, row.total_b))
    return (
        row.role, row.name, f"{row.count_a:g}", f"{row.count_b:g}", f"{mean.a:.1f}", f"{mean.b:.1f}",
        _percent(mean.change), mark or "-", *numbers, f"{row.total_b - row.total_a:+.0f}",
    )  # fmt: skip


def _instance(row: InstanceChange) -> tuple[str, ...]:
    far = ", ".join(f"{one.payload}: {one.b - one.a:+.0f}" for one in row.payloads) or "-"
    return (
        row.role, row.name, str(row.matched), str(row.only_a), str(row.only_b), f"{row.p50:+d}", f"{row.p95:+d}", far
    )  # fmt: skip


def _percent(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.1f} %"


def _relation(p: float) -> str:
    return _p(p) if _p(p).startswith("<") else f"= {_p(p)}"


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else "< 0.0001"


LEGEND = f"* significant: p below {SIGNIFICANT}, by Welch's test on launches, corrected for the number of ranges (Holm)"
