"""Compares the timers of devices that see each other, as long as a recording lasts: of one process, and of several on a
host (one process a GPU).

The first device of a process answers its others. Among the first devices of a recording's processes the one with the
least UUID, the *hub*, answers the others. Nothing is agreed upon: each process sees in the folder of captures which
trace memory is offered (:mod:`.offer`), and maps the other's mailboxes through it. Hub and asker meet on the host
before either starts a kernel.
"""

from __future__ import annotations

import json
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import wire
from ..errors import WarptraceError
from ..raw import CaptureWriter
from ..raw.format import MANIFEST_NAME
from . import driver, peer_clocks
from .log import log
from .offer import Offer, offers_in
from .peer_clocks import LAST_PATIENCE_S, PATIENCE_S, TAG_ROUNDS, PeerClock, PeerPair, device_pair

PERIOD_NS = 500_000_000
"""From one comparison to the next. All processes look at multiples of it on CLOCK_MONOTONIC."""
SPARSE_AFTER = 1024
"""After so many comparisons the period of a pair of devices is doubled, and again after as many."""
MEETING_S = 0.02
"""So long hub and asker wait for each other on the host."""
LOOK_S = 100e-6
MOST_PEERS = wire.MAILBOX_COUNT - 4
"""Of a host: the last mailboxes are for ping-pongs within a device."""
MEETING_NAME = "peers.bin"
"""File in a capture directory while its process runs: a word for each peer, the number of the meeting waited for."""
JOIN_S = 0.5


class MeetingPlace:
    """Where two processes wait for each other before they start kernels. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / MEETING_NAME
        with open(self.path, "wb") as file:
            file.write(bytes(4 * wire.MAILBOX_COUNT))
        self._own = self._open(self.path)
        self._others: dict[Path, Any] = {}

    @staticmethod
    def _open(path: Path) -> Any:
        with open(path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 4 * wire.MAILBOX_COUNT), np.uint32)

    def meet(self, other: Path, place: int, number: int, patience_s: float) -> bool:
        """Whether the process of the capture directory ``other`` has come to ``place`` too, for the same ``number``."""
        try:
            if other not in self._others:
                self._others[other] = self._open(other / MEETING_NAME)
        except (OSError, ValueError):
            return False  # not there yet, or gone
        there = self._others[other]
        deadline = time.monotonic() + patience_s
        self._own[place] = number
        while there[place] != number:
            if time.monotonic() > deadline:
                self._own[place] = 0
                return False
            time.sleep(LOOK_S)
        return True

    def close(self) -> None:
        """Removes the file."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True)
class Member:
    """A process of the host and the device that stands for it. ``directory``: that of its capture."""

    directory: Path
    offer: Offer


def members(directory: Path, machines: dict[Path, str]) -> list[Member]:
    """One for each GPU of this host that a process of the recording offers first, by UUID: the first is the hub.

    ``directory``: the capture of this process; ``machines``: what is known of others already.
    """
    found: dict[str, Member] = {}
    here = _machine(directory, machines)
    for folder in sorted(directory.parent.glob("pid_*"), key=lambda path: (len(path.name), path.name)):
        if here is None or _machine(folder, machines) != here:
            continue
        with suppress(OSError, ValueError, IndexError):
            offer = Offer.read(min(offers_in(folder), key=lambda path: (len(path.name), path.name)))
            found.setdefault(offer.uuid, Member(folder, offer))
    return [found[uuid] for uuid in sorted(found)][: MOST_PEERS + 1]


def _machine(folder: Path, machines: dict[Path, str]) -> str | None:
    """What tells the machine of a capture, None where it cannot be read now."""
    if folder not in machines:
        try:
            manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
            machines[folder] = str(manifest.get("boot") or manifest.get("host", ""))
        except (OSError, ValueError, AttributeError):
            return None
    return machines[folder]


@dataclass(frozen=True)
class _Device:
    """``clock`` makes or finds its clock, which a process with one device and without peers never needs."""

    ordinal: int
    uuid: str
    clock: Callable[[], PeerClock]


