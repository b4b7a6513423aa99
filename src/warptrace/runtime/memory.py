"""Trace memory: what the drain needs of it, and the memory of a real device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import wire
from ..errors import WarptraceError
from . import driver
from .calibrate import DeviceClock
from .cluster_probe import LEAST_CAPABILITY, ClusterProbe
from .layout import Layout, plan
from .peer_clocks import PeerClock

MIN_BUFFER_BYTES = 16 << 20
STAGING_BYTES = 8 << 20
"""Page-locked memory a device: large enough for the full speed of a copy."""
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class TraceMemory(Protocol):
    """Access to a control block and what follows it. Offsets are from the control block; every call has taken effect
    when it returns."""

    layout: Layout

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of the bytes there."""

    def read_rows(self, pieces: Sequence[tuple[int, int, int]], nbytes: int) -> list[NDArray[np.uint8]]:
        """For each piece (offset, pitch, rows) an array (rows, nbytes): ``nbytes`` bytes every ``pitch`` bytes."""

    def clear(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Zeroes the bytes of each piece (offset, bytes)."""

    def set_tails(self, tails: NDArray[np.uint64]) -> None:
        """Writes the ``tail`` of every bank: (BANK_COUNT,) u64."""

    def write(self, offset: int, data: NDArray[Any]) -> None:
        """Stores the array's bytes there."""


class RecorderMemory(TraceMemory, Protocol):
    """Trace memory as a recording takes it. ``control``: the control block's address on the device; ``buffer_bytes``:
    what was asked for; ``shrunk``: why it is less; ``clock``: gives the device's clock, None where it has none."""

    ordinal: int
    buffer_bytes: int
    control: int
    shrunk: str | None

    @property
    def clock(self) -> Callable[[], DeviceClock] | None:
        """See above."""

    @property
    def peer_clock(self) -> Callable[[], PeerClock] | None:
        """Gives the device's side of comparisons with other devices, None where it has none."""

    @property
    def cluster_probe(self) -> Callable[[], ClusterProbe | None] | None:
        """Gives what tells which SMs share clusters, None where there are no clusters."""

    def enable(self, on: bool) -> None:
        """Lets warps claim regions, or not."""

    def adopt_thread(self) -> None:
        """Called by a thread that will read and write memory for good."""

    def synchronize(self, patience_s: float | None = None) -> bool:
        """Waits for everything the program has launched on the device, for ``patience_s`` at most. Returns whether it
        has ended."""

    def share(self) -> tuple[str, bytes, int] | None:
        """(UUID of the device, handle by which another process maps the memory, offset of the control block in what it
        maps); None where none can. Raises WarptraceError where it cannot be had."""

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest, as :meth:`CaptureWriter.add_device` wants them."""


def _fitting(pieces: Sequence[tuple[int, int, int]], most: int) -> int:
    """How many of the pieces, from the first on, have at most ``most`` rows together (one at least)."""
    total = np.cumsum([rows for _, _, rows in pieces])
    return max(int(np.searchsorted(total, most, side="right")), 1)


def _rejoined(parts: list[NDArray[np.uint8]], rows: Sequence[int]) -> list[NDArray[np.uint8]]:
    """The rows of consecutive parts as arrays of the given numbers of rows."""
    if not parts:
        return []
    return np.split(np.concatenate(parts), np.cumsum(rows)[:-1])


_taken: dict[int, RecorderMemory] = {}
_makers: dict[int, Callable[[int, int], RecorderMemory]] = {}


def provide(ordinal: int, make: Callable[[int, int], RecorderMemory]) -> None:
    """Memory of this device, which is none of CUDA's, is to be had from ``make(ordinal, buffer_bytes)``."""
    _makers[ordinal] = make


def device_memory(ordinal: int, buffer_bytes: int) -> RecorderMemory:
    """Trace memory of the current device: that of an earlier recording if it is large enough, enabled again.

    It is never freed: captured graphs keep its address. Raises WarptraceError if there is no room.
    """
    kept = _taken.get(ordinal)
    if kept is None or not _serves(kept, buffer_bytes):
        kept = _taken[ordinal] = _makers.get(ordinal, DeviceMemory)(ordinal, buffer_bytes)
    kept.write(0, np.zeros(1, wire.CONTROL_DTYPE))  # the lost table is empty again
    kept.enable(True)
    return kept


def taken(buffer_bytes: int) -> list[RecorderMemory]:
    """Memories of earlier recordings that ``device_memory`` would give again."""
    return [kept for kept in _taken.values() if _serves(kept, buffer_bytes)]


def _serves(kept: RecorderMemory, buffer_bytes: int) -> bool:
    return kept.buffer_bytes >= buffer_bytes or kept.shrunk is not None


def forget() -> None:
    """In a forked child: the parent's memories are not ours."""
    _taken.clear()


class DeviceMemory:
    """Trace memory on a device, in the context that launches use there, with a stream of its own.

    Takes ``buffer_bytes``, or half, a quarter... where the device has too little (``shrunk`` then says so). Safe while
    a stream is being captured into a graph. Raises WarptraceError if there is no room at all.
    """

    def __init__(self, ordinal: int, buffer_bytes: int) -> None:
        self.ordinal = ordinal
        self.buffer_bytes = buffer_bytes
        self.shrunk: str | None = None
        self._clock: DeviceClock | None = None
        self._peer_clock: PeerClock | None = None
        self._cluster_probe: ClusterProbe | None = None
        cuda = driver.bindings()
        with driver.relaxed_capture():
            self.context = driver.context(ordinal)
            with driver.current(self.context):
                self.stream = driver.call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
                self.layout = self._allocate(buffer_bytes)
                self._staging = driver.Staging(STAGING_BYTES)
                self._lock = threading.Lock()
                driver.call("cuMemsetD8Async", self.control, 0, self.layout.total_bytes, self.stream)
                driver.write(self.control + wire.BANKS_OFFSET, self.layout.bank_lines(), self.stream)

    def _allocate(self, wanted: int) -> Layout:
        size = wanted
        while True:
            layout = plan(size)
            try:
                self.control = int(driver.call("cuMemAlloc", layout.total_bytes))
            except driver.DriverError as e:
                if e.code != OUT_OF_MEMORY or size // 2 < MIN_BUFFER_BYTES:
                    raise WarptraceError(
                        f"no trace memory on device {self.ordinal}: {e}; leave it {size >> 20} MiB free, or give a "
                        "smaller --buffer-size"
                    ) from None
                size //= 2
                self.shrunk = f"device {self.ordinal} had too little free memory: trace buffer of {size >> 20} MiB"
                continue
            return layout

    def clock(self) -> DeviceClock:
        """The device's clock, in the memory's context: made at the first call. Raises DriverError."""
        if self._clock is None:
            self._clock = DeviceClock(self.context)
        return self._clock

    def peer_clock(self) -> PeerClock:
        """The device's side of comparisons with other devices: made at the first call. Raises DriverError."""
        if self._peer_clock is None:
            self._peer_clock = PeerClock(self.context, self.control)
        return self._peer_clock

    def cluster_probe(self) -> ClusterProbe | None:
        """What tells which SMs share clusters, None where the device has none: made at the first call. Raises
        DriverError."""
        if self._cluster_probe is None:
            facts = driver.device_facts(self.ordinal)
            if tuple(map(int, facts.compute_capability.split("."))) < LEAST_CAPABILITY:
                return None
            self._cluster_probe = ClusterProbe(self.context, facts.sm_count)
        return self._cluster_probe

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        with self._lock, driver.relaxed_capture(), driver.current(self.context):
            return self._staging.read(self.control + offset, nbytes, self.stream)

    def clear(self, pieces: Sequence[tuple[int, int]]) -> None:
        with driver.relaxed_capture(), driver.current(self.context):
            for offset, nbytes in pieces:
                driver.call("cuMemsetD8Async", self.control + offset, 0, nbytes, self.stream)
            driver.call("cuStreamSynchronize", self.stream)

    def read_rows(self, pieces: Sequence[tuple[int, int, int]], nbytes: int) -> list[NDArray[np.uint8]]:
        outs: list[NDArray[np.uint8]] = []
        most = STAGING_BYTES // nbytes
        with self._lock, driver.relaxed_capture(), driver.current(self.context):
            waiting: list[tuple[int, int, int]] = []
            for offset, pitch, rows in pieces:
                for first in range(0, rows, most):
                    waiting.append((offset + first * pitch, pitch, min(most, rows - first)))
            while waiting:
                taken = _fitting(waiting, most)
                outs += self._staging.read_rows(self.control, waiting[:taken], nbytes, self.stream)
                del waiting[:taken]
        return _rejoined(outs, [rows for _, _, rows in pieces])

    def set_tails(self, tails: NDArray[np.uint64]) -> None:
        self._write_column(wire.BANK_TAIL_OFFSET, tails)

    def _write_column(self, offset: int, values: NDArray[Any]) -> None:
        """Writes one field of every bank line, and nothing beside it: the device writes others meanwhile."""
        values = np.ascontiguousarray(values)
        copy = driver.bindings().CUDA_MEMCPY2D()
        host, device = driver.memory_types()
        copy.srcMemoryType, copy.srcHost, copy.srcPitch = host, values.ctypes.data, values.itemsize
        copy.dstMemoryType, copy.dstPitch = device, wire.BANK_LINE_BYTES
        copy.dstDevice = self.control + wire.BANKS_OFFSET + offset
        copy.WidthInBytes, copy.Height = values.itemsize, wire.BANK_COUNT
        with driver.relaxed_capture(), driver.current(self.context):
            driver.call("cuMemcpy2DAsync", copy, self.stream)
            driver.call("cuStreamSynchronize", self.stream)

    def write(self, offset: int, data: NDArray[Any]) -> None:
        with driver.relaxed_capture(), driver.current(self.context):
            driver.write(self.control + offset, data, self.stream)

    def enable(self, on: bool) -> None:
        """Lets warps claim regions, or not: also those of captured graphs, whose parameters are frozen."""
        lines = self.read(wire.BANKS_OFFSET, wire.BANK_COUNT * wire.BANK_LINE_BYTES).view(wire.BANK_DTYPE)
        masks = np.full(wire.BANK_COUNT, self.layout.bank_bytes - 1 if on else 0, np.uint32)
        if (lines["mask"] != masks).any():
            self._write_column(wire.BANK_MASK_OFFSET, masks)

    def adopt_thread(self) -> None:
        """Another thread may begin to capture a graph at any time."""
        driver.relax_thread()

    def synchronize(self, patience_s: float | None = None) -> bool:
        """Waits for everything the program has launched in this context, for ``patience_s`` at most. Returns whether it
        has ended."""
        if patience_s is None:
            self._synchronize()
            return True
        failed: list[WarptraceError] = []

        def wait() -> None:
            try:
                self._synchronize()
            except WarptraceError as e:
                failed.append(e)

        thread = threading.Thread(target=wait, name="warptrace-wait", daemon=True)
        thread.start()
        thread.join(patience_s)
        if failed:
            raise failed[0]
        return not thread.is_alive()

    def _synchronize(self) -> None:
        with driver.current(self.context):
            driver.call("cuCtxSynchronize")

    def share(self) -> tuple[str, bytes, int]:
        """(UUID of the device, IPC handle, offset of the control block). Raises DriverError."""
        with driver.relaxed_capture(), driver.current(self.context):
            return (driver.device_facts(self.ordinal).uuid, *driver.shared_handle(self.control))

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        facts = driver.device_facts(self.ordinal)
        return {
            "name": facts.name,
            "uuid": facts.uuid,
            "compute_capability": facts.compute_capability,
            "sm_count": facts.sm_count,
            "clock_khz": facts.clock_khz,
            "driver": facts.driver,
            "buffer_bytes": self.layout.total_bytes,
        }
