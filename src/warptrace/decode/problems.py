"""What is not as it should be, counted, as Problem rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..raw import Capture
from ..selection import Selection
from ..trace import Launch, Problem, Warps
from ..wire import CELL_KERNEL_COUNT, LOST_DTYPE, unpack_capacity
from .clocks import MOVED
from .events import Streams, region_cycles
from .launches import LaunchKey
from .tables import I64, Bool, Regions, SiteTable, distinct

if TYPE_CHECKING:
    from .blocks import Doubt
    from .decoder import Identity

PAIRING_TEXTS = {
    "unpaired_push": "pushed but never popped",
    "unpaired_pop": "popped or switched with nothing open",
    "unpaired_start": "started but never ended",
    "unpaired_end": "ended without a start that is open",
    "ambiguous_end": "ended where more than one start could be meant",
    "lost_push": "popped or switched whose push was overwritten by newer events",
    "lost_start": "ended whose start was overwritten by newer events",
}
MOST_SITES = 4
MOST_WARPS = 3
"""Warps that a problem names."""
LEAST_EVENT_CYCLES = 8
"""No event takes fewer: so long a life bounds the count of events, which is 32 bits wide in rings."""
MOVED_GOOD_NS = 500.0
"""A launch whose clock moved is a problem if its times across SMs are no better than this."""


def capture_problems(captures: Sequence[Capture]) -> list[Problem]:
    """Damage of the files, and losses that no row of a table tells."""
    problems: list[Problem] = []
    for capture in captures:
        problems += capture.problems
        for device, damage in capture.damage().items():
            size = int(damage["skipped_bytes"].sum())
            text = f"{size} bytes of trace memory of device {device} of process {_pid(capture)} hold no valid region"
            problems.append(Problem("damaged_region", len(damage), text))
        problems += _beyond_table(capture)
    return problems


def _beyond_table(capture: Capture) -> list[Problem]:
    """The lost table is bounded, the control words count on."""
    problems = []
    tables = capture.lost()
    for device, words in capture.control().items():
        table = distinct(tables.get(device, np.zeros(0, LOST_DTYPE)))
        listed = int((table["advance"] // np.maximum(table["stride"], 1)).sum(dtype=np.int64))
        where = f"device {device} of process {_pid(capture)}"
        events = int(words["lost_events"].max()) - listed
        warps = int(words["lost_head"].max()) - len(table)
        if events > 0:
            text = f"{events} events of warps that found neither memory nor a place in the lost table, {where}"
            problems.append(Problem("lost_events", events, text))
        if warps > 0:
            text = f"{warps} entries of warps did not fit the lost table, {where}"
            problems.append(Problem("lost_warps", warps, text))
    return problems


def unsaved_problems(
    captures: Sequence[Capture], launches: Sequence[Launch], keys: Sequence[LaunchKey]
) -> list[Problem]:
    """Of processes that did not come to save everything: how many launches are missing, since host code counts them
    (the capture of a graph counts as a launch of each of its nodes, whose replays are counted nowhere). ``keys``: those
    of the launches."""
    problems = []
    for process, capture in enumerate(captures):
        undrained = capture.manifest.get("undrained", [])
        if not capture.complete:
            text = f"process {_pid(capture)} did not close its capture (killed, crashed, disk full, or still running)"
            problems.append(Problem("unclosed_capture", 1, text))
        problems += [Problem("unclosed_capture", 1, f"process {_pid(capture)}: {d['reason']}") for d in undrained]
        if undrained or not capture.complete:
            mine = [(x, key.counted) for x, key in zip(launches, keys, strict=True) if x.process == process]
            problems += _missing_launches(capture, [x for x, _ in mine], {counted for _, counted in mine})
    return problems


def _missing_launches(
    capture: Capture, launches: Sequence[Launch], found: Collection[tuple[int, ...]]
) -> list[Problem]:
    """By kernel: launches that host code counted and of which nothing is there, and launches that lack warps.
    ``found``: what is there of those it counted, the kernel's id first."""
    problems = []
    selection = Selection.from_json(capture.manifest.get("selection") or {})
    saved = Counter(kernel % CELL_KERNEL_COUNT for kernel, *_ in found)
    names: dict[int, list[str]] = {}
    for record in capture.kernels.values():
        if selection.wants(record.symbol):
            names.setdefault(record.kernel_id % CELL_KERNEL_COUNT, []).append(record.name)
    for number, launched in sorted(capture.launches().items()):
        if number not in names and selection.kernels:
            continue
        count = selection.recorded_of(launched)
        missing = count - saved[number]
        name = " and ".join(names.get(number, ["kernels that have no record"]))
        if missing > 0:
            text = f"{missing} of {count} launches of {name} by process {_pid(capture)} were not saved"
            problems.append(Problem("lost_launches", missing, text))
    for x in launches:
        n = x.warps_expected - x.warps_recorded - x.lost_warps
        if n > 0 and x.warps_recorded:
            text = f"{n} of {x.warps_expected} warps of {x.kernel} (grid id {x.grid_id}) were not saved"
            problems.append(Problem("lost_warps", n, text, x.index))
    return problems


