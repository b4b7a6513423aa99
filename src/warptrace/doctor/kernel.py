"""A kernel with one event, which holds its argument."""

import cutlass
import cutlass.cute as cute

import warptrace.cute as iket

EVENT = "doctor"
THREADS = 32


@cute.kernel  # type: ignore[untyped-decorator]
def one_event(n: cutlass.Int32):  # type: ignore[no-untyped-def]
    """Records its argument."""
    iket.mark(EVENT, n)


@cute.jit  # type: ignore[untyped-decorator]
def launch_one_event(n: cutlass.Int32):  # type: ignore[no-untyped-def]
    """One warp."""
    one_event(n).launch(grid=[1, 1, 1], block=[THREADS, 1, 1])
