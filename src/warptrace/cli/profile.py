"""``warptrace profile``: run a command with the tracer on, then make the outputs."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UsageError, WarptraceError
from ..explain import armed_processes, unmatched, why_nothing_recorded
from ..rundir import RAW_DIR, RUN_FILE, RunDirectory, default_name, write_run
from ..runtime.options import AUTO_DEFAULT, AUTO_GROUPS, KEEP_EVENTS, LOG_LEVELS, RuntimeOptions, format_size
from ..selection import Selection, load_cluster_config
from ._args import Gather, Parser, auto_names, cluster, groups, positive_int, seconds, size, warps, whole_number
from ._captures import captures_in, unclosed, wait_for_processes
from ._child import Ended, child_environment, run_command
from ._messages import note, print_summaries, shown, warn
from ._overhead import LIFETIMES_DIR, OVERHEAD_FILE, lifetimes_options, report_overhead
from ._postprocess import OutputPlan, Result, plan_outputs, postprocess
from ._watch import forget_offers

if TYPE_CHECKING:
    from ._args import Verbs

POSTPROCESS_CHOICES = ("perfetto", "json", "html", "none", "all")
DEFAULT_BUFFER_BYTES = RuntimeOptions.buffer_bytes


def options_parser() -> Parser:
    """The options of ``profile``, to be used as a parent before and after the verb.

    No option has a default here: a later parse must not overwrite what an earlier one was given.
    """
    parser = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = parser.add_argument_group("options of profile")
    group.add_argument(
        "-o", "--output-dir", metavar="DIR", help="where the results go (default: ./warptrace-<time>-<pid>)"
    )
    group.add_argument(
        "--clobber", action="store_true", help="replace an earlier result in DIR, once the new run has succeeded"
    )
    group.add_argument("--postprocess", choices=POSTPROCESS_CHOICES, help="outputs to make (default: perfetto)")
    group.add_argument(
        "--max-ts-cnt-per-warp",
        metavar="N",
        type=positive_int,
        help="room for N events per warp and launch; marks, starts, ends, pushes and pops all count",
    )
    group.add_argument(
        "--buffer-size",
        "--context-buffer-size",
        metavar="SIZE",
        type=size,
        help=f"device memory for trace data, as 512M or 1G (default: {format_size(DEFAULT_BUFFER_BYTES)})",
    )
    group.add_argument(
        "--keep-events",
        choices=KEEP_EVENTS,
        help="which events of a warp stay where it has more than room: its first, or its last (default: first)",
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, help="least severe message shown (default: warn)")
    group.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        help="keep the raw capture, which `warptrace postprocess` reads (default: keep)",
    )
    group.add_argument(
        "--untraced-build",
        action=argparse.BooleanOptionalAction,
        help="also compile kernels without events, to tell what tracing costs in registers (default: do)",
    )
    group.add_argument(
        "--window",
        action="store_true",
        help="begin with recording off: it follows warptrace.start(), stop() and capture() in the program",
    )
    group.add_argument(
        "--measure-overhead",
        action="store_true",
        help="run the command twice, first with lifetimes only, and tell what recording its events costs each kernel",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="end the command after so long, having looked at where its kernels are: see the hang report",
    )
    group.add_argument(
        "--watch",
        action="store_true",
        help="map the trace memory in another process, so that it survives the death of the program",
    )
    group.add_argument(
        "--peer-clocks",
        action=argparse.BooleanOptionalAction,
        help="compare the timers of GPUs that see each other directly, every half second (default: do)",
    )
    group.add_argument(
        "--host-ranges",
        action="store_true",
        help="also NVTX ranges and torch's record_function of the program, and when it launched what",
    )
    group.add_argument("--working-dir", metavar="DIR", help="folder in which the command runs (default: here)")
    group.add_argument("--json-gz", action="store_true", help="write the JSON compressed, as .trace.json.gz")
    group.add_argument(
        "--per-process", action="store_true", help="outputs for each process, not for all processes together"
    )
    group.add_argument(
        "--payload-in-name",
        action="store_true",
        help="Perfetto slices named `name(payload=N)`; by default the payload is an argument only",
    )
    _add_selection(parser)
    return parser


def _add_selection(parser: Parser) -> None:
    group = parser.add_argument_group("what profile records (default: everything)")
    group.add_argument(
        "--kernel",
        metavar="REGEX",
        action=Gather,
        help="only kernels in whose symbol REGEX is found; may be given several times, others run as if untraced",
    )
    group.add_argument(
        "--enabled-cluster",
        metavar="X,Y,Z",
        type=cluster,
        help="only this cluster (without clusters: this CTA); 0,0,0 where the grid does not have it",
    )
    group.add_argument(
        "--enabled-cluster-config",
        metavar="FILE",
        help="clusters by kernel: a JSON object of parts of symbols and [x,y,z], a list of such, null or \"all\"",
    )
    group.add_argument("--cta-stride", metavar="K", type=positive_int, help="every K-th cluster only")
    group.add_argument("--warps", metavar="LIST", type=warps, help="only these warps of each CTA, as 0-3,8")
    group.add_argument(
        "--warp-trace",
        action="store_true",
        help="only when each warp begins and ends, of every kernel, with events or without: no event is recorded",
    )
    group.add_argument(
        "--auto",
        metavar="GROUPS",
        nargs="?",
        const=",".join(AUTO_DEFAULT),
        type=groups,
        help=f"also ranges around the DSL's own building blocks, of {', '.join(AUTO_GROUPS)}"
        f" (without GROUPS: {','.join(AUTO_DEFAULT)})",
    )
    group.add_argument(
        "--auto-names",
        metavar="FILE",
        type=auto_names,
        help="names for the ranges of --auto: a TOML file whose table [names] has patterns and names",
    )
    group.add_argument(
        "--auto-nested", action="store_true", help="with --auto, also ranges of what a building block is made of"
    )
    group.add_argument(
        "--iket-calls",
        action=argparse.BooleanOptionalAction,
        help="calls of the DSL's own event module, cute.experimental.iket, are recorded too (default: they are)",
    )
    group.add_argument("--launch-skip", metavar="N", type=whole_number, help="not the first N launches of a kernel")
    group.add_argument("--launch-count", metavar="M", type=positive_int, help="then only M launches of a kernel")


def options_by_name() -> dict[str, str]:
    """Namespace entry of each option of :func:`options_parser`, and how its long form is written."""
    actions = options_parser()._actions
    return {a.dest: next(text for text in a.option_strings if text.startswith("--")) for a in actions}


@dataclass(frozen=True)
class Request:
    """What one line asks for."""

    command: tuple[str, ...]
    output_dir: str
    clobber: bool
    postprocess: str
    keep: bool
    working_dir: str | None
    log_level: str
    buffer_bytes: int
    max_events_per_warp: int | None
    json_gz: bool
    payload_in_name: bool
    per_process: bool
    untraced_build: bool
    window: bool
    measure_overhead: bool
    selection: Selection
    keep_events: str
    timeout: float | None
    watch: bool
    iket_calls: bool
    peer_clocks: bool
    auto: tuple[str, ...]
    auto_nested: bool
    auto_names: tuple[tuple[str, str], ...]
    host_ranges: bool

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Request:
        """With defaults where an option was not given. Raises UsageError."""
        given = vars(options)
        request = cls(
            command=command_of(options.words, options.tail),
            output_dir=given.get("output_dir") or default_name(),
            clobber=given.get("clobber", False),
            postprocess=given.get("postprocess", "perfetto"),
            keep=given.get("keep", True),
            working_dir=given.get("working_dir"),
            log_level=given.get("log_level", "warn"),
            buffer_bytes=given.get("buffer_size", DEFAULT_BUFFER_BYTES),
            max_events_per_warp=given.get("max_ts_cnt_per_warp"),
            json_gz=given.get("json_gz", False),
            payload_in_name=given.get("payload_in_name", False),
            per_process=given.get("per_process", False),
            untraced_build=given.get("untraced_build", True),
            window=given.get("window", False),
            measure_overhead=given.get("measure_overhead", False),
            selection=_selection(given),
            keep_events=given.get("keep_events", "first"),
            timeout=given.get("timeout"),
            watch=given.get("watch", False),
            iket_calls=given.get("iket_calls", True),
            peer_clocks=given.get("peer_clocks", True),
            auto=given.get("auto", ()),
            auto_nested=given.get("auto_nested", False),
            auto_names=given.get("auto_names", ()),
            host_ranges=given.get("host_ranges", False),
        )
        if not request.auto and (request.auto_nested or request.auto_names):
            raise UsageError("--auto-names and --auto-nested are for the ranges of --auto: give that too")
        if request.measure_overhead and request.selection.lifetimes:
            raise UsageError("--measure-overhead compares with what --warp-trace records: drop one of the two")
        if request.postprocess == "none" and not request.keep:
            raise UsageError("--postprocess none with --no-keep would leave nothing: drop one of the two")
        return request

    def runtime_options(self, directory: Path) -> RuntimeOptions:
        """The tracer's settings. Raises UsageError for a value out of range."""
        return RuntimeOptions(
            directory=str(directory),
            buffer_bytes=self.buffer_bytes,
            max_events_per_warp=self.max_events_per_warp,
            log_level=self.log_level,
            untraced_build=self.untraced_build,
            window=self.window,
            selection=self.selection,
            keep_events=self.keep_events,
            iket_calls=self.iket_calls,
            peer_clocks=self.peer_clocks,
            auto=self.auto,
            auto_nested=self.auto_nested,
            auto_names=self.auto_names,
            host_ranges=self.host_ranges,
        )


