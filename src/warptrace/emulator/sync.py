"""Synchronisation at run time: named barriers, mbarriers, cluster barriers, async copies.

Functions called from generated code take the warp, the `Site`, and operand
rows. Those that can wait return the next segment or ``BLOCKED``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .costs import ASYNC_LATENCY_NS, ASYNC_NS_PER_BYTE
from .errors import MisalignedAccess, SyncError
from .gen import Site
from .memory import RANK_SHIFT, Allocation, resolve, resolve_range, where_of
from .types import WARP, Mask, Row
from .warp import BLOCKED, Fragment, bits_of

if TYPE_CHECKING:
    from .machine import Cta
    from .warp import Warp

Waiter = tuple["Warp", Fragment]


# -- named barriers -----------------------------------------------------------
@dataclass
class Barrier:
    """One of a CTA's 16 barriers: threads arrived in this round and who waits."""

    arrived: int = 0
    expected: int | None = None
    """Thread count given by the instruction; None: all warps that have not exited."""
    waiters: list[Waiter] = field(default_factory=list)
    preds: list[tuple[int, int]] = field(default_factory=list)
    result: tuple[int, int] = (0, 0)
    """(true predicates, all predicates) of the last round, for bar.red."""


def _uniform(w: Warp, site: Site, row: Row | int, what: str) -> int:
    if isinstance(row, int):
        return row
    vals = row[w.m]
    first = int(vals[0])
    if (vals != vals[0]).any():
        raise SyncError(f"{what} differs between the lanes of a warp", where_of(w, site))
    return first


def bar(
    w: Warp, site: Site, kind: str, barid: Row | int, count: Row | int | None, pc: int, nxt: int, pred: Row | None
) -> int:
    """bar.sync, bar.arrive and bar.red; a diverged warp arrives when all its lanes have come."""
    ident = _uniform(w, site, barid, "the barrier id")
    n = None if count is None else _uniform(w, site, count, "the barrier's thread count")
    if not 0 <= ident < 16:
        raise SyncError(f"barrier id {ident} is not below 16", where_of(w, site))
    if n is not None and (n % WARP or n <= 0):
        raise SyncError(f"barrier thread count {n} is not a positive multiple of 32", where_of(w, site))
    f = w.f
    assert f is not None
    bits = 0 if pred is None else bits_of(pred) & f.bits
    parts = [f]
    if w.live & ~f.bits:
        parts += [b for b in w.blocked if b.wait and b.wait[0] == "join" and b.wait[1] == ident]
        union = 0
        for p in parts:
            union |= p.bits
        if w.live & ~union:
            return w.block(pc, "join", ident, nxt, kind, bits)
    b = w.cta.barriers.setdefault(ident, Barrier())
    if b.arrived and b.expected != n:
        raise SyncError(
            f"barrier {ident}: thread count {n or 'all'} here, {b.expected or 'all'} at an earlier arrival",
            where_of(w, site),
        )
    b.expected = n
    b.arrived += WARP
    b.preds.append((bits, f.bits))
    return _bar_arrived(w, b, ident, parts, kind, nxt)


def _bar_arrived(w: Warp, b: Barrier, ident: int, parts: list[Fragment], kind: str, nxt: int) -> int:
    for p in parts[1:]:
        assert p.wait is not None
        p.pc, pkind = p.wait[2], p.wait[3]
        b.preds.append((p.wait[4], p.bits))
        p.reduced = pkind == "red"
        if pkind == "arrive":
            w.wake(p, w.t)
        else:
            p.wait = ("bar", ident)
            b.waiters.append((w, p))
    if kind != "arrive":
        assert w.f is not None
        w.f.reduced = kind == "red"
        b.waiters.append((w, w.f))
        w.block(nxt, "bar", ident)
    bar_check(w.cta, b, w.t)
    if kind == "arrive":
        return nxt
    return BLOCKED


