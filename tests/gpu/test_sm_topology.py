"""GPCs and TPCs that launches of clusters and clocks tell on hardware."""

from __future__ import annotations

from pathlib import Path

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

pytestmark = pytest.mark.gpu

LAUNCHES, CLUSTERS, ROUNDS = 20, 60, 4
BUFFER = 1 << 30


def test_clusters_and_clocks_tell_the_gpcs(tmp_path: Path, figure: Figure) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    with iket.tracing():
        clusters = cute.compile(k.cluster_relay_host, cutlass.Int32(1), cutlass.Int32(1))
        waits = cute.compile(k.waits_host, cutlass.Int64(1), cutlass.Int32(1), cutlass.Int32(1))
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
    if torch.cuda.get_device_name(0) == "NVIDIA H200" and sms == 132:
        assert len(facts["gpcs"]) == 8
        assert sum(map(len, facts["gpcs"])) + len(facts["unplaced"]) == sms
        assert (w.tpc == w.sm // 2).all()
