"""Compiles kernels of installed packages of other people, in a process of its own, whose environment
names the architecture to them (see test_third_party_compile.py). Prints, as JSON, what each kernel records.

    python third_party_kernels.py ARCH GROUPS|lifetimes CASE ...
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from warptrace import registry
from warptrace.frontends.cute import dsl
from warptrace.selection import Selection

ARCH, WHAT, CASES = sys.argv[1], sys.argv[2], sys.argv[3:]
MAJOR = int(ARCH.removeprefix("sm_").rstrip("a")) // 10
BF16 = cutlass.BFloat16


def softmax(columns: int = 8192) -> Any:
    from quack.softmax import Softmax

    return Softmax.compile(BF16, BF16, columns)


def rmsnorm(columns: int = 8192) -> Any:
    from quack.rmsnorm import _compile_rmsnorm_fwd

    return _compile_rmsnorm_fwd(BF16, BF16, None, cutlass.Float32, None, None, columns, False, False, False, False)


def gemm() -> None:
    """The persistent kernel of the architecture, dynamically scheduled where that is done in hardware."""
    from quack.gemm import _compile_gemm
    from quack.rounding import RoundingMode

    tile = (128, 192) if MAJOR == 9 else (256, 256)
    nothing = (None, None, 0, 0, 0, 0, False, None, False, False, False, False, False)
    majors = ("k", "k", "n", None)
    _compile_gemm(
        BF16, BF16, BF16, None, *majors, tile, (2, 1, 1), MAJOR == 9, True, MAJOR != 9, *nothing[1:], (MAJOR, 0),
        RoundingMode.RN, 0, None,
    )  # fmt: skip


def fakes(number: int, *shape: int, dtype: Any = torch.bfloat16) -> list[Any]:
    return [torch.empty(*shape, dtype=dtype, device="cuda") for _ in range(number)]


def attention_fwd() -> None:
    from flash_attn.cute.interface import flash_attn_func

    with FakeTensorMode():
        flash_attn_func(*fakes(3, 2, 1024, 8, 128), causal=True)


def attention_bwd() -> None:
    from flash_attn.cute.interface import _flash_attn_bwd

    with FakeTensorMode():
        (lse,) = fakes(1, 2, 8, 1024, dtype=torch.float32)
        _flash_attn_bwd(*fakes(5, 2, 1024, 8, 128), lse, causal=True)


def trimul() -> None:
    """The batched matrix product that fast_trimul brings along; its module of kernels asks for a GPU when imported."""
    from cutlass.cute.runtime import make_fake_stream
    from fast_trimul._tensorop_gemm import TensorOpGemm, bmm

    half = cutlass.Float16
    a, b, c = (
        cute.runtime.make_fake_compact_tensor(half, (4, 256, 256), stride_order=order, assumed_align=16)
        for order in ((2, 1, 0), (2, 0, 1), (2, 1, 0))
    )
    cute.compile(bmm, TensorOpGemm(half, half, cutlass.Float32, (2, 2, 1), False), a, b, c, make_fake_stream())


def emulated(case: str) -> dict[str, Any]:
    """Runs a kernel of rows on the emulator: how often each range was recorded, and how far the result is off."""
    import numpy as np

    from warptrace.decode import decode
    from warptrace.emulator import Device
    from warptrace.emulator.cute import from_compiled
    from warptrace.raw import read_capture
    from warptrace.runtime.emulated import EmulatedRecording

    rows, columns = 6, 512
    compiled = {"softmax": softmax, "rmsnorm": rmsnorm}[case](columns)
    ptx = compiled.__ptx__
    (kernel,) = from_compiled(compiled, ptx if isinstance(ptx, str) else ptx.decode())
    device = Device()
    torch.manual_seed(3)
    x, weight = torch.randn(rows, columns).bfloat16(), torch.rand(columns)
    source = device.alloc(x.view(torch.int16).numpy())
    made = device.alloc(np.zeros((rows, columns), np.int16))
    tensors = [struct.pack("<QiiQ", array.address, rows, 0, columns) for array in (source, made)]
    if case == "softmax":
        args: list[Any] = tensors
        exact = torch.softmax(x.float(), -1)
    else:
        factors = struct.pack("<Q", device.alloc(weight.numpy()).address)
        args = [tensors[0], factors, tensors[1], struct.pack("<f", 1e-6)]
        exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight
    with tempfile.TemporaryDirectory() as folder:
        recording = EmulatedRecording(Path(folder) / "pid_1", device=device, buffer_bytes=16 << 20)
        recording.launch(kernel, args, grid=2, block=128, smem=32 << 10)
        recording.finish()
        trace = decode([read_capture(Path(folder) / "pid_1")])
    result = torch.from_numpy(made.read()).view(torch.bfloat16).float()
    return {
        "counts": Counter(trace.strings[i] for i in trace.ranges.name),
        "warps": len(trace.warps),
        "lost": trace.launches[0].lost_events,
        "problems": [p.text for p in trace.problems],
        "error": float(((result - exact).abs() / exact.abs().clamp(min=1e-6)).max()),
    }


def main() -> None:
    dsl.arm()
    if WHAT == "lifetimes":
        registry.select(Selection(lifetimes=True))
    else:
        dsl.instrument(tuple(WHAT.split(",")))
    found: dict[str, Any] = {}
    for case in CASES:
        registry._records.clear()
        if case.startswith("emulated-"):
            found[case] = emulated(case.removeprefix("emulated-"))
            continue
        globals()[case]()
        found[case] = {
            r.symbol: sorted({(s.name, Path(s.file).name) for s in r.sites if s.name}) for r in registry.records()
        }
    found["without"] = registry.without_events()
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main()