def bar_check(cta: Cta, b: Barrier, t: float) -> None:
    """Open the barrier when enough threads have arrived."""
    need = b.expected if b.expected is not None else WARP * cta.live_warps
    if b.arrived == 0 or b.arrived < need:
        return
    waiters, b.waiters = b.waiters, []
    b.arrived = 0
    b.result = (sum(bin(p).count("1") for p, _ in b.preds), sum(bin(m).count("1") for _, m in b.preds))
    b.preds = []
    cta.machine.progress += 1
    for w, f in waiters:
        w.wake(f, t)


def bar_red_value(w: Warp, barid: Row, op: str) -> Any:
    """Result of the bar.red round that has just ended."""
    true, total = w.cta.barriers[int(barid[int(np.argmax(w.m))])].result
    if op == "popc":
        return np.uint32(true)
    return np.bool_(true == total if op == "and" else true > 0)


# -- cluster barrier ------------------------------------------------------------
def cluster_arrive(w: Warp, site: Site, mask: Mask | None) -> None:
    """barrier.cluster.arrive of the active lanes."""
    c = w.cta.cluster
    bits = w.bits if mask is None else bits_of(mask)
    w.cluster_phase = c.phase
    c.arrived += bin(bits).count("1")
    cluster_check(w, w.t)


def cluster_check(w: Warp, t: float) -> None:
    """Complete the cluster barrier's phase when all threads that have not exited have arrived."""
    c = w.cta.cluster
    if c.arrived and c.arrived >= c.live_lanes:
        c.arrived = 0
        c.phase += 1
        w.machine.progress += 1
        waiters, c.waiters = c.waiters, []
        for x, f in waiters:
            x.wake(f, t)


def cluster_wait(w: Warp, site: Site, pc: int, nxt: int) -> int:
    """barrier.cluster.wait."""
    c = w.cta.cluster
    if c.phase > w.cluster_phase:
        return nxt
    assert w.f is not None
    c.waiters.append((w, w.f))
    return w.block(pc, "cluster", w.cluster_phase)


# -- mbarrier -------------------------------------------------------------------
@dataclass
class MBar:
    """An mbarrier object: it completes a phase when nothing is pending and the tx-count is 0."""

    count: int
    pending: int
    tx: int = 0
    phase: int = 0
    waiters: list[Waiter] = field(default_factory=list)

    def describe(self) -> str:
        return f"phase {self.phase}, {self.pending} of {self.count} arrivals pending, tx-count {self.tx}"


def _lanes(w: Warp, mask: Mask | None) -> list[int]:
    m = w.m if mask is None else mask
    return [int(i) for i in np.flatnonzero(m)]


def _mbar_place(w: Warp, site: Site, addr: int, lane: int) -> tuple[Cta, int]:
    resolve(w, site, "shared::cluster", addr, 8, lane, True)
    return w.cta.cluster.ctas[addr >> RANK_SHIFT], addr & ((1 << RANK_SHIFT) - 1)


def mbar_at(w: Warp, site: Site, addr: int, lane: int) -> MBar:
    """The initialised mbarrier at a shared address."""
    if addr >= 1 << 32:
        addr -= 0x7E00_0000_0000
    cta, off = _mbar_place(w, site, addr, lane)
    mb = cta.mbars.get(off)
    if mb is None:
        raise SyncError(f"no mbarrier has been initialised at shared address {addr:#x}", where_of(w, site, lane))
    return mb


def mbar_init(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, count: Row) -> None:
    """mbarrier.init."""
    for lane in _lanes(w, mask):
        a, n = int(addr[lane]) + off, int(count[lane])
        if not 1 <= n <= (1 << 20) - 1:
            raise SyncError(f"mbarrier.init with count {n}", where_of(w, site, lane))
        cta, o = _mbar_place(w, site, a, lane)
        cta.mbars[o] = MBar(n, n)


def mbar_inval(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None) -> None:
    """mbarrier.inval."""
    for lane in _lanes(w, mask):
        mbar_at(w, site, int(addr[lane]) + off, lane)
        cta, o = _mbar_place(w, site, int(addr[lane]) + off, lane)
        del cta.mbars[o]


