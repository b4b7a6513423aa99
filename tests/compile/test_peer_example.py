"""examples/peer_all_gather.py on the emulator: all ranks in one launch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from warptrace.decode import decode
from warptrace.raw import read_capture

pytest.importorskip("cutlass")
pytestmark = pytest.mark.dsl

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

WORLD = 3


def test_every_rank_gets_all_shards_and_waits_for_each_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cutlass
    import peer_all_gather as example

    from warptrace.cute import tracing
    from warptrace.emulator.cute import compile_kernel
    from warptrace.runtime.emulated import EmulatedRecording

    monkeypatch.setattr(example, "TILES", 2)
    monkeypatch.setattr(example, "TILE", 256)
    number = cutlass.Int32(0)
    with tracing():
        kernel = compile_kernel(example.gather, example.pointer(0), number, number, number, WORLD)
    recording = EmulatedRecording(tmp_path)
    device = recording.device
    shards = np.random.default_rng(1).integers(1, 1 << 30, (WORLD, 512)).astype(np.int32)
    outs = [device.alloc(np.where(np.arange(WORLD)[:, None] == rank, shards, 0)) for rank in range(WORLD)]
    flags = [device.zeros((WORLD, 2), np.int32) for _ in range(WORLD)]
    table = device.alloc(np.array([array.address for array in (*outs, *flags)], np.int64))
    recording.launch(kernel, [table, 0, 1], grid=2 * WORLD)
    recording.finish()
    for out in outs:
        assert np.array_equal(out.read().reshape(WORLD, -1), shards)
    trace = decode([read_capture(tmp_path)])
    assert trace.problems == ()
    r = trace.ranges
    ranks = trace.warps.cta[r.warp, 0] // 2
    for name in ("store", "signal", "wait_peer"):
        rows = r.name == trace.strings.index(name)
        # Every rank's 2 blocks of 4 warps have one of each for each peer.
        for rank in range(WORLD):
            peers, counts = np.unique(r.start_bits[rows & (ranks == rank)], return_counts=True)
            assert dict(zip(peers.tolist(), counts.tolist(), strict=True)) == {
                peer: 8 for peer in range(WORLD) if peer != rank
            }
