"""Raw captures -> :class:`warptrace.trace.Trace`."""

from __future__ import annotations

from .decoder import decode

__all__ = ["decode"]
