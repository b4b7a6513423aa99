"""The one place that touches the DSL's hooks: arms the tracer in this process, whatever the DSL's version."""

from __future__ import annotations

import os
import threading
from typing import Any

from ...errors import WarptraceError

OLDEST = (4, 6)
"""Oldest nvidia-cutlass-dsl with a hook that runs after tracing and before hashing."""

_lock = threading.Lock()
_armed = False


def process_enabled() -> bool:
    """Whether the whole process is traced: ``WARPTRACE=1``, as ``warptrace profile`` sets it."""
    return os.environ.get("WARPTRACE", "0") not in ("", "0")


def arm() -> None:
    """Registers the finalize hook with the DSL, once. Raises WarptraceError if this DSL has none."""
    global _armed
    with _lock:
        if _armed:
            return
        for dsl in _instances():
            register = getattr(dsl, "register_trace_finalize_hook", None)
            if register is None:
                raise WarptraceError(
                    f"nvidia-cutlass-dsl {version()} has no trace-finalize hook; "
                    f"install {'.'.join(map(str, OLDEST))} or newer: pip install -U 'nvidia-cutlass-dsl[cu13]'"
                )
            register(_finalize)
        _armed = True


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
        try:
            found.append(experimental._get_dsl())
        except Exception:  # the DSL refuses it on older toolkits; then there is nothing to trace in it
            pass
    return found


def _finalize(owner: Any, module: Any, function_name: str) -> None:
    from .lower import finalize

    finalize(module, _arch(owner, module))


def _arch(owner: Any, module: Any) -> str:
    """The target, e.g. "sm_90a": that of this compilation where options name one, else of the process."""
    options = getattr(owner, "compile_options", None)
    text = ""
    if options is not None:
        try:
            text = str(options.to_str())
        except Exception:
            text = ""
    for word in text.replace("=", " ").replace(",", " ").split():
        if word.startswith("sm_"):
            return word
    arch = getattr(getattr(owner, "envar", None), "arch", None)
    return str(arch) if arch else "sm_unknown"
