"""Memory that moves into a file and out again at one address."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from warptrace import wire
from warptrace.raw import CaptureWriter, read_capture
from warptrace.raw.format import CELL_NAME
from warptrace.runtime.shared_memory import FixedMemory

SIZE = 5000


def test_in_and_out(tmp_path: Path) -> None:
    memory = FixedMemory(SIZE)
    address, array = memory.address, memory.array
    assert address % 4096 == 0 and len(array) == SIZE and not array.any()
    array[:] = np.arange(SIZE) % 251
    before = array.copy()
    memory.into_file(tmp_path / "m")
    assert (array == before).all()
    array[7] = 99
    assert np.fromfile(tmp_path / "m", np.uint8)[7] == 99
    memory.out_of_file()
    array[8] = 77
    in_file = np.fromfile(tmp_path / "m", np.uint8)[:SIZE]
    assert (in_file[7], in_file[8], array[7], array[8]) == (99, before[8], 99, 77)
    memory.out_of_file()  # again: nothing
    memory.into_file(tmp_path / "m")  # the same file, as it is then
    assert np.fromfile(tmp_path / "m", np.uint8)[8] == 77
    assert memory.address == address


def test_a_killed_process_leaves_what_it_wrote_last(tmp_path: Path) -> None:
    memory = FixedMemory(SIZE)
    child = os.fork()
    if child == 0:
        memory.into_file(tmp_path / "m")
        memory.array[100] = 5
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert np.fromfile(tmp_path / "m", np.uint8)[100] == 5
    assert memory.array[100] == 0


def test_no_such_place(tmp_path: Path) -> None:
    memory = FixedMemory(SIZE)
    memory.array[3] = 1
    with pytest.raises(OSError):
        memory.into_file(tmp_path / "missing" / "m")
    memory.array[4] = 2
    memory.out_of_file()
    assert memory.array[3:5].tolist() == [1, 2]


@pytest.mark.parametrize("cut", [0, wire.CELL_BYTES - 1, None])
def test_counts_of_a_cell_file(tmp_path: Path, cut: int | None) -> None:
    """They count where the capture is not closed; a file that is cut off tells nothing."""
    writer = CaptureWriter(
        tmp_path, pid=1, argv=[], host="h", python="3", warptrace="0", dsl=None, started_unix_ns=0
    )
    cell = np.zeros(wire.CELL_BYTES, np.uint8)
    kernels = cell[wire.CELL_KERNELS_OFFSET :].view(wire.CELL_KERNEL_DTYPE)
    kernels["launches"][[3, wire.CELL_KERNEL_COUNT - 1]] = 8, 9
    (tmp_path / CELL_NAME).write_bytes(cell.tobytes()[:cut])
    wanted = {} if cut is not None else {3: 8, wire.CELL_KERNEL_COUNT - 1: 9}
    assert read_capture(tmp_path).launches() == wanted
    writer.set_launches({wire.CELL_KERNEL_COUNT + 4: 5})
    writer.finish(ended_unix_ns=1)
    assert read_capture(tmp_path).launches() == {4: 5}
    assert not (tmp_path / CELL_NAME).exists()
