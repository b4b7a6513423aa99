"""Latency of flows: from the issue, the source's start, to completion, the target's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..flows import Flow
from ..flows.match import match
from ..trace import I64, Trace
from .groups import grouped
from .sweep import LaunchRows


@dataclass(frozen=True)
class FlowRow:
    """A flow in one launch, latencies in cycles of the CTA's SM. ``exposed``: cycles of all pairs in which the target
    was open, of ``total``; the rest passed before the target began. The counts are those of
    :class:`~warptrace.flows.match.Pairs`."""

    source: str
    target: str
    key: str
    pairs: int
    total: int
    exposed: int
    p50: int
    p95: int
    p99: int
    max: int
    unfed: int
    unused: int
    left_out: int
    backwards: int

    @property
    def mean(self) -> float:
        """Cycles from issue to completion."""
        return self.total / self.pairs if self.pairs else 0.0


def flow_rows(trace: Trace, rows: LaunchRows, flows: Sequence[Flow]) -> tuple[FlowRow, ...]:
    """A row for each flow of which the launch has a source or a target."""
    out = (_row(trace, rows, flow) for flow in flows)
    return tuple(row for row in out if row.pairs + row.unfed + row.unused + row.left_out + row.backwards)


def _row(trace: Trace, rows: LaunchRows, flow: Flow) -> FlowRow:
    pairs = match(trace, flow, rows.ranges)
    r = trace.ranges
    begin = _moment(trace, pairs.source, r.start_cycle)
    end = _moment(trace, pairs.target, r.end_cycle)
    opened = np.maximum(_moment(trace, pairs.target, r.start_cycle), begin)
    spread = grouped(end - begin, np.zeros(len(begin), np.int64), 1)
    return FlowRow(
        source=flow.source,
        target=flow.target,
        key=flow.key,
        pairs=len(begin),
        total=int(spread.total[0]),
        exposed=int((end - opened).sum()),
        p50=int(spread.p50[0]),
        p95=int(spread.p95[0]),
        p99=int(spread.p99[0]),
        max=int(spread.most[0]),
        unfed=pairs.unfed,
        unused=pairs.unused,
        left_out=pairs.left_out,
        backwards=pairs.backwards,
    )


def _moment(trace: Trace, rows: I64, column: I64) -> I64:
    out: I64 = trace.warps.start_cycle[trace.ranges.warp[rows]] + column[rows]
    return out
