"""How much of a launch its kernel's selection let record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..selection import Coordinates, KernelSelection, triple
from ..trace import Launch, LaunchSelection, Problem

Places = tuple[Coordinates, ...]


def expected_warps(
    selection: KernelSelection, grid: Coordinates, block: Coordinates, cluster: Coordinates
) -> tuple[int, LaunchSelection | None]:
    """(warps that were to be recorded, what was left out: None where nothing was). A grid of zeros, which is not
    known, has no warps."""
    warps_of_cta = -(-math.prod(block) // 32)
    grid_warps = math.prod(grid) * warps_of_cta
    if selection.everything:
        return grid_warps, None
    x, y, z = (g // c for g, c in zip(grid, cluster, strict=True))
    recorded, count = selection, -(-x * y * z // selection.cta_stride)
    outside: Places = ()
    if selection.clusters is not None and x:
        inside, outside = _split(selection.clusters, (x, y, z))
        recorded, count = replace(selection, clusters=inside), len(inside)
    warps = warps_of_cta if selection.warps is None else sum(w < warps_of_cta for w in selection.warps)
    launch = LaunchSelection(recorded, outside, (x, y, z), grid_warps)
    return count * math.prod(cluster) * warps, launch


def _split(clusters: Places, grid: Coordinates) -> tuple[Places, Places]:
    """(those recorded, by linear number; those asked for that the grid does not have)."""
    outside = tuple(c for c in clusters if any(p >= n for p, n in zip(c, grid, strict=True)))
    inside = {c for c in clusters if c not in outside} | ({(0, 0, 0)} if outside else set())
    return tuple(sorted(inside, key=lambda c: c[::-1])), outside


def selection_problems(launches: Sequence[Launch]) -> list[Problem]:
    """Clusters that were asked for and are not in the grid: one problem for each kernel and cluster grid."""
    first: dict[tuple[str, Coordinates, Places], Launch] = {}
    count: Counter[tuple[str, Coordinates, Places]] = Counter()
    for launch in launches:
        if launch.selection is not None and launch.selection.outside:
            key = (launch.kernel, launch.selection.cluster_grid, launch.selection.outside)
            first.setdefault(key, launch)
            count[key] += 1
    problems = []
    for (kernel, grid, outside), n in count.items():
        names = " ".join(map(triple, outside))
        named = f"clusters {names} are" if len(outside) > 1 else f"cluster {names} is"
        where = f"{named} outside the cluster grid {'x'.join(map(str, grid))} of kernel {kernel}"
        text = f"{where}: cluster 0,0,0 was recorded instead, in {n} launch{'es' if n > 1 else ''}"
        problems.append(Problem("selection", n, text, first[kernel, grid, outside].index))
    return problems
