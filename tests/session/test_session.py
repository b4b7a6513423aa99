"""``warptrace.capture``, ``start`` and ``stop`` in this process, with launches on the emulator."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass")

import cutlass
from hypothesis import given, settings
from hypothesis import strategies as st
from window_kernel import EVENTS, Graph, compile_numbered, device, launched, looping_host, run

import warptrace
from warptrace import UsageError, WarptraceError, registry, session
from warptrace.cli import main
from warptrace.emulator.cute import compile_kernel
from warptrace.errors import CaptureError
from warptrace.runtime import emulated, memory
from warptrace.runtime.layout import plan
from warptrace.runtime.options import RuntimeOptions
from warptrace.runtime.recorder import Recorder
from warptrace.session import Session
from warptrace.trace import Trace

pytestmark = pytest.mark.dsl

SMALL: dict[str, Any] = {"buffer_size": "16M"}
HERE = re.escape(__file__)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test ends without a session, without tracing and without a temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.delenv("WARPTRACE", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    memory.forget()
    yield
    assert session._open is None
    assert not registry.wanted()


def temporary(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "temporary").glob("warptrace-*"))


def same(a: Trace, b: Trace) -> bool:
    """Whether two traces hold the same events, at the same times."""
    tables = ((x.warps, y.warps) for x, y in ((a, b),))
    columns = [(a.ranges, b.ranges), (a.markers, b.markers), *tables]
    equal = all(np.array_equal(getattr(x, name), getattr(y, name)) for x, y in columns for name in vars(x))
    return equal and (a.launches, a.strings, a.epoch_ns) == (b.launches, b.strings, b.epoch_ns)


# ------------------------------------------------------------------------------------------------------- results
def test_a_block_records_its_launches(tmp_path: Path) -> None:
    run(1)
    with warptrace.capture(**SMALL) as c:
        run(2)
        run(3)
    run(4)
    assert launched(c.trace) == [2, 3]
    assert c.trace is c.trace
    assert (c.directory, c.reason, c.trace.emulated) == (None, None, True)
    assert temporary(tmp_path) == []


def test_sessions_one_after_another() -> None:
    found = []
    for n in (1, 2):
        with warptrace.capture(**SMALL) as c:
            run(n)
        found.append(c)
    warptrace.start(**SMALL)
    run(3)
    assert [launched(c.trace) for c in [*found, warptrace.stop()]] == [[1], [2], [3]]


def test_a_written_directory(tmp_path: Path) -> None:
    with warptrace.capture(tmp_path / "out", **SMALL) as c:
        run(5)
    assert c.directory == tmp_path / "out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "temporary"]
    assert same(warptrace.load(tmp_path / "out"), c.trace)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["captures"] == [f"raw/pid_{os.getpid()}"]
    assert facts["options"]["buffer_bytes"] == 16 << 20
    assert facts["session"].startswith(f"{__file__}:")
    assert (facts["failures"], facts["exit_status"]) == ([], None)
    assert main(["postprocess", str(tmp_path / "out")]) == 0
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {f"iket_pid_{os.getpid()}.pftrace", f"iket_pid_{os.getpid()}.trace.json"} <= made


def test_a_trace_does_not_need_its_files(tmp_path: Path) -> None:
    with warptrace.capture(**SMALL) as c:
        run(6)
    (folder,) = temporary(tmp_path)
    trace = c.trace
    assert not folder.exists()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(folder) not in maps.read()
    assert launched(trace) == [6]


def test_a_result_that_nobody_reads_leaves_nothing(tmp_path: Path) -> None:
    c = warptrace.capture(**SMALL)
    with c:
        run(1)
    assert len(temporary(tmp_path)) == 1
    del c
    assert temporary(tmp_path) == []


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    with warptrace.capture(tmp_path / "out", **SMALL) as c:
        run(1)
    os.rename(tmp_path / "out", tmp_path / "elsewhere")
    with pytest.raises(CaptureError, match="holds no capture"):
        _ = c.trace
    assert launched(warptrace.load(tmp_path / "elsewhere")) == [1]


def test_launches_of_all_threads() -> None:
    with warptrace.capture(**SMALL) as c:
        threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(launched(c.trace)) == [1, 2, 3]


def test_graphs_captured_in_one_session_and_replayed_in_the_next() -> None:
    with warptrace.capture(**SMALL) as first:
        graph = Graph.capture(7)
        graph.replay()
    graph.replay()
    with warptrace.capture(**SMALL) as second:
        graph.replay()
        graph.replay()
    assert [launched(c.trace) for c in (first, second)] == [[7], [7, 7]]


# -------------------------------------------------------------------------------------------------------- kernels
def test_kernels_compiled_inside_have_events() -> None:
    before = compile_numbered()
    with warptrace.capture(**SMALL) as c:
        inside = compile_numbered()
        emulated.launch(inside, device(), [1])
    after = compile_numbered()
    assert before.ptx == after.ptx != inside.ptx
    assert launched(c.trace) == [1]


def test_compiles_of_other_threads_have_events_too() -> None:
    made: list[Any] = []
    with warptrace.capture(**SMALL):
        thread = threading.Thread(target=lambda: made.append(compile_numbered()))
        thread.start()
        thread.join()
    assert "globaltimer" in made[0].ptx


def test_a_kernel_compiled_before_records_nothing_and_the_session_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_records", {})
    monkeypatch.setattr(registry, "_without_events", {})
    kernel = compile_numbered()
    with warptrace.capture(**SMALL) as c:
        kernel.launch(device(), [1])
    assert c.trace.launches == ()
    assert c.reason == (
        f"this process compiled only kernels without events ({kernel.name}): compile them inside the session, or with "
        "WARPTRACE=1 set, with calls of warptrace.cute in the @cute.kernel code"
    )
    said = capsys.readouterr().err
    assert re.search(rf"warptrace: warn: the session that began at {HERE}:\d+ recorded nothing: this process", said)


def test_a_kernel_that_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_records", {})
    with warptrace.capture(**SMALL) as c:
        kernel = compile_numbered()
    assert c.reason == f"1 kernel with events ({kernel.name}) compiled so far, but none was launched in it"


def test_a_selection_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_records", {})
    with warptrace.capture(**SMALL, launch_skip=3) as skipping:
        kernel = compile_numbered()
        for n in (1, 2):
            emulated.launch(kernel, device(), [n])
    with warptrace.capture(**SMALL, kernels="gemm") as choosing:
        emulated.launch(kernel, device(), [3])
    assert skipping.reason == (
        f"1 kernel with events ({kernel.name}) launched 2 times, but launch_skip=3 leaves them all out: no kernel was "
        "launched more than 2 times"
    )
    assert choosing.reason == (
        f"1 kernel with events was compiled, and left out by kernels=['gemm'] ({kernel.name}); give another expression"
    )


def test_no_kernel_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_records", {})
    monkeypatch.setattr(registry, "_without_events", {})
    with warptrace.capture(**SMALL) as c:
        pass
    assert c.trace.launches == ()
    assert c.reason is not None and c.reason.startswith("no kernel was compiled that the tracer saw")


# --------------------------------------------------------------------------------------------------------- faults
def test_an_exception_ends_the_session_and_passes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), warptrace.capture(tmp_path / "out", **SMALL) as c:
        run(1)
        raise ZeroDivisionError
    assert launched(c.trace) == launched(warptrace.load(tmp_path / "out")) == [1]


def test_an_existing_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    ran = []
    another = pytest.raises(UsageError, match="add clobber=True to replace it, or choose another output")
    with another, warptrace.capture(tmp_path / "out", **SMALL):
        ran.append(1)
    with pytest.raises(UsageError, match="not a result of warptrace"):
        warptrace.start(tmp_path / "out", clobber=True)
    assert (ran, (tmp_path / "out" / "mine").read_text()) == ([], "kept")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_clobber_replaces_a_result_when_all_went_well(tmp_path: Path) -> None:
    def capture(n: int | None, error: type[Exception] | None = None) -> Session:
        c = warptrace.capture(tmp_path / "out", clobber=True, **SMALL)
        with c:
            if n is not None:
                run(n)
            if error is not None:
                raise error
        return c

    capture(1)
    assert capture(2).directory == tmp_path / "out"
    assert launched(warptrace.load(tmp_path / "out")) == [2]
    with pytest.raises(ZeroDivisionError):
        capture(3, ZeroDivisionError)
    beside = capture(None).directory  # nothing recorded
    assert launched(warptrace.load(tmp_path / "out")) == [2]
    (failed,) = (path for path in tmp_path.iterdir() if path.name.startswith("out.failed-") and path != beside)
    assert launched(warptrace.load(failed)) == [3]
    assert beside is not None and warptrace.load(beside).launches == ()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WarptraceError, match="cannot write to"):
        warptrace.start(tmp_path / "file" / "out")
    with warptrace.capture(**SMALL) as c:
        run(1)
    assert launched(c.trace) == [1]


@pytest.mark.parametrize("in_block", [False, True])
def test_a_recording_that_cannot_be_ended(
    in_block: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its raw data is kept. What the block raised itself comes first."""
    stop = Recorder.stop

    def failing(self: Recorder, patience_s: float | None = None) -> None:
        stop(self, patience_s)
        raise WarptraceError("no space left")

    monkeypatch.setattr(Recorder, "stop", failing)
    fault = ZeroDivisionError if in_block else WarptraceError
    with pytest.raises(fault), warptrace.capture(tmp_path / "out", **SMALL):
        run(1)
        if in_block:
            raise ZeroDivisionError
    assert ("no space left" in capsys.readouterr().err) == in_block
    assert launched(warptrace.load(tmp_path / "out")) == [1]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["failures"] == ["WarptraceError: no space left"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bufer_size": 1}, "bufer_size is not an option of warptrace.capture and start; known are auto, "),
        ({"window": True}, "window is not an option"),
        ({"directory": "x"}, "directory is not an option"),
        ({"selection": None}, "selection is not an option"),
        ({"kernels": "("}, "'(' is not a regular expression"),
        ({"warps": "all of them"}, "'all of them' is not a list of warps"),
        ({"launch_skip": -1}, "launch-skip"),
        ({"buffer_size": "12 apples"}, "'12 apples' is not a size"),
        ({"buffer_size": 1.5}, "buffer_size must be a whole number, not 1.5"),
        ({"buffer_size": 1}, "buffer size 1 is out of range"),
        ({"max_events_per_warp": True}, "max_events_per_warp must be a whole number, not True"),
        ({"untraced_build": 1}, "untraced_build must be true or false, not 1"),
        ({"log_level": "loud"}, "log level 'loud' is unknown"),
        ({"iket_calls": 0}, "iket_calls must be true or false, not 0"),
        ({"keep_events": "newest"}, "keep_events 'newest' is unknown: choose one of first, last"),
    ],
)
@pytest.mark.parametrize("call", [warptrace.capture, warptrace.start])
def test_options_that_cannot_be_used(call: Callable[..., Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        call(**options)


def test_options_are_obeyed() -> None:
    with warptrace.capture(buffer_size=32 << 20, max_events_per_warp=3) as c:
        run(10, looping_host)
    (process,), (one,) = c.trace.processes, c.trace.launches
    assert process.manifest["devices"][0]["buffer_bytes"] == plan(32 << 20).total_bytes
    assert (one.events, one.lost_events) == (3 * EVENTS, 7 * EVENTS)


def test_the_newest_events_are_kept_where_asked_for() -> None:
    """And in no later session."""
    found = []
    options: dict[str, Any]
    for options in ({"keep_events": "last"}, {}):
        with warptrace.capture(**SMALL, **options, max_events_per_warp=5) as c:
            emulated.launch(compile_kernel(looping_host, cutlass.Int32(1)), device(), [20])
        (launch,), (problem,) = c.trace.launches, c.trace.problems
        assert (launch.events + launch.lost_events, problem.count) == (20 * EVENTS, launch.lost_events)
        found.append((launch.events >= 5 * EVENTS, "overwritten by newer ones" in problem.text))
    assert found == [(True, True), (True, False)]


def test_a_session_of_some_launches_and_warps() -> None:
    with warptrace.capture(**SMALL, kernels="numbered", launch_skip=1, launch_count=2, warps=(1,)) as c:
        kernel = compile_numbered()
        for n in range(5):
            emulated.launch(kernel, device(), [n])
        run(9, looping_host)
    assert [int(bits) for bits in np.unique(c.trace.markers.bits)] == [1, 2]
    assert set(c.trace.warps.warp.tolist()) == {1}
    selection = c.trace.processes[0].manifest["selection"]
    assert (selection["kernels"], selection["warps"], selection["launch_count"]) == (["numbered"], [1], 2)


def test_clusters_by_kernel() -> None:
    options = RuntimeOptions.from_keywords("", {"clusters_by_kernel": {"gemm": [(0, 0, 0), (1, 0, 0)], "sum": "all"}})
    assert options.selection.clusters_by_kernel == (("gemm", ((0, 0, 0), (1, 0, 0))), ("sum", None))


# --------------------------------------------------------------------------------------------------------- misuse
def test_results_before_the_end() -> None:
    c = warptrace.capture(**SMALL)
    with pytest.raises(WarptraceError, match="the session has not begun in this process"):
        _ = c.trace
    with c:
        with pytest.raises(WarptraceError, match=rf"the session that began at {HERE}:\d+ has not ended"):
            _ = c.trace
        with pytest.raises(WarptraceError, match="has not ended"):
            _ = c.directory


def test_nested_sessions_name_where_the_first_began() -> None:
    line = test_nested_sessions_name_where_the_first_began.__code__.co_firstlineno + 2
    with warptrace.capture(**SMALL) as c:
        for other in (lambda: warptrace.start(**SMALL), lambda: warptrace.capture(**SMALL).__enter__()):
            with pytest.raises(UsageError) as caught:
                other()
            assert str(caught.value) == (
                f"a session is open already: it began at {__file__}:{line}; end it before another begins"
            )
        run(1)
    assert launched(c.trace) == [1]


def test_another_thread_cannot_begin_one() -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            warptrace.start(**SMALL)
        except UsageError as e:
            errors.append(e)

    with warptrace.capture(**SMALL):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "a session is open already" in str(errors[0])


def test_stop_of_nothing_and_of_a_block() -> None:
    with pytest.raises(UsageError, match="no session is open in this process: call warptrace.start first"):
        warptrace.stop()
    with warptrace.capture(**SMALL) as c:
        with pytest.raises(UsageError, match="is a block: leave it"):
            warptrace.stop()
        run(1)
    assert launched(c.trace) == [1]


def test_stop_while_another_thread_is_only_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no session yet: what begins then is a session that stop ends later."""
    beginning, go_on = threading.Event(), threading.Event()
    begin = Recorder.start

    def slowly(self: Recorder, **options: Any) -> None:
        beginning.set()
        assert go_on.wait(20)
        begin(self, **options)

    monkeypatch.setattr(Recorder, "start", slowly)
    thread = threading.Thread(target=lambda: warptrace.start(**SMALL))
    thread.start()
    assert beginning.wait(20)
    with pytest.raises(UsageError, match="no session is open"):
        warptrace.stop()
    with pytest.raises(UsageError, match="is open already"):
        warptrace.start(**SMALL)
    go_on.set()
    thread.join()
    run(1)
    assert launched(warptrace.stop().trace) == [1]


def test_a_session_is_not_used_twice() -> None:
    c = warptrace.capture(**SMALL)
    with c:
        run(1)
    with pytest.raises(UsageError, match="has ended: call warptrace.capture again"), c:
        pass
    assert launched(c.trace) == [1]


# ----------------------------------------------------------------------------------------- any order of calls
@dataclass
class Model:
    """What a program may expect: launches of the open session, and of those that ended."""

    open: str | None = None
    current: list[int] = field(default_factory=list)
    expected: list[list[int]] = field(default_factory=list)
    ended: list[Session] = field(default_factory=list)

    def begin(self, how: str, action: Callable[[], Session]) -> Session | None:
        if self.open is not None:
            with pytest.raises(UsageError, match="is open already"):
                action()
            return None
        self.open = how
        return action()

    def end(self, c: Session) -> None:
        self.open = None
        self.expected.append(self.current)
        self.ended.append(c)
        self.current = []


class Stop(Exception):
    """Leaves a block."""


STEPS = ["launch", "start", "stop", "enter", "leave", "raise", "nest", "unknown option"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_any_order_of_calls(steps: list[str]) -> None:
    model, blocks = Model(), ExitStack()
    block: Session | None = None
    for number, step in enumerate(steps, 1):
        if step == "launch":
            run(number)
            if model.open:
                model.current.append(number)
        elif step == "start":
            model.begin("start", lambda: warptrace.start(**SMALL))
        elif step == "stop":
            if model.open == "start":
                model.end(warptrace.stop())
            else:
                with pytest.raises(UsageError):
                    warptrace.stop()
        elif step == "enter":
            block = model.begin("block", lambda: blocks.enter_context(warptrace.capture(**SMALL))) or block
        elif step in ("leave", "raise") and model.open == "block" and block is not None:
            if step == "leave":
                blocks.close()
            else:
                with pytest.raises(Stop), blocks:
                    raise Stop
            model.end(block)
        elif step == "nest" and model.open:
            with pytest.raises(UsageError), warptrace.capture(**SMALL):
                raise AssertionError("unreachable")
        elif step == "unknown option":
            with pytest.raises(UsageError):
                warptrace.start(no_such_option=1)
    if model.open == "start":
        model.end(warptrace.stop())
    elif model.open == "block" and block is not None:
        blocks.close()
        model.end(block)
    assert [launched(c.trace) for c in model.ended] == model.expected
    assert [c.reason is None for c in model.ended] == [bool(numbers) for numbers in model.expected]
    assert all(one.events == EVENTS for c in model.ended for one in c.trace.launches)
