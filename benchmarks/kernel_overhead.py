"""How much longer kernels run with every event recorded, ours and the reference profiler's in the same call.

    python benchmarks/kernel_overhead.py [--workloads gemm_4096,gemm_8192,stream,entry] [--rounds 12] [--json FILE]

Each workload is compiled twice in one process, without events and with; a round launches both, in turn the one and the
other first, waits for each, and times both with CUDA events. The ratio of a round is one sample. Trace memory is
emptied between rounds, so that all events of all launches are recorded (the run fails if one was lost) and nothing is
copied while a kernel is timed. Both profilers see the same sources, with only the import of the event API replaced.
Needs a GPU, torch and the CuTe DSL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import profilers
from profilers import OURS, REFERENCE, ROOT, device, dsl_version, has_reference, module_of, with_api

HERE = Path(__file__).resolve().parent
GEMM = ROOT / "examples" / "hopper_gemm.py"
ENTRY_CTAS = (132, 1056, 8448, 33792)
STREAM_MIB = 64
SLEEP_CYCLES = 400_000  # 0.2 ms: longer than any launch takes the host

Launch = Callable[[], None]


# ------------------------------------------------------------------------------------------------ the child process
@dataclass(frozen=True)
class Pair:
    """A workload without events and with. ``warmups``: launches of each before the first round."""

    plain: Launch
    traced: Launch
    warmups: int = 3


def gemm(size: int, tile_n: int, api: str, folder: Path) -> Pair:
    import cuda.bindings.driver as cuda
    import cutlass
    import torch

    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(3))
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)

    def launcher(which: str | None) -> Launch:
        module = module_of(with_api(GEMM, which, folder))
        config = module.GemmConfig(128, tile_n)
        tensors = tuple(module.as_cute(x) for x in (a, b, c))
        compiled = module.compile_gemm(config, tensors)
        blocks = cutlass.Int32(module.grid_size(size, size, config))
        return lambda: compiled(*tensors, blocks, stream)

    return Pair(launcher(None), launcher(api))


def small(name: str, elements: int, tensors: int, api: str, folder: Path) -> Pair:
    import torch
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    dtype = torch.float32 if name == "stream" else torch.int32
    args = [from_dlpack(torch.zeros(elements, dtype=dtype, device="cuda").random_(9)) for _ in range(tensors)]

    def launcher(which: str | None) -> Launch:
        module = module_of(with_api(HERE / "kernel_overhead_kernels.py", which, folder))
        compiled = cute.compile(getattr(module, name), *args)
        return lambda: compiled(*args)

    return Pair(launcher(None), launcher(api))


WORKLOADS: dict[str, Callable[[str, Path], Pair]] = {
    "gemm_4096": lambda api, folder: gemm(4096, 256, api, folder),
    "gemm_8192": lambda api, folder: gemm(8192, 128, api, folder),
    "stream": lambda api, folder: small("stream", STREAM_MIB << 18, 3, api, folder),
    **{
        f"entry_{ctas}": lambda api, folder, ctas=ctas: small("entry", ctas * 256, 1, api, folder)  # type: ignore[misc]
        for ctas in ENTRY_CTAS
    },
}


def empty_trace_memory(poke: Launch) -> None:
    """Has our recorder move what it holds to disk. Nothing under another profiler.

    ``poke`` launches a small traced kernel: the first launch after that takes up trace memory again."""
    from warptrace.runtime import autostart

    recorder = autostart.recorder()
    if recorder is not None:
        recorder.pause()
        recorder.resume()
        poke()


def timed(launch: Launch) -> float:
    """Microseconds of one launch between two CUDA events; the device sleeps until both are queued, so that no time of
    the host is in it."""
    import torch

    torch.cuda._sleep(SLEEP_CYCLES)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


def measure(workload: str, api: str, rounds: int) -> dict[str, Any]:
    """Times one workload in this process: microseconds of each launch, without events and with."""
    import torch

    with tempfile.TemporaryDirectory(prefix="kernel-overhead-") as name:
        pair = WORKLOADS[workload](api, Path(name))
        poke = small("entry", 256, 1, api, Path(name)).traced
    times: dict[str, list[float]] = {"plain": [], "traced": []}
    for number in range(pair.warmups + rounds):
        # in turn, since what comes second runs on a warmer card
        order = ("plain", "traced") if number % 2 else ("traced", "plain")
        sample = {name: timed(getattr(pair, name)) for name in order}
        if number >= pair.warmups:
            for name, kept in times.items():
                kept.append(sample[name])
        empty_trace_memory(poke)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "nvidia-cutlass-dsl": dsl_version()}
    return {"times": times, "versions": versions}


# ----------------------------------------------------------------------------------------------- the parent process
def profiled(api: str, workload: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a child measured under the profiler of ``api``. Raises RuntimeError where it failed."""
    results, traces = folder / f"{api}-{workload}.json", folder / f"{api}-{workload}"
    words = [str(Path(__file__).resolve()), "--child", str(results), "--workloads", workload]
    words += ["--rounds", str(args.rounds)]
    options = ["--postprocess", "none"]
    if api == OURS:
        options += ["--buffer-size", "3G"]
        if workload.startswith("gemm"):
            options += ["--max-ts-cnt-per-warp", "26000"]
    profilers.run(api, ["-o", str(traces), "--clobber", "profile", *options], words)
    found = profilers.results_of(api, results)
    return {**found, **recorded(traces)} if api == OURS else found


