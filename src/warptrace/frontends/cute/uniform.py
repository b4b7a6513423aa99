"""Which code the whole warp executes together: then lane 0 leads, without a vote and from one cursor.

A value is *uniform* when every lane of a warp that computes it gets the same; a block is uniform when all conditions
and loop bounds around it are. The analysis is a backward search for divergent sources and knows only operations listed
here; whatever it does not know counts as divergent, which costs a vote and is never wrong. Loads count as divergent:
lanes that read at different times may see different values.
"""

from __future__ import annotations

import math
from typing import Any

from cutlass._mlir import ir

from ... import wire
from .events import PLACEHOLDER
from .ir_tools import BRANCHES, KERNEL_OPS, integer, is_argument, plain_value

_SREG = "nvvm.read.ptx.sreg."
_DIVERGENT_SREG = ("tid.", "laneid", "lanemask", "clock", "globaltimer", "warpid")
_UNIFORM = {"cute_nvgpu.arch.make_warp_uniform", "arith.constant", "llvm.mlir.constant", "cute.static"}
_PURE = {
    "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui",
    "arith.floordivsi", "arith.ceildivsi", "arith.ceildivui", "arith.andi", "arith.ori", "arith.xori", "arith.shli",
    "arith.shrsi", "arith.shrui", "arith.cmpi", "arith.select", "arith.extsi", "arith.extui", "arith.trunci",
    "arith.index_cast", "arith.index_castui", "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui",
    "arith.bitcast", "arith.mulsi_extended", "arith.mului_extended", "builtin.unrealized_conversion_cast",
    "llvm.add", "llvm.sub", "llvm.mul", "llvm.icmp", "llvm.select", "llvm.zext", "llvm.sext", "llvm.trunc",
    "llvm.and", "llvm.or", "llvm.xor", "llvm.shl", "llvm.lshr", "llvm.ashr", "llvm.sdiv", "llvm.udiv",
    "cute.make_int_tuple", "cute.make_coord", "cute.make_shape", "cute.make_stride", "cute.make_layout",
    "cute.make_tile", "cute.get_leaves", "cute.get_scalars", "cute.to_int_tuple", "cute.size", "cute.get_shape",
    "cute.get_stride",
    "cute.get_layout", "cute.get", "cute.select", "cute.crd2idx", "cute.idx2crd", "cute.get_hier_coord",
    "cute.get_flat_coord",
    "cute.tuple_add", "cute.tuple_sub", "cute.tuple_mul", "cute.tuple_div", "cute.tuple_mod", "cute.tuple_min",
    "cute.tuple_max", "cute.ceil_div", "cute.shape_div", "cute.slice", "cute.product", "cute.group_modes",
    "cute.fast_divmod.create_divisor", "cute.fast_divmod.compute", "cute.fast_divmod.get_divisor",
    "cute.fast_divmod.get_aux",
}  # fmt: skip
_LINEAR_DIVIDES = ("arith.floordivsi", "arith.divsi", "arith.divui")
WARP = 32


