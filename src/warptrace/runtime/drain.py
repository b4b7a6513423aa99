"""Draining: moves finished regions from trace memory to the capture, while kernels go on recording.

Each bank is a ring of regions in claim order. What lies between ``tail`` (ours) and ``head`` (the device's) is
claimed; the leading regions of it that have closed can go. A region counts as closed only when it was seen closed in
one look and its bytes are then copied in a later one: the exit header is written after the slots, but nothing orders
the two for a copy that runs meanwhile. Memory is zeroed before the tail moves, so that a claimed region always begins
empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .. import wire
from ..raw import BankImage, CaptureWriter
from ..raw.format import valid_headers
from ..raw.regions import find_regions, region_sizes
from .memory import TraceMemory

NOTHING_YET_S = 0.005
"""So long a kernel's second launch waits for a first one that has not begun."""
_NONE = np.zeros(0, np.int64)
LIVE_SHARE = 1 / 4
"""A bank is drained while kernels run once so much of it is claimed: below that there is no hurry, and draining takes
turns with the program's Python threads."""


@dataclass(eq=False)
class _Bank:
    """Host's side of one ring. Positions are monotonic byte counts; ``failed`` of the device's failed bytes are
    accounted for. Everything up to ``closed`` was seen closed in an earlier look, regions with ``headers``; ``gap`` of
    it are claims without room."""

    number: int
    tail: int = 0
    failed: int = 0
    closed: int = 0
    gap: int = 0
    headers: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, wire.REGION_DTYPE))


@dataclass(frozen=True)
class Need:
    """What warps of a kernel were seen to need: the largest advance, in bytes, of lane 0 and of another lane."""

    main: int = 0
    lane: int = 0

    def __or__(self, other: Need) -> Need:
        return Need(max(self.main, other.main), max(self.lane, other.lane))


@dataclass(frozen=True)
class DrainStats:
    """What one step moved. ``pressure``: the largest share of a bank that was claimed when the step began, 0 to 1.
    ``needs``: by kernel id, of the regions moved."""

    regions: int = 0
    pressure: float = 0.0
    needs: dict[int, Need] = field(default_factory=dict)


