"""Floating-point arithmetic, with one rounding per operation.

f32 and f64 use numpy's IEEE operations. fma of f32 is computed in f64 with
*round to odd* where the double rounding could show, so its result is the
correctly rounded one. f16 and bf16 are computed in f32 or f64 and rounded once;
the wider format has more than 2p+2 bits, so that is exact too. The ``.approx``
functions give the correctly rounded value, which lies within the error that PTX
allows; the bits of hardware approximations differ.

NaN results of add, sub and mul keep numpy's payload; min, max and conversions
give PTX's canonical NaN.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from .gen import Emitter, Gen, last_type
from .parser import Instr, Operand
from .types import TYPES, Row, ScalarType

NAN32 = np.array(0x7FFFFFFF, np.uint32).view(np.float32)[()]
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


# -- formats ----------------------------------------------------------------
def ftz(x: Row) -> Row:
    """f32 with subnormals flushed to zero of the same sign."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    small = (bits & np.uint32(0x7F800000)) == 0
    return np.where(small, bits & np.uint32(0x80000000), bits).view(np.float32)


def sat(x: Row) -> Row:
    """Clamp to [0, 1]; NaN gives +0."""
    r = np.clip(x, x.dtype.type(0), x.dtype.type(1))
    return np.where(np.isnan(x) | (r == 0), x.dtype.type(0), r)


def bf_to_f32(x: Row) -> Row:
    """bf16 bits (u16) as f32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf(x: Row, mode: str = "rn") -> Row:
    """f32 rounded to bf16 bits (u16); NaN gives 0x7fff."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if mode == "rz":
        r = bits >> np.uint32(16)
    elif mode == "rn":
        r = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elif mode == "rna":
        r = (bits + np.uint32(0x8000)) >> np.uint32(16)
    else:
        away = ((bits >> np.uint32(31)) != 0) == (mode == "rm")
        r = (bits + np.where(away, np.uint32(0xFFFF), np.uint32(0))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), r).astype(np.uint16)


def f32_to_h(x: Row) -> Row:
    """f32 or f64 rounded to f16 (to nearest even); NaN gives 0x7fff."""
    r = x.astype(np.float16)
    nan = np.isnan(x)
    if nan.any():
        r = r.copy()
        r.view(np.uint16)[nan] = 0x7FFF
    return r


def f64_to_f32_odd(s: Row) -> Row:
    """f64 to f32 rounded to odd (for a second rounding to a narrower format)."""
    r = round_to_f32(s, "rz")
    inexact = (r.astype(np.float64) != s) & np.isfinite(s)
    bits = r.view(np.uint32)
    return np.asarray((bits | inexact.astype(np.uint32)).view(np.float32))


def round_to_f32(s: Row, mode: str) -> Row:
    """f64 to f32 in a rounding mode (rn, rz, rm, rp)."""
    r = s.astype(np.float32)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(s), np.nextafter(r, np.float32(0)), r)
    if mode == "rm":
        return np.where(back > s, np.nextafter(r, np.float32(-np.inf)), r)
    return np.where(back < s, np.nextafter(r, np.float32(np.inf)), r)


# -- fma --------------------------------------------------------------------
def _odd_sum(p: Row, c: Row) -> Row:
    """p + c in f64, rounded to odd."""
    s = p + c
    bb = s - p
    err = (p - (s - bb)) + (c - bb)
    fix = (err != 0) & np.isfinite(s)
    bits = s.view(np.int64)
    even = fix & ((bits & 1) == 0)
    toward_zero = (err > 0) != (s > 0)
    step = np.where(toward_zero, -1, 1)
    return np.where(even, bits + step, bits).view(np.float64)


_SMALL = 2.0**-125
_X = np.zeros(32)
_Y = np.zeros(32)
_BITS = _X.view(np.uint64)
_LOW = np.full(32, 0x1FFFFFFF, np.uint64)
_HALF = np.full(32, 0x10000000, np.uint64)
_TINY = np.full(32, _SMALL)
_T = np.zeros(32, np.uint64)
_M1 = np.zeros(32, np.bool_)
_M2 = np.zeros(32, np.bool_)


