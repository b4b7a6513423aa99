"""What a program declares with ``warptrace.flow`` stands in its capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import warptrace
from warptrace.runtime.options import RuntimeOptions
from warptrace.runtime.recorder import Recorder
recorder = Recorder(RuntimeOptions(directory=sys.argv[1]))
recorder.start()
warptrace.flow("tma_issue", "ab_wait")
warptrace.flow("load", "use", key="order")
recorder.stop()
"""


def test_flows_reach_the_manifest(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], env=env, check=True, timeout=60)
    (manifest,) = tmp_path.glob("pid_*/manifest.json")
    assert json.loads(manifest.read_text())["flows"] == [
        {"source": "tma_issue", "target": "ab_wait", "key": "payload"},
        {"source": "load", "target": "use", "key": "order"},
    ]
