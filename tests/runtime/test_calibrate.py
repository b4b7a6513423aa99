"""The ping-pong between the host's clock and a device's: the bounds, the host's side, the device's PTX, the driver."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warptrace.emulator import Device
from warptrace.raw.place import ranks
from warptrace.runtime import calibrate, driver
from warptrace.runtime.calibrate import (
    DEVICE_PATIENCE_NS,
    DRIFT,
    KERNEL,
    PAGE_BYTES,
    PTX,
    QUIT,
    ROUNDS,
    ClockLog,
    DeviceClock,
    PingPong,
    combine,
    host_clocks,
    pair,
)

NOW = 1_764_000_000_000_000_000


# -------------------------------------------------------------------------------------------------------- the bounds
@st.composite
def measurements(draw: st.DrawFn) -> tuple[list[calibrate.Round], int]:
    """Rounds with any delays either way, and the true offset at their middle. The clocks drift by up to 50 ppm."""
    offset = draw(st.integers(-(10**9), 10**9))
    ppm = draw(st.integers(-50, 50))
    at, rounds, begun = NOW, [], NOW
    for _ in range(draw(st.integers(4, 40))):
        there, back = draw(st.integers(0, 20_000)), draw(st.integers(0, 20_000))
        true = at + there
        timer = true - offset - (true - begun) * ppm // 1_000_000
        rounds.append((at, timer // 32 * 32, true + back))
        at = true + back + draw(st.integers(0, 2_000))
    middle = (rounds[0][0] + rounds[-1][2]) // 2
    return rounds, offset + (middle - begun) * ppm // 1_000_000


@given(measurements())
def test_the_true_offset_lies_within_the_uncertainty(made: tuple[list[calibrate.Round], int]) -> None:
    rounds, true = made
    found = combine(rounds)
    assert found is not None
    offset, uncertainty = found
    assert abs(offset - true) <= uncertainty + 2
    # No round is shorter than what is claimed.
    shortest = min(t1 - t0 for t0, _, t1 in rounds)
    assert uncertainty <= (shortest + 33) / 2 + DRIFT * (rounds[-1][2] - rounds[0][0])


def test_all_rounds_together_bound_better_than_the_shortest() -> None:
    quick_there, quick_back = (0, 96, 10_100), (20_000, 30_000, 30_100)
    offset, uncertainty = combine([quick_there, quick_back]) or (0, 0.0)
    assert (offset, uncertainty) == ((-96 - 32 + 100) // 2, 229 / 2 + DRIFT * 30_100)


def test_a_clock_that_was_set_meanwhile_gives_nothing() -> None:
    rounds = [(k * 1000, k * 1000 + 480, k * 1000 + 1000) for k in range(4)]
    stepped = [(t0 + 10**6, g, t1 + 10**6) for t0, g, t1 in rounds]
    assert combine(rounds) is not None
    assert combine(rounds + stepped) is None
    assert pair(rounds + stepped, (0, 0)) is None


def test_a_pair_is_one_moment_on_three_clocks() -> None:
    rounds = [(NOW + k * 1000, NOW + k * 1000 + 480 - 7_000_000, NOW + k * 1000 + 992) for k in range(10)]
    found = pair(rounds, (NOW - 50, 1_000_000))
    assert found is not None
    assert found.rounds == 10
    assert found.host_unix_ns - NOW == (9 * 1000 + 992) // 2
    assert found.host_monotonic_ns - 1_000_000 == found.host_unix_ns - (NOW - 50)
    assert found.host_unix_ns - found.globaltimer_ns == 7_000_000
    assert pair(rounds[:3], (NOW, 0)) is None


def test_the_hosts_clocks_are_read_together() -> None:
    before = time.time_ns() - time.monotonic_ns()
    real, monotonic = host_clocks()
    assert abs(real - monotonic - before) < 20_000_000


# -------------------------------------------------------------------------------------------------- the host's side
AHEAD = 123_456_789
"""The made-up device's timer is behind the host's clock by this."""


@contextmanager
def other_side(rounds: int, pause_before: int = 0) -> Iterator[PingPong]:
    """A page with a process at its other side, which answers as the kernel does, and stops before a round."""
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    child = os.fork()
    if child == 0:
        answers = np.frombuffer(memory, np.uint64)
        command = ctypes.c_uint32.from_address(address)
        answers[1] = 1
        deadline = time.monotonic() + 60
        for number in range(1, rounds + 1):
            while command.value < number:
                os.sched_yield()
                if time.monotonic() > deadline:
                    os._exit(2)
            if number == pause_before:
                os._exit(0)
            answers[1 + number] = (time.time_ns() - AHEAD) // 32 * 32
        os._exit(0)
    try:
        yield PingPong(address, rounds)
    finally:
        assert os.waitpid(child, 0)[1] == 0


def test_the_host_plays_against_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "ROUND_NS", 10**9)  # the machine may be busy
    with other_side(10) as page:
        assert page.begun(30)
        rounds = page.play()
    assert len(rounds) == 10
    found = pair(rounds, host_clocks())
    assert found is not None
    assert abs(found.host_unix_ns - found.globaltimer_ns - AHEAD) <= found.uncertainty_ns
    assert 0 < found.uncertainty_ns < 10_000_000


def test_the_host_gives_up_where_no_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "ROUND_NS", 200_000_000)
    with other_side(10, pause_before=6) as page:
        assert page.begun(30)
        begun = time.monotonic()
        assert len(page.play()) == 5
        assert time.monotonic() - begun < 5


def test_the_host_gives_up_where_nothing_begins() -> None:
    memory = (ctypes.c_uint64 * (PAGE_BYTES // 8))()
    begun = time.monotonic()
    assert not PingPong(ctypes.addressof(memory)).begun(0.01)
    assert time.monotonic() - begun < 1


# ------------------------------------------------------------------------------------------------ the device's side
def answers(command: int) -> np.ndarray:
    """What the kernel writes where the host's command stands already."""
    device = Device()
    page = device.alloc(np.array([command] + [0] * (ROUNDS + 1), np.uint64))
    device.load(PTX).kernel(KERNEL).launch(1, 1, [page])
    return page.read()[1:]


