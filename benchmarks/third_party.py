"""Kernels of other people's packages, unmodified: right while traced, and what tracing them costs.

    python benchmarks/third_party.py [--kernels softmax,gemm,...] [--modes off,lifetimes,auto] [--rounds 12]
    python benchmarks/third_party.py --read FILE.json      # the table of earlier results

Each mode is a process of its own that runs the packages' public functions: without warptrace, with lifetimes alone
(`--warp-trace`), and with `--auto`. Results are held against the package's own reference, or torch's in 32 bits. All
processes compile first, at the same time; then they take turns launch by launch, so that a launch of each mode is
measured within a fraction of a second of the others, and their ratio is that of one state of the device. The device
waits until a launch is queued; one that the host was too slow for is told, with what the host did, and taken again.
Needs a GPU, torch, and quack-kernels, flash-attn-4 or fast_trimul; what is not installed is left out and said. The
packages' own caches of compiled kernels are switched off.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from profilers import ROOT, device, dsl_version

HERE = Path(__file__).resolve()
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "off": None,
    "lifetimes": ("--warp-trace",),
    "auto": ("--auto",),
    "waits": ("--auto=waits",),
    "all": ("--auto=waits,barriers,copies,mma,scheduler",),
}
"""By mode, options of ``warptrace profile``; None: without it."""
CACHES_OFF = {"QUACK_CACHE_ENABLED": "0", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0", "FAST_TRIMUL_AUTOTUNE": "0"}
WAIT_CYCLES = (10_000_000, 100_000_000, 100_000_000)
"""The device waits for the host so long, 5 ms: longer than a launch takes it, also one through a library's Python. A
launch that it did not wait long enough for is taken again with the next."""
SLOW = 2.0
"""A launch that took so many times the median is told by itself."""
DRAIN_S = 0.03
WARMUPS = 3
CHILD_SECONDS = 280
TURN_SECONDS = 30
PACKAGES = ("torch", "nvidia-cutlass-dsl", "quack-kernels", "flash-attn-4", "fast_trimul")


# ------------------------------------------------------------------------------------------------ the child process
@dataclass(frozen=True)
class Case:
    """``launch`` runs the kernels and returns the tensors that they made. ``reference``: (what these should be, in 32
    bits; what torch makes of them in the precision of the kernel)."""

    launch: Callable[[], tuple[Any, ...]]
    reference: Callable[[], tuple[tuple[Any, ...], tuple[Any, ...]]]

    def error(self) -> float:
        """Largest error, as a part of what is allowed: that of torch in the same precision, twice, and a little."""
        worst = 0.0
        for found, exact, rounded in zip(self.launch(), *self.reference(), strict=True):
            exact = exact.float()
            allowed = 2 * (rounded.float() - exact).abs().max() + 1e-5 * exact.abs().max()
            worst = max(worst, float((found.float() - exact).abs().max() / allowed))
        return worst


def random(*shape: int, scale: float = 1.0) -> Any:
    import torch

    return scale * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def softmax(small: bool) -> Case:
    import torch
    from quack.softmax import softmax

    x = random(8 if small else 16384, 8192)
    return Case(lambda: (softmax(x),), lambda: ((torch.softmax(x.float(), -1),), (torch.softmax(x, -1),)))


def rmsnorm(small: bool) -> Case:
    import torch
    from quack.rmsnorm import rmsnorm, rmsnorm_ref

    x, w = random(8 if small else 16384, 8192), torch.rand(8192, device="cuda")
    return Case(lambda: (rmsnorm(x, w),), lambda: ((rmsnorm_ref(x.float(), w),), (rmsnorm_ref(x, w),)))


def gemm(small: bool, dynamic: bool = False) -> Case:
    from quack.gemm_interface import gemm

    n = 512 if small else 4096
    a, b = random(n, n), random(n, n).T
    return Case(
        lambda: (gemm(a, b, tuned=False, dynamic_scheduler=dynamic),), lambda: ((a.float() @ b.float(),), (a @ b,))
    )


def attention(small: bool, backward: bool = False) -> Case:
    import torch
    from flash_attn.cute import flash_attn_func
    from flash_attn.cute.testing import attention_ref

    shape = (1, 256, 2, 128) if small else (2, 2048, 16, 128)
    q, k, v = (random(*shape).requires_grad_(backward) for _ in range(3))
    do = random(*shape)

    def first(made: Any) -> Any:
        return made[0] if isinstance(made, tuple) else made

    def result(out: Any) -> tuple[Any, ...]:
        if not backward:
            return (out,)
        return torch.autograd.grad(out, (q, k, v), do.to(out.dtype), retain_graph=True)

    def reference() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        exact = result(first(attention_ref(q, k, v, causal=True)))
        return exact, result(first(attention_ref(q, k, v, causal=True, upcast=False, reorder_ops=True)))

    if backward:
        out = first(flash_attn_func(q, k, v, causal=True))
        return Case(lambda: result(out), reference)
    return Case(lambda: result(first(flash_attn_func(q, k, v, causal=True))), reference)


def trimul(small: bool) -> Case:
    """A replayed CUDA graph of a dozen kernels that are launched through DLPack."""
    import torch
    from fast_trimul._kernels import (
        TriangleMultiplicativeUpdate,
        TriangleMultiplicativeUpdateKernelFused,
        make_graphed,
    )

    torch.manual_seed(1)
    plain = TriangleMultiplicativeUpdate().cuda()
    fused = TriangleMultiplicativeUpdateKernelFused()
    fused.load_state_dict(plain.state_dict())
    fused, half = fused.cuda().half().eval(), TriangleMultiplicativeUpdate().cuda().half()
    half.load_state_dict(plain.state_dict())
    n = 16 if small else 128
    z = random(1, n, n, 128).half()
    with torch.no_grad():
        run, how = make_graphed(fused, z)
    if how != "graph":
        raise RuntimeError("fast_trimul captured no graph")

    def reference() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        with torch.no_grad():
            return (plain(z.float()),), (half(z),)

    return Case(lambda: (run(),), reference)


CASES: dict[str, tuple[str, Callable[[bool], Case]]] = {
    "softmax": ("quack", softmax),
    "rmsnorm": ("quack", rmsnorm),
    "gemm": ("quack", gemm),
    "gemm_dynamic": ("quack", lambda small: gemm(small, dynamic=True)),
    "attention_fwd": ("flash_attn.cute", attention),
    "attention_bwd": ("flash_attn.cute", lambda small: attention(small, backward=True)),
    "trimul": ("fast_trimul", trimul),
}
"""By kernel: the package that it needs, and what makes it, of a size to be measured or a small one."""


@dataclass(frozen=True)
class Sample:
    """One launch, in us. ``us``: between two CUDA events; ``host_us``: the host's time for the call; ``cpu_us``: that
    of all processors in this process meanwhile; ``gc_us``: in Python's collections of garbage, which hold up every
    thread. ``late``: the device began before all was queued, so that time of the host may be in ``us``."""

    us: float
    host_us: float
    cpu_us: float
    gc_us: float
    late: bool


@dataclass
class Collections:
    """How long garbage was collected in this process since ``watch``."""

    seconds: float = 0.0
    _begun: float = 0.0

    def watch(self) -> Collections:
        gc.callbacks.append(self._told)
        return self

    def _told(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        else:
            self.seconds += now - self._begun


def timed(launch: Callable[[], Any], cycles: int, collections: Collections) -> Sample:
    """The device waits for ``cycles``, if all is well until both events are queued; whether it did is asked then."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    begin.record()
    before = time.perf_counter(), time.process_time(), collections.seconds
    launch()
    end.record()
    late = begin.query()
    after = time.perf_counter(), time.process_time(), collections.seconds
    torch.cuda.synchronize()
    host, cpu, collected = ((b - a) * 1e6 for a, b in zip(before, after, strict=True))
    return Sample(begin.elapsed_time(end) * 1e3, host, cpu, collected, late)


