"""A launch that asks what the one before it needed is not held up where that cannot be read."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import window_kernel
from window_kernel import looping_host

import warptrace
from warptrace.runtime import recorder
from warptrace.runtime.emulated import EmulatedMemory

pytestmark = pytest.mark.dsl


def test_reading_that_is_held_up_holds_up_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a kernel that waits for the very launch that reads: it goes on without, and nothing is lost."""
    read, free = EmulatedMemory.read, threading.Event()
    held: list[str] = []

    def slow(self: EmulatedMemory, offset: int, nbytes: int) -> object:
        name = threading.current_thread().name
        if name == "warptrace-observe" and not free.is_set():
            held.append(name)
            assert free.wait(20)
        return read(self, offset, nbytes)

    monkeypatch.setattr(EmulatedMemory, "read", slow)
    with warptrace.capture(tmp_path / "run") as session:
        window_kernel.run(3, looping_host)
        begun = time.monotonic()
        window_kernel.run(4, looping_host)
        first = time.monotonic() - begun
        begun = time.monotonic()
        window_kernel.run(5, looping_host)  # asks again: the first try is still at it
        second = time.monotonic() - begun
        free.set()
    assert held == ["warptrace-observe"]
    assert recorder.HELD_UP_S <= first < 10 and second < 10
    counts = [one.events for one in session.trace.launches]
    assert [one.lost_events for one in session.trace.launches] == [0, 0, 0]
    warps = window_kernel.CTAS * window_kernel.WARPS
    assert counts == [n * warps for n in (3, 4, 5)]
