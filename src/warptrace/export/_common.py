"""What the exporters share: the chunks they work in, the file they write to, and the progress they tell."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import WarptraceError
from ..trace import I64, Trace

Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)``, both in rows (warps + ranges + markers), after each chunk."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive warps and their rows: half-open bounds into Warps, Ranges and Markers."""

    warps: slice
    ranges: slice
    markers: slice


@dataclass(frozen=True)
class RowBounds:
    """Where the rows of each warp begin: (warps + 1,) bounds into Ranges and into Markers."""

    ranges: I64
    markers: I64

    def chunk(self, first: int, last: int) -> Chunk:
        """Rows of the warps ``first <= w < last``."""
        return Chunk(
            slice(first, last),
            slice(int(self.ranges[first]), int(self.ranges[last])),
            slice(int(self.markers[first]), int(self.markers[last])),
        )


def row_bounds(trace: Trace) -> RowBounds:
    """Bounds of every warp's rows. Raises WarptraceError where rows are not ordered by warp."""
    edges = np.arange(len(trace.warps) + 1, dtype=np.int32)  # of the columns' type: else these are copied
    for name, column in (("ranges", trace.ranges.warp), ("markers", trace.markers.warp)):
        if len(column) and (np.any(column[1:] < column[:-1]) or column[0] < 0 or column[-1] >= len(trace.warps)):
            raise WarptraceError(f"inconsistent trace: {name} are not ordered by warp; decode the capture again")
    return RowBounds(np.searchsorted(trace.ranges.warp, edges), np.searchsorted(trace.markers.warp, edges))


def chunks(bounds: RowBounds, first: int, last: int, rows: int) -> Iterator[Chunk]:
    """The warps ``first <= w < last`` in chunks of about ``rows`` rows, at least one warp each."""
    load = bounds.ranges + bounds.markers + np.arange(len(bounds.ranges))
    while first < last:
        fitting = int(np.searchsorted(load, load[first] + rows, side="right")) - 1
        stop = min(max(fitting, first + 1), last)
        yield bounds.chunk(first, stop)
        first = stop


def rows_of(chunk: Chunk) -> int:
    """Rows in a chunk, as :data:`Progress` counts them."""
    return sum(s.stop - s.start for s in (chunk.warps, chunk.ranges, chunk.markers))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` only when the block ends well.

    Raises WarptraceError where the folder cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        file = part.open("wb")
    except OSError as error:
        raise WarptraceError(f"cannot write {target}: {error.strerror or error}; choose another place") from error
    try:
        with file:
            yield file
        os.replace(part, target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            mend = "free some space" if full else "choose another place"
            raise WarptraceError(f"cannot write {target}: {error.strerror or error}; {mend}") from error
        raise


class OrderedPool:
    """Runs functions that return bytes on other threads and writes their results in order of submission.

    A context manager. At most ``pending`` results are held, which bounds the memory. With no workers everything runs
    at once in the calling thread.
    """

    def __init__(self, file: BinaryIO, workers: int, pending: int = 4) -> None:
        self._file = file
        self._limit = pending
        self._pending: deque[Future[bytes]] = deque()
        self._pool = ThreadPoolExecutor(max_workers=workers) if workers else None

    def __enter__(self) -> OrderedPool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._drain(0)
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, function: Callable[..., bytes], *arguments: object) -> None:
        """Writes ``function(*arguments)`` after everything submitted before."""
        if self._pool is None:
            self._file.write(function(*arguments))
            return
        self._pending.append(self._pool.submit(function, *arguments))
        self._drain(self._limit)

    def _drain(self, keep: int) -> None:
        while len(self._pending) > keep:
            self._file.write(self._pending.popleft().result())
