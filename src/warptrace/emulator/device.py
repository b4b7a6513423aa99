"""The emulator's public API: devices, modules, kernels, launches."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import costs, parser
from .codegen import Code, translate
from .errors import EmulatorError, LaunchError, Where
from .machine import LaunchConfig, Machine, SmemLayout, Stats
from .machine_const import SMEM_BASE
from .memory import Allocation, GlobalMemory
from .parser import KernelDef, ModuleDef, Param
from .tma import encode_tensor_map
from .topology import Topology

Dim = int | Sequence[int]
_ONE_AT_A_TIME = threading.Lock()
"""Instructions share scratch memory, so launches of several threads take turns."""


@dataclass(frozen=True)
class DeviceArray:
    """An array in the emulated device's memory; pass it to `Kernel.launch` as a pointer."""

    allocation: Allocation
    shape: tuple[int, ...]
    dtype: Any

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self.allocation.base

    @property
    def nbytes(self) -> int:
        return self.allocation.nbytes

    def read(self) -> npt.NDArray[Any]:
        """A copy of the contents."""
        n = int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize
        out: npt.NDArray[Any] = self.allocation.buf[:n].view(self.dtype).reshape(self.shape).copy()
        return out

    def write(self, values: npt.ArrayLike) -> None:
        """Overwrite the contents (broadcast to the shape)."""
        n = int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize
        self.allocation.buf[:n].view(self.dtype).reshape(self.shape)[...] = values


Arg = DeviceArray | int | float | bool | bytes | np.generic


@dataclass(frozen=True)
class LaunchResult:
    """What a launch did; times are emulated."""

    instructions: int
    """Warp instructions executed."""
    begin_ns: int
    """%globaltimer time (Unix ns) at which the launch began."""
    end_ns: int
    ctas: int
    gridid: int
    printed: tuple[str, ...] = ()
    """Output of the kernel's printf calls, in the order of execution."""


def _triple(d: Dim, what: str) -> tuple[int, int, int]:
    v = [int(d)] if isinstance(d, (int, np.integer)) else [int(x) for x in d]
    v += [1] * (3 - len(v))
    if len(v) != 3 or any(x < 1 for x in v):
        raise LaunchError(f"{what} {d!r} is not one to three positive integers")
    return v[0], v[1], v[2]


class Device:
    """An emulated GPU: memory, SMs, clocks.

    ``seed`` fixes everything that is random (clock offsets, the scheduler's
    stalls); ``ghz`` is a clock rate or a dict of rates by GPC; ``time_base`` the
    Unix time in ns at which the device starts (default: now); ``stall`` the
    largest random delay in cycles of a stretch of instructions;
    ``random_branches`` lets the seed choose which side of a divergent branch
    runs first.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        sms: int = costs.SM_COUNT,
        ghz: float | dict[int, float] = costs.DEFAULT_GHZ,
        time_base: int | None = None,
        stall: float = costs.DEFAULT_STALL,
        random_branches: bool = False,
    ):
        self.seed = seed
        self.memory = GlobalMemory()
        self.topology = Topology.make(sms, ghz, seed)
        self.time_base = time.time_ns() if time_base is None else time_base
        self.stall = stall
        self.random_branches = random_branches
        self.now = 0.0
        self.launches = 0

    # -- memory ---------------------------------------------------------------------
    def alloc(self, values: npt.ArrayLike, *, align: int = 512, name: str | None = None) -> DeviceArray:
        """Allocate memory with a copy of an array; the address is a multiple of ``align`` bytes."""
        arr = np.asarray(values)
        shape = arr.shape
        raw = np.ascontiguousarray(arr).reshape(-1).view(np.uint8).copy()
        label = name or f"array {shape} {arr.dtype}"
        return DeviceArray(self.memory.add(raw, label, align), shape, arr.dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32, *, align: int = 512) -> DeviceArray:
        """Allocate zeroed memory."""
        return self.alloc(np.zeros(shape, dtype), align=align)

    def free(self, array: DeviceArray) -> None:
        """Unmap an array; later accesses to it are errors."""
        self.memory.remove(array.allocation)

    def read(self, array: DeviceArray) -> npt.NDArray[Any]:
        """A copy of an array's contents."""
        return array.read()

    def read_bytes(self, address: int, n: int) -> bytes:
        """n bytes at a device address."""
        a = self.memory.find(address, n)
        if a is None:
            raise EmulatorError(f"no allocation holds {n} bytes at {address:#x}")
        return a.buf[address - a.base : address - a.base + n].tobytes()

    def write_bytes(self, address: int, data: bytes) -> None:
        """Write bytes at a device address."""
        a = self.memory.find(address, len(data))
        if a is None:
            raise EmulatorError(f"no allocation holds {len(data)} bytes at {address:#x}")
        a.buf[address - a.base : address - a.base + len(data)] = np.frombuffer(data, np.uint8)

    def tensor_map(
        self,
        array: DeviceArray | int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int = 0,
        element_strides: Sequence[int] | None = None,
    ) -> bytes:
        """A 128-byte tensor map in the emulator's own encoding; see `tma.encode_tensor_map`."""
        address = array if isinstance(array, int) else array.address
        return encode_tensor_map(address, dtype, shape, strides, box, swizzle, element_strides)

    # -- modules --------------------------------------------------------------------
    def load(self, ptx: str) -> Module:
        """Parse PTX and place its global and constant variables."""
        return Module(self, parser.parse(ptx))


