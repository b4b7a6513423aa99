"""Before which events much time may pass, and which events share a stamp because none can."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op
from dsl_build import Built, build, tensor

import warptrace.cute as iket
from warptrace import registry
from warptrace.frontends.cute import dsl, lower
from warptrace.selection import Selection
from warptrace.wire import EventKind


@dsl_user_op
def text(ptx: cutlass.Constexpr, *, loc: Any = None, ip: Any = None) -> None:
    llvm.inline_asm(
        None, [], ptx, "", has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc, ip=ip,
    )  # fmt: skip


POLL = "{ .reg .pred p; .reg .u32 t; AGAIN: mov.u32 t,%laneid; setp.ne.u32 p,t,0; @p bra AGAIN; }"
QUICK = "{ .reg .u32 t; mov.u32 t,%laneid;\n add.u32 t,t,1; }"


def built(body: Any, *, ring: bool = False) -> Built:
    """The kernel of ``body(n, value)``, n an argument; it stores the value that body returns."""

    @cute.kernel
    def kernel(out: cute.Tensor, n: cutlass.Int32):
        tidx, _, _ = cute.arch.thread_idx()
        out[tidx] = body(n, out[tidx])

    @cute.jit
    def host(out: cute.Tensor, n: cutlass.Int32):
        kernel(out, n).launch(grid=[1, 1, 1], block=[128, 1, 1])

    registry.select(Selection())
    dsl.keep_newest(ring)
    try:
        return build(host, tensor(cutlass.Float32), cutlass.Int32(3))
    finally:
        dsl.keep_newest(False)


def told(body: Any, *, ring: bool = False) -> str:
    """Each site as its name or kind: with ``?`` much time may pass before it, with ``!`` it tells more of the clock."""
    b = built(body, ring=ring)
    stored = [] if ring else b.entry.events  # other addresses
    words = []
    for s in b.record.sites:
        assert {e.high for e in stored if e.site == s.id and e.run == 1} <= {s.high}
        words.append((s.name if s.kind != EventKind.END else "end") or "pop")
        words[-1] += "?" * s.late + "!" * s.high
    return " ".join(words)


@cute.jit
def straight(n, value):
    iket.range_push("a")
    value = value * 2.0 + 1.0
    text(QUICK)
    iket.range_pop()
    cute.arch.sync_threads()
    iket.mark("b")
    iket.mark("c")
    return value


@cute.jit
def polled(n, value):
    token = iket.range_start("a")
    text(POLL)
    iket.range_end(token)
    iket.mark("b")
    iket.mark("c")
    return value


@cute.jit
def looped(n, value):
    iket.mark("a")
    for _ in cutlass.range(n, unroll=1):
        iket.mark("b")
        value = value + 1.0
        iket.mark("c")
    iket.mark("d")
    return value


@cute.jit
def looped_around_a_wait(n, value):
    iket.mark("a")
    for _ in cutlass.range(n, unroll=1):
        iket.mark("b")
        iket.mark("c")
        cute.arch.sync_threads()
    iket.mark("d")
    return value


@cute.jit
def behind_a_loop_without_events(n, value):
    iket.mark("a")
    for _ in cutlass.range(n, unroll=1):
        value = value * 0.5 + 1.0
    iket.mark("b")
    return value


@cute.jit
def sometimes(n, value):
    for i in cutlass.range(n, unroll=1):
        if i == 2:
            iket.mark("a")
        value = value + 1.0
    if n == 7:
        iket.mark("b")
    else:
        cute.arch.sync_threads()
    iket.mark("c")
    return value


@cute.jit
def in_a_while(n, value):
    i = n
    while i > 0:
        iket.mark("a")
        i = i - 1
    iket.mark("b")
    return value


@cute.jit
def inner_loops(n, value):
    for _ in cutlass.range(n, unroll=1):
        iket.range_push("a")
        for _ in cutlass.range(n, unroll=1):
            iket.mark("b")
        iket.range_pop()
    return value


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (straight, "a pop b?! c"),
        (polled, "a end? b! c"),
        (looped, "a b c d"),
        (looped_around_a_wait, "a b?! c d?!"),
        (behind_a_loop_without_events, "a b?!"),
        (sometimes, "a?! b?! c?!"),
        (in_a_while, "a b"),
        (inner_loops, "a b pop"),
    ],
    ids=lambda x: x.__name__ if callable(x) else "",
)
def test_before_which_events_much_time_may_pass(body, expected):
    assert told(body) == expected


def test_starts_of_a_ring_have_no_room():
    @cute.jit
    def body(n, value):
        cute.arch.sync_threads()
        token = iket.range_start("a")
        iket.mark("b")
        iket.range_end(token)
        return value

    assert told(body, ring=True) == "a? b! end"
    assert told(body) == "a?! b end"


# ------------------------------------------------------------------------------------------------------------- runs
@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a few events as those of many: only they store events together."""
    monkeypatch.setattr(lower, "MOST_NARROW", 0)


