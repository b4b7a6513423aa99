"""Cycles that an event costs a warp, beside those of the reference profiler in the same call where it is installed.

    python benchmarks/event_cost.py [--iterations 100] [--warps 1,4,8,16] [--last] [--json FILE]

Every SM runs one block; each warp executes a loop of one event, or one pair of events, an iteration, and reads the
cycle counter before and after it. A figure is the mean over all warps of one launch, per iteration, the loop's own few
cycles included: what an event costs beside work is the difference to the row "work". The table shows the median over
the repeats, and in the JSON stands their spread. All events are recorded: the run fails if one was lost. Needs a GPU,
torch and the CuTe DSL.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import profilers
from profilers import OURS, REFERENCE, device, dsl_version, has_reference

HERE = Path(__file__).resolve().parent
MODES = {
    "mark": 1, "mark_i32": 1, "mark_i64": 1, "push_pop": 2, "push_i32_pop": 2, "start_end": 2,
    "work": 0, "work_mark": 1, "push_work_pop": 2, "push_i32_work_pop": 2, "start_work_end": 2,
}  # fmt: skip
"""Events an iteration. The names become part of kernel names. ``work``: 24 dependent multiply-adds, some 100 cycles."""
LAST = "last"
"""Ours with --keep-events last."""
Samples = dict[str, list[float]]
"""``"mode/warps"`` -> cycles an iteration, one a repeat."""


def key(mode: str, warps: int) -> str:
    return f"{mode}/{warps}"


# ------------------------------------------------------------------------------------------------ the child process
def measure(modes: Sequence[str], warps: Sequence[int], iterations: int, repeats: int) -> dict[str, Any]:
    """Runs every kernel on the current device: {"samples", "blocks", "versions"}."""
    sys.path.insert(0, str(HERE))
    import cutlass
    import event_cost_kernel
    import torch
    from cutlass import cute
    from cutlass.cute.runtime import from_dlpack

    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    samples: Samples = {}
    for count in warps:
        out = torch.zeros(blocks * count, dtype=torch.int64, device="cuda")
        tensor = from_dlpack(out)
        n, grid = cutlass.Int32(iterations), cutlass.Int32(blocks)
        for mode in modes:
            compiled = cute.compile(event_cost_kernel.host, tensor, n, grid, mode, count)
            values = []
            for _ in range(1 + repeats):  # the first finds cold caches
                out.zero_()
                compiled(tensor, n, grid)
                torch.cuda.synchronize()
                values.append(out.double().mean().item() / iterations)
            samples[key(mode, count)] = values[1:]
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "nvidia-cutlass-dsl": dsl_version()}
    return {"samples": samples, "blocks": blocks, "versions": versions}


# ----------------------------------------------------------------------------------------------- the parent process
def profiled(api: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a child measured under the profiler of ``api``, or under ours keeping the newest events (LAST). Raises
    RuntimeError where it failed."""
    results, traces = folder / f"{api}.json", folder / api
    # Room for every event; a warp without room would look cheap.
    room = str(max(MODES.values()) * args.iterations + 64)
    words = [str(Path(__file__).resolve()), "--child", str(results)]
    words += ["--iterations", str(args.iterations), "--repeats", str(args.repeats)]
    words += ["--warps", ",".join(map(str, args.warps)), "--modes", ",".join(args.modes)]
    options = ["--postprocess", "none", "--max-ts-cnt-per-warp", room]
    if api == LAST:
        options += ["--keep-events", "last"]
    profilers.run(OURS if api == LAST else api, ["-o", str(traces), "--clobber", "profile", *options], words)
    return profilers.results_of(api, results)


def check_recorded(traces: Path, args: argparse.Namespace, blocks: int) -> None:
    """Raises RuntimeError unless our trace holds every event of every launch."""
    import warptrace

    trace = warptrace.load(traces)
    recorded = sum(launch.events for launch in trace.launches)
    lost = sum(problem.count for problem in trace.problems if problem.kind == "lost_events")
    a_warp = sum(1 + args.iterations * MODES[mode] for mode in args.modes)
    wanted = a_warp * blocks * sum(args.warps) * (1 + args.repeats)
    if lost or recorded != wanted:
        raise RuntimeError(f"the figures do not count: {recorded} of {wanted} events recorded, {lost} lost")


