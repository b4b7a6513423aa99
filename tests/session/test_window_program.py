"""``warptrace profile --window`` around a program that compiles with the DSL and launches on the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warptrace

pytestmark = pytest.mark.dsl
pytest.importorskip("cutlass")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from window_kernel import Graph, compile_numbered, device
from warptrace.runtime.emulated import launch
import warptrace

kernel = compile_numbered()  # outside every window, and with events all the same
launch(kernel, device(), [1])
with warptrace.capture():
    launch(kernel, device(), [2])
    graph = Graph.capture(3)
    graph.replay()
graph.replay()
launch(kernel, device(), [4])
warptrace.start()
graph.replay()
launch(kernel, device(), [5])
warptrace.stop()
graph.replay()
"""


def test_kernels_have_events_from_the_start_and_windows_choose_launches(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), env.get("PYTHONPATH", "")])
    options = ["--window", "--buffer-size", "16M", "--no-untraced-build", "--postprocess", "json"]
    command = [sys.executable, "-m", "warptrace", "profile", "-o", "run", *options, "--", sys.executable, "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    trace = warptrace.load(tmp_path / "run")
    numbers = [set(trace.markers.bits[trace.warps.launch[trace.markers.warp] == x.index]) for x in trace.launches]
    assert [n for one in numbers for n in one] == [2, 3, 3, 5]
    assert all(x.lost_events == 0 and x.warps_recorded == x.warps_expected for x in trace.launches)
    assert len(trace.meta["windows"]) == 2
    (file,) = (tmp_path / "run").glob("*.trace.json")
    windows = json.loads(file.read_text())["warptrace"]["windows"]
    assert [w["startTs"] for w in windows] == [None, None]  # an emulated device has no clock to compare
    assert all(w["beginUnixNs"] < w["endUnixNs"] for w in windows)
