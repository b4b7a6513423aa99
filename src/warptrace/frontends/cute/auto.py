"""Ranges around the DSL's own building blocks, in kernels whose source says nothing of events.

The public functions and methods of the table are wrapped once, when groups are first asked for; what a wrapper does is
decided anew for each kernel that is traced.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ...runtime.log import log
from . import events
from .payload import supported
from .wrapping import Around, Call, rebind, wrapped

EVERY_CLASS = "*"


@dataclass(frozen=True)
class Block:
    """What is wrapped: ``name``, a function of ``module``, ``Class.method`` of one of its classes, or ``*.method`` of
    every class there that defines it. ``payload``: the parameter, or its attribute, whose value the range carries."""

    group: str
    module: str
    name: str
    payload: str = ""


PIPELINE, ARCH, UTILS = "cutlass.pipeline", "cutlass.cute.arch", "cutlass.utils"
WARPGROUP, TCGEN05 = "cutlass.cute.nvgpu.warpgroup", "cutlass.cute.nvgpu.tcgen05"

TABLE = (
    Block("waits", PIPELINE, "*.producer_acquire", "state.index"),
    Block("waits", PIPELINE, "*.producer_tail", "state.index"),
    Block("waits", PIPELINE, "*.consumer_wait", "state.index"),
    Block("waits", PIPELINE, "PipelineOrder.wait"),
    Block("waits", PIPELINE, "MbarrierArray.wait", "index"),
    Block("waits", PIPELINE, "MbarrierArray.arrive_and_wait", "index"),
    Block("waits", PIPELINE, "TmaStoreFence.wait"),
    Block("waits", PIPELINE, "TmaStoreFence.arrive_and_wait"),
    Block("waits", PIPELINE, "TmaStoreFence.tail"),
    Block("waits", ARCH, "mbarrier_wait"),
    Block("waits", ARCH, "mbarrier_try_wait"),
    Block("waits", ARCH, "mbarrier_conditional_try_wait"),
    Block("waits", ARCH, "cp_async_wait_group", "n"),
    Block("waits", ARCH, "cp_async_bulk_wait_group", "group"),
    Block("waits", ARCH, "griddepcontrol_wait"),
    Block("waits", WARPGROUP, "wait_group", "group"),
    Block("barriers", PIPELINE, "*.producer_commit", "state.index"),
    Block("barriers", PIPELINE, "*.consumer_release", "state.index"),
    Block("barriers", PIPELINE, "PipelineOrder.arrive"),
    Block("barriers", PIPELINE, "NamedBarrier.arrive", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.arrive_unaligned", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.wait", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.wait_unaligned", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.arrive_and_wait", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.sync", "self.barrier_id"),
    Block("barriers", PIPELINE, "sync", "barrier_id"),
    Block("barriers", PIPELINE, "arrive", "barrier_id"),
    Block("barriers", PIPELINE, "arrive_unaligned", "barrier_id"),
    Block("barriers", PIPELINE, "wait_unaligned", "barrier_id"),
    Block("barriers", PIPELINE, "arrive_and_wait", "barrier_id"),
    Block("barriers", PIPELINE, "agent_sync"),
    Block("barriers", PIPELINE, "pipeline_init_arrive"),
    Block("barriers", PIPELINE, "pipeline_init_wait"),
    Block("barriers", ARCH, "sync_threads"),
    Block("barriers", ARCH, "barrier", "barrier_id"),
    Block("barriers", ARCH, "barrier_arrive", "barrier_id"),
    Block("barriers", ARCH, "cluster_arrive"),
    Block("barriers", ARCH, "cluster_arrive_relaxed"),
    Block("barriers", ARCH, "cluster_wait"),
    Block("copies", "cutlass.cute", "copy"),
    Block("copies", "cutlass.cute", "autovec_copy"),
    Block("copies", ARCH, "cp_async_commit_group"),
    Block("copies", ARCH, "cp_async_bulk_commit_group"),
    Block("mma", "cutlass.cute", "gemm"),
    Block("mma", WARPGROUP, "fence"),
    Block("mma", WARPGROUP, "commit_group"),
    Block("mma", TCGEN05, "commit"),
    Block("scheduler", UTILS, "*.initial_work_tile_info"),
    Block("scheduler", UTILS, "*.get_current_work"),
    Block("scheduler", UTILS, "*.advance_to_next_work"),
)

_groups: frozenset[str] = frozenset()
_wrapped = False
_inside: ContextVar[bool] = ContextVar("warptrace_inside_block", default=False)


def instrument(groups: tuple[str, ...]) -> None:
    """The groups whose blocks emit ranges in kernels traced from now on. What this DSL lacks is passed over."""
    global _groups, _wrapped
    _groups = frozenset(groups)
    if groups and not _wrapped:
        _wrapped = True
        _wrap()


def _wrap() -> None:
    functions = []
    for block in TABLE:
        try:
            module = importlib.import_module(block.module)
        except Exception as e:
            log("debug", f"no ranges around {block.module}.{block.name}: {type(e).__name__}: {e}")
            continue
        owner, _, name = block.name.rpartition(".")
        if not owner:
            original = vars(module).get(name)
            if inspect.isfunction(original):
                functions.append((original, wrapped(original, _around(block, original))))
        for found in _classes(module, owner):
            original = vars(found).get(name)
            if inspect.isfunction(original):
                setattr(found, name, wrapped(original, _around(block, original)))
    rebind(functions)


def _classes(module: Any, name: str) -> list[type]:
    if name == EVERY_CLASS:
        return list({found for found in vars(module).values() if inspect.isclass(found)})
    found = vars(module).get(name)
    return [found] if inspect.isclass(found) else []


def _around(block: Block, original: Callable[..., Any]) -> Around:
    signature = inspect.signature(original)
    name = _namer(block)

    @contextmanager
    def around(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Call]:
        if block.group not in _groups or _inside.get() or not events.recording():
            yield Call(args, kwargs)
            return
        events.range_push(name(args), _payload(block, signature, args, kwargs))
        mark = _inside.set(True)  # what it is made of is not told
        try:
            yield Call(args, kwargs)
        except BaseException:
            with suppress(Exception):  # the caller may know another way
                events.range_pop()
            raise
        else:
            events.range_pop()
        finally:
            _inside.reset(mark)

    return around


def _namer(block: Block) -> Callable[[tuple[Any, ...]], str]:
    """A method's name comes with the class of its object, a function's with the last part of its module."""
    owner, _, method = block.name.rpartition(".")
    if owner:
        return lambda args: f"{type(args[0]).__name__}.{method}"
    known = block.module.rpartition(".")[2]
    return lambda args: f"{known}.{method}"


def _payload(block: Block, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value that the block's range carries; None where the call gives none, or none that a payload can be."""
    parameter, _, attribute = block.payload.partition(".")
    try:
        value = signature.bind(*args, **kwargs).arguments.get(parameter)
        value = getattr(value, attribute, None) if attribute else value
    except TypeError:  # the original says what is wrong with the call
        return None
    return value if supported(value) else None
