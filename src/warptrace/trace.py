"""`Trace`: the decoded columns. Exporters and reports know only this module.

Times are integer nanoseconds from the start of the trace (``epoch_ns`` is kept beside them) and, where the name says
``cycle``, SM cycles of the warp's own SM counted from its warp's entry. Columns are numpy arrays of equal length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .selection import Coordinates, KernelSelection, triple
from .wire import STREAM_LEGACY, STREAM_PER_THREAD

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

I8 = NDArray[np.int8]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

STREAM_NAMES = {0: "default", STREAM_LEGACY: "legacy default", STREAM_PER_THREAD: "per-thread default"}
RANGE_TOKEN = 1
RANGE_STACK = 2


@dataclass(frozen=True)
class LaunchSelection:
    """What of a launch was to be recorded, where that is not all of it.

    ``recorded``: clusters that its grid has, and warps. ``outside``: clusters asked for that its grid does not have,
    for which cluster 0,0,0 was recorded. ``cluster_grid``: clusters in each dimension; zeros where nothing told them.
    ``grid_warps``: warps of the whole grid.
    """

    recorded: KernelSelection
    outside: tuple[Coordinates, ...]
    cluster_grid: Coordinates
    grid_warps: int

    def __str__(self) -> str:
        """In words: "cluster 0,0,0, warps 0-3 (cluster 7,0,0 is not in the grid)"."""
        names = " ".join(map(triple, self.outside))
        many = len(self.outside) > 1
        note = f" (cluster{'s' if many else ''} {names} {'are' if many else 'is'} not in the grid)"
        return str(self.recorded) + (note if self.outside else "")


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, in start order. ``start_ns``/``end_ns`` are the first entry and last exit of its
    recorded warps. ``process`` indexes :attr:`Trace.processes`; ``context_id`` counts a process's contexts from 1.
    ``warps_expected`` is grid x warps per CTA, or as many of them as ``selection`` lets record (None: all). ``graph``:
    None, or ("graph_exec_1", replay number) where the launch was a node in the replay of a CUDA graph. ``stream``: the
    CUDA handle of the stream it was launched into; None where that is not known, and for replays, of which only the
    stream of the capture is known."""

    index: int
    process: int
    device: int
    context_id: int
    grid_id: int
    kernel: str
    symbol: str
    kernel_id: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    start_ns: int
    end_ns: int
    warps_recorded: int
    warps_expected: int
    events: int
    lost_events: int
    lost_warps: int
    clock_uncertainty_ns: float = 0.0
    graph: tuple[str, int] | None = None
    selection: LaunchSelection | None = None
    stream: int | None = None

    @property
    def stream_name(self) -> str:
        """The stream for a reader: CUDA's own by name, others by handle; "" where it is not known."""
        if self.stream is None:
            return ""
        return STREAM_NAMES.get(self.stream, f"{self.stream:#x}")

    @property
    def origin(self) -> str:
        """The stream, or the replay of a graph ("graph_exec_1:3"), for a reader; "" where neither is known."""
        return self.stream_name if self.graph is None else f"{self.graph[0]}:{self.graph[1]}"


@dataclass(frozen=True)
class Process:
    """A traced process and the device(s) it used, as its manifest tells it."""

    pid: int
    manifest: dict[str, Any]

    @property
    def rank(self) -> int | None:
        """Its rank among the processes of a job, where a launcher gave it one."""
        rank = self.manifest.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def host(self) -> str:
        """The machine's name."""
        return str(self.manifest.get("host", ""))

    def gpu(self, device: int) -> str:
        """The UUID of a device, "" where it has none."""
        for one in self.manifest.get("devices", []):
            if one.get("ordinal") == device:
                return str(one.get("uuid") or "")
        return ""


@dataclass(frozen=True)
class Warps:
    """One row a warp, ordered by (launch, cta z, y, x, warp)."""

    launch: I32
    cta: I32  # (n, 3)
    warp: I32
    sm: I32
    tpc: I32  # -1: unknown
    gpc: I32  # -1: unknown
    start_ns: I64
    end_ns: I64  # == last event or start where the warp never ended
    start_cycle: I64  # %clock64 at entry (the warp's cycle 0)
    cycles: I64  # entry to exit, in cycles; -1: never ended
    events: I64  # recorded
    lost: I64  # not recorded, exact
    closed: U8  # 1: the warp's exit was seen

    def __len__(self) -> int:
        return len(self.launch)


@dataclass(frozen=True)
class Ranges:
    """One row a closed range, ordered by (warp, start_seq)."""

    warp: I32  # row of Warps
    name: I32  # index into Trace.strings
    kind: U8  # RANGE_TOKEN or RANGE_STACK
    lane: U8  # lane that led the start
    depth: I16  # stack ranges: ranges of the same stack open around it; token ranges: 0
    start_ns: I64
    end_ns: I64
    start_cycle: I64
    end_cycle: I64
    start_seq: I64  # program order within the warp, shared with Markers.seq
    end_seq: I64
    start_type: U8  # PayloadType
    start_bits: U64  # raw bit pattern, zero-extended
    end_type: U8
    end_bits: U64
    start_site: I32  # index into Trace.sites
    end_site: I32

    def __len__(self) -> int:
        return len(self.warp)


