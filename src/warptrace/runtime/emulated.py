"""Recording on the emulator: trace memory on an emulated device, drained into a capture that says so.

:func:`launch` runs a kernel as a program on a GPU does, into whatever records this process. :class:`EmulatedRecording`
is a recording of its own, whose sizes and steps a test decides.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import registry, wire
from ..emulator import Device
from ..emulator.cute import CompiledKernel
from ..errors import WarptraceError
from ..raw import CaptureWriter
from ..selection import Selection
from ..sites import KernelRecord
from .cell import CELL
from .drain import Drain, DrainStats
from .layout import Layout, automatic, exact, plan
from .memory import provide

DEVICE_NAME = "warptrace PTX emulator (times are emulated)"


class EmulatedMemory:
    """Trace memory of an emulated device (see :class:`warptrace.runtime.memory.RecorderMemory`).

    ``busy`` is held by launches: memory is read and written between them.
    """

    shrunk: str | None = None
    clock = None
    """Emulated time stands still between launches."""
    peer_clock = None
    cluster_probe = None

    def __init__(self, device: Device, buffer_bytes: int, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.buffer_bytes = buffer_bytes
        self.layout: Layout = plan(buffer_bytes)
        self.busy = threading.RLock()
        self._device = device
        self._array = device.zeros(self.layout.total_bytes, np.uint8)
        self.control = self._array.address
        self.write(wire.BANKS_OFFSET, self.layout.bank_lines())

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        with self.busy:
            return np.frombuffer(self._device.read_bytes(self.control + offset, nbytes), np.uint8).copy()

    def read_rows(self, pieces: Sequence[tuple[int, int, int]], nbytes: int) -> list[NDArray[np.uint8]]:
        return [np.stack([self.read(at + k * pitch, nbytes) for k in range(rows)]) for at, pitch, rows in pieces]

    def clear(self, pieces: Sequence[tuple[int, int]]) -> None:
        with self.busy:
            for offset, nbytes in pieces:
                self._device.write_bytes(self.control + offset, bytes(nbytes))

    def write(self, offset: int, data: NDArray[Any]) -> None:
        with self.busy:
            self._device.write_bytes(self.control + offset, np.ascontiguousarray(data).tobytes())

    def set_tails(self, tails: NDArray[np.uint64]) -> None:
        self._set_lines("tail", tails)

    def enable(self, on: bool) -> None:
        self._set_lines("mask", np.full(wire.BANK_COUNT, self.layout.bank_bytes - 1 if on else 0, np.uint32))

    def adopt_thread(self) -> None:
        """Any thread may use it."""

    def synchronize(self, patience_s: float | None = None) -> bool:
        """Launches end before they return; those of other threads are waited for."""
        ended = self.busy.acquire(timeout=-1 if patience_s is None else patience_s)
        if ended:
            self.busy.release()
        return ended

    def share(self) -> None:
        """Emulated launches have ended when others could look."""

    def describe(self) -> dict[str, Any]:
        return {
            "name": DEVICE_NAME,
            "uuid": "",
            "compute_capability": "9.0",
            "sm_count": 132,
            "clock_khz": 0,
            "driver": "",
            "buffer_bytes": self.layout.total_bytes,
            "emulated": True,
        }

    def _set_lines(self, field: str, values: NDArray[Any]) -> None:
        with self.busy:
            size = wire.BANK_COUNT * wire.BANK_LINE_BYTES
            lines = self.read(wire.BANKS_OFFSET, size).view(wire.BANK_DTYPE)
            lines[field] = values
            self.write(wire.BANKS_OFFSET, lines)


_memories: dict[int, EmulatedMemory] = {}
_ordinals: dict[Device, int] = {}


def launch(
    kernel: CompiledKernel, device: Device, args: Sequence[Any], *, stream: int | None = None, **shape: Any
) -> Any:
    """Runs a traced ``kernel`` on an emulated device with the parameters that host code would add to ``args``, so that
    the recording of this process, if there is one, records it. ``shape`` as for ``CompiledKernel.launch``; ``stream``:
    the handle to note, None: unknown.

    Returns the emulator's result. Raises WarptraceError for a kernel that was compiled without events.
    """
    record = _record(kernel)
    ordinal = _ordinal(device)
    hidden = parameters(kernel, *CELL.parameters(ordinal, record.kernel_id, stream), **shape)
    memory = _memories.get(ordinal)
    with memory.busy if memory is not None else nullcontext():
        return kernel.launch(device, [*args, *hidden], **shape)


def parameters(
    kernel: CompiledKernel, control: int, size: int, word: int, **shape: Any
) -> tuple[int, int, int, int, int]:
    """The hidden parameters that host code makes of what it finds (see ``HostCell.parameters``) at a launch of
    ``shape``."""
    rules = _record(kernel).launch_rules
    grid, block, cluster = (
        _triple(shape.get(name) or getattr(kernel, name)) for name in ("grid", "block", "cluster")
    )
    warps = -(-math.prod(block) // 32)
    main, lane = size & 0xFFFFFFFF, size >> 32
    region = wire.region_word(main, lane, rules, math.prod(grid), warps, math.prod(cluster))
    return wire.hidden_parameters(control, region, word, rules, cluster)


def _triple(size: int | Sequence[int] | None) -> tuple[int, int, int]:
    given = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*given, 1, 1, 1)[:3]
    return x, y, z


def _ordinal(device: Device) -> int:
    """The number under which the recorder knows an emulated device: from the last one down, so that it meets no real
    one. Raises WarptraceError for too many."""
    ordinal = _ordinals.get(device)
    if ordinal is None:
        ordinal = wire.CELL_DEVICE_COUNT - 1 - len(_ordinals)
        if ordinal < wire.CELL_DEVICE_COUNT // 2:
            raise WarptraceError("too many emulated devices were recorded in this process: use one for all launches")

        def make(number: int, buffer_bytes: int) -> EmulatedMemory:
            _memories[number] = EmulatedMemory(device, buffer_bytes, number)
            return _memories[number]

        provide(ordinal, make)
        _ordinals[device] = ordinal
    return ordinal


class EmulatedRecording:
    """Launches traced kernels on an emulated device and writes a capture, as the recorder does for a real one.

    Of ``selection`` the launches to skip and to record count here; the rest is compiled into kernels.
    """

    def __init__(
        self,
        directory: Path,
        *,
        device: Device | None = None,
        buffer_bytes: int = 256 << 20,
        selection: Selection | None = None,
    ) -> None:
        from .. import __version__

        self.device = device or Device()
        self.memory = EmulatedMemory(self.device, buffer_bytes)
        self.writer = CaptureWriter(
            directory,
            pid=os.getpid(),
            argv=list(sys.argv),
            host=platform.node(),
            python=platform.python_version(),
            warptrace=__version__,
            dsl=None,
            started_unix_ns=time.time_ns(),
        )
        self._selection = selection or Selection()
        self.writer.set_selection(self._selection)
        self.writer.add_device(0, **self.memory.describe())
        self._drain = Drain(self.memory, 0, self.writer)
        self._known: set[int] = set()
        self._launches: dict[int, int] = {}

    def launch(
        self,
        kernel: CompiledKernel,
        args: Sequence[Any],
        *,
        max_events_per_warp: int | None = None,
        recording: bool = True,
        word: int = 0,
        **shape: Any,
    ) -> Any:
        """Runs ``kernel`` with the hidden parameters behind ``args``; ``shape`` as for ``CompiledKernel.launch``.

        ``recording`` False passes control pointer 0, as host code does where no tracer is. ``word``: the launch word.
        Returns the emulator's result. Raises WarptraceError for a kernel that was compiled without events.
        """
        record = _record(kernel)
        if record.kernel_id not in self._known:
            self._known.add(record.kernel_id)
            self.writer.add_kernel(record)
        number = self._launches.get(record.kernel_id, 0)
        self._launches[record.kernel_id] = number + 1
        recording = recording and self._selection.launch_skip <= number < self._selection.launch_end
        events = record.max_events if max_events_per_warp is None else max_events_per_warp
        size = None if events is None else exact(record, self.memory.layout, events)
        size = size or automatic(self.memory.layout, lanes=record.lane_events)
        control = self.memory.control if recording else 0
        hidden = parameters(kernel, control, size.main | size.lane << 32, word, **shape)
        return kernel.launch(self.device, [*args, *hidden], **shape)

    def step(self) -> DrainStats:
        """One look of the live drain, as the recorder's thread takes while kernels run."""
        return self._drain.step()

    def finish(self) -> None:
        """Writes what was recorded and completes the capture."""
        self._drain.finish()
        self.writer.set_launches(self._launches)
        self.writer.finish(ended_unix_ns=time.time_ns())


def _record(kernel: CompiledKernel) -> KernelRecord:
    """The record of the kernel: its id stands in the PTX, as symbols may be shared."""
    symbol = kernel.name
    for record in registry.records():
        if record.symbol == symbol and re.search(rf"\b{record.kernel_id}\b", kernel.ptx):
            return record
    raise WarptraceError(
        f"kernel {symbol} was compiled without events; compile it inside `with warptrace.cute.tracing():`"
    )
