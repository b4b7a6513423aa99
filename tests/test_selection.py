"""What is recorded, as texts, as JSON and as a decision for each kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warptrace.errors import UsageError
from warptrace.selection import (
    EVERYTHING,
    MAX_CLUSTERS,
    MAX_CONFIG_BYTES,
    KernelSelection,
    Selection,
    clusters_of,
    load_cluster_config,
    number_list,
    parse_cluster,
    parse_warps,
)

PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck))
"""Of a busy machine."""
COORDINATES = st.tuples(*[st.integers(0, 2**31 - 1)] * 3)
CLUSTERS = st.none() | st.lists(COORDINATES, min_size=1, max_size=4, unique=True).map(tuple)
WARPS = st.none() | st.sets(st.integers(0, 31), min_size=1).map(lambda w: tuple(sorted(w)))


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    clusters = draw(CLUSTERS)
    return Selection(
        kernels=tuple(draw(st.lists(st.text(max_size=5).map(re.escape), max_size=3))),
        clusters=clusters,
        clusters_by_kernel=tuple(draw(st.lists(st.tuples(st.text(max_size=5), CLUSTERS), max_size=3))),
        cta_stride=draw(st.integers(1, 1 << 20)) if clusters is None else 1,
        warps=draw(WARPS),
        launch_skip=draw(st.integers(0, 100)),
        launch_count=draw(st.none() | st.integers(1, 100)),
        lifetimes=draw(st.booleans()),
    )


@PATIENT
@given(selections())
def test_json_gives_it_back(selection: Selection) -> None:
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection


@PATIENT
@given(CLUSTERS, st.integers(1, 9), WARPS)
def test_json_of_a_kernels_gives_it_back(clusters: Any, stride: int, warps: Any) -> None:
    chosen = KernelSelection(clusters, stride, warps)
    assert KernelSelection.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert KernelSelection.from_json(None) == EVERYTHING


@PATIENT
@given(st.sets(st.integers(0, 31), min_size=1))
def test_a_list_of_warps_is_read_back(warps: set[int]) -> None:
    text = number_list(sorted(warps))
    assert parse_warps(text) == tuple(sorted(warps))
    assert KernelSelection(warps=tuple(sorted(warps))).warp_mask == sum(1 << w for w in warps)


def test_lists_of_warps() -> None:
    assert parse_warps("0-3,8") == (0, 1, 2, 3, 8)
    assert parse_warps(" 5 , 2 - 3 ,2") == (2, 3, 5)
    assert number_list((0, 1, 2, 3, 8)) == "0-3,8"
    assert KernelSelection().warp_mask == 2**32 - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a list of warps: write numbers and ranges, as 0-3,8"),
        ("1,", "'1,' is not a list of warps: write numbers and ranges, as 0-3,8"),
        ("a", "'a' is not a list of warps: write numbers and ranges, as 0-3,8"),
        ("-1", "'-1' is not a list of warps: write numbers and ranges, as 0-3,8"),
        ("1-2-3", "'1-2-3' is not a list of warps: write numbers and ranges, as 0-3,8"),
        ("3-1", "'3-1' is not a list of warps: 3-1 runs backwards"),
        ("0-32", "'0-32' names warp 32: a CTA has at most 32 warps, 0 to 31"),
        ("\u0663", "'\u0663' is not a list of warps: write numbers and ranges, as 0-3,8"),
    ],
)
def test_lists_that_name_no_warps(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_warps(text)
    assert str(caught.value) == message


def test_a_cluster() -> None:
    assert parse_cluster(" 1, 2,3 ") == (1, 2, 3)
    for text in ("", "1,2", "1,2,3,4", "1,2,-3", "1,2,x", "0,0,2147483648", "9" * 5000 + ",0,0"):
        with pytest.raises(UsageError, match="is not a cluster: write its coordinates X,Y,Z, as 1,0,0$"):
            parse_cluster(text)


# ------------------------------------------------------------------------------------------------ for each kernel
@pytest.mark.parametrize(
    ("symbol", "clusters"),
    [
        ("kernel_gemm_big_0", ((3, 0, 0),)),  # the longest part
        ("gemm", ((9, 9, 9),)),  # the symbol itself, before longer parts of other names
        ("a_gemm_b", ((1, 0, 0),)),
        ("tail_x", None),  # "all"
        ("other", ((7, 0, 0),)),  # not named: --enabled-cluster
    ],
)
def test_the_clusters_of_a_kernel(tmp_path: Path, symbol: str, clusters: Any) -> None:
    path = tmp_path / "clusters.json"
    text = '{"_gemm_": [1, 0, 0], "gemm_big": [[3,0,0]], "gemm": [9,9,9], "tail": "all", "_x": null}'
    path.write_text(text)
    selection = Selection(clusters=((7, 0, 0),), clusters_by_kernel=load_cluster_config(str(path)))
    assert selection.of(symbol) == KernelSelection(clusters)


def test_the_longest_part_wins_whatever_the_order() -> None:
    for pairs in ((("ab", ((1, 0, 0),)), ("abc", ((2, 0, 0),))), (("abc", ((2, 0, 0),)), ("ab", ((1, 0, 0),)))):
        assert Selection(clusters_by_kernel=pairs).of("xabcx").clusters == ((2, 0, 0),)
        assert Selection(clusters_by_kernel=pairs).of("ab").clusters == ((1, 0, 0),)


def test_every_kth_cluster_where_none_is_named() -> None:
    selection = Selection(cta_stride=4, clusters_by_kernel=(("a", ((1, 0, 0),)), ("b", None)), warps=(1,))
    assert selection.of("a") == KernelSelection(((1, 0, 0),), 1, (1,))
    assert selection.of("b") == KernelSelection(None, 1, (1,))
    assert selection.of("c") == KernelSelection(None, 4, (1,))


def test_kernels_by_regular_expression() -> None:
    selection = Selection(kernels=("gemm_[0-9]+$", "^attention"))
    assert [selection.wants(s) for s in ("my_gemm_12", "gemm_1x", "attention_fwd", "an_attention")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert Selection().wants("anything")
    assert selection.unmatched(["my_gemm_1"]) == ["--kernel '^attention'"]
    named = Selection(clusters_by_kernel=(("a", None), ("zz", None)))
    assert named.unmatched(["bar"]) == ["'zz' of --enabled-cluster-config"]


def test_the_window_of_launches() -> None:
    assert (Selection().launch_skip, Selection().launch_end) == (0, 2**32 - 1)
    assert Selection(launch_skip=3, launch_count=2).launch_end == 5
    assert Selection(launch_skip=2**32 - 1, launch_count=2**32 - 1).launch_end == 2**32 - 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kernels": ("a(",)}, "--kernel 'a(' is not a regular expression: missing ), unterminated subpattern"),
        ({"kernels": ("a{99999999999999999999}",)}, "--kernel 'a{99999999999999999999}' is not a regular expression"),
        ({"clusters": ()}, "--enabled-cluster names no cluster"),
        ({"clusters": ((0, 0),)}, "--enabled-cluster: a cluster has three coordinates of at least 0"),
        ({"clusters": ((0, 0, -1),)}, "--enabled-cluster: a cluster has three coordinates of at least 0"),
        ({"clusters": tuple((i, 0, 0) for i in range(65))}, "--enabled-cluster names 65 clusters: at most 64, or"),
        ({"clusters_by_kernel": (("k", ()),)}, "--enabled-cluster-config: 'k' names no cluster"),
        ({"cta_stride": 0}, "--cta-stride 0 is out of range: choose 1 to 4294967295"),
        ({"launch_skip": -1}, "--launch-skip -1 is out of range: choose 0 to"),
        ({"launch_count": 0}, "--launch-count 0 is out of range: choose 1 to"),
        ({"launch_skip": 2**32}, "--launch-skip 4294967296 is out of range"),
        ({"warps": ()}, "--warps: give numbers of 0 to 31"),
        ({"warps": (32,)}, "--warps: give numbers of 0 to 31"),
        ({"clusters": ((1, 0, 0),), "cta_stride": 2}, "--enabled-cluster and --cta-stride exclude each other"),
    ],
)
def test_what_cannot_be_used(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Selection(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_in_words() -> None:
    assert str(KernelSelection()) == "everything"
    assert str(KernelSelection(((1, 0, 0),), 1, (0, 1, 2, 8))) == "cluster 1,0,0, warps 0-2,8"
    assert str(KernelSelection(((1, 0, 0), (0, 2, 0)))) == "clusters 1,0,0 0,2,0"
    assert str(KernelSelection(None, 5, (3,))) == "every cluster whose number is a multiple of 5, warp 3"
    full = Selection(("a", "b"), ((1, 2, 3),), (("k", None),), 1, (4,), 5, 6)
    assert str(full) == (
        "--kernel a --kernel b --enabled-cluster 1,2,3 --enabled-cluster-config --warps 4 --launch-skip 5"
        " --launch-count 6"
    )
    assert Selection().everything and not full.everything


# -------------------------------------------------------------------------------------------------- the config file
@pytest.mark.parametrize(
    ("value", "clusters"),
    [
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2, 3], [0, 0, 0], [1, 2, 3]], ((1, 2, 3), (0, 0, 0))),
        (None, None),
        ("all", None),
    ],
)
def test_values_of_the_config_file(value: Any, clusters: Any) -> None:
    assert clusters_of(value, "here") == clusters


@pytest.mark.parametrize(
    "value",
    [
        [], [1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, 3.0], [1, 2, True], ["1", "2", "3"], [[1, 2, 3], 4], [[]],
        [[1, 2, 3], []], [[[1, 2, 3]]], "ALL", "", 0, 7, True, {}, {"x": 1}, [1, 2, None], [1, 2, 2**31],
    ],
)  # fmt: skip
def test_values_that_are_no_clusters(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "clusters.json"
    path.write_text(json.dumps({"fine": [0, 0, 0], "bad": value}))
    with pytest.raises(UsageError) as caught:
        load_cluster_config(str(path))
    assert str(caught.value) == (
        f"--enabled-cluster-config {path}: 'bad' must be [x, y, z], a list of such, null or \"all\","
        f" not {json.dumps(value)}"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON: Expecting value"),
        (b"{", "is not JSON: Expecting property name"),
        (b'{"a": [0,0,0],}', "is not JSON: "),
        (b"[0,0,0]", "must hold an object of kernel names and clusters"),
        (b"null", "must hold an object of kernel names and clusters"),
        (b'"all"', "must hold an object of kernel names and clusters"),
        (b'{"\xff": null}', "is not JSON: 'utf-8' codec can't decode"),
        (b'{"a": null, "b": "all", "a": [0,0,0]}', "has the name 'a' twice"),
        (b"[" * 30000, "is not JSON: "),
        (b'{"a": [0,0,' + b"9" * 5000 + b"]}", ""),
        (b'"' + b"x" * MAX_CONFIG_BYTES + b'"', f"has {MAX_CONFIG_BYTES + 2} bytes: at most {MAX_CONFIG_BYTES} are"),
    ],
    ids=range(11),
)
def test_files_that_are_no_config(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "clusters.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        load_cluster_config(str(path))
    assert str(caught.value).startswith(f"--enabled-cluster-config {path}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_with_too_many_clusters(tmp_path: Path) -> None:
    path = tmp_path / "clusters.json"
    path.write_text(json.dumps({"k": [[i, 0, 0] for i in range(MAX_CLUSTERS + 1)]}))
    with pytest.raises(UsageError, match="'k' names 65 clusters: at most 64, or use --cta-stride$"):
        load_cluster_config(str(path))


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError) as caught:
            load_cluster_config(str(path))
        assert str(caught.value) == f"--enabled-cluster-config {path} cannot be read: {reason}"


def test_an_empty_config_and_one_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "clusters.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert load_cluster_config(str(path)) == ()
