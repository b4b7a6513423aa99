"""What ``warptrace doctor`` looks at. Nothing here imports the DSL or touches a GPU: that is for child processes, which
may crash, or hang until their time is up."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from ..cli._child import child_environment
from ..errors import UsageError
from ..explain import armed_processes
from ..runtime.options import RuntimeOptions
from . import FAIL, OK, STATES, WARN, Finding

TIME_LIMIT_S = 120.0
BOOTSTRAP_LIMIT_S = 30.0
LEAST_FREE_BYTES = 1 << 30
OLDEST_PYTHON = (3, 10)
NEEDED = ("numpy", "rich")
EXTRA = ("cuda-bindings", "nvidia-cutlass-dsl")
MODULES = {"cuda-bindings": "cuda.bindings", "nvidia-cutlass-dsl": "cutlass"}
"""What a package is imported as, where that is not its name."""

Runner = Callable[[str, float], "list[Finding]"]


def examine(buffer_bytes: int, *, require_gpu: bool, run: Runner | None = None) -> Iterator[Finding]:
    """All findings, one after the other as they are known. ``run(part, seconds)``: the checks in child processes."""
    run = run or (lambda part, seconds: inside([part, str(buffer_bytes)], seconds))
    yield python()
    packages = [*map(package, NEEDED), *(package(name, optional=True) for name in EXTRA)]
    yield from packages
    yield from environment()
    for name, probe in (("output folder", output_folder), ("temporary folder", temporary_folder)):
        yield guarded(name, probe)
    yield guarded("child Pythons", bootstrap)
    found = run("gpu", TIME_LIMIT_S)
    without = any(f.name == "GPU" and f.state == WARN for f in found)
    yield from (replace(f, state=FAIL) if require_gpu and f.name == "GPU" and f.state == WARN else f for f in found)
    if all(f.state == OK for f in packages):
        yield from run("dsl", TIME_LIMIT_S)
        if without:
            yield from run("emulator", TIME_LIMIT_S)


def python() -> Finding:
    """The interpreter."""
    text = f"{platform.python_version()}, {sys.executable}, {platform.platform(terse=True)}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", FAIL, text, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    if sys.platform != "linux":
        return Finding("Python", WARN, text, "programs can be traced on Linux only; results can be read anywhere")
    return Finding("Python", OK, text)


def package(name: str, *, optional: bool = False) -> Finding:
    """A package that is needed: always, or to trace kernels."""
    try:
        return Finding(name, OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
    with suppress(ImportError):  # of the package around it
        if importlib.util.find_spec(MODULES.get(name, name)) is not None:  # on the path, not installed
            return Finding(name, OK, "found, of an unknown version: it has no metadata")
    if optional:
        return Finding(name, WARN, "not installed: no kernel can be traced", "pip install 'warptrace[cute]'")
    return Finding(name, FAIL, "not installed", "pip install warptrace")


def environment() -> Iterator[Finding]:
    """Our variables, where they are set."""
    set_here = sorted(name for name in os.environ if name.startswith("WARPTRACE") and name != "WARPTRACE_DEBUG")
    if not set_here:
        return
    try:
        RuntimeOptions.from_env()
    except UsageError as error:
        yield Finding("environment", FAIL, str(error), "unset it: `warptrace profile` sets what it needs")
        return
    yield Finding("environment", OK, f"set: {', '.join(set_here)}")


def guarded(name: str, probe: Callable[[], Finding]) -> Finding:
    """What a probe finds; what it raises is a finding too (a current folder that was removed, no temporary folder)."""
    try:
        return probe()
    except Exception as error:
        return Finding(name, FAIL, f"{type(error).__name__}: {error}")


def output_folder() -> Finding:
    """Where results go without -o."""
    return folder("output folder", Path.cwd())


def temporary_folder() -> Finding:
    """Where the doctor and compilers put files for a moment."""
    return folder("temporary folder", Path(tempfile.gettempdir()))


def folder(name: str, path: Path) -> Finding:
    """Whether a folder can be written, and has room."""
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".warptrace-doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as error:
        mend = "choose another with -o" if name == "output folder" else "set TMPDIR to a folder that can be written"
        return Finding(name, FAIL, f"{path}: {error.strerror or error}", mend)
    text = f"{path} can be written, {free >> 20} MiB free"
    if free < LEAST_FREE_BYTES:
        return Finding(name, WARN, text, "free some: long runs may record more than that")
    return Finding(name, OK, text)


def bootstrap() -> Finding:
    """Whether a Python that `warptrace profile` starts, and one that that one starts, begin with the tracer."""
    name = "child Pythons"
    code = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', '']).returncode)"
    with tempfile.TemporaryDirectory() as raw:
        env = child_environment(_bare(), RuntimeOptions(directory=raw).to_env())
        try:
            words = [sys.executable, "-c", code]
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=BOOTSTRAP_LIMIT_S)
        except subprocess.TimeoutExpired:
            text = f"a Python did not start within {BOOTSTRAP_LIMIT_S:.0f} s"
            return Finding(name, FAIL, text, "see what sitecustomize and .pth files import")
        except OSError as error:
            return Finding(name, FAIL, f"no Python can be started: {error}")
        armed = armed_processes(Path(raw))
    if armed == 2 and not done.returncode:
        return Finding(name, OK, "start with the tracer")
    said = " ".join(done.stderr.split()[-40:])
    mend = "see that no sitecustomize, usercustomize or .pth file ends the start of Python, and PYTHONPATH is not reset"
    return Finding(name, FAIL, f"{armed} of 2 started with the tracer{': ' if said else ''}{said}", mend)


def inside(words: Sequence[str], seconds: float) -> list[Finding]:
    """The findings of ``python -m warptrace.doctor.inside WORDS``, also where it dies or its time is up."""
    names = {"gpu": "GPU check", "dsl": "DSL check", "emulator": "emulator check"}
    command = [sys.executable, "-m", "warptrace.doctor.inside", *words]
    try:
        child = subprocess.Popen(
            command, env=_bare(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        return [Finding(names[words[0]], FAIL, f"cannot be started: {error}")]
    try:
        out, err = child.communicate(timeout=seconds)
        fault = None
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            out, err = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # not even a SIGKILL ends it: it sits in the driver
            out, err = "", ""
        text = f"did not end within {seconds:.0f} s"
        fault = Finding(names[words[0]], FAIL, text, "another program may hold the GPU, or it hangs: see nvidia-smi")
    found = _findings(out)
    if fault is None and child.returncode:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        last = " ".join(err.split()[-40:])
        fault = Finding(names[words[0]], FAIL, f"died of {how}{': ' if last else ''}{last}")
    return [*found, fault] if fault is not None else found


def _findings(text: str) -> list[Finding]:
    """The lines that are findings; libraries print their own."""
    found = []
    for line in text.splitlines():
        with suppress(ValueError, TypeError):
            finding = Finding(**json.loads(line))
            if finding.state in STATES:
                found.append(finding)
    return found


def _bare() -> dict[str, str]:
    """This environment without a tracer in it."""
    return {key: value for key, value in os.environ.items() if not key.startswith("WARPTRACE")}
