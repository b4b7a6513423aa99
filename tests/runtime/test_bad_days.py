"""Bad days of a traced program: real processes under ``warptrace profile``, with a GPU made of numpy.

However the process ends, what was recorded is there, or the number of launches that are not is said.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import warptrace
from warptrace.raw import read_capture
from warptrace.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
FAKES = ROOT / "tests" / "fakes"

HEAD = """
import os, signal, sys, threading, time
import fake_gpu
steps = fake_gpu.Kernel("steps")
"""
FIRST = f"import sys; sys.path.insert(0, {str(FAKES)!r})\n"
"""A DSL that is installed puts itself first."""
EVENTS = 2 * 3
"""A launch: two warps, three events each."""


def environment(**variables: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("WARPTRACE")}
    rest = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(FAKES), *rest])
    return env | variables


def profile(
    folder: Path, body: str, *options: str, timeout: float = 60, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program, its head above and ``body``, under ``warptrace profile``."""
    script = folder / "program.py"
    script.write_text(HEAD + textwrap.dedent(body))
    own = [sys.executable, "-m", "warptrace", "profile", "-o", "run", *(options or ["--postprocess", "none"]), "--"]
    command, env = [*own, sys.executable, str(script)], environment(**variables)
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=timeout)


def capture_of(folder: Path) -> Path:
    (path,) = (folder / "run" / "raw").glob("pid_*")
    return path


def problems(trace: Trace) -> list[tuple[str, int]]:
    return [(p.kind, p.count) for p in trace.problems if p.kind != "clock"]


def assert_whole(folder: Path, launches: int) -> None:
    """The capture is closed and has every event of so many launches."""
    trace = warptrace.load(folder / "run")
    assert [x.events for x in trace.launches] == [EVENTS] * launches
    assert problems(trace) == []
    path = capture_of(folder)
    assert read_capture(path).complete
    assert sorted(p.name for p in path.iterdir()) == ["dev0.wtraw", "kernels.jsonl", "manifest.json"]


# ------------------------------------------------------------------------------------------- ends that Python sees
@pytest.mark.parametrize(
    ("how", "status"),
    [("pass", 0), ("raise ValueError('theirs')", 1), ("sys.exit(7)", 7), ("os._exit(9)", 9), ("os._exit(0)", 0)],
)
def test_an_end_of_the_programs_own_saves_everything(tmp_path: Path, how: str, status: int) -> None:
    done = profile(tmp_path, f"for _ in range(3): steps.launch()\n{how}\n")
    assert done.returncode == status, done.stderr
    assert_whole(tmp_path, 3)
    assert "Traceback" not in done.stderr or "ValueError: theirs" in done.stderr


def test_exit_in_a_thread_and_while_another_runs(tmp_path: Path) -> None:
    body = """
    steps.launch()
    threading.Thread(target=time.sleep, args=(60,)).start()
    thread = threading.Thread(target=os._exit, args=(3,))
    thread.start()
    thread.join()
    """
    begin = time.monotonic()
    done = profile(tmp_path, body)
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - begin < 30
    assert_whole(tmp_path, 1)


def test_exit_does_not_wait_for_a_kernel_that_never_ends(tmp_path: Path) -> None:
    done = profile(tmp_path, "steps.launch()\nfake_gpu.busy(1000)\nos._exit(4)\n")
    assert done.returncode == 4, done.stderr
    trace = warptrace.load(tmp_path / "run")
    assert [x.events for x in trace.launches] == [EVENTS]
    assert "device 0: kernels still ran when the recording ended" in done.stderr


def test_exit_while_the_recorder_is_at_work_is_only_delayed(tmp_path: Path) -> None:
    """Another thread holds what saving needs, for ever."""
    body = """
    from warptrace.runtime import autostart, endings
    endings.SAVE_S = 0.5
    steps.launch()
    autostart.recorder()._lock.acquire()
    os._exit(5)
    """
    done = profile(tmp_path, body)
    assert done.returncode == 5, done.stderr
    trace = warptrace.load(tmp_path / "run")
    assert problems(trace) == [("unclosed_capture", 1), ("lost_launches", 1)]


# -------------------------------------------------------------------------------------------------------- signals
def test_sigint_saves_everything(tmp_path: Path) -> None:
    done = profile(tmp_path, "steps.launch()\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    assert done.returncode == 130, done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert_whole(tmp_path, 1)


SIGTERM = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("SIGTERM", "time.sleep(60)"),
        ("SIGTERM", "threading.Thread(target=time.sleep, args=(60,)).start()"),
        ("SIGHUP", "time.sleep(60)"),
        ("SIGHUP", "import ctypes\nwhile True: ctypes.CDLL(None).sleep(60)"),
    ],
)
def test_a_request_to_end_saves_and_then_ends_as_it_would(tmp_path: Path, name: str, wait: str) -> None:
    done = profile(tmp_path, f"steps.launch()\nos.kill(os.getpid(), signal.{name})\n{wait}\n")
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert_whole(tmp_path, 1)


