"""Payload bits as typed values, column-wise."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trace import I64, U8, U64
from ..wire import PAYLOAD_BITS, PayloadType

SIGNED = (PayloadType.I8, PayloadType.I16, PayloadType.I32, PayloadType.I64)
FLOATS = (PayloadType.F16, PayloadType.BF16, PayloadType.F32, PayloadType.F64)


class ValueKind(IntEnum):
    """How the 64 bits of a widened value read."""

    NONE = 0
    INT = 1
    """Two's complement, sign-extended."""
    UINT = 2
    FLOAT = 3
    """IEEE binary64; every smaller float widens exactly."""
    BOOL = 4


def _kind_table() -> U8:
    table = np.full(256, ValueKind.UINT, np.uint8)
    table[PayloadType.NONE] = ValueKind.NONE
    table[PayloadType.BOOL] = ValueKind.BOOL
    table[list(SIGNED)] = ValueKind.INT
    table[list(FLOATS)] = ValueKind.FLOAT
    return table


KIND_OF_TYPE = _kind_table()
"""(256,) PayloadType -> ValueKind; a type this version does not know reads as unsigned bits."""


def widen(types: U8, bits: U64) -> tuple[U8, U64]:
    """Kinds (:class:`ValueKind`) and 64-bit values of a column of payloads; exact for every type."""
    kinds = KIND_OF_TYPE.take(types)
    values = bits.copy()
    for kind in SIGNED + FLOATS:
        rows = np.flatnonzero(types == kind)
        if len(rows):
            values[rows] = _widen_one(kind, bits[rows])
    return kinds, values


def _widen_one(kind: PayloadType, bits: U64) -> U64:
    if kind in SIGNED:
        shift = np.int64(64 - PAYLOAD_BITS[kind])
        signed: I64 = bits.view(np.int64) << shift >> shift
        return signed.view(np.uint64)
    if kind == PayloadType.F64:
        return bits
    if kind == PayloadType.F16:
        narrow: NDArray[np.floating] = bits.astype(np.uint16).view(np.float16)
    elif kind == PayloadType.BF16:
        narrow = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        narrow = bits.astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one: still NaN
        return narrow.astype(np.float64).view(np.uint64)


def texts(types: U8, bits: U64) -> list[str]:
    """Payloads as a person reads them: decimal, the shortest digits that give a float back, 0 or 1 for a bool; empty
    where there is none."""
    kinds, values = widen(types, bits)
    out = [str(value) for value in values.tolist()]
    numbers = values.view(np.float64)
    columns: list[tuple[NDArray[np.bool_], NDArray[Any]]] = [
        (kinds == ValueKind.INT, values.view(np.int64)),
        (np.isin(types, [PayloadType.BF16, PayloadType.F32]), _narrow(numbers, np.float32)),
        (types == PayloadType.F16, _narrow(numbers, np.float16)),
        (types == PayloadType.F64, numbers),
    ]
    for rows, column in columns:
        for row in np.flatnonzero(rows).tolist():
            out[row] = str(column[row])
    for row in np.flatnonzero(kinds == ValueKind.NONE).tolist():
        out[row] = ""
    return out


def _narrow(numbers: NDArray[np.float64], dtype: type[np.floating[Any]]) -> NDArray[Any]:
    with np.errstate(all="ignore"):  # rows of other types may not fit: they are not used
        return numbers.astype(dtype)
