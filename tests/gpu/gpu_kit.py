"""What the GPU tests share: recordings in this process, traces in numbers, programs in others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warptrace
from warptrace.selection import Selection
from warptrace.trace import Launch, Trace

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = Path(__file__).parent / "programs"
BUFFER_BYTES = 64 << 20

Figure = Callable[[str, Any], None]
"""The ``figure`` fixture: a name and a value for the results file, also printed."""


# ------------------------------------------------------------------------------------------------------ recordings
@contextmanager
def recording(
    folder: Path,
    *,
    buffer_bytes: int = BUFFER_BYTES,
    max_events: int | None = None,
    fresh: bool = False,
    selection: Selection | None = None,
) -> Iterator[Path]:
    """Records this process into the capture directory that it yields, complete after the block.

    A recording takes over the trace memory of an earlier one; ``fresh``: it takes its own, of exactly this size.
    """
    from warptrace.runtime import memory
    from warptrace.runtime.options import RuntimeOptions
    from warptrace.runtime.recorder import Recorder

    if fresh:
        memory.forget()
    options = RuntimeOptions(
        directory=str(folder),
        buffer_bytes=buffer_bytes,
        max_events_per_warp=max_events,
        selection=selection or Selection(),
    )
    recorder = Recorder(options)
    recorder.start()
    try:
        yield recorder.directory
    finally:
        recorder.stop()


class Out:
    """The result array of a kernel of ``gpu_kernels`` for ``ctas`` blocks: ``tensor`` for torch and TVM-FFI functions,
    ``cute`` for others."""

    def __init__(self, ctas: int) -> None:
        import torch
        from cutlass.cute.runtime import from_dlpack
        from gpu_kernels import THREADS

        self.tensor = torch.full((ctas * THREADS,), -1, dtype=torch.int32, device="cuda")
        self.cute = from_dlpack(self.tensor, assumed_align=16)

    def holds(self, n: int) -> bool:
        """Whether the kernel's last call, with ``n``, wrote it right. Waits for the device; then it is cleared."""
        import torch

        torch.cuda.synchronize()
        want = torch.arange(n, n + len(self.tensor), dtype=torch.int32, device="cuda")
        same = torch.equal(self.tensor, want)
        self.tensor.fill_(-1)
        torch.cuda.synchronize()
        return same


# ---------------------------------------------------------------------------------------------------------- traces
def names(trace: Trace, launch: Launch | None = None) -> dict[str, int]:
    """Ranges and markers of each name, in one launch or in all."""
    count: Counter[str] = Counter()
    for table in (trace.ranges, trace.markers):
        column = table.name
        if launch is not None:
            column = column[trace.warps.launch[table.warp] == launch.index]
        numbers = np.bincount(column, minlength=len(trace.strings))
        count.update({name: int(n) for name, n in zip(trace.strings, numbers, strict=True) if n})
    return dict(count)


def payloads(trace: Trace, launch: Launch, name: str) -> list[int]:
    """Distinct payloads at the start of the launch's ranges of a name."""
    r = trace.ranges
    rows = (trace.warps.launch[r.warp] == launch.index) & (r.name == trace.strings.index(name))
    found: list[int] = np.unique(r.start_bits[rows]).tolist()
    return found


def totals(trace: Trace) -> tuple[int, int]:
    """(events recorded, events lost), the lost ones of warps that no launch could be found for included."""
    recorded = sum(launch.events for launch in trace.launches)
    lost = sum(launch.lost_events for launch in trace.launches)
    lost += sum(p.count for p in trace.problems if p.kind == "lost_events" and p.launch is None)
    return recorded, lost


def lossless(trace: Trace) -> bool:
    """Every warp of every launch was recorded, to its end and with all its events."""
    whole = all(x.warps_recorded == x.warps_expected and not x.lost_warps for x in trace.launches)
    return whole and totals(trace)[1] == 0 and bool(trace.warps.closed.all()) and not doubts(trace)


def doubts(trace: Trace) -> list[str]:
    """Problems, those of clock maps left out: they say how good times are, not that events are missing."""
    return [f"{p.kind} x {p.count}: {p.text}" for p in trace.problems if p.kind != "clock"]


def clock_problems(trace: Trace) -> list[str]:
    return [p.text for p in trace.problems if p.kind == "clock"]


# -------------------------------------------------------------------------------------------------------- programs
@dataclass(frozen=True)
class Run:
    """What came of a command. ``seconds``: wall time."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def said(self) -> str:
        """For messages of assertions."""
        return f"exit status {self.status}\n{self.stdout[-2000:]}\n{self.stderr[-4000:]}"


def environment(**extra: str) -> dict[str, str]:
    """This environment with the package importable, and no tracer's settings in it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    return {**env, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *rest]), "PYTHONUNBUFFERED": "1", **extra}


def run(command: list[str], cwd: Path, *, timeout: float = 240, **extra: str) -> Run:
    """Runs a command in ``cwd``; keywords are more variables of its environment."""
    begin = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment(**extra), timeout=timeout, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)


def python(script: Path, *words: str) -> list[str]:
    """The command that runs a script."""
    return [sys.executable, str(script), *words]


def profiled(folder: Path, command: list[str], *options: str, postprocess: str = "none") -> list[str]:
    """``command`` under ``warptrace profile`` with its results in ``folder``."""
    own = [sys.executable, "-m", "warptrace", "profile", "-o", str(folder), "--postprocess", postprocess, *options]
    return [*own, "--", *command]


def load(folder: Path) -> Trace:
    return warptrace.load(folder)
