"""Capture windows of a process on the trace's timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.raw.format import text_crc
from warptrace.trace import Trace

APART = 5_000_000
"""Host time minus %globaltimer, ns."""


def recorded(folder: Path, windows: list[tuple[int, int | None]] | None, *, pairs: bool = True) -> Trace:
    """A launch of one warp 1,000 ns after EPOCH_NS, in a process with these windows (ns after it, on the device)."""
    kernel = FakeKernel("k")
    mark = kernel.mark("m")
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12)
    warp = FakeWarp(start_ns=1000)
    warp.event(mark, at=10)
    device.launch(kernel, [warp.exit(at=40)])
    path = write_capture(folder, [device], [kernel])
    manifest = json.loads((path / "manifest.json").read_text())
    moments = [EPOCH_NS - 10**9, EPOCH_NS + 10**9] if pairs else []
    manifest["clocks"] = [
        {"device": 0, "globaltimer_ns": t, "host_unix_ns": t + APART, "host_monotonic_ns": t, "uncertainty_ns": 100.0}
        for t in moments
    ]
    manifest["windows"] = windows and [
        {"begin_unix_ns": EPOCH_NS + APART + a, "end_unix_ns": None if b is None else EPOCH_NS + APART + b}
        for a, b in windows
    ]
    (path / "manifest.json").write_text(json.dumps(manifest | {"crc32": text_crc(manifest)}))
    return decode([read_capture(path)])


def moments(trace: Trace) -> list[tuple[Any, Any]]:
    """Begin and end of the windows, ns after EPOCH_NS."""
    shift = trace.epoch_ns - EPOCH_NS
    found = [(window["begin_ns"], window["end_ns"]) for window in trace.meta["windows"]]
    return [(a + shift, None if b is None else b + shift) for a, b in found]


def test_windows_lie_where_the_clocks_say(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "c", [(-500, 2000), (9_000_000, None)])
    first, second = trace.meta["windows"]
    assert (first["process"], first["begin_unix_ns"], first["end_unix_ns"]) == (
        0, EPOCH_NS + APART - 500, EPOCH_NS + APART + 2000
    )  # fmt: skip
    for found, wanted in zip(moments(trace), [(-500, 2000), (9_000_000, None)], strict=True):
        assert found[0] == pytest.approx(wanted[0], abs=2)
        assert found[1] == (None if wanted[1] is None else pytest.approx(wanted[1], abs=2))
    assert second["end_unix_ns"] is None
    assert 100 <= first["uncertainty_ns"] < 2000  # the pairs are a second away


@pytest.mark.parametrize("windows", [None, []])
def test_no_windows(tmp_path: Path, windows: list[Any] | None) -> None:
    assert recorded(tmp_path / "c", windows).meta["windows"] == []


def test_clocks_that_were_not_compared(tmp_path: Path) -> None:
    (window,) = recorded(tmp_path / "c", [(-500, 2000)], pairs=False).meta["windows"]
    assert [window[k] for k in ("begin_ns", "end_ns", "uncertainty_ns")] == [None, None, None]
    assert window["begin_unix_ns"] == EPOCH_NS + APART - 500
