"""What is recorded: which kernels, clusters, warps and launches. Imports neither numpy nor any GPU library.

A :class:`Selection` is what the user asks of a recording. What it means for one kernel is a :class:`KernelSelection`,
which front ends compile into the kernel and which travels with its record, so that a decoder knows what was not meant
to be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError

Coordinates = tuple[int, int, int]
Clusters = tuple[Coordinates, ...] | None
"""Clusters by their place in the grid; None: all."""

MAX_CLUSTERS = 64
"""Clusters that can be named for a kernel: every warp compares its place with all of them."""
MAX_COORDINATE = 2**31 - 1
MAX_WARPS = 32
"""Warps of the largest CTA."""
MAX_COUNT = 2**32 - 1
"""Launches are counted in 32 bits."""
MAX_CONFIG_BYTES = 64 << 10
"""It travels in an environment variable."""

CONFIG_OPTION = "--enabled-cluster-config"


@dataclass(frozen=True)
class KernelSelection:
    """What of a kernel's launches is recorded. Either ``clusters`` are named or every ``cta_stride``-th is recorded, by
    linear cluster id (x fastest); a launch without clusters has clusters of one CTA. ``warps``: numbers in the CTA,
    ascending; None: all.

    A named cluster that a launch's grid does not have stands for cluster 0,0,0.
    """

    clusters: Clusters = None
    cta_stride: int = 1
    warps: tuple[int, ...] | None = None

    @property
    def everything(self) -> bool:
        """Whether it leaves nothing out."""
        return self == EVERYTHING

    @property
    def thins(self) -> bool:
        """Whether it leaves clusters out."""
        return self.clusters is not None or self.cta_stride > 1

    @property
    def warp_mask(self) -> int:
        """Bit k: warp k is recorded."""
        return (1 << MAX_WARPS) - 1 if self.warps is None else sum(1 << w for w in self.warps)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; inverse of :meth:`from_json`."""
        clusters = None if self.clusters is None else [list(c) for c in self.clusters]
        warps = None if self.warps is None else list(self.warps)
        return {"clusters": clusters, "cta_stride": self.cta_stride, "warps": warps}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> KernelSelection:
        """From a kernel's record; None: everything. Raises KeyError, TypeError or ValueError for a malformed object."""
        if data is None:
            return cls()
        clusters, stride, warps = data["clusters"], int(data["cta_stride"]), data["warps"]
        if stride < 1:
            raise ValueError(f"cta_stride {stride}")
        return cls(
            None if clusters is None else tuple((int(x), int(y), int(z)) for x, y, z in clusters),
            stride,
            None if warps is None else tuple(int(w) for w in warps),
        )

    def __str__(self) -> str:
        """In words: "clusters 0,0,0 1,0,0, warps 0-3"; "everything"."""
        parts = []
        if self.clusters is not None:
            parts.append(f"cluster{'s' if len(self.clusters) > 1 else ''} {' '.join(map(triple, self.clusters))}")
        if self.cta_stride > 1:
            parts.append(f"every cluster whose number is a multiple of {self.cta_stride}")
        if self.warps is not None:
            parts.append(f"warp{'s' if len(self.warps) > 1 else ''} {number_list(self.warps)}")
        return ", ".join(parts) or "everything"


EVERYTHING = KernelSelection()