@dataclass
class Timings:
    """The launches of one kernel: those that count, of each round the last, and what the host was too slow for."""

    counted: list[Sample] = field(default_factory=list)
    late: list[Sample] = field(default_factory=list)

    def take(self, launch: Callable[[], Any], collections: Collections) -> None:
        """Adds a launch that the device waited for; one that it never waited long enough for is among both."""
        for cycles in WAIT_CYCLES:
            sample = timed(launch, cycles, collections)
            time.sleep(DRAIN_S)
            if not sample.late:
                break
            self.late.append(sample)
        self.counted.append(sample)


def child(args: argparse.Namespace) -> dict[str, Any]:
    """Compiles and checks every kernel, says so, and times them when its turn comes."""
    import torch

    torch.manual_seed(0)
    found: dict[str, Any] = {"errors": {}, "times": {}, "host": {}, "late": {}, "failures": {}}
    cases: dict[str, Case] = {}
    for name in args.kernels:
        try:
            case = CASES[name][1](args.small)
            with torch.profiler.record_function(name):
                found["errors"][name] = case.error()
            for _ in range(args.warmups):
                case.launch()
            cases[name] = case
        except Exception as error:
            found["failures"][name] = f"{type(error).__name__}: {error}"[:500]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    turns, collections = Turns(args.turns, args.place, args.places), Collections().watch()
    turns.wait_for_all()
    for name in args.kernels:
        timings = Timings()
        for _ in range(args.rounds):
            with turns.mine():
                if name in cases:
                    timings.take(cases[name].launch, collections)
        if name in cases:
            found["times"][name] = [sample.us for sample in timings.counted]
            found["host"][name] = [sample.host_us for sample in timings.counted]
            found["late"][name] = [asdict(sample) for sample in timings.late]
    return found


