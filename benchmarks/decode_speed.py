"""Speed and memory of the raw path: bank memory -> capture -> read -> decode, on made-up, well-formed warps.

    python benchmarks/decode_speed.py [--events 10000000] [--warps 100000] [--stride 8|16] [--anchors] [--json]

One SM's share of warps lies in each bank, as on a device; every warp repeats ten events: two nested push ranges, a
switch, a token range and marks; with --anchors one of the ten also holds the global timer, and the clocks fall from
1.98 to 1.5 GHz and rise again, over and over. Prints seconds, events a second and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from warptrace import wire
from warptrace.decode import decode
from warptrace.raw import BankImage, CaptureWriter, read_capture
from warptrace.sites import KernelRecord, Site, kernel_id
from warptrace.trace import Trace
from warptrace.wire import EventKind, PayloadType

T = TypeVar("T")
SMS = 132
EPOCH_NS = 1_764_000_000_000_000_000
PATTERN = (
    (EventKind.PUSH, "tile"),
    (EventKind.PUSH, "load"),
    (EventKind.POP, ""),
    (EventKind.START, "mma"),
    (EventKind.PUSH, "wait"),
    (EventKind.SWITCH, "store"),
    (EventKind.POP, ""),
    (EventKind.END, "mma"),
    (EventKind.MARK, "step"),
    (EventKind.POP, ""),
)
START, END = 3, 7
ANCHOR = 1
"""Of the pattern, with --anchors."""


def cycles_to_ns(cycles: np.ndarray, moving: bool) -> np.ndarray:
    """True ns since the launch's start; where the clock moves, its rate swings by a seventh either way in 60 us."""
    swing = 100_000 / 2 / np.pi
    return cycles / 1.98 if not moving else (cycles + swing / 7 * (1 - np.cos(cycles / swing))) / 1.74


def record(stride: int, anchors: bool = False) -> KernelRecord:
    payload = PayloadType.U32 if stride == 16 else PayloadType.NONE
    silent = (EventKind.POP,)
    sites = tuple(
        Site(
            i + 1,
            kind,
            name,
            PayloadType.NONE if kind in silent else payload,
            "bench.py",
            i + 1,
            anchors and i == ANCHOR,
        )
        for i, (kind, name) in enumerate(PATTERN)
    )
    number = kernel_id("kernel_bench", sites)
    return KernelRecord(number, "kernel_bench", "bench", "sm_90a", stride, 0, False, None, sites)


