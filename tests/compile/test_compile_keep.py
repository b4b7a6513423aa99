"""Which events a kernel keeps is decided when it is compiled; the default form knows nothing of the other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import Built, build, tensor

import warptrace.cute as iket
from warptrace import wire
from warptrace.device import ptx
from warptrace.frontends.cute import dsl


@pytest.fixture(autouse=True)
def _first_again() -> Iterator[None]:
    yield
    dsl.keep_newest(False)


@cute.kernel
def busy(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("all")
    for i in cutlass.range(n, unroll=1):
        token = iket.range_start("step")
        iket.mark("a")
        iket.mark("b", i)
        iket.range_end(token)
    if tidx % 32 > 4:
        iket.mark("some")
    iket.range_pop()
    g[tidx] = n


@cute.jit
def busy_host(g: cute.Tensor, n: cutlass.Int32):
    busy(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def compiled(last: bool) -> Built:
    dsl.keep_newest(last)
    return build(busy_host, tensor(), cutlass.Int32(3))


def test_both_forms_of_a_kernel_are_two_kernels() -> None:
    """Also to a cache of compiled code, since what differs is in the module that it hashes."""
    first, last, again = compiled(False), compiled(True), compiled(False)
    assert first.ptx == again.ptx
    assert first.record == again.record
    assert (first.record.ring, last.record.ring) == (False, True)
    assert first.record.kernel_id != last.record.kernel_id
    assert first.record.sites == last.record.sites
    assert first.record.slack > 0 == last.record.slack
    assert str(wire.REGION_MAGIC) in first.ptx and str(wire.RING_MAGIC) not in first.ptx
    assert str(wire.RING_MAGIC) in last.ptx and str(wire.REGION_MAGIC) not in last.ptx


def test_an_event_of_a_ring_has_no_branch_and_no_atomic() -> None:
    for payload in (None, "i32", "i64"):
        for make in (ptx.event, ptx.wide_event):
            text = make(0, 16, payload, linked=True, ring=True).text
            assert not any(word in text for word in ("bra", "atom", "red.", "membar", "fence", "bar."))


def texts() -> Iterator[str]:
    """All of the default form that a front end emits."""
    for stride in (8, 16):
        for lanes, wide in ((False, False), (True, False), (False, True)):
            for whole in (False, True)[wide : 2 - lanes]:
                facts = ptx.KernelFacts(5, stride, lanes, 2 * stride, True, wide, whole=whole, block=64 * whole)
                yield from (f(facts).text for f in (ptx.entry, ptx.open_region, ptx.close))
        for payload in (None, "i32", "i64")[: stride // 5]:
            for linked, high in ((False, False), (True, False), (False, True)):
                for anchor in (False, True)[: 1 if payload == "i64" or stride == 8 else 2]:
                    for make in (ptx.event, ptx.wide_event):
                        yield make(1, stride, payload, linked=linked, anchor=anchor, high=high).text
        widths = (None, "i32", "i64") if stride == 16 else (None, None, None)
        for high in (False, True):
            records = [ptx.RunRecord(k + 1, k == 1, width, False, high) for k, width in enumerate(widths)]
            yield ptx.run(1, stride, records).text
        yield from (f(stride).text for f in (ptx.run_lanes, ptx.record_lanes))
    yield from (f().text for f in (ptx.leader, ptx.broadcast, ptx.lane_zero))


def test_the_text_of_the_default_form() -> None:
    """Byte for byte. Whoever changes it on purpose measures it (benchmarks/event_cost.py) and writes the new digest."""
    digest = hashlib.sha256(json.dumps(list(texts())).encode()).hexdigest()
    assert digest == "121c83ae65bb98910a7e2d2e8bb7175f0994896dc1f55884054c44ed8dada310"