@dataclass(frozen=True)
class Selection:
    """What a recording wants.

    ``kernels``: regular expressions, of which one must be found in a kernel's symbol; none: every kernel.
    ``clusters``: of every kernel that ``clusters_by_kernel`` does not name; ``clusters_by_kernel``: (text, clusters)
    pairs, the text a kernel's symbol or a part of it: the symbol itself comes first, then the longest part.
    ``cta_stride``: every K-th cluster of kernels for which no clusters are asked for. ``warps``: numbers in the CTA.
    ``launch_skip`` and ``launch_count``: of each kernel, its first launches are not recorded, then so many are (None:
    all). ``lifetimes``: entry and exit of every warp, no events; also of kernels that hold none.

    Raises UsageError, naming the option, for a value that cannot be used.
    """

    kernels: tuple[str, ...] = ()
    clusters: Clusters = None
    clusters_by_kernel: tuple[tuple[str, Clusters], ...] = ()
    cta_stride: int = 1
    warps: tuple[int, ...] | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    lifetimes: bool = False

    def __post_init__(self) -> None:
        for text in self.kernels:
            try:
                re.compile(text)
            except (re.error, RecursionError, OverflowError) as error:
                raise UsageError(f"--kernel {text!r} is not a regular expression: {error}") from None
        _check_clusters(self.clusters, "--enabled-cluster")
        for name, clusters in self.clusters_by_kernel:
            _check_clusters(clusters, f"{CONFIG_OPTION}: {name!r}")
        _check_range("--cta-stride", self.cta_stride, 1)
        _check_range("--launch-skip", self.launch_skip, 0)
        if self.launch_count is not None:
            _check_range("--launch-count", self.launch_count, 1)
        if self.warps is not None:
            if not self.warps or any(not 0 <= w < MAX_WARPS for w in self.warps):
                raise UsageError(f"--warps: give numbers of 0 to {MAX_WARPS - 1}: a CTA has at most {MAX_WARPS} warps")
            object.__setattr__(self, "warps", tuple(sorted(set(self.warps))))
        if self.clusters is not None and self.cta_stride > 1:
            raise UsageError("--enabled-cluster and --cta-stride exclude each other: give one of the two")

    @property
    def everything(self) -> bool:
        """Whether it leaves nothing out."""
        return self == Selection()

    @property
    def launch_end(self) -> int:
        """Number of the first launch of a kernel that is not recorded any more; MAX_COUNT: no end."""
        if self.launch_count is None:
            return MAX_COUNT
        return min(self.launch_skip + self.launch_count, MAX_COUNT)

    def recorded_of(self, launches: int) -> int:
        """How many of the first ``launches`` of a kernel are recorded."""
        return max(min(launches, self.launch_end) - self.launch_skip, 0)

    def wants(self, symbol: str) -> bool:
        """Whether a kernel is recorded at all."""
        return not self.kernels or any(re.search(text, symbol) for text in self.kernels)

    def of(self, symbol: str) -> KernelSelection:
        """What of the launches of a kernel that is recorded."""
        named = [entry for entry in self.clusters_by_kernel if entry[0] in symbol]
        if named:
            clusters = max(named, key=lambda entry: (entry[0] == symbol, len(entry[0])))[1]
            return KernelSelection(clusters, 1, self.warps)
        return KernelSelection(self.clusters, self.cta_stride, self.warps)

    def unmatched(self, symbols: Sequence[str]) -> list[str]:
        """The kernel names asked for that none of ``symbols`` has, as the options that gave them."""
        found = [f"--kernel {t!r}" for t in self.kernels if not any(re.search(t, s) for s in symbols)]
        names = [name for name, _ in self.clusters_by_kernel if not any(name in s for s in symbols)]
        return found + [f"{name!r} of {CONFIG_OPTION}" for name in names]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; inverse of :meth:`from_json`."""
        return {
            "kernels": list(self.kernels),
            "clusters": _clusters_json(self.clusters),
            "clusters_by_kernel": [[name, _clusters_json(clusters)] for name, clusters in self.clusters_by_kernel],
            "cta_stride": self.cta_stride,
            "warps": None if self.warps is None else list(self.warps),
            "launch_skip": self.launch_skip,
            "launch_count": self.launch_count,
            "lifetimes": self.lifetimes,
        }

    @classmethod
    def from_json(cls, data: Any) -> Selection:
        """From a JSON object; fields that are not there have their default. Raises UsageError."""
        if not isinstance(data, dict):
            raise UsageError(f"selection must be an object, not {type(data).__name__}")
        values = dict(data)
        out: dict[str, Any] = {}
        if "kernels" in values:
            out["kernels"] = tuple(_listed(values["kernels"], str, "kernels"))
        if "clusters" in values:
            out["clusters"] = clusters_of(values["clusters"], "selection: clusters")
        if "clusters_by_kernel" in values:
            pairs = _listed(values["clusters_by_kernel"], list, "clusters_by_kernel")
            if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
                raise UsageError("selection: clusters_by_kernel must hold pairs of a text and clusters")
            where = "selection: clusters_by_kernel"
            out["clusters_by_kernel"] = tuple((n, clusters_of(c, f"{where}: {n!r}")) for n, c in pairs)
        for name in ("cta_stride", "launch_skip", "launch_count"):
            if values.get(name) is not None:
                out[name] = _whole(values[name], name)
        if values.get("warps") is not None:
            out["warps"] = tuple(_whole(w, "warps") for w in _listed(values["warps"], int, "warps"))
        if "lifetimes" in values:
            if not isinstance(values["lifetimes"], bool):
                raise UsageError(f"selection: lifetimes must be true or false, not {values['lifetimes']!r}")
            out["lifetimes"] = values["lifetimes"]
        return cls(**out)

    def __str__(self) -> str:
        """The options that give it, as on a command line."""
        parts = [f"--kernel {text}" for text in self.kernels]
        parts += [] if self.clusters is None else [f"--enabled-cluster {' '.join(map(triple, self.clusters))}"]
        parts += [CONFIG_OPTION] if self.clusters_by_kernel else []
        parts += [f"--cta-stride {self.cta_stride}"] if self.cta_stride > 1 else []
        parts += [] if self.warps is None else [f"--warps {number_list(self.warps)}"]
        parts += [f"--launch-skip {self.launch_skip}"] if self.launch_skip else []
        parts += [] if self.launch_count is None else [f"--launch-count {self.launch_count}"]
        parts += ["--warp-trace"] if self.lifetimes else []
        return " ".join(parts)


# ------------------------------------------------------------------------------------------------------------- texts
def triple(coordinates: Sequence[int]) -> str:
    """ "1,0,0"."""
    return ",".join(map(str, coordinates))


def number_list(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, runs joined: "0-3,8"; inverse of :func:`parse_warps`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_warps(text: str) -> tuple[int, ...]:
    """Numbers of a list such as ``0-3,8``, ascending. Raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise UsageError(f"{text!r} is not a list of warps: write numbers and ranges, as 0-3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"{text!r} is not a list of warps: {first}-{last} runs backwards")
        if last >= MAX_WARPS:
            raise UsageError(f"{text!r} names warp {last}: a CTA has at most {MAX_WARPS} warps, 0 to {MAX_WARPS - 1}")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def parse_cluster(text: str) -> Coordinates:
    """Coordinates of a cluster such as ``1,0,0``. Raises UsageError."""
    match = re.fullmatch(r"\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*,\s*([0-9]{1,10})\s*", text)
    if match is None or any(int(part) > MAX_COORDINATE for part in match.groups()):
        raise UsageError(f"{text!r} is not a cluster: write its coordinates X,Y,Z, as 1,0,0")
    return int(match[1]), int(match[2]), int(match[3])


def load_cluster_config(path: str) -> tuple[tuple[str, Clusters], ...]:
    """What a file of ``--enabled-cluster-config`` says, in its order. Raises UsageError, naming file and key."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{CONFIG_OPTION} {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(f"{CONFIG_OPTION} {path} has {len(data)} bytes: at most {MAX_CONFIG_BYTES} are taken")
    try:
        pairs = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{CONFIG_OPTION} {path} is not JSON: {error}") from None
    if not isinstance(pairs, _Pairs):
        raise UsageError(f"{CONFIG_OPTION} {path} must hold an object of kernel names and clusters")
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"{CONFIG_OPTION} {path} has the name {twice[0]!r} twice")
    return tuple((name, clusters_of(value, f"{CONFIG_OPTION} {path}: {name!r}")) for name, value in pairs)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order, repeated ones included."""


def clusters_of(value: Any, where: str) -> Clusters:
    """Clusters as JSON has them: ``[x, y, z]``, a list of such, null or "all". Raises UsageError that begins with
    ``where``."""
    if value is None or (isinstance(value, str) and value == "all"):
        return None
    places = value if isinstance(value, list) and value and all(isinstance(v, list) for v in value) else [value]
    if any(isinstance(v, _Pairs) or not _is_cluster(v) for v in places):
        raise UsageError(f'{where} must be [x, y, z], a list of such, null or "all", not {_shown(value)}')
    clusters = tuple(dict.fromkeys((p[0], p[1], p[2]) for p in places))
    _check_clusters(clusters, where)
    return clusters


def _is_cluster(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    return all(type(v) is int and 0 <= v <= MAX_COORDINATE for v in value)


def _shown(value: Any) -> str:
    text = json.dumps(dict(value) if isinstance(value, _Pairs) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _clusters_json(clusters: Clusters) -> list[list[int]] | None:
    return None if clusters is None else [list(c) for c in clusters]


def _check_clusters(clusters: Clusters, where: str) -> None:
    if clusters is None:
        return
    if not clusters:
        raise UsageError(f"{where} names no cluster")
    if len(clusters) > MAX_CLUSTERS:
        raise UsageError(f"{where} names {len(clusters)} clusters: at most {MAX_CLUSTERS}, or use --cta-stride")
    if any(len(c) != 3 or any(not 0 <= v <= MAX_COORDINATE for v in c) for c in clusters):
        raise UsageError(f"{where}: a cluster has three coordinates of at least 0, as 1,0,0")


def _check_range(option: str, value: int, least: int) -> None:
    if not least <= value <= MAX_COUNT:
        raise UsageError(f"{option} {value} is out of range: choose {least} to {MAX_COUNT}")


def _listed(value: Any, kind: type, name: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
        raise UsageError(f"selection: {name} must be a list of {kind.__name__}")
    return value


def _whole(value: Any, name: str) -> int:
    if type(value) is not int:
        raise UsageError(f"selection: {name} must be a whole number, not {value!r}")
    return value
