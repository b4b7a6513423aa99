"""``.html``: a report in one file, for a browser without network.

``page.html`` is the frame; ``page.css`` and the scripts of :data:`SCRIPTS` are put into it, then the trace's columns
(``columns.py``) and a JSON object of everything else. Names appear in that object only, deflated: no text of a trace
is read as HTML. ``docs/outputs.md`` tells what the page shows.
"""

from __future__ import annotations

from .writer import MAX_SLICES, write_html

__all__ = ["MAX_SLICES", "write_html"]
