"""Streams and graphs of launches, from the launch words that their regions hold."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from fractions import Fraction
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.decode import decode
from warptrace.export.iket_json import write_iket_json
from warptrace.raw import read_capture
from warptrace.raw.dump import dump
from warptrace.trace import Trace

STREAM = 0x7F12_3456_7890


class Program:
    """Launches of one kernel of two warps, one after the other, a us apart."""

    def __init__(self) -> None:
        self.kernel = FakeKernel("k")
        self.kernel.mark("m")
        self.device = FakeDevice(rates={0: Fraction(1), 1: Fraction(1)}, bank_bytes=1 << 18)
        self._now = 0

    def launch(self, word: int, grid_id: int | None = None, *, warps: tuple[int, ...] = (0, 1), room: int = 0) -> None:
        """``room``: a size that no bank has, so that the warps are lost."""
        some = []
        for number in warps:
            warp = FakeWarp(warp=number, sm=1 if room else 0, start_ns=self._now + 32 * number).exit(640)
            warp.event(1, 10)
            some.append(warp)
        self._now += 1000
        size = {"main_bytes": room} if room else {"main_bytes": 128}
        self.device.launch(self.kernel, some, block=(64, 1, 1), grid_id=grid_id, word=word, **size)

    def capture(self, folder: Path) -> Path:
        return write_capture(folder / "capture", [self.device], [self.kernel])

    def trace(self, folder: Path) -> Trace:
        return decode([read_capture(self.capture(folder))])


def test_streams(tmp_path: Path) -> None:
    program = Program()
    for handle in (None, 0, 1, 2, STREAM, (1 << 47) - 2):
        program.launch(0 if handle is None else wire.stream_word(handle))
    trace = program.trace(tmp_path)
    assert trace.problems == ()
    assert [x.stream for x in trace.launches] == [None, 0, 1, 2, STREAM, (1 << 47) - 2]
    assert [x.stream_name for x in trace.launches] == [
        "", "default", "legacy default", "per-thread default", "0x7f1234567890", "0x7ffffffffffe",
    ]  # fmt: skip
    assert all(x.graph is None for x in trace.launches)


def test_regions_that_do_not_agree_leave_the_stream_unknown(tmp_path: Path) -> None:
    program = Program()
    program.launch(wire.stream_word(16), 7, warps=(0,))
    program.launch(wire.stream_word(32), 7, warps=(1,))
    program.launch(wire.stream_word(48), 8)
    assert [(x.warps_recorded, x.stream) for x in program.trace(tmp_path).launches] == [(2, None), (2, 48)]


def test_a_replayed_launch_has_no_stream(tmp_path: Path) -> None:
    """A word without a capture, of a node that was not captured: only its returns tell that it is a graph's."""
    program = Program()
    for _ in range(2):
        program.launch(wire.stream_word(16), 7)
    assert [(x.graph, x.stream) for x in program.trace(tmp_path).launches] == [
        (("graph_exec_1", 0), None),
        (("graph_exec_1", 1), None),
    ]


def test_a_graph_that_ran_once(tmp_path: Path) -> None:
    program = Program()
    program.launch(wire.captured_word(3, 1), 7)
    program.launch(wire.captured_word(3, 2), 8)
    program.launch(wire.stream_word(0), 9)
    program.launch(wire.LAUNCH_CAPTURED, 10)
    found = [(x.graph, x.stream) for x in program.trace(tmp_path).launches]
    assert found == [(("graph_exec_1", 0), None)] * 2 + [(None, 0), (("graph_exec_2", 0), None)]


def test_each_replay_of_a_graph_of_several_nodes_is_one_entry(tmp_path: Path) -> None:
    """Two graphs of two and three nodes, whose replays alternate, and launches between them."""
    program = Program()
    grids = {1: (40, 41), 2: (30, 33, 35)}
    for capture in (1, 2, 2, 1, 2, 1):
        for node, grid in enumerate(grids[capture], 1):
            program.launch(wire.captured_word(capture, node), grid)
        program.launch(wire.stream_word(STREAM))
    trace = program.trace(tmp_path)
    assert trace.problems == ()
    write_iket_json(trace, tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text())
    assert {key: [x["gridId"] for x in launches] for key, launches in data["graphLaunches"].items()} == {
        **{f"graph_exec_1:{k}": [30, 33, 35] for k in range(3)},
        **{f"graph_exec_2:{k}": [40, 41] for k in range(3)},
    }
    assert {(x["warptrace"]["stream"], x["warptrace"]["streamName"]) for x in data["launches"]} == {
        (STREAM, "0x7f1234567890")
    }
    assert len(data["launches"]) == 6
    nodes = [x["warptrace"] for launches in data["graphLaunches"].values() for x in launches]
    assert {(x["stream"], x["streamName"]) for x in nodes} == {(None, None)}


def test_a_node_that_left_nothing_in_a_replay(tmp_path: Path) -> None:
    """Its warps found no room in the second of three replays, of which the other node was recorded."""
    program = Program()
    for replay in range(3):
        for node, grid in ((1, 5), (2, 6)):
            program.launch(wire.captured_word(1, node), grid, room=1 << 19 if (replay, node) == (1, 2) else 0)
    trace = program.trace(tmp_path)
    assert [(x.grid_id, x.graph, x.warps_recorded, x.lost_warps) for x in trace.launches] == [
        (grid, ("graph_exec_1", replay), 0 if (replay, grid) == (1, 6) else 2, 2 if (replay, grid) == (1, 6) else 0)
        for replay in range(3)
        for grid in (5, 6)
    ]


