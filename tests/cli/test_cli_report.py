"""``warptrace report`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ROOT, Cli

GEMM = ROOT / "tests" / "fixtures" / "h200_gemm_512"

needs_capture = pytest.mark.skipif(not GEMM.is_dir(), reason="the capture is not in this checkout")


def test_text_of_a_run(cli: Cli, run_dir: Path) -> None:
    done = cli("report", "run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].rstrip() == "1 launch recorded (emulated: times are not those of a GPU)"
    assert any(line.startswith("Launch 1: demo") for line in lines)
    assert "load: cycles; total and self as a share of the role's life" in lines


def test_json_of_a_run(cli: Cli, run_dir: Path) -> None:
    done = cli("report", "run", "--format", "json", "--by", "sm")
    data = json.loads(done.stdout)
    assert (done.returncode, data["format"], data["version"]) == (0, "warptrace-report", 1)
    assert data["details"][0]["by"]["key"] == "sm"


def test_markdown_of_a_run(cli: Cli, run_dir: Path) -> None:
    done = cli("report", "run", "--format", "markdown", "--by", "name", "--top", "1")
    assert done.returncode == 0
    assert "### By name" in done.stdout and "| load | 2 |" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["report", "run", "--kernel", "nix"], 2, "no launch with kernel 'nix': the trace has demo"),
        (["report", "run", "--launch", "3"], 2, "no launch with number 3: the trace has demo"),
        (["report", "run", "--wait", "("], 2, "--wait '(' is no regular expression: "),
        (["report", "run", "--flow", "a"], 2, "flow 'a' is not SOURCE:TARGET"),
        (["report", "nowhere"], 1, "nowhere"),
        (["report", "run", "--by", "colour"], 2, "--by: invalid choice: 'colour'"),
        (["report", "run", "--top", "0"], 2, "'0' is not a whole number of at least 1"),
    ],
)
def test_mistakes(cli: Cli, run_dir: Path, words: list[str], status: int, error: str) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("warptrace: error: ") and error in done.stderr and done.stderr.count("\n") == 1


def test_a_run_without_launches(cli: Cli, workload: list[str]) -> None:
    cli("profile", "-o", "run", "--postprocess", "none", "--", *workload, "empty:7")
    done = cli("report", "run")
    assert (done.returncode, done.stdout.strip()) == (1, "0 launches recorded (emulated: times are not those of a GPU)")


@needs_capture
def test_kernel_launch_wait_and_flow(cli: Cli) -> None:
    done = cli("report", str(GEMM), "--kernel", "HopperGemm", "--launch", "1", "--wait", "drain",
               "--flow", "tma_issue:ab_wait", "--format", "json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert [detail["launch"] for detail in data["details"]] == [1]
    assert data["wait_names"] == ["mma_drain", "epi_drain"]
    (flow,) = data["details"][0]["flows"]
    assert (flow["source"], flow["target"], flow["pairs"], flow["unfed"]) == ("tma_issue", "ab_wait", 512, 0)
