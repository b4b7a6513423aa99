"""The tables of docs/performance.md are those of benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
EVENTS = {
    "mark": "mark",
    "mark_i32": "mark, 32-bit payload",
    "mark_i64": "mark, 64-bit payload",
    "push_pop": "push + pop",
    "push_i32_pop": "push with payload + pop",
    "start_end": "start + end",
}
BESIDE = {
    "work_mark": "mark",
    "push_work_pop": "push + pop",
    "push_i32_work_pop": "push with payload + pop",
    "start_work_end": "start + end",
}
FORMS = "kernel-overhead-h200-2026-11-30-forms.json"
KERNELS = {
    "gemm_4096": ("GEMM 4096^3, tile 128x256", "1,816,584", "whole slots"),
    "gemm_8192": ("GEMM 8192^3, tile 128x128", "27,808,264", "in turn"),
    "stream": ("16 M float additions, 3 events a warp", "1,572,864", "early events"),
    "entry_132": ("132 CTAs, one event a warp", "1,056", "early events"),
    "entry_8448": ("8,448 CTAs, one event a warp", "67,584", "early events"),
}
POSTPROCESS = [f"postprocess-{name}-2026-11-30.json" for name in ("10m", "10m-isal", "100m")]
OUTPUTS = {"perfetto": "`.pftrace`", "json": "`.trace.json`", "json-gz": "`.trace.json.gz`"}

pytestmark = pytest.mark.skipif(not PAGE.is_file() or not RESULTS.is_dir(), reason="no benchmarks in this checkout")


def table(mark: str) -> list[list[str]]:
    """Rows of the table below a comment, without its head."""
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return rows[2:]


def results(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_event_cost() -> None:
    figures = results("event-cost-h200-2026-11-30.json")["figures"]
    wanted = []
    for mode, name in EVENTS.items():
        row = [name]
        for warps in (1, 4, 8, 16):
            ours, theirs = (figures[api][f"{mode}/{warps}"]["median"] for api in ("ours", "reference"))
            row.append(f"{ours:.1f} / {theirs:.1f} ({ours / theirs:.2f})")
        wanted.append(row)
    assert table("event cost") == wanted


def beside_work(mode: str, warps: int) -> tuple[float, float]:
    """Cycles that an event adds to the loop that works, ours and the reference's."""
    figures = results("event-cost-h200-2026-11-30.json")["figures"]
    ours, theirs = (
        figures[api][f"{mode}/{warps}"]["median"] - figures[api][f"work/{warps}"]["median"]
        for api in ("ours", "reference")
    )
    return ours, theirs


def test_event_cost_beside_work() -> None:
    wanted = []
    for mode, name in BESIDE.items():
        row = [name]
        for warps in (1, 4, 8, 16):
            ours, theirs = beside_work(mode, warps)
            row.append(f"{ours:.1f} / {theirs:.1f} ({ours / theirs:.2f})")
        wanted.append(row)
    assert table("event cost beside work") == wanted


def kernel_overhead(form: str, workload: str, api: str) -> dict[str, float] | None:
    """What a form of events, by its name, made of a workload when it was first measured; None where it was not."""
    (figures,) = (one["figures"] for one in results(FORMS)["forms"] if one["form"] == form)
    runs = figures[workload]
    found: dict[str, float] | None = (runs[0] if isinstance(runs, list) else runs).get(api)
    return found


def test_kernel_overhead() -> None:
    wanted = []
    for workload, (name, events, form) in KERNELS.items():
        row = [name, events]
        beside = form if form == "in turn" else "before"
        for one in (kernel_overhead(form, workload, "ours"), kernel_overhead(beside, workload, "reference")):
            if one is None:
                row += ["-", "-"]
                continue
            row.append(f"{one['plain_us']:.1f}, {one['traced_us']:.1f}")
            row.append(f"{one['ratio']:.3f} ({one['ratio_low']:.3f}-{one['ratio_high']:.3f})")
        wanted.append(row)
    assert table("kernel overhead") == wanted


def test_tool_time() -> None:
    found = results("tool-time-h200-2026-11-30.json")
    ours, theirs, alone = *(found["figures"][api] for api in ("ours", "reference")), found["plain_seconds"]
    rows = [["the program alone", f"{alone:.1f} s", "", "", "", ""]]
    for name, one in (("warptrace", ours), ("run-iket", theirs)):
        size = one["bytes"]
        more = one["seconds"] - alone
        rows.append([
            name, f"{one['seconds']:.1f} s", f"{more:.1f} s", f"{one['records']:,}",
            f"{size['json'] / 1e6:,.0f} MB", f"{size['pftrace'] / 1e6:,.0f} MB",
        ])  # fmt: skip
    assert table("tool time") == rows
    assert ours["seconds"] - alone < 0.1 * (theirs["seconds"] - alone)
    assert ours["compressed"]["bytes"]["gz"] < 0.1 * ours["bytes"]["json"]


def test_postprocess_speed() -> None:
    wanted = []
    for found in map(results, POSTPROCESS):
        by = "isal" if found["versions"]["isal"] else "zlib"
        for form, runs in found["runs"].items():
            best = min(runs, key=lambda one: one["s"])
            name = OUTPUTS[form] + (f", {by}" if form != "json" else "")
            row = [f"{best['s']:.1f}", f"{min(one['cpu_s'] for one in runs):.1f}", f"{best['peak_mb']:,}"]
            row += [f"{best['mb']:,.0f}", f"{best['others_cpu_s']:.1f}"]
            wanted.append([name, f"{found['events'] / 1e6:.0f}", *row])
    assert table("postprocess speed") == wanted
    spans = []
    for found in map(results, POSTPROCESS[:2]):
        seconds = [one["s"] for one in found["runs"]["perfetto"]]
        assert max(seconds) < 6
        spans.append(f"{min(seconds):.1f} to {max(seconds):.1f} s")
    target = "| 10 million events, raw to `.pftrace`, in 6 s on 2 cores | met: {}, with isal {} |"
    assert target.format(*spans) in PAGE.read_text(encoding="utf-8")


def test_where_the_other_is_cheaper_it_is_said() -> None:
    """The sentences and the table of targets follow from the figures."""
    figures = results("event-cost-h200-2026-11-30.json")["figures"]
    ours, theirs = ({key: one["median"] for key, one in figures[api].items()} for api in ("ours", "reference"))
    cheaper = {
        warps: {m for m in EVENTS if ours[f"{m}/{warps}"] > theirs[f"{m}/{warps}"]} for warps in (1, 4, 8, 16)
    }
    assert cheaper == {1: set(), 4: set(), 8: set(), 16: {"start_end"}}
    costly = set()
    for mode in BESIDE:
        for warps in (1, 4, 8, 16):
            mine, other = beside_work(mode, warps)
            costly |= {(mode, warps)} if mine > 1.01 * other else set()
    assert costly == {("work_mark", 16)}
    for workload in ("stream", "entry_132", "entry_8448"):
        ours_, theirs_ = (
            kernel_overhead(form, workload, api) for form, api in (("early events", "ours"), ("before", "reference"))
        )
        assert ours_ is not None and theirs_ is not None and ours_["ratio"] > theirs_["ratio"]
