"""``warptrace doctor``: whether tracing works here, and what to do where it does not."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .. import __version__
from ..runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from ._args import Verbs


class Doctor:
    """The verb."""

    name = "doctor"
    options: frozenset[str] = frozenset({"buffer_size"})
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        from ._args import size

        parser = verbs.add_parser(
            self.name,
            help="check GPU, driver, DSL and environment, and record one event",
            description="Checks what tracing needs, compiles a kernel with one event and records it: on the GPU or,"
            " without one, on the emulator. Exit status 1 where something would fail.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("--json", action="store_true", default=False, help="print the findings as JSON")
        parser.add_argument("--require-gpu", action="store_true", default=False, help="no GPU is a failure")
        parser.add_argument("--buffer-size", metavar="SIZE", type=size, help="trace buffer that must fit (default: 1G)")

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0, or 1 where something would fail."""
        from ..doctor import as_json, failed, page
        from ..doctor.probes import examine

        wanted = getattr(options, "buffer_size", RuntimeOptions.buffer_bytes)
        findings = list(examine(wanted, require_gpu=options.require_gpu))
        print(json.dumps(as_json(findings, __version__), indent=1) if options.json else page(findings))
        return 1 if failed(findings) else 0
