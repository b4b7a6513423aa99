# ruff: noqa: E501 - PTX text and IR lines
"""Loads, stores, atomics, state spaces, and the errors of bad addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_kit import launch, module

from warptrace.emulator import Device, LaunchError, MemoryFault, MisalignedAccess
from warptrace.emulator.gen import Site
from warptrace.emulator.memory import Allocation, _index
from warptrace.emulator.parser import Instr

PRE = """
.reg .b32 %r<20>; .reg .b64 %rd<10>; .reg .pred %p<4>; .reg .b16 %h<8>; .reg .f32 %f<8>;
mov.u32 %r0, %tid.x;
"""


def offset(size: int) -> str:
    """%rd0 and %rd1: this thread's element of p0 and of p1."""
    return f"mad.wide.u32 %rd0, %r0, {size}, %ptr0; mad.wide.u32 %rd1, %r0, {size}, %ptr1;"


@pytest.mark.parametrize("t,dtype,reg", [
    ("u8", np.uint8, "%r1"), ("s8", np.int8, "%r1"), ("u16", np.uint16, "%r1"), ("s16", np.int16, "%r1"),
    ("b32", np.uint32, "%r1"), ("b64", np.uint64, "%rd2"), ("f32", np.float32, "%f1"), ("s32", np.int32, "%rd2"),
])  # fmt: skip
def test_load_extends_to_the_register(t: str, dtype: Any, reg: str) -> None:
    a = np.random.default_rng(0).integers(0, 256, 64 * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    size = np.dtype(dtype).itemsize
    wide = {"%r1": (np.int32 if t[0] == "s" else np.uint32, 4, "b32"), "%rd2": (np.int64 if t[0] == "s" else np.uint64, 8, "b64"),
            "%f1": (np.float32, 4, "b32")}[reg]  # fmt: skip
    body = f"mad.wide.u32 %rd0, %r0, {size}, %ptr0; ld.global.{t} {reg}, [%rd0]; mad.wide.u32 %rd1, %r0, {wide[1]}, %ptr1; st.global.{wide[2]} [%rd1], {reg};"
    out, _ = launch(PRE + body, [a, np.zeros(64, wide[0])], block=64)
    np.testing.assert_array_equal(out[1], a.astype(wide[0]))


@pytest.mark.parametrize(
    "v,t,dtype", [("v2", "b32", np.uint32), ("v4", "b32", np.uint32), ("v2", "b64", np.uint64), ("v4", "u8", np.uint8)]
)
def test_vectors(v: str, t: str, dtype: Any) -> None:
    n = int(v[1])
    a = np.arange(32 * n, dtype=dtype)
    regs = ["%rd4", "%rd5", "%rd6", "%rd7"] if t == "b64" else ["%r4", "%r5", "%r6", "%r7"]
    names = ", ".join(regs[:n])
    back = ", ".join(reversed(regs[:n]))
    size = n * np.dtype(dtype).itemsize
    out, _ = launch(
        PRE
        + offset(size)
        + f"ld.global.nc.L1::no_allocate.{v}.{t} {{{names}}}, [%rd0]; st.global.{v}.{t} [%rd1], {{{back}}};",
        [a, np.zeros_like(a)],
    )
    np.testing.assert_array_equal(out[1], a.reshape(-1, n)[:, ::-1].ravel())


def test_generic_shared_local_const_global_param() -> None:
    extra = """
.const .align 4 .b32 table[4] = {10, 20, 30, 0x28};
.global .align 4 .b32 counter = 5;
.global .align 8 .b64 where = table;
.shared .align 8 .b8 buf[256];
"""
    body = (
        PRE
        + offset(4)
        + """
.local .align 8 .b8 depot[16];
.reg .b64 %SP, %SPL;
mov.b64 %SPL, depot; cvta.local.u64 %SP, %SPL;
and.b32 %r1, %r0, 3; mov.u64 %rd2, table; cvta.const.u64 %rd2, %rd2; mad.wide.u32 %rd3, %r1, 4, %rd2;
ld.const.b32 %r2, [%rd3];                 // table[lane % 4]
st.b32 [%SP+4], %r2; ld.local.b32 %r3, [%SPL+4];  // through local memory, generic and direct
mov.u32 %r4, buf; shl.b32 %r5, %r0, 2; add.s32 %r6, %r4, %r5; st.shared.b32 [%r6], %r3;
bar.warp.sync -1;
xor.b32 %r7, %r5, 124; mov.u64 %rd4, buf; cvta.shared.u64 %rd5, %rd4; cvt.u64.u32 %rd6, %r7; add.s64 %rd5, %rd5, %rd6;
ld.b32 %r8, [%rd5];                       // generic load of the mirrored lane's word
ld.global.b32 %r9, [counter]; add.s32 %r8, %r8, %r9;
isspacep.shared %p0, %rd5; selp.b32 %r10, 1000, 0, %p0; add.s32 %r8, %r8, %r10;
isspacep.global %p1, %rd5; selp.b32 %r10, 5000, 0, %p1; add.s32 %r8, %r8, %r10;
isspacep.local %p2, %SP; selp.b32 %r10, 100000, 0, %p2; add.s32 %r8, %r8, %r10;
ld.global.b64 %rd7, [where]; ld.b32 %r11, [%rd7+12]; add.s32 %r8, %r8, %r11;
st.global.b32 [%rd1], %r8;
"""
    )
    out, _ = launch(body, [np.zeros(32, np.uint32), np.zeros(32, np.uint32)], extra=extra)
    table = np.array([10, 20, 30, 40])
    np.testing.assert_array_equal(out[1], table[(31 - np.arange(32)) % 4] + 5 + 1000 + 100000 + 40)


ATOMS = {
    "add.u32": (np.uint32, lambda old, b: old + b),
    "min.u32": (np.uint32, min),
    "max.s32": (np.int32, max),
    "and.b32": (np.uint32, lambda old, b: old & b),
    "or.b32": (np.uint32, lambda old, b: old | b),
    "xor.b32": (np.uint32, lambda old, b: old ^ b),
    "exch.b32": (np.uint32, lambda old, b: b),
    "inc.u32": (np.uint32, lambda old, b: 0 if old >= b else old + 1),
    "dec.u32": (np.uint32, lambda old, b: b if old == 0 or old > b else old - 1),
    "add.u64": (np.uint64, lambda old, b: old + b),
    "add.f32": (np.float32, lambda old, b: old + b),
}


@pytest.mark.parametrize("op", ATOMS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(op: str, space: str) -> None:
    dtype, f = ATOMS[op]
    size = np.dtype(dtype).itemsize
    reg, b = ("%rd", "b64") if size == 8 else ("%r", "b32")
    a = (np.arange(32) * 7 % 13).astype(dtype)
    body = (
        PRE
        + f"mad.wide.u32 %rd0, %r0, {size}, %ptr0; mad.wide.u32 %rd1, %r0, {size}, %ptr1; ld.global.{b} {reg}5, [%rd0];\n"
    )
    if space == "global":
        body += f"atom.global.{op} {reg}6, [%ptr2], {reg}5; st.global.{b} [%rd1], {reg}6;"
    else:
        body += f".shared .align 8 .b8 cell[8]; mov.{b} {reg}7, 0; st.shared.{b} [cell], {reg}7; bar.warp.sync -1;"
        body += f"atom.shared.{op} {reg}6, [cell], {reg}5; st.global.{b} [%rd1], {reg}6; ld.shared.{b} {reg}8, [cell]; st.global.{b} [%ptr2], {reg}8;"
    out, _ = launch(body, [a, np.zeros(32, dtype), np.zeros(1, dtype)])
    cell, olds = dtype(0), []
    for v in a:
        olds.append(cell)
        cell = dtype(f(cell, v))
    np.testing.assert_array_equal(out[1], np.array(olds, dtype))
    np.testing.assert_array_equal(out[2], [cell])


def test_cas_and_red() -> None:
    body = (
        PRE
        + """
atom.acq_rel.gpu.global.cas.b32 %r2, [%ptr1], %r0, 7;   // only lane 0 finds 0
mad.wide.u32 %rd0, %r0, 4, %ptr0; st.global.b32 [%rd0], %r2;
red.relaxed.gpu.global.add.u32 [%ptr1+4], %r0;
"""
    )
    out, _ = launch(body, [np.zeros(32, np.uint32), np.zeros(2, np.uint32)])
    np.testing.assert_array_equal(out[0], [0] + [7] * 6 + [7] * 25)
    np.testing.assert_array_equal(out[1], [7, sum(range(32))])


def test_atom_half_and_vector_red() -> None:
    body = (
        PRE
        + """
mov.b32 %r2, 0x3C003C00;                         // 1.0 | 1.0
red.global.add.noftz.f16x2 [%ptr0], %r2;
mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;
red.global.add.v2.f32 [%ptr1], {%f1, %f2};
"""
    )
    out, _ = launch(body, [np.zeros(2, np.float16), np.zeros(2, np.float32)])
    np.testing.assert_array_equal(out[0], [32, 32])
    np.testing.assert_array_equal(out[1], [32, 64])


def _fault(body: str, kind: type[MemoryFault], **kwargs: Any) -> MemoryFault:
    with pytest.raises(kind) as info:
        launch(PRE + body, [np.zeros(40, np.uint32), np.zeros(64, np.uint32)], **kwargs)
    return info.value


def test_out_of_bounds_names_the_lane() -> None:
    e = _fault(offset(4) + "ld.global.b32 %r1, [%rd0];", MemoryFault, grid=3, block=64)
    text = str(e)
    assert e.where is not None and (e.where.lane, e.where.warp) == (8, 1)
    assert e.where.line is not None and "ld.global.b32" in (e.where.text or "")
    assert "out-of-bounds global read of 4 bytes" in text and "160 bytes at" in text


@pytest.mark.parametrize("op", ["ld.global.b32 %r1, [%rd0-4];", "ld.b32 %r1, [%rd0-4];", "st.global.b32 [%rd0-4], %r0;",
                                "atom.global.add.u32 %r1, [%rd0-4], 1;", "ld.global.u8 %r1, [%rd0-1];"])  # fmt: skip
def test_below_the_allocation(op: str) -> None:
    e = _fault(offset(4) + op, MemoryFault)
    assert e.where is not None and e.where.lane == 0 and not isinstance(e, MisalignedAccess)


@pytest.mark.parametrize("op", ["ld.global.b32 %r1, [%rd0+2];", "ld.global.v2.b32 {%r1, %r2}, [%rd0];", "st.global.b64 [%rd0], %rd1;",
                                "ld.shared.b32 %r1, [1026];", "st.b16 [%rd0+1], %h1;"])  # fmt: skip
def test_misaligned(op: str) -> None:
    e = _fault(offset(4) + ".shared .b8 s[64];" + op, MisalignedAccess)
    assert e.where is not None and e.where.lane == (1 if "v2" in op or "b64" in op else 0)


@pytest.mark.parametrize("op", ["ld.global.u8 %r1, [%rd2];", "ld.global.b16 %h1, [%rd2];", "ld.global.b32 %r1, [%rd2];",
                                "st.global.b64 [%rd2], %rd1;", "st.global.u8 [%rd2], %r0;"])  # fmt: skip
@pytest.mark.parametrize("step", [-160, -1, -2, -8, 1 << 40, -(1 << 40)])
def test_second_access_of_a_site_is_checked_too(op: str, step: int) -> None:
    """The first access is good; the second, by the same instruction, is misaligned or outside."""
    size = {"u8": 1, "b16": 2, "b32": 4, "b64": 8}[op.split()[0].split(".")[2]]
    body = f"""mov.u64 %rd2, %ptr0; mov.u32 %r2, 0;
L: {op} add.s64 %rd2, %rd2, {step}; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 2; @%p1 bra L;"""
    e = _fault(body, MisalignedAccess if step % size else MemoryFault)
    assert e.where is not None and e.where.lane == 0


@pytest.mark.parametrize(
    "op", ["ld.global.b16 %h1, [%rd2];", "ld.global.b32 %r1, [%rd2];", "st.global.b64 [%rd2], %rd1;"]
)
def test_second_access_misaligned_inside(op: str) -> None:
    body = f"""mov.u64 %rd2, %ptr0; mov.u32 %r2, 0;
L: {op} add.s64 %rd2, %rd2, 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 2; @%p1 bra L;"""
    _fault(body, MisalignedAccess)


@pytest.mark.parametrize("width", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_index_of_every_address_near_an_allocation(size: int, width: Any) -> None:
    """The fast path's index is right for good addresses, and one that numpy refuses for all others."""
    base, nbytes = 4096, 192
    alloc = Allocation(base, np.zeros(nbytes, np.uint8), "a")
    site = Site(Instr("ld", ("ld",), (), None, 1, "ld"))
    count = nbytes // size
    for off in [*range(-80, nbytes + 80), -4096, 2**31 - 4096, 2**31 - 4095, 2**32 - 4097]:
        i = int(_index(np.full(32, (base + off) % 2**32, width), site, alloc, 0, size)[0])
        if off % size == 0 and 0 <= off <= nbytes - size:
            assert i == off // size
        else:
            assert i >= count or i < -count, off


def test_shared_local_param_and_const_limits() -> None:
    _fault(".shared .align 4 .b8 s[64]; mov.u32 %r1, s; ld.shared.b32 %r2, [%r1+64];", MemoryFault)
    _fault(".shared .align 4 .b8 s[64]; st.shared.b32 [0], %r0;", MemoryFault)
    _fault(".local .align 4 .b8 d[16]; mov.b64 %rd1, d; st.local.b32 [%rd1+16], %r0;", MemoryFault)
    e = _fault("st.global.b32 [c], %r0;", MemoryFault, extra=".const .b32 c = 1;")
    assert "read-only" in str(e)


def test_masked_lanes_do_not_fault() -> None:
    body = PRE + offset(4) + "setp.lt.u32 %p1, %r0, 8; @%p1 ld.global.b32 %r1, [%rd0]; @%p1 st.global.b32 [%rd1], 3;"
    body = body.replace("[%rd1], 3", "[%rd1], %r0")
    out, _ = launch(body, [np.zeros(8, np.uint32), np.zeros(8, np.uint32)])
    np.testing.assert_array_equal(out[1], np.arange(8))


def test_freed_memory_is_gone() -> None:
    dev = Device()
    a = dev.zeros(32, np.uint32)
    k = dev.load(
        module(".reg .b64 %a; .reg .b32 %r; ld.param.u64 %a, [p]; ld.global.b32 %r, [%a];", ".param .u64 p")
    ).kernel()
    k.launch(1, 32, [a])
    dev.free(a)
    with pytest.raises(MemoryFault):
        k.launch(1, 32, [a])


def test_parameters_of_every_kind() -> None:
    body = """
.reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<2>; .reg .b16 %h;
ld.param.u64 %rd0, [out];
ld.param.b8 %r1, [st+9]; ld.param.v2.b32 {%r2, %r3}, [st];
ld.param.f32 %f1, [x]; cvt.rzi.s32.f32 %r4, %f1; ld.param.u8 %r5, [flag];
mov.b64 %rd1, st; cvta.param.u64 %rd2, %rd1; ld.b32 %r6, [%rd2+4];
st.global.v4.b32 [%rd0], {%r1, %r2, %r3, %r4}; st.global.v2.b32 [%rd0+16], {%r5, %r6};
"""
    dev = Device()
    out = dev.zeros(6, np.int32)
    params = ".param .u64 .ptr .global .align 16 out, .param .align 8 .b8 st[16], .param .f32 x, .param .u8 flag"
    k = dev.load(module(body, params)).kernel()
    st = np.array([11, 22, 0x0700, 0], np.int32).tobytes()
    k.launch(1, 32, [out, st, 2.75, True])
    np.testing.assert_array_equal(out.read(), [7, 11, 22, 2, 1, 22])
    with pytest.raises(LaunchError, match="3 arguments for 4 parameters"):
        k.launch(1, 32, [out, st, 1.0])
    with pytest.raises(LaunchError, match="20 bytes for parameter st of 16"):
        k.launch(1, 32, [out, bytes(20), 1.0, 0])


def test_launch_limits() -> None:
    k = Device().load(module("ret;", attrs=".reqntid 64, 1, 1")).kernel()
    with pytest.raises(LaunchError, match="reqntid"):
        k.launch(1, 32)
    k = Device().load(module("ret;")).kernel()
    for kwargs, text in (({"grid": 3, "block": 32, "cluster": 2}, "multiple of the cluster"), ({"grid": 1, "block": 2048}, "limit is 1024"),
                         ({"grid": 1, "block": 32, "smem": 240000}, "shared memory"), ({"grid": 0, "block": 32}, "positive")):  # fmt: skip
        with pytest.raises(LaunchError, match=text):
            k.launch(**kwargs)  # type: ignore[arg-type]
