# ruff: noqa: E501 - PTX text and IR lines
"""Divergence, reconvergence, warp-level exchange, and the parser's forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_kit import launch, module

from warptrace.emulator import Deadlock, Device, InstructionLimit, KernelTrap, PtxSyntaxError, UnsupportedInstruction

PRE = """
.reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p<6>;
mov.u32 %r0, %tid.x; mad.wide.u32 %rd0, %r0, 4, %ptr0;
"""
LANES = np.arange(32)


def out32(body: str, **kwargs: Any) -> Any:
    """Run with one output word a thread, stored at [%rd0]."""
    n = kwargs.get("block", 32)
    out, _ = launch(PRE + body, [np.zeros(n, np.uint32)], **kwargs)
    return out[0]


def test_loop_with_lane_dependent_trip_count() -> None:
    body = """
mov.u32 %r1, 0; mov.u32 %r2, 0;
L: setp.ge.u32 %p1, %r1, %r0; @%p1 bra D;
   add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1; bra.uni L;
D: activemask.b32 %r3; and.b32 %r4, %r3, 0; add.u32 %r2, %r2, %r4;
   setp.eq.u32 %p2, %r3, -1; selp.u32 %r5, 1000, 0, %p2; add.u32 %r2, %r2, %r5;
   st.global.b32 [%rd0], %r2;
"""
    np.testing.assert_array_equal(out32(body), LANES * (LANES - 1) // 2 + 1000)


def test_nested_divergence_reconverges() -> None:
    body = """
mov.u32 %r9, 0;
and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;
  setp.lt.u32 %p2, %r0, 16; @%p2 bra LOWODD;
    add.u32 %r9, %r9, 1; bra JO;
  LOWODD: add.u32 %r9, %r9, 2;
  JO: activemask.b32 %r2; popc.b32 %r3, %r2; mad.lo.u32 %r9, %r3, 10, %r9; bra J;
EVEN: add.u32 %r9, %r9, 3;
J: activemask.b32 %r2; popc.b32 %r3, %r2; mad.lo.u32 %r9, %r3, 1000, %r9;
st.global.b32 [%rd0], %r9;
"""
    odd = LANES % 2 == 1
    want = np.where(odd, np.where(LANES < 16, 2, 1) + 160, 3) + 32000
    np.testing.assert_array_equal(out32(body), want)


def test_early_exit_of_some_lanes() -> None:
    body = """
mov.u32 %r1, 7; st.global.b32 [%rd0], %r1;
setp.lt.u32 %p1, %r0, 5; @%p1 exit;
setp.gt.u32 %p2, %r0, 20; @%p2 bra A;
  add.u32 %r1, %r1, 1; setp.eq.u32 %p3, %r0, 10; @%p3 ret;
A: activemask.b32 %r2; popc.b32 %r3, %r2; add.u32 %r1, %r1, %r3;
   st.global.b32 [%rd0], %r1; bar.sync 0;
"""
    want = np.where(LANES > 20, 7, 8) + 26
    want[:5], want[10] = 7, 7
    np.testing.assert_array_equal(out32(body), want)


def test_spin_between_lanes_of_a_warp() -> None:
    """Independent thread scheduling: lane 0 spins on a store that another lane makes."""
    body = """
.shared .b32 flag; mov.u32 %r1, 0; st.shared.b32 [flag], %r1; bar.warp.sync -1;
setp.eq.u32 %p1, %r0, 31; @%p1 bra SET;
SPIN: ld.volatile.shared.b32 %r2, [flag]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra J;
SET: mov.u32 %r3, 1; st.volatile.shared.b32 [flag], %r3;
J: st.global.b32 [%rd0], %r0;
"""
    np.testing.assert_array_equal(out32(body), LANES)
    swapped = body.replace("%r0, 31; @%p1 bra SET", "%r0, 31; @!%p1 bra SPIN; bra SET")
    np.testing.assert_array_equal(out32(swapped), LANES)


def test_warp_sync_across_different_branches() -> None:
    """bar.warp.sync in both sides of a branch is one barrier for the whole warp."""
    body = """
.shared .b32 cell; setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW;
  bar.warp.sync 0xffffffff; ld.shared.b32 %r1, [cell]; bra J;
LOW: mov.u32 %r2, 77; st.shared.b32 [cell], %r2; bar.warp.sync 0xffffffff; mov.u32 %r1, 5;
J: st.global.b32 [%rd0], %r1;
"""
    np.testing.assert_array_equal(out32(body), np.where(LANES < 16, 5, 77))


def test_shuffle_in_divergent_code_with_partial_mask() -> None:
    body = """
