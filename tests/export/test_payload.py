from __future__ import annotations

import math

import numpy as np
import pytest
from expected_slices import typed
from hypothesis import given
from hypothesis import strategies as st
from random_traces import payloads

from warptrace.export.payload import ValueKind, texts, widen
from warptrace.wire import PayloadType as P


@given(st.lists(payloads(), max_size=20))
def test_widen_is_exact(rows: list[tuple[P, int]]) -> None:
    kinds, values = widen(np.array([r[0] for r in rows], np.uint8), np.array([r[1] for r in rows], np.uint64))
    for (kind, bits), got, value in zip(rows, kinds.tolist(), values, strict=True):
        name, expected = typed(kind, bits)
        if got == ValueKind.FLOAT:
            number = float(value.view(np.float64))
            assert math.isnan(number) if expected == "NaN" else number == expected
        elif got == ValueKind.INT:
            assert (name, int(value.view(np.int64))) == ("int", expected)
        else:
            assert got == (ValueKind.BOOL if name == "bool" else ValueKind.UINT)
            assert int(value) == int(expected)


@pytest.mark.parametrize(
    ("kind", "bits", "shown"),
    [(P.NONE, 0, ""), (P.BOOL, 1, "1"), (P.I8, 0xFF, "-1"), (P.U64, (1 << 64) - 1, "18446744073709551615"),
     (P.I64, 1 << 63, "-9223372036854775808"), (P.F16, 0x2E66, "0.1"), (P.BF16, 0x3DCD, "0.100097656"),
     (P.F32, 0x3DCCCCCD, "0.1"), (P.F64, 0x3FB999999999999A, "0.1"), (P.F32, 0x7FC00000, "nan"),
     (P.F64, 0xFFF0000000000000, "-inf")],
)  # fmt: skip
def test_texts(kind: P, bits: int, shown: str) -> None:
    # In company, so that a value of one type is not read as that of a neighbour.
    types = np.array([P.F64, kind, P.U8], np.uint8)
    assert texts(types, np.array([0x7FEFFFFFFFFFFFFF, bits, 7], np.uint64)) == ["1.7976931348623157e+308", shown, "7"]
