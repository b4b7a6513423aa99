"""The analysis of launches: exact figures of scripted launches, and of the kept capture against plain loops."""

from __future__ import annotations

import fixture_kit
import naive
import pytest
from scripts import device, pipeline
from traces import TraceScript

from warptrace.errors import UsageError
from warptrace.report.cost import CYCLES, WARPS_PER_SM
from warptrace.report.stats import (
    GapRow,
    LaunchStats,
    Loop,
    NameRow,
    RoleRow,
    analyze,
    representative,
    select_launches,
)
from warptrace.trace import Trace

needs_capture = pytest.mark.skipif(not fixture_kit.GEMM.is_dir(), reason="the capture is not in this checkout")


def role(stats: LaunchStats, name: str) -> RoleRow:
    """The role of that name."""
    return next(row for row in stats.roles if row.name == name)


def named(row: RoleRow, name: str) -> NameRow:
    """The row of a name."""
    return next(one for one in row.names if one.name == name)


def test_a_pipeline_in_numbers() -> None:
    """Lives: producer 80 ns, consumer 770 ns, at 2 cycles a ns."""
    (stats,) = analyze(pipeline()).details
    assert [row.name for row in stats.roles] == ["mma_tile", "load_tile"]
    mma, load = stats.roles
    assert (mma.warps, mma.warps_in_cta, mma.life, mma.life_p50, mma.life_max) == (2, (1, 2), 3080, 1540, 1540)
    assert (mma.covered, mma.waiting, mma.work, mma.gap) == (3040, 2 * 1160, 3040 - 2320, 40)
    assert mma.loop == Loop("mma_tile", 2, 2 * 1480, 2 * 1160, 8, 2 * 800, 2, ("full_wait",))
    assert (mma.loop.share, mma.loop.steady_share) == (1160 / 1480, 360 / 680)
    assert load.loop == Loop("load_tile", 1, 120, 80, 4, 20, 1, ("empty_wait",))
    wait = named(mma, "full_wait")
    assert (wait.wait, wait.token, wait.count, wait.total, wait.total_ns) == (True, False, 8, 2320, 1160)
    assert (wait.min, wait.p50, wait.p95, wait.p99, wait.max, wait.mean) == (120, 120, 800, 800, 800, 290.0)
    assert (wait.share, wait.self_total, wait.self_share) == (2320 / 3080, 2320, 2320 / 3080)
    assert (wait.outermost, wait.first_count, wait.first_total) == ((("mma_tile", 1160 / 1480),), 2, 1600)
    tile = named(mma, "mma_tile")
    assert (tile.total, tile.self_total, tile.outermost, tile.first_count) == (2960, 0, (), 0)
    assert mma.gaps == (GapRow("mma_tile", None, 2, 40, 40 / 3080, 20),)
    assert (mma.events, load.events) == (2 * (4 + 4 * K_EVENTS), 4 + 4 * K_EVENTS)
    assert stats.critical is not None
    critical = stats.critical
    assert (critical.role, critical.warp, critical.late_ns, critical.life, critical.waiting) == (
        "mma_tile", 1, 0, 1540, 1160,
    )  # fmt: skip
    assert critical.names[:2] == (("full_wait", 1160, 1160 / 1540), ("mma", 320, 320 / 1540))


K_EVENTS = 4


def test_series_and_outliers() -> None:
    (stats,) = analyze(pipeline()).details
    series = {one.name: one for one in role(stats, "mma_tile").series}
    assert sorted(series) == ["full_wait", "mma"]  # mma_tile has one payload only
    wait = series["full_wait"]
    assert [(row.value, row.count, row.p50, row.mean) for row in wait.rows] == [
        (0, 2, 800, 800.0), (1, 2, 120, 120.0), (2, 2, 120, 120.0), (3, 2, 120, 120.0),
    ]  # fmt: skip
    assert (wait.median, [row.value for row in wait.outliers]) == (120, [0])
    assert series["mma"].outliers == ()


def test_a_wait_by_regular_expression() -> None:
    (stats,) = analyze(pipeline(), wait="^mma$").details
    assert role(stats, "mma_tile").waiting == 2 * 320
    assert [row.name for row in role(stats, "mma_tile").names if row.wait] == ["mma"]


