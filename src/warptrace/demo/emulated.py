"""Runs the demo's kernel on the emulator: ``python -m warptrace.demo.emulated``.

Compiles the kernel for sm_90a as for a GPU, executes the PTX, and writes a raw capture that says that its times are
emulated into the folder of ``WARPTRACE_DIR``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from ..emulator import Device
from ..emulator.cute import ARCH, CompiledKernel, compile_kernel
from ..emulator.device import DeviceArray
from ..emulator.errors import EmulatorError
from ..errors import WarptraceError
from ..runtime.emulated import EmulatedRecording
from ..runtime.options import DIRECTORY_ENV
from . import problem


def run(directory: Path) -> str:
    """Compiles, runs, checks, and writes the capture ``directory``. Returns a line about the result.

    Raises WarptraceError for a wrong result, EmulatorError for what the emulator cannot do.
    """
    a, b = problem.inputs()
    kernel = _compile()
    recording = EmulatedRecording(directory)
    device = recording.device
    device_a, device_b = device.alloc(a), device.alloc(b)
    device_c = device.alloc(np.full((problem.M, problem.N), np.nan, np.float32))
    recording.launch(kernel, [_tensor_map(device, device_a), _tensor_map(device, device_b), device_c])
    recording.finish()
    return problem.check(device_c.read(), a, b)


def _compile() -> CompiledKernel:
    # The DSL looks for a GPU when it is imported without a target, and takes another one where it finds none.
    os.environ["CUTE_DSL_ARCH"] = ARCH
    from cutlass import Float16, Float32

    from ..cute import tracing
    from .kernel import matmul, pointer

    # Where the matrices will lie is nothing to the compiler, only how they are aligned.
    arguments = pointer(Float16, 0), pointer(Float16, 0), pointer(Float32, 0)
    with tracing():
        return compile_kernel(matmul, *arguments)


def _tensor_map(device: Device, matrix: DeviceArray) -> bytes:
    """What host code would make for the TMA of a row-major fp16 matrix: boxes of one tile, swizzled by 128 bytes."""
    rows, columns = matrix.shape
    box = (problem.TILE_K, problem.TILE_M)  # innermost first; tiles of A and B are alike
    return device.tensor_map(matrix, "f16", (columns, rows), (2 * columns,), box, swizzle=128)


def main() -> int:
    """Exit status 0: correct; 1: wrong, or it could not run."""
    try:
        print(f"demo: {run(Path(os.environ[DIRECTORY_ENV]) / f'pid_{os.getpid()}')}")
    except (WarptraceError, EmulatorError) as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
