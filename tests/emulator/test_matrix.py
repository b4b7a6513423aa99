# ruff: noqa: E501 - PTX text and IR lines
"""ldmatrix, stmatrix, mma.sync, wgmma and TMA against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_kit import launch, module

from warptrace.emulator import Device, LaunchError, MemoryFault, SyncError

RNG = np.random.default_rng(11)
PRE = """
.reg .b32 %r<40>; .reg .b64 %rd<16>; .reg .pred %p<4>; .reg .f32 %f<8>;
mov.u32 %r0, %tid.x; mad.wide.u32 %rd0, %r0, 16, %ptr0; mad.wide.u32 %rd1, %r0, 16, %ptr1;
.shared .align 16 .b8 buf[512]; mov.u32 %r1, buf; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2;
"""


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_stmatrix(n: int, trans: str) -> None:
    src = np.arange(256, dtype=np.uint16)
    regs = ", ".join(f"%r{10 + i}" for i in range(n))
    zero = "".join(f"mov.u32 %r{10 + i}, 0;" for i in range(4))
    body = f"""{zero} ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd0]; st.shared.v4.b32 [%r3], {{%r4, %r5, %r6, %r7}}; bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{regs}}}, [%r3]; st.global.v4.b32 [%rd1], {{%r10, %r11, %r12, %r13}};
bar.warp.sync -1; mov.u32 %r4, 0; st.shared.v4.b32 [%r3], {{%r4, %r4, %r4, %r4}}; bar.warp.sync -1;
stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%r3], {{{regs}}}; bar.warp.sync -1;
ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3]; mad.wide.u32 %rd2, %r0, 16, %ptr2; st.global.v4.b32 [%rd2], {{%r4, %r5, %r6, %r7}};"""
    out, _ = launch(PRE + body, [src, np.zeros(256, np.uint16), np.zeros(256, np.uint16)])
    got = out[1].reshape(32, 4, 2)
    m = src.reshape(4, 8, 8)
    lane = np.arange(32)
    for i in range(n):
        want = m[i].T if trans else m[i]
        for e in range(2):
            np.testing.assert_array_equal(got[:, i, e], want[lane // 4, 2 * (lane % 4) + e])
    np.testing.assert_array_equal(out[2][: 64 * n], src[: 64 * n])
    assert (out[2][64 * n :] == 0).all()


def _bits(x: Any, kind: str) -> Any:
    """f16 or bf16 bits (by truncation: the inputs are short) of an array."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _short(shape: tuple[int, ...]) -> Any:
    """Values that f16 and bf16 hold exactly, whose sums f32 holds exactly."""
    return RNG.integers(-16, 16, shape).astype(np.float64) / 4


