"""The small kernels of benchmarks/kernel_overhead.py: they compile with each event API, and record what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cutlass
import emulated
import numpy as np
import pytest
from dsl_build import build, tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

profilers: Any = pytest.importorskip("profilers", reason="this copy of the source has no benchmarks folder")
KERNELS = ROOT / "benchmarks" / "kernel_overhead_kernels.py"
CTAS, THREADS = 2, 256
KINDS = {"stream": (cutlass.Float32, 3), "entry": (cutlass.Int32, 1)}


def compiled(name: str, api: str | None, folder: Path) -> Any:
    dtype, tensors = KINDS[name]
    module = profilers.module_of(profilers.with_api(KERNELS, api, folder))
    return build(getattr(module, name), *(tensor(dtype, CTAS * THREADS) for _ in range(tensors)))


@pytest.mark.parametrize(("name", "events"), [("stream", ["begin", "add", "POP"]), ("entry", ["begin"])])
def test_with_our_events(name: str, events: list[str], tmp_path: Path) -> None:
    kernel = compiled(name, "ours", tmp_path)
    dtype = np.float32 if name == "stream" else np.int32
    arrays = [np.arange(CTAS * THREADS).astype(dtype) for _ in range(KINDS[name][1])]
    warps, _ = emulated.run(kernel, arrays, grid=CTAS, block=THREADS, lane=0)
    assert len(warps) == CTAS * THREADS // 32
    assert {tuple(warp.named()) for warp in warps} == {tuple(events)}


@pytest.mark.parametrize("name", KINDS)
def test_without_events(name: str, tmp_path: Path) -> None:
    """Its own name, and nothing of ours in it."""
    kernel = compiled(name, None, tmp_path)
    assert kernel.records == ()
    assert f"{name}_kernelPlain" in kernel.entry.name


@pytest.mark.parametrize("name", KINDS)
def test_with_the_api_of_the_other(name: str, tmp_path: Path) -> None:
    assert compiled(name, "reference", tmp_path).entries
