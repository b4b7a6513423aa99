"""ldmatrix, stmatrix, movmatrix and mma.sync for f16 and bf16.

Products are exact and sums are taken in f64, then rounded once to the
accumulator's type: tensor cores add in an order and precision of their own, so
the last bits may differ from hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import isa_float as fl
from .gen import Emitter, Gen, Site
from .isa_data import address
from .memory import load, store
from .parser import Instr, Operand, Vec
from .types import TYPES, WARP, Row

if TYPE_CHECKING:
    from .warp import Warp

_L = np.arange(WARP)
_G, _T = _L // 4, _L % 4


# -- run time ---------------------------------------------------------------
def _rows(n: int) -> Row | None:
    """Mask of the lanes that give row addresses of n matrices."""
    limit = 8 * n
    return None if n == 4 else np.asarray(limit > _L)


def ldmatrix(w: Warp, site: Site, addr: Row, off: int, n: int, trans: bool) -> list[Row]:
    """n 8x8 matrices of 16-bit elements; lanes 8i to 8i+7 give the row addresses of matrix i."""
    rows = load(w, site, "shared", addr, off, 4, 4, _rows(n))
    out = []
    for i in range(n):
        m = np.ascontiguousarray(rows[8 * i : 8 * i + 8])
        if trans:
            m = np.ascontiguousarray(m.view(np.uint16).T).view(np.uint32)
        out.append(m[_G, _T])
    return out


def stmatrix(w: Warp, site: Site, addr: Row, off: int, trans: bool, *regs: Row) -> None:
    """The inverse of `ldmatrix`."""
    n = len(regs)
    rows = np.zeros((WARP, 4), np.uint32)
    for i, r in enumerate(regs):
        m = np.ascontiguousarray(r).reshape(8, 4)
        if trans:
            m = np.ascontiguousarray(m.view(np.uint16).T).view(np.uint32)
        rows[8 * i : 8 * i + 8] = m
    store(w, site, "shared", addr, off, 4, 4, _rows(n), rows)


def movmatrix(a: Row) -> Row:
    """Transpose of an 8x8 matrix of 16-bit elements held by a warp."""
    m = np.ascontiguousarray(a).reshape(8, 4).view(np.uint16)
    return np.ascontiguousarray(m.T).view(np.uint32).reshape(WARP)


def halves_of(row: Row, kind: str) -> Any:
    """(32, 2) f64 values of packed f16 or bf16."""
    by = np.ascontiguousarray(row).view(np.uint16).reshape(-1, 2)
    v = by.view(np.float16) if kind == "f16" else fl.bf_to_f32(by)
    return v.astype(np.float64)


def all_halves(regs: Any, kind: str) -> Any:
    """(n, 32, 2) f64 values of n registers of packed f16 or bf16."""
    by = np.concatenate(regs).view(np.uint16).reshape(-1, WARP, 2)
    v = by.view(np.float16) if kind == "f16" else fl.bf_to_f32(by)
    return v.astype(np.float64)


def fragment_a(regs: Any, kind: str) -> Any:
    """A (16, 4 * len(regs)) from the registers of mma's A operand.

    Register i of lane 4g + t holds columns 2t and 2t + 1 of row g, in the 8x8 quarter i (column-major).
    """
    quarters = all_halves(regs, kind).reshape(-1, 2, 8, 4, 2)
    return quarters.transpose(1, 2, 0, 3, 4).reshape(16, -1)


def mma(kind: str, acc: str, a: Any, b: Any, c: Any) -> list[Row]:
    """D registers of mma.sync.m16n8k{8,16}; ``acc`` is f32 or f16."""
    am = fragment_a(a, kind)
    # register i of lane 4g + t: rows 8i + 2t and 8i + 2t + 1 of column g
    bm = all_halves(b, kind).reshape(-1, 8, 4, 2).transpose(0, 2, 3, 1).reshape(-1, 8)
    quads = (am @ bm).reshape(2, 8, 4, 2)  # row half, g, t, element of the pair
    if acc == "f32":
        # register i: element i % 2 of row half i // 2
        sums = quads.transpose(0, 3, 1, 2).reshape(4, WARP) + np.concatenate(c).view(np.float32).reshape(4, WARP)
        return list(sums.astype(np.float32))
    pairs = quads.reshape(2, WARP, 2) + all_halves(c, "f16")
    return list(np.ascontiguousarray(fl.f32_to_h(pairs)).view(np.uint32)[..., 0])


RUNTIME: dict[str, Any] = {f.__name__: f for f in (ldmatrix, stmatrix, movmatrix, mma)}


# -- emitters ---------------------------------------------------------------
def items(op: Operand) -> tuple[Operand, ...]:
    return op.items if isinstance(op, Vec) else (op,)


def _count(g: Gen, ins: Instr) -> int:
    if "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise g.fail("shape")
    return int(next(p for p in ins.parts if p in ("x1", "x2", "x4"))[1])


def _ldmatrix(g: Gen, ins: Instr) -> None:
    n = _count(g, ins)
    d, mem = ins.operands
    a, off = address(g, mem, "shared")
    v = g.tmp()
    g.emit(f"{v}=ldmatrix(w,{g.site()},{a},{off},{n},{'trans' in ins.parts})")
    for i, x in enumerate(items(d)):
        g.put(x, TYPES["b32"], f"{v}[{i}]")


def _stmatrix(g: Gen, ins: Instr) -> None:
    _count(g, ins)
    mem, s = ins.operands
    a, off = address(g, mem, "shared")
    rows = ",".join(g.src(x, TYPES["b32"]) for x in items(s))
    g.emit(f"stmatrix(w,{g.site()},{a},{off},{'trans' in ins.parts},{rows})")


def _movmatrix(g: Gen, ins: Instr) -> None:
    d, a = ins.operands
    g.put(d, TYPES["b32"], f"movmatrix({g.src(a, TYPES['b32'])})")


def _mma(g: Gen, ins: Instr) -> None:
    p = ins.parts
    types = [x for x in p if x in ("f16", "bf16", "f32", "tf32", "s8", "u8", "s32", "f64", "e4m3", "e5m2")]
    shape = next((x for x in p if x.startswith("m16n8k")), None)
    if shape not in ("m16n8k8", "m16n8k16") or len(types) != 4 or types[1] not in ("f16", "bf16"):
        raise g.fail("shape or types")
    acc, kind = types[0], types[1]
    if types[2] != kind or types[3] != acc or acc not in ("f32", "f16"):
        raise g.fail("types")
    d, a, b, c = ins.operands
    t = TYPES["f32" if acc == "f32" else "b32"]
    lists = [",".join(g.src(x, TYPES["b32"]) for x in items(o)) for o in (a, b)]
    accs = ",".join(g.src(x, t) for x in items(c))
    v = g.tmp()
    g.emit(f"{v}=mma('{kind}','{acc}',({lists[0]},),({lists[1]},),({accs},))")
    for i, x in enumerate(items(d)):
        g.put(x, t, f"{v}[{i}]")


EMIT: dict[str, Emitter] = {"ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "movmatrix": _movmatrix, "mma": _mma}
