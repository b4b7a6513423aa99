"""Self time, waits, gaps, containers and group statistics against plain loops over random traces."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import random_traces

from warptrace.errors import UsageError
from warptrace.report.groups import grouped, percentile, sum_by
from warptrace.report.sweep import launch_rows, sweep
from warptrace.report.waits import wait_flags
from warptrace.trace import Trace


@settings(max_examples=150, deadline=None)
@given(random_traces())
def test_every_moment_is_counted_once_and_where_it_belongs(trace: Trace) -> None:
    waits = np.array(wait_flags(trace.strings), bool)
    wait_names = {name for name, wait in zip(trace.strings, waits) if wait}
    for launch in trace.launches:
        rows = launch_rows(trace, launch)
        found = sweep(trace, rows, waits)
        gaps = []
        for warp in range(rows.warps.start, rows.warps.stop):
            own, waiting, bare = naive.walk(trace, warp, wait_names)
            gaps += [(warp, *gap) for gap in bare]
            here = warp - rows.warps.start
            assert found.life[here] == naive.life(trace, warp)
            assert found.waiting[here] == waiting
            assert found.covered[here] == sum(own.values())
            mine = naive.intervals(trace, warp)
            for one in mine:
                at = one.row - rows.ranges.start
                assert found.self_cycles[at] == own[one.row]
                holder = naive.container(one, mine)
                assert found.container[at] == (holder - rows.ranges.start if holder >= 0 else -1)
                outer = one
                while (holder := naive.container(outer, mine)) >= 0:
                    outer = next(other for other in mine if other.row == holder)
                assert found.outermost[at] == outer.row - rows.ranges.start
        text = (None, *trace.strings)
        got = found.gaps
        columns = zip(got.warp.tolist(), got.after.tolist(), got.before.tolist(), got.cycles.tolist())
        seen = [(warp + rows.warps.start, text[a + 1], text[b + 1], cycles) for warp, a, b, cycles in columns]
        assert sorted(seen, key=str) == sorted(gaps, key=str)


values = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 40) | st.integers(0, 9)), max_size=60)


@given(values, st.booleans())
def test_groups(pairs: list[tuple[int, int]], negative: bool) -> None:
    pairs = [(code, -value if negative else value) for code, value in pairs]
    codes, column = np.array([c for c, _ in pairs], np.int64), np.array([v for _, v in pairs], np.int64)
    found = grouped(column, codes, 6)
    for group in range(6):
        mine = [value for code, value in pairs if code == group]
        wanted = (len(mine), sum(mine), min(mine, default=0))
        assert (found.count[group], found.total[group], found.least[group]) == wanted
        wanted = tuple(naive.nearest_rank(mine, p) for p in (50, 95, 99)) if mine else (0, 0, 0)
        assert (found.p50[group], found.p95[group], found.p99[group]) == wanted
        assert found.most[group] == max(mine, default=0)
    assert sum_by(column, codes, 6).tolist() == found.total.tolist()
    if pairs:
        assert percentile(column, 95) == naive.nearest_rank(column.tolist(), 95)


def test_sums_are_exact_where_a_double_is_not() -> None:
    big = (1 << 53) + 1
    assert sum_by(np.array([big, 2, big]), np.array([0, 1, 0]), 2).tolist() == [2 * big, 2]


def test_which_names_are_waits() -> None:
    names = ["ab_wait", "waitFull", "WAIT", "sync2", "epi.barrier", "mma", "waiter", "async_copy", "mma_drain", "idle"]
    flags = wait_flags(names)
    assert [name for name, wait in zip(names, flags) if wait] == [
        "ab_wait", "waitFull", "WAIT", "sync2", "epi.barrier", "idle",
    ]  # fmt: skip
    automatic = {"v.producer_tail": True, "tail": False, "epi_barrier.arrive": False, "sync.consumer_release": False,
                 "arch.alloc_tmem": True, "barrier.arrive_and_wait": True, "arch.cluster_arrive": False}  # fmt: skip
    assert dict(zip(automatic, wait_flags(list(automatic)))) == automatic
    assert wait_flags(names, "drain|mma$") == tuple(name in ("mma", "mma_drain") for name in names)
    with pytest.raises(UsageError, match=r"--wait '\(' is no regular expression: "):
        wait_flags(names, "(")
