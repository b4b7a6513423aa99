"""Errors of the emulator: one class hierarchy under `EmulatorError`.

The message's first line is the whole story in one sentence; further lines
(``details``) list what a person needs to find the place.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    """A place in a running kernel; fields that are unknown are None.

    ``line`` is the 1-based line of the PTX text, ``cta`` the %ctaid triple,
    ``warp`` the %warpid and ``lane`` the lane (0 to 31).
    """

    kernel: str | None = None
    line: int | None = None
    text: str | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None

    def describe(self) -> str:
        """The known fields as one phrase."""
        parts = []
        if self.line is not None:
            parts.append(f"PTX line {self.line}")
        if self.cta is not None:
            parts.append("CTA ({},{},{})".format(*self.cta))
        if self.warp is not None:
            parts.append(f"warp {self.warp}")
        if self.lane is not None:
            parts.append(f"lane {self.lane}")
        if self.kernel is not None:
            parts.append(f"kernel {self.kernel}")
        return ", ".join(parts)


class EmulatorError(Exception):
    """Base class of every error that the emulator raises on purpose."""

    def __init__(self, message: str, where: Where | None = None, details: list[str] | None = None):
        self.message = message
        self.where = where
        self.details = details or []
        super().__init__(message)

    def __str__(self) -> str:
        head = self.message
        if self.where is not None:
            place = self.where.describe()
            if place:
                head = f"{head} [{place}]"
        lines = [head]
        if self.where is not None and self.where.text:
            lines.append(f"  instruction: {self.where.text}")
        lines.extend(f"  {d}" for d in self.details)
        return "\n".join(lines)


class PtxSyntaxError(EmulatorError):
    """The PTX text cannot be parsed."""


class UnsupportedInstruction(EmulatorError):
    """An instruction, or a form of one, that the emulator does not execute."""


class LaunchError(EmulatorError):
    """A launch configuration or argument list that the kernel cannot take."""


class ExecutionError(EmulatorError):
    """Base class of errors that happen while a kernel runs."""


class MemoryFault(ExecutionError):
    """An access outside every allocation, or to a read-only one."""


class MisalignedAccess(MemoryFault):
    """An access whose address is not a multiple of its size."""


class SyncError(ExecutionError):
    """A synchronisation object used against its rules."""


class Deadlock(ExecutionError):
    """No warp can advance; the details list what each warp waits for."""


class InstructionLimit(ExecutionError):
    """The launch executed more warp instructions than its limit."""


class KernelTrap(ExecutionError):
    """The kernel executed ``trap`` (a failed device-side assertion, say)."""
