"""Findings: sentences with figures, each with the numbers that it rests on, and none where the data do not carry it.

Every rule has its threshold here, by name. No finding about time is made from a launch that was emulated, that lost
more than LOST_LIMIT of its events, or in which warps never ended; none about the placement of CTAs where not every
warp of the grid was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .cost import DATE, DEVICE
from .stats import LaunchStats, RoleRow
from .summary import duration

LOST_LIMIT = 0.01
ROLE_PART = 0.05
"""Roles with a smaller part of the launch's warp time are not spoken of."""
STARVED = 0.25
"""Share of its main loop, first waits left out, that a side of a pipeline must wait to be called starved."""
STARVED_RATIO = 4.0
"""The other side must wait this many times less to be called the limit."""
STEADY_WAITS = 8
"""Fewest waits, first ones left out, from which a steady share is told."""
FILL = 0.10
TAIL = 0.05
SKEW = 0.10
LATE = 0.10
GAP = 0.25
IRREGULAR = 5.0
IRREGULAR_COUNT = 100
IRREGULAR_PART = 0.05
OUTLIER_PART = 0.02
COST = 0.10
CLOCK = 0.10
FEW_SMS = 0.9
LAST_WAVE = 0.5
FEW_WAVES = 8.0
CLOCK_MARGIN = 2.0
"""Differences across SMs count only beyond this many times the clock uncertainty."""

Value = int | float | str


@dataclass(frozen=True)
class Finding:
    """``figures`` holds every number of ``text``; times in them are cycles or, where the key says so, ns."""

    kind: str
    launch: int
    text: str
    figures: dict[str, Value]


Rule = Callable[[LaunchStats], Iterator[Finding]]


def findings(stats: LaunchStats, *, emulated: bool) -> tuple[Finding, ...]:
    """What the numbers of a launch say, the most telling first."""
    out = list(_integrity(stats, emulated))
    if sound(stats, emulated):
        rules: list[Rule] = [_pipeline, _fill, _outliers, _irregular, _gaps, _late]
        if stats.launch.warps_recorded >= stats.launch.warps_expected and stats.launch.selection is None:
            rules = [_pipeline, _fill, _few_ctas, _last_wave, _tail, _skew, _outliers, _irregular, _gaps, _late]
        for rule in rules:
            out += rule(stats)
        out += _cost(stats)
    return tuple(out)


def sound(stats: LaunchStats, emulated: bool) -> bool:
    """Whether findings about time can be made."""
    return not emulated and _lost_share(stats) <= LOST_LIMIT and not any(role.unclosed for role in stats.roles)


def _lost_share(stats: LaunchStats) -> float:
    launch = stats.launch
    return launch.lost_events / max(launch.events + launch.lost_events, 1)


def percent(share: float) -> str:
    """``41 %``; one decimal below 10 %."""
    return f"{100 * share:.0f} %" if round(share, 3) >= 0.0995 else f"{100 * share:.1f} %"


def _main_roles(stats: LaunchStats) -> list[RoleRow]:
    whole = sum(role.life for role in stats.roles)
    return [role for role in stats.roles if whole and role.life / whole >= ROLE_PART]


