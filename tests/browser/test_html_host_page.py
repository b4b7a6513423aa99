"""The host's ranges and launch calls on the timeline and in the tables of the HTML report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_traces import two_steps
from page_looks import facts, pixel

from warptrace.export.html import write_html

CALLS, NVTX, EPOCH = 0, 1, 2
"""Tracks, from above."""


@pytest.fixture
def page(look: Any, tmp_path: Path) -> Any:
    write_html(two_steps(), tmp_path / "page.html")
    opened = look((tmp_path / "page.html").as_uri() + "#part=timeline&launch=all", width=1400)
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    opened.page.evaluate("warptrace.timeline.view(0, 31000)")
    opened.page.wait_for_timeout(100)
    yield opened.page
    assert opened.errors == []


def point(page: Any, ns: float, track: int, row: int = 0) -> tuple[float, float]:
    box = page.locator("#rows").bounding_box()
    x, y = page.evaluate(
        "([ns, track, row]) => { const { layout } = warptrace.timeline;"
        " return [warptrace.timeline.xOf(ns), layout.y[layout.find(4, track)] + 2 + 16 * row + 8]; }",
        [ns, track, row],
    )
    return box["x"] + x, box["y"] + y


def test_rows_of_the_host_stand_above_the_launches(page: Any) -> None:
    kinds = page.evaluate("Array.from(warptrace.timeline.layout.kind)")
    assert kinds[:4] == [4, 4, 4, 0]
    assert page.evaluate("[0, 1, 2].map((r) => warptrace.timeline.rowText(r)[0])") == [
        "MainThread: launches", "MainThread: NVTX", "MainThread: record_function",
    ]  # fmt: skip


def test_a_slice_has_its_colour_where_its_time_is(page: Any) -> None:
    background = pixel(page, *point(page, 3_000, NVTX))
    inside = [pixel(page, *point(page, ns, NVTX)) for ns in (11_500, 16_200, 21_500)]
    assert background not in inside
    assert pixel(page, *point(page, 14_000, NVTX)) == pixel(page, *point(page, 23_000, NVTX)) == background
    assert pixel(page, *point(page, 8_500, NVTX, 1)) != background
    assert pixel(page, *point(page, 10_500, NVTX, 1)) == background
    assert pixel(page, *point(page, 29_500, EPOCH)) != background


def test_hovering_and_selecting_tell_all_about_it(page: Any) -> None:
    page.mouse.move(*point(page, 8_500, NVTX, 1))
    assert page.locator("#tip .what").inner_text() == "forward"
    assert facts(page, "#tip")["duration"] == "2.000 µs"
    page.mouse.click(*point(page, 8_000, CALLS))
    assert page.evaluate("warptrace.timeline.selected") == {"host": 0}
    found = facts(page, "#details")
    assert found["launch"] == "1, which began 2.000 µs later" and found["within"] == "epoch > step 0 > forward"
    assert found["good to"] == "900 ns"


def test_keys_walk_measure_and_lead_to_the_launch(page: Any) -> None:
    page.mouse.click(*point(page, 7_000, NVTX))
    page.keyboard.press("ArrowRight")
    assert page.evaluate("warptrace.timeline.selected") == {"host": 3}
    page.keyboard.press("m")
    page.keyboard.press("m")
    assert page.evaluate("warptrace.timeline.measureText()").replace("\u202f", " ") == "6.000 µs"
    page.keyboard.press("Enter")
    t0, t1 = page.evaluate("[warptrace.timeline.t0, warptrace.timeline.t1]")
    assert (t0 + t1) / 2 == pytest.approx(19_000) and t1 - t0 == pytest.approx(9_600)
    page.keyboard.press("Home")
    page.evaluate("warptrace.timeline.goTo({host: 1})")
    page.keyboard.press("g")
    assert page.evaluate("warptrace.page.launch") == 1
    assert page.evaluate("warptrace.timeline.low") == 20_000


def test_the_view_goes_as_far_as_the_host_only_with_all_launches(page: Any) -> None:
    page.evaluate("warptrace.timeline.fit()")
    assert page.evaluate("warptrace.timeline.t0") > 9_000  # all of the launches
    page.evaluate("warptrace.timeline.zoom(1000)")
    t0, t1 = page.evaluate("[warptrace.timeline.t0, warptrace.timeline.t1]")
    assert t0 < 1_000 and t1 > 30_000
    page.evaluate("warptrace.page.choose(0)")
    page.evaluate("warptrace.timeline.zoom(1000)")
    t0, t1 = page.evaluate("[warptrace.timeline.t0, warptrace.timeline.t1]")
    assert t0 > 9_000 and t1 < 12_000


def test_the_summary_says_which_launch_is_which(page: Any) -> None:
    page.keyboard.press("1")
    summary = page.locator("#summary")
    assert summary.get_by_role("heading", name="Host", exact=True).count() == 1
    cells = [[cell.strip() for cell in row.inner_text().split("\t")] for row in summary.locator("table tr").all()]
    head = next(row for row in cells if "called" in row)
    rows = cells[cells.index(head) + 1 :][:2]
    assert [row[head.index("called")] for row in rows] == [
        "by MainThread in epoch > step 0 > forward", "by MainThread in epoch > step 1",
    ]  # fmt: skip
    ranges = next(row for row in cells if row[:2] == ["range", "source"])
    assert [row[0] for row in cells[cells.index(ranges) + 1 :][:4]] == ["epoch", "step 0", "step 1", "forward"]
    page.evaluate("warptrace.page.choose(1)")
    text = summary.locator("p.soft").first.inner_text().replace("\u202f", " ")
    assert "called by MainThread in epoch > step 1, 2.000 µs before it began" in text
