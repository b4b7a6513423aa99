"""Parsing shared by the verbs: the Command protocol, errors as exceptions, options on either side of the verb."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from ..errors import UsageError

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction["Parser"]


T = TypeVar("T")


class Command(Protocol):
    """A verb. ``options`` names the namespace entries that it reads: an option given before another verb's name is
    refused. ``takes_command``: words after ``--`` are a command to run."""

    name: str
    options: frozenset[str]
    takes_command: bool

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's own parser."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; returns the exit status. Raises WarptraceError for a fault the user can mend."""


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of printing its usage and ending the process."""

    def __init__(self, **kwargs: object) -> None:
        # An abbreviation that works today becomes ambiguous with the next option; scripts must not rely on any.
        super().__init__(allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message and where to look."""
        if message.startswith("the following arguments are required: VERB"):
            message = "no verb given"
        if message.startswith("unrecognized arguments: "):
            message += " (options of the profiled command go after '--')"
        raise UsageError(f"{message}; see `{self.prog} --help`")


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split at the first ``--``: our words, and the command's words (None where there is no ``--``)."""
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


class Repeated(list[str]):
    """The values of an option that may be given several times."""


class Gather(argparse.Action):
    """argparse action: adds the value to those given before, on either side of the verb (see :class:`Options`)."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        gathered = getattr(namespace, self.dest, None)
        if gathered is None:
            setattr(namespace, self.dest, Repeated([str(values)]))
        else:
            gathered.append(str(values))


class Options(argparse.Namespace):
    """The namespace of a whole line. argparse parses what follows a verb into one of its own and copies that here: what
    stood before the verb must not be overwritten by it."""

    def __setattr__(self, name: str, value: object) -> None:
        known = getattr(self, name, None)
        if isinstance(known, Repeated) and isinstance(value, Repeated):
            known.extend(value)
        else:
            super().__setattr__(name, value)


def whole_number(text: str) -> int:
    """argparse type: an integer of at least 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return value


def cluster(text: str) -> tuple[int, int, int]:
    """argparse type: coordinates of a cluster, as 1,0,0."""
    from ..selection import parse_cluster

    return _typed(parse_cluster, text)


def warps(text: str) -> tuple[int, ...]:
    """argparse type: numbers of warps, as 0-3,8."""
    from ..selection import parse_warps

    return _typed(parse_warps, text)


def groups(text: str) -> tuple[str, ...]:
    """argparse type: groups of building blocks, as waits,mma."""
    from ..runtime.options import parse_groups

    return _typed(parse_groups, text)


def auto_names(text: str) -> tuple[tuple[str, str], ...]:
    """argparse type: a TOML file with names for automatic ranges."""
    return _typed(_read_names, text)


def _read_names(path: str) -> tuple[tuple[str, str], ...]:
    from ..runtime.options import parse_names

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with open(path, "rb") as f:
            tables = tomllib.load(f)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    if list(tables) != ["names"]:
        raise UsageError(f"{path} must hold one table, [names], of patterns and names")
    return parse_names(tables["names"], f"{path}: [names]")


def positive_int(text: str) -> int:
    """argparse type: an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def seconds(text: str) -> float:
    """argparse type: a time in seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def size(text: str) -> int:
    """argparse type: bytes, as 512M or 1G."""
    from ..runtime.options import parse_size

    return _typed(parse_size, text)


def _typed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration_ns(text: str) -> float:
    """argparse type: nanoseconds, as 800ns, 50us, 1ms or 0.5s."""
    for unit, scale in (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        number = text.removesuffix(unit)
        if number != text and number.strip().replace(".", "", 1).isdecimal():
            return float(number) * scale
    raise argparse.ArgumentTypeError(f"{text!r} is not a time: write a number with ns, us, ms or s, as 50us")


def add_flows(parser: argparse.ArgumentParser) -> None:
    """The option ``--flow``; the texts are for :func:`warptrace.flows.parse_flow`."""
    parser.add_argument(
        "--flow",
        metavar="SOURCE:TARGET",
        action="append",
        help="ranges named SOURCE feed those named TARGET with the same payload (:order at the end: the n-th the n-th)",
    )
