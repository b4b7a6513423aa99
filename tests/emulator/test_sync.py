# ruff: noqa: E501 - PTX text and IR lines
"""Barriers, mbarriers, clusters, asynchronous copies, clocks, scheduling, deadlocks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from ptx_kit import launch, module

from warptrace.emulator import Deadlock, Device, MisalignedAccess, SyncError

PRE = """
.reg .b32 %r<30>; .reg .b64 %rd<16>; .reg .pred %p<8>; .reg .b16 %h<4>;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
mad.wide.u32 %rd0, %r3, 4, %ptr0;
"""


def words(body: str, n: int, *more: Any, **kwargs: Any) -> Any:
    """Run with one output word a thread at [%rd0]; returns the words."""
    return launch(PRE + body, [np.zeros(n, np.uint32), *more], **kwargs)[0][0]


REVERSE = """
.shared .align 16 .b8 buf[512];
shl.b32 %r4, %r0, 2; mov.u32 %r5, buf; add.u32 %r6, %r5, %r4; st.shared.b32 [%r6], %r3;
{sync}
sub.u32 %r7, 127, %r0; shl.b32 %r7, %r7, 2; add.u32 %r7, %r5, %r7; ld.shared.b32 %r8, [%r7]; st.global.b32 [%rd0], %r8;
"""


@pytest.mark.parametrize("sync", ["bar.sync 0;", "barrier.sync.aligned 3;", "bar.sync 1, 128;", "bar.arrive 2, 256; bar.sync 2, 256;",
                                  "mov.u32 %r9, 5; barrier.cta.sync %r9, 128;", "bar.red.popc.u32 %r9, 0, 1;"])  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_block_barriers(sync: str, seed: int) -> None:
    if "red" in sync:
        sync = "setp.lt.u32 %p1, %r0, 40; bar.red.popc.u32 %r9, 0, %p1; setp.ne.u32 %p2, %r9, 40; @%p2 trap;"
    got = words(REVERSE.replace("{sync}", sync), 256, block=128, grid=2, seed=seed)
    np.testing.assert_array_equal(got, np.arange(256).reshape(2, 128)[:, ::-1].ravel())


def test_bar_red_and_or() -> None:
    body = """
setp.lt.u32 %p1, %r0, 64; bar.red.and.pred %p2, 0, %p1; selp.u32 %r4, 1, 0, %p2;
bar.red.or.pred %p3, 0, %p1; selp.u32 %r5, 2, 0, %p3; or.b32 %r4, %r4, %r5; st.global.b32 [%rd0], %r4;"""
    np.testing.assert_array_equal(words(body, 128, block=128), 2)
    np.testing.assert_array_equal(words(body, 64, block=64), 3)


def test_a_warp_that_exits_late_opens_the_barrier() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra W; nanosleep.u32 5000; exit; W: bar.sync 0; st.global.b32 [%rd0], %r2;"
    np.testing.assert_array_equal(words(body, 64, block=64), [64] * 32 + [0] * 32)


def test_bar_red_of_a_diverged_warp() -> None:
    """Lanes that arrive apart count once each, also when others exit while they wait."""
    body = """
mov.u32 %r4, 0; setp.eq.u32 %p1, %r0, 7; setp.lt.u32 %p2, %r0, 16; @%p2 bra A;
  setp.lt.u32 %p3, %r0, 20; bar.red.popc.u32 %r4, 0, %p3; bra J;
A: @%p1 exit; setp.lt.u32 %p3, %r0, 3; bar.red.popc.u32 %r4, 0, %p3;
J: st.global.b32 [%rd0], %r4;"""
    want = np.full(32, 7)
    want[7] = 0
    np.testing.assert_array_equal(words(body, 32), want)


def test_exited_warps_do_not_hold_the_barrier() -> None:
    body = "setp.ge.u32 %p1, %r0, 32; @%p1 exit; bar.sync 0; st.global.b32 [%rd0], 9;".replace("], 9", "], %r2")
    np.testing.assert_array_equal(words(body, 96, block=96), [96] * 32 + [0] * 64)


def test_producer_consumer_named_barriers() -> None:
    """Warp 0 fills, warp 1 reads, over two buffers and eight rounds."""
    body = """
