"""Runs a compiled kernel on the emulator with a trace memory of its own, and reads back the records of each warp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dsl_build import Built

from warptrace import wire
from warptrace.emulator import Device
from warptrace.wire import EventKind

BANK_BYTES = 1 << 16


@dataclass(frozen=True)
class Record:
    """One event as recorded. ``start``: index of the record of this warp that the END's link names, else None.
    ``timer``: low half of the global timer where the site is an anchor, else None."""

    name: str
    kind: EventKind
    lane: int
    payload: int | None
    start: int | None
    timer: int | None


@dataclass(frozen=True)
class WarpTrace:
    """``advance``: events counted by lane 0 and by the other lanes."""

    cta: tuple[int, int, int]
    warp: int
    records: tuple[Record, ...]
    advance: int
    lane_advance: dict[int, int]

    def named(self) -> list[str]:
        return [r.name or r.kind.name for r in self.records]


def run(
    built: Built,
    args: Sequence[Any],
    *,
    grid: int = 1,
    block: Any = 32,
    seed: int = 1,
    main: int = 1024,
    lane: int = 256,
    smem: int = 0,
) -> tuple[list[WarpTrace], Device]:
    """Launches the module's only kernel. Arguments that are arrays are copied to the device, those that are functions
    make the argument from the device. Warps in order."""
    device = Device(seed)
    control = device.zeros(wire.ARENA_OFFSET + wire.BANK_COUNT * BANK_BYTES * 2, np.uint8)
    memory = np.zeros(wire.ARENA_OFFSET, np.uint8)
    banks = np.ndarray(wire.BANK_COUNT, wire.BANK_DTYPE, memory, wire.BANKS_OFFSET)
    banks["mask"] = BANK_BYTES - 1
    banks["base"] = wire.ARENA_OFFSET + 2 * BANK_BYTES * np.arange(wire.BANK_COUNT)
    device.write_bytes(control.address, memory.tobytes())
    values = [_argument(device, a) for a in args]
    rules = built.record.launch_rules
    region = wire.region_word(wire.exact_main(main), lane, rules, 1, 1)
    hidden = wire.hidden_parameters(control.address, region, 0, rules)
    kernel = device.load(built.ptx).kernel(built.record.symbol)
    kernel.launch(grid, block, [*values, *hidden], smem=smem)
    return _read(device.read(control), built), device


def _argument(device: Device, value: Any) -> Any:
    if callable(value):
        return value(device)
    return device.alloc(value).address.to_bytes(8, "little") if isinstance(value, np.ndarray) else value


def _read(memory: np.ndarray, built: Built) -> list[WarpTrace]:
    banks = np.ndarray(wire.BANK_COUNT, wire.BANK_DTYPE, memory, wire.BANKS_OFFSET)
    assert not banks["failed_bytes"].any()
    out = []
    for bank in banks:
        at, end = int(bank["base"]), int(bank["base"]) + int(bank["head"])
        while at < end:
            region = np.ndarray(1, wire.REGION_DTYPE, memory, at)[0]
            assert int(region["magic"]) == wire.REGION_MAGIC
            assert int(region["closed"]) == wire.CLOSED_MAGIC
            assert int(region["kernel_id"]) == built.record.kernel_id
            out.append(_warp(memory, at, region, built))
            at += wire.region_bytes(int(region["main_bytes"]), int(region["lane_bytes"]))
    return sorted(out, key=lambda w: (w.cta, w.warp))


def _warp(memory: np.ndarray, at: int, region: Any, built: Built) -> WarpTrace:
    stride, main, lane_bytes = int(region["stride"]), int(region["main_bytes"]), int(region["lane_bytes"])
    first = at + wire.REGION_HEADER_BYTES
    blocks = [(0, first, int(region["advance"]))]
    for lane in range(1, 32 if lane_bytes else 1):
        block = first + main + (lane - 1) * lane_bytes
        header = np.ndarray(1, wire.LANE_DTYPE, memory, block)[0]
        if int(header["closed"]) == wire.CLOSED_MAGIC:
            blocks.append((lane, block + wire.LANE_HEADER_BYTES, int(header["advance"])))
    slots = []
    for lane, begin, advance in blocks:
        assert advance % stride == 0
        for slot in range(begin, begin + advance, stride):
            clock, code = (int(x) for x in np.ndarray(2, "<u4", memory, slot))
            payload = int(np.ndarray(1, "<u8", memory, slot + 8)[0]) if stride == 16 else 0
            slots.append((clock, lane, slot, code, payload))
    slots.sort()
    links = {slot // 8 & 0xFFFF: i for i, (_, _, slot, _, _) in enumerate(slots)}
    records = []
    for _, lane, _, code, payload in slots:
        assert code & wire.SITE_MASK, "a slot was counted and not written"
        site = built.record.sites[(code & wire.SITE_MASK) - 1]
        bits = wire.PAYLOAD_BITS[site.payload]
        start = links[code >> wire.LINK_SHIFT] if site.kind == EventKind.END else None
        mask = (1 << (64 if bits == 64 else 32)) - 1
        timer = payload >> 32 if site.anchor else None
        records.append(Record(site.name, site.kind, lane, payload & mask if bits else None, start, timer))
    cta = tuple(int(x) for x in region["cta"])
    others = {lane: advance // stride for lane, _, advance in blocks if lane}
    return WarpTrace(cta, int(region["warp"]), tuple(records), int(region["advance"]) // stride, others)  # type: ignore[arg-type]
