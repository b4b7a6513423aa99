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
# Kept PTX and cubin go to files, by default of the current folder; each of the two DSLs has its own variable for it.
_folder = tempfile.mkdtemp(prefix="warptrace-compile-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
for _name in ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL"):
    os.environ[f"{_name}_DUMP_DIR"] = _folder

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.dsl)
