"""Reports, flows, comparison and exports of a GEMM that a GPU ran, and the fixture for tests of kernels."""

from __future__ import annotations

import json
import sqlite3
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from gpu_kit import EXAMPLES, Figure, names, profiled, python, run
from own_plugin import plugin_words

import warptrace

pytestmark = pytest.mark.gpu

LAUNCHES = 6
FLOW = ("--flow", "tma_issue:ab_wait")


@dataclass(frozen=True)
class Runs:
    """The same GEMM with tiles of 128x256 and 128x128, each launched LAUNCHES times."""

    folder: Path
    wide: Path
    narrow: Path

    def cli(self, *words: str) -> dict[str, Any]:
        done = run([sys.executable, "-m", "warptrace", *words], self.folder)
        assert done.status == 0, done.stderr
        data: dict[str, Any] = json.loads(done.stdout)
        return data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the GEMM example needs a Hopper GPU")
    folder = tmp_path_factory.mktemp("reports")
    for name, tile in (("wide", "128x256"), ("narrow", "128x128")):
        words = python(
            EXAMPLES / "hopper_gemm.py", "--mnk", "2048,2048,2048", "--tile", tile, "--launches", str(LAUNCHES)
        )
        done = run(profiled(folder / name, words), folder)
        assert done.status == 0, done.said
    return Runs(folder, folder / "wide", folder / "narrow")


def schema(name: str, data: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((files("warptrace.report") / "schema" / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(document).validate(data)


def test_report(runs: Runs, figure: Figure) -> None:
    data = runs.cli("report", "wide", "--format", "json", *FLOW)
    schema("report.schema.json", data)
    (detail,) = data["details"]
    assert (len(data["launches"]), detail["like"], detail["sound"]) == (LAUNCHES, LAUNCHES, True)
    roles = {role["name"]: role for role in detail["roles"]}
    assert {name: role["warps_in_cta"] for name, role in roles.items()} == {
        "mma_tile": list(range(4, 12)), "load_tile": [0], "setup": [1, 2, 3],
    }  # fmt: skip
    trace = warptrace.load(runs.wide)
    launch = trace.launches[detail["launch"] - 1]
    counts: dict[str, int] = {}
    for role in detail["roles"]:
        assert role["work"] + role["waiting"] + role["gap"] == role["life"]
        for row in (*role["names"], *role["markers"]):
            counts[row["name"]] = counts.get(row["name"], 0) + row["count"]
    assert counts == names(trace, launch)
    (flow,) = detail["flows"]
    assert flow["pairs"] == counts["ab_wait"]
    assert (flow["unfed"], flow["unused"], flow["left_out"], flow["backwards"]) == (0, 0, 0, 0)
    assert 300 < flow["p50"] < 20_000
    place = detail["placement"]
    assert (place["ctas"], place["sms_used"], place["resident_per_sm"]) == (128, 128, 1)
    figure("findings", [finding["text"] for finding in detail["findings"]])
    figure("issue to completion, cycles: p50, p99", [flow["p50"], flow["p99"]])


def test_diff(runs: Runs, figure: Figure) -> None:
    """A run against itself has no change; other tiles are another kernel of the same work, and a significant change."""
    same = runs.cli("diff", "wide", "wide", "--format", "json")
    schema("diff.schema.json", same)
    (kernel,) = same["kernels"]
    assert (kernel["launches_a"], kernel["left_out_a"]) == (LAUNCHES - 1, 1)
    assert kernel["duration_ns"]["change"] == 0.0 and not kernel["duration_ns"]["significant"]
    data = runs.cli("diff", "wide", "narrow", "--format", "json")
    schema("diff.schema.json", data)
    (kernel,) = data["kernels"]
    assert kernel["duration_ns"]["p"] is not None
    figure("128x256 to 128x128, duration", kernel["duration_ns"])
    figure("notes", kernel["cautions"])


def test_exports(runs: Runs) -> None:
    trace = warptrace.load(runs.wide)
    for words in (("--to", "sqlite", "-o", "x.db"), ("--to", "chrome", "-o", "x.json")):
        done = run([sys.executable, "-m", "warptrace", "export", "wide", *words], runs.folder)
        assert done.status == 0, done.stderr
    connection = sqlite3.connect(runs.folder / "x.db")
    assert connection.execute("select count(*) from ranges").fetchone() == (len(trace.ranges),)
    connection.close()
    events = json.loads((runs.folder / "x.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(trace.ranges) + len(trace.warps)


FIXTURE_TEST = """
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

import warptrace.cute as iket


@cute.kernel
def kernel(out: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    iket.range_push("outer", block)
    iket.range_push("inner")
    out[block] = block
    iket.range_pop()
    iket.range_pop()


@cute.jit
def host(out: cute.Tensor):
    kernel(out).launch(grid=[4, 1, 1], block=[64, 1, 1])


def test_kernel(warptrace_capture):
    out = torch.full((4,), -1, dtype=torch.int32, device="cuda")
    with warptrace_capture(buffer_size="64M") as run:
        compiled = cute.compile(host, from_dlpack(out))
        compiled(from_dlpack(out))
    assert out.tolist() == [0, 1, 2, 3]
    run.check.launches(1).complete().only_names("outer", "inner").nested("inner", "outer")
    run.check.count("outer", 1, per="warp").count("inner", 8).no_overlap("outer").budget("outer", 1_000_000)
    with pytest.raises(AssertionError, match="takes .* cycles, more than 1"):
        run.check.budget("outer", 1)
"""


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(FIXTURE_TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"]
    done = run([*words, *plugin_words()], tmp_path)
    assert done.status == 0, done.stdout
