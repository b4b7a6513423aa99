"""Messages of the runtime: one line each on stderr, as severe as the user asked for."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from .options import LOG_LEVELS

_level = "warn"


def set_level(level: str) -> None:
    """The least severe level that is printed; one of LOG_LEVELS."""
    global _level
    _level = level


def log(level: str, text: str) -> None:
    """Prints ``warptrace: <level>: <text>``. Never raises: stderr may be closed."""
    if LOG_LEVELS.index(level) > LOG_LEVELS.index(_level):
        return
    with suppress(OSError, ValueError, AttributeError):
        print(f"warptrace: {level}: {text} [pid {os.getpid()}]", file=sys.stderr, flush=True)
