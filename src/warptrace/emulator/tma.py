"""TMA tensor copies and the emulator's own tensor maps.

The 128 bytes of a real CUtensorMap are opaque; the emulator has an encoding of
its own, made by `encode_tensor_map`, and refuses anything else. Dimensions are
given innermost first, as cuTensorMapEncodeTiled takes them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import LaunchError, MemoryFault, MisalignedAccess, SyncError
from .gen import Site
from .memory import Allocation, resolve_range, where_of
from .sync import _lanes, combine, complete_tx, mbar_at, start, targets
from .types import Mask, Row
from .wgmma import swizzle

if TYPE_CHECKING:
    from .warp import Warp

MAGIC = b"WTEMUTM1"
_DTYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16")
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2}
_NUMPY: dict[str, Any] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16,
}  # fmt: skip
_FORMAT = "<8sQBBBx5I4Q5H5B"


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map; sizes innermost first, ``strides`` in bytes of dimensions 1 and up."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    element_strides: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return _SIZES[self.dtype]


def encode_tensor_map(
    address: int,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int = 0,
    element_strides: Sequence[int] | None = None,
) -> bytes:
    """128 bytes that describe a tiled tensor to the emulator (not the format of the hardware).

    ``shape`` and ``box`` have 1 to 5 sizes in elements, innermost first;
    ``strides`` the byte strides of dimensions 1 and up; ``swizzle`` is 0, 32, 64
    or 128. Raises `LaunchError` for what cuTensorMapEncodeTiled would refuse.
    """
    rank = len(shape)
    es = list(element_strides or [1] * rank)
    if dtype not in _SIZES:
        raise LaunchError(f"tensor map: unknown type {dtype!r}; known: {', '.join(_DTYPES)}")
    if not 1 <= rank <= 5 or len(box) != rank or len(strides) != rank - 1 or len(es) != rank:
        raise LaunchError(f"tensor map: rank {rank} with {len(strides)} strides and {len(box)} box sizes")
    if address % 16 or any(s % 16 for s in strides):
        raise LaunchError("tensor map: the address and all strides must be multiples of 16 bytes")
    if any(not 1 <= b <= 256 for b in box):
        raise LaunchError(f"tensor map: box {tuple(box)} has a size outside 1..256")
    inner = box[0] * _SIZES[dtype]
    if inner % 16:
        raise LaunchError(f"tensor map: the inner box size is {inner} bytes, not a multiple of 16")
    if swizzle not in (0, 32, 64, 128) or (swizzle and inner > swizzle):
        raise LaunchError(f"tensor map: swizzle {swizzle} with an inner box of {inner} bytes")

    def pad(values: Sequence[int], n: int) -> list[int]:
        return [*values, *([0] * (n - len(values)))]

    raw = struct.pack(
        _FORMAT, MAGIC, address, _DTYPES.index(dtype), rank, swizzle, *pad(shape, 5), *pad(strides, 4), *pad(box, 5),
        *pad(es, 5),
    )  # fmt: skip
    return raw + bytes(128 - len(raw))


def decode_tensor_map(raw: bytes) -> TensorMap | None:
    """The map, or None when the bytes are not of the emulator's encoding."""
    if raw[:8] != MAGIC:
        return None
    v = struct.unpack(_FORMAT, raw[: struct.calcsize(_FORMAT)])
    rank = v[3]
    return TensorMap(
        v[1], _DTYPES[v[2]], v[5 : 5 + rank], v[10 : 10 + rank - 1], v[14 : 14 + rank], v[4], v[19 : 19 + rank]
    )


def _map_at(w: Warp, site: Site, addr: int, lane: int) -> TensorMap:
    if addr % 64:
        raise MisalignedAccess(f"tensor map address {addr:#x} is not a multiple of 64", where_of(w, site, lane))
    alloc, off = resolve_range(w, site, "generic", addr, 128, lane, False)
    tm = decode_tensor_map(alloc.buf[off : off + 128].tobytes())
    if tm is None:
        raise SyncError("the tensor map was not made by the emulator (use Device.tensor_map)", where_of(w, site, lane))
    return tm


