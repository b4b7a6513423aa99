"""Reports: what a :class:`~warptrace.trace.Trace` says, as rows of plain data and as text for a terminal."""

from __future__ import annotations

from .roles import Role, Roles, find_roles
from .stats import Analysis, LaunchStats, analyze
from .summary import LaunchRow, Summary, launch_table, print_summary, summarize

__all__ = [
    "Analysis",
    "LaunchRow",
    "LaunchStats",
    "Role",
    "Roles",
    "Summary",
    "analyze",
    "find_roles",
    "launch_table",
    "print_summary",
    "summarize",
]
