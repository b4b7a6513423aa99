"""Where and when the CTAs of a launch ran: waves, residency, skew and tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import I64, Launch, Trace
from .groups import percentile
from .sweep import LaunchRows


@dataclass(frozen=True)
class SmRow:
    """One SM's part of a launch. ``busy_ns``: with at least one CTA resident; ``resident``: most CTAs at once."""

    sm: int
    ctas: int
    first_start_ns: int
    last_end_ns: int
    busy_ns: int
    resident: int


@dataclass(frozen=True)
class Ctas:
    """A row a recorded CTA. ``first_warp``: row of its first warp within the launch; cycles are the SM's own."""

    first_warp: I64
    sm: I64
    start_ns: I64
    end_ns: I64
    start_cycle: I64
    end_cycle: I64

    def __len__(self) -> int:
        return len(self.sm)


@dataclass(frozen=True)
class Skew:
    """Spread of a moment over CTAs, ns after the first: median, 95th percentile, last."""

    p50_ns: int
    p95_ns: int
    max_ns: int


@dataclass(frozen=True)
class Placement:
    """How a launch used the SMs.

    ``sm_count``: of the device, None where it is not known. ``resident_per_sm``: most CTAs at once on one SM.
    ``waves``: CTAs of the grid / (SMs of the device, else SMs used, x resident_per_sm). ``busy_share``: mean over the
    SMs that were used of the share of the launch in which a CTA was resident; ``device_busy_share``: over all SMs.
    ``start_skew``: over the first CTA of each SM; ``end_skew``: over the last. ``tail_ns``: from the moment the first
    SM has nothing more to do to the launch's end; ``tail_share``: SM time that stood idle then, of all SM time.
    """

    ctas: int
    ctas_expected: int
    sms_used: int
    sm_count: int | None
    resident_per_sm: int
    waves: float
    busy_share: float
    device_busy_share: float | None
    mean_resident_warps: float
    start_skew: Skew
    end_skew: Skew
    tail_ns: int
    tail_share: float
    sms: tuple[SmRow, ...]


def launch_ctas(trace: Trace, rows: LaunchRows) -> Ctas:
    """The CTAs of a launch, in the order of its warps."""
    w, part = trace.warps, rows.warps
    cta = w.cta[part]
    new = np.ones(len(cta), np.bool_)
    new[1:] = np.any(cta[1:] != cta[:-1], axis=1)
    first = np.flatnonzero(new)
    start_cycle = w.start_cycle[part]
    # A warp that never ended is taken to have ended with its last event, whose cycle its end in ns stands for.
    end_cycle = start_cycle + np.maximum(w.cycles[part], 0)
    if not len(first):
        return Ctas(*(np.empty(0, np.int64) for _ in range(6)))
    return Ctas(
        first_warp=first,
        sm=w.sm[part][first].astype(np.int64),
        start_ns=np.minimum.reduceat(w.start_ns[part], first),
        end_ns=np.maximum.reduceat(w.end_ns[part], first),
        start_cycle=np.minimum.reduceat(start_cycle, first),
        end_cycle=np.maximum.reduceat(end_cycle, first),
    )


def sm_count(trace: Trace, launch: Launch) -> int | None:
    """SMs of the device of a launch, as its manifest says; None for an emulated one."""
    devices = trace.processes[launch.process].manifest.get("devices") or ()
    for device in devices:
        count = device.get("sm_count") if isinstance(device, dict) else None
        if isinstance(device, dict) and device.get("ordinal") == launch.device and isinstance(count, int) and count > 0:
            return None if trace.emulated else count
    return None


def place(trace: Trace, launch: Launch, rows: LaunchRows) -> Placement:
    """How ``launch`` used the SMs."""
    ctas = launch_ctas(trace, rows)
    duration = launch.end_ns - launch.start_ns
    sms = _sm_rows(ctas)
    known = sm_count(trace, launch)
    resident = max((row.resident for row in sms), default=0)
    expected = int(np.prod(launch.grid))
    busy = sum(row.busy_ns for row in sms)
    all_time = duration * len(sms)
    ends = np.array([row.last_end_ns for row in sms], np.int64)
    starts = np.array([row.first_start_ns for row in sms], np.int64)
    w = trace.warps
    life = int((w.end_ns[rows.warps] - w.start_ns[rows.warps]).sum())
    return Placement(
        ctas=len(ctas),
        ctas_expected=expected,
        sms_used=len(sms),
        sm_count=known,
        resident_per_sm=resident,
        waves=expected / max((known or len(sms)) * resident, 1),
        busy_share=_share(busy, all_time),
        device_busy_share=None if known is None else _share(busy, duration * known),
        mean_resident_warps=_share(life, all_time),
        start_skew=_skew(starts),
        end_skew=_skew(ends),
        tail_ns=int(launch.end_ns - ends.min()) if len(ends) else 0,
        tail_share=_share(int((launch.end_ns - ends).sum()), all_time),
        sms=sms,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _skew(moments: I64) -> Skew:
    if not len(moments):
        return Skew(0, 0, 0)
    late = moments - moments.min()
    return Skew(percentile(late, 50), percentile(late, 95), int(late.max()))


def _sm_rows(ctas: Ctas) -> tuple[SmRow, ...]:
    if not len(ctas):
        return ()
    order = np.argsort(ctas.sm, kind="stable")
    sm = ctas.sm[order]
    first = np.flatnonzero(np.concatenate([[True], sm[1:] != sm[:-1]]))
    counts = np.diff(np.append(first, len(sm)))
    starts = np.minimum.reduceat(ctas.start_ns[order], first)
    ends = np.maximum.reduceat(ctas.end_ns[order], first)
    group = np.repeat(np.arange(len(first)), counts)
    # Two stamps of one SM compare exactly in cycles; time in ns only to the uncertainty of the clock.
    resident, _ = _overlap(ctas.start_cycle[order], ctas.end_cycle[order], group, len(first))
    _, busy = _overlap(ctas.start_ns[order], ctas.end_ns[order], group, len(first))
    columns = (sm[first], counts, starts, ends, busy, resident)
    return tuple(SmRow(*values) for values in zip(*(column.tolist() for column in columns)))


def _overlap(start: I64, end: I64, group: I64, groups: int) -> tuple[I64, I64]:
    """By group: most intervals that are open at once, and the length of their union. An interval that starts where
    another ends does not overlap it."""
    time = np.concatenate([start, end])
    step = np.repeat(np.array([1, -1]), len(start))
    owner = np.concatenate([group, group])
    order = np.lexsort((step, time, owner))
    time, owner, depth = time[order], owner[order], np.cumsum(step[order])
    most = np.zeros(groups, np.int64)
    np.maximum.at(most, owner, depth)
    length = np.zeros(len(time), np.int64)
    length[:-1] = np.where(depth[:-1] > 0, time[1:] - time[:-1], 0)
    return most, np.bincount(owner, length.astype(np.float64), groups).astype(np.int64)
