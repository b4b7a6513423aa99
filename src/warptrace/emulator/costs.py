"""Clocks, costs and limits of the emulated GPU, in one place.

The costs are the emulator's own round numbers (issue-to-result cycles of the
right order of magnitude for an H200), not measurements: times made with them
are emulated times. Rates and steps of the clocks are those measured on an H200:
%globaltimer moves in 32 ns steps, %clock64 of different SMs are unrelated, and
the rate belongs to the GPC (1.98 GHz by default).
"""

from __future__ import annotations

GLOBALTIMER_STEP_NS = 32
"""Step of %globaltimer (measured on an H200)."""
DEFAULT_GHZ = 1.98
"""Clock rate of every GPC unless configured (H200 under load)."""
SM_COUNT = 132
SMEM_PER_SM = 228 * 1024
SMEM_PER_CTA = 227 * 1024
THREADS_PER_SM = 2048
CTAS_PER_SM = 32
MAX_THREADS_PER_CTA = 1024
MAX_CLUSTER = 16
LAUNCH_GAP_NS = 3000.0
"""Device time between two launches."""
CTA_START_NS = 200.0
"""Time from the end of a CTA to the start of its successor on the SM."""
ASYNC_LATENCY_NS = 500.0
"""From issue to completion of cp.async and bulk copies, plus `ASYNC_NS_PER_BYTE` each byte."""
ASYNC_NS_PER_BYTE = 0.005
RUN_AHEAD_NS = 5000.0
"""How far a warp that touches no memory may run ahead of the others: only host time depends on it."""
TIMEOUT_NS = 1000.0
"""try_wait returns false this long after nothing else can advance."""
DEFAULT_STALL = 12.0
"""Largest random stall (cycles) added to a stretch of instructions by the seeded scheduler."""

DEFAULT_COST = 4.0
COSTS: dict[str, float] = {
    "ld.global": 300.0,
    "ld.shared": 28.0,
    "ld.local": 30.0,
    "ld.param": 8.0,
    "ld.const": 8.0,
    "ld": 300.0,
    "ldu": 300.0,
    "st": 4.0,
    "atom": 350.0,
    "atom.shared": 60.0,
    "red": 6.0,
    "ldmatrix": 33.0,
    "stmatrix": 20.0,
    "mma": 33.0,
    "wgmma": 32.0,
    "shfl": 24.0,
    "vote": 12.0,
    "match": 24.0,
    "redux": 24.0,
    "elect": 12.0,
    "bar": 20.0,
    "barrier": 20.0,
    "mbarrier": 20.0,
    "fence": 20.0,
    "membar": 20.0,
    "ex2": 18.0,
    "lg2": 18.0,
    "sin": 18.0,
    "cos": 18.0,
    "tanh": 18.0,
    "rcp": 18.0,
    "rsqrt": 18.0,
    "sqrt": 18.0,
    "div": 30.0,
    "rem": 30.0,
    "bra": 6.0,
    "nanosleep": 4.0,
}
"""Cycles of one issued warp instruction by opcode (``op.space`` first, then ``op``); others cost `DEFAULT_COST`."""


def cost(parts: tuple[str, ...]) -> float:
    """Cycles that an instruction with this opcode takes."""
    op = parts[0]
    for p in parts[1:]:
        key = f"{op}.{p.split('::')[0]}"
        if key in COSTS:
            return COSTS[key]
    return COSTS.get(op, DEFAULT_COST)
