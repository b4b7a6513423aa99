"""Captures -> flat tables of regions, streams, lost warps and sites. No interpretation yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..raw import Capture, RegionBatch
from ..raw.format import valid_headers
from ..sites import KernelRecord
from ..trace import Problem, TraceSite
from ..wire import CLOSED_MAGIC, LOST_DTYPE, PAYLOAD_BITS, REGION_DTYPE, RING_MAGIC, EventKind, unpack_block

Bool = NDArray[np.bool_]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class Regions:
    """One row a region. ``process`` indexes the captures, ``device`` is the ordinal; ``batch`` and ``row`` say where
    the region was read. ``stored``: main slots kept."""

    headers: NDArray[np.void]
    process: I32
    device: I32
    batch: I32
    row: I32
    stored: I64
    closed: Bool

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def ring(self) -> Bool:
        """Whether the region keeps the newest events."""
        rings: Bool = self.headers["magic"] == RING_MAGIC
        return rings

    def select(self, rows: I64 | Bool | slice) -> Regions:
        """The given rows."""
        return Regions(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class LostRows:
    """One row an entry of a lost table: LOST_DTYPE and where it comes from."""

    records: NDArray[np.void]
    process: I32
    device: I32

    def __len__(self) -> int:
        return len(self.records)


def read_regions(captures: Sequence[Capture]) -> tuple[Regions, list[RegionBatch], list[Problem]]:
    """All regions of all captures; damaged ones are left out and counted."""
    batches: list[RegionBatch] = []
    parts: list[Regions] = []
    for process, capture in enumerate(captures):
        for batch in capture.batches():
            n = len(batch.headers)
            parts.append(
                Regions(
                    headers=batch.headers,
                    process=np.full(n, process, np.int32),
                    device=np.full(n, batch.device, np.int32),
                    batch=np.full(n, len(batches), np.int32),
                    row=np.arange(n, dtype=np.int32),
                    stored=batch.stored.astype(np.int64),
                    closed=batch.headers["closed"] == CLOSED_MAGIC,
                )
            )
            batches.append(batch)
    regions = _concatenate(parts)
    ok = valid_headers(regions.headers) & _inside_grid(regions.headers)
    if ok.all():
        return regions, batches, []
    bad = int((~ok).sum())
    slots = int(regions.stored[~ok].sum())
    text = f"{bad} regions with impossible header fields are left out, with {slots} events"
    return regions.select(ok), batches, [Problem("damaged_region", bad, text)]


def _concatenate(parts: list[Regions]) -> Regions:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.zeros(0, np.int32)
        return Regions(np.zeros(0, REGION_DTYPE), none, none, none, none, np.zeros(0, np.int64), np.zeros(0, np.bool_))
    names = Regions.__dataclass_fields__
    return Regions(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _inside_grid(headers: NDArray[np.void]) -> Bool:
    inside = np.all(headers["cta"] < headers["grid"], axis=1)
    ok: Bool = inside & (headers["warp"] < warps_per_cta(headers["block"]))
    return ok


def warps_per_cta(packed_block: NDArray[np.uint32]) -> I64:
    """Warps in a CTA, (n,) i64, from packed block dimensions."""
    warps: I64 = (unpack_block(packed_block).astype(np.int64).prod(axis=1) + 31) // 32
    return warps


def read_lost(captures: Sequence[Capture]) -> LostRows:
    """The rows of all lost tables; a table that was drained twice counts once."""
    records, process, device = [np.zeros(0, LOST_DTYPE)], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for index, capture in enumerate(captures):
        for ordinal, table in capture.lost().items():
            rows = distinct(table)
            records.append(rows)
            process.append(np.full(len(rows), index, np.int32))
            device.append(np.full(len(rows), ordinal, np.int32))
    return LostRows(np.concatenate(records), np.concatenate(process), np.concatenate(device))


def distinct(table: NDArray[np.void]) -> NDArray[np.void]:
    """The table without rows that are equal in every byte, which are one warp's: they hold the time of its exit."""
    octets = np.ascontiguousarray(table).view(f"V{table.dtype.itemsize}")
    first = np.unique(octets, return_index=True)[1]
    return table[np.sort(first)]


