"""Kernels of other people's packages, unmodified: they compile with automatic ranges, and do what they did."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warptrace.runtime.options import AUTO_GROUPS

for package in ("cutlass", "torch", "triton", "tvm_ffi", "quack"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (docs/third-party.md)", allow_module_level=True)

SCRIPT = Path(__file__).parent / "third_party_kernels.py"
ALL = ",".join(AUTO_GROUPS)
PACKAGES = {"attention_fwd": "flash_attn", "attention_bwd": "flash_attn", "trimul": "fast_trimul"}


def found_by(arch: str, what: str, *cases: str, folder: Path) -> Any:
    """What the kernels record, those of packages that are not installed left out."""
    number = arch.removeprefix("sm_").rstrip("a")
    there = [c for c in cases if importlib.util.find_spec(PACKAGES.get(c, "quack"))]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    env |= {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "WARPTRACE": "1",
        "CUTE_DSL_ARCH": arch, "QUACK_ARCH": number, "FLASH_ATTENTION_ARCH": number, "FLASH_ATTENTION_NUM_SMS": "132",
        "QUACK_CACHE_ENABLED": "0", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
        "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(folder),
    }  # fmt: skip
    words = [sys.executable, str(SCRIPT), arch, what, *there]
    done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=folder, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("FOUND ")[2])
    assert found.pop("without") == [] and list(found) == there
    return found


def names(kernels: dict[str, list[list[str]]]) -> set[str]:
    return {name for sites in kernels.values() for name, _ in sites}


WANTED = {
    "softmax": {"arch.cp_async_wait_group", "arch.barrier", "cute.copy"},
    "rmsnorm": {"arch.cp_async_wait_group", "arch.barrier", "cute.copy"},
    # the library's own calls of cute.experimental.iket stand beside ours
    "gemm": {"ab_pipeline.consumer_wait", "_scheduler_pipeline.consumer_wait", "epi_store_pipeline.producer_acquire"}
    | {"tma_load", "mma", "epilogue"},
    "attention_bwd": {"arch.griddepcontrol_wait", "pipeline_Q.consumer_wait", "pipeline_dO.consumer_wait"},
    "trimul": {"arch.cp_async_wait_group", "arch.sync_threads", "cute.gemm"},
}
OF_ARCH = {
    "sm_90a": {
        "gemm": {"warpgroup.wait_group", "cute.gemm"},
        "attention_fwd": {"pipeline_k.consumer_wait", "pipeline_v.consumer_wait", "pipeline_v.producer_acquire"},
    },
    "sm_100a": {
        "gemm": {"acc_pipeline.consumer_wait", "arch.fence_view_async_tmem_load"},
        "attention_fwd": {"pipeline_kv.consumer_wait", "pipeline_s_p_o.consumer_wait"},
    },
}


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_group(arch: str, tmp_path: Path) -> None:
    found = found_by(arch, ALL, *WANTED, "attention_fwd", folder=tmp_path)
    for case, kernels in found.items():
        assert len(kernels) >= (2 if case == "attention_bwd" else 1)
        wanted = WANTED.get(case, set()) | OF_ARCH[arch].get(case, set())
        assert wanted <= names(kernels), case
        # no event is said to come from the DSL, or from a library's module of pipelines
        files = {file for sites in kernels.values() for name, file in sites if not name.startswith("pipeline.")}
        assert not files & {"pipeline.py", "typing_extensions.py", "contextlib.py", "functools.py"}, case


def test_lifetimes(tmp_path: Path) -> None:
    found = found_by("sm_90a", "lifetimes", "softmax", "gemm", "attention_fwd", folder=tmp_path)
    assert all(len(kernels) == 1 and names(kernels) == set() for kernels in found.values())


def test_rows_on_the_emulator(tmp_path: Path) -> None:
    """Six rows of 512: two blocks of four warps, a row a warp, of which two have none in the second block."""
    cases = ("emulated-softmax", "emulated-rmsnorm")
    found = found_by("sm_90a", "waits,barriers,copies", *cases, folder=tmp_path)
    every = {"arch.cp_async_commit_group": 8, "arch.cp_async_wait_group": 8, "cute.autovec_copy": 8}
    for case, copies in (("softmax", 6 + 6), ("rmsnorm", 6 + 6 + 8)):
        of = found[f"emulated-{case}"]
        assert of["counts"] == {**every, "cute.copy": copies}
        assert (of["warps"], of["lost"], of["problems"]) == (8, 0, [])
        assert of["error"] < 2**-8  # half a unit of bfloat16's last place
