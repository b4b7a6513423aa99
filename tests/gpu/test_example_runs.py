"""The examples as a user runs them: right results, every event counted, and what tracing costs the kernel."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
import trace_processor
from gpu_kit import (
    EXAMPLES,
    PROGRAMS,
    Figure,
    Run,
    clock_problems,
    doubts,
    load,
    lossless,
    names,
    profiled,
    python,
    run,
    totals,
)

from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

BLOCKS = 132
# Room for the busiest warp of 8192^3 with 128x128 tiles: 32 tiles of 787 events. Without it the first launch has only
# a share of the buffer.
LARGE_OPTIONS = ("--max-ts-cnt-per-warp", "26000", "--buffer-size", "2G")


def example(name: str) -> ModuleType:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def gemm() -> ModuleType:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the GEMM example needs a Hopper GPU")
    return example("hopper_gemm")


@dataclass(frozen=True)
class Profiled:
    """A run of ``warptrace profile``, and the trace in its folder."""

    run: Run
    folder: Path
    trace: Trace

    def file(self, pattern: str) -> Path:
        (found,) = self.folder.glob(pattern)
        return found


def profile(folder: Path, command: list[str], *options: str, postprocess: str = "all") -> Profiled:
    done = run(profiled(folder / "out", command, *options, postprocess=postprocess), folder)
    assert done.status == 0, done.said
    return Profiled(done, folder / "out", load(folder / "out"))


def json_names(path: Path) -> dict[str, int]:
    """Ranges and markers of each name in a JSON output."""
    data = json.loads(path.read_text())
    strings = data["stringTable"]
    count: Counter[int] = Counter()
    for launch in data["launches"]:
        count.update(r["rangeNameIdx"] for r in launch["ranges"])
        count.update(m["markerNameIdx"] for m in launch["markers"])
    return {strings[index]: n for index, n in count.items()}


def gemm_line(stdout: str) -> float:
    """The relative error that the example printed as right."""
    match = re.search(r"relative error (\S+) ok$", stdout, re.MULTILINE)
    assert match is not None, stdout
    return float(match[1])


# ------------------------------------------------------------------------------------------------------ vector add
@pytest.fixture(scope="module")
def vector_add(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    return profile(tmp_path_factory.mktemp("vector_add"), python(EXAMPLES / "vector_add.py"))


def test_vector_add(vector_add: Profiled, figure: Figure) -> None:
    assert vector_add.run.stdout == "vector_add: 100000 elements, ok\n"
    expected = example("vector_add").expected_events(100_000)
    assert names(vector_add.trace) == expected
    assert lossless(vector_add.trace), vector_add.trace.problems
    assert json_names(vector_add.file("*.trace.json")) == expected
    assert vector_add.file("*.pftrace").stat().st_size > 0
    figure("seconds", round(vector_add.run.seconds, 1))


# ------------------------------------------------------------------------------------------------------------ GEMM
@pytest.fixture(scope="module")
def traced_gemm(gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    return profile(tmp_path_factory.mktemp("gemm"), python(EXAMPLES / "hopper_gemm.py", "--mnk", "4096,4096,4096"))


def test_gemm_result_and_events(gemm: ModuleType, traced_gemm: Profiled, figure: Figure) -> None:
    figure("relative error", gemm_line(traced_gemm.run.stdout))
    trace = traced_gemm.trace
    (launch,) = trace.launches
    assert (launch.grid, launch.block) == ((BLOCKS, 1, 1), (384, 1, 1))
    assert names(trace) == gemm.expected_events(4096, 4096, 4096, num_ctas=BLOCKS)
    assert lossless(trace), trace.problems
    figure("events", launch.events)
    figure("duration (us)", (launch.end_ns - launch.start_ns) / 1e3)
    figure("clock uncertainty (ns)", round(launch.clock_uncertainty_ns, 1))
    figure("clock problems", clock_problems(trace))
    figure("seconds, outputs included", round(traced_gemm.run.seconds, 1))


def test_gemm_outputs(gemm: ModuleType, traced_gemm: Profiled, figure: Figure) -> None:
    path = traced_gemm.file("*.trace.json")
    assert json_names(path) == gemm.expected_events(4096, 4096, 4096, num_ctas=BLOCKS)
    figure("JSON bytes", path.stat().st_size)
    figure("pftrace bytes", traced_gemm.file("*.pftrace").stat().st_size)


@trace_processor.needs_trace_processor
def test_gemm_in_the_trace_processor(traced_gemm: Profiled) -> None:
    processor = trace_processor.TraceProcessor(traced_gemm.file("*.pftrace"))
    assert processor.errors() == []
    rows = processor.query(
        "select slice.name, count(*) from slice join track on track.id = track_id where track.parent_id is not null"
        " group by slice.name"
    )
    found = dict(rows)
    assert {name: found.get(name) for name in names(traced_gemm.trace)} == names(traced_gemm.trace)


def test_large_gemm(gemm: ModuleType, tmp_path: Path, figure: Figure) -> None:
    """27.8 million events in one launch, none lost. No outputs: its JSON alone would be several GB."""
    words = python(EXAMPLES / "hopper_gemm.py", "--mnk", "8192,8192,8192", "--tile", "128x128")
    done = profile(tmp_path, words, *LARGE_OPTIONS, postprocess="none")
    figure("relative error", gemm_line(done.run.stdout))
    (launch,) = done.trace.launches
    assert names(done.trace) == gemm.expected_events(8192, 8192, 8192, tile_n=128, num_ctas=BLOCKS)
    assert lossless(done.trace), doubts(done.trace)
    figure("events", launch.events)
    figure("duration (us)", (launch.end_ns - launch.start_ns) / 1e3)
    figure("clock uncertainty (ns)", round(launch.clock_uncertainty_ns, 1))
    figure("clock problems", clock_problems(done.trace))


# ------------------------------------------------------------------------------------------- what tracing costs
ROUNDS = 1
"""Enough for the counts; benchmarks/kernel_overhead.py measures ratios with their spread."""
PROBLEMS = ("4096,4096,4096 128x256", "8192,8192,8192 128x128")
MOST_RATIO = 1.15


def median_us(done: Run) -> dict[str, float]:
    """The medians that gemm_rounds.py printed, by problem."""
    assert done.status == 0, done.said
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_kernel_time(gemm: ModuleType, tmp_path: Path, figure: Figure) -> None:
    """Medians of the examples' ``--bench``, untraced and traced by turns.

    It launches far more than the buffer holds, as fast as the GPU can: most events are lost, and the count of recorded
    and lost ones is still exact.
    """
    words = python(PROGRAMS / "gemm_rounds.py", *PROBLEMS)
    times: dict[str, list[dict[str, float]]] = {"untraced": [], "traced": []}
    untraced = tmp_path / "untraced"
    untraced.mkdir()
    for number in range(ROUNDS):
        times["untraced"].append(median_us(run(words, untraced)))
        done = run(profiled(tmp_path / f"traced {number}", words), tmp_path)
        times["traced"].append(median_us(done))
        if number:  # a gigabyte each; one is looked at below
            shutil.rmtree(tmp_path / f"traced {number}")
    assert list(untraced.iterdir()) == []
    ratios = {}
    for problem in PROBLEMS:
        rounds = {kind: [one[problem] for one in times[kind]] for kind in times}
        ratios[problem] = statistics.median(rounds["traced"]) / statistics.median(rounds["untraced"])
        figure(f"{problem}: untraced (us)", [round(x, 1) for x in rounds["untraced"]])
        figure(f"{problem}: traced (us)", [round(x, 1) for x in rounds["traced"]])
        figure(f"{problem}: traced / untraced", round(ratios[problem], 4))
    assert max(ratios.values()) < MOST_RATIO

    trace = load(tmp_path / "traced 0")
    recorded, lost = totals(trace)
    figure("events recorded", recorded)
    figure("events lost", lost)
    assert lost > 0 and any("lost" in text for text in doubts(trace))
    assert recorded + lost == sum(events_of_rounds(gemm, problem) for problem in PROBLEMS)


def events_of_rounds(gemm: Any, problem: str) -> int:
    """Events that all launches of a problem execute: the checked one, the warm-up and the timed ones."""
    mnk, tile = problem.split()
    m, n, k = map(int, mnk.split(","))
    counts = gemm.expected_events(m, n, k, tile_n=int(tile.split("x")[1]), num_ctas=BLOCKS)
    markers = counts["kernel_start"] + counts["tile_sched"]
    return (1 + 20 + 100) * (2 * sum(counts.values()) - markers)
