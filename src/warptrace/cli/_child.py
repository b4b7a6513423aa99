"""Running the profiled command: once, unchanged, with our signals passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import UsageError, WarptraceError
from ..runtime.options import DIRECTORY_ENV
from ._messages import note, warn
from ._processes import processes, send
from ._watch import Snapshot, Watcher, offered

BOOTSTRAP = Path(__file__).resolve().parent.parent / "runtime" / "bootstrap"
"""Folder of the ``sitecustomize`` that arms a Python process."""

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def child_environment(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the tracer's settings, and the bootstrap folder first on PYTHONPATH."""
    env = {**environ, **settings}
    # An empty PYTHONPATH entry would mean the current folder: add no separator without a rest.
    rest = environ.get("PYTHONPATH", "")
    env["PYTHONPATH"] = f"{BOOTSTRAP}{os.pathsep}{rest}" if rest else str(BOOTSTRAP)
    return env


TIMEOUT_STATUS = 124
INTERRUPT_STATUS = 130
LOOK_S = 0.2
"""While processes end, /proc is looked through this often."""


@dataclass(frozen=True)
class Patience:
    """Seconds. ``interrupt``: for the command to end after the first Ctrl-C, before its kernels are looked at;
    ``snapshot``: for that look; ``sigint`` and ``sigterm``: from these signals of ours to the next stronger one, the
    second longer than what a traced process takes to save what it can; ``sigkill``: for processes to be gone."""

    interrupt: float = 3.0
    snapshot: float = 20.0
    sigint: float = 2.0
    sigterm: float = 12.0
    sigkill: float = 10.0


@dataclass(frozen=True)
class Ended:
    """How a command ended: ``status`` is its exit status, 128 + n where signal n ended it, or TIMEOUT_STATUS or
    INTERRUPT_STATUS where we did; ``by``: "itself", "timeout" or "interrupt". ``snapshot``: None: none was taken."""

    status: int
    by: str
    snapshot: Snapshot | None


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    raw: Path,
    *,
    timeout: float | None = None,
    watch: bool = False,
    patience: Patience | None = None,
) -> Ended:
    """Run ``command`` and wait for it; :class:`_Run` says what a Ctrl-C and the end of ``timeout`` seconds do.

    Standard streams are inherited. A signal sent to us alone is passed on; one from the terminal has reached the
    command already and is not sent twice. We outlive the command in any case, to save what was recorded. ``raw``: the
    folder of raw captures; ``watch``: trace memory is mapped at once, so that it can be read after the command's death.
    Raises WarptraceError (status 127 or 126, as a shell has it) where it cannot be started.
    """
    if not hasattr(signal, "sigwaitinfo"):
        raise WarptraceError("profile needs Linux; results made there can be post-processed anywhere")
    watched = {signal.SIGCHLD, *(signal.Signals[name] for name in FORWARDED)}
    # Where SIGCHLD is ignored, exit statuses are lost and sigwaitinfo never returns.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        run = _Run(_start(command, env, cwd, mask), watched, raw, patience or Patience())
        try:
            if watch or timeout is not None:
                run.watch()
            return run.wait(timeout)
        finally:
            run.close()
            # What arrived while the command was ending was meant for it.
            while signal.sigtimedwait(watched, 0) is not None:
                pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Event(Enum):
    ENDED = 1
    TIME = 2
    INTERRUPT = 3


