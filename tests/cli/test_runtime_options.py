"""RuntimeOptions: what goes into a child's environment comes out again, and faults name the option."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warptrace import wire
from warptrace.errors import UsageError
from warptrace.runtime import options
from warptrace.runtime.options import RuntimeOptions, format_size, parse_size
from warptrace.selection import Selection


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("268435456", 1 << 28),
        ("512M", 512 << 20),
        ("512m", 512 << 20),
        ("1G", 1 << 30),
        ("1.5GiB", 3 << 29),
        (" 64 KB ", 64 << 10),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1G", "1X", "1G2", "one", "1e9", "0x10", "1.G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size: write a number with K, M or G"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_sizes_are_written_as_they_are_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(
    st.integers(options.MIN_BUFFER_BYTES, options.MAX_BUFFER_BYTES),
    st.none() | st.integers(1, options.MAX_EVENTS_PER_WARP),
    st.sampled_from(options.LOG_LEVELS),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    st.booleans(),
)
def test_the_environment_carries_everything(
    size: int, events: int | None, level: str, folder: str, untraced: bool
) -> None:
    before = RuntimeOptions(os.path.join("/", folder), size, events, level, untraced)
    assert RuntimeOptions.from_env(before.to_env()) == before


def test_defaults() -> None:
    got = RuntimeOptions.from_env({})
    assert (got.buffer_bytes, got.max_events_per_warp, got.log_level) == (1 << 30, None, "warn")
    assert got.directory == os.path.abspath("warptrace-output/raw")
    assert (got.untraced_build, got.window, got.keep_events) == (False, False, "first")
    assert (got.iket_calls, got.auto, got.peer_clocks) == (True, (), True)


def test_variables() -> None:
    selection = Selection(kernels=("gemm",), clusters_by_kernel=(("x", ((1, 2, 3),)),), warps=(0, 3), launch_count=2)
    options = RuntimeOptions(
        "/d", 1 << 28, 7, "info", True, True, selection, "last", False, ("waits", "mma"), False, True, (("a*", "b"),),
        True,
    )
    env = options.to_env()
    assert RuntimeOptions.from_env(env) == options
    values = {
        "buffer_bytes": 1 << 28,
        "directory": "/d",
        "log_level": "info",
        "max_events_per_warp": 7,
        "untraced_build": True,
        "window": True,
        "selection": {
            "kernels": ["gemm"],
            "clusters": None,
            "clusters_by_kernel": [["x", [[1, 2, 3]]]],
            "cta_stride": 1,
            "warps": [0, 3],
            "launch_skip": 0,
            "launch_count": 2,
            "lifetimes": False,
        },
        "keep_events": "last",
        "iket_calls": False,
        "auto": ["waits", "mma"],
        "peer_clocks": False,
        "auto_nested": True,
        "auto_names": [["a*", "b"]],
        "host_ranges": True,
    }
    assert json.loads(env.pop("WARPTRACE_OPTIONS")) == values
    assert env == {"WARPTRACE": "1", "WARPTRACE_DIR": "/d"}


def test_the_directory_variable_overrides() -> None:
    env = {"WARPTRACE_OPTIONS": '{"directory": "/a"}'}
    assert RuntimeOptions.from_env(env).directory == "/a"
    assert RuntimeOptions.from_env({**env, "WARPTRACE_DIR": "/b"}).directory == "/b"


def test_relative_directories_do_not_move_with_the_program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RuntimeOptions("raw").directory == str(tmp_path / "raw")


def test_options_of_a_newer_version_are_ignored_and_sizes_may_be_text() -> None:
    text = json.dumps({"buffer_bytes": "64M", "colour": "red"})
    assert RuntimeOptions.from_env({"WARPTRACE_OPTIONS": text}).buffer_bytes == 64 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "WARPTRACE_OPTIONS is not JSON"),
        ("[]", "WARPTRACE_OPTIONS must be a JSON object, not list"),
        ('{"log_level": 3}', "WARPTRACE_OPTIONS: log_level must be text, not 3"),
        ('{"log_level": "loud"}', "WARPTRACE_OPTIONS: log level 'loud' is unknown: choose one of error, warn"),
        ('{"buffer_bytes": 1.5}', "WARPTRACE_OPTIONS: buffer_bytes must be a whole number, not 1.5"),
        ('{"buffer_bytes": true}', "WARPTRACE_OPTIONS: buffer_bytes must be a whole number, not True"),
        ('{"buffer_bytes": "1M"}', "WARPTRACE_OPTIONS: buffer size 1M is out of range: choose 16M to 4G"),
        ('{"keep_events": "newest"}', "WARPTRACE_OPTIONS: keep_events 'newest' is unknown: choose one of first, last"),
        ('{"keep_events": 1}', "WARPTRACE_OPTIONS: keep_events must be text, not 1"),
        ('{"iket_calls": "no"}', "WARPTRACE_OPTIONS: iket_calls must be true or false, not 'no'"),
        ('{"auto": ["waits", "moves"]}', "WARPTRACE_OPTIONS: auto: group 'moves' is unknown: choose among waits, "),
        ('{"auto": [1]}', "WARPTRACE_OPTIONS: auto must be a list of groups, not [1]"),
        ('{"auto": 1}', "WARPTRACE_OPTIONS: auto must be a list of groups, not 1"),
        ('{"auto_names": {"a": 1}}', "WARPTRACE_OPTIONS: auto_names must give each pattern a name as text, "),
        ('{"auto_names": "a"}', "WARPTRACE_OPTIONS: auto_names must be an object of patterns and names, not 'a'"),
        ('{"host_ranges": 1}', "WARPTRACE_OPTIONS: host_ranges must be true or false, not 1"),
        ('{"auto_nested": 1}', "WARPTRACE_OPTIONS: auto_nested must be true or false, not 1"),
        ('{"window": "on"}', "WARPTRACE_OPTIONS: window must be true or false, not 'on'"),
        ('{"untraced_build": 1}', "WARPTRACE_OPTIONS: untraced_build must be true or false, not 1"),
        ('{"selection": []}', "WARPTRACE_OPTIONS: selection must be an object, not list"),
        ('{"selection": {"kernels": "x"}}', "WARPTRACE_OPTIONS: selection: kernels must be a list of str"),
        ('{"selection": {"kernels": ["("]}}', "WARPTRACE_OPTIONS: --kernel '(' is not a regular expression: missing )"),
        ('{"selection": {"clusters": [1]}}', "WARPTRACE_OPTIONS: selection: clusters must be [x, y, z], a list of"),
        (
            '{"selection": {"clusters_by_kernel": [["a"]]}}',
            "WARPTRACE_OPTIONS: selection: clusters_by_kernel must hold pairs of a text and clusters",
        ),
        ('{"selection": {"launch_skip": "1"}}', "WARPTRACE_OPTIONS: selection: launch_skip must be a whole number"),
        ('{"selection": {"warps": [true]}}', "WARPTRACE_OPTIONS: selection: warps must be a whole number, not True"),
        ('{"max_events_per_warp": 0}', "WARPTRACE_OPTIONS: max events per warp 0 is out of range: choose 1 to 65520"),
    ],
)
def test_faults_name_the_option(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        RuntimeOptions.from_env({"WARPTRACE_OPTIONS": text})
    assert str(caught.value).startswith(message)


def test_limits_are_those_of_the_wire_format() -> None:
    # The header takes 128 bytes of the region, and main bytes are a multiple of the region's alignment.
    room = wire.MAX_REGION_BYTES - wire.REGION_HEADER_BYTES
    assert room % wire.REGION_ALIGN == 0
    assert room // wire.SLOT8_DTYPE.itemsize == options.MAX_EVENTS_PER_WARP
    assert options.MIN_BUFFER_BYTES > wire.ARENA_OFFSET + wire.BANK_COUNT * 64 * 1024
