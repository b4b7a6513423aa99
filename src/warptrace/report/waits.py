"""Which ranges are waits: by their names, since nothing else in a trace tells.

A name is a wait where one of its words is in :data:`WAIT_WORDS`. Words end at anything that is not a letter and where
a capital follows a small letter: ``ab_empty_wait``, ``waitFull``, ``sync2``. A regular expression of the user's
replaces the rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import UsageError

WAIT_WORDS = frozenset(
    ("wait", "waits", "waiting", "await", "stall", "stalled", "idle", "spin", "poll", "sync", "barrier", "acquire")
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def wait_flags(names: Sequence[str], pattern: str | None = None) -> tuple[bool, ...]:
    """For each name whether it is a wait: by the rule, or where ``pattern`` is found in it. Raises UsageError."""
    if pattern is None:
        return tuple(any(word.lower() in WAIT_WORDS for word in _WORD.findall(name)) for name in names)
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--wait {pattern!r} is no regular expression: {error}") from None
    return tuple(found.search(name) is not None for name in names)
