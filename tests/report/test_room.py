"""The options that would have kept everything: exact, and enough when they are used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.report.room import advice
from warptrace.report.summary import summarize
from warptrace.runtime.layout import exact, plan
from warptrace.runtime.options import parse_size
from warptrace.trace import Trace


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two warps of one launch; the first leads 20 events and has room for 16."""
    kernel = FakeKernel("k")
    kernel.mark("m")
    warps = [FakeWarp(warp=w, sm=w).exit(1000) for w in range(2)]
    for i in range(20):
        warps[0].event(1, 10 * i + 1)
    device = FakeDevice()
    device.launch(kernel, warps, block=(64, 1, 1), main_bytes=128)
    return decode([read_capture(write_capture(tmp_path_factory.mktemp("room") / "c", [device], [kernel]))])


def needing(trace: Trace, *, events: int, crowd: int, buffer: int, lanes: bool = True) -> Trace:
    """The same with other needs: ``crowd`` warps on one bank, ``buffer`` as the run had it."""
    room = {**trace.meta["room"], "events": np.array([events])}
    room["bank_warps"] = np.zeros((1, wire.BANK_COUNT), np.int64)
    room["bank_warps"][0, 5] = crowd
    kernels = {k: replace(r, lane_events=lanes) for k, r in trace.meta["kernels"].items()}
    devices = [{"ordinal": 0, "buffer_bytes": plan(buffer).total_bytes}]
    processes = tuple(replace(p, manifest={**p.manifest, "devices": devices}) for p in trace.processes)
    return replace(trace, processes=processes, meta={**trace.meta, "room": room, "kernels": kernels})


def test_what_the_launch_needed_is_seen(losing: Trace) -> None:
    room = losing.meta["room"]
    assert (room["events"].tolist(), room["main_bytes"].tolist(), room["lane_bytes"].tolist()) == ([20], [128], [0])
    assert {b: n for b, n in enumerate(room["bank_warps"][0].tolist()) if n} == {37: 1, 38: 1}


def test_the_problem_names_the_warps(losing: Trace) -> None:
    (problem,) = [p for p in losing.problems if p.kind == "lost_events"]
    assert problem.text == "4 events of 1 warps of k (grid id 1) found no room: CTA 0,0,0 warp 0 lost 4"


def test_room_alone_is_enough(losing: Trace) -> None:
    trace = needing(losing, events=20, crowd=2, buffer=1 << 30)
    assert advice(trace) == ("to keep all of them: --max-ts-cnt-per-warp 20",)
    assert summarize(trace).advice == advice(trace)


def test_a_crowd_needs_a_larger_buffer(losing: Trace) -> None:
    """64 warps with 20,000 events of 8 bytes: 10.3 MB on one bank, which is a power of two."""
    trace = needing(losing, events=20_000, crowd=64, buffer=1 << 30, lanes=False)
    assert advice(trace) == ("to keep all of them: --max-ts-cnt-per-warp 20000 --buffer-size 2G",)


def test_more_than_a_region_can_hold(losing: Trace) -> None:
    (text,) = advice(needing(losing, events=70_000, crowd=1, buffer=1 << 30, lanes=False))
    assert text == (
        "no setting keeps all of them: a lane led 70000 events, and a lane of k has room for 65520 at most "
        "(--max-ts-cnt-per-warp 65520)"
    )


def test_more_than_the_largest_buffer(losing: Trace) -> None:
    (text,) = advice(needing(losing, events=60_000, crowd=64, buffer=1 << 30, lanes=False))
    assert text.startswith("no setting keeps all of them: one launch needs more than 4G of buffer")


def test_nothing_lost_nothing_said(losing: Trace) -> None:
    whole = tuple(replace(x, lost_events=0) for x in losing.launches)
    assert advice(replace(losing, launches=whole)) == ()


