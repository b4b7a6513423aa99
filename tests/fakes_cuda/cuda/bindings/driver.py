"""The driver calls of the snapshot process, on files: device memory is a file in FAKE_CUDA_DIR, an IPC handle its name.

One device, with the UUID ``UUID``. Faults by environment: FAKE_CUDA_FAULT is ``open`` (memory cannot be mapped),
``clock`` (the kernel that reads the clock never runs) or ``stuck`` (the first copy never returns).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

UUID = bytes(range(16))
FAULT = os.environ.get("FAKE_CUDA_FAULT", "")
FOLDER = Path(os.environ.get("FAKE_CUDA_DIR", "/nonexistent"))
CU_MEMHOSTALLOC_DEVICEMAP = 2
_kept: list[Any] = []


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NOT_READY = 600


class CUstream_flags(IntEnum):
    CU_STREAM_NON_BLOCKING = 1


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class CUipcMem_flags(IntEnum):
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13


class CUipcMemHandle:
    def __init__(self) -> None:
        self._bytes = (ctypes.c_uint8 * 64)()

    def getPtr(self) -> int:
        return ctypes.addressof(self._bytes)


class _Uuid:
    bytes = UUID


def cuGetErrorString(code: Any) -> tuple[int, bytes]:
    return 0, f"fake error {int(code)}".encode()


def cuInit(flags: int) -> tuple[int]:
    return (0,)


def cuDriverGetVersion() -> tuple[int, int]:
    return 0, 13000


def cuDeviceGetCount() -> tuple[int, int]:
    return 0, 0 if "CUDA_VISIBLE_DEVICES" in os.environ else 1


def cuDeviceGet(ordinal: int) -> tuple[int, int]:
    return 0, ordinal


def cuDeviceGetUuid(device: int) -> tuple[int, _Uuid]:
    return 0, _Uuid()


def cuDeviceGetName(size: int, device: int) -> tuple[int, bytes]:
    return 0, b"Fake GPU\0"


def cuDeviceGetAttribute(which: int, device: int) -> tuple[int, int]:
    return 0, {75: 9, 76: 0, 16: 132, 13: 1_980_000}[int(which)]


def cuDevicePrimaryCtxRetain(device: int) -> tuple[int, int]:
    return 0, 1


def cuCtxPushCurrent(context: int) -> tuple[int]:
    return (0,)


def cuCtxPopCurrent() -> tuple[int, int]:
    return 0, 1


def cuCtxGetStreamPriorityRange() -> tuple[int, int, int]:
    return 0, 0, -5


def cuThreadExchangeStreamCaptureMode(mode: int) -> tuple[int, int]:
    return 0, mode


def cuStreamCreate(flags: int) -> tuple[int, int]:
    return 0, 1


def cuStreamCreateWithPriority(flags: int, priority: int) -> tuple[int, int]:
    return 0, 2


def cuStreamSynchronize(stream: int) -> tuple[int]:
    return (0,)


def cuStreamQuery(stream: int) -> tuple[CUresult]:
    return (CUresult.CUDA_SUCCESS,)


def cuMemHostAlloc(size: int, flags: int) -> tuple[int, int]:
    _kept.append(mmap.mmap(-1, size))  # shared with the process that answers for the device
    return 0, ctypes.addressof(ctypes.c_uint8.from_buffer(_kept[-1]))


def cuMemHostGetDevicePointer(address: int, flags: int) -> tuple[int, int]:
    return 0, address


def cuIpcOpenMemHandle(handle: CUipcMemHandle, flags: int) -> tuple[int, int]:
    if FAULT == "open":
        return CUresult.CUDA_ERROR_INVALID_VALUE, 0
    name = ctypes.string_at(handle.getPtr(), 64).rstrip(b"\0").decode()
    with open(FOLDER / name, "r+b") as file:
        _kept.append(mmap.mmap(file.fileno(), 0))
    return 0, ctypes.addressof(ctypes.c_uint8.from_buffer(_kept[-1]))


def cuMemcpyDtoHAsync(to: int, source: int, size: int, stream: int) -> tuple[int]:
    while FAULT == "stuck":
        time.sleep(1)
    ctypes.memmove(to, source, size)
    return (0,)


def cuModuleLoadData(image: bytes) -> tuple[int, int]:
    return 0, 1


def cuModuleGetFunction(module: int, name: bytes) -> tuple[int, int]:
    return 0, 1


def cuLaunchKernel(function: int, *arguments: Any) -> tuple[int]:
    """The device's side of the comparison of clocks."""
    page = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(arguments[8]).value).value
    if FAULT != "clock" and os.fork() == 0:
        try:
            _answer(page)
        finally:
            os._exit(0)
    return (0,)


def _answer(page: int) -> None:
    begin, epoch = map(int, (FOLDER / "began").read_text().split())
    command, number = ctypes.c_uint32.from_address(page), 0
    deadline = time.monotonic() + 2
    while number <= 100 and command.value != 0xFFFFFFFF and time.monotonic() < deadline:
        if number and command.value < number:
            continue
        ctypes.c_uint64.from_address(page + 8 + 8 * number).value = (time.time_ns() - begin + epoch) // 32 * 32
        number += 1
