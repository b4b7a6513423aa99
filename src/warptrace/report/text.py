"""A report in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from .blocks import Block, Bullets, Grid, Heading, Line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {1: "bold", 2: "bold underline", 3: "bold"}


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Prints each block; names are printed as they are, nothing in them is read as markup."""
    from rich.text import Text

    for block in blocks:
        if isinstance(block, Heading):
            if block.level > 1:
                console.print()
            console.print(Text(block.text, style=STYLES[block.level]), soft_wrap=True)
        elif isinstance(block, Line):
            console.print(Text(block.text, style="yellow" if block.warning else ""), soft_wrap=True)
        elif isinstance(block, Bullets):
            for text in block.texts:
                lines = fill(text, console.width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
                console.print(Text(lines), soft_wrap=True)
        else:
            console.print(_table(block))


def _table(grid: Grid) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, title in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if at < grid.left else "right"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=at >= grid.left)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table
