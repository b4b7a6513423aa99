"""Which launches are recorded: the host code that the DSL compiles, run here without a GPU, from many threads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from host_code import HostCode

from warptrace import wire
from warptrace.raw import read_capture
from warptrace.runtime.cell import CELL, HostCell, kernel_number
from warptrace.runtime.layout import RegionSize
from warptrace.runtime.options import RuntimeOptions
from warptrace.runtime.recorder import Recorder
from warptrace.selection import MAX_COUNT, Selection
from warptrace.sites import KernelRecord

pytestmark = pytest.mark.dsl

CONTROL = 0x7F00_0000_1000
KERNEL = 5 + 7 * wire.CELL_KERNEL_COUNT
SIZE = RegionSize(1024, 128)

class Asked:
    """What the cell calls back for: counts the calls."""

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.kernels: list[int] = []

    def first_launch(self, ordinal: int) -> int:
        self.devices.append(ordinal)
        return CONTROL

    def repeat(self, number: int) -> None:
        self.kernels.append(number)


@pytest.fixture
def cell() -> Iterator[HostCell]:
    """The cell of this process, as no recording left it."""
    yield CELL
    CELL.detach()
    CELL.set_window(0, MAX_COUNT)
    CELL.set_default_size(RegionSize(0, 0))


def attached(cell: HostCell, selection: Selection, *, ask: bool = False) -> Asked:
    asked = Asked()
    cell.set_default_size(SIZE)
    cell.set_size(KERNEL, SIZE, ask=ask)
    cell.set_window(selection.launch_skip, selection.launch_end)
    cell.attach(asked.first_launch, asked.repeat)
    return asked


@pytest.mark.parametrize(
    ("selection", "recorded"),
    [
        (Selection(), range(10)),
        (Selection(launch_skip=3), range(3, 10)),
        (Selection(launch_count=4), range(4)),
        (Selection(launch_skip=2, launch_count=3), range(2, 5)),
        (Selection(launch_skip=9, launch_count=1), range(9, 10)),
        (Selection(launch_skip=10), range(0)),
        (Selection(launch_skip=MAX_COUNT, launch_count=MAX_COUNT), range(0)),
    ],
    ids=str,
)
def test_exactly_the_launches_of_the_window(cell: HostCell, selection: Selection, recorded: range) -> None:
    asked = attached(cell, selection)
    code = HostCode()
    got = [code.launch(KERNEL) for _ in range(10)]
    assert [control for control, *_ in got] == [CONTROL if n in recorded else 0 for n in range(10)]
    assert {region for _, region, _ in got} == {SIZE.main | SIZE.lane << 32}
    assert asked.devices == ([0] if recorded else []), "no memory is taken for launches that are not recorded"
    assert cell.launches(KERNEL) == 10


def test_kernels_count_for_themselves(cell: HostCell) -> None:
    attached(cell, Selection(launch_skip=1, launch_count=1))
    code = HostCode()
    first = [code.launch(KERNEL)[0] for _ in range(3)]
    second = [code.launch(KERNEL + 1)[0] for _ in range(3)]
    assert first == second == [0, CONTROL, 0]


@pytest.mark.parametrize(("skip", "count"), [(0, 1000), (700, 500), (4001, 3), (7999, 1)])
def test_exact_from_many_threads(cell: HostCell, skip: int, count: int) -> None:
    """8 threads, 1,000 launches each; ctypes lets go of the interpreter's lock, so they do run at once."""
    attached(cell, Selection(launch_skip=skip, launch_count=count))
    code = HostCode()
    start = threading.Barrier(8)
    results: Counter[int] = Counter()
    lock = threading.Lock()

    def work() -> None:
        start.wait()
        mine = Counter(code.launch(KERNEL)[0] for _ in range(1000))
        with lock:
            results.update(mine)

    run_all([threading.Thread(target=work) for _ in range(8)])
    assert results == {CONTROL: count, 0: 8000 - count}
    assert cell.launches(KERNEL) == 8000


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_second_recorded_launch_asks(cell: HostCell) -> None:
    """A kernel whose number of events is not known learns its size between the first two launches that are recorded."""
    asked = attached(cell, Selection(launch_skip=2, launch_count=2), ask=True)
    code = HostCode()
    calls = []
    for _ in range(6):
        code.launch(KERNEL)
        calls.append(len(asked.kernels))
    assert calls == [0, 0, 0, 1, 1, 1]
    assert set(asked.kernels) == {kernel_number(KERNEL)}


