"""Compile CuTe DSL host functions for the emulator, without a GPU.

``compile_kernels(host_fn, *fake_args)`` compiles a ``@cute.jit`` function for
sm_90a and gives one `CompiledKernel` per kernel launch in it, with the launch
shape where the host code makes it constant. A tensor of static shape is a kernel
parameter of 8 bytes, its pointer; dynamic shapes and strides follow the pointer
in the same parameter (see `tensor_param`). The DSL is imported on first use.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .device import Arg, Device, DeviceArray, Dim, Kernel, LaunchResult
from .errors import EmulatorError, LaunchError

ARCH = "sm_90a"


class DslMissing(EmulatorError):
    """nvidia-cutlass-dsl is not installed."""


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel of a compiled host function.

    ``grid``, ``block``, ``cluster`` and ``smem`` (dynamic bytes) are those of
    its launch, or None when the host code computes them at run time.
    """

    ptx: str
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    smem: int | None
    compiled: Any = None
    """The DSL's own compiled object."""

    def kernel(self, device: Device) -> Kernel:
        """Load the module on a device."""
        return device.load(self.ptx).kernel(self.name)

    def launch(
        self,
        device: Device,
        args: Sequence[Arg],
        *,
        grid: Dim | None = None,
        block: Dim | None = None,
        cluster: Dim | None = None,
        smem: int | None = None,
        **kwargs: Any,
    ) -> LaunchResult:
        """Load and run; what is not given is taken from the host code's launch."""
        g, b = grid or self.grid, block or self.block
        if g is None or b is None:
            raise LaunchError("the host code computes the launch shape: give grid and block")
        if smem is None and self.smem is None:
            raise LaunchError("the host code computes the dynamic shared memory: give smem")
        size = self.smem if smem is None else smem
        return self.kernel(device).launch(g, b, args, cluster=cluster or self.cluster, smem=size or 0, **kwargs)


def tensor_param(array: DeviceArray | int, *dynamic: int) -> bytes:
    """A tensor parameter with dynamic sizes or strides: the pointer, then each as 32 bits in layout order."""
    address = array if isinstance(array, int) else array.address
    out = address.to_bytes(8, "little")
    for v in dynamic:
        out += (v & 0xFFFFFFFF).to_bytes(4, "little")
    return out


def _import_dsl() -> Any:
    os.environ.setdefault("CUTE_DSL_ARCH", ARCH)
    try:
        import cutlass.cute as cute
    except ImportError as e:
        raise DslMissing(f"nvidia-cutlass-dsl is not installed ({e})") from e
    return cute


def compile_kernels(
    host_fn: Any, *args: Any, arch: str = ARCH, options: str = "", **kwargs: Any
) -> list[CompiledKernel]:
    """Compile a host function with fake (or real) arguments; one entry per launch in textual order.

    ``options`` are further options of ``cute.compile``; ``kwargs`` its keyword
    arguments. Raises `DslMissing` without the DSL.
    """
    cute = _import_dsl()
    with tempfile.TemporaryDirectory(prefix="warptrace-ptx-") as folder:
        # An option, since the DSL reads CUTE_DSL_DUMP_DIR only once, when it is imported.
        text = f"--keep-ptx --dump-dir {shlex.quote(folder)} --gpu-arch {arch} {options}".strip()
        compiled = cute.compile(host_fn, *args, options=text, **kwargs)
        ptx = _ptx_text(compiled.__ptx__)
    return from_compiled(compiled, ptx)


def compile_kernel(host_fn: Any, *args: Any, **kwargs: Any) -> CompiledKernel:
    """`compile_kernels` for a host function with exactly one launch."""
    found = compile_kernels(host_fn, *args, **kwargs)
    if len(found) != 1:
        raise LaunchError(f"the host function launches {len(found)} kernels", details=[k.name for k in found])
    return found[0]


def from_compiled(compiled: Any, ptx: str) -> list[CompiledKernel]:
    """The kernels of an object that ``cute.compile`` made, with its PTX text."""
    try:
        launches = host_launches(str(compiled.ir_module))
    except AttributeError:
        launches = []
    if not launches:
        names = re.findall(r"\.entry\s+([\w$]+)", ptx)
        return [CompiledKernel(ptx, n, None, None, None, None, compiled) for n in names]
    return [CompiledKernel(ptx, x.kernel, x.grid, x.block, x.cluster, x.smem, compiled) for x in launches]


def _ptx_text(ptx: Any) -> str:
    if ptx is None:
        raise EmulatorError("the DSL kept no PTX")
    return ptx.decode() if isinstance(ptx, bytes) else str(ptx)


@dataclass(frozen=True)
class HostLaunch:
    """A launch found in lowered host code."""

    kernel: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    smem: int | None


_CONFIG = r"struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"


def host_launches(ir: str) -> list[HostLaunch]:
    """Launches in the LLVM dialect text of a host module: constants stored into launch configurations.

    Any value that is not a constant of the text is left as None.
    """
    out: list[HostLaunch] = []
    consts: dict[str, int] = {}
    field_of: dict[str, tuple[str, ...]] = {}
    values: dict[tuple[str, ...], int | None] = {}
    symbol = ""
    for line in ir.splitlines():
        s = line.strip()
        if s.startswith("llvm.func"):
            consts, field_of, values = {}, {}, {}
            continue
        m = re.match(r"(%\w+) = llvm\.mlir\.constant\((-?\d+) : i\d+\)", s)
        if m:
            consts[m.group(1)] = int(m.group(2))
            continue
        m = re.match(rf"(%\w+) = llvm\.getelementptr (?:inbounds )?%\w+\[0, (\d)(?:, (\d))?\].*{_CONFIG}", s)
        if m:
            field_of[m.group(1)] = tuple(x for x in m.groups()[1:] if x)
            continue
        m = re.match(r"(%\w+) = llvm\.getelementptr (?:inbounds )?%\w+\[(?:0, )?(\d)\].*struct<\(i32, i32, i32\)>", s)
        if m:
            field_of[m.group(1)] = ("cluster", m.group(2))
            continue
        m = re.match(r"llvm\.store (%\w+), (%\w+) ", s)
        if m and m.group(2) in field_of:
            values[field_of[m.group(2)]] = consts.get(m.group(1))
            continue
        m = re.match(r"%\w+ = llvm\.mlir\.addressof @(\w+)", s)
        if m:
            symbol = m.group(1)
        if "_cudaLaunchKernelEx(" in s and "llvm.call" in s:
            out.append(_launch(symbol, values))
            values = {}
    return out


def _launch(symbol: str, values: dict[tuple[str, ...], int | None]) -> HostLaunch:
    def triple(key: str) -> tuple[int, int, int] | None:
        v = [values.get((key, str(i))) for i in range(3)]
        return None if any(x is None for x in v) else (v[0] or 0, v[1] or 0, v[2] or 0)

    # the global that holds the kernel handle is named <gpu module>_<kernel>
    kernel = symbol.split("_", 1)[1] if symbol.startswith("kernels_") else symbol
    return HostLaunch(kernel, triple("0"), triple("1"), triple("cluster"), values.get(("2",)))
