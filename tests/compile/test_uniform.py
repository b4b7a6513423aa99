"""The analysis of warp-uniform code on hand-written IR."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass.cute  # noqa: F401 - registers the dialects
from cutlass._mlir import ir

from warptrace.frontends.cute.ir_tools import contained, kernels, walk
from warptrace.frontends.cute.uniform import Uniformity

SREG = "nvvm.read.ptx.sreg"


def answers(body: str, block: str = "64, 1, 1", after: str = "") -> dict[str, tuple[bool, bool]]:
    """For each ``"test.at"() {name = "x"}`` of a kernel: (its block is uniform, its operand is uniform)."""
    text = f"""
    gpu.module @m {{
      cuda.kernel @k(%arg: i32, %flag: i1) attributes {{nvvm.reqntid = array<i32: {block}>}} {{
        %x = {SREG}.tid.x : i32
        %y = {SREG}.tid.y : i32
        %z = {SREG}.tid.z : i32
        %nx = {SREG}.ntid.x : i32
        %ny = {SREG}.ntid.y : i32
        %lane = {SREG}.laneid : i32
        %cta = {SREG}.ctaid.x : i32
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c5 = arith.constant 5 : i32
        %c31 = arith.constant 31 : i32
        %c32 = arith.constant 32 : i32
        %c33 = arith.constant 33 : i32
        {body}
      }}
    }}"""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        (kernel,) = kernels(module)
        uniform = Uniformity(kernel)
        found = {}

        def visit(op) -> None:
            if op.name == "test.at":
                name = ir.StringAttr(op.attributes["name"]).value
                value = uniform.value(op.operands[0]) if len(op.operands) else True
                found[name] = (uniform.block(op.block), value)

        with contained(module):
            walk(kernel, visit)
        assert module.operation.verify()
    return found


def uniform_value(lines: str, value: str = "%v", block: str = "64, 1, 1", kind: str = "i32") -> bool:
    body = f'{lines}\n "test.at"({value}) {{name = "here"}} : ({kind}) -> ()\n cuda.return'
    return answers(body, block)["here"][1]


@pytest.mark.parametrize("value", ["%arg", "%cta", "%nx", "%c5"])
def test_uniform_sources(value):
    assert uniform_value("", value)


@pytest.mark.parametrize("value", ["%x", "%lane"])
def test_divergent_sources(value):
    assert not uniform_value("", value)


@pytest.mark.parametrize(
    ("block", "expected"), [("64, 2, 2", True), ("32, 4, 1", True), ("16, 4, 1", False), ("48, 2, 2", False)]
)
@pytest.mark.parametrize("value", ["%y", "%z"])
def test_rows_of_whole_warps(value, block, expected):
    assert uniform_value("", value, block) is expected


LINEAR = """
    %yw = arith.muli %y, %nx : i32
    %a = arith.addi %x, %yw : i32
    %nxy = arith.muli %nx, %ny : i32
    %zw = arith.muli %z, %nxy : i32
    %linear = arith.addi %a, %zw : i32
