"""Warp roles: warps that do the same, found by the names they use.

Warps of a kernel with the same set of names form a *variant*. Variants whose sets agree in two thirds of their names
or more (names that every warp uses do not count) form a *role*: the consumer warp that also stores is a consumer. A
warp that lost events or never ended joins the one role whose names contain all of its own. Roles belong to a kernel,
so they are the same in all of its launches.

A role is called by the first words that all names of its own share (``load_a``, ``load_b``: ``load``), else by its
outermost range with most time in some of its warps, waits last. Where all of them are automatic ranges of a pipeline
and others (``pipeline_k.consumer_wait``) it is "producer" or "consumer", as it has the methods of only one side. Warps
without events form the role "no events".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..trace import I32, I64, Trace
from .groups import sum_by
from .sweep import containers, program_order
from .waits import wait_flags

Bools = NDArray[np.bool_]

SIMILAR = 2 / 3
"""Share of names (of the union of two sets) that variants of one role have in common."""
NO_EVENTS = "no events"
SIDES = ("producer", "consumer")
"""What methods of pipelines begin with."""
DSL_MODULES = frozenset(("arch", "cute", "pipeline", "tcgen05", "utils", "warpgroup"))
"""What automatic ranges of plain functions begin with: no name for what a warp does."""
NAMING_WARPS = 32
"""Warps of a variant that are looked at to name its role."""


@dataclass(frozen=True)
class Variant:
    """Warps with exactly the same set of names (indices into Trace.strings)."""

    names: tuple[int, ...]
    warps: int


@dataclass(frozen=True)
class Role:
    """``names``: all that its warps use; ``own``: those that no other role of the kernel uses; ``warps_in_cta``: the
    warps' numbers in their CTAs; ``warps``: how many there are in the trace."""

    index: int
    name: str
    kernel_id: int
    names: tuple[int, ...]
    own: tuple[int, ...]
    variants: tuple[Variant, ...]
    warps_in_cta: tuple[int, ...]
    warps: int


@dataclass(frozen=True)
class Roles:
    """All roles of a trace, a kernel's together and the largest set of names first; ``of_warp``: (warps,) index."""

    roles: tuple[Role, ...]
    of_warp: I32

    def of_kernel(self, kernel_id: int) -> tuple[Role, ...]:
        """The roles of one kernel."""
        return tuple(role for role in self.roles if role.kernel_id == kernel_id)


def find_roles(trace: Trace) -> Roles:
    """The role of every warp."""
    of_warp = np.zeros(len(trace.warps), np.int32)
    roles: list[Role] = []
    kernel_of_launch = [launch.kernel_id for launch in trace.launches]
    for kernel_id in dict.fromkeys(kernel_of_launch):
        mine = np.array([one == kernel_id for one in kernel_of_launch], bool)
        kernel = _Kernel(trace, np.flatnonzero(mine[trace.warps.launch]))
        for name, members in kernel.roles():
            roles.append(kernel.role(len(roles), name, kernel_id, members))
            of_warp[kernel.warps[members[kernel.variant]]] = roles[-1].index
    return Roles(tuple(_with_own(roles)), of_warp)


def _with_own(roles: Sequence[Role]) -> list[Role]:
    return [replace(role, own=tuple(sorted(_own(role, roles)))) for role in roles]


def _own(role: Role, roles: Sequence[Role]) -> set[int]:
    others = (one.names for one in roles if one.kernel_id == role.kernel_id and one is not role)
    return set(role.names).difference(*others)


