"""cvt: conversions between all scalar types, and the packed narrow forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import isa_float as fl
from .gen import Emitter, Gen
from .parser import Instr
from .types import TYPES, Row, ScalarType

_ROUND_INT = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


# -- run time ---------------------------------------------------------------
def int_to_int(a: Row, dtype: Any, sat: bool) -> Row:
    """Extension, truncation, or clamping with ``sat``."""
    if sat:
        info = np.iinfo(dtype)
        lo, hi = int(info.min), int(info.max)
        src = np.iinfo(a.dtype)
        a = np.clip(a, max(lo, int(src.min)), min(hi, int(src.max)))
    return a.astype(dtype)


def int_to_float(a: Row, name: str, mode: str) -> Row:
    """Integers to f16/bf16 bits/f32/f64 with one rounding."""
    if name == "f64":
        return a.astype(np.float64)
    if name == "f32":
        if mode == "rn":
            return a.astype(np.float32)
        return fl.round_to_f32(_int_odd(a), mode)
    s = _int_odd(a)
    if name == "f16":
        return fl.f32_to_h(s)
    return fl.f32_to_bf(fl.f64_to_f32_odd(s))


def _int_odd(a: Row) -> Row:
    """Integers as f64, rounded to odd where 64-bit ones do not fit."""
    s = a.astype(np.float64)
    if a.dtype.itemsize < 8:
        return s
    err = np.array([int(x) - int(y) for x, y in zip(a, s)], dtype=object)
    sign = np.array([(int(e) > 0) - (int(e) < 0) for e in err])
    bits = s.view(np.int64)
    step = np.where((sign > 0) != (s > 0), -1, 1)
    return np.where((sign != 0) & ((bits & 1) == 0), bits + step, bits).view(np.float64)


def float_to_int(a: Row, dtype: Any, mode: str, f64: bool) -> Row:
    """Round to integral, clamp; NaN gives 0, or the top bit when a 64-bit type is involved (PTX ISA, cvt)."""
    x = _ROUND_INT[mode](a.astype(np.float64))
    info = np.iinfo(dtype)
    lo, hi = int(info.min), int(info.max)
    # float(hi) may round up to hi + 1: compare, then convert only what is inside
    inside = (x >= float(lo)) & (x < float(hi + 1))
    r = np.where(inside, x, 0.0).astype(dtype)
    r = np.where(x >= float(hi + 1), np.array(hi, dtype), r)
    r = np.where(x < float(lo), np.array(lo, dtype), r)
    bits = info.bits
    nan = np.array(1 << (bits - 1), f"u{bits // 8}").astype(dtype) if f64 or bits == 64 else np.array(0, dtype)
    return np.where(np.isnan(x), nan, r)


def round_integral(a: Row, mode: str) -> Row:
    """Float to an integral value of the same type."""
    return np.asarray(_ROUND_INT[mode](a)).astype(a.dtype)


def narrow_float(a: Row, name: str, mode: str) -> Row:
    """f64 or f32 to a narrower float in a rounding mode."""
    if name == "f32":
        return fl.round_to_f32(a, mode)
    if name == "bf16":
        x = fl.f64_to_f32_odd(a) if a.dtype == np.float64 else a
        return fl.f32_to_bf(x, mode)
    if mode == "rn":
        return fl.f32_to_h(a)
    r = a.astype(np.float16)
    back, zero, inf = r.astype(np.float64), np.float16(0), np.float16(np.inf)
    x = a.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(x), np.nextafter(r, zero), r)
    if mode == "rm":
        return np.where(back > x, np.nextafter(r, -inf), r)
    return np.where(back < x, np.nextafter(r, inf), r)


def relu(a: Row) -> Row:
    """Negative values (and -0) become +0; NaN stays."""
    return np.where((a <= 0) & ~np.isnan(a), a.dtype.type(0), a)


def satfinite(a: Row, limit: float) -> Row:
    """Clamp to the largest finite value of the destination."""
    return np.clip(a, a.dtype.type(-limit), a.dtype.type(limit))


def to_tf32(a: Row, mode: str) -> Row:
    """f32 to tf32 held in 32 bits (low 13 bits zero)."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    if mode == "rna":
        r = bits + np.uint32(0x1000)
    elif mode == "rz":
        r = bits
    else:
        r = bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    nan = np.isnan(a)
    r = np.where(special, bits, r) & np.uint32(0xFFFFE000)
    return np.where(nan, np.uint32(0x7FFFFFFF), r)