def _selection(given: dict[str, Any]) -> Selection:
    """What is to be recorded. Raises UsageError."""
    config, chosen = given.get("enabled_cluster_config"), given.get("enabled_cluster")
    return Selection(
        kernels=tuple(given.get("kernel", ())),
        clusters=None if chosen is None else (chosen,),
        clusters_by_kernel=() if config is None else load_cluster_config(config),
        cta_stride=given.get("cta_stride", 1),
        warps=given.get("warps"),
        launch_skip=given.get("launch_skip", 0),
        launch_count=given.get("launch_count"),
        lifetimes=given.get("warp_trace", False),
    )


def command_of(words: Sequence[str], tail: Sequence[str] | None) -> tuple[str, ...]:
    """The command from the words after ``profile`` and the words after ``--``.

    ``--`` may be left out only where no word of the command looks like an option: nobody could say whose it is.
    Raises UsageError.
    """
    if tail is not None:
        if words:
            raise UsageError(f"{words[0]!r} before '--' is neither an option nor part of the command")
        if not tail:
            raise UsageError("no command after '--': warptrace profile [options] -- python script.py")
        return tuple(tail)
    if not words:
        raise UsageError("no command given: warptrace profile [options] -- python script.py")
    if any(word.startswith("-") for word in words):
        raise UsageError(f"put '--' before the command: warptrace profile [options] -- {shlex.join(words)}")
    return tuple(words)


