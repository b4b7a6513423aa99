"""``pytest -m gpu --gpu-results FILE``: what the tests on a GPU found, as JSON, with the machine that they ran on.

    {"date", "device", "driver", ..., "versions": {"python", "torch", ...}, "summary": {"passed": 12, ...},
     "tests": [{"test", "outcome", "seconds", "figures": {name: value}, "reason"}]}

``outcome`` is passed, failed, skipped, xfailed or error (in set-up or tear-down); ``reason`` is there where it is not
passed. ``figures`` are what the test recorded with ``record_property``.
"""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("torch", "numpy", "nvidia-cutlass-dsl", "cuda-bindings", "apache-tvm-ffi", "triton", "cupy", "pytest")


class GpuResults:
    """The plugin: collects reports of the tests marked ``gpu`` and writes them when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported must not look like one without tests."""
        if report.failed:
            error = {"outcome": "error", "seconds": 0.0, "figures": {}, "reason": _reason(report)}
            self.tests[report.nodeid] = {"test": report.nodeid, **error}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "gpu" not in report.keywords:
            return
        test = self.tests.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        test["figures"] = dict(report.user_properties)
        outcome = _outcome(report)
        if outcome != "passed":
            test["outcome"], test["reason"] = outcome, _reason(report)

    def pytest_sessionfinish(self) -> None:
        tests = list(self.tests.values())
        summary = dict(Counter(test["outcome"] for test in tests))
        data = {**machine(), "summary": summary, "tests": tests}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("figures")
        for test in self.tests.values():
            for name, value in test["figures"].items():
                terminalreporter.write_line(f"{test['test']}: {name}: {value}")
        terminalreporter.write_line(f"results in {self.path}")


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else report.outcome
    return "error" if report.failed and report.when != "call" else report.outcome


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What went wrong, or why it was skipped or expected to fail."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else str(report.longrepr)


def machine() -> dict[str, Any]:
    """Facts of this machine: date, device, driver and versions."""
    import warptrace

    versions: dict[str, str | None] = {"warptrace": warptrace.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        versions[name] = _version(name)
    return {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **_device(), "versions": versions}


def _version(package: str) -> str | None:
    """Of an installed package, or of a module that was imported from a folder without its metadata."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        module = sys.modules.get({"nvidia-cutlass-dsl": "cutlass", "apache-tvm-ffi": "tvm_ffi"}.get(package, package))
        return getattr(module, "__version__", None)


def _device() -> dict[str, Any]:
    """Device and driver; None and the reason where there are none."""
    from warptrace.errors import WarptraceError
    from warptrace.runtime import driver

    try:
        driver.call("cuInit", 0)
        facts = driver.device_facts(0)
    except (WarptraceError, RuntimeError) as error:
        return {"device": None, "driver": None, "no_device": str(error)}
    return {
        "device": facts.name,
        "driver": facts.driver,
        "sm_count": facts.sm_count,
        "clock_khz": facts.clock_khz,
    }
