"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .blocks import Block, Bullets, Grid, Heading, Line

_SPECIAL = re.compile(r"([\\*_<>\[\]|#~])")
_CODE = re.compile(r"(`[^`]*`)")


def to_markdown(blocks: Iterable[Block]) -> str:
    """The blocks as a document; names show as they are."""
    return "\n\n".join(map(_block, blocks)) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escape(block.text)}"
    if isinstance(block, Line):
        return escape(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"- {escape(text)}" for text in block.texts)
    return _grid(block)


def _grid(grid: Grid) -> str:
    rule = ["---" if at < grid.left else "---:" for at in range(len(grid.columns))]
    rows = [[*map(escape, grid.columns)], rule, *([*map(escape, row)] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def escape(text: str) -> str:
    """``text`` so that Markdown shows it as it is; what stands between backticks stays code. One line."""
    parts = _CODE.split(text.replace("\n", " "))
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)
