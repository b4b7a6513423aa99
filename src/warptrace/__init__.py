"""warptrace: named markers and ranges inside GPU kernels, recorded per warp while they run.

``import warptrace`` imports nothing heavy: no numpy, no GPU library, no DSL. :func:`load` reads a run directory that
``warptrace profile`` made; :func:`capture`, :func:`start` and :func:`stop` record from inside a program. The event
API for CuTe DSL kernels is :mod:`warptrace.cute`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .errors import CaptureError, UsageError, WarptraceError
from .flows import Flow, flow

if TYPE_CHECKING:
    from .session import Session
    from .trace import Trace

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "Flow",
    "UsageError",
    "WarptraceError",
    "__version__",
    "capture",
    "flow",
    "load",
    "start",
    "stop",
]


def load(run_dir: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Trace:
    """Decode every raw capture of a run directory, or of several, into one :class:`~warptrace.trace.Trace`.

    ``run_dir`` is what ``warptrace profile`` printed as its result, or one ``raw/pid_*`` folder in it; ``more`` are put
    on one timeline with it, as ``warptrace merge`` does. Times are integer nanoseconds from the start of the trace.
    Raises :class:`CaptureError` where there is no capture, or one that cannot be read.
    """
    from .decode import decode
    from .raw import find_captures, read_capture

    captures = []
    for path in (run_dir, *more):
        found = find_captures(path)
        if not found:
            raise CaptureError(f"{os.fspath(path)} holds no capture: its run started no Python with the tracer")
        captures += found
    return decode([read_capture(path) for path in captures])


def capture(output: str | os.PathLike[str] | None = None, *, clobber: bool = False, **options: Any) -> Session:
    """Records the launches made inside a block, and compiles with events what is compiled there::

        with warptrace.capture() as c:
            kernel(a, b)
        print(len(c.trace.launches))

    ``output``: a run directory to write too, which must not exist (``clobber``: an earlier result is replaced, if the
    block succeeds and something was recorded). ``options`` are those of ``warptrace profile``: ``buffer_size``,
    ``max_events_per_warp`` and others (docs/python.md). At its end the block waits for the device. Raises
    :class:`UsageError` for options that are unknown or cannot be used, and where a session is open already.
    """
    from .session import Session

    return Session(output, clobber=clobber, options=options)


def start(output: str | os.PathLike[str] | None = None, *, clobber: bool = False, **options: Any) -> Session:
    """Begins what :func:`capture` does, until :func:`stop`."""
    from . import session

    return session.start(output, clobber=clobber, options=options)


def stop() -> Session:
    """Ends what :func:`start` began and returns it: ``stop().trace``. Raises :class:`UsageError` where nothing did."""
    from . import session

    return session.stop()
