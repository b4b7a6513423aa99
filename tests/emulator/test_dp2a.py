"""dp2a: two 16-bit halves times two bytes, all signs, both halves of the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kit import run_lanes, same_bits


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("ta", ["u32", "s32"])
@pytest.mark.parametrize("tb", ["u32", "s32"])
def test_dp2a(half: str, ta: str, tb: str) -> None:
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(0, 2**32, 32, np.uint32) for _ in range(3))
    a[:2], b[:2] = [0x80007FFF, 0xFFFFFFFF], [0x80807F7F, 0xFFFFFFFF]
    x = a.view(np.int16 if ta == "s32" else np.uint16).reshape(-1, 2).astype(np.int64)
    y = b.view(np.int8 if tb == "s32" else np.uint8).reshape(-1, 4).astype(np.int64)
    two = y[:, :2] if half == "lo" else y[:, 2:]
    want = (c.view(np.int32).astype(np.int64) + x[:, 0] * two[:, 0] + x[:, 1] * two[:, 1]).astype(np.uint32)
    same_bits(run_lanes(f"dp2a.{half}.{ta}.{tb} %d, %a0, %a1, %a2;", [a, b, c], np.uint32), want)
