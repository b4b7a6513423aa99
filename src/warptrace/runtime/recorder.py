"""One recording: from the first traced kernel of a process to the capture on disk."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .. import registry
from ..errors import WarptraceError
from ..raw import CaptureWriter
from ..raw.place import place, ranks
from ..sites import KernelRecord
from .calibrate import ClockLog
from .cell import CELL, OFF, kernel_number
from .drain import Drain, Need
from .driver import relax_thread
from .layout import Layout, RegionSize, automatic, exact, learned, most_events, plan
from .log import log
from .memory import DeviceMemory, device_memory, forget
from .options import RuntimeOptions

DRAIN_PERIOD_S = 0.005
"""The drain thread wakes this often. It asks the device nothing unless there were launches, which host code counts."""
LAUNCHES_A_LOOK = 4
"""Launches after which it looks at the device: each takes a quarter of the memory at most."""
QUIET_PERIOD_S = 0.1
"""It looks at least this often: replays of graphs are counted nowhere on the host."""
BUSY_PERIOD_S = 0.0005
PRESSURE = 0.125
"""From this share of a bank claimed the drain thread looks more often."""
CLOCK_PERIOD_S = 10.0
"""While kernels run, the device's clock is compared with the host's this often."""
OBSERVE_S = 0.05
"""A kernel's second launch waits so long at most for its first to finish, once: its region size is then known. A first
launch that itself waits for a later one only costs this time."""
OBSERVE_TRIES = 3


class Recorder:
    """Records every traced kernel of this process into ``<directory>/pid_<pid>`` until ``stop``.

    No CUDA call is made before the first launch of a traced kernel on a device. ``dsl_version`` is for the manifest.
    """

    def __init__(self, options: RuntimeOptions, dsl_version: str | None = None) -> None:
        self.options = options
        self.directory = Path(options.directory) / f"pid_{os.getpid()}"
        self._pid = os.getpid()
        self._dsl_version = dsl_version
        self._lock = threading.Lock()
        self._devices: dict[int, _Device] = {}
        self._kernels: dict[int, KernelRecord] = {}
        self._writer: CaptureWriter | None = None
        self._running = False
        self._wake = threading.Event()
        self._drainer: threading.Thread | None = None
        self._needs: dict[int, Need] = {}
        self._asked: dict[int, int] = {}

    def start(self) -> None:
        """Begins to record. Raises WarptraceError where the directory cannot be written."""
        self._writer = _new_writer(self.directory, self._dsl_version)
        CELL.set_default_size(automatic(plan(self.options.buffer_bytes), lanes=True))
        self._running = True
        registry.listen(self._kernel)
        CELL.attach(self._first_launch, self._repeat)

    def stop(self) -> None:
        """Waits for the device, writes what was recorded and ends the recording. Does nothing in a forked child."""
        with self._lock:
            if not self._running or os.getpid() != self._pid:
                return
            self._running = False
        registry.unlisten(self._kernel)
        CELL.detach()
        self._wake.set()
        if self._drainer is not None:
            self._drainer.join()
        writer = self._writer
        assert writer is not None
        for device in self._devices.values():
            try:
                device.memory.synchronize()
                device.clocks.close()
                device.memory.enable(False)
                device.drain.finish()
            except WarptraceError as e:
                writer.add_problem(f"device {device.memory.ordinal}: {e}")
                log("error", f"device {device.memory.ordinal}: {e}")
        for symbol in registry.without_events():
            writer.add_uninstrumented(symbol)
        writer.set_place(ranks())  # programs that start their ranks themselves set the variables late
        writer.set_launches({k: CELL.launches(k) for k in self._kernels})
        writer.finish(ended_unix_ns=time.time_ns())

    def abandon(self) -> None:
        """In a forked child: forgets the parent's recording without touching its memory or files."""
        self._running = False
        registry.unlisten(self._kernel)
        CELL.detach()
        forget()

    def _kernel(self, record: KernelRecord) -> None:
        with self._lock:
            known = self._kernels.get(record.kernel_id)
            if not self._running or self._writer is None or record == known:
                return
            self._kernels[record.kernel_id] = record
            self._writer.add_kernel(record)
        if known is not None and replace(known, build=record.build) == record:  # compiled: its size is as before
            return
        self._size(record)
        log("info", f"traced kernel {record.symbol}: {len(record.sites)} sites, slots of {record.stride} bytes")

    def _first_launch(self, ordinal: int) -> int:
        """Called by host code on the first launch on a device; must not raise."""
        try:
            return self._take_memory(ordinal)
        except Exception as e:  # the program must go on, whatever is wrong with us
            text = str(e) if isinstance(e, WarptraceError) else f"{type(e).__name__}: {e}"
            log("error", f"not recording on device {ordinal}: {text}")
            if self._writer is not None:
                self._writer.add_problem(f"not recording on device {ordinal}: {text}")
            return OFF

    def _take_memory(self, ordinal: int) -> int:
        with self._lock:
            if not self._running or self._writer is None:
                return OFF
            if ordinal in self._devices:
                return self._devices[ordinal].memory.control
            memory = device_memory(ordinal, self.options.buffer_bytes)
            self._writer.add_device(ordinal, **memory.describe())
            clocks = ClockLog(ordinal, memory.clock, self._writer)
            clocks.note()
            self._devices[ordinal] = _Device(memory, Drain(memory, ordinal, self._writer), clocks)
            kernels = list(self._kernels.values())
            if self._drainer is None:
                self._drainer = threading.Thread(target=self._drain_live, name="warptrace-drain", daemon=True)
                self._drainer.start()
        if memory.shrunk is not None:
            log("warn", memory.shrunk)
            self._writer.add_problem(memory.shrunk)
            CELL.set_default_size(automatic(memory.layout, lanes=True))
            for record in kernels:
                self._size(record)
        return memory.control

    def _layout(self) -> Layout:
        """The division of the smallest trace memory: region sizes must fit every device."""
        layouts = [d.memory.layout for d in self._devices.values()] or [plan(self.options.buffer_bytes)]
        return min(layouts, key=lambda layout: layout.bank_bytes)

    def _drain_live(self) -> None:
        """The drain thread: moves finished regions while the program runs."""
        relax_thread()  # for good: another thread may begin to capture a graph at any time
        pressure = 0.0
        looked = time.monotonic()
        compared = looked
        launches = CELL.all_launches()
        while not self._wake.wait(DRAIN_PERIOD_S if pressure < PRESSURE else BUSY_PERIOD_S):
            if time.monotonic() - compared > CLOCK_PERIOD_S:
                compared = time.monotonic()
                self.compare_clocks()
            now = CELL.all_launches()
            quiet = now - launches < LAUNCHES_A_LOOK and time.monotonic() - looked < QUIET_PERIOD_S
            if quiet and pressure < PRESSURE:
                continue
            looked, launches = time.monotonic(), now
            pressure = 0.0
            for device in list(self._devices.values()):
                try:
                    stats = device.drain.step()
                    self._learn(stats.needs)
                    pressure = max(pressure, stats.pressure)
                except Exception as e:  # reported once; the final drain still writes what is in memory
                    if not isinstance(e, WarptraceError):
                        e = WarptraceError(f"{type(e).__name__}: {e}")
                    log("error", f"device {device.memory.ordinal}: draining while kernels run has ended: {e}")
                    return

    def compare_clocks(self) -> None:
        """Notes what every device's clock reads now, where it answers within some ms."""
        for device in list(self._devices.values()):
            device.clocks.note()

    def _size(self, record: KernelRecord) -> None:
        """Tells host code the region size of a kernel: what is known of its events, else what warps were seen to need,
        else the grid's share, to be corrected before the second launch."""
        size = self._fixed_size(record)
        need = self._needs.get(record.kernel_id)
        if size is None and need is not None:
            size = learned(record, self._layout(), need.main, need.lane)
        known = size is not None or self._asked.get(record.kernel_id, 0) >= OBSERVE_TRIES
        CELL.set_size(
            record.kernel_id, size or automatic(self._layout(), lanes=record.lane_events), ask=not known
        )

    def _fixed_size(self, record: KernelRecord) -> RegionSize | None:
        """The size that the user's option or the kernel's code gives, None where neither does."""
        layout = self._layout()
        bound = self.options.max_events_per_warp
        if bound is None:
            return None if record.max_events is None else exact(record, layout, record.max_events)
        size = exact(record, layout, bound)
        if size is not None:
            return size
        most = most_events(record, layout)
        text = (
            f"{bound} events per warp do not fit kernel {record.symbol}: room for {most} with this buffer "
            "(--max-ts-cnt-per-warp, --buffer-size)"
        )
        log("warn", text)
        if self._writer is not None:
            self._writer.add_problem(text)
        return exact(record, layout, most)

    def _learn(self, needs: dict[int, Need]) -> None:
        for kernel_id, need in needs.items():
            known = self._needs.get(kernel_id, Need())
            record = self._kernels.get(kernel_id)
            if record is not None and (need | known) != known:
                self._needs[kernel_id] = need | known
                self._size(record)

    def _repeat(self, number: int) -> None:
        """Called by host code before the second launch of kernels whose number of events is not known."""
        try:
            for record in [k for k in list(self._kernels.values()) if kernel_number(k.kernel_id) == number]:
                self._observe(record)
        except Exception as e:  # the program must go on, whatever is wrong with us
            log("error", f"region sizes are not learned: {type(e).__name__}: {e}")

    def _observe(self, record: KernelRecord) -> None:
        tries = self._asked[record.kernel_id] = self._asked.get(record.kernel_id, 0) + 1
        for device in list(self._devices.values()):
            need = device.drain.observe(record.kernel_id, OBSERVE_S)
            if need is not None:
                self._learn({record.kernel_id: need})
                return
        if tries >= OBSERVE_TRIES:  # it stays with the grid's share
            self._size(record)


@dataclass(frozen=True)
class _Device:
    memory: DeviceMemory
    drain: Drain
    clocks: ClockLog


def _new_writer(directory: Path, dsl_version: str | None) -> CaptureWriter:
    from .. import __version__

    return CaptureWriter(
        directory,
        pid=os.getpid(),
        argv=list(sys.argv) if hasattr(sys, "argv") else [],
        host=platform.node(),
        python=platform.python_version(),
        warptrace=__version__,
        dsl=dsl_version,
        started_unix_ns=time.time_ns(),
        place=place(),
    )
