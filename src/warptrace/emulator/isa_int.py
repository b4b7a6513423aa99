"""Integer, logic, compare and select instructions.

Numpy's shift ufuncs already clamp: an amount of the width or more gives 0 (or
the sign for arithmetic right shifts), which is PTX's rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import isa_float as fl
from .gen import Emitter, Gen, last_type
from .parser import Imm, Instr
from .types import TYPES, Row, ScalarType

U32 = TYPES["u32"]
U64 = TYPES["u64"]
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


# -- run time ---------------------------------------------------------------
def mulhi(a: Row, b: Row) -> Row:
    """High half of the product, for 16, 32 and 64-bit integers."""
    n = a.dtype.itemsize * 8
    if n < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        r = (a.astype(wide) * b.astype(wide)) >> wide(n)
        return r.astype(a.dtype)
    vals = [((int(x) * int(y)) >> 64) & 0xFFFFFFFFFFFFFFFF for x, y in zip(a, b)]
    return np.array(vals, np.uint64).view(a.dtype)


def mul24(a: Row, b: Row) -> Row:
    """Low 32 bits of the 48-bit product of the low 24 bits."""
    if a.dtype.kind == "i":
        return np.asarray(((a << 8) >> 8) * ((b << 8) >> 8))
    return np.asarray((a & np.uint32(0xFFFFFF)) * (b & np.uint32(0xFFFFFF)))


def idiv(a: Row, b: Row) -> Row:
    """Division that truncates; by zero gives all ones, as the hardware does (PTX leaves it open)."""
    zero = b == 0
    d = np.where(zero, np.ones_like(b), b)
    if a.dtype.kind == "u":
        q = a // d
    else:
        q = a // d
        rem = a - q * d
        q = q + ((rem != 0) & ((rem < 0) != (a < 0))).astype(a.dtype)
    return np.where(zero, np.array(-1).astype(a.dtype), q)


def irem(a: Row, b: Row) -> Row:
    """Remainder with the sign of the dividend; by zero gives the dividend."""
    zero = b == 0
    d = np.where(zero, np.ones_like(b), b)
    return np.where(zero, a, np.fmod(a, d))


def addsat(a: Row, b: Row) -> Row:
    """Signed 32-bit addition that clamps."""
    return np.clip(a.astype(np.int64) + b.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)


def subsat(a: Row, b: Row) -> Row:
    """Signed 32-bit subtraction that clamps."""
    return np.clip(a.astype(np.int64) - b.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)


def addc(a: Row, b: Row, c: Row) -> tuple[Row, Row]:
    """(sum, carry out) of unsigned a + b + carry."""
    s = a + b
    r = s + c.astype(a.dtype)
    return r, (s < a) | (r < s)


def subc(a: Row, b: Row, c: Row) -> tuple[Row, Row]:
    """(difference, borrow out) of unsigned a - b - borrow."""
    d = a - b
    r = d - c.astype(a.dtype)
    return r, (a < b) | (d < r)


def popc(a: Row) -> Row:
    """Number of set bits as u32."""
    bits = np.unpackbits(a.view(np.uint8).reshape(len(a), -1), axis=1)
    return np.asarray(bits.sum(axis=1).astype(np.uint32))


def _bit_length(a: Row) -> Row:
    """Bits needed for each unsigned value, as int64."""
    if a.dtype.itemsize == 8:
        # f64 holds 32-bit halves exactly
        hi, lo = _bit_length((a >> np.uint64(32)).astype(np.uint32)), _bit_length(a.astype(np.uint32))
        return np.where(hi > 0, hi + 32, lo)
    return np.asarray(np.frexp(a.astype(np.float64))[1]).astype(np.int64)


def clz(a: Row) -> Row:
    """Leading zeros as u32 (the width for 0)."""
    return np.asarray(a.dtype.itemsize * 8 - _bit_length(a.view(f"u{a.dtype.itemsize}"))).astype(np.uint32)


def brev(a: Row) -> Row:
    """Bits in reverse order."""
    by = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)
    bits = np.unpackbits(by, axis=1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").reshape(-1).view(a.dtype)


def bfind(a: Row, shiftamt: bool) -> Row:
    """Position of the most significant non-sign bit, 0xffffffff when there is none."""
    n = a.dtype.itemsize * 8
    v = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    pos = _bit_length(np.ascontiguousarray(v).view(f"u{n // 8}")) - 1
    if shiftamt:
        pos = np.where(pos >= 0, n - 1 - pos, -1)
    return pos.astype(np.uint32)


def _field(a: Row, pos: Row, length: Row) -> tuple[Any, Any, Any]:
    """(position, length, mask of that many low bits), in the value's unsigned type."""
    u: Any = np.uint64 if a.dtype.itemsize == 8 else np.uint32
    p, c = (pos & np.uint32(0xFF)).astype(u), (length & np.uint32(0xFF)).astype(u)
    # a shift by the width or more gives 0, so the mask of a long field becomes all ones
    return p, c, (u(1) << c) - u(1)


