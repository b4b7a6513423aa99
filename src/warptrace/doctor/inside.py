"""The checks that could crash or hang, in a process of their own: ``python -m warptrace.doctor.inside gpu BYTES``.

The first word is one of CHECKS. Prints each finding as a line of JSON as soon as it is known.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import WarptraceError
from ..runtime.options import format_size
from . import FAIL, OK, WARN, Finding

PAYLOAD = 4711
TIMER_READS = 4096
COARSE_NS = 100
TIMER_PTX = f""".version 6.0
.target sm_60
.address_size 64

.visible .entry read_timer(.param .u64 out)
{{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, 0;
NEXT:
  mov.u64 %rd1, %globaltimer;
  st.global.u64 [%rd0], %rd1;
  add.u64 %rd0, %rd0, 8;
  add.u32 %r0, %r0, 1;
  setp.lt.u32 %p0, %r0, {TIMER_READS};
  @%p0 bra NEXT;
  ret;
}}
"""
REINSTALL = "pip install -U 'warptrace[cute]'"
Check = Callable[[], Iterator[Finding]]


def dsl() -> Iterator[Finding]:
    """The DSL's hooks: compiles the kernel with and without tracing, for sm_90a, and looks at it."""
    from ..emulator.cute import ARCH, compile_kernel

    os.environ["CUTE_DSL_ARCH"] = ARCH
    from ..frontends.cute import dsl as hooks

    hooks.arm()
    hooks.build_untraced(True)
    yield Finding("DSL hook", OK, f"nvidia-cutlass-dsl {hooks.version()} takes our finalize hook")

    import cutlass

    from .. import registry
    from ..cute import tracing
    from .kernel import launch_one_event

    plain = compile_kernel(launch_one_event, cutlass.Int32(1))
    with tracing():
        traced = compile_kernel(launch_one_event, cutlass.Int32(1))
    records = registry.records()
    if len(records) != 1 or len(records[0].sites) != 1 or not re.search(rf"\b{records[0].kernel_id}\b", traced.ptx):
        yield Finding("events", FAIL, "a kernel with one event was compiled, and the event is not in it", REINSTALL)
        return
    yield Finding("events", OK, "an event of a kernel is compiled into it")
    if "globaltimer" in plain.ptx:
        yield Finding("tracing off", FAIL, "a kernel compiled with tracing off has events", REINSTALL)
    else:
        yield Finding("tracing off", OK, "without tracing nothing of it is in the kernel")
    build = records[0].build
    if "untraced" in build:
        text = f"registers are known: {build['registers']} traced, {build['untraced']['registers']} untraced"
        yield Finding("build record", OK, text)
    else:
        yield Finding(
            "build record",
            WARN,
            "registers and stack of compiled kernels are not known",
            "traces are right without; a newer warptrace may know this DSL",
        )


def emulator() -> Iterator[Finding]:
    """A recording of the kernel on the emulator."""
    from ..emulator.cute import ARCH, compile_kernel
    from ..runtime.emulated import EmulatedRecording

    os.environ["CUTE_DSL_ARCH"] = ARCH
    import cutlass

    from ..cute import tracing
    from .kernel import launch_one_event

    with tracing():
        kernel = compile_kernel(launch_one_event, cutlass.Int32(1))
    with tempfile.TemporaryDirectory() as folder:
        recording = EmulatedRecording(Path(folder) / "pid_1", buffer_bytes=16 << 20)
        recording.launch(kernel, [PAYLOAD])
        recording.finish()
        yield _recorded(Path(folder) / "pid_1", "records (emulated)", "on the emulator: no GPU was used")


def gpu() -> Iterator[Finding]:
    """Devices, the clock and a recording of the kernel on the first of them."""
    from ..runtime import driver

    try:
        driver.call("cuInit", 0)
        count = int(driver.call("cuDeviceGetCount"))
    except Exception as error:  # the bindings have several ways to say that there is no driver library
        reason = str(error) if isinstance(error, WarptraceError) else "no NVIDIA driver"
        yield Finding("GPU", WARN, f"none: {reason}", NO_GPU)
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not count:
        why = "the driver lists none" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}"
        yield Finding("GPU", WARN, f"none: {why}", NO_GPU)
        return
    seen = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})"
    for ordinal in range(count):
        facts = driver.device_facts(ordinal)
        text = f"{ordinal}: {facts.name}, compute capability {facts.compute_capability}, driver {facts.driver}{seen}"
        yield Finding("GPU", OK, text)
    device = driver.call("cuDeviceGet", 0)
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
    yield _memory(driver, int(sys.argv[2]))
    yield _timer(driver)
    yield from _on_gpu()


