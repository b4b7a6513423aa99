# SPDX-License-Identifier: Apache-2.0
"""docs/api.md, from the docstrings of the package.

    python docs/make_api.py [FILE]

Needs the CuTe DSL, which warptrace.cute imports.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
COMMAND = "python docs/make_api.py"
MODULES = ("warptrace", "warptrace.cute", "warptrace.testing", "warptrace.trace")
ALSO = {"warptrace": ("warptrace.session.Session",)}
"""What is returned by a module's functions and stands elsewhere."""
LINE = 112


class Annotation:
    """An annotation as it stands in the source: a string would be shown in quotes."""

    def __init__(self, text: Any) -> None:
        self._text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return self._text


# ------------------------------------------------------------------------------------------------------- what to show
def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public functions and classes: those of ``__all__``, else those defined here in the order of the source."""
    names = getattr(module, "__all__", None)
    if names is None:
        own = [(n, v) for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
        found = [(n, v) for n, v in own if not n.startswith("_") and (inspect.isclass(v) or inspect.isfunction(v))]
        yield from sorted(found, key=lambda pair: inspect.getsourcelines(pair[1])[1])
        return
    for name in sorted(names, key=lambda name: (inspect.isclass(getattr(module, name)), name)):
        if not name.startswith("__"):
            yield name, getattr(module, name)
    for path in ALSO.get(module.__name__, ()):
        home, _, name = path.rpartition(".")
        yield name, getattr(importlib.import_module(home), name)


def constants(module: ModuleType) -> list[tuple[str, int]]:
    """Numbers that a module defines by a name in capitals."""
    names = re.findall(r"^([A-Z][A-Z_]+) = \d+$", inspect.getsource(module), re.MULTILINE)
    return [(name, getattr(module, name)) for name in names]


# ------------------------------------------------------------------------------------------------------- how to show it
def markdown(text: str) -> str:
    """A docstring as Markdown: roles and literals are code, a paragraph that ends in ``::`` leads to a block."""
    text = re.sub(r":(?:func|class|meth|attr|data):`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r":mod:`([\w.]+)`", r"`\1`", text).replace("``", "`")
    parts = re.split(r"::\n\n((?: {4}.*(?:\n|$)|\n(?= {4}))+)", text)  # texts and blocks in turn
    out = parts[0]
    for block, rest in zip(parts[1::2], parts[2::2], strict=True):
        out += f":\n\n```python\n{textwrap.dedent(block).rstrip()}\n```\n\n{rest.lstrip()}"
    return out.rstrip()


def documentation(value: Any) -> str:
    """Of an object; of a class only if it has one of its own (a dataclass gets its signature for one)."""
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    if not text or (inspect.isclass(value) and text.startswith(f"{value.__name__}(")):
        return ""
    return markdown(inspect.cleandoc(text))


def signature(name: str, function: Any, *, bound: bool = False) -> str:
    """As it would be written, over several lines where it is long."""
    found = inspect.signature(function)
    parameters = [
        one if one.annotation is inspect.Parameter.empty else one.replace(annotation=Annotation(one.annotation))
        for one in list(found.parameters.values())[1 if bound else 0 :]
    ]
    block = hasattr(function, "__wrapped__")  # made by contextlib.contextmanager
    plain = found.return_annotation is not inspect.Signature.empty and not block
    end = f" -> {Annotation(found.return_annotation)!r}" if plain else ""
    start = f"with {name}" if block else name
    text = f"{start}{inspect.Signature(parameters)}{end}"
    if len(text) <= LINE:
        return text
    words = str(inspect.Signature(parameters))[1:-1]
    return f"{start}(\n    {words},\n){end}"


def fields(cls: type) -> list[str]:
    """A table of a dataclass's fields, with what the source says beside or below them."""
    source = inspect.getsource(cls)
    rows = []
    for one in dataclasses.fields(cls):
        found = re.search(rf'^    {one.name}: [^#\n]*(?:# (.*))?\n(?:    """([^"]*)""")?', source, re.MULTILINE)
        text = next((part for part in found.groups() if part), "") if found else ""
        kind = str(one.type if isinstance(one.type, str) else Annotation(one.type)).replace("|", "\\|")
        rows.append((f"`{one.name}`", f"`{kind}`", markdown(text)))
    if any(text for _, _, text in rows):
        return ["| field | type | what |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    return ["| field | type |", "|---|---|", *(f"| {a} | {b} |" for a, b, _ in rows)]


def attributes(cls: type) -> Iterator[tuple[str, str]]:
    """Public attributes that ``__init__`` documents by a text below their assignment."""
    if dataclasses.is_dataclass(cls) or "__init__" not in vars(cls):
        return
    source = inspect.getsource(vars(cls)["__init__"])
    for name, text in re.findall(r'^ +self\.([a-z]\w*)\b[^\n]*\n +"""([^"]*)"""', source, re.MULTILINE):
        yield name, markdown(text)


def class_lines(name: str, cls: type) -> Iterator[str]:
    yield from (f"### {name}", "")
    if issubclass(cls, Exception):
        yield from (f"An exception, of the kind `{cls.__mro__[1].__name__}`.", "")
    if text := documentation(cls):
        yield from (text, "")
    if dataclasses.is_dataclass(cls):
        yield from (*fields(cls), "")
    elif not issubclass(cls, Exception) and "__init__" in vars(cls) and cls.__module__.endswith("testing"):
        yield from ("```python", signature(name, cls.__init__, bound=True).removesuffix(" -> None"), "```", "")
    entries = [f"- `{n}`: {text}" for n, text in attributes(cls)]
    for n, value in vars(cls).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if n.startswith("_"):
            continue
        if isinstance(value, property):
            entries.append(f"- `{n}`: {indented(documentation(value))}")
        elif inspect.isfunction(function):
            text = signature(f"{name}.{n}" if function is not value else f".{n}", function, bound=True)
            entries.append(f"- `{text}`: {indented(documentation(function))}")
    yield from (*entries, "") if entries else ()


def indented(text: str) -> str:
    """The text of an entry in a list."""
    return "\n".join(f"  {line}" if line and number else line for number, line in enumerate(text.splitlines()))


def function_lines(name: str, function: Any) -> Iterator[str]:
    yield from (f"### {name}", "", "```python", signature(name, function), "```", "")
    if text := documentation(function):
        yield from (text, "")


def module_lines(module: ModuleType) -> Iterator[str]:
    yield from (f"## {module.__name__}", "", documentation(module), "")
    if found := constants(module):
        yield from (", ".join(f"`{name}` is {value}" for name, value in found) + ".", "")
    for name, value in members(module):
        yield from class_lines(name, value) if inspect.isclass(value) else function_lines(name, value)


def page() -> str:
    """The whole page."""
    origin = f"Made from the docstrings by `{COMMAND}`. [python.md](python.md) says how it is used."
    lines = ["# API reference", "", origin, ""]
    for name in MODULES:
        lines += module_lines(importlib.import_module(name))
    return "\n".join(lines).rstrip("\n").replace("\n\n\n", "\n\n") + "\n"


def main() -> int:
    sys.path.insert(0, str(ROOT / "src"))
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    path.write_text(page(), encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
