"""The shape of the table: a case is a host function, its arguments, its launches and what each warp should record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warptrace.runtime.options import MIN_BUFFER_BYTES

from .model import WARP, Dim3, Warp


@dataclass(frozen=True)
class Array:
    """A tensor argument. ``values`` are its initial contents; ``kind``: name of the DSL type where numpy has none
    ("BFloat16": values are its bits as uint16)."""

    values: np.ndarray
    kind: str | None = None

    @property
    def dsl_type(self) -> str:
        names = {"int": "Int", "uint": "Uint", "float": "Float"}
        text = str(self.values.dtype)
        stem = text.rstrip("0123456789")
        return self.kind or names[stem] + text[len(stem) :]


@dataclass(frozen=True)
class Scalar:
    """A run-time scalar of the DSL type named ``kind``."""

    value: Any
    kind: str = "Int32"


@dataclass(frozen=True)
class Const:
    """A compile-time argument."""

    value: Any


Argument = Array | Scalar | Const


def zeros(count: int) -> Array:
    """A result tensor of int32."""
    return Array(np.zeros(count, np.int32))


@dataclass(frozen=True)
class Launch:
    """One launch in the host function, in textual order.

    ``expect(warp, *args)`` adds the events of one warp, computed from the arguments: arrays as numpy arrays, scalars
    and compile-time arguments as Python values; None: the kernel holds no events. ``args``: which of the host's
    arguments the kernel takes (None: all).
    """

    expect: Callable[..., None] | None
    grid: Dim3
    block: Dim3
    cluster: Dim3 | None = None
    args: tuple[int, ...] | None = None

    def warps(self) -> list[Warp]:
        """Empty expectations for all warps of the launch."""
        gx, gy, gz = self.grid
        count = -(-self.block[0] * self.block[1] * self.block[2] // WARP)
        return [
            Warp((x, y, z), w, self.grid, self.block)
            for z in range(gz)
            for y in range(gy)
            for x in range(gx)
            for w in range(count)
        ]


@dataclass(frozen=True)
class Case:
    """One row of the table.

    ``results(*args)``: the contents expected of the host's arguments after one call, by their number. ``calls``: how
    often the host function is called in one recording; ``drain``: with a look of the live drain between the calls
    (results are then those of the last call). ``max_events``: the option max_events_per_warp. ``divergent``: run on
    the emulator with several schedules. ``judge(case, outcome, launches)`` decides instead of a comparison warp by warp
    where warps race for memory. ``keep``: the option keep_events. ``open_on_hardware``: why hardware may split or lead
    events differently; there only the set of (kind, name) is compared.
    """

    name: str
    host: Any
    args: Sequence[Argument]
    launches: Sequence[Launch]
    results: Callable[..., dict[int, np.ndarray]]
    calls: int = 1
    drain: bool = False
    max_events: int | None = None
    keep: str = "first"
    buffer_bytes: int = MIN_BUFFER_BYTES
    divergent: bool = False
    judge: Callable[..., list[str]] | None = None
    open_on_hardware: str | None = None

    def plain_args(self) -> list[Any]:
        """Arguments as the expectations take them."""
        return [a.values.copy() if isinstance(a, Array) else a.value for a in self.args]

    def expected(self) -> list[list[Warp]]:
        """Per launch, all calls one after another, the warps with their events."""
        out = []
        for launch in [x for _ in range(self.calls) for x in self.recorded_launches()]:
            warps = launch.warps()
            args = self.plain_args()
            assert launch.expect is not None
            for warp in warps:
                launch.expect(warp, *([args[i] for i in launch.args] if launch.args is not None else args))
            out.append(warps)
        return out

    def recorded_launches(self) -> list[Launch]:
        """Those of kernels with events."""
        return [x for x in self.launches if x.expect is not None]
