"""Recordings that a program begins and ends itself: ``warptrace.capture``, ``start`` and ``stop``.

A process has one session at a time. Where the process is recorded as a whole (``warptrace profile``, ``WARPTRACE=1``) a
session records nothing of its own: it opens a window in that recording if that began off (``--window``), else it does
nothing, so that a program runs with and without the command line.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from . import __version__, registry
from .errors import UsageError, WarptraceError
from .explain import why_session_is_empty
from .rundir import PYTHON, RAW_DIR, RunDirectory, write_run
from .runtime import autostart, endings
from .runtime.autostart import PATIENCE_S
from .runtime.log import log, set_level
from .runtime.options import RuntimeOptions
from .trace import Trace

DSL_PACKAGE = "cutlass"
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))

_lock = threading.Lock()
_open: Session | None = None
_hooked = False
_temporary: set[Path] = set()


class Session:
    """One session: made by :func:`warptrace.capture` (a block) or :func:`warptrace.start`.

    After its end ``trace`` has what was recorded. Raises UsageError for an option that is unknown or cannot be used.
    """

    def __init__(
        self, output: str | os.PathLike[str] | None, *, clobber: bool, options: Mapping[str, Any]
    ) -> None:
        self.began = ""
        """``file:line`` where it began."""
        self.reason: str | None = None
        """Why nothing was recorded, with the mend; None where something was, and before the end."""
        self._output = output
        self._clobber = clobber
        self._given = dict(options)
        self._pid = 0
        self._block = False
        self._begun = self._guarded = self._ending = self._ended = False
        self._recording: _Recording | None = None
        RuntimeOptions.from_keywords("", self._given)  # its faults come before anything is made

    def __enter__(self) -> Session:
        self._begin(block=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child leaves the block: the session is its parent's
        try:
            self._end(failed=error is not None and not _is_clean_exit(error))
        except WarptraceError as fault:
            if error is None:
                raise
            log("error", str(fault))  # what the block raised says more

    @property
    def trace(self) -> Trace:
        """What was recorded, decoded at the first use. Raises WarptraceError before the end, and where the process is
        recorded as a whole; CaptureError where its directory is gone."""
        return self._finished().trace

    @property
    def directory(self) -> Path | None:
        """The run directory that was written; None where no output was asked for. Raises as ``trace`` does."""
        return self._finished().directory

    def _finished(self) -> _Recording:
        if not self._ended or self._pid != os.getpid():
            state = f"that began at {self.began} has not ended" if self._pid == os.getpid() else "has not begun"
            raise WarptraceError(f"the session {state} in this process: its results are there after its end")
        if self._recording is None:
            raise WarptraceError(
                "this process is recorded as a whole (`warptrace profile`, or WARPTRACE=1), and results are written at"
                " its end: run it without them for results in the program"
            )
        return self._recording

    def _begin(self, *, block: bool) -> None:
        """Makes this the process's open session. Raises UsageError where there is one, or this was one before."""
        global _open
        with _lock:
            if _open is not None:
                raise UsageError(f"a session is open already: it began at {_open.began}; end it before another begins")
            if self._pid:
                raise UsageError(f"this session, begun at {self.began}, has ended: call warptrace.capture again")
            self.began, self._pid, self._block = _caller(), os.getpid(), block
            _open = self
        try:
            _hook()
            if autostart.armed():
                self._join_whole()
            else:
                self._recording = _Recording(self._output, self._clobber, self._given, self.began)
                self._guarded = self._output is not None
                if self._guarded:
                    endings.guard(lambda: _end_open(PATIENCE_S))
        except BaseException:
            _close(self)
            self._pid = 0
            raise
        self._begun = True

    def _join_whole(self) -> None:
        if self._output is not None:
            _say_unwritten(os.fspath(self._output))
        autostart.open_window()

    def _end(self, *, failed: bool, patience_s: float | None = None) -> None:
        """Ends the recording and writes it. Raises WarptraceError where that fails; the session has ended then too.
        ``patience_s``: as for ``Recorder.stop``."""
        with _lock:
            if self._ending:
                raise UsageError(f"the session that began at {self.began} has been ended by another thread")
            self._ending = True
        try:
            if self._recording is None:
                autostart.close_window()
            else:
                self._recording.end(failed=failed, patience_s=patience_s)
                self.reason = self._recording.reason
        finally:
            self._ended = True
            if self._guarded:
                endings.unguard()
            _close(self)

    def _abandon(self) -> None:
        """In a forked child."""
        if self._recording is not None:
            self._recording.abandon()


