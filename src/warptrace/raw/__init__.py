"""The raw capture directory of a process: write it, read it, print it. ``docs/format.md`` describes it."""

from __future__ import annotations

from .dump import dump, payload_value
from .format import BankImage
from .reader import Capture, Chunk, RegionBatch, find_captures, read_capture, read_head
from .writer import CaptureWriter, WriteStats

__all__ = [
    "BankImage",
    "Capture",
    "CaptureWriter",
    "Chunk",
    "RegionBatch",
    "WriteStats",
    "dump",
    "find_captures",
    "payload_value",
    "read_capture",
    "read_head",
]
