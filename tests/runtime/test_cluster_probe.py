"""The tracer's own clusters: what their CTAs write, on the emulator, and what is made of it; a driver that is none."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bad_days import profile

import warptrace
from warptrace.emulator import Device
from warptrace.emulator.topology import h200_gpc
from warptrace.runtime import driver
from warptrace.runtime.cluster_probe import (
    CLUSTERS,
    FIRST,
    KERNEL,
    PTX,
    SIZES,
    ClusterLog,
    ClusterProbe,
    SharedSms,
    joined,
)
from warptrace.runtime.memory import DeviceMemory

SMS = 132
GPCS = [[sm for sm in range(124) if h200_gpc(sm) == gpc] for gpc in range(8)]
"""What an H200 showed: SMs 124 to 131 share clusters of two only."""
TPCS = [[sm, sm + 1] for sm in range(0, SMS, 2)]


# ------------------------------------------------------------------------------------------------------------ joining
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=20), st.randoms(use_true_random=False))
def test_joined_sets_are_what_clusters_connect_in_any_order(clusters: list[list[int]], order: Any) -> None:
    linked = np.eye(31, dtype=bool)
    for one in clusters:
        linked[np.ix_(one, one)] = True
    for _ in range(5):
        linked = linked @ linked
    seen = sorted({sm for one in clusters for sm in one})
    wanted = sorted({tuple(np.flatnonzero(linked[sm]).tolist()) for sm in seen})
    assert joined(clusters) == [list(one) for one in wanted]
    mixed = [order.sample(one, len(one)) for one in order.sample(clusters, len(clusters))]
    assert joined(mixed) == joined(clusters)


# ------------------------------------------------------------------------------------------------ the device's side
@pytest.mark.parametrize("size", [1, *SIZES])
def test_every_cta_writes_where_it_ran(size: int) -> None:
    device = Device()
    page = device.alloc(np.zeros(CLUSTERS * size + 1, np.uint32))
    device.load(PTX).kernel(KERNEL).launch(CLUSTERS * size, 1, [page], cluster=size)
    told = page.read().astype(int)
    assert told[-1] == 0
    sms = told[:-1].reshape(CLUSTERS, size) - 1
    assert ((sms >= 0) & (sms < SMS)).all()
    gpcs = np.vectorize(h200_gpc)(sms)
    assert (gpcs == gpcs[:, :1]).all()


# ------------------------------------------------------------------------------------------------------- the driver
def placed(sets: Sequence[Sequence[int]], size: int) -> list[int]:
    """SMs of CLUSTERS clusters, which go round the sets and, within each, from one SM to the next."""
    sms = []
    for number in range(CLUSTERS):
        one = sets[number % len(sets)]
        first = number // len(sets) * (size - 1)
        sms += [one[(first + k) % len(one)] for k in range(size)]
    return sms


class ClusterDriver:
    """Stands for the driver module: CTAs run on an H200, those of ``full`` SMs on others. ``late``: sizes of clusters
    that find no place; ``misfits``: sizes that the context never has room for."""

    def __init__(self, bindings: Any) -> None:
        self._cuda = bindings
        self._pages: list[Any] = []
        self.full: set[int] = set()
        self.late: set[int] = set()
        self.misfits: set[int] = set()
        self.launches: list[tuple[int, int]] = []
        self.pending = False

    def call(self, name: str, *args: Any) -> Any:
        if name == "cuMemHostAlloc":
            self._pages.append((ctypes.c_uint8 * args[0])())
            return ctypes.addressof(self._pages[-1])
        answers: dict[str, Callable[[], Any]] = {
            "cuMemHostGetDevicePointer": lambda: args[0],
            "cuCtxGetStreamPriorityRange": lambda: (0, -5),
            "cuStreamCreateWithPriority": lambda: 77,
            "cuLaunchKernel": lambda: self._run(1, args[1], args[9]),
            "cuLaunchKernelEx": lambda: self._run(self._cluster(args[0]), args[0].gridDimX, args[2]),
            "cuOccupancyMaxActiveClusters": lambda: 0 if self._cluster(args[1]) in self.misfits else 16,
        }
        return answers.get(name, lambda: name)()

    def _cluster(self, config: Any) -> int:
        (attribute,) = config.attrs
        kinds = self._cuda.CUlaunchAttributeID
        assert attribute.id == kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        assert (config.numAttrs, int(config.hStream), config.sharedMemBytes) == (1, 77, 0)
        assert (config.gridDimY, config.gridDimZ) == (1, 1)
        assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (1, 1, 1)
        shape = attribute.value.clusterDim
        assert (shape.y, shape.z) == (1, 1)
        return int(shape.x)

    def _run(self, cluster: int, ctas: int, parameters: int) -> None:
        self.launches.append((cluster, ctas))
        if cluster in self.late:
            self.pending = True
            return
        address = ctypes.c_uint64.from_address(ctypes.c_void_p.from_address(parameters).value or 0).value
        if cluster == 1:
            free = [sm for sm in range(SMS) if sm not in self.full]
            sms = [free[k % len(free)] for k in range(ctas)]
        else:
            sms = placed(TPCS if cluster == 2 else GPCS, cluster)
        assert len(sms) == ctas
        (ctypes.c_uint32 * ctas).from_address(address)[:] = [sm + 1 for sm in sms]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> ClusterDriver:
    bindings = pytest.importorskip("cuda.bindings.driver")
    made = ClusterDriver(bindings)
    results = bindings.CUresult

    def query(stream: Any) -> tuple[Any]:
        return (results.CUDA_ERROR_NOT_READY if made.pending else results.CUDA_SUCCESS,)

    names = ("CUstream_flags", "CUresult", "CU_MEMHOSTALLOC_DEVICEMAP", "CUlaunchAttribute", "CUlaunchAttributeID",
             "CUlaunchConfig")  # fmt: skip
    fake = SimpleNamespace(**{name: getattr(bindings, name) for name in names}, cuStreamQuery=query)
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    monkeypatch.setattr(driver, "call", made.call)
    monkeypatch.setattr(driver, "check", lambda name, result: None)
    monkeypatch.setattr(driver, "relaxed_capture", nullcontext)
    monkeypatch.setattr(driver, "current", lambda context: nullcontext())
    return made


SEEN = [SharedSms(7, GPCS), SharedSms(5, GPCS), SharedSms(2, TPCS)]


def test_a_free_device_tells_its_gpcs_and_tpcs_once(cuda: ClusterDriver) -> None:
    probe = ClusterProbe("context", SMS)
    assert probe.look(60.0) == SEEN
    assert cuda.launches == [(1, FIRST * SMS), (7, 700), (5, 500), (2, 200)]
    assert probe.look() == SEEN
    assert len(cuda.launches) == 4


def test_a_full_sm_keeps_clusters_away(cuda: ClusterDriver) -> None:
    """They might find no place, and hold up the launch that the SM's kernel waits for."""
    probe = ClusterProbe("context", SMS)
    cuda.full = {77}
    assert probe.look() is None
    assert cuda.launches == [(1, FIRST * SMS)]
    cuda.full = set()
    assert probe.look(60.0) == SEEN


