"""Kernels that had not ended, in JSON and the HTML report: the ranges that were open, and where warps were."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from html_page import Page
from hung_trace import NOW_NS, START_NS, hung
from traces import TraceScript

from warptrace.export.html import write_html
from warptrace.export.iket_json import write_iket_json
from warptrace.report.hang import hang_report
from warptrace.trace import Trace

NEAR = 200
"""ns that a time may be off: clocks are fitted."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return hung(tmp_path_factory.mktemp("hung"))


def document(trace: Trace, folder: Path) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    write_iket_json(trace, folder / "trace.json")
    data = json.loads((folder / "trace.json").read_text())
    schema = json.loads((files("warptrace.export") / "schema" / "iket_trace.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(data)
    return data


def test_json_has_the_open_ranges(trace: Trace, tmp_path: Path) -> None:
    data = document(trace, tmp_path)
    (launch,) = data["launches"]
    facts, strings = launch["warptrace"], data["stringTable"]
    (stuck,) = facts["unfinishedWarps"]
    assert data["locationTable"][stuck]["warpId"] == 0
    assert [(strings[one["rangeNameIdx"]], one["rangeType"], one["locIdx"]) for one in facts["openRanges"]] == [
        ("consume", 2, stuck), ("step", 1, stuck), ("full_wait", 2, stuck),
    ]  # fmt: skip
    sites = {site["id"]: (site["kind"], site["name"]) for site in data["warptrace"]["sites"]}
    assert [sites[one["siteId"]] for one in facts["openRanges"]] == [
        ("push", "consume"), ("start", "step"), ("push", "full_wait"),
    ]  # fmt: skip
    began = [one["startTs"] - facts["startTs"] for one in facts["openRanges"]]
    assert [abs(ns - cycle / 1.98) < NEAR for ns, cycle in zip(began, (198, 300, 1980), strict=True)] == [True] * 3
    assert abs(facts["lastSeenTs"] - facts["startTs"] - (NOW_NS - START_NS)) < NEAR
    assert facts["fullWarps"] == []
    assert all("payloadType" not in one for one in facts["openRanges"])
    assert [strings[one["rangeNameIdx"]] for one in launch["ranges"]] == ["full_wait", "consume"]


def test_the_text_has_the_stream(trace: Trace) -> None:
    report = hang_report(trace)
    assert report is not None
    assert [launch.origin for launch in report.launches] == ["stream 0x7f00"]
    assert ", device 0, stream 0x7f00: not ended after 3.00 s" in report.text()


def test_json_of_a_warp_whose_memory_was_full(trace: Trace, tmp_path: Path) -> None:
    """Nothing is said of its ranges."""
    (row,) = np.flatnonzero(trace.warps.closed == 0)
    none = {name: getattr(trace.open, name)[:0] for name in trace.open.__dataclass_fields__}
    full = replace(trace, open=type(trace.open)(**none), full=np.array([row]))
    facts = document(full, tmp_path)["launches"][0]["warptrace"]
    assert (facts["fullWarps"], facts["openRanges"]) == (facts["unfinishedWarps"], [])
    assert facts["lastSeenTs"] is not None


def test_payloads_of_open_ranges(trace: Trace, tmp_path: Path) -> None:
    kinds = replace(trace.open, start_type=np.array([0, 6, 15], np.uint8), start_bits=np.array([0, 77, 1], np.uint64))
    ranges = document(replace(trace, open=kinds), tmp_path)["launches"][0]["warptrace"]["openRanges"]
    assert [(one.get("payloadType"), one.get("payloadVal")) for one in ranges] == [(None, None), (6, 77), (2, 1)]


def test_a_launch_that_ended_has_none(tmp_path: Path) -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 10).mark(1, "m")
    trace = script.build()
    facts = document(trace, tmp_path)["launches"][0]["warptrace"]
    assert (facts["openRanges"], facts["fullWarps"], facts["lastSeenTs"]) == ([], [], None)
    write_html(trace, tmp_path / "page.html")
    assert Page(tmp_path / "page.html").facts["hang"] is None


def test_the_page_has_where_warps_were(trace: Trace, tmp_path: Path) -> None:
    write_html(trace, tmp_path / "page.html")
    hang = Page(tmp_path / "page.html").facts["hang"]
    assert hang["time_from"] == "clock"
    (group,) = hang["groups"]
    opened, silent = group.pop("open_ns"), group.pop("silent_ns")
    assert group == {
        "launch": 0, "role": "step", "warps": 1, "where": "warp 0 of CTA (0,0,0)", "full": False,
        "ranges": ["consume", "step", "full_wait"], "site": "kernel.py:20", "last": "begin of full_wait",
    }  # fmt: skip
    assert opened == silent and all(abs(ns - (NOW_NS - START_NS - 1000)) < NEAR for ns in opened)
