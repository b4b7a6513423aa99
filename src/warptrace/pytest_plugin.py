"""The pytest fixture ``warptrace_capture``: record a block of a test, then assert on its trace.

    def test_kernel(warptrace_capture):
        with warptrace_capture() as run:
            launch()
        run.check.complete().names("load", "mma").count("load", 4, per="warp").budget("load", 2_000)

pytest loads this module at every start, so it imports nothing that is not needed before a test asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .session import Session
    from .testing import Check
    from .trace import Trace

OPTION = "--warptrace-output"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--warptrace-output``."""
    parser.getgroup("warptrace").addoption(
        OPTION, metavar="DIR", help="keep what warptrace_capture records: a run directory a block, named by the test"
    )


class Recorded:
    """A block that records. After it ``trace`` has the columns and ``check`` the assertions on them; ``directory`` is
    the run directory that was kept, or None."""

    def __init__(self, output: Path | None, kernel: str | None, options: dict[str, Any]) -> None:
        import warptrace

        self._session: Session = warptrace.capture(output, **options)
        self._kernel = kernel

    def __enter__(self) -> Recorded:
        self._session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.__exit__(kind, error, traceback)

    @property
    def trace(self) -> Trace:
        """What was recorded. Raises WarptraceError before the block has ended."""
        return self._session.trace

    @property
    def directory(self) -> Path | None:
        """Where it is kept."""
        return self._session.directory

    @property
    def check(self) -> Check:
        """The assertions. Raises AssertionError, with the reason, where nothing was recorded."""
        from .testing import Check

        trace = self.trace
        if self._session.reason is not None and not trace.launches:
            raise AssertionError(self._session.reason)
        return Check(trace, self._kernel)


Recorder = Callable[..., Recorded]


@pytest.fixture
def warptrace_capture(request: pytest.FixtureRequest) -> Recorder:
    """``with warptrace_capture(kernel=None, **options) as run:`` records what the block launches; kernels must be
    compiled in it or in an earlier one. ``kernel``: only launches whose kernel or symbol contains it are checked.
    ``options`` are those of ``warptrace.capture``."""
    folder = request.config.getoption(OPTION)
    blocks = 0

    def record(*, kernel: str | None = None, **options: Any) -> Recorded:
        nonlocal blocks
        blocks += 1
        output = None if folder is None else Path(folder) / _file_name(request.node.nodeid, blocks)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
        return Recorded(output, kernel, {"clobber": True, **options} if output is not None else options)

    return record


def _file_name(test: str, block: int) -> str:
    """A folder's name for a block of a test."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", test.replace("/", "-")).strip("-")
    return name if block == 1 else f"{name}-{block}"
