"""The table on the PTX emulator."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass")

from .cases import CASES  # noqa: E402
from .check import check, result_differences  # noqa: E402
from .runners import EmulatorRunner  # noqa: E402
from .table import Case  # noqa: E402

pytestmark = pytest.mark.dsl
RUNNER = EmulatorRunner()
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case) -> None:
    assert check(case, RUNNER.run(case)) == []
    for seed in SEEDS if case.divergent else ():
        assert check(case, RUNNER.run(case, seed=seed)) == []
    assert result_differences(case, RUNNER.run_silent(case, events=True)) == []
