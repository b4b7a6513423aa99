"""Compiles a host function for an architecture, traced or not, and keeps what the tests look at."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from ptx_text import Entry, entries

import warptrace.cute as iket
from warptrace import registry
from warptrace.sites import KernelRecord, Site
from warptrace.wire import EventKind

ARCH = "sm_90a"


@dataclass(frozen=True)
class Built:
    """``records``: kernels with events, in the module's order."""

    ptx: str
    cubin: bytes
    records: tuple[KernelRecord, ...]
    compiled: Any

    @property
    def entries(self) -> dict[str, Entry]:
        return entries(self.ptx)

    @property
    def entry(self) -> Entry:
        """The module's only kernel."""
        (entry,) = self.entries.values()
        return entry

    @property
    def record(self) -> KernelRecord:
        (record,) = self.records
        return record

    def names(self) -> list[tuple[EventKind, str]]:
        """Kind and name of the sites of the only kernel, in the order of their ids."""
        return [(s.kind, s.name) for s in self.record.sites]

    def sites(self, kind: EventKind, name: str) -> list[Site]:
        return [s for s in self.record.sites if (s.kind, s.name) == (kind, name)]

    def stored(self) -> list[int]:
        """Site ids in the only kernel's event stores, in the order of the text: one a store."""
        return [e.site for e in self.entry.events]


def tensor(dtype: Any = None, size: int = 256) -> Any:
    """A fake vector as an argument."""
    return cute.runtime.make_fake_compact_tensor(dtype or cutlass.Int32, (size,), assumed_align=16)


def build(
    host: Any, *args: Any, on: bool = True, arch: str = ARCH, options: str = "", quiet: bool = True, using: Any = None
) -> Built:
    """Compiles ``host``; ``quiet`` turns a PairingWarning into an error, so that every test of a valid program also
    shows that none is given. ``using``: what to call instead of ``cute.compile``."""
    records: list[KernelRecord] = []
    announce = registry.announce

    def keep(record: KernelRecord) -> None:
        records.append(record)
        announce(record)

    registry.announce = keep
    try:
        with warnings.catch_warnings(), iket.tracing(on):
            if quiet:
                warnings.simplefilter("error", iket.PairingWarning)
            text = f"--gpu-arch {arch} --keep-ptx --keep-cubin {options}".strip()
            compiled = (using or cute.compile)(host, *args, options=text)
    finally:
        registry.announce = announce
    ptx = compiled.__ptx__
    return Built(ptx if isinstance(ptx, str) else ptx.decode(), bytes(compiled.__cubin__), tuple(records), compiled)
