"""Speed of the PTX emulator in warp instructions per second.

    python benchmarks/emulator_speed.py [--json FILE] [--repeat N]

Each kernel is translated before the clock starts; the best of N runs counts. A warp
instruction is one PTX instruction executed by one warp, whatever its number of active lanes.
Seconds are CPU seconds of this single-threaded process, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np

from warptrace.emulator import Device

GOAL = 200_000

HEAD = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 n)
{
.reg .pred %p<4>; .reg .b32 %r<24>; .reg .b64 %rd<6>;
.shared .align 16 .b8 buf[1024];
ld.param.u64 %rd0, [out]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, 1;
mov.u32 %r20, buf; shl.b32 %r21, %r1, 2; add.u32 %r22, %r20, %r21; mov.f32 %r10, 0f3F800000;
mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd0, %rd1;
"""
TAIL = """
st.global.b32 [%rd2], %r3;
ret;
}
"""
LOOPS = {
    "integer and f32 arithmetic, uniform loop": """
L: add.u32 %r2, %r2, 1; mul.lo.u32 %r3, %r3, 1664525; add.u32 %r3, %r3, %r1; xor.b32 %r4, %r3, %r2;
   shl.b32 %r5, %r4, 3; shr.u32 %r6, %r4, 5; or.b32 %r7, %r5, %r6; and.b32 %r8, %r7, 65535;
   add.f32 %r11, %r10, 0f3F000000; mul.f32 %r10, %r11, 0f3F000000;
   setp.lt.u32 %p1, %r2, %r0; @%p1 bra L;
""",
    "arithmetic in a divergent loop and branch": """
   and.b32 %r9, %r1, 7; add.u32 %r9, %r9, %r0;
L: add.u32 %r2, %r2, 1; and.b32 %r4, %r2, %r1; setp.eq.u32 %p2, %r4, 0; @%p2 bra A;
   mul.lo.u32 %r3, %r3, 3; add.u32 %r3, %r3, 1; bra B;
A: shr.u32 %r3, %r3, 1;
B: setp.lt.u32 %p1, %r2, %r9; @%p1 bra L;
""",
    "f32 fma": """
   cvt.rn.f32.u32 %r10, %r1; mul.f32 %r10, %r10, 0f3BA3D70A; mov.f32 %r12, 0f00000000;
L: add.u32 %r2, %r2, 1; fma.rn.f32 %r11, %r10, 0fC079999A, 0f4079999A; fma.rn.f32 %r10, %r10, %r11, 0f38D1B717;
   fma.rn.f32 %r12, %r11, %r10, %r12; setp.lt.u32 %p1, %r2, %r0; @%p1 bra L;
""",
    "global and shared loads and stores": """
L: add.u32 %r2, %r2, 1; ld.global.b32 %r4, [%rd2]; add.u32 %r4, %r4, 1; st.shared.b32 [%r22], %r4;
   ld.shared.b32 %r5, [%r22]; st.global.b32 [%rd2], %r5; setp.lt.u32 %p1, %r2, %r0; @%p1 bra L;
""",
    "block barrier and shuffles": """
L: add.u32 %r2, %r2, 1; shfl.sync.bfly.b32 %r4, %r3, 16, 31, -1; add.u32 %r3, %r3, %r4;
   shfl.sync.bfly.b32 %r4, %r3, 8, 31, -1; add.u32 %r3, %r3, %r4; bar.sync 0;
   setp.lt.u32 %p1, %r2, %r0; @%p1 bra L;
""",
}


def measure(body: str, ctas: int, threads: int, trips: int, repeat: int) -> tuple[int, float]:
    """(warp instructions, seconds of the fastest run)."""
    device = Device(0)
    out = device.zeros(threads, np.uint32)
    kernel = device.load(HEAD + body + TAIL).kernel()
    best, count = float("inf"), 0
    for _ in range(repeat):
        t0 = time.process_time()
        count = kernel.launch(ctas, threads, [out, trips]).instructions
        best = min(best, time.process_time() - t0)
    return count, best


def main(argv: list[str] | None = None) -> int:
    """Print the table; exit code 1 when the scalar code, or all kernels together, miss the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    rows = []
    print(f"{'kernel':44} {'shape':>12} {'instructions':>13} {'seconds':>8} {'per second':>12}")
    for name, body in LOOPS.items():
        for ctas, threads, trips in ((1, 128, 1000), (64, 128, 15)):
            count, seconds = measure(body, ctas, threads, trips, args.repeat)
            rate = count / seconds
            shape = f"{ctas} x {threads}"
            print(f"{name:44} {shape:>12} {count:>13,} {seconds:>8.3f} {rate:>12,.0f}")
            rows.append({"kernel": name, "ctas": ctas, "threads": threads, "instructions": count,
                         "seconds": round(seconds, 4), "per_second": round(rate)})  # fmt: skip
    together = round(sum(r["instructions"] for r in rows) / sum(r["seconds"] for r in rows))
    print(f"{'all together':44} {'':>12} {'':>13} {'':>8} {together:>12,}")
    ok = min(rows[0]["per_second"], rows[1]["per_second"], together) >= GOAL
    print(f"goal for scalar code and for all together: {GOAL:,} a second: {'met' if ok else 'MISSED'}")
    if args.json:
        info = {"python": platform.python_version(), "numpy": np.__version__, "goal": GOAL}
        info |= {"together": together, "rows": rows}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(info, indent=1) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
