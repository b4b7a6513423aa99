"""Several GPUs on one timeline: direct comparison of their timers, messages between their kernels, ranks."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
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
from warptrace import wire
from warptrace.decode.fit import Pairs
from warptrace.decode.peers import along, fit_link, symmetric_uncertainty
from warptrace.raw import find_captures, read_capture
from warptrace.runtime import driver
from warptrace.runtime.calibrate import DeviceClock
from warptrace.runtime.peer_clocks import ROUNDS, WAYS, PeerClock, PeerPair, device_pair
from warptrace.trace import Trace

sys.path.append(str(EXAMPLES))

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU"),
]

MOST_UNCERTAIN_NS = 600
"""Half of what both ways take at least between two H200 (0.47 us), less what a flag takes within one of them (0.1), and
steps of timers: no one can tell how a round trip divides into its two ways."""
FORETOLD_NS = 200
"""What a pair may be off from the line through the others: the noise of comparisons, and what the drift does."""
GOAL_NS = 300
"""Of the uncertainty if both ways of a link are alike, over LOAD_S of load."""
GPUS = torch.cuda.device_count()
SOME_AND_ALL = sorted({2, max(GPUS, 2)})
BUFFER = 256 << 20
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@pytest.fixture(autouse=True)
def first_device() -> Iterator[None]:
    """Tests begin and end on device 0, with contexts on all."""
    for device in reversed(range(GPUS)):
        torch.cuda.set_device(device)
        torch.zeros(1, device="cuda")
    yield
    wait_for_all()
    torch.cuda.set_device(0)


def wait_for_all() -> None:
    for device in range(GPUS):
        torch.cuda.synchronize(device)


@pytest.fixture(scope="module")
def sides() -> list[PeerClock]:
    """Clocks of all devices, apart from any recording."""
    made = []
    for device in range(GPUS):
        with torch.cuda.device(device):
            memory = torch.zeros(wire.ARENA_OFFSET, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            made.append(PeerClock(driver.context(device), memory.data_ptr()))
            made[-1].memory = memory  # type: ignore[attr-defined]  # stays
    return made


@pytest.fixture(scope="module")
def measure(sides: list[PeerClock]) -> Callable[[float], PeerPair | None]:
    see_each_other()
    return device_pair((1, sides[1]), (0, sides[0]))


def see_each_other(count: int = 2) -> None:
    """Skips a test where the first GPUs have no peer memory."""
    for one, other in combinations(range(count), 2):
        if not (torch.cuda.can_device_access_peer(one, other) and torch.cuda.can_device_access_peer(other, one)):
            pytest.skip("these GPUs do not see each other's memory")


def spread(values: Any) -> list[float]:
    """Least, median, most."""
    return [float(f(values)) for f in (np.min, np.median, np.max)]


def alignment(trace: Trace, figure: Figure, name: str) -> dict[int, float]:
    """The uncertainty of each GPU's times against the first's, ns."""
    first, *others = trace.meta["alignment"]
    keys = ("device", "pairs", "peer_pairs", "shift_ns", "uncertainty_ns", "symmetric_uncertainty_ns")
    figure(f"{name}: {', '.join(keys)}", [[one[key] for key in keys] for one in others])
    assert others
    assert min(one["peer_pairs"] for one in others) >= 1
    return {one["device"]: float(one["uncertainty_ns"]) for one in (first, *others)}


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
    figure("both ways together, at least (ns)", spread([pair.flights_ns for pair in good]))
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
    # All ways were played: a pair of CTAs of each.
    assert np.median([pair.rounds for pair in good]) == WAYS * ROUNDS


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


@pytest.mark.skipif(GPUS < 3, reason="needs three GPUs")
def test_all_pairs_of_gpus_agree(sides: list[PeerClock], figure: Figure) -> None:
    """Every GPU with every other: around each three of them the differences add up to nothing but what they state.
    What is left shows ways that differ by link; a GPU that sends faster than it receives towards all others stays
    hidden."""
    see_each_other(GPUS)
    measures = {(i, j): device_pair((i, sides[i]), (j, sides[j])) for i, j in combinations(range(GPUS), 2)}
    found = defaultdict(list)
    for _ in range(20):
        for key, one in measures.items():
            if (pair := one(0.015)) is not None:
                found[key].append(pair)
    assert min(map(len, found.values())) >= 10
    links = {}
    for key, pairs in found.items():
        at, other = (np.array([getattr(x, k) for x in pairs]) for k in ("globaltimer_ns", "peer_globaltimer_ns"))
        links[key] = fit_link(Pairs(at, other - at, np.array([float(x.uncertainty_ns) for x in pairs])))
    figure("uncertainty of each pair (ns)", {str(k): spread([x.uncertainty_ns for x in v]) for k, v in found.items()})
    now = np.array([found[0, 1][10].globaltimer_ns])
    rests = {}
    for i, j, k in combinations(range(GPUS), 3):
        there = now + (along([links[0, i]], now).middle if i else 0)
        by, straight = along([links[i, j], links[j, k]], there), along([links[i, k]], there)
        rests[f"{i}{j}{k}"] = int(by.middle[0] - straight.middle[0])
        assert abs(rests[f"{i}{j}{k}"]) <= by.uncertainty[0] + straight.uncertainty[0]
    figure("around three GPUs (ns)", rests)


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


LOAD_S = 60.0


def test_alignment_holds_under_load(
    tmp_path: Path, measure: Callable[[float], PeerPair | None], figure: Figure
) -> None:
    """All GPUs multiply matrices; every pair of the recording is foretold by the others, and one taken behind it."""
    with iket.tracing():
        arguments = (cutlass.Int64(1), cutlass.Int32(1), cutlass.Int32(4))
        compiled = cute.compile(clock_kernels.waits_host, *arguments)
    size = 8192
    matrices = [torch.randn(size, size, dtype=torch.bfloat16, device=f"cuda:{d}") for d in range(GPUS)]
    outs = [torch.empty_like(m) for m in matrices]
    with recording(tmp_path, buffer_bytes=BUFFER, fresh=True) as folder:
        end = time.monotonic() + LOAD_S
        while time.monotonic() < end:
            for device in range(GPUS):
                with torch.cuda.device(device):
                    for _ in range(20):
                        torch.mm(matrices[device], matrices[device], out=outs[device])
                    compiled(cutlass.Int64(5_000), cutlass.Int32(1), cutlass.Int32(4))
            wait_for_all()
    behind = measure(0.1)
    trace = load(folder)
    figure("launches", len(trace.launches))
    rows = read_capture(folder).manifest["peer_clocks"]
    for device in range(1, GPUS):
        mine = [row for row in rows if row["device"] == device]
        figure(f"device {device}: what its pairs are worth", judged_pairs(mine, behind if device == 1 else None))
    assert not [p.text for p in trace.problems if "direct comparisons" in p.text]
    assert max(alignment(trace, figure, "load").values()) <= MOST_UNCERTAIN_NS
    assert max(one["symmetric_uncertainty_ns"] for one in trace.meta["alignment"]) <= GOAL_NS


def judged_pairs(rows: list[dict[str, Any]], behind: PeerPair | None) -> dict[str, Any]:
    """Asserts that pairs of a device with the first foretell each other, and one taken ``behind`` them. Returns how
    well they do, ns."""
    at, other = (np.array([row[key] for row in rows]) for key in ("globaltimer_ns", "peer_globaltimer_ns"))
    doubt = np.array([float(row["uncertainty_ns"]) for row in rows])
    alike = np.array([symmetric_uncertainty(row) for row in rows])
    facts: dict[str, Any] = {"seconds, pairs": [float(at[-1] - at[0]) / 1e9, len(at)]}
    facts |= {key: spread([row[key] for row in rows]) for key in ("round_trip_ns", "flights_ns", "least_ns")}
    facts |= {"uncertainty": spread(doubt), "if both ways are alike": spread(alike)}
    link = fit_link(Pairs(at, other - at, doubt), alike)
    x = (at - at[0]) / 1e9
    y = (other - at - other[0] + at[0]).astype(float)
    for degree in (1, 2, 3):
        fitted = np.polynomial.Polynomial.fit(x, y, degree)
        facts[f"distance from a curve of degree {degree}: least, median, most, rms"] = [
            *spread(y - fitted(x)), float(np.sqrt(np.mean((y - fitted(x)) ** 2))),
        ]  # fmt: skip
        if degree == 1:
            facts["drift (ppm)"] = fitted.convert().coef[1] / 1e3
    facts["largest change of rate that the fit allows (ppm a second)"] = link.slew * 1e15
    errors = []
    for k in range(1, len(at) - 1):
        rest = np.arange(len(at)) != k
        told = along([fit_link(Pairs(at[rest], (other - at)[rest], doubt[rest]))], at[k : k + 1])
        errors.append(abs(int(told.middle[0]) - int(other[k] - at[k])))
        assert errors[-1] <= min(told.uncertainty[0] + doubt[k], FORETOLD_NS)
    facts["a pair less what the others foretell: median, 95 of 100, most"] = list(np.percentile(errors, (50, 95, 100)))
    times = np.linspace(at[0], at[-1], 5001).astype(np.int64)
    facts["at and between pairs, worst: for certain, if both ways are alike"] = [
        float(along([link], times, symmetric=which).uncertainty.max()) for which in (False, True)
    ]
    assert len(at) >= LOAD_S * 1.2
    if behind is not None:
        told = along([link], np.array([behind.globaltimer_ns]))
        error = int(told.middle[0]) - (behind.peer_globaltimer_ns - behind.globaltimer_ns)
        facts["a pair behind the recording less what is foretold, what that may be off"] = [
            error, float(told.uncertainty[0]) + behind.uncertainty_ns,
        ]  # fmt: skip
        assert abs(error) <= told.uncertainty[0] + behind.uncertainty_ns
    return facts


# -------------------------------------------------------------------------------------------------------- causality
@pytest.mark.parametrize("ends", sorted({(0, 1), (max(GPUS - 2, 0), GPUS - 1)}))
def test_messages_between_gpus(tmp_path: Path, figure: Figure, ends: tuple[int, int]) -> None:
    """At least 10^5 flags through peer memory, both ways: none is received before it was sent. Also between the last
    two of many, which were compared with the first only."""
    see_each_other(GPUS)
    import peer_all_gather

    assert peer_all_gather.see_each_other(GPUS)
    ctas, rounds = 8, 1000
    rings = ctas * clock_kernels.RELAY_WARPS
    flags = [torch.zeros(peer_kernels.LINE * rings, dtype=torch.int32, device=f"cuda:{d}") for d in ends]
    words = [f.data_ptr() for f in flags]
    tables = [torch.tensor(words, dtype=torch.int64, device=f"cuda:{d}") for d in range(GPUS)]
    zero, blocks = cutlass.Int32(0), cutlass.Int32(ctas)
    with iket.tracing():
        table = peer_kernels.words(tables[0].data_ptr())
        compiled = cute.compile(peer_kernels.peer_relay_host, table, zero, zero, blocks, blocks)

    def start(device: int, side: int, count: int) -> None:
        with torch.cuda.device(device):
            table = peer_kernels.words(tables[device].data_ptr())
            compiled(table, cutlass.Int32(side), cutlass.Int32(count), blocks, blocks)

    with recording(tmp_path, buffer_bytes=BUFFER, max_events=2 * rounds, fresh=True) as folder:
        for device in range(GPUS):  # memory is taken, and code loaded, before one kernel waits for the other
            start(device, 0, 0)
        wait_for_all()
        time.sleep(0.05)
        for side, device in enumerate(ends):
            start(device, side, rounds)
        wait_for_all()
    assert all(bool((f[:: peer_kernels.LINE] == rounds).all()) for f in flags), "flags that did not come"
    trace = load(folder)
    assert lossless(trace), trace.problems
    launches = sorted((x for x in trace.launches if x.events), key=lambda x: x.device)
    assert [x.device for x in launches] == list(ends)
    one, other = launches
    doubts = alignment(trace, figure, "relay")
    doubt = doubts[ends[0]] + doubts[ends[1]] + one.clock_uncertainty_ns + other.clock_uncertainty_ns
    sent = [stamps(trace, x.index, "send")[0] for x in (one, other)]
    received = [stamps(trace, x.index, "recv")[0] for x in (one, other)]
    there, back = (received[1] - sent[0]).ravel(), (received[0] - sent[1]).ravel()
    figure("messages", len(there) + len(back))
    figure("flight from the first to the second, and back (ns)", [spread(there), spread(back)])
    figure("half of what their least differ by (ns): 0 where messages and comparisons divide a round trip alike",
           (int(there.min()) - int(back.min())) / 2)  # fmt: skip
    figure("uncertainty of a message (ns): stated in all, of the clock maps",
           [doubt, one.clock_uncertainty_ns, other.clock_uncertainty_ns])  # fmt: skip
    figure("received before sent", int((there < 0).sum() + (back < 0).sum()))
    assert len(there) + len(back) >= 100_000
    assert min(there.min(), back.min()) >= -doubt
    assert doubt < 3000


# ---------------------------------------------------------------------------------------------------- one process
def test_the_second_device_is_no_slower_to_trace(tmp_path: Path, figure: Figure) -> None:
    """A kernel compiled once is launched on all; and one compiled on each."""
    arguments = (cutlass.Int64(1_000), cutlass.Int32(4), cutlass.Int32(4))
    compiled = []
    with iket.tracing():
        for device in range(GPUS):
            with torch.cuda.device(device):
                compiled.append(cute.compile(clock_kernels.waits_host, *arguments))
    count = 300
    first, each = [], []
    with recording(tmp_path, fresh=True) as folder:
        for device in range(GPUS):
            with torch.cuda.device(device):
                begun = time.perf_counter()
                compiled[0](*arguments)
                torch.cuda.synchronize()
                first.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.1)
        for which in (0, 0, 1):
            took = []
            for device in range(GPUS):
                with torch.cuda.device(device):
                    begun = time.perf_counter()
                    for _ in range(count):
                        compiled[which * device](*arguments)
                    torch.cuda.synchronize()
                    took.append((time.perf_counter() - begun) * 1e6 / count)
            each.append(took)
    trace = load(folder)
    assert lossless(trace), trace.problems
    lengths = [[x.end_ns - x.start_ns for x in trace.launches if x.device == device] for device in range(GPUS)]
    figure("first launch on each device (ms)", first)
    figure("a launch on each device (us): again, again, compiled for each", each)
    figure("duration of the kernel on each device (ns)", [spread(one) for one in lengths])
    assert [len(one) for one in lengths] == [1 + 3 * count] * GPUS
    assert {x.device: trace.processes[0].gpu(x.device) for x in trace.launches}.keys() == set(range(GPUS))
    assert max(each[1][1:]) < 1.5 * each[1][0]
    assert max(map(np.median, lengths[1:])) < 1.2 * np.median(lengths[0])


def test_an_illegal_access_on_one_device_ends_all(tmp_path: Path, figure: Figure) -> None:
    """So CUDA has it, traced or not: all contexts of the process are dead then. What was saved before is there, and the
    end tells of each device what is lost."""
    command = profiled(tmp_path / "run", [sys.executable, str(PROGRAMS / "device_dies.py")], "--log-level", "info")
    done = run(command, tmp_path, timeout=120)
    figure("what was said", [line for line in done.stderr.splitlines() if line.startswith("warptrace: ")][:8])
    assert (done.status, "right" in done.stdout) == (1, False), done.said
    assert done.stdout.startswith("died: cuCtxSynchronize failed: an illegal memory access was encountered")
    for device in range(GPUS):
        assert f"device {device}: what was not saved before is lost: " in done.stderr, done.said
    trace = load(tmp_path / "run")
    counts = [sum(x.device == device for x in trace.launches) for device in range(GPUS)]
    lost = sum(p.count for p in trace.problems if p.kind == "lost_launches")
    figure("launches by device, lost", [counts, lost])
    assert min(counts) >= 5
    (path,) = find_captures(tmp_path / "run")
    assert sorted(x["device"] for x in read_capture(path).manifest["undrained"]) == list(range(GPUS))


@pytest.mark.parametrize("world", SOME_AND_ALL)
def test_an_all_gather_shows_who_waits_for_whom(tmp_path: Path, figure: Figure, world: int) -> None:
    """examples/peer_all_gather.py: right, and what others wait for the last rank is how much later it sends."""
    see_each_other(world)
    import peer_all_gather

    assert peer_all_gather.see_each_other(world)
    with iket.tracing():
        ranks = peer_all_gather.Ranks(world)
    times, late, last = 10, 0.002, world - 1
    with recording(tmp_path, buffer_bytes=BUFFER, fresh=True) as folder:
        ranks.warm_up()
        time.sleep(0.05)
        for _ in range(times):
            ranks.begin()
            for rank in range(last):
                ranks.launch(rank)
            time.sleep(late)
            ranks.launch(last)
            ranks.synchronize()
            assert ranks.right()
    trace = load(folder)
    assert lossless(trace), trace.problems
    figure("events by name", names(trace))
    doubts = alignment(trace, figure, "all-gather")
    by_rank = [[x for x in trace.launches if x.device == device][1:] for device in range(world)]
    assert [len(one) for one in by_rank] == [times] * world
    for_last = [float(np.median([waits_for(trace, x.index, last) for x in one])) for one in by_rank[:last]]
    for_first = float(np.median([waits_for(trace, x.index, 0) for x in by_rank[last]]))
    figure("ranks wait for the last one, it for the first (us), medians",
           [[w / 1e3 for w in for_last], for_first / 1e3])  # fmt: skip
    flights = []
    for turn in range(times):
        sender = by_rank[last][turn]
        for rank in range(last):
            launch = by_rank[rank][turn]
            allowed = doubts[rank] + doubts[last] + launch.clock_uncertainty_ns + sender.clock_uncertainty_ns
            # The first thread of a block releases its flag when its warp's store has ended.
            stored = ends_of(trace, sender.index, "store", rank).reshape(peer_all_gather.TILES, -1)[:, :1]
            seen = ends_of(trace, launch.index, "wait_peer", last).reshape(peer_all_gather.TILES, -1)
            assert (seen - stored).min() >= -allowed
            flights.append(float((seen - stored).max()))
        for rank in range(world):
            assert_adds_up(trace, by_rank[rank][turn].index)
    figure("a wait ends so long after the last rank's store (ns), worst of a turn", spread(flights))
    assert min(for_last) > late * 1e9 / 2
    assert for_first < late * 1e9 / 4
    assert np.median(flights) < 20_000


def rows_of(trace: Trace, launch: int, name: str, peer: int) -> np.ndarray:
    """Ranges of a name with a peer as payload in a launch, in the order of its warps, one each."""
    r = trace.ranges
    mine = (trace.warps.launch[r.warp] == launch) & (r.name == trace.strings.index(name)) & (r.start_bits == peer)
    rows: np.ndarray = np.flatnonzero(mine)
    return rows


def waits_for(trace: Trace, launch: int, peer: int) -> float:
    rows = rows_of(trace, launch, "wait_peer", peer)
    return float(np.median(trace.ranges.end_ns[rows] - trace.ranges.start_ns[rows]))


def ends_of(trace: Trace, launch: int, name: str, peer: int) -> np.ndarray:
    found: np.ndarray = trace.ranges.end_ns[rows_of(trace, launch, name, peer)]
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
    """No rank leaves an all-reduce before all have come: its second kernel begins after the first one of every rank. In
    the all-gathers behind it the others wait for the last rank, and none sees its tile before it was stored."""
    see_each_other(GPUS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(GPUS)]
    command = profiled(tmp_path / "run", [*launcher, str(PROGRAMS / "nccl_ranks.py")], "--log-level", "debug",
                       postprocess="json")  # fmt: skip
    done = run(command, tmp_path, timeout=120, **NO_MULTICAST)
    assert done.status == 0, done.said
    figure("seconds in all", done.seconds)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((one["rank"], one["right"]) for one in told) == [(rank, True) for rank in range(GPUS)]
    manifests = [read_capture(path).manifest for path in find_captures(tmp_path / "run")]
    peers = [row for manifest in manifests for row in manifest.get("peer_clocks", [])]
    words = ("compared", "timers of", "pair with")
    said = [line for line in done.stderr.splitlines() if any(word in line for word in words)]
    figure("what was said of comparisons", said[:6])
    figure("direct pairs of the ranks", len(peers))
    assert peers, done.said
    for key in ("uncertainty_ns", "round_trip_ns", "flights_ns", "least_ns"):
        figure(f"{key} of the pairs", spread([row[key] for row in peers]))
    assert sum(bool(manifest.get("peer_clocks")) for manifest in manifests) == GPUS - 1  # all but the hub
    report = run([sys.executable, "-m", "warptrace", "report", str(tmp_path / "run")], tmp_path)
    lines = report.stdout.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith(f"Ranks: {GPUS} on {GPUS} GPUs")), None)
    assert begin is not None, report.said
    figure("the report's part on ranks", lines[begin : begin + 8 + GPUS])
    data = json.loads((tmp_path / "run" / "iket_run.trace.json").read_text())
    facts = data["warptrace"]["alignment"]
    assert len({one["gpu"] for one in facts}) == GPUS
    keys = ("pairs", "peerPairs", "uncertaintyNs", "symmetricUncertaintyNs")
    figure(f"each rank: {', '.join(keys)}", [[one[key] for key in keys] for one in facts])
    launches = [launch["warptrace"] for launch in data["launches"]]
    reduced = [x for x in launches if "all_gather" not in x["kernel"]]
    by_pid = [[x for x in reduced if x["pid"] == one["pid"]] for one in told]
    assert len({len(one) for one in by_pid}) == 1
    assert len(by_pid[0]) == 2 * 41
    doubt = sum(sorted(one["uncertaintyNs"] for one in facts)[-2:]) + 2 * max(x["clockUncertaintyNs"] for x in launches)
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
    judge_gathers(load(tmp_path / "run"), figure)


def judge_gathers(trace: Trace, figure: Figure) -> None:
    """All-gathers of ranks in processes of their own, the last one late."""
    import peer_all_gather

    doubts = {one["process"]: float(one["uncertainty_ns"]) for one in trace.meta["alignment"]}
    by_rank: dict[int, list[Any]] = defaultdict(list)
    for launch in trace.launches:
        if "all_gather" in launch.kernel:
            by_rank[trace.processes[launch.process].rank].append(launch)
    assert sorted(by_rank) == list(range(GPUS))
    *others, last = (by_rank[rank][1:] for rank in range(GPUS))
    assert {len(one) for one in (*others, last)} == {5}
    flights, waits = [], []
    for rank, mine in enumerate(others):
        waits.append(float(np.median([waits_for(trace, x.index, GPUS - 1) for x in mine])))
        for launch, sender in zip(mine, last, strict=True):
            stored = ends_of(trace, sender.index, "store", rank).reshape(peer_all_gather.TILES, -1)[:, :1]
            seen = ends_of(trace, launch.index, "wait_peer", GPUS - 1).reshape(peer_all_gather.TILES, -1)
            allowed = doubts[launch.process] + doubts[sender.process]
            allowed += launch.clock_uncertainty_ns + sender.clock_uncertainty_ns
            assert (seen - stored).min() >= -allowed
            flights.append(float((seen - stored).max()))
            assert_adds_up(trace, launch.index)
    figure("processes: what each waits for the last rank (us), median", [x / 1e3 for x in waits])
    figure("processes: a wait ends so long after the last rank's store (ns), worst of a turn", spread(flights))
    assert min(waits) > 1_000_000
    assert np.median(flights) < 20_000
