"""``keep_events`` "last": each warp's newest events on real hardware, counted exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import torch
from gpu_kit import Figure, Out, lossless

import warptrace
import warptrace.cute as iket
from warptrace.report.room import advice
from warptrace.runtime import memory
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

CTAS = 132
WARPS = CTAS * k.WARPS


def compile_ticks() -> Any:
    with iket.tracing():
        one = cutlass.Int32(1)
        return cute.compile(k.ticks_host, Out(CTAS).cute, one, one, cutlass.Int32(CTAS))


def recorded(n: int, launches: int = 1, buffer: str = "64M", **options: Any) -> Trace:
    """``launches`` of the ticks kernel: a push, n ticks and a pop a warp."""
    out = Out(CTAS)
    memory.forget()  # of an earlier recording, which may be larger
    with warptrace.capture(keep_events="last", buffer_size=buffer, **options) as session:
        compiled = compile_ticks()
        for call in range(launches):
            compiled(out.cute, cutlass.Int32(n), cutlass.Int32(call), cutlass.Int32(CTAS))
            torch.cuda.synchronize()
        assert out.holds(n)
    return session.trace


@pytest.mark.parametrize(("room", "n"), [(64, 62), (64, 63), (64, 126), (50, 200), (16, 5000)])
def test_the_newest_events_of_every_warp(room: int, n: int) -> None:
    """Exact at the ring's size, one beyond it, at twice as many and far beyond."""
    trace = recorded(n, max_events_per_warp=room)
    ring = 1 << (room - 1).bit_length()
    lost = max(n + 2 - ring, 0)
    assert trace.warps.events.tolist() == [n + 2 - lost] * WARPS
    assert trace.warps.lost.tolist() == [lost] * WARPS
    m = trace.markers
    kept = min(n, ring - 1)  # the pop is the last event, the push the first
    assert m.bits.reshape(WARPS, kept).tolist() == [list(range(n - kept, n))] * WARPS
    kinds = {p.kind: p.count for p in trace.problems if p.kind != "clock"}
    assert kinds == ({"lost_events": lost * WARPS, "lost_push": WARPS} if lost else {})
    assert lossless(trace) == (lost == 0)


def test_the_advice_keeps_all(figure: Figure) -> None:
    trace = recorded(3000, max_events_per_warp=100)
    (text,) = advice(trace)
    figure("advice", text)
    words = text.removeprefix("to keep all of them: ").split()
    assert words[:2] == ["--max-ts-cnt-per-warp", "3002"]
    whole = recorded(3000, buffer=words[3] if len(words) > 2 else "64M", max_events_per_warp=3002)
    assert lossless(whole), whole.problems


def test_learned_rings(figure: Figure) -> None:
    """The first launch gets a share of the buffer by its grid, 256 slots a warp; the next ones what it needed."""
    trace = recorded(300, launches=3, buffer="16M")
    figure("events lost of each launch", [x.lost_events for x in trace.launches])
    assert [x.events + x.lost_events for x in trace.launches] == [302 * WARPS] * 3
    assert [x.lost_events for x in trace.launches] == [46 * WARPS, 0, 0]


def test_times_of_what_is_left() -> None:
    """Events lie between entry and exit, in order, the last one just before the exit."""
    trace = recorded(5000, max_events_per_warp=64)
    m, w = trace.markers, trace.warps
    assert (m.ns >= w.start_ns[m.warp]).all() and (m.ns <= w.end_ns[m.warp]).all()
    same = m.warp[1:] == m.warp[:-1]
    assert (np.diff(m.cycle)[same] > 0).all()
    last = np.append(~same, True)
    assert (w.cycles[m.warp[last]] - m.cycle[last] < 5000).all()
