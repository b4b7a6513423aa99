"""The operation ``select`` against plain arithmetic, at places and in grids that no launch of a test would reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ptx_kit import run_lanes

from warptrace.device import ptx
from warptrace.selection import KernelSelection

CONTROL = 0x7F12_3456_7800
AXES = "xyz"
LIMITS = (2**31 - 1, 65535, 65535)
"""Most CTAs of a grid in each dimension."""


def chosen(selection: KernelSelection, places: list[tuple[int, ...]], grids: list[tuple[int, ...]]) -> list[bool]:
    """Whether the device takes the warp at each place (cluster coordinates) of a grid of clusters; 32 at most."""
    count = len(places)
    columns = [np.array([p[i] for p in places] + [0] * (32 - count), np.uint32) for i in range(3)]
    columns += [np.array([g[i] for g in grids] + [1] * (32 - count), np.uint32) for i in range(3)]
    asm = ptx.select(selection, clusters=True)
    text = asm.text.replace("<control>", str(CONTROL)).replace("<chosen>", "%d")
    for i, axis in enumerate(AXES):
        text = text.replace(f"%clusterid.{axis}", f"%a{i}").replace(f"%nclusterid.{axis}", f"%a{3 + i}")
    assert "%clusterid" not in text and "%nclusterid" not in text
    result: list[int] = run_lanes(text, columns, np.uint64).tolist()[:count]
    assert set(result) <= {0, CONTROL}
    return [value == CONTROL for value in result]


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.integers(1, 4) | st.integers(1, most)) for most in LIMITS)


@st.composite
def places_in(draw: st.DrawFn, grid: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(draw(st.sampled_from([0, n - 1]) | st.integers(0, n - 1)) for n in grid)


def linear(place: tuple[int, ...], grid: tuple[int, ...]) -> int:
    return (place[2] * grid[1] + place[1]) * grid[0] + place[0]


STRIDES = st.integers(2, 200) | st.integers(2, 2**32 - 1) | st.integers(1, 31).map(lambda k: 1 << k)


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_kth_cluster(data: st.DataObject) -> None:
    stride = data.draw(STRIDES)
    grid = [data.draw(grids()) for _ in range(8)]
    places: list[tuple[int, ...]] = [data.draw(places_in(g)) for g in grid]
    for g in list(grid):  # and some that are multiples
        n = data.draw(st.integers(0, (g[0] * g[1] * g[2] - 1) // stride)) * stride
        grid.append(g)
        places.append((n % g[0], n // g[0] % g[1], n // g[0] // g[1]))
    want = [linear(p, g) % stride == 0 for p, g in zip(places, grid)]
    assert all(want[8:])
    assert chosen(KernelSelection(None, stride), places, grid) == want


def expected(clusters: tuple[tuple[int, ...], ...], place: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """One of the clusters that are in the grid, or 0,0,0 in place of those that are not."""
    meant = {c if all(v < n for v, n in zip(c, grid)) else (0, 0, 0) for c in clusters}
    return place in meant


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_named_clusters(data: st.DataObject) -> None:
    grid = data.draw(grids())
    anywhere = st.tuples(*[st.integers(0, 3) | st.sampled_from([65535, 65536, 65537]) | st.integers(0, 2**31 - 1)] * 3)
    named = st.lists(anywhere | places_in(grid), min_size=1, max_size=5)
    clusters: Any = tuple(data.draw(named))
    places = [data.draw(places_in(grid)) for _ in range(8)]
    places += [(0, 0, 0), *(c for c in clusters if all(v < n for v, n in zip(c, grid)))]
    want = [expected(clusters, p, grid) for p in places]
    assert chosen(KernelSelection(clusters), places, [grid] * len(places)) == want


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.sets(st.integers(0, 31), min_size=1),
    st.sampled_from([(1024, 1, 1), (32, 4, 8), (16, 8, 4), (33, 5, 1), (7, 9, 3), (1, 1, 64), (2, 512, 1), (5, 1, 1)]),
)
def test_warps_of_any_block(warps: set[int], block: tuple[int, int, int]) -> None:
    x, y, z = block
    thread = np.arange(x * y * z)
    rows = np.random.default_rng(1).choice(thread, 32).astype(np.uint32)
    columns = [rows % x, rows // x % y, rows // (x * y)] + [np.full(32, n, np.uint32) for n in block]
    asm = ptx.select(KernelSelection(warps=tuple(sorted(warps))), clusters=True)
    text = asm.text.replace("<control>", str(CONTROL)).replace("<chosen>", "%d")
    for i, axis in enumerate(AXES):
        text = text.replace(f"%tid.{axis}", f"%a{i}").replace(f"%ntid.{axis}", f"%a{3 + i}")
    got = run_lanes(text, [c.astype(np.uint32) for c in columns], np.uint64)
    assert (got == CONTROL).tolist() == [int(t) // 32 in warps for t in rows]


@pytest.mark.parametrize("clusters", [True, False])
def test_only_targets_with_clusters_read_their_registers(clusters: bool) -> None:
    for selection in (KernelSelection(((1, 0, 0),)), KernelSelection(None, 3, (1,))):
        text = ptx.select(selection, clusters).text
        assert ("%clusterid" in text, "%nclusterid" in text) == (clusters, clusters)
        assert ("%ctaid" in text, "%nctaid" in text) == (not clusters, not clusters)
    assert "ctaid" not in ptx.select(KernelSelection(warps=(1,)), clusters).text
    for stride in (2, 3, 2**31, 2**32 - 1):
        assert not any(word in ptx.select(KernelSelection(None, stride), clusters).text for word in ("div", "rem"))
