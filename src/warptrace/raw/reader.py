"""Reads the raw capture directory: memory-mapped, and whatever state the program left it in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CaptureError
from ..sites import KernelRecord
from ..trace import Problem
from ..wire import (
    CAPTURE_VERSION,
    CELL_BYTES,
    CELL_KERNEL_COUNT,
    CELL_KERNEL_DTYPE,
    CELL_KERNELS_OFFSET,
    LOST_DTYPE,
    REGION_DTYPE,
    STRIDES,
)
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
    LANE_STREAM_DTYPE,
    MANIFEST_NAME,
    RAW_FOLDER,
    SNAPSHOT_FOLDER,
    chunk_crc,
    padded,
    slot_dtype,
    text_crc,
)

U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class RegionBatch:
    """Regions of one stride on one device, as read: ``headers`` (n,) REGION_DTYPE, ``stored`` (n,) main slots kept,
    ``lanes`` (m,) LANE_STREAM_DTYPE, ``slots``: all main slots, region after region, ``lane_slots``: those of the lane
    streams in the order of ``lanes``. The arrays may lie in a mapped file: do not write them."""

    device: int
    stride: int
    headers: NDArray[np.void]
    stored: NDArray[np.uint32]
    lanes: NDArray[np.void]
    slots: NDArray[np.void]
    lane_slots: NDArray[np.void]


@dataclass(frozen=True)
class Chunk:
    """One intact chunk: device ordinal, kind and payload."""

    device: int
    kind: int
    payload: U8


@dataclass(frozen=True)
class Capture:
    """One process's capture. ``kernels``: by kernel id; ``problems``: what was damaged or missing, counted; ``host``:
    records of the host's ranges and launches (docs/format.md)."""

    path: Path
    manifest: dict[str, Any]
    kernels: dict[int, KernelRecord]
    chunks: tuple[Chunk, ...]
    problems: tuple[Problem, ...]
    host: tuple[list[Any], ...] = ()

    def batches(self) -> Iterator[RegionBatch]:
        """All regions, in the order of writing, device after device."""
        for chunk in self.chunks:
            if chunk.kind == CHUNK_REGIONS:
                yield _batch(chunk)

    @property
    def complete(self) -> bool:
        """Whether the process closed its capture."""
        return self.manifest.get("state") == "complete"

    def launches(self) -> dict[int, int]:
        """Launches that host code counted, by kernel number (``kernel_id % CELL_KERNEL_COUNT``). Where the process did
        not come to write them down they are those of its host cell."""
        if not self.complete:
            try:
                cell = np.fromfile(self.path / CELL_NAME, np.uint8)
            except OSError:
                cell = np.zeros(0, np.uint8)
            if len(cell) >= CELL_BYTES:
                counts = cell[CELL_KERNELS_OFFSET:CELL_BYTES].view(CELL_KERNEL_DTYPE)["launches"]
                return {int(k): int(counts[k]) for k in np.flatnonzero(counts)}
        return {int(k, 16) % CELL_KERNEL_COUNT: int(n) for k, n in self.manifest.get("launches", {}).items()}

    @property
    def recorded(self) -> bool:
        """Some warp left something, or should have: a traced kernel was launched."""
        return any(chunk.kind in (CHUNK_REGIONS, CHUNK_LOST) for chunk in self.chunks) or any(self.launches().values())

    def lost(self) -> dict[int, NDArray[np.void]]:
        """Warps that found no room, by device: (n,) LOST_DTYPE."""
        return self._concatenated(CHUNK_LOST, LOST_DTYPE)

    def control(self) -> dict[int, NDArray[np.void]]:
        """Control words at every drain, by device: (n,) CONTROL_CHUNK_DTYPE."""
        return self._concatenated(CHUNK_CONTROL, CONTROL_CHUNK_DTYPE)

    def damage(self) -> dict[int, NDArray[np.void]]:
        """Bank memory without a valid header, by device: (n,) DAMAGE_DTYPE."""
        return self._concatenated(CHUNK_DAMAGE, DAMAGE_DTYPE)

    def _concatenated(self, kind: int, dtype: np.dtype[Any]) -> dict[int, NDArray[np.void]]:
        parts: dict[int, list[NDArray[np.void]]] = {}
        for chunk in self.chunks:
            if chunk.kind == kind:
                parts.setdefault(chunk.device, []).append(chunk.payload.view(dtype))
        return {device: np.concatenate(arrays) for device, arrays in parts.items()}


