"""Traces with a known answer."""

from __future__ import annotations

from typing import Any

from traces import TraceScript

from warptrace.trace import Process, Trace
from warptrace.wire import PayloadType

K_TILES = 4


def i32(value: int) -> tuple[PayloadType, int]:
    """A payload."""
    return PayloadType.I32, value


def pipeline(
    consumer_wait: tuple[int, ...] = (400, 60, 60, 60),
    producer_wait: tuple[int, ...] = (10, 10, 10, 10),
    *,
    launches: int = 1,
    ctas: int = 1,
    stretch: int = 0,
    sm_count: int | None = None,
    **facts: Any,
) -> Trace:
    """A producer and two consumers of K_TILES k tiles, 2 cycles a ns; times below are ns.

    Consumer: ``setup`` 20, then ``mma_tile`` with per k tile ``full_wait`` (as given) and ``mma`` 40, then 10 of no
    range. Producer: ``setup`` 20, ``load_tile`` with ``empty_wait`` (as given) and ``tma_issue`` 5. ``stretch`` is
    added to each ``mma`` of each further launch. CTA n runs on SM n.
    """
    script = TraceScript(emulated=facts.pop("emulated", False))
    if sm_count is not None:
        script.processes.append(device(sm_count))
    for number in range(launches):
        launch = script.launch(grid=(ctas, 1, 1), block=(96, 1, 1), warps_expected=3 * ctas, **facts)
        for cta in range(ctas):
            at: dict[str, Any] = {"cta": (cta, 0, 0), "sm": cta}
            begin = 10_000 * number
            _producer(script, launch, begin, producer_wait, at)
            for warp in (1, 2):
                _consumer(script, launch, begin, warp, consumer_wait, 40 + stretch * number, at)
    return script.build()


def device(sm_count: int) -> Process:
    """A process on one device with that many SMs."""
    return Process(4242, {"pid": 4242, "devices": [{"ordinal": 0, "name": "NVIDIA H200", "sm_count": sm_count}]})


def _producer(script: TraceScript, launch: int, now: int, waits: tuple[int, ...], at: dict[str, Any]) -> None:
    begin = now
    warp = script.warp(launch, begin, begin, warp=0, **at)
    warp.push(now, "setup")
    warp.pop(now := now + 20)
    warp.push(now, "load_tile", i32(at["cta"][0]))
    for k_tile, wait in enumerate(waits):
        warp.push(now, "empty_wait", i32(k_tile))
        warp.pop(now := now + wait)
        warp.push(now, "tma_issue", i32(k_tile))
        warp.pop(now := now + 5)
    warp.pop(now)
    warp.row.update(end_ns=now, cycles=2 * (now - begin))


def _consumer(
    script: TraceScript, launch: int, now: int, number: int, waits: tuple[int, ...], mma: int, at: dict[str, Any]
) -> None:
    begin = now
    warp = script.warp(launch, begin, begin, warp=number, **at)
    warp.push(now, "setup")
    warp.pop(now := now + 20)
    warp.push(now, "mma_tile", i32(at["cta"][0]))
    for k_tile, wait in enumerate(waits):
        warp.push(now, "full_wait", i32(k_tile))
        warp.pop(now := now + wait)
        warp.push(now, "mma", i32(k_tile))
        warp.pop(now := now + mma)
    warp.pop(now)
    now += 10
    warp.row.update(end_ns=now, cycles=2 * (now - begin))
