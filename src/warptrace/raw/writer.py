"""Writes the raw capture directory of one process while the process runs."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WarptraceError
from ..selection import Selection
from ..sites import KernelRecord
from ..wire import CAPTURE_VERSION, LOST_DTYPE
from .format import (
    BATCH_DTYPE,
    CELL_NAME,
    CHUNK_CONTROL,
    CHUNK_DAMAGE,
    CHUNK_DTYPE,
    CHUNK_LOST,
    CHUNK_MAGIC,
    CHUNK_REGIONS,
    CONTROL_CHUNK_DTYPE,
    DAMAGE_DTYPE,
    ENDIAN_MARK,
    FILE_DTYPE,
    FILE_MAGIC,
    FORMAT_NAME,
    HOST_NAME,
    KERNELS_NAME,
    MANIFEST_NAME,
    BankImage,
    chunk_crc,
    octets,
    padded,
    text_crc,
)
from .regions import CompactRegions, compact, find_regions

CHUNK_BYTES = 32 << 20
"""A region chunk is written once it holds this much: what one damaged chunk can lose."""


@dataclass(frozen=True)
class WriteStats:
    """What one :meth:`CaptureWriter.write_regions` kept: counts, and bytes in which no region was found although
    they are not known to be claims without room."""

    regions: int = 0
    slots: int = 0
    skipped_bytes: int = 0


@dataclass
class _DeviceFile:
    path: Path
    file: io.FileIO
    chunks: int = 0
    size: int = 0


@dataclass
class _Batch:
    """Compacted regions of one stride that wait for their chunk."""

    parts: list[CompactRegions] = field(default_factory=list)
    regions: int = 0
    bytes: int = 0

    def add(self, part: CompactRegions) -> None:
        part.lanes["region"] += self.regions
        self.parts.append(part)
        self.regions += len(part.headers)
        self.bytes += part.headers.nbytes + part.slots.nbytes + part.lane_slots.nbytes


class CaptureWriter:
    """Creates ``directory`` and writes the capture of one process into it; safe to call from several threads.

    ``started_unix_ns`` is host time; ``place``: see :mod:`.place`. Raises WarptraceError, here and in every method,
    where the directory cannot be written (also: disk full) or already holds a capture. What is on disk is
    readable at any moment.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        pid: int,
        argv: Sequence[str],
        host: str,
        python: str,
        warptrace: str,
        dsl: str | None,
        started_unix_ns: int,
        emulated: bool = False,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.regions = 0
        """Written so far."""
        self._lock = threading.RLock()
        self._devices: dict[int, _DeviceFile] = {}
        self._manifest: dict[str, Any] = {
            "format": FORMAT_NAME,
            "version": CAPTURE_VERSION,
            "state": "running",
            "pid": pid,
            "argv": list(argv),
            "host": host,
            "python": python,
            "warptrace": warptrace,
            "dsl": dsl,
            **(place or {}),
            "started_unix_ns": started_unix_ns,
            "ended_unix_ns": None,
            "emulated": emulated,
            "devices": [],
            "clocks": [],
            "launches": {},
            "windows": None,
            "uninstrumented": [],
            "deselected": [],
            "selection": None,
            "problems": [],
            "undrained": [],
        }
        if (self.directory / MANIFEST_NAME).exists():
            raise WarptraceError(f"{self.directory} already holds a capture: choose another directory")
        with self._writing():
            self.directory.mkdir(parents=True, exist_ok=True)
        self.flush()

    # ---------------------------------------------------------------------------------------------- the manifest
    def flush(self) -> None:
        """Rewrites the manifest: the old one or the new one is there at every moment."""
        with self._lock, self._writing():
            temporary = self.directory / (MANIFEST_NAME + ".tmp")
            data = {**self._manifest, "crc32": text_crc(self._manifest)}
            temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self.directory / MANIFEST_NAME)

    def add_kernel(self, record: KernelRecord) -> None:
        """Appends a kernel's site table at once, so that a crash of the program cannot lose it."""
        data = record.to_json()
        line = json.dumps({**data, "crc32": text_crc(data)}, ensure_ascii=False) + "\n"
        with self._lock, self._writing(), open(self.directory / KERNELS_NAME, "ab") as file:
            file.write(line.encode())

    def add_host(self, records: Sequence[Sequence[Any]]) -> None:
        """Appends records of the host's ranges and launches (docs/format.md)."""
        text = "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records)
        with self._lock, self._writing(), open(self.directory / HOST_NAME, "ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    def add_device(
        self,
        ordinal: int,
        *,
        name: str,
        uuid: str,
        compute_capability: str,
        sm_count: int,
        clock_khz: int,
        driver: str,
        buffer_bytes: int,
        emulated: bool = False,
    ) -> None:
        """Starts the device's file. ``clock_khz``: nominal SM clock, 0 if unknown; ``buffer_bytes``: of its trace
        memory; ``emulated``: not real hardware, which makes the whole capture an emulated one."""
        path = self.directory / f"dev{ordinal}.wtraw"
        header = np.zeros(1, FILE_DTYPE)
        header["magic"], header["version"], header["endian"] = FILE_MAGIC, CAPTURE_VERSION, ENDIAN_MARK
        header["header_bytes"], header["device"] = FILE_DTYPE.itemsize, ordinal
        header["pid"] = self._manifest["pid"]
        with self._lock:
            with self._writing():
                # Unbuffered: a forked child must not write a second time what waits in a buffer.
                device = _DeviceFile(path, io.FileIO(path, "xb"))
                self._append(device, [header])
            self._devices[ordinal] = device
            self._manifest["emulated"] |= emulated
            self._manifest["devices"].append(
                {
                    "ordinal": ordinal,
                    "name": name,
                    "uuid": uuid,
                    "compute_capability": compute_capability,
                    "sm_count": sm_count,
                    "clock_khz": clock_khz,
                    "driver": driver,
                    "buffer_bytes": buffer_bytes,
                    "file": path.name,
                }
            )
            self.flush()

    def add_clock(
        self,
        device: int,
        host_unix_ns: int,
        globaltimer_ns: int,
        uncertainty_ns: float,
        host_monotonic_ns: int | None = None,
    ) -> None:
        """Notes that the device's %globaltimer read ``globaltimer_ns`` at a host time, give or take. The host time is
        given by CLOCK_REALTIME and, where known, by CLOCK_MONOTONIC, which nobody sets."""
        self._add(
            "clocks",
            {
                "device": device,
                "host_unix_ns": host_unix_ns,
                "host_monotonic_ns": host_monotonic_ns,
                "globaltimer_ns": globaltimer_ns,
                "uncertainty_ns": uncertainty_ns,
            },
        )

    def add_peer_clock(
        self,
        device: int,
        peer: str,
        globaltimer_ns: int,
        peer_globaltimer_ns: int,
        uncertainty_ns: float,
        round_trip_ns: int,
        least_ns: int,
        flights_ns: int,
    ) -> None:
        """Notes that the device's %globaltimer read ``globaltimer_ns`` when that of the device with UUID ``peer`` read
        ``peer_globaltimer_ns``, give or take: by ``flights_ns / 2 - least_ns`` of it only because nobody can tell how a
        round trip divides into its two ways. Written by the next flush: there may be many."""
        with self._lock:
            self._manifest.setdefault("peer_clocks", []).append(
                {
                    "device": device,
                    "peer": peer,
                    "globaltimer_ns": globaltimer_ns,
                    "peer_globaltimer_ns": peer_globaltimer_ns,
                    "uncertainty_ns": uncertainty_ns,
                    "round_trip_ns": round_trip_ns,
                    "least_ns": least_ns,
                    "flights_ns": flights_ns,
                }
            )

    def set_clusters(self, device: int, seen: Sequence[tuple[int, Sequence[Sequence[int]]]]) -> None:
        """Notes where clusters of the tracer's own ran: (CTAs of a cluster, sets of SMs that such clusters joined)."""
        with self._lock:
            for entry in self._manifest["devices"]:
                if entry["ordinal"] == device:
                    entry["clusters"] = [{"ctas": ctas, "sms": [list(one) for one in sms]} for ctas, sms in seen]
            self.flush()

    def set_place(self, place: Mapping[str, Any]) -> None:
        """What is known by now of where the process stands (see :mod:`.place`). Written by the next flush."""
        with self._lock:
            self._manifest.update({key: value for key, value in place.items() if value is not None})

    def add_problem(self, text: str) -> None:
        """Notes, once, something the user should know."""
        self._add("problems", text)

    def add_undrained(self, device: int, reason: str) -> None:
        """Notes that what lay in a device's trace memory at the end could not be had."""
        self._add("undrained", {"device": device, "reason": reason})

    def add_uninstrumented(self, symbol: str) -> None:
        """Notes, once, a kernel compiled without events."""
        self._add("uninstrumented", symbol)

    def add_deselected(self, symbol: str) -> None:
        """Notes, once, a kernel with events that the selection leaves out."""
        self._add("deselected", symbol)

    def set_selection(self, selection: Selection) -> None:
        """Notes what was asked for, where that is not everything."""
        with self._lock:
            self._manifest["selection"] = None if selection.everything else selection.to_json()
            self.flush()

    def set_launches(self, launches: Mapping[int, int]) -> None:
        """Host-side counts of launches, by kernel id. Written by the next :meth:`flush` or :meth:`finish`."""
        with self._lock:
            self._manifest["launches"] = {f"{kernel:016x}": count for kernel, count in launches.items()}

    def set_windows(self, windows: Sequence[tuple[int, int | None]]) -> None:
        """Notes when recording was on: host times of each begin and end, an end of None while it lasts."""
        with self._lock:
            self._manifest["windows"] = [{"begin_unix_ns": begin, "end_unix_ns": end} for begin, end in windows]
            self.flush()

    def set_flows(self, flows: Sequence[Mapping[str, str]]) -> None:
        """What the program declared with ``warptrace.flow``. Written by the next :meth:`flush` or :meth:`finish`."""
        with self._lock:
            self._manifest["flows"] = [dict(flow) for flow in flows]

    def set_snapshot(self, facts: Mapping[str, Any]) -> None:
        """Marks the capture as a snapshot of another. Written by the next :meth:`flush` or :meth:`finish`."""
        with self._lock:
            self._manifest["snapshot"] = dict(facts)

    def finish(self, *, ended_unix_ns: int) -> None:
        """Marks the capture complete and closes its files."""
        with self._lock:
            self._manifest["state"] = "complete"
            self._manifest["ended_unix_ns"] = ended_unix_ns
            for entry in self._manifest["devices"]:
                entry["bytes"] = self._devices[entry["ordinal"]].size
            self.flush()
            for device in self._devices.values():
                device.file.close()
            with self._writing():
                (self.directory / CELL_NAME).unlink(missing_ok=True)

    def _add(self, key: str, value: Any) -> None:
        with self._lock:
            if value not in self._manifest[key]:
                self._manifest[key].append(value)
                self.flush()

    # ------------------------------------------------------------------------------------------------ trace memory
    def write_regions(self, device: int, images: Iterable[BankImage]) -> WriteStats:
        """Finds the regions in the memory of banks, and writes the slots that were stored.

        Unclosed regions are kept with the slots present. Memory without a valid header, beyond ``failed_bytes``, is
        noted in the file. The memory behind a region's written slots must be zero: clear what was drained before a
        bank is used again.
        """
        with self._lock:
            batches: dict[int, _Batch] = {}
            ends: dict[int, int] = {}
            skipped: dict[int, list[int]] = {}
            regions = slots = 0
            for image in images:
                begin = max(0, ends.get(image.base, image.position) - image.position)
                found = find_regions(image, begin)
                ends[image.base] = image.position + found.end
                entry = skipped.setdefault(image.base, [image.position, 0])
                entry[1] += found.skipped - image.failed_bytes
                for part in compact(image, found):
                    regions += len(part.headers)
                    slots += len(part.slots) + len(part.lane_slots)
                    self._stage(device, batches, part)
            for batch in batches.values():
                self._write_batch(device, batch)
            self.regions += regions
            return WriteStats(regions, slots, self._write_damage(device, skipped))

    def write_parts(self, device: int, parts: Iterable[CompactRegions]) -> None:
        """Writes regions that were found and compacted already."""
        with self._lock:
            batches: dict[int, _Batch] = {}
            for part in parts:
                if len(part.headers):
                    self._stage(device, batches, part)
            for batch in batches.values():
                self._write_batch(device, batch)

    def write_lost(self, device: int, records: NDArray[np.void]) -> None:
        """Appends (n,) LOST_DTYPE: warps that found no room."""
        self._write_chunk(device, CHUNK_LOST, [np.ascontiguousarray(records.astype(LOST_DTYPE, copy=False))])

    def write_control(self, device: int, lost_events: int, lost_head: int) -> None:
        """Appends the control words. Both are totals since the start of the capture, entries and events of the lost
        table and beyond it."""
        words = np.zeros(1, CONTROL_CHUNK_DTYPE)
        words["lost_events"], words["lost_head"] = lost_events, lost_head
        self._write_chunk(device, CHUNK_CONTROL, [words])

    def _stage(self, device: int, batches: dict[int, _Batch], part: CompactRegions) -> None:
        stride = int(part.headers["stride"][0])
        batch = batches.setdefault(stride, _Batch())
        batch.add(part)
        if batch.bytes >= CHUNK_BYTES:
            self._write_batch(device, batch)
            batches[stride] = _Batch()

    def _write_batch(self, device: int, batch: _Batch) -> None:
        if not batch.parts:
            return
        head = np.zeros(1, BATCH_DTYPE)
        head["n_regions"] = batch.regions
        head["stride"] = batch.parts[0].headers["stride"][0]
        head["n_lane_streams"] = sum(len(p.lanes) for p in batch.parts)
        padding = np.zeros(padded(4 * batch.regions) - 4 * batch.regions, np.uint8)
        parts = batch.parts
        arrays: list[NDArray[Any]] = [head, *(p.headers for p in parts), *(p.stored for p in parts), padding]
        arrays += [*(p.lanes for p in parts), *(p.slots for p in parts), *(p.lane_slots for p in parts)]
        self._write_chunk(device, CHUNK_REGIONS, arrays)

    def _write_damage(self, device: int, skipped: Mapping[int, list[int]]) -> int:
        damage = [(base, 0, position, count) for base, (position, count) in skipped.items() if count > 0]
        if damage:
            self._write_chunk(device, CHUNK_DAMAGE, [np.array(damage, DAMAGE_DTYPE)])
        return sum(d[3] for d in damage)

    # ------------------------------------------------------------------------------------------------------ files
    def _write_chunk(self, ordinal: int, kind: int, arrays: Sequence[NDArray[Any]]) -> None:
        with self._lock, self._writing():
            device = self._devices[ordinal]
            buffers = [np.ascontiguousarray(a) for a in arrays if a.nbytes]
            head = np.zeros(1, CHUNK_DTYPE)
            head["magic"], head["kind"], head["index"] = CHUNK_MAGIC, kind, device.chunks
            head["payload_bytes"] = sum(b.nbytes for b in buffers)
            head["crc32"] = chunk_crc(head, buffers)
            self._append(device, [head, *buffers])
            device.chunks += 1

    def _append(self, device: _DeviceFile, buffers: Sequence[NDArray[Any]]) -> None:
        """All or nothing: after a failure the file ends where it ended before."""
        try:
            for buffer in buffers:
                view = octets(buffer)
                while len(view):
                    view = view[device.file.write(view) :]
        except OSError:
            device.file.truncate(device.size)
            device.file.seek(device.size)
            raise
        device.size += sum(b.nbytes for b in buffers)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            reason = e.strerror or str(e)
            raise WarptraceError(
                f"cannot write the capture {self.directory}: {reason}: free some space or choose another directory"
            ) from e
