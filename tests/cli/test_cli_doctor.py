"""``warptrace doctor``: each finding, good and bad, and the page as a user gets it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

import warptrace
from warptrace.doctor import FAIL, OK, WARN, Finding, as_json, failed, page, probes

GOOD = Finding("clock", OK, "%globaltimer moves in steps of 32 ns")
NONE = Finding("GPU", WARN, "none: no NVIDIA driver", "nothing can be traced here")
BAD = Finding("DSL hook", FAIL, "no hook", "install another")


# --------------------------------------------------------------------------------------------------------- the page
def test_the_page() -> None:
    assert page([GOOD, NONE, BAD]) == (
        "ok    clock     %globaltimer moves in steps of 32 ns\n"
        "warn  GPU       none: no NVIDIA driver\n"
        "                -> nothing can be traced here\n"
        "fail  DSL hook  no hook\n"
        "                -> install another\n"
        "\n"
        "1 failure, 1 warning: tracing would not work here"
    )
    assert page([GOOD]).endswith("\n\nno failure, 0 warnings")
    assert [failed(x) for x in ([], [GOOD, NONE], [BAD, GOOD])] == [False, False, True]
    assert as_json([GOOD, BAD], "9") == {
        "warptrace": "9",
        "ok": False,
        "findings": [
            {"name": "clock", "state": "ok", "text": GOOD.text, "mend": ""},
            {"name": "DSL hook", "state": "fail", "text": "no hook", "mend": "install another"},
        ],
    }


# ----------------------------------------------------------------------------------------------------- what is asked
def examined(found: dict[str, list[Finding]], **options: Any) -> tuple[list[Finding], list[str]]:
    """The findings where the checks in child processes find ``found``, and which were asked for."""
    asked = []

    def run(part: str, seconds: float) -> list[Finding]:
        asked.append(part)
        return found[part]

    return list(probes.examine(1 << 30, require_gpu=options.pop("require_gpu", False), run=run)), asked


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.metadata, "version", lambda name: "1.0")


@pytest.mark.usefixtures("installed")
def test_without_a_gpu_the_emulator_is_asked() -> None:
    emulated = Finding("records (emulated)", OK, "yes")
    findings, asked = examined({"gpu": [NONE], "dsl": [GOOD], "emulator": [emulated]})
    assert asked == ["gpu", "dsl", "emulator"]
    assert findings[-3:] == [NONE, GOOD, emulated]
    assert not failed(findings)


@pytest.mark.usefixtures("installed")
def test_no_gpu_is_a_failure_where_one_is_required() -> None:
    findings, _ = examined({"gpu": [NONE], "dsl": [], "emulator": []}, require_gpu=True)
    assert [f for f in findings if f.state == FAIL] == [Finding("GPU", FAIL, NONE.text, NONE.mend)]


@pytest.mark.usefixtures("installed")
def test_with_a_gpu_the_emulator_is_not_asked() -> None:
    device = Finding("GPU", OK, "0: H200")
    findings, asked = examined({"gpu": [device, GOOD], "dsl": [BAD]}, require_gpu=True)
    assert asked == ["gpu", "dsl"]
    assert findings[-3:] == [device, GOOD, BAD]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("rich", "nvidia-cutlass-dsl"):
            raise probes.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(probes.metadata, "version", version)
    on_the_path = examined({"gpu": [NONE], "dsl": [GOOD], "emulator": [GOOD]})[0]
    assert Finding("nvidia-cutlass-dsl", OK, "found, of an unknown version: it has no metadata") in on_the_path
    monkeypatch.setattr(probes.importlib.util, "find_spec", lambda name: None)
    findings, asked = examined({"gpu": [NONE]})
    assert asked == ["gpu"]  # no DSL to look at
    assert Finding("rich", FAIL, "not installed", "pip install warptrace") in findings
    text = "not installed: no kernel can be traced"
    assert Finding("nvidia-cutlass-dsl", WARN, text, "pip install 'warptrace[cute]'") in findings


# ------------------------------------------------------------------------------------------------ one by one
def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = probes.folder("output folder", tmp_path)
    assert found.state in (OK, WARN) and found.text.startswith(f"{tmp_path} can be written, ")
    assert list(tmp_path.iterdir()) == []
    missing = probes.folder("temporary folder", tmp_path / "missing")
    assert missing == Finding(
        "temporary folder",
        FAIL,
        f"{tmp_path / 'missing'}: No such file or directory",
        "set TMPDIR to a folder that can be written",
    )
    usage = type("Usage", (), {"free": 5 << 20})
    monkeypatch.setattr(probes.shutil, "disk_usage", lambda path: usage)
    little = probes.folder("output folder", tmp_path)
    assert (little.state, little.text) == (WARN, f"{tmp_path} can be written, 5 MiB free")


def test_a_current_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = probes.guarded("output folder", probes.output_folder)
    assert (found.name, found.state) == ("output folder", FAIL)
    assert found.text.startswith("FileNotFoundError: ")


def test_variables_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WARPTRACE")]:
        monkeypatch.delenv(name)
    assert list(probes.environment()) == []
    monkeypatch.setenv("WARPTRACE_OPTIONS", "{")
    (found,) = probes.environment()
    assert found.state == FAIL and found.text.startswith("WARPTRACE_OPTIONS is not JSON")
    monkeypatch.setenv("WARPTRACE_OPTIONS", "")
    (found,) = probes.environment()
    assert found == Finding("environment", OK, "set: WARPTRACE_OPTIONS")


def test_child_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.bootstrap() == Finding("child Pythons", OK, "start with the tracer")
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probes.bootstrap()
    assert (found.state, found.text) == (FAIL, "0 of 2 started with the tracer")
    assert "sitecustomize" in found.mend


# ------------------------------------------------------------------------------------- child processes that misbehave
def misbehaving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """``warptrace.doctor.inside`` is this code, after one good finding."""
    line = json.dumps({"name": "GPU", "state": "ok", "text": "0: H200", "mend": ""})
    script = tmp_path / "inside.py"
    script.write_text(f"import os, sys, time\nprint({line!r}, flush=True)\nprint('noise {{}}')\n{code}\n")
    starter = tmp_path / "python"
    starter.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{script}'\n")
    starter.chmod(0o755)
    monkeypatch.setattr(probes.sys, "executable", str(starter))


DEVICE = Finding("GPU", OK, "0: H200")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("os.kill(os.getpid(), 11)", "died of signal 11"),
        ("sys.exit('no such thing')", "died of exit status 1: no such thing"),
        ("time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_check_that_dies_or_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, text: str) -> None:
    misbehaving(monkeypatch, tmp_path, code)
    first, fault = probes.inside(["gpu"], 1.0 if "sleep" in code else 30.0)
    assert first == DEVICE
    assert (fault.name, fault.state, fault.text) == ("GPU check", FAIL, text)


def test_a_check_that_ends_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    misbehaving(monkeypatch, tmp_path, "pass")
    assert probes.inside(["gpu"], 30.0) == [DEVICE]


def test_a_check_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.sys, "executable", "/nowhere/python")
    (found,) = probes.inside(["dsl"], 5.0)
    assert (found.name, found.state) == ("DSL check", FAIL)
    assert found.text.startswith("cannot be started: ")


# ------------------------------------------------------------------------------------------------------ the command
@pytest.mark.dsl
def test_the_command_on_a_machine_without_a_gpu(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--json", CUDA_VISIBLE_DEVICES="")
    data = json.loads(done.stdout)
    assert (data["warptrace"], data["ok"], done.returncode) == (warptrace.__version__, True, 0), done.stdout
    states = {f["name"]: f["state"] for f in data["findings"]}
    assert states.pop("GPU") == "warn"
    for name in ("temporary folder", "output folder"):  # this machine may be short of room
        assert states.pop(name) in ("ok", "warn")
    assert set(states.values()) == {"ok"}
    wanted = {"Python", "numpy", "rich", "cuda-bindings", "nvidia-cutlass-dsl", "child Pythons", "DSL hook", "events"}
    assert wanted | {"tracing off", "build record", "records (emulated)"} == set(states)
    assert list(tmp_path.iterdir()) == []


def test_the_command_where_things_are_bad(cli: Cli) -> None:
    """A page, not a traceback. No GPU although one is required, and options that are none."""
    done = cli("doctor", "--require-gpu", CUDA_VISIBLE_DEVICES="", WARPTRACE_OPTIONS="{")
    assert done.returncode == 1
    assert "fail  GPU" in done.stdout
    assert "fail  environment" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "tracing would not work here" in done.stdout.splitlines()[-1]


def test_options_of_profile_are_refused(cli: Cli) -> None:
    done = cli("--clobber", "doctor")
    assert (done.returncode, done.stderr) == (
        2,
        "warptrace: error: --clobber is not an option of `warptrace doctor`\n",
    )
