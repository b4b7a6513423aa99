"""Events at a kernel's begin: stamped where they stand, stored where the warp's region is opened."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
import emulated
from dsl_build import Built, build, tensor

import warptrace.cute as iket
from warptrace import wire
from warptrace.frontends.cute import early, lower

pytestmark = pytest.mark.dsl

STEPS = {
    "stamp": r"mov\.u32 %\w+,%clock;",
    "open": rf"mov\.[bu]32 \w+,\s*{wire.REGION_MAGIC}",
    "store": r"st\.global\.(?:v2\.)?b32 \[a\+",
    "load": r"ld\.global\.[bf]32",
    "barrier": r"bar(?:rier)?\.sync",
    "add": r"add\.(?:rn\.)?f32",
    "prefetch": r"prefetch",
}


def built(body: Any) -> Built:
    """The kernel of ``body(out, tidx)``."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        body(out, tidx)

    @cute.jit
    def host(out: cute.Tensor):
        kernel(out).launch(grid=[1, 1, 1], block=[64, 1, 1])

    return build(host, tensor(cutlass.Float32, 128), quiet=False)


def steps(b: Built) -> list[str]:
    """What the kernel's text does, in order, each only where it begins to do it."""
    found = sorted((m.start(), name) for name, text in STEPS.items() for m in re.finditer(text, b.ptx))
    names = [name for _, name in found]
    return [name for k, name in enumerate(names) if not k or names[k - 1] != name]


@cute.jit
def loads(out, tidx):
    iket.mark("begin", tidx)
    iket.range_push("add")
    out[tidx] = out[tidx] + out[tidx + 64]
    iket.range_pop()


@cute.jit
def waits(out, tidx):
    iket.mark("begin")
    value = out[tidx]
    cute.arch.sync_threads()
    out[tidx] = value + 1.0


@cute.jit
def at_once(out, tidx):
    iket.mark("begin")
    cute.arch.sync_threads()
    out[tidx] = out[tidx + 64] + 1.0


@cute.jit
def started(out, tidx):
    token = iket.range_start("all")
    value = out[tidx]
    iket.range_end(token)
    out[tidx] = value + 1.0


@cute.jit
def branches(out, tidx):
    iket.mark("begin")
    value = out[tidx]
    if tidx == 0:
        out[100] = cutlass.Float32(1.0)
    iket.mark("end")
    out[tidx] = value + 1.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (loads, ["stamp", "load", "open", "store", "add", "store"]),
        (waits, ["stamp", "load", "open", "store", "barrier", "add"]),
        (at_once, ["open", "store", "barrier", "load", "add"]),
        (started, ["open", "store", "load", "store", "add"]),
        (branches, ["stamp", "load", "stamp", "open", "store", "add"]),
    ],
    ids=["loads", "waits", "at_once", "started", "branches"],
)
def test_where_events_are_stamped_and_stored(body, expected):
    """Before a wait, and before a loaded value is used; not at all early where nothing can be hidden behind, or where a
    token is needed."""
    assert steps(built(body)) == expected


@pytest.mark.parametrize("most_narrow", [0, 8], ids=["wide", "narrow"])
@pytest.mark.parametrize("body", [loads, waits, branches], ids=["loads", "waits", "branches"])
def test_early_events_are_recorded_as_others_are(body, most_narrow, monkeypatch):
    """The same records, whether early or not; each not later."""
    out = np.arange(128, dtype=np.float32)
    monkeypatch.setattr(lower, "MOST_NARROW", most_narrow)
    now, _ = emulated.run(built(body), [out], block=64)
    monkeypatch.setattr(early, "MOST_EARLY", 0)
    then, _ = emulated.run(built(body), [out], block=64)
    assert [w.records for w in now] == [w.records for w in then]
    assert [(w.warp, w.advance) for w in now] == [(w.warp, w.advance) for w in then]
    assert now[0].records[0].payload == (0 if body is loads else None)


def test_an_event_of_some_lanes_finds_the_region_open():
    """It has a leader of its own, and is no early one."""

    @cute.jit
    def body(out, tidx):
        iket.mark("a")
        value = out[tidx]
        if tidx % 3 == 1:
            iket.mark("b", tidx)
        out[tidx] = value + 1.0

    b = built(body)
    assert steps(b)[:3] == ["stamp", "load", "open"]
    warps, _ = emulated.run(b, [np.arange(128, dtype=np.float32)], block=64)
    assert [[(r.name, r.lane, r.payload) for r in w.records] for w in warps] == [
        [("a", 0, None), ("b", 1, 1)], [("a", 0, None), ("b", 2, 34)],
    ]  # fmt: skip


def test_no_more_than_four_wait_for_the_region():
    @cute.jit
    def body(out, tidx):
        for i in cutlass.range_constexpr(6):
            iket.mark(f"m{i}")
            if cutlass.const_expr(i == 1):
                out[0] = out[tidx]
        out[tidx] = out[tidx + 64] + 1.0

    b = built(body)
    assert len(re.findall(STEPS["stamp"], b.ptx[: re.search(STEPS["open"], b.ptx).start()])) <= early.MOST_EARLY
    records = emulated.run(b, [np.arange(128, dtype=np.float32)], block=64)[0][0].records
    assert [r.name for r in records] == [f"m{i}" for i in range(6)]
