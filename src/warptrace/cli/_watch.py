"""The process that takes snapshots: it may use CUDA, and hang in it, where the command line must not."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).resolve().parents[2]
"""The folder that warptrace was imported from."""
OFFERS = "pid_*/device_*.ipc.json"
"""Trace memory that can be mapped, in the folder of raw captures (see :mod:`warptrace.runtime.offer`)."""


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot found. ``running``: warps that had not ended; ``moved``: of them such that went on recording
    meanwhile; ``errors``: a line for each memory that could not be read."""

    memories: int
    running: int
    moved: int
    errors: tuple[str, ...]

    @property
    def stuck(self) -> bool:
        """Some kernel runs, and not all of it goes on."""
        return self.running > self.moved


def offered(raw: Path) -> bool:
    """Whether a traced process has trace memory that it has not written to the end."""
    return any(raw.glob(OFFERS))


def forget_offers(raw: Path) -> None:
    """Removes what processes left that did not end as they should."""
    for path in raw.glob(OFFERS):
        with contextlib.suppress(OSError):
            path.unlink()


class Watcher:
    """A running snapshot process; it maps memory as soon as a process offers it, so that it survives the process."""

    def __init__(self, raw: Path, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [_interpreter(raw), "-m", "warptrace.runtime.snapshot", str(raw)],
            env=_environment(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is not meant for it
        )
        self._asked = False

    def ask(self) -> None:
        """Orders the snapshot, once."""
        if self._asked:
            return
        self._asked = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: ``result`` tells
            self._process.stdin.write(b"snap\n")
            self._process.stdin.close()

    @property
    def done(self) -> bool:
        """Whether it has answered, or died."""
        return self._process.poll() is not None

    def result(self) -> Snapshot:
        """The answer, once it is ``done``; where it is not, the process is given up."""
        if not self.done:
            self.close()
            return Snapshot(0, 0, 0, ("no snapshot: it took too long",))
        assert self._process.stdout is not None
        try:
            taken: list[dict[str, Any]] = json.loads(self._process.stdout.read() or b"null")
            return _snapshot(taken)
        except (TypeError, ValueError, KeyError):
            return Snapshot(0, 0, 0, (f"no snapshot: its process ended with status {self._process.returncode}",))

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


def _snapshot(taken: list[dict[str, Any]]) -> Snapshot:
    errors = [f"pid {one['pid']}, device {one['ordinal']}: {one['error']}" for one in taken if one["error"]]
    read = [one for one in taken if not one["error"]]
    return Snapshot(
        len(read), sum(one["open"] for one in read), sum(one["moved"] for one in read), tuple(errors)
    )


def _interpreter(raw: Path) -> str:
    """Ours, if it can use CUDA; else that of a traced process, which can."""
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec("cuda.bindings") is not None:
            return sys.executable
    for path in raw.glob(OFFERS):
        with contextlib.suppress(OSError, ValueError):
            python = json.loads(path.read_text(encoding="utf-8")).get("python")
            if python and os.access(python, os.X_OK):
                return str(python)
    return sys.executable


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Untraced, with our package in reach, and with every device in sight: a program may renumber them."""
    env = {k: v for k, v in environ.items() if not k.startswith("WARPTRACE") and k != "CUDA_VISIBLE_DEVICES"}
    rest = environ.get("PYTHONPATH", "")
    env["PYTHONPATH"] = f"{PACKAGES}{os.pathsep}{rest}" if rest else str(PACKAGES)
    return env
