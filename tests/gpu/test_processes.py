"""Several processes, devices and streams: clocks of host and devices, one timeline, the identity of launches."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import clock_kernels
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import gpu_kernels as k
import process_kernels as pk
import torch
from gpu_kit import PROGRAMS, Figure, Out, Run, load, lossless, payloads, profiled, python, recording, run

import warptrace.cute as iket
from warptrace.raw import read_capture
from warptrace.runtime import driver
from warptrace.runtime.calibrate import DeviceClock

pytestmark = pytest.mark.gpu


def new_clock() -> tuple[DeviceClock, float]:
    """A clock of the current device, and the seconds that it took to make."""
    torch.zeros(1, device="cuda")
    begun = time.perf_counter()
    clock = DeviceClock(driver.context(torch.cuda.current_device()))
    return clock, time.perf_counter() - begun


# ----------------------------------------------------------------------------------------------------------- clocks
def test_what_a_clock_pair_costs_and_is_worth(figure: Figure) -> None:
    clock, made = new_clock()
    seconds, pairs = [], []
    for _ in range(50):
        begun = time.perf_counter()
        pairs.append(clock.measure())
        seconds.append(time.perf_counter() - begun)
    good = [pair for pair in pairs if pair is not None]
    uncertainties = [pair.uncertainty_ns for pair in good]
    offsets = np.array([pair.host_unix_ns - pair.globaltimer_ns for pair in good])
    figure("made (ms)", made * 1e3)
    figure("a pair, first, median, most (ms)", [seconds[0] * 1e3, np.median(seconds) * 1e3, max(seconds) * 1e3])
    figure("rounds, least", min(pair.rounds for pair in good))
    figure("uncertainty, least, median, most (ns)", [min(uncertainties), np.median(uncertainties), max(uncertainties)])
    figure("pairs that came to nothing", len(pairs) - len(good))
    figure("host time minus timer (ns), spread of 50", [int(offsets[0]), int(np.ptp(offsets))])
    assert len(good) >= 45
    assert made + seconds[0] < 0.05
    assert np.median(uncertainties) < 5000
    # All bound one offset (that drifts by less than 50 ppm): any two must agree within what they claim.
    span = good[-1].host_unix_ns - good[0].host_unix_ns
    assert np.ptp(offsets) <= 2 * max(uncertainties) + 50e-6 * span


def test_a_full_device_is_not_waited_for(figure: Figure) -> None:
    """Every place for a block is taken for 100 ms; then it goes on."""
    clock, _ = new_clock()
    assert clock.measure() is not None
    ctas = cutlass.Int32(64 * torch.cuda.get_device_properties(0).multi_processor_count)
    fill = cute.compile(clock_kernels.waits_host, cutlass.Int64(1), cutlass.Int32(1), ctas)
    fill(cutlass.Int64(1), cutlass.Int32(1), ctas)
    torch.cuda.synchronize()
    fill(cutlass.Int64(50_000_000), cutlass.Int32(1), ctas)
    begun = time.perf_counter()
    found = clock.measure(0.005)
    again = clock.measure(0.005)
    seconds = time.perf_counter() - begun
    torch.cuda.synchronize()
    figure("two tries at a full device (ms)", seconds * 1e3)
    assert (found, again) == (None, None)
    assert seconds < 0.04
    assert clock.measure() is not None


def test_a_launch_stands_between_the_hosts_looks_at_its_clock(tmp_path: Path, figure: Figure) -> None:
    with iket.tracing():
        out, one = Out(4), cutlass.Int32(1)
        compiled = cute.compile(k.steps_host, out.cute, one, cutlass.Int32(4))
    compiled(out.cute, one, cutlass.Int32(4))
    torch.cuda.synchronize()
    brackets = []
    with recording(tmp_path, fresh=True) as folder:
        for _ in range(20):
            before = time.time_ns()
            compiled(out.cute, one, cutlass.Int32(4))
            torch.cuda.synchronize()
            brackets.append((before, time.time_ns()))
    clocks = read_capture(folder).manifest["clocks"]
    assert len(clocks) >= 2
    trace = load(folder)
    assert lossless(trace), trace.problems
    host = trace.meta["host_start"]
    figure("clock pairs, uncertainty of each (ns)", [pair["uncertainty_ns"] for pair in clocks])
    figure("Unix time of the trace, uncertainty (ns)", host["uncertainty_ns"])
    (aligned,) = trace.meta["alignment"]
    figure("drift (ppm), uncertainty", [aligned["drift_ppm"], aligned["drift_uncertainty_ppm"]])
    doubt = host["uncertainty_ns"] + 50e-6 * (brackets[-1][1] - brackets[0][0])
    doubt += max(launch.clock_uncertainty_ns for launch in trace.launches)
    for launch, (before, after) in zip(trace.launches, brackets, strict=True):
        assert before - doubt <= host["unix_ns"] + launch.start_ns <= host["unix_ns"] + launch.end_ns <= after + doubt


# -------------------------------------------------------------------------------------------------------- processes
def judged(done: Run, folder: Path, figure: Figure, name: str) -> dict[str, Any]:
    """The combined JSON of ``ranks.py``: all launches there, each within the host's looks at its clock, in turns."""
    assert done.status == 0, done.said
    assert sorted(path.name for path in folder.glob("iket_*")) == ["iket_run.trace.json"], done.said
    data: dict[str, Any] = json.loads((folder / "iket_run.trace.json").read_text())
    told = {one["pid"]: one for one in map(json.loads, filter(lambda x: x.startswith("{"), done.stdout.splitlines()))}
    extension = data["warptrace"]
    host = extension["hostStart"]
    doubt = host["uncertaintyNs"] + max(one["uncertaintyNs"] for one in extension["alignment"])
    figure(f"{name}: uncertainty of Unix time, of each device (ns)",
           [host["uncertaintyNs"], [one["uncertaintyNs"] for one in extension["alignment"]]])  # fmt: skip
    launches = [launch["warptrace"] for launch in data["launches"]]
    doubt += max(launch["clockUncertaintyNs"] for launch in launches)
    assert [len(one["times"]) for one in told.values()] == [10, 10]
    assert len(launches) == 20
    brackets = {pid: iter(one["times"]) for pid, one in told.items()}
    to_unix = host["unixNs"] - extension["epochNs"]
    for launch in launches:
        before, after = next(brackets[launch["pid"]])
        assert before - doubt <= launch["startTs"] + to_unix <= launch["endTs"] + to_unix <= after + doubt
    ranks = [told[launch["pid"]]["rank"] for launch in launches]
    assert ranks == [0, 1] * 10
    gaps = [b["startTs"] - a["endTs"] for a, b in zip(launches, launches[1:], strict=False)]
    figure(f"{name}: from one rank's launch to the next's, least (us)", min(gaps) / 1e3)
    assert min(gaps) > -doubt
    return data


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_processes_of_one_gpu_share_a_timeline(tmp_path: Path, figure: Figure, how: str) -> None:
    command = profiled(tmp_path / "run", python(PROGRAMS / "ranks.py", how), postprocess="json")
    done = run(command, tmp_path, CUDA_VISIBLE_DEVICES="0")
    data = judged(done, tmp_path / "run", figure, how)
    alignment = data["warptrace"]["alignment"]
    assert len({one["gpu"] for one in alignment}) == 1
    assert [one["uncertaintyNs"] for one in alignment] == [0, 0]


