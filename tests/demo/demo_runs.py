"""Running ``warptrace demo`` as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """What came of one command line. ``seconds``: wall time."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    folder: Path


def run_demo(folder: Path, *words: str, python: tuple[str, ...] = (), path: tuple[Path, ...] = ()) -> Run:
    """Run ``python -m warptrace demo`` with ``words`` in ``folder``; ``path`` goes before PYTHONPATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WARPTRACE", "CUTE_DSL"))}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(ROOT / "src"), *rest])
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, *python, "-m", "warptrace", "demo", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        timeout=240,
    )
    return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - begin, folder)
