"""Two machines with one interface: the PTX emulator, and a real GPU with the real recorder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
import numpy as np

import warptrace.cute as iket
from warptrace import registry
from warptrace.decode import decode
from warptrace.frontends.cute import dsl
from warptrace.raw import Capture, read_capture
from warptrace.runtime import memory
from warptrace.runtime.options import RuntimeOptions
from warptrace.sites import KernelRecord
from warptrace.trace import Trace

from . import raw
from .table import Argument, Array, Case, Scalar


@dataclass(frozen=True)
class Outcome:
    """What one run left: ``regions`` from the capture, ``memory``: the same straight from trace memory where that was
    possible, the decoded trace, and the contents of the host's array arguments after the last call."""

    capture: Capture
    regions: list[raw.RawWarp]
    memory: list[raw.RawWarp] | None
    trace: Trace
    results: dict[int, np.ndarray]


class Runner(Protocol):
    """Compiles each case once."""

    hardware: bool

    def run(self, case: Case) -> Outcome:
        """Runs the case with tracing."""

    def run_silent(self, case: Case, *, events: bool) -> dict[int, np.ndarray]:
        """Runs it with no recorder (the control pointer is 0), or compiled without events; returns the results."""


class _Builds:
    """What was compiled, each host function once for each set of compile-time arguments.

    Asking for a build announces its kernels anew, and no others: kernels of other cases may have the same symbol.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Any, list[KernelRecord]]] = {}

    def get(self, case: Case, events: bool, build: Callable[[], Any]) -> Any:
        registry._records.clear()
        key = (case.host, events, case.keep, *(_signature(a) for a in case.args))
        if key not in self._kept:
            with iket.tracing(events), _keeping(case.keep):
                self._kept[key] = (build(), registry.records())
            return self._kept[key][0]
        built, records = self._kept[key]
        for record in records:
            registry.announce(record)
        return built


@contextmanager
def _keeping(keep: str) -> Iterator[None]:
    """Kernels are compiled as with this option keep_events."""
    dsl.keep_newest(keep == "last")
    try:
        yield
    finally:
        dsl.keep_newest(False)


class EmulatorRunner:
    """``seed`` of a run: the order in which warps, and sides of divergent branches, go."""

    hardware = False

    def __init__(self) -> None:
        self._builds = _Builds()

    def kernels(self, case: Case, *, events: bool = True) -> list[Any]:
        """The compiled kernels of the case's host function, one a launch."""
        from warptrace.emulator.cute import compile_kernels

        found: list[Any] = self._builds.get(
            case, events, lambda: compile_kernels(case.host, *[_fake(a) for a in case.args])
        )
        return found

    def run(self, case: Case, *, seed: int = 0) -> Outcome:
        from warptrace.emulator import Device
        from warptrace.runtime.emulated import EmulatedRecording

        kernels = self.kernels(case)
        with tempfile.TemporaryDirectory(prefix="warptrace-") as folder:
            device = Device(seed=seed, random_branches=seed > 0)
            recording = EmulatedRecording(Path(folder) / "pid_1", device=device, buffer_bytes=case.buffer_bytes)
            arrays, values = _emulated_args(device, case)
            for call in range(case.calls):
                for array, argument in arrays:
                    array.write(argument.values)
                for kernel, launch in zip(kernels, case.launches, strict=True):
                    assert kernel.grid in (None, launch.grid) and kernel.block in (None, launch.block), "table is wrong"
                    shape = {"grid": launch.grid, "block": launch.block, "cluster": launch.cluster}
                    chosen = _chosen(case, values, launch.args)
                    if launch.expect is None:
                        kernel.launch(device, chosen, **shape)
                    else:
                        recording.launch(kernel, chosen, max_events_per_warp=case.max_events, **shape)
                if case.drain and call + 1 < case.calls:
                    recording.step()
            memory = None if case.drain else raw.from_memory(recording.memory.read)
            recording.finish()
            return _outcome(Path(folder) / "pid_1", memory, _emulated_results(case, values))

    def run_silent(self, case: Case, *, events: bool) -> dict[int, np.ndarray]:
        from warptrace.emulator import Device

        device = Device()
        _, values = _emulated_args(device, case)
        for kernel, launch in zip(self.kernels(case, events=events), case.launches, strict=True):
            hidden = [0] * 5 if events and launch.expect is not None else []
            kernel.launch(
                device,
                [*_chosen(case, values, launch.args), *hidden],
                grid=launch.grid,
                block=launch.block,
                cluster=launch.cluster,
            )
        return _emulated_results(case, values)


def _signature(argument: Argument) -> Any:
    """What of an argument the compiled code depends on."""
    if isinstance(argument, Array):
        return argument.dsl_type, argument.values.shape
    return argument.kind if isinstance(argument, Scalar) else (type(argument.value), argument.value)


