"""Every relative link of README, CHANGELOG and docs leads to something that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(path for path in (ROOT / "README.md", ROOT / "CHANGELOG.md") if path.is_file()),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tests").glob("*/README.md")),
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="no docs in this checkout")


def links(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = LINK.findall(re.sub(r"`[^`\n]*`", "", text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as hosts of Git repositories make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = seen.get(name, 0)
        seen[name] = number + 1
        found.add(f"{name}-{number}" if number else name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leads out of the checkout"
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target), f"{page.name}: {link} names no heading"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve() if link.partition("#")[0] else page
            if target.suffix == ".md" and target not in reached and target not in todo:
                todo.append(target)
    assert {page for page in PAGES if page.parent == ROOT / "docs"} <= reached


def test_a_heading_of_its_own() -> None:
    """The names of anchors follow the rule that is used where the pages are read."""
    assert "warptrace-report-run-options" in anchors(ROOT / "docs" / "cli.md")
    assert "programs-that-do-not-end" in anchors(ROOT / "docs" / "cli.md")


def test_paths_that_the_page_for_contributors_names() -> None:
    text = FENCE.sub("", (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8"))
    named = [word for word in re.findall(r"`([\w./]+/[\w./]*|[\w]+\.py)`", text) if not word.startswith("pip")]
    assert len(named) > 8
    for name in named:
        found = [ROOT / name, ROOT / "src" / "warptrace" / name, *ROOT.glob(f"tests/*/{name}")]
        absent = name.startswith("benchmarks/") and not (ROOT / "benchmarks").is_dir()  # as in a source distribution
        assert absent or any(path.exists() for path in found), name


def test_the_table_of_gpu_tests_is_whole() -> None:
    folder = ROOT / "tests" / "gpu"
    rows = re.findall(r"^\| `(test_\w+\.py)` \|", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in folder.glob("test_*.py"))
