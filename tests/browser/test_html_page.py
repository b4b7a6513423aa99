"""The HTML report in headless Chromium, opened from a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_kit import load_gemm
from hypothesis import HealthCheck, given, settings
from page_looks import facts, pixel
from random_traces import random_traces
from traces import TraceScript
from waiting import until

from warptrace.export.html import write_html
from warptrace.export.html.rows import timeline_rows
from warptrace.flows import Flow
from warptrace.report.report import build
from warptrace.report.stats import analyze
from warptrace.trace import Trace
from warptrace.wire import PayloadType as P

GUTTER = 214


@pytest.fixture(scope="module")
def gemm() -> Trace:
    return load_gemm()


@pytest.fixture(scope="module")
def gemm_page(gemm: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("html") / "gemm.html"
    write_html(gemm, path, title="the gemm")
    return path


def ready(opened: Any) -> Any:
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    return opened.page


def small(ranges: int = 3) -> Trace:
    """Two CTAs of a warp each on one SM, one after the other; times that are easy to reckon with."""
    script = TraceScript()
    launch = script.launch(grid=(2, 1, 1))
    for cta in range(2):
        warp = script.warp(launch, 1000 * cta, 1000 * cta + 900, cta=(cta, 0, 0), sm=5)
        warp.push(1000 * cta + 100, "outer", (P.I32, 7 + cta))
        for step in range(ranges):
            warp.push(1000 * cta + 200 + 100 * step, "full_wait")
            warp.pop(1000 * cta + 250 + 100 * step)
        warp.mark(1000 * cta + 700, "note", (P.F32, 0x3F000000))
        warp.pop(1000 * cta + 800)
    return script.build()


@pytest.fixture
def timeline(look: Any, tmp_path: Path) -> Any:
    """The timeline of ``small()``, every row open, 1000 pixels wide from 0 to 2000 ns."""
    write_html(small(), tmp_path / "page.html")
    page = ready(look((tmp_path / "page.html").as_uri() + "#part=timeline", width=1400))
    page.evaluate("warptrace.timeline.view(0, 1900)")
    page.wait_for_timeout(100)
    return page


def x_of(page: Any, ns: float) -> float:
    box = page.locator("#rows").bounding_box()
    return float(box["x"] + page.evaluate("(ns) => warptrace.timeline.xOf(ns)", ns))


def y_of(page: Any, warp: int, row: int = 0) -> float:
    """The middle of a row of ranges of a warp."""
    box = page.locator("#rows").bounding_box()
    inside = page.evaluate(
        """([warp, row]) => {
          const { layout, parts } = warptrace.timeline, r = layout.find(3, warp);
          return layout.y[r] - parts.scroll.scrollTop + 5 + 9 + 16 * row + 8;
        }""",
        [warp, row],
    )
    return float(box["y"] + inside)


def span(page: Any) -> tuple[float, float]:
    t0, t1 = page.evaluate("[warptrace.timeline.t0, warptrace.timeline.t1]")
    return float(t0), float(t1)


def selected(page: Any) -> dict[str, int] | None:
    found: dict[str, int] | None = page.evaluate("warptrace.timeline.selected")
    return found


# -------------------------------------------------------------------------------------------------------- from a file
def test_it_opens_from_a_file_and_asks_for_nothing(look: Any, gemm_page: Path) -> None:
    opened = look(gemm_page.as_uri())
    page = ready(opened)
    for part in "1234":
        page.keyboard.press(part)
        page.wait_for_timeout(100)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [gemm_page.as_uri()]
    assert page.title() == "the gemm"


def test_the_browser_has_the_columns_of_the_trace(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page, r = ready(look(gemm_page.as_uri())), gemm.ranges
    order = np.lexsort((r.start_seq, timeline_rows(r), r.warp))
    for name, values in {
        "ranges.start_ns": r.start_ns[order],
        "ranges.ns": (r.end_ns - r.start_ns)[order],
        "ranges.start_cycle": r.start_cycle[order],
        "ranges.cycles": (r.end_cycle - r.start_cycle)[order],
        "ranges.name": r.name[order],
        "warps.sm": gemm.warps.sm,
        "markers.ns": gemm.markers.ns,
    }.items():
        assert page.evaluate(f"Array.from(warptrace.columns['{name}'])") == values.tolist(), name
    assert page.evaluate("Array.from(warptrace.columns['ranges.start_bits'].low)") == r.start_bits[order].tolist()


def test_the_table_has_the_figures_of_the_report(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri()))
    rows = [
        [cell.replace("\u202f", " ") for cell in row.locator("th, td").all_inner_texts()]
        for row in page.locator("#summary table").first.locator("tbody tr").all()
    ]
    expected = [
        (name.name + (" wait" if name.wait else ""), role.name, name.count, name.total, name.p50, name.p99, name.max)
        for role in analyze(gemm, [0]).details[0].roles
        for name in role.names
    ]
    found = [(c[0].strip(), c[1], *(int(c[i].replace(" ", "")) for i in (2, 3, 7, 9, 10))) for c in rows]
    assert sorted(found) == sorted(expected)
    assert [row[3] for row in found] == sorted((row[3] for row in found), reverse=True)
    page.get_by_role("button", name="count", exact=True).click()
    counts = page.locator("#summary table").first.locator("tbody tr td:nth-child(3)").all_inner_texts()
    assert [int(c.replace("\u202f", "")) for c in counts] == sorted((row[2] for row in found), reverse=True)


def test_a_name_leads_to_the_timeline(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri()))
    page.get_by_role("button", name="ab_wait", exact=True).click()
    assert page.locator("#timeline").is_visible() and page.locator("#search").input_value() == "ab_wait"
    name = gemm.strings.index("ab_wait")
    mine = (gemm.ranges.name == name) & (gemm.warps.launch[gemm.ranges.warp] == 0)
    assert page.locator("#found").inner_text().startswith(f"{mine.sum()} matches, ")
    first = int(gemm.ranges.start_ns[mine].min())
    assert page.evaluate("warptrace.model.ranges.start_ns[warptrace.timeline.selected.range]") == first


# ----------------------------------------------------------------------------------------------------------- pictures
def test_a_slice_has_its_colour_where_its_time_is(timeline: Any) -> None:
    colours = timeline.evaluate("warptrace.timeline.painter.colours")
    life = timeline.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c-life')").split()
    outer, wait = colours[:2]  # in order of appearance
    for ns, row, colour in [(500, 0, outer), (225, 1, wait), (275, 1, [int(c) for c in life]), (425, 1, wait)]:
        assert pixel(timeline, x_of(timeline, ns), y_of(timeline, 0, row) + 6) == colour, (ns, row)
    assert pixel(timeline, x_of(timeline, 1225), y_of(timeline, 1, 1) + 6) == wait


def test_slices_too_small_for_a_pixel_are_merged_as_dense_as_they_are(look: Any, tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 1_000_000)
    for at in range(100_000, 900_000, 100):
        warp.push(at, "tick")
        warp.pop(at + 80)
    write_html(script.build(), tmp_path / "page.html")
    page = ready(look((tmp_path / "page.html").as_uri() + "#part=timeline"))
    page.wait_for_timeout(150)
    box = page.locator("#rows").bounding_box()
    y = page.evaluate("warptrace.timeline.layout.y[warptrace.timeline.layout.find(3, 0)]") + 5 + 12 + box["y"]
    life, full = page.evaluate("[warptrace.timeline.style.life.pixel, warptrace.timeline.painter.pixels[0]]")
    channel = lambda value: value & 255  # noqa: E731
    inside = [pixel(page, x_of(page, ns), y)[0] for ns in (200_000, 500_000, 800_000)]
    share = [(channel(life) - c) / (channel(life) - channel(full)) for c in inside]
    assert all(abs(s - 0.8) < 0.1 for s in share), share
    assert pixel(page, x_of(page, 50_000), y)[0] == channel(life)


def test_hovering_tells_all_about_a_slice(timeline: Any) -> None:
    timeline.mouse.move(x_of(timeline, 1150), y_of(timeline, 1))
    assert timeline.locator("#tip .what").inner_text() == "outer"
    assert facts(timeline, "#tip") == {
        "duration": "700 ns, 1 400 cycles", "payload": "8", "start": "1.100 µs", "warp": "0 (outer) of CTA (1, 0, 0)",
        "SM": "5", "called at": "kernel.py:10",
    }  # fmt: skip
    timeline.mouse.move(x_of(timeline, 700), y_of(timeline, 0) - 16)
    assert timeline.locator("#tip .what").inner_text() == "note (marker)"
    assert facts(timeline, "#tip")["payload"] == "0.5"
    timeline.mouse.move(x_of(timeline, 950), y_of(timeline, 0))
    assert timeline.locator("#tip").is_hidden()


# ------------------------------------------------------------------------------------------------- keyboard and mouse
def test_the_keys_zoom_and_move(timeline: Any) -> None:
    timeline.focus("#scroll")
    t0, t1 = span(timeline)
    timeline.keyboard.press("w")
    a0, a1 = span(timeline)
    assert t0 < a0 < a1 < t1 and abs((a0 + a1) - (t0 + t1)) < 1e-6 * t1
    timeline.keyboard.press("d")
    b0, b1 = span(timeline)
    assert b0 > a0 and abs((b1 - b0) - (a1 - a0)) < 1e-6 * t1
    timeline.keyboard.press("a")
    timeline.keyboard.press("s")
    timeline.keyboard.press("0")
    assert span(timeline)[0] <= 0 and span(timeline)[1] >= 1900


def test_a_held_key_goes_on(timeline: Any) -> None:
    timeline.focus("#scroll")
    timeline.keyboard.down("w")
    timeline.wait_for_timeout(400)
    timeline.keyboard.up("w")
    t0, t1 = span(timeline)
    assert t1 - t0 < 1200
    timeline.wait_for_timeout(150)
    assert span(timeline) == (t0, t1)


def test_arrows_walk_over_slices_and_rows(timeline: Any) -> None:
    timeline.focus("#scroll")
    starts = lambda: timeline.evaluate(  # noqa: E731
        "warptrace.model.ranges.start_ns[warptrace.timeline.selected.range]"
    )
    timeline.mouse.click(x_of(timeline, 225), y_of(timeline, 0, 1))
    assert starts() == 200
    timeline.keyboard.press("ArrowRight")
    assert starts() == 300
    timeline.keyboard.press("ArrowUp")
    assert starts() == 100
    timeline.keyboard.press("ArrowDown")
    assert starts() == 400  # the one nearest to the middle of the outer range
    assert timeline.locator("#details .what").inner_text() == "full_wait"
    timeline.keyboard.press("Enter")
    t0, t1 = span(timeline)
    assert 370 < t0 < 400 and 450 < t1 < 480
    timeline.keyboard.press("Escape")
    assert selected(timeline) is None


def test_rows_open_and_close(timeline: Any) -> None:
    rows = lambda: timeline.evaluate("warptrace.timeline.layout.count")  # noqa: E731
    assert rows() == 5  # an SM, two CTAs, two warps
    box = timeline.locator("#rows").bounding_box()
    timeline.mouse.click(box["x"] + 30, box["y"] + 8)
    assert rows() == 1
    timeline.focus("#scroll")
    timeline.keyboard.press("Space")
    assert rows() == 5
    timeline.select_option("#level", "1")
    assert rows() == 3


def test_the_mouse_drags_and_the_wheel_zooms_where_it_points(timeline: Any) -> None:
    timeline.evaluate("warptrace.timeline.view(500, 900)")
    x, y = x_of(timeline, 700), y_of(timeline, 0)
    timeline.mouse.move(x, y)
    timeline.mouse.down()
    timeline.mouse.move(x - 100, y, steps=3)
    timeline.mouse.up()
    step = 100 / (timeline.evaluate("warptrace.timeline.width") - GUTTER) * 400
    assert span(timeline) == (pytest.approx(500 + step), pytest.approx(900 + step))
    under = 500 + step + (x - x_of(timeline, 500 + step)) / (x_of(timeline, 900) - x_of(timeline, 500 + step)) * (
        400 - step
    )
    timeline.keyboard.down("Control")
    timeline.mouse.wheel(0, -60)
    timeline.keyboard.up("Control")
    timeline.wait_for_timeout(100)
    t0, t1 = span(timeline)
    assert t1 - t0 < 399
    assert x_of(timeline, under) == pytest.approx(timeline.locator("#rows").bounding_box()["x"] + x, abs=110)
    timeline.keyboard.down("Shift")
    timeline.mouse.wheel(0, 240)
    timeline.keyboard.up("Shift")
    timeline.wait_for_timeout(100)
    assert span(timeline)[0] == pytest.approx(t0 + 0.2 * (t1 - t0))


def test_measuring_from_edge_to_edge_is_exact(timeline: Any) -> None:
    y = y_of(timeline, 0, 1)
    timeline.keyboard.down("Shift")
    timeline.mouse.move(x_of(timeline, 202), y)
    timeline.mouse.down()
    timeline.mouse.move(x_of(timeline, 300), y, steps=3)
    timeline.mouse.move(x_of(timeline, 448), y, steps=3)
    timeline.mouse.up()
    timeline.keyboard.up("Shift")
    assert timeline.locator("#details").inner_text().replace("\u202f", " ").endswith("measured: 250 ns, 500 cycles")


def test_measuring_by_keys(timeline: Any) -> None:
    timeline.mouse.click(x_of(timeline, 225), y_of(timeline, 0, 1))
    timeline.focus("#scroll")
    for key in ("m", "ArrowRight", "ArrowRight", "m"):
        timeline.keyboard.press(key)
    assert timeline.evaluate("warptrace.timeline.measureText()") == "250 ns, 500 cycles"
    timeline.keyboard.press("m")
    assert timeline.evaluate("warptrace.timeline.measure") is None


def test_the_scale_zooms_to_what_is_dragged_over(timeline: Any) -> None:
    box = timeline.locator("#axis").bounding_box()
    y = box["y"] + box["height"] - 8
    timeline.mouse.move(x_of(timeline, 400), y)
    timeline.mouse.down()
    timeline.mouse.move(x_of(timeline, 800), y, steps=4)
    timeline.mouse.up()
    assert span(timeline) == (pytest.approx(400, abs=3), pytest.approx(800, abs=3))


def test_search_counts_dims_and_steps_in_order_of_time(timeline: Any) -> None:
    timeline.keyboard.press("/")
    timeline.keyboard.type("WAIT")
    timeline.keyboard.press("Enter")
    assert timeline.locator("#found").inner_text() == "6 matches, 300 ns in all"
    starts = []
    for _ in range(7):
        starts.append(timeline.evaluate("warptrace.model.ranges.start_ns[warptrace.timeline.selected.range]"))
        timeline.keyboard.press("Enter")
    assert starts == [200, 300, 400, 1200, 1300, 1400, 200]
    timeline.evaluate("warptrace.timeline.select(null)")
    timeline.wait_for_timeout(100)
    wait, outer = timeline.evaluate("[1, 0].map((i) => warptrace.timeline.painter.colours[i])")
    assert pixel(timeline, x_of(timeline, 1225), y_of(timeline, 1, 1) + 6) == wait
    assert pixel(timeline, x_of(timeline, 1500), y_of(timeline, 1) + 6) != outer
    for text, found in [("outer=8", "1 match, 700 ns in all"), ("outer=9", "no match"), ("nothing", "no match")]:
        timeline.fill("#search", text)
        timeline.keyboard.press("Enter")
        assert timeline.locator("#found").inner_text() == found


# ----------------------------------------------------------------------------------------------------------- launches
def test_another_launch(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri()))
    assert page.evaluate("warptrace.timeline.low") == gemm.launches[0].start_ns
    page.keyboard.press("]")
    assert page.evaluate("warptrace.timeline.low") == gemm.launches[1].start_ns
    assert page.locator("#later").is_disabled()
    page.select_option("#launch", "all")
    assert page.evaluate("warptrace.timeline.high") == gemm.launches[1].end_ns
    page.keyboard.press("2")
    assert page.evaluate("warptrace.timeline.layout.count") == 2  # a row a launch, closed
    box = page.locator("#rows").bounding_box()
    page.mouse.click(box["x"] + 30, box["y"] + 30)
    assert page.evaluate("warptrace.timeline.layout.count") == 2 + 2 * 8
    page.mouse.dblclick(x_of(page, gemm.launches[1].start_ns), box["y"] + 30)
    assert span(page)[0] > gemm.launches[1].start_ns - 1000
    page.keyboard.press("1")
    page.get_by_role("button", name="Launch 2").click()
    assert page.evaluate("warptrace.page.launch") == 1
    address = page.url
    again = ready(look(address))
    assert again.evaluate("warptrace.page.launch") == 1


def test_of_many_launches_the_one_with_tables_is_shown(look: Any, tmp_path: Path) -> None:
    script = TraceScript()
    for number in range(65):
        warp = script.warp(script.launch(), 10_000 * number, 10_000 * number + 100 + number)
        warp.push(10_000 * number + 10, "work")
        warp.pop(10_000 * number + 20)
    write_html(script.build(), tmp_path / "page.html")
    page = ready(look((tmp_path / "page.html").as_uri()))
    assert page.evaluate("warptrace.page.launch") == 32  # of median duration
    page.get_by_role("button", name="Launch 7", exact=True).click()
    assert page.evaluate("warptrace.page.launch") == 6
    assert "Only one launch of each kernel and shape" in page.inner_text("#summary")
    page.get_by_role("button", name="launch 33", exact=True).click()
    assert page.evaluate("warptrace.page.launch") == 32


def test_findings_stand_first(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri()))
    findings = [finding.text.replace("`", "") for finding in build(gemm, [0]).details[0].findings]
    assert findings and page.locator("#summary ul").first.locator("li").all_inner_texts() == findings


def test_a_selected_range_shows_what_feeds_it(look: Any, tmp_path: Path) -> None:
    script = TraceScript()
    launch = script.launch()
    producer, consumer = (script.warp(launch, 0, 1000, warp=number, sm=3) for number in range(2))
    for step in range(3):
        producer.push(100 + 200 * step, "load", (P.I32, step))
        producer.pop(120 + 200 * step)
        consumer.push(130 + 200 * step, "wait", (P.I32, step))
        consumer.pop(190 + 200 * step)
    write_html(script.build(), tmp_path / "page.html", flows=(Flow("load", "wait"),))
    page = ready(look((tmp_path / "page.html").as_uri() + "#part=timeline"))
    page.wait_for_timeout(100)
    box = page.locator("#rows").bounding_box()
    row = page.evaluate("warptrace.timeline.layout.y[warptrace.timeline.layout.find(3, 1)]") + box["y"] + 5 + 8
    between = x_of(page, 150), row - 20  # where the arrow crosses, below the producer's row
    before = pixel(page, *between)
    page.mouse.click(x_of(page, 160), row)
    page.wait_for_timeout(100)
    assert facts(page, "#details")["fed by"] == "load, 180 cycles from start to end"
    column = [pixel(page, x_of(page, 145), y) for y in range(int(row) - 24, int(row))]
    accent = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--c-accent')").split()
    assert [int(c) for c in accent] in column and before != [int(c) for c in accent]
    page.focus("#scroll")
    page.keyboard.press("g")
    assert facts(page, "#details")["feeds"] == "wait, 180 cycles from start to end"


def test_a_cta_of_the_overview_opens_in_the_timeline(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri() + "#part=sms"))
    page.locator("#waves").click(position={"x": 400, "y": 12})
    assert page.locator("#timeline").is_visible()
    sm = page.evaluate("warptrace.model.ctaSm[warptrace.timeline.selected.cta]")
    assert sm == gemm.warps.sm[gemm.warps.launch == 0].min()


def test_distributions_add_up(look: Any, gemm: Trace, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri() + "#part=distributions"))
    launch = gemm.warps.launch[gemm.ranges.warp]
    for chart in page.locator(".chart").all():
        name = chart.locator("h3").inner_text()
        count = int(((gemm.ranges.name == gemm.strings.index(name)) & (launch == 0)).sum())
        titles = chart.locator("rect title").evaluate_all("(all) => all.map((one) => one.textContent)")
        counts = [int(re.sub("\u202f", "", title.split(" of ")[0])) for title in titles]
        assert sum(counts) == count, name
    assert page.locator(".chart").count() == len(set(gemm.ranges.name[launch == 0].tolist()))


# ------------------------------------------------------------------------------------------------------------ for all
def test_light_and_dark(look: Any, gemm_page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = ready(look(gemm_page.as_uri())), ready(look(gemm_page.as_uri() + "#part=timeline", dark=True))
    assert (light.evaluate(ground), dark.evaluate(ground)) == ("rgb(255, 255, 255)", "rgb(19, 22, 27)")
    assert dark.evaluate("warptrace.timeline.style.bg.css") == "rgb(19 22 27)"
    button = dark.get_by_role("button", name=re.compile("^Colours:"))
    for name, colour in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(19, 22, 27)"), ("as the", "rgb(19, 22, 27)")]:
        button.click()
        assert dark.evaluate(ground) == colour
        assert (button.get_attribute("aria-label") or "").startswith(f"Colours: {name}")
    dark.emulate_media(color_scheme="light")
    assert dark.evaluate(ground) == "rgb(255, 255, 255)"
    until(dark, "warptrace.timeline.style.bg.css === 'rgb(255 255 255)'")


def contrast(a: list[float], b: list[float]) -> float:
    def luminance(colour: list[float]) -> float:
        parts = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool, look: Any, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri(), dark=dark))
    named = {
        name: [float(part) for part in page.evaluate(
            "(name) => getComputedStyle(document.documentElement).getPropertyValue(`--c-${name}`)", name).split()]
        for name in ("ink", "soft", "bg", "gutter", "band", "head", "accent", "warn", "warnink")
    }  # fmt: skip
    for text, ground in [("ink", "bg"), ("ink", "gutter"), ("ink", "head"), ("soft", "bg"), ("soft", "gutter"),
                         ("soft", "head"), ("accent", "bg"), ("warnink", "warn")]:  # fmt: skip
        assert contrast(named[text], named[ground]) >= 4.5, (text, ground)
    for mode in ("role", "name"):
        page.evaluate("(mode) => warptrace.timeline.setMode(mode)", mode)
        pairs = page.evaluate(
            "warptrace.timeline.painter.colours.map((c, i) => [c, warptrace.timeline.textColours[i]])"
        )
        for colour, text in pairs:
            ink = [int(text[i : i + 2], 16) for i in (1, 3, 5)]
            assert contrast(colour, ink) >= 4.5, (mode, colour, text)


def test_everything_has_a_name_and_the_keyboard_reaches_it(look: Any, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri()))
    for part in "1234":
        page.keyboard.press(part)
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, select, input, [role=img], [role=application], [role=tabpanel]')]
              .filter((one) => !(one.textContent.trim() || one.getAttribute('aria-label')
                || one.labels?.length || one.getAttribute('aria-labelledby'))).map((one) => one.outerHTML)"""
        )
        assert nameless == []
    page.keyboard.press("1")
    page.locator("#tab-summary").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-timeline"
    reached = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"search", "colour", "level", "in", "out", "fit", "scroll"} <= reached
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#keys").is_hidden()


