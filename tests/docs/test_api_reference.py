"""docs/api.md is what docs/make_api.py makes, and nothing public is missing from it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import warptrace.session

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "make_api.py"

pytestmark = [
    pytest.mark.skipif(not SCRIPT.is_file(), reason="no docs in this checkout"),
    pytest.mark.dsl,
]


@pytest.fixture(scope="module")
def make_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_up_to_date(tmp_path: Path) -> None:
    """In a process of its own: what other tests imported must not show."""
    made = tmp_path / "api.md"
    done = subprocess.run([sys.executable, str(SCRIPT), str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    committed = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert made.read_text(encoding="utf-8") == committed, "docs/api.md is old: run python docs/make_api.py"


@pytest.mark.parametrize("name", ["warptrace", "warptrace.cute"])
def test_every_public_name_has_an_entry_and_a_text(name: str, make_api: ModuleType) -> None:
    module = importlib.import_module(name)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    entries = set(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    wanted = {one for one in module.__all__ if not one.startswith("__")}
    assert entries - {"Session"} == wanted
    for one in wanted:
        assert make_api.documentation(getattr(module, one)), f"{name}.{one} has no docstring"


def test_methods_of_a_session_are_there(make_api: ModuleType) -> None:
    text = "\n".join(make_api.class_lines("Session", warptrace.session.Session))
    public = [n for n, v in vars(warptrace.session.Session).items() if not n.startswith("_")]
    assert public == ["trace", "directory"]
    for name in (*public, "began", "reason"):
        assert f"- `{name}`: " in text


def test_markdown_of_a_docstring(make_api: ModuleType) -> None:
    text = "Does :func:`load` of :mod:`a.b` and ``x``::\n\n    with y:\n\n        z\n\nThen :class:`~p.q.R`."
    wanted = "Does `load` of `a.b` and `x`:\n\n```python\nwith y:\n\n    z\n```\n\nThen `R`."
    assert make_api.markdown(text) == wanted


def test_signatures(make_api: ModuleType) -> None:
    def function(one: int, *more: str, key: str = "x") -> list[str]:
        return [key, *more] * one

    assert make_api.signature("f", function) == "f(one: int, *more: str, key: str = 'x') -> list[str]"
    assert make_api.signature(".f", function, bound=True) == ".f(*more: str, key: str = 'x') -> list[str]"
