"""The host code that the DSL makes of a module with events, run here: its object file is linked with a CUDA runtime
that only notes what each kernel is launched with."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

import warptrace.cute as iket
from warptrace import registry, wire
from warptrace.runtime.cell import CELL, NO_END
from warptrace.runtime.layout import RegionSize

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the object file is linked by a C compiler")

CONTROL = 0x7F00_0000_1000
REGION = 1024
STREAM = 0x7F12_3456_7890
CAPTURING = 0x7F55_0000_0040

RUNTIME = r"""
#include <stdint.h>
#include <string.h>
/* What the object file calls of the CUDA runtime. A launch notes the stream of its configuration and its parameters. */
uint64_t seen[64][7];
int launches;
int _cuKernelGetAttribute(int *value) { *value = 0; return 0; }
int _cudaDeviceGetAttribute(int *value) { *value = 232448; return 0; }
int _cudaFuncSetAttribute(void) { return 0; }
int _cudaGetDevice(int *number) { *number = 0; return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
int _cudaLibraryGetKernel(void **kernel) { *kernel = (void *)64; return 0; }
int _cudaLibraryLoadData(void **library) { *library = (void *)128; return 0; }
int _cudaLaunchKernelEx(char *config, void *kernel, void **params) {
  uint64_t *row = seen[launches++];
  memcpy(row, config + 32, 8);
  row[1] = *(uint32_t *)params[0];
  for (int i = 0; i < 5; i++) memcpy(row + 2 + i, params[1 + i], 8);
  return 0;
}
int is_capturing(uint64_t stream, int *status) { *status = stream == %d; return 0; }
"""


@cute.kernel
def noted(n: cutlass.Int32):
    iket.mark("a", n)


@cute.jit
def three(n: cutlass.Int32, first: cuda.CUstream, second: cuda.CUstream):
    noted(n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=first)
    noted(n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=second)
    noted(n).launch(grid=[1, 1, 1], block=[32, 1, 1])


class Host:
    """The linked module: ``three`` as a function, and what its launches were given."""

    def __init__(self, folder: Path) -> None:
        self.library = ctypes.CDLL(str(folder / "host.so"))
        (name,) = set(re.findall(r"\b_mlir_exported__mlir_ciface_\w+", (folder / "host.h").read_text()))
        self._function = self.library[name]
        self.address_of_capturing = ctypes.cast(self.library.is_capturing, ctypes.c_void_p).value or 0

    def __call__(self, n: int, first: int, second: int) -> list[list[int]]:
        """(stream of the configuration, n, control, region, launch word) of the three launches, with the other hidden
        parameters checked."""
        launches = ctypes.c_int.in_dll(self.library, "launches")
        launches.value = 0
        status = ctypes.c_int32()
        values = [ctypes.c_uint32(n), ctypes.c_uint64(first), ctypes.c_uint64(second), status]
        self._function((ctypes.c_void_p * 4)(*map(ctypes.addressof, values)), 4)
        assert status.value == 0
        seen = ((ctypes.c_uint64 * 7) * 64).in_dll(self.library, "seen")
        return [self._told(*row) for row in seen[: launches.value]]

    @staticmethod
    def _told(stream: int, n: int, control: int, region: int, beside: int, form: int, room: int) -> list[int]:
        word = beside >> 16 & 0xFFFF | form & 0xFFFF_0000 | beside >> 48 << 32
        (rules,) = {r.launch_rules for r in registry.records() if r.symbol.startswith("kernel_cutlass_noted")}
        assert (control, region, beside, form) == wire.hidden_parameters(control, region, word, rules)[:4]
        assert not control or room == wire.room_word(region, rules)
        return [stream, n, control, region, word]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.mktemp("host")
    with iket.tracing():
        compiled = cute.compile(three, cutlass.Int32(1), cuda.CUstream(0), cuda.CUstream(0))
    compiled.export_to_c(file_path=str(folder), file_name="host", function_prefix="exported")
    (folder / "runtime.c").write_text(RUNTIME % CAPTURING)
    # symbolic: the DSL has put a real runtime of these names into the process
    command = ["cc", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", "host.so", "runtime.c", "host.o"]
    subprocess.run(command, cwd=folder, check=True)
    return Host(folder)


@pytest.fixture
def recording(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cell as a recording with memory has it."""
    CELL.set_default_size(RegionSize(REGION, 0))
    CELL.set_window(0, NO_END)
    CELL.attach(lambda ordinal: CONTROL, lambda number: None)
    CELL.know_driver(host.address_of_capturing, lambda stream: 70)
    monkeypatch.setattr(CELL, "_captures", {})
    yield
    CELL.detach()
    CELL._driver[:] = 0
    CELL.set_default_size(RegionSize(0, 0))


def test_without_a_recording_all_is_zero(host: Host) -> None:
    assert wire.CELL_ENV not in os.environ
    assert host(3, STREAM, 0) == [[STREAM, 3, 0, 0, 0], [0, 3, 0, 0, 0], [0, 3, 0, 0, 0]]


@pytest.mark.usefixtures("recording")
def test_every_launch_tells_its_own_stream(host: Host) -> None:
    assert host(5, STREAM, 2) == [
        [STREAM, 5, CONTROL, REGION, STREAM + 1],
        [2, 5, CONTROL, REGION, 3],
        [0, 5, CONTROL, REGION, 1],
    ]


@pytest.mark.usefixtures("recording")
def test_launches_in_a_capture_are_numbered(host: Host) -> None:
    first = [row[4] for _ in range(2) for row in host(5, CAPTURING, STREAM)]
    number = first[0] - wire.LAUNCH_CAPTURED >> wire.LAUNCH_NODE_BITS
    assert number > 0
    node = [wire.captured_word(number, n) for n in (1, 2)]
    assert first == [node[0], STREAM + 1, 1, node[1], STREAM + 1, 1]


@pytest.mark.usefixtures("recording")
def test_only_the_launches_of_the_window_tell_it(host: Host) -> None:
    CELL.set_window(1, 2)
    rows = host(5, STREAM, STREAM + 16)
    # the three launches are of three kernels: each is counted by itself
    assert [row[2:] for row in rows] == [[0, REGION, 0]] * 3
    assert [row[2:] for row in host(5, STREAM, STREAM + 16)] == [
        [CONTROL, REGION, STREAM + 1], [CONTROL, REGION, STREAM + 17], [CONTROL, REGION, 1],
    ]  # fmt: skip
