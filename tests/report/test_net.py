"""Ranges less the cost of the events inside them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from random_traces import random_traces
from scripts import pipeline
from test_report import text, validate
from traces import TraceScript

from warptrace.report.cost import CYCLES, cost_of
from warptrace.report.net import net_cycles
from warptrace.report.report import build
from warptrace.report.sweep import launch_rows
from warptrace.trace import RANGE_TOKEN, Trace

ONE_WARP = {form: cycles[0] for form, cycles in CYCLES.items()}
PAIR = Fraction(str(ONE_WARP["push_pop"]))
MARK = Fraction(str(ONE_WARP["mark"]))


def nets(trace: Trace, warps_per_sm: int = 1) -> list[int]:
    return net_cycles(trace, launch_rows(trace, trace.launches[0]), warps_per_sm).tolist()


def rounded(cycles: Fraction) -> int:
    return int(cycles + Fraction(1, 2))


def test_a_loop_of_events() -> None:
    """100 ns at 2 cycles a ns: outer push, inner push, mark, inner pop, outer pop."""
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 1000)
    warp.push(0, "outer")
    warp.push(100, "inner")
    warp.mark(200, "m")
    warp.pop(300)
    warp.pop(400)
    trace = script.build()
    # Between two stamps: half of what either event costs, an event of a pair half of the pair.
    assert nets(trace) == [rounded(800 - PAIR - PAIR / 2 - MARK), rounded(400 - PAIR / 2 - MARK)]


def test_events_with_one_stamp_take_nothing_from_others() -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 1000)
    warp.push(0, "a")
    for _ in range(50):
        warp.mark(10, "m")
    warp.pop(100)
    trace = script.build()
    before, behind = Fraction(20) - PAIR / 4 - MARK / 2, Fraction(180) - PAIR / 4 - MARK / 2
    assert nets(trace) == [rounded(max(before, Fraction(0)) + behind)]


def test_a_range_around_nothing_is_zero() -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 1000)
    warp.push(0, "a")
    warp.pop(3)
    assert nets(script.build()) == [0]


def naive(trace: Trace, warps_per_sm: int) -> list[int]:
    """The same, event by event."""
    r, m = trace.ranges, trace.markers
    first, last = (trace.warps.launch.tolist().index(0), trace.warps.launch.tolist().count(0))
    mine = range(first, first + last)
    out: dict[int, int] = {}
    for warp in mine:
        events: dict[int, tuple[int, Fraction]] = {}  # by seq: cycle, cost
        for i in np.flatnonzero(r.warp == warp).tolist():
            form = "push_i32_pop" if r.start_type[i] else "push_pop"
            form = "start_end" if r.kind[i] == RANGE_TOKEN else form
            cost = Fraction(round(100 * cost_of(form, warps_per_sm)), 200)
            events[int(r.start_seq[i])] = (int(r.start_cycle[i]), cost)
            events.setdefault(int(r.end_seq[i]), (int(r.end_cycle[i]), cost))
        for i in np.flatnonzero(m.warp == warp).tolist():
            form = "mark_i32" if m.type[i] else "mark"
            events[int(m.seq[i])] = (int(m.cycle[i]), Fraction(round(100 * cost_of(form, warps_per_sm)), 100))
        order = sorted(events)
        left = {
            after: max(events[after][0] - events[before][0] - (events[before][1] + events[after][1]) / 2, Fraction(0))
            for before, after in zip(order, order[1:])
        }
        for i in np.flatnonzero(r.warp == warp).tolist():
            inside = (left[s] for s in order if r.start_seq[i] < s <= r.end_seq[i])
            out[i] = rounded(sum(inside, Fraction(0)))
    return [out[i] for i in sorted(out)]


@settings(max_examples=60, deadline=None)
@given(random_traces())
def test_any_trace(trace: Trace) -> None:
    if not trace.launches or 0 not in trace.warps.launch:
        return
    for warps in (1, 16):
        found = nets(trace, warps)
        for got, want in zip(found, naive(trace, warps), strict=True):
            assert abs(got - want) <= 1  # costs are counted in four hundredths of a cycle


def test_the_report_shows_both() -> None:
    trace = pipeline()
    plain, report = build(trace), build(trace, subtract=True)
    document = validate(report.to_json())
    (detail,) = document["details"]
    rows = {(row["role"], row["name"]): row for row in detail["net"]}
    for role in detail["roles"]:
        for row in role["names"]:
            one = rows.pop((role["name"], row["name"]))
            assert (one["count"], one["total"], one["mean"], one["p50"]) == (
                row["count"], row["total"], row["mean"], row["p50"],
            )  # fmt: skip
            assert 0 <= one["net_total"] < one["total"]
    assert rows == {}
    # Nothing else differs from the report without it.
    del detail["net"]
    assert document == validate(plain.to_json())
    shown = text(trace, subtract=True)
    assert "Less the cost of events: cycles" in shown
    assert "an upper estimate; all other figures are as recorded" in shown
    assert "Less the cost" not in text(trace)


def test_nothing_is_subtracted_from_emulated_times() -> None:
    trace = dataclasses.replace(pipeline(), emulated=True)
    assert "nothing is subtracted from emulated times" in text(trace, subtract=True)
    assert "net" not in build(trace, subtract=True).to_json()["details"][0]


@pytest.mark.parametrize("by", ["name", "sm"])
def test_beside_a_grouping(by: str) -> None:
    assert f"By {by}" in text(pipeline(), by=by, subtract=True)