@dataclass(frozen=True)
class OpenRanges:
    """One row a range that was open when its warp was last seen, ordered by (warp, start_seq): of warps that had not
    ended, except those of :attr:`Trace.full`. Columns as in :class:`Ranges`."""

    warp: I32
    name: I32
    kind: U8
    lane: U8
    depth: I16
    start_ns: I64
    start_cycle: I64
    start_seq: I64
    start_type: U8
    start_bits: U64
    start_site: I32

    def __len__(self) -> int:
        return len(self.warp)

    @classmethod
    def none(cls) -> OpenRanges:
        """No rows."""
        i32, u8, i64 = np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64)
        i16, u64 = np.zeros(0, np.int16), np.zeros(0, np.uint64)
        return cls(i32, i32, u8, u8, i16, i64, i64, i64, u8, u64, i32)


@dataclass(frozen=True)
class Markers:
    """One row a marker, ordered by (warp, seq)."""

    warp: I32
    name: I32
    lane: U8
    ns: I64
    cycle: I64
    seq: I64
    type: U8
    bits: U64
    site: I32

    def __len__(self) -> int:
        return len(self.warp)


@dataclass(frozen=True)
class Problem:
    """Something in the data that is not as it should be, with a count; never a guess.

    ``kind`` is one of "lost_events", "lost_warps", "lost_push", "lost_start" (a range whose begin was overwritten),
    "torn_ring", "uncertain_count", "unpaired_push", "unpaired_pop", "unpaired_start", "unpaired_end", "ambiguous_end",
    "unclosed_warp", "unclosed_capture", "lost_launches", "unknown_kernel", "unknown_site", "damaged_region",
    "truncated_file", "clock", "selection", "host".
    """

    kind: str
    count: int
    text: str
    launch: int | None = None


@dataclass(frozen=True)
class TraceSite:
    """A site of any kernel of the trace: where in the source an event comes from."""

    kernel_id: int
    id: int
    kind: int
    name: str
    payload: int
    file: str
    line: int


@dataclass(frozen=True)
class Trace:
    """Everything decoded from one or more raw captures."""

    epoch_ns: int
    strings: tuple[str, ...]
    sites: tuple[TraceSite, ...]
    processes: tuple[Process, ...]
    launches: tuple[Launch, ...]
    warps: Warps
    ranges: Ranges
    markers: Markers
    problems: tuple[Problem, ...] = ()
    emulated: bool = False
    meta: dict[str, Any] = field(default_factory=dict)
    open: OpenRanges = field(default_factory=OpenRanges.none)
    full: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of Warps that had not ended and whose memory was full: what they did since is not known."""

    def places(self) -> dict[tuple[int, int], str]:
        """A name for every (process, device ordinal) that has launches, in order of host, rank, process and device.

        "Process 4242, GPU 0", "Rank 3 (process 4242), GPU 0"; with the host where there are several, and the GPU's UUID
        where one ordinal stands for several GPUs of a host. No two names are equal.
        """
        keys = sorted({(one.process, one.device) for one in self.launches}, key=self._place_order)
        hosts = {self.processes[process].host for process, _ in keys}
        gpus: dict[tuple[str, int], set[str]] = {}
        for process, device in keys:
            one = self.processes[process]
            gpus.setdefault((one.host, device), set()).add(one.gpu(device))
        names: dict[tuple[int, int], str] = {}
        seen: dict[str, int] = {}
        for process, device in keys:
            one = self.processes[process]
            who = f"Process {one.pid}" if one.rank is None else f"Rank {one.rank} (process {one.pid})"
            where = f" on {one.host}" if len(hosts) > 1 else ""
            several = len(gpus[one.host, device]) > 1
            gpu = f" ({one.gpu(device).removeprefix('GPU-')[:8]})" if several and one.gpu(device) else ""
            name = f"{who}{where}, GPU {device}{gpu}"
            seen[name] = seen.get(name, 0) + 1
            names[process, device] = name if seen[name] == 1 else f"{name} #{seen[name]}"
        return names

    def _place_order(self, key: tuple[int, int]) -> tuple[str, bool, int, int, int]:
        one = self.processes[key[0]]
        return one.host, one.rank is None, one.rank or 0, key[0], key[1]

    def to_arrow(self, table: str = "ranges") -> pyarrow.Table:
        """A flat Arrow table: "ranges", "markers", "warps", "launches", "host_ranges" or "host_launches"
        (docs/outputs.md). Needs pyarrow.

        Raises UsageError for another name, WarptraceError where pyarrow is missing.
        """
        from .export.tables import to_arrow

        return to_arrow(self, table)

    def to_pandas(self, table: str = "ranges") -> pandas.DataFrame:
        """The same as a pandas DataFrame: texts are categoricals, columns with gaps nullable. Needs pandas."""
        from .export.tables import to_pandas

        return to_pandas(self, table)

    def to_polars(self, table: str = "ranges") -> polars.DataFrame:
        """The same as a Polars DataFrame: texts are enums, columns with gaps nullable. Needs polars."""
        from .export.tables import to_polars

        return to_polars(self, table)
