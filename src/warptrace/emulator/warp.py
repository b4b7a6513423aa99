"""Warps, their divergent fragments, and reconvergence.

A warp that has diverged is a set of fragments, each with its own program
counter and lanes. A divergent branch makes a `Rec` that names the immediate
post-dominator; fragments that reach it wait there until every lane that is
expected has come (or exited), and go on as one. Fragments of one warp take
turns, so a fragment that spins on another one's store cannot hang the warp.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .costs import GLOBALTIMER_STEP_NS
from .memory import GlobalMemory
from .types import BANK_DTYPES, FULL_BITS, WARP, WIDTH_BANKS, Mask, Row

if TYPE_CHECKING:
    from .machine import Cta, Machine

DIVERGED = -1
BLOCKED = -2
EXITED = -3

_LANE_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
_FULL = np.ones(WARP, np.bool_)


def bits_of(mask: Mask) -> int:
    """A bool row as a 32-bit lane mask."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@lru_cache(maxsize=4096)
def row_of(bits: int) -> Mask:
    """A 32-bit lane mask as a (read-only) bool row."""
    row: Mask = (_LANE_BITS & np.uint32(bits)) != 0
    row.flags.writeable = False
    return row


class Rec:
    """A reconvergence point: lanes in ``expected`` come together at segment ``pc``."""

    __slots__ = ("arrived", "expected", "parent", "pc")

    def __init__(self, pc: int, expected: int, parent: Rec | None):
        self.pc = pc
        self.expected = expected
        self.arrived = 0
        self.parent = parent


class Fragment:
    """Lanes of a warp that execute together."""

    __slots__ = ("bits", "full", "mask", "pc", "rec", "reduced", "rpc", "timed_out", "wait")

    def __init__(self, pc: int, bits: int, rec: Rec | None):
        self.pc = pc
        self.bits = bits
        self.mask: Mask = _FULL if bits == FULL_BITS else row_of(bits)
        self.full = bits == FULL_BITS
        self.rec = rec
        self.rpc = rec.pc if rec is not None else -9
        self.wait: tuple[Any, ...] | None = None
        self.timed_out = False
        self.reduced = False
        """Whether a bar.red has been passed and its result is still to be read."""


class RegisterBanks:
    """Register rows of one warp, as lists of views; reused by later warps."""

    def __init__(self, counts: dict[int, int]):
        self.store: dict[int, Any] = {}
        self.rows: dict[str, list[Row]] = {b: [] for b in BANK_DTYPES}
        for bits, banks in WIDTH_BANKS.items():
            base = np.zeros((counts.get(bits, 0), WARP), np.bool_ if bits == 1 else f"u{bits // 8}")
            self.store[bits] = base
            for bank in banks:
                self.rows[bank] = list(base.view(BANK_DTYPES[bank]))

    def poison(self) -> None:
        """Fill with a pattern, so that a read before a write shows."""
        for bits, base in self.store.items():
            if bits == 1:
                base.fill(False)
            else:
                base.view(np.uint8).fill(0xAD)


