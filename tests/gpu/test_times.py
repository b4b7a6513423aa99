"""What times are worth on hardware: no message is received before it was sent, and waits last what they last."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import clock_kernels as k
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack
from gpu_kit import Figure, load, lossless, recording
from numpy.typing import NDArray

import warptrace.cute as iket
from warptrace.trace import Trace

pytestmark = pytest.mark.gpu

I64 = NDArray[np.int64]
BUFFER = 1 << 30
MOST_UNCERTAIN_NS = 1000


def stamps(trace: Trace, launch: int, name: str) -> tuple[I64, I64]:
    """(ns, raw %globaltimer) of the launch's markers of a name: (warps, rounds), warps in the order of the trace."""
    m = trace.markers
    rows = (trace.warps.launch[m.warp] == launch) & (m.name == trace.strings.index(name))
    warps = len(np.unique(m.warp[rows]))
    shape = (warps, rows.sum() // warps)
    return m.ns[rows].reshape(shape), m.bits[rows].astype(np.int64).reshape(shape)


def flights(trace: Trace, launch: int, following: NDArray[np.int64]) -> tuple[I64, I64]:
    """Receive minus send in ns, of the trace's times and of the raw timer, of all messages of a launch.

    ``following``: (warps,) the warp, in the order of the trace, that gets what a warp sends.
    """
    sent, received = stamps(trace, launch, "send"), stamps(trace, launch, "recv")
    ns, raw = (received[i][following] - sent[i] for i in (0, 1))
    return ns.ravel(), raw.astype(np.int32).astype(np.int64).ravel()  # of 32-bit stamps


def judge(trace: Trace, launch: int, following: NDArray[np.int64], figure: Figure, name: str) -> int:
    """How many messages there were; none was received before it was sent beyond the stated uncertainty."""
    ns, raw = flights(trace, launch, following)
    uncertainty = trace.launches[launch].clock_uncertainty_ns
    before = ns[ns < 0]
    figure(f"{name}: messages", len(ns))
    figure(f"{name}: flight (ns), least, median, most", [int(ns.min()), float(np.median(ns)), int(ns.max())])
    figure(f"{name}: raw timer, least, median, most", [int(raw.min()), float(np.median(raw)), int(raw.max())])
    figure(f"{name}: received before sent: aligned, raw timer", [len(before), int((raw < 0).sum())])
    figure(f"{name}: stated uncertainty (ns)", uncertainty)
    assert uncertainty < MOST_UNCERTAIN_NS
    assert ns.min() >= -uncertainty
    # The raw timer tells the truth too, in steps of 32 ns: both must agree within a step and the uncertainty.
    assert np.abs(ns - raw).max() <= 32 + uncertainty
    return len(ns)


def test_messages_through_global_memory(tmp_path: Path, figure: Figure) -> None:
    ctas = torch.cuda.get_device_properties(0).multi_processor_count
    rounds = -(-1_000_000 // (ctas * k.RELAY_WARPS))
    steps = [s for s in range(1, 200, 2) if math.gcd(s, ctas) == 1][: k.RELAY_WARPS]
    flags = torch.zeros(32 * (1 + ctas * k.RELAY_WARPS), dtype=torch.int32, device="cuda")
    flags[: k.RELAY_WARPS] = torch.tensor(steps, dtype=torch.int32)
    with iket.tracing():
        compiled = cute.compile(k.relay_host, from_dlpack(flags), cutlass.Int32(1), cutlass.Int32(ctas))
    with recording(tmp_path, buffer_bytes=BUFFER, max_events=2 * rounds, fresh=True) as folder:
        compiled(from_dlpack(flags), cutlass.Int32(rounds), cutlass.Int32(ctas))
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    cta, warp = np.divmod(np.arange(ctas * k.RELAY_WARPS), k.RELAY_WARPS)
    following = (cta + np.array(steps)[warp]) % ctas * k.RELAY_WARPS + warp
    assert judge(trace, 0, following, figure, "global memory") >= 1_000_000


def test_messages_through_distributed_shared_memory(tmp_path: Path, figure: Figure) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    clusters = 12
    rounds = -(-1_000_000 // (clusters * k.CLUSTER * k.RELAY_WARPS))
    with iket.tracing():
        compiled = cute.compile(k.cluster_relay_host, cutlass.Int32(1), cutlass.Int32(clusters))
    with recording(tmp_path, buffer_bytes=BUFFER, max_events=2 * rounds, fresh=True) as folder:
        compiled(cutlass.Int32(rounds), cutlass.Int32(clusters))
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    cta, warp = np.divmod(np.arange(clusters * k.CLUSTER * k.RELAY_WARPS), k.RELAY_WARPS)
    following = (cta // k.CLUSTER * k.CLUSTER + (cta + 1) % k.CLUSTER) * k.RELAY_WARPS + warp
    assert judge(trace, 0, following, figure, "distributed shared memory") >= 1_000_000


def waits(tmp_path: Path, ns: int, times: int) -> Trace:
    with iket.tracing():
        compiled = cute.compile(k.waits_host, cutlass.Int64(1), cutlass.Int32(1), cutlass.Int32(1))
    with recording(tmp_path) as folder:
        compiled(cutlass.Int64(ns), cutlass.Int32(times), cutlass.Int32(8))
        torch.cuda.synchronize()
    trace = load(folder)
    assert len(trace.ranges) == 8 * times
    return trace


def test_waits_last_what_they_last(tmp_path: Path, figure: Figure) -> None:
    ns = 100_000
    trace = waits(tmp_path, ns, 20)
    lengths = trace.ranges.end_ns - trace.ranges.start_ns
    figure("waits of 100 us (ns): least, most", [int(lengths.min()), int(lengths.max())])
    # 32 ns: the step of the timer that the kernel waits by
    assert lengths.min() >= ns - 32 - trace.launches[0].clock_uncertainty_ns
    assert lengths.max() <= ns + 3000


def test_a_kernel_of_5_s_with_waits_longer_than_a_wrap(tmp_path: Path, figure: Figure) -> None:
    """The low half of the clock comes again after 2.2 s; an event behind a wait holds more of it."""
    ns = 2_500_000_000
    trace = waits(tmp_path, ns, 2)
    (launch,) = trace.launches
    assert [p for p in trace.problems if p.kind == "clock" and "silent" in p.text] == []
    begins = trace.ranges.start_ns.reshape(8, 2)
    figure("from one wait of 2.5 s to the next (ns)", np.unique(begins[:, 1] - begins[:, 0]).tolist())
    lengths = trace.ranges.end_ns - trace.ranges.start_ns
    figure("waits of 2.5 s: least, most (ns)", [int(lengths.min()), int(lengths.max())])
    uncertainty = launch.clock_uncertainty_ns
    figure("clock uncertainty (ns)", uncertainty)
    assert uncertainty < 2 * MOST_UNCERTAIN_NS  # in the waits, where nothing is recorded, it may be 73 ms
    assert (np.abs(begins[:, 1] - begins[:, 0] - ns) < 5000 + uncertainty).all()
    assert (np.abs(lengths - ns) < 5000 + uncertainty).all()
    assert abs(launch.end_ns - launch.start_ns - 2 * ns) < 10_000 + uncertainty