def find_captures(path: str | os.PathLike[str]) -> list[Path]:
    """The capture directories under ``path``: itself, those of a run directory (``raw/pid_*``) or of its ``raw``.

    Sorted by pid. Raises CaptureError where ``path`` is none of these. A run that recorded nothing gives [].
    """
    root = Path(path)
    if (root / MANIFEST_NAME).is_file():
        return [root]
    raw = root / RAW_FOLDER
    folder = raw if raw.is_dir() else root
    found = [p for p in folder.iterdir() if (p / MANIFEST_NAME).is_file()] if folder.is_dir() else []
    if found or folder is raw:
        return sorted(found, key=lambda p: (len(p.name), p.name))
    raise CaptureError(
        f"{root} holds no capture: give the directory of a run that kept its raw data, or a directory with "
        f"{MANIFEST_NAME}"
    )


def read_capture(directory: str | os.PathLike[str]) -> Capture:
    """Reads one capture directory, and the snapshot in it where there is one.

    The snapshot's chunks come first: of regions in both, the decoder takes the more complete copy, else the later one.
    Raises CaptureError where the directory is no capture or of another version. Damage inside is counted in
    ``problems`` instead: a truncated file keeps everything before the cut, a chunk with a wrong CRC is left out.
    """
    path = Path(directory)
    manifest = _read_manifest(path)
    problems: list[Problem] = []
    kernels = _read_kernels(path, problems)
    host = _read_host(path, problems)
    files = {str(d.get("file")) for d in manifest.get("devices", [])}
    for name in sorted(files - {p.name for p in path.glob("dev*.wtraw")}):
        problems.append(Problem("truncated_file", 1, f"{path / name} is missing"))
    chunks: list[Chunk] = []
    sizes = {str(d.get("file")): d.get("bytes", 0) for d in manifest.get("devices", [])}
    for file in sorted(path.glob("dev*.wtraw"), key=lambda p: (len(p.name), p.name)):
        noted = len(problems)
        chunks.extend(_read_device(file, manifest.get("pid"), problems))
        missing = sizes.get(file.name, 0) - file.stat().st_size
        if missing > 0 and len(problems) == noted:  # between two chunks: only the manifest can tell
            problems.append(Problem("truncated_file", 1, f"{file} is cut off: its last {missing} bytes are not there"))
    if (path / SNAPSHOT_FOLDER / MANIFEST_NAME).is_file():
        manifest, found = _with_snapshot(path, manifest, problems)
        chunks = [*found, *chunks]
    return Capture(path, manifest, kernels, tuple(chunks), tuple(problems), host)


def read_head(directory: str | os.PathLike[str]) -> Capture:
    """The capture without what its kernels recorded: its manifest alone. Raises CaptureError."""
    path = Path(directory)
    return Capture(path, _read_manifest(path), {}, (), ())


