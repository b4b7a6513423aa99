"""The other ways through the DSL's compiler: experimental kernels, TVM-FFI, exported objects."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace.cute as iket
from warptrace import registry, wire
from warptrace.sites import KernelRecord
from warptrace.wire import EventKind

try:
    import cutlass.cute.experimental as experimental
except Exception:  # the DSL refuses it on some toolkits
    experimental = None

HIDDEN = ((".u64", None),) * 5


@cute.kernel
def simple(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("a", n)
    g[0] = n


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    simple(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


if experimental is not None:

    @experimental.kernel
    def looping(g: cute.Tensor, n: cutlass.Int32):
        tidx, _, _ = cute.arch.thread_idx()
        iket.mark("begin", tidx)
        token = iket.sentinel_token("it")
        for i in cutlass.range(n, unroll=1):
            iket.range_end(token)
            token = iket.range_start("it")
            if tidx == 3:
                with iket.range("body"):
                    g[i] = g[i + 1]
        iket.range_end(token)

    @experimental.jit
    def looping_host(g: cute.Tensor, n: cutlass.Int32):
        looping(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


@pytest.mark.skipif(experimental is None, reason="this DSL has no cute.experimental here")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_experimental_kernel(arch):
    off = build(looping_host, tensor(), cutlass.Int32(3), on=False, arch=arch)
    on = build(looping_host, tensor(), cutlass.Int32(3), arch=arch)
    assert off.entry.name == on.entry.name == on.record.symbol
    assert on.entry.params == (*off.entry.params, *HIDDEN)
    assert off.entry.events == []
    assert set(on.stored()) == {1, 2, 3, 4, 5, 6}
    assert [s.kind for s in on.record.sites] == [
        EventKind.MARK, EventKind.END, EventKind.START, EventKind.PUSH, EventKind.POP, EventKind.END,
    ]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed")
def test_tvm_ffi():
    off = build(host, tensor(), cutlass.Int32(3), on=False, options="--enable-tvm-ffi")
    on = build(host, tensor(), cutlass.Int32(3), options="--enable-tvm-ffi")
    assert "TVMFFI" in type(on.compiled).__name__
    assert on.stored() == [1]
    assert on.entry.params == (*off.entry.params, *HIDDEN)


def test_exported_object(tmp_path):
    """An exported object finds its trace memory by itself, through the environment of the process that runs it."""
    objects = {}
    for on in (False, True):
        with iket.tracing(on):
            compiled = cute.compile(host, tensor(), cutlass.Int32(3))
        compiled.export_to_c(file_path=str(tmp_path), file_name=f"kernel_{on}", function_prefix="exported")
        objects[on] = (tmp_path / f"kernel_{on}.o").read_bytes()
        assert objects[on][:4] == b"\x7fELF"
        assert compiled.dump_to_object("exported")[:4] == b"\x7fELF"
    cell = wire.CELL_ENV.encode() + b"\0"
    assert [cell in objects[on] for on in (False, True)] == [False, True]


@cute.kernel
def scalar(n: cutlass.Int32):
    iket.mark("direct", n)


@cute.jit
def scalar_host(n: cutlass.Int32):
    scalar(n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_direct_calls_are_hooked_too(monkeypatch):
    """A direct call of a ``@cute.jit`` function traces with events as ``cute.compile`` does. Without a driver it fails
    after that, so only what the hook saw is looked at."""
    seen: list[KernelRecord] = []
    monkeypatch.setattr(registry, "announce", seen.append)
    with iket.tracing(), contextlib.suppress(Exception):
        scalar_host(cutlass.Int32(3))
    assert [[s.name for s in r.sites] for r in seen] == [["direct"]]
    assert seen[0].arch.startswith("sm_")
