"""Kernels that come from an object file: what they record is known without the process that compiled them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import auto_kernels
import cutlass
import cutlass.cute as cute
from dsl_build import tensor

import warptrace.cute as iket
from warptrace import registry
from warptrace.frontends.cute import dsl, objects
from warptrace.runtime.options import AUTO_DEFAULT

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def off_again():
    yield
    dsl.instrument(())
    objects._silent.clear()


def exported(folder: Path, name: str, *, on: bool = True):
    """(record of the kernel as it was traced, path of the file)."""
    registry._records.clear()
    with iket.tracing(on):
        compiled = cute.compile(auto_kernels.plain_host, tensor(), cutlass.Int32(3))
    compiled.export_to_c(file_path=str(folder), file_name=name, function_prefix=name)
    return [replace(r, build={}) for r in registry.records()], folder / f"{name}.o"


def test_objects_that_another_process_loads(tmp_path):
    """One with events, one compiled without tracing (which is said, once a folder), one whose table is damaged."""
    _, plain = exported(tmp_path, "plain", on=False)
    assert b"warptrace" not in plain.read_bytes()
    dsl.instrument(AUTO_DEFAULT)
    (record,), path = exported(tmp_path, "traced")
    content = path.read_bytes()
    assert objects.records_in(content) == [record]
    at = content.index(objects._MARK.encode()) + len(objects._MARK) + 40
    damaged = tmp_path / "damaged.o"
    damaged.write_bytes(content[:at] + b"////" + content[at + 4 :])
    code = (
        "import sys\nimport cutlass.cute as cute\nfrom warptrace import registry\n"
        "from warptrace.frontends.cute import dsl\ndsl.arm()\n"
        "for path in sys.argv[1:]:\n    cute.runtime.load_module(path)\n"
        "print([(f'{r.kernel_id:x}', [(s.name, s.line) for s in r.sites]) for r in registry.records()])\n"
        "print(registry.without_events())\n"
    )
    env = {**os.environ, "WARPTRACE": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    words = [sys.executable, "-c", code, *map(str, (plain, path, damaged, plain))]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    known = [(f"{record.kernel_id:x}", [(s.name, s.line) for s in record.sites])]
    assert (done.returncode, done.stdout) == (0, f"{known}\n['plain.o']\n"), done.stderr
    said = f"{plain} was compiled without tracing, so its kernels are not recorded"
    assert done.stderr.count(said) == done.stderr.count("\n") == 1


def test_nothing_is_said_where_nothing_records(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("WARPTRACE", raising=False)
    path = tmp_path / "other.o"
    path.write_bytes(b"\x7fELF")
    objects._announce(str(path))
    monkeypatch.setenv("WARPTRACE", "1")
    assert capsys.readouterr().err == ""
    objects._announce(str(path))
    assert str(path) in capsys.readouterr().err


def test_two_modules_in_one_file(tmp_path):
    """As linkers and archives put them together."""
    dsl.instrument(("waits",))
    first, path = exported(tmp_path, "first")
    dsl.instrument(("barriers",))
    second, other = exported(tmp_path, "second")
    found = objects.records_in(path.read_bytes() + other.read_bytes())
    assert found == [*first, *second]
    assert found[0].kernel_id != found[1].kernel_id
