"""JSON in the shape that run-iket writes, so that scripts made for it work unchanged.

Rows are formatted thousands at a time, field by field: the text that does not change is made once per variant of
record, numbers become columns of digits, and each field of all rows goes to its places at once. ``docs/outputs.md``
tells what every field means; the schema is ``schema/iket_trace.schema.json`` in this package.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..errors import WarptraceError
from ..selection import Coordinates
from ..trace import I64, RANGE_STACK, U8, U64, Launch, Trace
from ..unfinished import last_seen
from ..wire import EventKind, PayloadType
from ._common import OrderedPool, Progress, RowBounds, replacing, row_bounds, rows_of
from .deflate import gzip_member

Bools = NDArray[np.bool_]

EXTENSION_VERSION = 1
"""Version of everything under the keys named ``warptrace``."""

CHUNK_ROWS = 1 << 14
WORKERS = 2
COLOR = 4294967295
POP_EVENT_ID = 31
NARROW_EVENT_IDS = 30
WIDE_EVENT_BASE = 64

U8_TYPE = 2
PAYLOAD_NUMBERS = np.arange(256)
PAYLOAD_NUMBERS[PayloadType.BOOL] = U8_TYPE
"""(256,) PayloadType -> ``payloadType``: run-iket has no number of its own for bool."""


def write_iket_json(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    gzip: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes ``trace`` to ``path`` as JSON with run-iket's field names, tables and encodings.

    Timestamps are ``%globaltimer`` values: integer nanoseconds of Unix time. With ``gzip`` the file is compressed (as
    several gzip members). Raises :class:`~warptrace.errors.WarptraceError` where the file cannot be written or the
    trace is inconsistent.
    """
    bounds = row_bounds(trace)
    with replacing(path) as file:
        _Writer(trace, bounds, file, gzip, progress).write()


def range_id(name: str) -> int:
    """``rangeId``: the 32-bit FNV-1a hash of the name's UTF-8 bytes."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


# ------------------------------------------------------------------------------------------------------- tables
def first_appearance(*columns: np.ndarray, size: int) -> tuple[I64, I64]:
    """Values 0..size-1 in the order in which they first appear in the columns, and each value's place (-1: absent)."""
    place = np.full(size, -1, np.int64)
    order: list[I64] = []
    count = 0
    for column in columns:
        first = np.full(size, len(column), np.int64)
        first[column[::-1]] = np.arange(len(column))[::-1]  # the last write wins: the earliest row
        fresh = np.flatnonzero((first < len(column)) & (place < 0))
        fresh = fresh[np.argsort(first[fresh])]
        place[fresh] = np.arange(count, count + len(fresh))
        count += len(fresh)
        order.append(fresh)
    return np.concatenate(order), place


def locations(trace: Trace) -> tuple[I64, I64]:
    """Row of Warps that stands for each distinct (SM, CTA, warp), in order of appearance; each warp's index therein."""
    warps = trace.warps
    if not len(warps):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = [*warps.cta.T, warps.warp, warps.sm, warps.tpc, warps.gpc]
    order = np.lexsort(keys)
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    appearance, place = first_appearance(group, size=int(new.sum()))
    return order[new][appearance], place[group]  # lexsort is stable: the first of a group is its earliest row


def event_ids(trace: Trace, kernel_id: int, used: Sequence[int]) -> dict[int, int]:
    """``eventId`` of every name of a kernel (index into Trace.strings): 1.. in order of the sites, 64.. where more
    than 30 names leave no room below the number that stands for a pop."""
    index = {name: i for i, name in enumerate(trace.strings)}
    sites = sorted((site.id, site.name) for site in trace.sites if site.kernel_id == kernel_id)
    names = dict.fromkeys(index[name] for _, name in sites if name in index)
    names.update(dict.fromkeys(used))
    base = 1 if len(names) <= NARROW_EVENT_IDS else WIDE_EVENT_BASE
    return {name: base + i for i, name in enumerate(names)}


# ------------------------------------------------------------------------------------------------------- layout
_DIGITS4 = np.frombuffer(b"".join(b"%04d" % i for i in range(10000)), np.uint8).view(np.uint32)


