"""The host's ranges and launches as a process records them: what programs call stays what it was, and is noted."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from warptrace import wire
from warptrace.raw import read_capture
from warptrace.raw.writer import CaptureWriter
from warptrace.runtime import host_log
from warptrace.runtime.host_log import HostLog

HERE = Path(__file__).parent


def writer(folder: Path) -> CaptureWriter:
    return CaptureWriter(folder, pid=1, argv=["x"], host="h", python="3", warptrace="0", dsl=None, started_unix_ns=1)


@pytest.fixture
def log(tmp_path: Path) -> HostLog:
    return HostLog(writer(tmp_path / "pid_1"), {4096: 0, 8192: 1}.get)


def recorded(log: HostLog, folder: Path) -> list[list[Any]]:
    log.close()
    return [list(record) for record in read_capture(folder / "pid_1").host if record[0] != "thread"]


def test_ranges_nest_by_thread_and_group(log: HostLog, tmp_path: Path) -> None:
    me = threading.get_ident()
    log.push("nvtx", "outer", 10)
    log.push("nvtx", "of a domain", 11, "d")
    log.push("nvtx", "inner", 12)
    log.pop("nvtx", 20)
    log.pop("nvtx", 21)
    log.pop("nvtx", 22)  # began before the recording
    log.pop("nvtx", 23, "d")
    log.start("key", "record_function", "elsewhere", 24)
    other = threading.Thread(target=lambda: (log.end("key", 30), log.mark("nvtx", "here", 31)), name="second")
    other.start()
    other.join()
    log.end("no such key", 40)
    log.push("nvtx", "for ever", 50)
    *found, still = recorded(log, tmp_path)
    assert found[:-1] == [
        ["range", "nvtx", "inner", 12, 20, me],
        ["range", "nvtx", "outer", 10, 21, me],
        ["range", "nvtx", "of a domain", 11, 23, me],
        ["range", "record_function", "elsewhere", 24, 30, me],
    ]
    assert found[-1][:4] == ["mark", "nvtx", "here", 31] and found[-1][4] != me
    assert still[:4] == ["open", "nvtx", "for ever", 50] and still[4] > 50
    threads = {r[1]: r[2] for r in read_capture(tmp_path / "pid_1").host if r[0] == "thread"}
    assert threads[me] == threading.current_thread().name and "second" in threads.values()


def note(log: HostLog, number: int, *, ns: int, control: int = 4096, word: int = 1) -> None:
    log._head["head"] += 1
    log._entries[number] = (ns, 7, 0xAB, control, word)


def test_launches_are_taken_once_and_in_order(log: HostLog, tmp_path: Path) -> None:
    note(log, 0, ns=100)
    log.flush()
    note(log, 1, ns=0)  # its thread is at it
    note(log, 2, ns=300, control=8192, word=9)
    log.flush()
    assert [r[2] for r in read_capture(tmp_path / "pid_1").host] == [100]
    log._entries[1] = (200, 7, 0xAB, 12288, 1)
    assert recorded(log, tmp_path) == [
        ["launch", "00000000000000ab", 100, 7, 0, 1],
        ["launch", "00000000000000ab", 200, 7, None, 1],
        ["launch", "00000000000000ab", 300, 7, 1, 9],
    ]


def test_launches_that_find_no_room_are_counted(log: HostLog, tmp_path: Path) -> None:
    log._head["head"] = wire.NOTE_COUNT + 5
    log._taken = wire.NOTE_COUNT
    assert recorded(log, tmp_path) == [["lost", 5]]
    log._head["head"] = 0


def test_a_new_recording_finds_no_launches_of_the_last(log: HostLog, tmp_path: Path) -> None:
    note(log, 0, ns=100)
    log.close()
    assert recorded(HostLog(writer(tmp_path / "b" / "pid_1"), {}.get), tmp_path / "b") == []


MODULES = {
    "torch/__init__.py": "",
    "torch/cuda/__init__.py": "",
    "torch/cuda/nvtx.py": """
from contextlib import contextmanager
calls = []
def range_push(msg):
    "pushes"
    calls.append(msg)
    if msg == 'bad': raise RuntimeError('bad')
    return len(calls)
def range_pop(): calls.append(None); return 7
def range_start(msg): return 42
def range_end(range_id): assert range_id == 42
def mark(msg): pass
@contextmanager
def range(msg, *args):
    range_push(msg.format(*args))
    try: yield
    finally: range_pop()
""",
    "torch/autograd/__init__.py": "",
    "torch/autograd/profiler.py": """
class record_function:
    def __init__(self, name): self.name = name
    def __enter__(self): return self
    def __exit__(self, *exc): return exc[0] is KeyError
""",
    "nvtx.py": """
def push_range(message=None, color=None, domain=None): pass
def pop_range(domain=None): pass
def start_range(message=None): return (1, 2)
def end_range(range_id): pass
def mark(message=None): pass
class annotate:
    def __init__(self, message): self.attributes = type('A', (), {'message': type('S', (), {'string': message})})
    def __enter__(self): return self
    def __exit__(self, *exc): return False
""",
}
PROGRAM = """
import sys, inspect
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
if sys.argv[4] == 'before':
    import torch.cuda.nvtx
if sys.argv[3] != '-':
    from warptrace.raw.writer import CaptureWriter
    from warptrace.runtime import host_log
    facts = dict(pid=1, argv=['x'], host='h', python='3', warptrace='0', dsl=None, started_unix_ns=1)
    made = CaptureWriter(sys.argv[3], **facts)
    log = host_log.HostLog(made, {}.get)
    host_log.begin(log)
