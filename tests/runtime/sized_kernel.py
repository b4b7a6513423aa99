"""A kernel whose number of events is not known when it is compiled."""

import cutlass
import cutlass.cute as cute

import warptrace.cute as iket


@cute.kernel
def sized(n: cutlass.Int32):
    for _ in cutlass.range(n, unroll=1):
        iket.mark("round")


@cute.jit
def host(n: cutlass.Int32):
    sized(n).launch(grid=[n, 1, 1], block=[n, 1, 1])
