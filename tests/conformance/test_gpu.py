"""The table on a real GPU with the real recorder: ``pytest -m gpu tests/conformance/test_gpu.py``."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass")

from .cases import CASES
from .check import check, result_differences
from .runners import GpuRunner
from .table import Case

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def runner() -> Any:
    pytest.importorskip("torch")
    return GpuRunner()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(runner: GpuRunner, case: Case) -> None:
    assert check(case, runner.run(case), hardware=True) == []


SILENT = ("every_call", "several_kernels", "odd_even", "nested", "shape_7x9x1", "payload_integers")


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("events", [True, False], ids=["no recorder", "no events"])
def test_kernels_are_right_without_a_recorder(runner: GpuRunner, name: str, events: bool) -> None:
    """Control pointer 0, and compiled without events."""
    case = next(c for c in CASES if c.name == name)
    assert result_differences(case, runner.run_silent(case, events=events)) == []
