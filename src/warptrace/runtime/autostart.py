"""Arms the tracer in a process that the environment asks to trace (``WARPTRACE=1``)."""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from .imports import after_import
from .log import log, set_level
from .options import ENABLE_ENV, RuntimeOptions

if TYPE_CHECKING:
    from .recorder import Recorder

DSL_PACKAGE = "cutlass"
PATIENCE_S = 1.0
"""Where the process is about to end in any case, kernels that still run are waited for so long."""

_lock = threading.Lock()
_recorder: Recorder | None = None
_ended = False
_window = False
_awaiting_dsl: list[Callable[[], None]] = []


def start() -> None:
    """Called at the start of a Python process: nothing heavy is imported before the DSL is.

    The recording begins when the DSL has been imported, so that Python programs that use no GPU are left alone.
    """
    if not armed():
        return
    after_dsl_import(begin)


def after_dsl_import(action: Callable[[], None]) -> None:
    """Does it now if the DSL has been imported, else right after it will be. Once, however often it is asked for."""
    if DSL_PACKAGE in sys.modules:
        action()
    elif action not in _awaiting_dsl:
        _awaiting_dsl.append(action)
        after_import(DSL_PACKAGE, lambda _: _with_dsl(action))


def _with_dsl(action: Callable[[], None]) -> None:
    """A package that only shares the DSL's name has no cute."""
    _awaiting_dsl.remove(action)
    if importlib.util.find_spec(f"{DSL_PACKAGE}.cute") is not None:
        action()


def begin() -> None:
    """Begins the recording of this process, once. A fault is reported and the program goes on untraced."""
    global _recorder, _ended
    with _lock:
        if _recorder is not None or _ended:
            return
        try:
            _recorder = _new_recorder()
        except Exception as e:
            _ended = True
            log("error", f"not recording: {e}")
            return
    from . import endings

    _watch_forks()
    atexit.register(end)
    endings.guard(lambda: end(patience_s=PATIENCE_S))


def armed() -> bool:
    """Whether this process is recorded as a whole, from its first kernel on or, with ``--window``, while a window is
    open."""
    return os.environ.get(ENABLE_ENV, "0") not in ("", "0")


def open_window() -> None:
    """Where recording began off: it goes on from now on. A recording that has not begun yet will begin with it."""
    global _window
    with _lock:
        _window = True
    start()
    _switch(lambda recorder: recorder.resume())


def close_window() -> None:
    """Where recording began off: it is off again. What was recorded since ``open_window`` is written."""
    global _window
    with _lock:
        _window = False
    _switch(lambda recorder: recorder.pause())


def _switch(action: Callable[[Recorder], None]) -> None:
    """Does it to a recording that began off. A fault is reported and the program goes on."""
    if _recorder is not None and _recorder.options.window:
        try:
            action(_recorder)
        except Exception as e:
            log("error", f"recording cannot be switched: {e}")


@cache
def _watch_forks() -> None:
    """Once, also in children: hooks are inherited."""
    from . import endings

    os.register_at_fork(
        before=endings.before_fork, after_in_parent=endings.after_fork_in_parent, after_in_child=_in_child
    )


def end(patience_s: float | None = None) -> None:
    """Ends the recording of this process, if there is one. ``patience_s``: as for ``Recorder.stop``."""
    from . import endings

    with endings.saving:
        _end(patience_s)


def _end(patience_s: float | None) -> None:
    global _recorder, _ended
    from . import endings

    with _lock:
        recorder, _recorder = _recorder, None
        _ended = True
    if recorder is None:
        return
    try:
        recorder.stop(patience_s)
    except Exception as e:
        log("error", f"the capture in {recorder.directory} is incomplete: {e}")
    except KeyboardInterrupt:
        log("error", f"the capture in {recorder.directory} is incomplete: interrupted while it was written")
        raise
    endings.unguard()


def recorder() -> Recorder | None:
    """The recording of this process."""
    return _recorder


def _new_recorder() -> Recorder:
    from ..frontends.cute import dsl
    from .recorder import Recorder

    options = RuntimeOptions.from_env()
    set_level(options.log_level)
    dsl.arm()
    dsl.build_untraced(options.untraced_build)
    dsl.keep_newest(options.keep_events == "last")
    dsl.record_annotations(options.iket_calls)
    dsl.note_launches(options.host_ranges)
    dsl.instrument(options.auto, nested=options.auto_nested, names=options.auto_names)
    made = Recorder(options, dsl.version())
    made.start(paused=options.window)
    if _window:
        made.resume()
    return made


def _in_child() -> None:
    """After fork: the parent's recording is not ours; the child begins its own at its next chance."""
    global _recorder, _window, _lock
    _window = False
    _lock = threading.Lock()  # another thread of the parent may have held it
    parent = _recorder
    if parent is None:
        return
    from . import endings

    endings.after_fork_in_child()
    parent.abandon()
    _recorder = None
    begin()