class Warp:
    """State of one warp. ``t`` is its time in ns since the device was made."""

    P: list[Row]
    U8: list[Row]
    S8: list[Row]
    U16: list[Row]
    S16: list[Row]
    F16: list[Row]
    U32: list[Row]
    S32: list[Row]
    F32: list[Row]
    U64: list[Row]
    S64: list[Row]
    F64: list[Row]

    def __init__(self, machine: Machine, cta: Cta, warpid: int, lanes: int, t: float, regs: RegisterBanks):
        self.machine = machine
        self.memory: GlobalMemory = machine.memory
        self.kernel_name = machine.code.name
        self.cta = cta
        self.warpid = warpid
        self.t = t
        self.seq = machine.next_seq()
        self.queued = False
        self.regs = regs
        for bank, rows in regs.rows.items():
            setattr(self, bank, rows)
        self.carry: Mask = np.zeros(WARP, np.bool_)
        bits = FULL_BITS if lanes == WARP else (1 << lanes) - 1
        self.live = bits
        self.f: Fragment | None = None
        self.ready: list[Fragment] = []
        self.blocked: list[Fragment] = []
        self.merged: list[tuple[Fragment, int]] | None = None
        self.m: Mask = _FULL
        self.bits = bits
        self.full = False
        self.spin = 0
        self.cluster_phase = 0
        self.call_params: dict[str, Row] = {}
        self.cp_open: list[Any] = []
        self.cp_groups: list[Any] = []
        self.bulk_open: list[Any] = []
        self.bulk_groups: list[Any] = []
        self.local_bytes = machine.code.local_bytes
        self.local = cta.local_of(warpid, self.local_bytes)
        self._special(cta, warpid)
        self.ready.append(Fragment(0, bits, None))

    def _special(self, cta: Cta, warpid: int) -> None:
        m = self.machine
        bx, by, _ = m.block
        lane = np.arange(WARP, dtype=np.uint32)
        tid = lane + np.uint32(warpid * WARP)
        self.s_laneid = lane
        self.s_tid_x = tid % np.uint32(bx)
        self.s_tid_y = tid // np.uint32(bx) % np.uint32(by)
        self.s_tid_z = tid // np.uint32(bx * by)
        self.s_warpid = np.full(WARP, warpid, np.uint32)
        self.s_lanemask_eq = _LANE_BITS
        self.s_lanemask_lt = _LANE_BITS - np.uint32(1)
        self.s_lanemask_le = self.s_lanemask_lt | _LANE_BITS
        self.s_lanemask_gt = ~self.s_lanemask_le
        self.s_lanemask_ge = ~self.s_lanemask_lt
        for name, row in cta.special.items():
            setattr(self, name, row)

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are not set: keeps mypy content about s_* rows
        raise AttributeError(name)

    # -- clocks --------------------------------------------------------------
    def _clock(self, prefix: float) -> int:
        sm = self.cta.sm
        return (sm.clock_offset + int(self.t * sm.ghz) + int(prefix)) & 0xFFFFFFFFFFFFFFFF

    def read_clock64(self, prefix: float) -> Row:
        return np.full(WARP, self._clock(prefix), np.uint64)

    def read_clock(self, prefix: float) -> Row:
        return np.full(WARP, self._clock(prefix) & 0xFFFFFFFF, np.uint32)

    def read_clock_hi(self, prefix: float) -> Row:
        return np.full(WARP, self._clock(prefix) >> 32, np.uint32)

    def _timer(self, prefix: float) -> int:
        ns = self.machine.time_base + int(self.t + prefix / self.cta.sm.ghz)
        return ns // GLOBALTIMER_STEP_NS * GLOBALTIMER_STEP_NS

    def read_globaltimer(self, prefix: float) -> Row:
        return np.full(WARP, self._timer(prefix), np.uint64)

    def read_globaltimer_lo(self, prefix: float) -> Row:
        return np.full(WARP, self._timer(prefix) & 0xFFFFFFFF, np.uint32)

    def read_globaltimer_hi(self, prefix: float) -> Row:
        return np.full(WARP, self._timer(prefix) >> 32, np.uint32)

    # -- addresses -----------------------------------------------------------
    def sym(self, name: str, offset: int, dtype: Any) -> Row:
        """Address of a variable in its own state space."""
        key = (name, offset, dtype)
        row = self.cta.sym_rows.get(key)
        if row is None:
            row = np.full(WARP, self.cta.symbol(name) + offset, np.uint64).astype(dtype)
            self.cta.sym_rows[key] = row
        return row

    def param(self, offset: int, dtype: Any) -> Any:
        """A scalar of the parameter block."""
        return np.frombuffer(self.machine.params, dtype, 1, offset)[0]

    # -- fragments -----------------------------------------------------------
    def select(self, f: Fragment) -> Fragment:
        """Make f the running fragment."""
        self.f = f
        self.m = f.mask
        self.bits = f.bits
        self.full = f.full
        return f

    def next_fragment(self) -> Fragment | None:
        """The next ready fragment, or None when all wait or none is left."""
        self.f = None
        return self.select(self.ready.pop()) if self.ready else None

    def rotate(self) -> Fragment:
        """Let another ready fragment run."""
        self.spin = 0
        assert self.f is not None
        self.ready.insert(0, self.f)
        return self.select(self.ready.pop())

    def branch(self, taken: Mask, target: int, fall: int, reconv: int) -> int:
        """A conditional branch of the running fragment; ``taken`` may include lanes that are not active."""
        t = bits_of(taken) & self.bits
        if t == self.bits:
            return target
        if t == 0:
            return fall
        return self._diverge(t, target, fall, reconv)

    def _diverge(self, taken: int, target: int, fall: int, reconv: int) -> int:
        f = self.f
        assert f is not None
        rec = f.rec
        if rec is None or rec.pc != reconv:
            rec = Rec(reconv, f.bits, f.rec)
        first, second = (fall, f.bits & ~taken), (target, taken)
        if self.machine.flip():
            first, second = second, first
        self.f = None
        # the list is a stack: what is pushed last runs first
        for pc, bits in (second, first):
            if pc == rec.pc:
                self._arrive_bits(rec, bits)
            else:
                self.ready.append(Fragment(pc, bits, rec))
        return DIVERGED

    def arrive(self) -> Fragment | None:
        """The running fragment has reached its reconvergence point."""
        f = self.f
        assert f is not None and f.rec is not None
        self.f = None
        self._arrive_bits(f.rec, f.bits)
        return self.next_fragment()

    def _arrive_bits(self, rec: Rec, bits: int) -> None:
        rec.arrived |= bits
        self._complete(rec)

    def _complete(self, rec: Rec | None) -> None:
        while rec is not None and rec.expected and rec.arrived == rec.expected:
            bits, parent = rec.arrived, rec.parent
            rec.expected = rec.arrived = 0
            if parent is not None and parent.pc == rec.pc:
                parent.arrived |= bits
                rec = parent
                continue
            self.ready.append(Fragment(rec.pc, bits, parent))
            return

    def exit_lanes(self, gone: int, nxt: int) -> int:
        """Lanes exit; the others of the running fragment go on at ``nxt``."""
        f = self.f
        assert f is not None
        gone &= f.bits
        if gone == 0:
            return nxt
        self.live &= ~gone
        rest = f.bits & ~gone
        rec = f.rec
        self.f = None
        if rest and rec is not None and rec.pc == nxt:
            rec.arrived |= rest
        elif rest:
            self.ready.append(Fragment(nxt, rest, rec))
        while rec is not None:
            parent = rec.parent
            if rec.expected:
                rec.expected &= ~gone
                if rec.expected:
                    self._complete(rec)
            rec = parent
        self.machine.lanes_exited(self, gone)
        return EXITED

    def block(self, pc: int, *wait: Any) -> int:
        """Park the running fragment; it resumes at ``pc``. The rest says what it waits for."""
        f = self.f
        assert f is not None
        f.pc = pc
        f.wait = wait
        self.blocked.append(f)
        self.f = None
        return BLOCKED

    def wake(self, f: Fragment, t: float) -> None:
        """A parked fragment can go on, not before time t."""
        if f not in self.blocked:
            return
        self.blocked.remove(f)
        f.wait = None
        self.ready.append(f)
        if t > self.t:
            self.t = t
        self.machine.enqueue(self)

    def recheck(self) -> None:
        """Let fragments that wait for lanes of their own warp look again."""
        for f in [f for f in self.blocked if f.wait and f.wait[0] in ("lanes", "join")]:
            self.wake(f, self.t)

    # -- warp-level synchronisation --------------------------------------------
    def warpsync(self, members: int, key: Any, pc: int, nxt: int) -> bool:
        """Bring the lanes of ``members`` together for one instruction; False when they are not all here yet.

        When it returns True, ``m`` and ``bits`` cover all fragments that meet.
        """
        f = self.f
        assert f is not None
        need = members & self.live
        if need & ~f.bits == 0:
            return True
        parts = [f] + [b for b in self.blocked if b.wait and b.wait[0] == "lanes" and b.wait[1] == key]
        union = 0
        for p in parts:
            union |= p.bits
        if need & ~union:
            self.block(pc, "lanes", key, need, nxt)
            return False
        self.merged = [(f, nxt)]
        for p in parts[1:]:
            assert p.wait is not None
            self.blocked.remove(p)
            self.merged.append((p, p.wait[3]))
            p.wait = None
        self.bits = union
        self.m = row_of(union)
        return True

    def unmerge(self) -> Fragment | None:
        """After the joint instruction: every fragment goes on by itself."""
        parts = self.merged
        assert parts is not None
        self.merged = None
        for f, pc in reversed(parts):
            f.pc = pc
            if f.rec is not None and pc == f.rec.pc:
                self._arrive_bits(f.rec, f.bits)
            else:
                self.ready.append(f)
        return self.next_fragment()
