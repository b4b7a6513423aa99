"""docs/guide.md: its commands run, what it shows of their output is there, its code is the example's."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from warptrace.cli import parse

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide.md"
GEMM = ROOT / "examples" / "hopper_gemm.py"
FIXTURE = ROOT / "tests" / "fixtures" / "h200_gemm_512"
NEEDS_GPU = "<!-- needs a GPU -->"

MISSING = [path for path in (GUIDE, GEMM, FIXTURE) if not path.exists()]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not in this checkout: {MISSING}")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``gpu``: the line above says that it needs one."""

    kind: str
    text: str
    gpu: bool


def blocks() -> list[Block]:
    found = re.findall(rf"({re.escape(NEEDS_GPU)}\n)?```(\w*)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [Block(kind, text, bool(gpu)) for gpu, kind, text in found]


def entries(text: str) -> list[str]:
    """Lines of a block of output; lines that begin with two spaces go on with the one before."""
    return [plain(entry) for entry in re.split(r"\n(?!  )", text.strip("\n"))]


def plain(text: str) -> str:
    """Without the layout of tables."""
    return " ".join(text.split())


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """A copy of what the commands use of a checkout, and the environment to run them in."""
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for traces in (ROOT / "tests" / "fixtures" / "h200_gemm_tiles").glob("*.tar.xz"):
        with tarfile.open(traces) as archive:
            archive.extractall(tmp_path)
    tools = tmp_path / ".tools"
    tools.mkdir()
    for name, words in (("python", '"$@"'), ("warptrace", '-m warptrace "$@"')):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}\n')
        (tools / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    return env | {"PATH": f"{tools}:{env['PATH']}", "PYTHONPATH": str(ROOT / "src")}


def run(words: list[str], cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def serve(words: list[str], cwd: Path, env: dict[str, str]) -> str:
    """A command that serves until Ctrl-C: its address."""
    process = subprocess.Popen(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        return address
    finally:
        process.kill()
        process.wait()


EXTRAS = {"warptrace view gemm --no-browser": "viztracer", "--to parquet": "pyarrow", "to_pandas": "pandas"}
"""Parts of commands that need a library that may be missing."""


def missing(text: str) -> list[str]:
    """Libraries that a command needs and that are not installed."""
    return [name for part, name in EXTRAS.items() if part in text and importlib.util.find_spec(name) is None]


def test_the_guide_from_top_to_bottom(tmp_path: Path, shell: dict[str, str]) -> None:
    output: str | None = ""
    ran, compared, left_out = 0, 0, []
    for block in blocks():
        if block.gpu:
            continue
        if block.kind == "text":
            for entry in entries(block.text) if output is not None else []:
                assert entry in plain(output), f"not in the output: {entry}\n{output}"
                compared += 1
            continue
        lines = block.text.splitlines() if block.kind == "bash" else [block.text]
        if block.kind not in ("bash", "python") or "iket." in block.text:
            continue
        output = ""
        for line in lines:
            if missing(line):
                left_out.append(line)
                output = None if block.kind == "python" else output
                continue
            words = shlex.split(line) if block.kind == "bash" else ["python", "-c", line]
            words[0] = str(tmp_path / ".tools" / words[0]) if words[0] in ("python", "warptrace") else words[0]
            served = words[1] == "view" and "--html" not in words
            said = (serve if served else run)(words, tmp_path, shell)
            assert not served or said.startswith("http://127.0.0.1:")
            output += said
            ran += 1
    assert ran + len(left_out) == 15 and ran >= 12
    assert compared >= 20
    assert {path.suffix for path in (tmp_path / "gemm").glob("iket_*")} == {".pftrace", ".json", ".html"}
    assert (tmp_path / "data" / "ranges").is_dir() or any("parquet" in line for line in left_out)


def test_commands_that_need_a_gpu_parse() -> None:
    example = example_module()
    lines = [line for block in blocks() if block.gpu for line in block.text.splitlines()]
    assert len(lines) == 4
    for line in lines:
        command, options = parse(shlex.split(line)[1:])
        if command.name == "profile":
            python, script, *rest = options.tail
            assert (python, script) == ("python", "examples/hopper_gemm.py")
            arguments = example.parse_arguments(rest)
            assert arguments.mnk == (512, 512, 512)
            example.GemmConfig(*arguments.tile)


def test_the_tiles_that_are_spoken_of() -> None:
    example = example_module()
    assert example.grid_size(512, 512, example.GemmConfig(128, 256)) == 8
    assert example.grid_size(512, 512, example.GemmConfig(128, 64)) == 32
    assert example.GemmConfig(128, 256).stages == 4


def test_the_code_is_the_examples() -> None:
    """Every line that is shown stands in the example, in that order."""
    source = [line.strip() for line in GEMM.read_text(encoding="utf-8").splitlines()]
    (code,) = [block.text for block in blocks() if block.kind == "python" and "iket." in block.text]
    at = source.index('in_flight = iket.sentinel_token("mma_k_tile")')
    for line in filter(None, (line.strip() for line in code.splitlines())):
        at = source.index(line, at) + 1


def example_module() -> ModuleType:
    name = "hopper_gemm"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, GEMM)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
