"""Integer instructions against Python's integers on edge values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ptx_kit import pad32, pairs32, run_lanes, same_bits

DTYPES = {"16": (np.uint16, np.int16), "32": (np.uint32, np.int32), "64": (np.uint64, np.int64)}


def _edges(t: str) -> list[int]:
    n = int(t[1:])
    if t[0] == "s":
        return [0, 1, 2, 7, -1, -2, -7, 100, 2 ** (n - 1) - 1, -(2 ** (n - 1)), -(2 ** (n - 1)) + 1]
    return [0, 1, 2, 3, 7, 255, 2 ** (n - 1), 2 ** (n - 1) - 1, 2**n - 1, 2**n - 2]


def _dtype(t: str) -> Any:
    return DTYPES[t[1:]][t[0] == "s"]


def _wrap(v: int, t: str) -> int:
    n = int(t[1:])
    v &= (1 << n) - 1
    return v - (1 << n) if t[0] == "s" and v >> (n - 1) else v


def _tdiv(a: int, b: int) -> int:
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _trem(a: int, b: int) -> int:
    return a if b == 0 else a - _tdiv(a, b) * b


ALL = ["u16", "s16", "u32", "s32", "u64", "s64"]
BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n,
    "div": lambda a, b, n: _tdiv(a, b),
    "rem": lambda a, b, n: _trem(a, b),
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
}


@pytest.mark.parametrize("t", ALL)
@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, t: str) -> None:
    n = int(t[1:])
    for a, b in pairs32(_edges(t), _dtype(t)):
        got = run_lanes(f"{op}.{t} %d, %a0, %a1;", [a, b], _dtype(t))
        same_bits(got, np.array([_wrap(BINARY[op](int(x), int(y), n), t) for x, y in zip(a, b)], _dtype(t)))


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
@pytest.mark.parametrize("form", ["mul", "mad"])
def test_wide(form: str, t: str) -> None:
    wide = t[0] + str(2 * int(t[1:]))
    for a, b in pairs32(_edges(t), _dtype(t)):
        c = np.arange(32).astype(_dtype(wide))
        third = ", %a2" if form == "mad" else ""
        got = run_lanes(f"{form}.wide.{t} %d, %a0, %a1{third};", [a, b, c], _dtype(wide))
        add = c if form == "mad" else np.zeros(32, int)
        same_bits(got, np.array([_wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, add)], _dtype(wide)))


@pytest.mark.parametrize("imm", [-1, -4, 3, 2147483647])
def test_wide_immediate(imm: int) -> None:
    a = pad32(_edges("s32"), np.int32)
    got = run_lanes(f"mul.wide.s32 %d, %a0, {imm};", [a], np.int64)
    same_bits(got, a.astype(np.int64) * imm)


@pytest.mark.parametrize("t", ["u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("hi", ["lo", "hi"])
def test_mad(hi: str, t: str) -> None:
    n = int(t[1:])
    for a, b in pairs32(_edges(t), _dtype(t)):
        got = run_lanes(f"mad.{hi}.{t} %d, %a0, %a1, %a0;", [a, b], _dtype(t))
        want = [_wrap(((int(x) * int(y)) >> n if hi == "hi" else int(x) * int(y)) + int(x), t) for x, y in zip(a, b)]
        same_bits(got, np.array(want, _dtype(t)))


@pytest.mark.parametrize("t", ["b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("immediate", [False, True])
def test_shifts_clamp(t: str, immediate: bool) -> None:
    n = int(t[1:])
    kind = "u" + t[1:] if t[0] == "b" else t
    values = pad32(_edges(kind), _dtype(kind))
    for amount in (0, 1, 5, n - 1, n, n + 1, 31, 32, 33, 63, 64, 65, 255, 256, 0xFFFFFFFF):
        shift = np.full(32, amount, np.uint32)
        operand = str(amount) if immediate else "%a1"
        if t[0] == "b":
            got = run_lanes(f"shl.{t} %d, %a0, {operand};", [values, shift], _dtype(kind))
            want = [_wrap(int(x) << amount if amount < n else 0, kind) for x in values]
        else:
            got = run_lanes(f"shr.{t} %d, %a0, {operand};", [values, shift], _dtype(kind))
            want = [int(x) >> min(amount, n) for x in values]
        same_bits(got, np.array(want, _dtype(kind)))


@pytest.mark.parametrize("op,f", [("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)])
@pytest.mark.parametrize("t", ["b16", "b32", "b64"])
def test_logic(op: str, f: Any, t: str) -> None:
    kind = "u" + t[1:]
    for a, b in pairs32(_edges(kind), _dtype(kind)):
        same_bits(run_lanes(f"{op}.{t} %d, %a0, %a1;", [a, b], _dtype(kind)), f(a, b))
    same_bits(run_lanes(f"not.{t} %d, %a0;", [a], _dtype(kind)), ~a)
    same_bits(run_lanes(f"cnot.{t} %d, %a0;", [a], _dtype(kind)), a == 0)


def test_lop3_all_tables() -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(0, 2**32, 32, np.uint32) for _ in range(3))
    for lut in [
        0,
        0x0F,
        0x33,
        0x55,
        0x96,
        0xC0,
        0xE8,
        0xCA,
        0xF8,
        0x80,
        0xFE,
        0x6A,
        0xEA,
        0xA8,
        0x3C,
        0xFC,
        0x1B,
        0xFF,
    ]:
        got = run_lanes(f"lop3.b32 %d, %a0, %a1, %a2, {lut};", [a, b, c], np.uint32)
        want = np.zeros(32, np.uint32)
        for bit in range(32):
            i = (a >> np.uint32(bit) & 1) * 4 + (b >> np.uint32(bit) & 1) * 2 + (c >> np.uint32(bit) & 1)
            want |= ((lut >> i.astype(int)) & 1).astype(np.uint32) << np.uint32(bit)
        same_bits(got, want)


def _prmt(a: int, b: int, sel: int) -> int:
    pool = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        s = sel >> (4 * i) & 15
        v = pool[s & 7]
        if s & 8:
            v = 0xFF if v & 0x80 else 0
        out |= v << (8 * i)
    return out


@pytest.mark.parametrize("sel", [0x3210, 0x7654, 0x5410, 0x0123, 0x8F1A, 0xFFFF])
def test_prmt(sel: int) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 2**32, 32, np.uint32) for _ in range(2))
    got = run_lanes(f"prmt.b32 %d, %a0, %a1, {sel};", [a, b], np.uint32)
    same_bits(got, np.array([_prmt(int(x), int(y), sel) for x, y in zip(a, b)], np.uint32))


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@pytest.mark.parametrize("side", ["l", "r"])
def test_funnel_shift(side: str, mode: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**32, 32, np.uint32) for _ in range(2))
    c = pad32([0, 1, 16, 31, 32, 33, 63, 64, 0xFFFFFFFF], np.uint32)
    got = run_lanes(f"shf.{side}.{mode}.b32 %d, %a0, %a1, %a2;", [a, b, c], np.uint32)
    want = []
    for x, y, z in zip(a, b, c):
        n = int(z) & 31 if mode == "wrap" else min(int(z), 32)
        v = int(y) << 32 | int(x)
        want.append((v << n >> 32 if side == "l" else v >> n) & 0xFFFFFFFF)
    same_bits(got, np.array(want, np.uint32))


UNARY32: dict[str, Callable[[int], int]] = {
    "popc.b32": lambda x: bin(x).count("1"),
    "clz.b32": lambda x: 32 - x.bit_length(),
    "brev.b32": lambda x: int(f"{x:032b}"[::-1], 2),
    "bfind.u32": lambda x: (x.bit_length() - 1) & 0xFFFFFFFF,
    "bfind.shiftamt.u32": lambda x: (32 - x.bit_length() if x else -1) & 0xFFFFFFFF,
}


@pytest.mark.parametrize("op", UNARY32)
def test_bit_counts(op: str) -> None:
    a = pad32([0, 1, 2, 3, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0x00F0F000, 0x12345678], np.uint32)
    want = [UNARY32[op](int(x)) for x in a]
    if "shiftamt" in op:
        want = [(31 - (int(x).bit_length() - 1)) & 0xFFFFFFFF if x else 0xFFFFFFFF for x in a]
    same_bits(run_lanes(f"{op} %d, %a0;", [a], np.uint32), np.array(want, np.uint32))


def test_bfind_signed_and_64() -> None:
    a = pad32([0, 1, -1, -2, 2**31 - 1, -(2**31)], np.int32)
    want = [(int(x if x >= 0 else ~x).bit_length() - 1) & 0xFFFFFFFF for x in a]
    same_bits(run_lanes("bfind.s32 %d, %a0;", [a], np.uint32), np.array(want, np.uint32))
    b = pad32([0, 1, 2**63, 2**64 - 1, 0xF0F0], np.uint64)
    same_bits(run_lanes("popc.b64 %d, %a0;", [b], np.uint32), [bin(int(x)).count("1") for x in b])
    same_bits(run_lanes("clz.b64 %d, %a0;", [b], np.uint32), [64 - int(x).bit_length() for x in b])
    same_bits(run_lanes("brev.b64 %d, %a0;", [b], np.uint64), [int(f"{int(x):064b}"[::-1], 2) for x in b])


@pytest.mark.parametrize("pos,length", [(0, 8), (4, 12), (31, 1), (24, 16), (0, 32), (5, 0), (40, 8), (0, 255)])
def test_bit_fields(pos: int, length: int) -> None:
    a = pad32([0, 0xFFFFFFFF, 0x80000000, 0x12345678, 0xF0F0F0F0, 0x7FFFFFFF], np.uint32)
    got = run_lanes(f"bfe.u32 %d, %a0, {pos}, {length};", [a], np.uint32)
    same_bits(got, [(int(x) >> pos) & ((1 << length) - 1) & 0xFFFFFFFF for x in a])
    got = run_lanes(f"bfe.s32 %d, %a0, {pos}, {length};", [a.view(np.int32)], np.int32)
    same_bits(got, np.array([_bfe_signed(int(x), pos, length) for x in a], np.uint32).view(np.int32))
    b = pad32([0, 0xFFFFFFFF, 0x0F0F0F0F], np.uint32)
    got = run_lanes(f"bfi.b32 %d, %a0, %a1, {pos}, {length};", [a, b], np.uint32)
    m = (((1 << length) - 1) << pos) & 0xFFFFFFFF
    same_bits(got, [(int(y) & ~m) | ((int(x) << pos) & m) for x, y in zip(a, b)])


def _bfe_signed(x: int, pos: int, length: int) -> int:
    """The pseudo code of the PTX ISA, bit by bit."""
    sbit = 0 if length == 0 else x >> min(pos + length - 1, 31) & 1
    out = 0
    for i in range(32):
        out |= (x >> (pos + i) & 1 if i < length and pos + i <= 31 else sbit) << i
    return out


@pytest.mark.parametrize("op", ["abs", "neg"])
@pytest.mark.parametrize("t", ["s16", "s32", "s64"])
def test_abs_neg(op: str, t: str) -> None:
    a = pad32(_edges(t), _dtype(t))
    f = abs if op == "abs" else lambda v: -v
    same_bits(run_lanes(f"{op}.{t} %d, %a0;", [a], _dtype(t)), [_wrap(f(int(x)), t) for x in a])


def test_saturating_and_sad() -> None:
    for a, b in pairs32(_edges("s32"), np.int32):
        clip = lambda v: max(min(v, 2**31 - 1), -(2**31))  # noqa: E731
        same_bits(
            run_lanes("add.sat.s32 %d, %a0, %a1;", [a, b], np.int32), [clip(int(x) + int(y)) for x, y in zip(a, b)]
        )
        same_bits(
            run_lanes("sub.sat.s32 %d, %a0, %a1;", [a, b], np.int32), [clip(int(x) - int(y)) for x, y in zip(a, b)]
        )
    for a, b in pairs32(_edges("u32"), np.uint32):
        want = [(abs(int(x) - int(y)) + 5) & 0xFFFFFFFF for x, y in zip(a, b)]
        same_bits(run_lanes("sad.u32 %d, %a0, %a1, 5;", [a, b], np.uint32), want)


def test_carry_chain() -> None:
    a = pad32([0, 1, 2**64 - 1, 2**32 - 1, 2**63], np.uint64)
    b = pad32([2**64 - 1, 1, 2**32, 5, 2**63, 7, 2**32 - 1], np.uint64)
    regs = ".reg .b32 %x<7>;"
    split = "mov.b64 {%x0,%x1}, %a0; mov.b64 {%x2,%x3}, %a1;"
    got = run_lanes(
        split + "add.cc.u32 %x4,%x0,%x2; addc.u32 %x5,%x1,%x3; mov.b64 %d,{%x4,%x5};", [a, b], np.uint64, regs=regs
    )
    same_bits(got, a + b)
    got = run_lanes(
        split + "sub.cc.u32 %x4,%x0,%x2; subc.u32 %x5,%x1,%x3; mov.b64 %d,{%x4,%x5};", [a, b], np.uint64, regs=regs
    )
    same_bits(got, a - b)


def test_dp4a_and_video() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 2**32, 32, np.uint32) for _ in range(2))
    got = run_lanes("dp4a.s32.s32 %d, %a0, %a1, 7;", [a, b], np.int32)
    want = (a.view(np.int8).reshape(-1, 4).astype(int) * b.view(np.int8).reshape(-1, 4)).sum(1) + 7
    same_bits(got, want)


CMP: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("cmp", CMP)
@pytest.mark.parametrize("t", ALL)
def test_setp(cmp: str, t: str) -> None:
    for a, b in pairs32(_edges(t), _dtype(t)):
        code = f"setp.{cmp}.{t} %q0, %a0, %a1; selp.u32 %d, 1, 0, %q0;"
        same_bits(run_lanes(code, [a, b], np.uint32), CMP[cmp](a, b))


@pytest.mark.parametrize("boolop,f", [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)])
def test_setp_combine_and_second_result(boolop: str, f: Any) -> None:
    a, b = np.arange(32, dtype=np.uint32), np.full(32, 16, np.uint32)
    code = f"""
    setp.lt.u32 %q0, %a0, 8;
    setp.lt.{boolop}.u32 %q1|%q2, %a0, %a1, !%q0;
    selp.u32 %t1, 1, 0, %q1; selp.u32 %t2, 2, 0, %q2; or.b32 %d, %t1, %t2;"""
    got = run_lanes(code, [a, b], np.uint32)
    c = ~(a < 8)
    same_bits(got, f(a < b, c) * 1 + f(~(a < b), c) * 2)


def test_set_slct() -> None:
    a = pad32(_edges("s32"), np.int32)
    same_bits(run_lanes("set.gt.u32.s32 %d, %a0, 0;", [a], np.uint32), np.where(a > 0, 0xFFFFFFFF, 0))
    same_bits(run_lanes("set.gt.f32.s32 %d, %a0, 0;", [a], np.float32), np.where(a > 0, 1.0, 0.0))
    same_bits(run_lanes("slct.u32.s32 %d, 3, 4, %a0;", [a], np.uint32), np.where(a >= 0, 3, 4))


@pytest.mark.parametrize("active", [0x1, 0x80000000, 0x0F0F00FF])
def test_inactive_lanes_keep_their_registers(active: int) -> None:
    lanes = np.arange(32)
    on = (active >> lanes & 1).astype(bool)
    a = np.arange(100, 132, dtype=np.uint32)
    for code, want in (
        ("add.u32 %d, %a0, 5;", a + 5),
        ("mul.hi.u32 %d, %a0, 2147483648;", a // 2),
        ("popc.b32 %d, %a0;", np.array([bin(int(x)).count("1") for x in a])),
    ):
        same_bits(run_lanes(code, [a], np.uint32, active=active), np.where(on, want, 0))


def test_guarded_instruction_keeps_other_lanes() -> None:
    a = np.arange(32, dtype=np.uint32)
    code = "setp.lt.u32 %q0, %a0, 10; mov.u32 %d, 7; @%q0 add.u32 %d, %a0, 100; @!%q0 prmt.b32 %d, %a0, 0, 0x3210;"
    same_bits(run_lanes(code, [a], np.uint32), np.where(a < 10, a + 100, a))