def _mbar_check(w: Warp, mb: MBar, t: float) -> None:
    if mb.pending == 0 and mb.tx == 0:
        mb.phase += 1
        mb.pending = mb.count
        w.machine.progress += 1
        waiters, mb.waiters = mb.waiters, []
        for x, f in waiters:
            x.wake(f, t)


def arrive_on(w: Warp, site: Site, mb: MBar, n: int, lane: int, t: float, drop: bool = False) -> None:
    """n arrivals on an mbarrier at time t."""
    if n > mb.pending:
        raise SyncError(
            f"mbarrier arrival count {n} exceeds the pending count ({mb.describe()})", where_of(w, site, lane)
        )
    mb.pending -= n
    if drop:
        mb.count -= n
    _mbar_check(w, mb, t)


def mbar_arrive(
    w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, count: Row | None, tx: Row | None, drop: bool
) -> Row:
    """mbarrier.arrive[.expect_tx] of each active lane; returns the state (the phase number) before it."""
    out = np.zeros(WARP, np.uint64)
    for lane in _lanes(w, mask):
        mb = mbar_at(w, site, int(addr[lane]) + off, lane)
        if tx is not None:
            mb.tx += int(tx[lane])
        out[lane] = mb.phase
        arrive_on(w, site, mb, 1 if count is None else int(count[lane]), lane, w.t, drop)
    return out


def mbar_expect_tx(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, tx: Row) -> None:
    """mbarrier.expect_tx."""
    for lane in _lanes(w, mask):
        mbar_at(w, site, int(addr[lane]) + off, lane).tx += int(tx[lane])


def complete_tx(w: Warp, mb: MBar, n: int, t: float) -> None:
    """n bytes have arrived."""
    mb.tx -= n
    _mbar_check(w, mb, t)


def mbar_complete_tx(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, n: Any) -> None:
    """mbarrier.complete_tx (simulated) and the completion of st.async."""
    for lane in _lanes(w, mask):
        mb = mbar_at(w, site, int(addr[lane]) + off, lane)
        complete_tx(w, mb, int(n if isinstance(n, int) else n[lane]), w.t)


def _mbar_done(w: Warp, site: Site, a: int, arg: int, parity: bool, lane: int) -> tuple[bool, MBar]:
    mb = mbar_at(w, site, a, lane)
    done = (mb.phase & 1) != (arg & 1) if parity else mb.phase > arg
    return done, mb


def mbar_test(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, arg: Row, parity: bool) -> Row:
    """mbarrier.test_wait: one truth value a lane."""
    out = np.zeros(WARP, np.bool_)
    for lane in _lanes(w, mask):
        out[lane] = _mbar_done(w, site, int(addr[lane]) + off, int(arg[lane]), parity, lane)[0]
    return out


def mbar_try(w: Warp, site: Site, addr: Row, off: int, arg: Row, parity: bool, pc: int) -> Row | None:
    """mbarrier.try_wait: None when the fragment was parked until the phase completes.

    It returns false only when nothing else in the launch can advance, as after the time limit of the hardware.
    """
    lanes = _lanes(w, None)
    first = lanes[0]
    f = w.f
    assert f is not None
    done, mb = _mbar_done(w, site, int(addr[first]) + off, int(arg[first]), parity, first)
    same = len(lanes) == 1 or bool((addr[w.m] == addr[first]).all() and (arg[w.m] == arg[first]).all())
    if not same:
        return mbar_test(w, site, addr, off, None, arg, parity)
    if done or f.timed_out:
        f.timed_out = False
        return np.full(WARP, done)
    mb.waiters.append((w, f))
    w.block(pc, "mbarrier", int(addr[first]) + off, int(arg[first]), mb, site)
    return None


# -- asynchronous copies ----------------------------------------------------------
@dataclass
class AsyncOp:
    """A copy in flight, with the fragments that wait for it."""

    t_done: float
    bits: int
    done: bool = False
    waiters: list[Waiter] = field(default_factory=list)


