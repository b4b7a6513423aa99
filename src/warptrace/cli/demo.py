"""``warptrace demo``: trace an example kernel, on a GPU or without one, and make the outputs."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import WarptraceError
from ..rundir import RUN_FILE, check_target, default_name
from ._messages import note, shown
from .profile import Profile

if TYPE_CHECKING:
    from ..trace import Trace
    from ._args import Verbs

POSTPROCESS_CHOICES = ("perfetto", "json", "html", "none", "all")


class Demo:
    """The verb."""

    name = "demo"
    options = frozenset({"output_dir", "clobber", "postprocess", "json_gz", "payload_in_name"})
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="trace an example kernel, on the GPU or, without one, on an emulator",
            description="Traces a warp-specialised matrix product written in the CuTe DSL, checks its result and makes"
            " the outputs. Without a GPU the same kernel is compiled for sm_90a and run on an emulator: its events"
            " are real, its times are not.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("-o", "--output-dir", metavar="DIR", help="where the results go (default: a new folder)")
        parser.add_argument("--clobber", action="store_true", help="replace an earlier result in DIR")
        parser.add_argument("--emulate", action="store_true", default=False, help="use the emulator in any case")
        parser.add_argument("--postprocess", choices=POSTPROCESS_CHOICES, help="outputs to make (default: all)")
        parser.add_argument("--json-gz", action="store_true", help="write the JSON compressed, as .trace.json.gz")
        parser.add_argument("--payload-in-name", action="store_true", help="Perfetto slices named `name(payload=N)`")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0 where the result and the events are right. Raises WarptraceError."""
        from ..demo.machine import dsl_installed

        if not dsl_installed():
            raise WarptraceError(
                "the demo compiles a kernel with the CuTe DSL, which is not installed: pip install 'warptrace[cute]'"
            )
        target = vars(options).setdefault("output_dir", default_name())
        place = check_target(target, clobber="clobber" in options)
        command, emulated = _command(options.emulate)
        begun = datetime.now(timezone.utc)
        if Profile().run(_profile_options(options, command)):
            raise WarptraceError(_failure(emulated))
        _check_events(place, begun)
        _what_next(place)
        return 0


def _command(emulate: bool) -> tuple[list[str], bool]:
    """The words that run the kernel here, and whether they run it on the emulator. Tells where and why."""
    from ..demo.machine import find_gpu

    gpu = "--emulate" if emulate else find_gpu()
    if isinstance(gpu, str):
        why = gpu if emulate else f"no usable GPU ({gpu})"
        note(f"{why}: compiling the kernel for sm_90a and running it on the emulator; its times are emulated")
        # The emulator's recording is its own: the tracer for GPUs stays off.
        return ["env", "WARPTRACE=0", sys.executable, "-m", "warptrace.demo.emulated"], True
    note(f"compiling the kernel and running it on GPU {gpu.ordinal}, {gpu.name}")
    return [sys.executable, "-m", "warptrace.demo.gpu", str(gpu.ordinal)], False


def _profile_options(options: argparse.Namespace, command: list[str]) -> argparse.Namespace:
    """The line of ``warptrace profile`` that does it."""
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if name in Demo.options}
    return argparse.Namespace(**{"postprocess": "all", **given}, words=[], tail=command)


def _failure(emulated: bool) -> str:
    if emulated:
        return "the demo failed; the lines above say why"
    return "the demo failed on the GPU; the lines above say why, and `warptrace demo --emulate` does without one"


def _check_events(place: Path, begun: datetime) -> None:
    """Compare the recorded events with those that the size of the problem asks for. Raises WarptraceError."""
    from .. import load
    from ..demo.problem import EXPECTED_EVENTS

    if not _is_from(place, begun):
        raise WarptraceError("the demo recorded nothing; the lines above say why")
    trace = load(place)
    launches = len(trace.launches)
    wrong = differences(count_events(trace), {name: n * launches for name, n in EXPECTED_EVENTS.items()})
    if not launches or wrong:
        raise WarptraceError(f"the demo recorded other events than its kernel has: {wrong or 'none at all'}")
    note(f"ranges and markers of all {len(EXPECTED_EVENTS)} names are as many as the problem's size says")


def _is_from(place: Path, begun: datetime) -> bool:
    """Whether the result in ``place`` is of a run that began after ``begun``: with --clobber it may be an older one."""
    try:
        record = json.loads((place / RUN_FILE).read_text(encoding="utf-8"))
        return datetime.fromisoformat(record["started"]) >= begun
    except (OSError, ValueError, KeyError):
        return False


def count_events(trace: Trace) -> dict[str, int]:
    """Ranges and markers of each name."""
    indices = [*trace.ranges.name.tolist(), *trace.markers.name.tolist()]
    return {trace.strings[index]: n for index, n in Counter(indices).items()}


def differences(found: dict[str, int], expected: dict[str, int]) -> str:
    """Names whose numbers differ, with both numbers; "" where none does."""
    names = [*expected, *sorted(found.keys() - expected.keys())]
    wrong = [name for name in names if found.get(name, 0) != expected.get(name, 0)]
    return ", ".join(f"{name} {found.get(name, 0)} instead of {expected.get(name, 0)}" for name in wrong)


def _what_next(place: Path) -> None:
    """One line, the last one: what to do with the result."""
    tables = sorted(place.glob("*.trace.json*"))
    ways = [f"{shown(path)} in a browser" for path in sorted(place.glob("*.html"))]
    ways += [f"{shown(path)} at https://ui.perfetto.dev" for path in sorted(place.glob("*.pftrace"))]
    if ways:
        also = f"; the same events as JSON: {shown(tables[0])}" if tables else ""
        note(f"next: open {', or '.join(ways)}{also}")
    elif tables:
        note(f"next: look at {shown(tables[0])}")
    else:
        note(f"next: warptrace postprocess {shown(place)}")
