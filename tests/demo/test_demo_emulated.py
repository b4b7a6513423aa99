"""``warptrace demo`` without a GPU: one real run of the command, and all that must be true of it."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import Run, run_demo

import warptrace
from warptrace.trace import Trace

pytestmark = pytest.mark.dsl

# From the problem by hand: 12 blocks of 1 producer and 4 consumer warps; 24 tiles of C, 2 a block; 8 k tiles each.
BLOCKS, TILES, K_TILES, CONSUMERS = 12, 24, 8, 4
COUNTS = {
    "kernel_start": 12 * 5,
    "setup": 12 * 5,
    "load_tile": 24,
    "empty_wait": 24 * 8,
    "tma_issue": 24 * 8,
    "load_tail": 12,
    "mma_tile": 24 * 4,
    "full_wait": 24 * 8 * 4,
    "mma": 24 * 8 * 4,
    "k_step": 24 * 8 * 4,
    "epilogue": 24 * 4,
    "tile_done": 24 * 4,
}
# Markers are one event; token ranges and plain push/pop ranges two; a switch ends one range and starts the next.
EVENTS = (
    COUNTS["kernel_start"]
    + COUNTS["tile_done"]
    + 2 * sum(COUNTS[name] for name in ("setup", "load_tile", "load_tail", "mma_tile", "k_step", "epilogue"))
    + 3 * (COUNTS["empty_wait"] + COUNTS["full_wait"])
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("demo")
    done = run_demo(folder, "--emulate", "-o", "out")
    assert done.status == 0, done.stderr
    print(f"warptrace demo took {done.seconds:.1f} s")
    return done


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    return warptrace.load(run.folder / "out")


@pytest.fixture(scope="module")
def data(run: Run) -> Any:
    return json.loads(the_file(run, "*.trace.json").read_text())


def the_file(run: Run, pattern: str) -> Path:
    (found,) = (run.folder / "out").glob(pattern)
    return found


def test_it_leaves_the_outputs_of_profile_and_nothing_else(run: Run) -> None:
    (capture,) = (run.folder / "out" / "raw").iterdir()
    assert sorted(p.name for p in (run.folder / "out").iterdir()) == [
        f"iket_{capture.name}.html",
        f"iket_{capture.name}.pftrace",
        f"iket_{capture.name}.trace.json",
        "raw",
        "run.json",
    ]
    assert [p.name for p in run.folder.iterdir()] == ["out"]


def test_it_says_that_times_are_emulated(run: Run, data: Any) -> None:
    first, summary = run.stderr.splitlines()[:2]
    assert first == (
        "warptrace: --emulate: compiling the kernel for sm_90a and running it on the emulator; its times are emulated"
    )
    assert summary.endswith("1 launch recorded (emulated: times are not those of a GPU)")
    assert data["warptrace"]["emulated"] is True


def test_it_says_that_the_result_is_right(run: Run) -> None:
    assert run.stdout.startswith("demo: C = A B^T, 256x384x512: relative error ")
    assert run.stdout.endswith(" against numpy, correct\n")


def test_the_last_line_says_what_to_do_next(run: Run) -> None:
    name = the_file(run, "*.pftrace").stem
    assert run.stderr.splitlines()[-1] == (
        f"warptrace: next: open out/{name}.html in a browser, or out/{name}.pftrace at https://ui.perfetto.dev;"
        f" the same events as JSON: out/{name}.trace.json"
    )


def test_the_json_is_valid_and_has_every_event(data: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((files("warptrace.export") / "schema" / "iket_trace.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(data)
    (launch,) = data["launches"]
    names = data["stringTable"]
    found = Counter(names[r["rangeNameIdx"]] for r in launch["ranges"])
    found += Counter(names[m["markerNameIdx"]] for m in launch["markers"])
    assert found == COUNTS


def test_the_columns_have_every_event_and_no_problem(trace: Trace) -> None:
    (launch,) = trace.launches
    assert (launch.grid, launch.block) == ((12, 1, 1), (160, 1, 1))
    assert (launch.warps_recorded, launch.events, launch.lost_events, launch.lost_warps) == (60, EVENTS, 0, 0)
    assert trace.problems == ()
    assert trace.warps.closed.all()


def ranges(trace: Trace, name: str, block: int, warp: int) -> Any:
    """Rows of the ranges of a name in one warp, in program order."""
    where = trace.ranges.warp
    rows = (trace.warps.cta[where, 0] == block) & (trace.warps.warp[where] == warp)
    return np.flatnonzero(rows & (trace.ranges.name == trace.strings.index(name)))


@pytest.mark.parametrize("block", [0, BLOCKS - 1])
def test_payloads_are_tiles_and_k_tiles(trace: Trace, block: int) -> None:
    tiles, k_tiles = [block, block + BLOCKS], [*range(K_TILES)] * 2
    bits = trace.ranges.start_bits
    assert bits[ranges(trace, "load_tile", block, 0)].tolist() == tiles
    assert bits[ranges(trace, "empty_wait", block, 0)].tolist() == k_tiles
    for warp in range(1, 1 + CONSUMERS):
        assert bits[ranges(trace, "mma_tile", block, warp)].tolist() == tiles
        assert bits[ranges(trace, "full_wait", block, warp)].tolist() == k_tiles


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_ring_is_seen_to_work(trace: Trace, block: int) -> None:
    """A stage is full after its load was begun, and free again after all consumers have multiplied it."""
    start, end = trace.ranges.start_ns, trace.ranges.end_ns
    loads = ranges(trace, "tma_issue", block, 0)
    waits = ranges(trace, "empty_wait", block, 0)
    slack = 40  # the first event in a stage's release comes just after the stamp that ends mma's work
    for warp in range(1, 1 + CONSUMERS):
        assert (end[ranges(trace, "full_wait", block, warp)] > start[loads]).all()
        multiplied = end[ranges(trace, "mma", block, warp)]
        assert (end[waits][3:] + slack > multiplied[:-3]).all()
    # Three loads go out at once, then the producer has to wait: its fourth wait is the longest of the first four.
    assert np.argmax((end - start)[waits[:4]]) == 3


def test_k_step_reaches_from_one_arrival_to_the_next(trace: Trace) -> None:
    for warp in range(1, 1 + CONSUMERS):
        steps, waits = ranges(trace, "k_step", 0, warp), ranges(trace, "full_wait", 0, warp)
        start, end, order = trace.ranges.start_ns, trace.ranges.end_ns, trace.ranges.start_seq
        inside = np.arange(2 * K_TILES) % K_TILES != K_TILES - 1
        assert (end[steps][inside] <= start[np.roll(steps, -1)][inside]).all()
        assert (order[steps] > order[waits]).all()
        assert (end[steps][inside] >= start[np.roll(waits, -1)][inside]).all()


def test_perfetto_reads_its_file_without_error(run: Run) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    assert len(protos.Trace.FromString(the_file(run, "*.pftrace").read_bytes()).packet) > 0


def test_under_thirty_seconds(run: Run) -> None:
    assert run.seconds < 30


def test_an_existing_result_is_left_alone_and_replaced_only_with_clobber(run: Run) -> None:
    before = sorted(p.name for p in (run.folder / "out").iterdir())
    refused = run_demo(run.folder, "--emulate", "-o", "out")
    assert refused.status == 2
    assert refused.stderr == (
        "warptrace: error: output directory out exists: add --clobber to replace it, or choose another --output-dir\n"
    )
    assert sorted(p.name for p in (run.folder / "out").iterdir()) == before
    replaced = run_demo(run.folder, "--emulate", "-o", "out", "--clobber", "--postprocess", "json")
    assert replaced.status == 0, replaced.stderr
    table = the_file(replaced, "*.trace.json")
    assert table.name not in before
    assert not list((run.folder / "out").glob("*.pftrace"))
    assert replaced.stderr.splitlines()[-1] == f"warptrace: next: look at out/{table.name}"