class Profile:
    """The verb."""

    name = "profile"
    options = frozenset(options_by_name())
    takes_command = True

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="run a command with the tracer on and make the outputs",
            description="Runs COMMAND once, with its own input and output, recording the events of its instrumented"
            " kernels, in this and in every child Python process. Its exit status is passed on.",
            usage="warptrace profile [options] -- COMMAND [ARGUMENT ...]",
            parents=[options_parser()],
        )
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")

    def run(self, options: argparse.Namespace) -> int:
        """Run and post-process; returns the command's exit status, or 1 where only our own part failed."""
        request = Request.from_options(options)
        plan = plan_outputs(
            request.postprocess, request.json_gz, request.payload_in_name,
            per_process=request.per_process,
        )
        request.runtime_options(Path())  # its faults come before anything is made
        directory = RunDirectory.create(request.output_dir, clobber=request.clobber)
        try:
            if request.measure_overhead:
                _execute_lifetimes(request, directory)
            outcome = _execute(request, directory)
        except WarptraceError:
            directory.discard()  # the command never started
            raise
        result = _make_outputs(directory, plan)
        if request.measure_overhead:
            _compare(directory, result)
        unused = unmatched(captures_in(directory.raw), request.selection)
        place = _conclude(request, plan, directory, outcome, result)
        _report(request, directory, place, outcome, result, unused)
        if result.interrupted:
            raise KeyboardInterrupt
        return outcome.status or (1 if result.failures else 0)


@dataclass(frozen=True)
class Outcome:
    """How the command ended. ``seconds``: its duration; ``ended``: by whom, see there."""

    started: datetime
    seconds: float
    ended: Ended

    @property
    def status(self) -> int:
        """The exit status."""
        return self.ended.status


def _execute(request: Request, directory: RunDirectory) -> Outcome:
    """Run the command. Raises WarptraceError where it cannot be started."""
    return _run(request, request.runtime_options(directory.raw))


def _execute_lifetimes(request: Request, directory: RunDirectory) -> None:
    """Run the command before that, with lifetimes only. Raises WarptraceError where it cannot be started."""
    folder = directory.partial / LIFETIMES_DIR
    outcome = _run(request, lifetimes_options(request.runtime_options(folder), folder))
    wait_for_processes(folder)
    status = "" if not outcome.status else f"; it ended with exit status {outcome.status}"
    note(f"first run, with lifetimes only: {outcome.seconds:.1f} s{status}")


