"""``warptrace diff`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ROOT, Cli

GEMM = ROOT / "tests" / "fixtures" / "h200_gemm_512"

needs_capture = pytest.mark.skipif(not GEMM.is_dir(), reason="the capture is not in this checkout")


def test_a_run_with_itself(cli: Cli, run_dir: Path) -> None:
    done = cli("diff", "run", "run", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert (data["format"], data["label_a"], data["refused"]) == ("warptrace-diff", "run", [])
    (kernel,) = data["kernels"]
    assert [(row["name"], row["mean"]["change"]) for row in kernel["names"]] == [("load", 0.0)]


@needs_capture
def test_two_launches(cli: Cli) -> None:
    done = cli("diff", str(GEMM), str(GEMM), "--launches", "1", "2", "--format", "markdown")
    assert done.returncode == 0, done.stderr
    assert "duration 8.83 us -\\> 8.18 us, -7.3 %: nothing is known of chance (1 and 1 launches)" in done.stdout
    row = "| mma\\_tile | ab\\_wait | 512 | 512 | 490.2 | 298.2 | -39.2 % | - | 251008 | 152699 | -98309 |"
    assert row in done.stdout
    text = cli("diff", str(GEMM), str(GEMM), "--launches", "1", "2", "--top", "1").stdout
    assert "... and 19 more rows" in text and text.splitlines()[-1].startswith("* significant: p below 0.05")


@needs_capture
def test_what_cannot_be_compared(cli: Cli, run_dir: Path) -> None:
    done = cli("diff", "run", str(GEMM))
    assert done.returncode == 1
    assert f"not comparable: run was emulated and {GEMM} ran on a GPU" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["run"], 2, "the following arguments are required: B"),
        (["run", "run", "--launches", "1", "7"], 2, "no launch with number 7: the trace has demo"),
        (["run", "run", "--warm-up", "-1"], 2, "--warm-up needs a number of at least 0"),
        (["run", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes(cli: Cli, run_dir: Path, words: list[str], status: int, error: str) -> None:
    done = cli("diff", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert error in done.stderr and done.stderr.count("\n") == 1
