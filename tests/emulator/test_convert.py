"""cvt between all types on edge values, and packed conversions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ptx_kit import pad32, run_lanes, same_bits
from test_float import bf16_to_f32, round_dir, to_bf16

INTS: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16,
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
}  # fmt: skip
FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
NAN, INF = float("nan"), float("inf")


def _edges(t: str) -> list[int]:
    n = int(t[1:])
    if t[0] == "u":
        return [0, 1, 100, 2**n - 1, 2 ** (n - 1), 2 ** (n - 1) - 1]
    return [0, 1, -1, 100, -100, 2 ** (n - 1) - 1, -(2 ** (n - 1))]


def _carrier(t: str) -> tuple[Any, int]:
    """The dtype that holds a type in a register, and its width."""
    n = max(int(t[1:]), 16)
    return INTS[t[0] + str(n)], n


@pytest.mark.parametrize("src", INTS)
@pytest.mark.parametrize("dst", INTS)
@pytest.mark.parametrize("sat", ["", ".sat"])
def test_int_to_int(dst: str, src: str, sat: str) -> None:
    a = pad32(_edges(src), _carrier(src)[0])
    got = run_lanes(f"cvt{sat}.{dst}.{src} %d, %a0;", [a], _carrier(dst)[0])
    info = np.iinfo(INTS[dst])
    want = []
    for v in a:
        x = int(v)
        if sat:
            x = max(int(info.min), min(int(info.max), x))
        x &= (1 << info.bits) - 1
        want.append(x - (1 << info.bits) if dst[0] == "s" and x >> (info.bits - 1) else x)
    same_bits(got, want)


@pytest.mark.parametrize("src", [t for t in INTS if t[1:] != "8"])
@pytest.mark.parametrize(
    "dst,mode",
    [("f16", "rn"), ("f64", "rn"), ("bf16", "rn"), ("f32", "rn"), ("f32", "rz"), ("f32", "rm"), ("f32", "rp")],
)
def test_int_to_float(dst: str, src: str, mode: str) -> None:
    values = [*_edges(src), 16777217, 33554435, 3, 2049, 4099]
    if int(src[1:]) == 64:
        values += [2**53 + 1, 2**62 + 2**38 + 1, 2**40 + 2**16 + 1]
    info = np.iinfo(INTS[src])
    a = pad32([v for v in values if int(info.min) <= v <= int(info.max)], INTS[src])
    if dst == "bf16":
        got = run_lanes(f"cvt.rn.bf16.{src} %d, %a0;", [a], np.uint16)
        # exact: these integers are rationals that to_bf16 takes through f64 only below 2**53
        small = np.array([abs(int(v)) < 2**53 for v in a])
        same_bits(got[small], to_bf16(a.astype(np.float64))[small])
        return
    got = run_lanes(f"cvt.{mode}.{dst}.{src} %d, %a0;", [a], FLOATS[dst])
    with np.errstate(all="ignore"):
        if mode == "rn":
            want = [FLOATS[dst](int(v)) if abs(int(v)) < 2**63 or dst != "f16" else FLOATS[dst](INF) for v in a]
            if dst != "f64":
                want = [_nearest(int(v), dst) for v in a]
        else:
            want = [round_dir(Fraction(int(v)), FLOATS[dst], mode) for v in a]
    same_bits(got, np.array(want, FLOATS[dst]))


def _nearest(v: int, dst: str) -> float:
    """An integer to the nearest f16 or f32, ties to even, by integer arithmetic."""
    p = 11 if dst == "f16" else 24
    n = abs(v)
    extra = max(n.bit_length() - p, 0)
    q, r = n >> extra, n & ((1 << extra) - 1)
    half = 1 << (extra - 1) if extra else 0
    if extra and (r > half or (r == half and q & 1)):
        q += 1
    x = float(q << extra)
    if dst == "f16" and x > 65504:
        x = INF
    return -x if v < 0 else x


SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 0.99, -0.99, 127.5, 255.5, 300.0, -300.0, 32768.0, 65504.0,
           -65504.0, INF, -INF, NAN]  # fmt: skip
LARGE = [2147483647.0, 2147483648.0, -2147483648.0, 4294967296.0, 9.3e18, -9.3e18, 1.9e19, 1e30, -1e30]


@pytest.mark.parametrize("src", ["f16", "f32", "f64"])
@pytest.mark.parametrize("dst", INTS)
def test_float_to_int(dst: str, src: str) -> None:
    values = SPECIAL + (LARGE if src != "f16" else [])
    a = pad32(values, FLOATS[src])
    info = np.iinfo(INTS[dst])
    lo, hi = int(info.min), int(info.max)
    nan = 1 << (info.bits - 1) if src == "f64" or info.bits == 64 else 0
    if dst[0] == "s" and nan:
        nan = -nan
    for mode, f in (("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", math.ceil)):
        got = run_lanes(f"cvt.{mode}.{dst}.{src} %d, %a0;", [a], _carrier(dst)[0])
        want = []
        for v in map(float, a):
            if math.isnan(v):
                want.append(nan)
            elif math.isinf(v):
                want.append(hi if v > 0 else lo)
            else:
                want.append(max(lo, min(hi, f(v))))
        same_bits(got, want)


@pytest.mark.parametrize("src", FLOATS)
@pytest.mark.parametrize("dst", FLOATS)
def test_float_to_float(dst: str, src: str) -> None:
    values = [0.0, -0.0, 1.0, 1 / 3, 65520.0, 65519.9, 1e-7, 3e-8, 1e38, -1e39, 1e300, INF, -INF, NAN, 2.0**-25, 1e-45]
    with np.errstate(all="ignore"):
        a = pad32(values, np.float64).astype(FLOATS[src])
        want = a.astype(FLOATS[dst])
    mode = ".rn" if np.dtype(FLOATS[dst]).itemsize < np.dtype(FLOATS[src]).itemsize else ""
    same_bits(run_lanes(f"cvt{mode}.{dst}.{src} %d, %a0;", [a], FLOATS[dst]), want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("dst,src", [("f32", "f64"), ("f16", "f32")])
def test_narrowing_directed(dst: str, src: str, mode: str) -> None:
    a = (np.random.default_rng(1).normal(size=32) * 100).astype(FLOATS[src])
    want = [round_dir(Fraction(float(v)), FLOATS[dst], mode) for v in a]
    same_bits(run_lanes(f"cvt.{mode}.{dst}.{src} %d, %a0;", [a], FLOATS[dst]), np.array(want, FLOATS[dst]))


@pytest.mark.parametrize("mode,f", [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)])
def test_integral_rounding(mode: str, f: Any) -> None:
    a = pad32([*SPECIAL, *LARGE], np.float32)
    same_bits(run_lanes(f"cvt.{mode}.f32.f32 %d, %a0;", [a], np.float32), f(a))


def test_bf16() -> None:
    a = pad32([0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.4e38, 3.39e38, INF, -INF, 1e-40, -1 / 3, 65504.0], np.float32)
    same_bits(run_lanes("cvt.rn.bf16.f32 %d, %a0;", [a], np.uint16), to_bf16(a))
    same_bits(run_lanes("cvt.rz.bf16.f32 %d, %a0;", [a], np.uint16), (a.view(np.uint32) >> 16).astype(np.uint16))
    nan = np.full(32, NAN, np.float32)
    same_bits(run_lanes("cvt.rn.bf16.f32 %d, %a0;", [nan], np.uint16), np.full(32, 0x7FFF))
    b = to_bf16(a)
    same_bits(run_lanes("cvt.f32.bf16 %d, %a0;", [b], np.float32), bf16_to_f32(b))


def test_packed() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.normal(size=32).astype(np.float32) * 1000 for _ in range(2))
    a[0], b[0], a[1], b[1] = NAN, INF, 70000.0, -70000.0
    with np.errstate(all="ignore"):
        h = lambda x: np.where(np.isnan(x), 0x7FFF, x.astype(np.float16).view(np.uint16)).astype(np.uint32)  # noqa: E731
        same_bits(run_lanes("cvt.rn.f16x2.f32 %d, %a0, %a1;", [a, b], np.uint32), h(a) << 16 | h(b))
        r = lambda x: np.where(x < 0, np.float32(0), x)  # noqa: E731
        same_bits(run_lanes("cvt.rn.relu.f16x2.f32 %d, %a0, %a1;", [a, b], np.uint32), h(r(a)) << 16 | h(r(b)))
    bf = lambda x: to_bf16(x).astype(np.uint32)  # noqa: E731
    same_bits(run_lanes("cvt.rn.bf16x2.f32 %d, %a0, %a1;", [a, b], np.uint32), bf(a) << 16 | bf(b))


def test_tf32() -> None:
    a = pad32([1.0, 1 / 3, -1 / 3, 1e10, 65504.0], np.float32)
    got = run_lanes("cvt.rna.tf32.f32 %d, %a0;", [a], np.uint32)
    same_bits(got, (a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000))


@pytest.mark.parametrize("fmt,limit", [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_fp8_round_trip(fmt: str, limit: float) -> None:
    rng = np.random.default_rng(3)
    a, b = ((rng.normal(size=32) * np.exp2(rng.integers(-8, 8, 32))).astype(np.float32) for _ in range(2))
    a[0], b[0], a[1] = 1e9, -1e9, 0.0
    code = f".reg .b16 %h; cvt.rn.satfinite.{fmt}x2.f32 %h, %a0, %a1; cvt.rn.f16x2.{fmt}x2 %d, %h;"
    got = run_lanes(code, [a, b], np.uint32).view(np.float16).reshape(-1, 2).astype(np.float64)
    man = 3 if fmt == "e4m3" else 2
    low = -6 if fmt == "e4m3" else -14
    for x, y in ((got[:, 0], b), (got[:, 1], a)):
        v = np.clip(y.astype(np.float64), -limit, limit)
        e = np.maximum(np.floor(np.log2(np.maximum(np.abs(v), 1e-30))), low)
        step = np.exp2(e - man)
        want = np.clip(np.rint(v / step) * step, -limit, limit)
        same_bits(x + 0.0, want + 0.0)


@pytest.mark.parametrize("code,want", [
    ("mov.b32 %d, {%a0, %a1};", lambda a, b: a.astype(np.uint32) | b.astype(np.uint32) << 16),
    (".reg .b16 %x, %y; .reg .b32 %z; mov.b32 %z, {%a0, %a1}; mov.b32 {%x, %y}, %z; mov.b32 %d, {%y, %x};",
     lambda a, b: b.astype(np.uint32) | a.astype(np.uint32) << 16),
    (".reg .b16 %y; .reg .b32 %z; mov.b32 %z, {%a0, %a1}; mov.b32 {_, %y}, %z; cvt.u32.u16 %d, %y;",
     lambda a, b: b.astype(np.uint32)),
])  # fmt: skip
def test_mov_packing(code: str, want: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 2**16, 32, np.uint16) for _ in range(2))
    same_bits(run_lanes(code, [a, b], np.uint32), want(a, b))
