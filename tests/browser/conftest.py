"""A headless Chromium for the tests that look at pages: the system's own, driven by the playwright package."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))  # traces.py, made by hand
sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The browser's program: $WARPTRACE_CHROMIUM, or one on the path."""
    return os.environ.get("WARPTRACE_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)


def missing() -> str:
    """Why there is no browser, or an empty string."""
    if importlib.util.find_spec("playwright") is None:
        return "the browser is driven by the package playwright"
    return "" if chromium() else "no chromium here (Debian: apt-get install chromium)"


@dataclass
class Opened:
    """A page, with what it complained of and what it asked for that is not a part of it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser; the test is skipped where there is none."""
    if missing():
        pytest.skip(missing())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Any]:
    """``look(address, dark=, width=, height=)`` opens an address in a window of its own."""
    contexts = []

    def open_page(address: str, *, dark: bool = False, width: int = 1366, height: int = 768) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on("console", lambda m: opened.errors.append(m.text) if m.type == "error" else None)
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(address)
        return opened

    yield open_page
    for context in contexts:
        context.close()
