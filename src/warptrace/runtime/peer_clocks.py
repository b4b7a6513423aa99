"""Two devices' %globaltimer against each other: a ping-pong of flags between kernels on both, through peer memory.

The *asker* stores a message into the other's mailbox and waits in its own; the *answerer* puts its timer into the
answer. A mailbox lies in the memory of the device that waits there, so that only stores cross the link. Every round
bounds how far the timers are apart, as in :mod:`.calibrate`, but by the link's latency instead of the host's. The
same ping-pong within one device, where the timers are one, tells how long a flag takes there at least; to another
device it takes longer, which narrows the bounds from both sides. The parts of a device's L2 cache are nearer to some of
its SMs than to others (H200: round trips of 0.96 to 1.3 us), so several pairs of CTAs play at once, each with mailboxes
of its own, and what all rounds together allow is that of the shortest ways.

Both sides end by themselves where the other does not come, or stays away; the host waits for neither longer than that.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import wire
from . import driver
from .calibrate import DRIFT, LEAST_ROUNDS, TIMER_STEP_NS
from .own_kernels import OwnKernel

WAYS = wire.MAILBOX_WAYS
"""Pairs of CTAs that play at once."""
ROUNDS = 32
"""Of each: the longer CTAs stay, the more kernels of the program that fill an SM they hold up."""
DITHER = 512
"""A round begins up to so many cycles late, so that messages come at any moment between two looks."""
MEETING_NS = 4_000_000
"""So long a side waits for the first message of the other: who waits for the device waits for this too."""
ROUND_NS = 1_000_000
"""So long for each further one."""
PATIENCE_S = 0.015
"""So long the host waits for the kernels to begin and end."""
LAST_PATIENCE_S = 0.1
LOOK_S = 50e-6
ENDS_S = 0.01
"""So long a kernel that has nothing more to wait for is given to be gone."""
APART = 2 * DRIFT
"""Most that two devices' timers part during a measurement of less than a ms."""
TIMER_NS = 8
"""%globaltimer as two SMs of a device read it agrees to this (H200: 6)."""
LEAST_SHARE = 0.4
"""A flag's least time is taken for no more than this share of the shortest round."""
TAG_ROUNDS = 1024
"""Tags of two measurements are so far apart: no message of an earlier one is taken for one of this."""

