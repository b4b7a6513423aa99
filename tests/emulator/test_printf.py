"""Device-side printf: the call sequence that the DSL's cute.printf makes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from ptx_kit import module

from warptrace.emulator import Device, UnsupportedInstruction
from warptrace.emulator.isa_call import format_printf

EXTRA = """
.extern .func  (.param .b32 func_retval0) vprintf
(
    .param .b64 vprintf_param_0,
    .param .b64 vprintf_param_1
)
;
.global .align 1 .b8 fmt[13] = {104, 101, 108, 108, 111, 32, 37, 100, 32, 37, 102, 10};
"""
BODY = """
.local .align 8 .b8 depot[16]; .reg .b64 %SP, %SPL; .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<7>;
mov.b64 %SPL, depot; cvta.local.u64 %SP, %SPL; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 15;
setp.ne.b32 %p1, %r2, 3; @%p1 bra DONE;
cvt.rn.f64.u32 %rd2, %r1; st.local.b32 [%SPL], %r1; st.local.b64 [%SPL+8], %rd2;
{ // callseq 0, 0
.param .b64 param0; .param .b64 param1; .param .b32 retval0;
st.param.b64 [param1], %SP; mov.b64 %rd5, fmt; cvta.global.u64 %rd6, %rd5; st.param.b64 [param0], %rd6;
call.uni (retval0), NAME, (param0, param1);
ld.param.b32 %r3, [retval0];
} // callseq 0
DONE: ret;
"""


def test_printf_of_a_kernel() -> None:
    result = Device().load(module(BODY.replace("NAME", "vprintf"), extra=EXTRA)).kernel().launch(1, 32)
    assert result.printed == ("hello 3 3.000000\n", "hello 19 19.000000\n")


def test_other_functions_are_refused() -> None:
    with pytest.raises(UnsupportedInstruction, match="call of malloc"):
        Device().load(module(BODY.replace("NAME", "malloc"), extra=EXTRA)).kernel()


@pytest.mark.parametrize("fmt,raw,want", [
    ("%d|%u|%x", struct.pack("<iII", -5, 2**32 - 1, 255), "-5|4294967295|ff"),
    ("%5d%%%-4u.", struct.pack("<iI", 42, 7), "   42%7   ."),
    ("%lld %llu", struct.pack("<qQ", -1, 2**64 - 1), "-1 18446744073709551615"),
    ("%.3f %e %g", struct.pack("<ddd", 1.5, 1e10, 0.25), "1.500 1.000000e+10 0.25"),
    ("%d %f", struct.pack("<iidd", 1, 0, 2.0, 0), "1 2.000000"),
    ("%c%s", struct.pack("<iiQ", 65, 0, 99), "AB@99"),
    ("%p", struct.pack("<Q", 4096), "0x1000"),
])  # fmt: skip
def test_format(fmt: str, raw: bytes, want: str) -> None:
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at = -(-at // size) * size
        at += size
        return raw[at - size : at]

    assert format_printf(fmt, take, lambda address: f"B@{address}") == want


def test_lanes_print_in_order() -> None:
    text = module(BODY.replace("setp.ne.b32 %p1, %r2, 3; @%p1 bra DONE;", "").replace("NAME", "vprintf"), extra=EXTRA)
    printed = Device().load(text).kernel().launch(1, 32).printed
    assert [int(p.split()[1]) for p in printed] == list(np.arange(32))
