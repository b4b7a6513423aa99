"""Arms the tracer in a process that the environment asks to trace (``WARPTRACE=1``)."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    elif not any(isinstance(finder, _DslFinder) and finder.action == action for finder in sys.meta_path):
        sys.meta_path.insert(0, _DslFinder(action))


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


class _DslFinder(importlib.abc.MetaPathFinder):
    """Waits for the import of the DSL and does something right after it.

    Programs also only ask whether the DSL is there (``find_spec``); so the finder stays until it has been imported.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != DSL_PACKAGE or path is not None or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _DslLoader(spec.loader, self)
        return spec


class _DslLoader(importlib.abc.Loader):
    """Loads a package as its own loader does, then does what its finder waited for."""

    def __init__(self, inner: Any, finder: _DslFinder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        # A package that only shares the DSL's name has no cute.
        if importlib.util.find_spec(f"{DSL_PACKAGE}.cute") is not None:
            self._finder.action()
