"""One running launch: CTAs on SMs, the scheduler, and errors.

The scheduler is a discrete-event simulation: every warp has its own time, and
the warp with the smallest time runs its next stretch of instructions. A seeded
random stall is added to each stretch, so that another seed gives another
interleaving that is consistent with its own clocks.
"""

from __future__ import annotations

import heapq
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import costs
from .codegen import Code
from .errors import (
    Deadlock,
    EmulatorError,
    ExecutionError,
    InstructionLimit,
    KernelTrap,
    LaunchError,
    SyncError,
    Where,
)
from .gen import Site
from .machine_const import SMEM_BASE
from .memory import RANK_SHIFT, Allocation, GlobalMemory, where_of
from .sync import Barrier, MBar, Waiter, bar_check, cluster_check
from .topology import Sm, Topology
from .types import WARP, Row
from .warp import BLOCKED, Fragment, RegisterBanks, Warp


@dataclass(frozen=True)
class LaunchConfig:
    """Shape and limits of a launch. Sizes are in CTAs, threads and bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    gridid: int
    max_instructions: int
    stall: float
    random_branches: bool


@dataclass
class SmemLayout:
    """Offsets of shared variables, and the total size from address 0 of the CTA's window."""

    offsets: dict[str, int]
    static: int
    total: int


class Cluster:
    """CTAs that are resident together, and their barrier."""

    def __init__(self, index: tuple[int, int, int]):
        self.index = index
        self.ctas: list[Cta] = []
        self.phase = 0
        self.arrived = 0
        self.live_lanes = 0
        self.waiters: list[Waiter] = []


