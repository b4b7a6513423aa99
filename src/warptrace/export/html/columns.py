"""Columns of integers as text that a page carries: difference, byte planes, deflate, base64.

A column becomes one ``<script>`` element of a type that browsers do not run. Its attribute ``data-column`` holds a JSON
object: ``rows``, ``width`` (bytes a value; 0: every value is ``value``) and ``delta`` (values are differences to the
row before). The text is base64 of the zlib stream of ``width`` planes of ``rows`` bytes, lowest byte first. Values are
two's complement of 8 x ``width`` bits. ``data.js`` reads them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from html import escape

import numpy as np
from numpy.typing import NDArray

from ...trace import I64

WIDTHS = (1, 2, 4, 8)
BYTES_AT_ONCE = 3 << 18
"""Bytes given to base64 at once: a multiple of 3, or padding would stand in the middle."""


def column(name: str, values: NDArray[np.integer], *, delta: bool = False) -> Iterator[bytes]:
    """The element of a column, in pieces. ``delta``: sorted or slowly changing values are smaller as differences."""
    wide: I64 = values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
    rows = len(wide)
    if rows and (wide == wide[0]).all():
        yield from element(name, b"", rows=rows, width=0, value=str(int(wide[0])), delta=False)
        return
    if delta and rows:
        wide = np.diff(wide, prepend=np.int64(0))  # wraps where a difference needs 65 bits; adding up wraps back
    width = _width(wide)
    planes = wide.astype(f"<i{width}").view(np.uint8).reshape(rows, width).T
    yield from element(name, np.ascontiguousarray(planes).tobytes(), rows=rows, width=width, delta=delta)


def element(name: str, data: bytes, **facts: object) -> Iterator[bytes]:
    """An element that holds ``data`` deflated, in pieces."""
    yield (
        f'<script type="text/plain" data-name="{escape(name)}" data-column="{escape(json.dumps(facts))}">'
    ).encode()
    yield from _base64(data)
    yield b"</script>\n"


def _width(values: I64) -> int:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(width for width in WIDTHS if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1)


def _base64(data: bytes) -> Iterator[bytes]:
    packer, kept = zlib.compressobj(6), b""
    for first in range(0, len(data), BYTES_AT_ONCE):
        kept += packer.compress(data[first : first + BYTES_AT_ONCE])
        whole = len(kept) // 3 * 3
        yield base64.b64encode(kept[:whole])
        kept = kept[whole:]
    yield base64.b64encode(kept + packer.flush())
