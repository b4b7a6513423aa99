"""Kernels that come ready-made from an object file, as libraries keep them in caches of their own.

The host code of a module with events holds the tables of their sites, so that what an object file records can be read
without the process that compiled it.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from cutlass._mlir import ir

from ... import registry, wire
from ...runtime.log import log
from ...sites import KernelRecord
from . import dsl
from .ir_tools import symbol

CELL_NAME = "warptrace_env"
"""Of the constant that holds the name of the host cell's variable (see ``hidden``)."""

_MARK = f"warptrace sites {wire.CAPTURE_VERSION}:"
_FOUND = re.compile(re.escape(_MARK.encode()) + rb"([A-Za-z0-9+/=]+)\0")

_silent: set[str] = set()
"""Folders whose objects were said to hold no events."""


def embed(module: Any, records: Sequence[KernelRecord]) -> None:
    """Puts the tables of a lowered module's kernels into its host code: behind the name of the variable that this asks
    for, in one constant, since nothing would keep a constant that no code uses."""
    for op in [op.operation for op in module.body.operations if symbol(op.operation) == CELL_NAME]:
        text = f'llvm.mlir.global internal constant @{CELL_NAME}("{wire.CELL_ENV}\\00{embedded(records)}\\00")'
        with module.context, ir.Location.unknown():
            (fresh,) = ir.Module.parse(text).body.operations
            module.body.append(fresh.operation.clone())
        op.erase()


def embedded(records: Sequence[KernelRecord]) -> str:
    """The tables as text of printable ASCII, to be ended by a zero byte."""
    table = json.dumps([record.to_json() for record in records], ensure_ascii=False)
    return _MARK + base64.b64encode(zlib.compress(table.encode(), 6)).decode()


def records_in(content: bytes) -> list[KernelRecord]:
    """The kernels whose tables stand in an object file. Raises ValueError, KeyError or zlib.error for damaged ones."""
    found = []
    for match in _FOUND.finditer(content):
        found += json.loads(zlib.decompress(base64.b64decode(match[1])))
    return [KernelRecord.from_json(one) for one in found]


def announcing(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what loads an object file, a method that is given its path: the kernels in it are announced. What keeps
    them from being found out is no reason not to load it."""

    @functools.wraps(load)
    def load_and_announce(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _announce(os.fspath(args[0] if args else kwargs["file_path"]))
        except Exception as e:
            log("debug", f"kernels of an object file are not known: {type(e).__name__}: {e}")
        return load(self, *args, **kwargs)

    return load_and_announce


def _announce(path: str) -> None:
    with open(path, "rb") as f:
        records = records_in(f.read())
    for record in records:
        registry.announce(record)
    if not records and dsl.process_enabled():
        registry.announce_without_events(os.path.basename(path))
        folder = os.path.dirname(path)
        if folder not in _silent:
            _silent.add(folder)
            log(
                "warn",
                f"{path} was compiled without tracing, so its kernels are not recorded, nor are those of others there"
                " that were: give the library's cache another folder, or switch it off, for a traced run",
            )
