"""The hand-made and random traces of the exporters' tests, and the kept capture of an H200, serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / name) for name in ("export", "fixtures", "runtime")]
