"""The host functions that the DSL compiles into a module with events, run here without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

from cutlass._mlir import ir
from cutlass._mlir.execution_engine import ExecutionEngine

from warptrace import wire
from warptrace.frontends.cute import hidden
from warptrace.runtime.cell import kernel_number

# What the DSL's runtime gives: the current device. And what a launch calls, with names that the engine finds.
_PROGRAM = """
llvm.func @_cudaGetDevice(%number: !llvm.ptr) -> i32 {
  %zero = llvm.mlir.constant(0 : i32) : i32
  llvm.store %zero, %number : i32, !llvm.ptr
  llvm.return %zero : i32
}
llvm.func @control(%offset: i64) -> i64 {
  %value = llvm.call @warptrace_control(%offset) : (i64) -> i64
  llvm.return %value : i64
}
llvm.func @region(%offset: i64) -> i64 {
  %value = llvm.call @warptrace_region(%offset) : (i64) -> i64
  llvm.return %value : i64
}
llvm.func @launch(%control: i64, %handle: i64) -> i64 {
  %stream = llvm.inttoptr %handle : i64 to !llvm.ptr
  %value = llvm.call @warptrace_launch(%control, %stream) : (i64, !llvm.ptr) -> i64
  llvm.return %value : i64
}
"""
_NOTING = """
llvm.func @note(%kernel: i64, %control: i64, %word: i64) -> i64 {
  %value = llvm.call @warptrace_note(%kernel, %control, %word) : (i64, i64, i64) -> i64
  llvm.return %value : i64
}
"""


class HostCode:
    """The compiled host functions, as in a process of their own: they look for the cell when first called."""

    def __init__(self) -> None:
        declared = "llvm.func @_cudaGetDevice(!llvm.ptr) -> i32\n"
        known = "llvm.func @warptrace_cell() -> i64\n"
        assert declared in hidden._HOST and known in hidden._NOTE
        text = hidden._HOST.replace(declared, "") + hidden._NOTE.replace(known, "")
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(text + _PROGRAM + _NOTING)
            self._engine = ExecutionEngine(module, opt_level=2)
        # The engine looks up wrappers that take the addresses of arguments and result.
        wrapper = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._control, self._region, self._launch, self._note = (
            wrapper(self._engine.raw_lookup(name)) for name in ("control", "region", "launch", "note")
        )

    def launch(self, kernel_id: int, stream: int = 0) -> tuple[int, int, int]:
        """The hidden parameters of a launch into a stream."""
        offset = wire.CELL_KERNELS_OFFSET + kernel_number(kernel_id) * wire.CELL_KERNEL_BYTES
        control = _call(self._control, offset)
        return control, _call(self._region, offset), _call(self._launch, control, stream)

    def note(self, kernel_id: int, control: int, word: int) -> int:
        """As a launch does that is noted: returns the word."""
        return _call(self._note, kernel_id, control, word)


def _call(wrapper: Any, *arguments: int) -> int:
    values = [ctypes.c_uint64(value) for value in (*arguments, 0)]
    packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    wrapper(ctypes.addressof(packed))
    return values[-1].value
