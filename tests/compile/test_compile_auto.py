"""Automatic ranges as compiled: one for a call that is made of others, none when off."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import auto_kernels
import cutlass
import cutlass.cute as cute
import cutlass.utils
from cutlass import pipeline
from dsl_build import build, tensor

import warptrace
from warptrace import UsageError, registry
from warptrace.frontends.cute import auto, dsl
from warptrace.report.waits import wait_flags
from warptrace.runtime.options import AUTO_DEFAULT, AUTO_GROUPS, RuntimeOptions
from warptrace.wire import EventKind, PayloadType

FRONTENDS = ["default", *(["FrontendNext"] if hasattr(cute, "FrontendNext") else [])]
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def off_again():
    yield
    dsl.instrument(())


def compiled(frontend="default"):
    using = cute.compile if frontend == "default" else cute.compile[cute.FrontendNext]
    return build(auto_kernels.plain_host, tensor(), cutlass.Int32(3), using=using)


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_call_made_of_others_is_one_range(frontend):
    dsl.instrument((*AUTO_DEFAULT, "arrivals"))
    sites = compiled(frontend).record.sites
    pushes = [(s.name, s.payload) for s in sites if s.kind == EventKind.PUSH]
    none, i32 = PayloadType.NONE, PayloadType.I32
    assert pushes == [
        ("stores.producer_acquire", none),
        ("arch.sync_threads", none),
        ("stores.producer_commit", none),
        ("arch.barrier", none),  # of the call that failed: it ends where that did
        ("arch.barrier", i32),
        ("stores.producer_tail", none),
    ]
    lines, first = inspect.getsourcelines(inspect.unwrap(auto_kernels.plain))
    for site in sites:
        assert site.file == auto_kernels.__file__
        assert site.name.rpartition(".")[2] in lines[site.line - first]
    assert sum(s.kind == EventKind.POP for s in sites) == len(pushes)


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (("waits",), {"stores.producer_acquire", "stores.producer_tail"}),
        (("barriers",), {"arch.sync_threads", "arch.barrier"}),
        (("arrivals",), {"stores.producer_commit"}),
        # inside a commit that has no range of its own
        (("copies",), {"arch.cp_async_bulk_commit_group"}),
    ],
)
def test_groups(groups, names):
    dsl.instrument(groups)
    assert {s.name for s in compiled().record.sites if s.kind == EventKind.PUSH} == names


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_pipeline_that_a_library_derived(frontend):
    """The range is at the line that uses it, and called what that calls it."""
    dsl.instrument(AUTO_GROUPS)
    using = cute.compile if frontend == "default" else cute.compile[cute.FrontendNext]
    built = build(auto_kernels.derived_host, tensor(), cutlass.Int32(3), using=using)
    found = [(s.name, s.line) for s in built.record.sites if s.kind == EventKind.PUSH and "." in s.name]
    lines, first = inspect.getsourcelines(inspect.unwrap(auto_kernels.derived))
    wanted = ["tiles.producer_acquire", "tiles.producer_commit"]
    assert list(dict.fromkeys(name for name, _ in found if name.startswith("tiles."))) == wanted
    for name, line in found:
        if name.startswith("tiles."):
            assert name.split("_")[0] in lines[line - first], name
    assert {s.file for s in built.record.sites} == {auto_kernels.__file__}


def test_nested():
    dsl.instrument(("waits", "copies"), nested=True)
    names = [s.name for s in compiled().record.sites if s.kind == EventKind.PUSH]
    assert names == [
        "stores.producer_acquire", "TmaStoreFence.wait", "arch.cp_async_bulk_wait_group",
        "arch.cp_async_bulk_commit_group",  # of the commit, which is in neither group
        "stores.producer_tail", "TmaStoreFence.tail", "arch.cp_async_bulk_wait_group",
    ]  # fmt: skip


def test_names_of_the_users():
    lines, first = inspect.getsourcelines(inspect.unwrap(auto_kernels.plain))
    sync = next(i for i, text in enumerate(lines) if "sync_threads" in text) + first
    names = (
        ("stores.producer_t*", "drain"),
        ("PipelineTmaStore.*", "slot"),
        (f"auto_kernels.py:{sync}", "everyone"),
        ("arch.*", ""),
    )
    dsl.instrument(AUTO_DEFAULT, names=names)
    built = compiled()
    assert [s.name for s in built.record.sites if s.kind == EventKind.PUSH] == ["slot", "everyone", "drain"]


def test_waits_for_tensor_memory():
    dsl.instrument(("waits",))
    built = build(auto_kernels.tensor_memory_host, tensor(), arch="sm_100a")
    assert [s.name for s in built.record.sites if s.kind == EventKind.PUSH] == [
        "arch.fence_view_async_tmem_load", "arch.fence_view_async_tmem_store"
    ]  # fmt: skip
    text = built.ptx
    assert text.count("tcgen05.wait::ld") == text.count("tcgen05.wait::st") == 1


@pytest.mark.parametrize("options", ["", "--generate-line-info"])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_off_means_off(frontend, options):
    """Byte for byte the kernel compiled before anything was wrapped."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, str(HERE / "auto_hashes.py"), frontend, options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    before, untraced, no_group, with_ranges = done.stdout.split()
    assert before == untraced == no_group != with_ranges