def fma32_row(a: Row, b: Row, c: Row) -> Row:
    """`fma32` of 32 lanes for a destination that rounds: f64 values whose rounding to f32 is the result.

    The f64 sum may be rounded again unless it lies on the midpoint of two f32, or is so small that f32 has fewer
    bits there. The row is scratch memory: copy it before the next call.
    """
    np.copyto(_X, a)
    np.copyto(_Y, b)
    np.multiply(_X, _Y, _X)
    np.copyto(_Y, c)
    np.add(_X, _Y, _X)
    np.bitwise_and(_BITS, _LOW, _T)
    np.equal(_T, _HALF, _M1)
    np.absolute(_X, _Y)
    np.less(_Y, _TINY, _M2)
    np.logical_or(_M1, _M2, _M1)
    if np.count_nonzero(_M1):
        return fma32(a, b, c)
    return _X


def fma32(a: Row, b: Row, c: Row) -> Row:
    """a * b + c of f32 with one rounding (to nearest even)."""
    p = a.astype(np.float64) * b
    s = p + c
    low = s.view(np.uint64) & np.uint64(0x1FFFFFFF)
    if np.count_nonzero(low == 0x10000000) or np.count_nonzero(np.abs(s) < _SMALL):
        return _odd_sum(p, c.astype(np.float64)).astype(np.float32)
    return s.astype(np.float32)


def fma32_mode(a: Row, b: Row, c: Row, mode: str) -> Row:
    """a * b + c of f32 in a rounding mode."""
    p = a.astype(np.float64) * b.astype(np.float64)
    s = _odd_sum(p, c.astype(np.float64))
    if mode == "rm":
        # an exact zero sum of unlike signs is -0 when rounding down
        s = np.where((s == 0) & ((p != 0) | (np.signbit(p) != np.signbit(c))), -0.0, s)
    return round_to_f32(s, mode)


def f32_mode(op: str, a: Row, b: Row, mode: str) -> Row:
    """add, sub, mul, div of f32 in a directed rounding mode."""
    if op == "mul":
        return round_to_f32(a.astype(np.float64) * b, mode)
    if op == "div":
        x, y = a.astype(np.float64), b.astype(np.float64)
        q = x / y
        rem = np.array([_div_error(i, j, k) for i, j, k in zip(x, y, q)])
        even = (rem != 0) & ((q.view(np.int64) & 1) == 0)
        step = np.where((rem > 0) != (q > 0), -1, 1)
        return round_to_f32(np.where(even, q.view(np.int64) + step, q.view(np.int64)).view(np.float64), mode)
    one = np.ones_like(a)
    return fma32_mode(a, one, -b if op == "sub" else b, mode)


def _div_error(x: float, y: float, q: float) -> int:
    """Sign of x/y - q, 0 when q is exact or not finite."""
    if not np.isfinite(q) or y == 0 or not np.isfinite(y):
        return 0
    e = Fraction(float(x)) / Fraction(float(y)) - Fraction(float(q))
    return (e > 0) - (e < 0)


def fma64(a: Row, b: Row, c: Row) -> Row:
    """a * b + c of f64 with one rounding, by exact rationals lane by lane."""
    out = np.empty(len(a), np.float64)
    for i, (x, y, z) in enumerate(zip(a, b, c)):
        plain = x * y + z
        if not np.isfinite(x) or not np.isfinite(y) or not np.isfinite(z):
            out[i] = plain
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        try:
            # a zero takes its sign from the plain evaluation
            out[i] = float(exact) if exact != 0 else plain
        except OverflowError:
            out[i] = np.inf if exact > 0 else -np.inf
    return out


def fma_half(a: Row, b: Row, c: Row) -> Row:
    """f16 fma: the f64 sum is exact or far from a rounding boundary."""
    return f32_to_h(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64))


def fma_bf(a: Row, b: Row, c: Row) -> Row:
    """bf16 fma on u16 bits."""
    x, y, z = (bf_to_f32(v).astype(np.float64) for v in (a, b, c))
    return f32_to_bf(f64_to_f32_odd(_odd_sum(x * y, z)))


# -- packed and narrow formats ------------------------------------------------
def _unpack(kind: str, a: Row) -> Row:
    """Lanes of f16 or of bf16 bits from a row of any of the 16-bit kinds."""
    a = np.ascontiguousarray(a)
    if kind == "f16x2":
        return a.view(np.float16)
    if kind == "bf16x2":
        return a.view(np.uint16)
    return a


def _half_binary(op: str, kind: str, a: Row, b: Row) -> Row:
    f: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
    x, y = _unpack(kind, a), _unpack(kind, b)
    if kind.startswith("bf"):
        return f32_to_bf(f(bf_to_f32(x), bf_to_f32(y)))
    return f32_to_h(f(x.astype(np.float32), y.astype(np.float32)))


