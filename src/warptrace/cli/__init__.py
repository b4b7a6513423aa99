"""The ``warptrace`` command: one module a verb, each with the two functions of :class:`Command`.

Options may stand before or after the verb; what follows ``--`` belongs to the profiled command. Nothing heavy is
imported before a verb runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import UsageError, WarptraceError
from . import demo, diff, doctor, dump, export, merge, postprocess, profile, report, view
from ._args import Command, Options, Parser, split_command
from ._messages import debugging

COMMANDS: tuple[Command, ...] = (
    profile.Profile(),
    postprocess.Postprocess(),
    merge.Merge(),
    report.ReportVerb(),
    diff.DiffVerb(),
    view.View(),
    export.Export(),
    dump.Dump(),
    demo.Demo(),
    doctor.Doctor(),
)


def build_parser() -> Parser:
    """The whole parser. Every option of ``profile`` is known before the verb too, as the reference has it."""
    parser = Parser(
        prog="warptrace",
        description="Traces named events inside GPU kernels: per warp, on hardware, in one run of the program.",
        epilog="warptrace VERB --help shows the options of a verb. Options may stand before or after the verb.",
        parents=[profile.options_parser()],
    )
    parser.add_argument("--version", action="version", version=f"warptrace {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for command in COMMANDS:
        command.prepare_parser(verbs)
    return parser


def parse(argv: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command of a line and its options; ``options.tail`` is what followed ``--`` (None where there was none).

    Raises UsageError for a line that cannot be understood.
    """
    head, tail = split_command(argv)
    options = build_parser().parse_args(head, Options())
    options.tail = tail
    command = next(c for c in COMMANDS if c.name == options.verb)
    _reject_foreign_options(command, options)
    return command, options


def _reject_foreign_options(command: Command, options: argparse.Namespace) -> None:
    """An option before the verb that the verb does not know is a mistake, not a wish to be ignored."""
    for name, option in profile.options_by_name().items():
        if hasattr(options, name) and name not in command.options:
            raise UsageError(f"{option} is not an option of `warptrace {command.name}`")
    if options.tail is not None and not command.takes_command:
        raise UsageError(f"`warptrace {command.name}` runs no command: remove '--' and what follows it")


def _flush() -> None:
    """Flush stdout; where its reader went away, point it elsewhere, or the interpreter complains at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command line; returns the exit status. A user's fault is one line on stderr."""
    try:
        command, options = parse(sys.argv[1:] if argv is None else argv)
        return command.run(options)
    except WarptraceError as error:
        if debugging():
            raise
        print(f"warptrace: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if debugging():
            raise
        print("warptrace: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`warptrace dump ... | head`).
        return 0
    except OSError as error:
        if debugging():
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"warptrace: error: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    finally:
        _flush()
