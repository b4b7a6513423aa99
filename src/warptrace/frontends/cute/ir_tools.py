"""Small helpers over the DSL's MLIR bindings, the same for all supported versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

from ...device.ptx import Asm

KERNEL_OPS = ("cuda.kernel", "lir.func", "gpu.func")
TERMINATORS = ("cuda.return", "lir.return", "gpu.return")
BRANCHES = ("scf.if", "scf.index_switch")
"""Operations of which one region runs, chosen by the first operand."""
CONSTRAINTS = {"i1": "b", "i32": "r", "i64": "l"}


def int_type(name: str) -> Any:
    """MLIR integer type for "i1", "i32", "i64"."""
    return ir.IntegerType.get_signless(int(name[1:]))


def constant(value: int, type_name: str) -> Any:
    """An ``llvm.mlir.constant``; ``value`` may be given unsigned."""
    bits = int(type_name[1:])
    signed = value - (1 << bits) if value >> (bits - 1) & 1 else value
    return llvm.mlir_constant(ir.IntegerAttr.get(int_type(type_name), signed))


def emit(asm: Asm, operands: dict[str, Any], *, side_effects: bool = True) -> dict[str, Any]:
    """Inserts ``asm`` at the current insertion point; returns its outputs by name.

    Operand numbers follow LLVM's order: outputs, then inputs. Outputs are early-clobbered because the text writes
    some before it has read every input.
    """
    text = asm.text.replace("$", "$$")
    for number, (name, _) in enumerate((*asm.outputs, *asm.inputs)):
        text = text.replace(f"<{name}>", f"${number}")
    constraints = [f"=&{CONSTRAINTS[t]}" for _, t in asm.outputs] + [CONSTRAINTS[t] for _, t in asm.inputs]
    types = [int_type(t) for _, t in asm.outputs]
    if len(types) > 1:
        result_type = ir.Type.parse("!llvm.struct<({})>".format(", ".join(t for _, t in asm.outputs)))
    else:
        result_type = types[0] if types else None
    result = llvm.inline_asm(
        result_type,
        [operands[name] for name, _ in asm.inputs],
        text,
        ",".join(constraints),
        has_side_effects=side_effects,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if len(types) <= 1:
        return {name: result for name, _ in asm.outputs}
    return {
        name: llvm.extractvalue(types[i], result, ir.DenseI64ArrayAttr.get([i]))
        for i, (name, _) in enumerate(asm.outputs)
    }


@contextmanager
def contained(module: Any) -> Iterator[None]:
    """Keeps what the bindings emit when they are only asked for a value out of ``module``.

    They wrap values of some types (tensors, layouts) and emit operations to do so, at the insertion point or, where
    there is none, into nothing: then the module's values have users outside any module, on which writing it crashes.
    """
    with ir.Location.unknown(module.context):
        aside = ir.Module.create()
        try:
            with ir.InsertionPoint(aside.body):
                yield
        finally:
            for op in reversed(list(aside.body.operations)):
                op.operation.erase()


def walk(op: Any, visit: Callable[[Any], None]) -> None:
    """Calls ``visit(operation)`` for ``op`` and everything inside it, in pre-order."""
    visit(op)
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                walk(inner.operation, visit)


def kernels(module: Any) -> Iterator[Any]:
    """The kernel operations of a module that have a body."""
    found: list[Any] = []

    def visit(op: Any) -> None:
        if op.name in KERNEL_OPS and len(op.regions) and len(op.regions[0].blocks):
            found.append(op)

    walk(module.operation, visit)
    return iter(found)


def symbol(op: Any) -> str:
    """The symbol name of an operation ("" if it has none)."""
    return str(ir.StringAttr(op.attributes["sym_name"]).value) if "sym_name" in op.attributes else ""


def enclosing_kernel() -> Any | None:
    """The kernel operation around the current insertion point, or None outside a kernel or outside a trace."""
    try:
        op = ir.InsertionPoint.current.block.owner
    except (ValueError, RuntimeError):  # no insertion point: 4.8 raises the one, older versions the other
        return None
    while op is not None:
        operation = op.operation
        if operation.name in KERNEL_OPS:
            return operation
        op = operation.parent
    return None


def attribute_items(op: Any) -> dict[str, Any]:
    """The attributes of ``op`` by name. Iteration yields names in some versions, NamedAttribute in others."""
    out: dict[str, Any] = {}
    for item in op.attributes:
        name = item if isinstance(item, str) else item.name
        out[name] = op.attributes[name]
    return out


def plain_value(value: Any) -> Any:
    """A plain ir.Value from what the bindings hand out: value casters turn some into Python wrappers.

    Even wrappers that are values are taken off: ``==`` of the DSL's integers does not compare, it emits a comparison,
    so that they must never be in sets, dicts or tests.
    """
    if isinstance(value, ir.Value):
        return ir.Value(value)
    inner = getattr(value, "value", None)
    if isinstance(inner, ir.Value):
        return ir.Value(inner)
    return ir.Value(value.__extract_mlir_values__()[0])


def is_argument(value: Any) -> bool:
    """Whether ``value`` is a block argument, not an operation's result."""
    return isinstance(value.owner, ir.Block)


def integer(attribute: Any) -> int | None:
    """The value of an integer attribute, or None for another kind."""
    try:
        return int(ir.IntegerAttr(attribute).value)
    except (ValueError, TypeError):
        return None