def test_the_signals_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The program handles one, which leaves the other to us; a handler for that too takes it from us."""
    body = """
    said = []
    steps.launch()
    signal.signal(signal.SIGTERM, lambda number, frame: said.append(number))
    os.kill(os.getpid(), signal.SIGTERM)
    steps.launch()
    signal.signal(signal.SIGHUP, lambda number, frame: said.append(number))
    os.kill(os.getpid(), signal.SIGHUP)
    print(said)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    steps.launch()
    """
    done = profile(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "[15, 1]\n"), done.stderr
    assert_whole(tmp_path, 3)


def test_a_sighup_of_a_program_that_handles_only_sigterm(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    steps.launch()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(60)
    """
    done = profile(tmp_path, body)
    assert done.returncode == 128 + 1, done.stderr
    assert_whole(tmp_path, 1)


def test_sigterm_while_the_main_thread_waits_in_c(tmp_path: Path) -> None:
    """No Python handler of the main thread could run."""
    body = f"""
    import ctypes
    steps.launch()
    threading.Timer(0.3, lambda: {SIGTERM}).start()
    ctypes.CDLL(None).sleep(60)
    while True: ctypes.CDLL(None).sleep(60)
    """
    begin = time.monotonic()
    done = profile(tmp_path, body)
    assert done.returncode == 128 + 15, done.stderr
    assert time.monotonic() - begin < 30
    assert_whole(tmp_path, 1)


@pytest.mark.parametrize("how", ["pass", "os._exit(0)"])
def test_sigterm_while_the_process_already_saves_waits_for_that(tmp_path: Path, how: str) -> None:
    body = f"""
    steps.launch()
    fake_gpu.busy(0.8)
    threading.Timer(0.3, lambda: {SIGTERM}).start()
    {how}
    """
    done = profile(tmp_path, body)
    assert done.returncode in (0, 128 + 15), done.stderr
    assert_whole(tmp_path, 1)


def test_a_sigterm_handler_of_the_program_is_in_charge(tmp_path: Path) -> None:
    body = f"""
    def theirs(number, frame):
        print("theirs")
        sys.exit(8)
    assert signal.signal(signal.SIGTERM, theirs) is signal.SIG_DFL
    steps.launch()
    {SIGTERM}
    time.sleep(60)
    """
    done = profile(tmp_path, body)
    assert (done.returncode, done.stdout) == (8, "theirs\n"), done.stderr
    assert_whole(tmp_path, 1)


def test_an_ignored_sigterm_stays_ignored(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(HEAD + f"steps.launch()\n{SIGTERM}\ntime.sleep(0.3)\nprint('alive')\n")
    ignore = "import os, signal, sys; signal.signal(15, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", "env", "WARPTRACE=0", sys.executable]
    words = [*command, "-c", ignore, "/usr/bin/env", "WARPTRACE=1", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=60)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert_whole(tmp_path, 1)


def test_a_program_that_closes_all_descriptors_can_still_be_terminated(tmp_path: Path) -> None:
    body = f"""
    from warptrace.runtime import endings
    steps.launch()
    endings.LOOK_S = 0.05
    time.sleep(1.2)
    os.closerange(3, 256)
    theirs = [open("theirs", "w") for _ in range(64)]
    time.sleep(0.5)
    {SIGTERM}
    time.sleep(60)
    """
    begin = time.monotonic()
    done = profile(tmp_path, body)
    assert done.returncode == 128 + 15, done.stderr
    assert time.monotonic() - begin < 30
    assert (tmp_path / "theirs").read_text() == ""


def test_without_outputs_an_unclosed_capture_is_named(tmp_path: Path) -> None:
    done = profile(tmp_path, "steps.launch()\nos.kill(os.getpid(), signal.SIGABRT)\n")
    assert done.returncode == 128 + 6, done.stderr
    pid = capture_of(tmp_path).name.removeprefix("pid_")
    assert f"warptrace: warning: pid {pid} did not close its capture" in done.stderr
    trace = warptrace.load(tmp_path / "run")
    assert problems(trace) == [("unclosed_capture", 1), ("lost_launches", 1)]