class Uniformity:
    """Answers for one kernel operation; answers are kept."""

    def __init__(self, kernel: Any) -> None:
        self._block = _exact_block(kernel)
        self._values: dict[Any, bool] = {}

    def block(self, block: Any) -> bool:
        """Whether a whole warp enters ``block`` together or not at all."""
        op = block.owner.operation
        if op.name in KERNEL_OPS:
            return bool(block == op.regions[0].blocks[0])  # how others are reached is not followed
        if op.name in BRANCHES:
            controls = [op.operands[0]]
        elif op.name == "scf.for":
            controls = list(op.operands[:3])
        elif op.name == "scf.while":
            controls = [_while_condition(op)]
        else:
            return False
        return all(self.value(c) for c in controls) and self.block(op.block)

    def whole_warps(self) -> bool:
        """Whether every warp is known to have all its lanes."""
        return self._block is not None and math.prod(self._block) % WARP == 0

    def packed_block(self) -> int:
        """The block's dimensions as region headers have them; of a kernel of whole warps."""
        assert self._block is not None
        return wire.pack_block(*self._block)

    def value(self, value: Any) -> bool:
        """Whether ``value`` is the same in all lanes of a warp."""
        value = plain_value(value)
        if value not in self._values:
            self._values[value] = self._search(value)
        return self._values[value]

    def _search(self, start: Any) -> bool:
        seen = {start}
        todo = [start]
        while todo:
            sources = self._sources(todo.pop())
            if sources is None:
                return False
            for source in map(plain_value, sources):
                if source not in seen:
                    seen.add(source)
                    todo.append(source)
        return True

    def _sources(self, value: Any) -> list[Any] | None:
        """What ``value`` depends on; [] for a uniform source, None for a divergent one."""
        if is_argument(value):
            return _argument_sources(ir.BlockArgument(value))
        result = ir.OpResult(value)
        op = result.owner.operation
        if PLACEHOLDER in op.attributes:  # a token: whether it is one, not which
            return [] if self.block(op.block) else None
        if op.name in (_SREG + "tid.y", _SREG + "tid.z"):
            return [] if self._rows_of_warps() else None
        if op.name.startswith(_SREG):
            return None if op.name[len(_SREG) :].startswith(_DIVERGENT_SREG) else []
        if op.name in _UNIFORM or self._whole_warps(op):
            return []
        if op.name in _PURE:
            return list(op.operands)
        return _structured_sources(op, result.result_number)

    def _whole_warps(self, op: Any) -> bool:
        """``linear_thread / 32k``, ``>> 5+``, and comparisons of it with multiples of 32 are the same in a warp."""
        if len(op.operands) != 2:
            return False
        left, right = plain_value(op.operands[0]), _constant(op.operands[1])
        if right is None or not self._linear(left):
            return False
        if op.name in _LINEAR_DIVIDES:
            return right > 0 and right % WARP == 0
        if op.name == "arith.shrui" or op.name == "arith.shrsi":
            return right >= 5
        if op.name == "arith.cmpi":
            predicate = int(ir.IntegerAttr(op.attributes["predicate"]).value)
            below = predicate in (2, 5, 6, 9)  # slt, sge, ult, uge: the border lies below `right`
            upto = predicate in (3, 4, 7, 8)  # sle, sgt, ule, ugt: above it
            return (below and right % WARP == 0) or (upto and right % WARP == WARP - 1)
        return False

    def _linear(self, value: Any) -> bool:
        """Whether ``value`` is %tid.x of blocks of whole warps, or the linear thread number as the DSL writes it."""
        if is_argument(value):
            return False
        op = ir.OpResult(value).owner.operation
        if op.name == _SREG + "tid.x":
            return self._rows_of_warps()
        return op.name == "arith.addi" and _terms(value) == ["tid.x", "tid.y*ntid.x", "tid.z*ntid.x*ntid.y"]

    def _rows_of_warps(self) -> bool:
        """Whether no warp spans two rows of the block."""
        return self._block is not None and self._block[0] % WARP == 0


def _terms(value: Any) -> list[str] | None:
    """A sum of products of special registers as sorted "a*b" texts; None where it is anything else."""
    value = plain_value(value)
    if is_argument(value):
        return None
    op = ir.OpResult(value).owner.operation
    if op.name == "arith.addi":
        left, right = _terms(op.operands[0]), _terms(op.operands[1])
        return None if left is None or right is None else sorted(left + right)
    factors = _factors(value)
    return None if factors is None else ["*".join(sorted(factors, key=lambda f: (f.startswith("n"), f)))]


def _factors(value: Any) -> list[str] | None:
    value = plain_value(value)
    if is_argument(value):
        return None
    op = ir.OpResult(value).owner.operation
    if op.name.startswith(_SREG):
        return [op.name[len(_SREG) :]]
    if op.name != "arith.muli":
        return None
    left, right = _factors(op.operands[0]), _factors(op.operands[1])
    return None if left is None or right is None else left + right


def _constant(value: Any) -> int | None:
    value = plain_value(value)
    if is_argument(value):
        return None
    op = ir.OpResult(value).owner.operation
    return integer(op.attributes["value"]) if op.name == "arith.constant" else None


def _exact_block(kernel: Any) -> tuple[int, ...] | None:
    """Threads of a block in each dimension, where the kernel can only be launched with one shape."""
    if "nvvm.reqntid" not in kernel.attributes:
        return None
    return tuple(int(n) for n in ir.DenseI32ArrayAttr(kernel.attributes["nvvm.reqntid"]))


def _terminator(block: Any) -> Any:
    operations = list(block.operations)
    return operations[-1].operation


def _while_condition(op: Any) -> Any:
    return _terminator(op.regions[0].blocks[0]).operands[0]


def _argument_sources(argument: Any) -> list[Any] | None:
    block = argument.owner
    op = block.owner.operation
    number = argument.arg_number
    if op.name in KERNEL_OPS:
        return []
    if op.name == "scf.for":
        if number == 0:
            return list(op.operands[:3])
        return [op.operands[2 + number], _terminator(block).operands[number - 1]]
    if op.name == "scf.while":
        if block == op.regions[0].blocks[0]:
            return [op.operands[number], _terminator(op.regions[1].blocks[0]).operands[number]]
        return [_terminator(op.regions[0].blocks[0]).operands[1 + number]]
    return None


def _structured_sources(op: Any, number: int) -> list[Any] | None:
    if op.name in BRANCHES:
        return [op.operands[0]] + [_terminator(r.blocks[0]).operands[number] for r in op.regions if len(r.blocks)]
    if op.name == "scf.for":
        body = op.regions[0].blocks[0]
        return [*list(op.operands[:3]), op.operands[3 + number], _terminator(body).operands[number]]
    if op.name == "scf.while":
        condition = _terminator(op.regions[0].blocks[0])
        return [condition.operands[0], condition.operands[1 + number]]
    return None
