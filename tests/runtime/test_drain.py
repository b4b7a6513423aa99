"""The live drain against a simulated device that claims, opens, fills and closes regions at any moment."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.raw import CaptureWriter, read_capture
from warptrace.runtime.drain import Drain
from warptrace.runtime.layout import Layout

LAYOUT = Layout(bank_bytes=4096, slack_bytes=1024)
BANKS = (0, 1)
KERNEL = 77


class NumpyMemory:
    """Trace memory in host memory, as :class:`warptrace.runtime.memory.TraceMemory` wants it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.bytes = np.zeros(layout.total_bytes, np.uint8)
        self.write(wire.BANKS_OFFSET, layout.bank_lines())

    @property
    def lines(self) -> np.ndarray:
        size = wire.BANK_COUNT * wire.BANK_LINE_BYTES
        return self.bytes[wire.BANKS_OFFSET : wire.BANKS_OFFSET + size].view(wire.BANK_DTYPE)

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        return self.bytes[offset : offset + nbytes].copy()

    def read_rows(self, pieces: list[tuple[int, int, int]], nbytes: int) -> list[np.ndarray]:
        return [np.stack([self.read(at + k * pitch, nbytes) for k in range(rows)]) for at, pitch, rows in pieces]

    def clear(self, pieces: list[tuple[int, int]]) -> None:
        for offset, nbytes in pieces:
            self.bytes[offset : offset + nbytes] = 0

    def set_tails(self, tails: np.ndarray) -> None:
        self.lines["tail"] = tails

    def write(self, offset: int, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.bytes[offset : offset + len(raw)] = raw


@dataclass
class Warp:
    """A warp under simulation; it opens with the tail that it read when it claimed, as device code does."""

    bank: int
    number: int
    main: int
    slots: int
    claim: int = 0
    tail: int = 0
    offset: int | None = None
    opened: bool = False
    closed: bool = False


@dataclass
class Device:
    """What device code does to memory, step by step."""

    memory: NumpyMemory
    warps: list[Warp] = field(default_factory=list)

    def claim(self, bank: int, lines: int, slots: int) -> None:
        warp = Warp(bank, len(self.warps), lines * wire.REGION_ALIGN, slots)
        line = self.memory.lines[bank]
        warp.claim, warp.tail = int(line["head"]), int(line["tail"])
        line["head"] += wire.region_bytes(warp.main, 0)
        self.warps.append(warp)

    def open(self, warp: Warp) -> None:
        warp.opened = True
        size = wire.region_bytes(warp.main, 0)
        line = self.memory.lines[warp.bank]
        if warp.claim - warp.tail + size > int(line["mask"]) + 1:
            line["failed_bytes"] += size
            warp.closed = True
            return
        warp.offset = int(line["base"]) + (warp.claim & int(line["mask"]))
        header = np.zeros(1, wire.REGION_DTYPE)
        header["magic"], header["position"] = wire.REGION_MAGIC, warp.claim & 0xFFFFFFFF
        header["kernel_id"], header["warp"], header["main_bytes"] = KERNEL, warp.number, warp.main
        header["grid"], header["block"], header["stride"] = 1, wire.pack_block(32, 1, 1), 8
        header["capacity"] = wire.pack_capacity(warp.main, 0)
        assert not self.memory.bytes[warp.offset : warp.offset + size].any(), "a claimed region begins empty"
        self.memory.write(warp.offset, header)

    def close(self, warp: Warp) -> None:
        warp.closed = True
        assert warp.offset is not None
        stored = np.zeros(min(warp.slots, warp.main // 8), wire.SLOT8_DTYPE)
        stored["clock"] = 1 + warp.number
        stored["code"] = 1
        self.memory.write(warp.offset + wire.REGION_HEADER_BYTES, stored)
        words = np.array([warp.slots * 8, wire.CLOSED_MAGIC], np.uint32)
        self.memory.write(warp.offset + 96, words)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from(BANKS), st.integers(1, 7), st.integers(0, 130)),
        st.tuples(st.just("open"), st.integers(0, 400)),
        st.tuples(st.just("close"), st.integers(0, 400)),
        st.tuples(st.just("step")),
    ),
    max_size=120,
)