@pytest.mark.parametrize(
    ("number", "how"),
    [(9, "os.kill(os.getpid(), 9)"), (11, "os.kill(os.getpid(), 11)"), (6, "import ctypes; ctypes.CDLL(None).abort()")],
    ids=["SIGKILL", "SIGSEGV", "abort"],
)
def test_a_death_that_nobody_sees_coming_is_counted(tmp_path: Path, number: int, how: str) -> None:
    """What was saved before stays; of the rest the number of launches is said, exactly."""
    body = f"""
    for _ in range(5): steps.launch()
    fake_gpu.saved(5)
    other = fake_gpu.Kernel("other")
    for _ in range(4): steps.launch()
    for _ in range(2): other.launch()
    {how}
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    assert done.returncode == 128 + number, done.stderr
    trace = warptrace.load(tmp_path / "run")
    saved = [x.kernel for x in trace.launches]
    assert saved.count("steps") >= 5
    path = capture_of(tmp_path)
    assert read_capture(path).manifest["state"] == "running"
    counted = {"steps": 9 - saved.count("steps"), "other": 2 - saved.count("other")}
    pid = path.name.removeprefix("pid_")
    assert sorted(p.text for p in trace.problems if p.kind == "lost_launches") == sorted(
        f"{n} of {9 if name == 'steps' else 2} launches of {name} by process {pid} were not saved"
        for name, n in counted.items()
        if n
    )
    assert f"unclosed_capture: process {pid} did not close its capture" in done.stderr


# ------------------------------------------------------------------------------------------------------------ forks
def captures(folder: Path) -> dict[int, Trace]:
    """The traces of all processes, by pid."""
    paths = (folder / "run" / "raw").glob("pid_*")
    return {int(path.name.removeprefix("pid_")): warptrace.load(path) for path in paths}


def test_forked_children_record_for_themselves(tmp_path: Path) -> None:
    """Child and grandchild, which leave by os._exit as those of multiprocessing do: each has its own launches, and the
    parent's cell does not count theirs."""
    body = """
    steps.launch()
    child = os.fork()
    if child == 0:
        fake_gpu.forked()
        if os.fork() == 0:
            fake_gpu.forked()
            for _ in range(4): steps.launch()
            os._exit(0)
        for _ in range(2): steps.launch()
        os.wait()
        os._exit(0)
    steps.launch()
    assert os.waitpid(child, 0)[1] == 0
    steps.launch()
    os.kill(os.getpid(), 9)
    """
    done = profile(tmp_path, body)
    assert done.returncode == 137, done.stderr
    parent, child, grandchild = (trace for _, trace in sorted(captures(tmp_path).items()))
    assert [len(x.launches) for x in (child, grandchild)] == [2, 4]
    assert problems(child) == problems(grandchild) == []
    assert len(parent.launches) + sum(p.count for p in parent.problems if p.kind == "lost_launches") == 3


