"""``.pftrace``: the timeline that Perfetto opens.

Track tree: Grid (a launch, with its kernel slice) > GPC > TPC|SM > CTA > warp (with its life time) > one track per
token-range name, ``StackedRanges``, ``Marker``. ``docs/outputs.md`` tells what every track and argument means.

Perfetto draws slices of one track as a stack, so slices of one track must nest: token ranges of one name that overlap,
and stacks of different leader lanes that cross, go to further tracks ("lanes"). It orders events by time and keeps the
file's order where times are equal, so the events of a warp are written in program order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from .. import __version__
from ..errors import WarptraceError
from ..flows import Flow
from ..flows.match import match, trace_flows
from ..trace import I32, I64, RANGE_STACK, U8, U64, Launch, Trace
from ..unfinished import until_last_seen
from . import trackevent as te
from ._common import Chunk, Progress, chunks, replacing, row_bounds, rows_of
from .host_tracks import Slice, host_tracks
from .payload import ValueKind, texts, widen

CHUNK_ROWS = 1 << 15
TRACK_ROWS = 1 << 14
ROOT = 1
LANES_PER_NAME = 1024
VECTOR_LANES = 8
DENSE = 8
"""Numbers up to so many times their count are told apart by counting."""
STACKED_RANK = 1 << 28
MARKER_RANK = 1 << 29
LIFE_TIME = "Warp Life Time"
CALLS = 1 << 62
"""From here on flow ids are those from a launch call to its launch, by the launch's index."""
MAX_SIGNED = np.uint64((1 << 63) - 1)

# iids of argument names
ARGUMENTS = ("payload", "payload_end", "cycles", "site", "end_site", "lane", "events", "lost_events", "ended")
PAYLOAD, PAYLOAD_END, CYCLES, SITE, END_SITE, LANE, EVENTS, LOST, ENDED = range(1, len(ARGUMENTS) + 1)


def write_perfetto(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    payload_in_name: bool = False,
    compress: bool = True,
    flows: Sequence[Flow] = (),
    progress: Progress | None = None,
) -> None:
    """Writes ``trace`` to ``path`` as a Perfetto trace.

    ``payload_in_name`` names slices ``name(payload=N)``, as run-iket does; they stay the bare range name otherwise,
    so that Perfetto can aggregate them. ``compress`` makes the packets about a sixth of the size. ``flows``, and
    those that the traced program declared, are drawn as arrows. Raises
    :class:`~warptrace.errors.WarptraceError` where the file cannot be written, or where the events of a warp run
    backwards in time.
    """
    trace = until_last_seen(trace)
    bounds = row_bounds(trace)
    _check(trace)
    total = len(trace.warps) + len(trace.ranges) + len(trace.markers)
    done = 0
    with replacing(path) as file, te.PacketFile(file, compress) as out:
        writer = _Writer(trace, out, payload_in_name, trace_flows(trace, flows))
        for first in range(0, len(trace.warps), TRACK_ROWS):
            writer.life_times(slice(first, min(first + TRACK_ROWS, len(trace.warps))))
        for chunk in chunks(bounds, 0, len(trace.warps), CHUNK_ROWS):
            writer.events(chunk)
            done += rows_of(chunk)
            if progress is not None:
                progress(done, total)


def _check(trace: Trace) -> None:
    """Refuses what would silently become a wrong picture."""
    ranges, warps = trace.ranges, trace.warps
    faults = {
        "ranges end before they start": (ranges.end_ns < ranges.start_ns) | (ranges.end_seq <= ranges.start_seq),
        "warps end before they start": warps.end_ns < warps.start_ns,
        "launches end before they start": np.array([one.end_ns < one.start_ns for one in trace.launches], bool),
    }
    for what, wrong in faults.items():
        if wrong.any():
            raise WarptraceError(f"inconsistent trace: {int(wrong.sum())} {what}; decode the capture again")


def _first_ns(trace: Trace) -> int:
    """Earliest time if it is before the trace's zero, else 0: packets cannot hold negative times."""
    columns = (trace.warps.start_ns, trace.ranges.start_ns, trace.markers.ns)
    windows = (window["begin_ns"] for window in _windows(trace))
    earliest = (int(column.min(initial=0)) for column in columns)
    host = (one.begin_ns for track in host_tracks(trace) for one in track.slices)
    return int(min(0, *earliest, *(one.start_ns for one in trace.launches), *windows, *host))


def _windows(trace: Trace) -> list[dict[str, Any]]:
    """Capture windows whose place on the timeline is known."""
    return [window for window in trace.meta.get("windows", ()) if window["begin_ns"] is not None]


