"""What ``warptrace doctor`` finds, and how it is shown. :mod:`.probes` finds it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OK, WARN, FAIL = "ok", "warn", "fail"
STATES = (OK, WARN, FAIL)


@dataclass(frozen=True)
class Finding:
    """One line of the page. ``state``: one of STATES; ``mend``: what to do where it is not OK."""

    name: str
    state: str
    text: str
    mend: str = ""


def page(findings: Sequence[Finding]) -> str:
    """The findings as text: a line each, the mend below it, and the count."""
    width = max([len(f.name) for f in findings], default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<4}  {finding.name:<{width}}  {finding.text}".rstrip())
        if finding.mend:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.mend}")
    return "\n".join([*lines, "", verdict(findings)])


def verdict(findings: Sequence[Finding]) -> str:
    """One line: whether tracing will work."""
    failed, warned = (sum(f.state == state for f in findings) for state in (FAIL, WARN))
    if failed:
        return f"{_count(failed, 'failure')}, {_count(warned, 'warning')}: tracing would not work here"
    return f"no failure, {_count(warned, 'warning')}"


def as_json(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """The findings as plain data."""
    return {"warptrace": version, "ok": not failed(findings), "findings": [asdict(f) for f in findings]}


def failed(findings: Sequence[Finding]) -> bool:
    """Whether something would fail."""
    return any(f.state == FAIL for f in findings)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
