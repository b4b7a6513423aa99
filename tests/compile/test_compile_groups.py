"""Who leads an event and what events share: read off the PTX, and seen on the emulator where lanes part."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor
from emulated import run

import warptrace.cute as iket
from warptrace.wire import EventKind


def host_of(kernel, block=(32, 1, 1), grid=1):
    @cute.jit
    def host(g: cute.Tensor, n: cutlass.Int32):
        kernel(g, n).launch(grid=[grid, 1, 1], block=block)

    return host


def compiled(kernel, block=(128, 1, 1)):
    return build(host_of(kernel, block), tensor(size=2048), cutlass.Int32(3))


# ------------------------------------------------------------------------------------------- uniform: no vote
@cute.kernel
def by_arguments(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, bidy, _ = cute.arch.block_idx()
    gdim, _, _ = cute.arch.grid_dim()
    if n > 3:
        iket.mark("argument")
        g[tidx] = n
    if bidx == n or bidy < 3:
        iket.mark("block")
        g[tidx] = n + 1
    for i in cutlass.range(bidx, n * 7, gdim, unroll=1):
        for j in cutlass.range(i % 5, unroll=1):
            iket.mark("loops", j)
            g[tidx] = j
    i = bidx
    while i < n:
        iket.mark("while")
        i += gdim
    g[tidx] = i


@cute.kernel
def by_warp(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 1:
        iket.mark("role")
        g[tidx] = n
    if warp // 4 == n:
        iket.mark("warpgroup")
        g[tidx] = n + 1


@cute.kernel
def by_plain_warp_index(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx // 32 == 1:
        iket.mark("divided")
        g[tidx] = n
    if tidx >> 6 == 1:
        iket.mark("shifted")
        g[tidx] = n + 1


@cute.kernel
def by_thread_ranges(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < 64:
        iket.mark("below")
        g[tidx] = n
    if tidx >= 96:
        iket.mark("from")
        g[tidx] = n + 1
    if tidx <= 31:
        iket.mark("up to")
        g[tidx] = n + 2
    if tidx > 63:
        iket.mark("above")
        g[tidx] = n + 3


@cute.kernel
def by_row(g: cute.Tensor, n: cutlass.Int32):
    tidx, tidy, tidz = cute.arch.thread_idx()
    if tidy == 1:
        iket.mark("row")
        g[tidx] = n
    if tidz == 1:
        iket.mark("plane")
        g[tidx] = n + 1


@pytest.mark.parametrize(
    ("kernel", "block"),
    [
        (by_arguments, (128, 1, 1)),
        (by_warp, (128, 1, 1)),
        (by_plain_warp_index, (128, 1, 1)),
        (by_thread_ranges, (128, 1, 1)),
        (by_row, (32, 2, 2)),
        (by_row, (64, 2, 2)),
    ],
)
def test_no_vote_in_warp_uniform_code(kernel, block):
    built = compiled(kernel, block)
    assert sorted(built.stored()) == list(range(1, len(built.record.sites) + 1))
    assert "activemask" not in built.ptx
    assert not built.record.lane_events


# ----------------------------------------------------------------------------------------- divergent: a vote each
@cute.kernel
def by_lane(g: cute.Tensor, n: cutlass.Int32):
    lane = cute.arch.lane_idx()
    if lane == n:
        iket.mark("lane")
        g[lane] = n


@cute.kernel
def by_thread(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < n:
        iket.mark("thread")
        g[tidx] = n


@cute.kernel
def by_odd_border(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < 65:
        iket.mark("border")
        g[tidx] = n


@cute.kernel
def by_load(g: cute.Tensor, n: cutlass.Int32):
    if g[0] == 3:
        iket.mark("loaded")
        g[1] = n


@cute.kernel
def by_loop_bound(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(tidx, n, unroll=1):
        iket.mark("bound")
        g[tidx] = i


@cute.kernel
def by_carried_value(g: cute.Tensor, n: cutlass.Int32):
    """The value that decides is uniform at first, and not after an iteration."""
    tidx, _, _ = cute.arch.thread_idx()
    carried = cutlass.Int32(0)
    for i in cutlass.range(n, unroll=1):
        if carried < n:
            iket.mark("carried")
            g[tidx] = i
        carried += tidx


@cute.kernel
def by_result_of_divergent_branch(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    value = cutlass.Int32(0)
    if tidx < 5:
        value = cutlass.Int32(1)
    if value == 1:
        iket.mark("merged")
        g[tidx] = n


@cute.kernel
def in_divergent_parent(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < 5:  # noqa: SIM102 - two branches are the point
        if n > 2:
            iket.mark("uniform condition, divergent parent")
            g[tidx] = n


@pytest.mark.parametrize(
    "kernel",
    [
        by_lane,
        by_thread,
        by_odd_border,
        by_load,
        by_loop_bound,
        by_carried_value,
        by_result_of_divergent_branch,
        in_divergent_parent,
    ],
    ids=lambda k: k.__name__,
)
def test_a_vote_in_lane_dependent_code(kernel):
    built = compiled(kernel)
    assert built.record.lane_events
    stored = built.stored()
    assert set(stored) == {1}
    assert built.entry.votes == len(stored)


@pytest.mark.parametrize(
    ("kernel", "block"),
    [(by_thread_ranges, (48, 1, 1)), (by_thread_ranges, (16, 8, 1)), (by_row, (16, 4, 2)), (by_row, (48, 2, 2))],
)
def test_thread_numbers_say_nothing_where_rows_are_not_whole_warps(kernel, block):
    built = compiled(kernel, block)
    assert built.record.lane_events
    assert built.entry.votes == len(built.stored()) > 0


@cute.kernel
def both_branches(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < n:
        iket.mark("a", tidx)
    else:
        iket.mark("b", tidx)
    if tidx < 7:
        iket.mark("c")
    elif tidx < 9:
        iket.mark("d")


def test_events_of_exclusive_branches_are_not_merged():
    """The branches differ in constants only: a compiler that made one event of both would lose one."""
    built = compiled(both_branches, (32, 1, 1))
    assert sorted(built.stored()) == [1, 2, 3, 4]
    (warp,), _ = run(built, [np.zeros(2048, np.int32), 9])
    assert [(r.name, r.lane, r.payload) for r in warp.records] == [
        ("a", 0, 0), ("b", 9, 9), ("c", 0, None), ("d", 7, None),
    ]  # fmt: skip


# --------------------------------------------------------------------------------------------------- groups
@cute.kernel
def grouped(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("a")
    g[tidx] = n
    cute.arch.sync_threads()
    iket.mark("b", n)
    for i in cutlass.range(n, unroll=1):
        g[tidx] = i
    iket.mark("c")
    if n > 3:
        iket.mark("d")
        g[tidx] = n
        iket.mark("e")
    iket.mark("f")
    iket.mark("g")


def test_groups_end_where_events_may_come_between():
    built = compiled(grouped)
    assert built.entry.groups == [[1, 2, 3], [4, 5], [6, 7]]
    assert (built.record.stride, built.record.slack) == (16, 48)
    assert [e.offset for e in built.entry.events] == [0, 16, 32, 0, 16, 0, 16]


@cute.kernel
def twenty(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range_constexpr(20):
        iket.mark(f"m{i}")
    g[0] = n


def test_groups_have_at_most_eight_events():
    built = compiled(twenty)
    assert [len(group) for group in built.entry.groups] == [8, 8, 4]
    assert built.record.slack == 8 * 8


@cute.kernel
def parted_lines(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx < 5:
        iket.mark("a", tidx)
        iket.mark("b", tidx + 1)
        g[tidx] = n
        iket.mark("c")


def test_an_elected_group_is_parted_by_memory_operations():
    built = compiled(parted_lines)
    assert built.entry.groups == [[1, 2], [3]]
    assert built.entry.votes == 2


@cute.kernel
def ends(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("t")
    if n > 3:
        token = iket.range_start("t")
        g[0] = n
    iket.mark("before")
    iket.range_end(token)
    iket.mark("after")
    own = iket.range_start("own")
    iket.mark("inside")
    iket.range_end(own)
    iket.mark("last")


def test_an_end_of_a_possible_sentinel_shares_nothing():
    built = compiled(ends)
    assert built.entry.groups == [[1], [2], [3], [4, 5, 6, 7, 8]]
    for n, expected, starts in [(4, ["t", "before", "t", "after"], [0, 4]), (3, ["before", "after"], [2])]:
        warps, _ = run(built, [np.zeros(2048, np.int32), n], block=128)
        assert len(warps) == 4
        for warp in warps:
            assert warp.named() == [*expected, "own", "inside", "own", "last"]
            assert [r.start for r in warp.records if r.start is not None] == starts
            assert warp.advance == len(warp.records)


# ------------------------------------------------------------------------------------------------------ runs
@cute.kernel
def at_once(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(n, unroll=1):
        iket.range_push("a", i)
        iket.range_push("b", i * 2 + 1)
        iket.range_pop()
        g[tidx] = i
        iket.range_pop()
        token = iket.range_start("t", cutlass.Int64(i))
        iket.mark("of the lane", tidx)
        iket.mark("between")
        iket.range_end(token, cutlass.Int64(i) << 33)
        iket.mark("last")


def test_events_with_nothing_between_them_are_stored_at_once():
    """A store to memory parts them, a payload that lanes do not share, and the end of a group of eight; arithmetic does
    not."""
    built = compiled(at_once, (64, 1, 1))
    assert [e.run for e in built.entry.events] == [3, 3, 3, 2, 2, 1, 2, 2, 1]
    assert built.entry.body.count("%clock;") == 5
    warps, _ = run(built, [np.zeros(2048, np.int32), 2], main=2048, block=64)
    for warp in warps:
        one = ["a", "b", "POP", "POP", "t", "of the lane", "between", "t", "last"]
        assert warp.named() == one * 2
        values = [[i, 2 * i + 1, None, None, i, 32 * warp.warp, None, i << 33, None] for i in (0, 1)]
        assert [r.payload for r in warp.records] == values[0] + values[1]
        assert [r.start for r in warp.records if r.kind == EventKind.END] == [4, 13]


def test_events_at_once_have_one_stamp():
    """Ranges with nothing in them last nothing, and keep their order."""
    built = compiled(at_once, (64, 1, 1))
    text = next(line for line in built.ptx.splitlines() if "setp.lt.u32 q," in line and ",3; and.pred" in line)
    assert text.count("%clock") == 1 and text.count("st.global") == 1


def test_narrow_kernels_have_no_runs():
    built = compiled(at_once, (40, 1, 1))
    assert [e.run for e in built.entry.events] == [1] * 9


# --------------------------------------------------------------------------------------------------- anchors
@cute.kernel
def anchored(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("no loop")
    for i in cutlass.range(n, unroll=1):
        iket.mark("wide", cutlass.Int64(i))
        iket.mark("outer", i)
        for j in cutlass.range(2, unroll=1):
            g[j] = i
            iket.mark("a")
            iket.mark("b")
            iket.mark("c")
            iket.mark("d", j)
        for j in cutlass.range(2, unroll=1):
            g[j] = i
            iket.mark("x")
            iket.mark("y")
            iket.mark("z")
        for j in cutlass.range(2, unroll=1):
            g[j] = i
            iket.mark("alone")


@pytest.mark.parametrize("block", [(32, 1, 1), (24, 1, 1)], ids=["wide", "narrow"])
def test_loops_with_room_for_it_record_the_global_timer(block):
    """By the first event with a free half slot: outer loops, and inner ones with four events or more."""
    wanted = ("outer", "a")
    built = compiled(anchored, block)
    assert [s.name for s in built.record.sites if s.anchor] == list(wanted)
    assert {e.site: e.anchored for e in built.entry.events} == {s.id: s.anchor for s in built.record.sites}
    (warp,), _ = run(built, [np.zeros(2048, np.int32), 3], main=2048, block=block[0])
    inner = ["a", "b", "c", "d"] * 2 + ["x", "y", "z"] * 2 + ["alone"] * 2
    assert warp.named() == ["no loop"] + ["wide", "outer", *inner] * 3
    assert [r.payload for r in warp.records if r.name == "outer"] == [0, 1, 2]
    timers = [r.timer for r in warp.records if r.name in wanted]
    assert len(timers) == 3 * (2 * len(wanted) - 1) and None not in timers
    assert timers == sorted(timers) and timers[0] > 0
    assert {r.timer for r in warp.records if r.name not in wanted} == {None}


# -------------------------------------------------------------------------------------- tokens where lanes part
@cute.kernel
def started_by_some(g: cute.Tensor, n: cutlass.Int32):
    """Lanes from n on start the range, all end it: lane 0 holds a sentinel where the others hold the token."""
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("t")
    if tidx >= n:
        token = iket.range_start("t", tidx)
    iket.mark("between")
    iket.range_end(token, tidx)
    iket.mark("end")


@pytest.mark.parametrize("n", [0, 5, 31, 32])
def test_an_end_is_led_by_a_lane_that_holds_a_token(n):
    built = compiled(started_by_some, (32, 1, 1))
    (warp,), _ = run(built, [np.zeros(2048, np.int32), n])
    shown = [(r.name, r.lane, r.payload, r.start) for r in warp.records]
    middle = [("t", n, n, None), ("between", 0, None, None), ("t", n, n, 0)]
    assert shown == (middle if n < 32 else [("between", 0, None, None)]) + [("end", 0, None, None)]
    assert sum(warp.lane_advance.values()) + warp.advance == len(warp.records)


@cute.kernel
def ended_by_some(g: cute.Tensor, n: cutlass.Int32):
    """All start, lanes from n on end: the link is that of lane 0's record."""
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("shift the cursors apart")
    token = iket.range_start("t")
    g[tidx] = n
    if tidx >= n:
        iket.range_end(token)