def test_the_kernel_answers_every_round_with_its_timer() -> None:
    found = answers(ROUNDS)
    assert (found % 32 == 0).all()
    assert (found > 0).all()
    assert (np.diff(found.astype(np.int64)) >= 0).all()


@pytest.mark.parametrize("rounds", [0, 5])
def test_the_kernel_ends_by_itself_where_no_round_comes(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = f", {DEVICE_PATIENCE_NS};"
    assert patient in PTX
    monkeypatch.setitem(globals(), "PTX", PTX.replace(patient, ", 20000;"))
    found = answers(rounds)
    assert np.count_nonzero(found) == 1 + rounds
    assert (found[: 1 + rounds] > 0).all()


def test_a_kernel_that_begins_too_late_ends_at_once() -> None:
    assert (answers(QUIT) > 0).all()


# ------------------------------------------------------------------------------------------------------- the driver
class FakeDriver:
    """Stands for the driver module: one page, a stream that is idle once its kernel has run."""

    def __init__(self) -> None:
        self.page = (ctypes.c_uint64 * (PAGE_BYTES // 8))()
        self.launches = 0
        self.pending = False
        self.bounds: tuple[int, int] | None = None

    def call(self, name: str, *args: Any) -> Any:
        if name == "cuLaunchKernel":
            self.launches += 1
            assert args[1:7] == (1,) * 6
            assert ctypes.c_void_p.from_address(args[9]).value is not None
            if self.bounds is None:
                self.pending = True
            else:
                self.page[1] = 1
        if name == "cuCtxGetStreamPriorityRange":
            return 0, -5
        if name in ("cuMemHostAlloc", "cuMemHostGetDevicePointer"):
            return ctypes.addressof(self.page)
        if name == "cuStreamCreateWithPriority":
            assert args == (1, -5)
        return name


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    cuda = FakeDriver()

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    def query(stream: Any) -> tuple[int]:
        return (600 if cuda.pending else 0,)

    bindings = SimpleNamespace(
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
        CUresult=SimpleNamespace(CUDA_ERROR_NOT_READY=600),
        CU_MEMHOSTALLOC_DEVICEMAP=2,
        cuStreamQuery=query,
    )
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    monkeypatch.setattr(driver, "call", cuda.call)
    monkeypatch.setattr(driver, "check", lambda name, result: None)
    monkeypatch.setattr(driver, "relaxed_capture", nothing)
    monkeypatch.setattr(driver, "current", nothing)
    return cuda


def test_behind_a_full_device_a_try_is_given_up_and_let_go(fake: FakeDriver) -> None:
    clock = DeviceClock("context")
    begun = time.monotonic()
    assert clock.measure(0.005) is None
    assert time.monotonic() - begun < 1
    assert fake.page[0] == QUIT  # when it begins at last it ends at once
    assert clock.measure(0.005) is None
    assert fake.launches == 1  # the first still waits: no second behind it


class FakeWriter:
    def __init__(self) -> None:
        self.clocks: list[tuple[Any, ...]] = []
        self.problems: list[str] = []

    def add_clock(self, *values: Any) -> None:
        self.clocks.append(values)

    def add_problem(self, text: str) -> None:
        self.problems.append(text)


def test_pairs_go_to_the_capture() -> None:
    found = calibrate.ClockPair(NOW, 5, NOW - 100, 700.0, 100)
    writer: Any = FakeWriter()
    clock: Any = SimpleNamespace(measure=lambda patience: found)
    clocks = ClockLog(3, lambda: clock, writer)
    clocks.note()
    clocks.close()
    assert writer.clocks == [(3, NOW, NOW - 100, 700.0, 5)] * 2
    assert writer.problems == []


def test_a_device_without_any_pair_is_reported() -> None:
    def broken() -> DeviceClock:
        raise driver.DriverError("cuModuleLoadData", 222, "unsupported PTX")

    writer: Any = FakeWriter()
    clocks = ClockLog(0, broken, writer)
    clocks.note()
    assert writer.problems == []
    clocks.close()
    (text,) = writer.problems
    assert "device 0 was not compared" in text
    assert "unsupported PTX" in text


# ------------------------------------------------------------------------------------------------------------ ranks
def test_ranks_of_launchers() -> None:
    assert ranks({}) == {"rank": None, "local_rank": None, "world_size": None}
    assert ranks({"RANK": "12", "LOCAL_RANK": "4", "WORLD_SIZE": "16", "SLURM_PROCID": "1"}) == {
        "rank": 12, "local_rank": 4, "world_size": 16,
    }  # fmt: skip
    assert ranks({"SLURM_PROCID": "1", "RANK": "first"})["rank"] == 1
