"""``warptrace report``: where the time of a kernel went, as text, Markdown or JSON."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ._args import add_flows, positive_int
from ._messages import print_text

if TYPE_CHECKING:
    from ..report.report import Report
    from ._args import Verbs

FORMATS = ("text", "json", "markdown")
BY = ("name", "role", "warp", "cta", "sm", "payload")
TOP = 40


class ReportVerb:
    """The verb."""

    name = "report"
    options: frozenset[str] = frozenset()
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="say where the time of each kernel went",
            description="Says where the time went: roles, ranges, waits, gaps, waves and tail of each kernel, and what"
            " follows from them. Of several launches of one kernel and shape it goes into that of median duration.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("run_dir", metavar="RUN", help="a result of profile, or one capture in it")
        add_selection(parser)
        parser.add_argument("--by", choices=BY, help="one table, grouped so, instead of a table for each role")
        parser.add_argument(
            "--subtract-event-cost",
            action="store_true",
            help="also show ranges less what recording the events inside them cost, beside the raw figures",
        )
        parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
        parser.add_argument("--top", type=positive_int, metavar="N", default=TOP, help=f"rows of a table ({TOP})")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0, or 1 where nothing was recorded. Raises WarptraceError."""
        report = make_report(options)
        if options.format == "json":
            import json

            print(json.dumps(report.to_json(), indent=1))
        else:
            from ..report.blocks import blocks

            content = blocks(report, options.top)
            if options.format == "markdown":
                from ..report.markdown import to_markdown

                print(to_markdown(content), end="")
            else:
                from ..report.text import print_blocks

                print_text(lambda console: print_blocks(content, console), sys.stdout)
        return 0 if report.launches else 1


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The options that say what to look at, which other verbs have too."""
    parser.add_argument(
        "--kernel", dest="kernel_text", metavar="TEXT", help="only launches whose kernel or symbol contains TEXT"
    )
    parser.add_argument(
        "--launch", metavar="N", type=positive_int, action="append", help="launch N (from 1) instead of the median one"
    )
    parser.add_argument("--wait", metavar="REGEX", help="names in which REGEX is found are waits, no others")
    parser.add_argument(
        "--peer-wait", metavar="REGEX", help="names in which REGEX is found are waits for other ranks, no others"
    )
    add_flows(parser)


def make_report(options: argparse.Namespace) -> Report:
    """The report that the options ask for. Raises WarptraceError."""
    from .. import load
    from ..flows import parse_flow
    from ..report.report import build
    from ..report.stats import representative, select_launches

    given = vars(options)
    flows = tuple(map(parse_flow, given.get("flow", ())))
    trace = load(options.run_dir)
    launches = None
    if "launch" in given:
        launches = select_launches(trace, given.get("kernel_text"), given["launch"])
    elif "kernel_text" in given:
        chosen = [trace.launches[i] for i in select_launches(trace, given["kernel_text"])]
        launches = representative(chosen)
    return build(
        trace,
        launches,
        wait=given.get("wait"),
        flows=flows,
        by=given.get("by"),
        peer_wait=given.get("peer_wait"),
        subtract=given.get("subtract_event_cost", False),
    )