@dataclass(frozen=True)
class Number:
    """A column of decimal numbers; nothing in the rows where ``present`` is false."""

    values: U64
    present: Bools | None = None


@dataclass(frozen=True)
class Text:
    """A column of texts: row ``index`` of ``texts``; one text for all where ``index`` is None."""

    texts: Sequence[bytes]
    index: I64 | None = None


@dataclass(frozen=True)
class _Cells:
    """A field of all rows: its bytes stand at the end of cells of one width, ``length`` of them. One cell for all rows
    where ``bytes`` is (1,)."""

    bytes: NDArray[np.void]
    length: I64 | int

    @property
    def width(self) -> int:
        return self.bytes.itemsize

    @property
    def least(self) -> int:
        return int(np.min(self.length))

    def tails(self, length: int) -> NDArray[np.void]:
        """The last ``length`` bytes of each cell."""
        return np.ndarray(len(self.bytes), f"V{length}", self.bytes, self.width - length, (self.width,))


def render(count: int, fields: Sequence[Number | Text]) -> bytes:
    """``count`` rows of concatenated fields.

    Field by field, the last first: what a cell holds before its bytes is overwritten by the fields before it.
    """
    if not count:
        return b""
    cells = {id(field): _cells(field) for field in fields}
    columns = [cells[id(field)] for field in fields]
    end = np.cumsum(np.broadcast_to(sum((column.length for column in columns), np.int64(0)), count))
    out = np.empty(int(end[-1]), np.uint8)
    before = sum(column.least for column in columns)
    for column in reversed(columns):
        before -= column.least
        if column.width - column.least <= before:
            _put(out, end, column.bytes)
        else:  # it would reach into the row before
            lengths = np.broadcast_to(column.length, count)
            for length in np.unique(lengths).tolist():
                rows = np.flatnonzero(lengths == length)
                tails = column.tails(length)
                _put(out, end[rows], tails if len(tails) == 1 else tails[rows])
        end = end - column.length
    return out.tobytes()


def _put(out: U8, end: I64, cells: NDArray[np.void]) -> None:
    """Writes cells so that they end at some places."""
    if cells.itemsize:
        places = np.ndarray(len(out) - cells.itemsize + 1, cells.dtype, out, 0, (1,))
        places[end - cells.itemsize] = cells


def _cells(field: Number | Text) -> _Cells:
    if isinstance(field, Number):
        digits, length = _digits(field.values)
        return _Cells(digits, length if field.present is None else np.where(field.present, length, 0))
    width = max(map(len, field.texts))
    texts = b"".join(text.rjust(width, b"\0") for text in field.texts)
    table = np.ndarray(len(field.texts), f"V{width}", texts)
    lengths = np.array([len(text) for text in field.texts], np.int64)
    if field.index is None:
        return _Cells(table[:1], int(lengths[0]))
    return _Cells(table[field.index], lengths[field.index] if len(set(lengths.tolist())) > 1 else width)