finders = len(sys.meta_path)
import torch.cuda.nvtx, torch.autograd.profiler, nvtx
n = torch.cuda.nvtx
said = [n.range_push('a'), n.range_push(msg='b'), n.range_pop(), n.range_start('long'), n.range_pop()]
n.range_end(range_id=42)
n.mark('point')
with n.range('step {}', 3): pass
try: n.range_push('bad')
except RuntimeError as e: said.append(str(e))
with torch.autograd.profiler.record_function('forward') as r: said.append(type(r).__name__)
with torch.autograd.profiler.record_function('swallowed'): raise KeyError
nvtx.push_range('p', domain='x'); nvtx.pop_range(); nvtx.pop_range('x')
nvtx.end_range(nvtx.start_range(message='q'))
with nvtx.annotate('r'): pass
said += [n.calls, n.range_push.__doc__, str(inspect.signature(n.range_push)), type(n.__loader__).__name__,
         inspect.getsource(n).count('range_push') > 1, type(n.__spec__.loader).__name__]
if sys.argv[3] != '-':
    host_log.end()
    n.range_push('after the recording')
    n.calls.pop()
    log.close()
print(said)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_programs_run_as_they_did(when: str, tmp_path: Path) -> None:
    """With the modules imported before the recording begins, and after. Stand-ins of what torch and nvtx offer."""
    for name, text in MODULES.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = str(HERE.parents[1] / "src")
    said = []
    for folder in ("-", str(tmp_path / "pid_1")):
        words = [sys.executable, "-c", PROGRAM, str(tmp_path / "lib"), source, folder, when]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": ""})
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout)
    assert said[0] == said[1]
    found = [record for record in read_capture(tmp_path / "pid_1").host if record[0] != "thread"]
    assert [(r[0], r[1], r[2]) for r in found] == [
        ("range", "nvtx", "b"), ("range", "nvtx", "a"), ("range", "nvtx", "long"), ("mark", "nvtx", "point"),
        ("range", "nvtx", "step 3"), ("range", "record_function", "forward"),
        ("range", "record_function", "swallowed"), ("range", "nvtx", "p"), ("range", "nvtx", "q"),
        ("range", "nvtx", "r"),
    ]  # fmt: skip
    for record in found:
        assert record[3] <= record[-2] or record[0] == "mark"


@pytest.mark.parametrize("form", ["with a tool", "without a tool"])
def test_functions_that_nvtx_decorates(
    form: str, log: HostLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package gives a function back as it was where no tool of NVTX's own is there, and then has no attributes."""

    class Annotate:
        def __init__(self, message: str | None = None) -> None:
            self.init_args = (message, None)
            if form == "with a tool":
                self.attributes = type("A", (), {"message": message})

        def __enter__(self) -> Annotate:
            return self

        def __exit__(self, *exc: object) -> bool:
            return False

        def __call__(self, function: Any) -> Any:
            return functools.wraps(function)(lambda *a: function(*a)) if form == "with a tool" else function

    module = ModuleType("nvtx")
    vars(module)["annotate"] = Annotate
    host_log._wrap_nvtx(module)

    @Annotate("named")
    def first(n: int) -> int:
        "says so"
        return second(n - 1) + 1 if n else 0

    @Annotate()
    def second(n: int) -> int:
        if n > 5:
            raise KeyError(n)
        return first(n)

    assert (first(0), first.__name__, first.__doc__) == (0, "first", "says so")  # nothing records yet
    monkeypatch.setattr(host_log, "_current", log)
    assert first(1) == 1
    with pytest.raises(KeyError), Annotate("block"):
        first(9)
    monkeypatch.setattr(host_log, "_current", None)
    found = [record[2] for record in recorded(log, tmp_path)]
    assert found == ["named", "second", "named", "second", "named", "block"]


def test_the_package_nvtx_itself(log: HostLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx = pytest.importorskip("nvtx", reason="nvtx is not installed")
    host_log._wrap_nvtx(nvtx)
    monkeypatch.setattr(host_log, "_current", log)

    @nvtx.annotate(color="red")
    def decorated() -> None:
        nvtx.mark("inside")

    with nvtx.annotate("block"):
        decorated()
    nvtx.end_range(nvtx.start_range("long"))
    monkeypatch.setattr(host_log, "_current", None)
    found = [(record[0], record[2]) for record in recorded(log, tmp_path)]
    assert found == [("mark", "inside"), ("range", "decorated"), ("range", "block"), ("range", "long")]


def test_damaged_lines_are_counted(log: HostLog, tmp_path: Path) -> None:
    log.mark("nvtx", "kept", 5)
    log.close()
    with open(tmp_path / "pid_1" / "host.jsonl", "ab") as file:
        file.write(b'["mark","nvtx"]\n{}\n["what",1]\nnonsense\n["mark","nv')
    capture = read_capture(tmp_path / "pid_1")
    assert [r[2] for r in capture.host if r[0] == "mark"] == ["kept"]
    assert [(p.kind, p.count) for p in capture.problems] == [("truncated_file", 1), ("truncated_file", 4)]


def test_names_of_any_text(log: HostLog, tmp_path: Path) -> None:
    log.mark("nvtx", 'a "b"\n\ud800 é', 5)
    (mark,) = recorded(log, tmp_path)
    assert mark[2].startswith('a "b"\n') and mark[2].endswith("é")
    assert json.dumps(mark)
    assert host_log._current is None