def start(w: Warp, nbytes: int, bits: int, action: Callable[[float], None], extra: float = 0.0) -> AsyncOp:
    """Schedule the end of a copy; ``action(t)`` moves the data then."""
    op = AsyncOp(w.t + ASYNC_LATENCY_NS + ASYNC_NS_PER_BYTE * nbytes + extra, bits)

    def fire(t: float) -> None:
        action(t)
        op.done = True
        w.machine.progress += 1
        waiters, op.waiters = op.waiters, []
        for x, f in waiters:
            x.wake(f, t)

    w.machine.schedule(op.t_done, fire)
    return op


def cp_async(
    w: Warp, site: Site, dst: Row, doff: int, src: Row, soff: int, mask: Mask | None, size: int, nsrc: Row | None
) -> None:
    """cp.async: ``size`` bytes per lane, of which ``nsrc`` are read and the rest are zero."""
    moves = []
    for lane in _lanes(w, mask):
        d, do = resolve(w, site, "shared", int(dst[lane]) + doff, size, lane, True)
        n = size if nsrc is None else min(int(nsrc[lane]), size)
        if n:
            s, so = resolve(w, site, "global", int(src[lane]) + soff, size if n == size else 1, lane, False)
            if n < size:
                resolve_range(w, site, "global", int(src[lane]) + soff, n, lane, False)
            moves.append((d.buf, do, s.buf, so, n))
        else:
            moves.append((d.buf, do, d.buf, 0, 0))

    def action(t: float) -> None:
        for db, do, sb, so, n in moves:
            db[do : do + n] = sb[so : so + n]
            db[do + n : do + size] = 0

    bits = w.bits if mask is None else bits_of(mask)
    if moves:
        w.cp_open.append(start(w, size * len(moves), bits, action))


def commit(w: Warp, bulk: bool, mask: Mask | None) -> None:
    """commit_group: the open copies of the active lanes become a group."""
    bits = w.bits if mask is None else bits_of(mask)
    opened = w.bulk_open if bulk else w.cp_open
    mine = [o for o in opened if o.bits & bits]
    opened[:] = [o for o in opened if not o.bits & bits]
    (w.bulk_groups if bulk else w.cp_groups).append((bits, mine))


def wait_group(w: Warp, bulk: bool, n: int, everything: bool, pc: int, nxt: int) -> int:
    """wait_group n: all but the newest n groups of the active lanes are complete."""
    groups = w.bulk_groups if bulk else w.cp_groups
    groups[:] = [g for g in groups if not all(o.done for o in g[1])] if n == 0 else groups[-64:]
    mine = [g for g in groups if g[0] & w.bits]
    due = [o for g in (mine[: len(mine) - n] if n else mine) for o in g[1]]
    if everything:
        due += [o for o in w.cp_open if o.bits & w.bits]
    assert w.f is not None
    for o in due:
        if not o.done:
            o.waiters.append((w, w.f))
            return w.block(pc, "bulk copies" if bulk else "cp.async", n)
    return nxt


def cp_async_mbar(w: Warp, site: Site, addr: Row, off: int, mask: Mask | None, noinc: bool) -> None:
    """cp.async.mbarrier.arrive: arrive when the lane's earlier cp.async are complete."""
    bits = w.bits if mask is None else bits_of(mask)
    pending = [o for g in w.cp_groups for o in g[1]] + w.cp_open
    t = max((o.t_done for o in pending if o.bits & bits), default=w.t)
    for lane in _lanes(w, mask):
        mb = mbar_at(w, site, int(addr[lane]) + off, lane)
        if not noinc:
            mb.pending += 1

        def fire(when: float, mb: MBar = mb, lane: int = lane) -> None:
            arrive_on(w, site, mb, 1, lane, when)

        w.machine.schedule(max(t, w.t), fire)


def _check16(w: Warp, site: Site, lane: int, **values: int) -> None:
    for name, v in values.items():
        if v % 16:
            raise MisalignedAccess(f"bulk copy: {name} {v:#x} is not a multiple of 16", where_of(w, site, lane))


