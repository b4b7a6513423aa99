"""Raw captures -> :class:`warptrace.trace.Trace`."""

from __future__ import annotations

from .decoder import decode, decode_each

__all__ = ["decode", "decode_each"]
