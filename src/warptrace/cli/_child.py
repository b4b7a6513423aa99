"""Running the profiled command: once, unchanged, with our signals passed on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import UsageError, WarptraceError

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


def run_command(command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> int:
    """Run ``command`` and wait for it; returns its exit status, 128 + n where signal n ended it.

    Standard streams are inherited. A signal sent to us alone is passed on; one from the terminal has reached the
    command already and is not sent twice. We outlive the command in any case, to save what was recorded.
    Raises WarptraceError (status 127 or 126, as a shell has it) where it cannot be started.
    """
    if not hasattr(signal, "sigwaitinfo"):
        raise WarptraceError("profile needs Linux; results made there can be post-processed anywhere")
    watched = {signal.SIGCHLD, *(signal.Signals[name] for name in FORWARDED)}
    # Where SIGCHLD is ignored, exit statuses are lost and sigwaitinfo never returns.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        child = _start(command, env, cwd, mask)
        while child.poll() is None:
            info = signal.sigwaitinfo(watched)
            from_terminal = info.si_code > 0
            if info.si_signo != signal.SIGCHLD and not from_terminal:
                child.send_signal(info.si_signo)
        # What arrived while the command was ending was meant for it.
        while signal.sigtimedwait(watched, 0) is not None:
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = child.returncode
    return 128 - status if status < 0 else status


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