def test_a_kernel_that_is_not_wanted(cell: HostCell) -> None:
    asked = attached(cell, Selection())
    cell.skip(KERNEL)
    code = HostCode()
    assert [code.launch(KERNEL)[0] for _ in range(3)] == [0, 0, 0]
    assert asked.devices == []
    assert code.launch(KERNEL + 1) == (CONTROL, SIZE.main | SIZE.lane << 32, 1)
    # one that shares its entry is recorded, and so it is too
    assert cell.sharing(KERNEL) == []
    other = KERNEL + wire.CELL_KERNEL_COUNT
    cell.set_size(other, RegionSize(256, 0), ask=False)
    assert cell.sharing(KERNEL) == [other] and cell.sharing(other) == [KERNEL]
    assert code.launch(KERNEL) == (CONTROL, 256 | 128 << 32, 1)


def test_no_recorder_and_another_process(cell: HostCell, monkeypatch: pytest.MonkeyPatch) -> None:
    code = HostCode()
    monkeypatch.delenv(wire.CELL_ENV, raising=False)
    assert code.launch(KERNEL) == (0, 0, 0)
    attached(cell, Selection())
    monkeypatch.setenv(wire.CELL_ENV, f"{os.getppid()}:{cell._address:x}")
    assert code.launch(KERNEL) == (0, 0, 0)
    monkeypatch.setenv(wire.CELL_ENV, f"{os.getpid()}:{cell._address:x}")
    assert code.launch(KERNEL)[0] == CONTROL
    cell.detach()
    assert code.launch(KERNEL)[0] == 0


def test_a_device_that_is_switched_off(cell: HostCell) -> None:
    cell.set_default_size(SIZE)
    cell.attach(lambda ordinal: wire.CELL_OFF, lambda number: None)
    code = HostCode()
    assert [code.launch(KERNEL)[0] for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("selection", [Selection(), Selection(launch_skip=2, launch_count=2)], ids=str)
def test_launches_without_host_code_find_the_same(cell: HostCell, selection: Selection, ask: bool) -> None:
    """``HostCell.parameters`` stands for host code where there is none."""

    def told(launch: Callable[[], tuple[int, int, int]]) -> list[tuple[tuple[int, int, int], int, int]]:
        asked = attached(cell, selection, ask=ask)
        return [(launch(), len(asked.devices), len(asked.kernels)) for _ in range(6)]

    code = HostCode()
    assert told(lambda: code.launch(KERNEL, 1)) == told(lambda: cell.parameters(0, KERNEL, 1))


def test_kernels_that_are_counted_together_are_told(tmp_path: Path, cell: HostCell) -> None:
    """Two kernels whose numbers fall on one entry."""
    first = KernelRecord(KERNEL, "first", "first", "sm_90a", 8, 64, False, 1, ())
    second = replace(first, kernel_id=KERNEL + wire.CELL_KERNEL_COUNT, symbol="second", name="second")
    notes = {}
    for name, selection in (("window", Selection(launch_count=1)), ("all", Selection())):
        recorder = Recorder(RuntimeOptions(directory=str(tmp_path / name), selection=selection))
        recorder.start()
        recorder._kernel(first)
        recorder._kernel(second)
        cell._kernels["launches"][kernel_number(KERNEL)] = 3
        recorder.stop()
        notes[name] = read_capture(recorder.directory).manifest["problems"]
    text = "launches of first and second are counted together: --launch-skip and --launch-count see one kernel"
    assert notes == {"window": [text], "all": []}
