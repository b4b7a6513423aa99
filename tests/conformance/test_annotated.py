"""Rows of the table whose kernels call the DSL's own event module: what is recorded is the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")

import cutlass.cute as cute

import warptrace.cute as ours

from . import kernels_api, kernels_flow, kernels_lanes, kernels_payload, kernels_tokens
from .cases import BY_NAME
from .check import check
from .runners import EmulatorRunner

try:
    theirs = cute.experimental.iket
except Exception as error:  # older DSLs lack it; others refuse it on some toolkits
    pytest.skip(f"this DSL has no event module here: {error}", allow_module_level=True)

pytestmark = pytest.mark.dsl

MODULES = (kernels_api, kernels_flow, kernels_lanes, kernels_payload, kernels_tokens)
SIX = ("mark", "range_push", "range_pop", "range_start", "range_end", "sentinel_token")
MIXED = SimpleNamespace(**{n: getattr(theirs, n) for n in SIX}, switch=ours.switch, range=ours.range)
"""Their calls, with those of ours that they have no counterpart of: both stand in one kernel."""
OTHERS = (
    "literals", "names", "payload_integers", "payload_f16", "payload_bf16", "payload_constants", "payload_index_type",
    "prefetch_stages",
)  # fmt: skip
"""Theirs raises for a name or payload in them, or supports no loop of that kind."""
RUNNER = EmulatorRunner()


@pytest.fixture(autouse=True)
def their_calls(monkeypatch):
    for module in MODULES:
        monkeypatch.setattr(module, "iket", MIXED)


ROWS = [c.name for m in MODULES for c in m.CASES if not c.name.startswith(OTHERS)]


@pytest.mark.parametrize("name", ROWS)
def test_same_events(name):
    case = BY_NAME[name]
    assert check(case, RUNNER.run(case)) == []