.shared .align 16 .b8 buf[256]; shr.u32 %r4, %r0, 5; and.b32 %r5, %r0, 31; shl.b32 %r6, %r5, 2; mov.u32 %r7, buf; add.u32 %r7, %r7, %r6;
mov.u32 %r8, 0; mov.u32 %r9, 0; setp.ne.u32 %p1, %r4, 0; @%p1 bra CONS;
P: and.b32 %r10, %r8, 1; shl.b32 %r11, %r10, 7; add.u32 %r12, %r7, %r11; add.u32 %r13, %r10, 3;
   setp.lt.u32 %p2, %r8, 2; @!%p2 bar.sync %r13, 64;
   mad.lo.u32 %r14, %r8, 100, %r5; st.shared.b32 [%r12], %r14; add.u32 %r15, %r10, 1; bar.arrive %r15, 64;
   add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 8; @%p3 bra P; bra.uni DONE;
CONS: and.b32 %r10, %r8, 1; shl.b32 %r11, %r10, 7; add.u32 %r12, %r7, %r11; add.u32 %r15, %r10, 1; bar.sync %r15, 64;
   ld.shared.b32 %r14, [%r12]; add.u32 %r9, %r9, %r14; add.u32 %r13, %r10, 3;
   setp.lt.u32 %p2, %r8, 6; @%p2 bar.arrive %r13, 64;
   add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 8; @%p3 bra CONS;
DONE: st.global.b32 [%rd0], %r9;
"""
    for seed in range(4):
        got = words(body, 64, block=64, seed=seed)
        np.testing.assert_array_equal(got[32:], 100 * 28 + 8 * np.arange(32))


MBAR = """
.shared .align 8 .b8 bar[16]; .shared .align 128 .b8 data[1024];
mov.u32 %r20, bar; mov.u32 %r21, data;
setp.eq.u32 %p7, %r0, 0; @%p7 mbarrier.init.shared.b64 [%r20], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;
"""
WAIT = """
{ .reg .pred W; LOOP: mbarrier.try_wait.parity.shared.b64 W, [%r20], {parity}, 10000000; @!W bra LOOP; }
"""


def wait(parity: int) -> str:
    return WAIT.replace("{parity}", str(parity))


def test_mbarrier_phases_and_state() -> None:
    body = (
        MBAR.replace("{count}", "64")
        + """
mbarrier.arrive.shared.b64 %rd1, [%r20];
{ LOOP: mbarrier.try_wait.shared::cta.b64 %p1, [%r20], %rd1; @!%p1 bra LOOP; }
mbarrier.test_wait.parity.shared.b64 %p2, [%r20], 0; selp.u32 %r4, 1, 0, %p2;
mbarrier.test_wait.parity.shared.b64 %p3, [%r20], 1; selp.u32 %r5, 2, 0, %p3; or.b32 %r4, %r4, %r5;
bar.sync 0; mbarrier.arrive.release.cta.shared::cta.b64 _, [%r20];
"""
        + wait(1)
        + "@%p7 mbarrier.inval.shared.b64 [%r20]; st.global.b32 [%rd0], %r4;"
    )
    np.testing.assert_array_equal(words(body, 64, block=64), 1)


def test_mbarrier_counts_and_drop() -> None:
    body = (
        MBAR.replace("{count}", "33")
        + """
setp.eq.u32 %p1, %r0, 5; @%p1 mbarrier.arrive_drop.shared.b64 _, [%r20], 2;
setp.ne.u32 %p1, %r0, 5; @%p1 mbarrier.arrive.shared.b64 _, [%r20];
"""
        + wait(0)
        + "setp.ne.u32 %p1, %r0, 5; @%p1 mbarrier.arrive.shared.b64 _, [%r20], 1;"
        + wait(1)
        + "st.global.b32 [%rd0], %r2;"
    )
    np.testing.assert_array_equal(words(body, 32), 32)


@pytest.mark.parametrize("text,body", [
    ("no mbarrier", ".shared .align 8 .b8 b[8]; mov.u32 %r4, b; mbarrier.arrive.shared.b64 _, [%r4];"),
    ("exceeds the pending count", MBAR.replace("{count}", "1") + "mbarrier.arrive.shared.b64 _, [%r20], 2;"),
    ("barrier id 16", "mov.u32 %r4, 16; bar.sync %r4;"),
    ("multiple of 32", "bar.sync 1, 33;"),
    ("thread count", "setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 1, 96;"),
])  # fmt: skip
def test_misuse(text: str, body: str) -> None:
    with pytest.raises(SyncError, match=text) as info:
        words(body, 64, block=64)
    assert info.value.where is not None and info.value.where.line is not None


def test_bulk_copy_in_and_out() -> None:
    src = np.arange(256, dtype=np.uint32)
    body = (
        MBAR.replace("{count}", "1")
        + """
