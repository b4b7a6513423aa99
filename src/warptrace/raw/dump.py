"""A capture as text, one record a line: for people, for diffs and for tests. The format is stable."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ..sites import KernelRecord, Site
from ..wire import (
    CLOSED_MAGIC,
    LINK_SHIFT,
    PAYLOAD_BITS,
    RING_MAGIC,
    SITE_MASK,
    PayloadType,
    launch_text,
    launch_words,
    unpack_block,
    unpack_capacity,
    unpack_cluster,
)
from .format import REGION_OFFSET_FIELD
from .reader import Capture, RegionBatch, read_capture

_FLOATS = {PayloadType.F16: "<e", PayloadType.F32: "<f", PayloadType.F64: "<d"}
_SIGNED = (PayloadType.I8, PayloadType.I16, PayloadType.I32, PayloadType.I64)


def payload_value(kind: PayloadType, bits: int) -> bool | int | float | None:
    """The typed value of a payload's bit pattern; None for NONE. Bits beyond the type are ignored."""
    width = PAYLOAD_BITS[kind]
    bits &= (1 << width) - 1
    if kind == PayloadType.NONE:
        return None
    if kind == PayloadType.BOOL:
        return bool(bits)
    if kind == PayloadType.BF16:
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    if kind in _FLOATS:
        return float(struct.unpack(_FLOATS[kind], bits.to_bytes(width // 8, "little"))[0])
    if kind in _SIGNED and bits >> (width - 1):
        return bits - (1 << width)
    return bits


def dump(directory: str | os.PathLike[str], out: TextIO) -> None:
    """Prints a capture directory as text. Raises CaptureError as :func:`read_capture` does.

    Lines start with their kind: ``capture``, ``device``, ``clock``, ``launches``, ``uninstrumented``, ``note`` (the
    manifest's problems), ``undrained``, ``kernel``, ``site``, ``region``, ``slot``, ``lost``, ``control``, ``damage``,
    ``host``, ``problem``.
    A slot is named ``<region>.<lane>.<index>``.
    """
    capture = read_capture(directory)
    for line in _lines(capture):
        out.write(line + "\n")


def _lines(capture: Capture) -> Iterator[str]:
    yield from _manifest_lines(capture.manifest)
    for record in sorted(capture.kernels.values(), key=lambda r: r.kernel_id):
        yield from _kernel_lines(record)
    first = 0
    for batch in capture.batches():
        yield from _batch_lines(batch, capture.kernels, first)
        first += len(batch.headers)
    for kind, tables in (("lost", capture.lost()), ("control", capture.control()), ("damage", capture.damage())):
        for device, table in tables.items():
            for row in table:
                yield f"{kind} device {device} {_fields(row)}"
    for entry in capture.host:
        yield "host " + " ".join(_text(str(part)) for part in entry)
    for problem in capture.problems:
        yield f"problem {problem.kind} {problem.count} {problem.text}"


def _manifest_lines(manifest: dict[str, Any]) -> Iterator[str]:
    lists = ("devices", "clocks", "uninstrumented", "problems", "launches", "undrained")
    yield "capture " + _pairs({k: v for k, v in manifest.items() if k not in lists})
    for device in manifest.get("devices", []):
        yield "device " + _pairs(device)
    for clock in manifest.get("clocks", []):
        yield "clock " + _pairs(clock)
    for kernel, count in sorted(manifest.get("launches", {}).items()):
        yield f"launches {kernel} {count}"
    for symbol in manifest.get("uninstrumented", []):
        yield "uninstrumented " + _text(symbol)
    for text in manifest.get("problems", []):
        yield "note " + _text(text)
    for device in manifest.get("undrained", []):
        yield "undrained " + _pairs(device)


def _kernel_lines(record: KernelRecord) -> Iterator[str]:
    facts = record.to_json()
    del facts["sites"], facts["kernel_id"]
    yield f"kernel {record.kernel_id:016x} " + _pairs(facts)
    for s in record.sites:
        where = _text(f"{s.file}:{s.line}")
        yield f"site {record.kernel_id:016x} {s.id} {s.kind.name} {_text(s.name)} {s.payload.name} {where}"


def _batch_lines(batch: RegionBatch, kernels: dict[int, KernelRecord], first: int) -> Iterator[str]:
    main_ends = np.cumsum(batch.stored, dtype=np.int64)
    lane_ends = np.cumsum(batch.lanes["stored"], dtype=np.int64)
    streams: dict[int, list[int]] = {}
    for row, region in enumerate(batch.lanes["region"].tolist()):
        streams.setdefault(region, []).append(row)
    for i, header in enumerate(batch.headers):
        record = kernels.get(int(header["kernel_id"]))
        sites = {s.id: s for s in record.sites} if record else {}
        number = first + i
        yield f"region {number} device {batch.device} {_region_fields(header, int(batch.stored[i]))}"
        slots = batch.slots[int(main_ends[i]) - int(batch.stored[i]) : int(main_ends[i])]
        yield from _slot_lines(f"{number}.0", slots, sites)
        for row in streams.get(i, ()):
            stream = batch.lanes[row]
            name = f"{number}.{stream['lane']}"
            yield f"lane {name} advance {stream['advance']} stored {stream['stored']}"
            end = int(lane_ends[row])
            yield from _slot_lines(name, batch.lane_slots[end - int(stream["stored"]) : end], sites)


def _region_fields(header: np.void, stored: int) -> str:
    closed = int(header["closed"]) == CLOSED_MAGIC
    block = unpack_block(np.array([header["block"]]))[0]
    cluster = unpack_cluster(np.array([header["cluster"]]))[0]
    capacity = ",".join(str(int(n[0])) for n in unpack_capacity(np.array([header["capacity"]])))
    kind = ["ring"] if int(header["magic"]) == RING_MAGIC else []
    facts = [
        *kind,
        f"kernel {int(header['kernel_id']):016x}",
        f"grid_id {header['grid_id']} launch {launch_text(int(launch_words(header.reshape(1))[0]))}",
        f"cta {_dims(header['cta'])} warp {header['warp']} sm {header['sm']} capacity {capacity}",
        f"grid {_dims(header['grid'])} block {_dims(block)} cluster {_dims(cluster)}",
        f"position {header['position']} offset {header[REGION_OFFSET_FIELD]}",
        f"main_bytes {header['main_bytes']} lane_bytes {header['lane_bytes']} stride {header['stride']}",
        f"entry_clock {header['entry_clock']} entry_globaltimer {header['entry_globaltimer']}",
    ]
    if closed:
        facts.append(f"exit_clock {header['exit_clock']} exit_globaltimer {header['exit_globaltimer']}")
        facts.append(f"advance {header['advance']}")
    facts.append(f"closed {'yes' if closed else 'no'} stored {stored}")
    return " ".join(facts)


def _slot_lines(name: str, slots: NDArray[np.void], sites: dict[int, Site]) -> Iterator[str]:
    for index, slot in enumerate(slots):
        code = int(slot["code"])
        site = sites.get(code & SITE_MASK)
        text = f"slot {name}.{index} clock {slot['clock']} site {code & SITE_MASK} "
        text += f"{site.kind.name} {_text(site.name)}" if site else "unknown"
        if code >> LINK_SHIFT:
            text += f" link {code >> LINK_SHIFT}"
        if site and site.payload != PayloadType.NONE and slots.dtype.itemsize == 16:
            narrow = site.anchor or PAYLOAD_BITS[site.payload] <= 32  # above it, in rings, is what was there before
            bits = int(slot["payload"]) & (0xFFFFFFFF if narrow else 2**64 - 1)
            text += f" payload {site.payload.name} {payload_value(site.payload, bits)} bits {bits:#x}"
        if site and site.anchor:
            text += f" globaltimer_lo {int(slot['payload']) >> 32}"
        yield text


def _dims(values: NDArray[Any]) -> str:
    return ",".join(str(int(v)) for v in values)


def _fields(row: np.void) -> str:
    assert row.dtype.names is not None
    parts = []
    for name in row.dtype.names:
        if name == "kernel_id":
            parts.append(f"kernel {int(row[name]):016x}")
        elif name not in ("magic", "reserved"):
            parts.append(f"{name} {_dims(row[name]) if row[name].shape else row[name]}")
    return " ".join(parts)


def _pairs(facts: dict[str, Any]) -> str:
    return " ".join(f"{k} {json.dumps(v, ensure_ascii=False, sort_keys=True)}" for k, v in facts.items())


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
