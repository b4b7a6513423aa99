"""``profile --measure-overhead`` through real subprocesses: two runs, one table, one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"

PROGRAM = """
import os, sys
import fake_gpu
from warptrace import registry
full = not registry.selection().lifetimes
with open("runs", "a") as file:
    print("full" if full else "lifetimes", file=file)
fake_gpu.WARP_EVENTS_NS = 18900 if full else 18000
steps = fake_gpu.Kernel("steps", events=10 if full else 0)
for _ in range(4):
    steps.launch()
{tail}
"""


def profile(folder: Path, tail: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM.format(tail=tail))
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(FAKES), *rest])
    own = [sys.executable, "-m", "warptrace", "profile", "-o", "run", *options, "--", sys.executable, str(script)]
    return subprocess.run(own, capture_output=True, text=True, cwd=folder, env=env, timeout=120)


def test_both_runs_are_compared(tmp_path: Path) -> None:
    done = profile(tmp_path, "", "--measure-overhead", "--postprocess", "json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs").read_text().split() == ["lifetimes", "full"]
    data = json.loads((tmp_path / "run" / "overhead.json").read_text())
    assert (data["format"], data["version"]) == ("warptrace overhead", 1)
    (row,) = data["kernels"]
    assert (row["kernel"], row["launches"], row["unpaired"], row["lost_events"]) == ("steps", 4, 0, 0)
    assert row["events"] == 4 * 2 * 10
    # warps of 18000 and 18900 cycles at 1.98 GHz; times are good to a step of the timer, 32 ns
    assert abs(row["lifetimes_ns"] - 18000 / 1.98) <= 32
    assert abs(row["full_ns"] - 18900 / 1.98) <= 32
    assert abs(row["ratio"] - 1.05) <= 2 * 32 / 9090
    assert row["cycles_per_event"] == 900 / 10
    assert "first run, with lifetimes only" in done.stderr
    assert "what recording costs (lifetimes only against all events)" in done.stderr
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        next(p.name for p in (tmp_path / "run").glob("*.trace.json")), "overhead.json", "raw", "run.json",
    ]  # fmt: skip
    assert "overhead.json" in json.loads((tmp_path / "run" / "run.json").read_text())["outputs"]


def test_a_first_run_that_fails_is_told(tmp_path: Path) -> None:
    done = profile(tmp_path, "if not full: os._exit(5)", "--measure-overhead", "--postprocess", "json")
    assert done.returncode == 0, done.stderr
    assert "with lifetimes only" in done.stderr and "exit status 5" in done.stderr


def test_a_command_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    own = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--measure-overhead", "--", "no-such-command"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(own, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == 127
    assert list(tmp_path.iterdir()) == []


def test_it_excludes_warp_trace(tmp_path: Path) -> None:
    done = profile(tmp_path, "", "--measure-overhead", "--warp-trace")
    assert done.returncode == 2
    message = "--measure-overhead compares with what --warp-trace records: drop one of the two"
    assert done.stderr.strip().endswith(message)
    assert not (tmp_path / "runs").exists()
