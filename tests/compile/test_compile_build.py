"""Build records: registers, stack and code size of kernels as compiled, with events and without."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
import twin_with
import twin_without
from dsl_build import Built, build, tensor

import warptrace.cute as iket
from warptrace import registry
from warptrace.device.cubin import KernelCode, kernels_in
from warptrace.frontends.cute import build as builds
from warptrace.frontends.cute import dsl
from warptrace.raw import dump, read_capture
from warptrace.sites import KernelRecord

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import hopper_gemm

try:
    import cutlass.cute.experimental as experimental
except Exception:  # the DSL refuses it on some toolkits
    experimental = None

FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Builds without events are asked for, and nothing was announced before."""
    monkeypatch.setattr(registry, "_records", {})
    dsl.build_untraced(True)
    yield
    dsl.build_untraced(False)


@pytest.fixture
def embedded(monkeypatch) -> list[bytes]:
    """What was looked through for kernels: the cubins themselves are in it."""
    seen: list[bytes] = []

    def look(data: bytes) -> dict[str, KernelCode]:
        seen.append(data)
        return kernels_in(data)

    monkeypatch.setattr(builds, "kernels_in", look)
    return seen


def fields(code: KernelCode) -> dict[str, Any]:
    return {"registers": code.registers, "stack_bytes": code.stack_bytes, "code_bytes": code.code_bytes}


def known() -> dict[str, dict[str, Any]]:
    """The build of each announced kernel, by symbol."""
    return {r.symbol: r.build for r in registry.records()}


def check(on: Built, off: Built) -> dict[str, dict[str, Any]]:
    """The records against the cubins of the traced kernels and of the kernels that hold no event."""
    got = known()
    with_events, without = kernels_in(on.cubin), kernels_in(off.cubin)
    assert set(got) == {r.symbol for r in on.records}
    for symbol, facts in got.items():
        assert facts == {**fields(with_events[symbol]), "untraced": fields(without[symbol])}
        assert facts["code_bytes"] > facts["untraced"]["code_bytes"] > 0
    return got


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_the_build_without_events_is_that_of_the_kernel_without_calls(arch, frontend, embedded):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    using = FRONTENDS[frontend]
    without = build(twin_without.host, tensor(), cutlass.Int32(3), on=False, arch=arch, using=using)
    assert known() == {}
    on = build(twin_with.host, tensor(), cutlass.Int32(3), arch=arch, using=using, quiet=False)
    assert len(check(on, without)) == 2
    assert [any(cubin in data for data in embedded) for cubin in (without.cubin, on.cubin)] == [True, True]


def test_nothing_changes_for_the_kernel(tmp_path):
    """Neither its PTX and cubin nor what is kept of them."""
    dsl.build_untraced(False)
    plain = build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    assert [set(facts) for facts in known().values()] == [{"registers", "stack_bytes", "code_bytes"}] * 2
    dsl.build_untraced(True)
    again = build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    assert ["untraced" in facts for facts in known().values()] == [True, True]
    assert (again.ptx, again.cubin) == (plain.ptx, plain.cubin)


def test_nothing_is_compiled_twice_with_tracing_off(monkeypatch):
    def fail(*_: Any) -> None:
        raise AssertionError("compiled without tracing")

    dsl.arm()
    monkeypatch.setattr(builds, "_compile_untraced", fail)
    build(twin_with.host, tensor(), cutlass.Int32(3), on=False)
    build(twin_without.host, tensor(), cutlass.Int32(3), on=True)
    assert known() == {}


def gemm(options: str, on: bool) -> Any:
    with iket.tracing(on):
        return hopper_gemm.compile_gemm(options=f"--gpu-arch sm_90a {options}".strip())


