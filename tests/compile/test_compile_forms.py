"""Every call in every form of control flow: the kernels are compiled, and run on the emulator to see their records."""

from __future__ import annotations

import re

import helper_module
import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import Built, build, tensor
from emulated import WarpTrace, run

import warptrace.cute as iket
from warptrace import wire
from warptrace.errors import WarptraceError
from warptrace.wire import EventKind

FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


@pytest.fixture(params=["default", "FrontendNext"])
def using(request: pytest.FixtureRequest) -> object:
    if request.param not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    return FRONTENDS[request.param]


def host_of(kernel, block=32, grid=1, cluster=None):
    """A host function that launches ``kernel(g, n)``."""

    @cute.jit
    def host(g: cute.Tensor, n: cutlass.Int32):
        kernel(g, n).launch(grid=[grid, 1, 1], block=[block, 1, 1], cluster=cluster)

    return host


def traced(kernel, using, n=3, *, block=32, grid=1, main=1024) -> tuple[Built, list[WarpTrace]]:
    built = build(host_of(kernel, block, grid), tensor(), cutlass.Int32(3), using=using)
    warps, _ = run(built, [np.zeros(256, np.int32), n], block=block, grid=grid, main=main)
    return built, warps


def shown(warp: WarpTrace) -> list[str]:
    """Records as text: "name", "+name" and "-" for push and pop, "~name" for switch, "[name" and "name]i" for a token
    range, i being the index of the start; "=payload" where there is one."""
    out = []
    for r in warp.records:
        text = {
            EventKind.MARK: r.name,
            EventKind.PUSH: f"+{r.name}",
            EventKind.POP: "-",
            EventKind.SWITCH: f"~{r.name}",
            EventKind.START: f"[{r.name}",
            EventKind.END: f"{r.name}]{r.start}",
        }[r.kind]
        out.append(text if r.payload is None else f"{text}={r.payload}")
    return out


