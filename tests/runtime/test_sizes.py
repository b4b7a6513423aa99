"""Region sizes: what the host asks for, and that device code works out the same for every launch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.raw import read_capture
from warptrace.runtime.layout import RegionSize, automatic, exact, learned, most_events, plan
from warptrace.selection import KernelSelection
from warptrace.sites import KernelRecord, Site
from warptrace.wire import EventKind, PayloadType

BUFFERS = st.integers(16 << 20, 2 << 30)


def record(*, stride: int = 8, lanes: bool = False, slack: int = 64, ring: bool = False) -> KernelRecord:
    site = Site(1, EventKind.MARK, "m", PayloadType.NONE, "k.py", 1)
    return KernelRecord(5, "k", "k", "sm_90a", stride, 0 if ring else slack, lanes, None, (site,), ring=ring)


def rings(size: RegionSize) -> tuple[int, int]:
    """Bytes of the rings that the device makes of a size: of the main slots and of another lane's block."""
    main = (size.main & -wire.REGION_ALIGN) - (size.main >> 2 & 15) * 8
    return wire.ring_bytes(main), wire.ring_bytes(size.lane - wire.LANE_HEADER_BYTES) if size.lane else 0


@given(BUFFERS)
def test_banks_fit_the_address_of_32_bits(buffer: int) -> None:
    layout = plan(buffer)
    assert layout.bank_bytes & (layout.bank_bytes - 1) == 0
    assert layout.total_bytes < 2**32
    assert wire.region_bytes(layout.most_main_bytes, 0) <= layout.slack_bytes


