"""Runs the demo's kernel on a GPU: ``python -m warptrace.demo.gpu [ORDINAL]``, under ``warptrace profile``.

Memory comes straight from the CUDA driver, so that no array library is needed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WarptraceError
from ..runtime import driver
from . import problem

LAUNCHES = 2
"""The first launch finds cold caches; the second shows the kernel as it runs in a loop."""


def run(ordinal: int = 0) -> str:
    """Compiles, launches, checks. Returns a line about the result. Raises WarptraceError, also for a wrong result."""
    a, b = problem.inputs()
    _make_current(ordinal)
    device_a, device_b = _upload(a), _upload(b)
    device_c = _upload(np.full((problem.M, problem.N), np.nan, np.float32))
    compiled, arguments = _compile(device_a, device_b, device_c)
    for _ in range(LAUNCHES):
        compiled(*arguments)
    driver.call("cuCtxSynchronize")
    c = _download(device_c, (problem.M, problem.N))
    for address in (device_a, device_b, device_c):
        driver.call("cuMemFree", address)
    return problem.check(c, a, b)


def _compile(a: int, b: int, c: int) -> tuple[Any, tuple[Any, ...]]:
    from cutlass import Float16, Float32, cute

    from .kernel import matmul, pointer

    arguments = pointer(Float16, a), pointer(Float16, b), pointer(Float32, c)
    return cute.compile(matmul, *arguments), arguments


def _make_current(ordinal: int) -> None:
    """The device's primary context, which the DSL's launches use too, for this thread."""
    driver.call("cuInit", 0)
    device = driver.call("cuDeviceGet", ordinal)
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))


def _upload(values: NDArray[Any]) -> int:
    """Address of a copy of ``values`` on the device."""
    address = driver.call("cuMemAlloc", values.nbytes)
    driver.call("cuMemcpyHtoD", address, values.ctypes.data, values.nbytes)
    return int(address)


def _download(address: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    values = np.empty(shape, np.float32)
    driver.call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes)
    return values


def main() -> int:
    """Exit status 0: correct; 1: wrong, or it could not run."""
    try:
        print(f"demo: {run(int(sys.argv[1]) if len(sys.argv) > 1 else 0)}")
    except WarptraceError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
