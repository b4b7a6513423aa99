"""A device's %globaltimer against the host's clocks: a ping-pong through page-locked memory that both see.

The host writes a round's number, one device thread answers with %globaltimer as soon as it sees it. The device read its
timer between the host's two looks at its own clock, so every round bounds the offset, and all rounds together bound it
to less than the shortest of them. Nothing here waits for long: the host gives up after some ms, and the device's side
ends by itself where no round comes.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import WarptraceError
from ..raw import CaptureWriter
from .log import log
from .own_kernels import OwnKernel

ROUNDS = 100
LEAST_ROUNDS = 4
"""Fewer answers say nothing: something else had the processor or the device."""
PATIENCE_S = 0.005
"""So long the host waits for the device's side to begin: the device may be full of kernels that wait for others."""
LAST_PATIENCE_S = 0.1
"""So long at the end of a recording: other processes may have their turns on the device."""
ROUND_NS = 4_000_000
"""A round that takes longer is given up, and with it the rest. Another process's turn on the device is shorter."""
DEVICE_PATIENCE_NS = 2_000_000
"""The device's side ends where no round came for so long."""
TIMER_STEP_NS = 32
"""%globaltimer moves in such steps (H200): the true time of a reading is up to a step later."""
DRIFT = 50e-6
"""Most that the two clocks part during a measurement of less than a ms: quartz is off by less."""
QUIT = 0xFFFFFFFF
"""A round number that lets the device's side run to its end at once."""

KERNEL = "warptrace_clock_calibration"
PTX = f""".version 6.0
.target sm_60
.address_size 64

.visible .entry {KERNEL}(.param .u64 page)
{{
  .reg .pred %p<4>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd0, [page];
  mov.u32 %r0, 1;
  add.u64 %rd1, %rd0, 8;
  mov.u64 %rd2, %globaltimer;
  st.volatile.u64 [%rd1], %rd2;
WAIT:
  ld.volatile.u32 %r1, [%rd0];
  setp.ge.u32 %p0, %r1, %r0;
  @%p0 bra ANSWER;
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.gt.u64 %p1, %rd4, {DEVICE_PATIENCE_NS};
  @%p1 bra END;
  bra WAIT;
ANSWER:
  mov.u64 %rd2, %globaltimer;
  add.u64 %rd1, %rd1, 8;
  st.volatile.u64 [%rd1], %rd2;
  add.u32 %r0, %r0, 1;
  setp.le.u32 %p2, %r0, {ROUNDS};
  @%p2 bra WAIT;
END:
  ret;
}}
"""
"""The device's side. The page holds the host's round number, then 8 bytes for its begin and for each round's answer."""
PAGE_BYTES = 8 * (ROUNDS + 2)

Round = tuple[int, int, int]
"""Host time before, %globaltimer, host time after; ns."""


@dataclass(frozen=True)
class ClockPair:
    """What the device's %globaltimer and the host's CLOCK_REALTIME and CLOCK_MONOTONIC read at one moment, ns.

    ``uncertainty_ns``: the farthest that the first two may be from each other's true relation. ``rounds``: answers.
    """

    host_unix_ns: int
    host_monotonic_ns: int
    globaltimer_ns: int
    uncertainty_ns: float
    rounds: int


def combine(rounds: Sequence[Round]) -> tuple[int, float] | None:
    """(host time minus %globaltimer, its uncertainty), in ns, that agrees with all rounds; None where none does: the
    host's clock was set meanwhile."""
    least = max(t0 - g - TIMER_STEP_NS for t0, g, _ in rounds)
    most = min(t1 - g for _, g, t1 in rounds)
    drift = DRIFT * (rounds[-1][2] - rounds[0][0])
    if least > most + drift:
        return None
    return (least + most) // 2, max(most - least + 1, 0) / 2 + drift


def pair(rounds: Sequence[Round], relation: tuple[int, int]) -> ClockPair | None:
    """The pair at the middle of the rounds; ``relation``: CLOCK_REALTIME and CLOCK_MONOTONIC at one moment."""
    found = combine(rounds) if len(rounds) >= LEAST_ROUNDS else None
    if found is None:
        return None
    offset, uncertainty = found
    host = (rounds[0][0] + rounds[-1][2]) // 2
    real, monotonic = relation
    return ClockPair(host, host - real + monotonic, host - offset, uncertainty, len(rounds))