mov.u32 %r1, 0;
setp.ge.u32 %p1, %r0, 8; @%p1 bra J;
shfl.sync.down.b32 %r1|%p2, %r0, 1, 0x1f, 0xff; selp.u32 %r2, 100, 0, %p2; add.u32 %r1, %r1, %r2;
vote.sync.ballot.b32 %r3, %p2, 0xff; add.u32 %r1, %r1, %r3;
J: st.global.b32 [%rd0], %r1;
"""
    got = out32(body)
    np.testing.assert_array_equal(got[:7], np.arange(1, 8) + 100 + 255)
    np.testing.assert_array_equal(got[8:], 0)


@pytest.mark.parametrize("mode,b,c", [("up", 1, 0), ("down", 3, 31), ("bfly", 16, 31), ("idx", 5, 31), ("bfly", 1, 0x1C03),
                                      ("idx", 2, 0x1807), ("up", 2, 0x1800), ("down", 1, 0x1C03)])  # fmt: skip
def test_shuffles(mode: str, b: int, c: int) -> None:
    code = f"add.u32 %r1, %r0, 100; shfl.sync.{mode}.b32 %r2|%p1, %r1, {{}}, {{}}, -1; selp.u32 %r3, 1000, 0, %p1; add.u32 %r2, %r2, %r3; st.global.b32 [%rd0], %r2;"
    want = []
    for lane in range(32):
        cv, seg = c & 31, c >> 8 & 31
        top, low = (lane & seg) | (cv & ~seg), lane & seg
        j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~seg)}[mode]
        ok = j >= top if mode == "up" else j <= top
        want.append((j if ok else lane) + 100 + (1000 if ok else 0))
    np.testing.assert_array_equal(out32(code.format(b, c)), want)
    np.testing.assert_array_equal(out32(f"mov.u32 %r8, {b}; mov.u32 %r9, {c};" + code.format("%r8", "%r9")), want)


def test_votes_elect_match_redux() -> None:
    body = """
setp.lt.u32 %p1, %r0, 10;
vote.sync.all.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;
vote.sync.any.pred %p2, %p1, -1; selp.u32 %r2, 2, 0, %p2; or.b32 %r1, %r1, %r2;
vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r2, 4, 0, %p2; or.b32 %r1, %r1, %r2;
vote.sync.ballot.b32 %r3, !%p1, -1; shl.b32 %r3, %r3, 4; or.b32 %r1, %r1, %r3;
elect.sync %r4|%p3, -1; selp.u32 %r5, 8, 0, %p3; or.b32 %r1, %r1, %r5;
st.global.b32 [%rd0], %r1;
"""
    ballot = (0xFFFFFC00 << 4) & 0xFFFFFFFF
    np.testing.assert_array_equal(out32(body), [ballot | 2 | (8 if i == 0 else 0) for i in range(32)])
    body = "and.b32 %r1, %r0, 3; match.any.sync.b32 %r2, %r1, -1; st.global.b32 [%rd0], %r2;"
    np.testing.assert_array_equal(out32(body), [0x11111111 << (i % 4) for i in range(32)])
    body = "match.all.sync.b32 %r2|%p1, %r0, -1; selp.u32 %r3, 1, %r2, %p1; st.global.b32 [%rd0], %r3;"
    np.testing.assert_array_equal(out32(body), 0)
    for op, want in (("add.u32", 496), ("min.u32", 0), ("max.s32", 31), ("and.b32", 0), ("or.b32", 31), ("xor.b32", 0)):
        body = f"redux.sync.{op} %r2, %r0, -1; st.global.b32 [%rd0], %r2;"
        np.testing.assert_array_equal(out32(body), want)


def test_partial_last_warp() -> None:
    body = "activemask.b32 %r1; popc.b32 %r2, %r1; bar.sync 0; st.global.b32 [%rd0], %r2;"
    np.testing.assert_array_equal(out32(body, block=48), [32] * 32 + [16] * 16)


def test_scopes_of_inline_assembly() -> None:
    """Nested blocks have registers and labels of their own, as inline asm makes them."""
    body = """
