"""The output directory: what a fault between its steps leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from warptrace.errors import UsageError, WarptraceError
from warptrace.rundir import RunDirectory, is_result, write_run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def made(folder: Path, content: str, *, clobber: bool = False) -> RunDirectory:
    directory = RunDirectory.create(folder, clobber=clobber)
    (directory.partial / "content").write_text(content)
    write_run(directory.partial, {})
    return directory


def test_a_rename_that_fails_puts_the_earlier_result_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "run", "old").commit(success=True)
    directory = made(tmp_path / "run", "new", clobber=True)
    rename = os.rename

    def failing(source: Any, target: Any) -> None:
        if Path(source) == directory.partial:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    message = rf"cannot rename {directory.partial} to run: No space left on device"
    with pytest.raises(WarptraceError, match=message):
        directory.commit(success=True)
    assert (tmp_path / "run" / "content").read_text() == "old"
    assert (directory.partial / "content").read_text() == "new"


def test_two_runs_into_one_directory(tmp_path: Path) -> None:
    first = made(tmp_path / "run", "first")
    second = RunDirectory(first.final, tmp_path / ".run.partial-other", clobber=False)
    os.makedirs(second.partial)
    assert first.commit(success=True) == tmp_path / "run"
    other = second.commit(success=True)
    assert (tmp_path / "run" / "content").read_text() == "first"
    assert other.name.startswith("run.new-")


def test_a_leftover_with_our_pid_is_left_alone(tmp_path: Path) -> None:
    left = made(tmp_path / "run", "left")
    made(tmp_path / "run", "new").commit(success=True)
    assert (left.partial / "content").read_text() == "left"
    assert (tmp_path / "run" / "content").read_text() == "new"
    assert names(tmp_path) == [left.partial.name, "run"]


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    made(tmp_path / "run", "x").discard()
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WarptraceError, match="cannot write to .*file"):
        RunDirectory.create(tmp_path / "file" / "run", clobber=False)


def test_a_mount_point_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "run")
    with pytest.raises(UsageError, match="is a mount point and cannot be replaced: choose a folder inside it"):
        RunDirectory.create(tmp_path / "run", clobber=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', "\xff"])
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    assert not is_result(tmp_path)
    (tmp_path / "run.json").write_bytes(text.encode("latin-1"))
    assert not is_result(tmp_path)


def test_a_command_line_of_odd_bytes_can_be_recorded(tmp_path: Path) -> None:
    write_run(tmp_path, {"command": [os.fsdecode(b"caf\xe9")]})
    assert is_result(tmp_path)
    assert names(tmp_path) == ["run.json"]