def start(output: str | os.PathLike[str] | None, *, clobber: bool, options: Mapping[str, Any]) -> Session:
    """Begins a session that ``stop`` ends."""
    session = Session(output, clobber=clobber, options=options)
    session._begin(block=False)
    return session


def stop() -> Session:
    """Ends the session that ``start`` began. Raises UsageError where there is none."""
    session = _open
    if session is None or not session._begun:
        raise UsageError("no session is open in this process: call warptrace.start first")
    if session._block:
        raise UsageError(f"the session that began at {session.began} is a block: leave it instead of warptrace.stop()")
    session._end(failed=False)
    return session


@cache
def _say_unwritten(output: str) -> None:
    """Once: a program may ask for it again and again."""
    log("warn", f"nothing is written to {output}: this process is recorded as a whole")


class _Recording:
    """The recording of one session, into a run directory or a temporary one. Begins when it is made."""

    def __init__(
        self, output: str | os.PathLike[str] | None, clobber: bool, given: Mapping[str, Any], began: str
    ) -> None:
        from .runtime.recorder import Recorder

        self.directory: Path | None = None
        self.reason: str | None = None
        self._began = began
        self._started, self._begin = datetime.now(timezone.utc), time.monotonic()
        self._trace: Trace | None = None
        self._decoding = threading.Lock()
        self._place: RunDirectory | None = None
        version = _arm(given)
        if output is not None:
            self._place = RunDirectory.create(output, clobber=clobber, words=PYTHON)
            folder = self._place.partial
        else:
            folder = Path(tempfile.mkdtemp(prefix="warptrace-"))
            _temporary.add(folder)
            weakref.finalize(self, _remove, folder).atexit = False
        self._folder, self._raw = folder, folder / RAW_DIR
        try:
            self._raw.mkdir()
            self._options = RuntimeOptions.from_keywords(str(self._raw), given)
            if "log_level" in given:
                set_level(self._options.log_level)
            self._recorder = Recorder(self._options, version)
            self._recorder.start()
        except BaseException:
            self._discard()
            raise
        registry.want(True)

    def end(self, *, failed: bool, patience_s: float | None) -> None:
        """Waits for the device and writes the run directory. ``failed``: what stood there before stays."""
        _disarm()
        try:
            self._recorder.stop(patience_s)
        except BaseException as error:
            self._settle(f"{type(error).__name__}: {error}", success=False)
            raise
        self._explain()
        self._settle(None, success=not failed and self._recorder.recorded)

    def abandon(self) -> None:
        """In a forked child."""
        _disarm()
        self._recorder.abandon()

    @property
    def trace(self) -> Trace:
        """Decodes, once; a temporary directory is then gone."""
        from .decode import decode
        from .raw import read_capture

        with self._decoding:
            if self._trace is None:
                self._trace = decode([read_capture(self._raw / self._recorder.directory.name)])
                _remove(self._folder)
            return self._trace

    def _explain(self) -> None:
        if not self._recorder.recorded:
            self.reason = why_session_is_empty(self._recorder.directory, dsl=_dsl_installed())
            log("warn", f"the session that began at {self._began} recorded nothing: {self.reason}")

    def _settle(self, failure: str | None, *, success: bool) -> None:
        """Gives the run directory its final name."""
        if self._place is None:
            return
        write_run(self._place.partial, self._record(failure))
        self.directory = self._place.commit(success=success)
        self._raw = self.directory / RAW_DIR
        if self.directory != self._place.final:
            why = "the session did not succeed, or it appeared meanwhile"
            log("warn", f"{self._place.final} was left as it is: {why}; results are in {self.directory}")

    def _record(self, failure: str | None) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "command": list(sys.orig_argv),
            "working_dir": os.getcwd(),
            "started": self._started.isoformat(),
            "seconds": round(time.monotonic() - self._begin, 6),
            "exit_status": None,
            "session": self._began,
            "options": self._options.to_json() | {"directory": RAW_DIR},
            "versions": {
                "warptrace": __version__, "python": platform.python_version(), "platform": platform.platform()
            },
            "captures": [f"{RAW_DIR}/{self._recorder.directory.name}"],
            "outputs": [],
            "failures": [] if failure is None else [failure],
        }  # fmt: skip

    def _discard(self) -> None:
        if self._place is not None:
            self._place.discard()
        _remove(self._folder)


