"""Kernels whose source says nothing of warptrace: automatic ranges, and calls of the DSL's own event module."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from gpu_kit import Figure, load, lossless, names, profiled, python, run

from warptrace.runtime.options import AUTO_DEFAULT, AUTO_GROUPS

pytestmark = pytest.mark.gpu

EMULATOR = Path(__file__).resolve().parents[1] / "emulator"
SCRIPT = EMULATOR / "silent_gemm.py"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True, scope="module")
def hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the GEMM example needs a Hopper GPU")


@pytest.mark.parametrize("groups", [AUTO_DEFAULT, AUTO_GROUPS], ids=len)
def test_every_range_of_a_gemm(groups: tuple[str, ...], tmp_path: Path) -> None:
    if str(EMULATOR) not in sys.path:
        sys.path.append(str(EMULATOR))
    import silent_gemm

    words = python(SCRIPT, "--mnk", "1024,1024,512")
    done = run(profiled(tmp_path / "out", words, f"--auto={','.join(groups)}"), tmp_path)
    assert done.status == 0 and " ok" in done.stdout, done.said
    (ctas,) = re.findall(r"blocks (\d+)", done.stdout)
    wanted = silent_gemm.automatic_ranges(silent_gemm.load(), 1024, 1024, 512, 256, 1, int(ctas))
    trace = load(tmp_path / "out")
    assert lossless(trace)
    assert len(trace.launches) == 1
    assert names(trace) == {name: count for group in groups for name, count in wanted[group].items()}


@pytest.mark.parametrize("groups", [AUTO_DEFAULT, AUTO_GROUPS], ids=len)
def test_what_it_costs_a_large_gemm(groups: tuple[str, ...], tmp_path: Path, figure: Figure) -> None:
    """Within a margin that only a broken form would pass; the figure itself is recorded."""
    words = python(SCRIPT, "--mnk", "4096,4096,4096", "--launches", "8", "--no-check")
    options = (f"--auto={','.join(groups)}", "--measure-overhead", "--max-ts-cnt-per-warp", "8000")
    done = run(profiled(tmp_path / "out", words, *options), tmp_path)
    assert done.status == 0, done.said
    (row,) = json.loads((tmp_path / "out" / "overhead.json").read_text())["kernels"]
    figure(f"{'+'.join(groups)}: median ratio to lifetimes alone", round(row["ratio"], 4))
    assert 0.9 < row["ratio"] < 1.5


def test_a_kernel_annotated_for_the_dsls_own_module(tmp_path: Path) -> None:
    """With the DSL's own lowering off and on."""
    for lowered, compiler in ((0, ""), (1, "iket")):
        folder = tmp_path / str(lowered)
        command = profiled(folder, python(PROGRAMS / "annotated.py"))
        done = run(command, tmp_path, **({"CUTE_DSL_COMPILER_OPT": compiler} if compiler else {}))
        assert done.status == 0 and "annotated: ok" in done.stdout, done.said
        trace = load(folder)
        assert lossless(trace)
        warps = 4 * 2
        assert names(trace) == {"begin": warps, "all": warps, "step": 5 * warps}
