"""warptrace: named markers and ranges inside GPU kernels, recorded per warp while they run.

``import warptrace`` imports nothing heavy: no numpy, no GPU library, no DSL. :func:`load` reads a run directory that
``warptrace profile`` made. The event API for CuTe DSL kernels is :mod:`warptrace.cute`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .errors import CaptureError, UsageError, WarptraceError

if TYPE_CHECKING:
    from .trace import Trace

__version__ = "0.1.0"

__all__ = ["CaptureError", "UsageError", "WarptraceError", "__version__", "load"]


def load(run_dir: str | os.PathLike[str]) -> Trace:
    """Decode every raw capture of a run directory into one :class:`~warptrace.trace.Trace`.

    ``run_dir`` is what ``warptrace profile`` printed as its result, or one ``raw/pid_*`` folder in it. Times are
    integer nanoseconds from the start of the trace. Raises :class:`CaptureError` where there is no capture, or one
    that cannot be read.
    """
    from .decode import decode
    from .raw import find_captures, read_capture

    captures = find_captures(os.fspath(run_dir))
    if not captures:
        raise CaptureError(f"{os.fspath(run_dir)} holds no capture: its run started no Python with the tracer")
    return decode([read_capture(path) for path in captures])
