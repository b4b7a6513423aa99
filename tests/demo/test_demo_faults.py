"""``warptrace demo`` where something is missing or wrong: one clear line, and no result is lost."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_runs import run_demo

from warptrace.cli import demo as verb
from warptrace.demo import emulated, machine, problem
from warptrace.emulator.errors import EmulatorError
from warptrace.errors import WarptraceError
from warptrace.rundir import write_run
from warptrace.runtime import driver
from warptrace.runtime.driver import DeviceFacts, DriverError

NO_DSL = (
    "warptrace: error: the demo compiles a kernel with the CuTe DSL, which is not installed:"
    " pip install 'warptrace[cute]'\n"
)
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cutlass":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
"""

# One element of A is not what the kernel gets.
WRONG_INPUT = """
import sys

if "warptrace.demo.emulated" in sys.orig_argv:
    from warptrace.demo import problem

    right = problem.check

    def check(c, a, b):
        a[7, 300] += 1
        return right(c, a, b)

    problem.check = check
"""


def test_without_site_packages_there_is_no_dsl(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "-o", "out", python=("-S",))
    assert (done.status, done.stdout, done.stderr) == (1, "", NO_DSL)
    assert list(tmp_path.iterdir()) == []


def test_an_import_hook_that_keeps_the_dsl_away(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(BLOCKER)
    done = run_demo(tmp_path, "-o", "out", path=(hooks,))
    assert (done.status, done.stdout, done.stderr) == (1, "", NO_DSL)


def test_a_folder_named_cutlass_is_not_the_dsl(tmp_path: Path) -> None:
    (tmp_path / "cutlass").mkdir()
    done = run_demo(tmp_path, "-o", "out", python=("-S",))
    assert (done.status, done.stderr) == (1, NO_DSL)


@pytest.mark.dsl
def test_a_wrong_product_fails_the_command_and_spares_the_earlier_result(tmp_path: Path) -> None:
    hooks, earlier = tmp_path / "hooks", tmp_path / "out"
    hooks.mkdir()
    earlier.mkdir()
    (hooks / "sitecustomize.py").write_text(WRONG_INPUT)
    write_run(earlier, {"started": datetime(2020, 1, 1, tzinfo=timezone.utc).isoformat()})
    before = (earlier / "run.json").read_text()
    done = run_demo(tmp_path, "--emulate", "-o", "out", "--clobber", path=(hooks,))
    assert done.status == 1
    assert done.stdout == ""
    assert "\ndemo: error: the demo's matrix product is WRONG: relative error " in done.stderr
    assert done.stderr.splitlines()[-1] == "warptrace: error: the demo failed; the lines above say why"
    assert (earlier / "run.json").read_text() == before
    (failed,) = tmp_path.glob("out.failed-*")
    assert len(list(failed.glob("*.pftrace"))) == 1


def test_a_wrong_product_is_an_error() -> None:
    a, b = problem.inputs()
    right = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    assert problem.check(right, a, b).endswith("correct")
    largest = np.abs(right).max()
    for fault in (1e-4 * largest, -1e-4 * largest, np.nan, np.inf):
        wrong = right.copy()
        wrong[-1, 17] += fault
        with pytest.raises(WarptraceError, match="WRONG"):
            problem.check(wrong, a, b)


@pytest.mark.parametrize("error", [WarptraceError("the product is WRONG"), EmulatorError("deadlock")])
def test_the_emulated_run_fails_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception
) -> None:
    def fail(directory: Path) -> str:
        raise error

    monkeypatch.setenv("WARPTRACE_DIR", str(tmp_path))
    monkeypatch.setattr(emulated, "run", fail)
    assert emulated.main() == 1
    assert capsys.readouterr().err == f"demo: error: {error}\n"


def test_event_counts_that_differ_are_named() -> None:
    expected = {"load": 2, "mma": 3}
    assert verb.differences({"mma": 3, "load": 2}, expected) == ""
    assert verb.differences({"mma": 4, "other": 1}, expected) == (
        "load 0 instead of 2, mma 4 instead of 3, other 1 instead of 0"
    )


def test_a_result_of_an_earlier_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    assert not verb._is_from(tmp_path, now)
    write_run(tmp_path, {"started": datetime(2020, 1, 1, tzinfo=timezone.utc).isoformat()})
    assert not verb._is_from(tmp_path, now)
    with pytest.raises(WarptraceError, match="recorded nothing"):
        verb._check_events(tmp_path, now)
    write_run(tmp_path, {"started": now.isoformat()})
    assert verb._is_from(tmp_path, now)


# -- which machine it is --------------------------------------------------------------------------------------------


def facts(name: str, capability: str) -> DeviceFacts:
    return DeviceFacts(name, "", capability, 132, 0, "")


def pretend(monkeypatch: pytest.MonkeyPatch, *gpus: DeviceFacts) -> None:
    """A driver that lists ``gpus``."""
    monkeypatch.setattr(driver, "call", lambda name, *args: len(gpus) if name == "cuDeviceGetCount" else None)
    monkeypatch.setattr(driver, "device_facts", lambda ordinal: gpus[ordinal])


def test_the_first_gpu_that_has_tma_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, facts("old", "8.9"), facts("new", "9.0"), facts("newer", "10.0"))
    assert machine.find_gpu() == machine.Gpu(1, "new", (9, 0))


def test_ten_is_newer_than_nine(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, facts("new", "10.3"))
    assert machine.find_gpu() == machine.Gpu(0, "new", (10, 3))


def test_gpus_that_are_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, facts("A", "8.0"), facts("B", "7.5"))
    assert machine.find_gpu() == (
        "the demo's kernel needs compute capability 9.0 or newer, this machine has A (8.0), B (7.5)"
    )


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    assert machine.find_gpu() == "the driver lists no device"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DriverError("cuInit", 100, "no CUDA-capable device is detected"), "cuInit failed: no CUDA-capable device"),
        (WarptraceError("cuda-bindings cannot be imported"), "cuda-bindings cannot be imported"),
        (RuntimeError("dlopen\nmore"), "no NVIDIA driver"),
    ],
)
def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def call(name: str, *args: Any) -> Any:
        raise error

    monkeypatch.setattr(driver, "call", call)
    found = machine.find_gpu()
    assert isinstance(found, str) and found.startswith(reason) and "\n" not in found


def test_the_command_for_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(monkeypatch, facts("old", "8.9"), facts("NVIDIA H200", "9.0"))
    words, on_emulator = verb._command(False)
    assert (words[1:], on_emulator) == (["-m", "warptrace.demo.gpu", "1"], False)
    assert capsys.readouterr().err == "warptrace: compiling the kernel and running it on GPU 1, NVIDIA H200\n"
    assert verb._command(True)[0][-1] == "warptrace.demo.emulated"


def test_options_are_those_of_profile() -> None:
    given = argparse.Namespace(verb="demo", emulate=True, tail=None, output_dir="x", json_gz=True)
    assert vars(verb._profile_options(given, ["run", "it"])) == {
        "output_dir": "x",
        "json_gz": True,
        "postprocess": "all",
        "words": [],
        "tail": ["run", "it"],
    }
