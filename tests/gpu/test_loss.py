"""More events than room: what is kept is right, what is lost is counted exactly, and the program never notices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import torch
from gpu_kit import PROGRAMS, Figure, Out, load, lossless, names, payloads, python, recording, run, totals

import warptrace.cute as iket
from warptrace import wire
from warptrace.raw import read_capture
from warptrace.raw.regions import region_sizes
from warptrace.runtime.layout import automatic, plan
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 132
WARPS = CTAS * k.WARPS
SMALL_BUFFER = 16 << 20


def compile_ticks(*, on: bool = True) -> Any:
    with iket.tracing(on):
        one = cutlass.Int32(1)
        return cute.compile(k.ticks_host, Out(CTAS).cute, one, one, cutlass.Int32(CTAS))


def launch(compiled: Any, out: Out, n: int, call: int, ctas: int = CTAS) -> None:
    compiled(out.cute, cutlass.Int32(n), cutlass.Int32(call), cutlass.Int32(ctas))


def ticks_kept(trace: Trace, index: int) -> set[tuple[int, ...]]:
    """Payloads of the recorded ticks of each warp of a launch, in program order."""
    m = trace.markers
    rows = trace.warps.launch[m.warp] == index
    warp, bits = m.warp[rows], m.bits[rows]
    bounds = np.flatnonzero(np.diff(warp)) + 1
    return {tuple(part.tolist()) for part in np.split(bits, bounds)}


# ---------------------------------------------------------------------------------- one warp outgrows its room
@pytest.mark.parametrize(("room", "n"), [(50, 48), (50, 49), (50, 80)])
def test_room_for_a_given_number_of_events(tmp_path: Path, room: int, n: int) -> None:
    """A push, n ticks and a pop, with room for ``room`` of them: exact at room, at room + 1 and far beyond."""
    out, compiled = Out(CTAS), compile_ticks()
    with recording(tmp_path, max_events=room) as folder:
        launch(compiled, out, n, 3)
        assert out.holds(n)
    trace = load(folder)
    (one,) = trace.launches
    lost = max(n + 2 - room, 0)
    assert trace.warps.events.tolist() == [n + 2 - lost] * WARPS
    assert trace.warps.lost.tolist() == [lost] * WARPS
    assert (one.warps_recorded, one.lost_warps, one.events, one.lost_events) == (
        WARPS, 0, (n + 2 - lost) * WARPS, lost * WARPS,
    )  # fmt: skip
    kept = min(n, room - 1)  # the push is the first event, the pop the last
    assert ticks_kept(trace, 0) == {tuple(range(kept))}
    assert sum(p.count for p in trace.problems if p.kind == "lost_events") == lost * WARPS
    assert lossless(trace) == (lost == 0)


def test_room_by_the_grid_and_then_by_what_was_needed(tmp_path: Path, figure: Figure) -> None:
    """Without a bound the first launch gets a share of the buffer by its grid; it keeps the first events. The second
    gets more, because the first one needed more."""
    n, ctas = 5000, 16
    warps = ctas * k.WARPS
    out, compiled = Out(CTAS), compile_ticks()
    with recording(tmp_path, buffer_bytes=SMALL_BUFFER, fresh=True) as folder:
        for call in range(2):
            launch(compiled, out, n, call, ctas)
            torch.cuda.synchronize()
    trace = load(folder)
    (record,) = [x for x in read_capture(folder).kernels.values() if x.kernel_id == trace.launches[0].kernel_id]
    main_bytes = wire.auto_main_bytes(automatic(plan(SMALL_BUFFER), lanes=False).main, ctas, k.WARPS)
    share = (main_bytes - record.slack) // record.stride
    kept = [trace.warps.events[trace.warps.launch == x.index] for x in trace.launches]
    assert set(kept[0].tolist()) == {share}
    assert ticks_kept(trace, 0) == {tuple(range(share - 1))}
    # Two blocks whose SMs share a bank may fill it: warps without any room are in the sums below.
    assert kept[1][kept[1] > 0].min() > share
    assert [x.events + x.lost_events for x in trace.launches] == [warps * (n + 2)] * 2
    assert ((trace.warps.events + trace.warps.lost) == n + 2).all()
    figure("events kept per warp, first and second launch", [int(events.max()) for events in kept])


# ------------------------------------------------------------------------------------------------------ live drain
DRAIN_CTAS = 32
DRAIN_TICKS = 60
LAUNCHES = 200
PAUSE_S = 0.02


def claimed_bytes(folder: Path) -> int:
    """Trace memory that the recorded warps of a capture took in all."""
    return sum(int(region_sizes(batch.headers).sum()) for batch in read_capture(folder).batches())


@pytest.mark.parametrize("pace", ["paused", "synchronised", "at once"])
def test_drained_while_kernels_run(tmp_path: Path, figure: Figure, pace: str) -> None:
    """200 launches that together need several times the buffer. Nothing is lost where the program leaves the drain the
    time that it needs; else recorded and lost events add up to what the kernels executed."""
    warps = DRAIN_CTAS * k.WARPS
    out, compiled = Out(CTAS), compile_ticks()
    with recording(tmp_path, buffer_bytes=SMALL_BUFFER, fresh=True) as folder:
        begin = time.perf_counter()
        for call in range(LAUNCHES):
            launch(compiled, out, DRAIN_TICKS, call, DRAIN_CTAS)
            if pace != "at once":
                torch.cuda.synchronize()
            if pace == "paused":
                time.sleep(PAUSE_S)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    trace = load(folder)
    recorded, lost = totals(trace)
    figure("launches a second", round(LAUNCHES / seconds))
    figure("events recorded", recorded)
    figure("events lost", lost)
    figure("trace memory used (bytes)", claimed_bytes(folder))
    assert recorded + lost == LAUNCHES * warps * (DRAIN_TICKS + 2)
    if pace == "paused":
        assert lossless(trace), trace.problems
        assert [payloads(trace, x, "body") for x in trace.launches] == [[call] for call in range(LAUNCHES)]
        assert claimed_bytes(folder) > 2 * SMALL_BUFFER


# --------------------------------------------------------------------------------------------------- many launches
def test_a_thousand_launches(tmp_path: Path, figure: Figure) -> None:
    """Launched as fast as they go, with the default buffer: none is lost, they come in order, and take no more than the
    factor that docs/limits.md states."""
    count, warm_up, ticks = 1000, 2, 20
    out = Out(CTAS)
    times = {}
    for on in (False, True):
        compiled = compile_ticks(on=on)
        with recording(tmp_path / str(on), buffer_bytes=1 << 30, fresh=on) as folder:
            begin = time.perf_counter()
            for call in range(warm_up):
                launch(compiled, out, ticks, call)
                torch.cuda.synchronize()
            times["warm up", on] = time.perf_counter() - begin
            begin = time.perf_counter()
            for call in range(warm_up, warm_up + count):
                launch(compiled, out, ticks, call)
            torch.cuda.synchronize()
            times["launches", on] = time.perf_counter() - begin
            assert out.holds(ticks)
        if not on:
            assert load(folder).launches == ()
    untraced, traced = (times["launches", on] / count * 1e6 for on in (False, True))
    figure("us a launch, untraced", round(untraced, 2))
    figure("us a launch, traced", round(traced, 2))
    figure("wall time factor", round(traced / untraced, 3))
    assert traced <= 6 * untraced
    figure("first two launches, traced (ms)", round(times["warm up", True] * 1e3, 1))
    trace = load(folder)
    assert len(trace.launches) == warm_up + count
    assert lossless(trace), trace.problems
    assert {x.events for x in trace.launches} == {WARPS * (ticks + 2)}
    assert names(trace) == {"body": WARPS * (warm_up + count), "tick": ticks * WARPS * (warm_up + count)}
    calls = trace.ranges.start_bits.reshape(warm_up + count, WARPS)  # warps are ordered by launch, a range each
    assert (calls == np.arange(warm_up + count)[:, None]).all()
    assert (trace.markers.bits.reshape(-1, ticks) == np.arange(ticks)).all()


# -------------------------------------------------------------------------------------------------- little memory
def test_too_little_device_memory(tmp_path: Path, figure: Figure) -> None:
    """The buffer shrinks to what is left, or the recorder says that it does not record; the program goes on."""
    done = run(python(PROGRAMS / "little_memory.py", str(tmp_path)), tmp_path)
    assert done.status == 0, done.said
    said = [line for line in done.stdout.splitlines() if not line.endswith("blocks taken")]
    assert said == ["nothing left: ok", "little left: ok"], done.said
    figure("free memory (MiB)", [line for line in done.stdout.splitlines() if line.startswith("left ")])

    (none,) = (tmp_path / "nothing").iterdir()
    (text,) = read_capture(none).manifest["problems"]
    assert text.startswith("not recording on device 0: ")
    assert f"warptrace: error: {text}" in done.stderr
    assert load(none).launches == ()

    (little,) = (tmp_path / "little").iterdir()
    manifest = read_capture(little).manifest
    (text,) = manifest["problems"]
    assert text.startswith("device 0 had too little free memory: trace buffer of ")
    assert f"warptrace: warn: {text}" in done.stderr
    figure("buffer bytes", manifest["devices"][0]["buffer_bytes"])
    assert SMALL_BUFFER <= manifest["devices"][0]["buffer_bytes"] < 300 << 20
    trace = load(little)
    (one,) = trace.launches
    assert one.events == WARPS * k.STEPS_EVENTS
    assert lossless(trace), trace.problems
