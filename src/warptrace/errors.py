"""The one error class of the package: one line that names the thing and the mend."""

from __future__ import annotations


class WarptraceError(Exception):
    """A fault the user can mend. ``str(e)`` is one clear line; the command line prints it and exits.

    ``exit_code`` is the exit status of the command line (2: bad usage, 1: anything else).
    """

    exit_code = 1

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(WarptraceError):
    """Bad input to a command: exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


class CaptureError(WarptraceError):
    """A raw capture that cannot be read: missing, of an unknown version, or damaged beyond use."""
