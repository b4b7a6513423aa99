"""Payloads: every type with its edge values, from memory, from arithmetic, from literals; index values; kinds."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith
from cutlass.cutlass_dsl import dsl_user_op

import warptrace.cute as iket
from warptrace.wire import PayloadType

from .model import Warp, boolean, f32, i8, i16, i32, i64, u8, u16, u32, u64
from .table import Array, Case, Launch, Scalar, zeros

INF = float("inf")
NAN = float("nan")
SMALL = [0, 1, -1, 127, -128, 255, 32767, -32768, 65535]
LARGE = [2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 12345678901234]
INTS = np.array(SMALL + LARGE, np.int64)
ONE = (1, 1, 1)
WARP_BLOCK = (32, 1, 1)


@cute.kernel
def integers(values: cute.Tensor, out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(15, unroll=1):
        v = values[i]
        iket.mark("i8", v.to(cutlass.Int8))
        iket.mark("u8", v.to(cutlass.Uint8))
        iket.mark("i16", v.to(cutlass.Int16))
        iket.mark("u16", v.to(cutlass.Uint16))
        iket.mark("i32", v.to(cutlass.Int32))
        iket.mark("u32", v.to(cutlass.Uint32))
        iket.mark("i64", v)
        iket.mark("u64", v.to(cutlass.Uint64))
        iket.mark("bool", v != 0)
        iket.mark("negative", v < 0)
    out[tidx] = values[2].to(cutlass.Int32) + tidx


@cute.jit
def integers_host(values: cute.Tensor, out: cute.Tensor):
    integers(values, out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def integers_expect(w: Warp, values: np.ndarray, out: np.ndarray) -> None:
    for v in values.tolist():
        makers = {"i8": i8, "u8": u8, "i16": i16, "u16": u16, "i32": i32, "u32": u32, "i64": i64, "u64": u64}
        for name, maker in makers.items():
            w.mark(name, maker(v))
        w.mark("bool", boolean(v != 0))
        w.mark("negative", boolean(v < 0))


# ---------------------------------------------------------------------------------------------------------- floats
@cute.kernel
def floats(values: cute.Tensor, out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(16, unroll=1):
        iket.mark("value", values[i])
        token = iket.range_start("range", values[i])
        iket.range_end(token, values[15 - i])
    out[tidx] = tidx


@cute.jit
def floats_host(values: cute.Tensor, out: cute.Tensor):
    floats(values, out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def floats_case(name: str, kind: PayloadType, bits: list[int], dtype: str, dsl: str | None = None) -> Case:
    """16 bit patterns, loaded from memory and recorded without any arithmetic: all must come out as they are."""
    assert len(bits) == 16

    def expect(w: Warp, values: np.ndarray, out: np.ndarray) -> None:
        for first, second in zip(bits, reversed(bits)):
            w.mark("value", (kind, first))
            w.end(w.start("range", (kind, first)), (kind, second))

    values = np.array(bits, np.dtype(f"u{np.dtype(dtype).itemsize}")).view(dtype)
    args = [Array(values, dsl), zeros(32)]
    launch = Launch(expect, ONE, WARP_BLOCK)
    return Case(f"payload_{name}", floats_host, args, [launch], lambda v, out: {1: np.arange(32, dtype=np.int32)})


F16_BITS = [
    0x0000, 0x8000, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x0400, 0x0001,
    0x8001, 0x03FF, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x7C01, 0x3555,
]  # fmt: skip
BF16_BITS = [
    0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x0080, 0x0001,
    0x8001, 0x007F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0x4049,
]  # fmt: skip
F32_BITS = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x00800000, 0x00000001,
    0x80000001, 0x007FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x40490FDB,
]  # fmt: skip
F64_BITS = [
    0x0, 1 << 63, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF,
    0x0010000000000000, 0x1, 0x8000000000000001, 0x000FFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000,
    0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x400921FB54442D18,
]  # fmt: skip


# ------------------------------------------------------------------------------------------------- typed constants
@cute.kernel
def constants(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("2^63", cutlass.Uint64(2**63))
    iket.mark("-1", cutlass.Int64(-1))
    iket.mark("least", cutlass.Int64(-(2**63)))
    iket.mark("most", cutlass.Uint64(2**64 - 1))
    iket.mark("i8", cutlass.Int8(-1))
    iket.mark("u8", cutlass.Uint8(255))
    iket.mark("i16", cutlass.Int16(-2))
    iket.mark("u16", cutlass.Uint16(65534))
    iket.mark("u32", cutlass.Uint32(2**32 - 1))
    iket.mark("true", cutlass.Boolean(True))
    iket.mark("f16 inf", cutlass.Float16(INF))
    iket.mark("f16 most", cutlass.Float16(65504.0))
    iket.mark("bf16 -0", cutlass.BFloat16(-0.0))
    iket.mark("bf16", cutlass.BFloat16(1.5))
    iket.mark("f32 nan", cutlass.Float32(NAN))
    iket.mark("f64 nan", cutlass.Float64(NAN))
    iket.mark("f64 -inf", cutlass.Float64(-INF))
    iket.mark("f64", cutlass.Float64(0.1))
    iket.mark("f32", cutlass.Float32(0.1))
    out[tidx] = tidx


@cute.jit
def constants_host(out: cute.Tensor):
    constants(out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def constants_expect(w: Warp, out: np.ndarray) -> None:
    w.mark("2^63", u64(2**63))
    w.mark("-1", i64(-1))
    w.mark("least", i64(-(2**63)))
    w.mark("most", u64(2**64 - 1))
    w.mark("i8", i8(-1))
    w.mark("u8", u8(255))
    w.mark("i16", i16(-2))
    w.mark("u16", u16(65534))
    w.mark("u32", u32(2**32 - 1))
    w.mark("true", boolean(True))
    w.mark("f16 inf", (PayloadType.F16, 0x7C00))
    w.mark("f16 most", (PayloadType.F16, 0x7BFF))
    w.mark("bf16 -0", (PayloadType.BF16, 0x8000))
    w.mark("bf16", (PayloadType.BF16, 0x3FC0))
    w.mark("f32 nan", (PayloadType.F32, 0x7FC00000))
    w.mark("f64 nan", (PayloadType.F64, 0x7FF8000000000000))
    w.mark("f64 -inf", (PayloadType.F64, 0xFFF0000000000000))
    w.mark("f64", (PayloadType.F64, 0x3FB999999999999A))
    w.mark("f32", (PayloadType.F32, 0x3DCCCCCD))


# ------------------------------------------------------------------------------------------------- values of loops
@cute.kernel
def index_values(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    total = cutlass.Int32(0)
    for i in cutlass.range(4, unroll=1):
        iket.mark("loop index", i)
        iket.mark("coordinate", cute.crd2idx((i, 2), cute.make_layout((4, 8), stride=(8, 1))))
        total += i
    for i in cutlass.range_constexpr(3):
        iket.mark("constexpr index", i)
    iket.mark("size", cute.size(out))
    iket.mark("product", tidx * 0 + total * 2.5)
    out[tidx] = total


@cute.jit
def index_values_host(out: cute.Tensor):
    index_values(out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def index_values_expect(w: Warp, out: np.ndarray) -> None:
    for i in range(4):
        w.mark("loop index", i32(i))
        w.mark("coordinate", i32(8 * i + 2))
    for i in range(3):
        w.mark("constexpr index", i32(i))
    w.mark("size", i32(32))
    w.mark("product", f32(15.0))


@dsl_user_op
def as_index(value: cutlass.Int32, *, loc: Any = None, ip: Any = None) -> Any:
    """The value as a plain MLIR value of index type."""
    return arith.index_cast(ir.IndexType.get(), value.ir_value(loc=loc, ip=ip), loc=loc, ip=ip)


@cute.kernel
def index_type(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("index", as_index(n))
    iket.mark("next", as_index(n + 1))
    out[tidx] = n


@cute.jit
def index_type_host(out: cute.Tensor, n: cutlass.Int32):
    index_type(out, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def index_type_expect(w: Warp, out: np.ndarray, n: int) -> None:
    w.mark("index", i64(n))
    w.mark("next", i64(n + 1))


# --------------------------------------------------------------------------------- payloads on every kind of event
@cute.kernel
def mixed(values: cute.Tensor, out: cute.Tensor):
    """32-bit, 64-bit and no payload side by side in one group, on every kind that takes one."""
    tidx, _, _ = cute.arch.thread_idx()
    a = values[0]
    b = values[1]
    iket.mark("none")
    iket.range_push("wide", a)
    iket.switch("narrow", b.to(cutlass.Int32))
    iket.switch("none")
    iket.range_pop()
    wide = iket.range_start("wide token", b)
    narrow = iket.range_start("narrow token", a.to(cutlass.Uint8))
    plain = iket.range_start("plain token")
    iket.range_end(plain)
    iket.range_end(narrow, b.to(cutlass.Uint8))
    iket.range_end(wide, a)
    iket.mark("last", a.to(cutlass.Int16))
    out[tidx] = (a + b).to(cutlass.Int32)


@cute.jit
def mixed_host(values: cute.Tensor, out: cute.Tensor):
    mixed(values, out).launch(grid=[1, 1, 1], block=[32, 1, 1])


def mixed_expect(w: Warp, values: np.ndarray, out: np.ndarray) -> None:
    a, b = values.tolist()
    w.mark("none")
    w.push("wide", i64(a))
    w.switch("narrow", i32(b))
    w.switch("none")
    w.pop()
    wide = w.start("wide token", i64(b))
    narrow = w.start("narrow token", u8(a))
    plain = w.start("plain token")
    w.end(plain)
    w.end(narrow, u8(b))
    w.end(wide, i64(a))
    w.mark("last", i16(a))


def _sum(values: np.ndarray) -> np.ndarray:
    return np.full(32, int(values.sum()) & 0xFFFFFFFF, np.uint32).view(np.int32)


# -------------------------------------------------------------------------------------- the same in all lanes, or not
@cute.kernel
def by_lane(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(n, unroll=1):
        iket.mark("round", i)
        out[tidx] = i
        iket.mark("wide round", cutlass.Int64(i) * (1 << 33) - 5)
        iket.range_push("lane", tidx)
        iket.mark("wide lane", cutlass.Int64(tidx) * (1 << 33) + i)
        iket.range_pop()
        token = iket.range_start("token", i)
        iket.range_end(token, tidx)
    for _ in cutlass.range(n, unroll=1):
        iket.mark("plain")
    iket.mark("lane alone", tidx)
    out[tidx] = tidx
    iket.mark("round alone", n)


@cute.jit
def by_lane_host(out: cute.Tensor, n: cutlass.Int32):
    by_lane(out, n).launch(grid=[1, 1, 1], block=[96, 1, 1])


def by_lane_expect(w: Warp, out: np.ndarray, n: int) -> None:
    first = 32 * w.warp
    for i in range(n):
        w.mark("round", i32(i))
        w.mark("wide round", i64(i * (1 << 33) - 5))
        w.push("lane", i32(first))
        w.mark("wide lane", i64(first * (1 << 33) + i))
        w.pop()
        w.end(w.start("token", i32(i)), i32(first))
    for _ in range(n):
        w.mark("plain")
    w.mark("lane alone", i32(first))
    w.mark("round alone", i32(n))


CASES = [
    Case(
        "payload_by_lane",
        by_lane_host,
        [zeros(96), Scalar(3)],
        [Launch(by_lane_expect, ONE, (96, 1, 1))],
        lambda out, n: {0: np.arange(96, dtype=np.int32)},
    ),
    Case(
        "payload_integers",
        integers_host,
        [Array(INTS), zeros(32)],
        [Launch(integers_expect, ONE, WARP_BLOCK)],
        lambda v, out: {1: np.arange(32, dtype=np.int32) - 1},
    ),
    floats_case("f16", PayloadType.F16, F16_BITS, "float16"),
    floats_case("bf16", PayloadType.BF16, BF16_BITS, "uint16", "BFloat16"),
    floats_case("f32", PayloadType.F32, F32_BITS, "float32"),
    floats_case("f64", PayloadType.F64, F64_BITS, "float64"),
    Case(
        "payload_constants",
        constants_host,
        [zeros(32)],
        [Launch(constants_expect, ONE, WARP_BLOCK)],
        lambda out: {0: np.arange(32, dtype=np.int32)},
    ),
    Case(
        "payload_index_values",
        index_values_host,
        [zeros(32)],
        [Launch(index_values_expect, ONE, WARP_BLOCK)],
        lambda out: {0: np.full(32, 6, np.int32)},
    ),
    Case(
        "payload_index_type",
        index_type_host,
        [zeros(32), Scalar(-5)],
        [Launch(index_type_expect, ONE, WARP_BLOCK)],
        lambda out, n: {0: np.full(32, n, np.int32)},
    ),
    Case(
        "payload_every_kind",
        mixed_host,
        [Array(np.array([-(2**40) + 7, 2**50 + 3], np.int64)), zeros(32)],
        [Launch(mixed_expect, ONE, WARP_BLOCK)],
        lambda values, out: {1: _sum(values)},
    ),
]