class Drain:
    """Drains one device's trace memory into a capture. Safe to call from several threads."""

    def __init__(self, memory: TraceMemory, ordinal: int, writer: CaptureWriter) -> None:
        self._memory = memory
        self._ordinal = ordinal
        self._writer = writer
        self._lock = threading.Lock()
        self.restart()
        self._lost_before = self._lost_told = self._lost()
        self._lost_written = self._lost_before[0]

    def restart(self) -> None:
        """Begins where the device's counts are: an earlier recording, or one before a pause, left the memory empty, and
        claims of captured graphs found no room since."""
        with self._lock:
            self._banks = [
                _Bank(k, tail=int(line["head"]), failed=int(line["failed_bytes"]), closed=int(line["head"]))
                for k, line in enumerate(self._lines())
            ]
            self._hand_back()

    def needs(self) -> dict[int, Need]:
        """What warps whose regions lie in memory and have closed were seen to need, by kernel id."""
        with self._lock:
            chains = self._chains(self._banks, self._lines())
        headers = np.concatenate(list(chains.values()))
        found: dict[int, Need] = {}
        _note(headers[headers["closed"] == wire.CLOSED_MAGIC], found)
        return found

    def step(self, everything: bool = False) -> DrainStats:
        """Moves what is certainly finished, from banks that are filling up, or with ``everything`` from all."""
        with self._lock:
            lines = self._lines()
            size = self._memory.layout.bank_bytes
            claimed = [min(int(lines["head"][b.number]) - b.tail, size) for b in self._banks]
            least = 1 if everything else size * LIVE_SHARE
            due = [b for b, n in zip(self._banks, claimed, strict=True) if n >= least]
            regions, needs = self._move(due, lines) if due else (0, {})
            if everything:
                self._write_lost_words(*self._lost())
            return DrainStats(regions, max(claimed) / size, needs)

    def observe(self, kernel_id: int, timeout_s: float) -> Need | None:
        """What a kernel's first launch needed, read while its regions still lie in memory.

        Waits up to ``timeout_s`` for all regions in sight to close. None if no region of the kernel is in sight or some
        are still open then: the kernel may be waiting for work that is launched later.
        """
        begun = time.monotonic()
        deadline = begun + timeout_s
        while True:
            with self._lock:
                chains = self._chains(self._banks, self._lines())
            headers = np.concatenate(list(chains.values()))
            headers = headers[headers["kernel_id"] == kernel_id]
            if len(headers) and (headers["closed"] == wire.CLOSED_MAGIC).all():
                needs: dict[int, Need] = {}
                _note(headers, needs)
                return needs[kernel_id]
            # Nothing yet: the launch waits in a queue behind others, or in a graph that is being captured.
            if time.monotonic() > (deadline if len(headers) else min(deadline, begun + NOTHING_YET_S)):
                return None
            time.sleep(0.0002)

    def finish(self) -> DrainStats:
        """Moves everything that is claimed, finished or not. Only when no more is to come, or all is lost."""
        with self._lock:
            lines = self._lines()
            images: list[BankImage] = []
            for bank in self._banks:
                line = lines[bank.number]
                images += self._images(bank, int(line["head"]), int(line["failed_bytes"]) - bank.failed)
            stats = self._writer.write_regions(self._ordinal, images)
            ends = {b: lines[b.number] for b in self._banks}
            self._release({b: (int(x["head"]), int(x["failed_bytes"]) - b.failed) for b, x in ends.items()})
            self._hand_back()
            self._drain_lost()
            return DrainStats(stats.regions)

    def _lines(self) -> NDArray[np.void]:
        size = wire.BANK_COUNT * wire.BANK_LINE_BYTES
        return self._memory.read(wire.BANKS_OFFSET, size).view(wire.BANK_DTYPE)

    def _move(self, banks: Sequence[_Bank], lines: NDArray[np.void]) -> tuple[int, dict[int, Need]]:
        regions = 0
        needs: dict[int, Need] = {}
        ready = [bank for bank in banks if bank.closed > bank.tail]
        images = [image for bank in ready for image in self._images(bank, bank.closed, bank.gap)]
        if images:
            regions = self._writer.write_regions(self._ordinal, images).regions
            for bank in ready:
                _note(bank.headers, needs)
            self._release({bank: (bank.closed, bank.gap) for bank in ready})
        self._look(banks, lines)
        self._hand_back()
        return regions, needs

    def _look(self, banks: Sequence[_Bank], lines: NDArray[np.void]) -> None:
        """Notes up to where every region of each bank has closed."""
        for bank, headers in self._chains(banks, lines).items():
            bank.headers = headers[: _closed_prefix(headers)]
            bank.closed = bank.tail + int(region_sizes(bank.headers).sum())
            bank.gap = 0
            if bank.closed == bank.tail + int(region_sizes(headers).sum()) < int(lines["head"][bank.number]):
                self._look_behind_gaps(bank, lines[bank.number])

    def _chains(self, banks: Sequence[_Bank], lines: NDArray[np.void]) -> dict[_Bank, NDArray[np.void]]:
        """Headers of the regions that follow each other from each bank's tail on, up to the first that is missing.

        Regions of one kernel have one size: a header is read, then all that would follow it in steps of its size, for
        all banks in one go; where another size begins it starts again.
        """
        size = wire.REGION_HEADER_BYTES
        chains: dict[_Bank, list[NDArray[np.void]]] = {b: [] for b in banks}
        ends = {b: b.tail for b in banks}
        open_ = list(banks)
        while open_:
            starts = {b: self._room(b, ends[b], int(lines["head"][b.number])) for b in open_}
            starts = {b: (at, room) for b, (at, room) in starts.items() if room >= size}
            firsts = self._memory.read_rows([(at, size, 1) for at, _ in starts.values()], size)
            pieces = {}
            for (bank, (at, room)), first in zip(starts.items(), firsts, strict=True):
                header = first.reshape(-1).view(wire.REGION_DTYPE)
                if valid_headers(header)[0] and header["position"][0] == ends[bank] & 0xFFFFFFFF:
                    pitch = int(region_sizes(header)[0])
                    pieces[bank] = (at, pitch, max(room // pitch, 1))
            rows = self._memory.read_rows(list(pieces.values()), size)
            for (bank, (_, pitch, count)), memory in zip(pieces.items(), rows, strict=True):
                headers = memory.reshape(-1).view(wire.REGION_DTYPE)
                here = ends[bank] + pitch * np.arange(count) & 0xFFFFFFFF
                same = valid_headers(headers) & (headers["position"] == here) & (region_sizes(headers) == pitch)
                good = count if same.all() else int(np.argmin(same))
                chains[bank].append(headers[:good])
                ends[bank] += good * pitch
            open_ = list(pieces)
        none = np.zeros(0, wire.REGION_DTYPE)
        return {bank: np.concatenate([none, *parts]) for bank, parts in chains.items()}

    def _room(self, bank: _Bank, position: int, head: int) -> tuple[int, int]:
        """(offset of ``position`` in memory, bytes from there in which regions may begin before the bank's end)."""
        layout = self._memory.layout
        at = position % layout.bank_bytes
        end = min(head, bank.tail + layout.bank_bytes)
        return layout.base(bank.number) + at, min(end - position, layout.bank_bytes - at)

    def _look_behind_gaps(self, bank: _Bank, line: np.void) -> None:
        """Like ``_look`` where a header is missing before the head.

        A gap between headers is a claim without room, or a header that is still to come. What is claimed is the sum of
        regions, claims without room, which the device counts, and headers to come; so only if that sum leaves nothing
        for the last may gaps be passed over.
        """
        head = int(line["head"])
        found = [find_regions(i) for i in self._images(bank, head, 0)]
        starts = np.concatenate([f.starts + i for f, i in zip(found, self._origins(bank), strict=False)] or [_NONE])
        sizes = np.concatenate([region_sizes(f.headers) for f in found] or [_NONE])
        headers = np.concatenate([np.zeros(0, wire.REGION_DTYPE), *(f.headers for f in found)])
        closed = headers["closed"] == wire.CLOSED_MAGIC
        to_come = head - bank.tail - int(sizes.sum()) - (int(line["failed_bytes"]) - bank.failed)
        ends = np.concatenate([[bank.tail], starts + sizes])
        gaps = starts - ends[:-1]
        passable = closed & ((gaps == 0) | (to_come == 0))
        count = len(starts) if passable.all() else int(np.argmin(passable))
        bank.headers = headers[:count]
        bank.closed = int(ends[count])
        bank.gap = int(gaps[:count].sum())
        if count == len(starts) and to_come == 0:
            bank.gap += head - bank.closed
            bank.closed = head

    def _origins(self, bank: _Bank) -> list[int]:
        """Positions at which the pieces of the ring begin."""
        return [bank.tail, self._wrap(bank)]

    def _wrap(self, bank: _Bank) -> int:
        """The first position behind the tail that lies at the bank's begin."""
        size = self._memory.layout.bank_bytes
        return bank.tail - bank.tail % size + size

    def _pieces(self, bank: _Bank, end: int) -> list[tuple[int, int, int]]:
        """(position, offset, bytes) of the bank's memory from its tail to ``end``."""
        return self._memory.layout.pieces(bank.number, bank.tail, end)

    def _images(self, bank: _Bank, end: int, failed: int) -> list[BankImage]:
        layout = self._memory.layout
        images = [
            BankImage(self._memory.read(offset, size), position, layout.base(bank.number), layout.bank_bytes - 1)
            for position, offset, size in self._pieces(bank, end)
        ]
        if images:
            beyond = max(end - bank.tail - layout.bank_bytes, 0)
            images[0] = replace(images[0], failed_bytes=max(failed - beyond, 0))
        return images

    def _release(self, moved: dict[_Bank, tuple[int, int]]) -> None:
        """Zeroes what was moved, of each bank up to (end, claims without room among it). ``_hand_back`` then tells the
        device."""
        pieces = [(at, size) for bank, (end, _) in moved.items() for _, at, size in self._pieces(bank, end)]
        self._memory.clear(pieces)
        for bank, (end, failed) in moved.items():
            bank.tail = bank.closed = max(end, bank.tail)
            bank.failed += failed
            bank.gap = 0

    def _hand_back(self) -> None:
        self._memory.set_tails(np.array([b.tail for b in self._banks], np.uint64))

    def _lost(self) -> tuple[int, int]:
        """(entries claimed in the lost table, events lost in them and beyond), since the memory was taken."""
        words = self._memory.read(0, wire.CONTROL_DTYPE.itemsize).view(wire.CONTROL_DTYPE)
        return int(words["lost_head"][0]), int(words["lost_events"][0])

    def _drain_lost(self) -> None:
        entries, events = self._lost()
        count = min(entries, wire.LOST_CAPACITY)
        if count > self._lost_written:
            offset = wire.LOST_OFFSET + self._lost_written * wire.LOST_BYTES
            table = self._memory.read(offset, (count - self._lost_written) * wire.LOST_BYTES)
            self._writer.write_lost(self._ordinal, table.view(wire.LOST_DTYPE))
            self._lost_written = count
        self._write_lost_words(entries, events)

    def _write_lost_words(self, entries: int, events: int) -> None:
        """Writes how much was lost since the recording began, where that has changed. (The table itself can only be
        read when nothing is written to it.)"""
        if (entries, events) != self._lost_told:
            self._writer.write_control(self._ordinal, events - self._lost_before[1], entries - self._lost_before[0])
            self._lost_told = entries, events


def _closed_prefix(headers: NDArray[np.void]) -> int:
    """How many of the (n,) headers, from the first on, have closed."""
    closed = headers["closed"] == wire.CLOSED_MAGIC
    return len(closed) if closed.all() else int(np.argmin(closed))


def _note(headers: NDArray[np.void], needs: dict[int, Need]) -> None:
    """Adds to ``needs`` what the regions of these (n,) headers used."""
    for kernel in np.unique(headers["kernel_id"]):
        mine = headers[headers["kernel_id"] == kernel]
        ring = mine["magic"] == wire.RING_MAGIC
        most = (mine[name] * np.where(ring, mine["stride"].astype(np.int64), 1) for name in ("advance", "lane_advance"))
        need = Need(*(int(n.max()) for n in most))
        needs[int(kernel)] = needs.get(int(kernel), Need()) | need
