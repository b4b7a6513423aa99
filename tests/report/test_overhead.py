"""What events cost, from two traces with known lifetimes."""

from __future__ import annotations

from pathlib import Path

from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace.decode import decode
from warptrace.raw import read_capture
from warptrace.report.overhead import overhead
from warptrace.trace import Trace

STEP_NS = 32
"""Of the global timer: what durations of warps that hold no anchor are good to."""
Lengths = dict[str, list[int]]
"""Cycles of the only warp of each launch, by kernel."""


def trace(folder: Path, lengths: Lengths, events: int) -> Trace:
    device, kernels = FakeDevice(), []
    begin = 0
    for name, launches in lengths.items():
        kernel = FakeKernel(name)
        site = kernel.mark("m")
        kernels.append(kernel)
        for cycles in launches:
            warp = FakeWarp(start_ns=begin)
            for k in range(events):
                warp.event(site, at=10 * k)
            device.launch(kernel, [warp.exit(at=cycles)])
            begin += 1_000_000
    write_capture(folder, [device], kernels)
    return decode([read_capture(folder)])


def test_pairs_in_order_and_the_dearest_first(tmp_path: Path) -> None:
    base = trace(tmp_path / "pid_1", {"a": [19800, 39600, 19800], "b": [198000]}, 0)
    full = trace(tmp_path / "pid_2", {"a": [20790, 41580, 20790], "b": [217800], "c": [19800]}, 9)
    b, a = overhead(base, full)
    assert [(x.kernel, x.launches, x.unpaired, x.events, x.lost_events) for x in (a, b)] == [
        ("a", 3, 0, 27, 0), ("b", 1, 0, 9, 0),
    ]  # fmt: skip
    found, wanted = (a.lifetimes_ns, a.full_ns, b.lifetimes_ns, b.full_ns), (10_000, 10_500, 100_000, 110_000)
    assert all(abs(x - y) <= STEP_NS for x, y in zip(found, wanted, strict=True))
    assert all(abs(x - 1.05) <= 2 * STEP_NS / 10_000 for x in (a.low, a.ratio, a.high))
    assert b.low == b.ratio == b.high
    assert abs(b.ratio - 1.1) <= 2 * STEP_NS / 100_000
    assert a.cycles_per_event == (990 + 1980 + 990) / 27
    assert b.cycles_per_event == 19800 / 9


def test_launches_without_a_partner_are_counted(tmp_path: Path) -> None:
    base = trace(tmp_path / "pid_1", {"a": [19800] * 2}, 0)
    full = trace(tmp_path / "pid_2", {"a": [20790] * 5}, 1)
    (a,) = overhead(base, full)
    assert (a.launches, a.unpaired) == (2, 3)


def test_no_kernel_in_both(tmp_path: Path) -> None:
    base, full = trace(tmp_path / "pid_1", {"a": [100]}, 0), trace(tmp_path / "pid_2", {"b": [100]}, 1)
    assert overhead(base, full) == ()
