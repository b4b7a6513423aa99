"""Reports: what a :class:`~warptrace.trace.Trace` says, as rows of plain data and as text for a terminal."""

from __future__ import annotations

from .summary import LaunchRow, Summary, launch_table, print_summary, summarize

__all__ = ["LaunchRow", "Summary", "launch_table", "print_summary", "summarize"]
