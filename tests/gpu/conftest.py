"""Set-up of the GPU tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from gpu_kit import Figure

# A tracer in the test's own process would record beside the recordings under test.
os.environ.pop("WARPTRACE", None)

# The trace processor, where its packages are installed.
sys.path.append(str(Path(__file__).resolve().parents[1] / "export"))


@pytest.fixture
def figure(record_property: Figure) -> Figure:
    """Records a value under a name, and prints it."""

    def note(name: str, value: object) -> None:
        record_property(name, value)
        print(f"{name}: {value}")

    return note
