"""Kernels that had not ended: where each of their warps is, for how long, and which are stuck in the same place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from ..export.payload import texts
from ..trace import Launch, Trace
from ..unfinished import last_seen, with_open_ended
from .roles import find_roles, numbers_text
from .summary import MAX_NAME, duration, shorten

EVENTS_BEFORE = 5
"""Last events of a group's example warp that are shown."""
MOST_PAYLOADS = 4
MOST_CTAS = 6
MOST_GROUPS = 12
"""In the text of a launch; the JSON has all."""

Cta = tuple[int, int, int]


@dataclass(frozen=True)
class Frame:
    """A range that is open in every warp of a group, outermost first. ``payloads``: the distinct ones, "" for none;
    ``least_ns``, ``most_ns``: for how long it has been open."""

    name: str
    file: str
    line: int
    payloads: tuple[str, ...]
    least_ns: int
    most_ns: int


@dataclass(frozen=True)
class Event:
    """One of the last events of a warp: ``what`` is "begin", "end" or "mark"; ``ago_ns``: before the snapshot."""

    what: str
    name: str
    payload: str
    ago_ns: int


@dataclass(frozen=True)
class WarpState:
    """A warp that had not ended. ``group``: its number; ``silent_ns``: since its last event; ``ranges``: open ones with
    their payloads, outermost first, and for how long they have been open."""

    cta: Cta
    warp: int
    sm: int
    role: str
    group: int
    silent_ns: int
    ranges: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Group:
    """Warps of one role in the same place: the same ranges are open in them, and their last events are alike.

    ``full``: their memory is full, so that where they are is not known. ``recent``: the last events of the warp
    ``example``, the latest last. ``least_silent_ns``, ``most_silent_ns``: since the last event of each.
    """

    number: int
    role: str
    warps: int
    ctas: tuple[Cta, ...]
    warps_in_cta: tuple[int, ...]
    stack: tuple[Frame, ...]
    last: str
    full: bool
    least_silent_ns: int
    most_silent_ns: int
    example: tuple[Cta, int]
    recent: tuple[Event, ...]

    @property
    def where(self) -> str:
        """Such as "warps 1-4 of CTAs (1,0,0), (3,0,0)"."""
        number = numbers_text(self.warps_in_cta)
        return f"warp{'s' if len(self.warps_in_cta) > 1 else ''} {number} of {_ctas(self.ctas)}"


@dataclass(frozen=True)
class HungLaunch:
    """A launch that had not ended. ``ran_ns``: since its first warp began; ``missing``: warps of the grid that left no
    record, of which ``begun`` says whether some have certainly begun; ``lost``: warps that found no memory;
    ``origin``: its stream, or graph and replay, "" where neither is known."""

    index: int
    kernel: str
    grid: Cta
    block: Cta
    cluster: Cta
    device: int
    origin: str
    pid: int
    ran_ns: int
    expected: int
    ended: int
    running: int
    missing: int
    begun: bool
    lost: int
    groups: tuple[Group, ...]
    warps: tuple[WarpState, ...]


@dataclass(frozen=True)
class HangReport:
    """``findings``: the whole in sentences. ``time_from``: how the moment of the snapshot is known; where it is "last
    event", durations are the least possible ones. ``moved``: warps that went on recording during the ``pause_ns`` that
    the snapshot took; -1: there was no snapshot."""

    launches: tuple[HungLaunch, ...]
    findings: tuple[str, ...]
    time_from: str
    moved: int
    pause_ns: int
    emulated: bool

    @classmethod
    def of(cls, reports: Sequence[HangReport]) -> HangReport:
        """One report of several processes'."""
        counted = [one.moved for one in reports if one.moved >= 0]
        return cls(
            launches=tuple(launch for one in reports for launch in one.launches),
            findings=tuple(line for one in reports for line in one.findings),
            time_from=_worst_time(one.time_from for one in reports),
            moved=sum(counted) if counted else -1,
            pause_ns=max(one.pause_ns for one in reports),
            emulated=any(one.emulated for one in reports),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"format": "warptrace hang report", "version": 1, **asdict(self)}

    def text(self) -> str:
        """For people; ends with a line end."""
        return "\n".join(_text(self)) + "\n"


