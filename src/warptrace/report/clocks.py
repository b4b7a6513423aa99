"""What the clocks of a launch's SMs did: rates by GPC, and how well times of SMs compare."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace import Launch, Trace
from .summary import duration

UNSEEN = 4
"""Times the uncertainty, from which what is certain is told too."""


@dataclass(frozen=True)
class GpcClock:
    """Median rate of the SMs of a GPC in a launch. ``gpc`` -1: those whose GPC is not known."""

    gpc: int
    sms: int
    ghz: float


@dataclass(frozen=True)
class Clocks:
    """``rate_change``: largest relative change in the launch that was seen. ``uncertainty_ns`` is a bound on how far
    any time of any SM is off if the clocks kept their rate wherever no anchor shows otherwise, which is for
    ``silence_ns`` at most, ``typical_uncertainty_ns`` the median bound; ``certain_uncertainty_ns`` is a bound whatever
    they did."""

    gpcs: tuple[GpcClock, ...]
    rate_change: float
    uncertainty_ns: float
    typical_uncertainty_ns: float
    certain_uncertainty_ns: float
    silence_ns: float

    def __str__(self) -> str:
        change = f", which moved by {100 * self.rate_change:.1f} % meanwhile" if self.rate_change else ""
        rates = ", ".join(f"{self._who(one)}{one.ghz:.3f} GHz ({one.sms} SMs)" for one in self.gpcs)
        good = f"good to {self.uncertainty_ns:.0f} ns, mostly to {self.typical_uncertainty_ns:.0f} ns"
        return f"SM clocks: {rates}{change}; times of SMs are {good}{self._unseen()}"

    def _unseen(self) -> str:
        if self.certain_uncertainty_ns < UNSEEN * self.uncertainty_ns:
            return ""
        silence, certain = (duration(round(ns)) for ns in (self.silence_ns, self.certain_uncertainty_ns))
        return f" if the clocks were steady where unseen (for up to {silence}), else to {certain}"

    def _who(self, one: GpcClock) -> str:
        if one.gpc >= 0:
            return f"GPC{one.gpc} "
        return "others " if len(self.gpcs) > 1 else ""


def launch_clocks(trace: Trace, launch: Launch) -> Clocks | None:
    """The clocks of a launch; None where nothing is known of them."""
    facts = next((one for one in trace.meta.get("clocks", ()) if one.get("launch") == launch.index), None)
    if facts is None or "by_gpc" not in facts:
        return None
    return Clocks(
        gpcs=tuple(GpcClock(one["gpc"], one["sms"], 1 / one["ns_per_cycle"]) for one in facts["by_gpc"]),
        rate_change=facts["rate_change"],
        uncertainty_ns=facts["uncertainty_ns"],
        typical_uncertainty_ns=facts["typical_uncertainty_ns"],
        certain_uncertainty_ns=facts["certain_uncertainty_ns"],
        silence_ns=facts["silence_ns"],
    )