# ---------------------------------------------------------------------------------------------------- integrity
def _integrity(stats: LaunchStats, emulated: bool) -> Iterator[Finding]:
    launch = stats.launch
    number = launch.number
    if emulated:
        yield Finding("emulated", number, "The trace was emulated: its times are not those of a GPU.", {})
    if launch.lost_events:
        share = _lost_share(stats)
        all_events = launch.events + launch.lost_events
        text = f"{launch.lost_events} of {all_events} events ({percent(share)}) were lost"
        text += (
            "; the figures are of what was recorded."
            if share <= LOST_LIMIT
            else ": too many to tell where time went. Record again with a larger --buffer-size or fewer events."
        )
        yield Finding(
            "lost_events", number, text, {"lost_events": launch.lost_events, "events": launch.events, "share": share}
        )
    if launch.selection is not None:
        text = f"Only {launch.selection} was to be recorded: nothing is said about waves, tail and skew."
        yield Finding("selection", number, text, {"recorded": launch.warps_recorded})
    missing = launch.warps_expected - launch.warps_recorded
    if missing > 0:
        text = f"{launch.warps_recorded} of {launch.warps_expected} warps were recorded"
        figures: dict[str, Value] = {"recorded": launch.warps_recorded, "expected": launch.warps_expected}
        yield Finding("missing_warps", number, f"{text}: nothing is said about waves, tail and skew.", figures)
    unclosed = sum(role.unclosed for role in stats.roles)
    if unclosed:
        text = f"{unclosed} warps were not seen to end: the launch is told as far as it came."
        yield Finding("unclosed_warps", number, text, {"warps": unclosed})
    if launch.duration_ns and launch.clock_uncertainty_ns > CLOCK * launch.duration_ns and not emulated:
        share = launch.clock_uncertainty_ns / launch.duration_ns
        text = (
            f"Times of different SMs are good to {launch.clock_uncertainty_ns:.0f} ns only, {percent(share)} of the "
            "launch; durations in cycles are exact."
        )
        yield Finding(
            "clock", number, text, {"uncertainty_ns": launch.clock_uncertainty_ns, "duration_ns": launch.duration_ns}
        )


def _cost(stats: LaunchStats) -> Iterator[Finding]:
    for role in _main_roles(stats):
        share = role.share(role.cost)
        if share >= COST:
            text = (
                f"Recording its {role.events} events took `{role.name}` warps up to {percent(share)} of their life, by "
                f"the cost of an event in a tight loop on an {DEVICE} ({DATE}): fewer events would disturb less."
            )
            figures: dict[str, Value] = {
                "role": role.name, "events": role.events, "cycles": role.cost, "life": role.life, "share": share,
            }  # fmt: skip
            yield Finding("event_cost", stats.launch.number, text, figures)


# ----------------------------------------------------------------------------------------------------- pipeline
def _pipeline(stats: LaunchStats) -> Iterator[Finding]:
    """Which side waits, and for whom."""
    sides = [
        (role, role.loop)
        for role in _main_roles_or_small(stats)
        if role.loop is not None and role.loop.wait_count - role.loop.first_count >= STEADY_WAITS
    ]
    if not sides:
        return
    sides.sort(key=lambda side: -side[1].steady_share)
    (high, loop), (low, other) = sides[0], sides[-1]
    if loop.steady_share < STARVED:
        return
    number = stats.launch.number
    text = f"`{high.name}` warps spend {percent(loop.steady_share)} of `{loop.name}` in {_names(loop.waits)}"
    figures: dict[str, Value] = {
        "role": high.name, "loop": loop.name, "share": loop.steady_share, "waiting": loop.waiting - loop.first_waiting,
        "cycles": loop.cycles - loop.first_waiting, "waits": loop.wait_count - loop.first_count,
    }  # fmt: skip
    if len(sides) == 1:
        text += "; no other role has waits in a loop, so the trace does not say for whom."
        yield Finding("waits", number, text, figures)
        return
    figures |= {
        "other_role": low.name, "other_loop": other.name, "other_share": other.steady_share,
        "other_waiting": other.waiting - other.first_waiting, "other_cycles": other.cycles - other.first_waiting,
        "other_waits": other.wait_count - other.first_count,
    }  # fmt: skip
    text += f"; `{low.name}` warps spend {percent(other.steady_share)} of `{other.name}` in {_names(other.waits)}"
    if other.steady_share * STARVED_RATIO <= loop.steady_share:
        yield Finding("starved", number, f"{text}: the `{low.name}` side is the limit.", figures)
    elif other.steady_share >= STARVED:
        text += ": both sides wait, so neither's throughput alone is the limit. Look at the hand-over: latency, stages."
        yield Finding("both_wait", number, text, figures)


def _main_roles_or_small(stats: LaunchStats) -> list[RoleRow]:
    """A producer may be one warp among many: for pipelines every role counts that works in most CTAs."""
    return [role for role in stats.roles if 2 * role.warps >= stats.placement.ctas]