@pytest.mark.parametrize("late", [1, 5])
def test_what_does_not_run_is_given_up_and_let_go(cuda: ClusterDriver, late: int) -> None:
    probe = ClusterProbe("context", SMS)
    cuda.late = {late}
    begun = time.monotonic()
    assert probe.look(0.005) is None
    launched = len(cuda.launches)
    assert probe.look(0.005) is None
    assert time.monotonic() - begun < 5
    assert len(cuda.launches) == launched  # the first still waits: nothing behind it
    cuda.late, cuda.pending = set(), False
    assert probe.look(60.0) == SEEN


def test_clusters_that_never_fit_are_not_launched(cuda: ClusterDriver) -> None:
    cuda.misfits = {7}
    assert ClusterProbe("context", SMS).look(60.0) == SEEN[1:]
    assert (7, 700) not in cuda.launches


@pytest.mark.parametrize(("capability", "made"), [("8.9", False), ("9.0", True), ("12.0", True)])
def test_older_devices_do_not_get_the_code(
    cuda: ClusterDriver, monkeypatch: pytest.MonkeyPatch, capability: str, made: bool
) -> None:
    memory = object.__new__(DeviceMemory)
    memory.ordinal, memory.context, memory._cluster_probe = 0, "context", None
    monkeypatch.setattr(
        driver, "device_facts", lambda ordinal: SimpleNamespace(compute_capability=capability, sm_count=SMS)
    )
    assert (memory.cluster_probe() is not None) is made
    assert memory.cluster_probe() is memory.cluster_probe()


# -------------------------------------------------------------------------------------------------------- the capture
class FakeWriter:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def set_clusters(self, *values: Any) -> None:
        self.seen.append(values)


class FakeProbe:
    def __init__(self, *answers: list[SharedSms] | None) -> None:
        self.answers = list(answers)

    def look(self, patience_s: float = 0.0) -> list[SharedSms] | None:
        return self.answers.pop(0)


def test_what_was_seen_goes_to_the_capture_once() -> None:
    writer: Any = FakeWriter()
    probe: Any = FakeProbe(None, SEEN)
    clusters = ClusterLog(3, lambda: probe, writer)
    clusters.note()
    assert writer.seen == []
    clusters.note()
    clusters.note()
    assert writer.seen == [(3, [(7, GPCS), (5, GPCS), (2, TPCS)])]


def test_a_device_that_cannot_is_asked_once() -> None:
    writer: Any = FakeWriter()
    asked: list[int] = []

    def broken() -> ClusterProbe:
        asked.append(1)
        raise driver.DriverError("cuModuleLoadData", 222, "unsupported PTX")

    for give in (broken, lambda: None):
        clusters = ClusterLog(0, give, writer)
        clusters.note()
        clusters.note()
    assert (asked, writer.seen) == ([1], [])


def test_a_run_without_clusters_has_gpcs(tmp_path: Path) -> None:
    """They are looked for at the end, not beside the program's launches."""
    body = f"""
    from warptrace.runtime.cluster_probe import SharedSms
    answers = [[SharedSms(7, {GPCS}), SharedSms(2, {TPCS})]]
    class Probe:
        def look(self, patience_s): return answers.pop(0)
    fake_gpu.Memory.cluster_probe = lambda self: Probe()
    for _ in range(3): steps.launch()
    assert len(answers) == 1
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    assert done.returncode == 0, done.stderr
    trace = warptrace.load(tmp_path / "run")
    device, w = trace.processes[0].manifest["devices"][0], trace.warps
    assert device["clusters"] == [{"ctas": 7, "sms": GPCS}, {"ctas": 2, "sms": TPCS}]
    (facts,) = trace.meta["topology"]
    assert (facts["gpcs"], facts["unplaced"], facts["probed"]) == (GPCS, list(range(124, 132)), [2, 7])
    assert (w.sm.tolist(), w.gpc.tolist(), w.tpc.tolist()) == ([0, 1] * 3, [0] * 6, [0] * 6)
    assert facts["tpcs"] == 66
