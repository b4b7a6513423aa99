"""Warp-level exchange: shuffles, votes, matches, reductions, election."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .gen import Emitter, Gen, last_type
from .parser import Imm, Instr, Operand, Sink
from .types import TYPES, WARP, Mask, Row
from .warp import bits_of

if TYPE_CHECKING:
    from .warp import Warp

_LANE = np.arange(WARP, dtype=np.int64)


# -- run time ---------------------------------------------------------------
def shfl(mode: str, a: Row, b: Row, c: Row, mask: Mask | None) -> tuple[Row, Row]:
    """(values, in-range predicate) of shfl.sync; a lane out of range keeps its own value."""
    bval, cval = (b & np.uint32(31)).astype(np.int64), (c & np.uint32(31)).astype(np.int64)
    seg = ((c >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
    max_lane = (_LANE & seg) | (cval & ~seg)
    min_lane = _LANE & seg
    if mode == "up":
        j = _LANE - bval
        ok = j >= max_lane
    elif mode == "down":
        j = _LANE + bval
        ok = j <= max_lane
    elif mode == "bfly":
        j = _LANE ^ bval
        ok = j <= max_lane
    else:
        j = min_lane | (bval & ~seg)
        ok = j <= max_lane
    j = np.where(ok, j, _LANE)
    return a[j], ok


_cache: dict[tuple[str, int, int], tuple[Row, Row]] = {}


def shfl_const(mode: str, a: Row, b: int, c: int) -> tuple[Row, Row]:
    """`shfl` with immediate lane and clamp: the lane table is computed once."""
    key = (mode, b, c)
    if key not in _cache:
        full = np.full(WARP, 1, np.uint32)
        j, ok = shfl(mode, _LANE.copy(), full * np.uint32(b), full * np.uint32(c), None)
        _cache[key] = (j, ok)
    j, ok = _cache[key]
    return a[j], ok


def vote(mode: str, p: Row, members: Row, mask: Mask | None) -> Any:
    """vote.sync: ballot gives a u32, the others a truth value; only member lanes count."""
    m = int(members[int(np.flatnonzero(mask)[0])] if mask is not None and mask.any() else members[0])
    active = (bits_of(mask) if mask is not None else 0xFFFFFFFF) & m
    b = bits_of(p) & active
    if mode == "ballot":
        return np.uint32(b)
    if mode == "all":
        return np.bool_(b == active)
    if mode == "any":
        return np.bool_(b != 0)
    return np.bool_(b in (0, active))


def elect(members: Row, mask: Mask | None) -> tuple[Row, int]:
    """(predicate row, leader): the lowest active member lane leads."""
    active = mask if mask is not None else np.ones(WARP, np.bool_)
    m = int(members[int(np.argmax(active))])
    bits = bits_of(active) & m
    leader = (bits & -bits).bit_length() - 1 if bits else 0
    row = np.zeros(WARP, np.bool_)
    row[leader] = True
    return row, leader


def match_any(a: Row, mask: Mask | None) -> Row:
    """For each lane the mask of active lanes with an equal value."""
    active = mask if mask is not None else np.ones(WARP, np.bool_)
    eq = (a[:, None] == a[None, :]) & active[None, :]
    masks: Row = (eq * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=1).astype(np.uint32)
    return masks


def match_all(a: Row, mask: Mask | None) -> tuple[Row, Row]:
    """(mask or 0, predicate): whether all active lanes agree."""
    active = mask if mask is not None else np.ones(WARP, np.bool_)
    vals = a[active]
    same = bool(len(vals) == 0 or (vals == vals[0]).all())
    return np.full(WARP, bits_of(active) if same else 0, np.uint32), np.full(WARP, same)


def redux(op: str, a: Row, mask: Mask | None) -> Any:
    """redux.sync over the active lanes."""
    vals = a if mask is None else a[mask]
    f: Any = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip
    if len(vals) == 0:
        return a[0]
    if a.dtype == np.float32:
        f = np.fmin if op == "min" else np.fmax
    return f.reduce(vals, dtype=a.dtype) if op == "add" else f.reduce(vals)


def member_bits(w: Warp, row: Row) -> int:
    """The membermask operand as seen by the first active lane."""
    return int(row[int(np.argmax(w.m))])


RUNTIME: dict[str, Any] = {
    f.__name__: f for f in (shfl, shfl_const, vote, elect, match_any, match_all, redux, member_bits)
}


# -- emitters ---------------------------------------------------------------
def _shfl(g: Gen, ins: Instr) -> None:
    t = TYPES["b32"]
    mode = ins.parts[2]
    d, a, b, c = ins.operands[:4]
    first, p = g.pair(d)
    v, ok = g.tmp(), g.tmp()
    if isinstance(b, Imm) and isinstance(c, Imm):
        g.emit(f"{v},{ok}=shfl_const('{mode}',{g.src(a, t)},{b.value},{c.value})")
    else:
        g.emit(f"{v},{ok}=shfl('{mode}',{g.src(a, t)},{g.src(b, t)},{g.src(c, t)},{g.m})")
    g.put(first, t, v)
    if p is not None:
        g.put(p, TYPES["pred"], ok)


def _vote(g: Gen, ins: Instr) -> None:
    mode = ins.parts[2]
    d, p, members = ins.operands
    expr = f"vote('{mode}',{g.pred(p)},{g.src(members, TYPES['u32'])},{g.m})"
    g.put(d, TYPES["u32"] if mode == "ballot" else TYPES["pred"], expr)


def _activemask(g: Gen, ins: Instr) -> None:
    expr = f"bits_of({g.mask})" if g.mask else "0xffffffff"
    g.put(ins.operands[0], TYPES["u32"], f"U32_({expr})")


def _elect(g: Gen, ins: Instr) -> None:
    d, members = ins.operands
    first, p = g.pair(d)
    row, leader = g.tmp(), g.tmp()
    g.emit(f"{row},{leader}=elect({g.src(members, TYPES['u32'])},{g.m})")
    if not isinstance(first, Sink):
        g.put(first, TYPES["u32"], f"U32_({leader})")
    if p is not None:
        g.put(p, TYPES["pred"], row)


def _match(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    d, a, _ = ins.operands
    first, p = g.pair(d)
    if ins.parts[1] == "any":
        g.put(first, TYPES["u32"], f"match_any({g.src(a, t)},{g.m})")
        return
    v, ok = g.tmp(), g.tmp()
    g.emit(f"{v},{ok}=match_all({g.src(a, t)},{g.m})")
    g.put(first, TYPES["u32"], v)
    if p is not None:
        g.put(p, TYPES["pred"], ok)


def _redux(g: Gen, ins: Instr) -> None:
    t = last_type(g, ins)
    op = ins.parts[2]
    if "NaN" in ins.parts or "abs" in ins.parts:
        raise g.fail("form")
    d, a, _ = ins.operands
    g.put(d, t, f"redux('{op}',{g.src(a, t)},{g.m})")


def members_operand(ins: Instr) -> Operand | None:
    """The membermask operand of a warp-synchronising instruction, None when it is all lanes."""
    op = ins.parts[0]
    if op == "shfl":
        return ins.operands[4]
    if op in ("vote", "match", "redux"):
        return ins.operands[2]
    if op == "elect":
        return ins.operands[1]
    return None


EMIT: dict[str, Emitter] = {
    "shfl": _shfl,
    "vote": _vote,
    "activemask": _activemask,
    "elect": _elect,
    "match": _match,
    "redux": _redux,
}