def bfe(a: Row, pos: Row, length: Row) -> Row:
    """Bit field extract; the field is sign-extended for signed types."""
    u: Any = np.uint64 if a.dtype.itemsize == 8 else np.uint32
    n = u(a.dtype.itemsize * 8)
    x = a.view(u)
    p, c, m = _field(a, pos, length)
    v = (x >> p) & m
    if a.dtype.kind == "i":
        last = np.minimum(p + c - u(1), n - u(1))
        sign = ((x >> last) & u(1)) != 0
        have = np.minimum(c, n - np.minimum(p, n))
        v = np.where(sign & (c != 0), v | ~((u(1) << have) - u(1)), v)
    out: Row = v.astype(u).view(a.dtype)
    return out


def bfi(a: Row, b: Row, pos: Row, length: Row) -> Row:
    """Insert the low ``length`` bits of a into b at ``pos``."""
    p, _, m = _field(a, pos, length)
    m = m << p
    return np.asarray((b & ~m) | ((a << p) & m)).astype(a.dtype)


def shf(left: bool, wrap: bool, a: Row, b: Row, c: Row) -> Row:
    """Funnel shift of the 64-bit value b:a (b high)."""
    s = (c & np.uint32(31)) if wrap else np.minimum(c, np.uint32(32))
    v = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
    s64 = s.astype(np.uint64)
    if left:
        return ((v << s64) >> np.uint64(32)).astype(np.uint32)
    return (v >> s64).astype(np.uint32)


def prmt(a: Row, b: Row, c: Row) -> Row:
    """Byte permute, default mode (bit 3 of a selector replicates the sign)."""
    pool = np.empty((len(a), 8), np.uint8)
    pool[:, :4] = np.ascontiguousarray(a).view(np.uint8).reshape(-1, 4)
    pool[:, 4:] = np.ascontiguousarray(b).view(np.uint8).reshape(-1, 4)
    sel = (c[:, None] >> np.array([0, 4, 8, 12], np.uint32)) & np.uint32(15)
    by = np.take_along_axis(pool, (sel & np.uint32(7)).astype(np.intp), axis=1)
    sign = (by.view(np.int8) >> 7).view(np.uint8)
    by = np.where(sel & np.uint32(8), sign, by)
    return np.ascontiguousarray(by).view(np.uint32)[:, 0]


def prmt_mode(mode: str, a: Row, b: Row, c: Row) -> Row:
    """Byte permute in one of the special modes (f4e, b4e, rc8, ecl, ecr, rc16)."""
    table = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }[mode]
    return prmt(a, b, np.array(table, np.uint32)[(c & np.uint32(3)).astype(np.intp)])


