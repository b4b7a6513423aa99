"""GPCs and TPCs that clusters, the program's and the tracer's own, and clocks tell on hardware."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import clock_kernels as k
import cutlass
import cutlass.cute as cute
import torch
from gpu_kit import Figure, load, lossless, recording

import warptrace.cute as iket
from warptrace.runtime import driver
from warptrace.runtime.cluster_probe import ClusterProbe

pytestmark = pytest.mark.gpu

LAUNCHES, CLUSTERS, ROUNDS = 20, 60, 4
BUFFER = 1 << 30


@pytest.fixture
def sms() -> Iterator[int]:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    yield torch.cuda.get_device_properties(0).multi_processor_count
    torch.cuda.synchronize()


def is_h200(sms: int) -> bool:
    return torch.cuda.get_device_name(0) == "NVIDIA H200" and sms == 132


def compiled_waits() -> Any:
    return cute.compile(k.waits_host, cutlass.Int64(1), cutlass.Int32(1), cutlass.Int32(1))


def test_a_kernel_without_clusters_has_gpcs(tmp_path: Path, figure: Figure, sms: int) -> None:
    with iket.tracing():
        waits = compiled_waits()
    with recording(tmp_path, fresh=True) as folder:
        waits(cutlass.Int64(1000), cutlass.Int32(1), cutlass.Int32(16))
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    (facts,) = trace.meta["topology"]
    figure("sets of SMs by CTAs of a cluster", trace.processes[0].manifest["devices"][0].get("clusters"))
    figure("GPCs (SMs of each)", [len(one) for one in facts["gpcs"]])
    figure("SMs not placed", facts["unplaced"])
    assert facts["probed"] == [2, 5, 7]
    if is_h200(sms):
        assert len(facts["gpcs"]) == 8
        assert sorted(sm for gpc in [*facts["gpcs"], facts["unplaced"]] for sm in gpc) == list(range(sms))
        assert len(facts["unplaced"]) <= 8
        assert facts["tpcs"] == 66
        assert (trace.warps.tpc == trace.warps.sm // 2).all()
        assert ((trace.warps.gpc >= 0) != np.isin(trace.warps.sm, facts["unplaced"])).all()


def test_looking_for_clusters_takes_a_ms_and_waits_for_nothing(figure: Figure, sms: int) -> None:
    """Places for CTAs on all SMs are taken for 100 ms; then they are free."""
    context = driver.context(0)
    fill, many = compiled_waits(), cutlass.Int32(64 * sms)
    fill(cutlass.Int64(1), cutlass.Int32(1), many)
    torch.cuda.synchronize()
    seen, seconds = [], []
    for _ in range(10):
        probe = ClusterProbe(context, sms)
        begun = time.perf_counter()
        seen.append(probe.look(0.1))
        seconds.append(time.perf_counter() - begun)
    figure("a look of four launches (ms), least, median, most", [x * 1e3 for x in np.quantile(seconds, [0, 0.5, 1])])
    assert None not in seen
    assert np.median(seconds) < 0.002
    if is_h200(sms):
        assert [one.ctas for one in seen[0]] == [7, 5, 2]
        assert len(seen[0][0].sms) == 8 and seen[0][0].sms == seen[0][1].sms
        assert seen[0][2].sms == [[sm, sm + 1] for sm in range(0, sms, 2)]
        assert seen == seen[:1] * 10
    probe = ClusterProbe(context, sms)
    fill(cutlass.Int64(50_000_000), cutlass.Int32(1), many)
    time.sleep(0.01)
    begun = time.perf_counter()
    assert probe.look(0.005) is None
    assert time.perf_counter() - begun < 0.03
    torch.cuda.synchronize()
    assert probe.look(0.1) == seen[0]


def test_clusters_and_clocks_tell_the_gpcs(tmp_path: Path, figure: Figure, sms: int) -> None:
    with iket.tracing():
        clusters = cute.compile(k.cluster_relay_host, cutlass.Int32(1), cutlass.Int32(1))
        waits = compiled_waits()
    with recording(tmp_path, buffer_bytes=BUFFER, max_events=2 * ROUNDS, fresh=True) as folder:
        for _ in range(LAUNCHES):
            clusters(cutlass.Int32(ROUNDS), cutlass.Int32(CLUSTERS))
            torch.cuda.synchronize()
        waits(cutlass.Int64(2_000_000), cutlass.Int32(1), cutlass.Int32(sms))
        torch.cuda.synchronize()
    trace = load(folder)
    assert lossless(trace), trace.problems
    (facts,) = trace.meta["topology"]
    figure("GPCs (SMs of each)", facts["gpcs"])
    figure("SMs not placed", facts["unplaced"])
    figure("launches whose clocks were compared, contradict", [facts["clocks_compared"], facts["clocks_contradict"]])
    figure("GHz by GPC", {one["gpc"]: 1 / one["ns_per_cycle"] for one in trace.meta["clocks"][-1]["by_gpc"]})
    w = trace.warps
    # Whatever is said, CTAs of one cluster share a GPC, and TPCs lie in one.
    cluster = np.unique(np.stack([w.launch, w.cta[:, 0] // k.CLUSTER, w.gpc], axis=1)[w.launch < LAUNCHES], axis=0)
    assert len(cluster) == LAUNCHES * CLUSTERS
    for gpc in facts["gpcs"]:
        assert len(gpc) <= 18 and sorted({sm ^ 1 for sm in gpc} - set(gpc) - set(facts["unplaced"])) == []
    assert facts["clocks_contradict"] == 0
    if is_h200(sms):
        assert len(facts["gpcs"]) == 8
        assert sum(map(len, facts["gpcs"])) + len(facts["unplaced"]) == sms
        assert (w.tpc == w.sm // 2).all()
