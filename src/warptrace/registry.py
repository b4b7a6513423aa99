"""Where front ends announce kernels they have traced, and whoever records them listens and says what it wants.

It keeps everything announced in this process, so that a recorder that starts late still learns of earlier kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .selection import Selection
from .sites import KernelRecord

_lock = threading.Lock()
_records: dict[int, KernelRecord] = {}
_without_events: dict[str, None] = {}
_deselected: dict[str, None] = {}
_selection = Selection()
_listeners: list[Callable[[KernelRecord], None]] = []
_wanted = False


def want(on: bool) -> None:
    """Whether front ends are to compile events into kernels because something in this process records."""
    global _wanted
    _wanted = on


def wanted() -> bool:
    """See :func:`want`."""
    return _wanted


def select(selection: Selection) -> None:
    """What is wanted of kernels that are traced from now on, until it is said anew."""
    global _selection
    with _lock:
        _selection = selection


def selection() -> Selection:
    """What is wanted of kernels that are traced now: front ends compile it into them."""
    with _lock:
        return _selection


def announce(record: KernelRecord) -> None:
    """A kernel with events was traced (again: the newest record of an id wins, and keeps the build that is known of
    the same kernel, since not every trace is followed by a compilation)."""
    with _lock:
        known = _records.get(record.kernel_id)
    if known is not None and not record.build and replace(known, build={}) == record:
        record = known
    _publish(record)


def announce_build(kernel_id: int, build: dict[str, Any]) -> None:
    """A kernel announced before was compiled: listeners get its record again, with ``build``. An unknown kernel is
    ignored."""
    with _lock:
        known = _records.get(kernel_id)
    if known is not None:
        _publish(replace(known, build=build))


def _publish(record: KernelRecord) -> None:
    with _lock:
        _deselected.pop(record.symbol, None)
        _records.pop(record.kernel_id, None)
        _records[record.kernel_id] = record
        listeners = list(_listeners)
    for listener in listeners:
        listener(record)


def announce_without_events(symbol: str) -> None:
    """A kernel was traced that holds no event."""
    with _lock:
        _without_events[symbol] = None


def after_fork() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


def announce_deselected(symbol: str) -> None:
    """A kernel with events was traced without them, since the selection does not want it."""
    with _lock:
        _deselected[symbol] = None


def listen(listener: Callable[[KernelRecord], None]) -> None:
    """Calls ``listener`` for every kernel announced so far and from now on."""
    with _lock:
        _listeners.append(listener)
        known = list(_records.values())
    for record in known:
        listener(record)


def unlisten(listener: Callable[[KernelRecord], None]) -> None:
    """Ends ``listen``; unknown listeners are ignored."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)


def records() -> list[KernelRecord]:
    """Kernels with events announced in this process."""
    with _lock:
        return list(_records.values())


def without_events() -> list[str]:
    """Symbols of kernels without events announced in this process."""
    with _lock:
        return list(_without_events)


def deselected() -> list[str]:
    """Symbols of kernels that were traced without their events, as the selection wanted."""
    with _lock:
        return list(_deselected)
