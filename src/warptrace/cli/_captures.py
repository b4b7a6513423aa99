"""The raw captures of a run while it ends: which there are, and whose processes still write."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ._messages import warn


def captures_in(raw: Path) -> list[Path]:
    """The captures of a run, by pid; [] where there is no such folder."""
    return sorted(raw.glob("pid_*"), key=lambda path: (len(path.name), path.name))


def wait_for_processes(raw: Path, seconds: float = 5.0) -> None:
    """Give processes that outlive the command a moment to write what they hold, then name those that still run."""
    deadline = time.monotonic() + seconds
    while (running := _running_pids(raw)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if running:
        pids = ", ".join(map(str, running))
        warn(f"still running after the command ended: pid {pids}; what they record from now on is not in the result")


def unclosed(raw: Path) -> list[str]:
    """Pids whose processes have not closed their capture."""
    return [path.name.removeprefix("pid_") for path in captures_in(raw) if not _closed(path)]


def _running_pids(raw: Path) -> list[int]:
    """Processes that are alive and have not closed their capture."""
    open_captures = (path for path in captures_in(raw) if not _closed(path))
    names = (path.name.removeprefix("pid_") for path in open_captures)
    return [pid for pid in map(int, filter(str.isdecimal, names)) if _runs(pid)]


def _closed(capture: Path) -> bool:
    try:
        manifest = json.loads((capture / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("state") == "complete"


def _runs(pid: int) -> bool:
    """Whether process ``pid`` exists and is more than a zombie that nobody waits for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
