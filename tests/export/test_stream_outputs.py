"""The stream of a launch, or its graph, in every output that lists launches."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from trace_processor import TraceProcessor, needs_trace_processor
from traces import TraceScript

from warptrace.export.perfetto import write_perfetto
from warptrace.report.blocks import blocks
from warptrace.report.report import build
from warptrace.report.summary import launch_table, summarize
from warptrace.report.text import print_blocks
from warptrace.trace import Trace

HANDLE = 0x7F12_3456_7890
STREAMS = [0, HANDLE, None, None]
GRAPHS = [None, None, ("graph_exec_1", 3), None]


@pytest.fixture
def trace() -> Trace:
    """Launches into two streams, of a graph, and into a stream that is not known."""
    script = TraceScript()
    for stream, graph in zip(STREAMS, GRAPHS, strict=True):
        script.warp(script.launch(stream=stream, graph=graph), 0, 1000).mark(150, "m")
    return script.build()


def shown(trace: Trace) -> str:
    out = StringIO()
    Console(file=out, width=200).print(launch_table(summarize(trace)))
    return out.getvalue()


def test_summary(trace: Trace) -> None:
    rows = summarize(trace).rows
    assert [row.stream for row in rows] == ["default", "0x7f1234567890", "graph_exec_1:3", ""]
    head, _, *lines = [line for line in shown(trace).splitlines() if line.strip()]
    assert head.split()[-1] == "stream"
    assert [line.split()[-1] for line in lines[:3]] == ["default", "0x7f1234567890", "graph_exec_1:3"]


def test_summary_of_one_stream_has_no_column() -> None:
    script = TraceScript()
    for _ in range(2):
        script.warp(script.launch(stream=HANDLE), 0, 1000)
    assert "stream" not in shown(script.build())


def test_report(trace: Trace) -> None:
    report = build(trace, range(4))
    assert [row["stream"] for row in report.to_json()["launches"]] == ["default", "0x7f1234567890", None, None]
    out = StringIO()
    print_blocks(blocks(report), Console(file=out, width=300))
    text = out.getvalue()
    assert text.count(", stream default: grid") == text.count(", stream 0x7f1234567890: grid") == 1
    assert text.count(", graph_exec_1 replay 3: grid") == 1 and text.count(", stream ") == 2


@needs_trace_processor
def test_perfetto(trace: Trace, tmp_path: Path) -> None:
    write_perfetto(trace, tmp_path / "x.pftrace")
    rows = TraceProcessor(tmp_path / "x.pftrace").query(
        "select extract_arg(arg_set_id, 'debug.stream'), extract_arg(arg_set_id, 'debug.graph') from slice "
        "where name like 'kernel:%' order by id"
    )
    assert sorted(map(str, rows)) == sorted(
        map(str, [("default", None), ("0x7f1234567890", None), (None, "graph_exec_1:3"), (None, None)])
    )


def test_tables(trace: Trace) -> None:
    pytest.importorskip("pyarrow")
    assert trace.to_arrow("launches").column("stream").to_pylist() == STREAMS