ASK, ANSWER = 0, 1
"""Roles. With twice as many CTAs as ways the first half asks and the second answers."""
SECTION_WORDS = 3 + 3 * ROUNDS
PAGE_WORDS = WAYS * SECTION_WORDS
KERNEL = "warptrace_peer_clocks"
PTX = f""".version 6.0
.target sm_60
.address_size 64

.visible .entry {KERNEL}(.param .u64 asker, .param .u64 answerer, .param .u64 page, .param .u64 patience,
                         .param .u64 note, .param .u32 role, .param .u32 tag, .param .u32 rounds)
{{
  .reg .pred %p<4>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<16>;
  .shared .align 8 .b8 rows[{ROUNDS * 24}];
  ld.param.u64 %rd0, [asker];
  ld.param.u64 %rd1, [answerer];
  ld.param.u64 %rd2, [page];
  ld.param.u64 %rd3, [patience];
  ld.param.u64 %rd4, [note];
  ld.param.u32 %r0, [role];
  ld.param.u32 %r1, [tag];
  ld.param.u32 %r2, [rounds];
  mov.u32 %r3, %ctaid.x;
  setp.lt.u32 %p0, %r3, {WAYS};
  @%p0 bra SIDE;
  sub.u32 %r3, %r3, {WAYS};
  mov.u32 %r0, {ANSWER};
SIDE:
  mul.wide.u32 %rd5, %r3, {wire.MAILBOX_WAY_BYTES};
  add.u64 %rd0, %rd0, %rd5;
  add.u64 %rd1, %rd1, %rd5;
  mul.wide.u32 %rd5, %r3, {8 * SECTION_WORDS};
  add.u64 %rd2, %rd2, %rd5;
  add.u32 %r2, %r1, %r2;
  mov.u32 %r4, %r1;
  setp.eq.u32 %p0, %r0, {ANSWER};
  @%p0 bra ANSWERER;

  mov.u32 %r5, rows;
ASK:
  add.u32 %r4, %r4, 1;
  mov.b64 %rd6, {{%r5, %r4}};
  mul.lo.u32 %r9, %r4, 0x9E3779B1;
  shr.u32 %r9, %r9, 16;
  and.b32 %r9, %r9, {DITHER - 1};
  cvt.u64.u32 %rd9, %r9;
  mov.u64 %rd8, %clock64;
DITHER:
  mov.u64 %rd14, %clock64;
  sub.u64 %rd14, %rd14, %rd8;
  setp.lt.u64 %p1, %rd14, %rd9;
  @%p1 bra DITHER;
  mov.u64 %rd5, %globaltimer;
  st.volatile.shared.u64 [%r5], %rd5;
  st.volatile.u64 [%rd1], %rd6;
ASK_WAIT:
  ld.volatile.u64 %rd7, [%rd0];
  mov.b64 {{%r6, %r7}}, %rd7;
  setp.eq.u32 %p1, %r7, %r4;
  @%p1 bra ASK_GOT;
  mov.u64 %rd8, %globaltimer;
  sub.u64 %rd8, %rd8, %rd5;
  setp.gt.u64 %p2, %rd8, %rd3;
  @%p2 bra ASK_LATE;
  bra ASK_WAIT;
ASK_GOT:
  mov.u64 %rd8, %globaltimer;
  st.volatile.shared.u64 [%r5+16], %rd8;
  cvt.u64.u32 %rd9, %r6;
  st.volatile.shared.u64 [%r5+8], %rd9;
  add.u32 %r5, %r5, 24;
  mov.u64 %rd3, {ROUND_NS};
  setp.ne.u32 %p3, %r4, %r2;
  @%p3 bra ASK;
  bra TELL;
ASK_LATE:
  sub.u32 %r4, %r4, 1;
TELL:
  sub.u32 %r4, %r4, %r1;
  ld.volatile.u64 %rd10, [%rd0+8];
  ld.volatile.u64 %rd11, [%rd0+16];
  st.volatile.u64 [%rd2+8], %rd10;
  st.volatile.u64 [%rd2+16], %rd11;
  mul.lo.u32 %r8, %r4, 3;
  mov.u32 %r5, rows;
  add.u64 %rd12, %rd2, 24;
COPY:
  setp.eq.u32 %p0, %r8, 0;
  @%p0 bra TOLD;
  ld.volatile.shared.u64 %rd13, [%r5];
  st.volatile.u64 [%rd12], %rd13;
  add.u32 %r5, %r5, 8;
  add.u64 %rd12, %rd12, 8;
  sub.u32 %r8, %r8, 1;
  bra COPY;
TOLD:
  membar.sys;
  add.u32 %r4, %r4, 1;
  cvt.u64.u32 %rd13, %r4;
  st.volatile.u64 [%rd2], %rd13;
  ret;

ANSWERER:
  mov.u64 %rd5, %globaltimer;
  st.volatile.u64 [%rd0+8], %rd5;
  st.volatile.u64 [%rd0+16], %rd4;
  membar.sys;
ANSWER:
  add.u32 %r4, %r4, 1;
ANSWER_WAIT:
  ld.volatile.u64 %rd7, [%rd1];
  mov.b64 {{%r6, %r7}}, %rd7;
  setp.eq.u32 %p1, %r7, %r4;
  @%p1 bra ANSWER_GOT;
  mov.u64 %rd8, %globaltimer;
  sub.u64 %rd8, %rd8, %rd5;
  setp.gt.u64 %p2, %rd8, %rd3;
  @%p2 bra END;
  bra ANSWER_WAIT;
ANSWER_GOT:
  mov.u64 %rd5, %globaltimer;
  cvt.u32.u64 %r6, %rd5;
  mov.b64 %rd6, {{%r6, %r4}};
  st.volatile.u64 [%rd0], %rd6;
  mov.u64 %rd3, {ROUND_NS};
  setp.ne.u32 %p3, %r4, %r2;
  @%p3 bra ANSWER;
END:
  ret;
}}
"""
"""Both sides. A message is the round's number, and below it, in an answer, the low half of the answerer's timer; its
upper half and ``note`` go to the asker before. Each timer is stored, or its reading branched to, so that it cannot be
read on the wrong side of a message. Each asking CTA has a section of the page, which gets 1 + rounds played, last of
all, the answerer's first timer, its note, and (timer before, low half of the answerer's, timer after) of each round."""

Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Asker's timer before, answerer's timer, asker's timer after, of each round of all ways; ns."""


