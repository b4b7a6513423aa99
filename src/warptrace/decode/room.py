"""What each launch needed of trace memory, for advice on the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..wire import BANK_COUNT, bank_of
from .events import Streams
from .tables import I64, LostRows

if TYPE_CHECKING:
    from .decoder import Identity, LostWarps


def room_facts(identity: Identity, streams: Streams, lost: LostRows, lost_warps: LostWarps) -> dict[str, I64]:
    """For ``Trace.meta["room"]``, one row a launch: ``events``: most that one lane of a warp led, stored or not;
    ``bank_warps`` (launches, banks): warps that claimed from each bank; ``main_bytes``, ``lane_bytes``: of its regions,
    -1 where no warp has one."""
    n = len(identity.keys)
    events = np.zeros(n, np.int64)
    np.maximum.at(events, identity.launch[streams.region], streams.stored + streams.torn + streams.lost)
    led = lost.records["advance"].astype(np.int64) // np.maximum(lost.records["stride"], 1)
    np.maximum.at(events, identity.lost_launch, led)
    headers = identity.regions.headers
    launch = np.concatenate([identity.launch, lost_warps.launch])
    sm = np.concatenate([headers["sm"].astype(np.int64), lost_warps.sm])
    grid = np.array([key.grid_id for key in identity.keys], np.uint64)
    bank = bank_of(sm, grid[launch])
    banks = np.bincount(launch * BANK_COUNT + bank, minlength=n * BANK_COUNT).reshape(n, BANK_COUNT)
    facts: dict[str, Any] = {"events": events, "bank_warps": banks.astype(np.int64)}
    for name in ("main_bytes", "lane_bytes"):
        facts[name] = np.full(n, -1, np.int64)
        np.maximum.at(facts[name], identity.launch, headers[name].astype(np.int64))
    return facts