def targets(w: Warp, site: Site, addr: int, ctamask: int | None, lane: int) -> list[int]:
    """Shared addresses that a (multicast) copy writes: the same offset in each CTA of the mask."""
    if ctamask is None:
        return [addr]
    low = addr & ((1 << RANK_SHIFT) - 1)
    n = len(w.cta.cluster.ctas)
    if ctamask >> n:
        raise SyncError(f"multicast mask {ctamask:#x} in a cluster of {n} CTAs", where_of(w, site, lane))
    return [low | (r << RANK_SHIFT) for r in range(n) if ctamask >> r & 1]


def bulk_to_shared(
    w: Warp, site: Site, src_space: str, dst: Row, doff: int, src: Row, soff: int, size: Row, mbar: Row, moff: int,
    mask: Mask | None, ctamask: Row | None,
) -> None:  # fmt: skip
    """cp.async.bulk into shared memory, completing bytes on an mbarrier of each destination."""
    for lane in _lanes(w, mask):
        d, s, n = int(dst[lane]) + doff, int(src[lane]) + soff, int(size[lane])
        _check16(w, site, lane, destination=d, source=s, size=n)
        salloc, so = resolve_range(w, site, src_space, s, n, lane, False)
        cm = None if ctamask is None else int(ctamask[lane])
        places = []
        for a, b in zip(targets(w, site, d, cm, lane), targets(w, site, int(mbar[lane]) + moff, cm, lane)):
            dalloc, do = resolve_range(w, site, "shared::cluster", a, n, lane, True)
            places.append((dalloc, do, mbar_at(w, site, b, lane)))
        _launch_bulk(w, salloc, so, n, places, 1 << lane)


def _launch_bulk(
    w: Warp, src: Allocation, so: int, n: int, places: list[tuple[Allocation, int, MBar]], bits: int
) -> None:
    def action(t: float) -> None:
        for dalloc, do, mb in places:
            dalloc.buf[do : do + n] = src.buf[so : so + n]
            complete_tx(w, mb, n, t)

    start(w, n, bits, action)


def bulk_to_global(
    w: Warp, site: Site, dst: Row, doff: int, src: Row, soff: int, size: Row, mask: Mask | None, red: str | None,
    dtype: Any,
) -> None:  # fmt: skip
    """cp.async.bulk (or cp.reduce.async.bulk) from shared to global memory, in the open bulk group."""
    for lane in _lanes(w, mask):
        d, s, n = int(dst[lane]) + doff, int(src[lane]) + soff, int(size[lane])
        _check16(w, site, lane, destination=d, source=s, size=n)
        salloc, so = resolve_range(w, site, "shared", s, n, lane, False)
        dalloc, do = resolve_range(w, site, "global", d, n, lane, True)

        def action(
            t: float, da: Allocation = dalloc, do: int = do, sa: Allocation = salloc, so: int = so, n: int = n
        ) -> None:
            out, new = da.buf[do : do + n], sa.buf[so : so + n]
            combine(out, new, red, dtype)

        w.bulk_open.append(start(w, n, 1 << lane, action))


def combine(out: Any, new: Any, red: str | None, dtype: Any) -> None:
    """Store or reduce bytes in place; ``red`` is None, add, min, max, and, or, xor, inc or dec."""
    if red is None:
        out[:] = new
        return
    a, b = out.view(dtype), np.ascontiguousarray(new).view(dtype)
    ops: dict[str, Any] = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    a[:] = ops[red](a, b)


RUNTIME: dict[str, Any] = {
    f.__name__: f
    for f in (
        bar, bar_red_value, cluster_arrive, cluster_wait, mbar_init, mbar_inval, mbar_arrive, mbar_expect_tx,
        mbar_complete_tx, mbar_test, mbar_try, cp_async, commit, wait_group, cp_async_mbar, bulk_to_shared,
        bulk_to_global,
    )
}  # fmt: skip
