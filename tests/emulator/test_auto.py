"""Automatic ranges: examples/hopper_gemm.py without events of its own gets those of the DSL's building blocks, and is
right all the same."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import silent_gemm

import warptrace.cute as iket
from warptrace import registry
from warptrace.decode import decode
from warptrace.emulator import Device
from warptrace.frontends.cute import dsl
from warptrace.raw import read_capture
from warptrace.runtime.emulated import EmulatedRecording
from warptrace.runtime.options import AUTO_DEFAULT, AUTO_GROUPS
from warptrace.trace import Trace

pytestmark = pytest.mark.dsl
STEPS = 4
"""wgmma instructions in a k tile."""


@pytest.fixture(scope="module")
def gemm() -> Any:
    return silent_gemm.load()


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    registry._records.clear()
    yield
    dsl.instrument(())


def recorded(gemm: Any, folder: Path, groups: tuple[str, ...], shape: tuple[int, ...], ctas: int) -> Trace:
    """The trace of one launch whose product was right."""
    tile_n, cluster = shape[3:]
    dsl.instrument(groups)
    with iket.tracing():
        kernel = silent_gemm.compiled(gemm, tile_n, cluster)
    device = Device()
    args, product, wanted = silent_gemm.arguments(device, kernel.ptx, *shape, hidden=2)
    recording = EmulatedRecording(folder / "pid_1", device=device, buffer_bytes=64 << 20)
    recording.launch(kernel, args, grid=ctas, cluster=cluster)
    recording.finish()
    assert np.abs(product.read() - wanted).max() <= 1e-3 * np.abs(wanted).max()
    trace = decode([read_capture(folder / "pid_1")])
    assert (trace.problems, len(trace.markers), trace.launches[0].lost_events) == ((), 0, 0)
    return trace


@pytest.mark.parametrize("groups", [AUTO_DEFAULT, AUTO_GROUPS, ("waits",), ("mma",)], ids=lambda g: "+".join(g))
@pytest.mark.parametrize(("shape", "ctas"), [((256, 256, 128, 128, 1), 2), ((512, 256, 192, 256, 2), 4)])
def test_hopper_gemm(gemm, tmp_path, groups, shape, ctas):
    m, n, k, tile_n, cluster = shape
    of = gemm.expected_events(m, n, k, 128, tile_n, 64, ctas, cluster)
    wanted = {
        "waits": {
            "PipelineTmaAsync.producer_acquire": of["ab_empty_wait"],
            "PipelineTmaAsync.producer_tail": of["load_tail"],
            "PipelineTmaAsync.consumer_wait": of["ab_wait"],
            "warpgroup.wait_group": of["ab_wait"] + of["mma_drain"],
            "arch.cp_async_bulk_wait_group": of["epi_tma_store"] + of["epi_drain"],
        },
        "barriers": {
            "PipelineTmaAsync.consumer_release": of["ab_wait"],
            "NamedBarrier.arrive_and_wait": 2 * of["epi_smem_store"],
            "pipeline.agent_sync": of["pipeline_init"],
        },
        "copies": {
            "cute.copy": 2 * of["tma_issue"] + of["epi_smem_store"] + of["epi_tma_store"],
            "arch.cp_async_bulk_commit_group": of["epi_tma_store"],
        },
        "mma": {
            "warpgroup.fence": of["wgmma"],
            "cute.gemm": STEPS * of["wgmma"],
            "warpgroup.commit_group": of["wgmma"],
        },
        "scheduler": {},
    }
    trace = recorded(gemm, tmp_path, groups, shape, ctas)
    counts = Counter(trace.strings[i] for i in trace.ranges.name)
    assert counts == {name: count for group in groups for name, count in wanted[group].items()}


def test_payloads_are_stages_and_sites_are_lines_of_the_user(gemm, tmp_path):
    trace = recorded(gemm, tmp_path, AUTO_DEFAULT, (256, 256, 384, 256, 1), 1)
    stages = gemm.GemmConfig(128, 256).stages
    assert stages == 4
    names = np.array([trace.strings[i] for i in trace.ranges.name])
    for name in ("producer_acquire", "consumer_wait", "consumer_release"):
        mine = names == f"PipelineTmaAsync.{name}"
        for warp in np.unique(trace.ranges.warp[mine]):
            found = trace.ranges.start_bits[mine & (trace.ranges.warp == warp)]
            assert found.tolist() == [i % stages for i in range(12)]
    (record,) = registry.records()
    for site in record.sites:
        assert site.file == str(silent_gemm.FILE)
        method = (site.name or linecache.getline(site.file, site.line)).rpartition(".")[2]
        line = linecache.getline(site.file, site.line)
        assert method.split("(")[0].strip() in line or ("agent_sync" in method and "PipelineTmaAsync.create" in line)
