"""The host cell: where host code of traced kernels finds control blocks and region sizes (see ``warptrace.wire``)."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import wire
from .layout import RegionSize
from .shared_memory import FixedMemory

NO_END = 2**32 - 1
"""Number of a launch that no kernel reaches."""

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class HostCell:
    """The cell of this process: host code of kernels keeps its address for good, so there is one, for all recordings.

    While a recording is attached, ``on_first_launch(ordinal)`` returns the control block's address for a device, or
    wire.CELL_OFF; it runs on the launching thread, once a device. ``on_repeat(number)`` runs on the launching thread
    before each launch but the first of a kernel that asks for it (see ``set_size``). Neither may raise.
    ``capture_of(stream)`` tells what capture a stream is in, an id that is unique in the process; it may raise.
    """

    capture_of: Callable[[int], int]

    def __init__(self) -> None:
        self._memory = FixedMemory(wire.CELL_BYTES)
        self._address = self._memory.address
        data = self._memory.array
        devices_end = wire.CELL_DEVICES_OFFSET + 8 * wire.CELL_DEVICE_COUNT
        self._callback_slot = data[wire.CELL_CALLBACK_OFFSET : wire.CELL_CALLBACK_OFFSET + 8].view(np.uint64)
        self._driver = data[wire.CELL_CAPTURING_OFFSET : wire.CELL_CAPTURED_OFFSET + 8].view(np.uint64)
        self._notes = data[wire.CELL_NOTES_OFFSET : wire.CELL_NOTES_OFFSET + 8].view(np.uint64)
        self._devices = data[wire.CELL_DEVICES_OFFSET : devices_end].view(np.uint64)
        self._kernels = data[wire.CELL_KERNELS_OFFSET :].view(wire.CELL_KERNEL_DTYPE)
        self._callback = _CALLBACK(self._called)
        self._on_captured = _CALLBACK(self._captured)
        self._captures: dict[int, tuple[int, Iterator[int]]] = {}
        self._numbers = itertools.count(1)
        self._sizes: dict[int, dict[int, tuple[RegionSize, bool] | None]] = {}
        self._attached = False
        self._changes = 0
        self._counted = self._kernels["launches"].copy()
        self.set_window(0, NO_END)
        self._on_first_launch: Callable[[int], int] = lambda ordinal: wire.CELL_OFF
        self._on_repeat: Callable[[int], None] = lambda number: None

    def attach(
        self,
        on_first_launch: Callable[[int], int],
        on_repeat: Callable[[int], None],
        *,
        again: bool = False,
        mirror: Path | None = None,
    ) -> None:
        """From now on launches of this process are recorded; every device is asked for anew. ``again``: launches count
        on from where ``detach`` ended.

        With ``mirror`` the cell lies in that file until ``detach``: however the process dies, the file tells how many
        launches there were. Raises OSError where the file cannot be, and nothing is attached.
        """
        if mirror is not None:
            self._memory.into_file(mirror)
        self._on_first_launch = on_first_launch
        self._on_repeat = on_repeat
        self._changes += 1
        self._attached = True
        self._devices[:] = 0
        self._kernels["launches"] = self._counted if again else 0
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        self._callback_slot[0] = address
        os.environ[wire.CELL_ENV] = f"{os.getpid()}:{self._address:x}"

    def detach(self) -> None:
        """From now on launches record nothing and do not count."""
        self.leave_file()
        if self._attached:
            self._counted = self._kernels["launches"].copy()
        self._changes += 1
        self._attached = False
        self._callback_slot[0] = 0
        self._notes[0] = 0
        self._devices[:] = wire.CELL_OFF
        if os.environ.get(wire.CELL_ENV, "").startswith(f"{os.getpid()}:"):
            del os.environ[wire.CELL_ENV]

    def leave_file(self) -> None:
        """The cell is this process's own again; its file stays as it is. In a forked child that is the parent's."""
        self._memory.out_of_file()

    def set_window(self, first: int, end: int) -> None:
        """Of each kernel, launches ``first`` to ``end - 1`` are recorded, counted since the recording was attached."""
        self._kernels["first"] = first
        self._kernels["end"] = end

    def set_default_size(self, size: RegionSize) -> None:
        """Region size of kernels that no one has announced."""
        self._sizes.clear()
        self._kernels["main"] = size.main
        self._kernels["lane"] = size.lane

    def set_size(self, kernel_id: int, size: RegionSize, *, ask: bool) -> None:
        """Region size of one kernel. ``ask``: call ``on_repeat`` before its next recorded launch but the first.

        Kernels that share an entry get a size that serves all of them.
        """
        self._set(kernel_id, (size, ask))

    def skip(self, kernel_id: int) -> None:
        """From now on a kernel is not recorded, unless it shares its entry with one that is."""
        self._set(kernel_id, None)

    def sharing(self, kernel_id: int) -> list[int]:
        """The kernels that share an entry with this one: they are counted as one."""
        return [k for k in self._sizes.get(kernel_number(kernel_id), {}) if k != kernel_id]

    def _set(self, kernel_id: int, wanted: tuple[RegionSize, bool] | None) -> None:
        number = kernel_number(kernel_id)
        sharing = self._sizes.setdefault(number, {})
        sharing[kernel_id] = wanted
        recorded = [entry for entry in sharing.values() if entry is not None]
        size = RegionSize(wire.CELL_SKIP, 0)
        for other, _ in recorded:
            size = other if size.main == wire.CELL_SKIP else size | other
        self._kernels["main"][number] = size.main
        self._kernels["lane"][number] = size.lane
        self._kernels["ask"][number] = any(asks for _, asks in recorded)

    def all_launches(self) -> int:
        """Launches of all kernels that host code counted."""
        return int(self._counts().sum())

    def launches(self, kernel_id: int) -> int:
        """Launches that host code counted under the kernel's number (another kernel may share it)."""
        return int(self._counts()[kernel_number(kernel_id)])

    def _counts(self) -> NDArray[np.uint32]:
        counts: NDArray[np.uint32] = self._kernels["launches"] if self._attached else self._counted
        return counts

    def note_launches(self, address: int) -> None:
        """From now on launches of host code that does so are noted there (``wire.NOTES_HEADER_DTYPE``); 0: nowhere."""
        self._notes[0] = address

    def know_driver(self, capturing: int, capture_of: Callable[[int], int]) -> None:
        """From now on, and for good, launches can tell whether they are captured. ``capturing``: the address of
        ``cuStreamIsCapturing``; ``capture_of``: see above."""
        self.capture_of = capture_of
        address = ctypes.cast(self._on_captured, ctypes.c_void_p).value
        assert address is not None
        self._driver[:] = capturing, address

    def parameters(self, ordinal: int, kernel_id: int, stream: int | None = None) -> tuple[int, int, int]:
        """(control, size, launch word) of a launch into ``stream``, found as host code finds them (see
        ``frontends.cute.hidden``): for launches that have no host code, and no captures. ``size``: the entry's main
        and, in the upper half, lane."""
        control, region = self._memory_of(ordinal, kernel_id)
        return control, region, wire.stream_word(stream) if control and stream is not None else 0

    def _memory_of(self, ordinal: int, kernel_id: int) -> tuple[int, int]:
        number = kernel_number(kernel_id)
        entry = self._kernels[number]
        before, entry["launches"] = int(entry["launches"]), entry["launches"] + 1
        if not int(entry["first"]) <= before < int(entry["end"]):
            return 0, int(entry["main"]) | int(entry["lane"]) << 32
        if before != int(entry["first"]) and entry["ask"] and self._callback_slot[0]:
            self._called(self._address + wire.CELL_KERNELS_OFFSET + wire.CELL_KERNEL_BYTES * number, 0)
        region = int(entry["main"]) | int(entry["lane"]) << 32
        if entry["main"] == wire.CELL_SKIP:
            return 0, region
        if not self._devices[ordinal] and self._callback_slot[0]:
            self._called(self._address + wire.CELL_DEVICES_OFFSET + 8 * ordinal, 0)
        control = int(self._devices[ordinal])
        return control if control > wire.CELL_OFF else 0, region

    def _called(self, address: int, _same: int) -> int:
        offset = address - self._address
        if offset >= wire.CELL_KERNELS_OFFSET:
            self._on_repeat((offset - wire.CELL_KERNELS_OFFSET) // wire.CELL_KERNEL_BYTES)
        else:
            ordinal = (offset - wire.CELL_DEVICES_OFFSET) // 8
            asked = self._changes
            self._devices[ordinal] = self._on_first_launch(ordinal)
            if self._changes != asked:  # another thread detached meanwhile, and may have attached again
                self._devices[ordinal] = 0 if self._attached else wire.CELL_OFF
        return 0

    def _captured(self, stream: int, word: int) -> int:
        """Puts the launch word of a launch that is captured at the address ``word``, where LAUNCH_CAPTURED stands."""
        with suppress(Exception):  # the program must go on: the launch is in some capture then
            number, node = self._next_node(self.capture_of(stream))
            ctypes.c_uint64.from_address(word).value = wire.captured_word(number, node)
        return 0

    def _next_node(self, capture: int) -> tuple[int, int]:
        """(number of the capture, number of its next launch), both from 1. Threads may call it at once, and numbers may
        be left out: without a lock, which could be held where a process forks."""
        known = self._captures.get(capture)
        number, nodes = known or self._captures.setdefault(capture, (next(self._numbers), itertools.count(1)))
        return number, next(nodes)


def kernel_number(kernel_id: int) -> int:
    """The entry of the cell's table that a kernel uses (others may share it)."""
    return kernel_id % wire.CELL_KERNEL_COUNT


CELL = HostCell()
os.register_at_fork(after_in_child=CELL.leave_file)
