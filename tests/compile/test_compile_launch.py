"""The launch word on its way: from the stream of a launch operation through the hidden parameter to region headers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from dsl_build import build

import warptrace.cute as iket
from warptrace import wire
from warptrace.decode import decode
from warptrace.emulator.cute import compile_kernel
from warptrace.frontends.cute import dsl, hidden
from warptrace.raw import read_capture
from warptrace.runtime.emulated import EmulatedRecording

WORDS = [0, 1, (1 << 48) - 1, wire.stream_word(0x7F12_3456_7890), wire.captured_word(0x654321, 0xABCDEF)]
FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


@cute.kernel
def marked(n: cutlass.Int32):
    iket.mark("a", n)


@cute.kernel
def diverging(n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("a", n)
    if tidx % 5 == 3:
        iket.mark("b")


@cute.jit
def marked_host(n: cutlass.Int32):
    marked(n).launch(grid=[2, 3, 1], block=[96, 1, 1])


@cute.jit
def diverging_host(n: cutlass.Int32):
    diverging(n).launch(grid=[2, 1, 1], block=[96, 1, 1])


@cute.jit
def three_launches(n: cutlass.Int32, first: cuda.CUstream, second: cuda.CUstream):
    marked(n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=first)
    for _ in range(n):
        marked(n).launch(grid=[1, 1, 1], block=[32, 1, 1], cluster=[1, 1, 1], stream=second)
    marked(n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_each_launch_tells_its_own_stream(frontend, monkeypatch):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    launches: list[tuple[bool, str]] = []
    rewrite = hidden.rewrite_launches

    def look(op):
        if not op.name.startswith("cuda.launch_ex"):
            return
        config, *_, beside, form, _ = (hidden.plain_value(o) for o in op.operands)
        (word,) = (hidden.plain_value(o) for o in beside.owner.operation.operands)
        assert hidden.plain_value(form.owner.operation.operands[0]) == word
        call = word.owner.operation
        control, pointer = (hidden.plain_value(o) for o in call.operands)
        (stream,) = (hidden.plain_value(o) for o in pointer.owner.operation.operands)
        wanted = hidden.plain_value(list(config.owner.operation.operands)[-1])
        assert str(call.attributes["callee"]) == "@warptrace_launch"
        assert str(control.owner.operation.attributes["callee"]) == "@warptrace_control"
        launches.append((wanted == stream, str(stream)))

    def watched(module, records):
        rewrite(module, records)
        hidden.walk(module.operation, look)

    monkeypatch.setattr(hidden, "rewrite_launches", watched)
    streams = cuda.CUstream(0), cuda.CUstream(0)
    built = build(three_launches, cutlass.Int32(3), *streams, using=FRONTENDS[frontend])
    assert [same for same, _ in launches] == [True] * 3
    assert len({stream for _, stream in launches}) == 3
    assert all(entry.params[-5:] == ((".u64", None),) * 5 for entry in built.entries.values())


def test_a_launch_operation_without_a_stream_is_unknown():
    assert hidden._stream(SimpleNamespace(operands=[])) is None


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("host", [marked_host, diverging_host], ids=["wide", "narrow"])
def test_every_region_of_a_launch_holds_its_word(tmp_path: Path, keep, host):
    dsl.keep_newest(keep == "last")
    try:
        with iket.tracing():
            kernel = compile_kernel(host, cutlass.Int32(1))
    finally:
        dsl.keep_newest(False)
    recording = EmulatedRecording(tmp_path / "pid_1", buffer_bytes=64 << 20)
    for number, word in enumerate(WORDS):
        recording.launch(kernel, [number], word=word)
    recording.finish()
    capture = read_capture(tmp_path / "pid_1")
    headers = np.concatenate([batch.headers for batch in capture.batches()])
    assert sorted(wire.launch_words(headers).tolist()) == sorted(np.repeat(WORDS, len(headers) // len(WORDS)).tolist())
    assert set(headers["stride"].tolist()) == {16} and set(headers["warp"].tolist()) == {0, 1, 2}
    trace = decode([capture])
    assert [x.stream for x in trace.launches] == [None, 0, None, 0x7F12_3456_7890, None]
    assert [x.graph for x in trace.launches] == [None, None, ("graph_exec_1", 0), None, ("graph_exec_2", 0)]
    assert trace.problems == ()


@cute.jit
def preferring_host(n: cutlass.Int32):
    marked(n).launch(grid=[16, 1, 1], block=[32, 1, 1], cluster=[4, 1, 1], fallback_cluster=[2, 1, 1])


@cute.jit
def clustered_host(n: cutlass.Int32):
    marked(n).launch(grid=[16, 1, 1], block=[32, 1, 1], cluster=[4, 1, 1])


@pytest.mark.parametrize(("host", "asks"), [(preferring_host, True), (clustered_host, False)], ids=["two", "one"])
def test_warps_ask_for_their_cluster_where_a_launch_may_have_two_sizes(host, asks):
    assert ("%cluster_nctaid" in build(host, cutlass.Int32(3), arch="sm_100a").ptx) == asks
