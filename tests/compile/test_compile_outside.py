"""Outside kernels - host code of the DSL, plain Python - the calls do nothing, and tokens carry nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace.cute as iket


def every_call() -> iket.Token:
    iket.mark("m", 1)
    iket.range_push("p")
    iket.switch("s", 2)
    iket.range_pop()
    iket.range_end(iket.sentinel_token("t"), 3)
    with iket.range("r", 4):
        pass
    token = iket.range_start("t")
    iket.range_end(token)
    return token


@pytest.mark.parametrize("on", [False, True])
def test_plain_python(on):
    with iket.tracing(on):
        token = every_call()
    assert isinstance(token, iket.Token)
    assert (token.value, token.name) == (None, "t")
    assert token.__extract_mlir_values__() == []
    again = token.__new_from_mlir_values__([])
    assert (again.value, again.name) == (None, "t")


def test_what_with_range_runs_may_fail():
    with pytest.raises(KeyError, match="mine"), iket.range("r"):
        raise KeyError("mine")


@cute.kernel
def empty(g: cute.Tensor, n: cutlass.Int32):
    g[0] = n


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    empty(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@cute.jit
def host_with_calls(g: cute.Tensor, n: cutlass.Int32):
    token = every_call()
    if n > 3:
        iket.mark("in a branch of host code", n)
        iket.range_end(token)
    empty(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_host_code_of_the_dsl():
    without = build(host, tensor(), cutlass.Int32(3))
    built = build(host_with_calls, tensor(), cutlass.Int32(3))
    assert built.records == ()
    assert built.ptx == without.ptx
    assert b"warptrace" not in str(built.compiled.ir_module).encode().lower()


def test_the_first_import_arms_the_dsl_once():
    from warptrace.frontends.cute import dsl

    assert dsl._armed
    dsl.arm()
    built = build(host, tensor(), cutlass.Int32(3))
    assert len(built.entry.events) == 0


def test_an_old_dsl_is_refused_with_the_mend(monkeypatch):
    from warptrace.errors import WarptraceError
    from warptrace.frontends.cute import dsl

    monkeypatch.setattr(dsl, "_armed", False)
    monkeypatch.setattr(dsl, "_instances", lambda: [object()])
    with pytest.raises(WarptraceError, match=r"has no trace-finalize hook; install 4\.6 or newer: pip install -U"):
        dsl.arm()
