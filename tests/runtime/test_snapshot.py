"""Snapshots of a simulated device whose warps claim, open, record and close at any moment, drained meanwhile."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_drain import NumpyMemory

from warptrace import wire
from warptrace.decode import decode
from warptrace.raw import CaptureWriter, read_capture
from warptrace.runtime import snapshot
from warptrace.runtime.drain import Drain
from warptrace.runtime.layout import Layout
from warptrace.sites import KernelRecord, Site
from warptrace.wire import EventKind, PayloadType

KERNEL = 77
LAYOUT = Layout(bank_bytes=16384, slack_bytes=5120)
BANKS = (0, 1)
LANE_BYTES = 128
LANES = (0, 3)
FACTS = {
    "name": "simulated", "uuid": "00", "compute_capability": "9.0", "sm_count": 132, "clock_khz": 0, "driver": "",
    "buffer_bytes": LAYOUT.total_bytes,
}  # fmt: skip
RECORD = KernelRecord(
    kernel_id=KERNEL, symbol="k", name="k", arch="sm_90a", stride=16, slack=0, lane_events=True, max_events=None,
    sites=(Site(1, EventKind.MARK, "tick", PayloadType.U64, "k.py", 1),), build={},
)  # fmt: skip


@dataclass
class Warp:
    """A warp under simulation. ``seen`` counts, by lane, events of which code and payload are in memory."""

    bank: int
    number: int
    main: int
    claim: int
    tail: int
    offset: int | None = None
    opened: bool = False
    closed: bool = False
    events: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    pending: list[tuple[int, np.ndarray]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return wire.region_bytes(self.main, LANE_BYTES)

    def room(self, lane: int) -> int:
        return self.main // 16 if lane == 0 else (LANE_BYTES - 8) // 16


@dataclass
class Device:
    """What device code does to memory. A slot's payload and its code are two stores, and either may come first."""

    memory: NumpyMemory
    warps: list[Warp] = field(default_factory=list)

    def claim(self, bank: int, lines: int) -> None:
        line = self.memory.lines[bank]
        main = lines * wire.REGION_ALIGN
        warp = Warp(bank, len(self.warps), main, int(line["head"]), int(line["tail"]))
        line["head"] += warp.size
        self.warps.append(warp)

    def open(self, warp: Warp) -> None:
        line = self.memory.lines[warp.bank]
        warp.opened = True
        if warp.claim - warp.tail + warp.size > int(line["mask"]) + 1:
            line["failed_bytes"] += warp.size
            warp.closed = True
            return
        warp.offset = int(line["base"]) + (warp.claim & int(line["mask"]))
        header = np.zeros(1, wire.REGION_DTYPE)
        header["magic"], header["position"] = wire.REGION_MAGIC, warp.claim & 0xFFFFFFFF
        header["kernel_id"], header["main_bytes"], header["lane_bytes"] = KERNEL, warp.main, LANE_BYTES
        header["grid_id"], header["cta"][0, 0], header["grid"] = 1, warp.number, (1000, 1, 1)
        header["block"], header["stride"], header["sm"] = wire.pack_block(32, 1, 1), 16, warp.number % 132
        header["capacity"] = wire.pack_capacity(warp.main, LANE_BYTES - 8)
        header["entry_clock"] = header["entry_globaltimer"] = 1000 * (warp.number + 1)
        self.memory.write(warp.offset, header)

    def record(self, warp: Warp, lane: int, first: str) -> None:
        """``first``: the only store that is there for now, or both."""
        assert warp.offset is not None
        self.land(warp)
        n = warp.events[lane]
        warp.events[lane] += 1
        if n >= warp.room(lane):
            return
        at = warp.offset + wire.REGION_HEADER_BYTES + 16 * n
        if lane:
            at += warp.main + (lane - 1) * LANE_BYTES + 8
        clock = 1000 * (warp.number + 1) + n + 1
        stores = [(at, np.array([clock, 1], np.uint32)), (at + 8, np.array([_payload(warp, lane, n)], np.uint64))]
        warp.pending = stores if first != "payload" else stores[::-1]
        self.memory.write(*warp.pending.pop(0))
        if first == "both":
            self.land(warp)

    def land(self, warp: Warp) -> None:
        for at, data in warp.pending:
            self.memory.write(at, data)
        warp.pending = []

    def close(self, warp: Warp) -> None:
        assert warp.offset is not None
        self.land(warp)
        warp.closed = True
        for lane in LANES[1:]:
            if warp.events[lane]:
                at = warp.offset + wire.REGION_HEADER_BYTES + warp.main + (lane - 1) * LANE_BYTES
                self.memory.write(at, np.array([16 * warp.events[lane], wire.CLOSED_MAGIC], np.uint32))
        self.memory.write(warp.offset + 96, np.array([16 * warp.events[0], wire.CLOSED_MAGIC], np.uint32))
        times = np.array([1000 * (warp.number + 1) + 500] * 2, np.uint64)
        self.memory.write(warp.offset + 104, times)