def _fake(argument: Argument) -> Any:
    """The argument as ``cute.compile`` takes it without a GPU."""
    if isinstance(argument, Array):
        kind = getattr(cutlass, argument.dsl_type)
        return cute.runtime.make_fake_compact_tensor(kind, argument.values.shape, assumed_align=16)
    return _scalar(argument)


def _scalar(argument: Argument) -> Any:
    assert not isinstance(argument, Array)
    return getattr(cutlass, argument.kind)(argument.value) if isinstance(argument, Scalar) else argument.value


def _emulated_args(device: Any, case: Case) -> tuple[list[tuple[Any, Array]], dict[int, Any]]:
    """(device arrays with their arguments, kernel arguments by number): compile-time arguments are none."""
    values: dict[int, Any] = {}
    arrays = []
    for number, argument in enumerate(case.args):
        if isinstance(argument, Array):
            values[number] = device.alloc(argument.values)
            arrays.append((values[number], argument))
        elif isinstance(argument, Scalar):
            values[number] = argument.value
    return arrays, values


def _chosen(case: Case, values: dict[int, Any], numbers: tuple[int, ...] | None) -> list[Any]:
    order = range(len(case.args)) if numbers is None else numbers
    return [values[i] for i in order if i in values]


def _emulated_results(case: Case, values: dict[int, Any]) -> dict[int, np.ndarray]:
    return {i: values[i].read() for i, a in enumerate(case.args) if isinstance(a, Array)}


class GpuRunner:
    """The current CUDA device, torch tensors, and one recording of the real recorder for each case."""

    hardware = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._builds = _Builds()
        torch.cuda.init()

    def run(self, case: Case) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="warptrace-") as folder:
            with _recording(folder, case) as recorder:
                results = self._call(case, self._compiled(case, events=True), case.calls)
            return _outcome(recorder.directory, None, results)

    def run_silent(self, case: Case, *, events: bool) -> dict[int, np.ndarray]:
        return self._call(case, self._compiled(case, events=events), 1)

    def _compiled(self, case: Case, *, events: bool) -> Any:
        return self._builds.get(case, events, lambda: cute.compile(case.host, *self._arguments(case)[1]))

    def _call(self, case: Case, compiled: Any, calls: int) -> dict[int, np.ndarray]:
        results: dict[int, np.ndarray] = {}
        for _ in range(calls):
            tensors, arguments = self._arguments(case)
            compiled(*[a for a, given in zip(arguments, case.args) if isinstance(given, (Array, Scalar))])
            self._torch.cuda.synchronize()
            results = {i: self._numpy(t, case.args[i]) for i, t in tensors.items()}
        return results

    def _arguments(self, case: Case) -> tuple[dict[int, Any], list[Any]]:
        """(torch tensors by number, arguments as the DSL takes them)."""
        from cutlass.cute.runtime import from_dlpack

        tensors: dict[int, Any] = {}
        arguments: list[Any] = []
        for number, argument in enumerate(case.args):
            if isinstance(argument, Array):
                tensors[number] = self._tensor(argument)
                arguments.append(from_dlpack(tensors[number], assumed_align=16))
            else:
                arguments.append(_scalar(argument))
        return tensors, arguments

    def _tensor(self, argument: Array) -> Any:
        values = argument.values.copy()
        if argument.kind is None:
            return self._torch.from_numpy(values).cuda()
        assert argument.kind == "BFloat16" and values.dtype == np.uint16
        return self._torch.from_numpy(values.view(np.int16)).view(self._torch.bfloat16).cuda()

    def _numpy(self, tensor: Any, argument: Argument) -> np.ndarray:
        assert isinstance(argument, Array)
        if argument.kind is None:
            return tensor.cpu().numpy()
        return tensor.view(self._torch.int16).cpu().numpy().view(np.uint16)


@contextmanager
def _recording(folder: str, case: Case) -> Iterator[Any]:
    from warptrace.runtime.recorder import Recorder

    registry._records.clear()  # of earlier cases: ``max_events`` need not fit their kernels
    options = RuntimeOptions(
        directory=folder,
        buffer_bytes=case.buffer_bytes,
        max_events_per_warp=case.max_events,
        keep_events=case.keep,
    )
    memory.forget()  # of the size that the case asks for, not that of an earlier one
    recorder = Recorder(options)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


def _outcome(directory: Path, memory: list[raw.RawWarp] | None, results: dict[int, np.ndarray]) -> Outcome:
    capture = read_capture(directory)
    regions = raw.from_capture(capture)
    trace = decode([capture])
    if memory is not None:
        assert len(memory) == len(regions) and all(a.same(b) for a, b in zip(memory, regions)), (
            "the capture differs from what was in trace memory"
        )
    return Outcome(capture, regions, memory, trace, results)