def half_op(op: str, kind: str, mods: str, *args: Row) -> Row:
    """Arithmetic on f16, f16x2, bf16 and bf16x2; mods holds ftz, sat, relu, NaN, xorsign."""
    parts = [_unpack(kind, a) for a in args]
    bf = kind.startswith("bf")
    if op == "fma":
        r = fma_bf(*parts) if bf else fma_half(*parts)
    elif op in ("min", "max"):
        wide = [bf_to_f32(p) if bf else p.astype(np.float32) for p in parts]
        f = minmax32(op, wide[0], wide[1], "NaN" in mods)
        r = f32_to_bf(f) if bf else f32_to_h(f)
    else:
        r = _half_binary(op, kind, args[0], args[1])
    if "ftz" in mods and not bf:
        b = r.view(np.uint16)
        r = np.where((b & 0x7C00) == 0, b & 0x8000, b).astype(np.uint16).view(np.float16)
    if "sat" in mods:
        r = f32_to_bf(sat(bf_to_f32(r))) if bf else sat(r)
    if "relu" in mods:
        neg = (r.view(np.uint16) >> 15) != 0
        nan = np.isnan(bf_to_f32(r) if bf else r)
        r = np.where(neg & ~nan, r.dtype.type(0), r)
    r = np.ascontiguousarray(r)
    return r.view(np.uint32) if kind.endswith("x2") else r


def half_sign(op: str, kind: str, a: Row) -> Row:
    """abs or neg of 16-bit formats: bit operations on the sign."""
    bits = np.ascontiguousarray(a).view(np.uint16)
    r = bits & np.uint16(0x7FFF) if op == "abs" else bits ^ np.uint16(0x8000)
    if kind.endswith("x2"):
        return r.view(np.uint32)
    return r.view(np.float16) if kind == "f16" else r


def minmax32(op: str, a: Row, b: Row, nan: bool) -> Row:
    """min or max with PTX's rules: a NaN loses unless ``nan``; -0 is below +0."""
    bits = np.uint32 if a.dtype == np.float32 else np.uint64
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    zero = (x == 0) & (y == 0)
    if op == "min":
        r = np.fmin(x, y)
        z = (x.view(bits) | y.view(bits)).view(x.dtype)
    else:
        r = np.fmax(x, y)
        z = (x.view(bits) & y.view(bits)).view(x.dtype)
    r = np.where(zero, z, r)
    bad = (np.isnan(x) | np.isnan(y)) if nan else (np.isnan(x) & np.isnan(y))
    if a.dtype == np.float32:
        return np.where(bad, NAN32, r)
    return np.where(bad, np.nan, r)


def _unary64(f: Any) -> Any:
    def run(a: Row) -> Row:
        return np.asarray(f(a.astype(np.float64)).astype(a.dtype))

    return run


def _lg2(x: Row) -> Row:
    return np.asarray(np.log2(x))


rcp = _unary64(lambda x: 1.0 / x)
sqrt_ = _unary64(np.sqrt)
rsqrt = _unary64(lambda x: 1.0 / np.sqrt(x))
ex2 = _unary64(np.exp2)
lg2 = _unary64(_lg2)
sin_ = _unary64(np.sin)
cos_ = _unary64(np.cos)
tanh_ = _unary64(np.tanh)


def f32_unary_mode(op: str, a: Row, mode: str) -> Row:
    """rcp or sqrt of f32 in a directed rounding mode."""
    if op == "rcp":
        return f32_mode("div", np.ones_like(a), a, mode)
    x = a.astype(np.float64)
    s = np.sqrt(x)
    err = np.array([_sqrt_error(i, j) for i, j in zip(x, s)])
    even = (err != 0) & ((s.view(np.int64) & 1) == 0)
    bits = np.where(even, s.view(np.int64) + err, s.view(np.int64))
    return round_to_f32(bits.view(np.float64), mode)


def _sqrt_error(x: float, s: float) -> int:
    if not np.isfinite(s) or s == 0:
        return 0
    e = Fraction(float(x)) - Fraction(float(s)) ** 2
    return (e > 0) - (e < 0)


def bf_unary(f: Any, a: Row, kind: str) -> Row:
    """A unary function on bf16, f16 or their packed forms."""
    x = _unpack(kind, a)
    bf = kind.startswith("bf")
    r = f(bf_to_f32(x) if bf else x.astype(np.float32))
    r = np.ascontiguousarray(f32_to_bf(r) if bf else f32_to_h(r))
    return r.view(np.uint32) if kind.endswith("x2") else r


