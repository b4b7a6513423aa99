"""``warptrace diff``: what changed between two runs, or two launches of a run."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..errors import UsageError
from ._args import positive_int
from ._messages import print_text
from .report import FORMATS, TOP

if TYPE_CHECKING:
    from ..report.diff import Side
    from ..trace import Trace
    from ._args import Verbs


class DiffVerb:
    """The verb."""

    name = "diff"
    options: frozenset[str] = frozenset()
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="compare two runs, or two launches of one",
            description="Compares the kernels of A and B: durations, ranges by role and name, and the same ranges where"
            " payloads tell them apart; with significance over repeated launches.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("a", metavar="A", help="a result of profile, or one capture in it")
        parser.add_argument("b", metavar="B", help="another, or A again with --launches")
        parser.add_argument(
            "--kernel", dest="kernel_text", metavar="TEXT", help="only launches whose kernel or symbol contains TEXT"
        )
        parser.add_argument(
            "--launches", nargs=2, type=positive_int, metavar=("N", "M"), help="launch N of A (from 1) with M of B"
        )
        parser.add_argument(
            "--warm-up", type=int, metavar="N",
            help="launches of each kernel left out at the start (default: 1 where there are 4 or more)",
        )  # fmt: skip
        parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
        parser.add_argument("--top", type=positive_int, metavar="N", default=TOP, help=f"rows of a table ({TOP})")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0, or 1 where nothing could be compared. Raises WarptraceError."""
        from ..report.diff import diff

        given = vars(options)
        warm_up = given.get("warm_up")
        if warm_up is not None and warm_up < 0:
            raise UsageError("--warm-up needs a number of at least 0")
        result = diff(*_sides(options), 0 if "launches" in given else warm_up)
        if options.format == "json":
            import json

            print(json.dumps(result.to_json(), indent=1))
        else:
            from ..report.diff_blocks import LEGEND, diff_blocks

            content = list(diff_blocks(result, options.top))
            if options.format == "markdown":
                from ..report.markdown import to_markdown

                print(to_markdown(content), end="")
            else:
                from ..report.blocks import Line
                from ..report.text import print_blocks

                if any(kernel.names for kernel in result.kernels):
                    content.append(Line(LEGEND))
                print_text(lambda console: print_blocks(content, console), sys.stdout)
        return 0 if result.comparable else 1


def _sides(options: argparse.Namespace) -> tuple[Side, Side]:
    from .. import load
    from ..report.diff import Side
    from ..report.stats import select_launches

    given = vars(options)

    def side(path: str, trace: Trace, number: int | None) -> Side:
        numbers = None if number is None else [number]
        chosen = select_launches(trace, given.get("kernel_text"), numbers)
        return Side(path if number is None else f"{path} launch {number}", trace, chosen)

    first = load(options.a)
    second = first if options.a == options.b else load(options.b)
    n, m = given.get("launches", (None, None))
    return side(options.a, first, n), side(options.b, second, m)