NO_GPU = (
    "nothing can be traced here; `warptrace postprocess`, `warptrace report` and `warptrace demo` (emulated) work. "
    "--require-gpu makes this a failure"
)


def _memory(driver: Any, wanted: int) -> Finding:
    from ..runtime.memory import MIN_BUFFER_BYTES

    free, total = (int(n) for n in driver.call("cuMemGetInfo"))
    text = f"{free >> 20} of {total >> 20} MiB free on device 0; the trace buffer takes {format_size(wanted)}"
    if free < MIN_BUFFER_BYTES:
        return Finding("device memory", FAIL, text, f"free {format_size(MIN_BUFFER_BYTES)} at least")
    if free < wanted:
        return Finding("device memory", WARN, text, "it will shrink: free some, or give a smaller --buffer-size")
    return Finding("device memory", OK, text)


def _timer(driver: Any) -> Finding:
    """The step of %globaltimer."""
    import numpy as np

    module = driver.call("cuModuleLoadData", TIMER_PTX.encode() + b"\0")
    function = driver.call("cuModuleGetFunction", module, b"read_timer")
    address = int(driver.call("cuMemAlloc", 8 * TIMER_READS))
    argument = ctypes.c_uint64(address)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0)
    values = np.zeros(TIMER_READS, np.uint64)
    driver.call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes)
    driver.call("cuMemFree", address)
    steps = np.diff(values.astype(np.int64))
    moved = steps[steps > 0]
    if not len(moved):
        return Finding("clock", FAIL, "%globaltimer stands still", "reboot, or report this device")
    step = int(moved.min())
    text = f"%globaltimer moves in steps of {step} ns"
    if step > COARSE_NS:
        return Finding("clock", WARN, text, "times across SMs are no better than that; those within a warp are exact")
    return Finding("clock", OK, text)


def _on_gpu() -> Iterator[Finding]:
    import cutlass
    from cutlass import cute

    from ..cute import tracing
    from ..runtime import driver
    from ..runtime.options import RuntimeOptions
    from ..runtime.recorder import Recorder
    from .kernel import launch_one_event

    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(RuntimeOptions(directory=folder, buffer_bytes=16 << 20))
        recorder.start()
        try:
            with tracing():
                compiled = cute.compile(launch_one_event, cutlass.Int32(1))
            compiled(cutlass.Int32(PAYLOAD))
            driver.call("cuCtxSynchronize")
        finally:
            recorder.stop()
        yield _recorded(recorder.directory, "records", "on device 0")


def _recorded(path: Path, name: str, where: str) -> Finding:
    """Whether a capture holds the kernel's one event, and nothing else."""
    from ..decode import decode
    from ..raw import read_capture

    capture = read_capture(path)
    trace = decode([capture])
    found = [trace.strings[n] for n in trace.markers.name.tolist()], trace.markers.bits.tolist(), len(trace.launches)
    if found == (["doctor"], [PAYLOAD], 1):
        return Finding(name, OK, f"a kernel with one event was recorded {where}")
    told = [*map(str, capture.manifest.get("problems", [])), *(p.text for p in trace.problems)]
    text = f"{where}, a kernel with one event left {found[0]} {found[1]}: {'; '.join(told)}"
    return Finding(name, FAIL, text, REINSTALL)


CHECKS: dict[str, Check] = {"dsl": dsl, "emulator": emulator, "gpu": gpu}
NAMES = {"dsl": "DSL hook", "emulator": "records (emulated)", "gpu": "records"}


def main() -> int:
    """Runs one check; what it raises is a finding too."""
    part = sys.argv[1]
    try:
        for finding in CHECKS[part]():
            _print(finding)
    except WarptraceError as error:
        _print(Finding(NAMES[part], FAIL, str(error)))
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        _print(Finding(NAMES[part], FAIL, text, REINSTALL))
    return 0


def _print(finding: Finding) -> None:
    print(json.dumps(asdict(finding)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
