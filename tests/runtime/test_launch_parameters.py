"""The hidden parameters of a launch: host code, as the DSL compiles it, against its Python twin, in any launch."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from host_code import HostCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.runtime.cell import CELL, HostCell
from warptrace.runtime.layout import RegionSize, automatic, exact, plan
from warptrace.selection import MAX_COUNT, KernelSelection
from warptrace.sites import KernelRecord

pytestmark = pytest.mark.dsl

KERNEL = 77
SELECTIONS = (
    KernelSelection(),
    KernelSelection(((0, 0, 0), (5, 1, 0))),
    KernelSelection(None, 7),
    KernelSelection(None, 1000, (0, 1, 2)),
    KernelSelection(warps=(3,)),
)
RECORDS = tuple(
    KernelRecord(KERNEL, "k", "k", "sm_90a", stride, 0 if ring else 4 * stride, lanes, None, (), selection=s, ring=ring)
    for stride in (8, 16)
    for ring in (False, True)
    for lanes in (False, True)
    for s in SELECTIONS
)


@functools.cache
def code(number: int) -> HostCode:
    return HostCode(RECORDS[number].launch_rules)


@pytest.fixture
def cell() -> Iterator[HostCell]:
    """The cell of this process: host code finds no other."""
    CELL.attach(lambda ordinal: 4096, lambda number: None)
    yield CELL
    CELL.detach()
    CELL.set_window(0, MAX_COUNT)
    CELL.set_default_size(RegionSize(0, 0))


@settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_host_code_makes_what_its_twin_makes(cell: HostCell, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(RECORDS) - 1))
    record, layout = RECORDS[number], plan(data.draw(st.integers(16 << 20, 2 << 30)))
    events = data.draw(st.none() | st.integers(0, 3000))
    size = None if events is None else exact(record, layout, events)
    size = size or automatic(layout, lanes=data.draw(st.booleans()))
    ctas, warps = data.draw(st.integers(1, 2**31 - 1) | st.integers(1, 200)), data.draw(st.integers(1, 32))
    cluster = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 2), st.just(1)))
    control, word = data.draw(st.integers(0, 2**47)), data.draw(st.integers(0, 2**48 - 1))
    rules = record.launch_rules
    cell.set_default_size(size)
    region = wire.region_word(size.main, size.lane, rules, ctas, warps, cluster[0] * cluster[1])
    host = code(number)
    assert host.region(KERNEL, ctas, warps, cluster[0] * cluster[1]) == region
    wanted = wire.hidden_parameters(control, region, word, rules, cluster)
    assert host.parameters(control, region, word, cluster) == wanted
    assert all(0 <= value < 2**64 for value in wanted)


@pytest.mark.parametrize("record", RECORDS[:20], ids=str)
def test_a_region_has_room_for_the_slack_whatever_the_cell_says(record: KernelRecord) -> None:
    """Host code of a kernel that no one announced, or that shares its entry with a smaller one, still gets a region in
    which a full warp writes nowhere but its own slack."""
    rules = record.launch_rules
    for main in (0, wire.exact_main(8), wire.exact_main(16), 128, wire.auto_main(20, 10, 14, 18)):
        region = wire.region_word(main, 0, rules, 1, 1)
        room = wire.room_word(region, rules)
        assert room >> 32 == wire.slot_bytes(region & 0xFFFFFFFF) - rules.slack >= (rules.stride if rules.ring else 0)
        assert (region >> 32 > 0) == record.lane_events


def test_the_least_size_by_hand() -> None:
    rules = wire.LaunchRules(stride=16, slack=48)
    assert wire.region_word(wire.exact_main(16), 0, rules, 1, 1) == 128
    assert wire.room_word(128, rules) == wire.pack_capacity(80, 0) | 80 << 32
    exactly = wire.exact_main(5 * 16 + 48)
    assert wire.region_word(exactly, 256, rules, 1, 1) == exactly == 128
    assert wire.hidden_parameters(4096, 128, 0x1234_5678_9ABC, rules, (2, 3, 1)) == (
        4096, 128, 0x9ABC_0000 | 0x1234 << 48, 0x5678_0010 | 0x01_03_02 << 32, 10 | 80 << 32,
    )  # fmt: skip
