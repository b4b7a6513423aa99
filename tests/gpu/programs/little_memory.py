"""Records ``steps`` on a device whose memory is full, then on one with little left: DIRECTORY of the captures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cutlass
import torch
from cutlass import cute
from gpu_kernels import steps_host
from gpu_kit import Out, recording

import warptrace.cute as iket

CTAS = 132
MIB = 1 << 20
LARGEST = 8 << 30


def fill(left: int) -> list[torch.Tensor]:
    """Takes device memory in blocks, the largest first, until about ``left`` bytes are free."""
    blocks = []
    size = LARGEST
    while size >= 2 * MIB:
        free = torch.cuda.mem_get_info()[0]
        if free - size < left:
            size //= 2
            continue
        try:
            blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    print(f"left {torch.cuda.mem_get_info()[0] // MIB} MiB in {len(blocks)} blocks taken")
    return blocks


def main() -> None:
    folder = Path(sys.argv[1])
    out = Out(CTAS)
    with iket.tracing():
        compiled = cute.compile(steps_host, out.cute, cutlass.Int32(1), cutlass.Int32(CTAS))

    def call(n: int) -> bool:
        compiled(out.cute, cutlass.Int32(n), cutlass.Int32(CTAS))
        return out.holds(n)

    assert call(1)  # everything that the program itself needs is loaded now

    blocks = fill(12 * MIB)
    with recording(folder / "nothing", buffer_bytes=1 << 30):
        ok = call(2)
    print(f"nothing left: {'ok' if ok else 'WRONG'}")

    del blocks
    torch.cuda.empty_cache()
    blocks = fill(250 * MIB)
    with recording(folder / "little", buffer_bytes=1 << 30):
        ok = call(3)
    print(f"little left: {'ok' if ok else 'WRONG'}")
    del blocks
    torch.cuda.empty_cache()
    assert call(4)


if __name__ == "__main__":
    main()