def _arm(given: Mapping[str, Any]) -> str | None:
    """Hooks the DSL if it was imported, else when it will be. Returns its version, None where it is not installed.
    Raises WarptraceError for one that was imported and is too old."""
    if not _dsl_installed():
        return None
    from .frontends.cute import dsl

    if DSL_PACKAGE in sys.modules:
        dsl.arm()
        _instrument(given)
    else:
        autostart.after_dsl_import(_arm_late)
    dsl.build_untraced(given.get("untraced_build", False))
    dsl.keep_newest(given.get("keep_events") == "last")
    dsl.record_annotations(given.get("iket_calls", True))
    return dsl.version()


def _arm_late() -> None:
    """Right after the DSL was imported. A fault is reported and the program goes on untraced."""
    from .frontends.cute import dsl

    session = _open
    try:
        dsl.arm()
        _instrument({} if session is None else session._given)
    except Exception as e:
        log("error", f"not recording: {e}")


def _instrument(given: Mapping[str, Any]) -> None:
    from .frontends.cute import dsl

    options = RuntimeOptions.from_keywords("", given)
    dsl.note_launches(options.host_ranges)
    dsl.instrument(options.auto, nested=options.auto_nested, names=options.auto_names)


def _disarm() -> None:
    registry.want(False)
    if _dsl_installed():
        from .frontends.cute import dsl

        dsl.build_untraced(False)
        dsl.keep_newest(False)
        dsl.record_annotations(True)
        dsl.note_launches(False)
        if DSL_PACKAGE in sys.modules:
            dsl.instrument(())


def _dsl_installed() -> bool:
    if DSL_PACKAGE in sys.modules:
        return sys.modules[DSL_PACKAGE] is not None
    return importlib.util.find_spec(DSL_PACKAGE) is not None


def _remove(folder: Path) -> None:
    """Removes a temporary folder of this process."""
    if folder in _temporary:
        _temporary.discard(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _is_clean_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _caller() -> str:
    """``file:line`` of the innermost call from outside this package and contextlib."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN_FOLDER + os.sep) and os.path.basename(file) != "contextlib.py":
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def _close(session: Session) -> None:
    global _open
    with _lock:
        if _open is session:
            _open = None


def _hook() -> None:
    """What the process does at its end, and a forked child at its begin."""
    global _hooked
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
        os.register_at_fork(
            before=endings.before_fork, after_in_parent=endings.after_fork_in_parent, after_in_child=_in_child
        )


def _at_exit() -> None:
    """What is open is ended, and temporary folders go."""
    _end_open()
    for folder in list(_temporary):
        _remove(folder)


def _end_open(patience_s: float | None = None) -> None:
    """A session that is open when the process ends is ended and written."""
    with endings.saving:
        session = _open
        if session is None or not session._begun:
            return
        log("info", f"the session that began at {session.began} is open at the end of the process: it ends now")
        try:
            session._end(failed=False, patience_s=patience_s)
        except Exception as e:
            log("error", f"the session that began at {session.began} is incomplete: {e}")


def _in_child() -> None:
    """After fork: the parent's session and folders are not ours."""
    global _open, _lock
    _lock = threading.Lock()
    _temporary.clear()
    session, _open = _open, None
    if session is not None:
        endings.after_fork_in_child()
        session._abandon()