def figures(samples: Samples) -> dict[str, dict[str, float]]:
    """Median, least and most cycles an iteration of each kernel."""
    return {
        name: {"median": round(statistics.median(x), 2), "min": round(min(x), 2), "max": round(max(x), 2)}
        for name, x in samples.items()
    }


def table(
    found: dict[str, dict[str, dict[str, float]]],
    modes: Sequence[str],
    warps: Sequence[int],
    ours: str = OURS,
    other: str = REFERENCE,
) -> str:
    """A line a mode; for each number of warps an SM the medians of ``ours`` and of ``other``, and their ratio."""
    both = other in found
    width = 22 if both else 10
    title = f"{ours} / {other}" if both else ours
    lines = [f"cycles an iteration, {title}", "warps an SM".ljust(15) + "".join(f"{w:>{width}}" for w in warps)]
    for mode in modes:
        cells = []
        for count in warps:
            mine = found[ours][key(mode, count)]["median"]
            text = f"{mine:.1f}"
            if both:
                theirs = found[other][key(mode, count)]["median"]
                text += f" / {theirs:.1f} ({mine / theirs:.2f})"
            cells.append(f"{text:>{width}}")
        lines.append(mode.ljust(15) + "".join(cells))
    return "\n".join(lines)


def results(args: argparse.Namespace) -> dict[str, Any]:
    """Runs both children and returns the content of the results file."""
    import warptrace

    reference = has_reference() and not args.no_reference
    with tempfile.TemporaryDirectory(prefix="event-cost-") as name:
        folder = Path(name)
        raw = {OURS: profiled(OURS, args, folder)}
        check_recorded(folder / OURS, args, raw[OURS]["blocks"])
        if args.last:
            raw[LAST] = profiled(LAST, args, folder)
            check_recorded(folder / LAST, args, raw[LAST]["blocks"])
        failed = None
        if reference:
            try:
                raw[REFERENCE] = profiled(REFERENCE, args, folder)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed = str(error)
    versions = {"python": platform.python_version(), "warptrace": warptrace.__version__, **raw[OURS]["versions"]}
    return {
        "benchmark": "event_cost",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device(),
        "versions": versions,
        "blocks": raw[OURS]["blocks"],
        "iterations": args.iterations,
        "repeats": args.repeats,
        "unit": "cycles an iteration, mean over all warps; keys are mode/warps an SM",
        "figures": {api: figures(one["samples"]) for api, one in raw.items()},
        "reference_failed": failed,
    }


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iterations", type=int, default=100, metavar="N", help="of the loop (default: 100)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="launches of each kernel (default: 5)")
    parser.add_argument("--warps", type=_counts, default=[1, 4, 8, 16], metavar="N,N,...", help="warps an SM")
    parser.add_argument("--modes", type=_modes, default=list(MODES), metavar="MODE,...", help=", ".join(MODES))
    parser.add_argument("--json", type=Path, default=Path("event_cost.json"), metavar="FILE", help="results file")
    parser.add_argument("--no-reference", action="store_true", help="leave the reference out")
    parser.add_argument("--last", action="store_true", help="ours with --keep-events last too")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not all(1 <= count <= 32 for count in counts):
        raise argparse.ArgumentTypeError("1 to 32 warps fit a block")
    return counts


def _modes(text: str) -> list[str]:
    modes = text.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown mode {unknown[0]}; there are {', '.join(MODES)}")
    return modes


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.child is not None:
        # The reference runs its workload more than once; the last run, the one that it records, is what counts.
        args.child.write_text(json.dumps(measure(args.modes, args.warps, args.iterations, args.repeats)))
        return 0
    sys.path.insert(0, str(HERE.parent / "src"))
    from warptrace import WarptraceError

    try:
        data = results(args)
    except (WarptraceError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{data['device']['name']}, driver {data['device']['driver']}, {data['blocks']} SMs, {data['versions']}")
    print(table(data["figures"], args.modes, args.warps))
    if args.last:
        print(table(data["figures"], args.modes, args.warps, LAST, OURS))
    if data["reference_failed"]:
        print(f"error: {data['reference_failed']}", file=sys.stderr)
    elif REFERENCE not in data["figures"]:
        print("the reference's package (iket) is not installed, or was left out: ours alone")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"results in {args.json}")
    return 1 if data["reference_failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
