"""The 64-bit address space: allocations, windows, and vectorised loads and stores.

Global allocations live in one flat space with unmapped gaps between them. A
generic address may also fall into the shared window (``SHARED_WINDOW`` + a
32-bit shared address, whose bits 24 and up are the CTA's rank in its cluster)
or the local window. Parameter and constant space addresses are generic
addresses of read-only allocations, so ``cvta`` leaves them as they are.

Fast path of an access: subtract the base and rotate right by log2(size), so
that a misaligned or out-of-bounds address becomes a huge index that numpy's own
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
_M64 = (1 << 64) - 1


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


def _index(addr: Row, delta: int, size: int) -> Row:
    """Element index of each address; anything misaligned or below the base becomes out of bounds."""
    if addr.dtype == np.uint32:
        off = addr - np.uint32(delta & 0xFFFFFFFF)
        k, bits = size.bit_length() - 1, 32
        t: Any = np.uint32
    else:
        off = addr - np.uint64(delta & _M64)
        k, bits = size.bit_length() - 1, 64
        t = np.uint64
    if k == 0:
        # no spare bit to push a sign into: halve the range by hand
        return np.where(off >> t(bits - 1), t((1 << (bits - 1)) - 1), off).view(f"i{bits // 8}")
    # a shift by one more bit than needed keeps the sign clear
    return ((off >> t(k)) | ((off & t(size - 1)) << t(bits - 1 - k))).view(f"i{bits // 8}")


def _candidates(w: Warp, site: Site, space: str) -> Any:
    if space.startswith("shared"):
        return w.cta.smem
    return site.alloc


def load(w: Warp, site: Site, space: str, addr: Row, off: int, esize: int, nvec: int, mask: Mask | None) -> Any:
    """Values of all lanes: an array (32,), or (32, nvec) for vectors, of unsigned elements.

    Lanes outside the mask get 0.
    """
    alloc = _candidates(w, site, space)
    if alloc is not None and space != "local":
        a = addr if mask is None else addr[mask]
        try:
            vals = alloc.views[esize, nvec][_index(a, alloc.base - off, esize * nvec)]
        except IndexError:
            pass
        else:
            return vals if mask is None else _spread(vals, mask)
    return _load_slow(w, site, space, addr, off, esize, nvec, mask)


def _spread(vals: Row, mask: Mask) -> Row:
    out = np.zeros((WARP, *vals.shape[1:]), vals.dtype)
    out[mask] = vals
    return out


def _lanes(mask: Mask | None) -> list[int]:
    return list(range(WARP)) if mask is None else [int(i) for i in np.flatnonzero(mask)]


def _wrap(addr: Row, lane: int, off: int) -> int:
    bits = addr.dtype.itemsize * 8
    return (int(addr[lane]) + off) & ((1 << bits) - 1)


def _load_slow(
    w: Warp, site: Site, space: str, addr: Row, off: int, esize: int, nvec: int, mask: Mask | None
) -> Any:
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
    alloc = _candidates(w, site, space)
    if alloc is not None and space != "local" and not alloc.readonly:
        a = addr if mask is None else addr[mask]
        v = vals if mask is None else vals[mask]
        try:
            alloc.views[esize, nvec][_index(a, alloc.base - off, esize * nvec)] = v
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


def resolve_range(
    w: Warp, site: Site, space: str, addr: int, n: int, lane: int, write: bool
) -> tuple[Allocation, int]:
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
