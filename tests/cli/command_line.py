"""Running the command line as a user does, and a program that leaves captures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A program that leaves captures, as a traced one would, without a GPU. Its arguments are the pids of the captures;
# "damaged:PID" leaves one of a version that nobody reads, "empty:PID" one without a launch, "exit:N" sets the status.
WORKLOAD = '''
import json, os, sys
from pathlib import Path
from fake_device import FakeDevice, FakeKernel, FakeWarp, write_capture

def capture(pid, empty):
    kernel = FakeKernel("demo")
    push, pop, mark = kernel.push("load"), kernel.pop(), kernel.mark("tick")
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12)
    if not empty:
        warps = []
        for number in range(2):
            warp = FakeWarp(warp=number, start_ns=100 * number)
            warp.event(push, at=10)
            warp.event(mark, at=20)
            warp.event(pop, at=30)
            warps.append(warp.exit(at=40))
        device.launch(kernel, warps, block=(64, 1, 1))
    return write_capture(Path(os.environ["WARPTRACE_DIR"]) / f"pid_{pid}", [device], [kernel], pid=int(pid))

status = 0
for argument in sys.argv[1:]:
    kind, _, value = argument.rpartition(":")
    if kind == "exit":
        status = int(value)
        continue
    folder = capture(value, kind == "empty")
    if kind == "damaged":
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
print("workload done")
sys.exit(status)
'''

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
"""The ``cli`` fixture: words of a line, and keywords ``stdin``, ``cwd`` or environment variables."""


def environment() -> dict[str, str]:
    """This environment, with the package and the helpers importable and no tracer of ours in it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), *rest])
    return env
