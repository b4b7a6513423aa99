"""The build records of kernels, as the decoder passes them on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture

from warptrace.decode import decode
from warptrace.raw import read_capture


def test_kernels_whose_build_is_known_appear_once(tmp_path: Path) -> None:
    kernel, bare = FakeKernel("gemm"), FakeKernel("sum")
    warp = FakeWarp(start_ns=3200)
    warp.event(kernel.mark("tick"), 10)
    bare.mark("tock")
    warp.exit(32000)
    device = FakeDevice(bank_bytes=1 << 16)
    device.launch(kernel, [warp])
    capture = read_capture(write_capture(tmp_path / "capture", [device], [kernel, bare]))
    code = {"registers": 168, "stack_bytes": 0, "code_bytes": 9856}
    build = {**code, "untraced": {**code, "registers": 160}}
    capture.kernels[kernel.id] = replace(kernel.record, build=build)
    capture.kernels[bare.id] = replace(bare.record, build={})  # from a cache of compiled code
    wanted = {"kernel_id": kernel.id, "kernel": "gemm", "arch": "sm_90a", **build}
    assert decode([capture]).meta["builds"] == [wanted]
    assert decode([capture, capture]).meta["builds"] == [wanted]