def _pid(capture: Capture) -> Any:
    return capture.manifest.get("pid")


def launch_problems(launches: Sequence[Launch], warps: Warps, table: SiteTable) -> list[Problem]:
    """Losses, unclosed warps and unknown kernels of each launch."""
    problems = []
    kept_last = {k.kernel_id for k in table.kernels.values() if k.ring}
    unclosed = np.bincount(warps.launch[warps.closed == 0], minlength=len(launches))
    with_loss = np.bincount(warps.launch[(warps.lost > 0)], minlength=len(launches))
    for launch in launches:
        i, name = launch.index, f"{launch.kernel} (grid id {launch.grid_id})"
        if launch.lost_events:
            n = launch.lost_events
            fate = "were overwritten by newer ones" if launch.kernel_id in kept_last else "found no room"
            text = f"{n} events of {with_loss[i]} warps of {name} {fate}: {_losers(warps, i)}"
            problems.append(Problem("lost_events", n, text, i))
        if launch.lost_warps:
            n = launch.lost_warps
            text = f"{n} warps of {name} found no room at all: {_losers(warps, i, whole=True)}"
            problems.append(Problem("lost_warps", n, text, i))
        if unclosed[i]:
            n = int(unclosed[i])
            problems.append(Problem("unclosed_warp", n, f"{n} warps of {name} were still running at the end", i))
        if launch.kernel_id not in table.kernels:
            n = launch.events
            text = f"{n} events of {name} have no site table: its record was not written or is damaged"
            problems.append(Problem("unknown_kernel", n, text, i))
    return problems


def _losers(warps: Warps, launch: int, *, whole: bool = False) -> str:
    """The warps of a launch that lost most; ``whole``: of which nothing was recorded."""
    begin, end = np.searchsorted(warps.launch, [launch, launch + 1])
    lost = warps.lost[begin:end]
    rows = np.flatnonzero(warps.cycles[begin:end] < 0) if whole else np.arange(len(lost))
    rows = rows[lost[rows] > 0]
    rows = rows[np.argsort(-lost[rows], kind="stable")]
    named = []
    for row in (begin + rows[:MOST_WARPS]).tolist():
        cta = ",".join(str(x) for x in warps.cta[row].tolist())
        named.append(f"CTA {cta} warp {warps.warp[row]} lost {warps.lost[row]}")
    more = len(rows) - len(named)
    return ", ".join(named) + (f", and {more} more warps" if more else "")


def region_problems(identity: Identity, streams: Streams) -> list[Problem]:
    """What is not known, by launch: the order of rings whose warp never ended, and counts of warps that lived long."""
    problems = []
    regions, n = identity.regions, len(identity.keys)
    torn = np.bincount(identity.launch[streams.region], streams.torn, n).astype(np.int64)
    for i in np.flatnonzero(torn).tolist():
        text = f"{torn[i]} events of warps that never ended are left out: which of them is the oldest is not known"
        problems.append(Problem("torn_ring", int(torn[i]), text, i))
    counts = np.bincount(identity.launch[_counts_may_have_wrapped(regions)], minlength=n)
    for i in np.flatnonzero(counts).tolist():
        text = f"{counts[i]} warps lost events and ran so long that their counts may lack a multiple of 2**28 or more"
        problems.append(Problem("uncertain_count", int(counts[i]), text, i))
    return problems


