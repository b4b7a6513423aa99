"""The results file of ``pytest -m gpu --gpu-results FILE``."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_results
import pytest

import warptrace

HERE = Path(__file__).resolve().parent

TESTS = '''
import pytest

pytestmark = pytest.mark.gpu


def test_figures(record_property):
    record_property("cycles", [37.5, 38.0])
    record_property("path", object)


def test_fails(record_property):
    record_property("ratio", 1.5)
    assert 1.5 < 1.1


@pytest.fixture
def broken():
    raise OSError("no such device")


def test_breaks(broken):
    pass


@pytest.mark.skip(reason="not here")
def test_skipped():
    pass


@pytest.mark.xfail(reason="known")
def test_known():
    assert False
'''
BROKEN = "raise ImportError('no such module')\n"
PLAIN = "def test_without_gpu():\n    pass\n"
CONFTEST = '''
from pathlib import Path
from gpu_results import GpuResults


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs one")
    config.pluginmanager.register(GpuResults(Path("made/results.json")))
'''


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """(content of the results file, output) of a small session of tests that need no GPU."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_plain.py").write_text(PLAIN)
    (folder / "test_broken.py").write_text(BROKEN)
    (folder / "conftest.py").write_text(CONFTEST)
    path = [str(HERE), str(Path(warptrace.__file__).parents[1])]
    code = f"import sys; sys.path[:0] = {path!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "--continue-on-collection-errors"],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return json.loads((folder / "made" / "results.json").read_text()), done.stdout


def test_every_gpu_test_has_its_outcome_and_figures(session: tuple[Any, str]) -> None:
    data, _ = session
    tests = {test.pop("test"): test for test in data["tests"]}
    assert all(test.pop("seconds") >= 0 for test in tests.values())
    broken = tests.pop("test_broken.py")
    assert broken["outcome"] == "error" and "no such module" in broken["reason"]
    assert tests == {
        "test_some.py::test_figures": {
            "outcome": "passed", "figures": {"cycles": [37.5, 38.0], "path": "<class 'object'>"},
        },
        "test_some.py::test_fails": {"outcome": "failed", "figures": {"ratio": 1.5}, "reason": "assert 1.5 < 1.1"},
        "test_some.py::test_breaks": {"outcome": "error", "figures": {}, "reason": "OSError: no such device"},
        "test_some.py::test_skipped": {"outcome": "skipped", "figures": {}, "reason": "not here"},
        "test_some.py::test_known": {"outcome": "xfailed", "figures": {}, "reason": "known"},
    }  # fmt: skip
    assert data["summary"] == {"passed": 1, "failed": 1, "error": 2, "skipped": 1, "xfailed": 1}


def test_figures_are_printed(session: tuple[Any, str]) -> None:
    lines = session[1].splitlines()
    assert "test_some.py::test_figures: cycles: [37.5, 38.0]" in lines
    assert "test_some.py::test_fails: ratio: 1.5" in lines
    assert "results in made/results.json" in lines


def test_machine(session: tuple[Any, str]) -> None:
    data, _ = session
    assert data["versions"]["warptrace"] == warptrace.__version__
    assert data["versions"]["python"] == platform.python_version()
    assert data["versions"]["pytest"] == pytest.__version__
    assert {"torch", "nvidia-cutlass-dsl"} < set(data["versions"])
    assert data["date"].endswith("+00:00")
    assert {"device", "driver"} < set(data)


def test_device_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    from warptrace.errors import WarptraceError
    from warptrace.runtime import driver

    def fail(name: str, *args: Any) -> None:
        raise WarptraceError("no driver")

    monkeypatch.setattr(driver, "call", fail)
    assert gpu_results._device() == {"device": None, "driver": None, "no_device": "no driver"}
    facts = driver.DeviceFacts("Some GPU", "uuid", "9.0", 132, 1_980_000, "580.1")
    monkeypatch.setattr(driver, "call", lambda name, *args: None)
    monkeypatch.setattr(driver, "device_facts", lambda ordinal: facts)
    assert gpu_results._device() == {
        "device": "Some GPU", "driver": "580.1", "sm_count": 132, "clock_khz": 1_980_000,
    }  # fmt: skip