def lop3(a: Row, b: Row, c: Row, lut: int) -> Row:
    """Any function of three inputs: bit ``4a+2b+c`` of lut."""
    out = np.zeros_like(a)
    na, nb, nc = ~a, ~b, ~c
    for i in range(8):
        if lut >> i & 1:
            out |= (a if i & 4 else na) & (b if i & 2 else nb) & (c if i & 1 else nc)
    return out


_LOP3_FAST = {
    0xC0: "(a)&(b)", 0xFC: "(a)|(b)", 0x3C: "(a)^(b)", 0x96: "(a)^(b)^(c)", 0x80: "(a)&(b)&(c)",
    0xFE: "(a)|(b)|(c)", 0xEA: "((a)&(b))|(c)", 0xF8: "(a)|((b)&(c))", 0x6A: "((a)&(b))^(c)",
    0xA8: "((a)|(b))&(c)", 0xE8: "((a)&(b))|((a)&(c))|((b)&(c))", 0xCA: "((a)&(b))|(~(a)&(c))",
}  # fmt: skip


def sad(a: Row, b: Row, c: Row) -> Row:
    """c + |a - b|."""
    return np.asarray(c + np.where(a < b, b - a, a - b).astype(c.dtype))


def dp4a(a: Row, b: Row, c: Row, sa: bool, sb: bool) -> Row:
    """c + dot product of four bytes."""
    x = np.ascontiguousarray(a).view(np.int8 if sa else np.uint8).reshape(-1, 4).astype(np.int64)
    y = np.ascontiguousarray(b).view(np.int8 if sb else np.uint8).reshape(-1, 4).astype(np.int64)
    return np.asarray((c.astype(np.int64) + (x * y).sum(axis=1)).astype(c.dtype))


def dp2a(a: Row, b: Row, c: Row, sa: bool, sb: bool, hi: bool) -> Row:
    """c + dot product of a's two halves and two bytes of b: the low ones, or the high ones."""
    x = np.ascontiguousarray(a).view(np.int16 if sa else np.uint16).reshape(-1, 2).astype(np.int64)
    y = np.ascontiguousarray(b).view(np.int8 if sb else np.uint8).reshape(-1, 4).astype(np.int64)
    return np.asarray((c.astype(np.int64) + (x * y[:, 2 * hi : 2 * hi + 2]).sum(axis=1)).astype(c.dtype))


def halves(name: str, a: Row, b: Row) -> Row:
    """A ufunc on packed 16-bit integers; name is ``add``, ``min`` or ``max``, with dtype suffix."""
    op, kind = name.split(":")
    t = np.int16 if kind == "s16x2" else np.uint16
    f: Any = {"add": np.add, "min": np.minimum, "max": np.maximum, "sub": np.subtract}[op]
    out: Row = f(np.ascontiguousarray(a).view(t), np.ascontiguousarray(b).view(t))
    return out.view(np.uint32)


RUNTIME: dict[str, Any] = {
    f.__name__: f
    for f in (
        mulhi, mul24, idiv, irem, addsat, subsat, addc, subc, popc, clz, brev, bfind, bfe, bfi, shf, prmt, prmt_mode,
        lop3, sad, dp4a, dp2a, halves,
    )
}  # fmt: skip


# -- emitters ---------------------------------------------------------------
def _is_float(t: ScalarType) -> bool:
    return t.kind in ("f", "h", "bf") or t.name in ("f16x2", "bf16x2")


