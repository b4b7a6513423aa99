"""Recordings with keep_events, on the emulator: the option reaches kernels compiled under it, and sizes are learned."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass")

import cutlass
import window_kernel as k

import warptrace
from warptrace.emulator import Device
from warptrace.emulator.cute import CompiledKernel, compile_kernel
from warptrace.runtime.emulated import launch
from warptrace.trace import Trace

pytestmark = pytest.mark.dsl


def compiled() -> CompiledKernel:
    return compile_kernel(k.looping_host, cutlass.Int32(1))


def recorded(n: int, **options: Any) -> Trace:
    with warptrace.capture(buffer_size="16M", **options) as session:
        launch(compiled(), k.device(), [n])
    return session.trace


def test_the_option_is_that_of_the_session() -> None:
    """And ends with it."""
    last = recorded(40, keep_events="last", max_events_per_warp=16)
    assert [x.lost_events for x in last.launches] == [24 * k.EVENTS]
    assert {p.kind for p in last.problems} == {"lost_events"}
    first = recorded(40, max_events_per_warp=16)
    assert [x.lost_events for x in first.launches] == [24 * k.EVENTS]
    assert first.launches[0].kernel_id != last.launches[0].kernel_id
    start, end = (t.markers.cycle[t.markers.warp == 0].tolist() for t in (first, last))
    assert max(start) < min(end)


def test_a_kernel_compiled_before_keeps_its_form() -> None:
    """The header says which it is: a session of the other kind reads it right."""
    with warptrace.capture(buffer_size="16M", keep_events="last"):
        kernel = compiled()
    with warptrace.capture(buffer_size="16M", max_events_per_warp=16) as session:
        launch(kernel, k.device(), [40])
        launch(compiled(), k.device(), [40])
    trace = session.trace
    assert [x.events for x in trace.launches] == [16 * k.EVENTS] * 2
    texts = [p.text for p in trace.problems if p.kind == "lost_events"]
    assert ["overwritten" in text for text in texts] == [True, False]


def test_later_launches_get_what_the_first_needed() -> None:
    """Its share holds fewer events than a warp led; the count says how many, so the next launch has room for all."""
    device = Device()
    with warptrace.capture(buffer_size="16M", keep_events="last") as session:
        kernel = compiled()
        for _ in range(2):
            launch(kernel, device, [700])
    assert [(x.events, x.lost_events) for x in session.trace.launches] == [
        (512 * k.EVENTS, 188 * k.EVENTS), (700 * k.EVENTS, 0),
    ]  # fmt: skip
