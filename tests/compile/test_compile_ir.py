"""The module that the front end hands on: nothing outside it uses its values, nothing of the placeholders is left."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import twin_with
from cutlass import cutlass_dsl
from dsl_build import build, tensor

from warptrace.frontends.cute.events import PLACEHOLDER
from warptrace.frontends.cute.ir_tools import contained, plain_value, walk


def _root(op: Any) -> Any:
    while op is not None and op.operation.parent is not None:
        op = op.operation.parent
    return op.operation


def _strays(module: Any) -> list[str]:
    """Operations in no module that use values of ``module``: writing such a module crashes the DSL."""
    found = []

    def visit(op: Any) -> None:
        blocks = [b for region in op.regions for b in region.blocks]
        for value in [*op.results, *(a for b in blocks for a in b.arguments)]:
            users = [u.owner for u in plain_value(value).uses]
            found.extend(str(u.name) for u in users if _root(u).name != "builtin.module")

    with contained(module):  # to look at some values emits operations, too: here, where they are in a module
        walk(module.operation, visit)
    return found


def test_the_module_is_whole():
    seen: list[tuple[list[str], bool, str]] = []

    def look(dsl: Any, module: Any, name: str) -> None:
        seen.append((_strays(module), module.operation.verify(), str(module)))

    dsl = cutlass_dsl.CuTeDSL._get_dsl()
    with dsl.trace_finalize_hooks(look):
        build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    ((strays, valid, text),) = seen
    assert strays == []
    assert valid
    assert PLACEHOLDER not in text and "warptrace event" not in text
    assert text.count("llvm.call @warptrace_control") == 2
