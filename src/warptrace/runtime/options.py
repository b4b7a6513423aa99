"""What the tracer inside a process is told: read from the environment that ``warptrace profile`` sets.

Imports neither numpy nor any GPU library: it runs at the start of every traced Python process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import UsageError
from ..selection import Selection, parse_warps

ENABLE_ENV = "WARPTRACE"
"""``1``: Python processes arm the tracer at start."""
DIRECTORY_ENV = "WARPTRACE_DIR"
"""Folder that gets one ``pid_<pid>`` raw capture a process; overrides ``directory`` of WARPTRACE_OPTIONS."""
OPTIONS_ENV = "WARPTRACE_OPTIONS"
"""JSON object with any of the fields of :class:`RuntimeOptions`."""

KEYWORDS = {"buffer_bytes": "buffer_size"}
"""Fields whose keyword in Python has another name."""
NO_KEYWORDS = ("directory", "window", "selection")
"""Fields that are not the caller's to give."""

DEFAULT_DIRECTORY = "warptrace-output/raw"
"""Under the current folder, so that `warptrace postprocess warptrace-output` finds the captures."""
KEEP_EVENTS = ("first", "last")
"""Which events of a warp stay where it has more than room."""
AUTO_GROUPS = ("waits", "barriers", "arrivals", "copies", "mma", "scheduler")
"""Groups of the DSL's own building blocks that can emit ranges."""
AUTO_DEFAULT = ("waits", "barriers")
"""Those in which a warp can be held up."""
MAX_AUTO_NAME_BYTES = 255
"""What the front end takes for a name (tests hold it to that)."""
LOG_LEVELS = ("error", "warn", "info", "debug", "trace")

MIN_BUFFER_BYTES = 16 << 20
"""128 banks that still hold a region of some thousand events each, and the tables before them."""
MAX_BUFFER_BYTES = 4 << 30
"""Offsets on the device are 32 bits wide."""
MAX_EVENTS_PER_WARP = 65520
"""8-byte slots in the largest region that a token's 16-bit link can name, header excluded (tests hold it to
:mod:`warptrace.wire`, which is not imported here because it needs numpy)."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_SIZE_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Bytes of a size such as ``512M``, ``1G``, ``1.5GiB`` or ``268435456`` (units are powers of 1024).

    Raises UsageError for anything else.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size: write a number with K, M or G, as 512M or 1G")
    number, unit = match.groups()
    scale = 1 << _SIZE_SHIFT[unit.upper()]
    return int(number) * scale if number.isdigit() else int(float(number) * scale)


def format_size(size: int) -> str:
    """The shortest exact text that :func:`parse_size` reads back."""
    for unit in ("G", "M", "K"):
        shift = _SIZE_SHIFT[unit]
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def parse_groups(text: str) -> tuple[str, ...]:
    """Groups of building blocks, as ``waits,mma``, in the order of AUTO_GROUPS. Raises UsageError for others."""
    given = [part.strip() for part in text.split(",")]
    for group in given:
        if group not in AUTO_GROUPS:
            raise UsageError(f"group {group!r} is unknown: choose among {', '.join(AUTO_GROUPS)}")
    return tuple(group for group in AUTO_GROUPS if group in given)


def parse_names(value: Any, shown: str) -> tuple[tuple[str, str], ...]:
    """Patterns and names of automatic ranges: an object, or a list of pairs. Raises UsageError, beginning with
    ``shown``, for anything else."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)):
        raise UsageError(f"{shown} must be an object of patterns and names, not {value!r}")
    for pair in pairs:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            pair = tuple(pair) if isinstance(pair, list) else pair
            raise UsageError(f"{shown} must give each pattern a name as text, not {pair!r}")
        if len(pair[1].encode()) > MAX_AUTO_NAME_BYTES:
            raise UsageError(f"{shown}: the name for {pair[0]!r} has more than {MAX_AUTO_NAME_BYTES} bytes")
    return tuple((str(pattern), str(name)) for pattern, name in pairs)


