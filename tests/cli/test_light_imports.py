"""What starts fast must stay fast: nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command_line import Cli, environment

import warptrace

HEAVY = ("numpy", "rich", "cuda", "cutlass", "torch", "orjson", "ctypes")


def imported_by(code: str) -> list[str]:
    """Which of HEAVY a fresh Python has after ``code``."""
    report = f"import sys; {code}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    words = [sys.executable, "-c", report]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()[-1].split()


def test_the_check_itself_sees_heavy_modules() -> None:
    assert "numpy" in imported_by("import warptrace.wire")


@pytest.mark.parametrize(
    "code",
    [
        "import warptrace",
        "import warptrace.runtime.options",
        "import os; os.environ['WARPTRACE'] = '1'; from warptrace.runtime import autostart; autostart.start()",
        "from warptrace.cli import main; main(['profile', '-o', '/dev/null/x', '--', 'true'])",
        "from warptrace.cli import build_parser; build_parser().format_help()",
    ],
)
def test_nothing_heavy(code: str) -> None:
    assert imported_by(code) == []


def test_the_package_without_its_dependencies() -> None:
    block = "sys.modules.update({m: None for m in ('numpy', 'rich')})"
    assert set(imported_by(f"{block}; import warptrace; warptrace.__version__")) <= {"numpy", "rich"}


def test_version(cli: Cli) -> None:
    done = cli("--version")
    assert (done.returncode, done.stdout) == (0, f"warptrace {warptrace.__version__}\n")


@pytest.mark.parametrize("words", [["--help"], ["profile", "--help"], ["postprocess", "-h"], ["dump", "-h"]])
def test_help(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: warptrace")


def test_no_verb(cli: Cli) -> None:
    done = cli()
    assert done.returncode == 2
    assert done.stderr == (
        "warptrace: error: no verb given; see `warptrace --help`\n"
    )
