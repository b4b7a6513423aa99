from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from traces import TraceScript

from warptrace.report.summary import COLUMNS, Summary, duration, print_summary, shorten, summarize
from warptrace.trace import Problem


def a_summary(*, emulated: bool = False) -> Summary:
    script = TraceScript(emulated=emulated)
    first = script.launch(kernel="gemm[f16]", grid=(4, 2, 1), block=(256, 1, 1), cluster=(2, 1, 1), warps_expected=2)
    script.warp(first, 100, 1_100, warp=0).mark(150, "x")
    script.warp(first, 150, 2_600, warp=1)
    second = script.launch(kernel="reduce", warps_expected=3, lost_warps=2)
    script.warp(second, 5_000, 5_900, lost=4)
    script.problems.append(Problem("lost_warps", 2, "2 warps found no room: enlarge --buffer-size [now 1M]"))
    return summarize(script.build(), ["out/trace.pftrace"])


def text(summary: Summary, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_summary(summary, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_rows_and_totals() -> None:
    summary = a_summary()
    assert COLUMNS == ("#", "kernel", "grid", "block", "cluster", "warps", "events", "lost", "duration")
    assert [row.cells() for row in summary.rows] == [
        ("1", "gemm[f16]", "4x2x1", "256x1x1", "2x1x1", "2", "1", "0", "2.50 us"),
        ("2", "reduce", "1x1x1", "32x1x1", "-", "1 of 3", "0", "4", "900 ns"),
    ]
    assert [row.complete for row in summary.rows] == [True, False]
    totals = summary.totals
    assert (totals.warps_recorded, totals.warps_expected, totals.lost_warps) == (3, 5, 2)
    assert (totals.events, totals.lost) == (1, 4)
    assert totals.duration_ns == 5_800


def test_text() -> None:
    lines = text(a_summary()).splitlines()
    assert lines[0] == "2 launches recorded"
    assert "problem: lost_warps: 2 warps found no room: enlarge --buffer-size [now 1M]" in lines
    assert lines[-1] == "wrote out/trace.pftrace"
    table = [line.split() for line in lines[1:] if line.lstrip().startswith(("1 ", "2 ", "#", "total"))]
    assert table[0] == list(COLUMNS)
    assert table[1] == ["1", "gemm[f16]", "4x2x1", "256x1x1", "2x1x1", "2", "1", "0", "2.50", "us"]
    assert table[-1] == ["total", "3", "of", "5", "1", "4", "5.80", "us"]


def test_emulated_is_said_first() -> None:
    assert text(a_summary(emulated=True)).startswith("2 launches recorded (emulated: times are not those of a GPU)\n")


def test_a_long_run_is_cut_and_says_so() -> None:
    script = TraceScript()
    for _ in range(23):
        script.warp(script.launch(), 0, 10)
    script.problems += [Problem("clock", 1, f"problem {i}") for i in range(12)]
    lines = text(summarize(script.build())).splitlines()
    assert "... and 3 more launches" in lines
    assert "... and 2 more problems" in lines
    assert sum("gemm" in line for line in lines) == 20


def test_an_output_path_is_never_broken() -> None:
    path = "x" * 200
    assert text(summarize(TraceScript().build(), [path]), width=60).endswith(f"wrote {path}")


def test_nothing_recorded() -> None:
    assert text(summarize(TraceScript().build())) == "0 launches recorded"


def test_json() -> None:
    data = json.loads(json.dumps(a_summary().to_json()))
    assert data["rows"][1]["lost"] == 4
    assert data["outputs"] == ["out/trace.pftrace"]


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (12_340, "12.3 us"), (456_000, "456 us"), (2_000_000, "2.00 ms"),
     (1_500_000_000, "1.50 s"), (999_999, "1.00 ms"), (99_960, "100 us")],
)  # fmt: skip
def test_duration(ns: int, shown: str) -> None:
    assert duration(ns) == shown


def test_shorten() -> None:
    assert shorten("kernel", 6) == "kernel"
    assert shorten("kernel_cutlass_gemm_0", 10) == "kernel…m_0"
    assert len(shorten("x" * 100, 40)) == 40


BUILD = {"kernel_id": 99, "kernel": "gemm", "arch": "sm_90a", "registers": 168, "stack_bytes": 16, "code_bytes": 18_688}


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (
            {"untraced": {"registers": 166, "stack_bytes": 0, "code_bytes": 9_856}},
            ["kernel gemm: 168 registers (untraced 166), stack 16 B (untraced 0 B), code +8.6 KiB"],
        ),
        (
            {"registers": 40, "stack_bytes": 0, "untraced": {"registers": 41, "stack_bytes": 0, "code_bytes": 20_000}},
            ["kernel gemm: 40 registers (untraced 41), stack 0 B (untraced 0 B), code -1.3 KiB"],
        ),
        ({"untraced": {"registers": 168, "stack_bytes": 16, "code_bytes": 9_856}}, []),
        ({"untraced": {"registers": 166}}, []),
        ({"untraced": 166}, []),
        ({"registers": "many", "untraced": {"registers": 166, "stack_bytes": 0, "code_bytes": 9_856}}, []),
        ({}, []),
    ],
)
def test_what_tracing_costs_in_registers(facts: dict[str, object], wanted: list[str]) -> None:
    script = TraceScript()
    script.warp(script.launch(), 0, 10)
    trace = script.build()
    trace.meta["builds"] = [BUILD | facts, BUILD | facts | {"kernel_id": 98, "kernel": "never launched"}]
    summary = summarize(trace)
    assert list(summary.builds) == wanted
    assert [line for line in text(summary).splitlines() if line.startswith("kernel gemm")] == wanted


def test_many_kernels_that_tracing_changed() -> None:
    script = TraceScript()
    untraced = {"registers": 8, "stack_bytes": 0, "code_bytes": 0}
    builds = []
    for kernel in range(12):
        script.warp(script.launch(kernel_id=kernel), 0, 10)
        builds.append(BUILD | {"kernel_id": kernel, "kernel": f"k{kernel}", "untraced": untraced})
    trace = script.build()
    trace.meta["builds"] = builds
    lines = text(summarize(trace)).splitlines()
    assert sum("(untraced 8)" in line for line in lines) == 10
    assert "... and 2 more kernels whose registers or stack tracing changed" in lines