@pytest.mark.parametrize("kind,acc", [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
@pytest.mark.parametrize("k", [8, 16])
def test_mma(kind: str, acc: str, k: int) -> None:
    a, b, c = _short((16, k)), _short((k, 8)), _short((16, 8))
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    na, nb = k // 4, k // 8
    af, bf = np.zeros((32, na, 2)), np.zeros((32, nb, 2))
    for i in range(na):
        for e in range(2):
            af[:, i, e] = a[g + 8 * (i % 2), 2 * t + 8 * (i // 2) + e]
    for i in range(nb):
        for e in range(2):
            bf[:, i, e] = b[2 * t + 8 * i + e, g]
    cf = np.stack([c[g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)], axis=1)
    regs = np.zeros((32, 12), np.uint32)
    regs[:, :na] = _bits(af, kind).reshape(32, -1).view(np.uint32)
    regs[:, 4 : 4 + nb] = _bits(bf, kind).reshape(32, -1).view(np.uint32)
    if acc == "f32":
        regs[:, 8:12] = cf.astype(np.float32).view(np.uint32)
    else:
        regs[:, 8:10] = cf.astype(np.float16).view(np.uint32)
    loads = "".join(f"ld.global.b32 %r{10 + i}, [%rd5+{4 * i}];" for i in range(12))
    nc = 4 if acc == "f32" else 2
    vec = lambda first, n: "{" + ", ".join(f"%r{first + i}" for i in range(n)) + "}"  # noqa: E731
    body = f"mad.wide.u32 %rd5, %r0, 48, %ptr0; {loads} mma.sync.aligned.m16n8k{k}.row.col.{acc}.{kind}.{kind}.{acc} {vec(18, nc)}, {vec(10, na)}, {vec(14, nb)}, {vec(18, nc)}; st.global.v4.b32 [%rd1], {vec(18, 4)};"
    out, _ = launch(PRE + body, [regs, np.zeros((32, 4), np.uint32)])
    d = a @ b + c
    want = np.stack([d[g + 8 * (i // 2), 2 * t + i % 2] for i in range(4)], axis=1)
    got = out[1].view(np.float32) if acc == "f32" else out[1].view(np.float16)[:, :4]
    np.testing.assert_array_equal(got.astype(np.float64), want)


# -- wgmma --------------------------------------------------------------------------
def _place(m: Any, rows: int, swizzle: int, mn_major: bool, k_total: int = 16) -> tuple[Any, int, int]:
    """A rows x 16 operand (u16) in the canonical shared layout: (halfwords, leading offset, stride offset).

    Written from the layout functions, element by element, independently of the emulator's tables.
    """
    size = 65536
    out = np.zeros(size // 2, np.uint16)
    xor = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    for r in range(rows):
        for k in range(16):
            if not mn_major and swizzle:
                lbo, sbo = 16, 8 * swizzle
                at = (r // 8) * sbo + (r % 8) * swizzle + 2 * k
            elif not mn_major:
                lbo, sbo = 128, 256
                at = (r // 8) * sbo + (k // 8) * lbo + (r % 8) * 16 + (k % 8) * 2
            elif swizzle:
                per = swizzle // 2
                sbo = 8 * swizzle
                lbo = 2 * sbo
                at = (r // per) * lbo + (r % per) * 2 + (k // 8) * sbo + (k % 8) * swizzle
            else:
                lbo, sbo = 128, 256
                at = (r // 8) * sbo + (k // 8) * lbo + (k % 8) * 16 + (r % 8) * 2
            at ^= (at >> 7 & xor) << 4
            out[at // 2] = m[r, k]
    return out, lbo, sbo


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("trans", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize(
    "kind,acc,n,a_regs",
    [("f16", "f32", 64, False), ("bf16", "f32", 128, False), ("f16", "f16", 64, False), ("f16", "f32", 64, True)],
)
def test_wgmma(swizzle: int, trans: tuple[int, int], kind: str, acc: str, n: int, a_regs: bool) -> None:
    if a_regs and trans[0]:
        trans = (0, 1)
    a, b, c = _short((64, 16)), _short((n, 16)), _short((64, n))
    abits, bbits = _bits(a, kind), _bits(b, kind)
    amem, albo, asbo = _place(abits, 64, swizzle, bool(trans[0]))
    bmem, blbo, bsbo = _place(bbits, n, swizzle, bool(trans[1]))
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    desc = lambda at, lbo, sbo: (at >> 4) | (lbo >> 4) << 16 | (sbo >> 4) << 32 | mode << 62  # noqa: E731
    nd = n // 2 if acc == "f32" else n // 4
    d = ", ".join(f"%d{i}" for i in range(nd))
    lane = np.arange(128)
    w, g, t = lane // 32, lane % 32 // 4, lane % 4
    acc_rows = np.zeros((128, n // 2))
    for j in range(n // 8):
        for i in range(2):
            for e in range(2):
                acc_rows[:, 4 * j + 2 * i + e] = c[16 * w + g + 8 * i, 8 * j + 2 * t + e]
    frag = np.zeros((128, 4, 2), np.uint16)
    for i in range(4):
        for e in range(2):
            frag[:, i, e] = abits[16 * w + g + 8 * (i % 2), 2 * t + 8 * (i // 2) + e]
    init = acc_rows.astype(np.float32 if acc == "f32" else np.float16)
    left = "{%x0, %x1, %x2, %x3}" if a_regs else "%rd2"
    imms = f"1, 1, {trans[1]}" if a_regs else f"1, 1, {trans[0]}, {trans[1]}"
    acc_type = "f32" if acc == "f32" else "b32"
    body = f"""
.reg .b32 %r<20>; .reg .b64 %rd<8>; .reg .pred %p<3>; .reg .{acc_type} %d<{nd}>; .reg .b32 %x<4>;
.shared .align 1024 .b8 smem[131072];
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mov.u32 %r2, 0;
COPY: mad.lo.u32 %r3, %r2, 128, %r0; shl.b32 %r3, %r3, 2; cvt.u64.u32 %rd0, %r3; add.s64 %rd1, %ptr0, %rd0; ld.global.b32 %r4, [%rd1];
add.u32 %r5, %r1, %r3; st.shared.b32 [%r5], %r4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 256; @%p1 bra COPY;
bar.sync 0; fence.proxy.async.shared::cta;
{"".join(f"mad.wide.u32 %rd3, %r0, {4 * nd}, %ptr1; ld.global.b32 %d{i}, [%rd3+{4 * i}];" for i in range(nd))}
{"".join(f"mad.wide.u32 %rd3, %r0, 16, %ptr2; ld.global.b32 %x{i}, [%rd3+{4 * i}];" for i in range(4))}
mov.u64 %rd2, {desc(1024, albo, asbo)}; mov.u64 %rd4, {desc(1024 + 65536, blbo, bsbo)}; setp.eq.u32 %p2, 0, 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n{n}k16.{acc}.{kind}.{kind} {{{d}}}, {left}, %rd4, %p2, {imms};
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
{"".join(f"mad.wide.u32 %rd3, %r0, {4 * nd}, %ptr1; st.global.b32 [%rd3+{4 * i}], %d{i};" for i in range(nd))}
""".replace("setp.eq.u32 %p2, 0, 0;", "setp.lt.u32 %p2, %r0, 128;")
    memory = np.concatenate([amem, bmem])
    out, _ = launch(body, [memory, init, frag], block=128)
    full = a @ b.T + c
    want = np.zeros((128, n // 2))
    for j in range(n // 8):
        for i in range(2):
            for e in range(2):
                want[:, 4 * j + 2 * i + e] = full[16 * w + g + 8 * i, 8 * j + 2 * t + e]
    np.testing.assert_array_equal(out[1].astype(np.float64), want.astype(init.dtype).astype(np.float64))


# -- TMA -----------------------------------------------------------------------------
def _tma_kernel(rank: int, nbytes: int) -> str:
    coords = "{" + ", ".join(f"%c{i}" for i in range(rank)) + "}"
    loads = "".join(f"ld.param.s32 %c{i}, [at+{4 * i}];" for i in range(rank))
    return module(
        f"""
.reg .b32 %r<20>; .reg .b64 %rd<8>; .reg .pred %p<4>; .reg .s32 %c<5>;
.shared .align 8 .b8 bar[8]; .shared .align 1024 .b8 box[{max(nbytes, 512)}];
ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, bar; mov.u32 %r2, box; {loads}
mov.b64 %rd1, map; cvta.param.u64 %rd2, %rd1; mov.b64 %rd3, back; cvta.param.u64 %rd4, %rd3; prefetch.tensormap [%rd2];
setp.ne.u32 %p1, %r0, 0; @%p1 bra W;
mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {nbytes};
cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd2, {coords}], [%r1];
L: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra L;
cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%rd4, {coords}], [%r2]; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
W: bar.sync 0; mov.u32 %r5, 0;
C: mad.lo.u32 %r6, %r5, 32, %r0; shl.b32 %r6, %r6, 2; add.u32 %r7, %r2, %r6; ld.shared.b32 %r8, [%r7]; cvt.u64.u32 %rd5, %r6; add.s64 %rd6, %rd0, %rd5; st.global.b32 [%rd6], %r8;
add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, {nbytes // 128}; @%p3 bra C;
""",
        ".param .u64 out, .param .align 64 .b8 map[128], .param .align 64 .b8 back[128], .param .align 4 .b8 at[20]",
    )


@pytest.mark.parametrize("shape,box,at,dtype,swizzle", [
    ((128,), (64,), (32,), "f32", 0),
    ((64, 40), (32, 8), (8, 16), "f16", 64),
    ((64, 40), (64, 16), (-8, 32), "f16", 128),
    ((48, 24), (16, 8), (40, 20), "bf16", 32),
    ((16, 6, 5), (16, 4, 2), (0, 3, 4), "f32", 0),
    ((16, 3, 4, 5), (16, 2, 2, 2), (0, 2, 3, 4), "f32", 64),
    ((8, 3, 4, 3, 2), (8, 2, 2, 2, 2), (0, 1, 2, 2, 1), "u32", 32),
])  # fmt: skip
def test_tma_load_and_store(
    shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...], dtype: str, swizzle: int
) -> None:
    np_type = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "u32": np.uint32}[dtype]
    size = np.dtype(np_type).itemsize
    data = RNG.integers(1, 200, shape[::-1]).astype(np_type)
    dev = Device()
    src, dst = dev.alloc(data), dev.alloc(np.zeros_like(data))
    nbytes = int(np.prod(box)) * size
    out = dev.zeros(nbytes // 4, np.uint32)
    strides = [size * int(np.prod(shape[: i + 1])) for i in range(len(shape) - 1)]
    maps = [dev.tensor_map(x, dtype, shape, strides, box, swizzle) for x in (src, dst)]
    coords = np.array([*at, *([0] * (5 - len(at)))], np.int32).tobytes()
    dev.load(_tma_kernel(len(shape), nbytes)).kernel().launch(1, 32, [out, *maps, coords])
    # the box with zeros outside the tensor, then the swizzle, chunk by chunk
    want = np.zeros(box[::-1], np_type)
    back = np.zeros_like(data)
    for index in np.ndindex(*want.shape):
        pos = tuple(i + c for i, c in zip(index, at[::-1]))
        if all(0 <= p < s for p, s in zip(pos, data.shape)):
            want[index] = data[pos]
            back[pos] = data[pos]
    chunks = np.ascontiguousarray(want).reshape(-1).view(np.uint8).reshape(-1, 16)
    xor = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    moved = np.zeros_like(chunks)
    for i, ch in enumerate(chunks):
        moved[i ^ ((i >> 3) & xor)] = ch
    np.testing.assert_array_equal(out.read().view(np.uint8).reshape(-1, 16), moved)
    np.testing.assert_array_equal(dst.read(), back)


def test_tma_refusals() -> None:
    dev = Device()
    a = dev.zeros((16, 64), np.float16)
    for kwargs, text in (
        ({"strides": (100,), "box": (64, 8)}, "multiples of 16"),
        ({"strides": (128,), "box": (4, 8)}, "not a multiple of 16"),
        ({"strides": (128,), "box": (64, 8), "swizzle": 32}, "swizzle"),
        ({"strides": (128,), "box": (64, 512)}, "1..256"),
        ({"strides": (), "box": (64, 8)}, "rank 2"),
    ):
        with pytest.raises(LaunchError, match=text):
            dev.tensor_map(a, "f16", (64, 16), **kwargs)  # type: ignore[arg-type]
    k = dev.load(_tma_kernel(2, 1024)).kernel()
    out = dev.zeros(256, np.uint32)
    good = dev.tensor_map(a, "f16", (64, 16), (128,), (64, 8), 128)
    with pytest.raises(SyncError, match="not made by the emulator"):
        k.launch(1, 32, [out, bytes(128), good, bytes(20)])
    long = dev.tensor_map(a, "f16", (64, 64), (128,), (64, 8), 128)
    with pytest.raises(MemoryFault, match="behind the end"):
        k.launch(1, 32, [out, long, good, np.array([0, 16, 0, 0, 0], np.int32).tobytes()])
