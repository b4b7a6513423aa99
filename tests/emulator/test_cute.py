# ruff: noqa: E501 - PTX text and IR lines
"""Real kernels of the CuTe DSL, compiled for sm_90a, on the emulator against numpy."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warptrace.emulator import Device, LaunchError
from warptrace.emulator.cute import compile_kernel, compile_kernels, host_launches, tensor_param

pytestmark = pytest.mark.dsl
RNG = np.random.default_rng(21)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def dsl() -> Any:
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    spec = importlib.util.spec_from_file_location("dsl_kernels", Path(__file__).parent / "dsl_kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake(dtype: str, *shape: Any) -> Any:
    import cutlass
    from cutlass.cute.runtime import make_fake_compact_tensor

    return make_fake_compact_tensor(getattr(cutlass, dtype), shape, assumed_align=16)


def test_elementwise_static_and_dynamic(dsl: Any) -> None:
    import cutlass
    from cutlass import cute

    a, b = RNG.normal(size=1000).astype(np.float32), RNG.normal(size=1000).astype(np.float32)
    k = compile_kernel(dsl.scale, *(fake("Float32", 1000) for _ in range(3)), cutlass.Float32(1.0))
    assert (k.grid, k.block, k.cluster, k.smem) == ((8, 1, 1), (128, 1, 1), None, 0)
    dev = Device()
    da, db, do = dev.alloc(a), dev.alloc(b), dev.zeros(1000)
    k.launch(dev, [da, db, do, 2.5])
    want = (a.astype(np.float64) * 2.5 + b).astype(np.float32)
    np.testing.assert_array_equal(do.read(), want)
    n = [cute.sym_int() for _ in range(3)]
    k = compile_kernel(dsl.scale, *(fake("Float32", x) for x in n), cutlass.Float32(1.0))
    do.write(0)
    k.launch(dev, [*(tensor_param(x, 900) for x in (da, db, do)), np.float32(2.5)])
    np.testing.assert_array_equal(do.read(), np.where(np.arange(1000) < 900, want, 0))


def test_vector_math_f16(dsl: Any) -> None:
    a = RNG.normal(size=512).astype(np.float16)
    dev = Device()
    da, do = dev.alloc(a), dev.zeros(512, np.float16)
    compile_kernel(dsl.vector, fake("Float16", 512), fake("Float16", 512)).launch(dev, [da, do])
    want = np.tanh((a * a).astype(np.float32)).astype(np.float16)
    assert np.abs(do.read().astype(np.float32) - want.astype(np.float32)).max() <= 2e-3


def test_reduction_with_shuffles_and_shared_memory(dsl: Any) -> None:
    a = RNG.normal(size=768).astype(np.float32)
    dev = Device()
    da, do = dev.alloc(a), dev.zeros(6)
    compile_kernel(dsl.reduce, fake("Float32", 768), fake("Float32", 6)).launch(dev, [da, do])
    np.testing.assert_allclose(do.read(), a.reshape(6, 128).sum(1), rtol=1e-5, atol=1e-5)


def test_divergent_loops(dsl: Any) -> None:
    a = np.arange(1, 129, dtype=np.int32)
    dev = Device()
    da, do = dev.alloc(a), dev.zeros(128, np.int32)
    compile_kernel(dsl.collatz, fake("Int32", 128), fake("Int32", 128)).launch(dev, [da, do])

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    np.testing.assert_array_equal(do.read(), [steps(int(n)) for n in a])


@pytest.mark.parametrize("seed", range(3))
def test_mbarrier_pipeline(dsl: Any, seed: int) -> None:
    a = RNG.integers(0, 100, 768).astype(np.float32)
    dev = Device(seed)
    da, do = dev.alloc(a), dev.zeros(96)
    compile_kernel(dsl.pipeline, fake("Float32", 768), fake("Float32", 96)).launch(dev, [da, do])
    np.testing.assert_array_equal(do.read(), a.reshape(3, 8, 32).sum(1).ravel())


def test_cluster(dsl: Any) -> None:
    a = RNG.normal(size=128).astype(np.float32)
    k = compile_kernel(dsl.exchange, fake("Float32", 128), fake("Float32", 128))
    assert k.cluster == (2, 1, 1)
    dev = Device()
    da, do = dev.alloc(a), dev.zeros(128)
    k.launch(dev, [da, do])
    np.testing.assert_array_equal(do.read(), a.reshape(2, 2, 32)[:, ::-1, ::-1].ravel())


def test_several_launches(dsl: Any) -> None:
    kernels = compile_kernels(dsl.two, fake("Int32", 32))
    assert len(kernels) == 2 and kernels[0].name != kernels[1].name
    dev = Device()
    a = dev.alloc(np.arange(32, dtype=np.int32))
    for k in kernels:
        k.launch(dev, [a])
    np.testing.assert_array_equal(a.read(), (np.arange(32) * 2 + 1) * 3 + 1)
    with pytest.raises(LaunchError, match="launches 2 kernels"):
        compile_kernel(dsl.two, fake("Int32", 32))


def test_launch_shape_that_is_not_constant_is_left_open() -> None:
    text = """
llvm.func @host(%arg0: i32) {
  %1 = llvm.mlir.constant(4 : i32) : i32
  %2 = llvm.mlir.constant(64 : i64) : i64
  %10 = llvm.getelementptr %9[0, 0, 0] : (!llvm.ptr) -> !llvm.ptr, !llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>
  llvm.store %arg0, %10 : i32, !llvm.ptr
  %11 = llvm.getelementptr %9[0, 2] : (!llvm.ptr) -> !llvm.ptr, !llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>
  llvm.store %2, %11 : i64, !llvm.ptr
  %12 = llvm.mlir.addressof @kernels_kernel_k_0 : !llvm.ptr
  %13 = llvm.call @_cudaLaunchKernelEx(%9, %12, %8) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
"""
    (launch,) = host_launches(text)
    assert (launch.kernel, launch.grid, launch.block, launch.smem) == ("kernel_k_0", None, None, 64)


# -- the Hopper GEMM example -------------------------------------------------------------
@pytest.fixture(scope="module")
def gemm(dsl: Any) -> Any:
    """examples/hopper_gemm.py with event calls that do nothing."""
    import silent_gemm

    return silent_gemm.load()


@pytest.mark.parametrize(
    "m,n,k,tile_n,cluster,ctas", [(256, 256, 128, 128, 1, 2), (200, 136, 200, 128, 1, 3), (512, 256, 192, 256, 2, 4)]
)
def test_hopper_gemm(gemm: Any, m: int, n: int, k: int, tile_n: int, cluster: int, ctas: int) -> None:
    """TMA loads (multicast in the cluster), wgmma, stmatrix and TMA stores give the product."""
    import silent_gemm

    kernel = silent_gemm.compiled(gemm, tile_n, cluster)
    dev = Device()
    args, product, ref = silent_gemm.arguments(dev, kernel.ptx, m, n, k, tile_n, cluster, hidden=0)
    kernel.launch(dev, args, grid=ctas, cluster=cluster)
    assert np.abs(product.read() - ref).max() <= 1e-3 * np.abs(ref).max()
