"""Misuse of the event API is an error while tracing, and its text begins with file and line of the call."""

from __future__ import annotations

import helper_module
import numpy as np
import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace.cute as iket
from warptrace import wire
from warptrace.errors import WarptraceError
from warptrace.wire import EventKind

FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


def line_of(tag: str) -> int:
    """Number of the line of this file that ends with the comment ``# at: tag``."""
    with open(__file__) as f:
        (found,) = [i for i, text in enumerate(f, 1) if text.rstrip().endswith(f"# at: {tag}")]
    return found


class Case:
    """What the kernel below is to do; a plain object that it reaches as a global."""

    call = None


CASE = Case()


@cute.kernel
def calls(g: cute.Tensor, n: cutlass.Int32):
    CASE.call(g, n)
    g[0] = n


@cute.jit
def host(g: cute.Tensor, n: cutlass.Int32):
    calls(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


def compiled(call):
    CASE.call = call
    return build(host, tensor(), cutlass.Int32(3), quiet=False)


def error_of(call) -> str:
    """The text that the user gets, without its file."""
    with pytest.raises(iket.EventError) as caught:
        compiled(call)
    assert isinstance(caught.value, WarptraceError)
    file, line, text = str(caught.value).split(":", 2)
    assert file == __file__
    assert "\n" not in text
    return f"{line}:{text}"


PAYLOAD_CALLS = [iket.mark, iket.range_push, iket.switch, iket.range_start]


class Alias(str):
    pass


@pytest.mark.parametrize(
    "name", ["x" * 255, "ä" * 127 + "x", "\U0001f600" * 63 + "xyz", "a b/c\"\\%$\n", "\x00", Alias("s")]
)
def test_names_that_are_allowed(name):
    assert len(name.encode()) <= 255
    built = compiled(lambda g, n: iket.mark(name))
    assert built.names() == [(EventKind.MARK, name)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "event name is empty"),
        ("x" * 256, "event name has 256 UTF-8 bytes; at most 255 are allowed"),
        ("ä" * 128, "event name has 256 UTF-8 bytes; at most 255 are allowed"),
        ("\U0001f600" * 64, "event name has 256 UTF-8 bytes; at most 255 are allowed"),
        (7, "event name must be a str, not int"),
        (b"bytes", "event name must be a str, not bytes"),
        (None, "event name must be a str, not NoneType"),
        ("\ud800", "event name is not valid Unicode (it holds a lone surrogate)"),
    ],
)
@pytest.mark.parametrize("function", [*PAYLOAD_CALLS, iket.sentinel_token], ids=lambda f: f.__name__)
def test_names_that_are_not(function, name, text):
    assert error_of(lambda g, n: function(name)) == f"{line_of('name')}: {text}"  # at: name


def test_names_of_with_range():
    def call(g, n):
        with iket.range(""):  # at: with
            pass

    assert error_of(call) == f"{line_of('with')}: event name is empty"


SCALARS = "give a Python bool, int or float or a CuTe DSL scalar"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("text", f"payload of type str is not supported; {SCALARS}"),
        ((1, 2), f"payload of type tuple is not supported; {SCALARS}"),
        ([1], f"payload of type list is not supported; {SCALARS}"),
        (1j, f"payload of type complex is not supported; {SCALARS}"),
        (np.int32(3), f"payload of type int32 is not supported; {SCALARS}"),
        (np.float32(3), f"payload of type float32 is not supported; {SCALARS}"),
        (np.bool_(True), f"payload of type {type(np.bool_(True)).__name__} is not supported; {SCALARS}"),
        (2**31, "integer payload 2147483648 does not fit 32 bits; write cutlass.Int64(2147483648)"),
        (-(2**31) - 1, "integer payload -2147483649 does not fit 32 bits; write cutlass.Int64(-2147483649)"),
        (1e39, "float payload 1e+39 does not fit 32 bits; write cutlass.Float64(1e+39)"),
    ],
)
@pytest.mark.parametrize("function", PAYLOAD_CALLS, ids=lambda f: f.__name__)
def test_payloads_that_are_not_allowed(function, payload, text):
    assert error_of(lambda g, n: function("x", payload)) == f"{line_of('payload')}: {text}"  # at: payload


def test_tensor_as_payload():
    assert error_of(lambda g, n: iket.mark("x", g)) == (  # at: tensor
        f"{line_of('tensor')}: payload of type _Tensor is not supported; {SCALARS}"
    )


def test_dsl_types_that_are_too_wide():
    text = error_of(lambda g, n: iket.mark("x", n.to(cutlass.Int128)))  # at: wide
    assert text.startswith(f"{line_of('wide')}: payload of type cutlass.Int128 is not supported; convert it")


def test_none_is_no_payload():
    built = compiled(lambda g, n: iket.mark("x", None))
    assert built.record.sites[0].payload == 0


@pytest.mark.parametrize("value", [None, 3, "it", object(), cutlass.Int32])
def test_range_end_of_what_is_no_token(value):
    name = type(value).__name__
    assert error_of(lambda g, n: iket.range_end(value)) == (  # at: token
        f"{line_of('token')}: range_end needs a token from range_start or sentinel_token, not {name}"
    )


