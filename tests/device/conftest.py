"""Set-up of the tests of device operations: they run on the emulator, with its tests' kit."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "emulator"))
