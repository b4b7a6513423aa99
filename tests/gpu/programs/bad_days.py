"""A traced program that has a bad day: FAULT. Launches of ``steps`` by 4 blocks; needs no array library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cuda.bindings.driver as cuda
import cutlass
import numpy as np
from cutlass import cute
from gpu_kernels import THREADS, pointer, steps, steps_at

from warptrace.runtime import driver

FAULT = sys.argv[1]
CTAS = 4
SIZE = CTAS * THREADS
SAVED_S = 3.0
"""After so long what was finished is on disk."""


@cute.jit
def steps_on(
    address: cute.Pointer, n: cutlass.Int32, ctas: cutlass.Int32, stream: cuda.CUstream, size: cutlass.Constexpr
):
    out = cute.make_tensor(address, cute.make_layout(size))
    steps(out, n).launch(grid=[ctas, 1, 1], block=[THREADS, 1, 1], stream=stream)


def begin() -> int:
    """Makes the device's context current; returns the address of the result."""
    driver.call("cuInit", 0)
    device = driver.call("cuDeviceGet", 0)
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
    return int(driver.call("cuMemAlloc", 4 * SIZE))


def check(address: int, n: int) -> None:
    driver.call("cuCtxSynchronize")
    values = np.empty(SIZE, np.int32)
    driver.call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes)
    driver.call("cuMemsetD8", address, 0, 4 * SIZE)
    assert (values == np.arange(n, n + SIZE)).all(), f"WRONG {n}"


def captured(address: int) -> None:
    """The kernel is compiled, and first launched, while a stream is being captured; the graph runs three times."""
    stream = driver.call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    driver.call("cuStreamBeginCapture", stream, relaxed)
    arguments = pointer(address), cutlass.Int32(7), cutlass.Int32(CTAS), cuda.CUstream(int(stream))
    cute.compile(steps_on, *arguments, SIZE)(*arguments)
    graph = driver.call("cuStreamEndCapture", stream)
    made = driver.call("cuGraphInstantiate", graph, 0)
    for _ in range(3):
        driver.call("cuGraphLaunch", made, stream)
        driver.call("cuStreamSynchronize", stream)
        check(address, 7)


def cached(address: int) -> None:
    """Direct calls, whose code comes from the DSL's file cache where it is there."""
    for n in (7, 8):
        steps_at(pointer(address), cutlass.Int32(n), cutlass.Int32(CTAS), SIZE)
        check(address, n)


def main() -> None:
    address = begin()
    if FAULT in ("captured", "cached"):
        {"captured": captured, "cached": cached}[FAULT](address)
        print("right")
        return
    blocks = cutlass.Int32(CTAS)
    compiled = cute.compile(steps_at, pointer(address), cutlass.Int32(1), blocks, SIZE)

    def call(n: int) -> None:
        compiled(pointer(address), cutlass.Int32(n), blocks)
        check(address, n)

    for n in range(3):
        call(n)
    if FAULT == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    if FAULT in ("kill", "segv", "abort", "illegal"):
        time.sleep(SAVED_S)
    for n in range(3, 5):
        call(n)
    print("right", flush=True)
    if FAULT == "illegal":
        compiled(pointer(1 << 20), cutlass.Int32(5), blocks)
        driver.call("cuCtxSynchronize")
    elif FAULT == "exit":
        os._exit(9)
    elif FAULT == "abort":
        ctypes.CDLL(None).abort()
    elif FAULT in ("int", "term", "hup", "kill", "segv"):
        os.kill(os.getpid(), getattr(signal, f"SIG{FAULT.upper()}"))
        time.sleep(60)


if __name__ == "__main__":
    main()
