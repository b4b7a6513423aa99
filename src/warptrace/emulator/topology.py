"""SMs, their GPCs and clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from . import costs


def h200_gpc(sm: int) -> int:
    """GPC of an SM on a 132-SM H200, as measured by cluster placement."""
    if sm < 64:
        return sm % 16 // 2
    if sm < 120:
        # GPC0 has no SMs here: pairs go round GPC1..7
        return (sm - 64) // 2 % 7 + 1
    if sm < 124:
        return (6, 6, 7, 7)[sm - 120]
    return 0


@dataclass
class Sm:
    """One SM: clock and what its resident CTAs use."""

    index: int
    gpc: int
    ghz: float
    clock_offset: int
    smem: int = 0
    threads: int = 0
    ctas: int = 0
    free_at: float = 0.0

    def fits(self, smem: int, threads: int) -> bool:
        return (
            self.smem + smem <= costs.SMEM_PER_SM
            and self.threads + threads <= costs.THREADS_PER_SM
            and self.ctas < costs.CTAS_PER_SM
        )


@dataclass
class Topology:
    """All SMs of a device."""

    sms: list[Sm] = field(default_factory=list)

    @classmethod
    def make(cls, count: int, ghz: float | dict[int, float], seed: int) -> Topology:
        """``ghz`` is one rate or a rate by GPC (others 1.98); clock offsets are random, below 2**44 cycles."""
        rng = random.Random(f"clocks {seed}")
        rates = ghz if isinstance(ghz, dict) else {}
        base = costs.DEFAULT_GHZ if isinstance(ghz, dict) else ghz
        sms = []
        for i in range(count):
            gpc = h200_gpc(i) if count == costs.SM_COUNT else i // 2 % 8
            sms.append(Sm(i, gpc, rates.get(gpc, base), rng.randrange(1 << 36, 1 << 44)))
        return cls(sms)

    def place(self, n: int, smem: int, threads: int) -> list[Sm] | None:
        """SMs for the n CTAs of a cluster, all of one GPC; the emptiest first. None when there is no room."""
        if n == 1:
            room = [s for s in self.sms if s.fits(smem, threads)]
            return [min(room, key=lambda s: (s.ctas, s.index))] if room else None
        best: list[Sm] | None = None
        for gpc in sorted({s.gpc for s in self.sms}):
            chosen = self._place_in([s for s in self.sms if s.gpc == gpc], n, smem, threads)
            if chosen and (best is None or sum(s.ctas for s in chosen) < sum(s.ctas for s in best)):
                best = chosen
        return best

    @staticmethod
    def _place_in(sms: list[Sm], n: int, smem: int, threads: int) -> list[Sm] | None:
        load = {s.index: 0 for s in sms}
        chosen: list[Sm] = []
        for _ in range(n):
            room = [
                s
                for s in sms
                if s.smem + smem * (load[s.index] + 1) <= costs.SMEM_PER_SM
                and s.threads + threads * (load[s.index] + 1) <= costs.THREADS_PER_SM
                and s.ctas + load[s.index] < costs.CTAS_PER_SM
            ]
            if not room:
                return None
            s = min(room, key=lambda x: (x.ctas + load[x.index], x.index))
            load[s.index] += 1
            chosen.append(s)
        return chosen
