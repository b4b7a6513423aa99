"""Sizes of the demo, its data, and what must come out of it: the product and the number of events of every name.

Imports neither the DSL nor CUDA: the command line and the tests compute with it on any machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import WarptraceError

M, N, K = 256, 384, 512
"""C (M, N) = A (M, K) times the transpose of B (N, K)."""
TILE_M = TILE_N = TILE_K = 64
STAGES = 3
"""Tiles of A and B that fit the ring between the producer and the consumers."""
CTAS = 12
CONSUMER_WARPS = 4
WARPS = 1 + CONSUMER_WARPS

TILES_N = N // TILE_N
TILES = M // TILE_M * TILES_N
TILES_PER_CTA = TILES // CTAS
K_TILES = K // TILE_K

TOLERANCE = 1e-5
"""Largest error, relative to the largest value of the product: sums of 512 products in fp32, in another order."""

_PRODUCER, _CONSUMERS, _ALL = CTAS, CTAS * CONSUMER_WARPS, CTAS * WARPS
_EACH_TILE = TILES_PER_CTA
_EACH_K = TILES_PER_CTA * K_TILES

EXPECTED_EVENTS: dict[str, int] = {
    "kernel_start": _ALL,
    "setup": _ALL,
    "load_tile": _PRODUCER * _EACH_TILE,
    "empty_wait": _PRODUCER * _EACH_K,
    "tma_issue": _PRODUCER * _EACH_K,
    "load_tail": _PRODUCER,
    "mma_tile": _CONSUMERS * _EACH_TILE,
    "full_wait": _CONSUMERS * _EACH_K,
    "mma": _CONSUMERS * _EACH_K,
    "k_step": _CONSUMERS * _EACH_K,
    "epilogue": _CONSUMERS * _EACH_TILE,
    "tile_done": _CONSUMERS * _EACH_TILE,
}
"""Ranges and markers of each name in one launch: how many warps execute it, times how often each does."""


def inputs(seed: int = 0) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """A (M, K) and B (N, K): reproducible random fp16."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((M, K), np.float32).astype(np.float16)
    b = rng.standard_normal((N, K), np.float32).astype(np.float16)
    return a, b


def error_of(c: NDArray[np.float32], a: NDArray[np.float16], b: NDArray[np.float16]) -> float:
    """Largest error of ``c`` relative to the largest value of the product in fp64; NaN where ``c`` holds one."""
    reference = a.astype(np.float64) @ b.astype(np.float64).T
    return float(np.abs(c - reference).max() / np.abs(reference).max())


def check(c: NDArray[np.float32], a: NDArray[np.float16], b: NDArray[np.float16]) -> str:
    """One line that says how exact the product is. Raises WarptraceError if it is wrong."""
    error = error_of(c, a, b)
    if not error <= TOLERANCE:  # NaN too
        raise WarptraceError(
            f"the demo's matrix product is WRONG: relative error {error:.3g}, allowed {TOLERANCE:g};"
            " its trace is not to be trusted"
        )
    return f"C = A B^T, {M}x{N}x{K}: relative error {error:.1e} against numpy, correct"