@pytest.mark.parametrize("n", [0, 5, 31])
def test_the_token_of_the_leader_reaches_all_lanes(n):
    built = compiled(ended_by_some, (32, 1, 1))
    assert built.entry.broadcasts == 1
    (warp,), _ = run(built, [np.zeros(2048, np.int32), n])
    assert [(r.kind.name, r.lane, r.start) for r in warp.records] == [
        ("MARK", 0, None), ("START", 0, None), ("END", n, 1),
    ]  # fmt: skip


@cute.kernel
def divergent_loop(g: cute.Tensor, n: cutlass.Int32):
    """Lane t makes t iterations; each is recorded once, by the lowest lane still in the loop."""
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("it")
    for i in cutlass.range(tidx, unroll=1):
        iket.range_end(token)
        token = iket.range_start("it", i)
        g[tidx] = i
    iket.range_end(token)


def test_tokens_in_a_divergent_loop():
    built = build(host_of(divergent_loop, (4, 1, 1)), tensor(size=2048), cutlass.Int32(3))
    (warp,), _ = run(built, [np.zeros(2048, np.int32), 0], block=4)
    starts = [(r.lane, r.payload) for r in warp.records if r.kind.name == "START"]
    assert starts == [(1, 0), (2, 1), (3, 2)]
    ends_ = [(r.lane, r.start) for r in warp.records if r.kind.name == "END"]
    # every end in the loop is led by the first lane that is still in it, and closes the start before it
    assert all(warp.records[start].kind.name == "START" for _, start in ends_)
    assert [lane for lane, _ in ends_] == [2, 3, 1]
