"""Run PTX on the CPU, warp by warp, on numpy memory.

``Device(seed)`` is an emulated GPU, ``device.load(ptx).kernel(name)`` a kernel,
``kernel.launch(grid, block, args)`` runs it. Times are emulated; see costs.py.
"""

from __future__ import annotations

from .device import Device, DeviceArray, Kernel, LaunchResult, Module
from .errors import (
    Deadlock,
    EmulatorError,
    ExecutionError,
    InstructionLimit,
    KernelTrap,
    LaunchError,
    MemoryFault,
    MisalignedAccess,
    PtxSyntaxError,
    SyncError,
    UnsupportedInstruction,
    Where,
)

__all__ = [
    "Deadlock",
    "Device",
    "DeviceArray",
    "EmulatorError",
    "ExecutionError",
    "InstructionLimit",
    "Kernel",
    "KernelTrap",
    "LaunchError",
    "LaunchResult",
    "MemoryFault",
    "MisalignedAccess",
    "Module",
    "PtxSyntaxError",
    "SyncError",
    "UnsupportedInstruction",
    "Where",
]