@dataclass(frozen=True)
class SiteTable:
    """Sites of all kernels, and the way from (kernel, site id) to them.

    ``sites`` and ``strings`` are those of the trace. Per site: ``kind``, ``payload``, ``mask`` (the payload's bits),
    ``name`` (index into ``strings``), ``anchor`` (its records hold %globaltimer), ``high`` and ``late`` (see
    :class:`warptrace.sites.Site`); one more row at the end stands for "unknown" (kind 0). ``lut`` maps
    ``base[k] + min(site id, ids[k])`` to the row.
    """

    sites: tuple[TraceSite, ...]
    strings: tuple[str, ...]
    kind: U8
    payload: U8
    mask: U64
    name: I32
    anchor: Bool
    high: Bool
    late: Bool
    kernels: dict[int, KernelRecord]
    index: dict[int, int]
    base: I64
    ids: I64
    lut: I32

    def rows(
        self, kernel_id: NDArray[np.uint64], region: NDArray[np.integer[Any]], site: NDArray[np.integer[Any]]
    ) -> I32:
        """Row of each of (n,) sites; ``region`` (n,) indexes ``kernel_id``."""
        ids, number = np.unique(kernel_id, return_inverse=True)
        kernel = np.array([self.index.get(int(k), len(self.index)) for k in ids], np.int64)[number.reshape(-1)]
        base, most = self.base[kernel].astype(np.int32), self.ids[kernel].astype(np.int32)
        at = site.astype(np.int32)
        if len(ids) == 1:
            np.minimum(at, most[0], out=at)
            at += base[0]
        else:
            np.minimum(at, most[region], out=at)
            at += base[region]
        return self.lut.take(at)

    def with_anchors(self) -> list[int]:
        """Ids of the kernels that have anchor sites."""
        return [k.kernel_id for k in self.kernels.values() if k.stride == 16 and any(s.anchor for s in k.sites)]


def site_table(captures: Iterable[Capture]) -> SiteTable:
    """The sites of all kernels of the captures; a kernel that several processes compiled appears once."""
    kernels: dict[int, KernelRecord] = {}
    for capture in captures:
        kernels.update(capture.kernels)
    sites = [
        TraceSite(k.kernel_id, s.id, int(s.kind), s.name, int(s.payload), s.file, s.line)
        for k in kernels.values()
        for s in k.sites
    ]
    strings: dict[str, int] = {}
    for site in sites:
        if site.kind not in (EventKind.POP, EventKind.END):
            strings.setdefault(site.name, len(strings))
    bits = {int(k): (1 << v) - 1 for k, v in PAYLOAD_BITS.items()}
    base, ids, lut = _site_lut(kernels.values(), len(sites))
    return SiteTable(
        sites=tuple(sites),
        strings=tuple(strings),
        kind=np.array([s.kind for s in sites] + [0], np.uint8),
        payload=np.array([s.payload for s in sites] + [0], np.uint8),
        mask=np.array([bits[s.payload] for s in sites] + [0], np.uint64),
        name=np.array([strings.get(s.name, -1) for s in sites] + [-1], np.int32),
        anchor=np.array([s.anchor for k in kernels.values() for s in k.sites] + [False], np.bool_),
        high=np.array([s.high for k in kernels.values() for s in k.sites] + [False], np.bool_),
        late=np.array([s.late for k in kernels.values() for s in k.sites] + [True], np.bool_),
        kernels=kernels,
        index={k: i for i, k in enumerate(kernels)},
        base=base,
        ids=ids,
        lut=lut,
    )


def _site_lut(kernels: Iterable[KernelRecord], unknown: int) -> tuple[I64, I64, I32]:
    """(base, ids, lut); the last kernel of the table has no sites at all: it stands for unknown kernels."""
    tables, base, ids = [], [], []
    at = row = 0
    for kernel in kernels:
        size = max((s.id for s in kernel.sites), default=0) + 1
        table = np.full(size + 1, unknown, np.int32)
        for s in kernel.sites:
            table[s.id] = row
            row += 1
        base.append(at)
        ids.append(size)
        tables.append(table)
        at += len(table)
    tables.append(np.full(1, unknown, np.int32))
    return np.array([*base, at], np.int64), np.array([*ids, 0], np.int64), np.concatenate(tables)
