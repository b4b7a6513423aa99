"""What the tool itself says: on stderr, since stdout belongs to the profiled command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ..trace import Trace

WIDTH_OF_FILES = 200

ProgressCallback = Callable[[int, int], None]
"""``progress(done, total)``, called now and then by exporters."""


def debugging() -> bool:
    """Whether errors come with their traceback."""
    return os.environ.get("WARPTRACE_DEBUG") == "1"


def note(text: str) -> None:
    """A line that tells what was done."""
    print(f"warptrace: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line that tells what is not as it should be."""
    note(f"warning: {text}")


def say_summary(name: str, trace: Trace, out: TextIO) -> None:
    """The summary of the capture ``name`` (pid_<pid>)."""
    from rich.console import Console

    from ..report import print_summary, summarize

    # Where nobody's terminal sets a width, a table that is cut at 80 columns loses numbers.
    console = Console(file=out, width=None if out.isatty() else WIDTH_OF_FILES, highlight=False)
    console.print(f"{name.replace('_', ' ')}:", end=" ", markup=False)
    print_summary(summarize(trace), console)


def shown(path: Path) -> str:
    """``path`` relative to the current folder where it lies in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextmanager
def progress_bar(text: str) -> Iterator[ProgressCallback | None]:
    """A bar on stderr while the block runs; None where nobody looks at it. It is gone at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update
