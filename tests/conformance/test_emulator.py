"""The table on the PTX emulator."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from warptrace import registry
from warptrace.wire import EventKind

from .cases import BY_NAME, CASES
from .check import check, result_differences
from .runners import EmulatorRunner
from .table import Case

pytestmark = pytest.mark.dsl
RUNNER = EmulatorRunner()
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case: Case) -> None:
    """Recorded events, the kernel's own results, and the same with other schedules: they must not depend on it."""
    _skip_what_the_dsl_cannot(case)
    assert check(case, RUNNER.run(case)) == []
    for seed in SEEDS if case.divergent else ():
        assert check(case, RUNNER.run(case, seed=seed)) == []
    _check_sites()


def _skip_what_the_dsl_cannot(case: Case) -> None:
    """What an old DSL does not compile without events either: 4.6 pipelines no loop without a TMA copy."""
    try:
        RUNNER.kernels(case)
    except Exception:
        try:
            RUNNER.kernels(case, events=False)
        except Exception as alone:
            pytest.skip(f"this DSL cannot compile it without events either: {type(alone).__name__}")
        raise


def _check_sites() -> None:
    """Every site names the line of its call."""
    for site in (s for record in registry.records() for s in record.sites):
        assert Path(site.file).parent == Path(__file__).parent
        if site.kind != EventKind.POP:  # that of a `with` block lies at its end
            line = linecache.getline(site.file, site.line)
            assert any(call in line for call in ("iket.", "closed(")), f"{site.file}:{site.line}: {line}"


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith("names_")], ids=lambda c: c.name)
def test_without_a_recorder(case: Case) -> None:
    """Control pointer 0: the kernel computes the same and writes nothing of its own."""
    assert result_differences(case, RUNNER.run_silent(case, events=True)) == []


WITHOUT_EVENTS = ("every_call", "several_kernels", "odd_even", "nested", "token_in_while_7", "roles", "experimental")


@pytest.mark.parametrize("name", WITHOUT_EVENTS)
def test_compiled_without_events(name: str) -> None:
    assert result_differences(BY_NAME[name], RUNNER.run_silent(BY_NAME[name], events=False)) == []
    assert registry.records() == []