# -- compares ---------------------------------------------------------------
def _unordered(a: Row, b: Row) -> Row:
    return np.asarray(np.isnan(a) | np.isnan(b))


_COMPARES: dict[str, Any] = {
    "fcmp_eq": lambda a, b: a == b,
    "fcmp_ne": lambda a, b: (a < b) | (a > b),
    "fcmp_lt": lambda a, b: a < b,
    "fcmp_le": lambda a, b: a <= b,
    "fcmp_gt": lambda a, b: a > b,
    "fcmp_ge": lambda a, b: a >= b,
    "fcmp_equ": lambda a, b: ~((a < b) | (a > b)),
    "fcmp_neu": lambda a, b: a != b,
    "fcmp_ltu": lambda a, b: ~(a >= b),
    "fcmp_leu": lambda a, b: ~(a > b),
    "fcmp_gtu": lambda a, b: ~(a <= b),
    "fcmp_geu": lambda a, b: ~(a < b),
    "fcmp_num": lambda a, b: ~_unordered(a, b),
    "fcmp_nan": _unordered,
}

RUNTIME: dict[str, Any] = {
    f.__name__: f
    for f in (
        ftz, sat, bf_to_f32, f32_to_bf, f32_to_h, fma32, fma32_row, fma32_mode, f32_mode, fma64, half_op, half_sign,
        minmax32,
        f32_unary_mode, bf_unary, round_to_f32,
    )
} | _COMPARES | {
    "rcp": rcp, "sqrt_": sqrt_, "rsqrt": rsqrt, "ex2": ex2, "lg2": lg2, "sin_": sin_, "cos_": cos_, "tanh_": tanh_,
}  # fmt: skip


# -- emitters ---------------------------------------------------------------
def _is16(t: ScalarType) -> bool:
    return t.kind in ("h", "bf") or t.name in ("f16x2", "bf16x2")


def operand(g: Gen, ins: Instr, op: Operand, t: ScalarType) -> str:
    """A source as floats that numpy can compare and compute with (bf16 widened, .ftz applied)."""
    if t.name in ("f16x2", "bf16x2"):
        raise g.fail("packed comparison")
    e = g.src(op, t)
    if t.kind == "bf":
        return f"bf_to_f32({e})"
    return f"ftz({e})" if "ftz" in ins.parts and t.name == "f32" else e


def _mods(ins: Instr) -> str:
    return repr(" ".join(p for p in ins.parts if p in ("ftz", "sat", "relu", "NaN")))


def _mode(ins: Instr) -> str:
    return next((p for p in ins.parts if p in ROUNDINGS), "rn")


def _finish(g: Gen, ins: Instr, d: Operand, t: ScalarType, expr: str) -> None:
    if "ftz" in ins.parts and t.name == "f32":
        expr = f"ftz({expr})"
    if "sat" in ins.parts:
        expr = f"sat({expr})"
    g.put(d, t, expr)


def binary(g: Gen, ins: Instr, op: str) -> None:
    """add, sub, mul of every floating type (and mixed-precision f32 add/sub are refused)."""
    t = last_type(g, ins)
    d, a, b = ins.operands
    if _is16(t):
        g.put(d, t, f"half_op('{op}','{t.name}',{_mods(ins)},{g.src(a, t)},{g.src(b, t)})")
        return
    if len([p for p in ins.parts if p in TYPES]) > 1 or "f32x2" in ins.parts:
        raise g.fail("mixed types")
    ufunc = {"add": "add", "sub": "subtract", "mul": "multiply"}[op]
    mode, x, y = _mode(ins), operand(g, ins, a, t), operand(g, ins, b, t)
    if mode != "rn":
        if t.name != "f32":
            raise g.fail(f"rounding .{mode} of .{t.name}")
        _finish(g, ins, d, t, f"f32_mode('{op}',{x},{y},'{mode}')")
    elif "ftz" in ins.parts or "sat" in ins.parts:
        _finish(g, ins, d, t, f"{ufunc}({x},{y})")
    else:
        g.ufunc(ufunc, d, t, x, y)


def divide(g: Gen, ins: Instr) -> None:
    """div of f32 and f64; .approx and .full are computed as .rn."""
    t = last_type(g, ins)
    d, a, b = ins.operands
    mode, x, y = _mode(ins), operand(g, ins, a, t), operand(g, ins, b, t)
    if mode != "rn":
        if t.name != "f32":
            raise g.fail(f"rounding .{mode} of .{t.name}")
        _finish(g, ins, d, t, f"f32_mode('div',{x},{y},'{mode}')")
    else:
        _finish(g, ins, d, t, f"divide({x},{y})")


