"""Bad days on a GPU: however the program ends, its trace is there, or what is missing is counted.

The programs run at the same time, each a process of its own under ``warptrace profile``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import gpu_kernels as k
from gpu_kit import PROGRAMS, Figure, Run, doubts, load, lossless, names, profiled, python, recording, run

from warptrace.raw import find_captures, read_capture
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 4
WARPS = CTAS * k.WARPS
LAUNCHES = 5
FAULTS = ("exit", "int", "term", "hup", "kill", "segv", "abort", "illegal", "visible", "fork", "captured")
BUFFER = ("--buffer-size", "64M")
SETS_DEVICES = """
import os, runpy, sys
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Day:
    """What came of a fault: the command, and the traces of its processes by pid, that of the first process first."""

    run: Run
    folder: Path
    traces: list[Trace]


def program(folder: Path, fault: str, **extra: str) -> Day:
    folder.mkdir(exist_ok=True)
    out = folder / "out"
    words = python(PROGRAMS / "bad_days.py", fault)
    if fault == "visible":
        words = [sys.executable, "-c", SETS_DEVICES, *words[1:]]
    done = run(profiled(out, words, *BUFFER), folder, timeout=120, **extra)
    return Day(done, out, [load(path) for path in find_captures(out)])


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Day]:
    root = tmp_path_factory.mktemp("days")
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(FAULTS, pool.map(lambda fault: program(root / fault, fault), FAULTS)))


def assert_whole(trace: Trace, launches: int) -> None:
    assert lossless(trace), trace.problems
    assert [x.events for x in trace.launches] == [WARPS * k.STEPS_EVENTS] * launches
    assert names(trace) == {"begin": WARPS * launches, "work": WARPS * launches}


@pytest.mark.parametrize(
    ("fault", "status"), [("exit", 9), ("int", 130), ("term", 143), ("hup", 129), ("visible", 0)], ids=lambda x: str(x)
)
def test_everything_is_saved(days: dict[str, Day], fault: str, status: int) -> None:
    day = days[fault]
    assert (day.run.status, day.run.stdout) == (status, "right\n"), day.run.said
    (trace,) = day.traces
    assert_whole(trace, LAUNCHES)


@pytest.mark.parametrize(("fault", "status"), [("kill", 137), ("segv", 139), ("abort", 134)])
def test_a_death_that_nobody_sees_coming(days: dict[str, Day], figure: Figure, fault: str, status: int) -> None:
    """What was finished 3 s before is there; the rest is there too, or counted."""
    day = days[fault]
    assert (day.run.status, day.run.stdout) == (status, "right\n"), day.run.said
    (trace,) = day.traces
    lost = sum(p.count for p in trace.problems if p.kind == "lost_launches")
    figure("launches saved of 5", len(trace.launches))
    assert 3 <= len(trace.launches) == LAUNCHES - lost
    assert [p.kind for p in trace.problems if p.kind not in ("clock", "lost_launches")] == ["unclosed_capture"]
    assert {x.events for x in trace.launches} == {WARPS * k.STEPS_EVENTS}


def test_an_illegal_access(days: dict[str, Day], figure: Figure) -> None:
    """The launch that faults, the sixth, is lost, and what had not been saved before."""
    day = days["illegal"]
    assert day.run.status == 1, day.run.said
    assert "an illegal memory access was encountered" in day.run.stderr
    assert "device 0: what was not saved before is lost: " in day.run.stderr, day.run.said
    (trace,) = day.traces
    lost = sum(p.count for p in trace.problems if p.kind == "lost_launches")
    figure("launches saved of 6", len(trace.launches))
    assert 3 <= len(trace.launches) == LAUNCHES + 1 - lost
    (path,) = find_captures(day.folder)
    assert [x["device"] for x in read_capture(path).manifest["undrained"]] == [0]


def test_a_fork_after_cuda_has_started(days: dict[str, Day]) -> None:
    day = days["fork"]
    assert (day.run.status, day.run.stdout) == (0, "right\n"), day.run.said
    parent, child = sorted(day.traces, key=lambda trace: -len(trace.launches))
    assert_whole(parent, LAUNCHES)
    assert child.launches == () and doubts(child) == []


def test_compiled_and_first_launched_while_a_graph_is_captured(days: dict[str, Day]) -> None:
    day = days["captured"]
    assert (day.run.status, day.run.stdout) == (0, "right\n"), day.run.said
    (trace,) = day.traces
    assert_whole(trace, 3)


def test_the_file_cache_of_the_dsl(tmp_path: Path, figure: Figure) -> None:
    """Cold, warm, and shared with untraced runs, which must not get traced code, nor the other way round."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shared = {"CUTE_DSL_CACHE_DIR": str(cache)}

    def files() -> int:
        return sum(path.is_file() and path.stat().st_size > 1000 for path in cache.rglob("*"))

    counts = []
    for name in ("cold", "warm"):
        day = program(tmp_path / name, "cached", **shared)
        assert (day.run.status, day.run.stdout) == (0, "right\n"), day.run.said
        (trace,) = day.traces
        assert_whole(trace, 2)
        counts.append(files())
        figure(f"seconds, {name}", round(day.run.seconds, 1))
        done = run(python(PROGRAMS / "bad_days.py", "cached"), tmp_path, **shared)
        assert (done.status, done.stdout) == (0, "right\n"), done.said
        counts.append(files())
    figure("files in the cache", counts)
    if not counts[-1]:
        pytest.skip("this DSL writes no file for direct calls: results and traces were right without")
    assert counts[1] == counts[2] == counts[3]  # the second round wrote nothing new


def test_an_object_that_was_loaded_and_run_before_the_recording(tmp_path: Path) -> None:
    """A library module that knows no recorder when it is loaded, and has looked for one in vain."""
    pytest.importorskip("torch", reason="torch is not installed")
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import load_module
    from gpu_kit import Out

    import warptrace.cute as iket

    out = Out(CTAS)
    with iket.tracing():
        made = cute.compile(k.steps_host, out.cute, cutlass.Int32(1), cutlass.Int32(CTAS))
    made.export_to_c(file_path=str(tmp_path), file_name="steps", function_prefix="steps")
    function = load_module(str(tmp_path / "steps.o"))["steps"]

    def call(n: int) -> None:
        function(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
        assert out.holds(n)

    call(1)
    with recording(tmp_path / "raw") as folder:
        call(2)
        call(3)
    call(4)
    assert_whole(load(folder), 2)
