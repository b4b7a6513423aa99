"""What the host does around its launches: NVTX ranges, torch's ``record_function``, and when it launched what.

The Python functions that programs call for these are wrapped when their module is imported, once in a process that asks
for it; launches are noted by the host code of kernels (see ``frontends.cute.hidden``) in memory of ours. All times are
the host's CLOCK_REALTIME, which devices are compared with (:mod:`.calibrate`).
"""

from __future__ import annotations

import functools
import itertools
import mmap
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from .. import wire
from ..raw import CaptureWriter
from .imports import after_import
from .log import log

NVTX, RECORD_FUNCTION = "nvtx", "record_function"
FLUSH_RECORDS = 4096
"""Records that wait in memory at most: what a process that is killed can lose of ranges."""

_current: HostLog | None = None
_wrapped = False
_memory: mmap.mmap | None = None
"""Where launches are noted: one for all recordings of a process, since host code may be at it when one ends."""


class HostLog:
    """The host's side of one recording. Its methods may be called by several threads, and raise nothing that the
    program would see. ``device_of(control)``: the ordinal of the device whose trace memory begins there."""

    def __init__(self, writer: CaptureWriter, device_of: Callable[[int], int | None]) -> None:
        self._writer = writer
        self._device_of = device_of
        self._records: list[list[Any]] = []
        self._threads: set[int] = set()
        self._stacks = threading.local()
        self._open: dict[Hashable, tuple[str, str, int, int]] = {}
        self._keys = itertools.count()
        self._lock = threading.RLock()  # a signal's handler may come in between
        self._array = np.frombuffer(_notes(), np.uint8)
        self._head = self._array[: wire.NOTES_HEADER_DTYPE.itemsize].view(wire.NOTES_HEADER_DTYPE)
        self._entries = self._array[wire.NOTES_HEADER_BYTES :].view(wire.NOTE_DTYPE)
        self._entries["unix_ns"][: int(self._head["head"][0])] = 0
        self._head["head"] = 0
        self._head["capacity"] = wire.NOTE_COUNT
        self._taken = 0

    @property
    def notes_address(self) -> int:
        """Where host code notes launches."""
        return int(self._array.ctypes.data)

    # ------------------------------------------------------------------------------------------------- ranges
    def push(self, source: str, name: str, begin: int, group: Hashable = None) -> None:
        """A range of this thread begins; the next ``pop`` of the same source and group ends it."""
        stack = self._stack(source, group)
        key = (source, next(self._keys))
        stack.append(key)
        self.start(key, source, name, begin)

    def pop(self, source: str, end: int, group: Hashable = None) -> None:
        """Nothing happens where no range is open: it began before this recording."""
        stack = self._stack(source, group)
        if stack:
            self.end(stack.pop(), end)

    def start(self, key: Hashable, source: str, name: str, begin: int) -> None:
        """A range begins that ``end(key)`` ends, in any thread."""
        self._open[key] = (source, name, begin, self._thread())

    def end(self, key: Hashable, end: int) -> None:
        known = self._open.pop(key, None)
        if known is not None:
            source, name, begin, thread = known
            self._add(["range", source, name, begin, end, thread])

    def mark(self, source: str, name: str, at: int) -> None:
        self._add(["mark", source, name, at, self._thread()])

    def _stack(self, source: str, group: Hashable) -> list[Hashable]:
        stacks: dict[Any, list[Hashable]] = vars(self._stacks).setdefault("of", {})
        return stacks.setdefault((source, group), [])

    def _thread(self) -> int:
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads.add(ident)
            self._add(["thread", ident, threading.current_thread().name])
        return ident

    def _add(self, record: list[Any]) -> None:
        self._records.append(record)
        if len(self._records) >= FLUSH_RECORDS:
            self.flush()

    # --------------------------------------------------------------------------------------------------- files
    def flush(self) -> None:
        """Writes what is complete."""
        with self._lock:
            records, self._records = self._records, []
            records += self._launches()
            if records:
                self._writer.add_host(records)

    def _launches(self) -> list[list[Any]]:
        """The launches that were noted since the last time, up to one that is being noted."""
        end = min(int(self._head["head"][0]), wire.NOTE_COUNT)
        new = self._entries[self._taken : end].copy()
        ready = len(new) if new["unix_ns"].all() else int(np.argmin(new["unix_ns"] != 0))
        self._taken += ready
        return [
            ["launch", f"{int(e['kernel_id']):016x}", int(e["unix_ns"]), int(e["thread"]),
             self._device_of(int(e["control"])), int(e["word"])]
            for e in new[:ready]
        ]  # fmt: skip

    def close(self) -> None:
        """Writes the rest: ranges that are still open end with the recording, and are said to be open."""
        now = time.time_ns()
        for source, name, begin, thread in self._open.values():
            self._records.append(["open", source, name, begin, now, thread])
        self._open.clear()
        lost = int(self._head["head"][0]) - wire.NOTE_COUNT
        if lost > 0:
            self._records.append(["lost", lost])
        self.flush()


