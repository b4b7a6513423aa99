"""One recording: from the first traced kernel of a process to the capture on disk."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import registry, wire
from ..errors import WarptraceError
from ..flows import declared
from ..raw import CaptureWriter
from ..raw.format import CELL_NAME
from ..raw.place import place, ranks
from ..selection import Selection
from ..sites import KernelRecord
from . import host_log, offer
from .calibrate import ClockLog
from .cell import CELL, NO_END, kernel_number
from .cluster_probe import ClusterLog
from .drain import Drain, Need
from .driver import DriverError, address_of, capture_of
from .host_log import HostLog
from .layout import Layout, RegionSize, automatic, exact, learned, most_events, plan
from .log import log
from .memory import RecorderMemory, device_memory, forget, taken
from .options import RuntimeOptions
from .peers import PeerLog

DRAIN_PERIOD_S = 0.005
"""The drain thread wakes this often. It asks the device nothing unless there were launches, which host code counts."""
LAUNCHES_A_LOOK = 4
"""Launches after which it looks at the device: each takes a quarter of the memory at most."""
QUIET_PERIOD_S = 0.1
"""It looks at least this often: replays of graphs are counted nowhere on the host."""
BUSY_PERIOD_S = 0.0005
SAVE_PERIOD_S = 1.0
"""All that is finished goes to disk so often, also where memory has room: what a process loses that is killed."""
PRESSURE = 0.125
"""From this share of a bank claimed the drain thread looks more often."""
CLOCK_PERIOD_S = 10.0
"""While kernels run, the device's clock is compared with the host's this often."""
OBSERVE_S = 0.05
"""A kernel's second launch waits so long at most for its first to finish, once: its region size is then known. A first
launch that itself waits for a later one only costs this time."""
OBSERVE_TRIES = 3
HELD_UP_S = 0.1
"""Reading what it used may itself be held up, behind a kernel of the program that waits for the very launch that reads:
after so long the launch goes on without."""


class Recorder:
    """Records every traced kernel of this process into ``<directory>/pid_<pid>`` until ``stop``, but for pauses.

    No CUDA call is made before the first launch of a traced kernel on a device. ``dsl_version`` is for the manifest.
    ``start``, ``pause``, ``resume`` and ``stop`` come from one thread at a time.
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
        self._peers: PeerLog | None = None
        self._host: HostLog | None = None
        self._running = False
        self._recording = False
        self._windows: list[tuple[int, int | None]] | None = None
        self._wake = threading.Event()
        self._drainer: threading.Thread | None = None
        self._needs: dict[int, Need] = {}
        self._asked: dict[int, int] = {}
        self._complaints: set[str] = set()
        self._unsaved: set[int] = set()
        self._selection_before = Selection()

    def start(self, *, paused: bool = False) -> None:
        """Begins to record or, ``paused``, to wait for ``resume``. Raises WarptraceError where the directory cannot be
        written."""
        selection = self.options.selection
        self._writer = _new_writer(self.directory, self._dsl_version)
        if self.options.peer_clocks:
            self._peers = PeerLog(self.directory, self._writer, lambda: self._recording)
        if self.options.host_ranges:
            self._host = HostLog(self._writer, self._device_of)
            host_log.begin(self._host)
        if not selection.everything:
            self._writer.set_selection(selection)
        CELL.set_default_size(automatic(plan(self.options.buffer_bytes), lanes=True))
        CELL.set_window(selection.launch_skip, selection.launch_end)
        self._running = True
        if paused:
            self._note_windows([])
        self._selection_before = registry.selection()
        registry.select(selection)
        registry.listen(self._kernel)
        if not paused:
            self._record()

    def resume(self) -> None:
        """From now on launches are recorded, in a window of their own. Waits for what runs on devices that recorded
        before: replays of graphs that were launched earlier do not belong to the window."""
        if self._running and not self._recording and os.getpid() == self._pid:
            begin = self._record(again=bool(self._windows))
            self._note_windows([*(self._windows or []), (begin, None)])

    def pause(self) -> None:
        """From now on launches record nothing, replays of graphs included. Waits for the device and writes what it has
        recorded."""
        if self._recording and os.getpid() == self._pid:
            self._recording = False
            CELL.detach()
            self._empty(self._devices, pause=True)
            if self._peers is not None:
                self._peers.note()
            self._end_window()

    def stop(self, patience_s: float | None = None) -> None:
        """Waits for the device, writes what was recorded and ends the recording. Does nothing in a forked child.

        ``patience_s``: wait so long at most for kernels that still run. Raises WarptraceError where the capture cannot
        be completed; it then says so itself, when it is read.
        """
        with self._lock:
            if not self._running or os.getpid() != self._pid:
                return
            self._running = False
        registry.unlisten(self._kernel)
        registry.select(self._selection_before)
        CELL.detach()
        self._wake.set()
        if self._drainer is not None:
            self._drainer.join(patience_s)
        writer = self._writer
        assert writer is not None
        if self._recording:
            self._recording = False
            self._empty(self._devices, patience_s)
            self._end_window()
        else:
            self._empty(self._unsaved, patience_s)
        if self._peers is not None:
            self._peers.close()
        if self._host is not None:
            host_log.end()
            self._host.close()
        for symbol in registry.without_events():
            writer.add_uninstrumented(symbol)
        for symbol in registry.deselected():
            writer.add_deselected(symbol)
        self._check_selections()
        writer.set_place(ranks())  # programs that start their ranks themselves set the variables late
        writer.set_launches({k: CELL.launches(k) for k, record in self._kernels.items() if self._wants(record)})
        writer.set_flows(declared())
        writer.finish(ended_unix_ns=time.time_ns())

    @property
    def recorded(self) -> bool:
        """Whether some warp left a record so far, in what was taken in."""
        return self._writer is not None and self._writer.regions > 0

    def _note(self, level: str, text: str) -> None:
        """Tells the user, now and in the capture."""
        log(level, text)
        if self._writer is not None:
            with suppress(WarptraceError):  # a full disk is told where it costs data
                self._writer.add_problem(text)

    def abandon(self) -> None:
        """In a forked child: forgets the parent's recording without touching its memory or files."""
        registry.after_fork()
        self._running = self._recording = False
        self._peers = self._host = None
        host_log.end()
        registry.unlisten(self._kernel)
        CELL.detach()
        forget()

    def _record(self, *, again: bool = False) -> int:
        """Launches are recorded from now on; returns the host time. ``again``: after a pause."""
        self._recording = True
        for ordinal, device in self._devices.items():
            try:
                device.memory.synchronize()
                if ordinal in self._unsaved:
                    device.drain.finish()
                    self._unsaved.remove(ordinal)
                device.drain.restart()
                device.memory.enable(True)
                if device.clocks is not None:
                    device.clocks.note()
            except WarptraceError as e:
                self._fault(device.memory.ordinal, e)
        if self._peers is not None:
            self._peers.note()
        for memory in taken(self.options.buffer_bytes):
            if memory.ordinal not in self._devices:  # graphs that an earlier recording captured record again
                try:
                    memory.synchronize()
                    self._take_memory(memory.ordinal)
                except WarptraceError as e:
                    self._fault(memory.ordinal, e)
        begin = time.time_ns()
        try:
            CELL.attach(self._first_launch, self._repeat, again=again, mirror=self.directory / CELL_NAME)
        except OSError as e:  # a disk without room for it, or one that maps no files
            log("info", f"should this process be killed, its launches are not counted: {e}")
            CELL.attach(self._first_launch, self._repeat, again=again)
        if self._host is not None:
            CELL.note_launches(self._host.notes_address)
        return begin

    def _device_of(self, control: int) -> int | None:
        """The device whose trace memory begins there."""
        known = (o for o, device in list(self._devices.items()) if device.memory.control == control)
        return next(known, None)

    def _empty(self, ordinals: Iterable[int], patience_s: float | None = None, *, pause: bool = False) -> None:
        """Waits for the devices, lets no more warps claim memory, and writes what was recorded; what cannot be saved is
        noted. ``patience_s``: see ``stop``. ``pause``: launches may follow, which will need as much, and what cannot be
        saved has another chance."""
        for ordinal in list(ordinals):
            device = self._devices[ordinal]
            try:
                ended = device.memory.synchronize(patience_s)
                device.memory.enable(False)
                if not (ended and device.memory.synchronize(patience_s)):  # replays of graphs began between the two
                    self._note("warn", f"device {ordinal}: kernels still ran when the recording ended")
                if pause:
                    self._learn(device.drain.needs())
                device.drain.finish()
                if ended and not pause:
                    offer.withdraw(self.directory, ordinal)
            except WarptraceError as e:
                if pause:
                    self._unsaved.add(ordinal)
                    self._complain(f"device {ordinal}: what was recorded is not saved yet: {e}")
                    continue
                text = f"device {ordinal}: what was not saved before is lost: {e}"
                log("error", text)
                assert self._writer is not None
                self._writer.add_undrained(ordinal, text)
            else:
                self._last_words(device, pause=pause, idle=ended)

    def _last_words(self, device: _Device, *, pause: bool, idle: bool) -> None:
        """Compares the clocks once more, and looks which SMs share clusters: at the end only, and where no kernel of
        the program is left, since a launch may have to wait for clusters that wait for a place."""
        try:
            if device.clocks is not None and pause:
                device.clocks.note()
            elif device.clocks is not None:
                device.clocks.close()
            if device.clusters is not None and idle and not pause:
                device.clusters.note()
        except WarptraceError as e:
            self._complain(str(e))

    def _fault(self, ordinal: int, error: WarptraceError) -> None:
        self._note("error", f"device {ordinal}: {error}")

    def _note_windows(self, windows: list[tuple[int, int | None]]) -> None:
        self._windows = windows
        if self._writer is not None:
            self._writer.set_windows(windows)

    def _end_window(self) -> None:
        if self._windows:
            *before, (begin, _) = self._windows
            self._note_windows([*before, (begin, time.time_ns())])

    def _kernel(self, record: KernelRecord) -> None:
        with self._lock:
            known = self._kernels.get(record.kernel_id)
            if not self._running or self._writer is None or record == known:
                return
            self._kernels[record.kernel_id] = record
            self._writer.set_flows(declared())
            self._writer.add_kernel(record)
        if known is not None and replace(known, build=record.build) == record:  # compiled: its size is as before
            return
        self._size(record)
        if not self._wants(record):
            self._writer.add_deselected(record.symbol)
            return
        log("info", f"traced kernel {record.symbol}: {len(record.sites)} sites, slots of {record.stride} bytes")

    def _wants(self, record: KernelRecord) -> bool:
        return self.options.selection.wants(record.symbol)

    def _check_selections(self) -> None:
        """Tells of launched kernels with which the selection could not do what it says."""
        selection = self.options.selection
        for record in [k for k in self._kernels.values() if self._wants(k) and CELL.launches(k.kernel_id)]:
            wanted = selection.of(record.symbol)
            if record.selection != wanted:
                self._note(
                    "warn",
                    f"kernel {record.symbol} was compiled before this recording, with another selection: "
                    f"{record.selection} is recorded, not {wanted}; compile it again",
                )
            others = sorted(k for k in CELL.sharing(record.kernel_id) if k in self._kernels)
            if others and min(others) > record.kernel_id and selection.launch_end - selection.launch_skip < NO_END:
                names = " and ".join(self._kernels[k].symbol for k in (record.kernel_id, *others))
                text = f"launches of {names} are counted together: --launch-skip and --launch-count see one kernel"
                self._note("warn", text)

    def _first_launch(self, ordinal: int) -> int:
        """Called by host code on the first launch on a device; must not raise."""
        try:
            return self._take_memory(ordinal)
        except Exception as e:  # the program must go on, whatever is wrong with us
            text = str(e) if isinstance(e, WarptraceError) else f"{type(e).__name__}: {e}"
            self._note("error", f"not recording on device {ordinal}: {text}")
            return wire.CELL_OFF

    def _take_memory(self, ordinal: int) -> int:
        with self._lock:
            if not self._recording or self._writer is None:
                return wire.CELL_OFF
            if ordinal in self._devices:
                return self._devices[ordinal].memory.control
            memory = device_memory(ordinal, self.options.buffer_bytes)
            CELL.know_driver(address_of("cuStreamIsCapturing"), capture_of)
            facts = memory.describe()
            self._writer.add_device(ordinal, **facts)
            offer.make(memory, self.directory)
            clocks = None if memory.clock is None else ClockLog(ordinal, memory.clock, self._writer)
            if clocks is not None:
                clocks.note()
            probe = None if memory.cluster_probe is None else ClusterLog(ordinal, memory.cluster_probe, self._writer)
            self._devices[ordinal] = _Device(memory, Drain(memory, ordinal, self._writer), clocks, probe)
            if self._peers is not None:
                self._peers.add(ordinal, str(facts.get("uuid", "")), memory.peer_clock)
            kernels = list(self._kernels.values())
            if self._drainer is None:
                self._drainer = threading.Thread(target=self._drain_live, name="warptrace-drain", daemon=True)
                self._drainer.start()
        if memory.shrunk is not None:
            self._note("warn", memory.shrunk)
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
        for device in list(self._devices.values()):
            device.memory.adopt_thread()
        pressure = 0.0
        looked = saved = compared = time.monotonic()
        launches = CELL.all_launches()
        broken: set[int] = set()
        while not self._wake.wait(DRAIN_PERIOD_S if pressure < PRESSURE else BUSY_PERIOD_S):
            if not self._recording:
                pressure = 0.0
                continue
            if time.monotonic() - compared > CLOCK_PERIOD_S:
                compared = time.monotonic()
                self.compare_clocks()
            now = CELL.all_launches()
            quiet = now - launches < LAUNCHES_A_LOOK and time.monotonic() - looked < QUIET_PERIOD_S
            if quiet and pressure < PRESSURE:
                continue
            looked, launches = time.monotonic(), now
            everything = looked - saved >= SAVE_PERIOD_S
            pressure = 0.0
            for device in [one for ordinal, one in list(self._devices.items()) if ordinal not in broken]:
                try:
                    for _ in range(2 if everything else 1):  # what the first look finds finished the second moves
                        stats = device.drain.step(everything)
                        self._learn(stats.needs)
                    pressure = max(pressure, stats.pressure)
                except DriverError as e:  # the context is dead; the end of the recording tells what that costs
                    log("info", f"device {device.memory.ordinal}: draining while kernels run has ended: {e}")
                    broken.add(device.memory.ordinal)
                except WarptraceError as e:  # a full disk: what is in memory stays there, and there is another chance
                    self._complain(str(e))
                except Exception as e:  # reported once; the final drain still writes what is in memory
                    text = f"draining while kernels run has ended: {type(e).__name__}: {e}"
                    log("error", f"device {device.memory.ordinal}: {text}")
                    broken.add(device.memory.ordinal)
            if everything:
                saved = time.monotonic()
                if self._host is not None:
                    try:
                        self._host.flush()
                    except WarptraceError as e:
                        self._complain(str(e))

    def _complain(self, text: str) -> None:
        """Logs an error that comes again and again once."""
        if text not in self._complaints:
            self._complaints.add(text)
            log("error", text)

    def compare_clocks(self) -> None:
        """Notes what every device's clock reads now, where it answers within some ms."""
        for device in list(self._devices.values()):
            try:
                if device.clocks is not None:
                    device.clocks.note()
            except WarptraceError as e:  # a full disk
                self._complain(str(e))

    def _size(self, record: KernelRecord) -> None:
        """Tells host code the region size of a kernel: what is known of its events, else what warps were seen to need,
        else the grid's share, to be corrected before the second launch. A kernel that is not wanted gets none."""
        if not self._wants(record):
            CELL.skip(record.kernel_id)
            return
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
        self._note("warn", text)
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
            for record in list(self._kernels.values()):
                if kernel_number(record.kernel_id) == number and self._wants(record):
                    self._observe(record)
        except Exception as e:  # the program must go on, whatever is wrong with us
            log("error", f"region sizes are not learned: {type(e).__name__}: {e}")

    def _observe(self, record: KernelRecord) -> None:
        tries = self._asked[record.kernel_id] = self._asked.get(record.kernel_id, 0) + 1
        for device in list(self._devices.values()):
            need = device.observe(record.kernel_id)
            if need is not None:
                self._learn({record.kernel_id: need})
                return
        if tries >= OBSERVE_TRIES:  # it stays with the grid's share
            self._size(record)


@dataclass(frozen=True)
class _Device:
    memory: RecorderMemory
    drain: Drain
    clocks: ClockLog | None
    clusters: ClusterLog | None
    reading: threading.Semaphore = field(default_factory=threading.Semaphore)

    def observe(self, kernel_id: int) -> Need | None:
        """What a kernel's first launch needed (see ``Drain.observe``), where that can be had within HELD_UP_S."""
        if not self.reading.acquire(blocking=False):
            return None  # an earlier try is still held up
        found: list[Need | None] = []

        def read() -> None:
            try:
                self.memory.adopt_thread()
                found.append(self.drain.observe(kernel_id, OBSERVE_S))
            except WarptraceError as e:
                log("debug", f"what a launch needed cannot be read: {e}")
            finally:
                self.reading.release()

        thread = threading.Thread(target=read, name="warptrace-observe", daemon=True)
        thread.start()
        thread.join(HELD_UP_S)
        return found[0] if found else None


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
