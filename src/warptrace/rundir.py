"""The output directory of a run: made beside its final name, moved there at the end, never at a result's cost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError, WarptraceError

RUN_FILE = "run.json"
RAW_DIR = "raw"
RUN_FORMAT = "warptrace run"
RUN_VERSION = 1


@dataclass(frozen=True)
class Wording:
    """How messages name what the user can change: the output directory, shortly too, and leave to replace it."""

    target: str
    short: str
    clobber: str


COMMAND_LINE = Wording("--output-dir", "-o", "--clobber")
PYTHON = Wording("output", "output", "clobber=True")


def default_name() -> str:
    """A name that no other run has: the time and our pid."""
    return f"warptrace-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def is_result(path: Path) -> bool:
    """Whether ``path`` is a directory that a run of ours made."""
    try:
        data = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("format") == RUN_FORMAT


def write_run(folder: Path, content: dict[str, Any]) -> None:
    """Write the run.json of a directory, whole or not at all."""
    data = {"format": RUN_FORMAT, "version": RUN_VERSION, **content}
    partial = folder / f".{RUN_FILE}.partial-{os.getpid()}"
    # A command line may hold bytes that are no UTF-8: they arrive as lone surrogates, which only ASCII escapes carry.
    try:
        partial.write_text(json.dumps(data, indent=2) + "\n", encoding="ascii")
        os.replace(partial, folder / RUN_FILE)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def record_outputs(folder: Path, outputs: list[str]) -> None:
    """Add ``outputs`` to those that the folder's run.json names, where it has one."""
    if not is_result(folder):
        return
    data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    data["outputs"] = sorted({*data.get("outputs", []), *outputs})
    write_run(folder, data)


def check_target(path: str | os.PathLike[str], *, clobber: bool, words: Wording = COMMAND_LINE) -> Path:
    """The absolute output directory that the user named, links resolved.

    Raises UsageError where it exists and may not be replaced.
    """
    final = Path(os.path.realpath(path))
    if not os.path.lexists(final):
        return final
    if not final.is_dir():
        raise UsageError(f"output {path} exists and is not a directory: choose another {words.target}")
    if not clobber:
        raise UsageError(
            f"output directory {path} exists: add {words.clobber} to replace it, or choose another {words.target}"
        )
    if os.path.ismount(final):
        raise UsageError(f"output directory {path} is a mount point and cannot be replaced: choose a folder inside it")
    if any(final.iterdir()) and not is_result(final):
        raise UsageError(
            f"output directory {path} is not a result of warptrace (no {RUN_FILE} of its kind), so"
            f" {words.clobber} leaves it alone: remove it yourself, or choose another {words.target}"
        )
    return final


def _new_folder(parent: Path, name: str) -> Path:
    """Make a folder that was not there. In a container pids repeat: what a killed run left has the name already."""
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class RunDirectory:
    """A directory in the making: ``partial`` becomes ``final`` in :meth:`commit`."""

    final: Path
    partial: Path
    clobber: bool

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, clobber: bool, words: Wording = COMMAND_LINE
    ) -> RunDirectory:
        """Check the target and make the partial directory beside it. Raises UsageError, WarptraceError."""
        final = check_target(path, clobber=clobber, words=words)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            partial = _new_folder(final.parent, f".{final.name}.partial-{os.getpid()}")
        except OSError as error:
            raise WarptraceError(
                f"cannot write to {final.parent}: {error.strerror}; choose another {words.short}"
            ) from None
        return cls(final, partial, clobber)

    @property
    def raw(self) -> Path:
        """Where ``profile`` has the raw captures written, one ``pid_<pid>`` a process."""
        return self.partial / RAW_DIR

    def commit(self, *, success: bool) -> Path:
        """Move the directory to its final name and return that.

        Where a result stands there already, it is replaced only with ``--clobber`` and by a successful run; else the
        new one goes beside it.
        """
        if not os.path.lexists(self.final):
            return self._move(self.final)
        if not self.clobber:
            return self._move(self._sibling("new"))
        if not success:
            return self._move(self._sibling("failed"))
        old = self._sibling("old", hidden=True)
        os.rename(self.final, old)
        try:
            self._move(self.final)
        except BaseException:
            os.rename(old, self.final)
            raise
        shutil.rmtree(old, ignore_errors=True)
        return self.final

    def discard(self) -> None:
        """Remove the partial directory."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def _sibling(self, word: str, *, hidden: bool = False) -> Path:
        """A name that nothing has: a process may want several in one second."""
        stem = f"{'.' if hidden else ''}{self.final.name}.{word}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
        return next(path for path in map(self.final.with_name, names) if not os.path.lexists(path))

    def _move(self, target: Path) -> Path:
        try:
            os.rename(self.partial, target)
        except OSError as error:
            raise WarptraceError(f"cannot rename {self.partial} to {target.name}: {error.strerror}") from None
        return target
