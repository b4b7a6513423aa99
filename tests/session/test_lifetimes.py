"""``--warp-trace``: when every warp begins and ends, of kernels with events and without, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute

import warptrace
import warptrace.cute as iket
from warptrace.emulator import Device
from warptrace.emulator.cute import compile_kernel
from warptrace.runtime import emulated

pytestmark = pytest.mark.dsl

BLOCK = 96
GRID = 3


@cute.kernel
def plain_kernel(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        total += i
    out[bidx * BLOCK + tidx] = total + tidx


@cute.jit
def plain(out: cute.Tensor, n: cutlass.Int32):
    plain_kernel(out, n).launch(grid=[GRID, 1, 1], block=[BLOCK, 1, 1])


@cute.kernel
def marked_kernel(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    total = cutlass.Int32(0)
    token = iket.sentinel_token("step")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token)
        token = iket.range_start("step")
        if tidx % 32 == i:
            iket.mark("lane", i)
        total += i
    iket.range_end(token)
    out[bidx * BLOCK + tidx] = total + tidx


@cute.jit
def marked(out: cute.Tensor, n: cutlass.Int32):
    marked_kernel(out, n).launch(grid=[GRID, 1, 1], block=[BLOCK, 1, 1])


@cute.kernel
def straight_kernel(out: cute.Tensor, n: cutlass.Int32):
    """Without any loop or branch: the region is opened at the end."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    out[bidx * BLOCK + tidx] = n * (n - 1) // 2 + tidx


@cute.jit
def straight(out: cute.Tensor, n: cutlass.Int32):
    straight_kernel(out, n).launch(grid=[GRID, 1, 1], block=[BLOCK, 1, 1])


def compiled(host: Any) -> Any:
    out = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (BLOCK * GRID,), assumed_align=16)
    return compile_kernel(host, out, cutlass.Int32(1))


@pytest.mark.parametrize("host", [plain, marked, straight], ids=lambda h: h.__name__)
@pytest.mark.parametrize("warps", [None, (0, 2)])
def test_every_warp_and_no_event(host: Any, warps: tuple[int, ...] | None) -> None:
    with warptrace.capture(buffer_size="16M", lifetimes=True, warps=warps) as c:
        device = Device(1)
        out = device.zeros(BLOCK * GRID, np.int32)
        emulated.launch(compiled(host), device, [out, 5])
    assert device.read(out).tolist() == [10 + k % BLOCK for k in range(BLOCK * GRID)]
    trace = c.trace
    (launch,) = trace.launches
    kept = range(BLOCK // 32) if warps is None else warps
    assert (launch.events, launch.lost_events, launch.lost_warps) == (0, 0, 0)
    assert launch.warps_recorded == launch.warps_expected == GRID * len(kept)
    assert trace.warps.warp.tolist() == list(kept) * GRID
    assert trace.warps.closed.all() and (trace.warps.cycles > 0).all()
    assert (len(trace.ranges), len(trace.markers)) == (0, 0)
    assert [s for s in trace.sites if s.kernel_id == launch.kernel_id] == []
    assert [p for p in trace.problems if p.kind != "clock"] == []


def test_events_and_lifetimes_are_different_kernels() -> None:
    """One launch of each: their tables must not be taken for each other's."""
    ids = []
    for lifetimes in (False, True):
        with warptrace.capture(buffer_size="16M", lifetimes=lifetimes) as c:
            device = Device(1)
            emulated.launch(compiled(marked), device, [device.zeros(BLOCK * GRID, np.int32), 2])
        ids.append(c.trace.launches[0].kernel_id)
        assert (c.trace.launches[0].events > 0) == (not lifetimes)
    assert ids[0] != ids[1]


def test_no_stamp_is_left() -> None:
    with warptrace.capture(buffer_size="16M", lifetimes=True):
        ptx = compiled(marked).ptx
    assert "%clock;" not in ptx and "%lanemask_lt" not in ptx
    assert len(re.findall(r"mov\.u64 [^;]*%clock64;", ptx)) == 2


def test_the_selection_still_chooses_kernels() -> None:
    with warptrace.capture(buffer_size="16M", lifetimes=True, kernels=("marked",)):
        assert "%clock64" in compiled(marked).ptx
        assert "%clock64" not in compiled(plain).ptx
