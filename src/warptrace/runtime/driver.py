"""The few CUDA driver calls that the runtime makes, with errors turned into WarptraceError."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WarptraceError

IPC_HANDLE_BYTES = 64
SINGLE_COPIES = 4096
"""So many rows are copied one by one: 2 to 8 us each."""


class DriverError(WarptraceError):
    """A driver call failed; ``code`` is the CUresult."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call} failed: {text}")
        self.code = code


@dataclass(frozen=True)
class DeviceFacts:
    """What the capture's manifest says of a device."""

    name: str
    uuid: str
    compute_capability: str
    sm_count: int
    clock_khz: int
    driver: str


def bindings() -> Any:
    """The driver bindings. Raises WarptraceError if they are not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise WarptraceError(f"cuda-bindings cannot be imported ({e}): pip install 'warptrace[cute]'") from e
    return driver


def check(call: str, result: Any) -> Any:
    """The value(s) of a driver call's result tuple. Raises DriverError for any error code."""
    code = int(result[0])
    if code:
        _, text = bindings().cuGetErrorString(result[0])
        raise DriverError(call, code, text.decode() if isinstance(text, bytes) else str(code))
    return result[1] if len(result) == 2 else result[1:]


def call(name: str, *args: Any) -> Any:
    """Calls the driver function ``name``."""
    return check(name, getattr(bindings(), name)(*args))


def address_of(name: str) -> int:
    """Where the driver's function ``name`` is, 0 where it is not: for a call from code that is not Python."""
    try:
        found = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def capture_of(stream: int) -> int:
    """Id of the capture that a stream is in: one in the process. Raises DriverError."""
    return int(call("cuStreamGetCaptureInfo", bindings().CUstream(stream))[1])


def relax_thread() -> Any:
    """From now on this thread may allocate and wait while some stream is being captured into a graph. Returns the mode
    it was in."""
    relaxed = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    return call("cuThreadExchangeStreamCaptureMode", relaxed)


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Lets this thread allocate and wait inside, while some stream is being captured into a graph."""
    mode = relax_thread()
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", mode)


def context(ordinal: int) -> Any:
    """The context of a device that launches of this thread use: the current one if it is of this device, else the
    device's primary context, as the runtime API makes current on a thread's first launch."""
    now = call("cuCtxGetCurrent")
    if int(now) and int(call("cuCtxGetDevice")) == ordinal:
        return now
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))


@contextmanager
def current(context: Any) -> Iterator[None]:
    """Makes ``context`` current for this thread, and what was current before again."""
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def shared_handle(address: int) -> tuple[bytes, int]:
    """(handle that another process opens, offset of ``address`` in what it maps then)."""
    base, _ = call("cuMemGetAddressRange", address)
    handle = call("cuIpcGetMemHandle", base)
    return ctypes.string_at(handle.getPtr(), IPC_HANDLE_BYTES), address - int(base)


def open_shared(handle: bytes) -> int:
    """Maps the memory of another process into the current context; returns its address."""
    made = bindings().CUipcMemHandle()
    ctypes.memmove(made.getPtr(), handle, IPC_HANDLE_BYTES)
    lazy = bindings().CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    return int(call("cuIpcOpenMemHandle", made, lazy))


def device_with_uuid(uuid: str) -> int:
    """Ordinal of a device in this process. Raises WarptraceError if it is not visible here."""
    for ordinal in range(int(call("cuDeviceGetCount"))):
        if bytes(call("cuDeviceGetUuid", call("cuDeviceGet", ordinal)).bytes).hex() == uuid:
            return ordinal
    raise WarptraceError(f"no device with UUID {uuid} is visible")


def memory_types() -> tuple[Any, Any]:
    """(host, device) as memory types of a two-dimensional copy."""
    types = bindings().CUmemorytype
    return types.CU_MEMORYTYPE_HOST, types.CU_MEMORYTYPE_DEVICE


def device_facts(ordinal: int) -> DeviceFacts:
    """Facts of the device with this ordinal."""
    driver = bindings()
    device = call("cuDeviceGet", ordinal)
    attribute = driver.CUdevice_attribute

    def get(which: Any) -> int:
        return int(call("cuDeviceGetAttribute", which, device))

    name = call("cuDeviceGetName", 256, device)
    uuid = call("cuDeviceGetUuid", device)
    version = int(call("cuDriverGetVersion"))
    return DeviceFacts(
        name=name.split(b"\0")[0].decode(errors="replace").strip(),
        uuid=bytes(uuid.bytes).hex(),
        compute_capability=f"{get(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)}."
        f"{get(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)}",
        sm_count=get(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        clock_khz=get(attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        driver=_driver_version() or f"CUDA {version // 1000}.{version % 1000 // 10}",
    )


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((w for w in words if w.count(".") == 2 and w.replace(".", "").isdigit()), "")


class Staging:
    """Page-locked host memory through which device memory is read: 50 GB/s against 3 to 6 GB/s without.

    Belongs to the context that is current when it is made; not safe for several threads at once.
    """

    def __init__(self, nbytes: int) -> None:
        address = int(call("cuMemHostAlloc", nbytes, 0))
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def read_rows(
        self, base: int, pieces: Sequence[tuple[int, int, int]], nbytes: int, stream: Any
    ) -> list[NDArray[np.uint8]]:
        """For each piece (offset from ``base``, pitch, rows) a new array (rows, nbytes), in one wait.

        All rows must fit the staging memory together. Into memory that is not page-locked every copy would wait for
        itself (0.3 ms each). A few rows are copied one by one: the first two-dimensional copy of a process takes 0.1 s.
        """
        outs = []
        at = 0
        single = sum(rows for _, _, rows in pieces) <= SINGLE_COPIES
        for offset, pitch, rows in pieces:
            out = self.memory[at : at + rows * nbytes].reshape(rows, nbytes)
            if single:
                for row in range(rows):
                    source = base + offset + row * pitch
                    call("cuMemcpyDtoHAsync", out.ctypes.data + row * nbytes, source, nbytes, stream)
            else:
                self._copy_rows(out, base + offset, pitch, stream)
            outs.append(out)
            at += rows * nbytes
        call("cuStreamSynchronize", stream)
        return [out.copy() for out in outs]

    def _copy_rows(self, out: NDArray[np.uint8], address: int, pitch: int, stream: Any) -> None:
        host, device = memory_types()
        copy = bindings().CUDA_MEMCPY2D()
        copy.srcMemoryType, copy.srcDevice, copy.srcPitch = device, address, pitch
        copy.dstMemoryType, copy.dstHost, copy.dstPitch = host, out.ctypes.data, out.shape[1]
        copy.WidthInBytes, copy.Height = out.shape[1], out.shape[0]
        call("cuMemcpy2DAsync", copy, stream)

    def read(self, address: int, nbytes: int, stream: Any) -> NDArray[np.uint8]:
        """Copies device memory to a new host array, in order with ``stream``, and waits for it."""
        out = np.empty(nbytes, np.uint8)
        size = len(self.memory)
        for at in range(0, nbytes, size):
            part = min(size, nbytes - at)
            call("cuMemcpyDtoHAsync", self.memory.ctypes.data, address + at, part, stream)
            call("cuStreamSynchronize", stream)
            out[at : at + part] = self.memory[:part]
        return out


def write(address: int, data: NDArray[Any], stream: Any) -> None:
    """Copies a host array to device memory, in order with ``stream``, and waits for it."""
    data = np.ascontiguousarray(data)
    call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, stream)
    call("cuStreamSynchronize", stream)