@given(st.integers(17, 70_000), st.integers(1, 64), st.sampled_from([1 << k for k in range(24, 33)]), st.booleans())
def test_what_is_advised_fits(losing: Trace, events: int, crowd: int, buffer: int, lanes: bool) -> None:
    """Every warp then has room for all events, and the bank for every warp; half the buffer would not do."""
    trace = needing(losing, events=events, crowd=crowd, buffer=buffer, lanes=lanes)
    (text,) = advice(trace)
    (record,) = trace.meta["kernels"].values()

    def fits(size: int) -> bool:
        layout = plan(size)
        region = exact(record, layout, events)
        if region is None or events > 65520:
            return False
        return crowd * wire.region_bytes(region.main & -wire.REGION_ALIGN, region.lane) <= layout.bank_bytes

    if text.startswith("no setting"):
        assert not fits(1 << 32)
        return
    words = text.removeprefix("to keep all of them: ").split()
    assert words[:2] == ["--max-ts-cnt-per-warp", str(events)]
    if len(words) == 2:
        assert fits(buffer)
    else:
        wanted = parse_size(words[3])
        assert wanted > buffer and fits(wanted) and not fits(wanted // 2)


# ------------------------------------------------------------------------------------------ used, on the emulator
@pytest.mark.dsl
@pytest.mark.parametrize("keep", ["first", "last"])
def test_the_advice_keeps_all(tmp_path: Path, keep: str) -> None:
    pytest.importorskip("cutlass")
    import cutlass
    import window_kernel as k

    import warptrace
    from warptrace.emulator.cute import compile_kernel
    from warptrace.runtime.emulated import launch

    def recorded(**options: Any) -> Trace:
        with warptrace.capture(buffer_size="16M", keep_events=keep, **options) as session:
            launch(compile_kernel(k.looping_host, cutlass.Int32(1)), k.device(), [37])
        return session.trace

    trace = recorded(max_events_per_warp=10)
    kept = 16 if keep == "last" else 10
    assert trace.warps.lost.tolist() == [37 - kept] * k.EVENTS
    assert trace.warps.events.tolist() == [kept] * k.EVENTS
    texts = [p.text for p in trace.problems if p.kind == "lost_events"]
    fate = "were overwritten by newer ones" if keep == "last" else "found no room"
    lost = 37 - kept
    assert len(texts) == 1
    assert texts[0].endswith(
        f"{fate}: CTA 0,0,0 warp 0 lost {lost}, CTA 0,0,0 warp 1 lost {lost}, CTA 1,0,0 warp 0 lost {lost}, "
        "and 1 more warps"
    )
    assert advice(trace) == ("to keep all of them: --max-ts-cnt-per-warp 37",)
    whole = recorded(max_events_per_warp=37)
    assert whole.problems == ()
    assert whole.warps.events.tolist() == [37] * k.EVENTS
    assert advice(whole) == ()


@pytest.mark.dsl
@pytest.mark.parametrize("stride", [1, 3])
def test_banks_are_those_that_the_device_chose(tmp_path: Path, stride: int) -> None:
    """Also where only some clusters record, and a hash of the CTA chooses."""
    pytest.importorskip("cutlass")
    import cutlass
    from sized_kernel import host

    import warptrace.cute as iket
    from warptrace import registry
    from warptrace.emulator.cute import compile_kernel
    from warptrace.raw.format import REGION_OFFSET_FIELD
    from warptrace.runtime.emulated import EmulatedRecording
    from warptrace.selection import Selection

    before = registry.selection()
    registry.select(Selection(cta_stride=stride))
    try:
        with iket.tracing():
            kernel = compile_kernel(host, cutlass.Int32(1))
    finally:
        registry.select(before)
    recording = EmulatedRecording(tmp_path / "pid_1", buffer_bytes=16 << 20)
    for grid in ((40, 1, 1), (3, 5, 4)):
        recording.launch(kernel, [2], grid=grid, block=(64, 1, 1))
    recording.finish()
    capture = read_capture(tmp_path / "pid_1")
    headers = np.concatenate([b.headers for b in capture.batches()])
    banks = (headers[REGION_OFFSET_FIELD].astype(np.int64) - wire.ARENA_OFFSET) // recording.memory.layout.stride
    counts = np.stack([
        np.bincount(banks[headers["grid_id"] == g], minlength=wire.BANK_COUNT) for g in np.unique(headers["grid_id"])
    ])  # fmt: skip
    found = decode([capture]).meta["room"]["bank_warps"]
    assert found.tolist() == counts.tolist()
    assert counts.sum() == 2 * (-(-40 // stride) + -(-60 // stride))
