"""Both compressors: what they make is read by everyone, and a file is the same each time."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from traces import TraceScript

from warptrace.export import deflate, write_iket_json, write_perfetto
from warptrace.export.perfetto_head import first_kernel

DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    deflate.zlib_stream.cache_clear()
    deflate.gzip_member.cache_clear()


@pytest.fixture(params=["zlib", "isal"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Only the one; isal's own where it is installed, else one that shows that it was called."""
    name: str = request.param
    if name == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
    elif "isal" not in sys.modules:
        try:
            import isal  # noqa: F401
        except ImportError:
            stream = SimpleNamespace(compress=lambda data, level: zlib.compress(data, 9))
            member = SimpleNamespace(compress=lambda data, level, mtime: gzip.compress(data, 9, mtime=mtime))
            monkeypatch.setitem(sys.modules, "isal", SimpleNamespace(isal_zlib=stream, igzip=member))
    deflate.zlib_stream.cache_clear()
    deflate.gzip_member.cache_clear()
    return name


def test_what_goes_in_comes_out(compressor: str) -> None:
    stream, member = deflate.zlib_stream()(DATA), deflate.gzip_member()(DATA)
    assert zlib.decompress(stream) == gzip.decompress(member) == DATA
    assert (stream == zlib.compress(DATA, 1)) == (compressor == "zlib")
    assert deflate.gzip_member()(DATA) == member


def test_outputs_are_read_by_all(compressor: str, tmp_path: Path) -> None:
    script = TraceScript()
    warp = script.warp(script.launch(), 0, 100)
    warp.push(10, "a")
    warp.pop(20)
    trace = script.build()
    write_perfetto(trace, tmp_path / "t.pftrace")
    assert first_kernel(tmp_path / "t.pftrace") is not None
    write_iket_json(trace, tmp_path / "t.json.gz", gzip=True)
    write_iket_json(trace, tmp_path / "t.json")
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()
