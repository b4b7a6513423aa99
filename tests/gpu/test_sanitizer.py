"""NVIDIA's compute-sanitizer finds no bad access in traced kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from gpu_kit import PROGRAMS, Figure, load, names, python, run, totals

pytestmark = pytest.mark.gpu

SANITIZER = shutil.which("compute-sanitizer")


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not on PATH")
def test_memcheck(tmp_path: Path, figure: Figure) -> None:
    """Divergent events, a region that overflows, a launch with no recorder, and one after the recording."""
    assert SANITIZER is not None
    # A failing call of the driver that its caller copes with is no bad access.
    options = ["--tool", "memcheck", "--error-exitcode", "99", "--report-api-errors", "no"]
    words = python(PROGRAMS / "sanitized.py", str(tmp_path / "raw"))
    done = run([SANITIZER, *options, *words], tmp_path)
    assert done.status == 0, done.said
    assert "ERROR SUMMARY: 0 errors" in done.stdout + done.stderr, done.said
    assert "sanitized: ok" in done.stdout
    trace = load(tmp_path / "raw")
    warps, n = 16, 40
    assert [x.warps_recorded for x in trace.launches] == [warps] * 2
    assert totals(trace)[0] + totals(trace)[1] == warps * (2 * n + 2) + warps * 3
    assert totals(trace)[1] > 0
    assert names(trace, trace.launches[1]) == {"begin": warps, "work": warps}
    figure("seconds", round(done.seconds, 1))
