"""Speed and memory of putting the processes of a job on one timeline: captures -> read -> decode -> combined outputs.

    python benchmarks/merge_speed.py [--ranks 8] [--hosts 1] [--events 10000000] [--launches 4] [--warps 16]
                                     [--each] [--json]

Every rank is a process with a GPU of its own, whose timer stands apart from the others' and drifts; it was compared
with its host and with the first GPU of its host. ``--events`` counts those of all ranks together. ``--each``: no
combined outputs, but a Parquet data set made of one process after the other (``warptrace export --per-process``), for
what memory does not hold together.
Checks that all events came through and that launches of all ranks begin together within
the stated uncertainty. Prints seconds and the peak memory of the process that reads and writes, in MB; the captures are
made in another.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from decode_speed import EPOCH_NS, PATTERN, SMS, bank_image, record, timed

from warptrace import wire
from warptrace.decode import decode, decode_each
from warptrace.export import write_iket_json, write_perfetto
from warptrace.export.dataset import write_parquet_parts
from warptrace.raw import BankImage, CaptureWriter, find_captures, read_capture
from warptrace.sites import KernelRecord
from warptrace.trace import Trace

LAUNCH_NS = 1_600_000
"""From one launch to the next."""
PAIRS_NS = (0, 1_000_000_000)


def behind_ns(rank: int) -> int:
    """Host time minus %globaltimer at the start: a multiple of 32."""
    return rank * 91_008


def drift_ppm(rank: int) -> int:
    return rank % 9 - 4


def launch_images(kernel: KernelRecord, launch: int, warps: int, events: int) -> list[BankImage]:
    """The regions of one launch: as many banks as warps, or one an SM."""
    sms = min(warps, SMS)
    images = []
    for sm in range(sms):
        # A place of its own for each launch: nothing is claimed twice.
        image = bank_image(kernel, sm + launch * SMS, np.arange(warps)[sm::sms], warps, events)
        headers = headers_of(image)
        headers["sm"], headers["grid_id"] = sm, 1 + launch
        for name in ("entry", "exit"):
            headers[f"{name}_globaltimer"] += np.uint64(launch * LAUNCH_NS)
        images.append(image)
    return images


def headers_of(image: BankImage) -> np.ndarray:
    """The region headers of an image, to be written."""
    memory = np.asarray(image.data)
    first = memory[: wire.REGION_HEADER_BYTES].view(wire.REGION_DTYPE)[0]
    size = wire.region_bytes(int(first["main_bytes"]), int(first["lane_bytes"]))
    return memory.reshape(-1, size)[:, : wire.REGION_HEADER_BYTES].view(wire.REGION_DTYPE)[:, 0]


def of_rank(image: BankImage, rank: int) -> BankImage:
    """The same as the rank's device would have stamped it."""
    moved = replace(image, data=np.array(image.data))
    headers = headers_of(moved)
    for name in ("entry", "exit"):
        since = headers[f"{name}_globaltimer"].astype(np.int64) - EPOCH_NS
        drifted = since - since * drift_ppm(rank) // 1_000_000
        headers[f"{name}_globaltimer"] = (EPOCH_NS - behind_ns(rank) + drifted) // 32 * 32
    return moved


