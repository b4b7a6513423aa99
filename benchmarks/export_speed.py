"""How fast, how large and with how much memory a trace is exported.

    python benchmarks/export_speed.py [--events 10000000] [--formats perfetto json]

The trace is made up: 132 SMs x 8 warps, each running a main loop with nested push/pop ranges, a token range that
crosses iterations, and a marker; a third of the events carry a payload.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warptrace.export import write_iket_json, write_perfetto
from warptrace.trace import I64, RANGE_STACK, RANGE_TOKEN, Launch, Markers, Process, Ranges, Trace, TraceSite, Warps
from warptrace.wire import EventKind, PayloadType

SMS = 132
WARPS_PER_SM = 8
NAMES = ("load", "k_tile", "wait_full", "mma", "tick")
LOAD, K_TILE, WAIT, MMA, TICK = range(5)
SLOTS = 10  # stamps of one iteration
EVENTS_PER_ITERATION = 9


@dataclass(frozen=True)
class Kind:
    """A range of the loop: its name, kind and depth, and the slots of its two stamps."""

    name: int
    kind: int
    depth: int
    start: int
    end: int


LOOP = (
    Kind(LOAD, RANGE_TOKEN, 0, 0, SLOTS + 1),  # ends in the next iteration, after that one's start
    Kind(K_TILE, RANGE_STACK, 0, 2, 7),
    Kind(WAIT, RANGE_STACK, 1, 3, 4),
    Kind(MMA, RANGE_STACK, 1, 5, 6),
)


def make_trace(events: int) -> Trace:
    """A trace of about ``events`` events."""
    warps = SMS * WARPS_PER_SM
    iterations = max(events // (warps * EVENTS_PER_ITERATION), 1)
    rng = np.random.default_rng(1)
    stamps = (iterations + 1) * SLOTS
    cycles = np.cumsum(rng.integers(20, 200, (warps, stamps), np.int64), axis=1)
    ns = cycles * 1000 // 1755
    ranges = _ranges(warps, iterations, cycles, ns)
    at = np.arange(iterations) * SLOTS + 8
    count = warps * iterations
    markers = Markers(
        warp=np.repeat(np.arange(warps, dtype=np.int32), iterations),
        name=np.full(count, TICK, np.int32),
        lane=np.zeros(count, np.uint8),
        ns=ns[:, at].reshape(-1),
        cycle=cycles[:, at].reshape(-1),
        seq=np.tile(at, warps),
        type=np.zeros(count, np.uint8),
        bits=np.zeros(count, np.uint64),
        site=np.full(count, TICK, np.int32),
    )
    index = np.arange(warps)
    table = Warps(
        launch=np.zeros(warps, np.int32),
        cta=np.stack([index // WARPS_PER_SM, index * 0, index * 0], 1).astype(np.int32),
        warp=(index % WARPS_PER_SM).astype(np.int32),
        sm=(index // WARPS_PER_SM).astype(np.int32),
        tpc=(index // WARPS_PER_SM // 2 % 9).astype(np.int32),
        gpc=(index // WARPS_PER_SM // 18).astype(np.int32),
        start_ns=np.zeros(warps, np.int64),
        end_ns=ns[:, -1] + 100,
        start_cycle=np.zeros(warps, np.int64),
        cycles=cycles[:, -1] + 175,
        events=np.full(warps, iterations * EVENTS_PER_ITERATION, np.int64),
        lost=np.zeros(warps, np.int64),
        closed=np.ones(warps, np.uint8),
    )
    total = warps * iterations * EVENTS_PER_ITERATION
    launch = Launch(
        0, 0, 0, 1, 7, "gemm", "kernel_gemm", 1, (SMS, 1, 1), (256, 1, 1), (1, 1, 1), 0,
        int(table.end_ns.max()), warps, warps, total, 0, 0, 4.0,
    )  # fmt: skip
    sites = tuple(TraceSite(1, i + 1, EventKind.PUSH, name, 0, "gemm.py", 10 + i) for i, name in enumerate(NAMES))
    return Trace(1_795_962_459_702_986_016, NAMES, sites, (Process(1, {}),), (launch,), table, ranges, markers)


def _ranges(warps: int, iterations: int, cycles: I64, ns: I64) -> Ranges:
    base = np.arange(iterations)[:, None] * SLOTS
    starts = (base + [kind.start for kind in LOOP]).reshape(-1)
    ends = (base + [kind.end for kind in LOOP]).reshape(-1)
    per_warp = len(starts)
    count = warps * per_warp

    def tiled(values: list[int], dtype: type) -> np.ndarray:
        return np.tile(np.array(values, dtype), warps * iterations)

    k = np.tile(np.repeat(np.arange(iterations, dtype=np.uint64), len(LOOP)), warps)
    typed = tiled([PayloadType.I32, PayloadType.F32, 0, 0], np.uint8)
    return Ranges(
        warp=np.repeat(np.arange(warps, dtype=np.int32), per_warp),
        name=tiled([kind.name for kind in LOOP], np.int32),
        kind=tiled([kind.kind for kind in LOOP], np.uint8),
        lane=np.zeros(count, np.uint8),
        depth=tiled([kind.depth for kind in LOOP], np.int16),
        start_ns=ns[:, starts].reshape(-1),
        end_ns=ns[:, ends].reshape(-1),
        start_cycle=cycles[:, starts].reshape(-1),
        end_cycle=cycles[:, ends].reshape(-1),
        start_seq=np.tile(starts, warps),
        end_seq=np.tile(ends, warps),
        start_type=typed,
        start_bits=np.where(typed > 0, k, np.uint64(0)),
        end_type=tiled([PayloadType.I32, 0, 0, 0], np.uint8),
        end_bits=np.where(tiled([1, 0, 0, 0], np.uint8) > 0, k, np.uint64(0)),
        start_site=tiled([kind.name for kind in LOOP], np.int32),
        end_site=tiled([kind.name for kind in LOOP], np.int32),
    )


FORMATS: dict[str, Callable[[Trace, Path], None]] = {
    "perfetto": lambda trace, path: write_perfetto(trace, path),
    "perfetto-raw": lambda trace, path: write_perfetto(trace, path, compress=False),
    "perfetto-names": lambda trace, path: write_perfetto(trace, path, payload_in_name=True),
    "json": lambda trace, path: write_iket_json(trace, path),
    "json-gzip": lambda trace, path: write_iket_json(trace, path, gzip=True),
}


def measure(name: str, trace: Trace, folder: Path, keep: bool) -> None:
    """Exports in a child, so that its peak memory is its own."""
    path = folder / f"trace.{name}"
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            FORMATS[name](trace, path)
        except BaseException as error:  # the parent tells by the status
            print(error)
            os._exit(1)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{name} failed")
    megabytes, more = path.stat().st_size / 1e6, max(usage.ru_maxrss - before, 0) / 1024
    print(
        f"{name:15} {seconds:7.2f} s   cpu {usage.ru_utime + usage.ru_stime:6.2f} s   "
        f"{megabytes:9.1f} MB   {more:6.0f} MiB above the trace's own"
    )
    if not keep:
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["perfetto", "json"])
    parser.add_argument("--keep", type=Path, help="write the files into this folder and leave them there")
    args = parser.parse_args()
    trace = make_trace(args.events)
    print(f"{len(trace.ranges)} ranges, {len(trace.markers)} markers, {trace.launches[0].events} events")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.formats:
            measure(name, trace, args.keep or Path(folder), args.keep is not None)


if __name__ == "__main__":
    main()