def recorded(traces: Path) -> dict[str, Any]:
    """What our captures of a child say: most events of a launch, and the builds with events and without them. Raises
    RuntimeError if an event was lost. The events are not decoded: there may be hundreds of millions."""
    import numpy as np

    from warptrace import wire
    from warptrace.raw import find_captures, read_capture

    (path,) = find_captures(str(traces))
    capture = read_capture(path)
    events: dict[int, int] = {}
    lost = sum(len(rows) for rows in capture.lost().values())
    for batch in capture.batches():
        headers = batch.headers
        room, _ = wire.unpack_capacity(headers["capacity"])
        lost += int((headers["advance"] > room).sum()) + int((headers["lane_advance"] > 0).sum())
        grids = (headers["advance"] // headers["stride"]).astype(np.int64)
        for grid in np.unique(headers["grid_id"]):
            events[int(grid)] = events.get(int(grid), 0) + int(grids[headers["grid_id"] == grid].sum())
    if lost or not events:
        raise RuntimeError(f"the figures do not count: {lost} warps lost events in {len(events)} launches")
    return {"events": max(events.values()), "builds": [k.build for k in capture.kernels.values()]}


def figures(times: dict[str, list[float]]) -> dict[str, float]:
    """Medians in us, the median of the rounds' ratios and its quartiles."""
    ratios = [t / p for p, t in zip(times["plain"], times["traced"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    plain, traced = statistics.median(times["plain"]), statistics.median(times["traced"])
    rounded = {"plain_us": round(plain, 2), "traced_us": round(traced, 2)}
    return {**rounded, "ratio": round(middle, 4), "ratio_low": round(low, 4), "ratio_high": round(high, 4)}


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """A line a workload: our time without events and with, the ratio with its quartiles, and the reference's."""
    lines = [f"{'workload':<14}{'plain us':>10}{'traced us':>11}{'ratio (quartiles)':>26}{'reference':>26}"]
    for workload, apis in found.items():
        ours = apis.get(OURS)
        cells = f"{ours['plain_us']:>10.1f}{ours['traced_us']:>11.1f}" if ours else " " * 21
        lines.append(f"{workload:<14}{cells}" + "".join(f"{_ratio(apis.get(api)):>26}" for api in (OURS, REFERENCE)))
    return "\n".join(lines)


def _ratio(one: dict[str, float] | None) -> str:
    return f"{one['ratio']:.3f} ({one['ratio_low']:.3f}-{one['ratio_high']:.3f})" if one else "-"


def results(args: argparse.Namespace) -> dict[str, Any]:
    """Runs all children and returns the content of the results file."""
    import warptrace

    apis = [OURS, REFERENCE] if has_reference() and not args.no_reference else [OURS]
    raw: dict[str, dict[str, Any]] = {}
    failures = {}
    for workload in args.workloads:
        for api in apis:
            with tempfile.TemporaryDirectory(prefix="kernel-overhead-") as name:
                try:
                    raw.setdefault(workload, {})[api] = profiled(api, workload, args, Path(name))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    failures[f"{api} {workload}"] = str(error)[-3000:]
    versions: dict[str, Any] = {"python": platform.python_version(), "warptrace": warptrace.__version__}
    for by_api in raw.values():
        for one in by_api.values():
            versions.update(one["versions"])
    return {
        "benchmark": "kernel_overhead",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device(),
        "versions": versions,
        "rounds": args.rounds,
        "figures": {w: {api: figures(one["times"]) for api, one in by_api.items()} for w, by_api in raw.items()},
        "events": {w: by_api[OURS]["events"] for w, by_api in raw.items() if OURS in by_api},
        "builds": {w: by_api[OURS]["builds"] for w, by_api in raw.items() if OURS in by_api},
        "failures": failures,
    }


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="pairs of launches (default: 12)")
    parser.add_argument(
        "--workloads", type=_workloads, default=list(WORKLOADS), metavar="NAME,...", help=", ".join(WORKLOADS)
    )
    parser.add_argument("--json", type=Path, default=Path("kernel_overhead.json"), metavar="FILE", help="results file")
    parser.add_argument("--no-reference", action="store_true", help="leave the reference out")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _workloads(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.child is not None:
        found = measure(args.workloads[0], os.environ[profilers.API_ENV], args.rounds)
        args.child.write_text(json.dumps(found), encoding="utf-8")
        return 0
    sys.path.insert(0, str(ROOT / "src"))
    from warptrace import WarptraceError

    try:
        data = results(args)
    except WarptraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{data['device']['name']}, driver {data['device']['driver']}, {data['versions']}")
    print(table(data["figures"]))
    for name, text in data["failures"].items():
        print(f"error: {name}: {text}", file=sys.stderr)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"results in {args.json}")
    return 1 if data["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
