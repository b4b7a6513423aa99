"""The 64-bit address space: allocations, windows, and vectorised loads and stores.

Global allocations live in one flat space with unmapped gaps between them. A
generic address may also fall into the shared window (``SHARED_WINDOW`` + a
32-bit shared address, whose bits 24 and up are the CTA's rank in its cluster)
or the local window. Parameter and constant space addresses are generic
addresses of read-only allocations, so ``cvta`` leaves them as they are.

Fast path of an access: subtract the base and rotate right by log2(size), so
that a misaligned or out-of-bounds address becomes an index that numpy's own
bounds check refuses; only then does the slow path look for the guilty lane.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import MemoryFault, MisalignedAccess, Where
from .gen import Site
from .types import WARP, Mask, Row

if TYPE_CHECKING:
    from .warp import Warp

GLOBAL_BASE = 0x7000_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
WINDOW = 1 << 32
GAP = 4096
RANK_SHIFT = 24

_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Allocation:
    """A contiguous piece of memory; ``views[(element bytes, vector length)]`` index it by access."""

    def __init__(self, base: int, buf: npt.NDArray[np.uint8], name: str, readonly: bool = False):
        self.base = base
        self.buf = buf
        self.nbytes = len(buf)
        self.name = name
        self.readonly = readonly
        self.views: dict[tuple[int, int], Any] = {}
        for esize, dtype in _UINT.items():
            for nvec in (1, 2, 4, 8):
                n = self.nbytes // (esize * nvec)
                v = buf[: n * esize * nvec].view(dtype)
                self.views[esize, nvec] = v if nvec == 1 else v.reshape(n, nvec)

    def contains(self, addr: int, size: int) -> bool:
        return self.base <= addr and addr + size <= self.base + self.nbytes


class GlobalMemory:
    """All allocations of a device, sorted by address."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.allocs: dict[int, Allocation] = {}
        self.next = GLOBAL_BASE

    def add(self, buf: npt.NDArray[np.uint8], name: str, align: int = 512, readonly: bool = False) -> Allocation:
        """Map a byte array at a fresh address (never reused, with an unmapped gap behind it)."""
        base = -(-self.next // align) * align
        self.next = base + len(buf) + GAP
        alloc = Allocation(base, buf, name, readonly)
        bisect.insort(self.bases, base)
        self.allocs[base] = alloc
        return alloc

    def remove(self, alloc: Allocation) -> None:
        self.bases.remove(alloc.base)
        # sites remember the allocation that they hit last: make its fast path miss
        alloc.views = {key: view[:0] for key, view in alloc.views.items()}
        del self.allocs[alloc.base]

    def find(self, addr: int, size: int) -> Allocation | None:
        """The allocation that holds all of [addr, addr + size)."""
        i = bisect.bisect_right(self.bases, addr) - 1
        if i < 0:
            return None
        a = self.allocs[self.bases[i]]
        return a if a.contains(addr, size) else None

    def nearest(self, addr: int) -> str:
        """A phrase about the closest allocation, for messages."""
        best = min(self.allocs.values(), key=lambda a: max(a.base - addr, addr - a.base - a.nbytes), default=None)
        if best is None:
            return "there is no allocation"
        off = addr - best.base
        return f"nearest allocation: {best.name}, {best.nbytes} bytes at {best.base:#x} (offset {off})"


def where_of(w: Warp, site: Site, lane: int | None = None) -> Where:
    """The place of an instruction in a running warp."""
    return Where(w.kernel_name, site.instr.line, site.instr.text, w.cta.ctaid, w.warpid, lane)


def resolve(w: Warp, site: Site, space: str, addr: int, size: int, lane: int, write: bool) -> tuple[Allocation, int]:
    """(allocation, byte offset) of one lane's access; raises `MemoryFault` or `MisalignedAccess`.

    For local memory the offset is within the lane's own part, which is added here.
    """
    what = "write" if write else "read"
    if addr % size:
        raise MisalignedAccess(
            f"misaligned {space} {what}: address {addr:#x} is not a multiple of {size}", where_of(w, site, lane)
        )
    if space == "generic":
        if SHARED_WINDOW <= addr < SHARED_WINDOW + WINDOW:
            space, addr = "shared::cluster", addr - SHARED_WINDOW
        elif LOCAL_WINDOW <= addr < LOCAL_WINDOW + WINDOW:
            space, addr = "local", addr - LOCAL_WINDOW
    if space == "local":
        if addr + size > w.local_bytes:
            raise MemoryFault(
                f"local {what} of {size} bytes at {addr:#x}: the kernel has {w.local_bytes} bytes of local memory",
                where_of(w, site, lane),
            )
        return w.local, lane * w.local_bytes + addr
    if space.startswith("shared"):
        return _resolve_shared(w, site, space, addr, size, lane, what)
    alloc = w.memory.find(addr, size)
    if alloc is None:
        raise MemoryFault(
            f"out-of-bounds {space} {what} of {size} bytes at {addr:#x}",
            where_of(w, site, lane),
            [w.memory.nearest(addr)],
        )
    if write and alloc.readonly:
        raise MemoryFault(f"write to read-only memory {alloc.name} at {addr:#x}", where_of(w, site, lane))
    return alloc, addr - alloc.base


def _resolve_shared(
    w: Warp, site: Site, space: str, addr: int, size: int, lane: int, what: str
) -> tuple[Allocation, int]:
    rank = addr >> RANK_SHIFT
    cluster = w.cta.cluster
    if space != "shared::cluster" and rank != w.cta.rank:
        raise MemoryFault(
            f"shared::cta {what} at {addr:#x}: the address belongs to CTA rank {rank} of the cluster,"
            f" the access is from rank {w.cta.rank}",
            where_of(w, site, lane),
        )
    if rank >= len(cluster.ctas):
        raise MemoryFault(
            f"shared::cluster {what} at {addr:#x}: rank {rank} of {len(cluster.ctas)}", where_of(w, site, lane)
        )
    cta = cluster.ctas[rank]
    alloc = cta.smem
    if not alloc.contains(addr, size):
        raise MemoryFault(
            f"out-of-bounds shared {what} of {size} bytes at {addr:#x}",
            where_of(w, site, lane),
            [f"shared memory of CTA rank {rank}: {alloc.nbytes} bytes at {alloc.base:#x}"],
        )
    if cta.done:
        raise MemoryFault(
            f"shared::cluster {what} at {addr:#x}: CTA rank {rank} has already exited", where_of(w, site, lane)
        )
    return alloc, addr - alloc.base


class _Scratch:
    """Work rows for one address width: the launch runs on one thread, so they can be shared."""

    def __init__(self, bits: int):
        u, s = f"u{bits // 8}", f"i{bits // 8}"
        self.t: Any = np.zeros(WARP, u)
        self.i: Any = np.zeros(WARP, u)
        self.index: Any = self.t.view(s)
        self.right = {1 << k: np.full(WARP, k, u) for k in range(7)}
        self.left = {1 << k: np.full(WARP, bits - k, u) for k in range(1, 7)}
        self.top = np.full(WARP, (1 << (bits - 1)) - 1, u)
        self.zero = np.zeros(WARP, u)


_SCRATCH = {4: _Scratch(32), 8: _Scratch(64)}


def _index(addr: Row, site: Site, alloc: Allocation, off: int, size: int) -> Any:
    """Element index of each address; anything misaligned or below the base becomes out of bounds.

    The offset is rotated right by log2(size): low bits that are set end up as a huge (or hugely negative) index.
    """
    width = addr.dtype.itemsize
    sc = _SCRATCH[width]
    if site.base != alloc.base:
        site.base = alloc.base
        site.delta = np.full(WARP, (alloc.base - off) & ((1 << (8 * width)) - 1), addr.dtype)
    t = sc.t
    np.subtract(addr, site.delta, t)
    # an address below the base has wrapped round: keep it away from small negative indices
    np.minimum(t, sc.top, out=t)
    if size == 1:
        return sc.index
    np.right_shift(t, sc.right[size], sc.i)
    np.left_shift(t, sc.left[size], t)
    np.bitwise_or(t, sc.i, t)
    return sc.index


def load(w: Warp, site: Site, space: str, addr: Row, off: int, esize: int, nvec: int, mask: Mask | None) -> Any:
    """Values of all lanes: an array (32,), or (32, nvec) for vectors, of unsigned elements.

    Lanes outside the mask get arbitrary values.
    """
    alloc = w.cta.smem if space[0] == "s" else site.alloc
    if alloc is not None and space != "local":
        index = _index(addr, site, alloc, off, esize * nvec)
        if mask is not None:
            # inactive lanes read the first element, whatever their address
            index[~mask] = 0
        try:
            return alloc.views[esize, nvec][index]
        except IndexError:
            pass
    return _load_slow(w, site, space, addr, off, esize, nvec, mask)


def _lanes(mask: Mask | None) -> list[int]:
    return list(range(WARP)) if mask is None else [int(i) for i in np.flatnonzero(mask)]


def _wrap(addr: Row, lane: int, off: int) -> int:
    bits = addr.dtype.itemsize * 8
    return (int(addr[lane]) + off) & ((1 << bits) - 1)


def _load_slow(w: Warp, site: Site, space: str, addr: Row, off: int, esize: int, nvec: int, mask: Mask | None) -> Any:
    shape = (WARP,) if nvec == 1 else (WARP, nvec)
    out = np.zeros(shape, _UINT[esize])
    for lane in _lanes(mask):
        a = _wrap(addr, lane, off)
        alloc, o = resolve(w, site, space, a, esize * nvec, lane, False)
        out[lane] = alloc.views[esize, nvec][o // (esize * nvec)]
        if space in ("global", "generic") and alloc is not w.local and alloc.base >= GLOBAL_BASE:
            site.alloc = alloc
    return out


def store(
    w: Warp, site: Site, space: str, addr: Row, off: int, esize: int, nvec: int, mask: Mask | None, vals: Any
) -> None:
    """Write ``vals`` ((32,) or (32, nvec) unsigned); of lanes that hit one address the highest wins."""
    alloc = w.cta.smem if space[0] == "s" else site.alloc
    if alloc is not None and space != "local" and not alloc.readonly:
        index = _index(addr, site, alloc, off, esize * nvec)
        try:
            if mask is None:
                alloc.views[esize, nvec][index] = vals
            else:
                alloc.views[esize, nvec][index[mask]] = vals[mask]
        except IndexError:
            pass
        else:
            return
    for lane in _lanes(mask):
        a1 = _wrap(addr, lane, off)
        alloc, o = resolve(w, site, space, a1, esize * nvec, lane, True)
        alloc.views[esize, nvec][o // (esize * nvec)] = vals[lane]
        if space in ("global", "generic") and alloc is not w.local and alloc.base >= GLOBAL_BASE:
            site.alloc = alloc


def read_bytes(w: Warp, site: Site, space: str, addr: int, n: int, lane: int = 0) -> npt.NDArray[np.uint8]:
    """A view of n bytes (n need not be a power of two) for bulk copies and descriptors."""
    alloc, off = resolve_range(w, site, space, addr, n, lane, False)
    return alloc.buf[off : off + n]


def resolve_range(w: Warp, site: Site, space: str, addr: int, n: int, lane: int, write: bool) -> tuple[Allocation, int]:
    """Like `resolve` for any length, without the alignment rule."""
    alloc, off = resolve(w, site, space, addr, 1, lane, write)
    if off + n > alloc.nbytes:
        what = "write" if write else "read"
        raise MemoryFault(
            f"out-of-bounds {space} {what} of {n} bytes at {addr:#x}: {alloc.name} ends {off + n - alloc.nbytes}"
            " bytes earlier",
            where_of(w, site, lane),
        )
    return alloc, off