@dataclass(frozen=True)
class RuntimeOptions:
    """Settings of the tracer in one process.

    ``buffer_bytes``: device memory for trace data, one buffer a device. ``max_events_per_warp``: room for that many
    events per warp and launch; None: the runtime decides. ``log_level``: one of LOG_LEVELS, the least severe message
    printed. ``directory``: absolute path of the folder that gets a ``pid_<pid>`` capture a process.
    ``untraced_build``: kernels are compiled a second time without events, to tell what tracing costs in registers.
    ``window``: recording begins off and follows ``warptrace.start``, ``stop`` and ``capture``.
    ``selection``: what is recorded.
    ``keep_events``: one of KEEP_EVENTS, for kernels compiled from then on.
    ``iket_calls``: calls of the DSL's own event module (``cute.experimental.iket``) are recorded too.
    ``auto``: of AUTO_GROUPS, those whose building blocks emit ranges, for kernels compiled from then on.
    ``peer_clocks``: the timers of devices that see each other are compared directly too.
    ``auto_nested``: also building blocks that others are made of.
    ``auto_names``: (pattern, name) in order, for the names of these ranges; an empty name leaves a range out.

    ``host_ranges``: NVTX ranges and torch's record_function, and when the host launched what.

    Raises UsageError, naming the field, for a value that cannot be used.
    """

    directory: str = DEFAULT_DIRECTORY
    buffer_bytes: int = 1 << 30
    max_events_per_warp: int | None = None
    log_level: str = "warn"
    untraced_build: bool = False
    window: bool = False
    selection: Selection = Selection()
    keep_events: str = "first"
    iket_calls: bool = True
    auto: tuple[str, ...] = ()
    peer_clocks: bool = True
    auto_nested: bool = False
    auto_names: tuple[tuple[str, str], ...] = ()
    host_ranges: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", os.path.abspath(self.directory))
        if not MIN_BUFFER_BYTES <= self.buffer_bytes <= MAX_BUFFER_BYTES:
            least, most = format_size(MIN_BUFFER_BYTES), format_size(MAX_BUFFER_BYTES)
            raise UsageError(f"buffer size {format_size(self.buffer_bytes)} is out of range: choose {least} to {most}")
        if self.max_events_per_warp is not None and not 1 <= self.max_events_per_warp <= MAX_EVENTS_PER_WARP:
            raise UsageError(
                f"max events per warp {self.max_events_per_warp} is out of range: choose 1 to {MAX_EVENTS_PER_WARP}"
            )
        if self.log_level not in LOG_LEVELS:
            raise UsageError(f"log level {self.log_level!r} is unknown: choose one of {', '.join(LOG_LEVELS)}")
        if any(group not in AUTO_GROUPS for group in self.auto):
            raise UsageError(f"auto {self.auto!r} is unknown: choose among {', '.join(AUTO_GROUPS)}")
        if self.keep_events not in KEEP_EVENTS:
            raise UsageError(f"keep_events {self.keep_events!r} is unknown: choose one of {', '.join(KEEP_EVENTS)}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> RuntimeOptions:
        """The options of this process's environment; what is not set there has its default.

        Unknown keys are ignored, so that a newer command line can drive an older package in a child's environment.
        Raises UsageError, naming the variable, for a value of the wrong type or out of range.
        """
        env = os.environ if environ is None else environ
        values = _decode(env.get(OPTIONS_ENV, ""))
        if env.get(DIRECTORY_ENV):
            values["directory"] = env[DIRECTORY_ENV]
        try:
            return cls(**values)
        except UsageError as error:
            raise UsageError(f"{OPTIONS_ENV}: {error}") from None

    @classmethod
    def from_keywords(cls, directory: str, keywords: Mapping[str, Any]) -> RuntimeOptions:
        """The options of a call in Python, where a size is called ``buffer_size`` and what to select has a keyword for
        each field of :class:`Selection`.

        Raises UsageError, naming the keyword, for one that is unknown and for a value that cannot be used.
        """
        own = {KEYWORDS.get(f.name, f.name): f.name for f in fields(cls) if f.name not in NO_KEYWORDS}
        selecting = [f.name for f in fields(Selection)]
        for keyword in keywords:
            if keyword not in own and keyword not in selecting:
                known = ", ".join(sorted([*own, *selecting]))
                raise UsageError(f"{keyword} is not an option of warptrace.capture and start; known are {known}")
        values = {own[k]: _checked(own[k], v, k) for k, v in keywords.items() if k in own}
        selection = Selection.from_json({k: _listed(k, v) for k, v in keywords.items() if k in selecting})
        return cls(directory=directory, selection=selection, **values)

    def to_env(self) -> dict[str, str]:
        """The variables that make :meth:`from_env` of a child give these options back, tracing switched on."""
        return {
            ENABLE_ENV: "1",
            DIRECTORY_ENV: self.directory,
            OPTIONS_ENV: json.dumps(self.to_json(), sort_keys=True),
        }

    def to_json(self) -> dict[str, Any]:
        """As a JSON object of all fields."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"selection": self.selection.to_json()}


def _decode(text: str) -> dict[str, Any]:
    """The known fields of an options text, each with its type checked."""
    if not text.strip():
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{OPTIONS_ENV} is not JSON ({error}): unset it or write an object") from None
    if not isinstance(data, dict):
        raise UsageError(f"{OPTIONS_ENV} must be a JSON object, not {type(data).__name__}")
    known = [f.name for f in fields(RuntimeOptions) if f.name in data]
    return {name: _checked(name, data[name], f"{OPTIONS_ENV}: {name}") for name in known}


def _listed(name: str, value: Any) -> Any:
    """A value of a selection as JSON has it: lists for tuples, ranges, dicts by kernel, a single kernel, and warps as
    the command line has them."""
    if name == "kernels" and isinstance(value, str):
        return [value]
    if name == "warps" and isinstance(value, str):
        return list(parse_warps(value))
    if isinstance(value, dict):
        return [[key, _listed("", part)] for key, part in value.items()]
    if isinstance(value, (tuple, list, range)):
        return [_listed("", part) for part in value]
    return value


def _checked(name: str, value: Any, shown: str) -> Any:
    """``value`` as field ``name`` wants it. Sizes may be written by hand as text. ``shown``: where it was given."""
    if name == "buffer_bytes" and isinstance(value, str):
        return parse_size(value)
    if name == "max_events_per_warp" and value is None:
        return None
    if name == "auto":
        return _groups(value, shown)
    if name == "selection":
        if isinstance(value, Selection):
            return value
        try:
            return Selection.from_json(value)
        except UsageError as error:
            raise UsageError(f"{shown.removesuffix(name)}{error}") from None
    if name == "auto_names":
        return parse_names(value, shown)
    if name in ("untraced_build", "window", "iket_calls", "peer_clocks", "auto_nested", "host_ranges"):
        if not isinstance(value, bool):
            raise UsageError(f"{shown} must be true or false, not {value!r}")
        return value
    wanted = str if name in ("directory", "log_level", "keep_events") else int
    if not isinstance(value, wanted) or isinstance(value, bool):
        kind = "text" if wanted is str else "a whole number"
        raise UsageError(f"{shown} must be {kind}, not {value!r}")
    return value


def _groups(value: Any, shown: str) -> tuple[str, ...]:
    """Groups as JSON has them (a list), as the command line has them, or, in Python, True for the default ones."""
    if isinstance(value, bool):
        return AUTO_DEFAULT if value else ()
    if value == [] or value == ():
        return ()
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        value = ",".join(value)
    if not isinstance(value, str):
        raise UsageError(f"{shown} must be a list of groups, not {value!r}")
    try:
        return parse_groups(value)
    except UsageError as error:
        raise UsageError(f"{shown}: {error}") from None
