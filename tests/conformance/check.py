"""Compares what a run recorded with the table, and the decoded trace with the raw slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from warptrace.trace import RANGE_STACK, RANGE_TOKEN
from warptrace.wire import EventKind, unpack_block, unpack_cluster

from . import raw
from .model import Dim3, Event, Place, Recorded, check_open, differences
from .runners import Outcome
from .table import Case, Launch

OPENS = (EventKind.PUSH, EventKind.SWITCH, EventKind.START)


def check(case: Case, outcome: Outcome, *, hardware: bool = False) -> list[str]:
    """In words, everything that is not as the table says."""
    out = result_differences(case, outcome.results)
    by_launch = _by_launch(outcome)
    out += _trace_differences(outcome)
    if case.judge is not None:
        return out + case.judge(case, outcome, by_launch)
    expected = case.expected()
    if len(by_launch) != len(expected):
        return [*out, f"{len(by_launch)} launches recorded, {len(expected)} expected"]
    compare = check_open if hardware and case.open_on_hardware else differences
    for number, (warps, got) in enumerate(zip(expected, by_launch)):
        launch = case.recorded_launches()[number % len(case.recorded_launches())]
        out += _shape_differences(launch, got)
        if len(got) != len(warps):
            out.append(f"launch {number}: {len(got)} warps recorded, {len(warps)} expected")
        for warp in warps:
            found = got.get((warp.cta, warp.warp))
            texts = compare(warp, None if found is None else found[1])
            out += [f"launch {number} cta {warp.cta} warp {warp.warp}: {t}" for t in texts]
    return out


def result_differences(case: Case, results: dict[int, np.ndarray]) -> list[str]:
    """Where the kernel's own results differ from those of the table."""
    out = []
    for number, wanted in case.results(*case.plain_args()).items():
        got = results[number]
        if got.shape != wanted.shape or got.tobytes() != wanted.astype(got.dtype).tobytes():
            out.append(f"argument {number}: {got.tolist()[:8]}... instead of {wanted.tolist()[:8]}...")
    return out


Recordings = dict[tuple[Dim3, int], tuple[raw.RawWarp, Recorded]]


def _by_launch(outcome: Outcome) -> list[Recordings]:
    """Per launch, in the order of grid ids, the warps by (CTA, warp)."""
    launches: dict[int, Recordings] = {}
    for region in outcome.regions:
        grid_id, cta, warp = region.key
        record = outcome.capture.kernels[int(region.header["kernel_id"])]
        found = launches.setdefault(grid_id, {})
        assert (cta, warp) not in found, "a warp with two regions"
        found[cta, warp] = (region, raw.recorded(region, record))
    return [launches[k] for k in sorted(launches)]


def _shape_differences(launch: Launch, got: Recordings) -> list[str]:
    out = []
    for region, _ in got.values():
        h = region.header
        cluster = tuple(unpack_cluster(h["cluster"].reshape(1))[0].tolist())
        shape = (tuple(h["grid"].tolist()), tuple(unpack_block(h["block"].reshape(1))[0].tolist()), cluster)
        if shape != (launch.grid, launch.block, launch.cluster or (1, 1, 1)):
            out.append(f"(grid, block, cluster) {shape} instead of {(launch.grid, launch.block, launch.cluster)}")
    return out[:1]


# ---------------------------------------------------------------------------------------------- decoded trace
def _trace_differences(outcome: Outcome) -> list[str]:
    """The decoder's columns against the raw slots."""
    trace = outcome.trace
    warps = trace.warps
    rows: dict[raw.Key, int] = {}
    for i in range(len(warps)):
        x, y, z = (int(v) for v in warps.cta[i])
        rows[trace.launches[int(warps.launch[i])].grid_id, (x, y, z), int(warps.warp[i])] = i
    out = []
    if len(rows) != len(warps):
        out.append("the decoder has a warp twice")
    if len(rows) != len(outcome.regions) and not outcome.capture.lost():
        out.append(f"the decoder has {len(rows)} warps, the capture {len(outcome.regions)}")
    decoded = _decoded_rows(trace)
    for region in outcome.regions:
        recorded = raw.recorded(region, outcome.capture.kernels[int(region.header["kernel_id"])])
        row = rows.get(region.key)
        if row is None:
            out.append(f"the decoder has no warp {region.key}")
            continue
        wanted = _expected_rows(recorded)
        got = decoded.get(row, [])
        if sorted(wanted) != sorted(got):
            odd = sorted(set(wanted) ^ set(got))[:2]
            out.append(f"warp {region.key}: the decoder differs from the slots: {odd}")
        counts = (int(warps.events[row]), int(warps.lost[row]), int(warps.closed[row]))
        true = (len(recorded.order), recorded.lost, 1)
        if counts != true:
            out.append(f"warp {region.key}: the decoder counts {counts} instead of {true} events, lost, closed")
    return out


def _expected_rows(recorded: Recorded) -> list[tuple[Any, ...]]:
    """Rows of ranges and markers as the decoder should make them of these events."""
    seq = {place: n for n, place in enumerate(recorded.order)}
    out: list[tuple[Any, ...]] = []
    depth: dict[Place, int] = {}
    open_in: dict[int, int] = {}
    for place in recorded.order if recorded.beheaded else ():  # ranges that were open when what is left begins
        event = recorded.at(place)
        if event.kind in (EventKind.POP, EventKind.SWITCH) and event.partner is None:
            open_in[place[0]] = open_in.get(place[0], 0) + 1
    ended: set[Place] = set()
    for place in recorded.order:
        event = recorded.at(place)
        if event.kind == EventKind.MARK:
            out.append(("mark", seq[place], event.name, place[0], _payload(event)))
        if event.kind in (EventKind.POP, EventKind.SWITCH) and (event.partner is not None or recorded.beheaded):
            open_in[(event.partner or place)[0]] -= 1
        if event.kind in (EventKind.PUSH, EventKind.SWITCH):
            depth[place] = open_in.get(place[0], 0)
            open_in[place[0]] = depth[place] + 1
        if event.partner is not None and event.partner not in ended:  # of several ends of a token the first counts
            ended.add(event.partner)
            start = recorded.at(event.partner)
            token = event.kind == EventKind.END
            out.append(
                (
                    "range",
                    seq[event.partner],
                    seq[place],
                    start.name,
                    RANGE_TOKEN if token else RANGE_STACK,
                    event.partner[0],
                    0 if token else depth[event.partner],
                    _payload(start),
                    _payload(event) if token else (0, 0),
                )
            )
    return out


def _payload(event: Event) -> tuple[int, int]:
    return (0, 0) if event.payload is None else (int(event.payload[0]), event.payload[1])


def _decoded_rows(trace: Any) -> dict[int, list[tuple[Any, ...]]]:
    out: dict[int, list[tuple[Any, ...]]] = {}
    m, r, names = trace.markers, trace.ranges, trace.strings
    for i in range(len(m)):
        payload = (int(m.type[i]), int(m.bits[i]) if m.type[i] else 0)
        out.setdefault(int(m.warp[i]), []).append(("mark", int(m.seq[i]), names[m.name[i]], int(m.lane[i]), payload))
    for i in range(len(r)):
        start = (int(r.start_type[i]), int(r.start_bits[i]) if r.start_type[i] else 0)
        end = (int(r.end_type[i]), int(r.end_bits[i]) if r.end_type[i] else 0)
        row = ("range", int(r.start_seq[i]), int(r.end_seq[i]), names[r.name[i]], int(r.kind[i]), int(r.lane[i]))
        out.setdefault(int(r.warp[i]), []).append((*row, int(r.depth[i]), start, end))
    return out
