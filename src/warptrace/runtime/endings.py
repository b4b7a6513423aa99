"""Ends of a process that Python's atexit does not see: ``os._exit``, and a SIGTERM or SIGHUP that nobody handles.

What was recorded is saved first, within a time limit; then the process ends as it would have without us. Nothing can
be done at a SIGKILL or a crash: there the capture has what was drained before, and the host cell tells what is missing.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable
from typing import NoReturn

SAVE_S = 10.0
"""The process ends after so long, saved or not: another thread may hold what we need, or a kernel may never end."""
LOOK_S = 1.0
"""The watcher looks so often whether its pipe is still there: a program may close descriptors that it does not know."""

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Requests to end, which kill by default."""

_exit = os._exit
_watcher: _Watcher | None = None
saving = threading.RLock()
"""Held by whoever saves: who comes second (a SIGTERM while the process exits) waits for the first."""
_forking = threading.RLock()
"""Held while a thread forks: between giving the signals back and taking them again."""


def guard(save: Callable[[], None]) -> None:
    """From now on ``save`` is called before the process ends by ``os._exit`` or, where nothing in the process handles
    SIGTERM or SIGHUP, by these. The program's handlers, also later ones, stay in charge."""
    global _watcher

    @functools.wraps(_exit)
    def exit_saved(status: int) -> NoReturn:
        _within_limit(save)
        _exit(status)

    os._exit = exit_saved
    _watcher = _Watcher(save)
    _watcher.arm()


def unguard() -> None:
    """Ends ``guard``."""
    global _watcher
    os._exit = _exit
    if _watcher is not None:
        _watcher.disarm()
        _watcher = None


def before_fork() -> None:
    """A signal meant for the child must not reach the parent's watcher through the pipe that both have."""
    _forking.acquire()
    if _watcher is not None:
        _watcher.disarm()


def after_fork_in_parent() -> None:
    """Undoes ``before_fork``."""
    if _watcher is not None:
        _watcher.arm()
    _forking.release()


def after_fork_in_child() -> None:
    """Ends the parent's ``guard`` in the child: its watcher is a thread that is not there. One that the child has begun
    itself stays."""
    global _watcher
    if _watcher is not None and _watcher.pid != os.getpid():
        os._exit = _exit
        _watcher.close()
        _watcher = None


def _free_lock() -> None:
    """In a forked child, which has one thread."""
    global _forking, saving
    _forking, saving = threading.RLock(), threading.RLock()


os.register_at_fork(after_in_child=_free_lock)


class _Watcher:
    """A thread that saves at a signal, also while the main thread waits in C code and could run no Python handler.

    The handler must act at any moment, and neither hold locks nor run Python: faulthandler's is such a one. It writes
    the stack to a pipe, one for each signal, and the watcher reads.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self._save = save
        self._handlers: dict[signal.Signals, int] = {}
        self._pipes: dict[signal.Signals, tuple[int, int]] = {}

    def arm(self) -> None:
        """Takes the signals that nobody has."""
        for number in SIGNALS:
            if _handler_address(number) == int(signal.SIG_DFL):
                try:
                    self._open()
                    faulthandler.register(number, file=self._pipes[number][1], all_threads=False, chain=False)
                except (OSError, RuntimeError):  # no descriptor, or no thread left: then as without us
                    continue
                self._handlers[number] = _handler_address(number)

    def _open(self) -> None:
        """Once: the pipes, and the thread that reads them."""
        if self._pipes:
            return
        pipes: dict[signal.Signals, tuple[int, int]] = {}
        try:
            for number in SIGNALS:
                pipes[number] = os.pipe()
                os.set_blocking(pipes[number][1], False)
            threading.Thread(target=self._watch, args=(pipes,), name="warptrace-signals", daemon=True).start()
        except (OSError, RuntimeError):
            _close(pipes.values())
            raise
        self._pipes = pipes

    def disarm(self) -> None:
        """Gives the signals back that nobody else has taken meanwhile."""
        for number, handler in self._handlers.items():
            if _handler_address(number) == handler:
                faulthandler.unregister(number)
        self._handlers = {}

    def close(self) -> None:
        """Closes the pipes in a process without the thread."""
        _close(self._pipes.values())

    def _watch(self, pipes: dict[signal.Signals, tuple[int, int]]) -> None:
        known = {end: os.fstat(end).st_ino for pair in pipes.values() for end in pair}
        poll = select.poll()
        for reader, _ in pipes.values():
            poll.register(reader, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(LOOK_S * 1000)}
            if not all(_is_pipe(end, inode) for end, inode in known.items()):
                self.disarm()
                return
            came = [number for number, (reader, _) in pipes.items() if reader in ready and number in self._handlers]
            if came:
                break
        _within_limit(self._save)
        self.disarm()
        os.kill(os.getpid(), came[0])


def _close(pipes: Iterable[tuple[int, int]]) -> None:
    for pair in pipes:
        for end in pair:
            os.close(end)


def _is_pipe(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def _handler_address(number: signal.Signals) -> int:
    """Who handles a signal in this process, C code included, which ``signal.getsignal`` does not know."""
    action = (ctypes.c_void_p * 64)()  # struct sigaction is smaller, and begins with the handler
    ctypes.CDLL(None).sigaction(int(number), None, action)
    return action[0] or 0


def _within_limit(save: Callable[[], None]) -> None:

    def save_alone() -> None:
        with saving:
            save()

    thread = threading.Thread(target=save_alone, name="warptrace-save", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # none can be started any more
        save_alone()
    else:
        thread.join(SAVE_S)