def _payload(warp: Warp, lane: int, n: int) -> int:
    return 1 + n + 1000 * lane + 100_000 * warp.number


HOW = ("both", "code", "payload")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(BANKS), st.integers(1, 4)),
        st.tuples(st.just("claim"), st.sampled_from(BANKS), st.integers(1, 4)),
        st.tuples(st.just("open"), st.integers(0, 20)),
        st.tuples(st.just("record"), st.integers(0, 20), st.sampled_from(LANES), st.sampled_from(HOW)),
        st.tuples(st.just("record"), st.integers(0, 20), st.sampled_from(LANES), st.just("code")),
        st.tuples(st.just("close"), st.integers(0, 20)),
        st.tuples(st.just("step")),
    ),
    max_size=60,
)


def act(device: Device, drain: Drain, actions: list[tuple[Any, ...]]) -> None:
    for action in actions:
        kind, rest = action[0], action[1:]
        waiting = [w for w in device.warps if not w.opened]
        running = [w for w in device.warps if w.opened and not w.closed]
        if kind in ("start", "claim"):
            device.claim(*rest)
            if kind == "start":
                device.open(device.warps[-1])
        elif kind == "open" and waiting:
            device.open(waiting[rest[0] % len(waiting)])
        elif kind == "record" and running:
            device.record(running[rest[0] % len(running)], *rest[1:])
        elif kind == "close" and running:
            device.close(running[rest[0] % len(running)])
        elif kind == "step":
            drain.step()


def settled(device: Device) -> dict[int, tuple[bool, dict[int, int]]]:
    """By warp with a region: whether it has ended, and events whose code is in memory now, by lane."""
    found = {}
    for warp in device.warps:
        if warp.offset is not None:
            stored = {lane: min(warp.events[lane], warp.room(lane)) for lane in LANES}
            found[warp.number] = (warp.closed, stored)
    return found


def recorded(directory: Path) -> tuple[dict[int, tuple[bool, dict[int, int]]], int]:
    """The same, of a capture as decoded, and the number of warps; payloads are compared on the way."""
    trace = decode([read_capture(directory)])
    found: dict[int, tuple[bool, dict[int, int]]] = {}
    counts = np.zeros((len(trace.warps), 32), np.int64)
    np.add.at(counts, (trace.markers.warp, trace.markers.lane), 1)
    for row in range(len(trace.warps)):
        number = int(trace.warps.cta[row, 0])
        assert number not in found, "a warp counts once"
        found[number] = (bool(trace.warps.closed[row]), {lane: int(counts[row, lane]) for lane in LANES})
        for lane in LANES:
            mine = (trace.markers.warp == row) & (trace.markers.lane == lane)
            expected = [1 + n + 1000 * lane + 100_000 * number for n in range(int(mine.sum()))]
            assert trace.markers.bits[mine].tolist() == expected, "no payload is half-written"
    return found, len(trace.warps)


