"""Exporters: what a :class:`~warptrace.trace.Trace` becomes on disk.

Each exporter writes beside its target and renames at the end, so a failing run never destroys an earlier result.
:func:`warptrace.export.html.write_html` is imported from its own module: it needs the statistics of ``report``, which
in turn reads payloads as the exporters do.
"""

from __future__ import annotations

from .iket_json import write_iket_json
from .perfetto import write_perfetto

__all__ = ["write_iket_json", "write_perfetto"]
