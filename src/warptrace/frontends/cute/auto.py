"""Ranges around the DSL's own building blocks, in kernels whose source says nothing of events.

The public functions and methods of the table are wrapped once, when groups are first asked for; what a wrapper does is
decided anew for each kernel that is traced.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from types import FrameType
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
    Block("waits", PIPELINE, "*.producer_try_acquire", "state.index"),
    Block("waits", PIPELINE, "*.consumer_try_wait", "state.index"),
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
    Block("waits", ARCH, "alloc_tmem"),  # until another CTA of the SM gives some back
    Block("waits", ARCH, "fence_view_async_tmem_load"),
    Block("waits", ARCH, "fence_view_async_tmem_store"),
    Block("waits", WARPGROUP, "wait_group", "group"),
    Block("barriers", PIPELINE, "NamedBarrier.wait", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.wait_unaligned", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.arrive_and_wait", "self.barrier_id"),
    Block("barriers", PIPELINE, "NamedBarrier.sync", "self.barrier_id"),
    Block("barriers", PIPELINE, "sync", "barrier_id"),
    Block("barriers", PIPELINE, "wait"),
    Block("barriers", PIPELINE, "wait_unaligned", "barrier_id"),
    Block("barriers", PIPELINE, "arrive_and_wait", "barrier_id"),
    Block("barriers", PIPELINE, "agent_sync"),
    Block("barriers", PIPELINE, "pipeline_init_wait"),
    Block("barriers", ARCH, "sync_threads"),
    Block("barriers", ARCH, "barrier", "barrier_id"),
    Block("barriers", ARCH, "cluster_wait"),
    Block("arrivals", PIPELINE, "*.producer_commit", "state.index"),
    Block("arrivals", PIPELINE, "*.consumer_release", "state.index"),
    Block("arrivals", PIPELINE, "PipelineOrder.arrive"),
    Block("arrivals", PIPELINE, "NamedBarrier.arrive", "self.barrier_id"),
    Block("arrivals", PIPELINE, "NamedBarrier.arrive_unaligned", "self.barrier_id"),
    Block("arrivals", PIPELINE, "MbarrierArray.arrive", "index"),
    Block("arrivals", PIPELINE, "arrive", "barrier_id"),
    Block("arrivals", PIPELINE, "arrive_unaligned", "barrier_id"),
    Block("arrivals", PIPELINE, "pipeline_init_arrive"),
    Block("arrivals", ARCH, "barrier_arrive", "barrier_id"),
    Block("arrivals", ARCH, "cluster_arrive"),
    Block("arrivals", ARCH, "cluster_arrive_relaxed"),
    Block("arrivals", ARCH, "mbarrier_arrive"),
    Block("arrivals", ARCH, "mbarrier_arrive_and_expect_tx"),
    Block("arrivals", ARCH, "cp_async_mbarrier_arrive_noinc"),
    Block("arrivals", ARCH, "griddepcontrol_launch_dependents"),
    Block("copies", "cutlass.cute", "copy"),
    Block("copies", "cutlass.cute", "autovec_copy"),
    Block("copies", "cutlass.cute", "basic_copy"),
    Block("copies", "cutlass.cute", "basic_copy_if"),
    Block("copies", "cutlass.cute", "copy_atom_call"),
    Block("copies", ARCH, "store_async_dsmem"),
    Block("copies", ARCH, "cp_async_commit_group"),
    Block("copies", ARCH, "cp_async_bulk_commit_group"),
    Block("mma", "cutlass.cute", "gemm"),
    Block("mma", "cutlass.cute", "mma_atom_call"),
    Block("mma", WARPGROUP, "fence"),
    Block("mma", WARPGROUP, "commit_group"),
    Block("mma", TCGEN05, "commit"),
    Block("scheduler", UTILS, "*.initial_work_tile_info"),
    Block("scheduler", UTILS, "*.get_current_work"),
    Block("scheduler", UTILS, "*.advance_to_next_work"),
    Block("scheduler", ARCH, "issue_clc_query"),
)

_CALL = re.compile(r"([A-Za-z_][\w.]*(?:\[[^\]]*\])?)\.(\w+)\(")
_SHORT = {
    "producer_acquire": ("acquire", "acquire_and_advance"),
    "producer_try_acquire": ("try_acquire",),
    "producer_commit": ("commit",),
    "producer_tail": ("tail",),
    "consumer_wait": ("wait", "wait_and_advance"),
    "consumer_try_wait": ("try_wait",),
    "consumer_release": ("release",),
}
"""What the DSL's participants of a pipeline (``make_participants``) call the pipeline's methods."""

Names = tuple[tuple[str, str], ...]

_groups: frozenset[str] = frozenset()
_nested = False
_names: Names = ()
_wrapped = False
_inside: ContextVar[bool] = ContextVar("warptrace_inside_block", default=False)


def instrument(groups: tuple[str, ...], *, nested: bool = False, names: Names = ()) -> None:
    """The groups whose blocks emit ranges in kernels traced from now on. What this DSL lacks is passed over.

    ``nested``: also blocks that others are made of. ``names``: (pattern, name) in order; the first pattern that fits a
    range's own name, or its ``file:line``, names it; "" leaves it out.
    """
    global _groups, _nested, _names, _wrapped
    _groups, _nested, _names = frozenset(groups), nested, names
    if groups and not _wrapped:
        _wrapped = True
        _wrap()


def _wrap() -> None:
    functions: list[tuple[Any, Any]] = []
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
            elif isinstance(original, functools.partial) and inspect.isfunction(original.func):
                inner = wrapped(original.func, _around(block, original.func))
                functions.append((original, functools.partial(inner, *original.args, **original.keywords)))
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

    @contextmanager
    def around(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Call]:
        named = None
        if block.group in _groups and (_nested or not _inside.get()) and events.recording():
            named = _place(block, args)
        if named is None:
            yield Call(args, kwargs)
            return
        name, at = named
        with events.placed(at):
            events.range_push(name, _payload(block, signature, args, kwargs))
        mark = _inside.set(True)  # what it is made of is not told
        try:
            yield Call(args, kwargs)
        except BaseException:
            with suppress(Exception), events.placed(at):  # the caller may know another way
                events.range_pop()
            raise
        else:
            with events.placed(at):
                events.range_pop()
        finally:
            _inside.reset(mark)

    return around


def _place(block: Block, args: tuple[Any, ...]) -> tuple[str, tuple[str, int]] | None:
    """Name and place of a call's range; None where the user wants none. The place is the line that uses a pipeline or a
    barrier: methods of a library's own classes of pipelines are passed over, as the DSL's are."""
    of_class, _, method = block.name.rpartition(".")
    owner = type(args[0]).__name__ if of_class else block.module.rpartition(".")[2]
    called = method if of_class else ""
    frame = events.outside(sys._getframe(1))
    while frame is not None and (subject := _pipeline_of(frame)) is not None:
        code = frame.f_code.co_name
        if hasattr(type(subject), code):  # else the body of a branch or loop in it
            called = code
            if not (args and subject is args[0]):  # it is made of what is called here
                owner, method = type(subject).__name__, next((m for m in _SHORT if code.startswith(m)), code)
        frame = events.outside(frame.f_back)
    if frame is None:
        return f"{owner}.{method}", ("<unknown>", 0)
    file, line = frame.f_code.co_filename, frame.f_lineno
    name = f"{_variable(file, line, called, method) or owner}.{method}"
    place = f"{PurePath(file).name}:{line}"
    for pattern, wanted in _names:
        if fnmatchcase(name, pattern) or fnmatchcase(f"{owner}.{method}", pattern) or fnmatchcase(place, pattern):
            return (wanted, (file, line)) if wanted else None
    return (name, (file, line))


def _pipeline_of(frame: FrameType) -> Any | None:
    """The pipeline or barrier whose method a frame runs, that of a class which a library derived from the DSL's."""
    subject = frame.f_locals.get("self")
    own = any(c.__module__.startswith(PIPELINE) for c in type(subject).__mro__)
    return subject if own else None


def _variable(file: str, line: int, called: str, method: str) -> str:
    """What the source calls the object whose method is ``called``: the variable's name, "" where none is seen."""
    for owner, name in _CALL.findall(linecache.getline(file, line)) if called else ():
        if name == called or name in _SHORT.get(method, ()):
            return str(owner).removeprefix("self.") if owner != "self" else ""
    return ""


def _payload(block: Block, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The value that the block's range carries; None where the call gives none, or none that a payload can be."""
    parameter, _, attribute = block.payload.partition(".")
    try:
        value = signature.bind(*args, **kwargs).arguments.get(parameter)
        value = getattr(value, attribute, None) if attribute else value
    except TypeError:  # the original says what is wrong with the call
        return None
    return value if supported(value) else None
