"""What docs/agents.md tells is there: commands parse, keys and findings exist."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from warptrace.cli import parse
from warptrace.report.findings import findings
from warptrace.testing import Check

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "agents.md"
PAGES = [path for path in (GUIDE, ROOT / "docs" / "outputs.md", ROOT / "README.md") if path.is_file()]

pytestmark = pytest.mark.skipif(not GUIDE.is_file(), reason="no docs in this checkout")


def commands(text: str, *, in_line: bool) -> list[str]:
    """Command lines of warptrace in blocks of code, and in the text."""
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    lines = re.findall(r"^warptrace .*$", blocks, re.MULTILINE)
    lines += re.findall(r"`(warptrace [a-z]+ [^`]*)`", text) if in_line else []
    return [line.partition("  #")[0].partition(" > ")[0] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_parse(page: Path) -> None:
    found = commands(page.read_text(encoding="utf-8"), in_line=page == GUIDE)
    assert found
    for line in found:
        words = shlex.split(line)[1:]
        command, _ = parse(words)
        assert command.name in words


def test_keys_and_findings_exist() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    schemas = "".join(
        (files("warptrace.report") / "schema" / name).read_text(encoding="utf-8")
        for name in ("report.schema.json", "diff.schema.json")
    )
    source = Path(findings.__code__.co_filename).read_text(encoding="utf-8")
    row = re.compile(r"^\| (findings? .*?|`.*?`) \|", re.MULTILINE)
    cells = row.findall(text)
    assert len(cells) >= 10
    for cell in cells:
        for word in re.findall(r"`([a-z_.\[\]]+)`", cell):
            if cell.startswith("finding"):
                assert f'"{word}"' in source
            else:
                for key in re.split(r"\[\]\.?|\.", word):
                    assert not key or f'"{key}"' in schemas
    for key in ("problems", "details", "sound", "emulated", "chosen_by", "significant", "duration_ns", "figures"):
        assert f"`{key}" in text and f'"{key}"' in schemas


def test_assertions_exist() -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = text.partition("| method of `check` |")[2].partition("\n\n")[0]
    names = set(re.findall(r"`([a-z_]+)\(", table))
    public = {name for name in vars(Check) if not name.startswith("_")}
    assert names == public


def test_the_example_of_tables() -> None:
    block = GUIDE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    compile(block, str(GUIDE), "exec")