setp.ne.u32 %p1, %r0, 0; @%p1 bra W1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%ptr1], 1024, [%r20];
W1:
"""
        + wait(0)
        + """
shl.b32 %r4, %r0, 2; add.u32 %r5, %r21, %r4; ld.shared.b32 %r6, [%r5]; ld.shared.b32 %r7, [%r5+512];
st.shared.b32 [%r5+512], %r6; st.shared.b32 [%r5], %r7; fence.proxy.async.shared::cta; bar.sync 0;
setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
cp.async.bulk.global.shared::cta.bulk_group [%ptr2], [%r21], 1024;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%ptr3], [%r21], 1024;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
ld.global.b32 %r8, [%ptr2]; st.global.b32 [%rd0], %r8;
END: ret;
"""
    )
    out, _ = launch(
        PRE + body, [np.zeros(128, np.uint32), src, np.zeros(256, np.uint32), np.full(256, 5, np.uint32)], block=128
    )
    want = np.roll(src, 128)
    np.testing.assert_array_equal(out[2], want)
    np.testing.assert_array_equal(out[3], want + 5)
    assert out[0][0] == 128


def test_bulk_data_is_not_there_before_the_wait() -> None:
    """A kernel that forgets to wait sees old shared memory: the copy takes time."""
    body = (
        MBAR.replace("{count}", "1")
        + """
mov.u32 %r9, 7; shl.b32 %r4, %r0, 2; add.u32 %r5, %r21, %r4; st.shared.b32 [%r5], %r9; bar.warp.sync -1;
@%p7 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 128;
@%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%ptr1], 128, [%r20];
nanosleep.u32 100; ld.shared.b32 %r6, [%r5]; st.global.b32 [%rd0], %r6;
"""
    )
    np.testing.assert_array_equal(words(body, 32, np.full(32, 9, np.uint32)), 7)


def test_bulk_copy_alignment() -> None:
    body = (
        MBAR.replace("{count}", "1")
        + "@%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21+8], [%ptr0], 16, [%r20];"
    )
    with pytest.raises(MisalignedAccess, match="multiple of 16"):
        words(body, 32)


def test_cp_async_groups() -> None:
    src = np.arange(512, dtype=np.uint32)
    body = """
.shared .align 16 .b8 data[2048]; mov.u32 %r21, data; shl.b32 %r4, %r0, 4; add.u32 %r5, %r21, %r4; cvt.u64.u32 %rd1, %r4; add.s64 %rd2, %ptr1, %rd1;
cp.async.cg.shared.global [%r5], [%rd2], 16; cp.async.commit_group;
cp.async.ca.shared.global [%r5+512], [%rd2+512], 16, 8; cp.async.commit_group;
mov.u32 %r9, 0; setp.lt.u32 %p1, %r0, 16; selp.u32 %r9, 16, 0, %p1;
cp.async.cg.shared.global.L2::128B [%r5+1024], [%rd2+1024], 16, %r9; cp.async.commit_group;
cp.async.wait_group 1; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r5+512];
cp.async.wait_all; ld.shared.b32 %r14, [%r5+1024]; ld.shared.b32 %r15, [%r5];
add.u32 %r16, %r11, %r13; add.u32 %r16, %r16, %r14; add.u32 %r16, %r16, %r15; st.global.b32 [%rd0], %r16;
"""
    t = np.arange(32)
    want = (128 + 4 * t + 1) + 0 + np.where(t < 16, 256 + 4 * t, 0) + 4 * t
    np.testing.assert_array_equal(words(body, 32, src), want)


def test_cp_async_arrives_on_mbarrier() -> None:
    body = (
        MBAR.replace("{count}", "32")
        + """