def runs(body: Any) -> list[int]:
    """How many records are stored together, store by store."""
    counts = [e.run for e in built(body).entry.events]
    stores = []
    while counts:
        stores.append(counts[0])
        del counts[: counts[0]]
    return stores


def spaced(operations: int):
    @cute.jit
    def body(n, value):
        iket.range_push("a")
        for _ in cutlass.range_constexpr(operations):
            n = n * 3
        iket.range_pop()
        return value + n

    return body


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("operations", "expected"), [(0, [2]), (4, [2]), (5, [1, 1])])
def test_a_few_integer_operations_are_at_once(operations, expected):
    assert runs(spaced(operations)) == expected


@cute.jit
def fused(n, value):
    iket.range_push("a")
    value = value * 0.5 + 1.0
    iket.range_pop()
    return value


@cute.jit
def barred(n, value):
    iket.range_push("a")
    cute.arch.sync_threads()
    iket.range_pop()
    iket.mark("b")
    return value


@cute.jit
def divided(n, value):
    iket.mark("a")
    n = 1000 // n
    iket.mark("b")
    return value + n


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("body", "expected"), [(fused, [1, 1]), (barred, [1, 2]), (divided, [1, 1])])
def test_what_takes_time_parts_two_events(body, expected):
    """A range around arithmetic is as long as that is, not nothing."""
    assert runs(body) == expected


@pytest.mark.usefixtures("wide")
def test_events_at_once_behind_a_wait():
    """One store of a pop, an end and a push: those without a link tell more of the clock."""

    @cute.jit
    def body(n, value):
        token = iket.range_start("t")
        iket.range_push("wait")
        cute.arch.sync_threads()
        iket.range_pop()
        iket.range_end(token)
        iket.mark("next")
        return value

    events = built(body).entry.events
    assert [(e.run, e.high, e.is_end) for e in events] == [
        (2, False, False), (2, False, False), (3, True, False), (3, False, True), (3, True, False),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- anchors
@cute.jit
def waiting_loop(n, value):
    for _ in cutlass.range(n, unroll=1):
        iket.range_push("wait", n)
        cute.arch.sync_threads()
        iket.range_pop()
    return value


@cute.jit
def late_only(n, value):
    for _ in cutlass.range(n, unroll=1):
        cute.arch.sync_threads()
        iket.mark("released")
    return value


@cute.jit
def working_loop(n, value):
    for _ in cutlass.range(n, unroll=1):
        iket.range_push("work")
        value = value * 0.5 + 1.0
        iket.range_pop()
    return value


@pytest.mark.parametrize(
    ("body", "expected"), [(waiting_loop, [True, False]), (late_only, [True]), (working_loop, [False, False])]
)
def test_an_event_at_a_wait_is_an_anchor(body, expected):
    """In loops of few events: a wait hides the read of the timer, work does not."""
    assert [s.anchor for s in built(body).record.sites] == expected


def test_an_event_that_a_loop_may_pass_by_is_no_anchor():
    """Much time may pass before it all the same."""
    sites = built(sometimes).record.sites
    assert [(s.name, s.late, s.anchor) for s in sites][0] == ("a", True, False)


@pytest.mark.parametrize(("events", "expected"), [(8, [1] * 8), (9, [8, 1])])
def test_few_events_without_a_loop_are_stored_one_by_one(events, expected):
    """By lane 0, which need not know what lane stores which word."""

    @cute.jit
    def body(n, value):
        for i in cutlass.range_constexpr(events):
            iket.mark(f"m{i}")
        return value

    assert runs(body) == expected
