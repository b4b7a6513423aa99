"""Payloads: from Python literals and DSL scalars to the bits that a slot holds."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm

from ...wire import PAYLOAD_BITS, PayloadType

_DSL_TYPES: dict[str, PayloadType] = {
    "Boolean": PayloadType.BOOL,
    "Int8": PayloadType.I8,
    "Uint8": PayloadType.U8,
    "Int16": PayloadType.I16,
    "Uint16": PayloadType.U16,
    "Int32": PayloadType.I32,
    "Uint32": PayloadType.U32,
    "Int64": PayloadType.I64,
    "Uint64": PayloadType.U64,
    "Float16": PayloadType.F16,
    "BFloat16": PayloadType.BF16,
    "Float32": PayloadType.F32,
    "Float64": PayloadType.F64,
}


@dataclass(frozen=True)
class Payload:
    """A payload in the kernel's IR: its type and an i32 or i64 value that holds its bits, zero-extended."""

    type: PayloadType
    bits: Any
    width: str  # "i32" or "i64"


class PayloadError(ValueError):
    """Why a value cannot be a payload; the caller adds file and line."""


def supported(value: Any) -> bool:
    """Whether :func:`make` takes this Python integer or DSL scalar."""
    if isinstance(value, int):
        return -(2**31) <= value < 2**31
    return isinstance(value, cutlass.Numeric) and type(value).__name__ in _DSL_TYPES


def make(value: Any) -> Payload:
    """The payload for ``value``, emitting conversions at the current insertion point.

    Accepts Python bool, int (32 bits) and float (32 bits), DSL scalars of 8 to 64 bits, and MLIR values of index or
    integer type. Raises PayloadError for anything else.
    """
    if isinstance(value, bool):
        return _literal(PayloadType.BOOL, int(value))
    if isinstance(value, int):
        return _int_literal(int(value))
    if isinstance(value, float):
        return _literal(PayloadType.F32, _float32_bits(value))
    if isinstance(value, cutlass.Numeric):
        return _from_numeric(value)
    if isinstance(value, ir.Value):
        return _from_value(value)
    raise PayloadError(
        f"payload of type {type(value).__name__} is not supported; "
        "give a Python bool, int or float or a CuTe DSL scalar"
    )


def _int_literal(value: int) -> Payload:
    if not -(2**31) <= value < 2**31:
        raise PayloadError(f"integer payload {value} does not fit 32 bits; write cutlass.Int64({value})")
    return _literal(PayloadType.I32, value & 0xFFFFFFFF)


def _float32_bits(value: float) -> int:
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        raise PayloadError(
            f"float payload {value!r} does not fit 32 bits; write cutlass.Float64({value!r})"
        ) from None


def _literal(kind: PayloadType, bits: int) -> Payload:
    signed = bits - (1 << 32) if bits >> 31 else bits
    return Payload(kind, llvm.mlir_constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), signed)), "i32")


def _from_numeric(value: Any) -> Payload:
    name = type(value).__name__
    kind = _DSL_TYPES.get(name)
    if kind is None:
        raise PayloadError(
            f"payload of type cutlass.{name} is not supported; convert it, e.g. with .to(cutlass.Float32)"
        )
    return _widen(kind, value.ir_value())


def _from_value(value: Any) -> Payload:
    if isinstance(value.type, ir.IndexType):
        i64 = ir.IntegerType.get_signless(64)
        return Payload(PayloadType.I64, arith.index_cast(i64, value), "i64")
    kinds = {1: PayloadType.BOOL, 8: PayloadType.I8, 16: PayloadType.I16, 32: PayloadType.I32, 64: PayloadType.I64}
    if isinstance(value.type, ir.IntegerType) and value.type.width in kinds:
        return _widen(kinds[value.type.width], value)
    floats = {"f16": PayloadType.F16, "bf16": PayloadType.BF16, "f32": PayloadType.F32, "f64": PayloadType.F64}
    if str(value.type) in floats:
        return _widen(floats[str(value.type)], value)
    raise PayloadError(f"payload of MLIR type {value.type} is not supported; give a CuTe DSL scalar")


def _widen(kind: PayloadType, value: Any) -> Payload:
    bits = max(PAYLOAD_BITS[kind], 1)
    if not isinstance(value.type, ir.IntegerType):
        value = arith.bitcast(ir.IntegerType.get_signless(bits), value)
    if value.type.width < 32:
        value = arith.extui(ir.IntegerType.get_signless(32), value)
    return Payload(kind, value, f"i{value.type.width}")