@dataclass
class Turns:
    """Whose launch it is, among processes that share a folder; nobody else's without one."""

    folder: Path | None
    place: int
    places: int
    taken: int = 0

    def wait_for_all(self) -> None:
        if self.folder:
            (self.folder / f"ready-{os.getpid()}").touch()
            self._wait(self.folder / "go", CHILD_SECONDS)

    @contextmanager
    def mine(self) -> Iterator[None]:
        """A turn after that of the process before; also one that has nothing to do takes it."""
        number = self.taken * self.places + self.place
        self.taken += 1
        if self.folder and number:
            self._wait(self.folder / f"done-{number - 1}", TURN_SECONDS)
        try:
            yield
        finally:
            if self.folder:
                (self.folder / f"done-{number}").touch()

    @staticmethod
    def _wait(path: Path, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {path.name} after {seconds} s: another process failed")
            time.sleep(0.001)


# ----------------------------------------------------------------------------------------------- the parent process
def command(mode: str, args: argparse.Namespace, folder: Path) -> list[str]:
    options = OPTIONS[mode]
    words = [sys.executable, str(HERE), "--child", str(folder / f"{mode}.json"), "--turns", str(folder)]
    words += ["--place", str(args.modes.index(mode)), "--places", str(len(args.modes))]
    words += ["--kernels", ",".join(args.kernels), "--rounds", str(args.rounds)]
    if options is None:
        return words
    own = [sys.executable, "-m", "warptrace", "profile", "-o", str(folder / f"{mode}-run"), "--postprocess", "none"]
    return [*own, "--no-untraced-build", "--buffer-size", args.buffer_size, *options, "--", *words]


def run(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """What the child of each mode found. Raises RuntimeError where one failed as a whole."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")} | CACHES_OFF
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *rest])
    logs = {mode: folder / f"{mode}.log" for mode in args.modes}
    running = {}
    for mode in args.modes:
        with logs[mode].open("w") as log:
            running[mode] = subprocess.Popen(
                command(mode, args, folder), env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
    end = time.monotonic() + CHILD_SECONDS
    try:
        while sum(p.poll() is None for p in running.values()) > len(list(folder.glob("ready-*"))):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        (folder / "go").touch()
        for process in running.values():
            process.wait(max(1.0, end - time.monotonic()))
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
    found = {}
    for mode, process in running.items():
        results = folder / f"{mode}.json"
        if not results.exists():
            raise RuntimeError(f"{mode}: exit status {process.returncode}\n{logs[mode].read_text()[-3000:]}")
        found[mode] = json.loads(results.read_text()) | {"said": logs[mode].read_text()[-4000:]}
        if OPTIONS[mode] is not None:
            found[mode]["recorded"] = recorded(folder / f"{mode}-run")
    return found


def recorded(result: Path) -> dict[str, dict[str, int]]:
    """Of each kernel in our captures: launches, most events of a launch, warps that lost some. Nothing is decoded."""
    import numpy as np

    from warptrace import wire
    from warptrace.raw import find_captures, read_capture

    found: dict[str, dict[str, int]] = {}  # replays of a graph's node have one grid id
    for path in find_captures(str(result)):
        capture = read_capture(path)
        launches: dict[tuple[int, int], int] = {}
        whole: dict[tuple[int, int], float] = {}
        lost: dict[int, int] = {}
        for batch in capture.batches():
            h = batch.headers
            room, _ = wire.unpack_capacity(h["capacity"])
            events = (h["advance"] // np.maximum(h["stride"], 1)).astype(np.int64)
            for key in np.unique(np.stack([h["kernel_id"], h["grid_id"]]), axis=1).T.tolist():
                mine = (h["kernel_id"] == key[0]) & (h["grid_id"] == key[1])
                launches[key[0], key[1]] = launches.get((key[0], key[1]), 0) + int(events[mine].sum())
                one = h[mine][0]
                warps = int(np.prod(one["grid"])) * -(-int(np.prod(wire.unpack_block(one["block"][None])[0])) // 32)
                whole[key[0], key[1]] = whole.get((key[0], key[1]), 0.0) + int(mine.sum()) / warps
                lost[key[0]] = lost.get(key[0], 0) + int((h["advance"] > room)[mine].sum())
        for kernel, record in capture.kernels.items():
            times = {key: max(1, round(whole[key])) for key in launches if key[0] == kernel}
            most = max((launches[key] // times[key] for key in times), default=0)
            found[record.symbol] = {
                "launches": sum(times.values()), "events": most, "lost_warps": lost.get(kernel, 0)
            }  # fmt: skip
        if rows := sum(len(r) for r in capture.lost().values()):
            found["(no room for a whole warp)"] = {"launches": 0, "events": 0, "lost_warps": rows}
    return found


def table(found: dict[str, dict[str, Any]], kernels: Sequence[str]) -> str:
    """In Markdown, a line a kernel: its time in the first mode, what each other mode makes of it, and its error as a
    part of what is allowed (the worst of all modes). Median (quartiles); those of ratios are of each round's ratio."""
    base, *others = found
    lines = [
        "| kernel | " + " | ".join([f"{base}, us", *(f"{mode}, ratio" for mode in others), "error"]) + " |",
        "|---" * (len(found) + 2) + "|",
    ]
    for kernel in kernels:
        failures = [f"{mode}: {one['failures'][kernel]}" for mode, one in found.items() if kernel in one["failures"]]
        if failures:
            lines.append(f"| {kernel} | FAILED {failures[0]} |")
            continue
        times = found[base]["times"][kernel]
        cells = [spread(times, 1)]
        for mode in others:
            cells.append(spread([t / u for t, u in zip(found[mode]["times"][kernel], times, strict=True)], 3))
        cells.append(f"{max(one['errors'][kernel] for one in found.values()):.2f}")
        lines.append(f"| {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def host_side(found: dict[str, dict[str, Any]], kernels: Sequence[str]) -> list[str]:
    """The host's time for a call, and each launch that stands out: one that the host was too slow for, and one that
    took the device long although it was not. Nothing of earlier results that know none of it."""
    lines = []
    for mode, one in found.items():
        for kernel in [k for k in kernels if k in one.get("host", {})]:
            host, times = one["host"][kernel], one["times"][kernel]
            lines.append(f"{mode}: {kernel}: a call took the host {spread(host, 0)} us, {max(host):.0f} at most")
            for late in one["late"][kernel]:
                what = "counted" if late["us"] in times else "taken again"
                lines.append(
                    f"{mode}: {kernel}: too late, {what}: {late['us']:.0f} us; of the host's {late['host_us']:.0f} us "
                    f"{late['gc_us']:.0f} collecting garbage, the process had {late['cpu_us']:.0f} us of processors"
                )
            middle = statistics.median(times)
            for us, host_us in [pair for pair in zip(times, host, strict=True) if pair[0] > SLOW * middle]:
                lines.append(f"{mode}: {kernel}: {us:.0f} us where the median is {middle:.0f}; host {host_us:.0f} us")
    return lines


def spread(values: Sequence[float], digits: int) -> str:
    """Median (quartiles)."""
    first, middle, last = statistics.quantiles(values, n=4, method="inclusive") if values[1:] else [values[0]] * 3
    return f"{middle:.{digits}f} ({first:.{digits}f} to {last:.{digits}f})"


def installed(kernels: Sequence[str]) -> list[str]:
    """Those whose package is there; says which are not."""
    there = []
    for kernel in kernels:
        package = CASES[kernel][0]
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            print(f"{kernel}: left out, {package} is not installed", file=sys.stderr)
        else:
            there.append(kernel)
    return there


def package_versions() -> dict[str, str]:
    """Of what is installed."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found if "nvidia-cutlass-dsl" in found else {**found, "nvidia-cutlass-dsl": dsl_version()}


def document(found: dict[str, dict[str, Any]], versions: dict[str, str]) -> dict[str, Any]:
    """The results file, without what the processes said."""
    return {
        "benchmark": "third_party",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device(),
        "versions": versions,
        "unit": "us of single launches, the modes in turns; errors as a part of what is allowed",
        "modes": {mode: {key: one[key] for key in one if key != "said"} for mode, one in found.items()},
    }


def right(found: dict[str, dict[str, Any]]) -> bool:
    return all(not one["failures"] and max(one["errors"].values(), default=9) <= 1 for one in found.values())


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    def listed(known: Any) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            unknown = [name for name in text.split(",") if name not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"unknown {unknown[0]}; there are {', '.join(known)}")
            return text.split(",")

        return parse

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=listed(CASES), default=list(CASES), metavar="NAME,...", help=", ".join(CASES))
    parser.add_argument(
        "--modes", type=listed(OPTIONS), default=["off", "lifetimes", "auto"], metavar="MODE,...",
        help=", ".join(OPTIONS),
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="timed launches of each (default: 12)")
    parser.add_argument("--buffer-size", default="2G", metavar="SIZE", help="as for warptrace profile (default: 2G)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results file")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the results of warptrace profile there")
    parser.add_argument("--read", type=Path, metavar="FILE", help="print the table of a results file, run nothing")
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warmups", type=int, default=WARMUPS, help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--places", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.child is not None:
        args.child.write_text(json.dumps(child(args)), encoding="utf-8")
        return 0
    if args.read is not None:
        earlier = json.loads(args.read.read_text(encoding="utf-8"))["modes"]
        kernels = list(next(iter(earlier.values()))["errors"])
        print("\n".join([table(earlier, kernels), *host_side(earlier, kernels)]))
        return 0
    sys.path.insert(0, str(ROOT / "src"))
    args.kernels = installed(args.kernels)
    if not args.kernels:
        return 1
    with tempfile.TemporaryDirectory(prefix="third-party-") as name:
        folder = Path(name)
        if args.keep:
            folder = args.keep.resolve()
            folder.mkdir(parents=True)
        try:
            found = run(args, folder)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    versions = package_versions()
    print(f"{device()}, {versions}, {args.rounds} rounds")
    print("\n".join([table(found, args.kernels), *host_side(found, args.kernels)]))
    for mode, one in found.items():
        for kernel, counts in one.get("recorded", {}).items():
            sizes = f"{counts['launches']} launches, at most {counts['events']} events"
            print(f"{mode}: {sizes}, {counts['lost_warps']} warps lost some: {kernel[:90]}")
        for line in one["said"].splitlines():
            if "warptrace:" in line and "debug" not in line:
                print(f"{mode}: {line[:300]}")
    if args.json:
        args.json.write_text(json.dumps(document(found, versions), indent=1) + "\n", encoding="utf-8")
    return 0 if right(found) else 1


if __name__ == "__main__":
    sys.exit(main())
