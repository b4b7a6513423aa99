"""The ping-pong between two devices' timers: the bounds, the device's PTX, who meets whom."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace.emulator import Device
from warptrace.raw import CaptureWriter
from warptrace.runtime import driver, peer_clocks, peers
from warptrace.runtime.offer import Offer
from warptrace.runtime.peer_clocks import (
    DITHER,
    KERNEL,
    LEAST_SHARE,
    MEETING_NS,
    PAGE_WORDS,
    PTX,
    ROUNDS,
    SECTION_WORDS,
    TIMER_NS,
    WAYS,
    PeerClock,
    PeerPair,
    Rows,
    device_pair,
    least_flight,
    pair,
    read_page,
)
from warptrace.runtime.peers import MeetingPlace, PeerLog, members
from warptrace.wire import ARENA_OFFSET, MAILBOX_BYTES, MAILBOX_COUNT, MAILBOX_WAY_BYTES, MAILBOXES_OFFSET

NOW = 1_764_000_000_000_000_000


# -------------------------------------------------------------------------------------------------------- the bounds
@st.composite
def measurements(draw: st.DrawFn) -> tuple[Rows, int, int]:
    """Rounds with any delays either way from ``least`` on, that, and the asker's timer less the answerer's at their
    middle. The timers part by up to 100 ppm."""
    ahead = draw(st.integers(-(10**12), 10**12))
    ppm = draw(st.integers(-100, 100))
    least = draw(st.integers(0, 500))
    true, rows = NOW, []
    for _ in range(draw(st.integers(4, 40))):
        there, back = least + draw(st.integers(0, 2000)), least + draw(st.integers(0, 2000))
        answer = true + there - ahead - (true + there - NOW) * ppm // 1_000_000
        rows.append([x // 32 * 32 for x in (true, answer, true + there + back)])
        true += there + back + draw(st.integers(0, 1000))
    before, answered, after = np.array(rows, np.int64).T
    middle = (int(before[0]) + int(after[-1])) // 2
    return (before, answered, after), least, ahead + (middle - NOW) * ppm // 1_000_000


@settings(deadline=None)
@given(measurements())
def test_the_true_difference_lies_within_the_uncertainty(made: tuple[Rows, int, int]) -> None:
    rows, least, true = made
    for known in (0, least):
        found = pair(rows, known)
        assert found is not None
        assert abs(found.globaltimer_ns - found.peer_globaltimer_ns - true) <= found.uncertainty_ns + 2
        assert found.round_trip_ns == int((rows[2] - rows[0]).min())
        assert found.least_ns == min(known, int(LEAST_SHARE * found.round_trip_ns))


def test_a_least_flight_narrows_the_bounds_from_both_sides() -> None:
    before = NOW // 32 * 32 + 1024 * np.arange(100)
    rows = (before, before + 480 + 32 * (np.arange(100) % 2), before + 992)
    without, with_least = pair(rows), pair(rows, 300)
    assert without is not None
    assert with_least is not None
    assert without.uncertainty_ns - with_least.uncertainty_ns == pytest.approx(300)
    assert with_least.flights_ns == 480 + 480  # there in even rounds, back in odd ones
    # Nothing but the steps is left, and of two timers that no SM agrees on to more than TIMER_NS.
    rest = with_least.uncertainty_ns - (with_least.flights_ns / 2 - with_least.least_ns)
    assert rest == pytest.approx(32 + 1 + 2 * TIMER_NS, abs=12)
    # (round trip + two steps - what the steps' phases tell) / 2
    assert without.uncertainty_ns == pytest.approx((992 + 64 - 32) / 2 + 1 + 2 * TIMER_NS, abs=2)


def test_rounds_that_no_two_clocks_can_have_give_nothing() -> None:
    before = NOW // 32 * 32 + 1024 * np.arange(10)
    answer = before + 480
    assert pair((before[:3], answer[:3], before[:3] + 992)) is None
    answer[5:] += 1_000_000
    assert pair((before, answer, before + 992)) is None


# ------------------------------------------------------------------------------------------------ the device's side
def played(rounds: int, *, ctas: int = 2 * WAYS, role: int = 0, tag: int = 1 << 31) -> tuple[np.ndarray, np.ndarray]:
    """(page, mailboxes (WAYS, 8): a way's asker's, then its answerer's) after the kernel ran alone on a device."""
    device = Device()
    page = device.alloc(np.zeros(PAGE_WORDS, np.uint64))
    boxes = device.alloc(np.zeros(WAYS * MAILBOX_WAY_BYTES // 8, np.uint64))
    patience = 20_000 if ctas == WAYS else MEETING_NS
    arguments = [boxes.address, boxes.address + 32, page, patience, 777, role, tag, rounds]
    device.load(PTX).kernel(KERNEL).launch(ctas, 1, arguments)
    return page.read(), boxes.read().reshape(WAYS, -1)[:, :8]


@pytest.mark.parametrize("rounds", [ROUNDS, 5])
def test_all_ways_play_all_rounds(rounds: int) -> None:
    page, _ = played(rounds)
    sections = page.reshape(WAYS, SECTION_WORDS)
    assert sections[:, [0, 2]].tolist() == [[1 + rounds, 777]] * WAYS
    rows = read_page(page)
    before, answer, after = (column.reshape(WAYS, rounds) for column in rows)
    assert ((before <= answer) & (answer <= after)).all()
    assert (after[:, :-1] <= before[:, 1:]).all()
    assert not sections[:, 3 + 3 * rounds :].any()
    found = pair(rows, least_flight(rows))
    assert found is not None
    assert found.rounds == WAYS * rounds
    assert abs(found.globaltimer_ns - found.peer_globaltimer_ns) <= found.uncertainty_ns
    assert 0 < least_flight(rows) < int((rows[2] - rows[0]).min()) / 2


def test_rounds_begin_at_any_moment() -> None:
    """So that a message comes at any moment between two looks: pauses from 0 to DITHER cycles."""
    before, _, after = (column.reshape(WAYS, ROUNDS) for column in read_page(played(ROUNDS)[0]))
    pauses = before[:, 1:] - after[:, :-1]
    assert np.ptp(pauses) >= DITHER / 2.5  # ns, of a clock of 2 GHz


def test_an_asker_alone_ends_by_itself() -> None:
    page, boxes = played(7, ctas=WAYS)
    assert page.reshape(WAYS, SECTION_WORDS)[:, 0].tolist() == [1] * WAYS
    assert read_page(page)[0].shape == (0,)
    assert (boxes[:, 4] >> np.uint64(32)).tolist() == [(1 << 31) + 1] * WAYS  # its first message


def test_an_answerer_alone_ends_by_itself() -> None:
    page, boxes = played(7, ctas=WAYS, role=1)
    assert not page.any()
    assert not boxes[:, 0].any()
    assert (boxes[:, 1] > 10**18).all()
    assert (boxes[:, 2] == 777).all()


def test_an_answerers_timer_is_made_whole() -> None:
    """Its low half may wrap between its begin and an answer."""
    page = np.zeros(PAGE_WORDS, np.uint64)
    begin = (5 << 32) - 64
    way = SECTION_WORDS  # the second
    page[way : way + 6] = [2, begin, 0, 1000, 32, 2000]
    assert [column.tolist() for column in read_page(page)] == [[1000], [(5 << 32) + 32], [2000]]
    page[way + 4] = (1 << 32) - 32
    assert int(read_page(page)[1][0]) == begin + 32


# --------------------------------------------------------------------------------------------- the driver's calls
class EmulatedDriver:
    """Stands for the driver module. Kernels run on the emulator; an answer waits for the ask that it belongs to."""

    def __init__(self) -> None:
        self.device = Device()
        self.pages: list[tuple[Any, Any]] = []
        self.control = self.device.alloc(np.zeros(ARENA_OFFSET // 8, np.uint64))
        self.shared = [self.device.alloc(np.zeros(2 << 17, np.uint64)) for _ in range(2)]
        self.answers: list[list[int]] = []
        self.access: list[tuple[int, list[int]]] = []
        self.made = 0
        self.blocked = False

    def call(self, name: str, *args: Any) -> Any:
        if name == "cuMemHostAlloc":
            host = (ctypes.c_uint64 * PAGE_WORDS)()
            self.pages.append((host, self.device.alloc(np.zeros(PAGE_WORDS, np.uint64))))
            return ctypes.addressof(host)
        answer = {
            "cuMemHostGetDevicePointer": lambda: self.pages[-1][1].address,
            "cuCtxGetStreamPriorityRange": lambda: (0, -5),
            "cuDeviceCanAccessPeer": lambda: 1,
            "cuMemGetAllocationGranularity": lambda: 2 << 20,
            "cuMemAddressReserve": self._reserve,
            "cuLaunchKernel": lambda: self._launch(*args),
            "cuMemSetAccess": lambda: self.access.append((args[1], [one.location.id for one in args[2]])),
        }.get(name)
        return name if answer is None else answer()

    def _reserve(self) -> int:
        self.made += 1
        return self.shared[self.made - 1].address

    def _launch(self, function: Any, *rest: Any) -> None:
        ctas, parameters = rest[0], (ctypes.c_void_p * 8).from_address(rest[8])
        assert rest[1:6] == (1,) * 5
        kinds = [ctypes.c_uint64] * 5 + [ctypes.c_uint32] * 3
        values = [kind.from_address(at).value for kind, at in zip(kinds, parameters, strict=True)]
        if values[5] == peer_clocks.ANSWER:
            self.answers.append(values)
            return
        if self.blocked:
            return
        if ctas == WAYS:  # the other side is what was started before
            answer = self.answers.pop(0)
            assert answer[:2] + answer[6:] == values[:2] + values[6:]
            values[4] = answer[4]
        (host, page) = next(one for one in self.pages if one[1].address == values[2])
        self.device.load(PTX).kernel(KERNEL).launch(2 * WAYS, 1, values)
        told = page.read()
        ctypes.memmove(host, told.ctypes.data, 8 * PAGE_WORDS)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedDriver:
    bindings = pytest.importorskip("cuda.bindings.driver")
    made = EmulatedDriver()
    fake = SimpleNamespace(**{name: getattr(bindings, name) for name in (
        "CUstream_flags", "CUresult", "CU_MEMHOSTALLOC_DEVICEMAP", "CUmemLocationType", "CUmemAllocationProp",
        "CUmemAllocationType", "CUmemAllocationGranularity_flags", "CUmemAccessDesc", "CUmemAccess_flags",
    )}, cuStreamQuery=lambda stream: (bindings.CUresult.CUDA_SUCCESS,))  # fmt: skip
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    monkeypatch.setattr(driver, "call", made.call)
    monkeypatch.setattr(driver, "check", lambda name, result: None)
    monkeypatch.setattr(driver, "relaxed_capture", nullcontext)
    monkeypatch.setattr(driver, "current", lambda context: nullcontext())
    return made


def test_two_devices_of_a_process_are_measured(emulated: EmulatedDriver) -> None:
    """What is launched is what the kernel takes: its parameters go through the emulator."""
    clocks = [PeerClock(f"context {k}", emulated.control.address) for k in range(2)]
    assert clocks[0].mailbox(3) - emulated.control.address == MAILBOXES_OFFSET + 3 * MAILBOX_BYTES
    last = clocks[0].mailbox(MAILBOX_COUNT - 1) + (WAYS - 1) * MAILBOX_WAY_BYTES + MAILBOX_BYTES
    assert last <= emulated.control.address + ARENA_OFFSET
    measure = device_pair((1, clocks[1]), (0, clocks[0]))
    assert emulated.access == [(2 << 20, [1, 0]), (2 << 20, [1, 0])]
    for _ in range(2):
        found = measure(1.0)
        assert found is not None
        assert found.rounds == WAYS * ROUNDS
        assert 0 < found.least_ns <= LEAST_SHARE * found.round_trip_ns
        assert abs(found.globaltimer_ns - found.peer_globaltimer_ns) <= found.uncertainty_ns
    assert emulated.answers == []


def test_a_device_that_does_not_begin_is_given_up(emulated: EmulatedDriver) -> None:
    clocks = [PeerClock(f"context {k}", emulated.control.address) for k in range(2)]
    measure = device_pair((1, clocks[1]), (0, clocks[0]))
    emulated.blocked = True
    begun = time.monotonic()
    assert measure(0.005) is None
    assert time.monotonic() - begun < 5


def test_ways_that_found_no_place_in_time_are_left_out(emulated: EmulatedDriver) -> None:
    """A device that has room for some of the CTAs only: these tell."""
    clock = PeerClock("context", emulated.control.address)
    emulated.blocked = True
    clock.ask(0, 0, 0)
    sections = clock._page.reshape(WAYS, SECTION_WORDS)
    sections[5, :9] = [3, NOW, 300, NOW, NOW & 0xFFFFFFFF, NOW + 960, NOW + 2000, NOW + 2480 & 0xFFFFFFFF, NOW + 2960]
    sections[6, :3] = [1, 7, 9]  # whose other side never came: what its mailbox held is no note
    told = clock.rows(0.005)
    assert told is not None
    (before, answer, after), note = told
    assert (before.tolist(), after.tolist(), note) == ([NOW, NOW + 2000], [NOW + 960, NOW + 2960], 300)
    assert answer.tolist() == [NOW, NOW + 2480]
    clock.ask(0, 0, 0)
    assert clock.rows(0.005) is None


# ------------------------------------------------------------------------------------------- processes of one host
def writer(directory: Path, boot: str = "B") -> CaptureWriter:
    return CaptureWriter(
        directory, pid=int(directory.name[4:]), argv=[], host="h", python="", warptrace="", dsl=None,
        started_unix_ns=0, place={"boot": boot},
    )  # fmt: skip


def offered(directory: Path, uuid: str, ordinal: int = 0) -> None:
    pid = int(directory.name[4:])
    Offer(pid, ordinal, uuid, f"{pid:02x}" * 64, 4096, 1 << 16, 1 << 14).write(directory)


def test_members_are_the_first_devices_of_this_host(tmp_path: Path) -> None:
    for pid, boot, uuid in ((9, "B", "c"), (10, "B", "a"), (11, "B", "c"), (12, "other", "b"), (13, "B", "b")):
        writer(tmp_path / f"pid_{pid}", boot)
        offered(tmp_path / f"pid_{pid}", uuid)
    offered(tmp_path / "pid_10", "d", ordinal=1)
    writer(tmp_path / "pid_14")  # has launched nothing yet
    found = members(tmp_path / "pid_10", {})
    assert [(x.offer.uuid, x.directory.name) for x in found] == [("a", "pid_10"), ("b", "pid_13"), ("c", "pid_9")]
    (tmp_path / "pid_13" / "device_0.ipc.json").write_text("{}")
    assert [x.offer.uuid for x in members(tmp_path / "pid_9", {})] == ["a", "c"]


def test_two_meet_where_both_come(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = MeetingPlace(tmp_path / "a"), MeetingPlace(tmp_path / "b")
    met: list[bool] = []
    thread = threading.Thread(target=lambda: met.append(other.meet(tmp_path / "a", 3, 1024, 20)))
    thread.start()
    assert one.meet(tmp_path / "b", 3, 1024, 20)
    thread.join()
    assert met == [True]
    begun = time.monotonic()
    assert not one.meet(tmp_path / "b", 3, 2048, 0.01)  # the other is still at 1024
    assert not one.meet(tmp_path / "b", 4, 1024, 0.01)  # or at another place
    assert not one.meet(tmp_path / "c", 3, 1024, 0.01)  # or never was
    assert time.monotonic() - begun < 5
    one.close()
    assert not (tmp_path / "a" / "peers.bin").exists()


class FakeClock:
    """A device's side, of a timer ``ahead`` of true time: what is asked in a tag is answered by who answers in it."""

    def __init__(self, ahead: int, table: dict[int, tuple[int, int]]) -> None:
        self.context = "context"
        self.busy = threading.RLock()
        self.ahead = ahead
        self.table = table
        self.asked: list[tuple[int, int, int]] = []
        self.answered: list[tuple[int, int, int]] = []

    def mailbox(self, number: int) -> int:
        return 100 * number

    def idle(self) -> bool:
        return True

    def gone(self) -> bool:
        return True

    def least(self) -> int:
        return 300

    def answer(self, asker: int, answerer: int, tag: int, *, note: int = 0) -> None:
        self.answered.append((asker, answerer, tag))
        self.table[tag] = (self.ahead, note)

    def ask(self, asker: int, answerer: int, tag: int) -> None:
        self.asked.append((asker, answerer, tag))

    def rows(self, patience_s: float = 0.0) -> tuple[Rows, int] | None:
        deadline = time.monotonic() + 2
        while self.asked[-1][2] not in self.table:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        ahead, note = self.table[self.asked[-1][2]]
        before = NOW + self.ahead + 1024 * np.arange(20)
        return (before, before + 512 - self.ahead + ahead, before + 1024), note


@pytest.fixture
def fake_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "relax_thread", lambda: None)
    monkeypatch.setattr(driver, "relaxed_capture", nullcontext)
    monkeypatch.setattr(driver, "current", lambda context: nullcontext())
    monkeypatch.setattr(driver, "open_shared", lambda handle: 1_000_000 * handle[0])
    # All waits of a turn end before the next one, as outside of tests: who misses a turn, as on a busy machine, is
    # there at the next. Longer ones would keep one process at a turn that the others have left.
    monkeypatch.setattr(peers, "PERIOD_NS", 200_000_000)
    monkeypatch.setattr(peers, "MEETING_S", 0.05)


def noted(out: CaptureWriter) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = out._manifest.get("peer_clocks", [])
    return found


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def late_once(seconds: float, wait: Callable[[float], bool]) -> Callable[[float], bool]:
    """Waits as ``wait`` does, but so much longer the first time."""
    rest = [seconds]

    def waits(timeout: float) -> bool:
        woken = wait(timeout)
        time.sleep(rest.pop() if rest else 0)
        return woken

    return waits


@pytest.mark.usefixtures("fake_driver")
@pytest.mark.parametrize("late", [0.0, 0.8])
def test_three_processes_are_compared_with_their_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: float
) -> None:
    """Also where one of them comes so late, of a period, that it counts itself to the next turn."""
    table: dict[int, tuple[int, int]] = {}
    logs, writers, clocks = [], [], []
    for number, uuid in enumerate(("b", "a", "c")):
        folder = tmp_path / f"pid_{number + 1}"
        writers.append(writer(folder))
        offered(folder, uuid)
        clock: Any = FakeClock(1000 * number, table)
        clocks.append(clock)
        logs.append(PeerLog(folder, writers[-1], lambda: True))
    wake = logs[0]._wake
    monkeypatch.setattr(wake, "wait", late_once(late * peers.PERIOD_NS / 1e9, wake.wait))
    for log, uuid, clock in zip(logs, "bac", clocks, strict=True):
        log.add(0, uuid, lambda clock=clock: clock)
    until(lambda: len(noted(writers[0])) >= 2 and len(noted(writers[2])) >= 2)
    for log in logs:
        log.close()
    pairs = list(map(noted, writers))
    assert pairs[1] == []
    assert {(x["device"], x["peer"], x["least_ns"]) for x in pairs[0] + pairs[2]} == {(0, "a", 300)}
    for found, number in ((pairs[0], 0), (pairs[2], 2)):
        ahead = 1000 * (number - 1)
        for one in found:
            assert abs(one["globaltimer_ns"] - one["peer_globaltimer_ns"] - ahead) <= one["uncertainty_ns"]
    # Mailboxes: the asker's own and that of the hub (process 2) as it maps it; the hub sees it the other way round.
    box = 4096 + MAILBOXES_OFFSET
    assert {x[:2] for x in clocks[0].asked} == {(0, 2_000_000 + box)}
    assert {x[:2] for x in clocks[2].asked} == {(100, 2_000_000 + box + MAILBOX_BYTES)}
    assert {x[:2] for x in clocks[1].answered} == {(1_000_000 + box, 0), (3_000_000 + box + MAILBOX_BYTES, 100)}
    assert not list(tmp_path.glob("*/peers.bin"))
    writers[0].flush()
    assert json.loads((tmp_path / "pid_1" / "manifest.json").read_text())["peer_clocks"] == pairs[0]


@pytest.mark.usefixtures("fake_driver")
def test_devices_of_one_process_are_compared_at_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []

    def make(asker: tuple[int, Any], answerer: tuple[int, Any]) -> Callable[[float], PeerPair | None]:
        assert (asker[0], answerer[0]) == (1, 0)

        def measure(patience_s: float) -> PeerPair | None:
            patience.append(patience_s)
            return PeerPair(NOW + 5, NOW, 240.0, 1000, 290, 960, 400)

        return measure

    monkeypatch.setattr(peers, "device_pair", make)
    monkeypatch.setattr(peers, "PERIOD_NS", 3_600_000_000_000)
    out = writer(tmp_path / "pid_1")
    log = PeerLog(tmp_path / "pid_1", out, lambda: True)
    for ordinal, uuid in enumerate("ab"):
        log.add(ordinal, uuid, lambda: SimpleNamespace())  # type: ignore[arg-type,return-value]
    until(lambda: len(patience) == 1)
    log.close()
    assert patience == [peer_clocks.PATIENCE_S, peer_clocks.LAST_PATIENCE_S]
    assert noted(out)[0] == {
        "device": 1, "peer": "a", "globaltimer_ns": NOW + 5, "peer_globaltimer_ns": NOW, "uncertainty_ns": 240.0,
        "round_trip_ns": 1000, "least_ns": 290, "flights_ns": 960,
    }  # fmt: skip


@pytest.mark.usefixtures("fake_driver")
def test_eight_devices_of_a_process_one_of_which_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are compared with the first, again and again; the dead one is asked once more and then left alone."""
    tries: list[int] = []

    def make(asker: tuple[int, Any], answerer: tuple[int, Any]) -> Callable[[float], PeerPair | None]:
        assert answerer[0] == 0

        def measure(patience_s: float) -> PeerPair | None:
            tries.append(asker[0])
            if asker[0] == 3 and tries.count(3) > 1:
                raise driver.DriverError("cuStreamQuery", 700, "an illegal memory access was encountered")
            return PeerPair(NOW + 1000 * asker[0], NOW, 240.0, 1000, 290, 960, 400)

        return measure

    monkeypatch.setattr(peers, "device_pair", make)
    monkeypatch.setattr(peers, "PERIOD_NS", 3_600_000_000_000)
    out = writer(tmp_path / "pid_1")
    log = PeerLog(tmp_path / "pid_1", out, lambda: True)
    monkeypatch.setattr(log, "_thread", threading.Thread())  # none of its own
    for ordinal, uuid in enumerate("abcdefgh"):
        log.add(ordinal, uuid, lambda: SimpleNamespace())  # type: ignore[arg-type,return-value]
    for _ in range(3):
        log.note()
    pairs = [(one["device"], one["peer"], one["globaltimer_ns"] - one["peer_globaltimer_ns"]) for one in noted(out)]
    assert sorted(pairs) == sorted([(k, "a", 1000 * k) for k in (1, 2, 4, 5, 6, 7)] * 3 + [(3, "a", 3000)])
    assert tries.count(3) == 2
    # Where there are many pairs already, every fourth turn will do.
    log._counts = dict.fromkeys(log._counts, 2 * peers.SPARSE_AFTER)
    tries.clear()
    for tick in range(1, 9):
        log.note(tick=tick)
    assert tries == [1, 2, 4, 5, 6, 7] * 2


@pytest.mark.usefixtures("fake_driver")
def test_devices_that_do_not_see_each_other_are_left_to_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def make(asker: tuple[int, Any], answerer: tuple[int, Any]) -> Callable[[float], PeerPair | None]:
        tries.append(asker[0])
        raise driver.DriverError("cuDeviceCanAccessPeer", 217, "no peer memory")

    monkeypatch.setattr(peers, "device_pair", make)
    out = writer(tmp_path / "pid_1")
    log = PeerLog(tmp_path / "pid_1", out, lambda: True)
    for ordinal, uuid in enumerate("ab"):
        log.add(ordinal, uuid, lambda: SimpleNamespace())  # type: ignore[arg-type,return-value]
    until(lambda: tries == [1])
    log.note()
    log.close()
    assert tries == [1]
    assert noted(out) == []
    assert out._manifest["problems"] == []
