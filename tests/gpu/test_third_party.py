"""Kernels of other people's packages on a GPU: right while traced, and every event there. Skipped where they are not
installed; docs/third-party.md says which they are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from gpu_kit import ROOT, Figure, load, lossless, names, profiled, python, run, totals

pytestmark = pytest.mark.gpu

SCRIPT = ROOT / "benchmarks" / "third_party.py"
WANTED = {
    "softmax": {"arch.cp_async_wait_group"},
    "gemm_dynamic": {"ab_pipeline.consumer_wait", "_scheduler_pipeline.consumer_wait", "mma"},
    "attention_fwd": {"pipeline_k.consumer_wait", "pipeline_v.consumer_wait", "warpgroup.wait_group"},
    "trimul": {"arch.cp_async_wait_group", "arch.sync_threads"},
}
PACKAGES = {"attention_fwd": "flash_attn", "trimul": "fast_trimul"}
OFF = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0", "FAST_TRIMUL_AUTOTUNE": "0"}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.fixture(autouse=True, scope="module")
def there() -> None:
    if not SCRIPT.exists():
        pytest.skip("this copy of the source has no benchmarks folder")
    if not installed("quack"):
        pytest.skip("quack-kernels is not installed")
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the names of the ranges are those of the packages' Hopper kernels")


def test_right_and_complete(tmp_path: Path, figure: Figure) -> None:
    """In one process, with the graph that one of them replays."""
    kernels = [k for k in WANTED if installed(PACKAGES.get(k, "quack"))]
    words = python(SCRIPT, "--child", "found.json", "--rounds", "2", "--kernels", ",".join(kernels))
    # One launch of each: of a layer norm a launch has 14 million events.
    command = profiled(tmp_path / "out", words, "--auto", "--launch-count", "1", "--buffer-size", "2G")
    done = run(command, tmp_path, QUACK_CACHE_ENABLED="0", **OFF)
    assert done.status == 0, done.said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failures"] == {}
    for kernel, error in found["errors"].items():
        figure(f"{kernel}: error as a part of what is allowed", round(error, 3))
        assert error <= 1
    trace = load(tmp_path / "out")
    assert lossless(trace), totals(trace)
    seen = set(names(trace))
    for kernel in kernels:
        assert WANTED[kernel] <= seen, kernel


def test_kernels_from_the_librarys_cache(tmp_path: Path) -> None:
    """Compiled by one traced process, loaded from the object file by the next, which records the same."""
    counted = []
    for number in range(2):
        words = python(SCRIPT, "--child", "found.json", "--rounds", "1", "--kernels", "softmax")
        cache = {"QUACK_CACHE_ENABLED": "1", "QUACK_CACHE_DIR": str(tmp_path / "cache")}
        done = run(profiled(tmp_path / f"out{number}", words, "--auto"), tmp_path, **cache)
        assert done.status == 0, done.said
        assert json.loads((tmp_path / "found.json").read_text())["errors"]["softmax"] <= 1
        trace = load(tmp_path / f"out{number}")
        assert lossless(trace)
        counted.append(names(trace))
    assert list((tmp_path / "cache").rglob("*.o"))
    assert counted[0] == counted[1] != {}