def test_a_role_with_lost_events_and_an_open_warp() -> None:
    script = TraceScript()
    launch = script.launch(warps_expected=2)
    for warp, facts in enumerate(({"lost": 7}, {"closed": 0})):
        one = script.warp(launch, 0, 100, warp=warp, **facts)
        one.push(10, "x")
        one.pop(30)
    (stats,) = analyze(script.build()).details
    assert (stats.roles[0].lost_events, stats.roles[0].unclosed) == (7, 1)
    assert stats.roles[0].life == 200 + 60  # the open warp's last event is its end
    assert stats.roles[0].gap == (200 - 40) + 20


def test_placement() -> None:
    """SM 0 runs CTAs 0, 1 at once and then 2; SM 1 runs CTA 3, from 50 to 300. The device has 4 SMs."""
    script = TraceScript()
    script.processes.append(device(4))
    launch = script.launch(grid=(4, 1, 1), warps_expected=4)
    for cta, (sm, start, end) in enumerate([(0, 0, 400), (0, 20, 500), (0, 500, 1000), (1, 50, 300)]):
        script.warp(launch, start, end, cta=(cta, 0, 0), sm=sm)
    trace = script.build()
    # A warp's start_cycle is on its SM's own clock; the script's is not, so put it there.
    trace.warps.start_cycle[:] = 2 * trace.warps.start_ns
    (stats,) = analyze(trace).details
    place = stats.placement
    assert (place.ctas, place.ctas_expected, place.sms_used, place.sm_count, place.resident_per_sm) == (4, 4, 2, 4, 2)
    assert place.waves == 4 / (4 * 2)
    assert [(row.sm, row.ctas, row.busy_ns, row.resident) for row in place.sms] == [(0, 3, 1000, 2), (1, 1, 250, 1)]
    assert (place.busy_share, place.device_busy_share) == (1250 / 2000, 1250 / 4000)
    assert place.mean_resident_warps == (400 + 480 + 500 + 250) / 2000
    assert (place.start_skew.max_ns, place.end_skew.max_ns, place.tail_ns) == (50, 700, 700)
    assert place.tail_share == 700 / 2000


def test_which_launches_are_looked_into() -> None:
    script = TraceScript()
    for duration in (30, 10, 20, 40):
        script.warp(script.launch(), 0, duration)
    script.warp(script.launch(kernel="other", symbol="other_7", kernel_id=5), 0, 5)
    trace = script.build()
    assert representative(trace.launches) == (2, 4)
    analysis = analyze(trace)
    assert ([one.launch.number for one in analysis.details], analysis.chosen_by) == ([3, 5], "median")
    assert [row.number for row in analysis.launches] == [1, 2, 3, 4, 5]
    assert select_launches(trace, kernel="other_7") == (4,)
    assert select_launches(trace, kernel="gemm", numbers=[2, 5]) == (1,)
    with pytest.raises(UsageError, match="no launch with kernel 'x' and number 9: the trace has gemm, other"):
        select_launches(trace, kernel="x", numbers=[9])


def test_an_empty_trace() -> None:
    analysis = analyze(TraceScript().build())
    assert (analysis.launches, analysis.details, analysis.roles.roles) == ((), (), ())


def test_a_launch_without_any_recorded_warp() -> None:
    script = TraceScript()
    script.launch(lost_warps=4, lost_events=9)
    (stats,) = analyze(script.build()).details
    assert (stats.roles, stats.critical, stats.placement.ctas, stats.placement.tail_share) == ((), None, 0, 0.0)


def test_event_costs_are_those_measured() -> None:
    import json
    from pathlib import Path

    results = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "event-cost-h200-2026-11-30.json"
    if not results.is_file():
        pytest.skip("no benchmark results in this checkout")
    ours = json.loads(results.read_text())["figures"]["ours"]
    beside = {"mark": "work_mark", "push_pop": "push_work_pop", "push_i32_pop": "push_i32_work_pop",
              "start_end": "start_work_end"}  # fmt: skip

    def cost(form: str, warps: int) -> float:
        alone = ours[f"{form}/{warps}"]["median"]
        if form not in beside:
            return alone
        return max(alone, round(ours[f"{beside[form]}/{warps}"]["median"] - ours[f"work/{warps}"]["median"], 2))

    for form, cycles in CYCLES.items():
        assert cycles == tuple(cost(form, warps) for warps in WARPS_PER_SM)


