"""examples/hopper_gemm.py with event calls that do nothing, and a launch of it on the emulator."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cutlass
import numpy as np
from cutlass import cute

from warptrace.emulator import Device
from warptrace.emulator.cute import CompiledKernel, compile_kernel

FILE = Path(__file__).parents[2] / "examples" / "hopper_gemm.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("silent_hopper_gemm", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["silent_hopper_gemm"] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    nothing: Any = lambda *a, **k: None  # noqa: E731
    token: Any = lambda *a, **k: cutlass.Int32(0)  # noqa: E731
    module.iket = SimpleNamespace(
        mark=nothing, range_push=nothing, range_pop=nothing, range_end=nothing, range_start=token, sentinel_token=token
    )
    return module


def automatic_ranges(module: Any, m: int, n: int, k: int, tile_n: int, cluster: int, ctas: int) -> Any:
    """{group: {name: ranges in one launch}}, from the example's own count of its events."""
    of = module.expected_events(m, n, k, 128, tile_n, 64, ctas, cluster)
    return {
        "waits": {
            "ring.producer_acquire": of["ab_empty_wait"],
            "ring.producer_tail": of["load_tail"],
            "ring.consumer_wait": of["ab_wait"],
            "warpgroup.wait_group": of["ab_wait"] + of["mma_drain"],
            "arch.cp_async_bulk_wait_group": of["epi_tma_store"] + of["epi_drain"],
        },
        "barriers": {
            "barrier.arrive_and_wait": 2 * of["epi_smem_store"],
            "pipeline.agent_sync": of["pipeline_init"],
        },
        "arrivals": {"ring.consumer_release": of["ab_wait"]},
        "copies": {
            "cute.copy": 2 * of["tma_issue"] + of["epi_smem_store"] + of["epi_tma_store"],
            "arch.cp_async_bulk_commit_group": of["epi_tma_store"],
        },
        "mma": {
            "warpgroup.fence": of["wgmma"],
            "cute.gemm": 4 * of["wgmma"],  # instructions in a k tile
            "warpgroup.commit_group": of["wgmma"],
        },
        "scheduler": {},
    }


def compiled(module: Any, tile_n: int, cluster: int, **kwargs: Any) -> CompiledKernel:
    config = module.GemmConfig(128, tile_n, cluster_m=cluster)
    matrices = [module.fake_matrix() for _ in range(3)]
    stream = cute.runtime.make_fake_stream()
    return compile_kernel(module.HopperGemm(config), *matrices, cutlass.Int32(1), stream, **kwargs)


def arguments(device: Device, ptx: str, m: int, n: int, k: int, tile_n: int, cluster: int, *, hidden: int) -> Any:
    """(kernel arguments, array of the product, what it should be). ``hidden``: parameters that tracing added."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(m, k)).astype(np.float16), rng.normal(size=(n, k)).astype(np.float16)
    da, db, dc = device.alloc(a), device.alloc(b), device.alloc(np.full((m, n), np.nan, np.float16))
    maps = [
        device.tensor_map(da, "f16", (k, m), (2 * k,), (64, 128), 128),
        device.tensor_map(db, "f16", (k, n), (2 * k,), (64, tile_n // cluster), 128),
        device.tensor_map(dc, "f16", (n, m), (2 * n,), (64, 64), 128),
    ]
    shapes = [np.array(s, np.int32).tobytes() for s in ((m, k), (n, k), (m, n))]
    args: list[Any] = [x for pair in zip(maps, shapes) for x in pair]
    # what follows the tensors are one-byte flags of the two tiled MMAs
    flags = len(re.findall(r"\.param ", ptx.split(".reqntid")[0])) - len(args) - hidden
    return args + [b"\0"] * flags, dc, a.astype(np.float64) @ b.T.astype(np.float64)


if __name__ == "__main__":
    sys.exit(load().main())
