"""Translation of a kernel's PTX into Python functions, one per stretch of instructions.

Stretches (*segments*) start at labels, behind branches, and around instructions
that may wait or whose time of effect matters. Each segment has two functions:
one for a warp whose 32 lanes are all active (plain in-place ufuncs) and one
with a lane mask. A function returns the next segment's number, or a negative
code when the running fragment was split, parked or ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import isa_call, isa_cvt, isa_data, isa_float, isa_int, isa_mma, isa_sync, isa_warp, sync, tma, wgmma
from .costs import cost
from .errors import PtxSyntaxError, UnsupportedInstruction, Where
from .gen import Gen, Pools, RegFile
from .parser import Instr, KernelDef, Label, Reg, Sym
from .types import BANK_DTYPES, TYPES
from .warp import bits_of

if TYPE_CHECKING:
    from .warp import Warp

Function = Callable[["Warp"], int]

_EMITTERS = (
    isa_call.EMIT | isa_int.EMIT | isa_float.EMIT | isa_cvt.EMIT | isa_data.EMIT | isa_warp.EMIT | isa_sync.EMIT
    | isa_mma.EMIT | wgmma.EMIT
)  # fmt: skip

_NUMPY_NAMES = (
    "add", "subtract", "multiply", "divide", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift",
    "right_shift", "minimum", "maximum", "absolute", "negative", "positive", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "copyto", "where", "copysign", "isfinite", "isinf", "isnan",
    "ascontiguousarray", "count_nonzero",
)  # fmt: skip


def _namespace() -> dict[str, Any]:
    ns: dict[str, Any] = {n: getattr(np, n) for n in _NUMPY_NAMES}
    for mod in (isa_call, isa_int, isa_float, isa_cvt, isa_data, isa_warp, sync, tma, isa_mma, wgmma):
        ns.update(mod.RUNTIME)
    for bank, dtype in BANK_DTYPES.items():
        ns[f"{bank}_"] = dtype
    ns["bits_of"] = bits_of
    return ns


@dataclass
class Segment:
    """Instructions [start, hard_end) for the full function, [start, soft_end) for the masked one."""

    start: int
    hard_end: int = 0
    soft_end: int = 0


@dataclass
class Code:
    """A translated kernel."""

    name: str
    kernel: KernelDef
    full: list[Function] = field(default_factory=list)
    masked: list[Function] = field(default_factory=list)
    full_cost: list[float] = field(default_factory=list)
    masked_cost: list[float] = field(default_factory=list)
    full_n: list[int] = field(default_factory=list)
    masked_n: list[int] = field(default_factory=list)
    full_ordered: list[bool] = field(default_factory=list)
    masked_ordered: list[bool] = field(default_factory=list)
    """Whether the function touches memory or synchronises, so that its place in time matters to other warps."""
    reg_counts: dict[int, int] = field(default_factory=dict)
    local_bytes: int = 0
    local_syms: dict[str, int] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)
    source: str = ""
    line_of: dict[int, Instr] = field(default_factory=dict)
    """Line of ``source`` to PTX instruction, for errors that escape."""
    first_line: list[int] = field(default_factory=list)
    """PTX line at which each segment starts."""


def _is_soft(ins: Instr) -> bool:
    """Warp-synchronising instructions: they meet the other lanes when the warp has diverged."""
    p = ins.parts
    if p[0] in ("shfl", "vote", "match", "redux", "elect"):
        return True
    if p[0] in ("ldmatrix", "stmatrix", "mma", "wgmma", "movmatrix"):
        return True
    return p[0] == "bar" and p[1] == "warp"


def _touches_others(ins: Instr) -> bool:
    p = ins.parts
    if p[0] in ("ld", "st", "ldu"):
        return not any(x in p for x in ("param", "local", "const"))
    if p[0] in ("ldmatrix", "stmatrix", "wgmma", "bar", "nanosleep"):
        return True
    return isa_sync.is_blocking(ins) or isa_sync.splits_before(ins)


def _is_end(ins: Instr) -> bool:
    return ins.parts[0] in ("bra", "ret", "exit", "trap", "brx")


class _Translator:
    def __init__(self, kernel: KernelDef):
        self.kernel = kernel
        self.ins: list[Instr] = []
        self.labels: dict[str, int] = {}
        self.regs = RegFile()
        self.pools = Pools()
        self.segs: list[Segment] = []
        self.seg_at: dict[int, int] = {}
        self.reconv: dict[int, int] = {}
        self.code = Code(kernel.name, kernel)

    # -- preparation -------------------------------------------------------------
    def flatten(self) -> None:
        """Instructions with label positions; a guarded waiting instruction becomes a branch around it."""
        fresh = 0
        for item in self.kernel.body:
            if isinstance(item, Label):
                self.labels[item.name] = len(self.ins)
                continue
            if item.guard is not None and isa_sync.is_blocking(item):
                label = f"@skip{fresh}"
                fresh += 1
                guard = Reg(item.guard.name, not item.guard.neg)
                self.ins.append(Instr("bra", ("bra",), (Sym(label),), guard, item.line, item.text))
                self.ins.append(Instr(item.op, item.parts, item.operands, None, item.line, item.text))
                self.labels[label] = len(self.ins)
            else:
                self.ins.append(item)
        line = self.ins[-1].line if self.ins else self.kernel.line
        self.ins.append(Instr("ret", ("ret",), (), None, line, "ret"))

    def allocate(self) -> None:
        """A row for each register that is used."""
        used = set()
        for i in self.ins:
            used |= set(_registers(i.operands))
            if i.guard is not None:
                used.add(i.guard.name)
        for name, tname in self.kernel.regs.items():
            if name not in used:
                continue
            bits = TYPES[tname].bits if tname in TYPES else 0
            if bits in (0, 128):
                raise UnsupportedInstruction(f"register type .{tname}", Where(kernel=self.kernel.name))
            self.regs.add(name, bits)

    def split(self) -> None:
        """Find segment boundaries."""
        n = len(self.ins)
        hard, soft = {0}, set()
        hard |= {pos for pos in self.labels.values() if pos < n}
        for i, ins in enumerate(self.ins):
            if _is_end(ins):
                hard.add(i + 1)
            elif isa_sync.is_blocking(ins):
                hard |= {i, i + 1}
            elif isa_sync.splits_before(ins):
                hard.add(i)
            elif _is_soft(ins):
                soft |= {i, i + 1}
        hard.discard(n)
        starts = sorted((hard | soft) - {n})
        self.seg_at = {pos: k for k, pos in enumerate(starts)}
        hard_list = [*sorted(hard), n]
        ends = [*starts[1:], n]
        h = 0
        for k, pos in enumerate(starts):
            while hard_list[h] <= pos:
                h += 1
            self.segs.append(Segment(pos, hard_list[h], ends[k]))

    def target(self, ins: Instr) -> int:
        op = ins.operands[-1]
        if not isinstance(op, Sym) or op.name not in self.labels:
            raise PtxSyntaxError("unknown branch target", Where(self.kernel.name, ins.line, ins.text))
        return self.seg_at[self.labels[op.name]]

    def successors(self, k: int) -> list[int]:
        """Segments that can follow segment k, as far as reconvergence is concerned; -1 is the exit.

        Lanes that leave by a guarded exit, or trap, are not waited for: the others still meet where they
        would without it.
        """
        last = self.ins[self.segs[k].soft_end - 1]
        if last.parts[0] == "bra":
            out = [self.target(last)]
            return out if last.guard is None else [*out, k + 1]
        if last.parts[0] in ("ret", "exit", "trap"):
            if last.guard is not None:
                return [k + 1]
            return [] if last.parts[0] == "trap" else [-1]
        return [k + 1]

    def post_dominators(self) -> None:
        """Immediate post-dominator of each segment that ends with a conditional branch."""
        n = len(self.segs)
        succ = [self.successors(k) for k in range(n)]
        exit_bit = 1 << n
        everything = (exit_bit << 1) - 1
        pdom = [everything] * n
        changed = True
        while changed:
            changed = False
            for k in range(n - 1, -1, -1):
                meet = everything
                for s in succ[k]:
                    meet &= exit_bit if s < 0 else pdom[s]
                new = meet | (1 << k)
                if new != pdom[k]:
                    pdom[k], changed = new, True
        size = [bin(p).count("1") for p in pdom]
        for k in range(n):
            if len(succ[k]) < 2 or pdom[k] == everything:  # the latter: no way to the exit
                continue
            rest = pdom[k] & ~(1 << k) & ~exit_bit
            best, best_size = -1, -1
            while rest:
                low = rest & -rest
                i = low.bit_length() - 1
                # the closest post-dominator is the one that the others post-dominate too
                if pdom[k] & ~(1 << k) == pdom[i] or size[i] > best_size:
                    best, best_size = i, size[i]
                rest ^= low
            self.reconv[k] = best

    # -- text ----------------------------------------------------------------------
    def function(self, k: int, masked: bool) -> tuple[Gen, float, int]:
        seg = self.segs[k]
        end = seg.soft_end if masked else seg.hard_end
        g = Gen(self.kernel.name, self.regs, self.pools, masked, frozenset(p.name for p in self.kernel.params))
        total = 0.0
        ended = False
        for i in range(seg.start, end):
            ins = self.ins[i]
            g.ins, g.prefix = ins, total
            total += cost(ins.parts)
            ended = self.one(g, ins, k, i, masked)
        if not ended:
            g.emit(f"return {self.seg_at[end]}")
        return g, total, end - seg.start

    def one(self, g: Gen, ins: Instr, k: int, i: int, masked: bool) -> bool:
        """Text of one instruction; True when it ends the function."""
        g.mask = "m" if masked else None
        nxt = self.seg_at.get(i + 1, -1)
        if _is_end(ins):
            self.end(g, ins, k, nxt)
            return True
        if isa_sync.is_blocking(ins):
            isa_sync.emit_blocking(g, ins, k, nxt)
            return True
        if masked and _is_soft(ins):
            members = isa_warp.members_operand(ins)
            if ins.parts[:2] == ("bar", "warp"):
                members = ins.operands[0]
            expr = f"member_bits(w,{g.src(members, TYPES['u32'])})" if members is not None else "w.live"
            key = "'bar.warp.sync'" if ins.parts[0] == "bar" else str(i)
            g.emit(f"if not w.warpsync({expr},{key},{k},{nxt}): return -2")
            g.emit("m=w.m")
        if ins.guard is not None:
            p = g.pred(ins.guard)
            name = g.tmp()
            g.emit(f"{name}={p}&m" if masked else f"{name}={p}")
            g.mask = name
        emitter = _EMITTERS.get(ins.parts[0])
        if emitter is None:
            raise g.fail("unknown instruction")
        try:
            emitter(g, ins)
        except (ValueError, KeyError, IndexError) as e:
            raise g.fail(f"unexpected form ({e})") from e
        return False

    def end(self, g: Gen, ins: Instr, k: int, nxt: int) -> None:
        op = ins.parts[0]
        if op == "brx":
            raise g.fail("indexed branch")
        guard = g.pred(ins.guard) if ins.guard is not None else None
        if op == "bra":
            t = self.target(ins)
            if guard is None:
                g.emit(f"return {t}")
                return
            self.cond(g, guard, t, nxt, k)
        elif op == "trap":
            bits = f"bits_of({guard})" if guard else "w.bits"
            g.emit(f"return w.machine.trap(w,{g.site()},{bits},{nxt})")
        else:
            bits = f"bits_of({guard})" if guard else "w.bits"
            g.emit(f"return w.exit_lanes({bits},{nxt})")

    def cond(self, g: Gen, guard: str, t: int, nxt: int, k: int) -> None:
        r = self.reconv.get(k, -1)
        if not g.masked:
            g.emit(f"p={guard}")
            g.emit("n=count_nonzero(p)")
            g.emit(f"if n==32: return {t}")
            g.emit(f"if n==0: return {nxt}")
            g.emit(f"return w.branch(p,{t},{nxt},{r})")
        else:
            g.emit(f"return w.branch({guard},{t},{nxt},{r})")

    def run(self) -> Code:
        self.flatten()
        self.allocate()
        self.split()
        self.fix_reconv()
        code = self.code
        code.reg_counts = dict(self.regs.counts)
        code.symbols = {name for i in self.ins for name in _symbols(i.operands)}
        self.locals()
        text: list[str] = []
        for k in range(len(self.segs)):
            code.first_line.append(self.ins[self.segs[k].start].line)
            for masked in (False, True):
                g, total, n = self.function(k, masked)
                self.write(text, f"{'m' if masked else 'f'}{k}", g, masked)
                (code.masked_cost if masked else code.full_cost).append(total)
                (code.masked_n if masked else code.full_n).append(n)
                start = self.segs[k].start
                ordered = any(_touches_others(i) for i in self.ins[start : start + n])
                (code.masked_ordered if masked else code.full_ordered).append(ordered)
        self.compile(text)
        return code

    def fix_reconv(self) -> None:
        """Post-dominators per segment, for the full function's branch too.

        The branch of a full function may belong to a later masked segment; both
        functions see the branch under the segment that holds it.
        """
        self.post_dominators()
        for k, seg in enumerate(self.segs):
            holder = self.segs[k]
            j = k
            while holder.soft_end < seg.hard_end:
                j += 1
                holder = self.segs[j]
            if j in self.reconv:
                self.reconv.setdefault(k, self.reconv[j])

    def locals(self) -> None:
        off = 0
        for v in self.kernel.variables:
            if v.space == "local":
                off = -(-off // v.align) * v.align
                self.code.local_syms[v.name] = off
                off += v.nbytes
        self.code.local_bytes = -(-off // 16) * 16

    def write(self, text: list[str], name: str, g: Gen, masked: bool) -> None:
        text.append(f"def {name}(w):")
        for bank in sorted(g.banks):
            text.append(f" {bank}=w.{bank}")
        if masked:
            text.append(" m=w.m")
        for line, ins in zip(g.lines, g.marks):
            text.append(" " + line)
            self.code.line_of[len(text)] = ins

    def compile(self, text: list[str]) -> None:
        code = self.code
        code.source = "\n".join(text)
        ns = _namespace()
        ns["K"] = self.pools.consts
        ns["SITES"] = self.pools.sites
        ns["PARAMS"] = {p.name: p.offset for p in self.kernel.params}
        exec(compile(code.source, f"<ptx {code.name}>", "exec"), ns)
        code.full = [ns[f"f{k}"] for k in range(len(self.segs))]
        code.masked = [ns[f"m{k}"] for k in range(len(self.segs))]


def _registers(ops: Any) -> list[str]:
    out: list[str] = []
    for o in ops:
        if isinstance(o, Reg):
            out.append(o.name)
        for attr in ("items", "coords"):
            out += _registers(getattr(o, attr, ()))
        for attr in ("first", "second", "base"):
            inner = getattr(o, attr, None)
            if inner is not None:
                out += _registers((inner,))
    return out


def _symbols(ops: Any) -> list[str]:
    out: list[str] = []
    for o in ops:
        if isinstance(o, Sym):
            out.append(o.name)
        inner = getattr(o, "base", None)
        if inner is not None:
            out += _symbols((inner,))
        out += _symbols(getattr(o, "items", ()))
    return out


def translate(kernel: KernelDef) -> Code:
    """Translate a kernel; raises `UnsupportedInstruction` naming text, line and kernel."""
    return _Translator(kernel).run()