def test_ranks_of_torchrun(tmp_path: Path, figure: Figure) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = profiled(tmp_path / "run", [*launcher, str(PROGRAMS / "ranks.py"), "rank"], postprocess="json")
    done = run(command, tmp_path)
    gpus = min(torch.cuda.device_count(), 2)
    data = judged(done, tmp_path / "run", figure, f"torchrun on {gpus} GPU(s)")
    extension = data["warptrace"]
    assert sorted(x["rank"] for x in extension["processes"] if x["rank"] is not None) == [0, 1]
    assert len({one["gpu"] for one in extension["alignment"]}) == gpus
    figure("drift of each device (ppm)", [one["driftPpm"] for one in extension["alignment"]])


# ---------------------------------------------------------------------------------------------------------- devices
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("times", [1, 2])
def test_two_devices_of_one_process(tmp_path: Path, figure: Figure, times: int) -> None:
    """A kernel compiled once for both, or once on each, and launched on them in turns: each launch stands under its own
    device, and after the one before."""
    with iket.tracing():
        arguments = (cutlass.Int64(20_000), cutlass.Int32(2), cutlass.Int32(4))
        compiled = []
        for device in range(2):
            with torch.cuda.device(device):
                torch.zeros(1, device="cuda")
                if device < times:
                    compiled.append(cute.compile(clock_kernels.waits_host, *arguments))
    with recording(tmp_path, fresh=True) as folder:
        for turn in range(20):
            with torch.cuda.device(turn % 2):
                compiled[turn % times](*arguments)
                torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    assert [launch.device for launch in trace.launches] == [0, 1] * 10
    first, second = trace.meta["alignment"]
    gaps = [b.start_ns - a.end_ns for a, b in zip(trace.launches, trace.launches[1:], strict=False)]
    figure("shift (us), uncertainty (us)", [second["shift_ns"] / 1e3, second["uncertainty_ns"] / 1e3])
    figure("from one launch to the next, least (us)", min(gaps) / 1e3)
    assert first["gpu"] != second["gpu"]
    assert 0 < second["uncertainty_ns"] < 20_000
    assert min(gaps) > -second["uncertainty_ns"]


# --------------------------------------------------------------------------------------------------------- launches
def meeting(meet: Any, flags: torch.Tensor, handles: list[Any]) -> int:
    """1 if a consumer on the first stream met its producer, launched later on the second."""
    flags.zero_()
    torch.cuda.synchronize()
    for waits, handle in zip((1, 0), handles, strict=True):
        meet(k.pointer(flags.data_ptr()), cutlass.Int32(waits), cutlass.Int32(4), handle)
    torch.cuda.synchronize()
    return int(flags[32].item())