def _with_snapshot(
    path: Path, manifest: dict[str, Any], problems: list[Problem]
) -> tuple[dict[str, Any], tuple[Chunk, ...]]:
    """(the manifest, with what the snapshot's says under "snapshot", the snapshot's chunks)."""
    try:
        snapshot = read_capture(path / SNAPSHOT_FOLDER)
    except CaptureError as e:
        problems.append(Problem("damaged_region", 1, f"the snapshot is left out: {e}"))
        return manifest, ()
    problems += snapshot.problems
    facts = {k: snapshot.manifest.get(k) for k in ("started_unix_ns", "clocks", "snapshot", "problems")}
    return {**manifest, "snapshot": facts}, snapshot.chunks


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST_NAME
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise CaptureError(f"{path} holds no capture: cannot read {file.name}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise CaptureError(f"{file} is damaged ({e}): record again") from e
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_NAME:
        raise CaptureError(f"{file} is not the manifest of a capture: give a directory that warptrace wrote")
    _check_version(file, manifest.get("version"), str(manifest.get("warptrace", "")))
    if manifest.pop("crc32", None) != text_crc(manifest):
        raise CaptureError(f"{file} is damaged (its checksum is not that of its content): record again")
    return manifest


def _check_version(file: Path, version: Any, writer: str = "") -> None:
    if version != CAPTURE_VERSION:
        by = f" {writer}" if writer else ""
        raise CaptureError(
            f"{file} has capture version {version}, this warptrace reads version {CAPTURE_VERSION}: "
            f"use the warptrace that wrote it{by}, or record again"
        )


def _read_kernels(path: Path, problems: list[Problem]) -> dict[int, KernelRecord]:
    file = path / KERNELS_NAME
    if not file.exists():
        return {}
    kernels: dict[int, KernelRecord] = {}
    damaged = 0
    lines = file.read_bytes().split(b"\n")
    for line in lines[:-1]:
        try:
            data = json.loads(line)
            if data["crc32"] != text_crc(data):
                raise ValueError("checksum")
            record = KernelRecord.from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            damaged += 1
        else:
            kernels[record.kernel_id] = record
    if lines[-1]:
        problems.append(Problem("truncated_file", 1, f"the last line of {file} is torn: its kernel is left out"))
    if damaged:
        problems.append(Problem("truncated_file", damaged, f"{damaged} lines of {file} are damaged and left out"))
    return kernels


HOST_FIELDS: dict[str, tuple[Any, ...]] = {
    "thread": (int, str),
    "range": (str, str, int, int, int),
    "open": (str, str, int, int, int),
    "mark": (str, str, int, int),
    "launch": (str, int, int, (int, type(None)), int),
    "lost": (int,),
}
"""Types of the fields of each kind of record in HOST_NAME."""


def _read_host(path: Path, problems: list[Problem]) -> tuple[list[Any], ...]:
    file = path / HOST_NAME
    if not file.exists():
        return ()
    found, damaged = [], 0
    lines = file.read_bytes().split(b"\n")
    for line in lines[:-1]:
        try:
            kind, *fields = json.loads(line)
            wanted = HOST_FIELDS[kind]
            if len(fields) != len(wanted) or not all(map(isinstance, fields, wanted)):
                raise ValueError(kind)
        except (KeyError, TypeError, ValueError, RecursionError):
            damaged += 1
        else:
            found.append([kind, *fields])
    if lines[-1]:
        problems.append(Problem("truncated_file", 1, f"the last line of {file} is torn and left out"))
    if damaged:
        problems.append(Problem("truncated_file", damaged, f"{damaged} lines of {file} are damaged and left out"))
    return tuple(found)


def _read_device(file: Path, pid: Any, problems: list[Problem]) -> Iterator[Chunk]:
    size = file.stat().st_size
    if size < FILE_DTYPE.itemsize:
        problems.append(Problem("truncated_file", 1, f"{file} ends inside its header: nothing of it can be read"))
        return
    data: U8 = np.memmap(file, np.uint8, mode="r").view(np.ndarray)
    header = data[: FILE_DTYPE.itemsize].view(FILE_DTYPE)[0]
    if header["magic"] != FILE_MAGIC or header["endian"] != ENDIAN_MARK:
        problems.append(Problem("damaged_region", 1, f"{file} has no valid header: nothing of it is read"))
        return
    _check_version(file, int(header["version"]))
    ordinal = file.stem.removeprefix("dev")
    if header["header_bytes"] != FILE_DTYPE.itemsize or str(header["device"]) != ordinal or header["pid"] != pid:
        problems.append(Problem("damaged_region", 1, f"{file} has a damaged header: nothing of it is read"))
        return
    yield from _read_chunks(file, data, int(header["header_bytes"]), int(header["device"]), problems)


def _read_chunks(file: Path, data: U8, at: int, device: int, problems: list[Problem]) -> Iterator[Chunk]:
    bad_crc = bad_shape = 0
    while at < len(data):
        head = data[at : at + CHUNK_DTYPE.itemsize]
        payload_at = at + CHUNK_DTYPE.itemsize
        if len(head) < CHUNK_DTYPE.itemsize:
            break
        chunk = head.view(CHUNK_DTYPE)[0]
        if chunk["magic"] != CHUNK_MAGIC:
            rest = len(data) - at
            problems.append(Problem("damaged_region", 1, f"{file} is damaged at byte {at}: {rest} bytes are left out"))
            at = len(data)
            break
        end = payload_at + int(chunk["payload_bytes"])
        if end > len(data):
            break
        payload = data[payload_at:end]
        found = Chunk(device, int(chunk["kind"]), payload)
        if chunk_crc(head.view(CHUNK_DTYPE), [payload]) != int(chunk["crc32"]):
            bad_crc += 1
        elif not _well_formed(found):
            bad_shape += 1
        else:
            yield found
        at = end
    if at < len(data):
        text = f"{file} is cut off: the last {len(data) - at} bytes are of an incomplete chunk and left out"
        problems.append(Problem("truncated_file", 1, text))
    if bad_crc:
        problems.append(Problem("damaged_region", bad_crc, f"{bad_crc} chunks of {file} have a wrong CRC: left out"))
    if bad_shape:
        problems.append(Problem("damaged_region", bad_shape, f"{bad_shape} chunks of {file} are malformed: left out"))


def _well_formed(chunk: Chunk) -> bool:
    """Whether the payload has a shape that its kind allows."""
    size = len(chunk.payload)
    records = {CHUNK_LOST: LOST_DTYPE, CHUNK_CONTROL: CONTROL_CHUNK_DTYPE, CHUNK_DAMAGE: DAMAGE_DTYPE}
    if chunk.kind in records:
        return size % records[chunk.kind].itemsize == 0
    if chunk.kind != CHUNK_REGIONS or size < BATCH_DTYPE.itemsize:
        return False
    stride, bounds = _layout(chunk.payload)
    if stride not in STRIDES or bounds[3] > size:
        return False
    batch = _batch(chunk)
    total = int(batch.stored.sum(dtype=np.int64)) + int(batch.lanes["stored"].sum(dtype=np.int64))
    lanes_ok = bool(np.all(batch.lanes["region"] < len(batch.headers)) and np.all(batch.lanes["lane"] - 1 < 31))
    return bounds[3] + total * stride == size and lanes_ok


def _layout(payload: U8) -> tuple[int, tuple[int, int, int, int]]:
    """(stride, offsets of headers, stored counts, lane table, slots)."""
    head = payload[: BATCH_DTYPE.itemsize].view(BATCH_DTYPE)[0]
    n, lanes = int(head["n_regions"]), int(head["n_lane_streams"])
    headers = BATCH_DTYPE.itemsize
    stored = headers + n * REGION_DTYPE.itemsize
    table = stored + padded(4 * n)
    return int(head["stride"]), (headers, stored, table, table + lanes * LANE_STREAM_DTYPE.itemsize)


def _batch(chunk: Chunk) -> RegionBatch:
    payload = chunk.payload
    stride, (headers_at, stored_at, table_at, slots_at) = _layout(payload)
    n = (stored_at - headers_at) // REGION_DTYPE.itemsize
    stored = payload[stored_at : stored_at + 4 * n].view("<u4")
    main_end = slots_at + int(stored.sum(dtype=np.int64)) * stride
    kind = slot_dtype(stride)
    whole = (len(payload) - slots_at) // stride * stride
    return RegionBatch(
        device=chunk.device,
        stride=stride,
        headers=payload[headers_at:stored_at].view(REGION_DTYPE),
        stored=stored,
        lanes=payload[table_at:slots_at].view(LANE_STREAM_DTYPE),
        slots=payload[slots_at : min(main_end, slots_at + whole)].view(kind),
        lane_slots=payload[min(main_end, slots_at + whole) : slots_at + whole].view(kind),
    )
