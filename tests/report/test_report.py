"""The report as a whole: JSON by its schema, Markdown and text, groupings, and the golden report of the capture."""

from __future__ import annotations

import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import fixture_kit
import naive
import pytest
import trace_processor
from hypothesis import given, settings
from random_traces import random_traces
from rich.console import Console
from scripts import pipeline
from traces import TraceScript

from warptrace.export import write_perfetto
from warptrace.flows import Flow
from warptrace.report.blocks import blocks
from warptrace.report.by import KEYS
from warptrace.report.markdown import escape, to_markdown
from warptrace.report.report import build
from warptrace.report.text import print_blocks
from warptrace.trace import Trace

SCHEMA = json.loads((files("warptrace.report") / "schema" / "report.schema.json").read_text(encoding="utf-8"))
GOLDEN = fixture_kit.GEMM / "report.md"
GOLDEN_JSON = fixture_kit.GEMM / "report.json"
FLOWS = (Flow("tma_issue", "ab_wait"),)

needs_capture = pytest.mark.skipif(not fixture_kit.GEMM.is_dir(), reason="the capture is not in this checkout")


def validate(document: dict[str, Any]) -> dict[str, Any]:
    """The document as a reader gets it, after checking it."""
    jsonschema = pytest.importorskip("jsonschema")
    data: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    return data


def text(trace: Trace, width: int = 200, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_blocks(blocks(build(trace, **options)), console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


@settings(max_examples=40, deadline=None)
@given(random_traces())
def test_any_trace_has_a_report(trace: Trace) -> None:
    chosen = list(range(len(trace.launches)))
    for by in (None, *KEYS):
        report = build(trace, chosen, by=by, flows=[Flow("load", "mma", "order")])
        validate(report.to_json())
        assert to_markdown(blocks(report)).startswith(f"# {len(trace.launches)} launch")
    assert text(trace).startswith(f"{len(trace.launches)} launch")


def test_the_schema_knows_every_field() -> None:
    """A field too many or too few is an error."""
    jsonschema = pytest.importorskip("jsonschema")
    data = validate(build(pipeline()).to_json())
    for broken in (data | {"more": 1}, {key: value for key, value in data.items() if key != "launches"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(broken)


def test_by_name_and_payload() -> None:
    trace = pipeline()
    table = build(trace, by="payload").details[0].by
    assert table is not None
    rows = {(row.name, row.payload): row for row in table.ranges}
    assert (rows["full_wait", "0"].count, rows["full_wait", "0"].total) == (2, 1600)
    assert (rows["setup", ""].count, rows["setup", ""].self_total) == (3, 120)
    assert sum(row.count for row in table.ranges) == len(trace.ranges)
    by_name = build(trace, by="name").details[0].by
    assert by_name is not None
    wait = next(row for row in by_name.ranges if row.name == "full_wait")
    durations = [2 * wait for wait in (400, 60, 60, 60) for _ in range(2)]
    assert (wait.p50, wait.p95, wait.total) == (
        naive.nearest_rank(durations, 50), naive.nearest_rank(durations, 95), sum(durations),
    )  # fmt: skip
    assert wait.payload is None


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        ("role", ["mma_tile", "load_tile"]),
        ("sm", ["SM 0", "SM 1"]),
        ("cta", ["(0, 0, 0)", "(1, 0, 0)"]),
        ("warp", ["(0, 0, 0) warp 1", "(0, 0, 0) warp 2", "(1, 0, 0) warp 1", "(1, 0, 0) warp 2",
                  "(0, 0, 0) warp 0", "(1, 0, 0) warp 0"]),
    ],
)  # fmt: skip
def test_by_warps(key: str, labels: list[str]) -> None:
    table = build(pipeline(ctas=2), by=key).details[0].by
    assert table is not None
    assert [row.key for row in table.warps] == labels
    assert sum(row.life for row in table.warps) == 2 * (2 * 1540 + 160)
    assert sum(row.waiting for row in table.warps) == 2 * (2 * 1160 + 80)
    assert all(row.life == row.work + row.waiting + row.gap for row in table.warps)
    assert (table.warps[0].top or ("",))[0] == "full_wait"


def test_text_names_what_matters() -> None:
    report = text(pipeline(launches=3, stretch=1))
    assert report.startswith("3 launches recorded\n")
    assert "Launch 2: gemm, the median of 3 like it" in report
    assert "\n- `full_wait` with payload 0 takes 800 cycles" in report
    assert "critical warp: warp 1 of CTA (0, 0, 0) on SM 0 (mma_tile) ends last" in report
    assert "taken as waits, by name: empty_wait, full_wait (--wait REGEX says otherwise)" in report


def test_an_emulated_trace_says_so_and_judges_nothing() -> None:
    report = text(pipeline(emulated=True))
    assert report.startswith("1 launch recorded (emulated: times are not those of a GPU)")
    assert [line for line in report.splitlines() if line.startswith("- ")] == [
        "- The trace was emulated: its times are not those of a GPU."
    ]


def test_sentences_are_broken_at_spaces_in_a_narrow_terminal() -> None:
    lines = text(pipeline(), width=60).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("- `full_wait`"))
    assert lines[at + 1].startswith("  ") and len(lines[at]) <= 60


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_number_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    """Rows are as long as they must be; what a terminal does with them is its own affair."""
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 10**9)
    warp.push(0, "x" * 100)
    warp.pop(10**9 - 1)
    lines = text(script.build(), width).splitlines()
    rows = [line.split() for line in lines if line.startswith(" " + "x" * 60) and len(line) > 61]
    assert ["x" * 60, "1", "100", "%", "100", "%", *["1999999998"] * 5, "999999999"] in rows
    assert " " + "x" * 40 in lines  # the rest of the name