def hang_report(trace: Trace) -> HangReport | None:
    """What the trace says of launches with warps that had not ended; None where there are none."""
    running = np.flatnonzero(trace.warps.closed == 0)
    if not len(running):
        return None
    state = _State(trace)
    launches = tuple(state.launch(trace.launches[i]) for i in np.unique(trace.warps.launch[running]).tolist())
    snapshots = trace.meta.get("snapshots", [])
    return HangReport(
        launches=launches,
        findings=tuple(line for launch in launches for line in _findings(launch)),
        time_from=_worst_time([s["time_from"] for s in snapshots]),
        moved=sum(int(s["moved"]) for s in snapshots) if snapshots else -1,
        pause_ns=max((int(s["pause_ns"]) for s in snapshots), default=0),
        emulated=trace.emulated,
    )


def _worst_time(known_from: Iterable[str]) -> str:
    order = ("last event", "host clock", "clock")
    return min(known_from, key=order.index, default=order[0])


class _State:
    """Where the warps of a trace are. ``now`` (warps,): ns of the snapshot of their devices."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.now = last_seen(trace)
        self.full = np.zeros(len(trace.warps), np.bool_)
        self.full[trace.full] = True
        roles = find_roles(with_open_ended(trace, self.now))
        self.roles = [role.name for role in roles.roles]
        self.role_of = roles.of_warp
        self.payloads = texts(trace.open.start_type, trace.open.start_bits)

    def launch(self, launch: Launch) -> HungLaunch:
        """One launch."""
        warps = self.trace.warps
        mine = warps.launch == launch.index
        running = np.flatnonzero(mine & (warps.closed == 0))
        keys = [self._key(w) for w in running.tolist()]
        members: dict[Any, list[int]] = {}
        for warp, key in zip(running.tolist(), keys):
            members.setdefault(key, []).append(warp)
        ranked = sorted(members.values(), key=lambda rows: (self.full[rows[0]], -len(rows), rows[0]))
        groups = tuple(self._group(number, rows) for number, rows in enumerate(ranked))
        number_of = {warp: number for number, rows in enumerate(ranked) for warp in rows}
        return HungLaunch(
            index=launch.index,
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            device=launch.device,
            origin=f"stream {launch.stream_name}" if launch.stream_name else launch.origin,
            pid=self.trace.processes[launch.process].pid,
            ran_ns=int(self.now[running].max()) - launch.start_ns,
            expected=launch.warps_expected,
            ended=launch.warps_recorded - len(running),
            running=len(running),
            missing=max(launch.warps_expected - launch.warps_recorded - launch.lost_warps, 0),
            begun=self._begun(launch),
            lost=launch.lost_warps,
            groups=groups,
            warps=tuple(self._warp(warp, number_of[warp]) for warp in running.tolist()),
        )

    def _begun(self, launch: Launch) -> bool:
        found = (s for s in self.trace.meta.get("snapshots", []) if s["process"] == launch.process)
        return any(int(s["unopened_bytes"]) > 0 for s in found if s["device"] == launch.device)

    def _open(self, warp: int) -> range:
        column = self.trace.open.warp
        return range(int(np.searchsorted(column, warp)), int(np.searchsorted(column, warp, side="right")))

    def _key(self, warp: int) -> Any:
        role = int(self.role_of[warp])
        if self.full[warp]:
            return (role, "full")
        rows, o = self._open(warp), self.trace.open
        recent = self._recent(warp, 1)
        last = (recent[0].what, recent[0].name) if recent else None
        return (role, tuple((int(o.name[i]), int(o.start_site[i])) for i in rows), last)

    def _group(self, number: int, rows: list[int]) -> Group:
        warps = self.trace.warps
        at = np.array(rows)
        silent = self.now[at] - warps.end_ns[at]
        full = bool(self.full[rows[0]])
        recent = self._recent(rows[0], EVENTS_BEFORE)
        return Group(
            number=number,
            role=self.roles[int(self.role_of[rows[0]])],
            warps=len(rows),
            ctas=tuple(dict.fromkeys(_cta(warps.cta[w]) for w in rows)),
            warps_in_cta=tuple(np.unique(warps.warp[at]).tolist()),
            stack=() if full else self._stack(rows),
            last=f"{recent[-1].what} of {recent[-1].name}" if recent else "",
            full=full,
            least_silent_ns=max(int(silent.min()), 0),
            most_silent_ns=max(int(silent.max()), 0),
            example=(_cta(warps.cta[rows[0]]), int(warps.warp[rows[0]])),
            recent=recent,
        )

    def _stack(self, rows: list[int]) -> tuple[Frame, ...]:
        o, trace = self.trace.open, self.trace
        places = np.array([list(self._open(w)) for w in rows], np.int64)
        frames = []
        for column in places.T:
            site = trace.sites[int(o.start_site[column[0]])]
            age = self.now[o.warp[column]] - o.start_ns[column]
            payloads = tuple(dict.fromkeys(self.payloads[i] for i in column.tolist()))
            name = trace.strings[int(o.name[column[0]])]
            frames.append(Frame(name, site.file, site.line, payloads, max(int(age.min()), 0), max(int(age.max()), 0)))
        return tuple(frames)

    def _warp(self, warp: int, group: int) -> WarpState:
        o, warps = self.trace.open, self.trace.warps
        now = int(self.now[warp])
        ranges = tuple(
            (self.trace.strings[int(o.name[i])], self.payloads[i], max(now - int(o.start_ns[i]), 0))
            for i in self._open(warp)
        )
        return WarpState(
            cta=_cta(warps.cta[warp]),
            warp=int(warps.warp[warp]),
            sm=int(warps.sm[warp]),
            role=self.roles[int(self.role_of[warp])],
            group=group,
            silent_ns=max(now - int(warps.end_ns[warp]), 0),
            ranges=ranges,
        )

    def _recent(self, warp: int, count: int) -> tuple[Event, ...]:
        """The last events of a warp, in their order."""
        trace = self.trace
        r, o, m = trace.ranges, trace.open, trace.markers
        found: list[tuple[int, str, int, int, tuple[Any, Any]]] = []
        a, b = np.searchsorted(r.warp, [warp, warp + 1])
        for end in (False, True):
            seq = (r.end_seq if end else r.start_seq)[a:b]
            for i in (a + np.argsort(seq)[-count:]).tolist():
                if end:
                    value = (r.end_type[i], r.end_bits[i])
                    found.append((int(r.end_seq[i]), "end", int(r.name[i]), int(r.end_ns[i]), value))
                else:
                    value = (r.start_type[i], r.start_bits[i])
                    found.append((int(r.start_seq[i]), "begin", int(r.name[i]), int(r.start_ns[i]), value))
        for i in self._open(warp):
            value = (o.start_type[i], o.start_bits[i])
            found.append((int(o.start_seq[i]), "begin", int(o.name[i]), int(o.start_ns[i]), value))
        a, b = np.searchsorted(m.warp, [warp, warp + 1])
        for i in range(max(int(a), int(b) - count), int(b)):
            found.append((int(m.seq[i]), "mark", int(m.name[i]), int(m.ns[i]), (m.type[i], m.bits[i])))
        # A switch ends one range and begins the next: one event, told as both, the end first.
        found.sort(key=lambda e: (e[0], e[1] != "end"))
        now = int(self.now[warp])
        return tuple(
            Event(what, trace.strings[name], _one_text(*value), max(now - ns, 0))
            for _, what, name, ns, value in found[-count:]
        )


def _one_text(kind: Any, bits: Any) -> str:
    text: str = texts(np.array([kind], np.uint8), np.array([bits], np.uint64))[0]
    return text


def _cta(row: Any) -> Cta:
    x, y, z = (int(v) for v in row)
    return x, y, z


# ------------------------------------------------------------------------------------------------------------ texts
def _findings(launch: HungLaunch) -> Iterator[str]:
    """A sentence a group."""
    for group in launch.groups[:MOST_GROUPS]:
        yield f"{_who(group, launch)} {_where(group)}."


def _who(group: Group, launch: HungLaunch) -> str:
    warps = f"{group.warps} {group.role} warp{'s' if group.warps > 1 else ''}"
    return f"{shorten(launch.kernel, MAX_NAME)}: {warps} of {_ctas(group.ctas)}"


def _where(group: Group) -> str:
    verb = "are" if group.warps > 1 else "is"
    if group.full:
        return (
            f"{verb} somewhere behind `{group.last}`: the memory of each was full {_ages(group)} before the snapshot, "
            "what came later is not known"
        )
    if not group.stack:
        behind = f", after {group.last}" if group.last else ""
        return f"{verb} in no range{behind}, silent for {_ages(group)}"
    inner = group.stack[-1]
    outer = " in ".join(f"`{frame.name}`" for frame in reversed(group.stack[:-1]))
    text = f"{verb} in `{inner.name}`{payloads_text(inner)} ({file_text(inner)})"
    if outer:
        text += f", in {outer},"
    text += f" for {_span(inner.least_ns, inner.most_ns)}"
    if group.most_silent_ns < inner.least_ns:
        text += f", their last event ({group.last}) {_ages(group)} ago"
    return text


def payloads_text(frame: Frame) -> str:
    """Such as " (payload 3, 4)", "" where there is none."""
    shown = [text for text in frame.payloads if text]
    if not shown:
        return ""
    more = ", ..." if len(shown) > MOST_PAYLOADS else ""
    return f" (payload {', '.join(shown[:MOST_PAYLOADS])}{more})"


def file_text(frame: Frame) -> str:
    """Such as "kernel.py:12": where the range begins in the source."""
    return f"{PurePath(frame.file).name}:{frame.line}"


def _ctas(ctas: Sequence[Cta]) -> str:
    shown = ", ".join(f"({x},{y},{z})" for x, y, z in ctas[:MOST_CTAS])
    if len(ctas) > MOST_CTAS:
        return f"{len(ctas)} CTAs ({shown}, ...)"
    return f"CTA{'s' if len(ctas) > 1 else ''} {shown}"


def _ages(group: Group) -> str:
    return _span(group.least_silent_ns, group.most_silent_ns)


def _span(least: int, most: int) -> str:
    a, b = duration(least), duration(most)
    return a if a == b else f"{a} to {b}"


def _text(report: HangReport) -> Iterator[str]:
    yield "kernels that had not ended:"
    for line in report.findings:
        yield f"- {line}"
    yield ""
    for launch in report.launches:
        yield from _launch_text(launch, report)
    if report.moved >= 0:
        pause = duration(report.pause_ns)
        running = sum(launch.running for launch in report.launches)
        yield f"{report.moved} of the {running} running warps recorded an event during the {pause} of the snapshot."
    if report.time_from == "last event":
        yield "When that was is not known: times are counted to the last event of any warp, and are at least so long."


def _launch_text(launch: HungLaunch, report: HangReport) -> Iterator[str]:
    kernel = shorten(launch.kernel, MAX_NAME) + (" (emulated)" if report.emulated else "")
    origin = f", {launch.origin}" if launch.origin else ""
    yield (
        f"launch {launch.index + 1}, kernel {kernel}, grid {_dim(launch.grid)}, block {_dim(launch.block)}, "
        f"pid {launch.pid}, device {launch.device}{origin}: not ended after {duration(launch.ran_ns)}"
    )
    parts = [f"{launch.running} running", f"{launch.ended} ended"]
    if launch.missing:
        parts.append(f"{launch.missing} without a record ({_missing(launch)})")
    if launch.lost:
        parts.append(f"{launch.lost} that found no trace memory")
    yield f"  {launch.expected} warps: {', '.join(parts)}"
    for group in launch.groups[:MOST_GROUPS]:
        yield ""
        yield from _group_text(group, launch)
    if len(launch.groups) > MOST_GROUPS:
        rest = launch.groups[MOST_GROUPS:]
        yield ""
        yield f"  and {len(rest)} more groups with {sum(g.warps for g in rest)} warps"
    yield ""


def _missing(launch: HungLaunch) -> str:
    return "some have begun, and not come to their first event" if launch.begun else "not begun"


def _group_text(group: Group, launch: HungLaunch) -> Iterator[str]:
    yield f"  {group.warps} x {group.role} ({group.where})"
    if group.full:
        yield f"    memory full for {_ages(group)}: where they are is not known (--max-ts-cnt-per-warp gives more)"
    elif not group.stack:
        yield f"    in no range, silent for {_ages(group)}"
    for depth, frame in enumerate(group.stack):
        age = _span(frame.least_ns, frame.most_ns)
        yield f"    {'  ' * depth}{frame.name}{payloads_text(frame)}  for {age}  {frame.file}:{frame.line}"
    if group.recent:
        cta, warp = group.example
        yield f"    last events of CTA ({cta[0]},{cta[1]},{cta[2]}) warp {warp}:"
        for event in group.recent:
            payload = f" ({event.payload})" if event.payload else ""
            yield f"      {event.what} {event.name}{payload}  {duration(event.ago_ns)} ago"


def _dim(dim: Cta) -> str:
    return "x".join(map(str, dim))
