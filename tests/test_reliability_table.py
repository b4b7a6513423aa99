"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def defined() -> dict[str, set[str]]:
    """Files by the names of the tests that they define."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    return found


def test_every_fault_has_a_test_that_exists() -> None:
    tests = defined()
    wrong, references = [], 0
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if not line.startswith("|") or cells[-2] in ("test", "---"):
            continue
        assert len(cells) == 5, f"not three columns: {line}"
        named = re.findall(r"`([^`]+)`", cells[-2])
        references += len(named)
        if not named and cells[-2] != "the same":
            wrong.append(line)
        for name in named:
            file, _, test = name.rpartition("::")
            test = test.partition("[")[0]
            if "/" in test:  # a whole file
                wrong += [] if (ROOT / test).is_file() else [name]
            elif test not in tests or (file and file not in tests[test]):
                wrong.append(name)
    assert references > 30
    assert wrong == []


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by it."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
