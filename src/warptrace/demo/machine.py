"""Whether this machine can run the demo's kernel on a GPU, and whether it can compile it at all."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from ..errors import WarptraceError

OLDEST_CAPABILITY = (9, 0)
"""TMA came with Hopper."""


@dataclass(frozen=True)
class Gpu:
    """A device that can run the kernel. ``ordinal`` as the CUDA driver counts the visible ones."""

    ordinal: int
    name: str
    capability: tuple[int, int]


def find_gpu() -> Gpu | str:
    """The first usable GPU, or why there is none. Needs no context and no torch."""
    from ..runtime import driver

    try:
        driver.call("cuInit", 0)
        count = int(driver.call("cuDeviceGetCount"))
        found = [_describe(driver, ordinal) for ordinal in range(count)]
    except WarptraceError as error:  # no bindings, or a driver that answers with an error
        return str(error)
    except Exception:  # the bindings have several ways to say that there is no driver library
        return "no NVIDIA driver"
    for gpu in found:
        if gpu.capability >= OLDEST_CAPABILITY:
            return gpu
    if not found:
        return "the driver lists no device"
    names = ", ".join(f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in found)
    return f"the demo's kernel needs compute capability 9.0 or newer, this machine has {names}"


def dsl_installed() -> bool:
    """Whether the CuTe DSL can be imported, without importing it. A mere folder named cutlass does not count."""
    try:
        spec = importlib.util.find_spec("cutlass")
    except ImportError:  # an import hook that keeps it away
        return False
    return spec is not None and spec.origin is not None


def _describe(driver: Any, ordinal: int) -> Gpu:
    facts = driver.device_facts(ordinal)
    major, minor = (int(part) for part in facts.compute_capability.split("."))
    return Gpu(ordinal, facts.name, (major, minor))