class PeerLog:
    """Writes pairs of devices' timers into a capture, from a thread of its own. ``recording``: whether it is on.

    A fault is no fault of the program's: what could not be compared is aligned through the host's clock.
    """

    def __init__(self, directory: Path, writer: CaptureWriter, recording: Callable[[], bool]) -> None:
        self._directory = directory
        self._writer = writer
        self._recording = recording
        self._lock = threading.Lock()
        self._devices: list[_Device] = []
        self._pairs: dict[tuple[int, int], Callable[[float], PeerPair | None] | None] = {}
        self._place: MeetingPlace | None = None
        self._file: MeetingPlace | None = None
        self._machines: dict[Path, str] = {}
        self._mailboxes: dict[str, int | None] = {}
        self._counts: dict[tuple[int, str], int] = {}
        self._wake = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def add(self, ordinal: int, uuid: str, clock: Callable[[], PeerClock] | None) -> None:
        """A device of this process records from now on. ``clock`` makes or finds its clock; None: it has none."""
        if clock is None or not uuid or self._ended:
            return
        self._devices.append(_Device(ordinal, uuid, clock))
        try:
            if self._file is None:
                self._place = self._file = MeetingPlace(self._directory)
        except OSError as e:
            log("info", f"this process is compared with others through the host only: {e}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="warptrace-peers", daemon=True)
            self._thread.start()
        elif len(self._devices) > 1:
            self._wake.set()

    def note(self, patience_s: float = PATIENCE_S, tick: int = 0) -> None:
        """Compares the devices of this process with each other now. ``tick``: leaves out those whose turn it is not."""
        if len(self._devices) < 2:
            return
        with self._lock:
            first, *others = list(self._devices)
            for one in others:
                if self._turn(one, first.uuid, tick):
                    self._note_pair(one, first, patience_s)

    def close(self) -> None:
        """The last comparison of this process's devices."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if not self._thread.is_alive():
                self.note(LAST_PATIENCE_S)
        if self._file is not None:
            self._file.close()

    # ------------------------------------------------------------------------------------------------- the thread
    def _run(self) -> None:
        try:
            driver.relax_thread()  # a graph may be captured at any time
            while not self._ended:
                ahead = PERIOD_NS - time.monotonic_ns() % PERIOD_NS
                woken = self._wake.wait(ahead / 1e9)
                self._wake.clear()
                if self._ended or not self._recording():
                    continue
                tick = (time.monotonic_ns() + PERIOD_NS // 2) // PERIOD_NS
                self.note(tick=0 if woken else tick)
                if not woken and self._place is not None:
                    try:
                        self._note_others(tick, self._place)
                    except WarptraceError as e:  # its context is dead
                        self._place = None
                        log("info", f"this process is not compared with others any more: {e}")
        except Exception as e:  # the host's clock is left
            log("info", f"devices are not compared with each other any more: {e}")

    def _turn(self, asker: _Device, peer: str, tick: int) -> bool:
        """Whether two devices are compared now: seldom where they were often."""
        return tick % (1 << self._counts.get((asker.ordinal, peer), 0) // SPARSE_AFTER) == 0

    def _note_pair(self, asker: _Device, answerer: _Device, patience_s: float) -> None:
        key = (asker.ordinal, answerer.ordinal)
        if key not in self._pairs:
            try:
                self._pairs[key] = device_pair((asker.ordinal, asker.clock()), (answerer.ordinal, answerer.clock()))
            except WarptraceError as e:
                self._pairs[key] = None
                log("info", f"devices {key[0]} and {key[1]} are compared through the host only: {e}")
        measure = self._pairs[key]
        if measure is None:
            return
        try:
            found = measure(patience_s)
        except WarptraceError as e:
            self._pairs[key] = None
            log("info", f"devices {key[0]} and {key[1]} are not compared any more: {e}")
            return
        self._write(asker, answerer.uuid, found)

    def _write(self, asker: _Device, peer: str, found: PeerPair | None) -> None:
        if found is None:
            log("debug", f"device {asker.ordinal}: no pair with a peer's timer now")
            return
        self._counts[asker.ordinal, peer] = self._counts.get((asker.ordinal, peer), 0) + 1
        self._writer.add_peer_clock(
            asker.ordinal, peer, found.globaltimer_ns, found.peer_globaltimer_ns, found.uncertainty_ns,
            found.round_trip_ns, found.least_ns, found.flights_ns,
        )  # fmt: skip
        log(
            "debug",
            f"timers of device {asker.ordinal} and {peer}: good to {found.uncertainty_ns:.0f} ns, round trip "
            f"{found.round_trip_ns} ns, {found.rounds} rounds",
        )

    # --------------------------------------------------------------------------------------------- other processes
    def _note_others(self, tick: int, place: MeetingPlace) -> None:
        """Compares the first device of this process with that of others, where it is the turn of both."""
        group = members(self._directory, self._machines)
        mine = next((at for at, member in enumerate(group) if member.directory == self._directory), None)
        if mine is None or len(group) < 2:
            return
        own = next((one for one in self._devices if one.ordinal == group[mine].offer.ordinal), None)
        if own is None:
            return
        tag = tick * TAG_ROUNDS & 0xFFFFFFFF or TAG_ROUNDS
        clock = own.clock()
        with self._lock, clock.busy:
            if mine == 0:
                self._answer(clock, group[1:], tag, place)
            else:
                self._ask(own, clock, group[0], mine - 1, tag, tick, place)

    def _answer(self, clock: PeerClock, askers: Sequence[Member], tag: int, meeting: MeetingPlace) -> None:
        if not clock.idle():
            return
        least = clock.least()
        for place, asker in enumerate(askers):
            there = self._mailbox(clock, asker.offer, place)
            if there is None or not clock.gone():
                continue
            if meeting.meet(asker.directory, place, tag, MEETING_S):
                clock.answer(there, clock.mailbox(place), tag, note=least)

    def _ask(
        self, own: _Device, clock: PeerClock, hub: Member, place: int, tag: int, tick: int, meeting: MeetingPlace
    ) -> None:
        there = self._mailbox(clock, hub.offer, place)
        if not self._turn(own, hub.offer.uuid, tick) or there is None or not clock.idle():
            return
        if not meeting.meet(hub.directory, place, tag, MEETING_S * (place + 2)):
            return
        clock.ask(clock.mailbox(place), there, tag)
        told = clock.rows()
        if told is not None:
            rows, note = told
            self._write(own, hub.offer.uuid, peer_clocks.pair(rows, min(note, clock.least())))

    def _mailbox(self, clock: PeerClock, offer: Offer, place: int) -> int | None:
        """Address of a mailbox of another process's device, as this one sees it; None where it does not."""
        if offer.handle not in self._mailboxes:
            try:
                with driver.relaxed_capture(), driver.current(clock.context):
                    self._mailboxes[offer.handle] = driver.open_shared(bytes.fromhex(offer.handle)) + offer.offset
            except WarptraceError as e:
                self._mailboxes[offer.handle] = None
                log("info", f"the GPU of process {offer.pid} is compared through the host only: {e}")
        control = self._mailboxes[offer.handle]
        return None if control is None else control + wire.MAILBOXES_OFFSET + place * wire.MAILBOX_BYTES
