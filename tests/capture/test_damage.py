"""Captures in any damaged state: cut, flipped, torn, missing. What is read is right, what is missing is said."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warptrace.decode import decode
from warptrace.errors import CaptureError
from warptrace.export.iket_json import write_iket_json
from warptrace.export.perfetto import write_perfetto
from warptrace.raw import CaptureWriter, read_capture
from warptrace.report import summarize
from warptrace.wire import PayloadType

FILES = ("dev0.wtraw", "dev1.wtraw", "kernels.jsonl", "manifest.json")
Rows = Counter[tuple[object, ...]]


@cache
def whole() -> Path:
    """A capture of two devices and two kernels, several chunks each, with lost warps."""
    kernels = [FakeKernel("load"), FakeKernel("store")]
    push, pop = kernels[0].push("copy", PayloadType.I32), kernels[0].pop()
    mark = kernels[1].mark("done")
    devices = [FakeDevice(n, bank_bytes=1 << 12, slack=1 << 12) for n in range(2)]
    for device in devices:
        for k in range(4):
            warps = []
            for number in range(4):
                warp = FakeWarp(warp=number, sm=number % 2, start_ns=10_000 * k + number)
                warp.event(push, 10, payload=7 * k + number)
                warp.event(pop, 500)
                warps.append(warp.exit(900))
            device.launch(kernels[0], warps, block=(128, 1, 1), main_bytes=128)
        only = FakeWarp(sm=5, start_ns=50_000)
        only.event(mark, 5)
        device.launch(kernels[1], [only.exit(9)], main_bytes=128)
    return write_capture(Path(mkdtemp()) / "pid_4242", devices, kernels)


def rows(path: Path) -> tuple[Rows, Rows, Rows]:
    """Every region with its slots, every kernel record and every lost warp, as bytes, counted."""
    capture = read_capture(path)
    regions: Rows = Counter()
    for batch in capture.batches():
        ends = np.cumsum(batch.stored, dtype=np.int64)
        for header, count, end in zip(batch.headers, batch.stored, ends):
            regions[batch.device, header.tobytes(), batch.slots[end - count : end].tobytes()] += 1
    kernels: Rows = Counter({(repr(record),): 1 for record in capture.kernels.values()})
    lost: Rows = Counter((device, row.tobytes()) for device, table in capture.lost().items() for row in table)
    return regions, kernels, lost


EDITS = st.lists(
    st.tuples(
        st.sampled_from(FILES),
        st.sampled_from(["cut", "flip", "byte", "zero", "remove", "append"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def damage(path: Path, edits: list[tuple[str, str, float, int]]) -> bool:
    """Applies the edits; returns whether any file differs from what it was."""
    for name, how, place, value in edits:
        file = path / name
        if not file.exists():
            continue
        data = bytearray(file.read_bytes())
        at = int(place * len(data))
        if how == "remove":
            file.unlink()
            continue
        if how == "cut":
            del data[at:]
        elif how == "append":
            data += bytes([value]) * (1 + at % 50)
        elif data:
            data[at] = {"flip": data[at] ^ (1 << value % 8), "byte": value, "zero": 0}[how]
        file.write_bytes(data)
    return any(not (path / n).exists() or (path / n).read_bytes() != (whole() / n).read_bytes() for n in FILES)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(EDITS)
def test_damage_is_refused_or_counted_and_never_believed(edits: list[tuple[str, str, float, int]]) -> None:
    folder = Path(mkdtemp())
    path = folder / "pid_4242"
    try:
        shutil.copytree(whole(), path)
        changed = damage(path, edits)
        try:
            found, complete = rows(path), rows(whole())
        except CaptureError as e:
            assert changed and "\n" not in str(e)
            return
        for mine, all_there_is in zip(found, complete):
            assert mine <= all_there_is
        capture = read_capture(path)
        trace = decode([capture])
        if found != complete:
            assert trace.problems
        assert [p.manifest for p in trace.processes] == [read_capture(whole()).manifest]
        if trace.launches:
            write_iket_json(trace, folder / "out.json")
            write_perfetto(trace, folder / "out.pftrace")
        summarize(trace)
    finally:
        shutil.rmtree(folder)


def test_a_process_that_was_killed_at_any_moment_of_writing(tmp_path: Path) -> None:
    """Every state that the files pass through can be read: writing is cut after each of its calls."""
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    writer = CaptureWriter(
        tmp_path / "c", pid=7, argv=[], host="h", python="3", warptrace="0", dsl=None, started_unix_ns=1
    )
    states = [decode([read_capture(tmp_path / "c")])]

    def look() -> None:
        states.append(decode([read_capture(tmp_path / "c")]))

    writer.add_kernel(kernel.record)
    look()
    facts = {"name": "n", "uuid": "u", "compute_capability": "9.0", "sm_count": 1, "clock_khz": 1, "driver": "d"}
    writer.add_device(0, **facts, buffer_bytes=1)
    look()
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12)
    for k in range(3):
        warp = FakeWarp(start_ns=1000 * k)
        warp.event(mark, 5)
        device.launch(kernel, [warp.exit(9)])
        writer.write_regions(0, device.images())
        device.clear()
        look()
    writer.set_launches({kernel.id: 3})
    look()
    writer.finish(ended_unix_ns=2)
    look()
    assert [len(x.launches) for x in states] == [0, 0, 0, 1, 2, 3, 3, 3]
    kinds = [sorted({p.kind for p in x.problems} - {"clock"}) for x in states]
    assert kinds == [["unclosed_capture"]] * 7 + [[]]