def test_hopper_gemm(embedded):
    off = gemm("--keep-cubin", False)
    assert known() == {}
    on = gemm("--keep-cubin", True)
    ((symbol, facts),) = known().items()
    (with_events,) = kernels_in(bytes(on.__cubin__)).values()
    (without,) = kernels_in(bytes(off.__cubin__)).values()
    assert facts == {**fields(with_events), "untraced": fields(without)}
    assert (facts["registers"], facts["stack_bytes"]) == (168, 0)
    assert (facts["untraced"]["registers"], facts["untraced"]["stack_bytes"]) == (168, 0)
    assert facts["code_bytes"] > facts["untraced"]["code_bytes"]
    assert any(bytes(off.__cubin__) in data for data in embedded)
    registry._records.clear()
    gemm("", True)  # no cubin is kept: the same is known
    assert known() == {symbol: facts}


LIVE = 64


@cute.kernel
def crowded(g: cute.Tensor, n: cutlass.Int32):
    """More values alive than the 64 registers that 1,024 threads leave each."""
    tidx, _, _ = cute.arch.thread_idx()
    values = [g[tidx + 1024 * i] for i in range(LIVE)]
    for i in cutlass.range(n):
        iket.range_push("step", i)
        values = [values[(k * 7 + 3) % LIVE] * values[k] + values[(k + 11) % LIVE] for k in range(LIVE)]
        iket.range_pop()
    for k in cutlass.range_constexpr(LIVE):
        g[tidx + 1024 * k] = values[k]


@cute.jit
def crowded_host(g: cute.Tensor, n: cutlass.Int32):
    crowded(g, n).launch(grid=[1, 1, 1], block=[1024, 1, 1])


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_spilled_registers_show_in_the_stack(arch):
    args = (tensor(cutlass.Float32, 1024 * LIVE), cutlass.Int32(3))
    off = build(crowded_host, *args, on=False, arch=arch)
    on = build(crowded_host, *args, arch=arch)
    assert "st.local" not in on.ptx  # nothing but spilled registers is in local memory
    (facts,) = check(on, off).values()
    assert facts["registers"] == facts["untraced"]["registers"] == 64
    assert facts["stack_bytes"] > facts["untraced"]["stack_bytes"] > 0


@cute.kernel
def simple(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("it")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token, i)
        token = iket.range_start("it", i)
        g[i] = n
    iket.range_end(token, n)


