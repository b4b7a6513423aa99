"""Floating-point instructions against numpy or exact rationals in the same precision."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ptx_kit import pad32, pairs32, run_lanes, same_bits

NAN, INF = float("nan"), float("inf")
F32 = [0.0, -0.0, 1.0, -1.5, 3e38, -3e38, 1e-38, 1e-45, -1e-45, 1.1754944e-38, INF, -INF, NAN, 0.1, 1 / 3, 65504.0]
F64 = [0.0, -0.0, 1.0, -2.5, 1e308, -1e308, 5e-324, 2.2250738585072014e-308, INF, -INF, NAN, 0.1]
F16 = [0.0, -0.0, 1.0, -1.5, 65504.0, -65504.0, 6e-8, 6.1e-5, INF, -INF, NAN, 0.1, 2048.0, 3.0]


def bf16_to_f32(bits: Any) -> Any:
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(x: Any) -> Any:
    """Round to nearest even by exact integer arithmetic, one value at a time."""
    out = []
    for v in np.asarray(x, np.float64):
        if math.isnan(v):
            out.append(0x7FFF)
            continue
        lo, hi = 0, 0x7F80
        a = abs(v)
        # codes of non-negative bf16 are ordered like their values
        while hi - lo > 1:
            mid = (lo + hi) // 2
            lo, hi = (mid, hi) if float(bf16_to_f32([mid])[0]) <= a else (lo, mid)
        low = Fraction(float(bf16_to_f32([lo])[0]))
        top = Fraction(2) ** 128 if hi == 0x7F80 else Fraction(float(bf16_to_f32([hi])[0]))
        if math.isinf(a):
            code = 0x7F80
        else:
            d = (Fraction(a) - low) * 2 - (top - low)
            code = hi if d > 0 or (d == 0 and lo & 1) else lo
        out.append(code | (0x8000 if math.copysign(1, v) < 0 else 0))
    return np.array(out, np.uint16)


def round_dir(exact: Fraction, dtype: Any, mode: str) -> float:
    """An exact value in a format, rounded in a direction."""
    near = dtype(float(exact)) if abs(exact) < Fraction(10) ** 300 else dtype(INF if exact > 0 else -INF)
    with np.errstate(all="ignore"):
        back = Fraction(float(near)) if np.isfinite(near) else None
        down = back is None and near > 0 or back is not None and back > exact
        up = back is None and near < 0 or back is not None and back < exact
        if mode in ("rz", "rm", "rp"):
            if down and (mode == "rm" or (mode == "rz" and exact > 0)):
                near = np.nextafter(near, dtype(-INF))
            if up and (mode == "rp" or (mode == "rz" and exact < 0)):
                near = np.nextafter(near, dtype(INF))
    return float(near)


ARITH = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@pytest.mark.parametrize("op", ARITH)
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_arithmetic(op: str, t: str) -> None:
    dtype = np.float32 if t == "f32" else np.float64
    for a, b in pairs32(F32 if t == "f32" else F64, dtype):
        with np.errstate(all="ignore"):
            want = ARITH[op](a, b)
        same_bits(run_lanes(f"{op}.{t} %d, %a0, %a1;", [a, b], dtype), want)
        same_bits(run_lanes(f"{op}.rn.{t} %d, %a0, %a1;", [a, b], dtype), want)


@pytest.mark.parametrize("op", ["div.rn.f32", "div.rn.f64", "div.full.f32", "div.approx.f32"])
def test_division(op: str) -> None:
    dtype = np.float64 if op.endswith("64") else np.float32
    for a, b in pairs32(F64 if dtype is np.float64 else F32, dtype):
        with np.errstate(all="ignore"):
            same_bits(run_lanes(f"{op} %d, %a0, %a1;", [a, b], dtype), a / b)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "fma"])
def test_directed_rounding(op: str, mode: str) -> None:
    rng = np.random.default_rng(5)
    scale = np.exp2(rng.integers(-30, 30, 32))
    a = (rng.normal(size=32) * scale).astype(np.float32)
    b, c = rng.normal(size=32).astype(np.float32), (rng.normal(size=32) * scale).astype(np.float32)
    a[:3], b[:3] = [3e38, -3e38, 1e-38], [3e38, 3e38, 1e-7]
    if op in ("add", "sub"):
        # overflow; an exact cancellation would be -0 in rm, which rationals cannot say
        b[:2] = [3e38, -3e38] if op == "add" else [-3e38, 3e38]
    want = []
    for x, y, z in zip(*(map(Fraction, map(float, v)) for v in (a, b, c))):
        e = {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y, "fma": x * y + z}[op]
        want.append(round_dir(e, np.float32, mode))
    code = "fma.{}.f32 %d, %a0, %a1, %a2;" if op == "fma" else op + ".{}.f32 %d, %a0, %a1;"
    same_bits(run_lanes(code.format(mode), [a, b, c], np.float32), np.array(want, np.float32))


def test_fma_rounds_once() -> None:
    """Cases in which a product rounded to f64, or a sum rounded twice, gives another f32."""
    rng = np.random.default_rng(6)
    a = (1 + rng.integers(0, 2**23, 32) * 2.0**-23).astype(np.float32)
    b = (1 + rng.integers(0, 2**23, 32) * 2.0**-23).astype(np.float32)
    p = a.astype(np.float64) * b
    # addends that put the sum beside the midpoint of two f32
    c = (np.round(p * 2**23) / 2**23 * 2.0**-40).astype(np.float32)
    half = np.float32(2.0**-24)
    a[0], b[0], c[0] = np.float32(1) + np.float32(2**-12), np.float32(1) - np.float32(2**-12), half
    a[1], b[1], c[1] = 1, 1, half
    a[2], b[2], c[2] = np.float32(2**-60), np.float32(2**-60), np.float32(1) + np.float32(2**-23)
    a[3], b[3], c[3] = half, 1, np.float32(1)
    a[4], b[4], c[4] = np.float32(2.0**-24 + 2.0**-47), 1, np.float32(1)
    a[5], b[5], c[5] = np.float32(2**-75), np.float32(2**-75), np.float32(1e-45)
    a[6], b[6], c[6] = np.float32(2**-75), np.float32(1.5 * 2**-75), np.float32(-1e-45)
    # exactly a little below (above) a midpoint, by less than f64 can tell
    a[7], b[7], c[7] = np.float32(2.0**-24 + 2.0**-47), np.float32(1 - 2.0**-23), np.float32(1 + 2.0**-23)
    a[8], b[8], c[8] = np.float32(-(2.0**-24) - 2.0**-47), np.float32(1 - 2.0**-23), np.float32(1 + 2.0**-22)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c)]
    ref = np.array([_nearest_f32(e) for e in exact], np.float32)
    same_bits(run_lanes("fma.rn.f32 %d, %a0, %a1, %a2;", [a, b, c], np.float32), ref)


def _nearest_f32(e: Fraction) -> float:
    """The f32 nearest to an exact value, ties to even."""
    if e == 0:
        return 0.0
    with np.errstate(all="ignore"):
        r = np.float32(float(e))
        best = min(
            (np.nextafter(r, np.float32(-INF)), r, np.nextafter(r, np.float32(INF))),
            key=lambda v: (
                abs(Fraction(float(v)) - e) if np.isfinite(v) else Fraction(10) ** 60,
                int(v.view(np.uint32)) & 1,
            ),
        )
    return float(best)


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_fma_specials(t: str) -> None:
    dtype = np.float32 if t == "f32" else np.float64
    for a, b in pairs32(F32 if t == "f32" else F64, dtype):
        c = pad32([0.0, -0.0, 1.0, INF, -INF, NAN, -1.0], dtype)
        with np.errstate(all="ignore"):
            product = a.astype(np.float64) * b.astype(np.float64)
            want = (product + c).astype(dtype)
            if t == "f64":
                keep = ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c) | (a == 0) | (b == 0)
            else:
                keep = np.ones(32, bool)
        got = run_lanes(f"fma.rn.{t} %d, %a0, %a1, %a2;", [a, b, c], dtype)
        same_bits(got[keep], want[keep])


def test_fma_f64_exact() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=32), rng.normal(size=32)
    c = -(a * b)
    want = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c)]
    same_bits(run_lanes("fma.rn.f64 %d, %a0, %a1, %a2;", [a, b, c], np.float64), want)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_min_max(op: str, nan: str) -> None:
    for a, b in pairs32(F32, np.float32):
        got = run_lanes(f"{op}{nan}.f32 %d, %a0, %a1;", [a, b], np.float32)
        want = np.array([_minmax(op, float(x), float(y), bool(nan)) for x, y in zip(a, b)], np.float32)
        same_bits(got, want)
        bad = np.isnan(want)
        assert (got.view(np.uint32)[bad] == 0x7FFFFFFF).all()
    for a, b in pairs32(F64, np.float64):
        same_bits(
            run_lanes(f"{op}.f64 %d, %a0, %a1;", [a, b], np.float64),
            [_minmax(op, float(x), float(y), False) for x, y in zip(a, b)],
        )


def _minmax(op: str, a: float, b: float, nan: bool) -> float:
    if math.isnan(a) or math.isnan(b):
        if nan or (math.isnan(a) and math.isnan(b)):
            return NAN
        return b if math.isnan(a) else a
    key = lambda v: (v, math.copysign(1, v))  # noqa: E731
    return min(a, b, key=key) if op == "min" else max(a, b, key=key)


def test_flush_to_zero() -> None:
    a = pad32([1e-40, -1e-40, 1e-38, 1.0, -0.0], np.float32)
    half = np.full(32, 0.25, np.float32)
    flushed = np.where(np.abs(a) < 1.17549435e-38, np.copysign(np.float32(0), a), a)
    same_bits(run_lanes("add.ftz.f32 %d, %a0, %a1;", [a, np.full(32, -0.0, np.float32)], np.float32), flushed)
    r = flushed * half
    r = np.where(np.abs(r) < 1.17549435e-38, np.copysign(np.float32(0), r), r)
    same_bits(run_lanes("mul.ftz.f32 %d, %a0, %a1;", [a, half], np.float32), r)
    same_bits(run_lanes("abs.ftz.f32 %d, %a0;", [a], np.float32), np.abs(flushed))


def test_saturate() -> None:
    a = pad32(F32, np.float32)
    with np.errstate(all="ignore"):
        want = np.where(np.isnan(a), 0, np.clip(a, 0, 1)) + np.float32(0)
    same_bits(run_lanes("add.sat.f32 %d, %a0, 0f80000000;", [a], np.float32), want)
    same_bits(run_lanes("cvt.sat.f32.f32 %d, %a0;", [a], np.float32), want)


@pytest.mark.parametrize("t,dtype,bits", [("f32", np.float32, np.uint32), ("f64", np.float64, np.uint64)])
def test_sign_operations(t: str, dtype: Any, bits: Any) -> None:
    a = pad32(F32, dtype)
    top = bits(1) << bits(31 if t == "f32" else 63)
    same_bits(run_lanes(f"neg.{t} %d, %a0;", [a], bits), a.view(bits) ^ top)
    same_bits(run_lanes(f"abs.{t} %d, %a0;", [a], bits), a.view(bits) & ~top)
    b = pad32([1.0, -1.0, -0.0], dtype)
    same_bits(run_lanes(f"copysign.{t} %d, %a0, %a1;", [a, b], dtype), np.copysign(b, a))


APPROX = {
    "rcp.approx.f32": lambda x: 1 / x,
    "rcp.rn.f32": lambda x: 1 / x,
    "sqrt.approx.f32": np.sqrt,
    "sqrt.rn.f32": np.sqrt,
    "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x),
    "ex2.approx.f32": np.exp2,
    "lg2.approx.f32": np.log2,
    "sin.approx.f32": np.sin,
    "cos.approx.f32": np.cos,
    "tanh.approx.f32": np.tanh,
}


@pytest.mark.parametrize("op", APPROX)
def test_functions(op: str) -> None:
    a = pad32([*F32, 2.0, -4.0, 10.0, 100.0, -126.5], np.float32)
    with np.errstate(all="ignore"):
        want = APPROX[op](a.astype(np.float64)).astype(np.float32)
    same_bits(run_lanes(f"{op} %d, %a0;", [a], np.float32), want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["rcp", "sqrt"])
def test_functions_directed(op: str, mode: str) -> None:
    a = np.abs(np.random.default_rng(8).normal(size=32)).astype(np.float32) + np.float32(0.01)
    got = run_lanes(f"{op}.{mode}.f32 %d, %a0;", [a], np.float32)
    for x, g in zip(a, got):
        v, r = Fraction(float(x)), Fraction(float(g))
        below = r <= 1 / v if op == "rcp" else r * r <= v
        other = Fraction(float(np.nextafter(g, np.float32(INF if below else -INF))))
        assert below == (mode != "rp") or (r == 1 / v if op == "rcp" else r * r == v)
        assert (other > 1 / v if op == "rcp" else other * other > v) == below


HALF = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@pytest.mark.parametrize("op", HALF)
def test_f16(op: str) -> None:
    for a, b in pairs32(F16, np.float16):
        with np.errstate(all="ignore"):
            want = HALF[op](a, b)
        same_bits(run_lanes(f"{op}.f16 %d, %a0, %a1;", [a, b], np.float16), want)
        # the packed form on (a, b) and (b, a)
        x = (b.view(np.uint16).astype(np.uint32) << 16) | a.view(np.uint16)
        y = (a.view(np.uint16).astype(np.uint32) << 16) | b.view(np.uint16)
        got = run_lanes(f"{op}.rn.f16x2 %d, %a0, %a1;", [x, y], np.uint32).view(np.float16).reshape(-1, 2)
        with np.errstate(all="ignore"):
            same_bits(got[:, 0], want)
            same_bits(got[:, 1], HALF[op](b, a))


def test_f16_fma_and_minmax() -> None:
    for a, b in pairs32(F16, np.float16):
        c = pad32([1.0, -0.5, 65504.0], np.float16)
        with np.errstate(all="ignore"):
            want = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16)
        same_bits(run_lanes("fma.rn.f16 %d, %a0, %a1, %a2;", [a, b, c], np.float16), want)
        for op in ("min", "max"):
            ref = np.array([_minmax(op, float(x), float(y), False) for x, y in zip(a, b)], np.float16)
            same_bits(run_lanes(f"{op}.f16 %d, %a0, %a1;", [a, b], np.float16), ref)
    same_bits(run_lanes("neg.f16 %d, %a0;", [a], np.uint16), a.view(np.uint16) ^ np.uint16(0x8000))
    same_bits(run_lanes("fma.rn.relu.f16 %d, %a0, %a0, %a1;", [c, -c], np.float16), _relu(c, -c))


def _relu(a: Any, c: Any) -> Any:
    r = (a.astype(np.float64) * a.astype(np.float64) + c.astype(np.float64)).astype(np.float16)
    return np.where(r < 0, np.float16(0), r)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_bf16(op: str) -> None:
    rng = np.random.default_rng(9)
    a, b, c = (to_bf16(rng.normal(size=32) * np.exp2(rng.integers(-20, 20, 32))) for _ in range(3))
    a[:3], b[:3] = [0x7F80, 0x7FC0, 0x8000], [0xFF80, 0x3F80, 0x0000]
    x, y, z = (bf16_to_f32(v).astype(np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        ref = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + z}[op]
    third = ", %a2" if op == "fma" else ""
    got = run_lanes(f"{op}.rn.bf16 %d, %a0, %a1{third};", [a, b, c], np.uint16)
    same_bits(bf16_to_f32(got), bf16_to_f32(to_bf16(ref)))
    packed = [(v.astype(np.uint32) << 16) | v for v in (a, b, c)]
    got2 = run_lanes(f"{op}.rn.bf16x2 %d, %a0, %a1{third};", packed, np.uint32)
    same_bits(bf16_to_f32((got2 >> 16).astype(np.uint16)), bf16_to_f32(got))


FCMP = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a != b) & ~_un(a, b), "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "equ": lambda a, b: (a == b) | _un(a, b), "neu": lambda a, b: a != b, "ltu": lambda a, b: (a < b) | _un(a, b),
    "leu": lambda a, b: (a <= b) | _un(a, b), "gtu": lambda a, b: (a > b) | _un(a, b),
    "geu": lambda a, b: (a >= b) | _un(a, b), "num": lambda a, b: ~_un(a, b), "nan": lambda a, b: _un(a, b),
}  # fmt: skip


def _un(a: Any, b: Any) -> Any:
    return np.isnan(a) | np.isnan(b)


@pytest.mark.parametrize("cmp", FCMP)
def test_setp(cmp: str) -> None:
    for t, dtype, values in (("f32", np.float32, F32), ("f64", np.float64, F64), ("f16", np.float16, F16)):
        for a, b in pairs32(values, dtype):
            got = run_lanes(f"setp.{cmp}.{t} %q0, %a0, %a1; selp.u32 %d, 1, 0, %q0;", [a, b], np.uint32)
            same_bits(got, FCMP[cmp](a, b))


def test_testp() -> None:
    a = pad32(F32, np.float32)
    tiny = np.finfo(np.float32).tiny
    for op, want in (
        ("finite", np.isfinite(a)),
        ("infinite", np.isinf(a)),
        ("notanumber", np.isnan(a)),
        ("normal", np.isfinite(a) & (np.abs(a) >= tiny)),
        ("subnormal", (np.abs(a) < tiny) & (a != 0)),
    ):
        got = run_lanes(f"testp.{op}.f32 %q0, %a0; selp.u32 %d, 1, 0, %q0;", [a], np.uint32)
        same_bits(got, want)