def test_a_child_forked_inside_a_session_saves_at_its_exit(tmp_path: Path) -> None:
    """The parent's session joins its whole recording; both have hooks for the child."""
    body = """
    import warptrace
    with warptrace.capture():
        steps.launch()
        child = os.fork()
        if child == 0:
            fake_gpu.forked()
            for _ in range(2): steps.launch()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = profile(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert sorted(len(x.launches) for x in captures(tmp_path).values()) == [1, 2]
    assert [problems(x) for x in captures(tmp_path).values()] == [[], []]


def test_children_of_multiprocessing_save_what_they_recorded(tmp_path: Path) -> None:
    """They leave by os._exit; a pool's are terminated."""
    body = """
    import multiprocessing
    def work(n):
        fake_gpu.forked()
        kernel = fake_gpu.Kernel("childs")
        for _ in range(n): kernel.launch()
        return n
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=work, args=(n,)) for n in (1, 2)]
    for child in children: child.start()
    for child in children: child.join()
    assert [child.exitcode for child in children] == [0, 0]
    with fork.Pool(1) as pool:
        assert pool.map(work, [3]) == [3]
    """
    done = profile(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert sorted(len(x.launches) for x in captures(tmp_path).values()) == [0, 1, 2, 3]
    assert [problems(x) for x in captures(tmp_path).values()] == [[]] * 4


def test_a_child_that_is_terminated_does_not_take_its_parent_along(tmp_path: Path) -> None:
    body = """
    steps.launch()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            time.sleep(60)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15
    print("alive")
    """
    done = profile(tmp_path, body)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert len(captures(tmp_path)) <= 21
    assert sum(len(x.launches) for x in captures(tmp_path).values()) == 1


def test_a_fork_while_another_thread_holds_our_locks(tmp_path: Path) -> None:
    body = """
    from warptrace import registry
    from warptrace.runtime import autostart
    steps.launch()
    def hold():
        with registry._lock, autostart._lock:
            held.set()
            go.wait()
    held, go = threading.Event(), threading.Event()
    threading.Thread(target=hold).start()
    held.wait()
    child = os.fork()
    if child == 0:
        fake_gpu.forked()
        fake_gpu.Kernel("childs").launch()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    """
    done = profile(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert sorted(x.kernel for trace in captures(tmp_path).values() for x in trace.launches) == ["childs", "steps"]


# --------------------------------------------------------------------------------------------- the device, the disk
def test_a_dead_context_keeps_what_was_saved(tmp_path: Path) -> None:
    body = """
    for _ in range(5): steps.launch()
    fake_gpu.saved(5)
    for _ in range(4): steps.launch()
    fake_gpu.poison()
    raise RuntimeError("theirs: an illegal memory access")
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    assert done.returncode == 1
    trace = warptrace.load(tmp_path / "run")
    kept = len(trace.launches)
    assert 5 <= kept < 9
    assert problems(trace) == [("unclosed_capture", 1), ("lost_launches", 9 - kept)]
    said = "device 0: what was not saved before is lost: cuMemcpyDtoHAsync failed: an illegal memory access"
    assert done.stderr.count(said) == 2  # by the process, and in the summary
    assert f"lost_launches: {9 - kept} of 9 launches of steps" in done.stderr


def test_no_memory_on_the_device(tmp_path: Path) -> None:
    body = "for _ in range(3): steps.launch()\nprint('went on')\n"
    done = profile(tmp_path, body, "--postprocess", "json", FAKE_GPU="full")
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "warptrace: error: not recording on device 0: cuMemAlloc failed: out of memory" in done.stderr
    assert "nothing was recorded: 1 kernel with events (steps) launched 3 times" in done.stderr


def test_a_full_disk_is_said_and_costs_nothing_that_was_written(tmp_path: Path) -> None:
    """A limit on the size of files takes the disk's place: the first write beyond it fails as it would there."""
    body = """
    import resource
    steps.launch()
    fake_gpu.saved(1)
    size = os.path.getsize(fake_gpu.file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    for _ in range(4): steps.launch()
    time.sleep(2.5)
    print("went on")
    """
    done = profile(tmp_path, body, "--postprocess", "json")
    assert (done.returncode, done.stdout) == (1, "went on\n") or done.returncode == 0, done.stderr
    path = capture_of(tmp_path)
    assert done.stderr.count(f"cannot write the capture {tmp_path}") >= 1
    trace = warptrace.load(tmp_path / "run")
    assert [x.events for x in trace.launches] == [EVENTS]
    assert problems(trace) == [("unclosed_capture", 1), ("lost_launches", 4)]
    assert "Traceback" not in done.stderr
    assert not read_capture(path).complete


def test_a_disk_that_has_room_again_loses_nothing(tmp_path: Path) -> None:
    body = """
    import resource
    steps.launch()
    fake_gpu.saved(1)
    size = os.path.getsize(fake_gpu.file())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    for _ in range(4): steps.launch()
    time.sleep(2.5)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    fake_gpu.saved(5)
    steps.launch()
    """
    done = profile(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path, 6)
    assert done.stderr.count("cannot write the capture") == 1


# --------------------------------------------------------------------------------------------------------- the DSL
@pytest.mark.parametrize(
    ("dsl", "reason"),
    [
        ("old", r"has no trace-finalize hook; install 4\.6 or newer: pip install -U"),
        ("changed", r"is none that this warptrace knows \(AttributeError: .*\); update warptrace"),
    ],
)
def test_an_unsupported_dsl_is_named_and_the_program_goes_on(tmp_path: Path, dsl: str, reason: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"{FIRST}import cutlass\nprint(cutlass.__version__)\n")
    own = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", sys.executable, str(script)]
    env = environment(FAKE_DSL=dsl)
    done = subprocess.run(own, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == {"old": "4.5.0\n", "changed": "99.0\n"}[dsl]
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("warptrace: error:")]
    assert re.match(rf"warptrace: error: not recording: nvidia-cutlass-dsl \S+ {reason}", line)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("dsl", ["old", "changed"])
def test_the_event_api_of_an_unsupported_dsl_says_so(tmp_path: Path, dsl: str) -> None:
    words = [sys.executable, "-c", f"{FIRST}import warptrace.cute"]
    env = environment(FAKE_DSL=dsl)
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == 1
    assert "warptrace.errors.WarptraceError: nvidia-cutlass-dsl " in done.stderr.splitlines()[-1]


def test_the_dsl_was_imported_before_us(tmp_path: Path) -> None:
    """By a sitecustomize of the user's, which runs before the tracer begins."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(f"{FIRST}import cutlass\n")
    path = environment()["PYTHONPATH"]
    done = profile(tmp_path, "steps.launch()\n", PYTHONPATH=f"{tmp_path / 'site'}:{path}")
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path, 1)
