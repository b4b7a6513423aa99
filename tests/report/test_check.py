"""Assertions on a trace: each holds, and each fails with the row that is not as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import naive
import pytest
from hypothesis import given, settings
from random_traces import NAMES, random_traces
from scripts import pipeline
from traces import TraceScript

from warptrace.errors import UsageError
from warptrace.testing import Check
from warptrace.trace import Problem, Trace


def one_warp(build: Callable[[Any], None], **facts: Any) -> Trace:
    script = TraceScript()
    build(script.warp(script.launch(), 0, 1000, **facts))
    return script.build()


def fails(check: Callable[[], Check], text: str) -> None:
    with pytest.raises(AssertionError) as raised:
        check()
    assert str(raised.value) == text


def test_what_a_pipeline_fulfils() -> None:
    trace = pipeline(ctas=2, launches=2)
    check = Check(trace).launches(2).complete().closed()
    assert check.names("mma", "setup").nested("mma", "mma_tile").nested("tma_issue", "load_tile") is check
    check.count("mma", 4, per="warp").count("mma", 8, per="cta").count("mma", 16, per="launch").count("mma", 32)
    check.no_overlap("mma").budget("full_wait", 800).budget("full_wait", 120, percentile=75)
    check.only_names("setup", "load_tile", "empty_wait", "tma_issue", "mma_tile", "full_wait", "mma")


def test_launches_and_kernels() -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 9).mark(1, "a")
    script.warp(script.launch(kernel="other", symbol="sym", kernel_id=5), 0, 9).mark(1, "b")
    trace = script.build()
    Check(trace).launches(2).kernel("oth").launches(1).only_names("b")
    Check(trace, "sym").count("a", 0)
    fails(lambda: Check(trace).launches(1), "2 launches were recorded, not 1")
    fails(lambda: Check(trace, "x"), "no launch of 'x' was recorded (kernels: gemm, other)")
    fails(lambda: Check(TraceScript().build()), "no launch was recorded (kernels: none)")


def test_complete() -> None:
    def marked(warp: Any) -> None:
        warp.mark(1, "m")

    fails(Check(one_warp(marked, lost=3)).complete, "launch 1 lost 3 events and 0 warps")
    fails(Check(one_warp(marked, closed=0)).complete, "warp 0 of CTA (0, 0, 0) of launch 1 was not seen to end")
    fails(Check(_missing()).complete, "1 of 4 warps of launch 1 were recorded")


def _missing() -> Trace:
    script = TraceScript()
    script.warp(script.launch(warps_expected=4), 0, 9)
    return script.build()


def test_closed() -> None:
    script = TraceScript()
    for _ in range(2):
        script.warp(script.launch(), 0, 9)
    script.problems.append(Problem("unpaired_push", 1, "1 range pushed but never popped: load", 1))
    fails(Check(script.build()).closed, "1 range pushed but never popped: load")
    script.problems[0] = Problem("clock", 1, "the clock moved", 1)
    Check(script.build()).complete()


def test_names_and_counts() -> None:
    check = Check(pipeline())
    used = "empty_wait, full_wait, load_tile, mma, mma_tile, setup, tma_issue"
    fails(lambda: check.names("nix"), f"no range or marker is named 'nix' (names: {used})")
    more = "empty_wait, full_wait, load_tile, mma_tile, tma_issue"
    fails(lambda: check.only_names("setup", "mma"), f"there are more names: {more}")
    fails(lambda: check.count("mma", 7), "'mma' was recorded 8 times, not 7")
    fails(
        lambda: check.count("mma", 3, per="warp"),
        "'mma' was recorded 4 times in warp 1 of CTA (0, 0, 0) of launch 1, not 3",
    )
    fails(lambda: check.count("mma", 4, per="cta"), "'mma' was recorded 8 times in CTA (0, 0, 0) of launch 1, not 4")
    fails(lambda: check.count("nix", 4, per="warp"), "'nix' was recorded 0 times, not 4")
    with pytest.raises(UsageError, match="per 'sm' is none of trace, launch, cta, warp"):
        check.count("mma", 1, per="sm")  # type: ignore[arg-type]


def test_a_count_in_each_launch_misses_none() -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 9).mark(1, "m")
    script.warp(script.launch(), 0, 9)
    fails(lambda: Check(script.build()).count("m", 1, per="launch"), "'m' was not recorded in launch 2")


def test_nested() -> None:
    def crossing(warp: Any) -> None:
        outer = warp.start(10, "outer")
        inner = warp.start(20, "inner")
        warp.end(outer, 30)
        warp.end(inner, 40)
        warp.mark(50, "m")

    check = Check(one_warp(crossing))
    fails(
        lambda: check.nested("inner", "outer"), "'inner' at cycle 40 of warp 0 of CTA (0, 0, 0) of launch 1 lies in no "
                                                "'outer'"
    )  # fmt: skip
    fails(lambda: check.nested("m", "outer"), "'m' is a marker, not a range")


def test_no_overlap() -> None:
    def crossing(warp: Any) -> None:
        first, second = warp.start(10, "x"), warp.start(20, "x")
        warp.end(first, 30)
        warp.end(second, 40)

    fails(
        lambda: Check(one_warp(crossing)).no_overlap("x"),
        "'x' at cycle 40 of warp 0 of CTA (0, 0, 0) of launch 1 begins before the 'x' before it has ended",
    )


def test_budget() -> None:
    check = Check(pipeline())
    fails(
        lambda: check.budget("full_wait", 799),
        "'full_wait' at cycle 40 of warp 1 of CTA (0, 0, 0) of launch 1 takes 800 cycles, more than 799",
    )
    fails(
        lambda: check.budget("full_wait", 119, percentile=75),
        "'full_wait' at cycle 920 of warp 1 of CTA (0, 0, 0) of launch 1, the 75th percentile of 8, takes 120 cycles, "
        "more than 119",
    )
    with pytest.raises(UsageError, match="percentile 0 is not between 1 and 100"):
        check.budget("mma", 1, percentile=0)


def holds(check: Callable[[], object]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(random_traces())
def test_against_plain_loops(trace: Trace) -> None:
    check = Check(trace)
    warps = {warp: naive.intervals(trace, warp) for warp in range(len(trace.warps))}
    every = [one for found in warps.values() for one in found]
    for inner in NAMES:
        mine = [one for one in every if one.name == inner]
        overlap = any(
            a is not b and a.name == b.name == inner and a.start_key < b.start_key < a.end_key
            for found in warps.values() for a in found for b in found
        )  # fmt: skip
        assert holds(lambda name=inner: check.no_overlap(name)) == (bool(mine) and not overlap)
        longest = max((one.end - one.start for one in mine), default=0)
        assert holds(lambda name=inner, most=longest: check.budget(name, most)) == bool(mine)
        assert not (mine and longest) or not holds(lambda name=inner, most=longest: check.budget(name, most - 1))
        for outer in NAMES:
            theirs = any(one.name == outer for one in every)
            inside = all(
                any(o.name == outer and o.start_key < i.start_key and o.end_key > i.end_key for o in found)
                for found in warps.values() for i in found if i.name == inner
            )  # fmt: skip
            wanted = bool(mine) and theirs and inside
            assert holds(lambda i=inner, o=outer: check.nested(i, o)) == wanted
