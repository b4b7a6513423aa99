"""The host's side in the HTML report: its columns and facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_traces import OTHER, side, two_steps, with_host
from html_page import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import TraceScript

from warptrace.export.html import host, write_html
from warptrace.export.html.host import host_side
from warptrace.trace import Trace

COLUMNS = ("track", "row", "name", "within", "start_ns", "ns", "launch", "ended", "doubt")


def slices(trace: Trace, folder: Path) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """Of the page: (track, row, name, within, start, ns, launch) of every slice, and the facts."""
    write_html(trace, folder / "page.html")
    page = Page(folder / "page.html")
    facts = page.facts["host"]
    columns = {name: page.column(f"host.{name}").tolist() for name in COLUMNS}
    names, tracks = facts["names"], [track["name"] for track in facts["tracks"]]
    found = [
        (tracks[track], row, names[name], names[within], start, ns, launch)
        for track, row, name, within, start, ns, launch, *_ in zip(*columns.values(), strict=True)
    ]
    return found, facts


def test_every_range_and_call_is_in_the_page(tmp_path: Path) -> None:
    found, facts = slices(two_steps(), tmp_path)
    assert found == [
        ("MainThread: launches", 0, "launch gemm", "epoch > step 0 > forward", 8_000, -1, 0),
        ("MainThread: launches", 0, "launch gemm", "epoch > step 1", 18_000, -1, 1),
        ("MainThread: NVTX", 0, "step 0", "", 6_000, 6_000, -1),
        ("MainThread: NVTX", 0, "step 1", "", 16_000, 6_000, -1),
        ("MainThread: NVTX", 1, "here", "", 6_500, -1, -1),
        ("MainThread: NVTX", 1, "forward", "", 7_000, 2_000, -1),
        ("MainThread: record_function", 0, "epoch", "", 1_000, 29_000, -1),
    ]
    assert Page(tmp_path / "page.html").column("host.doubt").tolist() == [900] * 7
    assert (facts["slices"], facts["slices_of"]) == (7, 7)
    assert {one["name"]: (one["count"], one["launches"]) for one in facts["ranges"]} == {
        "epoch": (1, 2), "step 0": (1, 1), "step 1": (1, 1), "forward": (1, 1),
    }  # fmt: skip
    (calls,) = facts["calls"]
    assert (calls["calls"], calls["paired"], calls["median_wait_ns"]) == (2, 2, 2_000)


def test_nothing_of_the_host(tmp_path: Path) -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 1000)
    write_html(script.build(), tmp_path / "page.html")
    page = Page(tmp_path / "page.html")
    assert page.facts["host"] is None
    assert all(len(page.column(f"host.{name}")) == 0 for name in COLUMNS)


def test_processes_are_told_apart(tmp_path: Path) -> None:
    script = TraceScript()
    for pid in (100, 200):
        script.warp(script.launch(process=script.process(pid)), 0, 1000)
    sides = [side([("nvtx", "x", 0, 10)], [], process=number, thread=OTHER) for number in range(2)]
    found, _ = slices(with_host(script.build(), *sides), tmp_path)
    assert [one[0] for one in found] == [f"pid {pid}: thread {OTHER:#x}: NVTX" for pid in (100, 200)]


def test_of_too_many_the_longest_and_all_calls_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "MAX_HOST", 4)
    monkeypatch.setattr(host_side, "__defaults__", (4,))
    found, facts = slices(two_steps(), tmp_path)
    assert [one[2] for one in found] == ["launch gemm", "launch gemm", "here", "epoch"]
    assert (facts["slices"], facts["slices_of"]) == (4, 7)


spans = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda p: (min(p), max(p)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(spans, max_size=12), st.lists(st.integers(0, 30), max_size=5))
def test_slices_of_a_row_do_not_overlap_and_what_is_nested_stands_lower(
    pairs: list[tuple[int, int]], marks: list[int]
) -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 1000)
    named: list[Any] = [("nvtx", f"{i}", a, b) for i, (a, b) in enumerate(pairs)]
    named += [("nvtx", f"m{i}", at, None) for i, at in enumerate(marks)]
    made = host_side(with_host(script.build(), side(named, [])))
    assert sorted(one.name for _, _, one in made.slices) == sorted(name for _, name, _, _ in named)
    for i, (track, row, one) in enumerate(made.slices):
        begin, end = one.begin_ns, one.begin_ns if one.end_ns is None else one.end_ns
        for track_, row_, other in made.slices[i + 1 :]:
            begin_, end_ = other.begin_ns, other.begin_ns if other.end_ns is None else other.end_ns
            if track_ == track and row_ == row:
                assert end <= begin_ or end_ <= begin
        if row:
            assert any(
                t == track and r == row - 1 and o.begin_ns <= begin and end <= (o.end_ns or o.begin_ns)
                for t, r, o in made.slices
            )
