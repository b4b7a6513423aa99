"""What warptrace needs of the installed DSL, and what of it is not where it was: one line each, exit status 1 for any.

    python .ci/hooks.py
"""

from __future__ import annotations

import importlib
import inspect
import sys

NEEDED = {
    "the DSL's instance": "cutlass.cutlass_dsl:CuTeDSL._get_dsl",
    "hook after tracing": "cutlass.base_dsl.dsl:BaseDSL.register_trace_finalize_hook",
    "libraries' stand-ins, when a trace begins": "cutlass.base_dsl.dsl:BaseDSL.generate_original_ir",
    "errors of that hook as they are": "cutlass.base_dsl.dsl:BaseDSL._run_trace_finalize_hooks",
    "build records": "cutlass.base_dsl.compiler:Compiler.compile",
    "kernels from object files": "cutlass.base_dsl.export.external_binary_module:ExternalBinaryModule.__init__",
    "FrontendNext": "cutlass.base_dsl.common:is_pyir_enabled",
    "attributes under FrontendNext": "cutlass.base_dsl.pyir_entrypoints:pyir_read",
    "inline assembly": "cutlass._mlir.dialects.llvm:InlineAsmOp",
    **{
        f"calls of the DSL's event module: {name}": f"cutlass.cute.experimental.iket:{name}"
        for name in ("mark", "range_push", "range_pop", "range_start", "range_end", "sentinel_token")
    },
}


def missing(place: str) -> str:
    """Why ``module:name.name`` is not there, "" where it is."""
    module, _, names = place.partition(":")
    try:
        found = importlib.import_module(module)
        for name in names.split("."):
            found = inspect.getattr_static(found, name)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return ""


def blocks() -> dict[str, str]:
    """Building blocks of ``--auto`` that this DSL does not have, with the reason."""
    from warptrace.frontends.cute import auto

    gone = {}
    for block in auto.TABLE:
        owner, _, name = block.name.rpartition(".")
        place = f"{block.module}:{block.name}"
        if owner != auto.EVERY_CLASS:
            reason = missing(place)
        else:
            classes = auto._classes(importlib.import_module(block.module), owner)
            reason = "" if any(name in vars(c) for c in classes) else "no class has it"
        if reason:
            gone[place] = reason
    return gone


def main() -> int:
    from warptrace.frontends.cute import dsl

    moved = {f"{what} ({place})": reason for what, place in NEEDED.items() if (reason := missing(place))}
    moved |= {f"range of --auto ({place})": reason for place, reason in blocks().items()}
    for what, reason in moved.items():
        print(f"moved: {what}: {reason}")
    print(f"nvidia-cutlass-dsl {dsl.version()}: {len(NEEDED) + len(auto_table())} hooks, {len(moved)} moved")
    return 1 if moved else 0


def auto_table() -> tuple[object, ...]:
    from warptrace.frontends.cute import auto

    return auto.TABLE


if __name__ == "__main__":
    sys.exit(main())
