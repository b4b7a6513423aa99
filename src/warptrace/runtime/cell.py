"""The host cell: where host code of traced kernels finds control blocks and region sizes (layout: ``warptrace.wire``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np

from .. import wire
from ..sites import KernelRecord

OFF = 1
"""A device's slot with this value: no tracing on this device (0: not asked yet)."""

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class HostCell:
    """The cell of this process. ``on_first_launch(ordinal)`` returns the control block's address for a device, or OFF;
    it runs on the launching thread, once a device, and must not raise."""

    def __init__(self, on_first_launch: Callable[[int], int]) -> None:
        self._memory = (ctypes.c_uint8 * (wire.CELL_BYTES + 64))()
        self._address = (ctypes.addressof(self._memory) + 63) & ~63
        start = self._address - ctypes.addressof(self._memory)
        data = np.frombuffer(self._memory, np.uint8)[start : start + wire.CELL_BYTES]
        devices_end = wire.CELL_DEVICES_OFFSET + 8 * wire.CELL_DEVICE_COUNT
        self._callback_slot = data[wire.CELL_CALLBACK_OFFSET : wire.CELL_CALLBACK_OFFSET + 8].view(np.uint64)
        self._devices = data[wire.CELL_DEVICES_OFFSET : devices_end].view(np.uint64)
        self._kernels = data[wire.CELL_KERNELS_OFFSET :].view(wire.CELL_KERNEL_DTYPE)
        self._on_first_launch = on_first_launch
        self._callback = _CALLBACK(self._called)

    def publish(self) -> None:
        """From now on host code of this process finds the cell."""
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        self._callback_slot[0] = address
        os.environ[wire.CELL_ENV] = f"{os.getpid()}:{self._address:x}"

    def withdraw(self) -> None:
        """From now on launches record nothing. The memory stays: kernels' host code keeps its address for good."""
        self._callback_slot[0] = 0
        self._devices[:] = OFF
        if os.environ.get(wire.CELL_ENV, "").startswith(f"{os.getpid()}:"):
            del os.environ[wire.CELL_ENV]

    def set_default_size(self, main: int, lane: int) -> None:
        """Region size of kernels that no one has announced (see CELL_KERNEL_DTYPE)."""
        self._kernels["main"] = main
        self._kernels["lane"] = lane

    def set_size(self, record: KernelRecord, main: int, lane: int) -> None:
        """Region size of one kernel."""
        entry = self._kernels[record.kernel_id % wire.CELL_KERNEL_COUNT : record.kernel_id % wire.CELL_KERNEL_COUNT + 1]
        entry["main"] = main
        entry["lane"] = lane

    def launches(self, kernel_id: int) -> int:
        """Launches that host code counted under the kernel's number (another kernel may share it)."""
        return int(self._kernels["launches"][kernel_id % wire.CELL_KERNEL_COUNT])

    def _called(self, slot: int, _same: int) -> int:
        ordinal = (slot - self._address - wire.CELL_DEVICES_OFFSET) // 8
        self._devices[ordinal] = self._on_first_launch(ordinal)
        return 0
