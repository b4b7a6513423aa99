"""speedscope's evented format: a profile for each line of each warp, times in ns from the start of the trace.

speedscope shows one profile at a time and wants its events nested, so token ranges, which may cross others, have
profiles of their own. Markers have no place in the format.
"""

from __future__ import annotations

import json
import os
from typing import BinaryIO

import numpy as np

from .. import __version__
from ..trace import Trace
from ._common import Chunk, Progress, chunks, replacing, row_bounds, rows_of
from .iket_json import Number, Text, render
from .lanes import Lanes, assign_lanes

CHUNK_ROWS = 1 << 16
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
LIFE_TIME = "Warp Life Time"


def write_speedscope(trace: Trace, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Writes ``trace`` to ``path``. Raises WarptraceError."""
    bounds = row_bounds(trace)
    frames = [{"name": name} for name in (*trace.strings, LIFE_TIME)]
    total = len(trace.warps) + len(trace.ranges) + len(trace.markers)
    done = 0
    with replacing(path) as file:
        name = trace.launches[0].kernel if trace.launches else "empty"
        head = {"$schema": SCHEMA, "exporter": f"warptrace {__version__}", "name": name, "shared": {"frames": frames}}
        file.write(f'{json.dumps(head)[:-1]},"profiles":['.encode())
        first = True
        for chunk in chunks(bounds, 0, len(trace.warps), CHUNK_ROWS):
            first = _profiles(trace, chunk, file, first)
            done += rows_of(chunk)
            if progress is not None:
                progress(done, total)
        file.write(b"]}\n")


def _profiles(trace: Trace, chunk: Chunk, file: BinaryIO, first: bool) -> bool:
    """The profiles of some warps; returns whether the next is still the first of the file."""
    lanes = assign_lanes(trace, chunk)
    line, text, ends = _events(trace, chunk, lanes)
    edges = np.searchsorted(line, np.arange(len(lanes.names) + 1))
    for at in range(len(lanes.names)):
        low, high = (int(ends[edge]) for edge in edges[at : at + 2])
        file.write(_head(trace, lanes, at, first) + text[low : high - 1] + b"]}")
        first = False
    return first


def _head(trace: Trace, lanes: Lanes, at: int, first: bool) -> bytes:
    w, warp = trace.warps, int(lanes.warp[at])
    x, y, z = w.cta[warp].tolist()
    title = f"Grid{int(w.launch[warp]) + 1} SM{int(w.sm[warp]):03d} CTA({x}, {y}, {z}) Warp{int(w.warp[warp]):02d}"
    facts = {
        "type": "evented", "name": f"{title} {lanes.names[at]}".rstrip(), "unit": "nanoseconds",
        "startValue": int(w.start_ns[warp]), "endValue": int(w.end_ns[warp]),
    }  # fmt: skip
    return f'{"" if first else ","}\n{json.dumps(facts)[:-1]},"events":['.encode()


def _events(trace: Trace, chunk: Chunk, lanes: Lanes) -> tuple[np.ndarray, bytes, np.ndarray]:
    """Opens and closes of all lines of a chunk as text, in order of (line, program order): the line of each, the text,
    and where each event begins in it (one more: its end)."""
    w, r, part = trace.warps, trace.ranges, chunk.ranges
    count, warps = part.stop - part.start, chunk.warps.stop - chunk.warps.start
    line = np.concatenate([lanes.of_life, lanes.of_life, lanes.of_range, lanes.of_range])
    top = np.iinfo(np.int64).max  # a life time's end comes after everything
    key = np.concatenate(
        [np.full(warps, -1), np.full(warps, top), r.start_seq[part] * 2 + 1, r.end_seq[part] * 2]
    )
    ns = np.concatenate([w.start_ns[chunk.warps], w.end_ns[chunk.warps], r.start_ns[part], r.end_ns[part]])
    life = np.full(warps, len(trace.strings))
    frame = np.concatenate([life, life, r.name[part], r.name[part]]).astype(np.int64)
    close = np.repeat(np.array([0, 1, 0, 1]), [warps, warps, count, count])
    order = np.lexsort((key, line))
    fields: list[Number | Text] = [
        Text([b'{"type":"O","frame":', b'{"type":"C","frame":'], close[order]),
        Number(frame[order].astype(np.uint64)),
        Text([b',"at":']),
        Number(ns[order].astype(np.uint64)),
        Text([b"},"]),
    ]
    text = render(len(order), fields)
    begins = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("{"))
    return line[order], text, np.append(begins, len(text))
