"""Several GPUs on one timeline: direct comparison of their timers, messages between their kernels, ranks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import clock_kernels
import cutlass
import cutlass.cute as cute
import peer_kernels
import torch
from gpu_kit import EXAMPLES, PROGRAMS, Figure, load, lossless, names, profiled, recording, run
from test_times import stamps

import warptrace.cute as iket
from warptrace.decode.fit import Pairs
from warptrace.decode.peers import along, fit_link
from warptrace.raw import find_captures, read_capture
from warptrace.runtime import driver
from warptrace.runtime.calibrate import DeviceClock
from warptrace.runtime.peer_clocks import PeerClock, PeerPair, device_pair
from warptrace.trace import Trace

sys.path.append(str(EXAMPLES))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU"),
]

MOST_UNCERTAIN_NS = 750
"""Half of a round trip between two H200 (1.06 to 1.5 us) less what a flag takes within one of them: no one can tell how
a round trip divides into its two ways."""
FORETOLD_NS = 150
"""What a pair may be off from the line through the others: the noise of comparisons, and what the drift does."""
BUFFER = 256 << 20
CONTROL_BYTES = 8192
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@pytest.fixture(autouse=True)
def first_device() -> Iterator[None]:
    """Tests begin and end on device 0, with contexts on both."""
    for device in (1, 0):
        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")
    yield
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    torch.cuda.set_device(0)


@pytest.fixture(scope="module")
def sides() -> list[PeerClock]:
    """Clocks of both devices, apart from any recording."""
    made = []
    for device in range(2):
        with torch.cuda.device(device):
            memory = torch.zeros(CONTROL_BYTES, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            made.append(PeerClock(driver.context(device), memory.data_ptr()))
            made[-1].memory = memory  # type: ignore[attr-defined]  # stays
    return made


@pytest.fixture(scope="module")
def measure(sides: list[PeerClock]) -> Callable[[float], PeerPair | None]:
    see_each_other()
    return device_pair((1, sides[1]), (0, sides[0]))


def see_each_other() -> None:
    """Skips a test where the GPUs have no peer memory."""
    if not (torch.cuda.can_device_access_peer(0, 1) and torch.cuda.can_device_access_peer(1, 0)):
        pytest.skip("these GPUs do not see each other's memory")


def spread(values: Any) -> list[float]:
    """Least, median, most."""
    return [float(f(values)) for f in (np.min, np.median, np.max)]


def alignment(trace: Trace, figure: Figure, name: str) -> float:
    """The uncertainty of the second GPU's times against the first's, ns."""
    _, second = trace.meta["alignment"]
    figure(f"{name}: pairs with the host, with the peer", [second["pairs"], second["peer_pairs"]])
    figure(f"{name}: shift (us), uncertainty (ns)", [second["shift_ns"] / 1e3, second["uncertainty_ns"]])
    assert second["peer_pairs"] >= 1
    return float(second["uncertainty_ns"])


# ------------------------------------------------------------------------------------------------------- comparison
def test_what_a_direct_comparison_costs_and_is_worth(
    sides: list[PeerClock], measure: Callable[[float], PeerPair | None], figure: Figure
) -> None:
    figure("a flag within device 0, 1, at least (ns)", [side.least() for side in sides])
    seconds, pairs = [], []
    for _ in range(60):
        begun = time.perf_counter()
        pairs.append(measure(0.015))
        seconds.append(time.perf_counter() - begun)
    good = [pair for pair in pairs if pair is not None]
    figure("pairs that came to nothing", len(pairs) - len(good))
    figure("a pair, first, median, most (ms)", [seconds[0] * 1e3, np.median(seconds) * 1e3, max(seconds) * 1e3])
    figure("rounds, least", min(pair.rounds for pair in good))
    figure("shortest round trip (ns)", spread([pair.round_trip_ns for pair in good]))
    figure("least flight that was used (ns)", spread([pair.least_ns for pair in good]))
    figure("uncertainty (ns)", spread([pair.uncertainty_ns for pair in good]))
    figure("uncertainty without the least flight (ns)", spread([p.uncertainty_ns + p.least_ns for p in good]))
    ahead = np.array([pair.globaltimer_ns - pair.peer_globaltimer_ns for pair in good])
    at = np.array([pair.globaltimer_ns for pair in good])
    line = np.polynomial.Polynomial.fit((at - at[0]).astype(float), (ahead - ahead[0]).astype(float), 1)
    rest = ahead - ahead[0] - line((at - at[0]).astype(float))
    figure("timer 1 minus timer 0 (us), distance from a line (ns)", [int(ahead[0]) / 1e3, *spread(rest)])
    assert len(good) >= 50
    assert np.median(seconds) < 0.02
    assert np.abs(rest).max() <= 2 * max(pair.uncertainty_ns for pair in good)
    assert np.median([pair.uncertainty_ns for pair in good]) <= MOST_UNCERTAIN_NS


def test_the_host_says_the_same(measure: Callable[[float], PeerPair | None], figure: Figure) -> None:
    clocks = []
    for device in range(2):
        with torch.cuda.device(device):
            clocks.append(DeviceClock(driver.context(device)))
    apart, allowed = [], []
    for _ in range(20):
        hosts, peer = [clock.measure() for clock in clocks], measure(0.015)
        if peer is None or None in hosts:
            continue
        offsets = [pair.host_unix_ns - pair.globaltimer_ns for pair in hosts if pair is not None]
        by_host = offsets[0] - offsets[1]
        apart.append(by_host - (peer.globaltimer_ns - peer.peer_globaltimer_ns))
        allowed.append(sum(pair.uncertainty_ns for pair in hosts if pair is not None) + peer.uncertainty_ns + 100)
    figure("through the host less direct (ns)", spread(apart))
    figure("what their uncertainties allow (ns)", spread(allowed))
    assert len(apart) >= 10
    assert (np.abs(apart) <= allowed).all()


def test_a_full_device_is_not_waited_for(measure: Callable[[float], PeerPair | None], figure: Figure) -> None:
    """Every place for a block of device 1 is taken for 100 ms."""
    assert measure(0.015) is not None
    with torch.cuda.device(1):
        ctas = cutlass.Int32(64 * torch.cuda.get_device_properties(1).multi_processor_count)
        fill = cute.compile(clock_kernels.waits_host, cutlass.Int64(1), cutlass.Int32(1), ctas)
        fill(cutlass.Int64(1), cutlass.Int32(1), ctas)
        torch.cuda.synchronize()
        fill(cutlass.Int64(50_000_000), cutlass.Int32(1), ctas)
    begun = time.perf_counter()
    found = [measure(0.015), measure(0.015)]
    seconds = time.perf_counter() - begun
    torch.cuda.synchronize(1)
    figure("two tries at a full device (ms)", seconds * 1e3)
    assert found == [None, None]
    assert seconds < 0.09
    time.sleep(0.02)
    assert measure(0.015) is not None


LOAD_S = 20.0


def test_alignment_holds_under_load(
    tmp_path: Path, measure: Callable[[float], PeerPair | None], figure: Figure
) -> None:
    """Both GPUs multiply matrices; every pair of the recording is foretold by the others, and one taken behind it."""
    with iket.tracing():
        arguments = (cutlass.Int64(1), cutlass.Int32(1), cutlass.Int32(4))
        compiled = cute.compile(clock_kernels.waits_host, *arguments)
    size = 8192
    matrices = [torch.randn(size, size, dtype=torch.bfloat16, device=f"cuda:{d}") for d in range(2)]
    outs = [torch.empty_like(m) for m in matrices]
    with recording(tmp_path, buffer_bytes=BUFFER, fresh=True) as folder:
        end = time.monotonic() + LOAD_S
        while time.monotonic() < end:
            for device in range(2):
                with torch.cuda.device(device):
                    for _ in range(20):
                        torch.mm(matrices[device], matrices[device], out=outs[device])
                    compiled(cutlass.Int64(5_000), cutlass.Int32(1), cutlass.Int32(4))
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
    behind = measure(0.1)
    trace = load(folder)
    rows = read_capture(folder).manifest["peer_clocks"]
    at, other, doubt = (np.array([row[key] for row in rows]) for key in (
        "globaltimer_ns", "peer_globaltimer_ns", "uncertainty_ns"))  # fmt: skip
    figure("seconds, pairs, launches", [float(at[-1] - at[0]) / 1e9, len(at), len(trace.launches)])
    figure("uncertainty of the pairs (ns)", spread(doubt))
    for key in ("round_trip_ns", "least_ns"):
        figure(f"{key} of the pairs", spread([row[key] for row in rows]))
    link = fit_link(Pairs(at, other - at, doubt.astype(float)))
    x = (at - at[0]) / 1e9
    for degree in (1, 2):
        fitted = np.polynomial.Polynomial.fit(x, (other - at - other[0] + at[0]).astype(float), degree)
        rest = other - at - other[0] + at[0] - fitted(x)
        figure(f"distance of the pairs from a curve of degree {degree} (ns)", spread(rest))
        if degree == 1:
            figure("drift of device 1 against 0 (ppm)", fitted.convert().coef[1] / 1e3)
        else:
            figure("change of its rate (ppm a second)", 2 * fitted.convert().coef[2] / 1e3)
    figure("what the fit takes for its largest change (ppm a second)", link.slew * 1e15)
    worst = 0.0
    for k in range(1, len(at) - 1):
        rest = np.arange(len(at)) != k
        told = along([fit_link(Pairs(at[rest], (other - at)[rest], doubt[rest].astype(float)))], at[k : k + 1])
        error = abs(int(told.middle[0]) - int(other[k] - at[k]))
        worst = max(worst, error)
        assert error <= min(told.uncertainty[0] + doubt[k], FORETOLD_NS)
    figure("a pair less what the others foretell, most (ns)", worst)
    figure("uncertainty of the link at and between the pairs, worst (ns)",
           float(along([link], np.linspace(at[0], at[-1], 5001).astype(np.int64)).uncertainty.max()))  # fmt: skip
    assert behind is not None
    told = along([link], np.array([behind.globaltimer_ns]))
    error = int(told.middle[0]) - (behind.peer_globaltimer_ns - behind.globaltimer_ns)
    figure("a pair behind the recording less what it foretells, and may be off (ns)",
           [error, float(told.uncertainty[0]) + behind.uncertainty_ns])  # fmt: skip
    assert abs(error) <= told.uncertainty[0] + behind.uncertainty_ns
    assert len(at) >= LOAD_S * 0.7
    assert not [p.text for p in trace.problems if "direct comparisons" in p.text]
    assert alignment(trace, figure, "load") <= MOST_UNCERTAIN_NS


# -------------------------------------------------------------------------------------------------------- causality
def test_messages_between_gpus(tmp_path: Path, figure: Figure) -> None:
    """At least 10^5 flags through peer memory, both ways: none is received before it was sent."""
    see_each_other()
    import peer_all_gather

    assert peer_all_gather.see_each_other(2)
    ctas, rounds = 8, 1000
    rings = ctas * clock_kernels.RELAY_WARPS
    flags = [torch.zeros(peer_kernels.LINE * rings, dtype=torch.int32, device=f"cuda:{d}") for d in range(2)]
    tables = [torch.tensor([f.data_ptr() for f in flags], dtype=torch.int64, device=f"cuda:{d}") for d in range(2)]
    zero, blocks = cutlass.Int32(0), cutlass.Int32(ctas)
    with iket.tracing():
        table = peer_kernels.words(tables[0].data_ptr())
        compiled = cute.compile(peer_kernels.peer_relay_host, table, zero, zero, blocks, blocks)

    def start(count: int) -> None:
        for device in range(2):
            with torch.cuda.device(device):
                table = peer_kernels.words(tables[device].data_ptr())
                compiled(table, cutlass.Int32(device), cutlass.Int32(count), blocks, blocks)

    with recording(tmp_path, buffer_bytes=BUFFER, max_events=2 * rounds, fresh=True) as folder:
        start(0)  # memory is taken, and code loaded, before one kernel waits for the other
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        time.sleep(0.05)
        start(rounds)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
    assert all(bool((f[:: peer_kernels.LINE] == rounds).all()) for f in flags), "flags that did not come"
    trace = load(folder)
    assert lossless(trace), trace.problems
    launches = [x for x in trace.launches if x.events]
    assert [x.device for x in sorted(launches, key=lambda x: x.device)] == [0, 1]
    one, other = sorted(launches, key=lambda x: x.device)
    doubt = alignment(trace, figure, "relay") + one.clock_uncertainty_ns + other.clock_uncertainty_ns
    sent = [stamps(trace, x.index, "send")[0] for x in (one, other)]
    received = [stamps(trace, x.index, "recv")[0] for x in (one, other)]
    there, back = (received[1] - sent[0]).ravel(), (received[0] - sent[1]).ravel()
    figure("messages", len(there) + len(back))
    figure("flight from 0 to 1, from 1 to 0 (ns)", [spread(there), spread(back)])
    figure("half of what their least differ by (ns): error of the alignment, were both ways alike",
           (int(there.min()) - int(back.min())) / 2)  # fmt: skip
    figure("uncertainty of a message (ns): stated in all, of the clock maps",
           [doubt, one.clock_uncertainty_ns, other.clock_uncertainty_ns])  # fmt: skip
    figure("received before sent", int((there < 0).sum() + (back < 0).sum()))
    assert len(there) + len(back) >= 100_000
    assert min(there.min(), back.min()) >= -doubt
    assert doubt < 3000


# ---------------------------------------------------------------------------------------------------- one process
def test_the_second_device_is_no_slower_to_trace(tmp_path: Path, figure: Figure) -> None:
    """A kernel compiled once is launched on both; and one compiled on each."""
    arguments = (cutlass.Int64(1_000), cutlass.Int32(4), cutlass.Int32(4))
    compiled = []
    with iket.tracing():
        for device in range(2):
            with torch.cuda.device(device):
                compiled.append(cute.compile(clock_kernels.waits_host, *arguments))
    count = 300
    first, each = [], []
    with recording(tmp_path, fresh=True) as folder:
        for device in range(2):
            with torch.cuda.device(device):
                begun = time.perf_counter()
                compiled[0](*arguments)
                torch.cuda.synchronize()
                first.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.1)
        for which in (0, 0, 1):
            took = []
            for device in range(2):
                with torch.cuda.device(device):
                    begun = time.perf_counter()
                    for _ in range(count):
                        compiled[which * device](*arguments)
                    torch.cuda.synchronize()
                    took.append((time.perf_counter() - begun) * 1e6 / count)
            each.append(took)
    trace = load(folder)
    assert lossless(trace), trace.problems
    lengths = [[x.end_ns - x.start_ns for x in trace.launches if x.device == device] for device in range(2)]
    figure("first launch on device 0, 1 (ms)", first)
    figure("a launch on device 0, 1 (us): again, again, compiled for each", each)
    figure("duration of the kernel on device 0, 1 (ns)", [spread(one) for one in lengths])
    assert [len(one) for one in lengths] == [1 + 3 * count] * 2
    assert {x.device: trace.processes[0].gpu(x.device) for x in trace.launches}.keys() == {0, 1}
    assert each[1][1] < 1.5 * each[1][0]
    assert np.median(lengths[1]) < 1.2 * np.median(lengths[0])


def test_an_all_gather_shows_who_waits_for_whom(tmp_path: Path, figure: Figure) -> None:
    """examples/peer_all_gather.py: right, and what rank 0 waits is how much later rank 1 sends."""
    see_each_other()
    import peer_all_gather

    assert peer_all_gather.see_each_other(2)
    with iket.tracing():
        ranks = peer_all_gather.Ranks(2)
    times, late = 10, 0.002
    with recording(tmp_path, buffer_bytes=BUFFER, fresh=True) as folder:
        ranks.warm_up()
        time.sleep(0.05)
        for _ in range(times):
            ranks.begin()
            ranks.launch(0)
            time.sleep(late)
            ranks.launch(1)
            ranks.synchronize()
            assert ranks.right()
    trace = load(folder)
    assert lossless(trace), trace.problems
    figure("events by name", names(trace))
    doubt = alignment(trace, figure, "all-gather")
    by_device = [[x for x in trace.launches if x.device == device][1:] for device in range(2)]
    assert [len(one) for one in by_device] == [times, times]
    waits = [[each_wait(trace, x.index) for x in one] for one in by_device]
    figure("rank 0 waits for rank 1, rank 1 for rank 0 (us), median", [float(np.median(w)) / 1e3 for w in waits])
    flights = []
    for turn in range(times):
        zero, one = by_device[0][turn], by_device[1][turn]
        allowed = doubt + zero.clock_uncertainty_ns + one.clock_uncertainty_ns
        # The first thread of a block releases its flag when its warp's store has ended.
        stored = ends_of(trace, one.index, "store").reshape(peer_all_gather.TILES, -1)[:, :1]
        seen = ends_of(trace, zero.index, "wait_peer").reshape(peer_all_gather.TILES, -1)
        assert (seen - stored).min() >= -allowed
        flights.append(float((seen - stored).max()))
        for launch in (zero, one):
            assert_adds_up(trace, launch.index)
    figure("a wait ends so long after the other's store (ns), worst of a turn", spread(flights))
    assert np.median(waits[0]) > late * 1e9 / 2
    assert np.median(waits[1]) < late * 1e9 / 4
    assert np.median(flights) < 20_000


def rows_of(trace: Trace, launch: int, name: str) -> np.ndarray:
    """Ranges of a name in a launch, in the order of its warps, one each."""
    r = trace.ranges
    rows: np.ndarray = np.flatnonzero((trace.warps.launch[r.warp] == launch) & (r.name == trace.strings.index(name)))
    return rows


def each_wait(trace: Trace, launch: int) -> float:
    rows = rows_of(trace, launch, "wait_peer")
    return float(np.median(trace.ranges.end_ns[rows] - trace.ranges.start_ns[rows]))


def ends_of(trace: Trace, launch: int, name: str) -> np.ndarray:
    found: np.ndarray = trace.ranges.end_ns[rows_of(trace, launch, name)]
    return found


def assert_adds_up(trace: Trace, launch: int) -> None:
    """Waits, stores and signals lie in the life of their warp, one after the other, and leave little of it."""
    r, w = trace.ranges, trace.warps
    warps = np.flatnonzero(w.launch == launch)
    inside = np.isin(r.warp, warps)
    total = np.bincount(r.warp[inside], weights=(r.end_cycle - r.start_cycle)[inside], minlength=len(w))[warps]
    assert (total > 0).all()
    assert (total <= w.cycles[warps]).all()
    assert (w.cycles[warps] - total).max() < 20_000


# -------------------------------------------------------------------------------------------------------- torchrun
def test_ranks_with_nccl_between_traced_kernels(tmp_path: Path, figure: Figure) -> None:
    """No rank leaves an all-reduce before all have come: its second kernel begins after the first one of every rank."""
    see_each_other()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = profiled(tmp_path / "run", [*launcher, str(PROGRAMS / "nccl_ranks.py")], "--log-level", "debug",
                       postprocess="json")  # fmt: skip
    done = run(command, tmp_path, timeout=120, **NO_MULTICAST)
    assert done.status == 0, done.said
    figure("seconds in all", done.seconds)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((one["rank"], one["right"]) for one in told) == [(0, True), (1, True)]
    manifests = [read_capture(path).manifest for path in find_captures(tmp_path / "run")]
    peers = [row for manifest in manifests for row in manifest.get("peer_clocks", [])]
    words = ("compared", "timers of", "pair with")
    said = [line for line in done.stderr.splitlines() if any(word in line for word in words)]
    figure("what was said of comparisons", said[:6])
    figure("direct pairs of the ranks", len(peers))
    assert peers, done.said
    for key in ("uncertainty_ns", "round_trip_ns", "least_ns"):
        figure(f"{key} of the pairs", spread([row[key] for row in peers]))
    report = run([sys.executable, "-m", "warptrace", "report", str(tmp_path / "run")], tmp_path)
    lines = report.stdout.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("Ranks: 2 on 2 GPUs")), None)
    assert begin is not None, report.said
    figure("the report's part on ranks", lines[begin : begin + 9])
    data = json.loads((tmp_path / "run" / "iket_run.trace.json").read_text())
    facts = data["warptrace"]["alignment"]
    assert len({one["gpu"] for one in facts}) == 2
    figure("pairs with the host, with the peer; uncertainty (ns)",
           [[one["pairs"], one["peerPairs"], one["uncertaintyNs"]] for one in facts])  # fmt: skip
    launches = [launch["warptrace"] for launch in data["launches"]]
    by_pid = [[x for x in launches if x["pid"] == one["pid"]] for one in told]
    assert len({len(one) for one in by_pid}) == 1
    assert len(by_pid[0]) == 2 * 41
    doubt = max(one["uncertaintyNs"] for one in facts) + 2 * max(x["clockUncertaintyNs"] for x in launches)
    margins, skews = [], []
    for turn in range(2, len(by_pid[0]), 2):
        ends = [one[turn]["endTs"] for one in by_pid]
        begins = [one[turn + 1]["startTs"] for one in by_pid]
        margins.append(min(begins) - max(ends))
        skews.append(max(ends) - min(ends))
    figure("from the last rank's first kernel to the first rank's second (ns)", spread(margins))
    figure("skew of the ranks at the all-reduce (us)", [x / 1e3 for x in spread(skews)])
    figure("uncertainty in all (ns)", doubt)
    assert min(margins) >= -doubt
    assert doubt < 10_000
