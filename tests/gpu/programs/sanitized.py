"""A small traced program without any array library, for compute-sanitizer: DIRECTORY of the capture."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cutlass
import numpy as np
from cutlass import cute
from gpu_kernels import THREADS, lanes_at, pointer, steps_at
from gpu_kit import recording

import warptrace.cute as iket
from warptrace.runtime import driver

CTAS = 4
SIZE = CTAS * THREADS


def make_current() -> None:
    driver.call("cuInit", 0)
    device = driver.call("cuDeviceGet", 0)
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))


def main() -> int:
    make_current()
    address = int(driver.call("cuMemAlloc", 4 * SIZE))
    blocks = cutlass.Int32(CTAS)
    with iket.tracing():
        lanes = cute.compile(lanes_at, pointer(address), cutlass.Int32(1), blocks, SIZE)
        steps = cute.compile(steps_at, pointer(address), cutlass.Int32(1), blocks, SIZE)

    def right(compiled: object, n: int) -> bool:
        driver.call("cuMemsetD8", address, 0, 4 * SIZE)
        compiled(pointer(address), cutlass.Int32(n), blocks)
        driver.call("cuCtxSynchronize")
        values = np.empty(SIZE, np.int32)
        driver.call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes)
        return bool((values == np.arange(n, n + SIZE)).all())

    ok = right(lanes, 3)
    with recording(Path(sys.argv[1]), buffer_bytes=16 << 20, max_events=20):
        ok &= right(lanes, 40)
        ok &= right(steps, 5)
    ok &= right(lanes, 3)
    print(f"sanitized: {'ok' if ok else 'WRONG'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
