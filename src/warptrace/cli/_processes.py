"""All processes of a run, found in /proc: those that the command started, and those that were started with its
environment and have lost their parent since."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def processes(root: int, mark: bytes) -> set[int]:
    """Pids of ``root`` and its descendants, and of processes in whose environment at their start ``mark`` stands.

    Zombies do not count.
    """
    parents: dict[int, int] = {}
    marked: set[int] = set()
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        parent = _parent(entry)
        if parent is None or pid == os.getpid():
            continue
        parents[pid] = parent
        if _has(entry, mark):
            marked.add(pid)
    return {pid for pid in parents if pid == root or pid in marked or _descends(pid, root, parents)}


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.Signals(number))


def _parent(entry: Path) -> int | None:
    try:
        state, parent = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else int(parent)


def _has(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == root:
            return True
    return False
