"""When a traced process begins to record: at the import of the DSL, however the program comes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.dsl
pytest.importorskip("cutlass")

PROGRAMS = {
    "import": "import cutlass",
    "asked before": """
import importlib.util
assert importlib.util.find_spec("cutlass") is not None
assert importlib.util.find_spec("cutlass") is not None
import cutlass
""",
    "from a submodule": "from cutlass.cute import arch",
    "in a thread": """
import threading
thread = threading.Thread(target=lambda: __import__("cutlass"))
thread.start()
thread.join()
""",
    "warptrace first": "import warptrace.cute",
}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warptrace", "-o", str(folder), "profile", "--postprocess", "none", "--"]
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a"}
    environment.pop("WARPTRACE", None)
    return subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.parametrize("how", PROGRAMS)
def test_the_import_of_the_dsl_begins_a_capture(how: str, tmp_path: Path) -> None:
    done = run(PROGRAMS[how], tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "raw").glob("pid_*/manifest.json"))) == 1, done.stderr


def test_a_program_without_the_dsl_is_left_alone(tmp_path: Path) -> None:
    done = run("import json, sys; assert 'numpy' not in sys.modules", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "run" / "raw").glob("pid_*"))


def test_a_forked_child_has_a_capture_of_its_own(tmp_path: Path) -> None:
    code = """
import os, sys
import cutlass
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = run(code, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "raw").glob("pid_*/manifest.json"))) == 2, done.stderr
