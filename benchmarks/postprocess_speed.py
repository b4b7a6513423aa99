"""Time, memory and size of a whole ``warptrace postprocess``: a raw capture on disk becomes an output file.

    python benchmarks/postprocess_speed.py [--events 10000000] [--warps 10560] [--formats perfetto json json-gz]
                                           [--repeats 3] [--idle SECONDS] [--json FILE]

The capture is made up (see decode_speed.py) and written SM by SM, so that it may be larger than memory would hold. Each
figure is of a process of its own, whose modules are compiled before, as those of an installed package are: wall time,
processor time, and the most memory it had. The best of several repeats is what an idle machine would take; beside each
are kept the load average before it and the processor time that others took meanwhile. With --idle each waits, up to so
many seconds, until the machine does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from decode_speed import PATTERN, SMS, bank_image, record

ROOT = Path(__file__).resolve().parents[1]
IDLE, GLANCE_S = 0.03, 2.0
"""Share of the processors that may be busy on an idle machine, and for how long that is looked at."""
FORMATS = {"perfetto": ["perfetto"], "json": ["json"], "json-gz": ["json", "--json-gz"], "html": ["html"]}


def make(run: Path, warps: int, events: int, stride: int) -> int:
    """A run directory with a capture of ``warps`` warps; returns the bytes of its regions' file."""
    from warptrace.raw import CaptureWriter

    directory = run / "raw" / "pid_1"
    kernel = record(stride)
    writer = CaptureWriter(
        directory, pid=1, argv=[], host="", python="", warptrace="", dsl=None, started_unix_ns=0, emulated=True
    )
    writer.add_kernel(kernel)
    writer.add_device(
        0, name="", uuid="", compute_capability="9.0", sm_count=SMS, clock_khz=0, driver="", buffer_bytes=0
    )
    for sm in range(SMS):
        numbers = np.arange(sm, warps, SMS)
        if len(numbers):
            writer.write_regions(0, [bank_image(kernel, sm, numbers, warps, events)])
    writer.finish(ended_unix_ns=1)
    return (directory / "dev0.wtraw").stat().st_size


def environment(compiled: Path) -> dict[str, str]:
    """That of a process which runs the source of this checkout, compiled into the folder ``compiled``."""
    given = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    source = str(ROOT / "src")
    path = os.pathsep.join([source, given["PYTHONPATH"]]) if given.get("PYTHONPATH") else source
    chosen = {**given, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(compiled)}
    subprocess.run([sys.executable, "-m", "compileall", "-q", source], env=chosen, check=True)
    return chosen


def measure(run: Path, name: str, environment: dict[str, str], keep: Path | None) -> dict[str, Any]:
    """One post-processing in a process of its own. Raises SystemExit where it fails."""
    output = run.parent / f"out-{name}"
    words = ["postprocess", str(run), "-o", str(output), "--format", *FORMATS[name]]
    load, busy = os.getloadavg()[0], busy_s()
    command = [sys.executable, "-m", "warptrace", *words]
    begin = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begin
    own = usage.ru_utime + usage.ru_stime
    others = max(busy_s() - busy - own, 0.0)
    if status:
        raise SystemExit(f"{name} failed:\n{errors.decode()[-2000:]}")
    size = sum(path.stat().st_size for path in output.rglob("iket_*"))
    if keep is not None:
        shutil.copytree(output, keep / name, dirs_exist_ok=True)
    shutil.rmtree(output)
    return {
        "s": round(seconds, 2),
        "cpu_s": round(own, 2),
        "others_cpu_s": round(others, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "mb": round(size / 1e6, 1),
        "load": round(load, 1),
    }


def busy_s() -> float:
    """Seconds that the processors of the machine have been busy or taken away since it started."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(seconds: float) -> None:
    """Returns once the machine does nothing else, at the latest after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before, begin = busy_s(), time.monotonic()
        time.sleep(GLANCE_S)
        if (busy_s() - before) / (time.monotonic() - begin) < IDLE * (os.cpu_count() or 1):
            return


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--warps", type=int, default=10_560, help="that the events are spread over")
    parser.add_argument("--stride", type=int, choices=(8, 16), default=16, help="bytes of an event")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["perfetto", "json", "json-gz"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="wait so long for an idle machine")
    parser.add_argument("--folder", type=Path, help="where the files go meanwhile (default: the temporary folder)")
    parser.add_argument("--keep", type=Path, help="copy the outputs here")
    parser.add_argument("--json", type=Path, help="results file")
    args = parser.parse_args(argv)
    per_warp = max(args.events // args.warps // len(PATTERN), 1) * len(PATTERN)
    results: dict[str, Any] = {
        "benchmark": "postprocess_speed",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} processors, {_memory_gb():.0f} GB",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "isal": metadata.version("isal") if util.find_spec("isal") else None,
        },
        "events": per_warp * args.warps,
        "warps": args.warps,
        "stride": args.stride,
        "runs": {},
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        run = Path(name) / "run"
        results["raw_mb"] = round(make(run, args.warps, per_warp, args.stride) / 1e6)
        chosen = environment(Path(name) / "compiled")
        for form in args.formats:
            runs = results["runs"][form] = []
            for _ in range(args.repeats):
                wait_until_idle(args.idle)
                runs.append(measure(run, form, chosen, args.keep))
                print(f"{form:10}", runs[-1], flush=True)
    for form, runs in results["runs"].items():
        best = min(runs, key=lambda one: one["s"])
        print(f"{form}: {best['s']} s at best, {best['cpu_s']} s of processor, {best['peak_mb']} MB, {best['mb']} MB")
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() / 1e9


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
