"""Ranges that look unpaired on some path give a warning with file and line; valid programs give none."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace.cute as iket


def warned(kernel) -> list[tuple[int, str]]:
    """(line relative to the kernel's ``def``, text) of the warnings that compiling ``kernel`` gives, in order."""

    @cute.jit
    def host(g: cute.Tensor, n: cutlass.Int32):
        kernel(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(host, tensor(), cutlass.Int32(3), quiet=False)
    found = [w for w in caught if w.category is iket.PairingWarning]
    assert all(w.filename == __file__ for w in found)
    with open(__file__) as f:
        (first,) = [i for i, text in enumerate(f, 1) if text.startswith(f"def {kernel.__name__}(")]
    return [(w.lineno - first, str(w.message)) for w in found]


@cute.kernel
def push_without_pop(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    iket.range_push("b")
    g[0] = n
    iket.range_pop()


@cute.kernel
def pop_without_push(g: cute.Tensor, n: cutlass.Int32):
    g[0] = n
    iket.range_pop()


@cute.kernel
def switch_without_push(g: cute.Tensor, n: cutlass.Int32):
    iket.switch("a")
    g[0] = n
    iket.range_pop()


@cute.kernel
def push_in_one_branch(g: cute.Tensor, n: cutlass.Int32):
    if n > 3:
        iket.range_push("a")
        g[0] = n
    g[1] = n


@cute.kernel
def push_in_else(g: cute.Tensor, n: cutlass.Int32):
    if n > 3:
        g[0] = n
    else:
        iket.range_push("a")
        g[1] = n


@cute.kernel
def push_in_loop(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range(n, unroll=1):
        iket.range_push("a")
        g[i] = i


@cute.kernel
def push_in_while(g: cute.Tensor, n: cutlass.Int32):
    i = cutlass.Int32(0)
    while i < n:
        iket.range_push("a")
        i += 1
    g[0] = i


@cute.kernel
def pop_in_loop(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    for i in cutlass.range(n, unroll=1):
        g[i] = i
        iket.range_pop()


@cute.kernel
def token_overwritten(g: cute.Tensor, n: cutlass.Int32):
    token = iket.range_start("a")
    token = iket.range_start("b")
    g[0] = n
    iket.range_end(token)


UNPAIRED = "is pushed and not popped on some path of the kernel"
WRONG = [
    (push_without_pop, [(1, f"range 'a' {UNPAIRED}")]),
    (pop_without_push, [(2, "range_pop closes nothing: no range is open here on this path")]),
    (switch_without_push, [(1, "switch ends nothing: no range is open here on this path")]),
    (push_in_one_branch, [(2, "range 'a' is pushed in one branch only and not popped there")]),
    (push_in_else, [(4, "range 'a' is pushed in one branch only and not popped there")]),
    (push_in_loop, [(2, "range 'a' is pushed in a loop and not popped in it")]),
    (push_in_while, [(3, "range 'a' is pushed in a loop and not popped in it")]),
    (pop_in_loop, [(1, "range 'a' is popped in a loop that does not push it")]),
    (token_overwritten, [(1, "the token of range 'a' is never given to range_end")]),
]


@pytest.mark.parametrize(("made", "expected"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_unpaired(made, expected):
    assert warned(made) == expected


@cute.kernel
def balanced_branches(g: cute.Tensor, n: cutlass.Int32):
    if n > 3:
        iket.range_push("a")
        g[0] = n
    else:
        iket.range_push("b")
        g[1] = n
    g[2] = n
    iket.range_pop()


@cute.kernel
def popped_in_both_branches(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    if n > 3:
        g[0] = n
        iket.range_pop()
    else:
        iket.range_pop()
        g[1] = n


@cute.kernel
def switched(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    for i in cutlass.range(n, unroll=1):
        iket.switch("b")
        g[i] = i
        if i > 2:
            iket.switch("c")
            g[i] = 0
    iket.range_pop()


@cute.kernel
def pop_and_push_in_loop(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    for i in cutlass.range(n, unroll=1):
        iket.range_pop()
        g[i] = i
        iket.range_push("b")
    iket.range_pop()


@cute.kernel
def tokens(g: cute.Tensor, n: cutlass.Int32):
    crossing = iket.sentinel_token("x")
    whole = iket.range_start("w")
    inner = iket.sentinel_token("y")
    for i in cutlass.range(n, unroll=1):
        iket.range_end(crossing)
        crossing = iket.range_start("x")
        j = cutlass.Int32(0)
        while j < i:
            iket.range_end(inner)
            inner = iket.range_start("y")
            j += 1
        g[i] = i
    iket.range_end(crossing)
    iket.range_end(inner)
    if n > 3:
        iket.range_end(whole)
    else:
        g[0] = n
        iket.range_end(whole)


@cute.kernel
def branch_tokens(g: cute.Tensor, n: cutlass.Int32):
    token = iket.sentinel_token("x")
    if n > 3:
        if n > 5:  # noqa: SIM108 - a branch is the point
            token = iket.range_start("x")
        else:
            token = iket.range_start("y")
    g[0] = n
    if n > 3:
        iket.range_end(token)


@cute.jit
def pushing(i: cutlass.Int32, n: cutlass.Int32):
    iket.range_push("condition")
    return i < n


@cute.kernel
def pushed_in_the_condition(g: cute.Tensor, n: cutlass.Int32):
    i = cutlass.Int32(0)
    while pushing(i, n):
        iket.range_pop()
        i += 1
    iket.range_pop()
    g[0] = i


@cute.kernel
def elected(g: cute.Tensor, n: cutlass.Int32):
    iket.range_push("a")
    with cute.arch.elect_one():  # noqa: SIM117 - as users write it
        with iket.range("b"):
            g[0] = n
    iket.range_pop()


VALID = [
    pushed_in_the_condition,
    elected,
    balanced_branches,
    popped_in_both_branches,
    switched,
    pop_and_push_in_loop,
    tokens,
    branch_tokens,
]


@pytest.mark.parametrize("made", VALID, ids=lambda k: k.__name__)
def test_valid_programs_give_no_warning(made):
    assert warned(made) == []
