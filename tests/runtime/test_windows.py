"""Pauses of a recording: which launches it holds, on the emulator."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutlass")

from window_kernel import Graph, launched, looping_host, run

import warptrace
from warptrace.errors import WarptraceError
from warptrace.raw import read_capture
from warptrace.runtime import memory
from warptrace.runtime.cell import CELL
from warptrace.runtime.options import RuntimeOptions
from warptrace.runtime.recorder import Recorder

pytestmark = pytest.mark.dsl

BUFFER_BYTES = 16 << 20


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    memory.forget()
    made = Recorder(RuntimeOptions(str(tmp_path), buffer_bytes=BUFFER_BYTES))
    yield made
    made.stop()


def manifest(recorder: Recorder) -> dict[str, Any]:
    return read_capture(recorder.directory).manifest


def test_launches_of_the_windows_and_no_others(recorder: Recorder) -> None:
    recorder.start(paused=True)
    run(1)
    recorder.resume()
    run(2)
    run(3)
    recorder.pause()
    run(4)
    recorder.resume()
    run(5)
    recorder.stop()
    run(6)
    assert launched(warptrace.load(recorder.directory)) == [2, 3, 5]
    assert manifest(recorder)["emulated"] is True
    assert list(manifest(recorder)["launches"].values()).count(3) == 1


def test_the_windows_are_in_the_manifest(recorder: Recorder) -> None:
    recorder.start(paused=True)
    assert manifest(recorder)["windows"] == []
    recorder.resume()
    (window,) = manifest(recorder)["windows"]
    assert window["end_unix_ns"] is None
    run(1)
    recorder.pause()
    recorder.pause()  # nothing more
    recorder.resume()
    recorder.resume()
    run(2)
    recorder.stop()
    facts = manifest(recorder)
    times = [window[key] for window in facts["windows"] for key in ("begin_unix_ns", "end_unix_ns")]
    assert len(times) == 4
    assert [facts["started_unix_ns"], *times, facts["ended_unix_ns"]] == sorted(
        [facts["started_unix_ns"], *times, facts["ended_unix_ns"]]
    )


def test_a_recording_without_pauses_has_no_windows(recorder: Recorder) -> None:
    recorder.start()
    run(1)
    recorder.stop()
    assert manifest(recorder)["windows"] is None
    assert launched(warptrace.load(recorder.directory)) == [1]


def test_no_window_at_all(recorder: Recorder) -> None:
    recorder.start(paused=True)
    run(1)
    recorder.stop()
    facts = manifest(recorder)
    assert (facts["windows"], facts["devices"], facts["state"]) == ([], [], "complete")
    assert warptrace.load(recorder.directory).launches == ()


def test_replays_of_a_graph(recorder: Recorder) -> None:
    """Its parameters are frozen: memory itself says whether a replay records."""
    recorder.start(paused=True)
    before = Graph.capture(1)
    recorder.resume()
    before.replay()
    graph = Graph.capture(2)
    graph.replay()
    recorder.pause()
    for _ in range(5):  # their claims find no room
        graph.replay()
    recorder.resume()
    graph.replay()
    run(3)
    recorder.stop()
    graph.replay()
    assert launched(warptrace.load(recorder.directory)) == [2, 2, 3]


def test_replays_in_a_later_recording(recorder: Recorder, tmp_path: Path) -> None:
    """Memory is taken over at its start, without any launch."""
    recorder.start()
    graph = Graph.capture(1)
    recorder.stop()
    graph.replay()
    later = Recorder(RuntimeOptions(str(tmp_path / "later"), buffer_bytes=BUFFER_BYTES))
    later.start()
    graph.replay()
    later.stop()
    assert launched(warptrace.load(later.directory)) == [1]


def test_what_a_kernel_needs_is_kept_over_a_pause(recorder: Recorder) -> None:
    """The second launch of a kernel with events in a loop is sized by the first, also where that has been drained."""
    recorder.start()
    run(40, looping_host)
    recorder.pause()
    recorder.resume()
    run(40, looping_host)
    recorder.stop()
    (sizes,) = [set(b.headers["main_bytes"].tolist()) for b in read_capture(recorder.directory).batches()][1:]
    assert sizes == {1408}  # 80 events of 16 bytes, the slack, rounded up
    assert [x.lost_events for x in warptrace.load(recorder.directory).launches] == [0, 0]


@pytest.mark.parametrize("room_again", ["at the next window", "at the end", "never"])
def test_a_disk_that_is_full_at_a_pause(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room_again: str
) -> None:
    """What was recorded waits in trace memory for the next chance; after the last one it is counted as lost."""
    recorder.start(paused=True)
    recorder.resume()
    run(1)
    writer = recorder._writer
    assert writer is not None
    write = writer.write_regions

    def full(*args: Any) -> Any:
        raise WarptraceError("no space left")

    monkeypatch.setattr(writer, "write_regions", full)
    recorder.pause()
    assert re.search(r"device \d+: what was recorded is not saved yet: no space left", capsys.readouterr().err)
    if room_again == "at the next window":
        monkeypatch.setattr(writer, "write_regions", write)
        recorder.resume()
        run(2)
    elif room_again == "at the end":
        monkeypatch.setattr(writer, "write_regions", write)
    recorder.stop()
    trace = warptrace.load(recorder.directory)
    if room_again == "never":
        assert "what was not saved before is lost: no space left" in capsys.readouterr().err
        assert trace.launches == ()
        found = sorted((problem.kind, problem.count) for problem in trace.problems)
        assert found == [("lost_launches", 1), ("unclosed_capture", 1)]
    else:
        assert launched(trace) == ([1, 2] if room_again == "at the next window" else [1])


def test_a_pause_while_the_first_launch_takes_memory(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that launches does not switch recording on again behind the pause."""
    from warptrace.runtime import recorder as module

    taking, paused = threading.Event(), threading.Event()
    take = module.device_memory

    def slowly(*args: Any) -> Any:
        taking.set()
        assert paused.wait(20)
        return take(*args)

    monkeypatch.setattr(module, "device_memory", slowly)
    recorder.start()
    thread = threading.Thread(target=run, args=(1,))
    thread.start()
    assert taking.wait(20)
    pausing = threading.Thread(target=recorder.pause)
    pausing.start()
    while CELL._attached:  # the pause goes on to what the callback holds
        pass
    paused.set()
    pausing.join()
    thread.join()
    run(2)
    assert int(CELL._devices.max()) <= 1
    recorder.resume()
    run(3)
    recorder.stop()
    assert launched(warptrace.load(recorder.directory)) == [3]