def _small_table(exp_bits: int, man_bits: int) -> tuple[Row, Row]:
    """Finite non-negative values of a small float format, and their codes."""
    codes = np.arange(1 << (exp_bits + man_bits), dtype=np.int64)
    e, m = codes >> man_bits, codes & ((1 << man_bits) - 1)
    bias = (1 << (exp_bits - 1)) - 1
    value = np.where(e == 0, m * 2.0 ** (1 - bias - man_bits), (1 + m / 2.0**man_bits) * 2.0 ** (e - bias))
    finite = codes < 0x7F if exp_bits == 4 else e < 31
    return value[finite], codes[finite]


_FP8 = {"e4m3": _small_table(4, 3), "e5m2": _small_table(5, 2)}


def to_fp8(a: Row, fmt: str) -> Row:
    """f32 to fp8 codes (u8), to nearest even, saturating to finite; NaN gives 0x7f."""
    values, codes = _FP8[fmt]
    x = np.minimum(np.abs(a.astype(np.float64)), values[-1])
    hi = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    lo = hi - 1
    dl, dh = x - values[lo], values[hi] - x
    pick = np.where((dl < dh) | ((dl == dh) & (codes[lo] % 2 == 0)), codes[lo], codes[hi])
    r = pick | (np.signbit(a).astype(np.int64) << 7)
    return np.where(np.isnan(a), 0x7F, r).astype(np.uint8)


def from_fp8(a: Row, fmt: str) -> Row:
    """fp8 codes (u8) to f16."""
    if fmt == "e5m2":
        return (a.astype(np.uint16) << np.uint16(8)).view(np.float16)
    values, _ = _FP8["e4m3"]
    mag = np.append(values, np.nan)[(a & np.uint8(0x7F)).astype(np.intp)]
    return np.where(a >> np.uint8(7), -mag, mag).astype(np.float16)


def pack_fp8(hi: Row, lo: Row, fmt: str) -> Row:
    """Two fp8 codes in 16 bits."""
    return (to_fp8(hi, fmt).astype(np.uint16) << np.uint16(8)) | to_fp8(lo, fmt)


def unpack_fp8(a: Row, fmt: str) -> Row:
    """Two fp8 codes as f16x2."""
    by = np.ascontiguousarray(a).view(np.uint8)
    return np.ascontiguousarray(from_fp8(by, fmt)).view(np.uint32)


def pack2(hi: Row, lo: Row) -> Row:
    """Two 16-bit values (any dtype) in 32 bits."""
    h, low = np.ascontiguousarray(hi).view(np.uint16), np.ascontiguousarray(lo).view(np.uint16)
    return (h.astype(np.uint32) << np.uint32(16)) | low


RUNTIME: dict[str, Any] = {
    f.__name__: f
    for f in (
        int_to_int, int_to_float, float_to_int, round_integral, narrow_float, relu, satfinite, to_tf32, pack_fp8,
        unpack_fp8, pack2,
    )
}  # fmt: skip


# -- emitters ---------------------------------------------------------------
def _wide(g: Gen, ins: Instr, expr: str, t: ScalarType) -> str:
    """A source as a numpy float array."""
    if t.kind == "bf":
        return f"bf_to_f32({expr})"
    return f"ftz({expr})" if "ftz" in ins.parts and t.name == "f32" else expr


