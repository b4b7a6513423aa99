"""The one place that touches the DSL's hooks: arms the tracer in this process, whatever the DSL's version."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ... import registry
from ...errors import WarptraceError
from ...runtime.log import log

OLDEST = (4, 6)
"""Oldest nvidia-cutlass-dsl with a hook that runs after tracing and before hashing."""

_lock = threading.Lock()
_armed = False
_untraced_builds = False
_keep_newest = False
_annotations = True
_instrumented = False
_noting = False


def process_enabled() -> bool:
    """Whether kernels are compiled with events: ``WARPTRACE=1``, as ``warptrace profile`` sets it, or while a session
    of this process is open."""
    return registry.wanted() or os.environ.get("WARPTRACE", "0") not in ("", "0")


def arm() -> None:
    """Registers the finalize hook with the DSL and wraps its compiler, once. Raises WarptraceError if this DSL has no
    such hook."""
    global _armed
    with _lock:
        if _armed:
            return
        try:
            instances = _instances()
        except Exception as e:
            raise WarptraceError(
                f"nvidia-cutlass-dsl {version()} is none that this warptrace knows ({type(e).__name__}: {e}); update "
                f"warptrace, or install a DSL of its time, {'.'.join(map(str, OLDEST))} or newer"
            ) from e
        for dsl in instances:
            register = getattr(dsl, "register_trace_finalize_hook", None)
            if register is None:
                raise WarptraceError(
                    f"nvidia-cutlass-dsl {version()} has no trace-finalize hook; "
                    f"install {'.'.join(map(str, OLDEST))} or newer: pip install -U 'nvidia-cutlass-dsl[cu13]'"
                )
            register(_finalize)
        _wrap_compiler()
        _wrap_loading()
        _wrap_hooks()
        _wrap_annotations()
        _armed = True


def build_untraced(on: bool) -> None:
    """Whether modules with events are compiled a second time without them, for the build records of their kernels."""
    global _untraced_builds
    _untraced_builds = on


def keep_newest(on: bool) -> None:
    """Whether kernels traced from now on keep the newest events of each warp, not the first."""
    global _keep_newest
    _keep_newest = on


def record_annotations(on: bool) -> None:
    """Whether calls of the DSL's own event module in kernels traced from now on are recorded (they are)."""
    global _annotations
    _annotations = on


def annotations_recorded() -> bool:
    """See :func:`record_annotations`."""
    return _annotations


def instrument(groups: tuple[str, ...], *, nested: bool = False, names: tuple[tuple[str, str], ...] = ()) -> None:
    """The groups of the DSL's own building blocks that emit ranges in kernels traced from now on; see ``auto``."""
    global _instrumented
    if groups or _instrumented:
        from . import auto

        auto.instrument(groups, nested=nested, names=names)
        _instrumented = True


def note_launches(on: bool) -> None:
    """Whether host code of kernels traced from now on notes when it launches them."""
    global _noting
    if on or _noting:
        from . import hidden

        hidden.note_launches(on)
        _noting = True


def frontend_next() -> bool:
    """Whether the trace under way is that of the DSL's newer front end (``cute.FrontendNext``)."""
    try:
        from cutlass.base_dsl.common import is_pyir_enabled
    except ImportError:  # a DSL without it
        return False
    return bool(is_pyir_enabled())


def read_attribute(owner: Any, name: str) -> Any:
    """``owner.name`` as the DSL reads it in user code.

    FrontendNext turns reads of attributes in user code into loads of a cell that loops and branches assign to. It does
    not look into this package: a plain read here, in a loop that assigns later, would be that of the first iteration
    for ever.
    """
    value = getattr(owner, name)
    if not frontend_next():
        return value
    from cutlass.base_dsl.pyir_entrypoints import pyir_read

    return pyir_read(name, value, owner=owner, slot_name=name, attach_ref=False)


def version() -> str:
    """Version of the installed DSL, or "unknown"."""
    from importlib import metadata

    try:
        return metadata.version("nvidia-cutlass-dsl")
    except metadata.PackageNotFoundError:  # on the path without its metadata
        import cutlass

        return str(getattr(cutlass, "__version__", "unknown"))


def _instances() -> list[Any]:
    """The DSL's singletons. It makes them itself when it is imported, so that asking for them changes nothing."""
    from cutlass import cutlass_dsl

    found = [cutlass_dsl.CuTeDSL._get_dsl()]
    experimental = getattr(cutlass_dsl, "CuteExperimentalDSL", None)
    if experimental is not None:
        with suppress(Exception):  # the DSL refuses it on older toolkits; then there is nothing to trace in it
            found.append(experimental._get_dsl())
    return found


def _finalize(owner: Any, module: Any, function_name: str) -> None:
    from . import build, objects
    from .lower import finalize

    untraced = build.untraced_copy(module) if _untraced_builds else None
    records = finalize(module, _arch(owner), ring=_keep_newest)
    if records:
        objects.embed(module, records)
        build.expect(module, records, untraced)


def _wrap_compiler() -> None:
    """Has build records made at compilation. Without them where this DSL compiles in another way."""
    try:
        from cutlass.base_dsl.compiler import Compiler

        from .build import reporting

        Compiler.compile = reporting(Compiler.compile)
    except (ImportError, AttributeError) as e:
        log("debug", f"no build records: {e}")


def _wrap_loading() -> None:
    """Has kernels with events announced that come from object files. They are not where this DSL loads them in another
    way."""
    try:
        from cutlass.base_dsl.export.external_binary_module import ExternalBinaryModule

        from .objects import announcing

        ExternalBinaryModule.__init__ = announcing(ExternalBinaryModule.__init__)
    except (ImportError, AttributeError) as e:
        log("debug", f"kernels from object files are not known: {e}")


def _wrap_hooks() -> None:
    """Has errors of the user's that only the finalize hook can see come out as they are: the DSL would call them an
    internal problem of its own. It still does where this DSL runs hooks in another way."""
    try:
        from cutlass.base_dsl.dsl import BaseDSL

        BaseDSL._run_trace_finalize_hooks = _plainly(BaseDSL._run_trace_finalize_hooks)
    except (ImportError, AttributeError) as e:
        log("debug", f"errors of the finalize hook come wrapped: {e}")


def _wrap_annotations() -> None:
    """Has calls of the DSL's own event module recorded. They are not where this DSL lacks what events need."""
    try:
        from . import annotated
    except (ImportError, AttributeError) as e:
        log("debug", f"no calls of the DSL's own event module are recorded: {e}")
    else:
        annotated.wrap()


def _plainly(run_hooks: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_hooks)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return run_hooks(*args, **kwargs)
        except Exception as e:
            if isinstance(e.__cause__, WarptraceError):
                raise e.__cause__ from None
            raise

    return run


def _arch(owner: Any) -> str:
    """The target, e.g. "sm_90a": that of this compilation where options name one, else of the process."""
    named = getattr(getattr(owner, "compile_options", None), "gpu_arch", None)
    arch = named or getattr(getattr(owner, "envar", None), "arch", None)
    return str(arch) if arch else "sm_unknown"
