"""A DSL that has the hook which the tracer registers with, and compiles nothing: see ``fake_gpu``.

``FAKE_DSL`` in the environment makes it another one: "old" has no hook, "changed" not even the class that had it.
"""

import os
from types import SimpleNamespace

__version__ = {"old": "4.5.0", "changed": "99.0"}.get(os.environ.get("FAKE_DSL", ""), "4.8.1")


class CuTeDSL:
    @classmethod
    def _get_dsl(cls):
        return cls()

    if os.environ.get("FAKE_DSL") != "old":

        def register_trace_finalize_hook(self, hook):
            """Nothing is ever traced."""


cutlass_dsl = SimpleNamespace()
if os.environ.get("FAKE_DSL") != "changed":
    cutlass_dsl.CuTeDSL = CuTeDSL
