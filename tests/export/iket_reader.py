"""A script as a user of run-iket would write it: it knows only that tool's JSON, nothing of this package."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLOATS = {13: ("<I", "<f"), 14: ("<Q", "<d")}
SIGNED = {1: 8, 3: 16, 5: 32, 7: 64}


@dataclass
class Statistics:
    """Per name: durations of ranges, counts of markers, start and end payloads."""

    durations: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    markers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    payloads: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    warps: dict[tuple[int, tuple[int, ...], int], int] = field(default_factory=lambda: defaultdict(int))


def payload(event: dict[str, Any]) -> Any:
    """The typed value of an event's payload, None where there is none."""
    kind, value = event.get("payloadType"), event.get("payloadVal")
    if kind in FLOATS:
        raw, number = FLOATS[kind]
        return struct.unpack(number, struct.pack(raw, value))[0]
    if kind in SIGNED and value >> (SIGNED[kind] - 1):
        return value - (1 << SIGNED[kind])
    return value


def read(path: Path) -> list[Statistics]:
    """Statistics of every launch, those of graphs after the others."""
    data = json.loads(path.read_text())
    launches = data["launches"] + [one for key in sorted(data["graphLaunches"]) for one in data["graphLaunches"][key]]
    return [_launch(data, launch) for launch in launches]


def _launch(data: dict[str, Any], launch: dict[str, Any]) -> Statistics:
    names, places = data["stringTable"], data["locationTable"]
    out = Statistics()
    for row in launch["ranges"]:
        start, end = row["internalEvents"]
        if row["warpLocIdxs"][0] != row["warpLocIdxs"][1]:
            raise ValueError("malformed range")
        if (start["timestamp"], end["timestamp"]) != (row["startTs"], row["endTs"]):
            raise ValueError("events do not belong to their range")
        if end["eventId"] != (31 if row["rangeType"] == 2 else start["eventId"]):
            raise ValueError("malformed event ids")
        name = names[row["rangeNameIdx"]]
        out.durations[name].append(row["endTs"] - row["startTs"])
        out.payloads[name].append((payload(start), payload(end)))
    for row in launch["markers"]:
        name = names[row["markerNameIdx"]]
        out.markers[name] += 1
        out.payloads[name].append(payload(row))
    for row in launch["warpLifetimes"]:
        place = places[row["locIdx"]]
        out.warps[(place["smId"], tuple(place["ctaId"]), place["warpId"])] += row["endTs"] - row["startTs"]
    return out
