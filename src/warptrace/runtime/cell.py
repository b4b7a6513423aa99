"""The host cell: where host code of traced kernels finds control blocks and region sizes (see ``warptrace.wire``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np

from .. import wire
from .layout import RegionSize

OFF = 1
"""A device's slot with this value: no tracing on this device (0: not asked yet)."""

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class HostCell:
    """The cell of this process: host code of kernels keeps its address for good, so there is one, for all recordings.

    While a recording is attached, ``on_first_launch(ordinal)`` returns the control block's address for a device, or
    OFF; it runs on the launching thread, once a device. ``on_repeat(number)`` runs on the launching thread before each
    launch but the first of a kernel that asks for it (see ``set_size``). Neither may raise.
    """

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint8 * (wire.CELL_BYTES + 64))()
        self._address = (ctypes.addressof(self._memory) + 63) & ~63
        start = self._address - ctypes.addressof(self._memory)
        data = np.ctypeslib.as_array(self._memory)[start : start + wire.CELL_BYTES]
        devices_end = wire.CELL_DEVICES_OFFSET + 8 * wire.CELL_DEVICE_COUNT
        self._callback_slot = data[wire.CELL_CALLBACK_OFFSET : wire.CELL_CALLBACK_OFFSET + 8].view(np.uint64)
        self._devices = data[wire.CELL_DEVICES_OFFSET : devices_end].view(np.uint64)
        self._kernels = data[wire.CELL_KERNELS_OFFSET :].view(wire.CELL_KERNEL_DTYPE)
        self._callback = _CALLBACK(self._called)
        self._sizes: dict[int, dict[int, tuple[RegionSize, bool]]] = {}
        self._on_first_launch: Callable[[int], int] = lambda ordinal: OFF
        self._on_repeat: Callable[[int], None] = lambda number: None

    def attach(self, on_first_launch: Callable[[int], int], on_repeat: Callable[[int], None]) -> None:
        """From now on launches of this process are recorded; every device is asked for anew."""
        self._on_first_launch = on_first_launch
        self._on_repeat = on_repeat
        self._devices[:] = 0
        self._kernels["launches"] = 0
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        self._callback_slot[0] = address
        os.environ[wire.CELL_ENV] = f"{os.getpid()}:{self._address:x}"

    def detach(self) -> None:
        """From now on launches record nothing."""
        self._callback_slot[0] = 0
        self._devices[:] = OFF
        if os.environ.get(wire.CELL_ENV, "").startswith(f"{os.getpid()}:"):
            del os.environ[wire.CELL_ENV]

    def set_default_size(self, size: RegionSize) -> None:
        """Region size of kernels that no one has announced."""
        self._sizes.clear()
        self._kernels["main"] = size.main
        self._kernels["lane"] = size.lane

    def set_size(self, kernel_id: int, size: RegionSize, *, ask: bool) -> None:
        """Region size of one kernel. ``ask``: call ``on_repeat`` before its next launch but the first.

        Kernels that share an entry get a size that serves all of them.
        """
        number = kernel_number(kernel_id)
        sharing = self._sizes.setdefault(number, {})
        sharing[kernel_id] = (size, ask)
        for other, _ in sharing.values():
            size = size | other
        self._kernels["main"][number] = size.main
        self._kernels["lane"][number] = size.lane
        self._kernels["ask"][number] = any(asks for _, asks in sharing.values())

    def all_launches(self) -> int:
        """Launches of all kernels that host code counted."""
        return int(self._kernels["launches"].sum())

    def launches(self, kernel_id: int) -> int:
        """Launches that host code counted under the kernel's number (another kernel may share it)."""
        return int(self._kernels["launches"][kernel_number(kernel_id)])

    def _called(self, address: int, _same: int) -> int:
        offset = address - self._address
        if offset >= wire.CELL_KERNELS_OFFSET:
            self._on_repeat((offset - wire.CELL_KERNELS_OFFSET) // wire.CELL_KERNEL_BYTES)
        else:
            ordinal = (offset - wire.CELL_DEVICES_OFFSET) // 8
            self._devices[ordinal] = self._on_first_launch(ordinal)
        return 0


def kernel_number(kernel_id: int) -> int:
    """The entry of the cell's table that a kernel uses (others may share it)."""
    return kernel_id % wire.CELL_KERNEL_COUNT


CELL = HostCell()