shl.b32 %r4, %r0, 2; add.u32 %r5, %r21, %r4; cvt.u64.u32 %rd1, %r4; add.s64 %rd2, %ptr1, %rd1;
cp.async.ca.shared.global [%r5], [%rd2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r20];
"""
        + wait(0)
        + "ld.shared.b32 %r6, [%r5]; st.global.b32 [%rd0], %r6;"
    )
    np.testing.assert_array_equal(words(body, 32, np.arange(32, dtype=np.uint32) + 3), np.arange(32) + 3)


CLUSTER = """
.shared .align 8 .b8 bar[8]; .shared .align 128 .b8 data[512];
mov.u32 %r20, bar; mov.u32 %r21, data; mov.u32 %r22, %cluster_ctarank; mov.u32 %r23, %cluster_nctarank;
setp.eq.u32 %p7, %r0, 0; @%p7 mbarrier.init.shared.b64 [%r20], 32;
shl.b32 %r4, %r0, 2; add.u32 %r5, %r21, %r4;
"""
CBAR = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"


@pytest.mark.parametrize("n", [2, 4, 8])
def test_cluster_distributed_shared_memory(n: int) -> None:
    body = (
        CLUSTER
        + "st.shared.b32 [%r5], %r3;"
        + CBAR
        + """
add.u32 %r6, %r22, 1; rem.u32 %r6, %r6, %r23; mapa.shared::cluster.u32 %r7, %r5, %r6; ld.shared::cluster.b32 %r8, [%r7];
cvta.shared.u64 %rd1, data; mapa.u64 %rd2, %rd1, %r6; cvt.u64.u32 %rd3, %r4; add.s64 %rd2, %rd2, %rd3; ld.b32 %r9, [%rd2];
setp.ne.u32 %p1, %r8, %r9; @%p1 trap; getctarank.shared::cluster.u32 %r10, %r7; setp.ne.u32 %p1, %r10, %r6; @%p1 trap;
""".replace("cvta.shared.u64 %rd1, data;", "mov.u64 %rd4, data; cvta.shared.u64 %rd1, %rd4;")
        + CBAR
        + "st.global.b32 [%rd0], %r8;"
    )
    got = words(body, 64 * n, grid=2 * n, cluster=n)
    want = np.arange(64 * n).reshape(2, n, 32)
    np.testing.assert_array_equal(got, np.roll(want, -1, axis=1).ravel())


def test_remote_mbarrier_and_async_store() -> None:
    body = (
        CLUSTER
        + CBAR
        + """
xor.b32 %r6, %r22, 1; mapa.shared::cluster.u32 %r7, %r20, %r6; mapa.shared::cluster.u32 %r8, %r5, %r6;
@%p7 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 128;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r3, [%r7];
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
"""
        + wait(0)
        + "ld.shared.b32 %r9, [%r5]; st.global.b32 [%rd0], %r9;"
        + CBAR
    )
    for seed in range(4):
        got = words(body, 64, grid=2, cluster=2, seed=seed)
        np.testing.assert_array_equal(got, np.arange(64).reshape(2, 32)[::-1].ravel())


def test_bulk_multicast_and_smem_to_remote_smem() -> None:
    body = (
        CLUSTER.replace("[%r20], 32", "[%r20], 1")
        + "@%p7 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 256;"
        + CBAR
        + """
setp.ne.u32 %p1, %r0, 0; @%p1 bra W; mov.u16 %h1, 3; setp.ne.u32 %p2, %r22, 0; @%p2 bra SEND;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r21], [%ptr1], 128, [%r20], %h1;
SEND: xor.b32 %r6, %r22, 1; mapa.shared::cluster.u32 %r7, %r21, %r6; mapa.shared::cluster.u32 %r8, %r20, %r6;
mov.u32 %r9, 55; add.u32 %r10, %r9, %r22; st.shared.b32 [%r21+384], %r10;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7+128], [%r21+384], 128, [%r8];
W:
"""
        + wait(0)
        + "ld.shared.b32 %r11, [%r5]; ld.shared.b32 %r12, [%r21+128]; mad.lo.u32 %r11, %r12, 1000, %r11; st.global.b32 [%rd0], %r11;"
        + CBAR
    )
    got = words(body, 64, np.arange(32, dtype=np.uint32), grid=2, cluster=2)
    np.testing.assert_array_equal(got, np.concatenate([np.arange(32) + 56000, np.arange(32) + 55000]))


def test_cluster_registers() -> None:
    body = """
