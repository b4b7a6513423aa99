"""Waiting for a page."""

from __future__ import annotations

import time
from typing import Any


def until(page: Any, expression: str, seconds: float = 30) -> None:
    """Waits for an expression of JavaScript to be true. The pages' policy forbids what playwright waits with."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not within {seconds} s: {expression}"
        page.wait_for_timeout(50)
