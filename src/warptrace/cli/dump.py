"""``warptrace dump``: the raw capture as text, one record a line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..explain import armed_processes, why_nothing_recorded
from ..rundir import RAW_DIR
from ._messages import warn

if TYPE_CHECKING:
    from ._args import Verbs


class Dump:
    """The verb."""

    name = "dump"
    options: frozenset[str] = frozenset()
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="print a raw capture as text, one record a line",
            description="Prints the raw captures of RUN_DIR as text, one record a line, before any decoding.",
        )
        parser.add_argument("run_dir", metavar="RUN_DIR", help="a result of profile, or one capture in it")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0. Raises CaptureError where there is no capture, or one that cannot be read."""
        from ..raw import dump, find_captures

        captures = find_captures(options.run_dir)
        if not captures:
            warn(why_nothing_recorded(captures, armed_processes(Path(options.run_dir) / RAW_DIR))[0])
        for path in captures:
            dump(path, sys.stdout)
        sys.stdout.flush()
        return 0
