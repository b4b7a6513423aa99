"""What a Perfetto trace must hold, computed from a Trace's columns row by row, without the exporter's code."""

from __future__ import annotations

import math
import struct
from typing import Any

from warptrace.trace import RANGE_STACK, Trace
from warptrace.wire import PAYLOAD_BITS, PayloadType

SIGNED = {PayloadType.I8, PayloadType.I16, PayloadType.I32, PayloadType.I64}
Argument = tuple[str, Any]
Slice = tuple[str, str, int, int, frozenset[tuple[str, Argument]]]
"""warp or track path, name, ts, dur, arguments"""


def typed(kind: int, bits: int) -> Argument:
    """(value_type, value) of a payload as the trace processor reports it."""
    payload = PayloadType(kind)
    if payload == PayloadType.BOOL:
        return "bool", bits
    if payload in SIGNED:
        width = PAYLOAD_BITS[payload]
        return "int", bits - (1 << width) if bits >> (width - 1) else bits
    formats = {PayloadType.F16: ("<H", "<e"), PayloadType.F32: ("<I", "<f"), PayloadType.F64: ("<Q", "<d")}
    if payload == PayloadType.BF16:
        value = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    elif payload in formats:
        raw, number = formats[payload]
        value = struct.unpack(number, struct.pack(raw, bits))[0]
    else:
        return ("uint", bits) if bits < 1 << 63 else ("string", str(bits))
    return ("string", "NaN") if math.isnan(value) else ("real", value)


def warp_paths(trace: Trace) -> list[str]:
    """Path of every warp's track below the root, for traces of one device."""
    out = []
    w = trace.warps
    for launch, cta, warp, sm, tpc, gpc in zip(
        w.launch.tolist(), w.cta.tolist(), w.warp.tolist(), w.sm.tolist(), w.tpc.tolist(), w.gpc.tolist(), strict=True
    ):
        place = f"TPC{tpc}|SM{sm:03d}" if tpc >= 0 else f"SM{sm:03d}"
        levels = [f"Grid{launch + 1}", *([f"GPC{gpc}"] if gpc >= 0 else []), place]
        out.append("/".join([*levels, "CTA({}, {}, {})".format(*cta), f"Warp{warp:02d}"]))
    return out


def life_times(trace: Trace) -> list[Slice]:
    """The slice of every warp."""
    out = []
    w = trace.warps
    for i, path in enumerate(warp_paths(trace)):
        arguments: dict[str, Argument] = {"events": ("uint", int(w.events[i]))}
        if w.cycles[i] >= 0:
            arguments["cycles"] = ("uint", int(w.cycles[i]))
        if w.lost[i]:
            arguments["lost_events"] = ("uint", int(w.lost[i]))
        if not w.closed[i]:
            arguments["ended"] = ("bool", 0)
        start, end = int(w.start_ns[i]), int(w.end_ns[i])
        out.append((path, "Warp Life Time", start, end - start, frozenset(arguments.items())))
    return out


def ranges(trace: Trace) -> list[Slice]:
    """The slice of every range; the path is that of its track's first lane."""
    out = []
    r, paths = trace.ranges, warp_paths(trace)
    for i in range(len(r)):
        name = trace.strings[r.name[i]]
        stack = r.kind[i] == RANGE_STACK
        arguments: dict[str, Argument] = {
            "cycles": ("uint", int(r.end_cycle[i] - r.start_cycle[i])),
            "site": ("string", _site(trace, int(r.start_site[i]))),
        }
        if not stack:
            arguments["end_site"] = ("string", _site(trace, int(r.end_site[i])))
        if r.lane[i]:
            arguments["lane"] = ("uint", int(r.lane[i]))
        if r.start_type[i]:
            arguments["payload"] = typed(int(r.start_type[i]), int(r.start_bits[i]))
        if r.end_type[i]:
            arguments["payload_end"] = typed(int(r.end_type[i]), int(r.end_bits[i]))
        path = f"{paths[r.warp[i]]}/{'StackedRanges' if stack else name}"
        start, end = int(r.start_ns[i]), int(r.end_ns[i])
        out.append((path, name, start, end - start, frozenset(arguments.items())))
    return out


def markers(trace: Trace) -> list[Slice]:
    """The instant of every marker."""
    out = []
    m, paths = trace.markers, warp_paths(trace)
    for i in range(len(m)):
        arguments: dict[str, Argument] = {"site": ("string", _site(trace, int(m.site[i])))}
        if m.lane[i]:
            arguments["lane"] = ("uint", int(m.lane[i]))
        if m.type[i]:
            arguments["payload"] = typed(int(m.type[i]), int(m.bits[i]))
        path = f"{paths[m.warp[i]]}/Marker"
        out.append((path, trace.strings[m.name[i]], int(m.ns[i]), 0, frozenset(arguments.items())))
    return out


def _site(trace: Trace, index: int) -> str:
    return f"{trace.sites[index].file}:{trace.sites[index].line}"
