"""The HTML report: its data, exactly; its rows; its sample; what it must not contain."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_page import Engine, Page, node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_traces import random_traces
from traces import TraceScript

import warptrace
from warptrace.errors import WarptraceError
from warptrace.export.html import write_html
from warptrace.export.html.columns import column
from warptrace.export.html.histogram import PER_DOUBLING, ZERO, bin_of, histograms
from warptrace.export.html.rows import timeline_rows
from warptrace.export.html.sample import choose
from warptrace.export.payload import texts
from warptrace.flows import Flow
from warptrace.report.report import build
from warptrace.report.stats import analyze
from warptrace.trace import RANGE_STACK, Problem, Trace
from warptrace.wire import PAYLOAD_BITS, PayloadType

many = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
some = settings(many, max_examples=25)
needs_node = pytest.mark.skipif(node() is None, reason="the page's JavaScript needs node (or the playwright package)")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def written(trace: Trace, folder: Path, **options: Any) -> Page:
    write_html(trace, folder / "page.html", **options)
    return Page(folder / "page.html")


def expected_columns(trace: Trace) -> dict[str, np.ndarray]:
    """What the page must hold, from the trace alone (apart from the row of each range)."""
    w, r, m = trace.warps, trace.ranges, trace.markers
    order = np.lexsort((r.start_seq, timeline_rows(r), r.warp))
    out = {f"warps.cta_{axis}": w.cta[:, i] for i, axis in enumerate("xyz")}
    for name in ("launch", "warp", "sm", "tpc", "gpc", "start_ns", "cycles", "events", "lost", "closed"):
        out[f"warps.{name}"] = getattr(w, name)
    out["warps.ns"] = w.end_ns - w.start_ns
    out["warps.shown"] = np.ones(len(w))
    for name in ("warp", "name", "kind", "lane", "depth", "start_type", "start_bits", "end_type", "end_bits",
                 "start_site", "end_site", "start_ns", "start_cycle"):  # fmt: skip
        out[f"ranges.{name}"] = getattr(r, name)[order]
    out["ranges.ns"] = (r.end_ns - r.start_ns)[order]
    out["ranges.cycles"] = (r.end_cycle - r.start_cycle)[order]
    for name in ("warp", "name", "lane", "type", "bits", "site", "ns", "cycle"):
        out[f"markers.{name}"] = getattr(m, name)
    return {name: values.astype(np.uint64 if name.endswith("bits") else np.int64) for name, values in out.items()}


def unsigned(name: str, values: np.ndarray) -> np.ndarray:
    return values.view(np.uint64) if name.endswith("bits") else values


# ----------------------------------------------------------------------------------------------------------- the data
@many
@given(trace=random_traces())
def test_the_page_holds_the_columns_of_the_trace(trace: Trace, tmp_path: Path) -> None:
    page = written(trace, tmp_path)
    for name, values in expected_columns(trace).items():
        assert unsigned(name, page.column(name)).tolist() == values.tolist(), name
    facts = page.facts
    assert facts["strings"] == list(trace.strings)
    assert facts["epoch_ns"] == str(trace.epoch_ns)
    assert facts["sites"] == [[site.name, site.file, site.line] for site in trace.sites]
    assert [one["kernel_id"] for one in facts["launches"]] == [str(one.kernel_id) for one in trace.launches]
    assert facts["sample"]["whole"] is True


@needs_node
@some
@given(trace=random_traces(), fallback=st.booleans())
def test_the_page_decodes_its_columns(trace: Trace, fallback: bool, engine: Engine, tmp_path: Path) -> None:
    page = written(trace, tmp_path)
    decoded = engine.decode(page, fallback=fallback)
    for name, values in expected_columns(trace).items():
        assert decoded[name] == list(map(str, values.tolist())), name
    assert decoded["facts"] == page.facts


@many
@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300), max_size=40).map(
        lambda numbers: np.array(numbers, np.int64)
    ),
    delta=st.booleans(),
)
def test_any_column_survives(values: np.ndarray, delta: bool, tmp_path: Path) -> None:
    path = tmp_path / "column.html"
    path.write_bytes(b"".join(column("c", values, delta=delta)))
    assert Page(path).column("c").tolist() == values.tolist()


@needs_node
def test_a_large_column_is_inflated_without_the_browsers_help(engine: Engine, tmp_path: Path) -> None:
    """Every kind of deflate block: stored (noise), fixed (little data), dynamic."""
    rng = np.random.default_rng(3)
    columns = {
        "noise": rng.integers(-(2**52), 2**52, 300_000),
        "small": np.array([1, 2, 3]),
        "text": np.tile(rng.integers(0, 50, 1000), 900),
    }
    path = tmp_path / "columns.html"
    path.write_bytes(b"".join(b"".join(column(name, values)) for name, values in columns.items()))
    decoded = engine.decode(Page(path), fallback=True)
    for name, values in columns.items():
        assert decoded[name] == list(map(str, values.tolist()))


@needs_node
def test_a_page_whose_data_end_early_says_so(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "column.html"
    path.write_bytes(b"".join(column("c", np.arange(10_000) ** 2)))
    page = Page(path)
    spec, text = page.columns["c"]
    page.columns["c"] = (spec, text[: len(text) // 8 * 4])
    with pytest.raises(AssertionError, match="the page is damaged"):
        engine.decode(page, fallback=True)


@needs_node
@some
@given(data=st.data())
def test_payloads_read_as_in_python(data: st.DataObject, engine: Engine) -> None:
    kind = data.draw(st.sampled_from([kind for kind in PayloadType if kind != PayloadType.NONE]))
    top = (1 << PAYLOAD_BITS[kind]) - 1
    bits = data.draw(st.lists(st.integers(0, top) | st.sampled_from([0, 1, top, top >> 1]), min_size=1, max_size=20))
    script = TraceScript()
    script.warp(script.launch(), 0, 1)
    form = ["bfloat"] if kind == PayloadType.BF16 else []
    reading = {PayloadType.BOOL: "bool", **dict.fromkeys((PayloadType.I8, PayloadType.I16, PayloadType.I32,
               PayloadType.I64), "int"), **dict.fromkeys((PayloadType.F16, PayloadType.BF16, PayloadType.F32,
               PayloadType.F64), "float")}.get(kind, "uint")  # fmt: skip
    shown = engine.ask(payloads=[[[reading, PAYLOAD_BITS[kind], *form], one & 0xFFFFFFFF, one >> 32] for one in bits])
    expected = texts(np.full(len(bits), kind, np.uint8), np.array(bits, np.uint64))
    for text, wanted, pattern in zip(shown, expected, bits, strict=True):
        if kind == PayloadType.BOOL:
            assert text == ("true" if pattern else "false")
        elif reading == "float":
            same = math.isnan(float(wanted)) if text == "NaN" else same_float(kind, float(text), pattern)
            assert same, (text, wanted)
        else:
            assert text == wanted


def same_float(kind: PayloadType, value: float, pattern: int) -> bool:
    """Whether the text stands for exactly the bits: it gives them back when read as the type."""
    if kind == PayloadType.F64:
        return int(np.float64(value).view(np.uint64)) == pattern
    if kind == PayloadType.F32:
        return int(np.float32(value).view(np.uint32)) == pattern
    if kind == PayloadType.F16:
        return int(np.float16(value).view(np.uint16)) == pattern
    wide = int(np.float32(value).view(np.uint32))
    return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16 == pattern  # to the nearest bfloat16, ties to even


def test_the_page_knows_every_payload_type(tmp_path: Path) -> None:
    types = written(TraceScript().build(), tmp_path).facts["payload_types"]
    assert sorted(map(int, types)) == sorted(map(int, PayloadType))
    assert types[str(int(PayloadType.BF16))] == ["float", 16, "bfloat"]
    assert types[str(int(PayloadType.NONE))] == ["none", 0]
    assert types[str(int(PayloadType.I8))] == ["int", 8]


@many
@given(trace=random_traces())
def test_cycles_of_one_sm_count_from_its_first_warp(trace: Trace, tmp_path: Path) -> None:
    clock = written(trace, tmp_path).column("warps.clock")
    place = [(trace.launches[launch].device, sm) for launch, sm in zip(trace.warps.launch, trace.warps.sm, strict=True)]
    first = {key: min(c for c, k in zip(trace.warps.start_cycle.tolist(), place, strict=True) if k == key)
             for key in place}  # fmt: skip
    assert clock.tolist() == [c - first[k] for c, k in zip(trace.warps.start_cycle.tolist(), place, strict=True)]


# ----------------------------------------------------------------------------------------------------------- the rows
@many
@given(trace=random_traces())
def test_ranges_of_one_row_do_not_overlap_and_what_is_nested_stands_lower(trace: Trace) -> None:
    r = trace.ranges
    row = timeline_rows(r).tolist()
    start, end = (r.start_seq * 2 + 1).tolist(), (r.end_seq * 2).tolist()
    for a in range(len(r)):
        for b in range(a + 1, len(r)):
            if r.warp[a] != r.warp[b]:
                continue
            if row[a] == row[b]:
                assert end[a] < start[b] or end[b] < start[a]
            if r.kind[a] == r.kind[b] == RANGE_STACK and r.lane[a] == r.lane[b] and start[a] < start[b] < end[a]:
                assert row[b] > row[a]
    for warp in range(len(trace.warps)):
        mine = {row[i] for i in range(len(r)) if r.warp[i] == warp}
        assert mine == set(range(len(mine)))


# -------------------------------------------------------------------------------------------------- the distributions
@many
@given(trace=random_traces())
def test_every_range_is_counted_in_the_bin_of_its_duration(trace: Trace) -> None:
    r = trace.ranges
    expected = Counter()
    for launch, name, cycles in zip(
        trace.warps.launch[r.warp].tolist(), r.name.tolist(), (r.end_cycle - r.start_cycle).tolist(), strict=True
    ):
        expected[launch, name, math.floor(PER_DOUBLING * math.log2(cycles) + 1e-9) if cycles else ZERO] += 1
    found = histograms(trace)
    columns = (found.launch, found.name, found.bin, found.count)
    rows = list(zip(*(c.tolist() for c in columns), strict=True))
    assert {row[:3]: row[3] for row in rows} == expected
    assert rows == sorted(rows)


def test_bins_begin_exactly_at_powers_of_two() -> None:
    powers = 2 ** np.arange(60)
    assert (bin_of(powers) == PER_DOUBLING * np.arange(60)).all()
    assert (bin_of(powers[6:53] - 1) == PER_DOUBLING * np.arange(6, 53) - 1).all()


def test_a_crowd_of_launches_is_counted_together() -> None:
    script = TraceScript()
    for _ in range(257):
        warp = script.warp(script.launch(), 0, 100)
        warp.push(10, "load")
        warp.pop(20)
    found = histograms(script.build())
    assert [column.tolist() for column in (found.launch, found.name, found.count)] == [[-1], [0], [257]]


# --------------------------------------------------------------------------------------------------------- the sample
def clusters_of(trace: Trace, rows: np.ndarray) -> set[tuple[int, ...]]:
    w = trace.warps
    dims = np.array([one.cluster for one in trace.launches])[w.launch]
    return {(int(w.launch[i]), *(w.cta[i] // dims[i]).tolist()) for i in np.flatnonzero(rows)}


def crowd(launches: int = 2, ctas: int = 12, warps: int = 2, cluster: int = 1) -> Trace:
    script = TraceScript()
    for _ in range(launches):
        launch = script.launch(grid=(ctas, 1, 1), cluster=(cluster, 1, 1))
        for cta in range(ctas):
            for number in range(warps):
                warp = script.warp(launch, cta, cta + 100, cta=(cta, 0, 0), warp=number, sm=cta % 4)
                for step in range(5):
                    warp.push(cta + 10 * step, "work")
                    warp.pop(cta + 10 * step + 5)
                warp.mark(cta + 90, "done")
    return script.build()


@pytest.mark.parametrize("cluster", [1, 2, 3])
@pytest.mark.parametrize("most", [0, 11, 60, 143, 144, 287, 288])
def test_a_sample_is_of_whole_clusters_and_no_larger_than_asked(most: int, cluster: int) -> None:
    trace = crowd(cluster=cluster)
    sample = choose(trace, most)
    kept = sample.warps
    assert not clusters_of(trace, kept) & clusters_of(trace, ~kept)
    assert sample.slices == 6 * kept.sum() <= max(most, 0)
    assert sample.slices_of == 288
    assert sample.groups == len(clusters_of(trace, kept))
    assert sample.groups_of == 24 // cluster
    assert sample.whole == (most >= 288)
    if 24 * cluster <= most:  # room for one cluster of each launch
        assert {launch for launch, *_ in clusters_of(trace, kept)} == {0, 1}
    # As full as it can be: clusters are of one size.
    assert most < 288 or sample.whole
    assert sample.groups == min(most // (12 * cluster), 24 // cluster)


def test_a_sample_prefers_no_sm() -> None:
    trace = crowd(launches=1, ctas=132 * 8, warps=1)
    sample = choose(trace, 6 * 400)
    counts = np.bincount(trace.warps.cta[:, 0][sample.warps] % 132, minlength=132)
    assert counts.max() <= 8 and (counts == 0).sum() < 20


def test_a_page_with_a_sample_says_so_and_its_tables_are_whole(tmp_path: Path) -> None:
    trace = crowd()
    page, whole = written(trace, tmp_path, max_slices=100), analyze(trace, [0, 1])
    facts = page.facts["sample"]
    assert facts == {"clusters": False, "whole": False, "groups": 8, "groups_of": 24, "slices": 96, "slices_of": 288}
    kept = choose(trace, 100).warps
    assert page.column("warps.shown").tolist() == kept.astype(int).tolist()
    assert len(page.column("ranges.warp")) == 80 and len(page.column("markers.warp")) == 16
    assert page.column("ranges.start_ns").tolist() == trace.ranges.start_ns[kept[trace.ranges.warp]].tolist()
    assert page.column("ranges.warp").tolist() == trace.ranges.warp[kept[trace.ranges.warp]].tolist()
    assert page.column("histogram.count").sum() == 240
    assert [one["count"] for one in page.facts["details"][0]["roles"][0]["names"]] == [
        row.count for row in whole.details[0].roles[0].names
    ]


# ----------------------------------------------------------------------------------------------------- the statistics
def test_the_page_holds_the_statistics_of_the_report(tmp_path: Path) -> None:
    trace = crowd()
    facts, analysis = written(trace, tmp_path).facts, analyze(trace, [0, 1])
    assert facts["roles"] == [role.name for role in analysis.roles.roles]
    assert [one["launch"]["number"] for one in facts["details"]] == [1, 2]
    for found, stats in zip(facts["details"], analysis.details, strict=True):
        assert found["placement"]["waves"] == stats.placement.waves
        assert len(found["placement"]["sms"]) == len(stats.placement.sms)
        for role, row in zip(found["roles"], stats.roles, strict=True):
            assert (role["name"], role["life"], role["work"], role["waiting"]) == (
                row.name, row.life, row.work, row.waiting
            )  # fmt: skip
            assert [(one["name"], one["p95"], one["share"]) for one in role["names"]] == [
                (one.name, one.p95, one.share) for one in row.names
            ]


def test_waits_are_those_of_the_report(tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    for name in ("load", "full_wait", "waiter"):
        warp.push(1, name)
        warp.pop(2)
    trace = script.build()
    assert written(trace, tmp_path).facts["waits"] == [1]
    assert analyze(trace).waits == (False, True, False)


def test_findings_are_those_of_the_report(tmp_path: Path) -> None:
    trace = warptrace.load(Path(__file__).parents[1] / "fixtures" / "h200_gemm_512")
    report = build(trace, [0, 1])
    found = [one["findings"] for one in written(trace, tmp_path).facts["details"]]
    assert found == [[finding.text for finding in detail.findings] for detail in report.details]
    assert any(found)


def fed() -> Trace:
    """Two CTAs in each of which a warp loads for two others, in the order of the payload."""
    script = TraceScript()
    launch = script.launch(grid=(2, 1, 1))
    for cta in range(2):
        producer, *consumers = (
            script.warp(launch, 0, 1000, cta=(cta, 0, 0), warp=number, sm=cta) for number in range(3)
        )
        for step in range(4):
            producer.push(100 * step, "load", (PayloadType.I32, step))
            producer.pop(100 * step + 10)
            for late, warp in enumerate(consumers, 1):
                warp.push(100 * step + 50 * late, "wait", (PayloadType.I32, step))
                warp.pop(100 * step + 50 * late + 5)
    return script.build()


@pytest.mark.parametrize("most", [1000, 13])
def test_flows_name_the_ranges_of_the_page(most: int, tmp_path: Path) -> None:
    trace, flow = fed(), Flow("load", "wait")
    page = written(trace, tmp_path, flows=(flow,), max_slices=most)
    names, starts = page.column("ranges.name"), page.column("ranges.start_ns")
    warps = page.column("ranges.warp")
    source, target = page.column("flows.source"), page.column("flows.target")
    assert len(source) == (16 if most == 1000 else 8)
    assert {trace.strings[i] for i in names[source]} == {"load"}
    assert {trace.strings[i] for i in names[target]} == {"wait"}
    assert (warps[source] // 3 == warps[target] // 3).all()  # of one CTA
    assert set((starts[target] - starts[source]).tolist()) == {50, 100}
    assert page.facts["details"][0]["flows"][0]["pairs"] == 16


# -------------------------------------------------------------------------------------------------- what is not in it
EVIL = (
    "</script><script>document.title='x'</script>", "<!-- data -->", "/* script */", "<!-- title -->", "a\0b", "\u2028",
    "𝛑 naïve ⚙", "&lt;", "'\"`${x}", "\\u003c", "]]>", "<!--<script>",
)  # fmt: skip


def test_no_text_of_the_trace_is_read_as_html(tmp_path: Path) -> None:
    script = TraceScript()
    for name in EVIL:
        launch = script.launch(kernel=name, symbol=name)
        warp = script.warp(launch, 0, 100)
        warp.push(1, name)
        warp.pop(2)
        warp.mark(3, name)
    trace = script.build()
    trace = replace(
        trace,
        problems=(Problem("clock", 1, EVIL[0], 0),),
        sites=tuple(replace(site, file=EVIL[0]) for site in trace.sites),
    )
    page, plain = written(trace, tmp_path), written(crowd(), tmp_path / ".", title="page")
    assert page.facts["strings"] == list(EVIL)
    assert page.facts["problems"][0]["text"] == EVIL[0]
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert "document.title='x'" not in page.text


@pytest.mark.parametrize("title", EVIL)
def test_a_title_may_be_anything(title: str, tmp_path: Path) -> None:
    page = written(crowd(), tmp_path, title=title)
    assert page.title == title.replace("\0", "\ufffd") or page.title == title
    assert len(page.columns) == len(written(crowd(), tmp_path).columns)


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    page = written(crowd(), tmp_path)
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|import)\s*\(|@import|url\(", page.text)
    policies = [one for tag, one in page.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0]["content"].startswith("default-src 'none';")
    assert page.text.count("<script>") == 1


# ----------------------------------------------------------------------------------------------------------- the file
def test_an_empty_trace_makes_a_page(tmp_path: Path) -> None:
    page = written(TraceScript().build(), tmp_path)
    assert page.facts["launches"] == [] and page.column("ranges.warp").tolist() == []


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    assert written(crowd(), tmp_path).text == written(crowd(), tmp_path).text


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    trace = crowd()
    written(trace, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told) and told[-1] == (48 + 288, 48 + 288)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(WarptraceError, match="cannot write .*; choose another place"):
        write_html(crowd(), tmp_path / "missing" / "page.html")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"end_ns": -1}, "20 ranges end before they start"),
        ({"start_ns": 2**53, "end_ns": 2**53}, "20 times are more than 104 days from the start"),
    ],
)
def test_an_inconsistent_trace_is_refused_and_the_earlier_page_stays(
    change: dict[str, int], what: str, tmp_path: Path
) -> None:
    trace = crowd(launches=1, ctas=2)
    written(trace, tmp_path)
    before = (tmp_path / "page.html").read_bytes()
    columns = {name: np.full(20, value) for name, value in change.items()}
    with pytest.raises(WarptraceError, match=f"inconsistent trace: {what}; decode the capture again"):
        write_html(replace(trace, ranges=replace(trace.ranges, **columns)), tmp_path / "page.html")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("page.html", before)]
