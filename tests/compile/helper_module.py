"""Helpers of kernels in a module of their own: events name this file."""

from __future__ import annotations

import sys

try:
    import cutlass
    import cutlass.cute as cute

    import warptrace.cute as iket
except ImportError:  # the test modules skip, with the reason
    pass
else:

    @cute.jit
    def inner(i: cutlass.Int32):
        iket.mark("inner", i)

    INNER_LINE = sys._getframe().f_lineno - 2

    @cute.jit
    def outer(i: cutlass.Int32):
        with iket.range("outer"):
            inner(i)

    def plain_mark(name: str) -> None:
        iket.mark(name)

    PLAIN_LINE = plain_mark.__code__.co_firstlineno + 1
