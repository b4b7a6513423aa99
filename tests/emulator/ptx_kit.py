"""Run a few PTX instructions on 32 (or more) lanes of inputs: what the instruction tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

from warptrace.emulator import Device, LaunchResult

HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
_REG = {1: "pred", 2: "b16", 4: "b32", 8: "b64"}


def module(body: str, params: str = "", extra: str = "", attrs: str = "") -> str:
    """A module with one kernel ``k``."""
    return f"{HEADER}{extra}\n.visible .entry k({params}) {attrs}\n{{\n{body}\n}}\n"


def run_lanes(
    code: str, inputs: list[Any], out_dtype: Any, *, active: int | None = None, regs: str = "", seed: int = 0
) -> Any:
    """Run ``code`` in one warp: ``%a0``, ``%a1``.. hold the inputs' lanes, ``%d`` is the result.

    The inputs have 32 elements each. With ``active`` only these lanes (a bit mask) execute the code, in a
    divergent branch; the others return zeros.
    """
    dev = Device(seed)
    out = dev.zeros(32, out_dtype)
    params = ", ".join(f".param .u64 p{i}" for i in range(len(inputs))) + (", " if inputs else "") + ".param .u64 po"
    osize = np.dtype(out_dtype).itemsize
    lines = [f".reg .{_REG[osize]} %d; .reg .b64 %addr<3>; .reg .b32 %t<4>; .reg .pred %q<4>; {regs}"]
    lines.append("mov.u32 %t0, %laneid;")
    for i, x in enumerate(inputs):
        size = x.dtype.itemsize
        lines.append(f".reg .b{8 * size} %a{i};" if size > 1 else f".reg .b16 %a{i};")
        lines.append(f"ld.param.u64 %addr0, [p{i}]; mad.wide.u32 %addr1, %t0, {size}, %addr0;")
        lines.append(f"ld.global.b{8 * size} %a{i}, [%addr1];")
    lines.append(f"ld.param.u64 %addr0, [po]; mad.wide.u32 %addr2, %t0, {osize}, %addr0;")
    if active is not None:
        lines.append(f"mov.u32 %t1, {active}; shr.u32 %t2, %t1, %t0; and.b32 %t3, %t2, 1;")
        lines.append("setp.eq.u32 %q3, %t3, 0; @%q3 bra DONE;")
    lines += [code, f"st.global.b{8 * osize} [%addr2], %d;", "DONE: ret;"]
    kernel = dev.load(module("\n".join(lines), params)).kernel()
    kernel.launch(1, 32, [*(dev.alloc(x) for x in inputs), out])
    return out.read()


def launch(
    body: str, arrays: list[Any], *, grid: Any = 1, block: Any = 32, **kwargs: Any
) -> tuple[list[Any], LaunchResult]:
    """Launch a kernel whose parameters are pointers to the arrays, held in %ptr0..; returns their contents after it."""
    dev = kwargs.pop("device", None) or Device(kwargs.pop("seed", 0))
    params = ", ".join(f".param .u64 p{i}" for i in range(len(arrays)))
    loads = "".join(f".reg .b64 %ptr{i}; ld.param.u64 %ptr{i}, [p{i}];\n" for i in range(len(arrays)))
    text = module(loads + body, params, kwargs.pop("extra", ""), kwargs.pop("attrs", ""))
    mem = [dev.alloc(a) for a in arrays]
    result = dev.load(text).kernel().launch(grid, block, mem, **kwargs)
    return [m.read() for m in mem], result


def pad32(values: list[Any], dtype: Any) -> Any:
    """The values repeated to 32 lanes."""
    return np.resize(np.array(values, dtype), 32)


def pairs32(values: list[Any], dtype: Any) -> list[tuple[Any, Any]]:
    """All ordered pairs of the values as a list of 32-lane (a, b) rows."""
    v = np.array(values, dtype)
    a, b = np.repeat(v, len(v)), np.tile(v, len(v))
    n = -(-len(a) // 32) * 32
    a, b = np.resize(a, n), np.resize(b, n)
    return [(a[i : i + 32], b[i : i + 32]) for i in range(0, n, 32)]


def same_bits(got: Any, want: Any) -> None:
    """Equal bit for bit, except that any NaN equals any NaN."""
    got = np.asarray(got)
    want = np.array(want, got.dtype) if isinstance(want, list) else np.asarray(want).astype(got.dtype)
    if got.dtype.kind == "f":
        both = np.isnan(got) & np.isnan(want)
        bits = f"u{got.dtype.itemsize}"
        bad = (got.view(bits) != want.view(bits)) & ~both
    else:
        bad = got != want
    i = int(np.argmax(bad))
    assert not bad.any(), f"lane {i}: got {got[i]!r}, expected {want[i]!r}"
