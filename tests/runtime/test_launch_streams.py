"""The launch word: the stream of a launch, or the graph capture that it is part of, as host code tells the kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from host_code import HostCode

from warptrace import wire
from warptrace.runtime.cell import HostCell, kernel_number
from warptrace.runtime.layout import RegionSize

pytestmark = pytest.mark.dsl

CONTROL = 0x7F00_0000_1000
KERNEL = 5
STREAM = 0x7F12_3456_7890
INVALID = 1  # CUDA_ERROR_INVALID_VALUE

_IS_CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class FakeDriver:
    """``captures``: id of the capture that a stream is in; ``broken``: streams of which nothing can be told."""

    def __init__(self) -> None:
        self.captures: dict[int, int] = {}
        self.broken: set[int] = set()
        self.asked: list[int] = []
        self._function = _IS_CAPTURING(self._is_capturing)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _is_capturing(self, stream: int, status: int) -> int:
        self.asked.append(stream)
        ctypes.c_uint32.from_address(status).value = int(stream in self.captures)
        return INVALID if stream in self.broken else 0

    def capture_of(self, stream: int) -> int:
        return self.captures[stream]


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def cell(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCell]:
    """A cell of its own, of a recording that has memory."""
    monkeypatch.delenv(wire.CELL_ENV, raising=False)
    cell = HostCell()
    cell.set_default_size(RegionSize(1024, 0))
    cell.attach(lambda ordinal: CONTROL, lambda number: None)
    cell.know_driver(driver.address, driver.capture_of)
    yield cell
    cell.detach()


def word(code: HostCode, stream: int) -> int:
    control, _, launch = code.launch(KERNEL, stream)
    assert control == CONTROL
    return launch


def test_the_handle_of_a_stream(cell: HostCell, driver: FakeDriver) -> None:
    code = HostCode()
    assert [word(code, s) for s in (0, 1, 2, STREAM)] == [1, 2, 3, STREAM + 1]
    assert driver.asked == [2, STREAM]  # the other two cannot be captured
    assert [cell.parameters(0, KERNEL, s)[2] for s in (0, 1, 2, STREAM)] == [1, 2, 3, STREAM + 1]
    assert cell.parameters(0, KERNEL)[2] == 0


@pytest.mark.parametrize("handle", [(1 << 47) - 2, (1 << 47) - 1, 1 << 47, (1 << 64) - 1])
def test_a_handle_that_no_word_can_hold_is_unknown(cell: HostCell, handle: int) -> None:
    wanted = handle + 1 if handle == (1 << 47) - 2 else 0
    assert word(HostCode(), handle) == wire.stream_word(handle) == wanted


def test_launches_of_captures_are_numbered(cell: HostCell, driver: FakeDriver) -> None:
    """Streams that joined one capture are one capture; another one, and one after it on the same stream, are others."""
    code = HostCode()
    driver.captures = {16: 70, 32: 70, 48: 9}
    got = [word(code, s) for s in (16, 32, 48, 16, 64)]
    driver.captures = {16: 71}
    got += [word(code, s) for s in (16, 48)]
    graph = wire.captured_word
    assert got == [graph(1, 1), graph(1, 2), graph(2, 1), graph(1, 3), 65, graph(3, 1), 49]


def test_a_capture_that_the_driver_does_not_name(cell: HostCell, driver: FakeDriver) -> None:
    """The launch is known to be captured, and no more."""
    driver.captures = {16: 1}
    cell.know_driver(driver.address, lambda stream: 1 // 0)
    assert word(HostCode(), 16) == wire.LAUNCH_CAPTURED
    cell._driver[1] = 0
    assert word(HostCode(), 16) == wire.LAUNCH_CAPTURED


def test_a_driver_that_cannot_tell_leaves_the_stream_unknown(cell: HostCell, driver: FakeDriver) -> None:
    """Never the handle of a stream that might be capturing."""
    driver.broken = {STREAM}
    assert word(HostCode(), STREAM) == 0
    cell.know_driver(0, driver.capture_of)
    assert [word(HostCode(), s) for s in (STREAM, 2, 1, 0)] == [0, 0, 2, 1]


def test_a_launch_that_is_not_recorded_asks_nobody(cell: HostCell, driver: FakeDriver) -> None:
    cell.set_window(1, 2)
    code = HostCode()
    assert [code.launch(KERNEL, STREAM)[2] for _ in range(3)] == [0, STREAM + 1, 0]
    assert driver.asked == [STREAM]
    cell.detach()
    assert code.launch(KERNEL, STREAM)[2] == 0


def test_threads_that_launch_at_once(cell: HostCell, driver: FakeDriver) -> None:
    """Every launch has its own stream, and a number of its own in its capture."""
    driver.captures = {32: 1}
    code = HostCode()
    plain: list[tuple[int, int]] = []
    captured: list[int] = []

    def go(thread: int) -> None:
        for n in range(200):
            stream = 4096 + 16 * (8 * n + thread)
            plain.append((stream, word(code, stream)))
            captured.append(word(code, 32))

    threads = [threading.Thread(target=go, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(got == stream + 1 for stream, got in plain)
    assert sorted(captured) == [wire.captured_word(1, n) for n in range(1, 1601)]
    assert cell.launches(KERNEL) == 3200 and kernel_number(KERNEL) == KERNEL


def test_numbers_that_have_no_room_are_unknown() -> None:
    assert wire.captured_word(1 << 23, 1) == wire.captured_word(0, 1) == wire.LAUNCH_CAPTURED
    assert wire.captured_word((1 << 23) - 1, (1 << 24) - 1) == (1 << 48) - 1
    assert wire.captured_word(5, 1 << 24) == wire.captured_word(5, 0) == wire.LAUNCH_CAPTURED | 5 << 24
