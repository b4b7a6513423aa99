"""What the report says of clocks, and of what no anchor shows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, RateHistory, write_capture

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.report.clocks import launch_clocks


@pytest.mark.parametrize("anchored", [False, True])
def test_the_report_says_what_nothing_shows(tmp_path: Path, anchored: bool) -> None:
    """100 us at 1.6 GHz, on a device of 1.98 GHz: its clock may have been at 1.98 first and slower then, if no anchor
    shows otherwise."""
    kernel = FakeKernel("k", stride=16)
    kernel.mark("here", anchor=anchored)
    device = FakeDevice(rates={0: RateHistory(((0, Fraction(16, 10)),))})
    warp = FakeWarp(sm=0, start_ns=6400)
    for at in range(800, 160_000, 800):
        warp.event(1, at)
    device.launch(kernel, [warp.exit(160_000)], block=(32, 1, 1), main_bytes=8192)
    trace = decode([read_capture(write_capture(tmp_path / "capture", [device], [kernel]))])
    text = str(launch_clocks(trace, trace.launches[0]))
    assert text == "SM clocks: 1.600 GHz (1 SMs); times of SMs are good to " + (
        "92 ns, mostly to 13 ns"
        if anchored
        else "26 ns, mostly to 26 ns if the clocks were steady where unseen (for up to 100 us), else to 15.0 us"
    )