class Module:
    """A loaded PTX module."""

    def __init__(self, device: Device, definition: ModuleDef):
        self.device = device
        self.definition = definition
        self.symbols: dict[str, int] = {}
        self.globals: dict[str, DeviceArray] = {}
        self._code: dict[str, Code] = {}
        for v in definition.variables.values():
            if v.space in ("global", "const"):
                self._place(v)
        self._fix_pointers()

    @classmethod
    def load(cls, ptx: str, device: Device) -> Module:
        """Same as ``device.load(ptx)``."""
        return device.load(ptx)

    def _place(self, v: parser.Variable) -> None:
        raw = np.zeros(max(v.nbytes, 1), np.uint8)
        raw[: len(v.init)] = np.frombuffer(v.init, np.uint8)
        alloc = self.device.memory.add(raw, f"variable {v.name}", max(v.align, 16), readonly=v.space == "const")
        self.symbols[v.name] = alloc.base
        self.globals[v.name] = DeviceArray(alloc, (len(raw),), np.uint8)

    def _fix_pointers(self) -> None:
        for v in self.definition.variables.values():
            for off, name, addend in v.init_syms:
                if v.name in self.globals and name in self.symbols:
                    value = struct.pack("<Q", self.symbols[name] + addend)
                    self.globals[v.name].allocation.buf[off : off + 8] = np.frombuffer(value, np.uint8)

    @property
    def kernel_names(self) -> list[str]:
        """Names of the module's kernels in the order of the text."""
        return list(self.definition.kernels)

    def kernel(self, name: str | None = None) -> Kernel:
        """A kernel by name, by a unique part of it, or (None) the only one. Translates it.

        Raises `UnsupportedInstruction` when the kernel has an instruction that is not executed.
        """
        names = self.kernel_names
        found = [n for n in names if name is None or n == name] or [n for n in names if name and name in n]
        if len(found) != 1:
            raise LaunchError(f"{'no kernel' if not found else 'several kernels'} named {name!r} among {names}")
        if found[0] not in self._code:
            self._code[found[0]] = translate(self.definition.kernels[found[0]])
        return Kernel(self, self._code[found[0]])


