"""Checks and times examples/hopper_gemm.py for problems such as "4096,4096,4096 128x256"; prints the medians in us."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import hopper_gemm


def main() -> int:
    medians = {}
    for problem in sys.argv[1:]:
        mnk, tile = problem.split()
        config = hopper_gemm.GemmConfig(*map(int, tile.split("x")))
        result = hopper_gemm.run(*map(int, mnk.split(",")), config, bench=True)
        if not result.correct:
            print(f"{problem}: WRONG, relative error {result.error}")
            return 1
        medians[problem] = result.microseconds
    print(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
