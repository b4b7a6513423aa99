"""One kernel with every kind of event, for each architecture: ptxas accepts it and the events are in it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace.cute as iket

ARCHS = ["sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a"]


@cute.kernel
def plain(g: cute.Tensor, n: cutlass.Int32):
    g[0] = n


@cute.jit
def plain_host(g: cute.Tensor, n: cutlass.Int32):
    plain(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.kernel
def full(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("begin", n)
    iket.range_push("all", cutlass.Int64(n))
    token = iket.sentinel_token("it")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token, i)
        token = iket.range_start("it", i)
        if tidx > 3:
            iket.mark("lanes", tidx)
        g[i] = i
    iket.range_end(token, n)
    iket.switch("tail")
    g[tidx] = n
    iket.range_pop()


@cute.jit
def full_host(g: cute.Tensor, n: cutlass.Int32):
    full(g, n).launch(grid=[n, 1, 1], block=[128, 1, 1])


@pytest.mark.parametrize("arch", ARCHS)
def test_arch(arch):
    try:
        build(plain_host, tensor(), cutlass.Int32(3), on=False, arch=arch)
    except Exception as e:
        pytest.skip(f"this DSL cannot compile an untraced kernel for {arch}: {str(e).splitlines()[0]}")
    off = build(full_host, tensor(), cutlass.Int32(3), on=False, arch=arch)
    on = build(full_host, tensor(), cutlass.Int32(3), arch=arch)
    assert re.search(rf"^\.target {arch}\b", on.ptx, re.M)
    assert on.cubin[:4] == b"\x7fELF" and len(on.cubin) > len(off.cubin)
    assert sorted(on.stored()) == list(range(1, 9))
    widths = {e.site: e.payload_width for e in on.entry.events}
    assert widths == {1: 32, 2: 64, 3: 32, 4: 32, 5: 32, 6: 32, 7: 0, 8: 0}
    assert {e.site for e in on.entry.events if e.is_end} == {3, 6}
    assert on.record.arch == arch
    # the hidden parameters are last, the others as they were
    assert off.entry.params == ((".align 8 .b8", 8), (".u32", None))
    assert on.entry.params == (*off.entry.params, *[(".u64", None)] * 5)
    assert on.entry.name == off.entry.name == on.record.symbol
    assert "%cluster" not in on.ptx  # host code tells