def streams_that_run_beside_each_other() -> list[Any]:
    """Handles of two streams on which an untraced consumer meets its producer. Streams share a few queues of the
    hardware, and those of one queue may wait for each other; which do depends on how many the process has made."""
    flags = torch.zeros(pk.WORDS, dtype=torch.int32, device="cuda")
    arguments = (k.pointer(flags.data_ptr()), cutlass.Int32(1), cutlass.Int32(4))
    with iket.tracing(False):
        meet = cute.compile(pk.meet_host, *arguments, cuda.CUstream(torch.cuda.Stream().cuda_stream))
    for _ in range(8):
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        handles = [cuda.CUstream(stream.cuda_stream) for stream in streams]
        for _ in range(2):
            met = meeting(meet, flags, handles)
        if met == 1:
            return handles
    pytest.skip("no two streams of this process run beside each other, untraced")


def test_whatever_queue_the_streams_share_with_ours(tmp_path: Path) -> None:
    """Streams share eight queues of the hardware. Wherever the tracer's lie, the second launch of a kernel, which reads
    what the first one used, is not held up behind it."""
    flags = torch.zeros(pk.WORDS, dtype=torch.int32, device="cuda")
    arguments = (k.pointer(flags.data_ptr()), cutlass.Int32(1), cutlass.Int32(4))
    others, met = [], []
    for turn in range(8):
        # with those below and the recorder's an odd number a turn: in eight turns that has lain in every queue
        others.append(torch.cuda.Stream())
        handles = streams_that_run_beside_each_other()
        with iket.tracing():
            meet = cute.compile(pk.meet_host, *arguments, handles[0])
        with recording(tmp_path / str(turn), fresh=True) as folder:
            met.append(meeting(meet, flags, handles))
        trace = load(folder)
        assert lossless(trace), trace.problems
    assert met == [1] * 8


def test_a_kernel_that_waits_for_a_later_launch(tmp_path: Path) -> None:
    """Consumer and producer are launches of one kernel, whose number of events only its first launch can tell: the
    second is held up for a moment, and no longer."""
    flags = torch.zeros(pk.WORDS, dtype=torch.int32, device="cuda")
    handles = streams_that_run_beside_each_other()
    with iket.tracing():
        arguments = (k.pointer(flags.data_ptr()), cutlass.Int32(1), cutlass.Int32(4))
        meet = cute.compile(pk.meet_host, *arguments, handles[0])
    torch.cuda.synchronize()
    with recording(tmp_path, fresh=True) as folder:
        met = [meeting(meet, flags, handles) for _ in range(3)]
    assert met == [1, 1, 1]
    trace = load(folder)
    assert lossless(trace), trace.problems
    # by stream: beside other processes both may be waiting when the GPU comes to them, and it begins with either
    consumers, producers = ([launch for launch in trace.launches if launch.stream == int(handle)] for handle in handles)
    assert [payloads(trace, launch, "meet") for launch in consumers] == [[1]] * 3
    assert [payloads(trace, launch, "meet") for launch in producers] == [[0]] * 3
    for consumer, producer in zip(consumers, producers, strict=True):
        assert max(consumer.start_ns, producer.start_ns) < consumer.end_ns
        assert consumer.end_ns - consumer.start_ns < pk.PATIENCE_NS


def test_many_launches_and_two_kernels_of_one_class(tmp_path: Path) -> None:
    """Each launch is an entry of its own, in order, with its kernel and shape."""

    class Pair:
        @cute.kernel
        def one(self, n: cutlass.Int32):
            iket.mark("one", n)

        @cute.kernel
        def two(self, n: cutlass.Int32):
            iket.mark("two", n)

        @cute.jit
        def __call__(self, n: cutlass.Int32, ctas: cutlass.Int32):
            self.one(n).launch(grid=[ctas, 1, 1], block=[32, 1, 1])
            self.two(n).launch(grid=[ctas, 2, 1], block=[64, 1, 1])

    with iket.tracing():
        compiled = cute.compile(Pair(), cutlass.Int32(0), cutlass.Int32(1))
    with recording(tmp_path, fresh=True) as folder:
        for n in range(100):
            compiled(cutlass.Int32(n), cutlass.Int32(1 + n % 3))
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    found = []
    for launch in trace.launches:
        rows = trace.warps.launch[trace.markers.warp] == launch.index
        (name,) = {trace.strings[i] for i in np.unique(trace.markers.name[rows])}
        (n,) = np.unique(trace.markers.bits[rows]).tolist()
        found.append((name, n, launch.grid, launch.block))
    assert found == [
        row for n in range(100)
        for row in (("one", n, (1 + n % 3, 1, 1), (32, 1, 1)), ("two", n, (1 + n % 3, 2, 1), (64, 1, 1)))
    ]  # fmt: skip
    assert len({launch.symbol for launch in trace.launches}) == 2
    ids = [launch.grid_id for launch in trace.launches]
    assert len(set(ids)) == 200
    assert ids == sorted(ids)
