"""The table on the PTX emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from .cases import CASES
from .check import check, result_differences
from .runners import EmulatorRunner
from .table import Case

pytestmark = pytest.mark.dsl
RUNNER = EmulatorRunner()
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case) -> None:
    assert check(case, RUNNER.run(case)) == []
    for seed in SEEDS if case.divergent else ():
        assert check(case, RUNNER.run(case, seed=seed)) == []
    assert result_differences(case, RUNNER.run_silent(case, events=True)) == []