def _notes() -> mmap.mmap:
    global _memory
    if _memory is None:
        _memory = mmap.mmap(-1, wire.NOTES_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _memory


def begin(host_log: HostLog) -> None:
    """From now on ranges go to ``host_log``."""
    global _current, _wrapped
    _current = host_log
    if not _wrapped:
        _wrapped = True
        after_import("torch.cuda.nvtx", _wrap_torch_nvtx)
        after_import("torch.autograd.profiler", _wrap_record_function)
        after_import("nvtx", _wrap_nvtx)


def end() -> None:
    """Ranges go nowhere from now on."""
    global _current
    _current = None


After = Callable[[HostLog, int, tuple[Any, ...], dict[str, Any], Any], None]


def _wrap(owner: Any, name: str, after: After) -> None:
    """``owner.name`` does what it did; then ``after(log, time of the call, args, kwargs, result)``."""
    original = getattr(owner, name, None)
    if not callable(original):
        log("debug", f"no host ranges of {owner.__name__}.{name}")
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        host_log = _current
        if host_log is None:
            return original(*args, **kwargs)
        now = time.time_ns()
        result = original(*args, **kwargs)
        with suppress(Exception):
            after(host_log, now, args, kwargs, result)
        return result

    setattr(owner, name, call)


def _text(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> str:
    value = args[0] if args else next((kwargs[name] for name in names if name in kwargs), "")
    return str(value) if value is not None else ""


def _wrap_torch_nvtx(module: ModuleType) -> None:
    """Its context manager ``range`` calls the first two."""
    _wrap(module, "range_push", lambda to, at, a, k, r: to.push(NVTX, _text(a, k, "msg"), at))
    _wrap(module, "range_pop", lambda to, at, a, k, r: to.pop(NVTX, at))
    _wrap(module, "range_start", lambda to, at, a, k, r: to.start(("torch", r), NVTX, _text(a, k, "msg"), at))
    _wrap(module, "range_end", lambda to, at, a, k, r: to.end(("torch", a[0] if a else k["range_id"]), at))
    _wrap(module, "mark", lambda to, at, a, k, r: to.mark(NVTX, _text(a, k, "msg"), at))


def _wrap_nvtx(module: ModuleType) -> None:
    """NVIDIA's package. A stack of ranges belongs to a domain."""
    _wrap(module, "push_range", lambda to, at, a, k, r: to.push(NVTX, _text(a, k, "message"), at, _domain(a, k, 2)))
    _wrap(module, "pop_range", lambda to, at, a, k, r: to.pop(NVTX, at, _domain(a, k, 0)))
    _wrap(module, "start_range", lambda to, at, a, k, r: to.start(("nvtx", str(r)), NVTX, _text(a, k, "message"), at))
    _wrap(module, "end_range", lambda to, at, a, k, r: to.end(("nvtx", str(a[0] if a else k["range_id"])), at))
    _wrap(module, "mark", lambda to, at, a, k, r: to.mark(NVTX, _text(a, k, "message"), at))
    annotate = getattr(module, "annotate", None)
    if isinstance(annotate, type):
        _wrap(annotate, "__enter__", lambda to, at, a, k, r: to.start(id(a[0]), NVTX, _message(a[0]), at))
        _wrap(annotate, "__exit__", lambda to, at, a, k, r: to.end(id(a[0]), at))
        if "__call__" in vars(annotate):  # else it is made of the other two
            _wrap_decorator(annotate)


def _wrap_decorator(annotate: Any) -> None:
    """``@nvtx.annotate(...)``: what it returns also notes each call of the function, by whichever thread."""
    original: Callable[..., Any] = vars(annotate)["__call__"]

    @functools.wraps(original)
    def decorate(annotation: Any, function: Callable[..., Any]) -> Any:
        inner = original(annotation, function)
        with suppress(Exception):
            name = _message(annotation) or function.__name__
            return _noted(inner, function, name)
        return inner

    annotate.__call__ = decorate


def _noted(inner: Callable[..., Any], function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        host_log = _current
        if host_log is None:
            return inner(*args, **kwargs)
        key = object()
        host_log.start(key, NVTX, name, time.time_ns())
        try:
            return inner(*args, **kwargs)
        finally:
            host_log.end(key, time.time_ns())

    return call


def _domain(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> str:
    return str(args[place] if len(args) > place else kwargs.get("domain"))


def _message(annotation: Any) -> str:
    """The text of an ``nvtx.annotate``; "" where it has none. Without a tool of NVTX's own it has no attributes, only
    what it was made of."""
    given = getattr(annotation, "init_args", None)
    if given:
        return str(given[0] or "")
    message = getattr(getattr(annotation, "attributes", annotation), "message", "")
    return str(getattr(message, "string", message) or "")


def _wrap_record_function(module: ModuleType) -> None:
    """The class behind ``torch.profiler.record_function`` too."""
    _wrap(
        module.record_function, "__enter__",
        lambda to, at, a, k, r: to.start(id(a[0]), RECORD_FUNCTION, str(a[0].name), at),
    )  # fmt: skip
    _wrap(module.record_function, "__exit__", lambda to, at, a, k, r: to.end(id(a[0]), at))