@dataclass(frozen=True)
class PeerPair:
    """What two devices' %globaltimer read at one moment, ns: the asker's and its peer's.

    ``uncertainty_ns``: the farthest that the two may be from their true relation. ``round_trip_ns``: the shortest.
    ``least_ns``: what each way was taken to last at least. ``flights_ns``: what both ways together lasted at least,
    of whatever rounds. ``rounds``: answers.
    """

    globaltimer_ns: int
    peer_globaltimer_ns: int
    uncertainty_ns: float
    round_trip_ns: int
    least_ns: int
    flights_ns: int
    rounds: int


def pair(rows: Rows, least_ns: int = 0) -> PeerPair | None:
    """The pair in the middle of the rounds; None where too few came back, or where no relation of two clocks agrees
    with all. ``least_ns``: a message takes at least so long."""
    before, answer, after = rows
    if len(before) < LEAST_ROUNDS:
        return None
    trip = int((after - before).min())
    least = min(least_ns, int(LEAST_SHARE * trip))
    step = max(TIMER_STEP_NS, math.gcd(*map(int, np.concatenate(rows))))
    middle = (int(before.min()) + int(after.max())) // 2
    apart = APART * np.maximum(np.abs(before - middle), np.abs(after - middle))
    low = float((before - answer - step + least - apart).max())
    high = float((after - answer + step - least + apart).min())
    if low > high:
        return pair(rows) if least else None
    ahead = round((low + high) / 2)
    uncertainty = (high - low) / 2 + 1 + 2 * TIMER_NS
    flights = int((answer - before).min() + (after - answer).min())
    return PeerPair(middle, middle - ahead, uncertainty, trip, least, flights, len(before))


def least_flight(rows: Rows) -> int:
    """What a flag takes at least within a device: the shortest way of all, less what the timer's steps may hide."""
    before, answer, after = rows
    if len(before) < LEAST_ROUNDS:
        return 0
    return max(min(int((answer - before).min()), int((after - answer).min())) - TIMER_STEP_NS, 0)


def read_page(page: NDArray[np.uint64]) -> Rows:
    """What the askers told."""
    parts = []
    for section in page.reshape(WAYS, SECTION_WORDS):
        count = max(int(section[0]) - 1, 0)
        words = section[3 : 3 + 3 * count].astype(np.int64).reshape(count, 3)
        begin = int(section[1])
        parts.append((words[:, 0], begin + ((words[:, 1] - begin) & 0xFFFFFFFF), words[:, 2]))
    before, answer, after = (np.concatenate(column) for column in zip(*parts))
    return before, answer, after


class PeerClock:
    """A device's side of such ping-pongs, in the given context.

    ``control``: of its trace memory, in which its mailboxes lie. Safe while a stream is being captured into a graph.
    Raises DriverError, as all that is asked of it does. One thread at a time uses it, within ``busy``.
    """

    def __init__(self, context: Any, control: int) -> None:
        self.busy = threading.RLock()
        self._mailboxes = control + wire.MAILBOXES_OFFSET
        self._tag = 0
        self._least: int | None = None
        self._kernel = OwnKernel(context, PTX, KERNEL, 8 * PAGE_WORDS)
        words = (ctypes.c_uint64 * PAGE_WORDS).from_address(self._kernel.page)
        self._page: NDArray[np.uint64] = np.ctypeslib.as_array(words)
        self._told = self._page.reshape(WAYS, SECTION_WORDS)[:, 0]

    @property
    def context(self) -> Any:
        """The context that it was made for."""
        return self._kernel.context

    def mailbox(self, number: int) -> int:
        """Address of a mailbox of this device, as it sees it itself."""
        return self._mailboxes + number % wire.MAILBOX_COUNT * wire.MAILBOX_BYTES

    def idle(self) -> bool:
        """Nothing of an earlier measurement still waits for its turn."""
        return self._kernel.idle()

    def gone(self) -> bool:
        """The same, or it has ended soon."""
        deadline = time.monotonic() + ENDS_S
        while not self.idle():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def ask(self, asker: int, answerer: int, tag: int, *, alone: bool = False) -> None:
        """Starts the asker's side, of which ``rows`` tells; the mailboxes are given as this device sees them.
        ``alone``: and the answerer's, on this device too. Only where the clock is idle."""
        self._told[:] = 0
        self._launch(2 * WAYS if alone else WAYS, asker, answerer, ASK, tag, 0)

    def answer(self, asker: int, answerer: int, tag: int, *, note: int = 0) -> None:
        """Starts the answerer's side. ``note``: a number for the asker."""
        self._launch(WAYS, asker, answerer, ANSWER, tag, note)

    def rows(self, patience_s: float = PATIENCE_S) -> tuple[Rows, int] | None:
        """(what the askers saw, the answerer's note), once all have ended; at the end of patience, of those that have.
        None where no way was played."""
        deadline = time.monotonic() + patience_s
        while not self._told.all() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        page = self._page.copy()
        sections = page.reshape(WAYS, SECTION_WORDS)
        played = sections[sections[:, 0] > 1]
        return (read_page(page), int(played[:, 2].min())) if len(played) else None

    def least(self) -> int:
        """What a flag takes on this device at least, ns, by all measurements so far and another now; 0 where unknown.
        """
        if self.gone():
            self._tag += TAG_ROUNDS
            last = wire.MAILBOX_COUNT - 1
            self.ask(self.mailbox(last), self.mailbox(last - 1), self._tag & 0xFFFFFFFF, alone=True)
            told = self.rows()
            found = least_flight(told[0]) if told is not None else 0
            if found:
                self._least = found if self._least is None else min(found, self._least)
        return self._least or 0

    def _launch(self, ctas: int, asker: int, answerer: int, role: int, tag: int, note: int) -> None:
        page = self._kernel.page_on_device
        words: list[Any] = [ctypes.c_uint64(x) for x in (asker, answerer, page, MEETING_NS, note)]
        self._kernel.launch(*words, *map(ctypes.c_uint32, (role, tag, ROUNDS)), ctas=ctas)


