"""Which launch a region belongs to: launches are told apart by grid id, and by the return of a warp; and which stream
or graph a launch belongs to, by the launch word that its regions hold."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import wire
from .tables import I64, Bool, LostRows, Regions, warps_per_cta


@dataclass(frozen=True)
class LaunchKey:
    """What tells a launch from others. ``word``: its launch word, 0 where its regions do not agree in one. ``graph``:
    it was a CUDA graph's; then ``unit`` is the same number in all nodes that are known to be of one graph, and
    ``replay`` counts that graph's replays."""

    process: int
    device: int
    kernel_id: int
    grid_id: int
    replay: int
    word: int
    unit: int
    graph: bool

    @property
    def stream(self) -> int | None:
        """Handle of the stream that it was launched into; None: not known, or that of a graph's launch."""
        return None if self.graph or not 0 < self.word < wire.LAUNCH_CAPTURED else self.word - 1

    @property
    def counted(self) -> tuple[int, ...]:
        """The same, kernel id first, in all launches that host code counted as one: replays, and copies of a node."""
        if self.word & wire.LAUNCH_CAPTURED and self.word & (1 << wire.LAUNCH_NODE_BITS) - 1:
            return (self.kernel_id, self.word)
        return (self.kernel_id, self.device, self.grid_id)


@dataclass(frozen=True)
class LaunchTable:
    """``keys``: one a launch, in no order that matters. ``of_region``: (n,) launch of each region; ``keep``: (n,)
    false where a region was read twice (a snapshot of a running kernel) and the other copy says more. ``of_lost``:
    (m,) launch of each row of the lost tables."""

    keys: list[LaunchKey]
    of_region: I64
    keep: Bool
    of_lost: I64


def codes(values: NDArray[Any]) -> I64:
    """Dense numbers of equal values, in order of value: (n,) i64."""
    if len(values) == 0 or (values == values[0]).all():
        return np.zeros(len(values), np.int64)
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def linear_warps(headers: NDArray[np.void]) -> I64:
    """Number of each warp in its grid: z, y, x, warp, most significant first."""
    cta, grid = headers["cta"].astype(np.int64), headers["grid"].astype(np.int64)
    linear = (cta[:, 2] * grid[:, 1] + cta[:, 1]) * grid[:, 0] + cta[:, 0]
    result: I64 = linear * warps_per_cta(headers["block"]) + headers["warp"]
    return result


def assign_launches(regions: Regions, lost: LostRows) -> LaunchTable:
    """Groups regions, and rows of the lost tables, into launches.

    One (process, device, kernel id, grid id) is one launch unless a (CTA, warp) occurs twice in it: then it is a CUDA
    graph's node that was replayed. Nodes whose launch words say that they are of one graph are one unit, others units
    of their own. In order of time every return of a node's warp begins the next replay of its unit: a graph does not
    run beside itself.
    """
    group = _groups(regions, lost)
    own = group[: len(regions)]
    n = int(group.max(initial=-1)) + 1
    words = _words(regions, own, n)
    unit = _units(regions, own, words)
    warps = linear_warps(regions.headers)
    keep = _keep_best_copy(regions, own, warps)
    of_unit = unit[group]
    warp_of_unit = warps + (own - unit[own]) * (int(warps.max(initial=0)) + 1)
    replay, recurring = _replays(regions, unit[own], warp_of_unit, keep)
    lost_replay, more = _place_lost(regions, lost, group, of_unit, replay)
    graph = words >= wire.LAUNCH_CAPTURED
    graph |= np.isin(unit, sorted(recurring | more))
    both = group * (1 << 24) + np.concatenate([replay, lost_replay])
    launch = codes(both)
    first = np.full(int(launch.max()) + 1 if len(launch) else 0, -1, np.int64)
    first[launch[::-1]] = np.arange(len(launch))[::-1]
    keys = []
    for i in first.tolist():
        node, number = int(group[i]), int(both[i] & ((1 << 24) - 1))
        keys.append(_key(regions, lost, i, number, int(words[node]), int(unit[node]), bool(graph[node])))
    return LaunchTable(keys, launch[: len(regions)], keep, launch[len(regions) :])


