"""Comparing runs: what changed, what is chance, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import random_traces
from scripts import i32, pipeline
from traces import TraceScript

from warptrace.errors import UsageError
from warptrace.report.diff import Diff, PayloadChange, Side, diff
from warptrace.report.diff_blocks import diff_blocks, verdict
from warptrace.report.markdown import to_markdown
from warptrace.report.significance import holm, incomplete_beta, welch
from warptrace.selection import KernelSelection
from warptrace.trace import LaunchSelection, Trace

SCHEMA = json.loads((files("warptrace.report") / "schema" / "diff.schema.json").read_text(encoding="utf-8"))


def side(trace: Trace, label: str = "A") -> Side:
    return Side(label, trace, tuple(range(len(trace.launches))))


def compare(a: Trace, b: Trace, **options: Any) -> Diff:
    return diff(side(a, "A"), side(b, "B"), **options)


def repeated(lengths: tuple[int, ...], name: str = "work", **facts: Any) -> Trace:
    """A launch of one warp with two ranges of the given length (ns) each, and a payload that tells them apart."""
    script = TraceScript(emulated=facts.pop("emulated", False))
    for length in lengths:
        launch = script.launch(**facts)
        warp = script.warp(launch, 0, 2 * length)
        for turn in range(2):
            warp.push(turn * length, name, i32(turn))
            warp.pop((turn + 1) * length)
    return script.build()


# -------------------------------------------------------------------------------------------------- significance
@pytest.mark.parametrize(("t", "freedom", "p"), [(2.228139, 10, 0.05), (12.7062, 1, 0.05), (3.169273, 10, 0.01),
                                                 (1.959964, 1e7, 0.05)])  # fmt: skip
def test_the_t_distribution(t: float, freedom: float, p: float) -> None:
    """Against the usual tables."""
    assert incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) == pytest.approx(p, rel=1e-5)


@given(st.floats(0, 50), st.floats(0.01, 0.99), st.floats(0.2, 40))
def test_closed_forms(t: float, x: float, b: float) -> None:
    # The first argument is rounded, and near 1 the result goes by the root of what is left to 1, which is t.
    rounded = min(t, 2**-52 / t) if t else 0.0
    wanted = 1 - 2 / math.pi * math.atan(t)
    assert incomplete_beta(1 / (1 + t * t), 0.5, 0.5) == pytest.approx(wanted, abs=1e-12 + rounded)
    assert incomplete_beta(2 / (2 + t * t), 1, 0.5) == pytest.approx(1 - t / math.sqrt(t * t + 2), abs=1e-12 + rounded)
    assert incomplete_beta(x, 1, b) == pytest.approx(1 - (1 - x) ** b, abs=1e-12)
    assert incomplete_beta(x, b, 1) == pytest.approx(x**b, abs=1e-12)
    assert incomplete_beta(x, b, 2.5) + incomplete_beta(1 - x, 2.5, b) == pytest.approx(1, abs=1e-12)


def test_welch() -> None:
    """Means 2 and 5, variances 1 and 1, 3 values each: t = 3.674, 4 degrees of freedom, p = 0.0213 by the tables."""
    assert welch([1, 2, 3], [4, 5, 6]) == pytest.approx(0.0213, abs=5e-5)
    assert welch([1, 2, 3], [3, 2, 1]) == pytest.approx(1.0)
    assert (welch([5, 5, 5], [5, 5, 5]), welch([5, 5, 5], [6, 6, 6])) == (1.0, 0.0)
    assert welch([1, 2], [4, 5, 6]) is None


def test_holm() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [0.03, None, 0.06, 0.06]
    assert holm([0.5, 0.9]) == [1.0, 1.0]


# ---------------------------------------------------------------------------------------------------------- diff
def test_a_run_that_became_slower() -> None:
    (kernel,) = compare(repeated((90, 100, 101, 102)), repeated((90, 120, 121, 122))).kernels
    assert (kernel.launches_a, kernel.left_out_a, kernel.left_out_b) == (3, 1, 1)  # the first is warm-up
    duration = kernel.duration_ns
    assert duration is not None
    assert (duration.a, duration.b, duration.significant) == (202.0, 242.0, True)
    assert duration.p == welch([200, 202, 204], [240, 242, 244])
    assert verdict(duration) == "slower (p < 0.0001)"
    (row,) = kernel.names
    assert (row.role, row.name, row.count_a, row.total_a, row.mean.a, row.mean.b) == (
        "work", "work", 2, 404, 202.0, 242.0,
    )  # fmt: skip
    (instance,) = kernel.instances
    assert (instance.matched, instance.only_a, instance.only_b, instance.p50) == (2, 0, 0, 40)
    assert instance.payloads == (PayloadChange(0, 1, 202.0, 242.0), PayloadChange(1, 1, 202.0, 242.0))


def test_noise_is_not_a_change() -> None:
    (kernel,) = compare(repeated((100, 140, 90)), repeated((110, 95, 150))).kernels
    assert kernel.duration_ns is not None and kernel.duration_ns.significant is False
    assert verdict(kernel.duration_ns).startswith("no significant change (p = 0.")
    assert [row.mean.significant for row in kernel.names] == [False]


def test_two_launches_cannot_tell() -> None:
    (kernel,) = compare(repeated((100,)), repeated((120, 130))).kernels
    assert kernel.duration_ns is not None and kernel.duration_ns.p is None
    assert verdict(kernel.duration_ns) == "nothing is known of chance"
    assert kernel.cautions == ("1 and 2 launches: with fewer than 3 on a side nobody can say what is chance",)


def test_p_of_names_is_corrected_for_their_number() -> None:
    (kernel,) = compare(pipeline(launches=3), pipeline(launches=3, stretch=2)).kernels
    names = {(row.role, row.name): row.mean for row in kernel.names}
    # launches of A are equal; B's mma take 80, 84 and 88 cycles: p = 0.225 alone
    alone = welch([80.0] * 3, [80.0, 84.0, 88.0])
    assert alone is not None and names["mma_tile", "mma"].p is not None
    assert names["mma_tile", "mma"].p > alone
    assert names["load_tile", "tma_issue"].p == 1.0


def test_warm_up_as_asked() -> None:
    (kernel,) = compare(repeated((90, 100)), repeated((90, 100)), warm_up=5).kernels
    assert (kernel.launches_a, kernel.left_out_a) == (1, 1)
    (kernel,) = compare(repeated((1, 2, 3, 4)), repeated((1, 2, 3, 4)), warm_up=0).kernels
    assert (kernel.launches_a, kernel.left_out_a) == (4, 0)


def test_kernels_are_matched_by_name_and_shape() -> None:
    def two(*grids: int) -> Trace:
        script = TraceScript()
        for grid in grids:
            script.warp(script.launch(grid=(grid, 1, 1)), 0, 100 * grid)
        script.warp(script.launch(kernel="other" if grids[0] == 8 else "another", kernel_id=5), 0, 7)
        return script.build()

    result = compare(two(8, 16), two(16, 9))
    assert [kernel.duration_ns.a for kernel in result.kernels if kernel.duration_ns] == [1600.0, 800.0, 7.0]
    assert result.kernels[1].cautions[0] == "grid 8x1x1 in A, 9x1x1 in B: ranges may stand for other work"
    assert result.kernels[2].cautions[0].startswith("the kernels have different names")
    result = compare(two(8, 16, 4), two(16))
    assert (result.missing_in_b, result.missing_in_a) == (
        ("gemm (grid 8x1x1)", "gemm (grid 4x1x1)", "other (grid 1x1x1)"), ("another (grid 1x1x1)",),
    )  # fmt: skip


def test_roles_of_another_name_are_the_same_where_their_names_are_alike() -> None:
    def run(first: int, second: int) -> Trace:
        script = TraceScript()
        warp = script.warp(script.launch(), 0, 1000)
        for name, start, end in (("x", 0, first), ("y", 500, 500 + second)):
            warp.push(start, name)
            warp.pop(end)
        return script.build()

    (kernel,) = compare(run(100, 50), run(50, 100)).kernels  # the roles are called x and y
    assert {(row.role, row.name): row.mean.b for row in kernel.names} == {("x", "x"): 100, ("x", "y"): 200}
    assert kernel.only_a == kernel.only_b == ()


def test_names_on_one_side_only() -> None:
    (kernel,) = compare(repeated((10,), "old"), repeated((10,), "new")).kernels
    assert (kernel.only_a, kernel.only_b, kernel.names) == ((("old", "old"),), (("new", "new"),), ())
    assert "only in B: new (new)" in to_markdown(diff_blocks(compare(repeated((10,), "old"), repeated((10,), "new"))))


# ------------------------------------------------------------------------------------------------------- refusals
def test_emulated_against_real() -> None:
    result = compare(repeated((10,)), repeated((10,), emulated=True))
    assert result.refused == ("B was emulated and A ran on a GPU: their times have nothing in common",)
    assert (result.kernels, result.comparable) == ((), False)


def test_different_devices() -> None:
    b = pipeline(sm_count=4)
    (kernel,) = compare(pipeline(), b).kernels
    assert kernel.refused == ("not comparable: A ran on None, B on NVIDIA H200",)
    assert kernel.duration_ns is None and kernel.names == ()


def test_lost_events_and_open_warps() -> None:
    def run(**facts: int) -> Trace:
        script = TraceScript()
        script.warp(script.launch(), 0, 100, **facts).mark(5, "m")
        return script.build()

    (kernel,) = compare(run(lost=1), run(closed=0)).kernels
    assert kernel.refused == (
        "not comparable: A lost 50.0 % of its events", "not comparable: 1 warps of B were not seen to end",
    )  # fmt: skip


def test_clocks_that_differ() -> None:
    a = repeated((100,))
    b = repeated((100,))
    b.warps.cycles[:] = b.warps.cycles * 9 // 10
    (kernel,) = compare(a, b).kernels
    assert kernel.cautions[0] == (
        "the SMs ran at 2.00 GHz in A and 1.80 GHz in B: times in ns change with it, cycles do not"
    )


def test_no_launch() -> None:
    with pytest.raises(UsageError, match="A has no launch to compare"):
        compare(TraceScript().build(), repeated((1,)))


def test_nothing_in_common() -> None:
    script = TraceScript()
    script.warp(script.launch(kernel="x"), 0, 1)
    script.warp(script.launch(kernel="y"), 0, 1)
    result = compare(script.build(), repeated((1,)))
    assert not result.comparable
    assert "not comparable: A and B have no kernel in common" in to_markdown(diff_blocks(result))


@settings(max_examples=40, deadline=None)
@given(random_traces(), random_traces())
def test_any_two_traces(a: Trace, b: Trace) -> None:
    """A document by the schema; and a trace against itself has no change."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for first, second in ((a, b), (a, a)):
        result = compare(first, second)
        validator.validate(json.loads(json.dumps(result.to_json(), allow_nan=False)))
        assert to_markdown(diff_blocks(result)).startswith("# A: A, B: B")
    for kernel in compare(a, a).kernels:
        assert kernel.only_a == kernel.only_b == ()
        assert all(row.mean.a == row.mean.b and row.count_a == row.count_b for row in kernel.names)
        assert all((one.only_a, one.only_b, one.p50, one.payloads) == (0, 0, 0, ()) for one in kernel.instances)


def test_selections_that_differ() -> None:
    b = repeated((10,))
    selection = LaunchSelection(KernelSelection(warps=(0,)), (), (1, 1, 1), 1)
    b = replace(b, launches=(replace(b.launches[0], selection=selection),))
    (kernel,) = compare(repeated((10,)), b).kernels
    assert kernel.refused == ("not comparable: different parts of the launches were recorded",)
