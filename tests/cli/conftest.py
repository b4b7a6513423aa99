"""Fixtures of the tests of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import WORKLOAD, Cli, environment

# The trace processor, where its packages are installed.
sys.path.append(str(Path(__file__).resolve().parents[1] / "export"))


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """``cli(*words)`` runs ``python -m warptrace`` in ``tmp_path`` and returns what came of it."""

    def run(*words: str, stdin: str = "", cwd: Path = tmp_path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "warptrace", *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment() | variables,
            timeout=60,
        )

    return run


@pytest.fixture
def workload(tmp_path: Path) -> list[str]:
    """The words that run the program above, its own Python not armed: what it writes is all there is."""
    script = tmp_path / "workload.py"
    script.write_text(WORKLOAD)
    return ["env", "WARPTRACE=0", sys.executable, str(script)]


@pytest.fixture
def run_dir(cli: Cli, workload: list[str], tmp_path: Path) -> Path:
    """A run directory with the raw capture of pid 4242 and no outputs."""
    done = cli("profile", "-o", "run", "--postprocess", "none", "--", *workload, "4242")
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"