def fma(g: Gen, ins: Instr) -> None:
    """fma and floating-point mad."""
    t = last_type(g, ins)
    if len([p for p in ins.parts if p in TYPES]) > 1 or "f32x2" in ins.parts:
        raise g.fail("mixed types")
    d, a, b, c = ins.operands
    if _is16(t):
        srcs = ",".join(g.src(o, t) for o in (a, b, c))
        g.put(d, t, f"half_op('fma','{t.name}',{_mods(ins)},{srcs})")
        return
    srcs = ",".join(operand(g, ins, o, t) for o in (a, b, c))
    mode = _mode(ins)
    if t.name == "f64":
        if mode != "rn":
            raise g.fail(f"rounding .{mode} of .f64")
        g.put(d, t, f"fma64({srcs})")
    else:
        plain = "ftz" not in ins.parts and "sat" not in ins.parts
        fn = "fma32_row" if plain else "fma32"
        _finish(g, ins, d, t, f"{fn}({srcs})" if mode == "rn" else f"fma32_mode({srcs},'{mode}')")


def minmax(g: Gen, ins: Instr) -> None:
    """min and max of floating types, two or three inputs."""
    t = last_type(g, ins)
    if "xorsign" in ins.parts or "abs" in ins.parts[1:]:
        raise g.fail("xorsign.abs")
    op = ins.parts[0]
    d, *srcs = ins.operands
    if _is16(t):
        a, b = srcs
        g.put(d, t, f"half_op('{op}','{t.name}',{_mods(ins)},{g.src(a, t)},{g.src(b, t)})")
        return
    expr = operand(g, ins, srcs[0], t)
    for s in srcs[1:]:
        expr = f"minmax32('{op}',{expr},{operand(g, ins, s, t)},{'NaN' in ins.parts})"
    _finish(g, ins, d, t, expr)


def absneg(g: Gen, ins: Instr) -> None:
    """abs and neg: only the sign bit changes (NaN included)."""
    t = last_type(g, ins)
    d, a = ins.operands
    op = ins.parts[0]
    if _is16(t):
        g.put(d, t, f"half_sign('{op}','{t.name}',{g.src(a, t)})")
    elif "ftz" in ins.parts:
        f = "absolute" if op == "abs" else "negative"
        g.put(d, t, f"{f}({operand(g, ins, a, t)})")
    else:
        g.ufunc("absolute" if op == "abs" else "negative", d, t, g.src(a, t))


def _unary(fn: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        d, a = ins.operands
        mode = _mode(ins)
        if _is16(t):
            g.put(d, t, f"bf_unary({fn},{g.src(a, t)},'{t.name}')")
        elif mode != "rn":
            if t.name != "f32" or ins.parts[0] not in ("rcp", "sqrt"):
                raise g.fail(f"rounding .{mode}")
            _finish(g, ins, d, t, f"f32_unary_mode('{ins.parts[0]}',{operand(g, ins, a, t)},'{mode}')")
        else:
            _finish(g, ins, d, t, f"{fn}({operand(g, ins, a, t)})")

    return emit


def _copysign(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b = ins.operands
    g.put(d, t, f"copysign({g.src(b, t)},{g.src(a, t)})")


def _testp(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    p, a = ins.operands
    x = g.src(a, t)
    tiny = g.const(float(np.finfo(t.dtype).tiny), t.dtype)
    expr = {
        "finite": f"isfinite({x})",
        "infinite": f"isinf({x})",
        "number": f"~isnan({x})",
        "notanumber": f"isnan({x})",
        "normal": f"(isfinite({x})&(absolute({x})>={tiny}))",
        "subnormal": f"((absolute({x})<{tiny})&({x}!=0))",
    }[ins.parts[1]]
    g.put(p, TYPES["pred"], expr)


EMIT: dict[str, Emitter] = {
    "fma": fma,
    "rcp": _unary("rcp"),
    "sqrt": _unary("sqrt_"),
    "rsqrt": _unary("rsqrt"),
    "ex2": _unary("ex2"),
    "lg2": _unary("lg2"),
    "sin": _unary("sin_"),
    "cos": _unary("cos_"),
    "tanh": _unary("tanh_"),
    "copysign": _copysign,
    "testp": _testp,
}
