"""The host's ranges and launch calls on a real device's timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from gpu_kit import PROGRAMS, Figure, doubts, load, lossless, profiled, python, run

from warptrace.export.tables import Tables, flat
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu


def rows(trace: Trace) -> list[dict[str, Any]]:
    """The table of launch calls."""
    columns = {name: column.objects() for name, column in flat(Tables(trace).part("host_launches")).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_which_launch_is_which(tmp_path: Path, figure: Figure) -> None:
    """Five launches; each of three steps sleeps, launches one, and waits for it."""
    done = run(profiled(tmp_path / "out", python(PROGRAMS / "host_ranges.py"), "--host-ranges"), tmp_path)
    assert done.status == 0 and "host ranges: ok" in done.stdout, done.said
    trace = load(tmp_path / "out")
    assert lossless(trace), doubts(trace)
    (host,) = trace.meta["host"]
    assert [call["launch"] for call in host["launches"]] == [0, 1, 2, 3, 4]
    assert len({call["thread"] for call in host["launches"][:4]}) == 1
    assert host["threads"][host["launches"][0]["thread"]] == "MainThread"
    assert host["launches"][4]["thread"] != host["launches"][0]["thread"]
    names = [(r["source"], r["name"]) for r in host["ranges"]]
    assert names == [x for i in range(3) for x in (("nvtx", f"step {i}"), ("record_function", "forward"))]
    assert [m["name"] for m in host["marks"]] == ["between"]
    assert [call["within"] for call in host["launches"]] == [[], *([f"step {i}", "forward"] for i in range(3)), []]
    assert [row["within"] for row in rows(trace)] == [None, *(f"step {i} > forward" for i in range(3)), None]
    doubt = max(call["uncertainty_ns"] for call in host["launches"])
    figure("host to device, uncertainty in us", round(doubt / 1e3, 2))
    waits = []
    for number in range(3):
        launch, call = trace.launches[number + 1], host["launches"][number + 1]
        step, forward = host["ranges"][2 * number : 2 * number + 2]
        assert step["begin_ns"] <= forward["begin_ns"] < call["ns"] < forward["end_ns"] <= step["end_ns"]
        assert call["ns"] - doubt < launch.start_ns and launch.end_ns < forward["end_ns"] + doubt
        assert call["ns"] - forward["begin_ns"] > 1_900_000
        waits.append(launch.start_ns - call["ns"])
    figure("from the call to the start of the kernel, us", [round(ns / 1e3, 1) for ns in waits])


def test_without_the_option_there_is_nothing(tmp_path: Path) -> None:
    done = run(profiled(tmp_path / "out", python(PROGRAMS / "host_ranges.py")), tmp_path)
    assert done.status == 0, done.said
    assert load(tmp_path / "out").meta["host"] == []
    assert not list((tmp_path / "out").rglob("host.jsonl"))