class _Run:
    """A running command.

    After a Ctrl-C it has some seconds to end by itself. If it has not, a snapshot is taken of what its kernels have
    recorded: where one hangs the command is ended, else it goes on, for it may be saving its work. A second Ctrl-C does
    the same at once and ends the command in any case; the third kills it. At the end of the timeout a snapshot is
    taken and the command is ended. That means all processes of the run: by SIGINT (after a timeout), SIGTERM and
    SIGKILL, as far as each is needed.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], watched: set[signal.Signals], raw: Path, patience: Patience
    ) -> None:
        self._child = child
        self._watched = watched
        self._raw = raw
        self._patience = patience
        self._watcher: Watcher | None = None
        self._watching = False
        self._snapshot: Snapshot | None = None
        self._interrupts = 0

    def watch(self) -> None:
        """From now on trace memory is mapped as soon as it is offered."""
        self._watching = True
        self._watcher = Watcher(self._raw, os.environ)

    def close(self) -> None:
        """Ends the process that does so."""
        if self._watcher is not None:
            self._watcher.close()

    def wait(self, timeout: float | None) -> Ended:
        """Until the command has ended, by itself or by us."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            event = self._next(deadline)
            if event is _Event.INTERRUPT and self._interrupts == 1:
                event = self._next(time.monotonic() + self._patience.interrupt)
            elif event is _Event.TIME:
                note(f"the command has not ended in {timeout:g} s: looking at its kernels before it is ended")
                self._look()
                self._end((signal.SIGINT, self._patience.sigint), (signal.SIGTERM, self._patience.sigterm))
                return Ended(TIMEOUT_STATUS, "timeout", self._snapshot)
            if event is _Event.ENDED:
                return self._by_itself()
            self._look()
            if self._child.poll() is not None:
                return self._by_itself()
            if self._interrupts > 1 or (self._snapshot is not None and self._snapshot.stuck):
                self._end((signal.SIGTERM, self._patience.sigterm))
                return Ended(INTERRUPT_STATUS, "interrupt", self._snapshot)
            note("the command has not ended yet, and no traced kernel hangs: waiting (Ctrl-C again ends it)")

    def _by_itself(self) -> Ended:
        if self._watcher is not None and offered(self._raw):
            self._look()  # some process died before it could save what is in the memory
        status = self._child.returncode
        return Ended(128 - status if status < 0 else status, "itself", self._snapshot)

    def _look(self) -> None:
        """Takes a snapshot where there is anything to see. Goes on without one at the third Ctrl-C, or if it takes too
        long."""
        if not offered(self._raw):
            return
        if self._watcher is None:
            self._watcher = Watcher(self._raw, os.environ)
        watcher = self._watcher
        watcher.ask()
        deadline = time.monotonic() + self._patience.snapshot
        while not watcher.done and self._interrupts < 3 and time.monotonic() < deadline:
            self._sleep(LOOK_S)
        self._snapshot = watcher.result()
        for line in self._snapshot.errors:
            warn(line)
        self._watcher = None
        if self._watching and self._child.poll() is None:
            self.watch()

    def _end(self, *steps: tuple[signal.Signals, float]) -> None:
        """Ends all processes of the run: with each signal, and the seconds to the next; at last with SIGKILL."""
        note("ending the command (Ctrl-C kills it at once)")
        for number, seconds in steps:
            if self._interrupts < 3:
                send(self._processes(), number)
                if self._gone(seconds):
                    return
        if not self._killed():
            pids = ", ".join(map(str, sorted(self._processes())))
            warn(f"still there after SIGKILL: pid {pids}")

    def _killed(self) -> bool:
        """Kills all processes of the run, again and again: where one is killed before its parent, a shell that waits
        for it may start its next command, which nobody has seen yet, before its own turn comes."""
        deadline, interrupts = time.monotonic() + self._patience.sigkill, self._interrupts
        while time.monotonic() <= deadline and self._interrupts == interrupts:
            send(self._processes(), signal.SIGKILL)
            if self._gone(LOOK_S):
                return True
        return False

    def _processes(self) -> set[int]:
        return processes(self._child.pid, f"{DIRECTORY_ENV}={self._raw}".encode())

    def _gone(self, seconds: float) -> bool:
        """Waits for all processes of the run to end, up to ``seconds`` or to the next Ctrl-C."""
        deadline, interrupts = time.monotonic() + seconds, self._interrupts
        while self._child.poll() is None or self._processes():
            if time.monotonic() > deadline or self._interrupts > interrupts:
                return False
            self._sleep(LOOK_S)
        return True

    def _next(self, deadline: float | None) -> _Event:
        """What comes first: the command's end, the deadline, or a Ctrl-C."""
        interrupts = self._interrupts
        while self._child.poll() is None:
            if self._interrupts > interrupts:
                return _Event.INTERRUPT
            if deadline is not None and time.monotonic() >= deadline:
                return _Event.TIME
            self._sleep(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        return _Event.ENDED

    def _sleep(self, seconds: float | None) -> None:
        """Until the next signal, which is passed on, or for ``seconds``."""
        if seconds is None:
            info = signal.sigwaitinfo(self._watched)
        else:
            found = signal.sigtimedwait(self._watched, seconds)
            if found is None:
                return
            info = found
        if info.si_signo == signal.SIGINT:
            self._interrupts += 1
        from_terminal = info.si_code > 0
        if info.si_signo != signal.SIGCHLD and not from_terminal:
            self._child.send_signal(info.si_signo)


def _start(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    if cwd is not None and not os.path.isdir(cwd):
        raise UsageError(f"--working-dir {cwd}: no such folder")

    def restore_mask() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        return subprocess.Popen(command, env=dict(env), cwd=cwd, preexec_fn=restore_mask)
    except FileNotFoundError:
        raise WarptraceError(f"command not found: {command[0]}", exit_code=127) from None
    except PermissionError:
        hint = f": put python before it, as `python {command[0]}`" if command[0].endswith(".py") else ""
        raise WarptraceError(f"command is not executable: {command[0]}{hint}", exit_code=126) from None
    except OSError as error:
        raise WarptraceError(f"cannot run {command[0]}: {error.strerror}", exit_code=126) from None
