"""A report in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from .blocks import Block, Bullets, Grid, Heading, Line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDEST = 1000
TEXT_WIDTH = 60
"""Longer texts in a table are broken."""
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
            _print_table(_table(block), console)


def _print_table(table: Table, console: Console) -> None:
    """A table that is wider than the terminal keeps its width, for the terminal to wrap: rich would cut numbers off."""
    from rich.text import Text

    wide = console.options.update(width=WIDEST)
    options = wide.update(width=max(console.width, console.measure(table, options=wide).maximum))
    for line in console.render_lines(table, options, pad=False):
        parts = [(segment.text, segment.style or "") for segment in line]
        console.print(Text.assemble(*parts), soft_wrap=True)


def _table(grid: Grid) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, title in enumerate(grid.columns):
        justify: Literal["left", "right"] = "left" if at < grid.left else "right"
        most = TEXT_WIDTH if at < grid.left else None
        table.add_column(title, justify=justify, overflow="fold", no_wrap=most is None, max_width=most)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table