class _Kernel:
    """The warps of one kernel: which names each uses, and the variants that follow."""

    def __init__(self, trace: Trace, warps: I64) -> None:
        self.trace = trace
        self.warps = warps
        place = np.full(len(trace.warps), -1, np.int64)
        place[warps] = np.arange(len(warps))
        used = np.zeros((len(warps), len(trace.strings)), np.bool_)
        for table in (trace.ranges, trace.markers):
            rows = place[table.warp]
            used[rows[rows >= 0], table.name[rows >= 0]] = True
        self.sets, self.variant, self.counts = _distinct_rows(used)
        broken = (trace.warps.lost[warps] > 0) | (trace.warps.closed[warps] == 0)
        whole = np.zeros(len(self.sets), np.bool_)
        whole[self.variant[~broken]] = True
        self.whole = whole
        self.weight = self._weights()

    def _weights(self) -> I64:
        """Cycles in outermost ranges by (variant, name), in a few warps of each variant."""
        r, names = self.trace.ranges, len(self.trace.strings)
        order = np.argsort(self.variant, kind="stable")
        rank = np.arange(len(order)) - np.searchsorted(self.variant[order], self.variant[order])
        looked_at = np.zeros(len(self.trace.warps), np.bool_)
        looked_at[self.warps[order[rank < NAMING_WARPS]]] = True
        rows = np.flatnonzero(looked_at[r.warp])
        warp = r.warp[rows].astype(np.int64)
        _, end = program_order(r.start_seq[rows], r.end_seq[rows], warp)
        rows = rows[containers(end, np.searchsorted(warp, warp)) < 0]
        place = np.zeros(len(self.trace.warps), np.int64)
        place[self.warps] = self.variant
        code = place[r.warp[rows]] * names + r.name[rows]
        sums = sum_by((r.end_cycle - r.start_cycle)[rows], code, len(self.sets) * names)
        return sums.reshape(len(self.sets), names)

    def roles(self) -> list[tuple[str, Bools]]:
        """Names of the roles, and for each the variants that it has."""
        groups = self._groups()
        unions: list[Bools] = [np.asarray(self.sets[group].any(axis=0), np.bool_) for group in groups]
        taken: dict[str, int] = {}
        out = []
        for at, group in enumerate(groups):
            others: Bools = np.zeros(self.sets.shape[1], np.bool_)
            for other in (union for number, union in enumerate(unions) if number != at):
                others |= other
            name = self._name(group, unions[at], others)
            taken[name] = taken.get(name, 0) + 1
            out.append((name if taken[name] == 1 else f"{name} #{taken[name]}", group))
        return out

    def _groups(self) -> list[Bools]:
        """Variants (as a mask each) that form a role."""
        nonempty = self.sets.any(axis=1)
        common = self.sets[nonempty].all(axis=0) if nonempty.any() else np.zeros(self.sets.shape[1], np.bool_)
        special = self.sets & ~common if (self.sets[nonempty] & ~common).any() else self.sets
        keys = np.stack([-special.sum(axis=1), -self.sets.sum(axis=1), -self.counts])
        order = np.lexsort(keys[::-1]).tolist()
        groups: list[list[int]] = []
        for variant in [v for v in order if self.whole[v]] + [v for v in order if not self.whole[v]]:
            home = self._home(groups, special, self.sets, variant)
            if home is None:
                groups.append([variant])
            else:
                home.append(variant)
        masks = []
        for group in groups:
            mask = np.zeros(len(self.sets), np.bool_)
            mask[group] = True
            masks.append(mask)
        return masks

    def _home(self, groups: list[list[int]], special: Bools, sets: Bools, variant: int) -> list[int] | None:
        """The group that a variant belongs to: by likeness with the group's first, else, where its warps are broken,
        the only one that contains its names."""
        mine = special[variant]
        for group in groups:
            first = special[group[0]]
            union = int((first | mine).sum())
            if sets[variant].any() and sets[group[0]].any() and int((first & mine).sum()) >= SIMILAR * max(union, 1):
                return group
        if self.whole[variant] or not sets[variant].any():
            return None
        holders = [group for group in groups if not (sets[variant] & ~sets[group].any(axis=0)).any()]
        return holders[0] if len(holders) == 1 else None

    def _name(self, group: Bools, names: Bools, elsewhere: Bools) -> str:
        strings = self.trace.strings
        if not names.any():
            return NO_EVENTS
        own = names & ~elsewhere if (names & ~elsewhere).any() else names
        texts = [strings[i] for i in np.flatnonzero(own)]
        automatic = all("." in text for text in texts)
        sides = [side for side in SIDES if any(f".{side}_" in text for text in texts)]
        if automatic and len(sides) == 1:
            return sides[0]
        prefix = common_prefix(texts)
        if prefix and not (automatic and prefix in DSL_MODULES):
            return prefix
        weight = self.weight[group].sum(axis=0)
        waits = np.array(wait_flags(strings), bool)
        best = sorted(np.flatnonzero(own).tolist(), key=lambda i: (bool(waits[i]), -int(weight[i]), i))
        return strings[best[0]]

    def role(self, index: int, name: str, kernel_id: int, group: Bools) -> Role:
        """The role that a group of variants forms."""
        rows = self.warps[group[self.variant]]
        variants = [
            Variant(tuple(np.flatnonzero(self.sets[v]).tolist()), int(self.counts[v])) for v in np.flatnonzero(group)
        ]
        return Role(
            index=index,
            name=name,
            kernel_id=kernel_id,
            names=tuple(np.flatnonzero(self.sets[group].any(axis=0)).tolist()),
            own=(),
            variants=tuple(sorted(variants, key=lambda one: (-len(one.names), -one.warps))),
            warps_in_cta=tuple(np.unique(self.trace.warps.warp[rows]).tolist()),
            warps=len(rows),
        )


def _distinct_rows(table: Bools) -> tuple[Bools, I64, I64]:
    """Distinct rows, the one that each row is, and how many rows each has."""
    if not len(table):
        return table, np.empty(0, np.int64), np.empty(0, np.int64)
    packed = np.packbits(table, axis=1) if table.shape[1] else np.zeros((len(table), 1), np.uint8)
    keys = np.ascontiguousarray(packed).view([("", np.void, packed.shape[1])]).reshape(-1)
    _, first, index, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    return table[first], index.reshape(-1), counts


def common_prefix(names: Sequence[str]) -> str:
    """The first words that two names or more share, cut where a word ends: "" where there are none."""
    if len(names) < 2:
        return ""
    words = [re.findall(r"[A-Za-z0-9]+[^A-Za-z0-9]*", name) for name in names]
    shared = 0
    for column in zip(*words):
        if len({word.rstrip("_.:/- ") for word in column}) != 1:
            break
        shared += 1
    return "".join(words[0][:shared]).rstrip("_.:/- ")


def numbers_text(numbers: Sequence[int]) -> str:
    """``0, 4-7``: numbers in order, runs as a range."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
