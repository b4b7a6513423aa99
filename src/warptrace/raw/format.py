"""The layout of a raw capture directory: names, magics and numpy dtypes. ``docs/format.md`` explains it.

``manifest.json`` and ``kernels.jsonl`` are text; ``dev<ordinal>.wtraw`` is a file header and then chunks, each with
a CRC. A chunk of regions carries the device's own bytes, compacted: the slots that were never written are left out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..wire import REGION_ALIGN, REGION_MAGIC, RING_MAGIC, SLOT8_DTYPE, SLOT16_DTYPE, STRIDES

FORMAT_NAME = "warptrace-capture"
MANIFEST_NAME = "manifest.json"
KERNELS_NAME = "kernels.jsonl"
HOST_NAME = "host.jsonl"
"""Ranges and launches of the host, where they were asked for: a JSON array a line."""
CELL_NAME = "cell.bin"
"""The host cell (see ``warptrace.wire``), which counts launches, while the process runs: how many there were is known
also where it dies. Gone once the manifest tells it."""
SNAPSHOT_FOLDER = "snapshot"
"""Folder in a capture directory: a capture of its own, of what was not in the other one when it was taken."""
RAW_FOLDER = "raw"
"""Folder of a run directory that holds one capture directory per process."""

FILE_MAGIC = b"WTRAW\r\n\x1a"
"""The line ends and the ^Z show a file that went through a text conversion."""
ENDIAN_MARK = 0x01020304
FILE_DTYPE = np.dtype(
    {
        "names": ["magic", "version", "endian", "header_bytes", "device", "pid"],
        "formats": ["S8", "<u4", "<u4", "<u4", "<u4", "<u8"],
        "offsets": [0, 8, 12, 16, 20, 24],
        "itemsize": 64,
    }
)

CHUNK_MAGIC = 0x4B4E4843  # "CHNK"
CHUNK_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("kind", "<u4"),
        ("payload_bytes", "<u8"),
        ("crc32", "<u4"),
        ("index", "<u4"),
        ("reserved", "<u8"),
    ]
)
CHUNK_REGIONS = 1
CHUNK_LOST = 2
CHUNK_CONTROL = 3
CHUNK_DAMAGE = 4

BATCH_DTYPE = np.dtype([("n_regions", "<u4"), ("stride", "<u4"), ("n_lane_streams", "<u4"), ("reserved", "<u4")])
"""Head of a chunk of kind CHUNK_REGIONS; all its regions have one ``stride``. Behind it: n_regions region headers
(REGION_DTYPE), n_regions u32 ``stored`` (main slots kept), zeros up to a multiple of 8 bytes, n_lane_streams
LANE_STREAM_DTYPE, all main slots, all lane slots."""

REGION_OFFSET_FIELD = "reserved"
"""The header field that holds, in files only, the region's offset from the control block. On the device it is
undefined; a token's link cannot be resolved without it."""

LANE_STREAM_DTYPE = np.dtype([("region", "<u4"), ("lane", "<u4"), ("advance", "<u4"), ("stored", "<u4")])
"""``region`` indexes the batch; ``advance`` is the lane's own count of bytes, 0 where it never closed."""

CONTROL_CHUNK_DTYPE = np.dtype([("lost_events", "<u8"), ("lost_head", "<u4"), ("reserved", "<u4")])
"""Totals since the start of the capture; the last chunk counts."""

DAMAGE_DTYPE = np.dtype([("base", "<u4"), ("reserved", "<u4"), ("position", "<u8"), ("skipped_bytes", "<u8")])
"""Memory of a bank, claimed and not known to be empty, in which no valid region header was found."""

for _dtype, _size in ((FILE_DTYPE, 64), (CHUNK_DTYPE, 32), (BATCH_DTYPE, 16), (LANE_STREAM_DTYPE, 16)):
    assert _dtype.itemsize == _size


@dataclass(frozen=True)
class BankImage:
    """A contiguous piece of a bank's memory, as :meth:`CaptureWriter.write_regions` takes it.

    ``data``: (n,) u8 or bytes. ``data[0]`` is logical position ``position`` (a multiple of REGION_ALIGN) and lay at
    ``base + (position & mask)`` from the control block; the piece may run on into the slack behind the bank. A bank
    that wrapped is given as two pieces, in order. ``failed_bytes``: bytes of the piece, or of the pieces of its bank
    in the same call, that are known to be claims without room.
    """

    data: NDArray[np.uint8] | bytes
    position: int
    base: int
    mask: int
    failed_bytes: int = 0


def chunk_crc(head: NDArray[np.void], payload: Iterable[NDArray[Any]]) -> int:
    """CRC-32 of a chunk: its (1,) CHUNK_DTYPE head with crc32 0, then its payload."""
    blank = head.copy()
    blank["crc32"] = 0
    crc = zlib.crc32(octets(blank))
    for part in payload:
        crc = zlib.crc32(octets(part), crc)
    return crc


def text_crc(data: Mapping[str, Any]) -> int:
    """CRC-32 of a JSON object, ``crc32`` itself left out: of its text without spaces, keys in order, in ASCII."""
    bare = {key: value for key, value in data.items() if key != "crc32"}
    return zlib.crc32(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode())


def octets(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def slot_dtype(stride: int) -> np.dtype[Any]:
    """The dtype of one slot. Raises KeyError for a stride that does not exist."""
    return {8: SLOT8_DTYPE, 16: SLOT16_DTYPE}[stride]


def padded(count: int, align: int = 8) -> int:
    """``count`` rounded up to a multiple of ``align``."""
    return -(-count // align) * align


def valid_headers(headers: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which of the (n,) REGION_DTYPE headers are well formed by themselves."""
    stride_ok = (headers["stride"] == STRIDES[0]) | (headers["stride"] == STRIDES[1])
    sizes_ok = ((headers["main_bytes"] | headers["lane_bytes"]) % REGION_ALIGN) == 0
    magic_ok = (headers["magic"] == REGION_MAGIC) | (headers["magic"] == RING_MAGIC)
    ok: NDArray[np.bool_] = magic_ok & stride_ok & sizes_ok
    return ok