mov.u32 %r4, %clusterid.x; mov.u32 %r5, %nclusterid.x; mov.u32 %r6, %cluster_ctaid.x; mov.u32 %r7, %cluster_nctaid.x;
mov.u32 %r8, %cluster_ctarank; mad.lo.u32 %r9, %r4, 10, %r5; mad.lo.u32 %r9, %r9, 10, %r6; mad.lo.u32 %r9, %r9, 10, %r7; mad.lo.u32 %r9, %r9, 10, %r8;
st.global.b32 [%rd0], %r9;"""
    got = words(body, 192, grid=6, cluster=2).reshape(6, 32)
    np.testing.assert_array_equal(got[:, 0], [(((c // 2) * 10 + 3) * 10 + c % 2) * 100 + 20 + c % 2 for c in range(6)])


def test_remote_access_after_exit_is_an_error() -> None:
    body = (
        CLUSTER
        + "setp.eq.u32 %p1, %r22, 1; @%p1 exit; nanosleep.u32 100000; mapa.shared::cluster.u32 %r7, %r5, 1; ld.shared::cluster.b32 %r8, [%r7];"
    )
    with pytest.raises(Exception, match="already exited"):
        words(body, 64, grid=2, cluster=2)


# -- deadlocks ------------------------------------------------------------------
@pytest.mark.parametrize("body,text", [
    ("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64;", r"warp 0, PTX line \d+, waits for barrier 1 \(32 of 64 threads"),
    (MBAR.replace("{count}", "65") + "mbarrier.arrive.shared.b64 _, [%r20];" + wait(0), r"mbarrier at shared address 0x400, parity or state 0 \(phase 0, 1 of 65 arrivals pending, tx-count 0\)"),
    (MBAR.replace("{count}", "64") + "mbarrier.arrive.shared.b64 _, [%r20]; @%p7 mbarrier.expect_tx.shared.b64 [%r20], 16;" + wait(0) + wait(1), "arrivals pending"),
])  # fmt: skip
def test_deadlock_lists_what_warps_wait_for(body: str, text: str) -> None:
    with pytest.raises(Deadlock) as info:
        words(body, 64, block=64)
    assert "none of the" in info.value.message
    assert re.search(text, str(info.value)), str(info.value)


def test_cluster_deadlock() -> None:
    body = "mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p1, %r4, 0; @%p1 bra A; L: ld.volatile.global.b32 %r5, [%ptr1]; nanosleep.u32 1000; bra.uni L; A: barrier.cluster.arrive; barrier.cluster.wait;"
    with pytest.raises(Exception, match=r"cluster barrier \(32 of 64 threads"):
        words(body, 64, np.zeros(1, np.uint32), grid=2, cluster=2, max_instructions=5000)


# -- clocks and scheduling ------------------------------------------------------------
CLOCKS = """
mov.u64 %rd1, %clock64; mov.u64 %rd2, %globaltimer; mov.u32 %r4, %smid; mov.u32 %r5, %clock; mov.u32 %r6, %globaltimer_lo;
mov.u32 %r7, 0; L: add.u32 %r7, %r7, 1; setp.lt.u32 %p1, %r7, 200; @%p1 bra L;
mov.u64 %rd3, %clock64; mov.u64 %rd4, %globaltimer;
mad.wide.u32 %rd5, %r1, 64, %ptr1; st.global.b64 [%rd5], %rd1; st.global.b64 [%rd5+8], %rd2; st.global.b64 [%rd5+16], %rd3; st.global.b64 [%rd5+24], %rd4;
cvt.u64.u32 %rd6, %r4; st.global.b64 [%rd5+32], %rd6; cvt.u64.u32 %rd6, %r5; st.global.b64 [%rd5+40], %rd6; cvt.u64.u32 %rd6, %r6; st.global.b64 [%rd5+48], %rd6;
"""


def clocks(dev: Device, grid: int = 132) -> Any:
    out, _ = launch(
        PRE + CLOCKS, [np.zeros(32 * grid, np.uint32), np.zeros((grid, 8), np.uint64)], grid=grid, device=dev
    )
    return out[1]


def test_clocks() -> None:
    base = 1_700_000_000_000_000_000
    rows = clocks(Device(3, time_base=base, ghz={0: 1.5}))
    c0, g0, c1, g1, sm, c32, g32 = rows.T[:7].astype(np.int64)
    assert sorted(sm) == list(range(132))
    assert ((rows[:, 1] % 32) == 0).all() and (g0 >= base).all() and (g0 < base + 10**6).all()
    assert np.ptp(c0) > 10**9  # unrelated
    np.testing.assert_array_equal(c32 - (c0 & 0xFFFFFFFF), 12)  # three instructions at 4 cycles
    assert (np.abs(g32 - (g0 & 0xFFFFFFFF)) <= 32).all()
    dc, dt = c1 - c0, g1 - g0
    gpc0 = np.isin(sm, [0, 1, 16, 17, 32, 33, 48, 49, *range(124, 132)])
    assert (np.abs(dc - dt * np.where(gpc0, 1.5, 1.98)) < 34 * 2).all()


def test_seed_decides_everything() -> None:
    base = 1_700_000_000_000_000_000
    same = [clocks(Device(5, time_base=base), 8) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (clocks(Device(6, time_base=base), 8) != same[0]).any()


def test_seeds_give_other_interleavings() -> None:
    body = "@%p7 bra X; X: shr.u32 %r4, %r0, 5; and.b32 %r5, %r0, 31; setp.ne.u32 %p1, %r5, 0; @%p1 exit; atom.global.add.u32 %r6, [%ptr1], 1; mad.wide.u32 %rd1, %r6, 4, %ptr0; st.global.b32 [%rd1], %r4;"
    body = body.replace("@%p7 bra X; X:", "")
    orders = {tuple(words(body, 256, np.zeros(1, np.uint32), block=256, seed=s)[:8]) for s in range(6)}
    assert len(orders) > 1 and all(sorted(o) == list(range(8)) for o in orders)


def test_release_acquire_across_blocks_follows_the_global_timer() -> None:
    """A flag passed round 16 CTAs: each receiver's time is not before the sender's."""
    body = """
