"""A traced program without a GPU: the tracer is the real one, trace memory lies in numpy arrays.

Programs import it under ``warptrace profile`` with this folder on PYTHONPATH::

    import fake_gpu
    kernel = fake_gpu.Kernel("steps", events=3)
    kernel.launch(warps=2)

``import fake_gpu`` imports the fake ``cutlass`` beside it, which begins the recording. A launch does what host code of
a traced kernel does (counts in the host cell, calls back where the cell asks for it), and its warps have ended, and
lie in memory, when it returns.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # before a DSL that is installed

import cutlass  # noqa: F401
import numpy as np
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp

from warptrace import registry, wire
from warptrace.runtime import recorder
from warptrace.runtime.calibrate import ClockPair
from warptrace.runtime.cell import CELL, kernel_number
from warptrace.runtime.driver import DriverError
from warptrace.runtime.layout import Layout

DEVICE = 0
BEGAN_NS = time.time_ns()
WARP_EVENTS_NS = 1000


def _memory_file(ordinal: int) -> Path | None:
    """Where the fake driver of another process (``fakes_cuda``) finds the memory."""
    folder = os.environ.get("FAKE_CUDA_DIR")
    return Path(folder) / f"memory_{os.getpid()}_{ordinal}" if folder else None


class Clock:
    """Agrees with the host's: true time 0 is when the recording began."""

    def measure(self, patience_s: float = 0.0) -> ClockPair:
        real, monotonic = time.time_ns(), time.monotonic_ns()
        return ClockPair(real, monotonic, EPOCH_NS + real - BEGAN_NS, 100.0, 100)


class Memory:
    """What :class:`warptrace.runtime.memory.DeviceMemory` is to the recorder."""

    def __init__(self, ordinal: int, buffer_bytes: int) -> None:
        self.ordinal = ordinal
        self.shrunk: str | None = None
        self.layout = Layout(bank_bytes=1 << 16, slack_bytes=1 << 14)
        self.device = FakeDevice(ordinal, bank_bytes=1 << 16, slack=1 << 14, file=_memory_file(ordinal))
        self.control = 4096
        self.buffer_bytes = buffer_bytes
        self.poisoned = False
        self.busy_s = 0.0

    def _bytes(self) -> np.ndarray:
        if self.poisoned:
            raise DriverError("cuMemcpyDtoHAsync", 700, "an illegal memory access was encountered")
        return self.device.memory

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return self._bytes()[offset : offset + nbytes].copy()

    def read_rows(self, pieces: list[tuple[int, int, int]], nbytes: int) -> list[np.ndarray]:
        return [np.stack([self.read(at + k * pitch, nbytes) for k in range(rows)]) for at, pitch, rows in pieces]

    def clear(self, pieces: list[tuple[int, int]]) -> None:
        for offset, nbytes in pieces:
            self._bytes()[offset : offset + nbytes] = 0

    def set_tails(self, tails: np.ndarray) -> None:
        self._bytes()
        self.device.banks["tail"] = tails

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self._bytes()[offset : offset + len(raw)] = raw

    def enable(self, on: bool) -> None:
        self._bytes()
        self.device.banks["mask"] = self.layout.bank_bytes - 1 if on else 0

    def adopt_thread(self) -> None:
        pass

    def synchronize(self, patience_s: float | None = None) -> bool:
        self._bytes()
        if patience_s is not None and self.busy_s > patience_s:
            time.sleep(patience_s)
            return False
        time.sleep(self.busy_s)
        return True

    peer_clock = None
    cluster_probe = None

    def clock(self) -> Clock:
        return Clock()

    def share(self) -> tuple[str, bytes, int] | None:
        file = _memory_file(self.ordinal)
        if file is None:
            return None
        (file.parent / "began").write_text(f"{BEGAN_NS} {EPOCH_NS}")
        return bytes(range(16)).hex(), file.name.encode().ljust(64, b"\0"), 0

    def describe(self) -> dict[str, object]:
        return {
            "name": self.device.name,
            "uuid": f"GPU-{self.ordinal}",
            "compute_capability": "9.0",
            "sm_count": 132,
            "clock_khz": 1_980_000,
            "driver": "0",
            "buffer_bytes": self.layout.total_bytes,
        }


memories: dict[int, Memory] = {}


def _device_memory(ordinal: int, buffer_bytes: int) -> Memory:
    if os.environ.get("FAKE_GPU") in ("full", f"full {ordinal}"):
        raise DriverError("cuMemAlloc", 2, "out of memory")
    memories[ordinal] = Memory(ordinal, buffer_bytes)
    return memories[ordinal]


recorder.device_memory = _device_memory


class Kernel:
    """A kernel with ``events`` marks. Its sites are announced as those of a compiled kernel are."""

    def __init__(self, name: str, events: int = 3) -> None:
        self._kernel = FakeKernel(name)
        self._sites = [self._kernel.mark(f"{name} {k}") for k in range(events)]
        self._launched = 0
        registry.announce(self._kernel.record)

    def launch(self, warps: int = 2, device: int = DEVICE) -> None:
        number = kernel_number(self._kernel.id)
        entry = CELL._kernels[number]
        before = int(entry["launches"])
        entry["launches"] += 1
        if not int(entry["first"]) <= before < int(entry["end"]):
            return
        if before > int(entry["first"]) and entry["ask"]:
            self._call(wire.CELL_KERNELS_OFFSET + number * wire.CELL_KERNEL_BYTES)
        if entry["main"] == wire.CELL_SKIP:
            return
        if CELL._devices[device] == 0:
            self._call(wire.CELL_DEVICES_OFFSET + 8 * device)
        if CELL._devices[device] <= 1:
            return
        self._run(memories[device].device, warps)

    def _call(self, offset: int) -> None:
        """Host code reaches the callback by its address."""
        if not CELL._callback_slot[0]:
            return
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(int(CELL._callback_slot[0]))
        address = CELL._address + offset
        function(address, address)

    def _run(self, device: FakeDevice, warps: int) -> None:
        begin = 10_000 * self._launched
        self._launched += 1
        made = []
        for number in range(warps):
            warp = FakeWarp(warp=number, sm=number, start_ns=begin + number)
            for at, site in enumerate(self._sites):
                warp.event(site, at=100 * at)
            made.append(warp.exit(at=WARP_EVENTS_NS))
        device.launch(self._kernel, made, block=(32 * warps, 1, 1), main_bytes=128)


def forked() -> None:
    """In a forked child: the parent's memory is not the child's."""
    memories.clear()


def file() -> Path:
    """The capture's file of the device."""
    (path,) = Path(os.environ["WARPTRACE_DIR"]).glob(f"pid_{os.getpid()}/dev*.wtraw")
    return path


def poison(device: int = DEVICE) -> None:
    """The context dies, as after an illegal memory access or a reset of the device."""
    memories[device].poisoned = True


def busy(seconds: float) -> None:
    """From now on kernels still run for so long."""
    memories[DEVICE].busy_s = seconds


def saved(launches: int, timeout_s: float = 20.0, device: int = DEVICE) -> None:
    """Waits until the drain has moved all that ``launches`` launches of two warps left in memory."""
    deadline = time.monotonic() + timeout_s
    banks = memories[device].device.banks
    while time.monotonic() < deadline:
        if int(banks["tail"].sum()) == int(banks["head"].sum()) > 0:
            return
        time.sleep(0.02)
    raise SystemExit(f"not saved within {timeout_s} s")