def test_range_end_of_an_integer_of_the_kernel():
    assert error_of(lambda g, n: iket.range_end(n)) == (  # at: int
        f"{line_of('int')}: range_end needs a token from range_start or sentinel_token, not Int32"
    )


def test_token_from_outside():
    token = iket.range_start("outside")
    assert error_of(lambda g, n: iket.range_end(token)) == (  # at: outside
        f"{line_of('outside')}: the token was made outside the kernel or while tracing was off; "
        "make it in the same kernel"
    )


MISMATCHES = [
    (1, None, "token range 'r' has a payload at its start only; give one at its end too"),
    (None, 1, "token range 'r' has a payload at its end only; give one at its start too"),
    (1, 1.0, "token range 'r' starts with a payload of type I32 and ends with F32"),
    (True, 1, "token range 'r' starts with a payload of type BOOL and ends with I32"),
    (
        lambda: cutlass.Int8(1),
        lambda: cutlass.Uint8(1),
        "token range 'r' starts with a payload of type I8 and ends with U8",
    ),
]


@pytest.mark.parametrize(("start", "end", "text"), MISMATCHES)
def test_payload_at_one_end_only_or_of_another_type(start, end, text):
    def call(g, n):
        token = iket.range_start("r", start() if callable(start) else start)
        iket.range_end(token, end() if callable(end) else end)  # at: mismatch

    assert error_of(call) == f"{line_of('mismatch')}: {text}"


@cute.kernel
def mismatched(g: cute.Tensor, n: cutlass.Int32):
    token = iket.range_start("r", n)
    g[0] = n
    iket.range_end(token)  # at: in kernel


@cute.jit
def mismatched_host(g: cute.Tensor, n: cutlass.Int32):
    mismatched(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_payload_mismatch_reaches_the_user_from_both_front_ends(frontend):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    with pytest.raises(iket.EventError) as caught:
        build(mismatched_host, tensor(), cutlass.Int32(3), using=FRONTENDS[frontend], quiet=False)
    where = f"{__file__}:{line_of('in kernel')}"
    assert str(caught.value) == f"{where}: token range 'r' has a payload at its start only; give one at its end too"


@cute.kernel
def matched_in_the_end(g: cute.Tensor, n: cutlass.Int32):
    """Payload types are known of what reaches an end without control flow between: nothing else is judged."""
    token = iket.range_start("r", n)
    for i in cutlass.range(n, unroll=1):
        iket.range_end(token, cutlass.Int64(i))
        token = iket.range_start("r", cutlass.Int64(i))
        g[i] = i
    iket.range_end(token, cutlass.Int64(n))


@cute.jit
def matched_in_the_end_host(g: cute.Tensor, n: cutlass.Int32):
    matched_in_the_end(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_payloads_over_control_flow_are_not_judged(frontend):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    built = build(matched_in_the_end_host, tensor(), cutlass.Int32(3), using=FRONTENDS[frontend])
    assert len(built.record.sites) == 4


@cute.kernel
def in_branch(g: cute.Tensor, n: cutlass.Int32):
    for i in cutlass.range(n, unroll=1):
        if i > 3:
            iket.mark(  # at: branch
                "x",
                "text",
            )
        g[i] = i


@cute.jit
def in_branch_host(g: cute.Tensor, n: cutlass.Int32):
    in_branch(g, n).launch(grid=[1, 1, 1], block=[32, 1, 1])


@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_line_in_nested_control_flow_and_of_a_call_over_several_lines(frontend):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    with pytest.raises(iket.EventError) as caught:
        build(in_branch_host, tensor(), cutlass.Int32(3), using=FRONTENDS[frontend])
    assert str(caught.value) == f"{__file__}:{line_of('branch')}: payload of type str is not supported; {SCALARS}"


def test_error_in_a_helper_names_the_helpers_file():
    with pytest.raises(iket.EventError) as caught:
        compiled(lambda g, n: helper_module.plain_mark(""))
    assert str(caught.value) == f"{helper_module.__file__}:{helper_module.PLAIN_LINE}: event name is empty"


def test_misuse_is_silent_where_nothing_is_traced():
    """Off and outside kernels the calls do nothing at all: they look at no argument."""
    CASE.call = lambda g, n: iket.mark("", "text")
    assert build(host, tensor(), cutlass.Int32(3), on=False).records == ()
    iket.mark("", object())


@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_too_many_sites_reach_the_user_as_one_line(frontend, monkeypatch):
    """What only the finished kernel shows is found in a hook of the DSL, which calls faults there its own."""
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    monkeypatch.setattr(wire, "MAX_SITES", 2)
    CASE.call = lambda g, n: [iket.mark(f"m{i}") for i in range(3)]
    with pytest.raises(WarptraceError) as caught:
        build(host, tensor(), cutlass.Int32(3), using=FRONTENDS[frontend])
    symbol, text = str(caught.value).split(" has ")
    assert symbol.startswith("kernel kernel_cutlass_calls_")
    assert text == "3 event sites; at most 2 fit a record: use fewer names, with payloads in their place"