"""


@pytest.mark.parametrize("block", ["64, 1, 1", "5, 7, 2"])
def test_linear_thread_number_over_32_is_the_warp(block):
    assert uniform_value(LINEAR + "%v = arith.floordivsi %linear, %c32 : i32", block=block)
    assert uniform_value(LINEAR + "%v = arith.shrui %linear, %c5 : i32", block=block)
    assert not uniform_value(LINEAR + "%v = arith.floordivsi %linear, %c31 : i32", block=block)
    assert not uniform_value(LINEAR + "%v = arith.shrui %linear, %c1 : i32", block=block)
    assert not uniform_value(LINEAR + "%v = arith.addi %linear, %c32 : i32", block=block)


def test_a_sum_that_only_looks_like_the_linear_thread_number():
    twice = LINEAR + "%b = arith.addi %linear, %x : i32\n %v = arith.floordivsi %b, %c32 : i32"
    assert not uniform_value(twice)
    short = "%yw = arith.muli %y, %nx : i32\n %a = arith.addi %x, %yw : i32\n %v = arith.floordivsi %a, %c32 : i32"
    assert not uniform_value(short)


@pytest.mark.parametrize(
    ("predicate", "border", "expected"),
    [
        ("ult", "%c32", True), ("slt", "%c32", True), ("uge", "%c32", True), ("sge", "%c32", True),
        ("ule", "%c31", True), ("sle", "%c31", True), ("ugt", "%c31", True), ("sgt", "%c31", True),
        ("ult", "%c33", False), ("ult", "%c31", False), ("ule", "%c32", False), ("ugt", "%c32", False),
        ("eq", "%c32", False), ("ne", "%c32", False), ("ult", "%arg", False),
    ],
)  # fmt: skip
def test_comparisons_with_borders_of_warps(predicate, border, expected):
    assert uniform_value(f"%v = arith.cmpi {predicate}, %x, {border} : i32", kind="i1") is expected
    assert not uniform_value(f"%v = arith.cmpi {predicate}, %x, {border} : i32", kind="i1", block="48, 2, 1")


def test_an_unknown_operation_is_divergent():
    assert not uniform_value('%v = "test.unknown"() : () -> i32')
    assert not uniform_value('%w = "test.unknown"() : () -> i32\n %v = arith.addi %w, %c1 : i32')


def test_blocks_and_results_of_branches():
    found = answers("""
        %div = arith.cmpi ult, %x, %c5 : i32
        %a = scf.if %flag -> i32 {
          "test.at"() {name = "uniform then"} : () -> ()
          scf.yield %c1 : i32
        } else {
          scf.if %div {
            scf.if %flag { "test.at"() {name = "inside divergent"} : () -> () }
          }
          scf.yield %c0 : i32
        }
        %b = scf.if %div -> i32 { scf.yield %c1 : i32 } else { scf.yield %c1 : i32 }
        %c = scf.if %flag -> i32 { scf.yield %x : i32 } else { scf.yield %c1 : i32 }
        "test.at"(%a) {name = "a"} : (i32) -> ()
        "test.at"(%b) {name = "b"} : (i32) -> ()
        "test.at"(%c) {name = "c"} : (i32) -> ()
        cuda.return""")
    assert found == {
        "uniform then": (True, True), "inside divergent": (False, True),
        "a": (True, True), "b": (True, False), "c": (True, False),
    }  # fmt: skip


def test_switches():
    found = answers("""
        %i = arith.index_cast %arg : i32 to index
        %j = arith.index_cast %lane : i32 to index
        %a = scf.index_switch %i -> i32
        case 2 { "test.at"() {name = "uniform case"} : () -> ()
          scf.yield %c1 : i32 }
        default { scf.yield %c0 : i32 }
        %b = scf.index_switch %j -> i32
        case 2 { "test.at"() {name = "divergent case"} : () -> ()
          scf.yield %c1 : i32 }
        default { scf.yield %c1 : i32 }
        "test.at"(%a) {name = "a"} : (i32) -> ()
        "test.at"(%b) {name = "b"} : (i32) -> ()
        cuda.return""")
    assert found == {
        "uniform case": (True, True), "divergent case": (False, True), "a": (True, True), "b": (True, False),
    }  # fmt: skip


def test_loops():
    found = answers("""
        %same = scf.for %i = %c0 to %arg step %c1 iter_args(%v = %c0) -> i32 : i32 {
          %next = arith.addi %v, %i : i32
          "test.at"(%v) {name = "uniform"} : (i32) -> ()
          scf.yield %next : i32
        }
        %mixed = scf.for %i = %c0 to %arg step %c1 iter_args(%v = %c0) -> i32 : i32 {
          "test.at"(%v) {name = "carried"} : (i32) -> ()
          scf.yield %x : i32
        }
        %counted = scf.for %i = %c0 to %x step %c1 iter_args(%v = %c0) -> i32 : i32 {
          "test.at"(%v) {name = "divergent trips"} : (i32) -> ()
          scf.yield %v : i32
        }
        "test.at"(%same) {name = "same"} : (i32) -> ()
        "test.at"(%mixed) {name = "mixed"} : (i32) -> ()
        "test.at"(%counted) {name = "counted"} : (i32) -> ()
        cuda.return""")
    assert found == {
        "uniform": (True, True), "carried": (True, False), "divergent trips": (False, True),
        "same": (True, True), "mixed": (True, False), "counted": (True, False),
    }  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), [("%c1", True), ("%lane", False)])
def test_while_loops(step, expected):
    found = answers(f"""
        %r = scf.while (%v = %c0) : (i32) -> i32 {{
          "test.at"(%v) {{name = "before"}} : (i32) -> ()
          %on = arith.cmpi slt, %v, %arg : i32
          scf.condition(%on) %v : i32
        }} do {{
        ^bb0(%w: i32):
          "test.at"(%w) {{name = "after"}} : (i32) -> ()
          %next = arith.addi %w, {step} : i32
          scf.yield %next : i32
        }}
        "test.at"(%r) {{name = "result"}} : (i32) -> ()
        cuda.return""")
    assert found == {"before": (expected,) * 2, "after": (expected,) * 2, "result": (True, expected)}


def test_kernels_of_several_blocks():
    """How a block is reached through branches is not followed: only the first one is sure."""
    found = answers("""
        "test.at"() {name = "first"} : () -> ()
        %div = arith.cmpi ult, %x, %c5 : i32
        cf.cond_br %div, ^then, ^end
      ^then:
        "test.at"() {name = "then"} : () -> ()
        cf.br ^end
      ^end:
        "test.at"() {name = "end"} : () -> ()
        cuda.return""")
    assert found == {"first": (True, True), "then": (False, True), "end": (False, True)}
