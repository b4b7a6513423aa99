"""Every finding from data that carries it, and none from data that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripts import device, pipeline
from traces import TraceScript

from warptrace.report.findings import Finding, findings, percent
from warptrace.report.stats import analyze
from warptrace.selection import KernelSelection
from warptrace.trace import LaunchSelection, Trace

LONG = 12
"""k tiles: enough waits for a steady share."""


def found(trace: Trace, launch: int = 0, **options: Any) -> dict[str, Finding]:
    """The findings of a launch by kind; the first of each."""
    (stats,) = analyze(trace, [launch], **options).details
    out: dict[str, Finding] = {}
    for one in findings(stats, emulated=trace.emulated):
        out.setdefault(one.kind, one)
    return out


def waits(first: int, rest: int) -> tuple[int, ...]:
    return (first, *(rest,) * (LONG - 1))


def test_a_starved_consumer() -> None:
    """Without the first waits: a consumer waits 80 of 120 ns of a k tile, the producer 1 of 6."""
    one = found(pipeline(waits(80, 80), waits(1, 1)))["starved"]
    assert one.text == (
        "`mma_tile` warps spend 65 % of `mma_tile` in `full_wait`; `load_tile` warps spend 15 % of `load_tile` in "
        "`empty_wait`: the `load_tile` side is the limit."
    )
    figures = one.figures
    assert (figures["waiting"], figures["waits"], figures["other_waits"]) == (2 * 2 * 80 * 11, 22, 11)
    assert figures["share"] == (80 * 11) / (80 * 11 + 40 * 12)
    assert figures["other_share"] == 11 / (11 + 5 * 12)


def test_a_starved_producer() -> None:
    one = found(pipeline(waits(1, 1), waits(90, 90)))["starved"]
    assert one.text == (
        "`load_tile` warps spend 94 % of `load_tile` in `empty_wait`; `mma_tile` warps spend 2.2 % of `mma_tile` in "
        "`full_wait`: the `mma_tile` side is the limit."
    )


def test_both_sides_wait() -> None:
    kinds = found(pipeline(waits(60, 60), waits(10, 10)))
    assert "starved" not in kinds
    assert kinds["both_wait"].text.endswith(
        ": both sides wait, so neither's throughput alone is the limit. Look at the hand-over: latency, stages."
    )


@pytest.mark.parametrize(
    ("consumer", "producer"),
    [
        (waits(4, 4), waits(1, 1)),  # nobody waits much
        (waits(600, 5), waits(1, 1)),  # only the fill
        (waits(60, 60), waits(1, 1)),  # 58 % and 15 %: neither four times less nor much
        ((60,) * 8, (1,) * 8),  # too few waits of the producer, which also leaves the consumer alone
    ],
)
def test_no_verdict_on_a_pipeline(consumer: tuple[int, ...], producer: tuple[int, ...]) -> None:
    assert not {"starved", "both_wait"} & set(found(pipeline(consumer, producer)))


def test_a_role_that_waits_for_nobody_known() -> None:
    one = found(pipeline((60,) * 8, (1,) * 8))["waits"]
    assert one.text.endswith("no other role has waits in a loop, so the trace does not say for whom.")


def test_the_fill_of_a_pipeline() -> None:
    one = found(pipeline(waits(600, 5), waits(1, 1)))["fill"]
    assert one.text == (
        "The first wait in each `mma_tile` of `mma_tile` warps takes 53 % of it (1200 cycles; later waits 10): the "
        "time until the pipeline has filled."
    )
    assert "fill" not in found(pipeline(waits(20, 20), waits(1, 1)))


def test_few_ctas() -> None:
    one = found(pipeline(ctas=2, sm_count=4))["few_ctas"]
    assert one.text == "2 CTAs keep 2 of 4 SMs busy; the others get none."
    assert "few_ctas" not in found(pipeline(ctas=4, sm_count=4))
    assert "few_ctas" not in found(pipeline(ctas=10, sm_count=11))
    assert "few_ctas" in found(pipeline(ctas=9, sm_count=10))
    assert "few_ctas" not in found(pipeline(ctas=2))  # nothing known of the device


def staggered(*spans: tuple[int, int, int], sm_count: int = 2, **facts: Any) -> Trace:
    """A one-warp CTA for each (SM, start, end)."""
    script = TraceScript()
    script.processes.append(device(sm_count))
    launch = script.launch(grid=(len(spans), 1, 1), warps_expected=len(spans), **facts)
    for cta, (sm, start, end) in enumerate(spans):
        one = script.warp(launch, start, end, cta=(cta, 0, 0), sm=sm)
        one.push(start, "work")
        one.pop(end)
    trace = script.build()
    trace.warps.start_cycle[:] = 2 * trace.warps.start_ns
    return trace


def test_the_tail() -> None:
    spans = ((0, 0, 1000), (1, 0, 1000), (0, 1000, 2000))
    one = found(staggered(*spans))["tail"]
    assert one.text == (
        "SMs stand idle for 25 % of their time waiting for the last CTAs: the first SM has nothing more to do 1.00 us "
        "before the launch ends (2.00 us)."
    )
    assert one.figures == {"share": 0.25, "tail_ns": 1000, "duration_ns": 2000, "sms": 2}
    assert "tail" not in found(staggered(*spans, clock_uncertainty_ns=600.0))
    assert "tail" not in found(staggered((0, 0, 1000), (1, 0, 950)))
    assert "tail" not in found(staggered((0, 0, 1000), (0, 1000, 2000)))  # one SM has no other to wait for


def test_the_last_wave() -> None:
    one = found(staggered((0, 0, 1000), (1, 0, 1000), (0, 1000, 2000)))["last_wave"]
    assert one.text == "3 CTAs are 1.50 waves of 2 SMs x 1: the last wave fills 50 % of the places."
    full = ((0, 0, 1000), (1, 0, 1000), (0, 1000, 2000), (1, 1000, 2000))
    assert "last_wave" not in found(staggered(*full))


def test_start_skew() -> None:
    one = found(staggered((0, 0, 1000), (1, 150, 1000)))["start_skew"]
    assert one.text == (
        "The first CTAs of the SMs start up to 150 ns apart (15 % of the launch), half of them within 0 ns."
    )
    assert "start_skew" not in found(staggered((0, 0, 1000), (1, 50, 1000)))


def test_the_critical_warp() -> None:
    spans = [(sm, 0, 1000) for sm in range(4)] + [(4, 0, 1500)]
    one = found(staggered(*spans, sm_count=5))["critical_warp"]
    assert one.text == (
        "The last warp to end, warp 0 of CTA (4, 0, 0) on SM 4 (`work`), ends 500 ns (33 % of the launch) after the "
        "median of its role; its time: `work` 100 %."
    )
    assert "critical_warp" not in found(staggered(*spans[:-1], (4, 0, 1050), sm_count=5))


def test_an_outlier_of_a_payload() -> None:
    one = found(pipeline())["payload_outlier"]
    assert one.text == (
        "`full_wait` with payload 0 takes 800 cycles in `mma_tile` warps, 6.7 times the median of 120 over all "
        "payloads."
    )
    assert one.figures["extra_cycles"] == 2 * 680
    assert "payload_outlier" not in found(pipeline((60,) * 4))


def irregular(long: int, count: int = 200) -> Trace:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    now = 0
    for step in range(count):
        warp.push(now, "work")
        warp.pop(now := now + (long if step % 50 == 0 else 10))
    warp.row.update(end_ns=now, cycles=2 * now)
    return script.build()


def test_irregular_ranges() -> None:
    one = found(irregular(100))["irregular"]
    assert one.text == (
        "`work` is irregular in `work` warps: median 20 cycles, 99th percentile 200, longest 200, of 200."
    )
    assert "irregular" not in found(irregular(40))
    assert "irregular" not in found(irregular(100, count=99))


@pytest.mark.parametrize(("gap", "says"), [(30, True), (20, False)])
def test_time_in_no_range(gap: int, says: bool) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    warp.push(gap, "work")
    warp.pop(100)
    kinds = found(script.build())
    assert ("gap" in kinds) == says
    if says:
        assert kinds["gap"].text == (
            "`work` warps spend 30 % of their life in no range, most of it between the warp's entry and `work` (30 %): "
            "put a range there to see what it is."
        )


def test_what_recording_cost() -> None:
    """200 pairs without payload at 4 warps an SM or fewer: 39.56 cycles each by the table, one warp on the SM."""
    one = found(irregular(10))["event_cost"]
    assert (one.figures["cycles"], one.figures["life"]) == (200 * 3956 // 100, 200 * 20)
    assert "event_cost" not in found(staggered((0, 0, 1000)))


@pytest.mark.parametrize(
    ("facts", "kind"),
    [({"emulated": True}, "emulated"), ({"closed": 0}, "unclosed_warps"), ({"lost": 5}, "lost_events")],
)
def test_nothing_about_time_where_it_cannot_be_told(facts: dict[str, Any], kind: str) -> None:
    script = TraceScript(emulated=facts.pop("emulated", False))
    warp = script.warp(script.launch(), 0, 100, **facts)
    warp.push(50, "work")
    warp.pop(100)
    assert set(found(script.build())) == {kind}


def test_few_lost_events_are_told_and_do_not_silence_the_rest() -> None:
    script = TraceScript()
    launch = script.launch(lost_events=0)
    warp = script.warp(launch, 0, 4000, lost=1)
    for step in range(100):
        warp.push(40 * step, "x")
        warp.pop(40 * step + 10)
    kinds = found(script.build())
    assert set(kinds) == {"lost_events", "gap", "event_cost"}
    assert kinds["lost_events"].text == (
        "1 of 201 events (0.5 %) were lost; the figures are of what was recorded."
    )


def test_missing_warps_silence_the_placement() -> None:
    spans = ((0, 0, 1000), (1, 0, 1000), (0, 1000, 2000))
    trace = staggered(*spans)
    trace = replace(trace, launches=(replace(trace.launches[0], warps_expected=9),))
    kinds = found(trace)
    assert kinds["missing_warps"].text == "3 of 9 warps were recorded: nothing is said about waves, tail and skew."
    assert not {"tail", "last_wave", "start_skew", "few_ctas"} & set(kinds)


def test_a_selection_silences_the_placement() -> None:
    recorded = KernelSelection(warps=(0,))
    selection = LaunchSelection(recorded, outside=(), cluster_grid=(3, 1, 1), grid_warps=9)
    trace = staggered((0, 0, 1000), (1, 0, 1000), (0, 1000, 2000), selection=selection)
    kinds = found(trace)
    assert kinds["selection"].text == f"Only {recorded} was to be recorded: nothing is said about waves, tail and skew."
    assert not {"tail", "last_wave", "start_skew", "few_ctas", "missing_warps"} & set(kinds)


def test_an_uncertain_clock() -> None:
    one = found(staggered((0, 0, 1000), clock_uncertainty_ns=250.0))["clock"]
    assert one.text == (
        "Times of different SMs are good to 250 ns only, 25 % of the launch; durations in cycles are exact."
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.0 %"), (0.004, "0.4 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (0.5, "50 %"), (1, "100 %")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
