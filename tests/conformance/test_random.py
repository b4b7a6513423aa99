"""Random structured kernels: compiled by the DSL, run on the emulator, compared with their Python interpretation."""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass")

from hypothesis import HealthCheck, Phase, given, settings

from warptrace.cute import PairingWarning

from .check import check
from .model import Warp
from .programs import Interpreter, Program, programs, source
from .runners import EmulatorRunner
from .table import Case, Launch, Scalar, zeros

pytestmark = pytest.mark.dsl
EXAMPLES = int(os.environ.get("WARPTRACE_RANDOM_EXAMPLES", "0"))
"""0: the same few in every run."""
ROOM = 220
"""Events for each lane of a warp: so many fit a region of the buffer, and no program has more."""
_numbers = itertools.count()


@given(programs())
@settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],  # shrinking takes minutes
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_kernels_record_what_python_says(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = source(program)
        case = _case(program, _host(text, Path(folder)))
        runner = EmulatorRunner()
        with warnings.catch_warnings():
            warnings.simplefilter("error", PairingWarning)  # all of these programs are paired well
            found = check(case, runner.run(case))
        found += [f"seed 1: {t}" for t in check(case, runner.run(case, seed=1))]
        assert found == [], text


def _host(text: str, folder: Path) -> Any:
    """The host function of a module with this text: the DSL reads the source from the file."""
    name = f"random_kernel_{next(_numbers)}"
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.host


def _case(program: Program, host: Any) -> Case:
    threads = int(np.prod(program.block))
    results = np.zeros(threads, np.uint32)

    def expect(warp: Warp, out: np.ndarray, n: int) -> None:
        values = Interpreter(warp).run(program)
        results[warp.threads] = np.array([v & 0xFFFFFFFF for v in values], np.uint32)

    launch = Launch(expect, (1, 1, 1), program.block)
    case = Case(
        "random",
        host,
        [zeros(threads), Scalar(program.n)],
        [launch],
        lambda out, n: {0: results.view(np.int32)},
        max_events=ROOM,
        buffer_bytes=64 << 20,
    )
    case.expected()  # fills the results
    return case
