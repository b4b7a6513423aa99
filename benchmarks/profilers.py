"""The two profilers that the benchmarks compare: ours, and the reference (run-iket) where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS, REFERENCE = "ours", "reference"
API_ENV = "BENCHMARK_API"
"""Which event API a child's kernels call."""
CLI = {
    OURS: [sys.executable, "-m", "warptrace"],
    # The reference's command, without the console script that a package unpacked into a folder does not have.
    REFERENCE: [
        sys.executable,
        "-c",
        'import sys; from iket.cli.main import entrypoint; sys.argv[0] = "run-iket"; entrypoint()',
    ],
}
CHILD_SECONDS = 240

IMPORT = "import warptrace.cute as iket"
NO_EVENTS = '''
class iket:
    """The event API, doing nothing."""

    mark = range_push = range_pop = range_end = staticmethod(lambda *args: None)

    @staticmethod
    def range_start(*args):
        import cutlass

        return cutlass.Int32(0)

    sentinel_token = range_start
'''
APIS = {OURS: IMPORT, REFERENCE: "from cutlass import cute\niket = cute.experimental.iket", None: NO_EVENTS}


def has_reference() -> bool:
    return importlib.util.find_spec("iket") is not None


def run(api: str, options: Sequence[str], words: Sequence[str], *, seconds: float = CHILD_SECONDS) -> None:
    """Runs ``python WORDS`` under the profiler of ``api``. Raises RuntimeError where that fails, TimeoutExpired."""
    command = [*CLI[api], *options, "--", sys.executable, *words]
    done = subprocess.run(
        command, env=environment(api), capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{api}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def environment(api: str) -> dict[str, str]:
    """Of a command that measures ``api``: this source on the path, and no tracer of its own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    env[API_ENV] = api
    source = str(ROOT / "src")
    env["PYTHONPATH"] = os.pathsep.join([source, env["PYTHONPATH"]]) if env.get("PYTHONPATH") else source
    return env


def results_of(api: str, path: Path) -> dict[str, Any]:
    """What a child wrote. Raises RuntimeError if it wrote nothing."""
    if not path.exists():
        raise RuntimeError(f"{api}: the child wrote no results")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def with_api(source: Path, api: str | None, folder: Path) -> Path:
    """A copy of a source file with another event API, in ``folder``. Names of kernels tell a copy without events (None)
    from the others."""
    text = source.read_text(encoding="utf-8")
    if text.count(IMPORT) != 1:
        raise RuntimeError(f"{source} does not import the event API as expected")
    line = next(x for x in text.splitlines() if IMPORT in x)
    indent = line[: len(line) - len(line.lstrip())]
    new = "\n".join(indent + x if x else x for x in APIS[api].strip("\n").splitlines())
    text = text.replace(line, new)
    if api is None:
        for name in ("HopperGemm", "stream_kernel", "entry_kernel"):
            text = text.replace(name, f"{name}Plain")
    path = folder / f"{source.stem}_{api or 'plain'}.py"
    path.write_text(text, encoding="utf-8")
    return path


def module_of(path: Path) -> Any:
    """The module of a source file, imported under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def dsl_version() -> str:
    try:
        return metadata.version("nvidia-cutlass-dsl")
    except metadata.PackageNotFoundError:  # on the path without its metadata
        import cutlass

        return str(getattr(cutlass, "__version__", "unknown"))


def device() -> dict[str, str]:
    """Name and driver of the device. Raises WarptraceError where there is none."""
    from warptrace.runtime import driver

    driver.call("cuInit", 0)
    facts = driver.device_facts(0)
    return {"name": facts.name, "driver": facts.driver}