def _binary(ufunc: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        if _is_float(t):
            fl.binary(g, ins, ins.parts[0])
            return
        d, a, b = ins.operands
        if t.name in ("u16x2", "s16x2"):
            g.put(d, t, f"halves('{ins.parts[0]}:{t.name}',{g.src(a, t)},{g.src(b, t)})")
        elif "cc" in ins.parts or ins.parts[0] in ("addc", "subc"):
            _carry(g, ins, t)
        elif "sat" in ins.parts:
            g.put(d, t, f"{ins.parts[0]}sat({g.src(a, t)},{g.src(b, t)})")
        else:
            g.ufunc(ufunc, d, t, g.src(a, t), g.src(b, t))

    return emit


def _carry(g: Gen, ins: Instr, t: ScalarType) -> None:
    d, a, b = ins.operands
    u = TYPES[f"u{t.bits}"]
    uses = ins.parts[0] in ("addc", "subc")
    fn = "addc" if ins.parts[0].startswith("add") else "subc"
    cin = "w.carry" if uses else g.const(False, np.bool_)
    r, c = g.tmp(), g.tmp()
    g.emit(f"{r},{c}={fn}({g.src(a, u)},{g.src(b, u)},{cin})")
    g.put(d, u, r)
    if "cc" in ins.parts:
        g.emit(f"copyto(w.carry,{c}{g.w})")


def _mul(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if _is_float(t):
        fl.binary(g, ins, "mul")
        return
    d, a, b = ins.operands
    _product(g, ins, t, d, g.src(a, t), b)


def _product(g: Gen, ins: Instr, t: ScalarType, d: Any, a: str, b: Any) -> None:
    mode = next((p for p in ("lo", "hi", "wide") if p in ins.parts), "lo")
    if ins.parts[0] in ("mul24", "mad24"):
        g.put(d, t, f"mul24({a},{g.src(b, t)})")
    elif mode == "lo":
        g.ufunc("multiply", d, t, a, g.src(b, t))
    elif mode == "hi":
        g.put(d, t, f"mulhi({a},{g.src(b, t)})")
    else:
        wide = TYPES[_WIDE[t.name]]
        right = g.imm(b, wide) if isinstance(b, Imm) else f"{g.src(b, t)}.astype({wide.bank}_)"
        g.ufunc("multiply", d, wide, f"{a}.astype({wide.bank}_)", right)


def _mad(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if _is_float(t):
        fl.fma(g, ins)
        return
    if "cc" in ins.parts or "sat" in ins.parts or ins.parts[0] == "madc":
        raise g.fail("carry or saturation")
    d, a, b, c = ins.operands
    x, y, z = g.src(a, t), g.src(b, t), None
    if "wide" in ins.parts:
        wide = TYPES[_WIDE[t.name]]
        right = g.imm(b, wide) if isinstance(b, Imm) else f"{y}.astype({wide.bank}_)"
        z = g.src(c, wide)
        g.ufunc("add", d, wide, f"multiply({x}.astype({wide.bank}_),{right})", z)
    elif "hi" in ins.parts:
        g.ufunc("add", d, t, f"mulhi({x},{y})", g.src(c, t))
    elif ins.parts[0] == "mad24":
        g.ufunc("add", d, t, f"mul24({x},{y})", g.src(c, t))
    else:
        g.ufunc("add", d, t, f"multiply({x},{y})", g.src(c, t))


def _div(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if _is_float(t):
        fl.divide(g, ins)
        return
    d, a, b = ins.operands
    g.put(d, t, f"{'idiv' if ins.parts[0] == 'div' else 'irem'}({g.src(a, t)},{g.src(b, t)})")


def _logic(ufunc: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        d, a, b = ins.operands
        g.ufunc(ufunc, d, t, g.src(a, t), g.src(b, t))

    return emit


def _not(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    g.ufunc("invert", d, t, g.src(a, t))


def _cnot(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    g.put(d, t, f"({g.src(a, t)}==0)")


def _shift(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b = ins.operands
    if isinstance(b, Imm):
        # numpy's loops need the amount in the value's own type
        amount = g.const(min(b.value & 0xFFFFFFFF, 127), t.dtype)
    elif t.bits == 32 and t.kind != "s":
        amount = g.src(b, U32)
    else:
        amount = f"minimum({g.src(b, U32)},{g.const(127, np.uint32)}).astype({t.bank}_)"
    g.ufunc("left_shift" if ins.parts[0] == "shl" else "right_shift", d, t, g.src(a, t), amount)


def _unary_u32(name: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        d, a = ins.operands
        g.put(d, U32, f"{name}({g.src(a, t)})")

    return emit


def _brev(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    g.put(d, t, f"brev({g.src(a, t)})")


def _bfind(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    g.put(d, U32, f"bfind({g.src(a, t)},{'shiftamt' in ins.parts})")


def _bfe(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b, c = ins.operands
    g.put(d, t, f"bfe({g.src(a, t)},{g.src(b, U32)},{g.src(c, U32)})")


def _bfi(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b, c, n = ins.operands
    g.put(d, t, f"bfi({g.src(a, t)},{g.src(b, t)},{g.src(c, U32)},{g.src(n, U32)})")


def _shf(g: Gen, ins: Instr) -> None:
    d, a, b, c = ins.operands
    args = ",".join(g.src(o, U32) for o in (a, b, c))
    g.put(d, U32, f"shf({ins.parts[1] == 'l'},{ins.parts[2] == 'wrap'},{args})")


def _prmt(g: Gen, ins: Instr) -> None:
    d, a, b, c = ins.operands
    args = ",".join(g.src(o, U32) for o in (a, b, c))
    mode = ins.parts[2] if len(ins.parts) > 2 else None
    g.put(d, U32, f"prmt_mode('{mode}',{args})" if mode else f"prmt({args})")


def _lop3(g: Gen, ins: Instr) -> None:
    if ins.parts[1] in ("and", "or"):
        raise g.fail("predicate output")
    d, a, b, c, lut = ins.operands
    if not isinstance(lut, Imm):
        raise g.fail("the table is not a constant")
    x, y, z = (g.src(o, U32) for o in (a, b, c))
    fast = _LOP3_FAST.get(lut.value & 0xFF)
    if fast:
        expr = fast.replace("(a)", "\0").replace("(b)", "\1").replace("(c)", "\2")
        g.put(d, U32, expr.replace("\0", x).replace("\1", y).replace("\2", z))
    else:
        g.put(d, U32, f"lop3({x},{y},{z},{lut.value & 0xFF})")


def _minmax(ufunc: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        if _is_float(t):
            fl.minmax(g, ins)
            return
        if "relu" in ins.parts:
            raise g.fail("relu")
        if t.name in ("u16x2", "s16x2"):
            d, a, b = ins.operands
            g.put(d, t, f"halves('{ins.parts[0]}:{t.name}',{g.src(a, t)},{g.src(b, t)})")
            return
        d, *srcs = ins.operands
        expr = g.src(srcs[0], t)
        for s in srcs[1:-1]:
            expr = f"{ufunc}({expr},{g.src(s, t)})"
        g.ufunc(ufunc, d, t, expr, g.src(srcs[-1], t))

    return emit


def _absneg(ufunc: str) -> Emitter:
    def emit(g: Gen, ins: Instr) -> None:
        t = last_type(g, ins)
        if _is_float(t):
            fl.absneg(g, ins)
            return
        d, a = ins.operands
        g.ufunc(ufunc, d, t, g.src(a, t))

    return emit


def _sad(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b, c = ins.operands
    g.put(d, t, f"sad({g.src(a, t)},{g.src(b, t)},{g.src(c, t)})")


def _dp4a(g: Gen, ins: Instr) -> None:
    d, a, b, c = ins.operands
    ta, tb = ins.parts[1], ins.parts[2]
    t = TYPES["s32"] if "s32" in (ta, tb) else U32
    g.put(d, t, f"dp4a({g.src(a, U32)},{g.src(b, U32)},{g.src(c, t)},{ta == 's32'},{tb == 's32'})")


def _dp2a(g: Gen, ins: Instr) -> None:
    d, a, b, c = ins.operands
    half, ta, tb = ins.parts[1:4]
    t = TYPES["s32"] if "s32" in (ta, tb) else U32
    signs = f"{ta == 's32'},{tb == 's32'},{half == 'hi'}"
    g.put(d, t, f"dp2a({g.src(a, U32)},{g.src(b, U32)},{g.src(c, t)},{signs})")


_INT_CMP = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "lo": "less", "ls": "less_equal", "hi": "greater", "hs": "greater_equal",
}  # fmt: skip


def _setp(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b, *rest = ins.operands
    p, q = g.pair(d)
    cmp = ins.parts[1]
    pred = TYPES["pred"]
    simple = not rest and q is None
    if not _is_float(t) and simple:
        g.ufunc(_INT_CMP[cmp], p, pred, g.src(a, t), g.src(b, t))
        return
    v = g.tmp()
    if _is_float(t):
        if simple and t.kind == "f" and cmp in ("eq", "lt", "le", "gt", "ge", "neu"):
            g.ufunc(_INT_CMP[cmp[:2]], p, pred, fl.operand(g, ins, a, t), fl.operand(g, ins, b, t))
            return
        g.emit(f"{v}=fcmp_{cmp}({fl.operand(g, ins, a, t)},{fl.operand(g, ins, b, t)})")
    else:
        g.emit(f"{v}={_INT_CMP[cmp]}({g.src(a, t)},{g.src(b, t)})")
    first, second = v, f"~{v}"
    if rest:
        boolop = {"and": "&", "or": "|", "xor": "^"}[ins.parts[2]]
        c = g.pred(rest[0])
        first, second = f"({v}){boolop}{c}", f"(~{v}){boolop}{c}"
    s = g.tmp()
    if q is not None:
        # both results before either is stored: a destination may be the combined predicate
        g.emit(f"{s}={second}")
    g.put(p, pred, first)
    if q is not None:
        g.put(q, pred, s)


def _set(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    dt = g.type(ins.parts[-2])
    d, a, b, *rest = ins.operands
    cmp = ins.parts[1]
    if _is_float(t):
        expr = f"fcmp_{cmp}({fl.operand(g, ins, a, t)},{fl.operand(g, ins, b, t)})"
    else:
        expr = f"{_INT_CMP[cmp]}({g.src(a, t)},{g.src(b, t)})"
    if rest:
        boolop = {"and": "&", "or": "|", "xor": "^"}[ins.parts[2]]
        expr = f"({expr}{boolop}{g.pred(rest[0])})"
    g.put(d, dt, expr if dt.kind == "f" else f"(-({expr}.astype(S32_)))")


def _selp(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, b, c = ins.operands
    g.put(d, t, f"where({g.pred(c)},{g.src(a, t)},{g.src(b, t)})")


def _slct(g: Gen, ins: Instr) -> None:
    t, ct = g.type(ins.parts[-2]), last_type(g, ins)
    d, a, b, c = ins.operands
    g.put(d, t, f"where({g.src(c, ct)}>=0,{g.src(a, t)},{g.src(b, t)})")


EMIT: dict[str, Emitter] = {
    "add": _binary("add"),
    "sub": _binary("subtract"),
    "addc": _binary("add"),
    "subc": _binary("subtract"),
    "mul": _mul,
    "mul24": _mul,
    "mad": _mad,
    "mad24": _mad,
    "div": _div,
    "rem": _div,
    "and": _logic("bitwise_and"),
    "or": _logic("bitwise_or"),
    "xor": _logic("bitwise_xor"),
    "not": _not,
    "cnot": _cnot,
    "shl": _shift,
    "shr": _shift,
    "popc": _unary_u32("popc"),
    "clz": _unary_u32("clz"),
    "brev": _brev,
    "bfind": _bfind,
    "bfe": _bfe,
    "bfi": _bfi,
    "shf": _shf,
    "prmt": _prmt,
    "lop3": _lop3,
    "min": _minmax("minimum"),
    "max": _minmax("maximum"),
    "abs": _absneg("absolute"),
    "neg": _absneg("negative"),
    "sad": _sad,
    "dp4a": _dp4a,
    "dp2a": _dp2a,
    "setp": _setp,
    "set": _set,
    "selp": _selp,
    "slct": _slct,
}