def _words(regions: Regions, group: I64, n: int) -> I64:
    """Launch word of each of ``n`` groups, 0 where its regions do not agree in one, or there are none."""
    words = wire.launch_words(regions.headers)
    least, most = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    np.minimum.at(least, group, words)
    np.maximum.at(most, group, words)
    agreed: I64 = np.where(least == most, most, 0)
    return agreed


def _units(regions: Regions, group: I64, words: I64) -> I64:
    """Number of the unit of each group: the smallest group in it.

    Nodes of one capture are of one graph; where it was made executable several times each copy has grid ids of its own.
    Copies are told apart where their grid ids follow each other copy by copy; else each node is a unit.
    """
    unit = np.arange(len(words))
    first = np.full(len(words), -1, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    captures: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for node in np.flatnonzero(words > wire.LAUNCH_CAPTURED).tolist():
        capture, number = divmod(int(words[node]) - wire.LAUNCH_CAPTURED, 1 << wire.LAUNCH_NODE_BITS)
        row = int(first[node])
        key = (int(regions.process[row]), int(regions.device[row]), capture)
        captures.setdefault(key, []).append((int(regions.headers["grid_id"][row]), number, node))
    for nodes in captures.values():
        for copy in _copies(sorted(nodes)):
            unit[copy] = min(copy)
    return unit


def _copies(nodes: list[tuple[int, int, int]]) -> list[list[int]]:
    """The nodes (grid id, number in the capture, group) of one capture, in order, by executable graph."""
    numbers = {number for _, number, _ in nodes}
    copies = [nodes[i : i + len(numbers)] for i in range(0, len(nodes), len(numbers))]
    if 0 in numbers or any({number for _, number, _ in copy} != numbers for copy in copies):
        return [[node] for _, _, node in nodes]
    return [[node for _, _, node in copy] for copy in copies]


def _groups(regions: Regions, lost: LostRows) -> I64:
    """Number of each region's and then each lost row's (process, device, kernel id, grid id)."""
    group = np.zeros(len(regions) + len(lost), np.int64)
    columns = (
        (regions.process, lost.process),
        (regions.device, lost.device),
        (regions.headers["kernel_id"], lost.records["kernel_id"]),
        (regions.headers["grid_id"], lost.records["grid_id"]),
    )
    for ours, theirs in columns:
        number = codes(np.concatenate([ours, theirs]))
        group = codes(group * (int(number.max(initial=0)) + 1) + number)
    return group


def _key(regions: Regions, lost: LostRows, i: int, replay: int, word: int, unit: int, graph: bool) -> LaunchKey:
    """Key of the launch of region, or behind those lost row, ``i``."""
    n = len(regions)
    table: Regions | LostRows = regions if i < n else lost
    row = i if i < n else i - n
    record = regions.headers[row] if i < n else lost.records[row]
    return LaunchKey(
        process=int(table.process[row]),
        device=int(table.device[row]),
        kernel_id=int(record["kernel_id"]),
        grid_id=int(record["grid_id"]),
        replay=replay,
        word=word,
        unit=unit,
        graph=graph,
    )


def _keep_best_copy(regions: Regions, group: I64, warps: I64) -> Bool:
    """False for copies of a region: the same warp, entered at the same cycle of the same SM."""
    keep = np.ones(len(regions), np.bool_)
    again = _recurring_rows(group, warps)
    if not len(again):
        return keep
    h = regions.headers[again]
    identity = (h["entry_clock"], h["sm"], warps[again], group[again])
    order = np.lexsort((np.arange(len(again)), regions.stored[again], regions.closed[again], *identity))
    same = np.ones(len(again) - 1, np.bool_)
    for column in identity:
        same &= column[order][1:] == column[order][:-1]
    keep[again[order[:-1][same]]] = False
    return keep


def _recurring_rows(group: I64, warps: I64) -> I64:
    """Rows of the groups in which some (CTA, warp) occurs more than once."""
    if not len(group):
        return np.zeros(0, np.int64)
    key = group * (int(warps.max()) + 1) + warps
    key.sort()
    twice = key[1:][key[1:] == key[:-1]] // (int(warps.max()) + 1)
    if not len(twice):
        return np.zeros(0, np.int64)
    recurs = np.zeros(int(group.max()) + 1, np.bool_)
    recurs[twice] = True
    return np.flatnonzero(recurs[group])


def _replays(regions: Regions, group: I64, warps: I64, keep: Bool) -> tuple[I64, set[int]]:
    """(replay number of each region, units in ``group`` that were replayed)."""
    replay = np.zeros(len(regions), np.int64)
    recurring: set[int] = set()
    kept = np.flatnonzero(keep)
    rows = kept[_recurring_rows(group[kept], warps[kept])]
    if not len(rows):
        return replay, recurring
    order = rows[np.lexsort((regions.headers["entry_globaltimer"][rows], group[rows]))]
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    for members in np.split(order, bounds):
        recurring.add(int(group[members[0]]))
        replay[members] = _sweep(warps[members])
    return replay, recurring


def _sweep(warps: I64) -> I64:
    """Replay numbers of one unit's warps in order of time: a replay ends where one of its warps comes again."""
    order = np.argsort(warps, kind="stable")
    previous = np.full(len(warps), -1, np.int64)
    again = warps[order][1:] == warps[order][:-1]
    previous[order[1:][again]] = order[:-1][again]
    latest = np.maximum.accumulate(previous)
    replay = np.zeros(len(warps), np.int64)
    start = 0
    while True:
        nxt = int(np.searchsorted(latest, start, side="left"))
        if nxt >= len(warps):
            return replay
        replay[nxt:] += 1
        start = nxt


def _place_lost(
    regions: Regions, lost: LostRows, node: I64, unit: I64, replay: I64
) -> tuple[I64, set[int]]:
    """(replay number of each lost row, units that these show to have been replayed). ``node`` and ``unit`` are those of
    the regions and then of the rows.

    A lost warp left only the time of its exit: it belongs to the last replay that had begun by then, and to a later
    one where that replay already has this warp.
    """
    result = np.zeros(len(lost), np.int64)
    recurring: set[int] = set()
    group, lost_group, lost_node = unit[: len(regions)], unit[len(regions) :], node[len(regions) :]
    for number in np.unique(lost_group):
        rows = np.flatnonzero(lost_group == number)
        rows = rows[np.argsort(lost.records["exit_globaltimer"][rows], kind="stable")]
        members = np.flatnonzero(group == number)
        begins, seen = _begun(regions, members, node, replay)
        current = 0
        for row in rows.tolist():
            record = lost.records[row]
            warp = (int(lost_node[row]), *record["cta"].tolist(), int(record["warp"]))
            exit_time = int(record["exit_globaltimer"])
            current = max(current, bisect_right(begins, exit_time) - 1)
            while (current, warp, -1) in seen or (current, warp, int(record["lane"])) in seen:
                current += 1
            seen.add((current, warp, int(record["lane"])))
            result[row] = current
        if current > len(begins) - 1:
            recurring.add(int(number))
    return result, recurring


def _begun(
    regions: Regions, members: I64, node: I64, replay: I64
) -> tuple[list[int], set[tuple[int, Any, int]]]:
    """(begin of each replay in ns, {(replay, (node, cta, warp), -1)} of the recorded warps) of one unit."""
    if not len(members):
        return [0], set()
    headers = regions.headers[members]
    times = headers["entry_globaltimer"].astype(np.int64)
    numbers = replay[members]
    begins = [int(times[numbers == r].min()) for r in range(int(numbers.max()) + 1)]
    ctas, warps = headers["cta"].tolist(), headers["warp"].tolist()
    nodes = node[members].tolist()
    seen = {(r, (m, *c, w), -1) for r, m, c, w in zip(numbers.tolist(), nodes, ctas, warps, strict=True)}
    return begins, seen
