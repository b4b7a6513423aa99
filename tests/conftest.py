"""Shared set-up: tests marked ``gpu`` and ``dsl`` are skipped, with the reason, where what they need is missing."""

from __future__ import annotations

import importlib.util
import signal
import sys
from functools import cache
from pathlib import Path

import pytest

# Helpers of the tests (fake_device and others) are plain modules beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from gpu_results import GpuResults

if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup; programs that tests start would ignore it too,
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # but what is handled is as ever in them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-results", metavar="FILE", help="write what the tests marked gpu found to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--gpu-results")
    # With pytest-xdist the reports of all workers arrive in the first process.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(GpuResults(Path(path)), "gpu-results")


@cache
def missing_gpu() -> str | None:
    """Why no kernel can run here, or None. Asks no driver: that would break tests that fork."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return "no NVIDIA GPU"
    return missing_dsl()


@cache
def missing_dsl() -> str | None:
    """Why no kernel can be compiled here, or None."""
    return None if importlib.util.find_spec("cutlass") else "nvidia-cutlass-dsl is not installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in (("gpu", missing_gpu), ("dsl", missing_dsl)):
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)
