"""Flows: that ranges of one name feed ranges of another, as a load feeds the wait for its data.

:func:`flow` declares one in the traced program; it is kept in the capture's manifest. On the command line ``--flow
SOURCE:TARGET`` does the same afterwards. :mod:`warptrace.flows.match` finds which range feeds which. This module
imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UsageError

KEYS = ("payload", "order")


@dataclass(frozen=True)
class Flow:
    """``source`` and ``target`` are names of ranges. Within a CTA, the n-th source of a warp with some payload feeds
    the n-th target of every warp with that payload (``key`` "payload"), or just the n-th the n-th ("order")."""

    source: str
    target: str
    key: str = "payload"

    def __post_init__(self) -> None:
        if not self.source or not self.target:
            raise UsageError("a flow needs the names of two ranges, as tma_issue:ab_wait")
        if self.key not in KEYS:
            raise UsageError(f"flow key {self.key!r} is not known: use {' or '.join(KEYS)}")

    def to_json(self) -> dict[str, str]:
        """As the manifest holds it."""
        return asdict(self)


_declared: dict[Flow, None] = {}


def flow(source: str, target: str, *, key: str = "payload") -> Flow:
    """Declare that ranges named ``source`` feed ranges named ``target``.

    Perfetto then shows arrows between them, and reports the latency from the issue (the source's start) to completion
    (the target's end). ``key`` is "payload" (the same k tile, say) or "order". Call it anywhere in the traced program
    before it ends; without a tracer it does nothing. Raises UsageError for a key that is not known.
    """
    one = Flow(source, target, key)
    _declared[one] = None
    return one


def declared() -> list[dict[str, str]]:
    """What this process declared, for the manifest."""
    return [one.to_json() for one in _declared]


def parse_flow(text: str) -> Flow:
    """``SOURCE:TARGET`` or ``SOURCE:TARGET:KEY``. Raises UsageError."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise UsageError(f"flow {text!r} is not SOURCE:TARGET or SOURCE:TARGET:order")
    return Flow(*parts)


def flows_of(manifest: dict[str, Any]) -> list[Flow]:
    """The flows that a manifest names; entries that cannot be read are left out."""
    out = []
    listed = manifest.get("flows")
    for entry in listed if isinstance(listed, list) else []:
        try:
            out.append(Flow(str(entry["source"]), str(entry["target"]), str(entry.get("key", "payload"))))
        except (TypeError, KeyError, AttributeError, UsageError):
            continue
    return out
