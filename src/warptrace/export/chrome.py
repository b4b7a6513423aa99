"""Chrome's trace JSON, for tools that read nothing else.

Three things make such files lose events, and are avoided here: times count from the start of the trace, because
microseconds of Unix time do not fit a double (the Unix time of 0 is in ``otherData``); process and thread numbers
begin at 1, because 0 merges threads; and slices that would overlap without nesting get threads of their own, as they
get lanes in Perfetto. ``ts`` and ``dur`` are microseconds with exactly three decimals: whole nanoseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import __version__
from ..trace import I64, RANGE_STACK, Trace
from ._common import Progress, chunks, replacing, row_bounds, rows_of
from .host_tracks import host_tracks
from .iket_json import Number, Text, render
from .lanes import Lanes, assign_lanes
from .payload import texts

CHUNK_ROWS = 1 << 16
_THOUSANDTHS = tuple(b"%03d" % i for i in range(1000))


def write_chrome(trace: Trace, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Writes ``trace`` to ``path``: a process a launch, a thread for each warp's lanes. Raises WarptraceError."""
    bounds = row_bounds(trace)
    total = len(trace.warps) + len(trace.ranges) + len(trace.markers)
    done = 0
    with replacing(path) as file:
        writer = _Writer(trace)
        file.write(writer.head())
        for chunk in chunks(bounds, 0, len(trace.warps), CHUNK_ROWS):
            file.write(writer.chunk(chunk))
            done += rows_of(chunk)
            if progress is not None:
                progress(done, total)
        file.write(writer.tail())


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        columns = (trace.warps.start_ns, trace.ranges.start_ns, trace.markers.ns)
        self.host = host_tracks(trace)
        host = [one.begin_ns for track in self.host for one in track.slices]
        self.first_ns = min(0, *host, *(int(column.min(initial=0)) for column in columns))
        self.names = [_quoted(name) for name in trace.strings]
        self.next_thread = 1

    def head(self) -> bytes:
        """Up to the events: facts, and the names of the processes."""
        trace = self.trace
        facts = {
            "warptrace_version": __version__,
            "epoch_ns": str(trace.epoch_ns + self.first_ns),
            "emulated": trace.emulated,
            "problems": [f"{p.kind}: {p.text}" for p in trace.problems],
        }
        events: list[dict[str, Any]] = []
        for launch in trace.launches:
            name = f"{launch.index + 1}: {launch.kernel}{' [emulated]' if trace.emulated else ''}"
            events.append(_meta("process_name", launch.index + 1, {"name": name}))
            events.append(_meta("process_sort_index", launch.index + 1, {"sort_index": launch.index}))
        body = ",\n".join([*map(_dumps, events), *self._host_events()])
        return f'{{"otherData":{_dumps(facts)},"displayTimeUnit":"ns","traceEvents":[\n{body}'.encode()

    def _host_events(self) -> Iterator[str]:
        """A process for the host's side of each of ours, above those of the launches; a thread for each track of it."""
        for process in dict.fromkeys(track.process for track in self.host):
            number = len(self.trace.launches) + 1 + process
            name = f"Host, process {self.trace.processes[process].pid}"
            yield _dumps(_meta("process_name", number, {"name": name}))
            yield _dumps(_meta("process_sort_index", number, {"sort_index": process - len(self.trace.processes)}))
        for track in self.host:
            number = len(self.trace.launches) + 1 + track.process
            thread, self.next_thread = self.next_thread, self.next_thread + 1
            yield _dumps(_meta("thread_name", number, {"name": track.name}, thread))
            for one in track.slices:
                kind = {"ph": "i", "s": "t"} if one.end_ns is None else {"ph": "X"}
                event = {**kind, "name": one.name, "cat": "host", "pid": number, "tid": thread, "args": one.facts}
                long = "" if one.end_ns is None else f',"dur":{_microseconds(one.end_ns - one.begin_ns)}'
                yield f'{_dumps(event)[:-1]},"ts":{_microseconds(one.begin_ns - self.first_ns)}{long}}}'

    @staticmethod
    def tail() -> bytes:
        """The end of the document."""
        return b"\n]}\n"

    def chunk(self, chunk: Any) -> bytes:
        """Threads, life times, ranges and markers of some warps."""
        lanes = assign_lanes(self.trace, chunk)
        thread = self.next_thread + np.arange(len(lanes.names))
        self.next_thread += len(lanes.names)
        parts = [self._threads(lanes, thread), self._lives(chunk, lanes, thread)]
        parts += [self._ranges(chunk, lanes, thread), self._markers(chunk, lanes, thread)]
        return b"".join(parts)

    def _threads(self, lanes: Lanes, thread: I64) -> bytes:
        w = self.trace.warps
        events = []
        for at, (warp, name) in enumerate(zip(lanes.warp.tolist(), lanes.names)):
            x, y, z = w.cta[warp].tolist()
            title = f"SM{int(w.sm[warp]):03d} CTA({x}, {y}, {z}) Warp{int(w.warp[warp]):02d} {name}".rstrip()
            process = int(w.launch[warp]) + 1
            events.append(_meta("thread_name", process, {"name": title}, int(thread[at])))
            events.append(_meta("thread_sort_index", process, {"sort_index": int(thread[at])}, int(thread[at])))
        return "".join(f",\n{_dumps(event)}" for event in events).encode()

    def _lives(self, chunk: Any, lanes: Lanes, thread: I64) -> bytes:
        w, part = self.trace.warps, chunk.warps
        fields = [
            Text([b',\n{"ph":"X","name":"Warp Life Time","cat":"warp",']),
            *self._where(w.launch[part], thread[lanes.of_life]),
            *self._time(b',"ts":', w.start_ns[part] - self.first_ns),
            *self._time(b',"dur":', w.end_ns[part] - w.start_ns[part]),
            Text([b',"args":{"events":']),
            Number(w.events[part].astype(np.uint64)),
            Text([b',"lost":']),
            Number(w.lost[part].astype(np.uint64)),
            Text([b"}}"]),
        ]
        return render(part.stop - part.start, fields)

    def _ranges(self, chunk: Any, lanes: Lanes, thread: I64) -> bytes:
        r, part = self.trace.ranges, chunk.ranges
        if part.stop == part.start:
            return b""
        kind = (r.kind[part] == RANGE_STACK).astype(np.int64)
        fields = [
            Text([b',\n{"ph":"X","name":']),
            Text(self.names, r.name[part].astype(np.int64)),
            Text([b',"cat":"token",', b',"cat":"stack",'], kind),
            *self._where(self.trace.warps.launch[r.warp[part]], thread[lanes.of_range]),
            *self._time(b',"ts":', r.start_ns[part] - self.first_ns),
            *self._time(b',"dur":', r.end_ns[part] - r.start_ns[part]),
            Text([b',"args":{"cycles":']),
            Number((r.end_cycle[part] - r.start_cycle[part]).astype(np.uint64)),
            *self._payload(b',"payload":', r.start_type[part], r.start_bits[part]),
            *self._payload(b',"payload_end":', r.end_type[part], r.end_bits[part]),
            Text([b"}}"]),
        ]
        order = lanes.range_order
        return render(part.stop - part.start, [_reordered(field, order) for field in fields])

    def _markers(self, chunk: Any, lanes: Lanes, thread: I64) -> bytes:
        m, part = self.trace.markers, chunk.markers
        if part.stop == part.start:
            return b""
        fields = [
            Text([b',\n{"ph":"i","s":"t","name":']),
            Text(self.names, m.name[part].astype(np.int64)),
            Text([b',"cat":"marker",']),
            *self._where(self.trace.warps.launch[m.warp[part]], thread[lanes.of_marker]),
            *self._time(b',"ts":', m.ns[part] - self.first_ns),
            Text([b',"args":{"cycle":']),
            Number(m.cycle[part].astype(np.uint64)),
            *self._payload(b',"payload":', m.type[part], m.bits[part]),
            Text([b"}}"]),
        ]
        return render(part.stop - part.start, fields)

    @staticmethod
    def _where(launch: Any, thread: I64) -> list[Number | Text]:
        return [
            Text([b'"pid":']), Number(launch.astype(np.uint64) + np.uint64(1)),
            Text([b',"tid":']), Number(thread.astype(np.uint64)),
        ]  # fmt: skip

    @staticmethod
    def _time(key: bytes, ns: I64) -> list[Number | Text]:
        return [Text([key]), Number((ns // 1000).astype(np.uint64)), Text([b"."]), Text(_THOUSANDTHS, ns % 1000)]

    @staticmethod
    def _payload(key: bytes, types: Any, bits: Any) -> list[Number | Text]:
        """The payload as JSON: numbers that a double holds, the text of others."""
        if not types.any():
            return []
        distinct, index = np.unique(np.stack([types.astype(np.uint64), bits]), axis=1, return_inverse=True)
        shown = texts(distinct[0].astype(np.uint8), distinct[1])
        return [Text([b"" if not text else key + _json_number(text) for text in shown], index.reshape(-1))]


def _json_number(text: str) -> bytes:
    """``text`` of a payload as a JSON value: in quotes where JSON or a reader's double could not hold it."""
    try:
        exact = abs(int(text)) <= 1 << 53
    except ValueError:
        exact = text.lower().lstrip("-") not in ("nan", "inf")
    return text.encode() if exact else json.dumps(text).encode()


def _reordered(field: Number | Text, order: I64) -> Number | Text:
    if isinstance(field, Number):
        return Number(field.values[order])
    return field if field.index is None else Text(field.texts, field.index[order])


def _meta(name: str, process: int, arguments: dict[str, Any], thread: int | None = None) -> dict[str, Any]:
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"ph": "M", "name": name, **where, "args": arguments}


def _microseconds(ns: int) -> str:
    """As ``_Writer._time``: a float's own text may have other decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _dumps(value: Any) -> str:
    """JSON in UTF-8: Perfetto shows an escaped letter as its escape."""
    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> bytes:
    return _dumps(text).encode()
