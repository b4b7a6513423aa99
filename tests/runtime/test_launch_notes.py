"""Launches that host code notes: what stands in the notes, and that nothing does where it should not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from host_code import HostCode
from sized_kernel import host
from test_host_log import writer

import warptrace.cute as iket
from warptrace import wire
from warptrace.frontends.cute import dsl
from warptrace.runtime.cell import HostCell
from warptrace.runtime.host_log import HostLog

pytestmark = pytest.mark.dsl

CONTROL = 0x7F00_0000_1000


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCell]:
    monkeypatch.delenv(wire.CELL_ENV, raising=False)
    cell = HostCell()
    cell.attach(lambda ordinal: CONTROL, lambda number: None)
    yield cell
    cell.detach()


def test_what_is_noted(cell: HostCell, tmp_path: Path) -> None:
    log = HostLog(writer(tmp_path / "pid_1"), {CONTROL: 3}.get)
    code = HostCode()
    assert code.note(5, CONTROL, 9) == 9  # nobody asked
    cell.note_launches(log.notes_address)
    before = time.time_ns()
    assert code.note(5, CONTROL, 9) == 9
    assert code.note(5, 0, 11) == 11  # a launch that is not recorded
    other = threading.Thread(target=lambda: code.note(1 << 62, CONTROL, wire.LAUNCH_CAPTURED))
    other.start()
    ident = other.ident
    other.join()
    after = time.time_ns()
    cell.detach()
    assert code.note(5, CONTROL, 13) == 13
    first, second = log._launches()
    assert first == ["launch", f"{5:016x}", first[2], threading.get_ident(), 3, 9]
    assert second == ["launch", f"{1 << 62:016x}", second[2], ident, 3, wire.LAUNCH_CAPTURED]
    assert before <= first[2] <= second[2] <= after
    assert log._launches() == []


def test_full_notes_are_left_alone(cell: HostCell, tmp_path: Path) -> None:
    log = HostLog(writer(tmp_path / "pid_1"), {CONTROL: 0}.get)
    code = HostCode()
    log._head["head"] = wire.NOTE_COUNT - 1
    cell.note_launches(log.notes_address)
    for word in (1, 2, 3):
        code.note(5, CONTROL, word)
    assert int(log._head["head"][0]) == wire.NOTE_COUNT + 2
    assert int(log._entries["word"][-1]) == 1


def test_host_code_is_what_it_was_unless_asked() -> None:
    def text() -> str:
        with iket.tracing():
            return str(cute.compile(host, cutlass.Int32(2), options="--gpu-arch sm_90a").ir_module)

    before = text()
    dsl.note_launches(True)
    try:
        noted = text()
    finally:
        dsl.note_launches(False)
    assert "warptrace_note" not in before and "warptrace_note" in noted
    assert text() == before