mov.u32 %r1, 0;
{ .reg .b32 t; .reg .pred q; mov.u32 t, 3; LOOP: add.u32 %r1, %r1, 1; sub.u32 t, t, 1; setp.ne.u32 q, t, 0; @q bra LOOP; }
{ .reg .b32 t; mov.u32 t, 5; { .reg .b32 t; mov.u32 t, 100; add.u32 %r1, %r1, t; } LOOP: add.u32 %r1, %r1, t; }
.pragma "nounroll";
st.global.b32 [%rd0], %r1;
"""
    np.testing.assert_array_equal(out32(body), 108)


def test_special_registers() -> None:
    body = """
mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mad.lo.u32 %r3, %r2, 8, %r1;      // linear thread
mad.wide.u32 %rd0, %r3, 4, %ptr0;
mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; mov.u32 %r6, %laneid; mov.u32 %r7, %warpid;
mad.lo.u32 %r8, %r7, 32, %r6; sub.u32 %r9, %r8, %r3;                          // 0 when consistent
mov.u32 %r10, %nctaid.x; mov.u32 %r11, %lanemask_lt; popc.b32 %r12, %r11; sub.u32 %r12, %r12, %r6; add.u32 %r9, %r9, %r12;
mov.u32 %r11, %lanemask_ge; popc.b32 %r12, %r11; add.u32 %r12, %r12, %r6; sub.u32 %r12, %r12, 32; add.u32 %r9, %r9, %r12;
mad.lo.u32 %r9, %r4, 1000000, %r9; mad.lo.u32 %r9, %r5, 10000, %r9; mad.lo.u32 %r9, %r10, 100, %r9;
st.global.b32 [%rd0], %r9;
"""
    out, _ = launch(PRE + body, [np.zeros(64, np.uint32)], block=(8, 8), grid=2)
    np.testing.assert_array_equal(out[0], 8 * 1000000 + 8 * 10000 + 2 * 100)


def test_unknown_instruction_is_named() -> None:
    text = module("\n.reg .b32 %r<2>;\nmov.u32 %r0, 1;\ntcgen05.alloc.b32 %r1, [%r0];\nret;")
    mod = Device().load(text)  # parsing alone accepts it
    with pytest.raises(UnsupportedInstruction) as info:
        mod.kernel()
    w = info.value.where
    assert w is not None and w.kernel == "k" and text.splitlines()[(w.line or 0) - 1].startswith("tcgen05.alloc")
    assert "tcgen05.alloc.b32 %r1, [%r0]" in str(info.value)


@pytest.mark.parametrize(
    "body", ["mov.u32 %nope, 1;", "{ .reg .b32 t; } mov.u32 t, 1;", "bra NOWHERE;", ".weird 3;", "mov.u32 $#!, 1;"]
)
def test_syntax_errors(body: str) -> None:
    with pytest.raises((PtxSyntaxError, UnsupportedInstruction)):
        Device().load(module(body)).kernel()


def test_instruction_limit() -> None:
    with pytest.raises(InstructionLimit) as info:
        launch(PRE + "L: add.u32 %r1, %r1, 1; bra L;", [np.zeros(32, np.uint32)], max_instructions=10000)
    assert "more than 10000 warp instructions" in str(info.value) and "warp 0" in str(info.value)


def test_trap() -> None:
    with pytest.raises(KernelTrap) as info:
        launch(PRE + "setp.eq.u32 %p1, %r0, 3; @%p1 trap; ret;", [np.zeros(32, np.uint32)])
    assert info.value.where is not None and info.value.where.lane == 3


def test_deadlock_of_lanes_is_reported() -> None:
    body = "setp.lt.u32 %p1, %r0, 4; @%p1 bra J; bar.warp.sync -1; J: bar.warp.sync 0xf; L: bra.uni M; M: setp.lt.u32 %p1, %r0, 4; @%p1 bar.warp.sync -1; ret;"
    with pytest.raises(Deadlock) as info:
        launch(PRE + body.replace("@%p1 bra J;", "@%p1 bra W;").replace("J: bar", "W: bar"), [np.zeros(32, np.uint32)])
    assert "waits for" in str(info.value)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_divergent_sides_does_not_matter_to_results(seed: int) -> None:
    dev = Device(seed, random_branches=True)
    body = "and.b32 %r1, %r0, 3; setp.lt.u32 %p1, %r1, 2; @%p1 bra A; add.u32 %r1, %r1, 10; bra J; A: add.u32 %r1, %r1, 20; J: st.global.b32 [%rd0], %r1;"
    np.testing.assert_array_equal(out32(body, device=dev), LANES % 4 + np.where(LANES % 4 < 2, 20, 10))
