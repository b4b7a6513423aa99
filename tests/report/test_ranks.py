"""Ranks against each other: made-up launches on several GPUs whose skew and waits are known."""

from __future__ import annotations

import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from warptrace.decode import decode
from warptrace.errors import UsageError
from warptrace.raw import read_capture
from warptrace.report.blocks import blocks
from warptrace.report.ranks import RankReport, peer_wait_flags, rank_report
from warptrace.report.report import build
from warptrace.report.text import print_blocks
from warptrace.report.waits import wait_flags
from warptrace.trace import Trace

RATE = 1.98


def traced(
    folder: Path,
    begins: list[list[int]],
    waits: list[list[int]] | None = None,
    *,
    doubt: float = 100.0,
    flights: int | None = None,
    aligned: bool = True,
    length: int = 20_000,
) -> Trace:
    """A process and GPU for each of ``begins``, ns at which its launches of one kernel begin.

    A launch has a warp that waits for ``waits`` ns and lives ``length`` ns more. Each timer is 50 us behind the one
    before; direct comparisons are good to ``doubt``, of ``flights`` ns both ways together.
    """
    captures = []
    for rank, times in enumerate(begins):
        kernel = FakeKernel("k")
        push, pop = kernel.push("wait_peer"), kernel.pop()
        inner, inner_pop = kernel.push("poll_peer"), kernel.pop()
        device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12, timer_ahead_ns=-50_016 * rank)
        for turn, ns in enumerate(times):
            wait = int((waits[rank][turn] if waits else 0) * RATE)
            warp = FakeWarp(start_ns=ns)
            if wait:
                warp.event(push, at=10)
                warp.event(inner, at=10 + wait // 4)
                warp.event(inner_pop, at=10 + wait // 2)
                warp.event(pop, at=10 + wait)
            device.launch(kernel, [warp.exit(at=int(length * RATE) + wait)])
        moments = (0, max(map(max, begins)) + 10**6)
        peers = [
            {"device": 0, "peer": "GPU-0", "uncertainty_ns": doubt, "globaltimer_ns": EPOCH_NS + ns - 50_016 * rank,
             "peer_globaltimer_ns": EPOCH_NS + ns, "flights_ns": flights} for ns in moments
        ]  # fmt: skip
        facts = {"rank": rank, "world_size": len(begins), "boot": "B", "peer_clocks": peers if rank and aligned else []}
        path = folder / f"pid_{rank}"
        write_capture(path, [device], [kernel], pid=rank, uuid=f"GPU-{rank}", facts=facts)
        captures.append(read_capture(path))
    return decode(captures)


def found(trace: Trace, **options: Any) -> RankReport:
    report = rank_report(trace, **options)
    assert report is not None
    return report


def text(trace: Trace) -> str:
    console = Console(file=io.StringIO(), width=250, color_system=None)
    print_blocks(blocks(build(trace)), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_slowest_rank_and_who_waits(tmp_path: Path) -> None:
    """Rank 1 begins 30 us late in two of three rounds; rank 0 waits for it, rank 2 half the time."""
    begins = [[100_000, 200_000, 300_000], [130_000, 230_000, 300_000], [101_000, 201_000, 301_000]]
    waits = [[25_000, 25_000, 1000], [100, 100, 1000], [12_000, 12_000, 1000]]
    trace = traced(tmp_path, begins, waits)
    report = found(trace)
    (row,) = report.kernels
    assert (row.places, row.rounds, row.most) == (3, 3, 3)
    assert (row.start_p50_ns, row.start_max_ns) == pytest.approx((30_000, 30_000), abs=80)
    # Ends: 145, 150.1, 133; the last round: 321, 321, 322.
    assert (row.end_p50_ns, row.end_max_ns) == pytest.approx((17_100, 17_100), abs=150)
    assert (row.told, row.slowest, row.slowest_rounds) == (3, "Rank 1 (process 1), GPU 0 (1)", 2)
    assert 200 <= row.uncertainty_ns < 400
    first, second, third = report.places
    assert [p.rank for p in report.places] == [0, 1, 2]
    assert [p.last for p in report.places] == [0, 2, 1]
    assert first.uncertainty_ns == 0
    assert second.uncertainty_ns == pytest.approx(100, abs=20)
    assert (first.late_start_ns, second.late_start_ns) == pytest.approx((0, 30_000), abs=80)
    # Waits: nested ones count once; 51 of 111 us.
    assert first.wait_share == pytest.approx(51 / 111, abs=0.002)
    assert third.wait_share == pytest.approx(25 / 85, abs=0.002)
    assert (first.wait_ns, third.wait_ns) == pytest.approx((25_000, 12_000), abs=50)
    assert report.peer_waits == ("wait_peer", "poll_peer")
    shown = text(trace)
    assert "Ranks: 3 on 3 GPUs" in shown
    assert "Rank 1 (process 1), GPU 0 (1) ends last in 2 of 3" in shown
    assert "46 %" in shown
    assert [line.split()[4:7] for line in shown.splitlines()[4:7]] == [[f"{n},", "GPU", "0"] for n in (0, 2, 1)]
    assert "taken as waits for peers, by name: wait_peer, poll_peer" in shown


def test_a_skew_within_the_uncertainty_is_said_to_be_none(tmp_path: Path) -> None:
    trace = traced(tmp_path, [[100_000], [100_500]], doubt=2000.0)
    (row,) = found(trace).kernels
    assert (row.told, row.slowest, row.slowest_rounds) == (0, None, 0)
    assert "no skew of the ends can be told from none" in text(trace)
    assert "no name looks like a wait for a peer" in text(trace)
    assert [p.wait_share for p in found(trace).places] == [None, None]


def test_what_two_alike_ways_leave_stands_beside_what_is_certain(tmp_path: Path) -> None:
    """Half of the flights is 500 of the 550 ns; if they are alike, 62.5 of these are left. Only the first figure tells
    which rank is last."""
    trace = traced(tmp_path, [[100_000], [100_400]], doubt=550.0, flights=1000)
    report = found(trace)
    (row,) = report.kernels
    assert row.uncertainty_ns - row.symmetric_uncertainty_ns == pytest.approx(437.5, abs=5)
    assert (row.told, row.slowest) == (0, None)
    first, second = report.places
    assert (first.uncertainty_ns, first.symmetric_uncertainty_ns) == (0, 0)
    assert (second.uncertainty_ns, second.symmetric_uncertainty_ns) == pytest.approx((550, 112.5), abs=20)
    shown = text(trace)
    assert "if both ways of a link are alike): no skew of the ends can be told from none" in shown
    assert "if alike" in shown


def test_ranks_that_are_not_aligned_are_not_compared(tmp_path: Path) -> None:
    trace = traced(tmp_path, [[100_000], [150_000]], aligned=False)
    report = found(trace)
    assert report.kernels == ()
    assert [p.uncertainty_ns for p in report.places] == [None, None]
    assert "no kernel was launched by two of them whose times are aligned" in text(trace)


def test_only_as_many_launches_as_all_have_are_compared(tmp_path: Path) -> None:
    trace = traced(tmp_path, [[100_000, 200_000, 300_000], [150_000, 250_000]])
    (row,) = found(trace).kernels
    assert (row.rounds, row.most) == (2, 3)
    assert "the first 2 of up to 3 rounds" in text(trace)
    assert [p.launches for p in found(trace).places] == [2, 2]


def test_a_single_rank_has_no_such_part(tmp_path: Path) -> None:
    trace = traced(tmp_path, [[100_000]])
    assert rank_report(trace) is None
    assert "ranks" not in build(trace).to_json()
    assert "Ranks" not in text(trace)


def test_which_names_are_waits_for_peers() -> None:
    names = ("wait_peer", "peer_store", "barrier", "nvlinkWait", "RankBarrier", "spin_remote", "wait_speer")
    flags = peer_wait_flags(names, wait_flags(names))
    assert [name for name, flag in zip(names, flags, strict=True) if flag] == [
        "wait_peer", "nvlinkWait", "RankBarrier", "spin_remote",
    ]  # fmt: skip
    chosen = peer_wait_flags(names, wait_flags(names), "^peer_|barrier")
    assert chosen == (False, True, True, False, False, False, False)
    with pytest.raises(UsageError, match="--peer-wait"):
        peer_wait_flags(names, wait_flags(names), "(")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40_000), min_size=3, max_size=3), min_size=2, max_size=4))
