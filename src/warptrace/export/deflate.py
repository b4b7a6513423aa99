"""Deflate at the speed that is to be had: by isal where it is installed (``warptrace[fast]``), else by zlib.

Compression is the larger part of writing a trace: isal takes a fifth of zlib's time, for a file a tenth larger.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import cache

LEVEL = 1
Compress = Callable[[bytes | memoryview], bytes]


@cache
def zlib_stream() -> Compress:
    """What makes a zlib stream of bytes."""
    try:
        from isal import isal_zlib
    except ImportError:
        return lambda data: zlib.compress(data, LEVEL)
    return lambda data: bytes(isal_zlib.compress(data, LEVEL))


@cache
def gzip_member() -> Compress:
    """What makes a gzip member of bytes; the same bytes give the same member."""
    try:
        from isal import igzip
    except ImportError:
        return lambda data: gzip.compress(data, LEVEL, mtime=0)
    return lambda data: bytes(igzip.compress(data, LEVEL, mtime=0))
