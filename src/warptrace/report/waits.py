"""Which ranges are waits: by their names, since nothing else in a trace tells.

A name is a wait where one of its words is in :data:`WAIT_WORDS`. Words end at anything that is not a letter and where
a capital follows a small letter: ``ab_empty_wait``, ``waitFull``, ``sync2``. Of names as ``--auto`` makes them,
``epi_barrier.arrive``, what is called decides first: :data:`WAITING_CALLS`, :data:`OTHER_CALLS`. A regular expression
of the user's replaces the rule.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import UsageError

WAIT_WORDS = frozenset(
    ("wait", "waits", "waiting", "await", "stall", "stalled", "idle", "spin", "poll", "sync", "barrier", "acquire")
)
WAITING_CALLS = frozenset(
    ("producer_tail", "tail", "alloc_tmem", "fence_view_async_tmem_load", "fence_view_async_tmem_store")
)
"""Waits of the DSL whose names do not say so."""
OTHER_CALLS = frozenset(
    ("arrive", "arrive_unaligned", "barrier_arrive", "producer_commit", "consumer_release", "pipeline_init_arrive",
     "cluster_arrive", "cluster_arrive_relaxed", "griddepcontrol_launch_dependents", "mbarrier_arrive",
     "mbarrier_arrive_and_expect_tx", "cp_async_mbarrier_arrive_noinc")
)  # fmt: skip
"""Functions of the DSL that hold no warp up, whatever stands before them."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def wait_flags(names: Sequence[str], pattern: str | None = None) -> tuple[bool, ...]:
    """For each name whether it is a wait: by the rule, or where ``pattern`` is found in it. Raises UsageError."""
    if pattern is None:
        return tuple(map(_is_wait, names))
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--wait {pattern!r} is no regular expression: {error}") from None
    return tuple(found.search(name) is not None for name in names)


def _is_wait(name: str) -> bool:
    _, dot, call = name.rpartition(".")
    if dot and (call in WAITING_CALLS or call in OTHER_CALLS):
        return call in WAITING_CALLS
    return any(word.lower() in WAIT_WORDS for word in _WORD.findall(name))
