"""The start-up hook: arms the tracer before the program's own code, and leaves no other trace of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warptrace.cli._child import BOOTSTRAP

ARMED = "import sys\ndef start():\n    sys.stderr.write('armed\\n')\n"


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder whose ``warptrace`` says when it is armed; its ``start`` can be replaced by a test."""
    runtime = tmp_path / "stub" / "warptrace" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").touch()
    (runtime / "__init__.py").touch()
    (runtime / "autostart.py").write_text(ARMED)
    return tmp_path / "stub"


def python(
    code: str, *path: Path, flags: tuple[str, ...] = (), enabled: str = "1", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with the bootstrap and then ``path`` on PYTHONPATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    env["PYTHONPATH"] = os.pathsep.join(map(str, (BOOTSTRAP, *path)))
    env["WARPTRACE"] = enabled
    words = [sys.executable, *flags, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, env=env | variables, timeout=60)


def folder(tmp_path: Path, name: str, code: str) -> Path:
    """A folder with a sitecustomize of its own."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "sitecustomize.py").write_text(code)
    return tmp_path / name


def test_arms_before_the_program(stub: Path) -> None:
    done = python("import sys; sys.stderr.write('program\\n')", stub)
    assert (done.returncode, done.stderr) == (0, "armed\nprogram\n")


@pytest.mark.parametrize("enabled", ["0", "", "yes"])
def test_only_where_it_is_asked_for(stub: Path, enabled: str) -> None:
    done = python("pass", stub, enabled=enabled)
    assert (done.returncode, done.stderr) == (0, "")


def test_takes_only_itself_off_the_path(stub: Path, tmp_path: Path) -> None:
    show = "import sys, os; print([p for p in sys.path if p in os.environ['WANTED'].split(':')])"
    other = tmp_path / "other"
    wanted = ":".join(map(str, (BOOTSTRAP, stub, other)))
    done = python(show, stub, other, WANTED=wanted)
    assert done.stdout == f"{[str(stub), str(other)]}\n"


def test_children_find_it_through_the_environment(stub: Path) -> None:
    done = python("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])", stub)
    assert (done.returncode, done.stderr) == (0, "armed\narmed\n")


def test_runs_the_sitecustomize_that_comes_next(stub: Path, tmp_path: Path) -> None:
    first = folder(tmp_path, "first", "import sys\nNAME = 'first'\nsys.stderr.write(f'{__name__} {NAME}\\n')\n")
    second = folder(tmp_path, "second", "raise AssertionError('only the first one runs')\n")
    done = python("import sitecustomize; print(sitecustomize.NAME, sitecustomize.__file__)", stub, first, second)
    assert done.stderr == "sitecustomize first\narmed\n"
    assert done.stdout == f"first {first / 'sitecustomize.py'}\n"


def test_runs_the_next_one_also_where_it_does_not_arm(stub: Path, tmp_path: Path) -> None:
    other = folder(tmp_path, "other", "print('other')\n")
    assert python("pass", stub, other, enabled="0").stdout == "other\n"


def test_a_fault_of_the_next_one_shows_as_without_us(stub: Path, tmp_path: Path) -> None:
    broken = folder(tmp_path, "broken", "raise RuntimeError('theirs')\n")
    done = python("print('program')", stub, broken)
    assert (done.returncode, done.stdout) == (0, "program\n")
    assert "RuntimeError: theirs" in done.stderr
    assert "armed" in done.stderr


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def start():\n    raise ValueError('no room')\n", "ValueError: no room"),
        ("import a_missing_module\n", "No module named 'a_missing_module': install it with this Python's pip"),
        ("def begin(): pass\n", "AttributeError: "),
        ("def start(:\n", "SyntaxError: "),
    ],
)
def test_a_fault_of_ours_is_a_line_and_the_program_goes_on(stub: Path, code: str, reason: str) -> None:
    (stub / "warptrace" / "runtime" / "autostart.py").write_text(code)
    done = python("print('program')", stub)
    assert (done.returncode, done.stdout) == (0, "program\n")
    assert done.stderr.startswith("warptrace: warning: not recording in pid ")
    assert f"({sys.executable}): {reason}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_python_without_warptrace_is_told(tmp_path: Path) -> None:
    code = "import sys; print('program')"
    # -s and an empty prefix are not enough to hide an installed warptrace; a finder that refuses it is.
    hide = folder(
        tmp_path,
        "hide",
        "import sys\nclass Hide:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'warptrace':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n",
    )
    done = python(code, hide)
    assert (done.returncode, done.stdout) == (0, "program\n")
    assert done.stderr.endswith("this Python has no warptrace, or one too old: install it with this Python's pip\n")


def test_a_closed_stderr_is_no_fault(stub: Path) -> None:
    (stub / "warptrace" / "runtime" / "autostart.py").write_text("raise ValueError\n")
    line = f"'{sys.executable}' -c 'print(7)' 2>&-"
    done = python(f"import subprocess; print(subprocess.run({line!r}, shell=True).returncode)", stub)
    assert (done.returncode, done.stdout) == (0, "7\n0\n")


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_keep_the_environment_out_keep_us_out(stub: Path, flag: str) -> None:
    done = python("print('program')", stub, flags=(flag,))
    assert (done.returncode, done.stdout, done.stderr) == (0, "program\n", "")
