"""A disk that is really full, and places that cannot be written: one line each, and nothing that was made is lost."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from command_line import ROOT, Cli, environment

FILL = """
with open(sys.argv[1] + "/ballast", "wb", 0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError:
        print("filled", flush=True)
"""
PROGRAM = f"""
import os, sys
import fake_gpu
steps = fake_gpu.Kernel("steps")
for _ in range(3): steps.launch()
fake_gpu.saved(3)
{FILL}
"""


@cache
def may_mount() -> bool:
    """Whether a file system of our own can be mounted, in a name space of its own."""
    test = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    try:
        return subprocess.run(test, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def on_a_small_disk(folder: Path, script: str, mount_options: str = "size=2m") -> subprocess.CompletedProcess[str]:
    """Runs a shell script in a file system of 2 MiB, which is gone afterwards."""
    place = folder / "disk"
    place.mkdir()
    lines = f"set -e\nmount -t tmpfs -o {mount_options} none {shlex.quote(str(place))}\ncd {shlex.quote(str(place))}\n"
    env = environment()
    env["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests' / 'fakes'}"
    command = ["unshare", "-m", "sh", "-c", lines + script]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


needs_mount = pytest.mark.skipif("not may_mount()", reason="no file system can be mounted here (unshare -m)")


@needs_mount
def test_a_disk_that_the_program_fills(tmp_path: Path) -> None:
    """The capture cannot be closed, no output can be written: what had been recorded is kept and can be read."""
    (tmp_path / "program.py").write_text(PROGRAM)
    python = shlex.quote(sys.executable)
    own = f"{python} -m warptrace"
    done = on_a_small_disk(
        tmp_path,
        f"set +e\n{own} profile -o run -- {python} {tmp_path}/program.py . ; echo status $?\n"
        f"rm ballast; {own} postprocess run --format json >/dev/null; echo status $?; ls run\n",
    )
    assert "Traceback" not in done.stderr, done.stderr
    out = done.stdout.split()
    assert out[:5] == ["filled", "status", "1", "status", "0"], (done.stdout, done.stderr)
    assert [name.endswith(".trace.json") for name in out[5:]].count(True) == 1 and "raw" in out
    for line in ("the capture in ", "cannot write run.json: No space left on device", "the raw capture is kept: "):
        assert line in done.stderr
    assert "3 launches recorded" in done.stderr
    assert "did not close its capture" in done.stderr


@needs_mount
def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    """Nothing runs where not even the folder can be made; else the program runs, untraced, and is told why."""
    (tmp_path / "fill.py").write_text(f"import sys\n{FILL}")
    (tmp_path / "program.py").write_text('import fake_gpu\nfake_gpu.Kernel("k").launch()\nprint("ran")\n')
    python = shlex.quote(sys.executable)
    done = on_a_small_disk(
        tmp_path,
        f"{python} {tmp_path}/fill.py .\nset +e\n"
        f"{python} -m warptrace profile -o run -- {python} {tmp_path}/program.py; echo status $?; ls run/raw\n",
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.split()[:4] == ["filled", "ran", "status", "1"], (done.stdout, done.stderr)
    assert "not recording: cannot write the capture" in done.stderr
    assert "No space left on device" in done.stderr


@needs_mount
def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    python = shlex.quote(sys.executable)
    done = on_a_small_disk(
        tmp_path, f"set +e\n{python} -m warptrace profile -o run -- echo ran; echo status $?\n", "size=2m,ro"
    )
    assert done.stdout == "status 1\n"
    where = tmp_path / "disk"
    assert done.stderr == f"warptrace: error: cannot write to {where}: Read-only file system; choose another -o\n"


@pytest.mark.parametrize(
    ("place", "reason"), [("/dev/null/x", "File exists"), ("/proc/x", "No such file or directory")]
)
def test_a_place_that_cannot_be_stops_before_the_program(cli: Cli, tmp_path: Path, place: str, reason: str) -> None:
    done = cli("profile", "-o", place, "--", "touch", "ran")
    assert done.returncode == 1
    assert done.stderr == f"warptrace: error: cannot write to {Path(place).parent}: {reason}; choose another -o\n"
    assert list(tmp_path.iterdir()) == []
