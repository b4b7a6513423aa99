"""PTX scalar types and how they are held: 32 lanes of one register are a row of a bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

WARP = 32
FULL_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class ScalarType:
    """One PTX type: ``kind`` is u, s, b (bits), f, h (f16), bf, p (predicate) or x (packed)."""

    name: str
    kind: str
    bits: int
    bank: str
    """Name of the register view that holds the type (U32, S32, F32, ...)."""
    dtype: Any


def _make() -> dict[str, ScalarType]:
    out: dict[str, ScalarType] = {"pred": ScalarType("pred", "p", 1, "P", np.bool_)}
    unsigned = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
    signed = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
    for n in (8, 16, 32, 64):
        out[f"u{n}"] = ScalarType(f"u{n}", "u", n, f"U{n}", unsigned[n])
        out[f"b{n}"] = ScalarType(f"b{n}", "b", n, f"U{n}", unsigned[n])
        out[f"s{n}"] = ScalarType(f"s{n}", "s", n, f"S{n}", signed[n])
    out["f16"] = ScalarType("f16", "h", 16, "F16", np.float16)
    out["f32"] = ScalarType("f32", "f", 32, "F32", np.float32)
    out["f64"] = ScalarType("f64", "f", 64, "F64", np.float64)
    out["bf16"] = ScalarType("bf16", "bf", 16, "U16", np.uint16)
    out["tf32"] = ScalarType("tf32", "x", 32, "U32", np.uint32)
    for name in ("f16x2", "bf16x2", "u16x2", "s16x2"):
        out[name] = ScalarType(name, "x", 32, "U32", np.uint32)
    for name in ("e4m3x2", "e5m2x2"):
        out[name] = ScalarType(name, "x", 16, "U16", np.uint16)
    out["b128"] = ScalarType("b128", "b", 128, "B128", None)
    return out


TYPES: dict[str, ScalarType] = _make()

BANK_DTYPES: dict[str, Any] = {
    "P": np.bool_,
    "U8": np.uint8,
    "S8": np.int8,
    "U16": np.uint16,
    "S16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "S32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "S64": np.int64,
    "F64": np.float64,
}
"""Register views by name; views of one width share memory."""

WIDTH_BANKS: dict[int, tuple[str, ...]] = {
    1: ("P",),
    8: ("U8", "S8"),
    16: ("U16", "S16", "F16"),
    32: ("U32", "S32", "F32"),
    64: ("U64", "S64", "F64"),
}