def _compare(directory: RunDirectory, result: Result) -> None:
    """Tell what recording costs, and drop the captures of the run before."""
    lifetimes = directory.partial / LIFETIMES_DIR
    if not result.interrupted:
        try:
            name = report_overhead(lifetimes, directory.raw, directory.partial)
            result.outputs += [name] if name else []
        except OSError as error:
            result.failures.append(f"{OVERHEAD_FILE}: {error}")
    shutil.rmtree(lifetimes, ignore_errors=True)


def _run(request: Request, options: RuntimeOptions) -> Outcome:
    raw = Path(options.directory)
    raw.mkdir()
    environment = child_environment(os.environ, options.to_env())
    if request.log_level in ("info", "debug", "trace"):
        note(f"running {shlex.join(request.command)}; raw captures go to {raw}")
    started, begin = datetime.now(timezone.utc), time.monotonic()
    ended = run_command(
        request.command,
        environment,
        request.working_dir,
        raw,
        timeout=request.timeout,
        watch=request.watch,
    )
    forget_offers(raw)
    return Outcome(started, time.monotonic() - begin, ended)


def _make_outputs(directory: RunDirectory, plan: OutputPlan) -> Result:
    """Post-process what was captured. Whatever goes wrong here, the raw captures stay: faults are in the result."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        wait_for_processes(directory.raw)
        return postprocess(captures_in(directory.raw), directory.partial, plan)
    except KeyboardInterrupt:
        return Result(failures=["post-processing was interrupted"], interrupted=True)
    except OSError as error:
        return Result(failures=[f"cannot write the outputs: {error}"])
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _conclude(
    request: Request, plan: OutputPlan, directory: RunDirectory, outcome: Outcome, result: Result
) -> Path:
    """Write run.json, drop the raw captures where they are not wanted, and give the directory its final name."""
    made = plan.empty or (result.recorded and not result.failures)
    if not request.keep and made:
        shutil.rmtree(directory.raw)
    try:
        write_run(directory.partial, _run_record(request, directory, outcome, result))
    except OSError as error:  # a full disk: what there is keeps its place all the same
        result.failures.append(f"cannot write {RUN_FILE}: {error.strerror}")
    return directory.commit(success=outcome.status == 0 and result.recorded and not result.failures)


def _run_record(request: Request, directory: RunDirectory, outcome: Outcome, result: Result) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "command": list(request.command),
        "working_dir": os.path.abspath(request.working_dir or os.curdir),
        "started": outcome.started.isoformat(),
        "seconds": round(outcome.seconds, 6),
        "exit_status": outcome.status,
        "ended_by": outcome.ended.by,
        "timeout": request.timeout,
        "options": request.runtime_options(directory.raw).to_json() | {"directory": RAW_DIR},
        "versions": {"warptrace": __version__, "python": platform.python_version(), "platform": platform.platform()},
        "captures": [f"{RAW_DIR}/{path.name}" for path in captures_in(directory.raw)],
        "outputs": result.outputs,
        "failures": result.failures,
    }


def _report(
    request: Request,
    directory: RunDirectory,
    place: Path,
    outcome: Outcome,
    result: Result,
    unused: Sequence[str],
) -> None:
    """Tell where the results are, and what is not as it should be. ``unused``: names of kernels that selected none."""
    print_summaries(result.summaries, sys.stderr)
    if result.hang is not None:
        note(result.hang.text())
    if outcome.ended.by != "itself":
        why = f"after {request.timeout:g} s" if outcome.ended.by == "timeout" else "after Ctrl-C"
        note(f"the command was ended {why}: exit status {outcome.status}")
    elif outcome.status:
        note(f"the command ended with exit status {outcome.status}")
    for failure in result.failures:
        note(f"error: {failure}")
    for line in unused:
        warn(f"{line} matches no kernel of this run")
    if not result.recorded and not result.failures:
        raw = place / RAW_DIR
        for line in why_nothing_recorded(captures_in(raw), armed_processes(raw)):
            warn(line)
    if request.postprocess == "none":  # no summary tells
        for pid in unclosed(place / RAW_DIR):
            warn(f"pid {pid} did not close its capture: the outputs, or `warptrace report`, tell what is missing")
    if place != directory.final:
        warn(f"{shown(directory.final)} was left as it is: this run did not succeed, or it appeared meanwhile")
    note(f"results in {shown(place)}" + "".join(f"\n  {shown(place / name)}" for name in result.outputs))
    if result.failures:
        note(f"the raw capture is kept: warptrace postprocess {shlex.quote(shown(place))}")