setp.ne.u32 %p1, %r0, 0; @%p1 exit; mov.u32 %r10, 0;
LOOP: mad.lo.u32 %r11, %r10, 16, %r1;
SPIN: ld.acquire.gpu.global.b32 %r12, [%ptr1]; setp.ne.u32 %p2, %r12, %r11; @%p2 bra SPIN;
mov.u64 %rd1, %globaltimer; mad.wide.u32 %rd2, %r11, 8, %ptr2; st.global.b64 [%rd2], %rd1;
add.u32 %r13, %r11, 1; st.release.gpu.global.b32 [%ptr1], %r13;
add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra LOOP;
"""
    out, _ = launch(PRE + body, [np.zeros(512, np.uint32), np.zeros(1, np.uint32), np.zeros(64, np.uint64)], grid=16)
    assert out[1][0] == 64 and (np.diff(out[2].astype(np.int64)) >= 0).all()


def test_ctas_share_and_reuse_sms() -> None:
    body = "mov.u32 %r4, %smid; st.global.b32 [%rd0], %r4;"
    dev = Device(sms=4)
    got = words(body, 32 * 12, grid=12, device=dev).reshape(12, 32)[:, 0]
    assert set(got) == {0, 1, 2, 3} and (np.bincount(got) >= 2).all()
    # one CTA of this size fits an SM: the other eight wait for their turn
    out, result = launch(PRE + body, [np.zeros(32 * 12, np.uint32)], grid=12, smem=200_000, device=Device(sms=4))
    assert result.ctas == 12


def test_grid_ids_and_time_advance() -> None:
    dev = Device(time_base=10**18)
    k = dev.load(
        module(".reg .b64 %a, %g; ld.param.u64 %a, [p]; mov.u64 %g, %gridid; st.global.b64 [%a], %g;", ".param .u64 p")
    ).kernel()
    out = dev.zeros(1, np.uint64)
    r1 = k.launch(1, 32, [out])
    first = out.read()[0]
    r2 = k.launch(1, 32, [out])
    assert (first, out.read()[0]) == (r1.gridid, r2.gridid) and r2.gridid != r1.gridid
    assert 10**18 <= r1.begin_ns < r1.end_ns < r2.begin_ns
