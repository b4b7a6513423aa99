"""What the tool itself says: on stderr, since stdout belongs to the profiled command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

    from ..report import Summary

WIDTH_OF_FILES = 200

ProgressCallback = Callable[[int, int], None]
"""``progress(done, total)``, called now and then by exporters."""


def debugging() -> bool:
    """Whether errors come with their traceback."""
    return os.environ.get("WARPTRACE_DEBUG") == "1"


def note(text: str) -> None:
    """A line that tells what was done. Nobody may be listening any more; the work goes on."""
    with contextlib.suppress(BrokenPipeError):
        print(f"warptrace: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line that tells what is not as it should be."""
    note(f"warning: {text}")


def print_summaries(summaries: Mapping[str, Summary], out: TextIO) -> None:
    """The summary of each capture, by its name (pid_<pid>)."""
    if not summaries:
        return
    from ..report import print_summary

    def show(console: Console) -> None:
        for name, summary in summaries.items():
            console.print(f"{name.replace('_', ' ')}:", end=" ", markup=False)
            print_summary(summary, console)

    print_text(show, out)


def print_text(show: Callable[[Console], None], out: TextIO) -> None:
    """What ``show`` prints on a console, on ``out``. Nobody may be listening any more."""
    from rich.console import Console

    # Where no terminal sets a width, a table that is cut at 80 columns loses numbers.
    console = Console(file=out, width=None if out.isatty() else WIDTH_OF_FILES, highlight=False)
    # Captured first: rich answers a closed pipe by ending the process with a status of its own.
    with console.capture() as text:
        show(console)
    with contextlib.suppress(BrokenPipeError):
        print(text.get(), end="", file=out, flush=True)


def shown(path: Path) -> str:
    """``path`` relative to the current folder where it lies in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextmanager
def progress_bar(text: str) -> Iterator[ProgressCallback | None]:
    """A bar on stderr while the block runs; None where nobody looks at it. It is gone at the end."""
    with progress_bars([text]) as (one,):
        yield one


@contextmanager
def progress_bars(texts: Sequence[str]) -> Iterator[list[ProgressCallback | None]]:
    """As :func:`progress_bar`, a bar each. They may be moved from several threads."""
    if not sys.stderr.isatty():
        yield [None] * len(texts)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def mover(task: TaskID) -> ProgressCallback:
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield [mover(bar.add_task(text, total=None)) for text in texts]
