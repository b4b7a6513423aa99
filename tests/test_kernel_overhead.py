"""What of benchmarks/kernel_overhead.py needs no GPU: sources with another event API, figures, table, command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

kernel_overhead: Any = pytest.importorskip("kernel_overhead", reason="this copy of the source has no benchmarks folder")
profilers = kernel_overhead.profilers
KERNELS = ROOT / "benchmarks" / "kernel_overhead_kernels.py"


@pytest.mark.parametrize("source", [kernel_overhead.GEMM, KERNELS], ids=lambda p: p.stem)
def test_only_the_api_differs(source: Path, tmp_path: Path) -> None:
    ours = profilers.with_api(source, "ours", tmp_path).read_text()
    assert ours == source.read_text()
    reference = profilers.with_api(source, "reference", tmp_path).read_text()
    assert "warptrace.cute" not in reference and "cute.experimental.iket" in reference
    plain = profilers.with_api(source, None, tmp_path)
    compile(plain.read_text(), str(plain), "exec")
    assert "import warptrace.cute" not in plain.read_text()
    assert plain.read_text().count("Plain") >= 2


def test_a_source_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("import warptrace.cute as wt\n")
    with pytest.raises(RuntimeError, match="does not import the event API as expected"):
        profilers.with_api(path, "ours", tmp_path)


def test_a_copy_without_events_is_the_example(tmp_path: Path) -> None:
    """The GEMM's copy without events loads: its arithmetic is that of the example."""
    module = profilers.module_of(profilers.with_api(kernel_overhead.GEMM, None, tmp_path))
    assert module.grid_size(4096, 4096, module.GemmConfig()) == 132


def test_figures() -> None:
    found = kernel_overhead.figures({"plain": [100.0, 200.0, 100.0, 100.0], "traced": [101.0, 204.0, 103.0, 104.0]})
    assert found == {"plain_us": 100.0, "traced_us": 103.5, "ratio": 1.025, "ratio_low": 1.0125, "ratio_high": 1.0375}


def test_a_capture_without_loss_counts() -> None:
    """The figures of a launch on an H200: all events, counted without decoding them."""
    found = kernel_overhead.recorded(ROOT / "tests" / "fixtures" / "h200_gemm_512")
    import warptrace

    trace = warptrace.load(ROOT / "tests" / "fixtures" / "h200_gemm_512")
    assert found["events"] == max(launch.events for launch in trace.launches) > 1000
    assert found["builds"][0]["registers"] > 100


def test_table() -> None:
    one = {"plain_us": 187.04, "traced_us": 190.0, "ratio": 1.01614, "ratio_low": 1.01, "ratio_high": 1.02}
    lines = kernel_overhead.table({"gemm_4096": {"ours": one, "reference": one}, "stream": {"ours": one}}).splitlines()
    assert lines == [
        "workload        plain us  traced us         ratio (quartiles)                 reference",
        "gemm_4096          187.0      190.0       1.016 (1.010-1.020)       1.016 (1.010-1.020)",
        "stream             187.0      190.0       1.016 (1.010-1.020)                         -",
    ]


def test_wrong_workload(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernel_overhead.arguments(["--workloads", "gemm_1"])
    assert "unknown workload gemm_1" in capsys.readouterr().err


def test_a_child_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def profiled(api: str, workload: str, args: Any, folder: Path) -> dict[str, Any]:
        if workload == "stream":
            raise RuntimeError("it broke")
        times = {"plain": [100.0, 100.0], "traced": [102.0, 102.0]}
        return {"times": times, "versions": {"torch": "2"}, "events": 7, "builds": []}

    monkeypatch.setattr(kernel_overhead, "profiled", profiled)
    monkeypatch.setattr(kernel_overhead, "device", lambda: {"name": "Some GPU", "driver": "580.1"})
    path = tmp_path / "out.json"
    words = ["--workloads", "entry_132,stream", "--no-reference", "--json", str(path)]
    assert kernel_overhead.main(words) == 1
    data = json.loads(path.read_text())
    assert data["figures"]["entry_132"]["ours"]["ratio"] == 1.02
    assert (data["events"], data["failures"]) == ({"entry_132": 7}, {"ours stream": "it broke"})
    assert "error: ours stream: it broke" in capsys.readouterr().err