def writer(directory: Path) -> CaptureWriter:
    made = CaptureWriter(
        directory, pid=1, argv=[], host="h", python="3", warptrace="0", dsl=None, started_unix_ns=0
    )
    made.add_device(
        0, name="d", uuid="0", compute_capability="9.0", sm_count=1, clock_khz=1, driver="0", buffer_bytes=1
    )
    return made


def captured(directory: Path) -> dict[int, tuple[int, list[int]]]:
    """Warp number -> (advance, clocks of its slots); fails on a warp that was captured twice."""
    out: dict[int, tuple[int, list[int]]] = {}
    for batch in read_capture(directory).batches():
        at = 0
        for header, count in zip(batch.headers, batch.stored, strict=True):
            slots = batch.slots[at : at + count]
            at += int(count)
            assert int(header["warp"]) not in out
            out[int(header["warp"])] = (int(header["advance"]), slots["clock"].tolist())
    return out


def run(actions: list[tuple], directory: Path) -> tuple[Device, dict[int, tuple[int, list[int]]]]:
    memory = NumpyMemory(LAYOUT)
    device = Device(memory)
    capture = writer(directory)
    drain = Drain(memory, 0, capture)
    for action, *args in actions:
        if action == "claim":
            device.claim(*args)
        elif action == "step":
            drain.step()
        else:
            ready = [w for w in device.warps if not w.closed and w.opened == (action == "close")]
            if ready:
                getattr(device, action)(ready[args[0] % len(ready)])
    for warp in device.warps:
        if not warp.opened:
            device.open(warp)
        if not warp.closed:
            device.close(warp)
    drain.finish()
    capture.finish(ended_unix_ns=1)
    return device, captured(directory)


@given(ACTIONS)
@settings(max_examples=150, deadline=None)
def test_every_region_is_captured_once_and_whole(actions: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device, got = run(actions, Path(folder) / "pid_1")
    recorded = [w for w in device.warps if w.offset is not None]
    expected = {w.number: (w.slots * 8, [1 + w.number] * min(w.slots, w.main // 8)) for w in recorded}
    assert got == expected
    assert not device.memory.bytes[wire.ARENA_OFFSET :].any(), "what was drained is zero again"


def test_memory_is_used_over_and_over(tmp_path: Path) -> None:
    """40 laps of a ring, regions of all sizes, none lost and none refused."""
    actions: list[tuple] = []
    for k in range(400):
        actions += [("claim", 0, 1 + k % 3, k % 50), ("open", 0), ("close", 0), ("step",), ("step",)]
    device, got = run(actions, tmp_path / "pid_1")
    assert len(got) == 400
    assert device.memory.lines["head"][0] > 30 * LAYOUT.bank_bytes
    assert device.memory.lines["failed_bytes"].sum() == 0


def test_a_header_still_to_come_is_never_passed_over(tmp_path: Path) -> None:
    """Refused claims behind an unopened one must not let the drain skip it."""
    late = [("claim", 0, 4, 9)]
    refused = [("claim", 0, 7, 1), ("open", 1)] * 12
    actions = [*late, *refused, ("step",), ("step",), ("step",), ("open", 0), ("close", 0)]
    device, got = run(actions, tmp_path / "pid_1")
    assert got[0] == (72, [1] * 9)


def test_recording_goes_on_after_a_bank_was_full(tmp_path: Path) -> None:
    fill = [("claim", 0, 7, 3), ("open", 0)] * 8
    actions = [*fill, *[("close", 0)] * 8, ("step",), ("step",), ("claim", 0, 7, 5), ("open", 0), ("close", 0)]
    device, got = run(actions, tmp_path / "pid_1")
    assert [w.offset is None for w in device.warps] == [False] * 4 + [True] * 4 + [False]
    assert got[8] == (40, [9] * 5)


def test_a_gap_before_a_closed_region_is_waited_for(tmp_path: Path) -> None:
    actions = [("claim", 0, 4, 9), ("claim", 0, 4, 2), ("open", 1), ("close", 0)]
    actions += [("step",), ("step",), ("step",), ("open", 0), ("close", 0), ("step",), ("step",)]
    device, got = run(actions, tmp_path / "pid_1")
    assert got == {0: (72, [1] * 9), 1: (16, [2, 2])}
