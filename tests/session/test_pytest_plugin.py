"""The fixture in a pytest of its own, with launches on the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from own_plugin import plugin_words

pytestmark = pytest.mark.dsl

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest
from window_kernel import run

SMALL = {"buffer_size": "16M"}


def test_good(warptrace_capture):
    with warptrace_capture(**SMALL) as run_:
        run(3)
    run_.check.launches(1).complete().only_names("number").count("number", 1, per="warp")
    assert run_.trace.markers.bits.tolist() == [3] * 4


def test_two_blocks(warptrace_capture):
    for n in (1, 2):
        with warptrace_capture(kernel="numbered", **SMALL) as run_:
            run(n)
        run_.check.count("number", 4)


def test_wrong(warptrace_capture):
    with warptrace_capture(**SMALL) as run_:
        run(3)
    run_.check.count("number", 5)


def test_nothing(warptrace_capture):
    with warptrace_capture(**SMALL) as run_:
        pass
    run_.check
"""


def pytest_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_kernels.py").write_text(TESTS)
    env = {key: value for key, value in os.environ.items() if not key.startswith("WARPTRACE")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    line = [sys.executable, "-m", "pytest", "-q", *plugin_words(), "-p", "no:cacheprovider", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=200)


def test_assertions_pass_and_fail(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "--warptrace-output", "kept")
    assert done.returncode == 1
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    assert "AssertionError: 'number' was recorded 4 times, not 5" in done.stdout
    assert "AssertionError: 1 kernel with events (" in done.stdout and "but none was launched in it" in done.stdout
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    names = ["good", "two_blocks", "two_blocks-2", "wrong"]
    assert [name for name in kept if "nothing" not in name] == [f"test_kernels.py-test_{name}" for name in names]


def test_without_the_option_nothing_is_left(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, "-k", "good")
    assert done.returncode == 0, done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["test_kernels.py"]


def test_the_plugin_is_light() -> None:
    code = "import sys, warptrace.pytest_plugin; print('numpy' in sys.modules, 'cutlass' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
