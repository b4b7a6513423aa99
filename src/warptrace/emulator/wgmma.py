"""wgmma: warpgroup matrix multiply with operands in shared memory.

Each of the four warps computes its own 16 rows when it issues the instruction;
commit and wait have nothing left to do. Sums are taken in f64 and rounded once
an instruction (see isa_mma).

A descriptor (PTX ISA, wgmma matrix descriptor) holds the start address, the
leading and the stride byte offset (each divided by 16) and the swizzle mode.
The layouts are the canonical ones: units of 8 rows by 16 bytes, and with
swizzle mode S rows of S bytes whose 16-byte chunks are permuted by address bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from . import isa_float as fl
from .errors import MemoryFault, SyncError
from .gen import Emitter, Gen, Site
from .isa_mma import fragment_a, halves_of, items
from .machine_const import SMEM_BASE
from .memory import where_of
from .parser import Imm, Instr, Vec
from .types import TYPES, WARP, Row

if TYPE_CHECKING:
    from .warp import Warp

_SWIZZLE_BYTES = {0: 0, 1: 128, 2: 64, 3: 32}
_L = np.arange(WARP)
_G, _T = _L // 4, _L % 4


# -- run time ---------------------------------------------------------------
def swizzle(addr: Any, nbytes: int) -> Any:
    """Permute 16-byte chunks: address bits 4.. are XORed with bits 7.. (3, 2 or 1 of them)."""
    if nbytes == 0:
        return addr
    return addr ^ ((addr >> 3) & {128: 0x70, 64: 0x30, 32: 0x10}[nbytes])


@lru_cache(maxsize=256)
def _offsets(rows: int, mode: int, lbo: int, sbo: int, mn_major: bool) -> Any:
    """Byte offset, before swizzling, of element (row, k) of a rows x 16 operand of 16-bit elements."""
    r, k = np.arange(rows)[:, None], np.arange(16)[None, :]
    s = _SWIZZLE_BYTES[mode]
    if not mn_major:
        if s == 0:
            return r // 8 * sbo + k // 8 * lbo + r % 8 * 16 + k % 8 * 2
        return r // 8 * sbo + r % 8 * s + k * 2
    if s == 0:
        return r // 8 * sbo + k // 8 * lbo + k % 8 * 16 + r % 8 * 2
    per = s // 2
    return r // per * lbo + r % per * 2 + k // 8 * sbo + k % 8 * s


def operand(w: Warp, site: Site, desc: int, first: int, rows: int, kind: str, mn_major: bool) -> Any:
    """Rows [first, first + rows) of an operand as (rows, 16) f64."""
    start = (desc & 0x3FFF) << 4
    lbo, sbo = (desc >> 16 & 0x3FFF) << 4, (desc >> 32 & 0x3FFF) << 4
    mode = desc >> 62 & 3
    if desc >> 49 & 7:
        raise SyncError("wgmma: a matrix base offset other than 0 is not supported", where_of(w, site))
    off = _offsets(first + rows, mode, lbo, sbo, mn_major)[first:]
    addr = swizzle(start + off, _SWIZZLE_BYTES[mode])
    view = w.cta.smem.views[2, 1]
    index = (addr - SMEM_BASE) >> 1
    if int(addr.min()) < SMEM_BASE or int(index.max()) >= len(view):
        raise MemoryFault(
            f"wgmma: the operand at shared address {start:#x} (descriptor {desc:#018x}) leaves shared memory",
            where_of(w, site),
        )
    raw = view[index]
    return (raw.view(np.float16) if kind == "f16" else fl.bf_to_f32(raw)).astype(np.float64)


def _desc(w: Warp, site: Site, row: Row) -> int:
    if (row != row[0]).any():
        raise SyncError("wgmma: the descriptor differs between lanes", where_of(w, site))
    return int(row[0])


def wgmma(
    w: Warp, site: Site, kind: str, acc: str, n: int, d: list[Row], a: Any, b: Row, scale: Row,
    signs: tuple[int, int], trans: tuple[int, int],
) -> None:  # fmt: skip
    """D = A * B (+ D) for the 16 rows of this warp; ``a`` is a descriptor row or a list of registers."""
    first = w.warpid % 4 * 16
    if isinstance(a, list):
        am = fragment_a(a, kind)
    else:
        am = operand(w, site, _desc(w, site, a), first, 16, kind, trans[0] != 0)
    bm = operand(w, site, _desc(w, site, b), 0, n, kind, trans[1] != 0)
    r = am @ bm.T
    if signs[0] * signs[1] < 0:
        r = -r
    keep = bool(scale[0])
    if acc == "f32":
        # d[4j + 2i + b] is (row g + 8i, column 8j + 2t + b)
        t = r.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3).reshape(n // 2, WARP)
        for row, new in zip(d, t):
            row[:] = new + row if keep else new
        return
    t = r.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 1, 3, 4).reshape(n // 4, WARP, 2)
    for row, new in zip(d, t):
        total = new + halves_of(row, "f16") if keep else new
        row[:] = np.ascontiguousarray(fl.f32_to_h(total)).view(np.uint32)[:, 0]


RUNTIME: dict[str, Any] = {"wgmma": wgmma}


# -- emitters ---------------------------------------------------------------
def _wgmma(g: Gen, ins: Instr) -> None:
    p = ins.parts
    if p[1] in ("fence", "commit_group", "wait_group"):
        return
    shape = next((x for x in p if x.startswith("m64n")), "")
    types = p[-3:]
    if p[1] != "mma_async" or "sp" in p or not shape.endswith("k16") or types[1] not in ("f16", "bf16"):
        raise g.fail("shape or types")
    if types[2] != types[1] or types[0] not in ("f32", "f16") or g.masked:
        if not g.masked:
            raise g.fail("types")
        g.emit(f"w.machine.not_converged(w,{g.site()})")
        return
    n = int(shape[4:-3])
    d, a, b, scale, *rest = ins.operands
    imm = [x.value if isinstance(x, Imm) else 0 for x in rest]
    t = TYPES["f32" if types[0] == "f32" else "b32"]
    dst = ",".join(g.dst(x, t) for x in items(d))
    if isinstance(a, Vec):
        left = f"[{','.join(g.src(x, TYPES['b32']) for x in a.items)}]"
        trans = (0, imm[2] if len(imm) > 2 else 0)
    else:
        left = g.src(a, TYPES["u64"])
        trans = (imm[2], imm[3]) if len(imm) > 3 else (0, 0)
    signs = (imm[0], imm[1]) if len(imm) > 1 else (1, 1)
    g.emit(
        f"wgmma(w,{g.site()},'{types[1]}','{types[0]}',{n},[{dst}],{left},{g.src(b, TYPES['u64'])},"
        f"{g.pred(scale)},{signs},{trans})"
    )


EMIT: dict[str, Emitter] = {"wgmma": _wgmma}
