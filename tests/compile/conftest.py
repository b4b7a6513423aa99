"""Compile tests: what the front end makes of kernels, as PTX and cubin. They need the DSL, but no GPU and no driver."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# The DSL reads its environment when it is imported, which the test modules do right after this file.
os.environ.pop("WARPTRACE", None)
if "CUTE_DSL_DUMP_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="warptrace-compile-")
    os.environ["CUTE_DSL_DUMP_DIR"] = _folder
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.dsl)