def test_names_are_shown_as_they_are() -> None:
    script = TraceScript()
    warp = script.warp(script.launch(kernel="gemm[red]*x*"), 0, 100)
    warp.push(0, "[bold]a|b_c")
    warp.pop(90)
    trace = script.build()
    assert "[bold]a|b_c" in text(trace) and "gemm[red]*x*" in text(trace)
    assert r"| \[bold\]a\|b\_c |" in to_markdown(blocks(build(trace)))
    assert escape("`a_b` c_d") == r"`a_b` c\_d"


def test_an_empty_run() -> None:
    assert text(TraceScript().build()) == "0 launches recorded"


# ------------------------------------------------------------------------------------------- the kept capture
@needs_capture
def test_golden_report() -> None:
    """The figures in it were checked against plain loops (test_stats) and SQL on the Perfetto trace (below)."""
    report = build(fixture_kit.load_gemm(), flows=FLOWS)
    assert to_markdown(blocks(report)) == GOLDEN.read_text(encoding="utf-8")
    document = validate(report.to_json())
    del document["warptrace"]
    assert document == json.loads(GOLDEN_JSON.read_text(encoding="utf-8"))


@needs_capture
@trace_processor.needs_trace_processor
def test_figures_by_sql(tmp_path: Path) -> None:
    """Counts and cycles of the report again, by Perfetto's trace processor."""
    trace = fixture_kit.load_gemm()
    path = tmp_path / "trace.pftrace"
    write_perfetto(trace, path)
    rows = trace_processor.TraceProcessor(path).query(
        """
        select w.name warp, s.name range, count(*) n, sum(a.int_value) total, max(a.int_value) most
        from slice s join track t on t.id = s.track_id join track w on w.id = t.parent_id
        join track c on c.id = w.parent_id join track m on m.id = c.parent_id join track g on g.id = m.parent_id
        join args a on a.arg_set_id = s.arg_set_id and a.key = 'debug.cycles'
        where g.name = 'Grid2' group by w.name, s.name
        """
    )
    roles = {f"Warp{warp:02d}": name for name, warps in
             (("load_tile", [0]), ("setup", [1, 2, 3]), ("mma_tile", range(4, 12))) for warp in warps}  # fmt: skip
    found: dict[tuple[str, str], list[int]] = {}
    for warp, name, count, total, most in rows:
        sums = found.setdefault((roles[warp], name), [0, 0, 0])
        found[roles[warp], name] = [sums[0] + count, sums[1] + total, max(sums[2], most)]
    (detail,) = build(trace).details
    assert found == {
        (role.name, row.name): [row.count, row.total, row.max] for role in detail.stats.roles for row in role.names
    }