def test_two_executable_graphs_of_one_capture(tmp_path: Path) -> None:
    program = Program()
    for first in (10, 20, 10, 20, 20):
        program.launch(wire.captured_word(1, 1), first)
        program.launch(wire.captured_word(1, 2), first + 1)
    found = [(x.grid_id, x.graph) for x in program.trace(tmp_path).launches]
    assert found == [
        (grid, (name, replay))
        for first, name, replay in (
            (10, "graph_exec_1", 0), (20, "graph_exec_2", 0), (10, "graph_exec_1", 1), (20, "graph_exec_2", 1),
            (20, "graph_exec_2", 2),
        )
        for grid in (first, first + 1)
    ]  # fmt: skip


@pytest.mark.parametrize("grids", [((10, 11), (20,)), ((10, 21), (11, 20))], ids=["a node is missing", "interleaved"])
def test_copies_that_cannot_be_told_apart_are_graphs_of_a_node(
    tmp_path: Path, grids: tuple[tuple[int, ...], ...]
) -> None:
    program = Program()
    for copy in grids:
        for node, grid in enumerate(copy, 1):
            program.launch(wire.captured_word(1, node), grid)
    launches = program.trace(tmp_path).launches
    assert len({x.graph for x in launches}) == len(launches) == sum(map(len, grids))


def test_what_a_killed_process_launched_is_counted_by_node(tmp_path: Path) -> None:
    """Host code counted six: three plain ones, of which two are here, and three nodes, of which two are, one as two
    copies with replays."""
    program = Program()
    for grid in (10, 20, 20):
        program.launch(wire.captured_word(1, 1), grid)
        program.launch(wire.captured_word(1, 2), grid + 1)
    program.launch(wire.stream_word(0))
    program.launch(wire.stream_word(STREAM))
    capture = read_capture(program.capture(tmp_path))
    manifest = {**capture.manifest, "state": "running", "launches": {f"{program.kernel.id:016x}": 6}}
    trace = decode([replace(capture, manifest=manifest)])
    lost = [(p.count, p.text) for p in trace.problems if p.kind == "lost_launches"]
    assert lost == [(2, "2 of 6 launches of k by process 4242 were not saved")]


def test_dump_says_it(tmp_path: Path) -> None:
    program = Program()
    for word in (0, wire.stream_word(0), wire.stream_word(STREAM), wire.captured_word(2, 3), wire.LAUNCH_CAPTURED):
        program.launch(word, warps=(0,))
    out = StringIO()
    dump(program.capture(tmp_path), out)
    told = [line.split(" launch ")[1].split(" cta ")[0] for line in out.getvalue().splitlines() if " launch " in line]
    assert told == [
        "unknown", "stream 0x0", "stream 0x7f1234567890", "capture 2 node 3", "capture unknown node unknown",
    ]  # fmt: skip


@given(st.integers(0, (1 << 48) - 1))
def test_a_word_survives_the_header(word: int) -> None:
    headers = np.zeros(2, wire.REGION_DTYPE)
    headers["sm"], headers["stride"], headers["warp"] = 0xFFFF, 16, 31
    headers["launch_low"], headers["launch_middle"], headers["launch_high"] = (
        word & 0xFFFF, word >> 16 & 0xFFFF, word >> 32,
    )  # fmt: skip
    assert wire.launch_words(headers).tolist() == [word, word]
    assert headers["sm"].tolist() == [0xFFFF] * 2 and headers["stride"].tolist() == [16] * 2


_STEPS = st.lists(st.one_of(st.integers(0, 2), st.sampled_from([None, 0, 1, STREAM])), max_size=12)


@settings(max_examples=40, deadline=None)
@given(nodes=st.lists(st.integers(1, 3), min_size=3, max_size=3), steps=_STEPS)
def test_any_order_of_replays_and_launches(nodes: list[int], steps: list[int | None]) -> None:
    """Of graphs with so many nodes, and into streams: each launch is where it was, each replay an entry."""
    program = Program()
    grids, grid = {}, 0
    for graph, count in enumerate(nodes):
        grids[graph] = list(range(grid, grid + count))
        grid += count
    program.device.next_grid_id = 100
    wanted: list[tuple[int, int] | tuple[str, int | None]] = []
    replays = dict.fromkeys(grids, 0)
    for number, step in enumerate(steps):
        if step is not None and number % 2 and step in grids:
            for node, one in enumerate(grids[step], 1):
                program.launch(wire.captured_word(step + 1, node), one)
                wanted.append((step, replays[step]))
            replays[step] += 1
        else:
            program.launch(0 if step is None else wire.stream_word(step))
            wanted.append(("stream", step))
    with tempfile.TemporaryDirectory() as folder:
        trace = program.trace(Path(folder))
    shown = sorted(graph for graph, count in replays.items() if count)
    names = {f"graph_exec_{place}": graph for place, graph in enumerate(shown, 1)}
    got = [("stream", x.stream) if x.graph is None else (names[x.graph[0]], x.graph[1]) for x in trace.launches]
    assert got == wanted
    assert trace.problems == ()