@pytest.mark.parametrize("width", [1024, 1366])
def test_a_laptop_is_wide_enough(width: int, look: Any, gemm_page: Path) -> None:
    page = ready(look(gemm_page.as_uri(), width=width, height=700))
    for part in "1234":
        page.keyboard.press(part)
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [one.bounding_box() for one in page.locator("header > *, header #later").all() if one.is_visible()]
    inside = sorted((box["x"], box["x"] + box["width"]) for box in boxes if box["width"] and box["width"] < 300)
    assert all(a[1] <= b[0] + 1 or a[0] <= b[0] and b[1] <= a[1] for a, b in zip(inside, inside[1:], strict=False))
    assert max(end for _, end in inside) <= width
    page.keyboard.press("2")
    assert page.locator("#scroll").bounding_box()["height"] > 250


# ------------------------------------------------------------------------------------------------------ not so common
def test_text_of_the_trace_is_shown_and_not_run(look: Any, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=\"window.broken=1\"><b>bold"
    script = TraceScript()
    for _ in range(2):
        warp = script.warp(script.launch(kernel=evil, symbol=evil), 0, 1000)
        warp.push(100, evil)
        warp.mark(150, evil)
        warp.pop(900)
    write_html(script.build(), tmp_path / "page.html", title=evil)
    opened = look((tmp_path / "page.html").as_uri())
    page = ready(opened)
    assert page.get_by_role("button", name=evil).count() >= 1
    for part in "1234":
        page.keyboard.press(part)
        page.wait_for_timeout(50)
    page.keyboard.press("2")
    page.mouse.move(700, 300)
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.querySelectorAll('img, b:not(.card b):not(.role b):not(.legend b)').length") == 0
    assert page.title() == evil
    assert opened.errors == []


HITS = """
() => {
  const { timeline, model, page } = warptrace, wrong = [];
  page.open('timeline');
  for (let launch = 0; launch < model.launches.length; launch++) {
    page.choose(launch);
    for (const part of ['summary', 'distributions', 'sms', 'timeline']) page.open(part);
    for (let i = 0; i < model.ranges.name.length; i++) {
      if (model.warps.launch[model.ranges.warp[i]] !== launch || !model.ranges.ns[i]) continue;
      timeline.goTo({ range: i });
      timeline.draw();
      const place = timeline.placeOf({ range: i }), top = timeline.parts.scroll.scrollTop;
      const hit = timeline.hit((place.x0 + place.x1) / 2, place.y + place.height / 2 - top);
      if (hit?.range !== i) wrong.push([i, hit]);
    }
    for (const level of [0, 1, 2, 3]) {
      timeline.setLevel(level);
      timeline.draw();
    }
  }
  if (model.launches.length > 1) {
    page.choose('all');
    timeline.setLevel(3);
    timeline.draw();
  }
  return wrong;
}
"""


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=random_traces())
def test_any_trace_is_drawn_and_every_range_is_where_it_seems(trace: Trace, browser: Any, tmp_path: Path) -> None:
    write_html(trace, tmp_path / "page.html")
    page, errors = browser.new_page(viewport={"width": 1300, "height": 700}), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate(HITS) == []
    page.close()
    assert errors == []


