"""Payload types and values: the bits that a record holds, exact, and what is refused."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import arith
from dsl_build import build, tensor
from emulated import run

import warptrace.cute as iket
from warptrace.wire import PayloadType

P = PayloadType


def bits(fmt: str, value: float) -> int:
    return int.from_bytes(struct.pack("<" + fmt, value), "little")


CONSTANTS = [
    (True, P.BOOL, 1),
    (False, P.BOOL, 0),
    (0, P.I32, 0),
    (7, P.I32, 7),
    (-1, P.I32, 0xFFFFFFFF),
    (2**31 - 1, P.I32, 0x7FFFFFFF),
    (-(2**31), P.I32, 0x80000000),
    (0.0, P.F32, 0),
    (-0.0, P.F32, 0x80000000),
    (1.5, P.F32, 0x3FC00000),
    (0.1, P.F32, bits("f", 0.1)),
    (math.inf, P.F32, 0x7F800000),
    (-math.inf, P.F32, 0xFF800000),
    (math.nan, P.F32, 0x7FC00000),
    (np.float64(2.5), P.F32, 0x40200000),  # numpy's float64 is a Python float
    (lambda: cutlass.Boolean(True), P.BOOL, 1),
    (lambda: cutlass.Boolean(False), P.BOOL, 0),
    (lambda: cutlass.Int8(-1), P.I8, 0xFF),
    (lambda: cutlass.Int8(-128), P.I8, 0x80),
    (lambda: cutlass.Uint8(255), P.U8, 0xFF),
    (lambda: cutlass.Int16(-2), P.I16, 0xFFFE),
    (lambda: cutlass.Uint16(65535), P.U16, 0xFFFF),
    (lambda: cutlass.Int32(-3), P.I32, 0xFFFFFFFD),
    (lambda: cutlass.Uint32(2**32 - 1), P.U32, 0xFFFFFFFF),
    (lambda: cutlass.Int64(-1), P.I64, 0xFFFFFFFFFFFFFFFF),
    (lambda: cutlass.Int64(-(2**63)), P.I64, 2**63),
    (lambda: cutlass.Uint64(2**63), P.U64, 2**63),
    (lambda: cutlass.Uint64(2**64 - 1), P.U64, 2**64 - 1),
    (lambda: cutlass.Float16(-1.5), P.F16, bits("e", -1.5)),
    (lambda: cutlass.Float16(math.inf), P.F16, 0x7C00),
    (lambda: cutlass.BFloat16(1.5), P.BF16, 0x3FC0),
    (lambda: cutlass.Float32(math.nan), P.F32, 0x7FC00000),
    (lambda: cutlass.Float32(-2.25), P.F32, bits("f", -2.25)),
    (lambda: cutlass.Float64(0.1), P.F64, bits("d", 0.1)),
    (lambda: cutlass.Float64(-math.inf), P.F64, bits("d", -math.inf)),
    (lambda: cutlass.Float64(math.nan), P.F64, 0x7FF8000000000000),
]


@cute.kernel
def constants(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range_constexpr(len(CONSTANTS)):
        iket.mark(f"c{i}", CONSTANTS[i][0]() if callable(CONSTANTS[i][0]) else CONSTANTS[i][0])
    g[0] = n


@cute.jit
def constants_host(g: cute.Tensor, n: cutlass.Int32):
    constants(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_constants_are_exact_in_the_ptx():
    built = build(constants_host, tensor(), cutlass.Int32(3))
    assert [s.name for s in built.record.sites] == [f"c{i}" for i in range(len(CONSTANTS))]
    assert [s.payload for s in built.record.sites] == [kind for _, kind, _ in CONSTANTS]
    stored = {e.site - 1: e for e in built.entry.events}
    wide = (P.I64, P.U64, P.F64)
    assert {i: e.payload_width for i, e in stored.items()} == {
        i: 64 if kind in wide else 32 for i, (_, kind, _) in enumerate(CONSTANTS)
    }
    assert {i: e.payload for i, e in stored.items()} == {i: value for i, (_, _, value) in enumerate(CONSTANTS)}


RUN_TIME = [
    ("boolean", P.BOOL), ("i8", P.I8), ("u8", P.U8), ("i16", P.I16), ("u16", P.U16), ("i32", P.I32), ("u32", P.U32),
    ("i64", P.I64), ("u64", P.U64), ("f16", P.F16), ("bf16", P.BF16), ("f32", P.F32), ("f64", P.F64), ("index", P.I64),
    ("mlir i1", P.BOOL), ("mlir i16", P.I16), ("mlir i32", P.I32), ("mlir i64", P.I64), ("mlir f32", P.F32),
]  # fmt: skip


@cute.kernel
def run_time(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("boolean", n < 0)
    iket.mark("i8", n.to(cutlass.Int8))
    iket.mark("u8", n.to(cutlass.Uint8))
    iket.mark("i16", n.to(cutlass.Int16))
    iket.mark("u16", n.to(cutlass.Uint16))
    iket.mark("i32", n)
    iket.mark("u32", n.to(cutlass.Uint32))
    iket.mark("i64", n.to(cutlass.Int64))
    iket.mark("u64", n.to(cutlass.Int64).to(cutlass.Uint64))
    iket.mark("f16", n.to(cutlass.Float16))
    iket.mark("bf16", n.to(cutlass.BFloat16))
    iket.mark("f32", n.to(cutlass.Float32))
    iket.mark("f64", n.to(cutlass.Float64))
    iket.mark("index", arith.index_cast(index_type(), n.ir_value()))
    iket.mark("mlir i1", (n > 0).ir_value())
    iket.mark("mlir i16", n.to(cutlass.Int16).ir_value())
    iket.mark("mlir i32", n.ir_value())
    iket.mark("mlir i64", n.to(cutlass.Int64).ir_value())
    iket.mark("mlir f32", n.to(cutlass.Float32).ir_value())
    g[0] = n


def index_type():
    from cutlass._mlir import ir

    return ir.IndexType.get()


@cute.jit
def run_time_host(g: cute.Tensor, n: cutlass.Int32):
    run_time(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@pytest.mark.parametrize("n", [-3, 100])
def test_run_time_values_are_exact(n):
    built = build(run_time_host, tensor(), cutlass.Int32(3))
    assert [(s.name, s.payload) for s in built.record.sites] == RUN_TIME
    (warp,), _ = run(built, [np.zeros(256, np.int32), n], main=2048)
    assert {r.name: r.payload for r in warp.records} == {
        "boolean": int(n < 0), "i8": n & 0xFF, "u8": n & 0xFF, "i16": n & 0xFFFF, "u16": n & 0xFFFF,
        "i32": n & 0xFFFFFFFF, "u32": n & 0xFFFFFFFF, "i64": n & (2**64 - 1), "u64": n & (2**64 - 1),
        "f16": bits("e", n), "bf16": bits("f", n) >> 16, "f32": bits("f", n), "f64": bits("d", n),
        "index": n & (2**64 - 1), "mlir i1": int(n > 0), "mlir i16": n & 0xFFFF, "mlir i32": n & 0xFFFFFFFF,
        "mlir i64": n & (2**64 - 1), "mlir f32": bits("f", n),
    }  # fmt: skip


@cute.kernel
def lanes(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("all", tidx)
    if tidx >= n:
        iket.mark("upper", tidx)
        if tidx % 4 == 3:
            iket.mark("fourth", tidx)
    iket.mark("again", tidx)
    g[tidx] = n


@cute.jit
def lanes_host(g: cute.Tensor, n: cutlass.Int32):
    lanes(g, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def test_the_first_active_lane_gives_the_payload():
    built = build(lanes_host, tensor(), cutlass.Int32(3))
    warps, _ = run(built, [np.zeros(256, np.int32), 9], block=64)
    shown = [[(r.name, r.lane, r.payload) for r in w.records] for w in warps]
    assert shown == [
        [("all", 0, 0), ("upper", 9, 9), ("fourth", 11, 11), ("again", 0, 0)],
        [("all", 0, 32), ("upper", 0, 32), ("fourth", 3, 35), ("again", 0, 32)],
    ]
    assert [(w.advance, w.lane_advance) for w in warps] == [(2, {9: 1, 11: 1}), (3, {3: 1})]
