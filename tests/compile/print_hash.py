"""Prints the hashes under which the DSL caches a traced and an untraced kernel, and the traced kernel's site hash."""

from __future__ import annotations

from typing import Any

import cutlass
import twin_with
from cutlass import cutlass_dsl
from dsl_build import build, tensor

hashes: list[str] = []


def keep(dsl: Any, module: Any, function_name: str) -> None:
    hashes.append(str(dsl.get_module_hash(module, function_name)))


# registered after that of warptrace, so it sees what the DSL will hash
cutlass_dsl.CuTeDSL._get_dsl().register_trace_finalize_hook(keep)
traced = build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
build(twin_with.host, tensor(), cutlass.Int32(3), on=False)
build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
print(*hashes, *(f"{r.kernel_id:x}" for r in traced.records))
