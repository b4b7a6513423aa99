"""What instruction emitters use to write Python text: operands, masks, constants, sites.

The translator (codegen.py) makes one Python function per straight-line stretch
of PTX. An emitter adds lines to it through a `Gen`. Registers appear as rows of
banks (``U32[3]`` is the 32 lanes of one 32-bit register seen as unsigned), so
most instructions are one numpy ufunc call that writes in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import UnsupportedInstruction, Where
from .parser import Imm, Instr, Operand, Pair, Reg, Sink, Special, Sym, Vec
from .types import TYPES, WARP, ScalarType


@dataclass
class Site:
    """One memory or synchronisation instruction of the running kernel, for error messages and caches."""

    instr: Instr
    alloc: Any = None
    """Allocation that the last access hit."""
    base: int = -1
    delta: Any = None
    """Base address minus the constant offset, as a row, for ``base``."""
    extra: Any = None


@dataclass
class RegFile:
    """Where each register lives: (width in bits, row)."""

    slots: dict[str, tuple[int, int]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, name: str, bits: int) -> None:
        row = self.counts.get(bits, 0)
        self.counts[bits] = row + 1
        self.slots[name] = (bits, row)


@dataclass
class Pools:
    """Constants and sites shared by all functions of one kernel."""

    consts: list[Any] = field(default_factory=list)
    index: dict[tuple[str, bytes], int] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)

    def const(self, value: int | float, dtype: Any) -> int:
        arr = np.full(WARP, value, dtype=dtype)
        return self.const_array(arr)

    def const_array(self, arr: Any) -> int:
        key = (str(arr.dtype), arr.tobytes())
        if key not in self.index:
            arr.flags.writeable = False
            self.index[key] = len(self.consts)
            self.consts.append(arr)
        return self.index[key]


class Gen:
    """Text of one function under construction.

    ``mask`` is None when all 32 lanes execute the instruction, else the name of
    a bool row.
    """

    def __init__(self, kernel: str, regs: RegFile, pools: Pools, masked: bool, params: frozenset[str] = frozenset()):
        self.kernel = kernel
        self.params = params
        self.regs = regs
        self.pools = pools
        self.masked = masked
        self.mask: str | None = "m" if masked else None
        self.lines: list[str] = []
        self.marks: list[Instr] = []
        self.banks: set[str] = set()
        self.cost = 0.0
        self.prefix = 0.0
        self.ins: Instr | None = None
        self._tmp = 0

    # -- text ---------------------------------------------------------------
    def emit(self, line: str) -> None:
        """Add one line (no newline inside) that belongs to the current instruction."""
        assert self.ins is not None
        self.lines.append(line)
        self.marks.append(self.ins)

    def tmp(self) -> str:
        self._tmp += 1
        return f"t{self._tmp}"

    @property
    def w(self) -> str:
        """The ``where=`` argument of a ufunc, or nothing."""
        return f",where={self.mask}" if self.mask else ""

    @property
    def m(self) -> str:
        """The mask as an argument of a helper: a row name or ``None``."""
        return self.mask or "None"

    def fail(self, why: str) -> UnsupportedInstruction:
        """The error for a form that is not supported (raise it)."""
        assert self.ins is not None
        i = self.ins
        return UnsupportedInstruction(
            f"unsupported instruction {i.op!r}: {why}", Where(kernel=self.kernel, line=i.line, text=i.text)
        )

    def type(self, name: str) -> ScalarType:
        t = TYPES.get(name)
        if t is None:
            raise self.fail(f"unknown type .{name}")
        return t

    # -- operands -----------------------------------------------------------
    def bank(self, name: str) -> str:
        self.banks.add(name)
        return name

    def const(self, value: int | float, dtype: Any) -> str:
        return f"K[{self.pools.const(value, dtype)}]"

    def site(self) -> str:
        """A new `Site` of the current instruction."""
        assert self.ins is not None
        self.pools.sites.append(Site(self.ins))
        return f"SITES[{len(self.pools.sites) - 1}]"

    def width(self, op: Operand) -> int:
        """Width in bits of a register operand, else 0."""
        return self.regs.slots[op.name][0] if isinstance(op, Reg) else 0

    def row(self, op: Reg, bank: str) -> str:
        return f"{self.bank(bank)}[{self.regs.slots[op.name][1]}]"

    def pred(self, op: Operand) -> str:
        """A predicate operand as a bool row."""
        if isinstance(op, Imm):
            return self.const(bool(op.value), np.bool_)
        if not isinstance(op, Reg) or self.width(op) != 1:
            raise self.fail("a predicate register is needed")
        return f"(~{self.row(op, 'P')})" if op.neg else self.row(op, "P")

    def src(self, op: Operand, t: ScalarType) -> str:
        """Expression for a source operand as a 32-lane array of the type."""
        if t.kind == "p":
            return self.pred(op)
        if isinstance(op, Reg):
            bits = self.width(op)
            if bits == t.bits:
                return self.row(op, t.bank)
            if bits > t.bits:
                return f"narrow({self.row(op, f'U{bits}')},{t.bank}_)"
            raise self.fail(f"a {bits}-bit register where .{t.name} is needed")
        if isinstance(op, Imm):
            return self.imm(op, t)
        if isinstance(op, Special):
            return f"{self.special(op)}.astype({t.bank}_)"
        if isinstance(op, Sym):
            return f"w.sym({op.name!r},{op.offset},{t.bank}_)"
        if isinstance(op, Vec):
            return self.packed(op, t)
        raise self.fail("operand of an unexpected kind")

    def packed(self, op: Vec, t: ScalarType) -> str:
        """A ``{a, b, ..}`` source as one value (mov packing)."""
        bits = t.bits // len(op.items)
        part = TYPES[f"b{bits}"]
        rows = ",".join(self.const(0, part.dtype) if isinstance(o, Sink) else self.src(o, part) for o in op.items)
        return f"pack({t.bank}_,{part.bank}_,{rows})"

    def imm(self, op: Imm, t: ScalarType) -> str:
        if t.kind in "fh":
            if op.fbits == 0 and t.kind == "h":
                return f"K[{self.pools.const_array(np.full(WARP, op.value & 0xFFFF, np.uint16).view(np.float16))}]"
            if op.fbits == 32 and t.bits == 32 or op.fbits == 64 and t.bits == 64:
                raw = np.full(WARP, op.value, np.uint32 if t.bits == 32 else np.uint64)
                return f"K[{self.pools.const_array(raw.view(t.dtype))}]"
            return self.const(op.fvalue if op.fbits else op.value, t.dtype)
        value = op.value
        if op.fbits == -1:
            raise self.fail("a decimal float for an integer type")
        if op.fbits == 64 and t.bits == 32:
            return f"K[{self.pools.const_array(np.full(WARP, op.fvalue, np.float32).view(np.uint32))}]"
        value &= (1 << t.bits) - 1
        if t.kind == "s" and value >> (t.bits - 1):
            value -= 1 << t.bits
        return self.const(value, t.dtype)

    def special(self, op: Special) -> str:
        name = op.name
        if name in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
            return f"w.read_{name}({self.prefix})"
        if name.startswith(("envreg", "pm", "current_graph", "aggr_smem")):
            raise self.fail(f"special register %{name}")
        return f"w.s_{name.replace('.', '_')}" if not name.startswith("lanemask") else f"w.s_{name}"

    # -- results ------------------------------------------------------------
    def dst(self, op: Operand, t: ScalarType) -> str:
        """The row that an instruction of this type writes in place."""
        if t.kind == "p":
            if not isinstance(op, Reg):
                raise self.fail("a predicate destination is needed")
            return self.row(op, "P")
        if not isinstance(op, Reg) or self.width(op) != t.bits:
            raise self.fail(f"a destination register of {t.bits} bits is needed")
        return self.row(op, t.bank)

    def put(self, op: Operand, t: ScalarType, value: str) -> None:
        """Store an array of the type's dtype; a wider register is zero- or sign-extended."""
        if isinstance(op, Sink):
            return
        if not isinstance(op, Reg):
            raise self.fail("a destination register is needed")
        bits = self.width(op)
        if t.kind == "p":
            bank = "P"
        elif bits == t.bits:
            bank = t.bank
        elif bits > t.bits:
            bank = f"S{bits}" if t.kind == "s" else f"U{bits}"
            if t.kind in "fh":
                value = f"{value}.view(U{t.bits}_)"
        else:
            raise self.fail(f"a {bits}-bit destination for .{t.name}")
        self.emit(f"copyto({self.row(op, bank)},{value},'unsafe'{self.w})")

    def put_indented(self, op: Operand, t: ScalarType, value: str) -> None:
        """`put` inside an ``if`` body."""
        n = len(self.lines)
        self.put(op, t, value)
        self.lines[n:] = [" " + line for line in self.lines[n:]]

    def ufunc(self, name: str, d: Operand, t: ScalarType, *srcs: str) -> None:
        """``name(srcs..., out)`` into a register of exactly this type."""
        if isinstance(d, Sink):
            return
        # numpy deprecates the positional output of these two
        out = "out=" if name in ("minimum", "maximum") else ""
        self.emit(f"{name}({','.join(srcs)},{out}{self.dst(d, t)}{self.w})")

    def pair(self, op: Operand) -> tuple[Operand, Operand | None]:
        """Split ``a|b``; a single operand gives (a, None)."""
        return (op.first, op.second) if isinstance(op, Pair) else (op, None)


Emitter = Callable[[Gen, Instr], None]


def last_type(g: Gen, ins: Instr) -> ScalarType:
    """The type that the opcode ends with."""
    return g.type(ins.parts[-1])