def test_a_sample_is_announced(look: Any, tmp_path: Path) -> None:
    write_html(small(), tmp_path / "page.html", max_slices=5)
    page = ready(look((tmp_path / "page.html").as_uri() + "#part=timeline"))
    assert page.locator("#notes").inner_text() == (
        "Timeline and search hold a sample: 5 of 10 ranges and markers, in 1 whole CTAs of 2."
        " Tables and distributions are of the whole trace."
    )
    assert sorted(page.evaluate("[0, 1].map((c) => warptrace.model.ctaShown(c))")) == [False, True]


def test_an_emulated_trace_and_lost_events_are_announced(look: Any, tmp_path: Path) -> None:
    script = TraceScript(emulated=True)
    script.warp(script.launch(), 0, 1000, lost=12)
    write_html(script.build(), tmp_path / "page.html")
    page = ready(look((tmp_path / "page.html").as_uri()))
    assert page.locator("#notes p").all_inner_texts() == [
        "This trace was made by an emulator: compare shapes, not durations.",
        "Not recorded, for want of room: 12 events.",
    ]


def test_a_trace_without_a_launch(look: Any, tmp_path: Path) -> None:
    write_html(TraceScript().build(), tmp_path / "page.html")
    opened = look((tmp_path / "page.html").as_uri())
    opened.page.wait_for_selector("#notes p")
    assert opened.page.locator("#notes").inner_text() == "No launch was recorded."
    assert opened.errors == []