def _names(names: tuple[str, ...]) -> str:
    return " and ".join(f"`{name}`" for name in names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _fill(stats: LaunchStats) -> Iterator[Finding]:
    for role in _main_roles(stats):
        loop = role.loop
        if loop is None or not loop.first_count or loop.wait_count - loop.first_count < STEADY_WAITS:
            continue
        share = loop.first_waiting / loop.cycles if loop.cycles else 0.0
        first = loop.first_waiting / loop.first_count
        later = (loop.waiting - loop.first_waiting) / (loop.wait_count - loop.first_count)
        if share >= FILL and first > later:
            text = (
                f"The first wait in each `{loop.name}` of `{role.name}` warps takes {percent(share)} of it "
                f"({first:.0f} cycles; later waits {later:.0f}): the time until the pipeline has filled."
            )
            figures: dict[str, Value] = {
                "role": role.name, "loop": loop.name, "share": share, "first_mean": first, "later_mean": later,
                "first_waiting": loop.first_waiting, "cycles": loop.cycles,
            }  # fmt: skip
            yield Finding("fill", stats.launch.number, text, figures)


# ---------------------------------------------------------------------------------------------------- placement
def _few_ctas(stats: LaunchStats) -> Iterator[Finding]:
    place = stats.placement
    few = place.sm_count is not None and max(place.sms_used, place.ctas_expected) <= FEW_SMS * place.sm_count
    if few and place.sm_count:
        text = f"{place.ctas_expected} CTAs keep {place.sms_used} of {place.sm_count} SMs busy; the others get none."
        figures: dict[str, Value] = {
            "ctas": place.ctas_expected, "sms_used": place.sms_used, "sm_count": place.sm_count,
        }  # fmt: skip
        yield Finding("few_ctas", stats.launch.number, text, figures)


def _last_wave(stats: LaunchStats) -> Iterator[Finding]:
    place = stats.placement
    part = place.waves % 1.0
    if place.sm_count and 1 < place.waves < FEW_WAVES and 0 < part <= LAST_WAVE:
        text = (
            f"{place.ctas_expected} CTAs are {place.waves:.2f} waves of {place.sm_count} SMs x {place.resident_per_sm}"
            f": the last wave fills {percent(part)} of the places."
        )
        figures: dict[str, Value] = {
            "ctas": place.ctas_expected, "waves": place.waves, "sm_count": place.sm_count,
            "resident_per_sm": place.resident_per_sm, "last_wave": part,
        }  # fmt: skip
        yield Finding("last_wave", stats.launch.number, text, figures)


def _across_sms(stats: LaunchStats, ns: int) -> bool:
    """Whether a difference between SMs is more than their clocks' uncertainty."""
    return stats.placement.sms_used > 1 and ns > CLOCK_MARGIN * stats.launch.clock_uncertainty_ns


def _tail(stats: LaunchStats) -> Iterator[Finding]:
    place, total = stats.placement, stats.launch.duration_ns
    if place.tail_share >= TAIL and _across_sms(stats, place.tail_ns):
        text = (
            f"SMs stand idle for {percent(place.tail_share)} of their time waiting for the last CTAs: the first SM has "
            f"nothing more to do {duration(place.tail_ns)} before the launch ends ({duration(total)})."
        )
        figures: dict[str, Value] = {
            "share": place.tail_share, "tail_ns": place.tail_ns, "duration_ns": total, "sms": place.sms_used,
        }  # fmt: skip
        yield Finding("tail", stats.launch.number, text, figures)


def _skew(stats: LaunchStats) -> Iterator[Finding]:
    skew, total = stats.placement.start_skew, stats.launch.duration_ns
    if total and skew.max_ns >= SKEW * total and _across_sms(stats, skew.max_ns):
        text = (
            f"The first CTAs of the SMs start up to {duration(skew.max_ns)} apart ({percent(skew.max_ns / total)} of "
            f"the launch), half of them within {duration(skew.p50_ns)}."
        )
        figures: dict[str, Value] = {"max_ns": skew.max_ns, "p50_ns": skew.p50_ns, "duration_ns": total}
        yield Finding("start_skew", stats.launch.number, text, figures)


def _late(stats: LaunchStats) -> Iterator[Finding]:
    critical, total = stats.critical, stats.launch.duration_ns
    if critical is None or not total or critical.late_ns < LATE * total or not _across_sms(stats, critical.late_ns):
        return
    names = ", ".join(f"`{name}` {percent(share)}" for name, _, share in critical.names[:3])
    text = (
        f"The last warp to end, warp {critical.warp} of CTA {critical.cta} on SM {critical.sm} (`{critical.role}`), "
        f"ends {duration(critical.late_ns)} ({percent(critical.late_ns / total)} of the launch) after the median of "
        "its role"
        + (f"; its time: {names}." if names else ".")
    )
    figures: dict[str, Value] = {
        "row": critical.row, "role": critical.role, "warp": critical.warp, "sm": critical.sm,
        "late_ns": critical.late_ns, "duration_ns": total,
    }  # fmt: skip
    yield Finding("critical_warp", stats.launch.number, text, figures)


# -------------------------------------------------------------------------------------------------------- names
def _outliers(stats: LaunchStats) -> Iterator[Finding]:
    for role in _main_roles(stats):
        for series in role.series:
            far = [row for row in series.outliers if row.p50 > series.median]
            extra = sum((row.p50 - series.median) * row.count for row in far)
            if not far or role.share(extra) < OUTLIER_PART:
                continue
            worst = far[0]
            times = f", {worst.p50 / series.median:.1f} times" if series.median else ";"
            others = "" if len(far) == 1 else f" (and {len(far) - 1} more value{'s' * (len(far) > 2)})"
            text = (
                f"`{series.name}` with payload {worst.value}{others} takes {worst.p50} cycles in `{role.name}` warps"
                f"{times} the median of {series.median} over all payloads."
            )
            figures: dict[str, Value] = {
                "role": role.name, "name": series.name, "payload": worst.value, "p50": worst.p50,
                "median": series.median, "outliers": len(far), "extra_cycles": extra, "share": role.share(extra),
            }  # fmt: skip
            yield Finding("payload_outlier", stats.launch.number, text, figures)


def _irregular(stats: LaunchStats) -> Iterator[Finding]:
    for role in _main_roles(stats):
        explained = {series.name for series in role.series if series.outliers}
        for row in role.names:
            if row.count < IRREGULAR_COUNT or row.share < IRREGULAR_PART or row.name in explained or not row.p50:
                continue
            if row.p99 >= IRREGULAR * row.p50 and 2 * row.first_total <= row.total:
                text = (
                    f"`{row.name}` is irregular in `{role.name}` warps: median {row.p50} cycles, 99th percentile "
                    f"{row.p99}, longest {row.max}, of {row.count}."
                )
                figures: dict[str, Value] = {
                    "role": role.name, "name": row.name, "p50": row.p50, "p99": row.p99, "max": row.max,
                    "count": row.count, "share": row.share,
                }  # fmt: skip
                yield Finding("irregular", stats.launch.number, text, figures)


def _gaps(stats: LaunchStats) -> Iterator[Finding]:
    for role in _main_roles(stats):
        share = role.share(role.gap)
        if share < GAP or not role.gaps or not role.names:
            continue
        worst = role.gaps[0]
        where = f"between {_edge(worst.after, 'entry')} and {_edge(worst.before, 'exit')}"
        text = (
            f"`{role.name}` warps spend {percent(share)} of their life in no range, most of it {where} "
            f"({percent(worst.share)}): put a range there to see what it is."
        )
        figures: dict[str, Value] = {
            "role": role.name, "gap": role.gap, "life": role.life, "share": share, "after": worst.after or "entry",
            "before": worst.before or "exit", "worst": worst.total, "worst_share": worst.share,
        }  # fmt: skip
        yield Finding("gap", stats.launch.number, text, figures)


def _edge(name: str | None, edge: str) -> str:
    return f"the warp's {edge}" if name is None else f"`{name}`"
