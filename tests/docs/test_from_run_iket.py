"""docs/from-run-iket.md: what it names of ours exists, and no option, call or verb of ours is missing."""

from __future__ import annotations

import importlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

import warptrace
from warptrace.cli import COMMANDS, build_parser, profile

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "from-run-iket.md"
KINDS = ("Event calls", "Switching it on", "The command", "Files", "JSON")

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="no docs in this checkout")


def rows(section: str) -> list[tuple[str, str, str]]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = []
    for line in lines:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 3, f"not three columns: {line}"
        found.append((cells[0], cells[1], cells[2]))
    return found


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def ours(*sections: str) -> list[str]:
    """Code in the column of ours."""
    return [word for section in sections for _, cell, _ in rows(section) for word in code(cell)]


def options_of(verb: str) -> dict[str, tuple[str, ...]]:
    """Options of a verb, with their choices where they have any."""
    parser = build_parser()
    (verbs,) = [a for a in parser._actions if a.dest == "verb"]
    assert isinstance(verbs.choices, dict)
    return {text: tuple(a.choices or ()) for a in verbs.choices[verb]._actions for text in a.option_strings}


def test_sections() -> None:
    assert all(len(rows(section)) > 5 for section in KINDS)


@pytest.mark.dsl
def test_event_calls_exist() -> None:
    cute = importlib.import_module("warptrace.cute")
    named = set()
    for section in KINDS[:2]:
        for _, cell, difference in rows(section):
            named |= set(re.findall(r"\biket\.(\w+)", " ".join(code(cell) + code(difference))))
    assert named - {"cli"} >= set(cute.__all__) - {"Token", "enabled"}
    for name in named:
        assert hasattr(cute, name), name


def test_functions_exist() -> None:
    named = [name for word in ours(*KINDS) for name in re.findall(r"^warptrace\.(\w+)", word)]
    assert {"capture", "start", "stop", "cute"} <= set(named)
    for name in named:
        assert name == "cute" or name in warptrace.__all__, name


def test_verbs_exist() -> None:
    verbs = {command.name for command in COMMANDS}
    text = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {word for part in code(text) for word in re.findall(r"^warptrace ([a-z]+)", part)}
    assert named == verbs


def test_options_exist_with_their_choices() -> None:
    known = options_of("profile")
    named = set()
    for word in ours(*KINDS):
        if word.startswith("python "):
            continue
        verb = (re.findall(r"^warptrace ([a-z]+) ", word) or ["profile"])[0]
        for option, value in re.findall(r"(?<![\w-])(--?[a-z][\w-]*)(?: ([^\s`]+))?", word):
            choices = options_of(verb)
            assert option in choices, f"{option} is no option of {verb}"
            if "|" in value:
                assert set(value.split("\\|")) == set(choices[option]), option
            named |= {option} if verb == "profile" else set()
    assert named == set(known) - {"-h", "--help"}


def test_options_of_both_are_equal() -> None:
    """Where a row has one option on both sides it is written in the same way."""
    same = [(theirs, mine) for theirs, mine, _ in rows("The command") if code(theirs)[:1] == code(mine)[:1] != []]
    assert len(same) >= 10
    for theirs, _ in same:
        for option in re.findall(r"(--[a-z-]+)", theirs):
            assert option in profile.options_by_name().values() or option in ("--no-keep", "--context-buffer-size")


def test_variables_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "warptrace").rglob("*.py"))
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"\bWARPTRACE(?:_[A-Z]+)*\b", page))
    assert named == {"WARPTRACE", "WARPTRACE_DIR", "WARPTRACE_OPTIONS"}
    for name in named:
        assert f'"{name}"' in source, name


def test_fields_exist() -> None:
    schema = (files("warptrace.export") / "schema" / "iket_trace.schema.json").read_text(encoding="utf-8")
    words = [word for theirs, mine, _ in rows("JSON") for word in code(theirs) + code(mine)]
    named = {word for word in words if re.fullmatch(r"[a-zA-Z]+", word)}
    assert len(named) > 30
    for name in named:
        assert f'"{name}"' in schema, name