def bank_image(kernel: KernelRecord, sm: int, warps: np.ndarray, total: int, events: int) -> BankImage:
    """Memory of one bank that holds the regions of ``warps``, each with ``events`` events."""
    stride = kernel.stride
    moving = any(s.anchor for s in kernel.sites)
    main_bytes = -(-events * stride // wire.REGION_ALIGN) * wire.REGION_ALIGN
    size = wire.region_bytes(main_bytes, 0)
    n = len(warps)
    base = wire.ARENA_OFFSET + sm * (64 << 20)
    memory = np.zeros((n, size), np.uint8)
    headers = memory[:, : wire.REGION_HEADER_BYTES].view(wire.REGION_DTYPE)[:, 0]
    position = np.arange(n) * size
    entry = 10_000_000_000 * (sm + 1) + np.arange(n) * 40 * events
    headers["magic"], headers["closed"] = wire.REGION_MAGIC, wire.CLOSED_MAGIC
    headers["position"], headers["kernel_id"], headers["grid_id"] = position, kernel.kernel_id, 7
    headers["cta"][:, 0], headers["warp"] = warps // 4, warps % 4
    headers["main_bytes"], headers["stride"], headers["sm"] = main_bytes, stride, sm
    headers["capacity"] = wire.pack_capacity(main_bytes, 0)
    headers["grid"], headers["block"] = (-(-total // 4), 1, 1), wire.pack_block(128, 1, 1)
    headers["entry_clock"], headers["exit_clock"] = entry, entry + 40 * events
    origin = 10_000_000_000 * (sm + 1)
    for name in ("entry", "exit"):
        ns = cycles_to_ns(headers[f"{name}_clock"].astype(np.int64) - origin, moving).astype(np.uint64)
        headers[f"{name}_globaltimer"] = EPOCH_NS + ns // 32 * 32
    headers["advance"] = events * stride
    code = np.resize(np.arange(1, len(PATTERN) + 1, dtype=np.uint32), events)
    slots = memory[:, wire.REGION_HEADER_BYTES :].view("<u4").reshape(n, -1, stride // 4)[:, :events]
    clock = entry[:, None] + 40 * np.arange(events)
    clock += np.random.default_rng(sm).integers(0, 30, clock.shape)
    slots[:, :, 0] = clock & 0xFFFFFFFF
    slots[:, :, 1] = code
    ends = np.arange(END, events, len(PATTERN))
    offset = base + position[:, None] + wire.REGION_HEADER_BYTES + (ends - (END - START)) * stride
    slots[:, ends, 1] |= ((offset << wire.TOKEN_SHIFT) & wire.TOKEN_MASK).astype(np.uint32)
    if stride == 16:
        slots[:, :, 2] = np.arange(events)
    if moving:
        at = np.arange(ANCHOR, events, len(PATTERN))
        ns = EPOCH_NS + cycles_to_ns(clock[:, at] - origin, moving).astype(np.int64) // 32 * 32
        slots[:, at, 3] = ns & 0xFFFFFFFF
    return BankImage(memory.reshape(-1), 0, base, (64 << 20) - 1)


def timed(name: str, results: dict[str, Any], call: Callable[[], T]) -> T:
    start, cpu = time.perf_counter(), time.process_time()
    value = call()
    results[f"{name}_s"] = round(time.perf_counter() - start, 3)
    results[f"{name}_cpu_s"] = round(time.process_time() - cpu, 3)
    return value


def write(directory: Path, kernel: KernelRecord, images: list[BankImage]) -> None:
    writer = CaptureWriter(
        directory, pid=1, argv=[], host="", python="", warptrace="", dsl=None, started_unix_ns=0, emulated=True
    )
    writer.add_kernel(kernel)
    writer.add_device(
        0, name="", uuid="", compute_capability="9.0", sm_count=SMS, clock_khz=0, driver="", buffer_bytes=0
    )
    writer.write_regions(0, images)
    writer.finish(ended_unix_ns=1)


def fill(directory: Path, kernel: KernelRecord, warps: int, events: int, results: dict[str, Any]) -> None:
    """Makes the memory and writes it as a capture."""
    numbers = np.arange(warps)
    images = [bank_image(kernel, sm, numbers[sm::SMS], warps, events) for sm in range(SMS)]
    results["image_mb"] = round(sum(len(i.data) for i in images) / 1e6)
    timed("write", results, lambda: write(directory, kernel, images))


def check(trace: Trace, warps: int, events: int) -> None:
    rounds = events // len(PATTERN)
    assert not trace.problems, trace.problems[:3]
    assert len(trace.ranges) == warps * rounds * 5, len(trace.ranges)
    assert len(trace.markers) == warps * rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--warps", type=int, default=100_000)
    parser.add_argument("--stride", type=int, choices=wire.STRIDES, default=16)
    parser.add_argument("--anchors", action="store_true", help="one event of ten holds the global timer; stride 16")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.anchors and args.stride != 16:
        parser.error("--anchors needs --stride 16")
    per_warp = max(args.events // args.warps // len(PATTERN), 1) * len(PATTERN)
    results: dict[str, Any] = {"events": per_warp * args.warps, "warps": args.warps, "stride": args.stride}
    kernel = record(args.stride, args.anchors)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "pid_1"
        fill(directory, kernel, args.warps, per_warp, results)
        results["file_mb"] = round((directory / "dev0.wtraw").stat().st_size / 1e6)
        capture = timed("read", results, lambda: read_capture(directory))
        trace = timed("decode", results, lambda: decode([capture]))
        check(trace, args.warps, per_warp)
    results["events_per_s"] = round(results["events"] / results["decode_s"])
    results["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(results) if args.json else "\n".join(f"{k:14} {v}" for k, v in results.items()))


if __name__ == "__main__":
    main()
