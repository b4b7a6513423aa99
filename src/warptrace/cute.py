"""Events inside CuTe DSL kernels: ``import warptrace.cute as iket``.

The calls may stand anywhere in ``@cute.kernel`` code and in the ``@cute.jit`` helpers it calls. While tracing is off
(the default) and outside kernels they do nothing, and the compiled kernel is byte for byte that without them.
"""

from .frontends.cute import dsl as _dsl
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

_dsl.arm()

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