def test_the_document_and_plain_loops(late: list[list[int]]) -> None:
    """Against the trace's own times, by plain loops; the document is as its schema says."""
    jsonschema = pytest.importorskip("jsonschema")
    import tempfile

    begins = [[100_000 * (1 + turn) + ns for turn, ns in enumerate(row)] for row in late]
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(Path(folder), begins)
    data = json.loads(json.dumps(build(trace).to_json(), allow_nan=False))
    schema = files("warptrace.report") / "schema" / "report.schema.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8"))).validate(data)
    (row,) = data["ranks"]["kernels"]
    by_rank = [[x for x in trace.launches if x.process == rank] for rank in range(len(late))]
    ends = [[one[turn].end_ns for one in by_rank] for turn in range(3)]
    skews = [max(x) - min(x) for x in ends]
    assert row["end_max_ns"] == max(skews)
    assert row["end_p50_ns"] == sorted(skews)[1]
    assert row["told"] == sum(skew > row["uncertainty_ns"] for skew in skews)
    last = [0] * len(late)
    for x in ends:
        *_, second, top = sorted(x)
        if top - second > row["uncertainty_ns"]:
            last[x.index(top)] += 1
    assert [p["last"] for p in data["ranks"]["places"]] == last
    assert row["slowest_rounds"] == max(last)
    assert [p["late_end_ns"] for p in data["ranks"]["places"]] == [
        float(np.median([x[rank] - min(x) for x in ends])) for rank in range(len(late))
    ]
