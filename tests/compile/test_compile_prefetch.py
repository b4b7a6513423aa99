"""Loops that the compiler software-pipelines (``prefetch_stages``): a TMA ring filled and drained by one loop."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync
from dsl_build import build
from emulated import run

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # older DSLs
    from cutlass.utils import SmemAllocator

import warptrace.cute as iket
from warptrace.wire import EventKind

TILE = 64
STAGES = 4
TILES = 16


@cute.kernel
def prefetching(tma: cute.CopyAtom, a: cute.Tensor, out: cute.Tensor, layout: cute.Layout):
    tidx, _, _ = cute.arch.thread_idx()
    smem = SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, 2 * STAGES)
    sa = smem.allocate_tensor(cutlass.Float16, layout, 128)
    ring = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        tx_count=TILE * TILE * 2,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    tiles = cute.local_tile(a, (TILE, TILE), (0, None))
    dst, src = cpasync.tma_partition(
        tma, 0, cute.make_layout(1), cute.group_modes(sa, 0, 2), cute.group_modes(tiles, 0, 2)
    )
    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
    drain = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    total = cutlass.Float32(0)
    with iket.range("loop"):
        for k in cutlass.range(cute.size(a, mode=[1]) // TILE, unroll=1, prefetch_stages=STAGES - 1):
            iket.range_push("acquire", k)
            ring.producer_acquire(fill)
            iket.range_pop()
            full = ring.producer_get_barrier(fill)
            iket.mark("twin a")
            iket.mark("twin b")
            iket.mark("load")
            cute.copy(tma, src[None, k], dst[None, fill.index], tma_bar_ptr=full)
            ring.producer_commit(fill)
            fill.advance()
            iket.range_push("wait")
            ring.consumer_wait(drain)
            iket.switch("add")
            total += sa[tidx, 0, drain.index].to(cutlass.Float32)
            iket.range_pop()
            ring.consumer_release(drain)
            drain.advance()
            if k > 1:
                iket.mark("late a")
                iket.mark("late b")
    out[tidx] = total


@cute.jit
def host(a: cute.Tensor, out: cute.Tensor):
    layout = cute.make_layout((TILE, TILE, STAGES), stride=(TILE, 1, TILE * TILE))
    tma, tensor = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), a, cute.select(layout, mode=[0, 1]), (TILE, TILE)
    )
    prefetching(tma, tensor, out, layout).launch(grid=[1, 1, 1], block=[32, 1, 1], cluster=[1, 1, 1])


def arguments():
    shape = (TILE, TILES * TILE)
    a = cute.runtime.make_fake_compact_tensor(cutlass.Float16, shape, stride_order=(1, 0), assumed_align=16)
    out = cute.runtime.make_fake_compact_tensor(cutlass.Float32, (32,), assumed_align=16)
    return a, out


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_events_in_a_prefetch_loop(arch):
    off = build(host, *arguments(), on=False, arch=arch)
    assert off.ptx.count("cp.async.bulk.tensor") == 2, "the untraced loop is not software-pipelined"
    on = build(host, *arguments(), arch=arch)
    assert on.ptx.count("cp.async.bulk.tensor") == 2
    stored = on.stored()
    assert set(stored) == set(range(1, len(on.record.sites) + 1))
    loaded = on.sites(EventKind.MARK, "load")[0].id
    assert stored.count(loaded) == 2, "the mark beside the copy is to be cloned into the prologue with it"


def test_events_in_a_prefetch_loop_are_not_grouped():
    on = build(host, *arguments())
    in_loop = {s.id for s in on.record.sites if s.name in ("acquire", "twin a", "twin b", "load", "wait", "add")}
    groups = on.entry.groups
    assert len(in_loop) == 6
    assert {g[0] for g in groups if set(g) & in_loop} == in_loop
    assert all(len(g) == 1 for g in groups if set(g) & in_loop)
    # a block inside it is not parted by the pipelining: it is moved whole
    late = [s.id for s in on.record.sites if s.name.startswith("late")]
    assert late in groups


def test_the_trace_shows_the_pipelined_order():
    """The first loads run ahead in a prologue; after that the loads of tile k + 3 stand beside the use of tile k."""
    built = build(host, *arguments())
    a = np.tile(np.arange(TILE, dtype=np.float16)[:, None], (1, TILES * TILE))
    out = []

    def tensor_map(device):
        return device.tensor_map(device.alloc(a), "f16", [TILES * TILE, TILE], [TILES * TILE * 2], [TILE, TILE])

    def result(device):
        out.append(device.zeros(32))
        return out[0].address.to_bytes(8, "little")

    (warp,), device = run(built, [tensor_map, result], smem=STAGES * TILE * TILE * 2 + 1024, main=8192)
    expected = ["loop"]
    for step in range(TILES + STAGES - 1):
        if step < TILES:
            expected += [f"acquire={step}", "POP", "twin a", "twin b", "load"]
        if step >= STAGES - 1:
            expected += ["wait", "add", "POP"]
            expected += ["late a", "late b"] if step - (STAGES - 1) > 1 else []
    shown = [(r.name or r.kind.name) + ("" if r.payload is None else f"={r.payload}") for r in warp.records]
    assert shown == [*expected, "POP"]
    assert warp.advance == len(shown)
    # and the kernel still computes what it is to compute
    assert device.read(out[0]).tolist() == [float(TILES * lane) for lane in range(32)]