@settings(max_examples=100, deadline=None)
@given(ACTIONS, ACTIONS, ACTIONS, st.booleans())
def test_a_snapshot_loses_nothing_and_counts_nothing_twice(
    before: list[Any], between: list[Any], after: list[Any], killed: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "pid_7"
        memory = NumpyMemory(LAYOUT)
        writer = CaptureWriter(
            directory, pid=7, argv=[], host="", python="", warptrace="", dsl=None, started_unix_ns=0
        )
        writer.add_device(0, **FACTS)
        writer.add_kernel(RECORD)
        device, drain = Device(memory), Drain(memory, 0, writer)
        act(device, drain, [("start", bank, 2) for bank in BANKS] + before)
        at_look: list[dict[int, tuple[bool, dict[int, int]]]] = []

        def clock() -> None:
            at_look.append(settled(device))

        source = snapshot.Source(7, 0, directory, memory, FACTS, clock)
        work = snapshot._Work(source, snapshot.Taken(7, 0))
        snapshot._look(work)
        opened = sum(not closed for closed, _ in at_look[0].values())
        handed_back = {w.number for w in device.warps if w.offset is not None and w.claim < _tail(memory, w)}
        assert work.taken.open == opened
        # The warps go on while the snapshot is taken; slots that were half-written at the first look land meanwhile.
        old = [(warp, warp.pending) for warp in device.warps]
        act(device, drain, between)
        for warp, pending in old:
            if warp.pending is pending:
                device.land(warp)
        snapshot._write(directory, [work], 0)
        assert work.taken.error is None
        assert work.taken.regions + work.taken.gone == len(at_look[0]) - len(handed_back)
        act(device, drain, after)
        if not killed:  # the program waits for the device, then drains
            for warp in device.warps:
                device.land(warp)
            drain.finish()
            writer.finish(ended_unix_ns=1)
        found, count = recorded(directory)
        final = settled(device)
        assert count == len(found)
        if not killed:
            assert found == final
        for number, (closed, events) in at_look[0].items():
            assert number in found, "what was there at the first look is there"
            assert found[number][0] >= closed
            for lane, n in events.items():
                assert n - (0 if closed else 1) <= found[number][1][lane] <= final[number][1][lane]


def _tail(memory: NumpyMemory, warp: Warp) -> int:
    return int(memory.lines[warp.bank]["tail"])


# ----------------------------------------------------------------------------------------------- what one look cannot
@dataclass
class Scene:
    """A device with one warp that has recorded two events, and a snapshot of it in two steps."""

    directory: Path

    def __post_init__(self) -> None:
        self.memory = NumpyMemory(LAYOUT)
        self.writer = CaptureWriter(
            self.directory, pid=7, argv=[], host="", python="", warptrace="", dsl=None, started_unix_ns=0
        )
        self.writer.add_device(0, **FACTS)
        self.writer.add_kernel(RECORD)
        self.device, self.drain = Device(self.memory), Drain(self.memory, 0, self.writer)
        self.device.claim(0, 2)
        self.warp = self.device.warps[0]
        self.device.open(self.warp)
        for _ in range(2):
            self.device.record(self.warp, 0, "both")
        self.work = snapshot._Work(
            snapshot.Source(7, 0, self.directory, self.memory, FACTS, lambda: None), snapshot.Taken(7, 0)
        )

    def first(self) -> None:
        snapshot._look(self.work)

    def second(self) -> snapshot.Taken:
        snapshot._write(self.directory, [self.work], 0)
        assert self.work.taken.error is None
        return self.work.taken


def test_a_slot_that_came_between_the_looks_is_left_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    scene.first()
    scene.device.record(scene.warp, 0, "code")  # its payload is still on its way
    taken = scene.second()
    assert (taken.regions, taken.open, taken.moved, taken.gone) == (1, 1, 1, 0)
    assert recorded(scene.directory)[0] == {0: (False, {0: 2, 3: 0})}


def test_a_payload_that_came_between_the_looks_is_there(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    scene.device.record(scene.warp, 0, "code")
    scene.first()
    scene.device.land(scene.warp)
    taken = scene.second()
    assert (taken.open, taken.moved) == (1, 0)
    assert recorded(scene.directory)[0] == {0: (False, {0: 3, 3: 0})}


def test_an_exit_that_came_between_the_looks_is_not_believed(tmp_path: Path) -> None:
    """The slots of a warp may arrive after its exit; what ended while we looked counts as running."""
    scene = Scene(tmp_path / "pid_7")
    scene.first()
    scene.device.record(scene.warp, 3, "both")
    scene.device.close(scene.warp)
    taken = scene.second()
    assert (taken.open, taken.moved) == (1, 1)
    assert recorded(scene.directory)[0] == {0: (False, {0: 2, 3: 0})}


def test_an_exit_of_the_first_look_brings_all_slots_of_the_second(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    slot = scene.warp.offset + wire.REGION_HEADER_BYTES + 16
    late = scene.memory.read(slot, 16)
    scene.memory.write(slot, np.zeros(16, np.uint8))
    scene.device.close(scene.warp)
    scene.first()
    scene.memory.write(slot, late)
    taken = scene.second()
    assert (taken.open, taken.moved) == (0, 0)
    assert recorded(scene.directory)[0] == {0: (True, {0: 2, 3: 0})}


def test_a_region_that_is_being_cleared_is_left_out(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    scene.device.close(scene.warp)
    scene.first()
    scene.memory.write(scene.warp.offset + wire.REGION_HEADER_BYTES, np.zeros(64, np.uint8))
    taken = scene.second()
    assert (taken.regions, taken.gone) == (0, 1)
    assert recorded(scene.directory)[0] == {}


def test_claims_without_a_header_are_counted(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    scene.device.claim(0, 2)
    scene.device.claim(1, 2)
    scene.first()
    taken = scene.second()
    assert (taken.regions, taken.unopened_bytes) == (1, 2 * scene.warp.size)


def test_memory_that_is_not_trace_memory_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "pid_7")
    scene.memory.lines["base"][5] += 128
    (taken,) = snapshot.take([scene.work.source], pause_s=0)
    assert taken.error == "what was mapped is not the trace memory"
    assert not (scene.directory / "snapshot").exists()