def _digits(values: U64) -> tuple[NDArray[np.void], I64 | int]:
    """(ASCII digits at the ends of cells, how many there are)."""
    least, most = (len(str(int(value))) for value in (values.min(), values.max()))
    groups = -(-most // 4)
    table = np.empty((len(values), groups), np.uint32)
    rest = values
    for group in range(groups - 1, 0, -1):
        quotient = rest // np.uint64(10000)
        table[:, group] = _DIGITS4[(rest - quotient * np.uint64(10000)).astype(np.int64)]
        rest = quotient
    table[:, 0] = _DIGITS4[rest.astype(np.int64)]
    length: I64 | int = least
    for more in range(least, most):
        length = length + (values >= np.uint64(10**more))
    return table.view(f"V{4 * groups}")[:, 0], length


# ------------------------------------------------------------------------------------------------------- writer
class _Writer:
    def __init__(
        self, trace: Trace, bounds: RowBounds, file: BinaryIO, gzip: bool, progress: Progress | None
    ) -> None:
        self.trace = trace
        self.bounds = bounds
        self.file = file
        self.gzip = gzip
        self.progress = progress
        self.total = len(trace.warps) + len(trace.ranges) + len(trace.markers)
        self.done = 0
        columns = trace.ranges.name, trace.markers.name, trace.open.name
        names, self.string_of = first_appearance(*columns, size=len(trace.strings))
        self.strings = [trace.strings[name] for name in names]
        self.location_rows, self.location_of = locations(trace)
        self.last_seen = last_seen(trace) if (trace.warps.closed == 0).any() else None
        self.launch_bounds = np.searchsorted(trace.warps.launch, np.arange(len(trace.launches) + 1))

    def write(self) -> None:
        """The whole document, in the key order that run-iket uses (alphabetical)."""
        graphs: dict[str, list[Launch]] = {}
        plain = []
        for launch in self.trace.launches:
            if launch.graph is None:
                plain.append(launch)
            else:
                graphs.setdefault(f"{launch.graph[0]}:{launch.graph[1]}", []).append(launch)
        with OrderedPool(self.file, WORKERS) as self.pool:
            self._text('{"graphLaunches":{')
            for i, (key, launches) in enumerate(graphs.items()):
                self._text(f"{',' if i else ''}{_dumps(key)}:")
                self._launches(launches)
            self._text('},"launches":')
            self._launches(plain)
            self._text(',"locationTable":[')
            self._section(self._locations, slice(0, len(self.location_rows)))
            self._text(f'],"meta":{{"version":1}},"stringTable":{_dumps(self.strings)},"warptrace":{self._extension()}}}')

    # ------------------------------------------------------------------------------------------- plumbing
    def _text(self, text: str) -> None:
        self.pool.submit(self._packed, lambda: text.encode())

    def _packed(self, make: Callable[[], bytes]) -> bytes:
        data = make()
        return gzip_member()(data) if self.gzip and data else data

    def _advance(self, rows: int) -> None:
        self.done += rows
        if self.progress is not None and rows:
            self.progress(self.done, self.total)

    # ------------------------------------------------------------------------------------------- launches
    def _launches(self, launches: Sequence[Launch]) -> None:
        self._text("[")
        for i, launch in enumerate(launches):
            self._launch(launch, "," if i else "")
        self._text("]")

    def _launch(self, launch: Launch, separator: str) -> None:
        head = {
            **{f"blockDim{axis}": size for axis, size in zip("XYZ", launch.block, strict=True)},
            "contextId": launch.context_id,
            **_enabled_cluster(launch),
            **{f"gridDim{axis}": size for axis, size in zip("XYZ", launch.grid, strict=True)},
            "gridId": launch.grid_id,
            "kernelName": launch.symbol,
        }
        first, last = (int(self.launch_bounds[launch.index + i]) for i in (0, 1))
        whole = self.bounds.chunk(first, last)
        used = np.unique(self.trace.ranges.name[whole.ranges]).tolist()
        ids = event_ids(self.trace, launch.kernel_id, used)
        self._text(f'{separator}{_dumps(head)[:-1]},"markers":[')
        self._section(self._markers, whole.markers)
        self._text('],"ranges":[')
        self._section(self._ranges, whole.ranges, ids)
        single = int(_single_cluster(launch) is not None)
        self._text(f'],"singleClusterActive":{single},"warpLifetimes":[')
        self._section(self._lifetimes, whole.warps)
        self._text(f'],"warptrace":{self._launch_extension(launch, first, last)}}}')
        self._advance(rows_of(whole))

    def _section(self, function: Callable[..., bytes], rows: slice, *extra: object) -> None:
        """The records of some rows of a table, without the brackets around them."""
        for start in range(rows.start, rows.stop, CHUNK_ROWS):
            part = slice(start, min(start + CHUNK_ROWS, rows.stop))
            # Every record begins with a comma; the first of a list has none.
            skip = 1 if start == rows.start else 0
            self.pool.submit(self._packed, lambda part=part, skip=skip: function(part, *extra)[skip:])

    def _time(self, ns: I64) -> Number:
        absolute = ns + self.trace.epoch_ns
        if (absolute < 0).any():
            raise WarptraceError("inconsistent trace: a time lies before 1970; decode the capture again")
        return Number(absolute.view(np.uint64))

    def _location(self, warp: np.ndarray) -> Number:
        return Number(self.location_of[warp].view(np.uint64))

    def _markers(self, rows: slice) -> bytes:
        markers = self.trace.markers
        payload = _Payloads(markers.type[rows], markers.bits[rows])
        fields = [
            Text([f',{{"color":{COLOR},"locIdx":'.encode()]),
            self._location(markers.warp[rows]),
            Text([b',"markerNameIdx":']),
            self._string(markers.name[rows]),
            *payload.fields(),
            Text([b',"timestamp":']),
            self._time(markers.ns[rows]),
            Text([b"}"]),
        ]
        return render(rows.stop - rows.start, fields)

    def _ranges(self, rows: slice, ids: dict[int, int]) -> bytes:
        ranges = self.trace.ranges
        start, end = self._time(ranges.start_ns[rows]), self._time(ranges.end_ns[rows])
        location = self._location(ranges.warp[rows])
        at_start = _Payloads(ranges.start_type[rows], ranges.start_bits[rows])
        at_end = _Payloads(ranges.end_type[rows], ranges.end_bits[rows])
        shapes, index = np.unique(ranges.name[rows].astype(np.int64) << 8 | ranges.kind[rows], return_inverse=True)
        shape = index.reshape(-1)
        pairs = [(int(code) >> 8, int(code) & 0xFF) for code in shapes]
        opened = [f',"internalEvents":[{{"eventId":{ids[name]}'.encode() for name, _ in pairs]
        last = [POP_EVENT_ID if kind == RANGE_STACK else ids[name] for name, kind in pairs]
        closed = [f'}},{{"eventId":{number}'.encode() for number in last]
        facts = [self._range_facts(name, kind) for name, kind in pairs]
        fields = [
            Text([b',{"endTs":']),
            end,
            Text(opened, shape),
            *at_start.fields(),
            Text([b',"timestamp":']),
            start,
            Text(closed, shape),
            *at_end.fields(),
            Text([b',"timestamp":']),
            end,
            Text(facts, shape),
            start,
            Text([b',"warpLocIdxs":[']),
            location,
            Text([b","]),
            location,
            Text([b"]}"]),
        ]
        return render(rows.stop - rows.start, fields)

    def _range_facts(self, name: int, kind: int) -> bytes:
        return (
            f'}}],"rangeColor":{COLOR},"rangeId":{range_id(self.trace.strings[name])},'
            f'"rangeNameIdx":{self.string_of[name]},"rangeScope":0,"rangeType":{kind},"startTs":'
        ).encode()

    def _lifetimes(self, rows: slice) -> bytes:
        warps = self.trace.warps
        fields: list[Number | Text] = [
            Text([b',{"endTs":']),
            self._time(warps.end_ns[rows]),
            Text([b',"locIdx":']),
            Number(self.location_of[rows].view(np.uint64)),
            Text([b',"startTs":']),
            self._time(warps.start_ns[rows]),
            Text([b"}"]),
        ]
        return render(rows.stop - rows.start, fields)

    def _string(self, name: np.ndarray) -> Number:
        return Number(self.string_of[name].view(np.uint64))

    # ---------------------------------------------------------------------------------------------- tables
    def _locations(self, rows: slice) -> bytes:
        warps, at = self.trace.warps, self.location_rows[rows]
        columns = np.stack([*warps.cta[at].T, warps.gpc[at], warps.sm[at], warps.tpc[at], warps.warp[at]], axis=1)
        return "".join(
            f',{{"ctaId":[{x},{y},{z}],"gpcId":{gpc},"smId":{sm},"tpcId":{tpc},"warpId":{warp}}}'
            for x, y, z, gpc, sm, tpc, warp in columns.tolist()
        ).encode()

    # ------------------------------------------------------------------------------------------ extensions
    def _launch_extension(self, launch: Launch, first: int, last: int) -> str:
        warps, rows = self.trace.warps, slice(first, last)
        place = self.location_of[rows]
        losing = warps.lost[rows] > 0
        facts = {
            "index": launch.index,
            "kernel": launch.kernel,
            "kernelId": f"{launch.kernel_id:016x}",
            "cluster": list(launch.cluster),
            "device": launch.device,
            "stream": launch.stream,
            "streamName": launch.stream_name or None,
            "pid": self.trace.processes[launch.process].pid,
            "process": launch.process,
            "startTs": launch.start_ns + self.trace.epoch_ns,
            "endTs": launch.end_ns + self.trace.epoch_ns,
            "warpsRecorded": launch.warps_recorded,
            "warpsExpected": launch.warps_expected,
            "events": launch.events,
            "lostEvents": launch.lost_events,
            "lostWarps": launch.lost_warps,
            "clockUncertaintyNs": launch.clock_uncertainty_ns,
            "selection": _selection(launch),
            "lostPerWarp": np.stack([place[losing], warps.lost[rows][losing]], axis=1).tolist(),
            "unfinishedWarps": place[warps.closed[rows] == 0].tolist(),
            **self._unfinished(first, last),
        }
        return _dumps(facts)

    def _unfinished(self, first: int, last: int) -> dict[str, Any]:
        """Where the warps of a launch were that had not ended, of its rows of Warps."""
        trace, open_, full = self.trace, self.trace.open, self.trace.full
        running = np.flatnonzero(trace.warps.closed[first:last] == 0) + first
        seen = None if self.last_seen is None or not len(running) else int(self.last_seen[running].max())
        ranges = []
        for i in range(*np.searchsorted(open_.warp, [first, last]).tolist()):
            kind, bits = int(open_.start_type[i]), int(open_.start_bits[i])
            payload = {"payloadType": PAYLOAD_NUMBERS[kind], "payloadVal": bits} if kind != PayloadType.NONE else {}
            ranges.append(
                {
                    "locIdx": self.location_of[open_.warp[i]],
                    "rangeNameIdx": self.string_of[open_.name[i]],
                    "rangeType": open_.kind[i],
                    "startTs": int(open_.start_ns[i]) + trace.epoch_ns,
                    "siteId": trace.sites[int(open_.start_site[i])].id,
                    **payload,
                }
            )
        return {
            "lastSeenTs": None if seen is None else seen + trace.epoch_ns,
            "openRanges": ranges,
            "fullWarps": self.location_of[full[(full >= first) & (full < last)]],
        }

    def _extension(self) -> str:
        trace = self.trace
        problems = [{"kind": p.kind, "count": p.count, "text": p.text, "launch": p.launch} for p in trace.problems]
        sites = [
            {
                "kernelId": f"{site.kernel_id:016x}",
                "id": site.id,
                "kind": EventKind(site.kind).name.lower(),
                "name": site.name,
                "payloadType": int(PAYLOAD_NUMBERS[site.payload]),
                "file": site.file,
                "line": site.line,
            }
            for site in trace.sites
        ]
        facts = {
            "version": EXTENSION_VERSION,
            "tool": f"warptrace {__version__}",
            "emulated": trace.emulated,
            "epochNs": trace.epoch_ns,
            "problems": problems,
            "hostStart": _host_start(trace),
            "clocks": trace.meta.get("clocks", {}),
            "topology": trace.meta.get("topology", []),
            "windows": [_window(trace, window) for window in trace.meta.get("windows", ())],
            **({"host": [_host(trace, one) for one in trace.meta["host"]]} if trace.meta.get("host") else {}),
            "alignment": [_camel(facts) for facts in trace.meta.get("alignment", ())],
            "processes": [
                {"pid": one.pid, "rank": one.rank, "host": one.host, "manifest": one.manifest}
                for one in trace.processes
            ],
            "sites": sites,
            "builds": [_build(build) for build in trace.meta.get("builds", ())],
        }
        return _dumps(facts)


def _single_cluster(launch: Launch) -> Coordinates | None:
    """The only cluster that was recorded, where one was chosen."""
    clusters = launch.selection.recorded.clusters if launch.selection is not None else None
    return clusters[0] if clusters is not None and len(clusters) == 1 else None


def _enabled_cluster(launch: Launch) -> dict[str, Any]:
    place = _single_cluster(launch)
    return {} if place is None else {"enabledCluster": dict(zip("xyz", place, strict=True))}


def _selection(launch: Launch) -> dict[str, Any] | None:
    """What of the launch was recorded; None: all of it."""
    chosen = launch.selection
    if chosen is None:
        return None
    return {
        "clusters": chosen.recorded.clusters,
        "ctaStride": chosen.recorded.cta_stride,
        "warps": chosen.recorded.warps,
        "outside": chosen.outside,
        "clusterGrid": chosen.cluster_grid,
        "warpsOfGrid": chosen.grid_warps,
    }


def _host_start(trace: Trace) -> dict[str, Any] | None:
    host = trace.meta.get("host_start")
    return None if host is None else _camel(host)


def _camel(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their names as JSON has them: ``shift_ns`` is ``shiftNs``."""

    def name(key: str) -> str:
        first, *rest = key.split("_")
        return first + "".join(word.capitalize() for word in rest)

    return {name(key): value for key, value in facts.items()}


def _window(trace: Trace, window: dict[str, Any]) -> dict[str, Any]:
    """A time in which recording was on. Times are absolute, null where they are not known."""

    def absolute(ns: int | None) -> int | None:
        return None if ns is None else ns + trace.epoch_ns

    return {
        "pid": trace.processes[window["process"]].pid,
        "beginUnixNs": window["begin_unix_ns"],
        "endUnixNs": window["end_unix_ns"],
        "startTs": absolute(window["begin_ns"]),
        "endTs": absolute(window["end_ns"]),
        "uncertaintyNs": window["uncertainty_ns"],
    }


HOST_TIMES = {"ns": "ts", "begin_ns": "startTs", "end_ns": "endTs"}


def _host(trace: Trace, facts: dict[str, Any]) -> dict[str, Any]:
    """The host's side of a process. Times are absolute, null where they are not known."""

    def timed(row: dict[str, Any], *names: str) -> dict[str, Any]:
        rest = {key: value for key, value in row.items() if key not in names}
        times = {name: None if row[name] is None else row[name] + trace.epoch_ns for name in names}
        return rest | {HOST_TIMES[name]: time for name, time in times.items()}

    return {
        "pid": trace.processes[facts["process"]].pid,
        "uncertaintyNs": facts["uncertainty_ns"],
        "threads": [{"id": number, "name": name} for number, name in facts["threads"].items()],
        "ranges": [_camel(timed(row, "begin_ns", "end_ns")) for row in facts["ranges"]],
        "marks": [_camel(timed(row, "ns")) for row in facts["marks"]],
        "launches": [
            _camel(timed({key: value for key, value in row.items() if key != "around"}, "ns"))
            for row in facts["launches"]
        ],
        "lostLaunches": facts["lost_launches"],
    }


def _build(build: dict[str, Any]) -> dict[str, Any]:
    """What a kernel takes, as compiled with events and, where known, without."""

    def code(facts: dict[str, Any]) -> dict[str, int]:
        keys = {"registers": "registers", "stack_bytes": "stackBytes", "code_bytes": "codeBytes"}
        return {name: facts[key] for key, name in keys.items() if isinstance(facts.get(key), int)}

    untraced = build.get("untraced")
    return {
        "kernelId": f"{build['kernel_id']:016x}",
        "kernel": build["kernel"],
        "arch": build["arch"],
        **code(build),
        **({"untraced": code(untraced)} if isinstance(untraced, dict) else {}),
    }


class _Payloads:
    """The two payload fields of an event, which are left out where there is no payload."""

    def __init__(self, types: U8, bits: U64) -> None:
        self.types = types
        self.bits = bits

    def fields(self) -> list[Number | Text]:
        """``payloadType`` and ``payloadVal``: nothing at all where no row has a payload."""
        kinds, index = np.unique(self.types, return_inverse=True)
        if not kinds.any():
            return []
        texts = [f',"payloadType":{PAYLOAD_NUMBERS[kind]},"payloadVal":'.encode() if kind else b"" for kind in kinds]
        return [Text(texts, index.reshape(-1)), Number(self.bits, self.types != PayloadType.NONE)]


def _dumps(value: object) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: object) -> Any:
    """``value`` as JSON can say it: numpy numbers and arrays plain, a number that is none as null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