@given(BUFFERS, st.integers(1, 1 << 20), st.integers(1, 32), st.booleans())
def test_a_launch_that_sizes_itself_finds_room(buffer: int, ctas: int, warps: int, lanes: bool) -> None:
    """All warps of a CTA claim from one bank, and with more SMs than banks so do those of a second one."""
    layout = plan(buffer)
    size = automatic(layout, lanes=lanes)
    main = wire.auto_main_bytes(size.main, ctas, warps)
    lane = max(main >> (size.lane >> 1), wire.REGION_ALIGN) if lanes else 0
    region = wire.region_bytes(main, lane)
    assert region <= layout.slack_bytes
    crowd = max(warps, -(-2 * ctas * warps // wire.BANK_COUNT))
    if main > 1 << wire.LOG2_LEAST_MAIN:
        assert crowd * region <= layout.bank_bytes + crowd * 31 * wire.REGION_ALIGN


@given(BUFFERS, st.integers(0, 4000), st.sampled_from([8, 16]), st.booleans())
def test_exact_sizes_hold_what_they_say(buffer: int, events: int, stride: int, lanes: bool) -> None:
    layout, kernel = plan(buffer), record(stride=stride, lanes=lanes)
    size = exact(kernel, layout, events)
    if size is None:
        assert events > most_events(kernel, layout)
        return
    main, trim = size.main & -wire.REGION_ALIGN, (size.main >> 2 & 15) * 8
    assert main - trim - kernel.slack == events * stride
    if lanes:
        behind = -wire.LANE_HEADER_BYTES % stride
        assert size.lane - wire.LANE_HEADER_BYTES - behind - kernel.slack >= events * stride


@given(BUFFERS, st.integers(1, 65520), st.sampled_from([8, 16]), st.booleans())
def test_exact_rings_hold_what_they_say(buffer: int, events: int, stride: int, lanes: bool) -> None:
    """And waste nothing: half of a ring would not do, and what surrounds it is less than a line."""
    layout, kernel = plan(buffer), record(stride=stride, lanes=lanes, ring=True)
    size = exact(kernel, layout, events)
    if size is None:
        assert events > most_events(kernel, layout)
        return
    main, lane = rings(size)
    assert main // 2 < events * stride <= main
    assert (size.main & -wire.REGION_ALIGN) - main < wire.REGION_ALIGN
    assert lane >= events * stride if lanes else lane == 0
    assert wire.region_bytes(size.main & -wire.REGION_ALIGN, size.lane) <= layout.slack_bytes


@given(BUFFERS, st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.sampled_from([8, 16]), st.booleans())
def test_learned_rings_hold_a_quarter_more_or_fill_the_region(
    buffer: int, main: int, lane: int, stride: int, lanes: bool
) -> None:
    layout = plan(buffer)
    size = learned(record(stride=stride, lanes=lanes, ring=True), layout, main, lane)
    main_ring, lane_ring = rings(size)
    assert size.main == main_ring and not size.automatic
    most = layout.most_main_bytes if lanes else layout.slack_bytes - wire.REGION_HEADER_BYTES
    assert main_ring >= main * 5 // 4 or main_ring == wire.ring_bytes(most)
    assert (size.lane > 0) == lanes
    if lanes:
        assert lane_ring >= lane * 5 // 4 or 4 * lane_ring > layout.most_main_bytes // 32
    assert wire.region_bytes(size.main, size.lane) <= layout.slack_bytes


def test_learned_sizes_hold_twice_as_much() -> None:
    layout, kernel = plan(1 << 30), record(stride=16, lanes=True)
    size = learned(kernel, layout, main=1000, lane=300)
    assert size == RegionSize(2176, 768)
    assert not size.automatic


def test_kernels_that_share_an_entry_get_what_serves_both() -> None:
    small, large = RegionSize(256, 0), RegionSize(128, 512)
    assert small | large == RegionSize(256, 512)
    auto = automatic(plan(1 << 30), lanes=False)
    assert (small | auto).automatic and (auto | small).automatic


@pytest.mark.dsl
def test_the_device_works_out_the_same(tmp_path: Path) -> None:
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    cutlass = pytest.importorskip("cutlass")
    from sized_kernel import host

    import warptrace.cute as iket
    from warptrace.emulator.cute import compile_kernel
    from warptrace.runtime.emulated import EmulatedRecording

    shapes = [((1, 1, 1), 32), ((1, 1, 1), 1024), ((3, 1, 1), 33), ((64, 1, 1), 64), ((5, 4, 3), 96), ((300, 1, 1), 32)]
    recording = EmulatedRecording(tmp_path / "pid_1")
    with iket.tracing():
        kernel = compile_kernel(host, cutlass.Int32(1))
    for grid, block in shapes:
        recording.launch(kernel, [2], grid=grid, block=(block, 1, 1))
    recording.finish()
    size = automatic(recording.memory.layout, lanes=False)
    found = {}
    for batch in read_capture(tmp_path / "pid_1").batches():
        for header in batch.headers:
            key = (tuple(header["grid"].tolist()), int(wire.unpack_block(np.array([header["block"]]))[0][0]))
            found.setdefault(key, set()).add(int(header["main_bytes"]))
    ctas = {grid: int(np.prod(grid)) for grid, _ in shapes}
    assert found == {
        (grid, block): {wire.auto_main_bytes(size.main, ctas[grid], -(-block // 32))} for grid, block in shapes
    }


# ------------------------------------------------------------------------------------------ few of many that record
def log2_up(n: int) -> int:
    return (n - 1).bit_length()


def region_main(selection: KernelSelection, main: int, ctas: int, warps: int, cluster: int) -> int:
    """Main bytes that each warp of a launch gets."""
    record = KernelRecord(1, "k", "k", "sm_90a", 8, 64, False, None, (), selection=selection)
    return wire.region_word(main, 0, record.launch_rules, ctas, warps, cluster)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.integers(16 << 20, 2 << 30),
    st.integers(1, 1 << 22),
    st.integers(1, 32),
    st.sampled_from([1, 2, 16]),
    st.integers(1, 64) | st.integers(2, 5000).map(lambda k: -k),
    st.none() | st.integers(1, 32),
)
def test_sizes_go_by_the_warps_that_record(
    buffer: int, ctas: int, warps: int, cluster: int, places: int, chosen_warps: int | None
) -> None:
    """``places``: that many named clusters, or every -places-th."""
    named = tuple((i, 0, 0) for i in range(places)) if places > 0 else None
    numbers = None if chosen_warps is None else tuple(range(chosen_warps))
    selection = KernelSelection(named, max(-places, 1), numbers)
    layout = plan(buffer)
    main = automatic(layout, lanes=False).main
    recording_ctas = min(ctas, places * cluster if places > 0 else (ctas >> (-places).bit_length() - 1) + cluster)
    recording_warps = min(warps, chosen_warps or 32)
    got = region_main(selection, main, ctas, warps, cluster)
    # as wire.auto_main_bytes, but that a bank must hold 8 of the CTAs that record, or 8 times the even share
    budget, least, most, bank = (main >> shift & 31 for shift in (1, 6, 11, 16))
    all_of_them = log2_up(recording_ctas * recording_warps)
    crowd = max(min(log2_up(recording_warps) + 3, all_of_them), all_of_them - wire.LOG2_BANKS + 3)
    assert got == 1 << max(min(max(budget - all_of_them, least), most, bank - crowd), wire.LOG2_LEAST_MAIN)
    # and where few record of many, each gets at least its share of all
    if recording_ctas * recording_warps * 16 <= ctas * warps and ctas >= 1024:
        assert got >= wire.auto_main_bytes(main, ctas, warps)


def test_few_ctas_of_a_large_grid() -> None:
    main = automatic(plan(1 << 30), lanes=False).main
    assert wire.auto_main_bytes(main, 100_000, 4) == 512
    assert region_main(KernelSelection(((0, 0, 0),)), main, 100_000, 4, 1) == 1 << 18, "all that a region may have"
    assert region_main(KernelSelection(None, 1000), main, 100_000, 4, 1) == 1 << 16