class DevicePair:
    """Two devices of this process. ``mailboxes``: one on each, the asker's first, which both see."""

    def __init__(self, asker: PeerClock, answerer: PeerClock, mailboxes: tuple[int, int]) -> None:
        self._asker, self._answerer = asker, answerer
        self._mailboxes = mailboxes
        self._tag = 0

    def measure(self, patience_s: float = PATIENCE_S) -> PeerPair | None:
        """A pair of their timers now; None where a device did not begin in time. Waits for no kernel of the program.
        """
        with self._asker.busy, self._answerer.busy:
            if not (self._asker.idle() and self._answerer.idle()):
                return None
            self._tag = (self._tag + TAG_ROUNDS) & 0xFFFFFFFF
            self._answerer.answer(*self._mailboxes, self._tag)
            self._asker.ask(*self._mailboxes, self._tag)
            told = self._asker.rows(patience_s)
            if told is None:
                return None
            return pair(told[0], min(self._asker.least(), self._answerer.least()))


class SharedMailboxes:
    """Memory of two devices of this process that both may access, without any change to what their contexts may.

    Raises DriverError where the devices do not see each other.
    """

    def __init__(self, ordinals: tuple[int, int]) -> None:
        self.addresses = (self._make(ordinals[0], ordinals), self._make(ordinals[1], ordinals))

    @staticmethod
    def _make(owner: int, users: tuple[int, int]) -> int:
        cuda = driver.bindings()
        device = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted = cuda.CUmemAllocationProp()
        wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type, wanted.location.id = device, owner
        least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        size = int(driver.call("cuMemGetAllocationGranularity", wanted, least))
        memory = driver.call("cuMemCreate", size, wanted, 0)
        address = driver.call("cuMemAddressReserve", size, 0, 0, 0)
        driver.call("cuMemMap", address, size, 0, memory, 0)
        access = []
        for user in users:
            one = cuda.CUmemAccessDesc()
            one.location.type, one.location.id = device, user
            one.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            access.append(one)
        driver.call("cuMemSetAccess", address, size, access, len(access))
        return int(address)


def device_pair(asker: tuple[int, PeerClock], answerer: tuple[int, PeerClock]) -> Callable[[float], PeerPair | None]:
    """What measures two devices of this process, (ordinal, clock) each. Raises DriverError where they do not see each
    other."""
    with driver.relaxed_capture():
        for one, other in ((asker[0], answerer[0]), (answerer[0], asker[0])):
            if not int(driver.call("cuDeviceCanAccessPeer", one, other)):
                raise driver.DriverError("cuDeviceCanAccessPeer", 217, f"devices {one} and {other} see no peer memory")
        mailboxes = SharedMailboxes((asker[0], answerer[0]))
    return DevicePair(asker[1], answerer[1], mailboxes.addresses).measure
