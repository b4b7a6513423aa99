"""Declared flows: which range feeds which, the latency, and what cannot be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fixture_kit
import numpy as np
import pytest
import trace_processor
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import i32, pipeline
from traces import TraceScript, WarpScript

from warptrace import UsageError
from warptrace.export import perfetto, write_perfetto
from warptrace.flows import Flow, flows_of, parse_flow
from warptrace.flows.match import match, trace_flows
from warptrace.report.flows import flow_rows
from warptrace.report.sweep import launch_rows
from warptrace.trace import Process, Trace

ISSUE = Flow("issue", "wait")


def ranges(warp: WarpScript, name: str, *spans: tuple[int, int, int | None]) -> None:
    """A range for each (start, end, payload)."""
    for start, end, payload in spans:
        token = warp.start(start, name, *([] if payload is None else [i32(payload)]))
        warp.end(token, end)


def pairs(trace: Trace, flow: Flow = ISSUE) -> list[tuple[int, int]]:
    found = match(trace, flow)
    return sorted(zip(found.source.tolist(), found.target.tolist()))


def two_warps() -> tuple[TraceScript, WarpScript, WarpScript]:
    script = TraceScript()
    launch = script.launch(block=(64, 1, 1), warps_expected=2)
    return script, script.warp(launch, 0, 5000, warp=0), script.warp(launch, 0, 5000, warp=1)


def test_by_payload_and_turn() -> None:
    """A payload that comes again is told by its turn."""
    script, producer, consumer = two_warps()
    ranges(producer, "issue", (0, 5, 0), (10, 15, 1), (1000, 1005, 0))
    ranges(consumer, "wait", (2, 100, 0), (100, 300, 1), (400, 1400, 0), (1500, 1600, 7))
    trace = script.build()
    assert pairs(trace) == [(0, 3), (1, 4), (2, 5)]
    found = match(trace, ISSUE)
    assert (found.unfed, found.unused, found.left_out, found.backwards) == (1, 0, 0, 0)
    (row,) = flow_rows(trace, launch_rows(trace, trace.launches[0]), [ISSUE])
    assert (row.pairs, row.total, row.p50, row.max) == (3, 2 * (100 + 290 + 400), 580, 800)
    # Open when issued, or later: (2..100), (100..300) and, issued at 1000 inside of the wait, (1000..1400).
    assert row.exposed == 2 * (98 + 200 + 400)
    assert row.mean == 1580 / 3


def test_one_source_feeds_every_warp_that_waits() -> None:
    trace = pipeline(ctas=2)
    found = match(trace, Flow("tma_issue", "full_wait"))
    assert len(found.target) == 2 * 2 * 4 and found.unfed == found.unused == 0
    r, w = trace.ranges, trace.warps
    assert (w.cta[r.warp[found.source]] == w.cta[r.warp[found.target]]).all()
    assert (r.start_bits[found.source] == r.start_bits[found.target]).all()


def test_by_order() -> None:
    script, producer, consumer = two_warps()
    ranges(producer, "issue", (0, 5, None), (10, 15, 3))
    ranges(consumer, "wait", (2, 100, None), (100, 300, None))
    assert pairs(script.build(), Flow("issue", "wait", "order")) == [(0, 2), (1, 3)]
    assert pairs(script.build()) == []


def test_of_two_sources_the_last_to_begin_counts() -> None:
    script, first, second = two_warps()
    third = script.warp(0, 0, 5000, warp=2)
    ranges(first, "issue", (20, 25, 0))
    ranges(second, "issue", (10, 15, 0))
    ranges(third, "wait", (0, 100, 0))
    assert pairs(script.build()) == [(0, 2)]
    assert match(script.build(), ISSUE).unused == 1


def test_a_warp_that_lost_events_takes_its_cta_out() -> None:
    script, producer, consumer = two_warps()
    producer.row["lost"] = 1
    ranges(producer, "issue", (0, 5, 0))
    ranges(consumer, "wait", (2, 100, 0))
    found = match(script.build(), ISSUE)
    assert (len(found.target), found.left_out, found.unfed, found.unused) == (0, 2, 0, 0)


def test_a_wait_that_ends_before_its_source_begins_is_no_pair() -> None:
    script, producer, consumer = two_warps()
    ranges(producer, "issue", (200, 205, 0))
    ranges(consumer, "wait", (2, 100, 0))
    found = match(script.build(), ISSUE)
    assert (len(found.target), found.backwards, found.unfed, found.unused) == (0, 1, 0, 0)


def test_names_that_are_not_there() -> None:
    trace = pipeline()
    assert pairs(trace, Flow("nothing", "full_wait")) == []
    assert flow_rows(trace, launch_rows(trace, trace.launches[0]), [Flow("no", "nothing")]) == ()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=12),
    st.lists(st.tuples(st.integers(0, 1), st.integers(2, 3), st.integers(0, 2)), max_size=12),
)
def test_against_plain_loops(sources: list[tuple[int, int]], targets: list[tuple[int, int, int]]) -> None:
    """(CTA, key) of sources, all before (CTA, warp, key) of targets."""
    script = TraceScript()
    launch = script.launch(grid=(2, 1, 1))
    warps = {
        (cta, warp): script.warp(launch, 0, 900, cta=(cta, 0, 0), warp=warp, sm=cta) for cta in (0, 1)
        for warp in (1, 2, 3)
    }  # fmt: skip
    for at, (cta, key) in enumerate(sources):
        ranges(warps[cta, 1], "issue", (at, at, key))
    for at, (cta, warp, key) in enumerate(targets):
        ranges(warps[cta, warp], "wait", (100 + at, 100 + at, key))
    trace = script.build()
    r = trace.ranges
    rows: dict[tuple[int, int, int, int], int] = {}
    wanted = []
    for name in ("issue", "wait"):
        seen: dict[tuple[int, int, int], int] = {}
        for row in range(len(r)):
            if trace.strings[r.name[row]] != name:
                continue
            warp, key = int(r.warp[row]), int(r.start_bits[row])
            turn = seen[warp, key, 0] = seen.get((warp, key, 0), -1) + 1
            cta = int(trace.warps.cta[warp, 0])
            if name == "issue":
                rows[cta, key, turn, 0] = row
            elif (cta, key, turn, 0) in rows:
                wanted.append((rows[cta, key, turn, 0], row))
    assert pairs(trace) == sorted(wanted)


@pytest.mark.skipif(not fixture_kit.GEMM.is_dir(), reason="the capture is not in this checkout")
def test_the_gemm_feeds_every_wait() -> None:
    trace = fixture_kit.load_gemm()
    found = match(trace, Flow("tma_issue", "ab_wait"))
    assert (len(found.target), found.unfed, found.unused, found.left_out, found.backwards) == (1024, 0, 0, 0, 0)
    r, w = trace.ranges, trace.warps
    latency = w.start_cycle[r.warp[found.target]] + r.end_cycle[found.target]
    latency -= w.start_cycle[r.warp[found.source]] + r.start_cycle[found.source]
    # A load from memory takes some 500 cycles at the least.
    assert latency.min() > 300 and np.median(latency) < 3000


# --------------------------------------------------------------------------------------------------- declaring
def test_texts() -> None:
    assert parse_flow("a:b") == Flow("a", "b", "payload")
    assert parse_flow("a:b:order") == Flow("a", "b", "order")
    for text, error in (("a", "not SOURCE:TARGET"), ("a:", "the names of two ranges"), ("a:b:x", "flow key 'x'")):
        with pytest.raises(UsageError, match=error):
            parse_flow(text)


def test_from_manifests() -> None:
    listed = {"flows": [Flow("a", "b").to_json(), {"source": "x"}, "odd", {"source": "c", "target": "d"}]}
    assert flows_of(listed) == [Flow("a", "b"), Flow("c", "d")]
    assert flows_of({"flows": 7}) == flows_of({}) == []
    script = TraceScript()
    script.processes += [Process(1, listed), Process(2, listed)]
    assert trace_flows(script.build(), [Flow("c", "d"), ISSUE]) == (Flow("a", "b"), Flow("c", "d"), ISSUE)


def test_declaring_is_light_and_remembered() -> None:
    code = (
        "import sys, warptrace; warptrace.flow('a', 'b', key='order'); warptrace.flow('a', 'b', key='order');"
        "from warptrace.flows import declared; print(declared(), 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'source': 'a', 'target': 'b', 'key': 'order'}] False\n"


# ---------------------------------------------------------------------------------------------------- Perfetto
FLOWS_SQL = """
select a.name source, a.ts issued, b.name arrival, b.ts arrived, p.name target, p.ts + p.dur ended
from flow join slice a on a.id = slice_out join slice b on b.id = slice_in left join slice p on p.id = b.parent_id
"""


@trace_processor.needs_trace_processor
def test_arrows_go_from_each_source_to_the_end_of_what_it_feeds(tmp_path: Path) -> None:
    """Also where the wait began before the issue, which viewers would turn round; chunks of any size."""
    script, producer, consumer = two_warps()
    third = script.warp(0, 0, 5000, warp=2)
    for warp in (consumer, third):
        ranges(warp, "wait", (2, 100, 0), (100, 300, 1), (400, 1400, 0))
    ranges(producer, "issue", (5, 9, 0), (10, 15, 1), (1000, 1005, 0))
    trace = script.build()
    for chunk in (1, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(perfetto, "CHUNK_ROWS", chunk)
            write_perfetto(trace, tmp_path / "t.pftrace", flows=[ISSUE, Flow("no", "such")])
        processor = trace_processor.TraceProcessor(tmp_path / "t.pftrace")
        assert processor.errors() == []
        arrows = [
            ("issue", issued, "issue -> wait", ended, "wait", ended)
            for issued, ended in ((5, 100), (10, 300), (1000, 1400))
        ]
        assert sorted(processor.query(FLOWS_SQL)) == sorted(arrows * 2)


@trace_processor.needs_trace_processor
@pytest.mark.skipif(not fixture_kit.GEMM.is_dir(), reason="the capture is not in this checkout")
def test_arrows_of_the_gemm_carry_the_latency_of_the_report(tmp_path: Path) -> None:
    trace = fixture_kit.load_gemm()
    flow = Flow("tma_issue", "ab_wait")
    write_perfetto(trace, tmp_path / "t.pftrace", flows=[flow])
    processor = trace_processor.TraceProcessor(tmp_path / "t.pftrace")
    assert processor.errors() == []
    rows = processor.query(FLOWS_SQL)
    found = match(trace, flow)
    r = trace.ranges
    assert len(rows) == len(found.target) == 1024
    assert sum(arrived - issued for _, issued, _, arrived, _, _ in rows) == int(
        (r.end_ns[found.target] - r.start_ns[found.source]).sum()
    )
    assert {(source, arrival) for source, _, arrival, *_ in rows} == {("tma_issue", "tma_issue -> ab_wait")}


def test_without_flows_the_file_is_as_before(tmp_path: Path) -> None:
    trace = pipeline()
    write_perfetto(trace, tmp_path / "a")
    write_perfetto(trace, tmp_path / "b", flows=[Flow("no", "such")])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
