"""Event sites and the build record of a kernel: what a record's site id means.

A *site* is a call in the source. The table of sites of a kernel is made when the kernel is traced, written into
the capture at once, and is the reason that names, kinds and types cost nothing on the device.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .selection import EVERYTHING, KernelSelection
from .wire import CAPTURE_VERSION, LOG2_CROWD, EventKind, LaunchRules, PayloadType, least_lane_bytes


@dataclass(frozen=True)
class Site:
    """One call site. ``id`` is 1..65535 within its kernel; ``name`` is empty for POP; for END it is the name of the
    token where that is known statically, else empty. ``anchor``: its records carry %globaltimer too. ``high``: they
    carry bits 32 to 47 of the clock in place of a link. ``late``: 2**32 cycles may pass between the event before it
    and it; elsewhere nothing stands that could last so long."""

    id: int
    kind: EventKind
    name: str
    payload: PayloadType
    file: str
    line: int
    anchor: bool = False
    high: bool = False
    late: bool = True


@dataclass(frozen=True)
class KernelRecord:
    """What is known of a compiled, instrumented kernel (one line of ``kernels.jsonl``).

    ``kernel_id`` is a content hash (63 bits), equal in every process that compiles the same kernel. ``stride`` is 8
    or 16 (see :mod:`warptrace.wire`); ``slack``: bytes at the end of the slots into which events go that find no room
    (those of one group); ``lane_events``: some event may be led by a lane other than 0; ``max_events``: most events
    that one warp's lane can record, None where a loop leaves it open. ``build``: registers, spills and code size
    where known. ``selection``: the clusters and warps that record, as compiled into it. ``ring``: compiled to keep the
    newest events of each lane, not the first (then ``slack`` is 0).
    """

    kernel_id: int
    symbol: str
    name: str
    arch: str
    stride: int
    slack: int
    lane_events: bool
    max_events: int | None
    sites: tuple[Site, ...]
    build: dict[str, Any] = field(default_factory=dict)
    selection: KernelSelection = EVERYTHING
    ring: bool = False

    @property
    def launch_rules(self) -> LaunchRules:
        """What host code has to know to launch it."""
        chosen = self.selection
        return LaunchRules(
            stride=self.stride,
            slack=self.slack,
            ring=self.ring,
            least_lane=least_lane_bytes(self.stride, self.slack) if self.lane_events else 0,
            warps=32 if chosen.warps is None else len(chosen.warps),
            clusters=len(chosen.clusters or ()),
            log2_stride=chosen.cta_stride.bit_length() - 1,
            log2_crowd=LOG2_CROWD if chosen.thins else 0,
        )

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; inverse of :meth:`from_json`."""
        data = asdict(self)
        data["kernel_id"] = f"{self.kernel_id:016x}"
        data["sites"] = [
            [s.id, int(s.kind), s.name, int(s.payload), s.file, s.line, int(s.anchor), int(s.high), int(s.late)]
            for s in self.sites
        ]
        del data["selection"]
        return data if self.selection.everything else {**data, "selection": self.selection.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KernelRecord:
        """From a line of ``kernels.jsonl``. Raises KeyError, TypeError or ValueError on a malformed object."""
        return cls(
            kernel_id=int(data["kernel_id"], 16),
            symbol=str(data["symbol"]),
            name=str(data["name"]),
            arch=str(data["arch"]),
            stride=int(data["stride"]),
            slack=int(data["slack"]),
            lane_events=bool(data["lane_events"]),
            max_events=None if data["max_events"] is None else int(data["max_events"]),
            sites=tuple(
                Site(int(i), EventKind(k), str(n), PayloadType(p), str(f), int(ln), *(bool(flag) for flag in flags))
                for i, k, n, p, f, ln, *flags in data["sites"]
            ),
            build=dict(data.get("build", {})),
            selection=KernelSelection.from_json(data.get("selection")),
            ring=bool(data.get("ring", False)),
        )


def kernel_id(
    symbol: str, sites: tuple[Site, ...], selection: KernelSelection = EVERYTHING, *, ring: bool = False
) -> int:
    """Content hash that identifies a kernel's site table in every process: 63 bits, never 0.

    File names are left out: the same source checked out elsewhere is the same kernel. A selection is compiled into
    the kernel, so that makes it another one; so is the form that keeps its newest events (``ring``).
    """
    table = [[s.id, int(s.kind), s.name, int(s.payload), s.line, s.anchor, s.high, s.late] for s in sites]
    chosen: list[Any] = [] if selection.everything else [selection.to_json()]
    chosen += ["ring"] if ring else []
    text = json.dumps([CAPTURE_VERSION, symbol, table, *chosen], ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).digest()
    return (int.from_bytes(digest[:8], "little") & (2**63 - 1)) or 1
