"""THE table of the event API's semantics. Every row runs on the emulator (CI) and on hardware (``-m gpu``)."""

from __future__ import annotations

from . import (
    kernels_api,
    kernels_flow,
    kernels_lanes,
    kernels_limits,
    kernels_payload,
    kernels_ring,
    kernels_roles,
    kernels_tokens,
)
from .table import Case

CASES: list[Case] = [
    *kernels_api.CASES,
    *kernels_payload.CASES,
    *kernels_flow.CASES,
    *kernels_lanes.CASES,
    *kernels_tokens.CASES,
    *kernels_roles.CASES,
    *kernels_limits.CASES,
    *kernels_ring.CASES,
]
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES), "two cases of one name"
