"""What ``warptrace profile`` is told to record: options, files and what comes of them in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, Cli, environment

import warptrace
from warptrace.cli import parse
from warptrace.cli.profile import Request
from warptrace.errors import UsageError
from warptrace.selection import Selection

PROGRAM = """
import fake_gpu
gemm, tail = fake_gpu.Kernel("gemm"), fake_gpu.Kernel("tail", events=2)
for _ in range(6):
    gemm.launch()
    tail.launch()
"""


def selection_of(*words: str) -> Selection:
    """What a line asks for."""
    _, options = parse([*words, "--", "x"])
    return Request.from_options(options).selection


def profile(folder: Path, *options: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Profiles a program on the fake GPU, its result in ``run``."""
    (folder / "program.py").write_text(program)
    env = environment()
    env["PYTHONPATH"] = f"{ROOT / 'tests' / 'fakes'}:{env['PYTHONPATH']}"
    words = ["profile", "-o", "run", "--postprocess", "json", *options, "--", sys.executable, "program.py"]
    return subprocess.run(
        [sys.executable, "-m", "warptrace", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


def launched(folder: Path) -> list[tuple[str, int]]:
    """(kernel, events) of each launch in the JSON."""
    (path,) = folder.glob("run/*.trace.json")
    return [(x["kernelName"], x["warptrace"]["events"]) for x in json.loads(path.read_text())["launches"]]


# --------------------------------------------------------------------------------------------------------- the line
def test_options_stand_on_either_side_of_the_verb(tmp_path: Path) -> None:
    config = tmp_path / "clusters.json"
    config.write_text('{"gemm": [[1, 0, 0], [2, 0, 0]], "tail": "all"}')
    words = ["--warps", "0-3,8", "--launch-skip", "2", "--launch-count=3", "--cta-stride", "4"]
    words += ["--enabled-cluster-config", str(config)]
    want = Selection(
        clusters_by_kernel=(("gemm", ((1, 0, 0), (2, 0, 0))), ("tail", None)),
        warps=(0, 1, 2, 3, 8),
        launch_skip=2,
        launch_count=3,
        cta_stride=4,
    )
    assert selection_of(*words, "profile") == selection_of("profile", *words) == want
    assert selection_of("--enabled-cluster", "1,2,3", "profile").clusters == ((1, 2, 3),)
    assert selection_of("profile").everything


def test_kernels_gather_from_both_sides() -> None:
    assert selection_of("--kernel", "a", "--kernel", "b", "profile").kernels == ("a", "b")
    assert selection_of("profile", "--kernel", "a", "--kernel", "b").kernels == ("a", "b")
    assert selection_of("--kernel", "a", "--kernel", "b", "profile", "--kernel", "a").kernels == ("a", "b", "a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kernel", "a("], "--kernel 'a(' is not a regular expression: missing ), unterminated subpattern at positi"),
        (["--enabled-cluster", "1,2"], "argument --enabled-cluster: '1,2' is not a cluster: write its coordinates"),
        (["--enabled-cluster", "1,2,-3"], "argument --enabled-cluster: '1,2,-3' is not a cluster"),
        (["--enabled-cluster-config", "no.json"], "--enabled-cluster-config no.json cannot be read: No such file"),
        (["--cta-stride", "0"], "argument --cta-stride: '0' is not a whole number of at least 1"),
        (["--cta-stride", "4294967296"], "--cta-stride 4294967296 is out of range: choose 1 to 4294967295"),
        (["--warps", "32"], "argument --warps: '32' names warp 32: a CTA has at most 32 warps, 0 to 31"),
        (["--warps", "x"], "argument --warps: 'x' is not a list of warps"),
        (["--launch-skip", "-1"], "argument --launch-skip: '-1' is not a whole number of at least 0"),
        (["--launch-count", "0"], "argument --launch-count: '0' is not a whole number of at least 1"),
        (["--enabled-cluster", "0,0,0", "--cta-stride", "2"], "--enabled-cluster and --cta-stride exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_lines_that_cannot_be_used(words: list[str], message: str) -> None:
    for line in (["profile", *words], [*words, "profile"]):
        with pytest.raises(UsageError) as caught:
            selection_of(*line)
        assert str(caught.value).startswith(message)
        assert caught.value.exit_code == 2


def test_a_fault_is_one_line_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    done = cli("profile", "-o", "run", "--kernel", "*", "--", "touch", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    error = "--kernel '*' is not a regular expression: nothing to repeat at position 0"
    assert done.stderr == f"warptrace: error: {error}\n"
    (tmp_path / "clusters.json").write_text('{"gemm": [1, 2]}')
    done = cli("profile", "-o", "run", "--enabled-cluster-config", "clusters.json", "--", "touch", "ran")
    assert done.returncode == 2
    assert done.stderr == (
        "warptrace: error: --enabled-cluster-config clusters.json: 'gemm' must be [x, y, z], a list of such, null or"
        ' "all", not [1, 2]\n'
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clusters.json"]


@pytest.mark.parametrize("verb", ["postprocess", "dump", "demo"])
def test_other_verbs_have_none_of_it(cli: Cli, verb: str) -> None:
    done = cli("--warps", "1", verb, *([] if verb == "demo" else ["x"]))
    assert (done.returncode, done.stderr) == (2, f"warptrace: error: --warps is not an option of `warptrace {verb}`\n")


def test_help_tells_all(cli: Cli) -> None:
    text = cli("profile", "--help").stdout
    for option in ("--kernel REGEX", "--enabled-cluster X,Y,Z", "--enabled-cluster-config FILE", "--cta-stride K"):
        assert option in text
    for option in ("--warps LIST", "--launch-skip N", "--launch-count M"):
        assert option in text


# ---------------------------------------------------------------------------------------------------------- the run
def test_without_options_all_is_recorded(tmp_path: Path) -> None:
    done = profile(tmp_path)
    assert done.returncode == 0, done.stderr
    assert launched(tmp_path) == [("kernel_gemm_0", 6), ("kernel_tail_0", 4)] * 6
    (manifest,) = tmp_path.glob("run/raw/*/manifest.json")
    assert json.loads(manifest.read_text())["selection"] is None


def test_a_window_of_the_launches_of_one_kernel(tmp_path: Path) -> None:
    done = profile(tmp_path, "--kernel", "gemm", "--launch-skip", "2", "--launch-count", "3")
    assert done.returncode == 0, done.stderr
    assert launched(tmp_path) == [("kernel_gemm_0", 6)] * 3
    assert "not recorded, as --kernel asks: kernel_tail_0" in done.stderr
    assert "warning" not in done.stderr
    run: dict[str, Any] = json.loads((tmp_path / "run" / "run.json").read_text())
    want = Selection(kernels=("gemm",), launch_skip=2, launch_count=3).to_json()
    assert run["options"]["selection"] == want
    (manifest,) = tmp_path.glob("run/raw/*/manifest.json")
    kept = json.loads(manifest.read_text())
    assert (kept["selection"], kept["deselected"]) == (want, ["kernel_tail_0"])
    assert list(kept["launches"].values()) == [6]


def test_names_that_match_no_kernel_are_told(tmp_path: Path) -> None:
    (tmp_path / "clusters.json").write_text('{"gemm": "all", "conv": [0, 0, 0]}')
    done = profile(tmp_path, "--kernel", "gemm", "--kernel", "^attention", "--enabled-cluster-config", "clusters.json")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "warning" in line] == [
        "warptrace: warning: --kernel '^attention' matches no kernel of this run",
        "warptrace: warning: 'conv' of --enabled-cluster-config matches no kernel of this run",
    ]


def test_no_kernel_is_wanted(tmp_path: Path) -> None:
    done = profile(tmp_path, "--kernel", "attention", "--no-keep")
    assert done.returncode == 0
    (line,) = [x for x in done.stderr.splitlines() if "nothing was recorded" in x]
    assert line == (
        "warptrace: warning: nothing was recorded: 2 kernels with events were compiled in 1 Python process, and left"
        " out by --kernel attention (kernel_gemm_0, kernel_tail_0); give another REGEX"
    )


def test_all_launches_are_skipped(tmp_path: Path) -> None:
    done = profile(tmp_path, "--launch-skip", "6")
    assert done.returncode == 0
    (line,) = [x for x in done.stderr.splitlines() if "nothing was recorded" in x]
    assert line == (
        "warptrace: warning: nothing was recorded: 2 kernels with events (gemm, tail) launched 12 times in 1 Python"
        " process, but --launch-skip 6 leaves them all out: no kernel was launched more than 6 times"
    )


def test_a_selection_that_a_kernel_was_not_compiled_with_is_told(tmp_path: Path) -> None:
    """The kernels of the fake GPU have no compiler: they come as those do that were compiled before a recording."""
    done = profile(tmp_path, "--warps", "1")
    assert done.returncode == 0
    text = "was compiled before this recording, with another selection: everything is recorded, not warp 1"
    assert f"kernel kernel_gemm_0 {text}; compile it again" in done.stderr


def test_a_killed_program_misses_only_what_was_wanted(tmp_path: Path) -> None:
    """Host code counts all launches; those that were not to be recorded are not missing."""
    program = PROGRAM + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = profile(tmp_path, "--kernel", "gemm", "--launch-skip", "5", program=program)
    assert done.returncode == 137
    (problem,) = [p for p in warptrace.load(tmp_path / "run").problems if p.kind == "lost_launches"]
    assert problem.text.startswith("1 of 1 launches of gemm by process ")