def first_of_host(rank: int, ranks: int, hosts: int) -> int:
    return next(r for r in range(ranks) if r * hosts // ranks == rank * hosts // ranks)


def write_rank(folder: Path, rank: int, ranks: int, hosts: int, kernel: KernelRecord, images: list[BankImage]) -> None:
    host = f"host{rank * hosts // ranks}"
    writer = CaptureWriter(
        folder / f"pid_{1000 + rank}",
        pid=1000 + rank, argv=["bench"], host=host, python="", warptrace="", dsl=None, started_unix_ns=rank,
        emulated=True, place={"boot": host, "rank": rank, "world_size": ranks},
    )  # fmt: skip
    writer.add_kernel(kernel)
    writer.add_device(
        0, name="made up", uuid=f"GPU-{rank:08x}", compute_capability="9.0", sm_count=SMS, clock_khz=1_980_000,
        driver="", buffer_bytes=0,
    )  # fmt: skip
    for ns in PAIRS_NS:
        timer = EPOCH_NS - behind_ns(rank) + ns - ns * drift_ppm(rank) // 1_000_000
        writer.add_clock(0, EPOCH_NS + ns, timer, 1400.0, 77 + ns)
    hub = first_of_host(rank, ranks, hosts)
    for ns in PAIRS_NS:
        timers = (EPOCH_NS - behind_ns(r) + ns - ns * drift_ppm(r) // 1_000_000 for r in (rank, hub))
        if rank != hub:
            writer.add_peer_clock(0, f"GPU-{hub:08x}", *timers, 250.0, 1000, 300, 960)
    writer.write_regions(0, [of_rank(image, rank) for image in images])
    writer.finish(ended_unix_ns=1)


def fill(folder: Path, args: argparse.Namespace, events: int) -> None:
    kernel = record(16)
    images = [x for launch in range(args.launches) for x in launch_images(kernel, launch, args.warps, events)]
    for rank in range(args.ranks):
        write_rank(folder, rank, args.ranks, args.hosts, kernel, images)


def check(trace: Trace, args: argparse.Namespace, events: int) -> dict[str, Any]:
    """All is there, and the ranks' launches begin together, as they were made to."""
    rounds = args.ranks * args.launches * args.warps * (events // len(PATTERN))
    assert not trace.problems, trace.problems[:3]
    assert (len(trace.ranges), len(trace.markers)) == (rounds * 5, rounds)
    starts = np.array([(one.grid_id, one.start_ns) for one in trace.launches])
    spread = max(int(np.ptp(starts[starts[:, 0] == 1 + i, 1])) for i in range(args.launches))
    doubt = max(facts["uncertainty_ns"] for facts in trace.meta["alignment"])
    assert spread <= doubt, (spread, doubt)
    return {"spread_ns": spread, "stated_ns": round(doubt)}


def check_each(folder: Path, args: argparse.Namespace, events: int) -> dict[str, Any]:
    """The same of the data set, by its columns."""
    import pyarrow.dataset as pd

    rows = {name: pd.dataset(folder / name, partitioning="hive").count_rows() for name in ("ranges", "markers")}
    rounds = args.ranks * args.launches * args.warps * (events // len(PATTERN))
    assert rows == {"ranges": rounds * 5, "markers": rounds}, rows
    launches = pd.dataset(folder / "launches", partitioning="hive").to_table().to_pydict()
    begins = np.array(launches["epoch_ns"]) + np.array(launches["start_ns"])
    number = np.array(launches["grid_id"])
    spread = max(int(np.ptp(begins[number == 1 + i])) for i in range(args.launches))
    doubt = max(launches["alignment_uncertainty_ns"])
    assert spread <= doubt, (spread, doubt)
    return {"spread_ns": spread, "stated_ns": round(doubt)}


def one_after_the_other(folder: Path, target: Path) -> None:
    write_parquet_parts(decode_each(find_captures(folder)), target, "job")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--warps", type=int, default=16)
    parser.add_argument("--each", action="store_true", help="a Parquet data set of one process after the other")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    warps = args.ranks * args.launches * args.warps
    events = max(args.events // warps // len(PATTERN), 1) * len(PATTERN)
    results: dict[str, Any] = {"ranks": args.ranks, "hosts": args.hosts, "events": events * warps, "warps": warps}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        maker = multiprocessing.get_context("fork").Process(target=fill, args=(folder, args, events))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        results["raw_mb"] = round(sum(path.stat().st_size for path in folder.rglob("*.wtraw")) / 1e6)
        if args.each:
            timed("each", results, lambda: one_after_the_other(folder, folder / "data"))
            results["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            results["parquet_mb"] = round(sum(path.stat().st_size for path in folder.rglob("*.parquet")) / 1e6)
            results |= check_each(folder / "data", args, events)
            print(json.dumps(results) if args.json else "\n".join(f"{k:16} {v}" for k, v in results.items()))
            return
        captures = timed("read", results, lambda: [read_capture(path) for path in find_captures(folder)])
        trace = timed("decode", results, lambda: decode(captures))
        results |= check(trace, args, events)
        results["decoded_peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        timed("perfetto", results, lambda: write_perfetto(trace, folder / "iket_run.pftrace"))
        timed("json", results, lambda: write_iket_json(trace, folder / "iket_run.trace.json"))
        for kind in ("pftrace", "trace.json"):
            results[f"{kind}_mb"] = round((folder / f"iket_run.{kind}").stat().st_size / 1e6)
    results["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(results) if args.json else "\n".join(f"{k:16} {v}" for k, v in results.items()))


if __name__ == "__main__":
    main()
