"""The host's side in a page: its tracks, and their slices as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...report.host import Host
from ...trace import Trace
from ..host_tracks import HostTrack, Slice, host_tracks

MAX_HOST = 200_000
"""Slices of the host that a page holds at most: launch calls and marks first, then the longest ranges."""


@dataclass(frozen=True)
class HostSide:
    """``slices``: (track, row, slice) by track, row and time. A row's slices do not overlap; what is nested has the row
    below. ``total``: slices of the trace."""

    tracks: tuple[HostTrack, ...]
    slices: tuple[tuple[int, int, Slice], ...]
    total: int

    def columns(self) -> Iterator[tuple[str, NDArray[Any], bool]]:
        """``ns`` is -1 of a moment, ``launch`` -1 where it is of none; ``name`` and ``within`` index ``names()``.
        ``doubt``: how far times may be off, in ns."""
        code = {name: number for number, name in enumerate(self.names())}
        some = [one for _, _, one in self.slices]
        values = {
            "track": [track for track, _, _ in self.slices],
            "row": [row for _, row, _ in self.slices],
            "name": [code[one.name] for one in some],
            "within": [code[_within(one)] for one in some],
            "start_ns": [one.begin_ns for one in some],
            "ns": [-1 if one.end_ns is None else one.end_ns - one.begin_ns for one in some],
            "launch": [-1 if one.launch is None else one.launch for one in some],
            "ended": [one.facts.get("ended", True) for one in some],
            "doubt": [round(float(one.facts["clock_uncertainty_ns"])) for one in some],
        }
        for name, column in values.items():
            yield f"host.{name}", np.array(column, np.int64), name in ("track", "start_ns")

    def names(self) -> list[str]:
        """Distinct texts of the slices, and of what is around them."""
        return list(dict.fromkeys(text for _, _, one in self.slices for text in (one.name, _within(one))))

    def facts(self, trace: Trace, rows: Host | None) -> dict[str, Any] | None:
        """What is no column; ``rows``: the report's figures. None where nothing of the host was recorded."""
        if rows is None:
            return None
        several = len({track.process for track in self.tracks}) > 1
        tracks = [
            {"name": f"pid {trace.processes[one.process].pid}: {one.name}" if several else one.name}
            for one in self.tracks
        ]
        held = {"slices": len(self.slices), "slices_of": self.total}
        return {"tracks": tracks, "names": self.names(), **held, **asdict(rows)}


def host_side(trace: Trace, most: int = MAX_HOST) -> HostSide:
    """What of the host a page shows."""
    tracks = tuple(host_tracks(trace))
    found = [(number, *placed) for number, track in enumerate(tracks) for placed in _rows(track)]
    kept = sorted(found, key=lambda one: (one[2].end_ns is not None, -_long(one[2])))[:most]
    kept.sort(key=lambda one: (one[0], one[1], one[2].begin_ns))
    return HostSide(tracks, tuple(kept), len(found))


def _rows(track: HostTrack) -> Iterator[tuple[int, Slice]]:
    """Each slice with how many of its track it lies in."""
    ends: list[int] = []
    for one in track.slices:
        end = one.begin_ns if one.end_ns is None else one.end_ns
        while ends and (ends[-1] <= one.begin_ns or ends[-1] < end):
            ends.pop()
        yield len(ends), one
        ends.append(end)


def _long(one: Slice) -> int:
    return 0 if one.end_ns is None else one.end_ns - one.begin_ns


def _within(one: Slice) -> str:
    return str(one.facts.get("within", ""))
