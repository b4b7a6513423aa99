"""Every call of the API, literals and places: first and last thing of a kernel, helpers, methods, several kernels."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket

from .model import Warp, boolean, f32, i32
from .table import Array, Case, Const, Launch, Scalar, zeros

THREADS = 64
GRID = (2, 1, 1)
BLOCK = (THREADS, 1, 1)


def linear(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


# ------------------------------------------------------------------------------------------------------- all calls
@cute.kernel
def every_call(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("begin")
    iket.mark("block", bidx)
    iket.range_push("outer")
    iket.range_push("inner", n)
    iket.range_pop()
    iket.switch("second")
    iket.switch("third", n + 1)
    iket.range_pop()
    first = iket.range_start("token")
    second = iket.range_start("token with payload", n)
    iket.range_end(first)
    iket.range_end(second, n + 2)
    iket.range_end(iket.sentinel_token("never"))
    with iket.range("with"), iket.range("with payload", n + 3):
        out[bidx * 64 + tidx] = n * tidx
    iket.mark("end")


@cute.jit
def every_call_host(out: cute.Tensor, n: cutlass.Int32):
    every_call(out, n).launch(grid=[2, 1, 1], block=[64, 1, 1])


def every_call_expect(w: Warp, out: np.ndarray, n: int) -> None:
    w.mark("begin")
    w.mark("block", i32(w.bidx))
    w.push("outer")
    w.push("inner", i32(n))
    w.pop()
    w.switch("second")
    w.switch("third", i32(n + 1))
    w.pop()
    first = w.start("token")
    second = w.start("token with payload", i32(n))
    w.end(first)
    w.end(second, i32(n + 2))
    w.push("with")
    w.push("with payload", i32(n + 3))
    w.pop()
    w.pop()
    w.mark("end")


# -------------------------------------------------------------------------------------------- first and last thing
@cute.kernel
def only_event(out: cute.Tensor):
    iket.mark("only")


@cute.jit
def only_event_host(out: cute.Tensor):
    only_event(out).launch(grid=[2, 1, 1], block=[64, 1, 1])


@cute.kernel
def first_and_last(out: cute.Tensor):
    iket.range_push("whole")
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    out[bidx * 64 + tidx] = tidx + 5
    iket.range_pop()


@cute.jit
def first_and_last_host(out: cute.Tensor):
    first_and_last(out).launch(grid=[2, 1, 1], block=[64, 1, 1])


def first_and_last_expect(w: Warp, out: np.ndarray) -> None:
    w.push("whole")
    w.pop()


# --------------------------------------------------------------------------------------------------------- helpers
@cute.jit
def square(x: cutlass.Int32):
    iket.range_push("square", x)
    y = x * x
    iket.range_pop()
    return y


@cute.jit
def opened(x: cutlass.Int32):
    token = iket.range_start("across", x)
    return token


@cute.jit
def closed(token, x: cutlass.Int32):
    iket.range_end(token, x)


@cute.kernel
def helpers(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    token = opened(n)
    a = square(n)
    b = square(n + 1)
    closed(token, a)
    out[bidx * 64 + tidx] = a + b + tidx


@cute.jit
def helpers_host(out: cute.Tensor, n: cutlass.Int32):
    helpers(out, n).launch(grid=[2, 1, 1], block=[64, 1, 1])


def helpers_expect(w: Warp, out: np.ndarray, n: int) -> None:
    token = w.start("across", i32(n))
    for x in (n, n + 1):
        w.push("square", i32(x))
        w.pop()
    w.end(token, i32(n * n))


# --------------------------------------------------------------------------------------------------------- methods
class Scaler:
    """Kernels and helpers as methods of an object that holds constants."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    @cute.jit
    def scaled(self, x: cutlass.Int32):
        iket.mark("scaled", self.factor)
        return x * self.factor

    @cute.kernel
    def scale_method(self, out: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        iket.range_push(f"by {self.factor}")
        out[bidx * 64 + tidx] = self.scaled(tidx)
        iket.range_pop()

    @cute.jit
    def __call__(self, out: cute.Tensor):
        self.scale_method(out).launch(grid=[2, 1, 1], block=[64, 1, 1])


def methods_expect(w: Warp, out: np.ndarray) -> None:
    w.push("by 3")
    w.mark("scaled", i32(3))
    w.pop()


# ------------------------------------------------------------------------------------------------- several kernels
@cute.kernel
def add_one(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    iket.mark("add one")
    out[tidx] = out[tidx] + 1


@cute.kernel
def double(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("double", n)
    out[tidx] = out[tidx] * 2
    iket.range_pop()


@cute.jit
def several_host(out: cute.Tensor, n: cutlass.Int32):
    add_one(out).launch(grid=[1, 1, 1], block=[64, 1, 1])
    double(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])
    add_one(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


def add_one_expect(w: Warp, out: np.ndarray) -> None:
    w.mark("add one")


def double_expect(w: Warp, out: np.ndarray, n: int) -> None:
    w.push("double", i32(n))
    w.pop()


# ------------------------------------------------------------------------------------------------ a silent kernel
@cute.kernel
def silent(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    out[tidx] = tidx * 10


@cute.jit
def beside_silent_host(out: cute.Tensor):
    silent(out).launch(grid=[1, 1, 1], block=[64, 1, 1])
    add_one(out).launch(grid=[1, 1, 1], block=[64, 1, 1])


# ------------------------------------------------------------------------------------------- experimental front end
@cute.experimental.kernel
def experimental(out: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    iket.range_push("experimental", n)
    token = iket.range_start("token")
    if tidx % 2 == 1:
        iket.mark("odd", tidx)
    out[tidx] = tidx * n
    iket.range_end(token)
    iket.range_pop()


@cute.experimental.jit
def experimental_host(out: cute.Tensor, n: cutlass.Int32):
    experimental(out, n).launch(grid=[1, 1, 1], block=[64, 1, 1])


def experimental_expect(w: Warp, out: np.ndarray, n: int) -> None:
    w.push("experimental", i32(n))
    token = w.start("token")
    w.mark("odd", lambda k: i32(w.tid(k)), w.where(lambda t: t % 2 == 1))
    w.end(token)
    w.pop()


# -------------------------------------------------------------------------------------------------------- literals
@cute.kernel
def literals(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    iket.mark("true", True)
    iket.mark("false", False)
    iket.mark("zero", 0)
    iket.mark("minus one", -1)
    iket.mark("least", -(2**31))
    iket.mark("most", 2**31 - 1)
    iket.mark("half", 0.5)
    iket.mark("minus zero", -0.0)
    iket.mark("tiny", 1e-45)
    iket.mark("inf", float("inf"))
    iket.mark("nan", float("nan"))
    token = iket.range_start("literal", 7)
    iket.range_end(token, 8)
    out[bidx * 64 + tidx] = tidx


@cute.jit
def literals_host(out: cute.Tensor):
    literals(out).launch(grid=[2, 1, 1], block=[64, 1, 1])


def literals_expect(w: Warp, out: np.ndarray) -> None:
    w.mark("true", boolean(True))
    w.mark("false", boolean(False))
    w.mark("zero", i32(0))
    w.mark("minus one", i32(-1))
    w.mark("least", i32(-(2**31)))
    w.mark("most", i32(2**31 - 1))
    w.mark("half", f32(0.5))
    w.mark("minus zero", f32(-0.0))
    w.mark("tiny", f32(1e-45))
    w.mark("inf", f32(float("inf")))
    w.mark("nan", f32(float("nan")))
    w.end(w.start("literal", i32(7)), i32(8))


# ----------------------------------------------------------------------------------------------------------- names
LONG = "n" * 255
ODD = 'quote " slash \\ percent % dollar $ brace { } angle <off> newline \n tab \t'
NAMES = ("a", LONG, "Ünïcødé 漢字 🚀", "a", ODD, "$0", "", "range", "mark")


@cute.kernel
def names(out: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    for name in NAMES:
        if cutlass.const_expr(name != ""):
            iket.mark(name)
            iket.range_push(name)
            iket.range_pop()
    out[bidx * 64 + tidx] = tidx


@cute.jit
def names_host(out: cute.Tensor):
    names(out).launch(grid=[2, 1, 1], block=[64, 1, 1])


def names_expect(w: Warp, out: np.ndarray) -> None:
    for name in NAMES:
        if name:
            w.mark(name)
            w.push(name)
            w.pop()


# ------------------------------------------------------------------------------------------------------ many names
@cute.kernel
def many_names(out: cute.Tensor, n: cutlass.Int32, count: cutlass.Constexpr):
    """Blocks of 250 events: one block of thousands takes the compiler much longer."""
    tidx, _, _ = cute.arch.thread_idx()
    for first in cutlass.range_constexpr(0, count, 250):
        if first < n:
            for i in cutlass.range_constexpr(first, min(first + 250, count)):
                iket.mark(f"name {i}")
    out[tidx] = tidx


@cute.jit
def many_names_host(out: cute.Tensor, n: cutlass.Int32, count: cutlass.Constexpr):
    many_names(out, n, count).launch(grid=[1, 1, 1], block=[64, 1, 1])


def many_names_expect(w: Warp, out: np.ndarray, n: int, count: int) -> None:
    for i in range(count):
        w.mark(f"name {i}")


def many_names_case(count: int) -> Case:
    launch = Launch(many_names_expect, (1, 1, 1), BLOCK)
    return Case(
        f"names_{count}",
        many_names_host,
        [zeros(64), Scalar(count), Const(count)],
        [launch],
        lambda out, n, count: {0: linear(64)},
        buffer_bytes=32 << 20,  # a region of 5001 events is larger than the smallest buffer has
    )


def both_blocks(values: np.ndarray) -> dict[int, np.ndarray]:
    return {0: np.concatenate([values, values]).astype(np.int32)}


T = linear(THREADS)
CASES = [
    Case(
        "every_call",
        every_call_host,
        [zeros(128), Scalar(5)],
        [Launch(every_call_expect, GRID, BLOCK)],
        lambda out, n: both_blocks(n * T),
    ),
    Case(
        "only_event",
        only_event_host,
        [zeros(128)],
        [Launch(lambda w, out: w.mark("only"), GRID, BLOCK)],
        lambda out: {0: np.zeros(128, np.int32)},
    ),
    Case(
        "first_and_last",
        first_and_last_host,
        [zeros(128)],
        [Launch(first_and_last_expect, GRID, BLOCK)],
        lambda out: both_blocks(T + 5),
    ),
    Case(
        "helpers",
        helpers_host,
        [zeros(128), Scalar(6)],
        [Launch(helpers_expect, GRID, BLOCK)],
        lambda out, n: both_blocks(n * n + (n + 1) * (n + 1) + T),
    ),
    Case(
        "methods",
        Scaler(3),
        [zeros(128)],
        [Launch(methods_expect, GRID, BLOCK)],
        lambda out: both_blocks(3 * T),
    ),
    Case(
        "several_kernels",
        several_host,
        [Array(linear(64)), Scalar(9)],
        [
            Launch(add_one_expect, (1, 1, 1), BLOCK, args=(0,)),
            Launch(double_expect, (1, 1, 1), BLOCK),
            Launch(add_one_expect, (1, 1, 1), BLOCK, args=(0,)),
        ],
        lambda out, n: {0: (linear(64) + 1) * 2 + 1},
    ),
    Case(
        "several_calls",
        several_host,
        [Array(linear(64)), Scalar(-1)],
        [
            Launch(add_one_expect, (1, 1, 1), BLOCK, args=(0,)),
            Launch(double_expect, (1, 1, 1), BLOCK),
            Launch(add_one_expect, (1, 1, 1), BLOCK, args=(0,)),
        ],
        lambda out, n: {0: (linear(64) + 1) * 2 + 1},
        calls=3,
    ),
    Case(
        "drained_between_calls",
        every_call_host,
        [zeros(128), Scalar(3)],
        [Launch(every_call_expect, GRID, BLOCK)],
        lambda out, n: both_blocks(n * T),
        calls=4,
        drain=True,
    ),
    Case(
        "beside_silent_kernel",
        beside_silent_host,
        [zeros(64)],
        [Launch(None, (1, 1, 1), BLOCK), Launch(add_one_expect, (1, 1, 1), BLOCK)],
        lambda out: {0: linear(64) * 10 + 1},
    ),
    Case(
        "experimental",
        experimental_host,
        [zeros(64), Scalar(4)],
        [Launch(experimental_expect, (1, 1, 1), BLOCK)],
        lambda out, n: {0: linear(64) * n},
    ),
    Case(
        "literals",
        literals_host,
        [zeros(128)],
        [Launch(literals_expect, GRID, BLOCK)],
        lambda out: both_blocks(T),
    ),
    Case("names", names_host, [zeros(128)], [Launch(names_expect, GRID, BLOCK)], lambda out: both_blocks(T)),
    many_names_case(31),
    many_names_case(301),
    many_names_case(5001),
]
