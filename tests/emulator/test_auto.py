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
    args, product, wanted = silent_gemm.arguments(device, kernel.ptx, *shape, hidden=5)
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
    wanted = silent_gemm.automatic_ranges(gemm, *shape, ctas)
    trace = recorded(gemm, tmp_path, groups, shape, ctas)
    counts = Counter(trace.strings[i] for i in trace.ranges.name)
    assert counts == {name: count for group in groups for name, count in wanted[group].items()}


def test_payloads_are_stages_and_sites_are_lines_of_the_user(gemm, tmp_path):
    trace = recorded(gemm, tmp_path, ("waits", "barriers", "arrivals"), (256, 256, 384, 256, 1), 1)
    stages = gemm.GemmConfig(128, 256).stages
    assert stages == 4
    names = np.array([trace.strings[i] for i in trace.ranges.name])
    for name in ("producer_acquire", "consumer_wait", "consumer_release"):
        mine = names == f"ring.{name}"
        for warp in np.unique(trace.ranges.warp[mine]):
            found = trace.ranges.start_bits[mine & (trace.ranges.warp == warp)]
            assert found.tolist() == [i % stages for i in range(12)]
    (record,) = registry.records()
    for site in record.sites:
        assert site.file == str(silent_gemm.FILE)
        method = (site.name or linecache.getline(site.file, site.line)).rpartition(".")[2]
        line = linecache.getline(site.file, site.line)
        assert method.split("(")[0].strip() in line or ("agent_sync" in method and "PipelineTmaAsync.create" in line)
