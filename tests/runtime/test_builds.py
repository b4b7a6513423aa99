"""The build record of a kernel on its way from the compiler to the capture."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from warptrace import registry
from warptrace.raw import dump, read_capture
from warptrace.runtime.options import RuntimeOptions
from warptrace.runtime.recorder import Recorder
from warptrace.sites import KernelRecord, Site
from warptrace.wire import EventKind, PayloadType

BUILD = {"registers": 40, "stack_bytes": 0, "code_bytes": 1024, "untraced": {"registers": 38}}


def a_record(**facts: object) -> KernelRecord:
    site = Site(1, EventKind.MARK, "a", PayloadType.NONE, "k.py", 3)
    record = KernelRecord(77, "kernel_k_0", "kernel_k_0", "sm_90a", 8, 0, False, None, (site,))
    return replace(record, **facts)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KernelRecord]]:
    """Everything that listeners are told, with nothing announced before."""
    monkeypatch.setattr(registry, "_records", {})
    heard: list[KernelRecord] = []
    registry.listen(heard.append)
    yield heard
    registry.unlisten(heard.append)


def test_a_build_is_announced_with_its_record(own_registry: list[KernelRecord]) -> None:
    registry.announce_build(77, BUILD)  # of a kernel that nobody has announced
    assert own_registry == []
    registry.announce(a_record())
    registry.announce_build(77, BUILD)
    assert own_registry == [a_record(), a_record(build=BUILD)]
    assert registry.records() == [a_record(build=BUILD)]


def test_a_trace_without_compilation_keeps_the_build() -> None:
    registry.announce(a_record())
    registry.announce_build(77, BUILD)
    registry.announce(a_record())
    assert registry.records() == [a_record(build=BUILD)]
    registry.announce(a_record(arch="sm_100a"))  # another kernel: what was known is not of it
    assert registry.records() == [a_record(arch="sm_100a")]


def test_the_capture_gets_a_line_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[int] = []
    monkeypatch.setattr(Recorder, "_size", lambda self, record: sized.append(record.kernel_id))
    recorder = Recorder(RuntimeOptions(str(tmp_path)))
    recorder.start()
    try:
        for _ in range(3):
            registry.announce(a_record())
        registry.announce_build(77, BUILD)
        for _ in range(3):
            registry.announce(a_record())
        lines = (recorder.directory / "kernels.jsonl").read_text().splitlines()
        assert [KernelRecord.from_json(json.loads(line)) for line in lines] == [a_record(), a_record(build=BUILD)]
        assert sized == [77]
        registry.announce(a_record(max_events=4))
        assert sized == [77, 77]
    finally:
        recorder.stop()
    assert read_capture(recorder.directory).kernels == {77: a_record(max_events=4)}


def test_the_dump_shows_it(tmp_path: Path) -> None:
    recorder = Recorder(RuntimeOptions(str(tmp_path)))
    recorder.start()
    registry.announce(a_record())
    registry.announce_build(77, BUILD)
    recorder.stop()
    out = io.StringIO()
    dump(recorder.directory, out)
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("kernel ")]
    assert line.endswith(
        ' build {"code_bytes": 1024, "registers": 40, "stack_bytes": 0, "untraced": {"registers": 38}} ring false'
    )