@cute.kernel
def every_call(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("m")
    iket.mark("mp", 7)
    iket.range_push("a")
    iket.range_push("b", n)
    iket.range_pop()
    iket.switch("c")
    iket.switch("d", n)
    iket.range_pop()
    t = iket.range_start("t")
    u = iket.range_start("u", n)
    iket.range_end(t)
    iket.range_end(u, n)
    iket.range_end(iket.sentinel_token("s"))
    with iket.range("w"):
        g[tidx] = n
    with iket.range("wp", n):
        g[tidx] = n + 1
    iket.mark("last")


def test_every_call_in_straight_line(using):
    built, (warp,) = traced(every_call, using, n=9)
    assert shown(warp) == [
        "m", "mp=7", "+a", "+b=9", "-", "~c", "~d=9", "-", "[t", "[u=9", "t]8", "u]9=9", "+w", "-", "+wp=9", "-",
        "last",
    ]  # fmt: skip
    assert sorted(built.stored()) == list(range(1, 18))
    assert built.record.max_events == 17
    assert (built.record.stride, built.record.lane_events) == (16, False)


@cute.kernel
def branches(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    if n > 2:
        iket.mark("then")
        if n > 3:
            iket.mark("inner then")
        else:
            iket.mark("inner else")
    elif n > 1:
        iket.mark("elif")
    else:
        iket.mark("else")
        g[tidx] = n
    g[tidx] = n


@pytest.mark.parametrize(
    ("n", "expected"), [(4, ["then", "inner then"]), (3, ["then", "inner else"]), (2, ["elif"]), (1, ["else"])]
)
def test_if_else(using, n, expected):
    built, (warp,) = traced(branches, using, n)
    assert shown(warp) == expected
    assert built.entry.votes == 0
    assert built.record.max_events == 5


@cute.kernel
def loops(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    for i in cutlass.range(n, unroll=1):
        iket.mark("u1", i)
        g[tidx] = i
    for i in cutlass.range(n, unroll=4):
        with iket.range("u4", i):
            g[tidx] = i
    for i in cutlass.range(4, unroll_full=True):
        iket.mark("full", i)
    for i in cutlass.range_constexpr(2):
        iket.mark("constexpr", i)
    for i in range(n):
        iket.mark("plain", i)
        g[tidx] = i


@pytest.mark.parametrize("n", [0, 1, 4, 6])
def test_loops(using, n):
    built, (warp,) = traced(loops, using, n)
    expected = [f"u1={i}" for i in range(n)]
    for i in range(n):
        expected += [f"+u4={i}", "-"]
    expected += ["full=0", "full=1", "full=2", "full=3", "constexpr=0", "constexpr=1"]
    assert shown(warp) == expected + [f"plain={i}" for i in range(n)]
    assert built.record.max_events is None
    # copies of a call are one site: five loops, six calls, and the pop of `with`
    assert [s.name for s in built.record.sites] == ["u1", "u4", "", "full", "constexpr", "plain"]
    assert built.stored().count(2) > 1


@cute.kernel
def while_loops(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    i = cutlass.Int32(0)
    while i < n:
        iket.range_push("outer", i)
        j = cutlass.Int32(0)
        while j < i:
            iket.mark("inner", j)
            j += 1
        i += 1
        iket.range_pop()
    g[tidx] = i


def test_while(using):
    _, (warp,) = traced(while_loops, using, 3)
    assert shown(warp) == ["+outer=0", "-", "+outer=1", "inner=0", "-", "+outer=2", "inner=0", "inner=1", "-"]


@cute.jit
def marked_below(i: cutlass.Int32, n: cutlass.Int32):
    with iket.range("condition", i):
        below = i < n
    return below


@cute.kernel
def events_in_the_condition(g: cute.Tensor, n: cutlass.Int32):
    i = cutlass.Int32(0)
    while marked_below(i, n):
        iket.mark("body")
        i += 1
    g[0] = i


def test_events_in_the_condition_of_while(using):
    _, (warp,) = traced(events_in_the_condition, using, 2)
    assert shown(warp) == ["+condition=0", "-", "body", "+condition=1", "-", "body", "+condition=2", "-"]


class Worker:
    """A kernel as a method, with helpers as methods."""

    @cute.jit
    def step(self, i: cutlass.Int32):
        iket.mark("method", i)
        helper_module.outer(i)

    @cute.kernel
    def body(self, g: cute.Tensor, n: cutlass.Int32):
        for i in cutlass.range(n, unroll=1):
            self.step(i)
            g[i] = i

    @cute.jit
    def __call__(self, g: cute.Tensor, n: cutlass.Int32):
        self.body(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def test_methods_and_helpers_two_deep(using):
    built = build(Worker(), tensor(), cutlass.Int32(3), using=using)
    (warp,), _ = run(built, [np.zeros(256, np.int32), 2])
    once = ["method={}", "+outer", "inner={}", "-"]
    assert shown(warp) == [t.format(i) for i in range(2) for t in once]
    files = {s.name: s.file for s in built.record.sites if s.name}
    assert files == {"method": __file__, "outer": helper_module.__file__, "inner": helper_module.__file__}
    assert built.sites(EventKind.MARK, "inner")[0].line == helper_module.INNER_LINE


@cute.kernel
def first_kernel(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("first")
    g[0] = n


@cute.kernel
def second_kernel(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("second a", n)
    iket.mark("second b", n)
    g[1] = n


@cute.kernel
def silent_kernel(g: cute.Tensor, n: cutlass.Int32):
    g[2] = n


@cute.jit
def three_kernels(g: cute.Tensor, n: cutlass.Int32):
    first_kernel(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])
    silent_kernel(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])
    second_kernel(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])
    first_kernel(g, n).launch(grid=[n, 1, 1], block=[64, 1, 1])


def test_several_kernels_and_two_launches_of_one(using):
    built = build(three_kernels, tensor(), cutlass.Int32(3), using=using)
    entries = list(built.entries.values())
    events = {e.name: len(e.events) for e in entries}
    symbols = [r.symbol for r in built.records]
    assert [s.split("_")[2] for s in symbols] == ["first", "second", "first"]
    assert len(set(symbols)) == 3 and len({r.kernel_id for r in built.records}) == 3
    assert [events[s] for s in symbols] == [1, 2, 1]
    # the kernel without events is left alone
    hidden = {e.name: e.params[-3:] == ((".u64", None),) * 3 for e in entries}
    assert sorted(hidden.values()) == [False, True, True, True]
    assert all(hidden[s] for s in symbols)


@cute.kernel
def roles(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp < 4:
        cute.arch.setmaxregister_decrease(40)
        for i in cutlass.range(n, unroll=1):
            with iket.range("produce", i):
                g[tidx] = i
    else:
        cute.arch.setmaxregister_increase(232)
        iket.range_push("consume")
        g[tidx] = n
        iket.switch("store")
        g[tidx] = n + 1
        iket.range_pop()


def test_warp_specialised_roles():
    built = build(host_of(roles, 256), tensor(), cutlass.Int32(3))
    assert sorted(built.stored()) == [1, 2, 3, 4, 5]
    assert built.entry.votes == 0 and not built.record.lane_events
    assert built.ptx.count("setmaxnreg") == 2


@cute.kernel
def clustered(g: cute.Tensor, n: cutlass.Int32):
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if rank == 0:
        iket.mark("leader", rank)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    iket.mark("all")
    g[0] = n


def test_clusters():
    built = build(host_of(clustered, 32, 4, [2, 1, 1]), tensor(), cutlass.Int32(3))
    assert sorted(built.stored()) == [1, 2]


@cute.kernel
def elected(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("before")
    with cute.arch.elect_one():
        iket.mark("elected", n)
        g[0] = n
    iket.mark("after")


def test_elect_one(using):
    built, (warp,) = traced(elected, using, 5)
    assert shown(warp) == ["before", "elected=5", "after"]
    assert built.entry.votes == 1


@cute.kernel
def bracketed(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("first")
    g[0] = n
    iket.mark("last")


@cute.kernel
def nested_only(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    g[tidx] = n
    for i in cutlass.range(n, unroll=1):
        if i > 0:
            iket.mark("nested", i)
        g[tidx] = i


def test_events_first_and_last(using):
    _, (warp,) = traced(bracketed, using)
    assert shown(warp) == ["first", "last"]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_events_in_nested_regions_only(using, n):
    _, (warp,) = traced(nested_only, using, n)
    assert shown(warp) == [f"nested={i}" for i in range(1, n)]


@cute.kernel
def same_name(g: cute.Tensor, n: cutlass.Int32):
    iket.mark("x")
    iket.mark("x")
    iket.mark("x", n)
    iket.mark("x"); iket.mark("x")  # noqa: E702 - one line, one name: one site
    g[0] = n


def test_one_name_at_many_sites(using):
    built, (warp,) = traced(same_name, using, 2)
    assert shown(warp) == ["x", "x", "x=2", "x", "x"]
    assert built.stored() == [1, 2, 3, 4, 4]


@cute.kernel
def many_names(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range_constexpr(300):
        iket.mark(f"name {i}")
    g[0] = n


def test_300_names():
    built, (warp,) = traced(many_names, None, main=4096)
    assert shown(warp) == [f"name {i}" for i in range(300)]
    assert built.stored() == list(range(1, 301))
    assert built.record.slack == 8 * 8


def test_too_many_sites_is_an_error(monkeypatch):
    assert wire.MAX_SITES == 65535
    monkeypatch.setattr(wire, "MAX_SITES", 300)
    assert len(build(host_of(many_names), tensor(), cutlass.Int32(3)).record.sites) == 300
    monkeypatch.setattr(wire, "MAX_SITES", 299)
    with pytest.raises(Exception, match="has 300") as caught:
        build(host_of(many_names), tensor(), cutlass.Int32(3))
    # the DSL wraps what its hooks raise
    cause = caught.value if isinstance(caught.value, WarptraceError) else caught.value.__cause__
    assert isinstance(cause, WarptraceError)
    assert re.match(r"kernel kernel_cutlass_many_names_\S+ has 300 event sites; at most 299 fit a record: ", str(cause))


# ---------------------------------------------------------------------------------------------------- tokens
@cute.kernel
def cross_iteration(g: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    token = iket.sentinel_token("it")
    for i in cutlass.range(n, unroll=1):
        if i > 0:
            iket.range_end(token)
        token = iket.range_start("it")
        g[tidx] = i
    iket.range_end(token)


@pytest.mark.parametrize(
    ("n", "expected"), [(0, []), (1, ["[it", "it]0"]), (3, ["[it", "it]0", "[it", "it]2", "[it", "it]4"])]
)
def test_token_across_iterations(using, n, expected):
    built, (warp,) = traced(cross_iteration, using, n)
    assert shown(warp) == expected
    assert [s.name for s in built.record.sites] == ["it", "it", "it"]


@cute.kernel
def sentinel_without_test(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("it")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token, i)
        iket.mark("between")
        token = iket.range_start("it", i)
        g[i] = i
    iket.range_end(token, n)


def test_sentinel_records_nothing(using):
    _, (warp,) = traced(sentinel_without_test, using, 2)
    assert shown(warp) == ["between", "[it=0", "it]1=1", "between", "[it=1", "it]4=2"]


@cute.kernel
def merged(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("a")
    if n > 3:
        token = iket.range_start("a")
    elif n > 2:
        token = iket.range_start("b")
    g[0] = n
    iket.range_end(token)
    iket.mark("end")


@pytest.mark.parametrize(
    ("n", "expected"), [(4, ["[a", "a]0", "end"]), (3, ["[b", "a]0", "end"]), (2, ["end"])]
)
def test_tokens_merge(using, n, expected):
    _, (warp,) = traced(merged, using, n)
    assert shown(warp) == expected


@cute.kernel
def ended_in_a_branch(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("a")
    if n > 3:
        token = iket.range_start("a")
    g[0] = n
    if n > 2:
        iket.range_end(token)


@pytest.mark.parametrize(("n", "expected"), [(4, ["[a", "a]0"]), (3, []), (2, [])])
def test_a_sentinel_ended_in_a_branch(using, n, expected):
    _, (warp,) = traced(ended_in_a_branch, using, n)
    assert shown(warp) == expected
    assert warp.advance == len(expected)


@cute.kernel
def exclusive(g: cute.Tensor, n: cutlass.Int32):
    token = iket.range_start("x", 1)
    if n > 2:
        iket.range_end(token, 2)
    else:
        g[0] = n
        iket.range_end(token, 3)


@pytest.mark.parametrize(("n", "last"), [(3, "x]0=2"), (2, "x]0=3")])
def test_token_closed_in_exclusive_branches(using, n, last):
    _, (warp,) = traced(exclusive, using, n)
    assert shown(warp) == ["[x=1", last]


@cute.kernel
def several_open(g: cute.Tensor, n: cutlass.Int32):
    a = iket.range_start("r")
    b = iket.range_start("r")
    c = iket.range_start("r")
    iket.range_end(b)
    g[0] = n
    iket.range_end(a)
    iket.range_end(c)


def test_several_open_of_one_name(using):
    _, (warp,) = traced(several_open, using)
    assert shown(warp) == ["[r", "[r", "[r", "r]1", "r]0", "r]2"]


@cute.jit
def opened(i: cutlass.Int32):
    return iket.range_start("helped", i)


@cute.jit
def closed(token, i: cutlass.Int32):
    iket.range_end(token, i)


@cute.kernel
def through_helpers(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range(n, unroll=1):
        token = opened(i)
        g[i] = i
        closed(token, i + 10)


def test_token_through_helpers(using):
    _, (warp,) = traced(through_helpers, using, 2)
    assert shown(warp) == ["[helped=0", "helped]0=10", "[helped=1", "helped]2=11"]


@cute.kernel
def rotating(g: cute.Tensor, n: cutlass.Int32):
    older = iket.sentinel_token("stage")
    newer = iket.sentinel_token("stage")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(older)
        older = newer
        newer = iket.range_start("stage")
        g[i] = i
    iket.range_end(older)
    iket.range_end(newer)


def test_two_tokens_carried_and_handed_on():
    _, (warp,) = traced(rotating, None, 3)
    assert shown(warp) == ["[stage", "[stage", "stage]0", "[stage", "stage]1", "stage]3"]


@cute.kernel
def token_in_while(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("w")
    i = cutlass.Int32(0)
    while i < n:
        iket.range_end(token)
        token = iket.range_start("w")
        i += 1
    iket.range_end(token)
    g[0] = i


def test_token_in_while(using):
    _, (warp,) = traced(token_in_while, using, 2)
    assert shown(warp) == ["[w", "w]0", "[w", "w]2"]
