"""Several devices of a process, of which the second one meets an illegal access; the others are used again then."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cutlass
import numpy as np
from cutlass import cute
from gpu_kernels import THREADS, pointer, steps_at

from warptrace.runtime import driver

CTAS, LAUNCHES = 4, 5
SIZE = CTAS * THREADS
SAVED_S = 3.0
"""After so long what was finished is on disk."""


def main() -> None:
    driver.call("cuInit", 0)
    devices = range(int(driver.call("cuDeviceGetCount")))
    contexts, addresses = [], []
    for device in devices:
        contexts.append(driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", device)))
        with driver.current(contexts[device]):
            addresses.append(int(driver.call("cuMemAlloc", 4 * SIZE)))
    driver.call("cuCtxSetCurrent", contexts[0])
    blocks = cutlass.Int32(CTAS)
    compiled = cute.compile(steps_at, pointer(addresses[0]), cutlass.Int32(1), blocks, SIZE)

    def call(device: int, n: int) -> None:
        driver.call("cuCtxSetCurrent", contexts[device])
        compiled(pointer(addresses[device]), cutlass.Int32(n), blocks)
        driver.call("cuCtxSynchronize")
        values = np.empty(SIZE, np.int32)
        driver.call("cuMemcpyDtoH", values.ctypes.data, addresses[device], values.nbytes)
        assert (values == np.arange(n, n + SIZE)).all(), f"WRONG {device} {n}"

    for device in devices:
        for n in range(LAUNCHES):
            call(device, n)
    time.sleep(SAVED_S)
    driver.call("cuCtxSetCurrent", contexts[1])
    compiled(pointer(1 << 20), cutlass.Int32(5), blocks)
    try:
        driver.call("cuCtxSynchronize")
    except driver.DriverError as e:
        print(f"died: {e}")
    time.sleep(1.2)  # what looks at devices once a second meets the dead one
    for device in devices:
        if device != 1:
            for n in range(LAUNCHES, 2 * LAUNCHES):
                call(device, n)
    print("right", flush=True)


if __name__ == "__main__":
    main()