class _Writer:
    def __init__(
        self, trace: Trace, out: te.PacketFile, payload_in_name: bool, flows: Sequence[Flow] = ()
    ) -> None:
        self.trace = trace
        self.out = out
        self.payload_in_name = payload_in_name
        self.arrows = _arrows(trace, flows)
        self.first_ns = _first_ns(trace)
        self.places = trace.places()
        self.alignment = {(one["process"], one["device"]): one for one in trace.meta.get("alignment", ())}
        self.names = len(trace.strings)
        self.next_name = self.names + 2
        self.nan = len(trace.sites) + 1
        self.next_string = self.nan + 1
        self._preamble()
        tree = _Tree(trace)
        for block in tree.blocks():
            out.write(block)
        self.called = {one.launch: one for host in tree.host for one in host.slices if one.launch is not None}
        for launch, track in zip(trace.launches, tree.grids, strict=True):
            self._kernel_slice(launch, int(track))
        for window in _windows(trace):
            self._window_slice(window, tree.windows[window["process"]])
        for host, track in zip(tree.host, tree.host_tracks, strict=True):
            for one in host.slices:
                self._host_slice(one, int(track))
        self.warp_track = tree.warps
        self.next_track = tree.next_track

    # ---------------------------------------------------------------------------------------- once a trace
    def _preamble(self) -> None:
        trace, names = self.trace, [*self.trace.strings, LIFE_TIME]
        sites = [f"{site.file}:{site.line}" for site in trace.sites]
        self.out.write(
            te.interned(
                list(enumerate(names, 1)),
                list(enumerate(ARGUMENTS, 1)),
                list(enumerate([*sites, "NaN"], 1)),
                flags=te.STATE_CLEARED | te.NEEDS_STATE,
            )
        )
        epoch = trace.epoch_ns + self.first_ns
        host = trace.meta.get("host_start")
        unix = epoch if host is None else int(host["unix_ns"]) + self.first_ns
        self.out.write(te.clock_snapshot(unix))
        facts = [
            te.annotation("warptrace_version", __version__),
            te.annotation("epoch_ns", epoch),
            te.annotation("emulated", trace.emulated),
            te.annotation("launches", len(trace.launches)),
            te.annotation("problems", len(trace.problems)),
        ]
        if host is not None:
            facts.append(te.annotation("host_unix_ns", unix))
            facts.append(te.annotation("host_uncertainty_ns", float(host["uncertainty_ns"])))
        facts += [te.annotation(f"aligned_{i}", text) for i, text in enumerate(self._aligned(), 1)]
        facts += [te.annotation(f"problem_{i}", f"{p.kind}: {p.text}") for i, p in enumerate(trace.problems, 1)]
        self.out.write(te.event(0, te.INSTANT, ROOT, "trace info", *facts))

    def _aligned(self) -> Iterator[str]:
        """A line for each device, where there are several: how well it stands on the common timeline."""
        if len(self.places) < 2:
            return
        for key, name in self.places.items():
            one = self.alignment.get(key)
            if one is None:
                yield f"{name}: not aligned"
            else:
                doubt, alike = one["uncertainty_ns"], one["symmetric_uncertainty_ns"]
                further = f", to {alike:.0f} ns if both ways of a link are alike" if alike < doubt else ""
                yield f"{name}: shifted by {one['shift_ns']} ns, good to {doubt:.0f} ns{further}"

    def _kernel_slice(self, launch: Launch, track: int) -> None:
        emulated = " [emulated]" if self.trace.emulated else ""
        name = f"kernel:{launch.kernel}{emulated}, gridId: {launch.grid_id}"
        facts = [te.annotation(key, value) for key, value in self._launch_facts(launch).items()]
        if (call := self.called.get(launch.index)) is not None:
            facts.append(te.annotation("called_before_ns", launch.start_ns - call.begin_ns))
            if "within" in call.facts:
                facts.append(te.annotation("called_in", call.facts["within"]))
            facts.append(te.flow(CALLS + launch.index, last=True))
        self.out.write(te.event(launch.start_ns - self.first_ns, te.BEGIN, track, name, *facts))
        self.out.write(te.event(launch.end_ns - self.first_ns, te.END, track))

    def _window_slice(self, window: dict[str, Any], track: int) -> None:
        """From a window's begin to its end; to the end of the last launch where the process died in it."""
        begin, end = window["begin_ns"], window["end_ns"]
        names = ("begin_unix_ns", "end_unix_ns")
        facts = [te.annotation(name, window[name]) for name in names if window[name] is not None]
        facts.append(te.annotation("clock_uncertainty_ns", float(window["uncertainty_ns"])))
        if end is None:
            facts.append(te.annotation("ended", False))
            end = max((one.end_ns for one in self.trace.launches), default=begin)
        self.out.write(te.event(begin - self.first_ns, te.BEGIN, track, "capture window", *facts))
        self.out.write(te.event(max(begin, end) - self.first_ns, te.END, track))

    def _host_slice(self, one: Slice, track: int) -> None:
        facts = [te.annotation(name, value) for name, value in one.facts.items()]
        if one.launch is not None:
            facts.append(te.flow(CALLS + one.launch, last=False))
        begin = one.begin_ns - self.first_ns
        self.out.write(te.event(begin, te.INSTANT if one.end_ns is None else te.BEGIN, track, one.name, *facts))
        if one.end_ns is not None:
            self.out.write(te.event(max(begin, one.end_ns - self.first_ns), te.END, track))

    def _launch_facts(self, launch: Launch) -> dict[str, int | float | bool | str]:
        process = self.trace.processes[launch.process]
        facts: dict[str, int | float | bool | str] = {
            "symbol": launch.symbol,
            "grid": _dim(launch.grid),
            "block": _dim(launch.block),
            "cluster": _dim(launch.cluster),
            "device": launch.device,
            "process_id": process.pid,
            "context_id": launch.context_id,
            "grid_id": launch.grid_id,
            "warps_recorded": launch.warps_recorded,
            "warps_expected": launch.warps_expected,
            "events": launch.events,
            "lost_events": launch.lost_events,
            "lost_warps": launch.lost_warps,
            "clock_uncertainty_ns": float(launch.clock_uncertainty_ns),
            "epoch_ns": self.trace.epoch_ns + self.first_ns,
        }
        if launch.selection is not None:
            facts["selection"] = str(launch.selection)
        if process.rank is not None:
            facts["rank"] = process.rank
        if len(self.places) > 1:
            facts["host"] = process.host
            if (aligned := self.alignment.get((launch.process, launch.device))) is not None:
                for which in ("uncertainty_ns", "symmetric_uncertainty_ns"):
                    facts[f"alignment_{which}"] = float(aligned[which])
        if launch.graph is not None:
            facts["graph"] = f"{launch.graph[0]}:{launch.graph[1]}"
        if launch.stream is not None:
            facts["stream"] = launch.stream_name
        if self.trace.emulated:
            facts["emulated"] = True
        return facts

    # ---------------------------------------------------------------------------------------- once a chunk
    def life_times(self, rows: slice) -> None:
        """The slices of some warps."""
        warps = self.trace.warps
        count = rows.stop - rows.start
        place = 2 * np.arange(count)
        track, name = self.warp_track[rows], self.names + 1
        cycles, lost, closed = warps.cycles[rows], warps.lost[rows], warps.closed[rows]
        facts = [
            te.Argument(EVENTS, te.Kind.UINT, warps.events[rows].astype(np.uint64)),
            *_argument(CYCLES, te.Kind.UINT, cycles, cycles >= 0),
            *_argument(LOST, te.Kind.UINT, lost, lost > 0),
            *_argument(ENDED, te.Kind.BOOL, closed, closed == 0),
        ]
        start, end = ((ns[rows] - self.first_ns).astype(np.uint64) for ns in (warps.start_ns, warps.end_ns))
        groups = [te.Group(te.BEGIN, place, start, track, name, facts), te.Group(te.END, place + 1, end, track, name)]
        self.out.write(te.block(groups))

    def events(self, chunk: Chunk) -> None:
        """The ranges and markers of some warps, and their tracks."""
        trace, r, m = self.trace, chunk.ranges, chunk.markers
        ranges, markers = trace.ranges, trace.markers
        rows = r.stop - r.start
        if rows + m.stop - m.start == 0:
            return
        # Program order as one number: the end of one range comes before a start that shares its stamp (switch).
        keys = _Keys(ranges.start_seq[r] * 2 + 1, ranges.end_seq[r] * 2, markers.seq[m] * 2 + 1)
        range_track, marker_track = self._leaf_tracks(chunk, keys)
        times = ranges.start_ns[r], ranges.end_ns[r], markers.ns[m]
        order = self._order(keys, ranges.warp[r], markers.warp[m], times)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        names = self._names(chunk)
        facts = self._facts(chunk)
        payloads = (
            self._payload(PAYLOAD, ranges.start_type[r], ranges.start_bits[r]),
            self._payload(PAYLOAD_END, ranges.end_type[r], ranges.end_bits[r]),
            self._payload(PAYLOAD, markers.type[m], markers.bits[m]),
        )
        links = [link for arrows in self.arrows for link in self._links(arrows, r)]
        for arrows in self.arrows:
            self._arrivals(arrows, r, range_track)
        cuts = slice(rows), slice(rows, 2 * rows), slice(2 * rows, None)
        tracks = range_track, range_track, marker_track
        groups = [
            te.Group(
                kind=kind,
                place=place[cuts[i]],
                ns=(times[i] - self.first_ns).astype(np.uint64),
                track=tracks[i],
                name=names[i],
                arguments=[*facts[i], *payloads[i]],
                links=links if kind == te.BEGIN else [],
            )
            for i, kind in enumerate((te.BEGIN, te.END, te.INSTANT))
        ]
        self.out.write_later(lambda: te.block(groups))

    @staticmethod
    def _order(keys: _Keys, of_range: I32, of_marker: I32, times: tuple[I64, I64, I64]) -> I64:
        """The order of range starts, range ends and markers, one behind the other, by warp and then program. Refuses
        times that do not follow it."""
        first = min((int(warp[0]) for warp in (of_range, of_marker) if len(warp)), default=0)
        ranges, markers = ((warp.astype(np.int64) - first) << 44 for warp in (of_range, of_marker))
        key = np.concatenate([ranges | keys.start, ranges | keys.end, markers | keys.marker])
        order = np.argsort(key, kind="stable")
        ns = np.concatenate(times)[order]
        back = np.flatnonzero(ns[1:] < ns[:-1])
        if len(back):
            warp = np.concatenate([of_range, of_range, of_marker])[order]
            back = back[warp[back] == warp[back + 1]]
        if len(back):
            raise WarptraceError(
                f"inconsistent trace: events of warp row {int(warp[back[0]])} run backwards in time; "
                "decode the capture again"
            )
        return order

    @staticmethod
    def _links(arrows: _Arrows, rows: slice) -> Iterator[te.Link]:
        """The flow ids on the begins of a flow's sources, one for each target."""
        first, count = arrows.first[rows], arrows.count[rows]
        for turn in range(int(count.max(initial=0))):
            present = count > turn
            yield te.Link(np.where(present, first + turn, 0).astype(np.uint64), present, last=False)

    def _arrivals(self, arrows: _Arrows, rows: slice, range_track: U64) -> None:
        """An instant at the end of every target, where its arrow arrives.

        Viewers take of two slices the one that starts later for the fed one, and a wait may start before the load that
        it waits for: the target itself cannot be the end of an arrow. Written before the chunk's events, so that it
        lies in the target's slice, which ends at the same time.
        """
        fed = np.flatnonzero(arrows.target[rows])
        if not len(fed):
            return
        if not arrows.name:
            arrows.name.append(self.next_name)
            self.next_name += 1
            self.out.write(te.interned([(arrows.name[0], arrows.title)]))
        arrivals = te.Group(
            kind=te.INSTANT,
            place=np.arange(len(fed)),
            ns=(self.trace.ranges.end_ns[rows][fed] - self.first_ns).astype(np.uint64),
            track=range_track[fed],
            name=arrows.name[0],
            links=[te.Link(arrows.target[rows][fed].astype(np.uint64), np.ones(len(fed), np.bool_), last=True)],
        )
        self.out.write(te.block([arrivals]))

    def _facts(self, chunk: Chunk) -> tuple[list[te.Argument], list[te.Argument], list[te.Argument]]:
        """The arguments besides payloads of range starts, range ends and markers: cycles, site, lane."""
        ranges, markers, r, m = self.trace.ranges, self.trace.markers, chunk.ranges, chunk.markers
        cycles = ranges.end_cycle[r] - ranges.start_cycle[r]
        # A token can be ended at one of several places; a pop says nothing that the push does not.
        end_site = np.where(ranges.kind[r] == RANGE_STACK, np.int32(-1), ranges.end_site[r])
        starts = [
            # of a range that was open at a snapshot
            *_argument(ENDED, te.Kind.BOOL, np.zeros(len(cycles), np.uint64), cycles < 0),
            *_site(SITE, ranges.start_site[r]),
            *_lane(ranges.lane[r]),
            *_argument(CYCLES, te.Kind.UINT, cycles, cycles >= 0),
        ]
        return starts, [*_site(END_SITE, end_site)], [*_site(SITE, markers.site[m]), *_lane(markers.lane[m])]

    # ----------------------------------------------------------------------------------------- payloads
    def _payload(self, name: int, types: U8, bits: U64) -> list[te.Argument]:
        if not types.any():
            return []
        kinds, values = widen(types, bits)
        # Viewers show an unsigned value of 2^63 and more as a negative number and a NaN as nothing: give the text.
        large = np.flatnonzero((kinds == ValueKind.UINT) & (values > MAX_SIGNED))
        nan = np.flatnonzero((kinds == ValueKind.FLOAT) & np.isnan(values.view(np.float64)))
        values[nan] = self.nan
        if len(large):
            distinct, index = np.unique(values[large], return_inverse=True)
            values[large] = np.uint64(self.next_string) + index.reshape(-1).astype(np.uint64)
            numbers = [str(value) for value in distinct.tolist()]
            self.out.write(te.interned(strings=list(enumerate(numbers, self.next_string))))
            self.next_string += len(numbers)
        kinds[nan] = kinds[large] = te.Kind.STRING
        return [te.Argument(name, kinds, values)]

    def _names(self, chunk: Chunk) -> tuple[U64, int, U64]:
        """The iids of the names of range starts, range ends (not written) and markers."""
        ranges, markers, r, m = self.trace.ranges, self.trace.markers, chunk.ranges, chunk.markers
        name = np.concatenate([ranges.name[r], markers.name[m]])
        iids = name.astype(np.uint64) + np.uint64(1)
        if self.payload_in_name:
            types = np.concatenate([ranges.start_type[r], markers.type[m]])
            bits = np.concatenate([ranges.start_bits[r], markers.bits[m]])
            iids = self._payload_names(iids, name, types, bits)
        cut = r.stop - r.start
        return iids[:cut], 0, iids[cut:]

    def _payload_names(self, iids: U64, name: I32, types: U8, bits: U64) -> U64:
        rows = np.flatnonzero(types)
        if not len(rows):
            return iids
        code, value = (name[rows].astype(np.int64) << 8) | types[rows], bits[rows]
        order = np.lexsort((value, code))
        new = np.ones(len(rows), np.bool_)
        new[1:] = (code[order][1:] != code[order][:-1]) | (value[order][1:] != value[order][:-1])
        iids[rows[order]] = np.uint64(self.next_name - 1) + np.cumsum(new).astype(np.uint64)
        shown = rows[order[new]]
        strings, payloads = self.trace.strings, texts(types[shown], bits[shown])
        labels = [f"{strings[n]}(payload={text})" for n, text in zip(name[shown].tolist(), payloads, strict=True)]
        self.out.write(te.interned(list(enumerate(labels, self.next_name))))
        self.next_name += len(labels)
        return iids

    # ------------------------------------------------------------------------------------------- leaves
    def _leaf_tracks(self, chunk: Chunk, keys: _Keys) -> tuple[U64, U64]:
        """The track of every range and marker of a chunk; writes the tracks' descriptors."""
        ranges, r, markers, m = self.trace.ranges, chunk.ranges, self.trace.markers, chunk.markers
        stacked = ranges.kind[r] == RANGE_STACK
        warp = ranges.warp[r].astype(np.int64)
        lane = np.zeros(len(warp), np.int64)
        rows = np.flatnonzero(~stacked)
        lane[rows] = token_lanes(warp[rows], ranges.name[r][rows], keys.start[rows], keys.end[rows])
        rows = np.flatnonzero(stacked)
        lane[rows] = stack_lanes(warp[rows], ranges.lane[r][rows], keys.start[rows], keys.end[rows])
        lanes = int(lane.max(initial=0)) + 1
        slots = self.names + 2
        slot = np.where(stacked, self.names, ranges.name[r])
        first = chunk.warps.start
        code = np.concatenate(
            [
                ((warp - first) * slots + slot) * lanes + lane,
                ((markers.warp[m].astype(np.int64) - first) * slots + self.names + 1) * lanes,
            ]
        )
        distinct, index = _distinct(code)
        uuid = np.arange(self.next_track, self.next_track + len(distinct), dtype=np.uint64)
        self.next_track += len(distinct)
        self._leaf_descriptors(uuid, self.warp_track[first + distinct // (slots * lanes)], distinct, lanes)
        track = uuid[index]
        return track[: len(warp)], track[len(warp) :]

    def _leaf_descriptors(self, uuid: U64, parent: U64, code: I64, lanes: int) -> None:
        shapes, shape = np.unique(code % ((self.names + 2) * lanes), return_inverse=True)
        names, ranks = [], []
        for slot, lane in ((int(s) // lanes, int(s) % lanes) for s in shapes):
            base, rank = self._leaf(slot)
            names.append(base if lane == 0 else f"{base} #{lane + 1}")
            ranks.append(rank + min(lane, LANES_PER_NAME - 1))
        table = te.text_table(names)
        rank_column = np.array(ranks, np.uint64)[shape.reshape(-1)]
        for block in _blocks(uuid, parent, table, shape.reshape(-1), rank_column):
            self.out.write(block)

    def _leaf(self, slot: int) -> tuple[str, int]:
        if slot == self.names:
            return "StackedRanges", STACKED_RANK
        if slot == self.names + 1:
            return "Marker", MARKER_RANK
        return self.trace.strings[slot], min(slot * LANES_PER_NAME, STACKED_RANK - LANES_PER_NAME)


@dataclass(frozen=True)
class _Keys:
    """Program order within a warp of range starts, range ends and markers."""

    start: I64
    end: I64
    marker: I64


@dataclass(frozen=True)
class _Arrows:
    """Columns over Ranges: a source's first flow id and how many it has; a target's id. 0: none. ``name`` holds the iid
    of ``title`` once that is written."""

    title: str
    first: I64
    count: I64
    target: I64
    name: list[int] = field(default_factory=list)


def _arrows(trace: Trace, flows: Sequence[Flow]) -> list[_Arrows]:
    out, used = [], 0
    for flow in flows:
        pairs = match(trace, flow)
        if not len(pairs.source):
            continue
        order = np.lexsort((pairs.target, pairs.source))
        source, target = pairs.source[order], pairs.target[order]
        ids = used + 1 + np.arange(len(order))
        used += len(order)
        first, of_target = np.zeros(len(trace.ranges), np.int64), np.zeros(len(trace.ranges), np.int64)
        first[source[::-1]] = ids[::-1]  # the last write wins: the first of a source
        of_target[target] = ids
        title = f"{flow.source} -> {flow.target}"
        out.append(_Arrows(title, first, np.bincount(source, minlength=len(trace.ranges)), of_target))
    return out


def _distinct(code: I64) -> tuple[I64, I64]:
    """The different numbers in order, and the place of each among them; small numbers without sorting."""
    if int(code.max(initial=0)) > DENSE * len(code):
        distinct, index = np.unique(code, return_inverse=True)
        return distinct, index.reshape(-1)
    size = int(code.max(initial=0)) + 1
    used = np.zeros(size, np.bool_)
    used[code] = True
    distinct = np.flatnonzero(used)
    table = np.zeros(size, np.int64)
    table[distinct] = np.arange(len(distinct))
    return distinct, table[code]


def _argument(name: int, kind: te.Kind, value: np.ndarray, when: np.ndarray) -> Iterator[te.Argument]:
    """An argument of the events ``when``; nothing where it is of none."""
    if when.all():
        yield te.Argument(name, kind, value.astype(np.uint64))
    elif when.any():
        kinds = np.where(when, np.uint8(kind), np.uint8(te.Kind.NONE))
        yield te.Argument(name, kinds, value.astype(np.uint64))


def _site(name: int, site: I32) -> Iterator[te.Argument]:
    return _argument(name, te.Kind.STRING, site + 1, site >= 0)


def _lane(lane: U8) -> Iterator[te.Argument]:
    return _argument(LANE, te.Kind.UINT, lane, lane > 0)


def _dim(dim: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, dim)) + ")"


# -------------------------------------------------------------------------------------------------------- lanes
def token_lanes(warp: I64, name: I32, start: I64, end: I64) -> I64:
    """Lane of every token range so that ranges of one (warp, name) on one lane do not overlap: lowest free lane.

    ``start`` and ``end`` are program order within the warp; rows are ordered by (warp, start).
    """
    lane = np.zeros(len(warp), np.int64)
    order = np.lexsort((name, warp))
    w, n, s, e = warp[order], name[order], start[order], end[order]
    same = (w[1:] == w[:-1]) & (n[1:] == n[:-1])
    crossing = same & (s[1:] < e[:-1])
    if not crossing.any():
        return lane
    group = np.concatenate([[0], np.cumsum(~same)])
    crowded = np.flatnonzero(np.isin(group, group[1:][crossing]))
    lane[order[crowded]] = _colour(group[crowded], s[crowded], e[crowded])
    return lane


def _colour(group: I64, start: I64, end: I64) -> I64:
    """Lowest free lane of each range; rows are ordered by (group, start).

    Lane 0 takes the first range of a group, the first that starts after that one's end, and so on: the rows that are
    reached from the first by such jumps. Of the others lane 1 does the same. After VECTOR_LANES lanes, what is left is
    taken row by row.
    """
    lane = np.zeros(len(group), np.int64)
    rest = np.arange(len(group))
    for number in range(VECTOR_LANES):
        if not len(rest):
            return lane
        mine = _chains(group[rest], start[rest], end[rest])
        lane[rest[mine]] = number
        rest = rest[~mine]
    lane[rest] = VECTOR_LANES + np.array(_colour_rows(*(x[rest].tolist() for x in (group, start, end))), np.int64)
    return lane


def _chains(group: I64, start: I64, end: I64) -> np.ndarray:
    """Which rows are the first of their group, or the first to start at or after the end of such a row."""
    n = len(group)
    code = np.cumsum(np.concatenate([[0], group[1:] != group[:-1]]))
    span = int(max(start.max(), end.max())) + 1
    following = np.maximum(np.searchsorted(code * span + start, code * span + end), np.arange(1, n + 1))
    following[code[np.minimum(following, n - 1)] != code] = n
    following = np.append(following, n)
    reached = np.zeros(n + 1, np.bool_)
    reached[:n] = np.concatenate([[True], code[1:] != code[:-1]])
    while True:
        rows = np.flatnonzero(reached[:n])
        following_rows = following[rows]
        if reached[following_rows[following_rows < n]].all():
            return reached[:n]
        reached[following_rows] = True
        following = following[following]


def _colour_rows(groups: list[int], starts: list[int], ends: list[int]) -> list[int]:
    out = []
    current, lanes = -1, 0
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for group, start, end in zip(groups, starts, ends, strict=True):
        if group != current:
            current, lanes = group, 0
            free.clear()
            busy.clear()
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heappush(busy, (end, lane))
        out.append(lane)
    return out


def stack_lanes(warp: I64, leader: U8, start: I64, end: I64) -> I64:
    """Lane of every stack range so that ranges of one warp on one lane nest.

    Each leader lane of a warp has its own stack. An outermost range and all within it stay together, on the first
    lane where no other stack has an event meanwhile: a stack that runs within another's pause nests in it.
    """
    lane = np.zeros(len(warp), np.int64)
    mixed = (warp[1:] == warp[:-1]) & (leader[1:] != leader[:-1])
    if not mixed.any():
        return lane
    rows = np.flatnonzero(np.isin(warp, warp[1:][mixed]))
    for unit in _by_warp(warp[rows]):
        part = rows[unit]
        lane[part] = _place_stacks(leader[part].tolist(), start[part].tolist(), end[part].tolist())
    return lane


def _by_warp(warp: I64) -> Iterator[slice]:
    edges = [0, *(np.flatnonzero(warp[1:] != warp[:-1]) + 1).tolist(), len(warp)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield slice(first, last)


def _place_stacks(leaders: list[int], starts: list[int], ends: list[int]) -> list[int]:
    unit_of: list[int] = []
    units: list[tuple[int, int, list[int]]] = []  # start, end, events
    open_unit: dict[int, int] = {}
    for leader, start, end in zip(leaders, starts, ends, strict=True):
        unit = open_unit.get(leader, -1)
        if unit < 0 or units[unit][1] <= start:
            unit = open_unit[leader] = len(units)
            units.append((start, end, []))
        units[unit][2].extend((start, end))
        unit_of.append(unit)
    lanes: list[I64] = []
    lane_of_unit = []
    for start, end, events in units:
        lane = next((i for i, used in enumerate(lanes) if _quiet(used, start, end)), len(lanes))
        used = lanes[lane] if lane < len(lanes) else np.empty(0, np.int64)
        lanes[lane : lane + 1] = [np.sort(np.concatenate([used, np.array(events, np.int64)]))]
        lane_of_unit.append(lane)
    return [lane_of_unit[unit] for unit in unit_of]


def _quiet(used: I64, start: int, end: int) -> bool:
    return bool(np.searchsorted(used, start) == np.searchsorted(used, end))


# ---------------------------------------------------------------------------------------------------- the tree
class _Tree:
    """The tracks from the root down to the warps, numbered from ROOT on."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.next_track = ROOT + 1
        self._levels: list[tuple[U64, U64, list[str], I64, U64]] = []
        root = "warptrace (emulated)" if trace.emulated else "warptrace"
        self._add_fixed([ROOT], [0], [root], [0])
        self.host = host_tracks(trace)
        self.host_tracks = self._host_tracks()
        self.windows = self._window_tracks()
        self.grids = self._grids()
        self.warps = self._warps()

    def blocks(self) -> Iterator[U8]:
        """Descriptor packets, parents first."""
        for uuid, parent, names, name, rank in self._levels:
            if len(uuid):
                yield from _blocks(uuid, parent, te.text_table(names), name, rank)

    def _add_fixed(self, uuid: Sequence[int], parent: Sequence[int], names: list[str], rank: Sequence[int]) -> U64:
        uuids = np.array(uuid, np.uint64)
        index = np.arange(len(names))
        self._levels.append((uuids, np.array(parent, np.uint64), names, index, np.array(rank, np.uint64)))
        return uuids

    def _add(self, parent: U64, names: list[str], rank: I64, name: I64 | None = None) -> U64:
        uuid = np.arange(self.next_track, self.next_track + len(parent), dtype=np.uint64)
        self.next_track += len(parent)
        index = np.arange(len(names)) if name is None else name
        self._levels.append((uuid, parent, names, index, rank.astype(np.uint64)))
        return uuid

    def _window_tracks(self) -> dict[int, int]:
        """The track of the capture windows of each process that has any."""
        processes = sorted({window["process"] for window in _windows(self.trace)})
        names = ["Capture windows"]
        if len(self.trace.processes) > 1:
            names = [f"Capture windows of process {self.trace.processes[p].pid}" for p in processes]
        tracks = self._add(np.full(len(processes), ROOT, np.uint64), names[: len(processes)], np.arange(len(processes)))
        return {process: int(track) for process, track in zip(processes, tracks, strict=True)}

    def _host_tracks(self) -> U64:
        """A track for each of the host's, below one of its process."""
        processes = sorted({track.process for track in self.host})
        names = ["Host"]
        if len(self.trace.processes) > 1:
            names = [f"Host of process {self.trace.processes[p].pid}" for p in processes]
        above = self._add(np.full(len(processes), ROOT, np.uint64), names[: len(processes)], np.arange(len(processes)))
        parent = above[[processes.index(track.process) for track in self.host]] if self.host else above
        return self._add(parent, [track.name for track in self.host], np.arange(len(self.host)))

    def _grids(self) -> U64:
        launches, places = self.trace.launches, self.trace.places()
        parent = np.full(len(launches), ROOT, np.uint64)
        if len(places) > 1:
            groups = self._add(np.full(len(places), ROOT, np.uint64), [*places.values()], np.arange(len(places)))
            row = {key: i for i, key in enumerate(places)}
            parent = groups[[row[one.process, one.device] for one in launches]]
        names = [f"Grid{i}" for i in range(1, len(launches) + 1)]
        return self._add(parent, names, np.arange(len(launches)))

    def _warps(self) -> U64:
        warps = self.trace.warps
        if not len(warps):
            return np.empty(0, np.uint64)
        sm_track = self._sms()
        new = np.ones(len(warps), np.bool_)
        new[1:] = (sm_track[1:] != sm_track[:-1]) | np.any(warps.cta[1:] != warps.cta[:-1], axis=1)
        names = [f"CTA({x}, {y}, {z})" for x, y, z in warps.cta[new].tolist()]
        ctas = self._add(sm_track[new], names, np.arange(len(names)) & 0x7FFFFFFF)
        numbers = [f"Warp{w:02d}" for w in range(int(warps.warp.max()) + 1)]
        return self._add(ctas[np.cumsum(new) - 1], numbers, warps.warp.astype(np.int64), warps.warp.astype(np.int64))

    def _sms(self) -> U64:
        """The SM track of every warp; GPC tracks above them where the GPC is known."""
        warps = self.trace.warps
        launch, gpc, tpc, sm = (c.astype(np.int64) for c in (warps.launch, warps.gpc, warps.tpc, warps.sm))
        gpcs, gpc_index = np.unique((launch << 16) | (gpc + 1), return_inverse=True)
        known = (gpcs & 0xFFFF) > 0
        gpc_track = self.grids[gpcs >> 16]
        numbers = ((gpcs & 0xFFFF) - 1)[known]
        gpc_track[known] = self._add(gpc_track[known], [f"GPC{g}" for g in numbers.tolist()], numbers)
        places, first, sm_index = np.unique(
            (launch << 44) | ((gpc + 1) << 32) | ((tpc + 1) << 16) | sm, return_index=True, return_inverse=True
        )
        names = [f"TPC{t}|SM{s:03d}" if t >= 0 else f"SM{s:03d}" for t, s in zip(tpc[first], sm[first], strict=True)]
        # Below a grid, SMs of unknown GPC stand after the GPCs.
        rank = sm[first] + np.where(gpc[first] >= 0, 0, 1 << 16)
        tracks = self._add(gpc_track[gpc_index.reshape(-1)[first]], names, rank)
        out: U64 = tracks[sm_index.reshape(-1)]
        return out


def _blocks(uuid: U64, parent: U64, names: te.TextTable, name: I64, rank: U64) -> Iterator[U8]:
    for first in range(0, len(uuid), TRACK_ROWS):
        rows = slice(first, first + TRACK_ROWS)
        yield te.tracks(uuid[rows], parent[rows], names, name[rows], rank[rows])