@cute.kernel
def silent(g: cute.Tensor):
    g[1] = 2


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    silent(g).launch(grid=[1, 1, 1], block=[32, 1, 1])
    simple(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_only_kernels_with_events_have_a_record():
    off = build(host, tensor(), cutlass.Int32(3), on=False)
    on = build(host, tensor(), cutlass.Int32(3))
    assert len(kernels_in(on.cubin)) == 2
    ((symbol, _),) = check(on, off).items()
    assert "simple" in symbol


@pytest.mark.skipif(importlib.util.find_spec("tvm_ffi") is None, reason="apache-tvm-ffi is not installed")
def test_tvm_ffi():
    off = build(host, tensor(), cutlass.Int32(3), on=False, options="--enable-tvm-ffi")
    on = build(host, tensor(), cutlass.Int32(3), options="--enable-tvm-ffi")
    assert "TVMFFI" in type(on.compiled).__name__
    assert len(check(on, off)) == 1


if experimental is not None:

    @experimental.kernel
    def looping(g: cute.Tensor, n: cutlass.Int32):
        for i in cutlass.range(n, unroll=1):
            with iket.range("body", i):
                g[i] = g[i + 1]

    @experimental.jit
    def looping_host(g: cute.Tensor, n: cutlass.Int32):
        looping(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


@pytest.mark.skipif(experimental is None, reason="this DSL has no cute.experimental here")
def test_experimental_kernel():
    off = build(looping_host, tensor(), cutlass.Int32(3), on=False)
    on = build(looping_host, tensor(), cutlass.Int32(3))
    assert len(check(on, off)) == 1


def test_the_same_for_kept_line_information():
    off = build(host, tensor(), cutlass.Int32(3), on=False, options="--generate-line-info")
    on = build(host, tensor(), cutlass.Int32(3), options="--generate-line-info")
    assert ".loc" in on.ptx
    assert len(check(on, off)) == 1


@pytest.mark.parametrize("part", ["contained", "kernels_in"])
def test_a_fault_of_ours_leaves_the_compilation_alone(monkeypatch, part):
    wanted = build(host, tensor(), cutlass.Int32(3))
    registry._records.clear()

    def fail(*_: Any) -> None:
        raise RuntimeError("no such thing here")

    monkeypatch.setattr(builds, part, fail)
    got = build(host, tensor(), cutlass.Int32(3))
    assert (got.ptx, got.cubin) == (wanted.ptx, wanted.cubin)
    ((_, facts),) = known().items()
    assert "untraced" not in facts
    assert (facts == {}) == (part == "kernels_in")


def test_a_fault_of_the_kernel_is_told_once_and_as_ever(monkeypatch):
    """The compilation of the module itself says what is wrong, with its own words."""
    texts = []
    for again in (False, True):
        dsl.build_untraced(again)
        with pytest.raises(Exception) as caught:
            build(host, tensor(), cutlass.Int32(3), options="--ptxas-options '--no-such-option'")
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert list(known().values()) == [{}]


PROGRAM = """
import cutlass, test_compile_build as t
t.cute.compile(t.host, t.tensor(), cutlass.Int32(3), options="--gpu-arch sm_90a")
"""


@pytest.mark.parametrize("how", ["profile", "profile --no-untraced-build", "WARPTRACE=1"])
def test_the_capture_of_a_program(tmp_path, how):
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(iket.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "program.py"]
    if how == "WARPTRACE=1":
        environment |= {"WARPTRACE": "1", "WARPTRACE_DIR": str(tmp_path / "run" / "raw")}
        environment["PYTHONPATH"] = str(Path(iket.__file__).parent / "runtime" / "bootstrap") + os.pathsep + path
    else:
        options = ["--postprocess", "none", "-o", "run", *how.split()[1:]]
        command = [sys.executable, "-m", "warptrace", "profile", *options, "--", *command]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (capture,) = (tmp_path / "run" / "raw").glob("pid_*")
    (record,) = read_capture(capture).kernels.values()
    assert record.build["registers"] > 0
    assert record.build["stack_bytes"] == 0
    assert ("untraced" in record.build) == (how == "profile")
    out = io.StringIO()
    dump(capture, out)
    assert f'"registers": {record.build["registers"]}' in out.getvalue()


@cute.kernel
def scalar(n: cutlass.Int32):
    iket.mark("direct", n)


@cute.jit
def scalar_host(n: cutlass.Int32):
    scalar(n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_a_direct_call_and_its_cache(monkeypatch):
    """The first call compiles. The second takes the code from the cache: its trace leaves what is known as it is."""
    # Else the code may come from an earlier run of the tests: from the DSL's cache on disk.
    monkeypatch.setattr(cutlass.cutlass_dsl.CuTeDSL._get_dsl().envar, "disable_file_caching", True)
    compiled: list[int] = []
    compile_untraced = builds._compile_untraced
    monkeypatch.setattr(builds, "_compile_untraced", lambda *a: compiled.append(1) or compile_untraced(*a))
    seen: list[dict[str, Any]] = []

    def listener(record: KernelRecord) -> None:
        seen.append(record.build)

    registry.listen(listener)
    try:
        for _ in range(2):
            with iket.tracing(), contextlib.suppress(Exception):  # without a driver it fails after the compilation
                scalar_host(cutlass.Int32(3))
    finally:
        registry.unlisten(listener)
    assert compiled == [1]
    first, *others = seen
    assert first == {}
    assert others == [others[0]] * 2
    assert others[0]["registers"] >= others[0]["untraced"]["registers"] > 0
    assert len(builds._expected) == 0  # nothing keeps the module of the second trace