def _elements(w: Warp, site: Site, tm: TensorMap, at: list[int], lane: int) -> tuple[Allocation, Any, Any]:
    """(allocation, element index, inside) of each element of the box, in the order of shared memory."""
    alloc = w.memory.find(tm.address, 1)
    if alloc is None:
        raise MemoryFault(f"tensor map points to unmapped memory {tm.address:#x}", where_of(w, site, lane))
    size = tm.itemsize
    strides = (size, *tm.strides)
    offset: Any = np.zeros((), np.int64)
    inside: Any = np.ones((), np.bool_)
    for dim in range(len(tm.shape)):
        n = -(-tm.box[dim] // tm.element_strides[dim])
        i = at[dim] + np.arange(n, dtype=np.int64) * tm.element_strides[dim]
        shape = [1] * len(tm.shape)
        shape[len(tm.shape) - 1 - dim] = n
        offset = offset + (i * strides[dim]).reshape(shape)
        inside = inside & ((i >= 0) & (i < tm.shape[dim])).reshape(shape)
    index = (offset.reshape(-1) + (tm.address - alloc.base)) // size
    ok = np.broadcast_to(inside, offset.shape).reshape(-1)
    index = np.where(ok, index, 0)
    if len(index) and int(index.max()) * size + size > alloc.nbytes:
        raise MemoryFault(
            f"the tensor map describes memory behind the end of {alloc.name} ({alloc.nbytes} bytes)",
            where_of(w, site, lane),
        )
    return alloc, index, ok


def _chunks(w: Warp, site: Site, tm: TensorMap, addr: int, n: int, lane: int, write: bool) -> tuple[Allocation, Any]:
    """(shared allocation, indices of its 16-byte chunks) of a box at a shared address."""
    need = 128 if tm.swizzle else 16
    if addr % need:
        raise MisalignedAccess(
            f"tensor copy: shared address {addr:#x} is not a multiple of {need}", where_of(w, site, lane)
        )
    alloc, off = resolve_range(w, site, "shared::cluster", addr, n, lane, write)
    chunk = swizzle(np.arange(addr, addr + n, 16, dtype=np.int64), tm.swizzle)
    return alloc, (chunk - addr + off) // 16


def _coords(coords: tuple[Row, ...], lane: int) -> list[int]:
    return [int(c[lane]) for c in coords]


def tensor_load(
    w: Warp, site: Site, dst: Row, doff: int, tmap: Row, toff: int, coords: tuple[Row, ...], mbar: Row, moff: int,
    mask: Mask | None, ctamask: Row | None,
) -> None:  # fmt: skip
    """cp.async.bulk.tensor global to shared, tile mode; elements outside the tensor become 0."""
    for lane in _lanes(w, mask):
        tm = _map_at(w, site, int(tmap[lane]) + toff, lane)
        _check_rank(w, site, tm, coords, lane)
        galloc, index, ok = _elements(w, site, tm, _coords(coords, lane), lane)
        n = len(index) * tm.itemsize
        cm = None if ctamask is None else int(ctamask[lane])
        places = []
        d, m = int(dst[lane]) + doff, int(mbar[lane]) + moff
        for a, b in zip(targets(w, site, d, cm, lane), targets(w, site, m, cm, lane)):
            places.append((*_chunks(w, site, tm, a, n, lane, True), mbar_at(w, site, b, lane)))
        view = galloc.views[tm.itemsize, 1]

        def action(
            t: float, view: Any = view, index: Any = index, ok: Any = ok, places: Any = places, n: int = n
        ) -> None:
            data = np.where(ok, view[index], view.dtype.type(0)).view(np.uint64).reshape(-1, 2)
            for alloc, chunks, mb in places:
                alloc.views[8, 2][chunks] = data
                complete_tx(w, mb, n, t)

        start(w, n, 1 << lane, action)


def tensor_store(
    w: Warp, site: Site, tmap: Row, toff: int, coords: tuple[Row, ...], src: Row, soff: int, mask: Mask | None,
    red: str | None,
) -> None:  # fmt: skip
    """cp.async.bulk.tensor (or cp.reduce...) shared to global; elements outside the tensor are dropped."""
    for lane in _lanes(w, mask):
        tm = _map_at(w, site, int(tmap[lane]) + toff, lane)
        _check_rank(w, site, tm, coords, lane)
        galloc, index, ok = _elements(w, site, tm, _coords(coords, lane), lane)
        if galloc.readonly:
            raise MemoryFault(f"tensor store to read-only memory {galloc.name}", where_of(w, site, lane))
        n = len(index) * tm.itemsize
        salloc, chunks = _chunks(w, site, tm, int(src[lane]) + soff, n, lane, False)
        view = galloc.views[tm.itemsize, 1]
        dtype = _NUMPY[tm.dtype]

        def action(
            t: float, view: Any = view, index: Any = index, ok: Any = ok, salloc: Any = salloc, chunks: Any = chunks,
            dtype: Any = dtype,
        ) -> None:  # fmt: skip
            data = np.ascontiguousarray(salloc.views[8, 2][chunks]).reshape(-1).view(view.dtype)
            if red is None:
                view[index[ok]] = data[ok]
                return
            out = view[index[ok]]
            combine(out, data[ok], red, dtype)
            view[index[ok]] = out

        w.bulk_open.append(start(w, n, 1 << lane, action))


def _check_rank(w: Warp, site: Site, tm: TensorMap, coords: tuple[Row, ...], lane: int) -> None:
    if len(coords) != len(tm.shape):
        raise SyncError(f"{len(coords)} coordinates for a tensor map of rank {len(tm.shape)}", where_of(w, site, lane))


RUNTIME: dict[str, Any] = {"tensor_load": tensor_load, "tensor_store": tensor_store}