def test_names_and_signatures_stay():
    dsl.instrument(AUTO_GROUPS)
    for wrapped in (cute.arch.sync_threads, cute.gemm, pipeline.PipelineTmaAsync.producer_acquire):
        before = wrapped.__wrapped__
        assert inspect.signature(wrapped) == inspect.signature(before)
        assert (wrapped.__name__, wrapped.__module__, wrapped.__doc__) == (
            before.__name__, before.__module__, before.__doc__
        )  # fmt: skip


def test_every_pipeline_class_is_wrapped():
    dsl.instrument(AUTO_GROUPS)
    found = [c for name, c in vars(pipeline).items() if inspect.isclass(c) and name.startswith("Pipeline")]
    methods = [
        (c.__name__, m)
        for c in found
        for m in ("producer_acquire", "producer_commit", "consumer_wait", "consumer_release", "producer_tail")
        if m in vars(c)
    ]
    assert len(methods) >= 20
    for owner, method in methods:
        assert vars(getattr(pipeline, owner))[method].__globals__["__name__"] == "cutlass.warptrace", (owner, method)


TELLING = re.compile(
    "acquire|wait|commit|release|tail|arrive|sync|barrier|clc_query|alloc_tmem|copy|gemm|atom_call|work"
)
"""Names of what may hold a warp up, or hand something on."""
NO_RANGES = {
    "cutlass.pipeline": {
        # made of the pipelines' own methods, after which their ranges are called
        "PipelineProducer.acquire", "PipelineProducer.acquire_and_advance", "PipelineProducer.try_acquire",
        "PipelineProducer.commit", "PipelineProducer.tail", "PipelineConsumer.wait",
        "PipelineConsumer.wait_and_advance", "PipelineConsumer.try_wait", "PipelineConsumer.release",
        # abstract, or made of functions of cute.arch, which have ranges
        "SyncObject.arrive", "SyncObject.wait", "SyncObject.arrive_and_wait", "SyncObject.arrive_and_drop",
        "MbarrierArray.arrive_mbarrier", "MbarrierArray.arrive_cp_async_mbarrier", "MbarrierArray.arrive_tcgen05mma",
        "MbarrierArray.arrive_and_expect_tx", "MbarrierArray.arrive_and_expect_tx_with_dst", "MbarrierArray.try_wait",
        # not implemented, or an instruction that neither waits nor hands on
        "MbarrierArray.arrive_and_drop", "NamedBarrier.arrive_and_drop", "TmaStoreFence.arrive_and_drop",
        "TmaStoreFence.arrive",
        # a look, not a wait: a loop of them would be all there is in a trace
        "MbarrierArray.test_wait",
        # about the object, not the barrier
        "NamedBarrier.get_barrier", "MbarrierArray.get_barrier", "TmaStoreFence.get_barrier", "SyncObject.get_barrier",
        "MbarrierArray.mbarrier_init", "PipelineAsync.consumer_get_barrier", "PipelineAsync.producer_get_barrier",
        "PipelineClcFetchAsync.consumer_get_barrier", "PipelineClcFetchAsync.producer_get_barrier",
        "PipelineOrder.get_barrier_for_current_stage_idx", "PipelineTmaAsync.init_empty_barrier_arrive_signal",
        "alloc_reserved_mbarrier",
    },
    "cutlass.cute.arch": {
        "mbarrier_expect_tx", "mbarrier_init", "mbarrier_init_fence", "mbarrier_test_wait",
        "sync_warp", "match_sync", "vote_all_sync", "vote_any_sync", "vote_ballot_sync", "vote_sync_op",
        "vote_uni_sync", "shuffle_sync", "shuffle_sync_bfly", "shuffle_sync_down", "shuffle_sync_op", "shuffle_sync_up",
        "warp_redux_sync", "fence_view_async_shared", "fence_view_async_tmem_op", "dealloc_tmem",
        "relinquish_tmem_alloc_permit", "get_max_tmem_alloc_cols", "get_min_tmem_alloc_cols",
        "is_tmem_allocation_exclusive",
    },
    "cutlass.cute": {
        "make_copy_atom", "make_cotiled_copy", "make_tiled_copy", "make_tiled_copy_A", "make_tiled_copy_B",
        "make_tiled_copy_C", "make_tiled_copy_C_atom", "make_tiled_copy_D", "make_tiled_copy_S", "make_tiled_copy_tv",
        "copysign",
    },
    "cutlass.cute.nvgpu.warpgroup": set(),
    "cutlass.cute.nvgpu.tcgen05": {
        "get_tmem_copy_properties", "make_s2t_copy", "make_tmem_copy",
    },
}  # fmt: skip
"""What has such a name and no range, on purpose."""


