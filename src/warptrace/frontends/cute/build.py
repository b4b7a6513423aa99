"""Registers, stack and code size of compiled kernels, with tracing and, where asked for, without."""

from __future__ import annotations

import functools
import io
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cutlass._mlir import ir

from ... import registry
from ...device.cubin import KernelCode, kernels_in
from ...runtime.log import log
from ...sites import KernelRecord
from .events import erase_events, placeholders
from .ir_tools import contained, kernels


@dataclass(frozen=True)
class _Expected:
    """What the compilation of a module will tell of: ``records`` of its kernels with events; ``untraced``: bytecode of
    the module as it was without them, or None."""

    records: list[KernelRecord]
    untraced: bytes | None


_expected: weakref.WeakKeyDictionary[Any, _Expected] = weakref.WeakKeyDictionary()
"""By module. A module that is taken from a cache instead of compiled leaves with its last reference."""


def untraced_copy(module: Any) -> bytes | None:
    """Bytecode of a module whose placeholders are not lowered yet, without them: what it is with tracing off. None
    where there are none, or no copy can be made."""
    try:
        if not any(placeholders(kernel) for kernel in kernels(module)):
            return None
        copy = module.operation.clone()
        with contained(copy):
            for kernel in kernels(copy):
                erase_events(kernel)
        out = io.BytesIO()
        copy.operation.write_bytecode(out)
        return out.getvalue()
    except Exception as e:
        log("debug", f"no build without tracing: {type(e).__name__}: {e}")
        return None


def expect(module: Any, records: list[KernelRecord], untraced: bytes | None) -> None:
    """Has the kernels of ``records`` announced again, with their build, when ``module`` is compiled."""
    try:
        _expected[module] = _Expected(records, untraced)
    except TypeError as e:  # modules that cannot be referred to weakly
        log("debug", f"no build record: {e}")


def reporting(compile_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the DSL's ``Compiler.compile``: the same, and kernels of expected modules get their build record."""

    @functools.wraps(compile_module)
    def compile_and_report(compiler: Any, *args: Any, **kwargs: Any) -> Any:
        module = args[0] if args else kwargs.get("module")
        expected = _expected.pop(module, None) if isinstance(module, ir.Module) else None
        if expected is None:
            return compile_module(compiler, *args, **kwargs)
        pipeline = args[1] if len(args) > 1 else kwargs.get("pipeline")
        # Before the module itself: files that the pipeline keeps (PTX, cubin) are then those of the module.
        untraced = _compile_untraced(compiler, expected.untraced, pipeline, bool(kwargs.get("enable_verifier")))
        result = compile_module(compiler, *args, **kwargs)
        _report(expected.records, result if isinstance(result, ir.Module) else module, untraced)
        return result

    return compile_and_report


def _compile_untraced(compiler: Any, copy: bytes | None, pipeline: Any, verify: bool) -> dict[str, KernelCode]:
    """The kernels of the copy. Only passes run: hooks, diagnostics and remarks of the compilation are the module's.

    In a context of its own: some versions refuse a second binary of one name in a context.
    """
    if copy is None:
        return {}
    try:
        with ir.Context() as context, ir.Location.unknown():
            context.enable_multithreading(False)  # a pool of threads for one module is not worth its start
            module = ir.Module.parse(copy)
            passes = compiler.passmanager.PassManager.parse(pipeline)
            passes.enable_verifier(verify)
            passes.run(module.operation)
            return _compiled_kernels(module)
    except Exception as e:  # if the kernel itself is at fault, the compilation that follows says so
        log("debug", f"no build without tracing: {type(e).__name__}: {e}")
        return {}


def _report(records: list[KernelRecord], module: Any, untraced: dict[str, KernelCode]) -> None:
    try:
        traced = _compiled_kernels(module)
        for record in records:
            if record.symbol in traced:
                build: dict[str, Any] = asdict(traced[record.symbol])
                if record.symbol in untraced:
                    build["untraced"] = asdict(untraced[record.symbol])
                registry.announce_build(record.kernel_id, build)
            else:
                log("debug", f"no build record: {record.symbol} is not in the compiled module")
    except Exception as e:
        log("debug", f"no build record: {type(e).__name__}: {e}")


def _compiled_kernels(module: Any) -> dict[str, KernelCode]:
    """The kernels of the cubins that a compiled module embeds as constants of its host code."""
    found: dict[str, KernelCode] = {}
    block = module.operation.regions[0].blocks[0]
    for op in (o.operation for o in block.operations):
        value = op.attributes["value"] if op.name == "llvm.mlir.global" and "value" in op.attributes else None
        if isinstance(value, ir.StringAttr):
            found.update(kernels_in(bytes(value.value_bytes)))
    return found
