"""A device made of numpy: trace memory as instrumented kernels would leave it, from a plain description.

It knows only the wire format, never the decoder. Time is exact: every SM has a clock of its own (a rational rate, or a
history of rates, and an offset), ``%globaltimer`` steps by 32 ns, and a test says in cycles when a warp does what::

    kernel = FakeKernel("gemm")
    load, load_end = kernel.start("load"), kernel.end("load")
    warp = FakeWarp(cta=(0, 0, 0), warp=1, sm=3, start_ns=1000)
    token = warp.event(load, at=40)
    warp.event(load_end, at=900, token=token)
    warp.exit(at=1000)
    device = FakeDevice()
    device.launch(kernel, [warp], grid=(1, 1, 1), block=(64, 1, 1))
    write_capture(tmp_path / "pid_1", [device], [kernel])
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from warptrace import wire
from warptrace.sites import KernelRecord, Site, kernel_id
from warptrace.wire import EventKind, PayloadType

EPOCH_NS = 1_764_000_000_000_000_000
"""``%globaltimer`` at true time 0: a Unix time in ns, and a multiple of 32."""
assert EPOCH_NS % 32 == 0


@dataclass(frozen=True)
class RateHistory:
    """Cycles per ns of a clock that moves, as a function of true time: ``points`` are (ns, rate), by time. Between two
    points the rate stays as at the first of them, or with ``smooth`` goes straight from one to the other; before the
    first and behind the last it stays."""

    points: tuple[tuple[int, Fraction], ...]
    smooth: bool = False

    def cycles(self, ns: Fraction | int) -> Fraction:
        """Cycles from true time 0 to ``ns``, exactly."""
        return self._since_first(Fraction(ns)) - self._since_first(Fraction(0))

    def _since_first(self, ns: Fraction) -> Fraction:
        begin, rate = self.points[0]
        if ns <= begin:
            return (ns - begin) * rate
        at, sums = bisect_right(self._times, ns) - 1, self._sums
        begin, rate = self.points[at]
        return sums[at] + (ns - begin) * self._mean(at, ns)

    def _mean(self, at: int, ns: Fraction) -> Fraction:
        """Mean rate from point ``at`` to ``ns``, which is not behind the next point."""
        begin, rate = self.points[at]
        if not self.smooth or at + 1 == len(self.points):
            return rate
        end, last = self.points[at + 1]
        return rate + (last - rate) * (ns - begin) / (end - begin) / 2

    @cached_property
    def _times(self) -> list[int]:
        return [ns for ns, _ in self.points]

    @cached_property
    def _sums(self) -> list[Fraction]:
        sums = [Fraction(0)]
        for at, (end, _) in enumerate(self.points[1:]):
            sums.append(sums[-1] + (end - self.points[at][0]) * self._mean(at, Fraction(end)))
        return sums


class FakeKernel:
    """A site table under construction. Each method adds one site and returns its id."""

    def __init__(
        self,
        name: str,
        symbol: str | None = None,
        *,
        stride: int | None = None,
        file: str = "kernel.py",
        ring: bool = False,
    ) -> None:
        self.name = name
        self.symbol = symbol or f"kernel_{name}_0"
        self.file = file
        self.sites: list[Site] = []
        self._stride = stride
        self.ring = ring

    def site(
        self,
        kind: EventKind,
        name: str,
        payload: PayloadType = PayloadType.NONE,
        line: int = 0,
        anchor: bool = False,
        high: bool = False,
        late: bool = True,
    ) -> int:
        number = len(self.sites) + 1
        self.sites.append(Site(number, kind, name, payload, self.file, line or 10 * number, anchor, high, late))
        return number

    def mark(
        self, name: str, payload: PayloadType = PayloadType.NONE, line: int = 0, *, anchor: bool = False
    ) -> int:
        return self.site(EventKind.MARK, name, payload, line, anchor)

    def push(self, name: str, payload: PayloadType = PayloadType.NONE, line: int = 0) -> int:
        return self.site(EventKind.PUSH, name, payload, line)

    def pop(self, line: int = 0) -> int:
        return self.site(EventKind.POP, "", line=line)

    def start(self, name: str, payload: PayloadType = PayloadType.NONE, line: int = 0) -> int:
        return self.site(EventKind.START, name, payload, line)

    def end(self, name: str = "", payload: PayloadType = PayloadType.NONE, line: int = 0) -> int:
        return self.site(EventKind.END, name, payload, line)

    def switch(self, name: str, payload: PayloadType = PayloadType.NONE, line: int = 0) -> int:
        return self.site(EventKind.SWITCH, name, payload, line)

    @property
    def stride(self) -> int:
        if self._stride is not None:
            return self._stride
        return 16 if any(s.payload != PayloadType.NONE or s.anchor for s in self.sites) else 8

    def is_anchor(self, site: int) -> bool:
        return self.sites[site - 1].anchor

    @property
    def id(self) -> int:
        return kernel_id(self.symbol, tuple(self.sites), ring=self.ring)

    @property
    def record(self) -> KernelRecord:
        return KernelRecord(
            kernel_id=self.id,
            symbol=self.symbol,
            name=self.name,
            arch="sm_90a",
            stride=self.stride,
            slack=0,
            lane_events=True,
            max_events=None,
            sites=tuple(self.sites),
            build={"registers": 40},
            ring=self.ring,
        )


@dataclass(frozen=True)
class FakeEvent:
    """One event: ``at`` in cycles since the warp's entry; ``token``: index of the START event it closes, or -1.
    ``raw_timer``: the low half of %globaltimer that an anchor holds, instead of the true one."""

    site: int
    at: int
    lane: int
    payload: int
    token: int
    raw_link: int | None = None
    raw_timer: int | None = None


@dataclass
class FakeWarp:
    """What one warp does, in program order. ``start_ns`` is its true entry time since EPOCH_NS."""

    cta: tuple[int, int, int] = (0, 0, 0)
    warp: int = 0
    sm: int = 0
    start_ns: Fraction | int = 0
    events: list[FakeEvent] = field(default_factory=list)
    exit_at: int | None = None

    def event(
        self,
        site: int,
        at: int,
        *,
        lane: int = 0,
        payload: int = 0,
        token: int = -1,
        raw_link: int | None = None,
        raw_timer: int | None = None,
    ) -> int:
        """Adds an event and returns its index, which is the token of a START. ``payload`` is the bit pattern.
        ``raw_link`` forces the 16 link bits, ``raw_timer`` the 32 timer bits of an anchor."""
        self.events.append(FakeEvent(site, at, lane, payload, token, raw_link, raw_timer))
        return len(self.events) - 1

    def exit(self, at: int) -> FakeWarp:
        """The warp ends (else it never closes)."""
        self.exit_at = at
        return self


@dataclass(frozen=True)
class FakeBankImage:
    """A contiguous piece of a bank's memory: ``data[0]`` is logical position ``position`` and lies at
    ``base + (position & mask)`` from the control block."""

    data: np.ndarray
    position: int
    base: int
    mask: int
    failed_bytes: int = 0


class FakeDevice:
    """Trace memory of one device, and the clocks of its SMs.

    ``rates``: cycles per ns of an SM (default 1.98), or their history, ``offsets``: its cycle counter at true time 0
    (default: a different one for every SM). ``slack``: bytes behind each bank. ``timer_ahead_ns``: of its
    %globaltimer before that of other devices. ``file``: holds the memory.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        bank_bytes: int = 1 << 20,
        slack: int = 1 << 16,
        rates: dict[int, Fraction | RateHistory] | None = None,
        offsets: dict[int, int] | None = None,
        first_position: int = 0,
        name: str = "Fake GPU",
        timer_ahead_ns: int = 0,
        file: Path | None = None,
    ) -> None:
        assert bank_bytes & (bank_bytes - 1) == 0
        self.ordinal = ordinal
        self.name = name
        self.timer_ahead_ns = timer_ahead_ns
        self.bank_bytes = bank_bytes
        self.slack = slack
        self.rates = rates or {}
        self.offsets = offsets or {}
        size = wire.ARENA_OFFSET + wire.BANK_COUNT * (bank_bytes + slack)
        self.memory = np.zeros(size, np.uint8) if file is None else np.memmap(file, np.uint8, "w+", shape=(size,))
        self.control = self.memory[: wire.CONTROL_DTYPE.itemsize].view(wire.CONTROL_DTYPE)
        lines = self.memory[wire.BANKS_OFFSET : wire.BANKS_OFFSET + wire.BANK_COUNT * wire.BANK_LINE_BYTES]
        self.banks = lines.view(wire.BANK_DTYPE)
        lost_end = wire.LOST_OFFSET + wire.LOST_CAPACITY * wire.LOST_BYTES
        self.lost = self.memory[wire.LOST_OFFSET : lost_end].view(wire.LOST_DTYPE)
        self.banks["base"] = wire.ARENA_OFFSET + np.arange(wire.BANK_COUNT) * (bank_bytes + slack)
        self.banks["mask"] = bank_bytes - 1
        self.banks["head"] = self.banks["tail"] = first_position
        self.next_grid_id = 1

    # ------------------------------------------------------------------------------------------------ clocks
    def cycles(self, sm: int, ns: Fraction | int) -> Fraction:
        """Cycles of an SM from true time 0 to ``ns``, exactly."""
        rate = self.rates.get(sm, Fraction(198, 100))
        return rate.cycles(ns) if isinstance(rate, RateHistory) else Fraction(ns) * rate

    def clock64(self, sm: int, ns: Fraction | int) -> int:
        """Cycle counter of an SM at true time ``ns``."""
        return self.offsets.get(sm, 7_777_777_777 * (sm + 1)) + int(self.cycles(sm, ns) // 1)

    def ns_of_cycle(self, sm: int, clock: int, step: int = 1024) -> Fraction:
        """True time at which the SM's counter becomes ``clock``: exact where the rate does not move, else rounded down
        to 1 / ``step`` ns."""
        cycles = clock - self.clock64(sm, 0)
        rate = self.rates.get(sm, Fraction(198, 100))
        if not isinstance(rate, RateHistory):
            return Fraction(cycles) / rate
        high = 1 << 10
        while rate.cycles(high) < cycles:
            high <<= 1
        low, high = (0, high * step) if cycles >= 0 else (-high * step, 0)
        while cycles < 0 and rate.cycles(Fraction(low, step)) > cycles:
            low *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if rate.cycles(Fraction(middle, step)) <= cycles else (low, middle)
        return Fraction(low, step)

    def globaltimer(self, ns: Fraction | int) -> int:
        return EPOCH_NS + int((Fraction(ns) + self.timer_ahead_ns) // 32) * 32

    # ---------------------------------------------------------------------------------------------- execution
    def launch(
        self,
        kernel: FakeKernel,
        warps: Iterable[FakeWarp],
        *,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        cluster: tuple[int, int, int] | None = None,
        grid_id: int | None = None,
        main_bytes: int = 1024,
        lane_bytes: int = 0,
        word: int = 0,
    ) -> int:
        """Runs the warps and returns the grid id. ``word``: the launch word."""
        if grid_id is None:
            grid_id = self.next_grid_id
            self.next_grid_id += 1
        common = {
            "magic": wire.RING_MAGIC if kernel.ring else wire.REGION_MAGIC,
            "kernel_id": kernel.id,
            "grid_id": grid_id,
            "main_bytes": main_bytes,
            "lane_bytes": lane_bytes,
            "grid": grid,
            "block": wire.pack_block(*block),
            "cluster": wire.pack_cluster(*cluster) if cluster else 0,
            "stride": kernel.stride,
            "launch_low": word & 0xFFFF,
            "launch_middle": word >> 16 & 0xFFFF,
            "launch_high": word >> 32,
        }
        for warp in warps:
            self._run(kernel, warp, common)
        return grid_id

    def _run(self, kernel: FakeKernel, warp: FakeWarp, common: dict[str, Any]) -> None:
        region = self._claim(warp.sm, wire.region_bytes(common["main_bytes"], common["lane_bytes"]))
        if region is not None:
            self._open(warp, common, *region)
        cursors = self._emit(kernel, warp, common, region[1] if region else None)
        if warp.exit_at is None:
            return
        if region is not None:
            self._close(warp, common, region[1], cursors)
        else:
            self._lose(warp, common, cursors)

    def _claim(self, sm: int, size: int) -> tuple[int, int] | None:
        """(position, offset from the control block) of a region, or None without room."""
        bank = self.banks[sm % wire.BANK_COUNT]
        position = int(bank["head"])
        bank["head"] = position + size
        if position - int(bank["tail"]) + size > int(bank["mask"]) + 1:
            bank["failed_bytes"] += size
            return None
        return position, int(bank["base"]) + (position & int(bank["mask"]))

    def _open(self, warp: FakeWarp, common: dict[str, Any], position: int, offset: int) -> None:
        header = self._at(offset, wire.REGION_DTYPE)
        for key, value in common.items():
            header[key] = value
        header["position"] = position & 0xFFFFFFFF
        header["cta"] = warp.cta
        header["warp"] = warp.warp
        header["sm"] = warp.sm
        lane_bytes = int(header["lane_bytes"][0])
        main, lane = int(header["main_bytes"][0]), max(lane_bytes - wire.LANE_HEADER_BYTES, 0)
        if common["magic"] == wire.RING_MAGIC:
            main, lane = wire.ring_bytes(main), wire.ring_bytes(lane) if lane else 0
        header["capacity"] = wire.pack_capacity(main, lane)
        header["entry_clock"] = self.clock64(warp.sm, warp.start_ns)
        header["entry_globaltimer"] = self.globaltimer(warp.start_ns)

    def _emit(
        self, kernel: FakeKernel, warp: FakeWarp, common: dict[str, Any], region: int | None
    ) -> dict[int, tuple[int, int]]:
        """Stores the events; returns {lane: (cursor at entry, cursor at exit)} of the lanes that led any."""
        stride = common["stride"]
        if kernel.ring:
            return self._emit_ring(kernel, warp, common, region)
        cursors: dict[int, tuple[int, int]] = {}
        slots: list[int] = []
        entry = self.clock64(warp.sm, warp.start_ns)
        for event in warp.events:
            begin, limit = self._block(common, region or 0, event.lane)
            first, cursor = cursors.get(event.lane, (begin, begin))
            slots.append(cursor)
            token = (slots[event.token] << wire.TOKEN_SHIFT) & wire.TOKEN_MASK if event.token >= 0 else 0
            if event.raw_link is not None:
                token = event.raw_link << wire.LINK_SHIFT
            if region is not None and cursor + stride <= limit:
                self._store(kernel, warp, event, cursor, stride, entry, token)
            cursors[event.lane] = (first, cursor + stride)
        return cursors

    def _emit_ring(
        self, kernel: FakeKernel, warp: FakeWarp, common: dict[str, Any], region: int | None
    ) -> dict[int, tuple[int, int]]:
        """Like ``_emit``, cursors counting events from 0."""
        stride, lanes = common["stride"], common["lane_bytes"] > 0
        counts: dict[int, int] = {}
        tags: list[int] = []
        entry = self.clock64(warp.sm, warp.start_ns)
        for event in warp.events:
            begin, limit = self._block(common, region or 0, event.lane)
            number = counts.get(event.lane, 0)
            counts[event.lane] = number + 1
            tags.append(wire.tag(number, event.lane, lanes=lanes))
            kind = kernel.sites[event.site - 1].kind
            link = tags[event.token] if event.token >= 0 else event.raw_link or 0
            link = tags[-1] if kind == EventKind.START else link
            if region is not None:
                slot = begin + number * stride % wire.ring_bytes(limit - begin)
                self._store(kernel, warp, event, slot, stride, entry, link << wire.LINK_SHIFT)
        return {lane: (0, count) for lane, count in counts.items()}

    def _store(
        self, kernel: FakeKernel, warp: FakeWarp, event: FakeEvent, at: int, stride: int, entry: int, link: int
    ) -> None:
        slot = self._at(at, wire.SLOT16_DTYPE if stride == 16 else wire.SLOT8_DTYPE)
        slot["clock"] = (entry + event.at) & 0xFFFFFFFF
        if kernel.sites[event.site - 1].high:
            link = (entry + event.at >> 32 & 0xFFFF) << wire.LINK_SHIFT
        slot["code"] = event.site | link
        if stride == 16:
            slot["payload"] = event.payload
            if kernel.is_anchor(event.site):
                timer = event.raw_timer
                if timer is None:
                    timer = self.globaltimer(self._true_ns(warp, event.at)) & 0xFFFFFFFF
                slot["payload"] = event.payload & 0xFFFFFFFF | timer << 32

    @staticmethod
    def _block(common: dict[str, Any], region: int, lane: int) -> tuple[int, int]:
        """First slot and limit of a lane's slots, from the control block."""
        main = region + wire.REGION_HEADER_BYTES
        if lane == 0:
            return main, main + int(common["main_bytes"])
        assert common["lane_bytes"], "a lane other than 0 leads an event, but the region has no lane blocks"
        block = main + int(common["main_bytes"]) + (lane - 1) * int(common["lane_bytes"])
        return block + wire.LANE_HEADER_BYTES, block + int(common["lane_bytes"])

    def _close(
        self, warp: FakeWarp, common: dict[str, Any], region: int, cursors: dict[int, tuple[int, int]]
    ) -> None:
        for lane, (first, cursor) in cursors.items():
            if lane:
                begin = self._block(common, region, lane)[0]
                lane_header = self._at(begin - wire.LANE_HEADER_BYTES, wire.LANE_DTYPE)
                lane_header["advance"] = cursor - first
                lane_header["closed"] = wire.CLOSED_MAGIC
        header = self._at(region, wire.REGION_DTYPE)
        first, cursor = cursors.get(0, (0, 0))
        header["advance"] = cursor - first
        header["lane_advance"] = max((c - f for lane, (f, c) in cursors.items() if lane), default=0)
        header["exit_clock"] = self.clock64(warp.sm, warp.start_ns) + int(warp.exit_at or 0)
        header["exit_globaltimer"] = self.globaltimer(self._exit_ns(warp))
        header["closed"] = wire.CLOSED_MAGIC

    def _lose(self, warp: FakeWarp, common: dict[str, Any], cursors: dict[int, tuple[int, int]]) -> None:
        stride = 1 if common["magic"] == wire.RING_MAGIC else common["stride"]
        for lane, (first, cursor) in sorted(cursors.items()):
            slot = int(self.control["lost_head"][0])
            self.control["lost_head"] += 1
            self.control["lost_events"] += (cursor - first) // stride
            if slot >= wire.LOST_CAPACITY:
                continue
            record = self.lost[slot : slot + 1]
            record["magic"] = wire.LOST_MAGIC
            record["lane"] = lane
            record["kernel_id"] = common["kernel_id"]
            record["grid_id"] = common["grid_id"]
            record["cta"] = warp.cta
            record["warp"] = warp.warp
            record["advance"] = cursor - first
            record["stride"] = stride
            record["sm"] = warp.sm
            record["exit_globaltimer"] = self.globaltimer(self._exit_ns(warp))

    def _exit_ns(self, warp: FakeWarp) -> Fraction:
        return self._true_ns(warp, int(warp.exit_at or 0))

    def _true_ns(self, warp: FakeWarp, at: int) -> Fraction:
        """True time of what a warp does: that of the start of its cycle, but never before the entry."""
        entry = self.clock64(warp.sm, warp.start_ns)
        return max(Fraction(warp.start_ns), self.ns_of_cycle(warp.sm, entry + at))

    def _at(self, offset: int, dtype: np.dtype) -> np.ndarray:
        return self.memory[offset : offset + dtype.itemsize].view(dtype)

    # -------------------------------------------------------------------------------------------------- drain
    def images(self) -> list[FakeBankImage]:
        """What lies between tail and head of every bank, in contiguous pieces (two where the bank wrapped)."""
        images = []
        for bank in self.banks:
            tail, head, mask, base = (int(bank[k]) for k in ("tail", "head", "mask", "base"))
            used = head - tail
            if not used:
                continue
            failed = int(bank["failed_bytes"])
            start = tail & mask
            first = min(used, mask + 1 - start)
            length = min(used, mask + 1 - start + self.slack)
            images.append(
                FakeBankImage(self.memory[base + start : base + start + length].copy(), tail, base, mask, failed)
            )
            rest = min(used - first, start)  # behind that lies the first piece again
            if rest:
                images.append(
                    FakeBankImage(self.memory[base : base + rest].copy(), tail + first, base, mask)
                )
        return images

    def clear(self) -> None:
        """Empties the banks, as the runtime does once it has written what they held."""
        self.memory[wire.ARENA_OFFSET :] = 0
        self.banks["head"] = self.banks["tail"] = self.banks["failed_bytes"] = 0

    def lost_records(self) -> np.ndarray:
        return self.lost[: min(int(self.control["lost_head"][0]), wire.LOST_CAPACITY)].copy()


def write_capture(
    directory: Path,
    devices: Sequence[FakeDevice],
    kernels: Sequence[FakeKernel],
    *,
    pid: int = 4242,
    finish: bool = True,
    uuid: str | None = None,
    facts: Mapping[str, Any] | None = None,
    emulated: bool = True,
) -> Path:
    """Writes the devices' memory as a capture directory, the way the runtime does. Returns the directory.

    ``uuid``: of its only device, instead of "GPU-<ordinal>"; ``facts`` are put into the manifest at its end.
    """
    from warptrace.raw import CaptureWriter

    writer = CaptureWriter(
        directory,
        pid=pid,
        argv=["python", "prog.py"],
        host="testhost",
        python="3.12.0",
        warptrace="0.0.0",
        dsl=None,
        started_unix_ns=EPOCH_NS,
        emulated=emulated,
    )
    for kernel in kernels:
        writer.add_kernel(kernel.record)
    for device in devices:
        writer.add_device(
            device.ordinal,
            name=device.name,
            uuid=uuid or f"GPU-{device.ordinal}",
            compute_capability="9.0",
            sm_count=132,
            clock_khz=1_980_000,
            driver="0",
            buffer_bytes=device.bank_bytes * wire.BANK_COUNT,
        )
        writer.write_regions(device.ordinal, device.images())
        lost = device.lost_records()
        if len(lost):
            writer.write_lost(device.ordinal, lost)
        writer.write_control(
            device.ordinal, int(device.control["lost_events"][0]), int(device.control["lost_head"][0])
        )
    writer.set_place(facts or {})
    if finish:
        writer.finish(ended_unix_ns=EPOCH_NS + 1_000_000_000)
    return directory