class Cta:
    """A resident CTA."""

    def __init__(self, machine: Machine, ctaid: tuple[int, int, int], rank: int, cluster: Cluster, sm: Sm):
        self.machine = machine
        self.ctaid = ctaid
        self.rank = rank
        self.cluster = cluster
        self.sm = sm
        lay = machine.layout
        buf = np.full(-(-lay.total // 16) * 16 - SMEM_BASE, 0xCD, np.uint8)
        self.base = rank << RANK_SHIFT
        self.smem = Allocation(self.base + SMEM_BASE, buf, f"shared memory of CTA {ctaid}")
        self.barriers: dict[int, Barrier] = {}
        self.mbars: dict[int, MBar] = {}
        self.warps: list[Warp] = []
        self.live_warps = 0
        self.done = False
        self.sym_rows: dict[Any, Row] = {}
        self.special = self._special()

    def _special(self) -> dict[str, Row]:
        m = self.machine
        cfg = m.config
        values: dict[str, int] = {
            "smid": self.sm.index,
            "nsmid": len(m.topology.sms),
            "gridid": cfg.gridid,
            "nwarpid": costs.THREADS_PER_SM // WARP,
            "cluster_ctarank": self.rank,
            "cluster_nctarank": len(m.cluster_offsets),
            "is_explicit_cluster": int(len(m.cluster_offsets) > 1),
            "dynamic_smem_size": cfg.dynamic_smem,
            "total_smem_size": m.layout.total,
        }
        triples = {
            "ntid": cfg.block,
            "ctaid": self.ctaid,
            "nctaid": cfg.grid,
            "clusterid": self.cluster.index,
            "nclusterid": tuple(g // c for g, c in zip(cfg.grid, cfg.cluster)),
            "cluster_ctaid": tuple(i % c for i, c in zip(self.ctaid, cfg.cluster)),
            "cluster_nctaid": cfg.cluster,
        }
        for name, triple in triples.items():
            for axis, v in zip("xyz", triple):
                values[f"{name}_{axis}"] = v
        rows = {f"s_{k}": np.full(WARP, v, np.uint32) for k, v in values.items()}
        rows["s_gridid"] = np.full(WARP, cfg.gridid, np.uint64)
        return rows

    def symbol(self, name: str) -> int:
        """Address of a variable in its own state space."""
        m = self.machine
        if name in m.layout.offsets:
            return self.base + m.layout.offsets[name]
        if name in m.code.local_syms:
            return m.code.local_syms[name]
        return m.symbol(name)

    def local_of(self, warpid: int, nbytes: int) -> Allocation:
        """Local memory of one warp: ``nbytes`` for each lane in turn."""
        return Allocation(0, np.zeros(nbytes * WARP, np.uint8), f"local memory of warp {warpid}")


@dataclass
class Stats:
    """What a launch did: warp instructions, and begin and end in ns of device time."""

    instructions: int = 0
    begin_ns: float = 0.0
    end_ns: float = 0.0
    ctas: int = 0


@dataclass
class _Pending:
    order: list[tuple[int, int, int]] = field(default_factory=list)
    next: int = 0


class Machine:
    """Executes one launch."""

    def __init__(
        self,
        code: Code,
        memory: GlobalMemory,
        topology: Topology,
        config: LaunchConfig,
        layout: SmemLayout,
        params: bytes,
        symbols: dict[str, int],
        start_ns: float,
        time_base: int,
        seed: int,
    ):
        self.code = code
        self.memory = memory
        self.topology = topology
        self.config = config
        self.layout = layout
        self.params = params
        self.symbols = symbols
        self.block = config.block
        self.time_base = time_base
        self.threads = config.block[0] * config.block[1] * config.block[2]
        self.heap: list[tuple[float, int, Any]] = []
        self.progress = 0
        self.printed: list[str] = []
        self._seq = 0
        self.stats = Stats(begin_ns=start_ns, end_ns=start_ns)
        self.live: dict[int, Warp] = {}
        self.pool: list[RegisterBanks] = []
        self.rng = random.Random(f"launch {seed} {config.gridid}")
        self.stalls = [self.rng.random() * config.stall / costs.DEFAULT_GHZ for _ in range(1021)]
        self.stall_at = 0
        cx, cy, cz = config.cluster
        self.cluster_offsets = [(x, y, z) for z in range(cz) for y in range(cy) for x in range(cx)]
        gx, gy, gz = (g // c for g, c in zip(config.grid, config.cluster))
        self.pending = _Pending([(x, y, z) for z in range(gz) for y in range(gy) for x in range(gx)])

    # -- small services -----------------------------------------------------------
    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def symbol(self, name: str) -> int:
        if name not in self.symbols:
            raise ExecutionError(f"unknown symbol {name}", Where(kernel=self.code.name))
        return self.symbols[name]

    def flip(self) -> bool:
        """Whether the taken side of a divergent branch runs first (default: the fall-through side)."""
        return self.config.random_branches and self.rng.random() < 0.5

    def schedule(self, t: float, action: Callable[[float], None]) -> None:
        """Run an action at device time t."""
        heapq.heappush(self.heap, (t, self.next_seq(), action))

    def enqueue(self, w: Warp) -> None:
        """Put a warp that can run into the queue, once."""
        if not w.queued:
            w.queued = True
            heapq.heappush(self.heap, (w.t, self.next_seq(), w))

    def trap(self, w: Warp, site: Site, bits: int, nxt: int) -> int:
        """The trap instruction."""
        if bits & w.bits == 0:
            return nxt
        lane = (bits & -bits).bit_length() - 1
        raise KernelTrap("the kernel executed trap", where_of(w, site, lane))

    def not_converged(self, w: Warp, site: Site) -> None:
        """A warpgroup instruction met a warp with inactive lanes."""
        raise SyncError("a wgmma instruction was executed with inactive lanes", where_of(w, site))

    # -- CTAs -----------------------------------------------------------------------
    def fill(self, t: float) -> None:
        """Start as many clusters as fit."""
        while self.pending.next < len(self.pending.order):
            smem = self.layout.total
            sms = self.topology.place(len(self.cluster_offsets), smem, self.threads)
            if sms is None:
                return
            self._start_cluster(self.pending.order[self.pending.next], sms, t)
            self.pending.next += 1

    def _start_cluster(self, index: tuple[int, int, int], sms: list[Sm], t: float) -> None:
        cfg = self.config
        cluster = Cluster(index)
        for rank, (off, sm) in enumerate(zip(self.cluster_offsets, sms)):
            i, c = index, cfg.cluster
            ctaid = (i[0] * c[0] + off[0], i[1] * c[1] + off[1], i[2] * c[2] + off[2])
            sm.smem += self.layout.total
            sm.threads += self.threads
            sm.ctas += 1
            cluster.ctas.append(Cta(self, ctaid, rank, cluster, sm))
        cluster.live_lanes = self.threads * len(sms)
        for cta in cluster.ctas:
            self._start_warps(cta, t)

    def _start_warps(self, cta: Cta, t: float) -> None:
        nwarps = -(-self.threads // WARP)
        cta.live_warps = nwarps
        self.stats.ctas += 1
        for i in range(nwarps):
            lanes = min(WARP, self.threads - i * WARP)
            regs = self.pool.pop() if self.pool else RegisterBanks(self.code.reg_counts)
            regs.poison()
            start = t + costs.CTA_START_NS + self.stalls[(self._seq + i) % len(self.stalls)]
            w = Warp(self, cta, i, lanes, start, regs)
            cta.warps.append(w)
            self.live[id(w)] = w
            self.enqueue(w)

    def lanes_exited(self, w: Warp, gone: int) -> None:
        """Bookkeeping after lanes of a warp exited."""
        cta = w.cta
        cta.cluster.live_lanes -= bin(gone).count("1")
        if w.live == 0:
            cta.live_warps -= 1
            del self.live[id(w)]
            self.pool.append(w.regs)
            self.progress += 1
            for b in cta.barriers.values():
                if b.expected is None:
                    bar_check(cta, b, w.t)
            if cta.live_warps == 0:
                self._end_cta(cta, w.t)
        else:
            w.recheck()
        cluster_check(w, w.t)

    def _end_cta(self, cta: Cta, t: float) -> None:
        cta.done = True
        sm = cta.sm
        sm.smem -= self.layout.total
        sm.threads -= self.threads
        sm.ctas -= 1
        self.stats.end_ns = max(self.stats.end_ns, t)
        if all(c.done for c in cta.cluster.ctas):
            self.schedule(t, self.fill)

    # -- the loop ---------------------------------------------------------------------
    def run(self) -> Stats:
        """Run the launch to its end."""
        try:
            with np.errstate(all="ignore"):
                self.fill(self.stats.begin_ns)
                if self.pending.next == 0:
                    raise LaunchError("no SM has room for one CTA (or cluster) of this launch")
                self._loop()
        finally:
            for sm in self.topology.sms:
                sm.smem = sm.threads = sm.ctas = 0
        return self.stats

    def _loop(self) -> None:
        heap = self.heap
        stalled, seen = 0, self.progress
        while True:
            while heap:
                t, _, item = heapq.heappop(heap)
                if isinstance(item, Warp):
                    item.queued = False
                    self._run_warp(item)
                else:
                    item(t)
                    self.stats.end_ns = max(self.stats.end_ns, t)
            if not self.live:
                return
            stalled = 0 if self.progress != seen else stalled + 1
            seen = self.progress
            if stalled > 4 or not self._time_out():
                raise self._deadlock()

    def _time_out(self) -> bool:
        """Nothing can advance: let the try_wait of every parked fragment return false."""
        any_ = False
        for w in list(self.live.values()):
            for f in [f for f in w.blocked if f.wait and f.wait[0] == "mbarrier"]:
                assert f.wait is not None
                mb: MBar = f.wait[3]
                mb.waiters = [x for x in mb.waiters if x[1] is not f]
                f.timed_out = True
                w.wake(f, w.t + costs.TIMEOUT_NS)
                any_ = True
        return any_

    def _run_warp(self, w: Warp) -> None:
        code, heap, stalls = self.code, self.heap, self.stalls
        full, masked = code.full, code.masked
        full_cost, full_n = code.full_cost, code.full_n
        masked_cost, masked_n = code.masked_cost, code.masked_n
        full_ordered, masked_ordered = code.full_ordered, code.masked_ordered
        ns = 1.0 / w.cta.sm.ghz
        nstalls, at = len(stalls), self.stall_at
        count = 0
        limit = self.config.max_instructions - self.stats.instructions
        f: Fragment | None = w.f or w.next_fragment()
        pc = 0
        try:
            while f is not None:
                pc = f.pc
                at += 1
                if at >= nstalls:
                    at = 0
                if f.full:
                    nxt = full[pc](w)
                    if nxt >= 0:
                        f.pc = nxt
                    elif w.f is None:
                        f = w.next_fragment()
                    if nxt != BLOCKED:
                        w.t += full_cost[pc] * ns + stalls[at]
                        count += full_n[pc]
                else:
                    nxt = masked[pc](w)
                    if nxt != BLOCKED:
                        w.t += masked_cost[pc] * ns + stalls[at]
                        count += masked_n[pc]
                    f = self._after_masked(w, f, nxt)
                if count > limit:
                    raise self._limit()
                if (
                    f is not None
                    and heap
                    and heap[0][0] < w.t
                    # register arithmetic may run ahead of warps that are behind in time
                    and ((full_ordered if f.full else masked_ordered)[f.pc] or heap[0][0] < w.t - costs.RUN_AHEAD_NS)
                ):
                    break
        except EmulatorError as e:
            self._locate(e, w, pc)
            raise
        except Exception as e:
            raise self._internal(e, w) from e
        finally:
            self.stall_at = at
            self.stats.instructions += count
        if w.live and (w.f is not None or w.ready):
            self.enqueue(w)

    @staticmethod
    def _after_masked(w: Warp, f: Fragment, nxt: int) -> Fragment | None:
        if nxt < 0:
            return w.f if w.f is not None else w.next_fragment()
        if w.merged is not None:
            return w.unmerge()
        f.pc = nxt
        if nxt == f.rpc:
            return w.arrive()
        if w.ready:
            w.spin += 1
            if w.spin > 64:
                return w.rotate()
        return f

    # -- errors -----------------------------------------------------------------------
    def _locate(self, e: EmulatorError, w: Warp, pc: int) -> None:
        if e.where is None:
            e.where = Where(self.code.name, self.code.first_line[pc], None, w.cta.ctaid, w.warpid)

    def _internal(self, e: Exception, w: Warp) -> ExecutionError:
        """An exception of the emulator's own, with the PTX instruction that was executing."""
        ins = None
        for frame in traceback.extract_tb(e.__traceback__):
            if frame.filename == f"<ptx {self.code.name}>":
                ins = self.code.line_of.get(frame.lineno or 0)
        where = Where(self.code.name, ins.line if ins else None, ins.text if ins else None, w.cta.ctaid, w.warpid)
        return ExecutionError(f"the emulator failed on an instruction ({type(e).__name__}: {e})", where)

    def _limit(self) -> InstructionLimit:
        return InstructionLimit(
            f"the launch executed more than {self.config.max_instructions} warp instructions",
            Where(kernel=self.code.name),
            self._states(),
        )

    def _deadlock(self) -> Deadlock:
        n = len(self.live)
        return Deadlock(
            f"deadlock: none of the {n} live warp{'s' * (n != 1)} can advance",
            Where(kernel=self.code.name),
            self._states(),
        )

    def _states(self) -> list[str]:
        out = []
        for w in sorted(self.live.values(), key=lambda w: w.seq)[:64]:
            for f in w.blocked:
                out.append(f"{self._who(w, f)} waits for {self._what(w, f)}")
            for f in [*w.ready, *([w.f] if w.f else [])]:
                out.append(f"{self._who(w, f)} can run")
        if len(self.live) > 64:
            out.append(f"... and {len(self.live) - 64} more warps")
        return out

    def _who(self, w: Warp, f: Fragment) -> str:
        lanes = "" if f.bits == w.live else f" lanes {f.bits:#010x}"
        line = self.code.first_line[f.pc]
        return "CTA ({},{},{})".format(*w.cta.ctaid) + f" warp {w.warpid}{lanes}, PTX line {line},"

    def _what(self, w: Warp, f: Fragment) -> str:
        wait = f.wait or ("?",)
        if wait[0] == "bar":
            b = w.cta.barriers[wait[1]]
            need = b.expected if b.expected is not None else WARP * w.cta.live_warps
            return f"barrier {wait[1]} ({b.arrived} of {need} threads have arrived)"
        if wait[0] == "mbarrier":
            return f"mbarrier at shared address {wait[1]:#x}, parity or state {wait[2]} ({wait[3].describe()})"
        if wait[0] == "lanes":
            return f"lanes {wait[2] & ~f.bits:#010x} of its warp at a warp-synchronising instruction"
        if wait[0] == "join":
            return f"the other lanes of its warp at barrier {wait[1]}"
        if wait[0] == "cluster":
            c = w.cta.cluster
            return f"the cluster barrier ({c.arrived} of {c.live_lanes} threads have arrived)"
        return f"{wait[0]} (at most {wait[1]} groups pending)"