def _float_to_float(g: Gen, ins: Instr, src: str, dt: ScalarType, st: ScalarType, mode: str | None) -> str:
    x = _wide(g, ins, src, st)
    sat = "sat" in ins.parts
    if mode in _ROUND_INT:
        x = f"round_integral({x},'{mode}')"
        mode = None
    if "relu" in ins.parts:
        x = f"relu({x})"
    if dt.bits > st.bits or (dt.bits == st.bits and dt.kind == st.kind):
        if dt.kind == "bf":
            x = f"f32_to_bf({x})"
        elif dt.bits > st.bits:
            x = f"{x}.astype({dt.bank}_)"
        if dt.name == "f32" and "ftz" in ins.parts:
            x = f"ftz({x})"
        return f"sat({x})" if sat else x
    if sat:
        x = f"sat({x})"
    if "satfinite" in ins.parts:
        x = f"satfinite({x},{65504.0 if dt.kind == 'h' else 3.3895313892515355e38})"
    if st.kind in ("h", "bf") and dt.kind in ("h", "bf"):
        x = f"{x}.astype(F32_)"
    x = f"narrow_float({x},'{dt.name}','{mode or 'rn'}')"
    return f"ftz({x})" if dt.name == "f32" and "ftz" in ins.parts else x


def _packed(g: Gen, ins: Instr, dt: ScalarType) -> None:
    """``cvt.*.f16x2.f32 d, a, b`` and fp8 forms: a is the high half."""
    f32 = TYPES["f32"]
    mode = next((p for p in ins.parts if p in fl.ROUNDINGS), "rn")
    d, *srcs = ins.operands
    st = ins.parts[-1]
    if dt.name in ("e4m3x2", "e5m2x2"):
        fmt = dt.name[:4]
        if st == "f32":
            a, b = (g.src(s, f32) for s in srcs)
        else:
            base = g.tmp()
            view = "F16_" if st == "f16x2" else "U16_"
            g.emit(f"{base}=ascontiguousarray({g.src(srcs[0], TYPES['b32'])}).view({view}).reshape(-1,2)")
            a, b = (f"{base}[:,{i}]" if st == "f16x2" else f"bf_to_f32({base}[:,{i}])" for i in (1, 0))
        relu_ = "relu({})" if "relu" in ins.parts else "{}"
        g.put(d, dt, f"pack_fp8({relu_.format(a)},{relu_.format(b)},'{fmt}')")
        return
    if st in ("e4m3x2", "e5m2x2"):
        x = f"unpack_fp8({g.src(srcs[0], TYPES[st])},'{st[:4]}')"
        g.put(d, dt, x)
        return
    half = TYPES["f16" if dt.name == "f16x2" else "bf16"]
    if st != "f32" or len(srcs) != 2:
        raise g.fail("packed conversion")
    parts = [_float_to_float(g, ins, g.src(s, f32), half, f32, mode) for s in srcs]
    g.put(d, dt, f"pack2({parts[0]},{parts[1]})")


def _cvt(g: Gen, ins: Instr) -> None:
    if ins.parts[1] == "pack":
        raise g.fail("cvt.pack")
    dt, st = g.type(ins.parts[-2]), g.type(ins.parts[-1])
    mode = next((p for p in ins.parts if p in fl.ROUNDINGS or p in _ROUND_INT), None)
    if dt.kind == "x" and dt.name != "tf32":
        _packed(g, ins, dt)
        return
    d, a = ins.operands
    src = g.src(a, st)
    floats = ("f", "h", "bf")
    if dt.name == "tf32":
        g.put(d, TYPES["b32"], f"to_tf32({src},'{mode or 'rn'}')")
    elif st.kind in floats and dt.kind in floats:
        if st.name == "f64" and dt.kind == "h":
            src = f"{src}"
        g.put(d, dt, _float_to_float(g, ins, src, dt, st, mode))
    elif st.kind in floats:
        wide = "True" if st.name == "f64" else "False"
        g.put(d, dt, f"float_to_int({_wide(g, ins, src, st)},{dt.bank}_,'{mode or 'rzi'}',{wide})")
    elif dt.kind in floats:
        expr = f"int_to_float({src},'{dt.name}','{mode or 'rn'}')"
        if "sat" in ins.parts:
            expr = f"sat({expr})"
        g.put(d, dt, expr)
    elif "sat" in ins.parts:
        g.put(d, dt, f"int_to_int({src},{dt.bank}_,True)")
    elif g.width(d) == dt.bits:
        g.emit(f"copyto({g.dst(d, dt)},{src},'unsafe'{g.w})")
    else:
        g.put(d, dt, f"{src}.astype({dt.bank}_)")


EMIT: dict[str, Emitter] = {"cvt": _cvt}
