"""What the HTML report shows of launches: their streams and graphs, and where the warps were that had not ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hung_trace import hung
from traces import TraceScript

from warptrace.export.html import write_html


def opened(look: Any, path: Path) -> Any:
    found = look(path.as_uri())
    found.page.wait_for_selector("html[data-ready]", state="attached")
    found.page.keyboard.press("1")
    return found


def test_where_warps_were_that_had_not_ended(look: Any, tmp_path: Path) -> None:
    write_html(hung(tmp_path), tmp_path / "page.html")
    found = opened(look, tmp_path / "page.html")
    summary = found.page.locator("#summary")
    assert summary.get_by_role("heading", name="Ranges open when the program ended").count() == 1
    text = summary.inner_text()
    assert "consume › step › full_wait" in text and "kernel.py:20" in text and "warp 0 of CTA (0,0,0)" in text
    assert found.errors == []


def test_streams_and_graphs(look: Any, tmp_path: Path) -> None:
    script = TraceScript()
    for stream, graph in ((0, None), (0x7F00, None), (None, ("graph_exec_1", 3)), (None, None)):
        script.warp(script.launch(stream=stream, graph=graph), 0, 1000).mark(150, "m")
    write_html(script.build(), tmp_path / "page.html")
    found = opened(look, tmp_path / "page.html")
    summary = found.page.locator("#summary")
    assert "stream default" in summary.locator("p.soft").first.inner_text()
    cells = [row.inner_text().split("\t") for row in summary.locator("table tr").all()]
    assert summary.get_by_role("heading", name="Ranges open when the program ended").count() == 0
    head = next(row for row in cells if "stream" in row)
    column = head.index("stream")
    assert [row[column] for row in cells[cells.index(head) + 1 :][:4]] == [
        "stream default", "stream 0x7f00", "graph_exec_1 replay 3", "",
    ]  # fmt: skip
    assert found.errors == []
