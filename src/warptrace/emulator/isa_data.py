"""Data movement: mov, ld, st, atomics, address conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import isa_float as fl
from .gen import Emitter, Gen, Site, last_type
from .memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW, load, resolve, store
from .parser import Imm, Instr, Mem, Operand, Reg, Sink, Special, Sym, Vec
from .types import TYPES, WARP, Mask, Row, ScalarType

if TYPE_CHECKING:
    from .warp import Warp

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const", "param::entry")


# -- run time ---------------------------------------------------------------
def narrow(a: Row, dtype: Any) -> Row:
    """The low bits of a wider register as the given type."""
    size = np.dtype(dtype).itemsize
    out: Row = a.astype(f"u{size}").view(dtype)
    return out


def pack(dtype: Any, part: Any, *rows: Row) -> Row:
    """Equal parts, low first, as one wider value."""
    out = np.empty((WARP, len(rows)), part)
    for i, r in enumerate(rows):
        out[:, i] = r
    packed: Row = out.view(dtype)[:, 0]
    return packed


def parts(a: Row, part: Any) -> Row:
    """(32, n) array of the equal parts of a value, low first."""
    out: Row = np.ascontiguousarray(a).view(part).reshape(WARP, -1)
    return out


def stack(dtype: Any, *rows: Row) -> Row:
    """Vector operands as (32, n)."""
    out = np.empty((WARP, len(rows)), dtype)
    for i, r in enumerate(rows):
        out[:, i] = r
    return out


def _atom_new(op: str, t: ScalarType, old: Any, b: Any, c: Any) -> Any:
    if op == "add":
        if t.name in ("f16x2", "bf16x2", "f16", "bf16"):
            return fl.half_op("add", t.name, "", np.atleast_1d(old), np.atleast_1d(b))[0]
        return old + b
    if op == "exch":
        return b
    if op == "cas":
        return c if old == b else old
    if op in ("min", "max"):
        if t.kind in ("f", "h", "bf", "x"):
            if t.name in ("f32", "f64"):
                return fl.minmax32(op, np.atleast_1d(old), np.atleast_1d(b), False)[0]
            return fl.half_op(op, t.name, "", np.atleast_1d(old), np.atleast_1d(b))[0]
        return min(old, b) if op == "min" else max(old, b)
    if op == "inc":
        return old.dtype.type(0) if old >= b else old + old.dtype.type(1)
    if op == "dec":
        return b if old == 0 or old > b else old - old.dtype.type(1)
    return {"and": old & b, "or": old | b, "xor": old ^ b}[op]


def atomic(
    w: Warp, site: Site, space: str, op: str, tname: str, addr: Row, off: int, mask: Mask | None, b: Any, c: Any
) -> Row:
    """Read-modify-write of each active lane, in lane order; returns the old values as unsigned (32,) or (32, n)."""
    t = TYPES[tname]
    esize = t.bits // 8
    vec = b.ndim == 2
    n = b.shape[1] if vec else 1
    out = np.zeros(b.shape, f"u{esize}")
    bits = addr.dtype.itemsize * 8
    for lane in range(WARP) if mask is None else np.flatnonzero(mask):
        a = (int(addr[lane]) + off) & ((1 << bits) - 1)
        alloc, o = resolve(w, site, space, a, esize * n, int(lane), True)
        view = alloc.views[esize, 1]
        for j in range(n):
            i = o // esize + j
            old = view[i : i + 1].view(t.dtype)[0]
            bj = b[lane, j] if vec else b[lane]
            cj = c[lane] if c is not None else None
            if vec:
                out[lane, j] = view[i]
            else:
                out[lane] = view[i]
            view[i] = np.asarray(_atom_new(op, t, old, bj, cj)).astype(t.dtype).reshape(1).view(f"u{esize}")[0]
    return out


def in_window(a: Row, space: str) -> Row:
    """isspacep: whether a generic address is in the space."""
    shared = (a >= np.uint64(SHARED_WINDOW)) & (a < np.uint64(SHARED_WINDOW + WINDOW))
    local = (a >= np.uint64(LOCAL_WINDOW)) & (a < np.uint64(LOCAL_WINDOW + WINDOW))
    if space.startswith("shared"):
        return np.asarray(shared)
    return np.asarray(local if space == "local" else ~(shared | local))


def in_own_cta(w: Warp, a: Row) -> Row:
    """isspacep.shared::cta: in the window of the executing CTA."""
    return np.asarray(in_window(a, "shared") & (((a >> np.uint64(24)) & np.uint64(0xFF)) == w.cta.rank))


RUNTIME: dict[str, Any] = {
    f.__name__: f for f in (narrow, pack, parts, stack, atomic, in_window, in_own_cta, load, store)
}


# -- emitters ---------------------------------------------------------------
def space_of(g: Gen, ins: Instr) -> str:
    """The state space named in the opcode, ``generic`` when none is."""
    for p in ins.parts[1:]:
        if p in SPACES:
            return p
    return "generic"


def address(g: Gen, mem: Operand, space: str) -> tuple[str, int]:
    """(row expression, byte offset) of an address operand."""
    if not isinstance(mem, Mem):
        raise g.fail("an address operand is needed")
    t = TYPES["u32"] if space.startswith("shared") or space == "local" else TYPES["u64"]
    base = mem.base
    if isinstance(base, Sym):
        return f"w.sym({base.name!r},{base.offset},{t.bank}_)", mem.offset
    if isinstance(base, Imm):
        return g.const(base.value & ((1 << t.bits) - 1), t.dtype), mem.offset
    if isinstance(base, Reg):
        if g.width(base) == 32 and t.bits == 64:
            return f"{g.row(base, 'U32')}.astype(U64_)", mem.offset
        return g.src(base, t), mem.offset
    raise g.fail("address operand")


def vector(ins: Instr) -> int:
    """Vector length in the opcode (1 when none)."""
    return next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)


def _ld(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if t.name == "b128":
        raise g.fail(".b128")
    space, nvec = space_of(g, ins), vector(ins)
    d, mem = ins.operands[:2]
    if space.startswith("param"):
        if _ld_param(g, t, nvec, d, mem):
            return
        space = "global"
    if space == "const":
        space = "global"
    a, off = address(g, mem, space)
    v = g.tmp()
    g.emit(f"{v}=load(w,{g.site()},{space!r},{a},{off},{t.bits // 8},{nvec},{g.m})")
    bits = TYPES[f"b{t.bits}"]
    out = TYPES[f"s{t.bits}"] if t.kind == "s" else bits
    view = f".view(S{t.bits}_)" if t.kind == "s" else ""
    dsts = d.items if isinstance(d, Vec) else (d,)
    for i, x in enumerate(dsts):
        g.put(x, out, f"{v}[:,{i}]{view}" if nvec > 1 else f"{v}{view}")


def _ld_param(g: Gen, t: ScalarType, nvec: int, d: Operand, mem: Operand) -> bool:
    """Parameter loads from a named parameter are scalars of the parameter block."""
    if not isinstance(mem, Mem) or not isinstance(mem.base, Sym):
        return False
    out = TYPES[f"s{t.bits}"] if t.kind == "s" else TYPES[f"b{t.bits}"]
    dsts = d.items if isinstance(d, Vec) else (d,)
    if mem.base.name not in g.params:
        g.put(d, out, f"call_param(w,{g.site()},{mem.base.name!r}).astype({out.bank}_)")
        return True
    for i, x in enumerate(dsts):
        off = mem.base.offset + mem.offset + i * t.bits // 8
        g.put(x, out, f"w.param(PARAMS[{mem.base.name!r}]+{off},{out.bank}_)")
    return True


def _values(g: Gen, ops: tuple[Operand, ...], t: ScalarType) -> str:
    rows = [g.src(o, t) for o in ops]
    return rows[0] if len(rows) == 1 else f"stack({t.bank}_,{','.join(rows)})"


def _st(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if t.name == "b128":
        raise g.fail(".b128")
    space, nvec = space_of(g, ins), vector(ins)
    if "async" in ins.parts:
        _st_async(g, ins, t, nvec)
        return
    mem, s = ins.operands[:2]
    if space == "param" and isinstance(mem, Mem) and isinstance(mem.base, Sym) and mem.base.name not in g.params:
        if nvec > 1 or mem.offset:
            raise g.fail("structured call parameter")
        g.emit(f"w.call_params[{mem.base.name!r}]={g.src(s, TYPES[f'b{t.bits}'])}.copy()")
        return
    if space in ("param", "const"):
        raise g.fail(f"store to .{space}")
    a, off = address(g, mem, space)
    ops = s.items if isinstance(s, Vec) else (s,)
    vals = _values(g, ops, TYPES[f"b{t.bits}"])
    g.emit(f"store(w,{g.site()},{space!r},{a},{off},{t.bits // 8},{nvec},{g.m},{vals})")


def _st_async(g: Gen, ins: Instr, t: ScalarType, nvec: int) -> None:
    mem, s, bar = ins.operands[:3]
    a, off = address(g, mem, "shared")
    b, boff = address(g, bar, "shared")
    ops = s.items if isinstance(s, Vec) else (s,)
    vals = _values(g, ops, TYPES[f"b{t.bits}"])
    site = g.site()
    g.emit(f"store(w,{site},'shared::cluster',{a},{off},{t.bits // 8},{nvec},{g.m},{vals})")
    g.emit(f"mbar_complete_tx(w,{site},{b},{boff},{g.m},{nvec * t.bits // 8})")


_ATOM_OPS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")


def _atom(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if t.name == "b128" or "async" in ins.parts:
        raise g.fail("form")
    op = next((p for p in ins.parts[1:] if p in _ATOM_OPS), None)
    if op is None:
        raise g.fail("operation")
    is_red = ins.parts[0] == "red"
    ops = list(ins.operands)
    d = None if is_red else ops.pop(0)
    mem = ops.pop(0)
    a, off = address(g, mem, space_of(g, ins))
    src = ops[0]
    b = _values(g, src.items if isinstance(src, Vec) else (src,), t)
    c = g.src(ops[1], t) if op == "cas" else "None"
    v = g.tmp()
    g.emit(f"{v}=atomic(w,{g.site()},{space_of(g, ins)!r},{op!r},{t.name!r},{a},{off},{g.m},{b},{c})")
    if d is None:
        return
    bits = TYPES[f"b{t.bits}"]
    if isinstance(d, Vec):
        for i, x in enumerate(d.items):
            g.put(x, bits, f"{v}[:,{i}]")
    else:
        g.put(d, bits, v)


def _mov(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    if t.name == "b128":
        raise g.fail(".b128")
    d, a = ins.operands
    if isinstance(d, Vec):
        part = TYPES[f"b{t.bits // len(d.items)}"]
        v = g.tmp()
        g.emit(f"{v}=parts({g.src(a, TYPES[f'b{t.bits}'])},{part.bank}_)")
        if _overlaps(d, a):
            g.emit(f"{v}={v}.copy()")
        for i, x in enumerate(d.items):
            g.put(x, part, f"{v}[:,{i}]")
        return
    if isinstance(a, Special):
        g.put(d, t, g.special(a))
        return
    if isinstance(d, Sink):
        return
    g.emit(f"copyto({g.dst(d, t)},{g.src(a, t)}{g.w})")


def _overlaps(d: Vec, a: Operand) -> bool:
    return isinstance(a, Reg) and any(isinstance(x, Reg) and x.name == a.name for x in d.items)


_WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW}
_WINDOWS["local"] = LOCAL_WINDOW


def _cvta(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    space = space_of(g, ins)
    window = _WINDOWS.get(space, 0)
    if t.bits != 64:
        raise g.fail("32-bit addresses")
    src = g.src(a, t)
    if not window:
        g.ufunc("positive", d, t, src)
    elif "to" in ins.parts:
        g.ufunc("subtract", d, t, src, g.const(window, np.uint64))
    else:
        g.ufunc("add", d, t, src, g.const(window, np.uint64))


def _isspacep(g: Gen, ins: Instr) -> None:
    p, a = ins.operands
    space = ins.parts[1]
    x = g.src(a, TYPES["u64"])
    own = space in ("shared", "shared::cta")
    g.put(p, TYPES["pred"], f"in_own_cta(w,{x})" if own else f"in_window({x},{space!r})")


def _mapa(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, rank = ins.operands
    keep = 0xFFFFFF if t.bits == 32 else ((1 << 64) - 1) ^ 0xFF000000
    r = f"({g.src(rank, TYPES['u32'])}.astype({t.bank}_)<<{g.const(24, t.dtype)})"
    g.put(d, t, f"({g.src(a, t)}&{g.const(keep, t.dtype)})|{r}")


def _getctarank(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a = ins.operands
    g.put(d, TYPES["u32"], f"(({g.src(a, t)}>>{g.const(24, t.dtype)})&{g.const(0xFF, t.dtype)}).astype(U32_)")


EMIT: dict[str, Emitter] = {
    "mov": _mov,
    "ld": _ld,
    "ldu": _ld,
    "st": _st,
    "atom": _atom,
    "red": _atom,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "mapa": _mapa,
    "getctarank": _getctarank,
}
