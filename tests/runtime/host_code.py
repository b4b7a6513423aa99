"""The host functions that the DSL compiles into a module with events, run here without a GPU."""

from __future__ import annotations

import ctypes

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
llvm.func @region(%offset: i64, %ctas: i64, %warps: i64, %cluster: i64, %least_slots: i64, %least_lane: i64,
                  %most_warps: i64, %named: i64, %stride: i64, %crowding: i64) -> i64 {
  %value = llvm.call @warptrace_region(%offset, %ctas, %warps, %cluster, %least_slots, %least_lane, %most_warps, %named,
    %stride, %crowding) : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> i64
  llvm.return %value : i64
}
llvm.func @beside(%word: i64) -> i64 {
  %value = llvm.call @warptrace_beside(%word) : (i64) -> i64
  llvm.return %value : i64
}
llvm.func @form(%word: i64, %stride: i64, %x: i64, %y: i64, %z: i64) -> i64 {
  %value = llvm.call @warptrace_form(%word, %stride, %x, %y, %z) : (i64, i64, i64, i64, i64) -> i64
  llvm.return %value : i64
}
llvm.func @room(%region: i64, %slack: i64, %spare: i64, %ring: i64) -> i64 {
  %value = llvm.call @warptrace_room(%region, %slack, %spare, %ring) : (i64, i64, i64, i64) -> i64
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


RULES = wire.LaunchRules(least_lane=128)


class HostCode:
    """The compiled host functions, as in a process of their own: they look for the cell when first called.

    ``rules``: of every kernel that it launches.
    """

    def __init__(self, rules: wire.LaunchRules = RULES) -> None:
        self._rules = rules
        declared = "llvm.func @_cudaGetDevice(!llvm.ptr) -> i32\n"
        known = "llvm.func @warptrace_cell() -> i64\n"
        assert declared in hidden._HOST and known in hidden._NOTE
        text = hidden._HOST.replace(declared, "") + hidden._NOTE.replace(known, "")
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(text + _PROGRAM + _NOTING)
            self._engine = ExecutionEngine(module, opt_level=2)
        # The engine looks up wrappers that take the addresses of arguments and result.
        wrapper = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._functions = {
            name: wrapper(self._engine.raw_lookup(name))
            for name in ("control", "region", "launch", "note", "beside", "form", "room")
        }

    def launch(self, kernel_id: int, stream: int = 0) -> tuple[int, int, int]:
        """Control pointer, region word and launch word of a launch of one CTA of one warp into a stream."""
        control = self._call("control", self._offset(kernel_id))
        return control, self.region(kernel_id, 1, 1, 1), self._call("launch", control, stream)

    def region(self, kernel_id: int, ctas: int, warps: int, cluster: int) -> int:
        """The region word of a launch."""
        return self._call("region", self._offset(kernel_id), ctas, warps, cluster, *hidden._size_rules(self._rules))

    def parameters(
        self, control: int, region: int, word: int, cluster: tuple[int, int, int]
    ) -> tuple[int, int, int, int, int]:
        """All hidden parameters, from those that are found."""
        form = self._call("form", word, self._rules.stride, *cluster)
        room = self._call("room", region, *hidden._room_rules(self._rules))
        return control, region, self._call("beside", word), form, room

    def note(self, kernel_id: int, control: int, word: int) -> int:
        """As a launch does that is noted: returns the word."""
        return self._call("note", kernel_id, control, word)

    @staticmethod
    def _offset(kernel_id: int) -> int:
        return wire.CELL_KERNELS_OFFSET + kernel_number(kernel_id) * wire.CELL_KERNEL_BYTES

    def _call(self, name: str, *arguments: int) -> int:
        values = [ctypes.c_uint64(value) for value in (*arguments, 0)]
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._functions[name](ctypes.addressof(packed))
        return values[-1].value