def host_clocks() -> tuple[int, int]:
    """CLOCK_REALTIME and CLOCK_MONOTONIC at one moment, ns: of a few tries the one that took least."""
    tries = []
    for _ in range(5):
        before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        tries.append((after - before, real, (before + after) // 2))
    _, real, monotonic = min(tries)
    return real, monotonic


class PingPong:
    """The host's side, on a page of PAGE_BYTES at ``address`` that the device's side sees. At most ROUNDS rounds."""

    def __init__(self, address: int, rounds: int = ROUNDS) -> None:
        self._page = np.ctypeslib.as_array((ctypes.c_uint64 * (PAGE_BYTES // 8)).from_address(address))
        self._command = ctypes.c_uint32.from_address(address)
        self._answers = [ctypes.c_uint64.from_address(address + 8 * (k + 1)) for k in range(rounds + 1)]

    def clear(self) -> None:
        """Before the device's side is started."""
        self._page[:] = 0

    def begun(self, patience_s: float) -> bool:
        """Waits until the device's side has begun; false where it has not in time."""
        deadline = time.monotonic() + patience_s
        while not self._answers[0].value:
            if time.monotonic() > deadline:
                return False
            time.sleep(20e-6)
        return True

    def play(self) -> list[Round]:
        """The rounds, up to the first that took too long."""
        now: Callable[[], int] = time.time_ns
        rounds: list[Round] = []
        command = self._command
        for number, answer in enumerate(self._answers[1:], 1):
            before = now()
            command.value = number
            while not answer.value:
                if not 0 <= now() - before <= ROUND_NS:
                    return rounds
            rounds.append((before, answer.value, now()))
        return rounds

    def quit(self) -> None:
        """Lets the device's side end, also where it has not begun yet."""
        self._command.value = QUIT


class DeviceClock:
    """Measures the clock of the device whose context is given, in that context.

    Safe while a stream is being captured into a graph, and from several threads. Raises DriverError, as ``measure``
    does.
    """

    def __init__(self, context: Any) -> None:
        self._lock = threading.Lock()
        self._kernel = OwnKernel(context, PTX, KERNEL, PAGE_BYTES)
        self._ping_pong = PingPong(self._kernel.page)

    def measure(self, patience_s: float = PATIENCE_S) -> ClockPair | None:
        """A pair of the clocks now; None where the device's side did not begin within ``patience_s``, where too few
        rounds came back, or where another thread is at it. Waits for no kernel of the program."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if not self._kernel.idle():
                return None  # an earlier try still waits for its turn
            self._ping_pong.clear()
            relation = host_clocks()
            try:
                self._kernel.launch(ctypes.c_uint64(self._kernel.page_on_device))
                rounds = self._ping_pong.play() if self._ping_pong.begun(patience_s) else []
            finally:
                self._ping_pong.quit()
            return pair(rounds, relation)
        finally:
            self._lock.release()


class ClockLog:
    """Writes pairs of a device's clocks into a capture. ``clock`` makes or finds the device's clock."""

    def __init__(self, ordinal: int, clock: Callable[[], DeviceClock], writer: CaptureWriter) -> None:
        self._ordinal = ordinal
        self._clock = clock
        self._writer = writer
        self._reason = "the device had no room for it"
        self._pairs = 0

    def note(self, patience_s: float = PATIENCE_S) -> None:
        """Adds a pair where one can be had now. A fault is no fault of the program's: see ``close``."""
        begun = time.monotonic()
        try:
            found = self._clock().measure(patience_s)
        except WarptraceError as e:
            self._reason = str(e)
            log("debug", f"device {self._ordinal}: no clock pair: {e}")
            return
        if found is None:
            log("debug", f"device {self._ordinal}: no clock pair now")
            return
        self._pairs += 1
        self._writer.add_clock(
            self._ordinal, found.host_unix_ns, found.globaltimer_ns, found.uncertainty_ns, found.host_monotonic_ns
        )
        text = f"clock pair of device {self._ordinal}: good to {found.uncertainty_ns:.0f} ns, {found.rounds} rounds"
        log("debug", f"{text}, {(time.monotonic() - begun) * 1e3:.1f} ms")

    def close(self) -> None:
        """The last pair; says so where there was none at all."""
        self.note(LAST_PATIENCE_S)
        if not self._pairs:
            self._writer.add_problem(
                f"the clock of device {self._ordinal} was not compared with the host's ({self._reason}): its times "
                "cannot be aligned with those of other devices"
            )