class Kernel:
    """A translated kernel, ready to be launched."""

    def __init__(self, module: Module, code: Code):
        self.module = module
        self.code = code

    @property
    def name(self) -> str:
        return self.code.name

    @property
    def definition(self) -> KernelDef:
        """The parsed kernel."""
        return self.code.kernel

    @property
    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters: name, type, size, alignment, offset."""
        return self.code.kernel.params

    def launch(
        self,
        grid: Dim,
        block: Dim,
        args: Sequence[Arg] = (),
        *,
        cluster: Dim | None = None,
        smem: int = 0,
        max_instructions: int = 20_000_000,
        seed: int | None = None,
    ) -> LaunchResult:
        """Run the kernel to its end.

        ``args`` has one entry a parameter: a `DeviceArray` (its address), a
        number (encoded by the parameter's type), or bytes (a struct or a tensor
        map, copied as they are). ``smem`` is the dynamic shared memory in bytes.
        ``max_instructions`` ends a kernel that spins for ever.
        Raises `LaunchError` for a bad configuration and `ExecutionError` for
        what goes wrong on the device.
        """
        dev = self.module.device
        g, b = _triple(grid, "grid"), _triple(block, "block")
        k = self.code.kernel
        c = _triple(cluster, "cluster") if cluster is not None else (k.reqcluster or (1, 1, 1))
        layout = self._layout(smem)
        self._check(g, b, c, layout)
        params = self.encode(args)
        dev.launches += 1
        palloc = dev.memory.add(np.frombuffer(params + bytes(16), np.uint8), "kernel parameters", 64, True)
        symbols = dict(self.module.symbols)
        symbols.update({p.name: palloc.base + p.offset for p in k.params})
        config = LaunchConfig(g, b, c, smem, dev.launches, max_instructions, dev.stall, dev.random_branches)
        start = dev.now + costs.LAUNCH_GAP_NS
        machine = Machine(
            self.code, dev.memory, dev.topology, config, layout, params, symbols, start, dev.time_base,
            dev.seed if seed is None else seed,
        )  # fmt: skip
        try:
            with _ONE_AT_A_TIME:
                stats = machine.run()
        finally:
            dev.memory.remove(palloc)
            dev.now = max(dev.now, machine.stats.end_ns, start)
        return self._result(stats, config, tuple(machine.printed))

    def _result(self, s: Stats, config: LaunchConfig, printed: tuple[str, ...]) -> LaunchResult:
        base = self.module.device.time_base
        return LaunchResult(
            s.instructions, base + int(s.begin_ns), base + int(s.end_ns), s.ctas, config.gridid, printed
        )

    def _layout(self, dynamic: int) -> SmemLayout:
        k = self.code.kernel
        used = [v for v in self.module.definition.variables.values() if v.name in self.code.symbols]
        shared = [v for v in [*used, *k.variables] if v.space == "shared"]
        offsets: dict[str, int] = {}
        pos = SMEM_BASE
        for v in [v for v in shared if v.nbytes]:
            pos = -(-pos // v.align) * v.align
            offsets[v.name] = pos
            pos += v.nbytes
        static = pos - SMEM_BASE
        externs = [v for v in shared if not v.nbytes]
        if externs:
            pos = -(-pos // max(v.align for v in externs)) * max(v.align for v in externs)
        for v in externs:
            offsets[v.name] = pos
        return SmemLayout(offsets, static, pos + dynamic)

    def _check(
        self, g: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int], layout: SmemLayout
    ) -> None:
        k = self.code.kernel
        where = Where(kernel=k.name)
        threads = b[0] * b[1] * b[2]
        if threads > costs.MAX_THREADS_PER_CTA:
            raise LaunchError(f"block {b} has {threads} threads; the limit is {costs.MAX_THREADS_PER_CTA}", where)
        if k.reqntid is not None and b != k.reqntid:
            raise LaunchError(f"block {b} differs from the kernel's .reqntid {k.reqntid}", where)
        if k.maxntid is not None and threads > k.maxntid[0] * k.maxntid[1] * k.maxntid[2]:
            raise LaunchError(f"block {b} exceeds the kernel's .maxntid {k.maxntid}", where)
        if k.reqcluster is not None and c != k.reqcluster:
            raise LaunchError(f"cluster {c} differs from the kernel's .reqnctapercluster {k.reqcluster}", where)
        if any(x % y for x, y in zip(g, c)):
            raise LaunchError(f"grid {g} is not a multiple of the cluster {c}", where)
        if c[0] * c[1] * c[2] > costs.MAX_CLUSTER:
            raise LaunchError(f"cluster {c} has more than {costs.MAX_CLUSTER} CTAs", where)
        if layout.total - SMEM_BASE > costs.SMEM_PER_CTA:
            raise LaunchError(
                f"{layout.total - SMEM_BASE} bytes of shared memory; the limit is {costs.SMEM_PER_CTA}", where
            )

    def encode(self, args: Sequence[Arg]) -> bytes:
        """The parameter block for a list of arguments."""
        params = self.params
        if len(args) != len(params):
            raise LaunchError(
                f"{len(args)} arguments for {len(params)} parameters",
                Where(kernel=self.name),
                [f"{p.name}: .{p.type}, {p.nbytes} bytes" for p in params],
            )
        out = bytearray(self.code.kernel.param_bytes)
        for p, a in zip(params, args):
            raw = _encode(p, a)
            if len(raw) > p.nbytes:
                raise LaunchError(f"{len(raw)} bytes for parameter {p.name} of {p.nbytes}", Where(kernel=self.name))
            out[p.offset : p.offset + len(raw)] = raw
        return bytes(out)


def _encode(p: Param, a: Arg) -> bytes:
    if isinstance(a, DeviceArray):
        return struct.pack("<Q", a.address)
    if isinstance(a, (bytes, bytearray)):
        return bytes(a)
    if isinstance(a, np.generic):
        return a.tobytes()
    if isinstance(a, float):
        wide = p.type == "f64" or (p.type != "f32" and p.nbytes == 8)
        return struct.pack("<d" if wide else "<f", a)
    if p.type in ("f32", "f64"):
        return struct.pack("<f" if p.type == "f32" else "<d", float(a))
    return (int(a) & ((1 << (8 * p.nbytes)) - 1)).to_bytes(p.nbytes, "little")
