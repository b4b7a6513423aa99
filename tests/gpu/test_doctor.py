"""``warptrace doctor`` on a GPU: everything is in order, and one event is recorded."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

from gpu_kit import Figure, run

pytestmark = pytest.mark.gpu

DOCTOR = [sys.executable, "-m", "warptrace", "doctor"]


def test_all_is_well(tmp_path: Path, figure: Figure) -> None:
    done = run([*DOCTOR, "--json", "--require-gpu", "--buffer-size", "64M"], tmp_path)
    assert done.status == 0, done.said
    findings = json.loads(done.stdout)["findings"]
    by_name = {f["name"]: f for f in findings}
    assert {f["state"] for f in findings if not f["name"].endswith("folder")} == {"ok"}, findings
    assert by_name["records"]["text"] == "a kernel with one event was recorded on device 0"
    assert "records (emulated)" not in by_name
    step = int(re.fullmatch(r"%globaltimer moves in steps of (\d+) ns", by_name["clock"]["text"]).group(1))
    assert 1 <= step <= 100
    figure("step of %globaltimer (ns)", step)
    figure("findings", [f"{f['state']} {f['name']}: {f['text']}" for f in findings])
    figure("seconds", round(done.seconds, 1))


def test_no_visible_device(tmp_path: Path) -> None:
    done = run([*DOCTOR, "--require-gpu"], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.status == 1
    assert "CUDA_VISIBLE_DEVICES is ''" in done.stdout or "no CUDA-capable device" in done.stdout, done.said
    assert "a kernel with one event was recorded on the emulator" in done.stdout
