"""How a line is understood: options on either side of the verb, and whose words are whose."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace.cli import parse
from warptrace.cli.profile import Request
from warptrace.errors import UsageError


def request(*words: str) -> Request:
    command, options = parse(words)
    assert command.name == "profile"
    return Request.from_options(options)


def refused(*words: str) -> str:
    """The message that the line is refused with."""
    with pytest.raises(UsageError) as caught:
        command, options = parse(words)
        if command.name == "profile":
            Request.from_options(options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


OPTIONS: dict[str, tuple[list[str], Any]] = {
    "output_dir": (["--output-dir", "X"], "X"),
    "clobber": (["--clobber"], True),
    "postprocess": (["--postprocess", "json"], "json"),
    "max_events_per_warp": (["--max-ts-cnt-per-warp", "64"], 64),
    "buffer_bytes": (["--context-buffer-size", "512M"], 512 << 20),
    "log_level": (["--log-level", "debug"], "debug"),
    "keep": (["--no-keep"], False),
    "working_dir": (["--working-dir", "W"], "W"),
    "json_gz": (["--json-gz"], True),
    "payload_in_name": (["--payload-in-name"], True),
    "untraced_build": (["--no-untraced-build"], False),
    "window": (["--window"], True),
    "keep_events": (["--keep-events", "last"], "last"),
    "iket_calls": (["--no-iket-calls"], False),
    "host_ranges": (["--host-ranges"], True),
    "auto": (["--auto=mma,waits"], ("waits", "mma")),
    "peer_clocks": (["--no-peer-clocks"], False),
}
DEFAULTS = {
    "clobber": False,
    "postprocess": "perfetto",
    "max_events_per_warp": None,
    "buffer_bytes": 1 << 30,
    "log_level": "warn",
    "keep": True,
    "working_dir": None,
    "json_gz": False,
    "payload_in_name": False,
    "untraced_build": True,
    "window": False,
    "keep_events": "first",
    "iket_calls": True,
    "auto": (),
    "peer_clocks": True,
    "auto_nested": False,
    "auto_names": (),
    "host_ranges": False,
}


@settings(deadline=None)  # a parser of all verbs is built for each
@given(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True), st.data())
def test_each_option_means_the_same_on_both_sides_of_the_verb(names: list[str], data: st.DataObject) -> None:
    sides: tuple[list[str], list[str]] = ([], [])
    for name in names:
        sides[data.draw(st.integers(0, 1), label=name)].extend(OPTIONS[name][0])
    got = vars(request(*sides[0], "profile", *sides[1], "--", "cmd"))
    wanted = DEFAULTS | {name: OPTIONS[name][1] for name in names}
    assert {name: got[name] for name in wanted} == wanted
    assert got["command"] == ("cmd",)


def test_a_line_of_the_reference_system() -> None:
    got = request("--output-dir", "X", "--clobber", "profile", "--postprocess", "all", "--", "python", "k.py")
    assert (got.output_dir, got.clobber, got.postprocess, got.command) == ("X", True, "all", ("python", "k.py"))


def test_the_option_after_the_verb_wins() -> None:
    assert request("-o", "A", "profile", "-o", "B", "--", "cmd").output_dir == "B"
    assert request("--no-keep", "profile", "--keep", "--", "cmd").keep is True


def test_words_after_the_dashes_are_the_commands() -> None:
    words = ("python", "k.py", "--clobber", "-o", "theirs", "--", "-h")
    got = request("profile", "--", *words)
    assert got.command == words
    assert got.clobber is False
    assert got.output_dir.startswith("warptrace-")


def test_default_output_directories_differ_between_processes() -> None:
    pattern = rf"warptrace-\d{{8}}-\d{{6}}-{os.getpid()}"
    assert re.fullmatch(pattern, request("profile", "--", "cmd").output_dir)


def test_dashes_may_be_left_out_where_no_word_looks_like_an_option() -> None:
    got = request("profile", "--clobber", "python", "k.py", "128")
    assert (got.command, got.clobber) == (("python", "k.py", "128"), True)


@pytest.mark.parametrize("option", ["--clobber", "-m", "--steps=3"])
def test_dashes_are_asked_for_where_an_option_could_be_anyones(option: str) -> None:
    message = refused("profile", "python", "k.py", option)
    assert message == f"put '--' before the command: warptrace profile [options] -- python k.py {option}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no verb given; see `warptrace --help`"),
        (["--", "python"], "no verb given; see `warptrace --help`"),
        (["profile"], "no command given: warptrace profile [options] -- python script.py"),
        (["profile", "--"], "no command after '--': warptrace profile [options] -- python script.py"),
        (["profile", "x", "--", "y"], "'x' before '--' is neither an option nor part of the command"),
        (
            ["profile", "--no-keep", "--postprocess", "none", "--", "x"],
            "--postprocess none with --no-keep would leave nothing: drop one of the two",
        ),
        (["--clobber", "dump", "x"], "--clobber is not an option of `warptrace dump`"),
        (["--buffer-size", "1G", "postprocess", "x"], "--buffer-size is not an option of `warptrace postprocess`"),
        (["dump", "x", "--", "y"], "`warptrace dump` runs no command: remove '--' and what follows it"),
    ],
)
def test_lines_that_cannot_be_meant(words: list[str], message: str) -> None:
    assert refused(*words) == message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["trace", "x"], "'trace'"),
        (["profile", "--postproces", "all", "--", "x"], "unrecognized arguments: --postproces"),
        (["profile", "--postprocess", "csv", "--", "x"], "'csv'"),
        (["profile", "--log-level", "loud", "--", "x"], "'loud'"),
        (["profile", "--max-ts-cnt-per-warp", "0", "--", "x"], "'0' is not a whole number of at least 1"),
        (["profile", "--max-ts-cnt-per-warp", "many", "--", "x"], "'many' is not a whole number of at least 1"),
        (["profile", "--buffer-size", "big", "--", "x"], "'big' is not a size"),
        (["profile", "-o"], "expected one argument"),
        (["postprocess"], "RUN_DIR"),
    ],
)
def test_faults_name_the_word(words: list[str], part: str) -> None:
    assert part in refused(*words)


def test_auto() -> None:
    assert request("profile", "--auto", "--", "cmd").auto == ("waits", "barriers")
    assert request("profile", "--auto=scheduler,copies,copies", "--", "cmd").auto == ("copies", "scheduler")
    assert request("profile", "--auto", "--auto-nested", "--", "cmd").auto_nested
    for words in (["--auto=wait"], ["--auto="], ["--auto", "python"]):
        text = refused("profile", *words, "--", "cmd")
        assert "is unknown: choose among waits, barriers, arrivals, copies, mma, scheduler" in text


def test_auto_names(tmp_path: Path) -> None:
    file = tmp_path / "names.toml"
    file.write_text('# which is which\n[names]\n"k.consumer_*" = "wait for K"\n"main.py:7" = ""\n')
    got = request("profile", "--auto", "--auto-names", str(file), "--", "cmd").auto_names
    assert got == (("k.consumer_*", "wait for K"), ("main.py:7", ""))
    for option in (["--auto-nested"], ["--auto-names", str(file)]):
        assert "are for the ranges of --auto: give that too" in refused("profile", *option, "--", "cmd")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("names = [", "is not TOML: "),
        ("[name]\na = 'b'", "must hold one table, [names], of patterns and names"),
        ("names = 3", "[names] must be an object of patterns and names, not 3"),
        ("[names]\na = 3", "[names] must give each pattern a name as text, not ('a', 3)"),
        (f"[names]\na = '{'x' * 256}'", "[names]: the name for 'a' has more than 255 bytes"),
    ],
)
def test_names_that_cannot_be_read(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "names.toml"
    file.write_text(text)
    message = refused("profile", "--auto", "--auto-names", str(file), "--", "cmd")
    assert str(file) in message and said in message
    assert "cannot be read" in refused("profile", "--auto", "--auto-names", str(tmp_path / "none"), "--", "cmd")
