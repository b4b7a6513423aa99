"""Events inside CuTe DSL kernels: ``import warptrace.cute as iket``.

The calls may stand anywhere in ``@cute.kernel`` code and in the ``@cute.jit`` helpers it calls. While tracing is off
(the default) and outside kernels they do nothing, and the compiled kernel is byte for byte that without them.
"""

try:
    import cutlass as _cutlass  # noqa: F401

    from .frontends.cute import dsl as _dsl

    _dsl.arm()  # first: a DSL that is none of ours may lack what the rest imports
except ModuleNotFoundError as _error:
    raise ImportError(
        f"warptrace.cute needs the CuTe DSL ({_error}); install it: pip install 'warptrace[cute]'"
    ) from _error

from .frontends.cute.events import (
    EventError,
    PairingWarning,
    Token,
    enabled,
    mark,
    range,
    range_end,
    range_pop,
    range_push,
    range_start,
    sentinel_token,
    switch,
    tracing,
)
from .runtime import autostart as _autostart

_autostart.start()

__all__ = [
    "EventError",
    "PairingWarning",
    "Token",
    "enabled",
    "mark",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
    "sentinel_token",
    "switch",
    "tracing",
]
