"""Ends of a process that Python's atexit does not see: ``os._exit``, and a SIGTERM that nobody handles.

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
from collections.abc import Callable
from typing import NoReturn

SAVE_S = 10.0
"""The process ends after so long, saved or not: another thread may hold what we need, or a kernel may never end."""
LOOK_S = 1.0
"""The watcher looks so often whether its pipe is still there: a program may close descriptors that it does not know."""

_exit = os._exit
_watcher: _Watcher | None = None
saving = threading.RLock()
"""Held by whoever saves: who comes second (a SIGTERM while the process exits) waits for the first."""
_forking = threading.RLock()
"""Held while a thread forks: between giving SIGTERM back and taking it again."""


def guard(save: Callable[[], None]) -> None:
    """From now on ``save`` is called before the process ends by ``os._exit`` or, where nothing in the process handles
    SIGTERM, by that. The program's handlers, also later ones, stay in charge."""
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
    """A SIGTERM meant for the child must not reach the parent's watcher through the pipe that both have."""
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
    """A thread that saves at SIGTERM, also while the main thread waits in C code and could run no Python handler.

    The handler must act at any moment, and neither hold locks nor run Python: faulthandler's is such a one. It writes
    the stack to a pipe, and the watcher reads.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self._save = save
        self._handler: int | None = None
        self._pipe: tuple[int, int] | None = None

    def arm(self) -> None:
        """Takes SIGTERM where nobody has it."""
        if _handler_address() != int(signal.SIG_DFL):
            return
        try:
            if self._pipe is None:
                self._pipe = os.pipe()
                os.set_blocking(self._pipe[1], False)
                threading.Thread(target=self._watch, name="warptrace-sigterm", daemon=True).start()
            faulthandler.register(signal.SIGTERM, file=self._pipe[1], all_threads=False, chain=False)
        except (OSError, RuntimeError):  # no descriptor, or no thread left: then as without us
            return
        self._handler = _handler_address()

    def disarm(self) -> None:
        """Gives SIGTERM back, unless somebody else has taken it meanwhile."""
        if self._handler is not None and _handler_address() == self._handler:
            faulthandler.unregister(signal.SIGTERM)
        self._handler = None

    def close(self) -> None:
        """Closes the pipe in a process without the thread."""
        for end in self._pipe or ():
            os.close(end)

    def _watch(self) -> None:
        assert self._pipe is not None
        reader, writer = self._pipe
        mine = os.fstat(reader).st_ino
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        while True:
            ready = poll.poll(LOOK_S * 1000)
            if not all(_is_pipe(end, mine) for end in (reader, writer)):
                self.disarm()
                return
            if ready and self._handler is not None:
                break
        _within_limit(self._save)
        self.disarm()
        os.kill(os.getpid(), signal.SIGTERM)


def _is_pipe(descriptor: int, inode: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


def _handler_address() -> int:
    """Who handles SIGTERM in this process, C code included, which ``signal.getsignal`` does not know."""
    action = (ctypes.c_void_p * 64)()  # struct sigaction is smaller, and begins with the handler
    ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, action)
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
