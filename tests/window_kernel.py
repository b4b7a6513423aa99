"""Kernels for launches on the emulator whose number shows in their trace: a mark carries it."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cutlass
import cutlass.cute as cute

import warptrace.cute as iket
from warptrace.emulator import Device
from warptrace.emulator.cute import CompiledKernel, compile_kernel
from warptrace.runtime.emulated import launch
from warptrace.trace import Trace

CTAS, WARPS = 2, 2
EVENTS = CTAS * WARPS


@cute.kernel
def numbered(n: cutlass.Int32):
    iket.mark("number", n)


@cute.jit
def numbered_host(n: cutlass.Int32):
    numbered(n).launch(grid=[CTAS, 1, 1], block=[WARPS * 32, 1, 1])


@cute.kernel
def looping(n: cutlass.Int32):
    for _ in cutlass.range(n, unroll=1):
        iket.mark("round", n)


@cute.jit
def looping_host(n: cutlass.Int32):
    looping(n).launch(grid=[CTAS, 1, 1], block=[WARPS * 32, 1, 1])


def compile_numbered() -> CompiledKernel:
    """As the process has it: with events while something records."""
    return compile_kernel(numbered_host, cutlass.Int32(1))


@functools.cache
def traced(host: Any = numbered_host) -> CompiledKernel:
    """Compiled with events, once."""
    with iket.tracing():
        return compile_kernel(host, cutlass.Int32(1))


@functools.cache
def device() -> Device:
    return Device()


def run(n: int, host: Any = numbered_host) -> None:
    """One launch with ``n``."""
    launch(traced(host), device(), [n])


class Graph:
    """A launch with the hidden parameters that it would get now, for good, as a captured graph keeps them."""

    def __init__(self, n: int, hidden: Sequence[int]) -> None:
        self._args = [n, *hidden]

    @classmethod
    def capture(cls, n: int) -> Graph:
        from warptrace.runtime import emulated
        from warptrace.runtime.cell import CELL

        record = emulated._record(traced())
        found = CELL.parameters(emulated._ordinal(device()), record.kernel_id)
        return cls(n, emulated.parameters(traced(), *found))

    def replay(self) -> None:
        traced().launch(device(), self._args)


def launched(trace: Trace) -> list[int]:
    """The number that each launch was given, in order; every launch is whole."""
    numbers = []
    assert not trace.problems, trace.problems
    for one in trace.launches:
        rows = trace.warps.launch[trace.markers.warp] == one.index
        values = np.unique(trace.markers.bits[rows])
        assert (len(values), one.warps_recorded, one.lost_events) == (1, EVENTS, 0)
        numbers.append(int(values[0]))
    return numbers
