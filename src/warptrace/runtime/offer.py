"""Trace memory that another process may map: how this process offers it, as a small file beside the capture.

A kernel that never ends cannot be asked anything from within its process once the main thread waits in a copy or in
a full launch queue. Another process that maps the memory can read it all the same, and it keeps the memory alive when
the program is killed.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .layout import Layout
from .log import log
from .memory import RecorderMemory

SUFFIX = ".ipc.json"
VERSION = 1


@dataclass(frozen=True)
class Offer:
    """What another process needs to map a device's trace memory. ``handle``: the 64 bytes of cuIpcGetMemHandle in hex;
    ``offset``: of the control block in the allocation; ``uuid``: of the device, whatever number the process gives it;
    ``python``: an interpreter that can use CUDA."""

    pid: int
    ordinal: int
    uuid: str
    handle: str
    offset: int
    bank_bytes: int
    slack_bytes: int
    python: str = ""
    version: int = VERSION

    @property
    def layout(self) -> Layout:
        """The division of the memory."""
        return Layout(self.bank_bytes, self.slack_bytes)

    @classmethod
    def read(cls, path: Path) -> Offer:
        """What such a file says. Raises OSError, ValueError."""
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
        except TypeError as error:
            raise ValueError(f"{path.name}: {error}") from None
        if found.version != VERSION:
            raise ValueError(f"{path.name} has version {found.version}, not {VERSION}")
        return found

    def write(self, directory: Path) -> None:
        """Puts the file into the directory of the capture, whole or not at all. Raises OSError."""
        path = offer_path(directory, self.ordinal)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def make(memory: RecorderMemory, directory: Path) -> None:
    """Lets other processes map the memory. Where that cannot be, hangs cannot be looked into: a message, no fault."""
    try:
        shared = memory.share()
        if shared is not None:
            uuid, handle, offset = shared
            layout = memory.layout
            made = Offer(
                pid=os.getpid(),
                ordinal=memory.ordinal,
                uuid=uuid,
                handle=handle.hex(),
                offset=offset,
                bank_bytes=layout.bank_bytes,
                slack_bytes=layout.slack_bytes,
                python=sys.executable or "",
            )
            made.write(directory)
    except Exception as e:  # the recording is worth more than this
        log("info", f"device {memory.ordinal}: trace memory cannot be shared, so no snapshot of a hang: {e}")


def withdraw(directory: Path, ordinal: int) -> None:
    """All that the memory held has been written: nobody needs to look into it any more."""
    with suppress(OSError):
        offer_path(directory, ordinal).unlink()


def offers_in(directory: Path) -> list[Path]:
    """The files of a capture directory, by device."""
    return sorted(directory.glob(f"device_*{SUFFIX}"))


def offer_path(directory: Path, ordinal: int) -> Path:
    """The file of a device."""
    return directory / f"device_{ordinal}{SUFFIX}"