def _counts_may_have_wrapped(regions: Regions) -> Bool:
    """By region. Rings count events, the others bytes, both modulo 2**32; where all found room nothing has wrapped."""
    headers = regions.headers
    room, _ = unpack_capacity(headers["capacity"])
    full = np.where(regions.ring, True, headers["advance"] > room)
    wrap = np.where(regions.ring, 1 << 32, (1 << 32) // np.maximum(headers["stride"].astype(np.int64), 1))
    wrapped: Bool = full & (region_cycles(regions) >= LEAST_EVENT_CYCLES * wrap)
    return wrapped


def event_problems(doubts: Sequence[Doubt], table: SiteTable) -> list[Problem]:
    """Events without a partner and events of unknown sites, by launch."""
    problems = []
    for kind in (*PAIRING_TEXTS, "unknown_site"):
        launch = np.concatenate([np.zeros(0, np.int64), *(d.launch for d in doubts if d.kind == kind)])
        site = np.concatenate([np.zeros(0, np.int64), *(d.site for d in doubts if d.kind == kind)])
        for i in np.unique(launch).tolist():
            sites = site[launch == i]
            problems.append(Problem(kind, len(sites), _doubt_text(kind, sites, table), i))
    return problems


def _doubt_text(kind: str, sites: I64, table: SiteTable) -> str:
    if kind == "unknown_site":
        ids = ", ".join(str(i) for i in np.unique(sites)[:MOST_SITES])
        return f"{len(sites)} events of sites that the kernel's record does not have: {ids}"
    return f"{len(sites)} ranges {PAIRING_TEXTS[kind]}: {_where(sites, table)}"


def stride_problems(identity: Identity, table: SiteTable) -> list[Problem]:
    """Regions whose slots are not of the size that the kernel's record says: the record is not theirs."""
    problems = []
    headers = identity.regions.headers
    for i, key in enumerate(identity.keys):
        record = table.kernels.get(key.kernel_id)
        if record is None:
            continue
        a, b = np.searchsorted(identity.launch, [i, i + 1])
        n = int((headers["stride"][a:b] != record.stride).sum())
        if n:
            text = f"{n} regions of {record.name} have another slot size than the kernel's record"
            problems.append(Problem("damaged_region", n, text, i))
    return problems


def _where(sites: I64, table: SiteTable) -> str:
    """The sites by count: "load (kernel.py:10) x 3, ..."."""
    counts = Counter(sites.tolist()).most_common()
    parts = []
    for row, count in counts[:MOST_SITES]:
        site = table.sites[row]
        name = f"{site.name} " if site.name else ""
        parts.append(f"{name}({site.file}:{site.line}) x {count}")
    more = len(counts) - MOST_SITES
    return ", ".join(parts) + (f", and {more} more sites" if more > 0 else "")


def clock_problems(
    identity: Identity, facts: list[dict[str, Any]], outside: Bool, long_gap: Bool
) -> list[Problem]:
    """Clocks that contradict themselves, by launch."""
    problems = []
    texts = (
        (outside, "warps have events before their entry or after their exit: their times are not to be trusted"),
        (
            long_gap,
            "warps were silent for 2**32 cycles or more, and their records do not say where: their events may be early "
            "by a multiple of that",
        ),
    )
    for faulty, text in texts:
        counts = np.bincount(identity.launch[faulty], minlength=len(identity.keys))
        problems += [Problem("clock", int(n), f"{n} {text}", i) for i, n in enumerate(counts.tolist()) if n]
    for i, fact in enumerate(facts):
        problems += [Problem("clock", n, text, i) for n, text in _map_problems(fact)]
    return problems


def _map_problems(fact: dict[str, Any]) -> list[tuple[int, str]]:
    """(count, text) of what is wrong with the clock maps of a launch."""
    found = []
    good_to = fact.get("uncertainty_ns", 0.0)
    n = fact.get("anchors_off", 0)
    if n:
        text = (
            f"{n} of {fact['anchors']} clock anchors, on {fact['sms_off']} of {fact['sms']} SMs, contradict the "
            f"others: times across SMs are good to {good_to:.0f} ns, while durations within a warp are exact in cycles"
        )
        found.append((n, text))
    elif fact.get("rate_change", 0.0) > MOVED and good_to > MOVED_GOOD_NS:
        text = (
            f"the clock rate changed during the launch, by {fact['rate_change']:.1%}: times across SMs are good to "
            f"{good_to:.0f} ns, while durations within a warp are exact in cycles (4 or more events in every pass of a "
            "loop give times along the way)"
        )
        found.append((1, text))
    if "none" in fact.get("rate_from", ()):
        text = (
            "the rate of the SM clock is not known: times count one ns a cycle (a launch of 10 us or more in the "
            "same run tells the rate)"
        )
        found.append((1, text))
    return found
