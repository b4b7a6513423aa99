"""Rows of the table whose kernels call a library's stand-in for the DSL's event module, which does nothing: what is
recorded is the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")

import warptrace.cute as ours

from . import kernels_api, kernels_tokens
from .cases import BY_NAME
from .check import check
from .runners import EmulatorRunner

pytestmark = pytest.mark.dsl

MODULES = (kernels_api, kernels_tokens)
ROWS = ["every_call", *(c.name for c in kernels_tokens.CASES if not c.name.startswith("token_far_apart"))]
RUNNER = EmulatorRunner()


def stand_in() -> SimpleNamespace:
    """Functions of which every row has its own, and those of ours that have no counterpart."""
    return SimpleNamespace(
        mark=lambda _name, *_args, **_kwargs: None,
        range_push=lambda _name, *_args, **_kwargs: None,
        range_pop=lambda *_args, **_kwargs: None,
        range_start=lambda _name, *_args, **_kwargs: None,
        range_end=lambda _token=None, *_args, **_kwargs: None,
        sentinel_token=lambda _name, **_kwargs: None,
        switch=ours.switch,
        range=ours.range,
    )


@pytest.mark.parametrize("name", ROWS)
def test_same_events(name, monkeypatch):
    events = stand_in()
    for module in MODULES:
        monkeypatch.setattr(module, "iket", events)
    case = BY_NAME[name]
    assert check(case, RUNNER.run(case)) == []
