"""What each launch needed of trace memory, for advice on the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..wire import BANK_COUNT, bank_of, scattered
from .events import Streams
from .tables import I64, LostRows, SiteTable

if TYPE_CHECKING:
    from .decoder import Identity, LostWarps


def room_facts(
    identity: Identity, streams: Streams, lost: LostRows, lost_warps: LostWarps, table: SiteTable
) -> dict[str, I64]:
    """For ``Trace.meta["room"]``, one row a launch: ``events``: most that one lane of a warp led, stored or not;
    ``bank_warps`` (launches, banks): warps that claimed from each bank; ``main_bytes``, ``lane_bytes``: of its regions,
    -1 where no warp has one."""
    regions, n = identity.regions, len(identity.keys)
    events = np.zeros(n, np.int64)
    np.maximum.at(events, identity.launch[streams.region], streams.stored + streams.torn + streams.lost)
    led = lost.records["advance"].astype(np.int64) // np.maximum(lost.records["stride"], 1)
    np.maximum.at(events, identity.lost_launch, led)
    facts: dict[str, Any] = {"events": events, "bank_warps": _bank_warps(identity, lost_warps, table)}
    for name in ("main_bytes", "lane_bytes"):
        facts[name] = np.full(n, -1, np.int64)
        np.maximum.at(facts[name], identity.launch, regions.headers[name].astype(np.int64))
    return facts


def _bank_warps(identity: Identity, lost_warps: LostWarps, table: SiteTable) -> I64:
    n, headers = len(identity.keys), identity.regions.headers
    launch = np.concatenate([identity.launch, lost_warps.launch])
    place = np.concatenate([headers["sm"].astype(np.int64), lost_warps.sm])
    records = [table.kernels.get(key.kernel_id) for key in identity.keys]
    thinned = np.array([r is not None and r.selection.thins for r in records], np.bool_)[launch]
    if thinned.any():
        grids = np.zeros((n, 3), np.int64)  # of a launch without any region it stays unknown
        grids[identity.launch] = headers["grid"]
        cta = np.concatenate([headers["cta"].astype(np.int64), lost_warps.cta.astype(np.int64)])
        place[thinned] = scattered(cta[thinned], grids[launch[thinned]])
    grid_id = np.array([key.grid_id for key in identity.keys], np.uint64)
    bank = bank_of(place, grid_id[launch])
    banks: I64 = np.bincount(launch * BANK_COUNT + bank, minlength=n * BANK_COUNT).astype(np.int64)
    return banks.reshape(n, BANK_COUNT)