def test_a_damaged_page_says_so(look: Any, gemm_page: Path, tmp_path: Path) -> None:
    text = gemm_page.read_text()
    at = text.index(">", text.index('data-name="ranges.start_ns"')) + 200
    (tmp_path / "page.html").write_text(text[:at] + "AAAA" + text[at + 4 :])
    opened = look((tmp_path / "page.html").as_uri())
    opened.page.wait_for_selector("#notes p")
    assert opened.page.locator("#notes").inner_text().startswith("This report cannot be shown: ")


def test_a_large_page_loads_and_moves(look: Any, tmp_path: Path) -> None:
    """200,000 slices. The bounds are far above what was seen (docs/outputs.md): they fail where work grows with the
    number of slices instead of the number of pixels."""
    script = TraceScript()
    launch = script.launch()
    name, site = script.string("work"), 0
    for number in range(4):
        warp = script.warp(launch, 0, 50_000 * 100 + 100, warp=number, sm=0)
        for at in range(0, 50_000 * 100, 100):
            warp.push(at, "work") if at == 0 else warp.ranges.append({**warp.ranges[0], **moved(warp.ranges[0], at)})
            if at == 0:
                warp.pop(60)
    assert (name, site) == (0, 0)
    write_html(script.build(), tmp_path / "page.html")
    page = ready(look((tmp_path / "page.html").as_uri() + "#part=timeline"))
    assert page.evaluate("warptrace.model.ranges.name.length") == 200_000
    assert page.evaluate("warptrace.loadMs.all") < 10_000
    times = []
    for step in range(20):
        page.evaluate("(x) => warptrace.timeline.pan(x)", 0.03 if step < 10 else -0.03)
        page.wait_for_timeout(30)
        times.append(page.evaluate("warptrace.timeline.frameMs"))
    assert sorted(times)[10] < 100


def moved(row: dict[str, Any], at: int) -> dict[str, Any]:
    """The times and sequence numbers of a range like ``row`` that starts at ``at``."""
    return {
        "start_ns": row["start_ns"] + at, "end_ns": row["end_ns"] + at,
        "start_cycle": row["start_cycle"] + 2 * at, "end_cycle": row["end_cycle"] + 2 * at,
        "start_seq": row["start_seq"] + at // 50, "end_seq": row["end_seq"] + at // 50,
    }  # fmt: skip