@pytest.mark.parametrize("module", sorted(NO_RANGES))
def test_a_building_block_that_the_dsl_adds_is_noticed(module):
    """Whatever the installed DSL has of such names is in the table of ``--auto``, or named here."""
    found, has_range = set(), set()
    for name, value in vars(importlib.import_module(module)).items():
        if name.startswith("_"):
            continue
        if inspect.isclass(value) and value.__module__.startswith("cutlass.pipeline"):
            found |= {f"{value.__name__}.{m}" for m, f in vars(value).items() if inspect.isfunction(f) and m[0] != "_"}
        elif inspect.isfunction(value) or isinstance(value, functools.partial):
            found.add(name)
    for block in auto.TABLE:
        if block.module == module:
            wanted = block.name.replace("*.", ".")
            has_range |= {name for name in found if name == wanted or (wanted[0] == "." and name.endswith(wanted))}
    telling = {name for name in found if TELLING.search(name.rpartition(".")[2])}
    assert telling - has_range - NO_RANGES[module] == set()


def test_the_report_knows_which_of_them_are_waits():
    for block in auto.TABLE:
        name = f"some_barrier.{block.name.rpartition('.')[2]}"
        if block.group in ("waits", "barriers", "arrivals"):
            assert wait_flags([name]) == (block.group != "arrivals",), block


def test_every_tile_scheduler_is_wrapped():
    dsl.instrument(AUTO_GROUPS)
    steps = ("initial_work_tile_info", "get_current_work", "advance_to_next_work")
    wrapped = [
        (name, step)
        for name, found in vars(cutlass.utils).items()
        for step in steps
        if inspect.isclass(found) and step in vars(found)
    ]
    assert {name for name, _ in wrapped} >= {
        "StaticPersistentTileScheduler", "StaticPersistentGroupTileScheduler", "ClcDynamicPersistentTileScheduler",
    }  # fmt: skip
    for name, step in wrapped:
        assert vars(getattr(cutlass.utils, name))[step].__globals__["__name__"] == "cutlass.warptrace", (name, step)


@pytest.mark.parametrize(("groups", "names"), [(("mma",), 0), (("waits",), 2), ((), 0)])
def test_a_process_recorded_as_a_whole(groups, names, tmp_path):
    """No line of the program names warptrace."""
    code = (
        "from warptrace.runtime import autostart; autostart.start()\n"
        "import cutlass, cutlass.cute as cute, auto_kernels\n"
        "from warptrace import registry\n"
        "g = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (256,), assumed_align=16)\n"
        "cute.compile(auto_kernels.plain_host, g, cutlass.Int32(3), options='--gpu-arch sm_90a')\n"
        "print(len({s.name for r in registry.records() for s in r.sites if s.name}))\n"
    )
    options = RuntimeOptions(str(tmp_path), auto=groups).to_env()
    env = {**os.environ, **options, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{names}\n"), done.stderr


def test_a_session_and_the_next():
    found = []
    for options in ({"auto": True}, {"auto": "waits"}, {}):
        registry._records.clear()
        with warptrace.capture(buffer_size="16M", **options):
            cute.compile(auto_kernels.plain_host, tensor(), cutlass.Int32(3), options="--gpu-arch sm_90a")
        found.append(len({s.name for r in registry.records() for s in r.sites if s.name}))
    assert found == [4, 2, 0]


def test_a_session_that_began_before_the_dsl_was_imported():
    """No line of the program names warptrace.cute."""
    code = (
        "import warptrace, sys\n"
        "from warptrace import registry\n"
        "def build():\n"
        "    import cutlass, cutlass.cute as cute, auto_kernels\n"
        "    g = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (256,), assumed_align=16)\n"
        "    registry._records.clear()\n"
        "    cute.compile(auto_kernels.plain_host, g, cutlass.Int32(3), options='--gpu-arch sm_90a')\n"
        "    return len({s.name for r in registry.records() for s in r.sites if s.name})\n"
        "with warptrace.capture(buffer_size='16M', auto='waits'):\n"
        "    assert 'cutlass' not in sys.modules\n"
        "    print(build())\n"
        "with warptrace.capture(buffer_size='16M'):\n"
        "    print(build())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "2\n0\n"), done.stderr


@pytest.mark.parametrize("auto", ["wait", ["waits", "moves"], ""])
def test_unknown_groups(auto):
    with pytest.raises(UsageError, match="is unknown: choose among waits, barriers, arrivals, copies, mma, scheduler"):
        warptrace.capture(auto=auto)
