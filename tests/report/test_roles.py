"""Which warps form a role, and what it is called."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_traces import random_traces
from traces import TraceScript, WarpScript

from warptrace.report.roles import NO_EVENTS, Roles, common_prefix, find_roles, numbers_text
from warptrace.trace import Trace


def ranges(warp: WarpScript, *spans: tuple[str, int], start: int = 0) -> WarpScript:
    """Ranges one after another, of the given lengths in ns."""
    for name, length in spans:
        warp.push(start, name)
        start += length
        warp.pop(start)
    return warp


def members(trace: Trace, roles: Roles) -> dict[str, list[int]]:
    """Rows of Warps by the name of the role."""
    return {role.name: np.flatnonzero(roles.of_warp == role.index).tolist() for role in roles.roles}


def test_producer_consumers_idle() -> None:
    script = TraceScript()
    launch = script.launch()
    for cta in range(2):
        at = {"cta": (cta, 0, 0), "sm": cta}
        ranges(script.warp(launch, 0, 900, warp=0, **at), ("setup", 10), ("load_a", 20), ("load_b", 20))
        ranges(script.warp(launch, 0, 900, warp=1, **at), ("setup", 10), ("ab_wait", 600), ("mma", 100), ("out", 20))
        stores = ranges(script.warp(launch, 0, 900, warp=2, **at), ("setup", 10), ("ab_wait", 600), ("mma", 100))
        ranges(stores, ("out", 20), ("store", 5), start=800)
        ranges(script.warp(launch, 0, 100, warp=3, **at), ("setup", 10))
        script.warp(launch, 0, 100, warp=4, **at)
    trace = script.build()
    roles = find_roles(trace)
    assert members(trace, roles) == {"mma": [1, 2, 6, 7], "load": [0, 5], "setup": [3, 8], NO_EVENTS: [4, 9]}
    mma, load, setup, idle = roles.roles
    assert [variant.warps for variant in mma.variants] == [2, 2]
    assert [[trace.strings[name] for name in role.own] for role in roles.roles] == [
        ["ab_wait", "mma", "out", "store"], ["load_a", "load_b"], [], [],
    ]  # fmt: skip
    assert (mma.warps_in_cta, load.warps_in_cta, setup.warps_in_cta, idle.warps_in_cta) == ((1, 2), (0,), (3,), (4,))


def test_sets_that_agree_in_less_than_two_thirds_are_two_roles() -> None:
    script = TraceScript()
    launch = script.launch()
    ranges(script.warp(launch, 0, 9, warp=0), ("all", 1), ("a", 1), ("b", 3))
    ranges(script.warp(launch, 0, 9, warp=1), ("all", 1), ("c", 3), ("d", 1))
    ranges(script.warp(launch, 0, 9, warp=2), ("all", 1), ("c", 1), ("d", 1), ("e", 1))
    trace = script.build()
    assert members(trace, find_roles(trace)) == {"c": [1, 2], "b": [0]}


@pytest.mark.parametrize(("facts", "wanted"), [({}, 2), ({"lost": 3}, 1), ({"closed": 0}, 1)])
def test_a_warp_that_is_not_whole_joins_the_role_that_holds_its_names(facts: dict[str, int], wanted: int) -> None:
    script = TraceScript()
    launch = script.launch()
    ranges(script.warp(launch, 0, 9, warp=0), ("all", 1), ("a", 1), ("b", 1), ("c", 1), ("d", 1))
    ranges(script.warp(launch, 0, 9, warp=1, **facts), ("all", 1), ("a", 1))
    assert len(find_roles(script.build()).roles) == wanted


def test_a_role_is_named_by_work_before_waits_and_by_outermost_ranges() -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 1000)
    warp.push(0, "sync")
    warp.pop(900)
    warp.push(900, "tile")
    warp.push(905, "step")
    warp.pop(990)
    warp.pop(995)
    assert [role.name for role in find_roles(script.build()).roles] == ["tile"]


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (["pipeline_k.producer_acquire", "pipeline_v.producer_tail", "arch.barrier"], "producer"),
        (["pipeline_k.consumer_wait", "warpgroup.wait_group"], "consumer"),
        (["a.consumer_wait", "b.producer_acquire", "c.copy"], "c.copy"),  # both sides: the outermost, waits last
        (["arch.barrier", "arch.cp_async_wait_group"], "arch.barrier"),
        (["mlp.forward", "mlp.backward"], "mlp"),
        (["load", "ring.producer_acquire"], "load"),
    ],
)
def test_roles_of_automatic_ranges(names: list[str], role: str) -> None:
    script = TraceScript()
    ranges(script.warp(script.launch(), 0, 99), *((name, 9 - at) for at, name in enumerate(names)))
    assert [one.name for one in find_roles(script.build()).roles] == [role]


def test_roles_of_one_name_are_told_apart() -> None:
    script = TraceScript()
    launch = script.launch()
    ranges(script.warp(launch, 0, 9, warp=0), ("x", 5), ("p", 1))
    ranges(script.warp(launch, 0, 9, warp=1), ("x", 5), ("q", 1), ("r", 1), ("s", 1))
    other = script.launch(kernel_id=7)
    ranges(script.warp(other, 0, 9), ("p", 1))
    roles = find_roles(script.build())
    assert [(role.kernel_id, role.name) for role in roles.roles] == [(99, "q"), (99, "p"), (7, "p")]
    assert [role.name for role in roles.of_kernel(7)] == ["p"]


@settings(max_examples=60, deadline=None)
@given(random_traces())
def test_warps_of_one_set_have_one_role(trace: Trace) -> None:
    roles = find_roles(trace)
    used = [set() for _ in range(len(trace.warps))]
    for table in (trace.ranges, trace.markers):
        for warp, name in zip(table.warp.tolist(), table.name.tolist()):
            used[warp].add(name)
    kernels = [trace.launches[launch].kernel_id for launch in trace.warps.launch.tolist()]
    role_of: dict[tuple[int, frozenset[int], bool], int] = {}
    for warp, names in enumerate(used):
        role = roles.roles[roles.of_warp[warp]]
        assert role.kernel_id == kernels[warp]
        assert names <= set(role.names)
        assert (role.name == NO_EVENTS) == (not names) or names
        assert role_of.setdefault((kernels[warp], frozenset(names), True), role.index) == role.index
    assert sum(role.warps for role in roles.roles) == len(trace.warps)


@pytest.mark.parametrize(
    ("names", "prefix"),
    [(["load_a", "load_b"], "load"), (["tma_load_a", "tma_load_b"], "tma_load"), (["load"], ""), (["loa", "lob"], ""),
     (["a.x", "a:y"], "a"), ([], ""), (["load", "load_b"], "load")],
)  # fmt: skip
def test_common_prefix(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix


def test_numbers() -> None:
    assert numbers_text([0, 4, 5, 6, 9, 10]) == "0, 4-6, 9-10"