# ------------------------------------------------------------------------------------------- the kept capture
@pytest.fixture(scope="module")
def gemm() -> Trace:
    return fixture_kit.load_gemm()


@needs_capture
def test_the_gemm_has_three_roles(gemm: Trace) -> None:
    """As the kernel's source has it: one producer warp, eight consumers of which two store, three that leave."""
    (stats,) = analyze(gemm).details
    rows = [(row.name, row.warps, row.warps_in_cta, row.variants) for row in stats.roles]
    assert rows == [("mma_tile", 64, tuple(range(4, 12)), 2), ("load_tile", 8, (0,), 1), ("setup", 24, (1, 2, 3), 1)]


@needs_capture
@pytest.mark.parametrize("launch", [0, 1])
def test_the_gemm_against_plain_loops(gemm: Trace, launch: int) -> None:
    (stats,) = analyze(gemm, [launch]).details
    role_of = {warp: row for row in stats.roles for warp in row.warps_in_cta}
    waits = {"ab_wait", "ab_empty_wait", "epi_store_wait"}
    life = dict.fromkeys((row.name for row in stats.roles), 0)
    waiting, covered = dict(life), dict(life)
    durations: dict[tuple[str, str], list[int]] = {}
    own: dict[tuple[str, str], int] = {}
    for warp in [i for i in range(len(gemm.warps)) if gemm.warps.launch[i] == launch]:
        name = role_of[int(gemm.warps.warp[warp])].name
        selves, wait, _ = naive.walk(gemm, warp, waits)
        life[name] += int(gemm.warps.cycles[warp])
        waiting[name] += wait
        covered[name] += sum(selves.values())
        for one in naive.intervals(gemm, warp):
            durations.setdefault((name, one.name), []).append(one.end - one.start)
            own[name, one.name] = own.get((name, one.name), 0) + selves[one.row]
    for row in stats.roles:
        assert (row.life, row.waiting, row.covered) == (life[row.name], waiting[row.name], covered[row.name])
        assert {one.name for one in row.names} == {name for of, name in durations if of == row.name}
        for one in row.names:
            values = durations[row.name, one.name]
            assert (one.count, one.total, one.self_total) == (len(values), sum(values), own[row.name, one.name])
            assert (one.p50, one.p95, one.p99) == tuple(naive.nearest_rank(values, p) for p in (50, 95, 99))
            assert (one.min, one.max) == (min(values), max(values))


@needs_capture
def test_figures_read_off_the_gemm_by_hand(gemm: Trace) -> None:
    """Launch 2, from a listing of its events."""
    (stats,) = analyze(gemm).details
    mma, load, _ = stats.roles
    assert (stats.launch.number, stats.launch.duration_ns) == (2, 8181)
    assert (mma.loop, load.loop) == (
        Loop("mma_tile", 64, 597208, 152699, 512, 71128, 64, ("ab_wait",)),
        Loop("load_tile", 8, 49270, 38865, 64, 1176, 8, ("ab_empty_wait",)),
    )
    waits = next(one for one in load.series if one.name == "ab_empty_wait")
    # Four stages: the fifth load is the first that waits for a stage to be free.
    assert [(row.value, row.p50) for row in waits.rows] == [
        (0, 149), (1, 140), (2, 140), (3, 140), (4, 1612), (5, 868), (6, 897), (7, 907),
    ]  # fmt: skip
    assert sorted(row.value for row in waits.outliers) == [4, 5, 6, 7]
    place = stats.placement
    assert (place.ctas, place.sms_used, place.sm_count, place.resident_per_sm, place.waves) == (8, 8, 132, 1, 8 / 132)
    assert (place.start_skew.max_ns, place.end_skew.max_ns) == (38, 131)
