"""Writing, reading and printing the raw capture directory."""

from __future__ import annotations

import errno
import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import EPOCH_NS, FakeBankImage, FakeDevice, FakeKernel, FakeWarp, write_capture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warptrace import wire
from warptrace.errors import CaptureError, WarptraceError
from warptrace.raw import BankImage, CaptureWriter, dump, find_captures, payload_value, read_capture
from warptrace.raw import writer as writer_module
from warptrace.raw.format import REGION_OFFSET_FIELD, text_crc
from warptrace.selection import Selection
from warptrace.wire import PayloadType


def simple_kernel(stride: int = 8) -> FakeKernel:
    kernel = FakeKernel("k", stride=stride)
    kernel.mark("m")
    return kernel


def marks(count: int, *, warp: int = 0, lanes: dict[int, int] | None = None, closed: bool = True) -> FakeWarp:
    """A warp with ``count`` marks of lane 0, and as many of other lanes as ``lanes`` says."""
    result = FakeWarp(warp=warp)
    for at in range(count):
        result.event(1, at, payload=100 + at)
    for lane, more in (lanes or {}).items():
        for at in range(more):
            result.event(1, at, lane=lane, payload=1000 * lane + at)
    return result.exit(10_000) if closed else result


def small_device(**options: Any) -> FakeDevice:
    return FakeDevice(bank_bytes=1 << 14, slack=1 << 13, **options)


def new_writer(directory: Path) -> CaptureWriter:
    return CaptureWriter(
        directory, pid=1, argv=["a"], host="h", python="3", warptrace="0", dsl="4.8", started_unix_ns=5,
        place={"boot": "b", "rank": None},
    )


def add_device(writer: CaptureWriter) -> None:
    writer.add_device(
        0, name="n", uuid="u", compute_capability="9.0", sm_count=1, clock_khz=1, driver="d", buffer_bytes=1
    )


def clocks(directory: Path) -> dict[tuple[int, int], list[int]]:
    """{(warp, lane): clocks since the warp's entry} of a capture."""
    result = {}
    for batch in read_capture(directory).batches():
        main = np.split(batch.slots, np.cumsum(batch.stored)[:-1])
        lanes = np.split(batch.lane_slots, np.cumsum(batch.lanes["stored"])[:-1]) if len(batch.lanes) else []
        for header, slots in zip(batch.headers, main, strict=True):
            result[int(header["warp"]), 0] = slots["clock"] - np.uint32(header["entry_clock"] & 0xFFFFFFFF)
        for row, slots in zip(batch.lanes, lanes, strict=True):
            header = batch.headers[row["region"]]
            since = slots["clock"] - np.uint32(header["entry_clock"] & 0xFFFFFFFF)
            result[int(header["warp"]), int(row["lane"])] = since
    return {key: value.tolist() for key, value in result.items()}


# -------------------------------------------------------------------------------------------------------- regions
@pytest.mark.parametrize("stride", [8, 16])
def test_only_written_slots_are_kept(tmp_path: Path, stride: int) -> None:
    kernel = simple_kernel(stride)
    device = FakeDevice(bank_bytes=1 << 16)
    warps = [
        marks(0, warp=0),
        marks(5, warp=1, lanes={1: 2, 31: 1}),
        marks(256 // stride + 3, warp=2, closed=False),
        marks(1, warp=3, lanes={4: 40}),
    ]
    device.launch(kernel, warps, block=(128, 1, 1), main_bytes=256, lane_bytes=128)
    path = write_capture(tmp_path / "c", [device], [kernel])
    full, lane_full = list(range(256 // stride)), list(range(120 // stride))
    assert clocks(path) == {
        (0, 0): [], (1, 0): [0, 1, 2, 3, 4], (1, 1): [0, 1], (1, 31): [0], (2, 0): full, (3, 0): [0], (3, 4): lane_full,
    }  # fmt: skip
    (batch,) = read_capture(path).batches()
    assert batch.stride == stride
    assert batch.headers["advance"].tolist() == [0, 5 * stride, 0, stride]
    assert batch.lanes["advance"].tolist() == [2 * stride, stride, 40 * stride]
    if stride == 16:
        assert batch.slots["payload"][:5].tolist() == [100, 101, 102, 103, 104]
        assert batch.lane_slots["payload"][:3].tolist() == [1000, 1001, 31000]


def test_a_closed_region_has_no_more_slots_than_it_says(tmp_path: Path) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(3, warp=0), marks(3, warp=1, closed=False)], block=(64, 1, 1), main_bytes=128)
    for region in (0, 256):
        at = int(device.banks["base"][0]) + region + 128
        device.memory[at + 24 : at + 32] = 1  # what an earlier lap left
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert {key: len(v) for key, v in clocks(path).items()} == {(0, 0): 3, (1, 0): 4}


def test_geometries_and_strides_mix(tmp_path: Path) -> None:
    narrow, wide = FakeKernel("narrow", stride=8), FakeKernel("wide", stride=16)
    device = small_device()
    for kernel in (narrow, wide):
        kernel.mark("m")
    number = 0
    for main_bytes in (128, 384, 128, 256):
        for kernel in (narrow, wide, narrow):
            device.launch(kernel, [marks(number % 7, warp=number)], block=(1024, 1, 1), main_bytes=main_bytes)
            number += 1
    path = write_capture(tmp_path / "c", [device], [narrow, wide])
    assert clocks(path) == {(n, 0): list(range(n % 7)) for n in range(number)}
    assert [(b.stride, len(b.headers)) for b in read_capture(path).batches()] == [(8, 8), (16, 4)]


@pytest.mark.parametrize("first_position", [0, (1 << 32) - 512, (1 << 14) * 9 - 256])
def test_a_bank_that_wraps(tmp_path: Path, first_position: int) -> None:
    kernel = simple_kernel()
    device = small_device(first_position=first_position)
    for number in range(8):
        device.launch(kernel, [marks(number + 1, warp=number)], block=(1024, 1, 1), main_bytes=1024 + 128 * number)
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert clocks(path) == {(n, 0): list(range(n + 1)) for n in range(8)}
    assert read_capture(path).damage() == {}
    base, mask = int(device.banks["base"][0]), (1 << 14) - 1
    (batch,) = read_capture(path).batches()
    expected = base + (batch.headers["position"].astype(np.int64) & mask)
    assert batch.headers[REGION_OFFSET_FIELD].tolist() == expected.tolist()


def test_what_an_earlier_lap_left_is_not_a_region(tmp_path: Path) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(3, warp=number) for number in range(8)], block=(256, 1, 1), main_bytes=896)
    device.banks["tail"] = device.banks["head"]
    device.banks["tail"][0] += (1 << 14) - 8 * 1024  # the rest of the first lap
    device.banks["head"][0] = device.banks["tail"][0]
    device.launch(kernel, [marks(1, warp=8)], block=(512, 1, 1), main_bytes=896)
    device.banks["head"][0] += 2048  # claims whose headers are not there yet
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert list(clocks(path)) == [(8, 0)]
    (damage,) = read_capture(path).damage()[0]
    assert (int(damage["skipped_bytes"]), int(damage["position"])) == (2048, 1 << 14)


def test_claims_without_room_are_no_damage(tmp_path: Path) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(2, warp=number) for number in range(6)], block=(192, 1, 1), main_bytes=4096)
    assert device.banks["failed_bytes"][0] == 3 * 4224
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert [w for w, _ in clocks(path)] == [0, 1, 2]
    assert read_capture(path).damage() == {}
    assert read_capture(path).lost()[0]["warp"].tolist() == [3, 4, 5]


@pytest.mark.parametrize("field", ["magic", "position", "stride", "main_bytes"])
def test_a_damaged_header_costs_its_region_only(tmp_path: Path, field: str) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(2, warp=number) for number in range(4)], block=(128, 1, 1), main_bytes=896)
    header = device.memory[int(device.banks["base"][0]) + 1024 :][:128].view(wire.REGION_DTYPE)
    header[field] = header[field] + 1
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert [w for w, _ in clocks(path)] == [0, 2, 3]
    assert read_capture(path).damage()[0]["skipped_bytes"].tolist() == [1024]


def test_slots_that_look_like_a_header_are_slots(tmp_path: Path) -> None:
    """The first slot of a region lies on a line: make it say what a header there would say."""
    kernel = FakeKernel("k", stride=16)
    for _ in range(3):
        kernel.mark("m", PayloadType.U64)
    device = small_device()
    device.launch(kernel, [marks(40, warp=n) for n in range(2)], block=(64, 1, 1), main_bytes=896)
    base = int(device.banks["base"][0])
    line = device.memory[base + 256 :][:128]
    line[:] = device.memory[base : base + 128]
    fake = line.view(wire.REGION_DTYPE)
    fake["position"] = 256
    for field in ("grid_id", "entry_clock", "exit_clock", "exit_globaltimer"):
        fake[field] |= np.uint64(1 << 40)  # codes of the slots: none may be 0
    fake["warp"], fake["cluster"] = 5, 1
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert {key: len(v) for key, v in clocks(path).items()} == {(0, 0): 40, (1, 0): 40}
    assert read_capture(path).damage() == {}


def test_an_image_that_ends_inside_a_region(tmp_path: Path) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(2, warp=n) for n in range(2)], block=(64, 1, 1), main_bytes=896)
    (image,) = device.images()
    writer = new_writer(tmp_path / "c")
    add_device(writer)
    stats = writer.write_regions(0, [BankImage(bytes(image.data[:1536]), 0, image.base, image.mask)])
    assert (stats.regions, stats.slots, stats.skipped_bytes) == (1, 2, 512)


def test_large_captures_go_to_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_BYTES", 400)
    monkeypatch.setattr("warptrace.raw.regions.GATHER_BYTES", 2048)
    kernel = simple_kernel()
    device = FakeDevice(bank_bytes=1 << 16)
    warps = [marks(n, warp=n, lanes={2: 1} if n % 2 else {}) for n in range(9)]
    device.launch(kernel, warps, block=(288, 1, 1), main_bytes=128, lane_bytes=128)
    path = write_capture(tmp_path / "c", [device], [kernel])
    assert [len(b.headers) for b in read_capture(path).batches()] == [3, 3, 3]
    main = {(n, 0): list(range(n)) for n in range(9)}
    assert clocks(path) == main | {(n, 2): [0] for n in (1, 3, 5, 7)}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(
        st.tuples(st.sampled_from([128, 256, 640]), st.sampled_from([0, 128]), st.integers(0, 90), st.integers(0, 20)),
        max_size=25,
    ),
    stride=st.sampled_from([8, 16]),
    first=st.integers(0, 40),
)
def test_any_mix_of_regions_comes_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, int, int]], stride: int, first: int
) -> None:
    kernel = simple_kernel(stride)
    device = FakeDevice(bank_bytes=1 << 17, slack=1 << 14, first_position=(1 << 17) * 40_000 - 128 * first * 9)
    expected: dict[tuple[int, int], list[int]] = {}
    for number, (main, lane, count, lane_count) in enumerate(sizes):
        lanes = {9: lane_count} if lane and lane_count else {}
        warp = marks(count, warp=number, lanes=lanes)
        device.launch(kernel, [warp], block=(1024, 1, 1), main_bytes=main, lane_bytes=lane)
        expected[number, 0] = list(range(min(count, main // stride)))
        if lanes:
            expected[number, 9] = list(range(min(lane_count, (lane - 8) // stride)))
    path = write_capture(tmp_path_factory.mktemp("mix") / "c", [device], [kernel])
    assert clocks(path) == expected
    assert read_capture(path).damage() == {}


# ---------------------------------------------------------------------------------------------------------- files
def test_the_manifest_says_all_there_is(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "c")
    add_device(writer)
    writer.add_clock(0, 11, 12, 1.5, 13)
    writer.add_uninstrumented("plain")
    writer.add_uninstrumented("plain")
    writer.add_deselected("chosen not")
    writer.add_deselected("chosen not")
    writer.set_selection(Selection())
    assert read_capture(tmp_path / "c").manifest["selection"] is None
    writer.set_selection(Selection(warps=(2,)))
    writer.add_problem("something")
    writer.add_undrained(0, "why")
    writer.set_launches({255: 3})
    writer.set_place({"rank": 2, "world_size": None})
    writer.set_windows([(5, 6), (7, None)])
    assert read_capture(tmp_path / "c").manifest["state"] == "running"
    writer.finish(ended_unix_ns=9)
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest == {
        "crc32": text_crc(manifest),
        "format": "warptrace-capture", "version": wire.CAPTURE_VERSION, "state": "complete", "pid": 1, "argv": ["a"],
        "host": "h", "python": "3", "warptrace": "0", "dsl": "4.8", "started_unix_ns": 5, "ended_unix_ns": 9,
        "emulated": False, "boot": "b", "rank": 2,
        "devices": [
            {"ordinal": 0, "name": "n", "uuid": "u", "compute_capability": "9.0", "sm_count": 1, "clock_khz": 1,
             "driver": "d", "buffer_bytes": 1, "file": "dev0.wtraw", "bytes": 64}
        ],
        "clocks": [
            {"device": 0, "host_unix_ns": 11, "host_monotonic_ns": 13, "globaltimer_ns": 12, "uncertainty_ns": 1.5}
        ],
        "windows": [{"begin_unix_ns": 5, "end_unix_ns": 6}, {"begin_unix_ns": 7, "end_unix_ns": None}],
        "undrained": [{"device": 0, "reason": "why"}],
        "launches": {"00000000000000ff": 3}, "uninstrumented": ["plain"], "deselected": ["chosen not"],
        "selection": Selection(warps=(2,)).to_json(), "problems": ["something"],
    }  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["dev0.wtraw", "manifest.json"]


def test_the_file_layout_is_the_documented_one(tmp_path: Path) -> None:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(3)], main_bytes=128)
    path = write_capture(tmp_path / "c", [device], [kernel], pid=77)
    data = (path / "dev0.wtraw").read_bytes()
    assert data[:8] == b"WTRAW\r\n\x1a"
    assert np.frombuffer(data[8:32], "<u4").tolist() == [wire.CAPTURE_VERSION, 0x01020304, 64, 0, 77, 0]
    assert data[64:68] == b"CHNK"
    kind, size, crc = (int.from_bytes(data[a:b], "little") for a, b in ((68, 72), (72, 80), (80, 84)))
    assert (kind, size) == (1, 16 + 128 + 8 + 3 * 8)
    assert crc == zlib.crc32(data[64:80] + bytes(4) + data[84 : 96 + size])
    assert np.frombuffer(data[96:112], "<u4").tolist() == [1, 8, 0, 0]
    assert np.frombuffer(data[240:248], "<u4").tolist() == [3, 0]
    assert len(data) == 64 + 32 + size + 32 + 16  # and the control words


def truncatable(tmp_path: Path) -> tuple[Path, bytes]:
    kernel = simple_kernel()
    device = small_device()
    device.launch(kernel, [marks(3, warp=0)], main_bytes=128)
    path = write_capture(tmp_path / "c", [device], [kernel])
    return path, (path / "dev0.wtraw").read_bytes()


def test_a_file_cut_anywhere_keeps_what_is_whole(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    region_end = len(data) - 48
    for size in range(len(data)):
        (path / "dev0.wtraw").write_bytes(data[:size])
        capture = read_capture(path)
        assert sum(len(b.headers) for b in capture.batches()) == (size >= region_end)
        assert [p.kind for p in capture.problems] == ["truncated_file"], size


def test_a_flipped_bit_costs_its_chunk_only(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    for at in (96, 150, len(data) - 49):
        broken = bytearray(data)
        broken[at] ^= 0x10
        (path / "dev0.wtraw").write_bytes(broken)
        capture = read_capture(path)
        assert list(capture.batches()) == []
        assert len(capture.control()[0]) == 1
        assert [(p.kind, p.count) for p in capture.problems] == [("damaged_region", 1)]
        assert "wrong CRC" in capture.problems[0].text


def test_a_broken_chunk_head_ends_the_reading(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    (path / "dev0.wtraw").write_bytes(data[:64] + b"X" + data[65:])
    capture = read_capture(path)
    assert capture.chunks == ()
    assert [p.kind for p in capture.problems] == ["damaged_region"]
    assert f"{len(data) - 64} bytes are left out" in capture.problems[0].text


def test_a_malformed_payload_with_a_right_crc_is_left_out(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    payload = bytearray(data[96 : len(data) - 48])
    payload[0] = 2  # two regions, it says
    broken = bytearray(data[:96]) + payload + data[len(data) - 48 :]
    broken[80:84] = zlib.crc32(data[64:80] + bytes(4) + data[84:96] + bytes(payload)).to_bytes(4, "little")
    (path / "dev0.wtraw").write_bytes(broken)
    capture = read_capture(path)
    assert list(capture.batches()) == []
    assert [(p.kind, p.count) for p in capture.problems] == [("damaged_region", 1)]
    assert "malformed" in capture.problems[0].text


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(at=st.integers(0, 2**20), value=st.integers(0, 255))
def test_no_single_wrong_byte_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    path, data = truncatable(tmp_path_factory.mktemp("byte"))
    broken = bytearray(data)
    broken[at % len(data)] = value
    (path / "dev0.wtraw").write_bytes(broken)
    try:
        capture = read_capture(path)
    except CaptureError as e:
        assert "version" in str(e)
        return
    # Bytes that nothing depends on: padding of the file's header.
    if bytes(broken) != data and at % len(data) not in range(32, 64):
        assert capture.problems
    list(capture.batches())


def test_unknown_versions_name_the_mend(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    (path / "dev0.wtraw").write_bytes(data[:8] + b"\x09" + data[9:])
    with pytest.raises(CaptureError, match="dev0.wtraw has capture version 9, this warptrace reads version 1"):
        read_capture(path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["version"], manifest["warptrace"] = 12, "3.2.1"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CaptureError, match="version 12.*use the warptrace that wrote it 3.2.1, or record again"):
        read_capture(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}', ""])
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CaptureError) as e:
        read_capture(tmp_path)
    assert "manifest.json" in str(e.value) and "\n" not in str(e.value)


def test_no_capture_at_all(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="holds no capture"):
        read_capture(tmp_path / "missing")


def test_missing_and_foreign_device_files(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    (path / "dev0.wtraw").unlink()
    (path / "dev1.wtraw").write_bytes(b"x" * 100)
    assert [p.kind for p in read_capture(path).problems] == ["truncated_file", "damaged_region"]


def test_kernels_survive_a_torn_line_and_the_last_wins(tmp_path: Path) -> None:
    path, _ = truncatable(tmp_path)
    first = (path / "kernels.jsonl").read_bytes()
    record = {**json.loads(first), "name": "again"}
    second = json.dumps({**record, "crc32": text_crc(record)}).encode() + b"\n"
    changed = first.replace(b'"name": "k"', b'"name": "other"')
    assert changed != first
    bad = b"nonsense\n" + b'{"kernel_id": "5"}\n'
    (path / "kernels.jsonl").write_bytes(first + bad + second + changed + first[:20])
    capture = read_capture(path)
    assert [k.name for k in capture.kernels.values()] == ["again"]
    assert [(p.kind, p.count) for p in capture.problems] == [("truncated_file", 1), ("truncated_file", 3)]


def test_find_captures(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for pid in (100, 20, 3):
        write_capture(run / "raw" / f"pid_{pid}", [], [], pid=pid)
    (run / "raw" / "pid_7").mkdir()
    paths = [run / "raw" / f"pid_{pid}" for pid in (3, 20, 100)]
    assert find_captures(run) == paths
    assert find_captures(run / "raw") == paths
    assert find_captures(str(paths[0])) == paths[:1]
    (tmp_path / "empty" / "raw").mkdir(parents=True)
    assert find_captures(tmp_path / "empty") == []
    for bad in (tmp_path, tmp_path / "missing", run / "raw" / "pid_7"):
        with pytest.raises(CaptureError, match="holds no capture"):
            find_captures(bad)


# ----------------------------------------------------------------------------------------------------- user faults
def test_a_directory_that_already_holds_a_capture(tmp_path: Path) -> None:
    new_writer(tmp_path)
    with pytest.raises(WarptraceError, match="already holds a capture"):
        new_writer(tmp_path)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WarptraceError, match="cannot write the capture .*Not a directory") as e:
        new_writer(tmp_path / "file" / "c")
    assert "\n" not in str(e.value)


def test_a_full_disk_is_one_line_and_leaves_whole_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.FileIO):
        room = 300

        def write(self, data: Any) -> int:
            if FullDisk.room <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            part = memoryview(data)[: FullDisk.room]
            FullDisk.room -= len(part)
            return super().write(part)

    monkeypatch.setattr(writer_module.io, "FileIO", FullDisk)
    kernel = simple_kernel()
    writer = new_writer(tmp_path / "c")
    writer.add_kernel(kernel.record)
    add_device(writer)
    device = small_device()
    device.launch(kernel, [marks(3)], main_bytes=128)
    writer.write_control(0, 1, 1)
    with pytest.raises(WarptraceError, match="No space left on device: free some space"):
        writer.write_regions(0, device.images())
    FullDisk.room = 10_000
    writer.write_control(0, 2, 2)
    capture = read_capture(tmp_path / "c")
    assert capture.problems == ()
    assert capture.control()[0]["lost_events"].tolist() == [1, 2]
    writer.write_regions(0, device.images())
    assert clocks(tmp_path / "c") == {(0, 0): [0, 1, 2]}


# ------------------------------------------------------------------------------------------------------------ dump
def test_dump_prints_one_record_a_line(tmp_path: Path) -> None:
    kernel = FakeKernel("gemm", file="g.py")
    load, end = kernel.start("löad", PayloadType.I32), kernel.end("", PayloadType.I32)
    kernel.mark("x")
    warp = FakeWarp(cta=(1, 2, 3), warp=1, sm=3, start_ns=1000)
    token = warp.event(load, 40, payload=0xFFFFFFFF)
    warp.event(3, 50, lane=5)
    warp.event(end, 900, token=token, payload=2)
    warp.exit(1000)
    device = small_device()
    device.launch(kernel, [warp], grid=(2, 3, 4), block=(32, 2, 1), cluster=(2, 1, 1), lane_bytes=128, grid_id=8)
    device.launch(kernel, [FakeWarp(sm=3, start_ns=64)], main_bytes=128)
    lost = FakeWarp(warp=4, sm=1, start_ns=320).exit(1)
    lost.event(3, 0)
    device.launch(kernel, [lost], main_bytes=1 << 15)
    path = write_capture(tmp_path / "c", [device], [kernel])
    out = io.StringIO()
    dump(path, out)
    k = f"{kernel.id:016x}"
    offset = int(device.banks["base"][3])
    entry, entry2 = device.clock64(3, 1000), device.clock64(3, 64)
    low = entry & 0xFFFFFFFF
    link = (offset + 128) // 8 & 0xFFFF
    head, *lines = out.getvalue().splitlines()
    assert head.startswith('capture format "warptrace-capture" version 1 state "complete" pid 4242 argv ["python"')
    size = wire.region_bytes(1024, 128)
    assert lines == [
        'device ordinal 0 name "Fake GPU" uuid "GPU-0" compute_capability "9.0" sm_count 132 clock_khz 1980000 '
        f'driver "0" buffer_bytes 2097152 file "dev0.wtraw" bytes {(path / "dev0.wtraw").stat().st_size}',
        f'kernel {k} symbol "kernel_gemm_0" name "gemm" arch "sm_90a" stride 16 slack 0 lane_events true '
        'max_events null build {"registers": 40} ring false',
        f'site {k} 1 START "löad" I32 "g.py:10"',
        f'site {k} 2 END "" I32 "g.py:20"',
        f'site {k} 3 MARK "x" NONE "g.py:30"',
        f"region 0 device 0 kernel {k} grid_id 8 launch unknown cta 1,2,3 warp 1 sm 3 capacity 1024,120 "
        "grid 2,3,4 block 32,2,1 "
        f"cluster 2,1,1 position 0 offset {offset} main_bytes 1024 lane_bytes 128 stride 16 entry_clock {entry} "
        f"entry_globaltimer {EPOCH_NS + 992} exit_clock {entry + 1000} exit_globaltimer {EPOCH_NS + 1504} advance 32 "
        "closed yes stored 2",
        f'slot 0.0.0 clock {low + 40} site 1 START "löad" payload I32 -1 bits 0xffffffff',
        f'slot 0.0.1 clock {low + 900} site 2 END "" link {link} payload I32 2 bits 0x2',
        "lane 0.5 advance 16 stored 1",
        f'slot 0.5.0 clock {low + 50} site 3 MARK "x"',
        f"region 1 device 0 kernel {k} grid_id 1 launch unknown cta 0,0,0 warp 0 sm 3 capacity 128,0 "
        "grid 1,1,1 block 32,1,1 "
        f"cluster 1,1,1 position {size} offset {offset + size} main_bytes 128 lane_bytes 0 stride 16 "
        f"entry_clock {entry2} entry_globaltimer {EPOCH_NS + 64} closed no stored 0",
        f"lost device 0 lane 0 kernel {k} grid_id 2 cta 0,0,0 warp 4 advance 16 stride 16 sm 1 "
        f"exit_globaltimer {EPOCH_NS + 320}",
        "control device 0 lost_events 1 lost_head 1",
    ]


def test_dump_of_what_is_damaged(tmp_path: Path) -> None:
    path, data = truncatable(tmp_path)
    (path / "dev0.wtraw").write_bytes(data[:-1])
    (path / "kernels.jsonl").unlink()
    out = io.StringIO()
    dump(path, out)
    lines = out.getvalue().splitlines()
    assert [x for x in lines if x.startswith("slot")][0].endswith("site 1 unknown")
    assert lines[-1].startswith("problem truncated_file 1 ") and "47 bytes" in lines[-1]


@pytest.mark.parametrize(
    ("kind", "bits", "value"),
    [
        (PayloadType.I8, 0xFF, -1), (PayloadType.U8, 0xFF, 255), (PayloadType.I16, 0x8000, -32768),
        (PayloadType.U16, 0x8000, 32768), (PayloadType.I32, 0x7FFFFFFF, 2**31 - 1), (PayloadType.I64, 2**63, -(2**63)),
        (PayloadType.U64, 2**63, 2**63), (PayloadType.U32, 2**32 + 5, 5), (PayloadType.BOOL, 1, True),
        (PayloadType.BOOL, 2, False), (PayloadType.F16, 0x3C00, 1.0), (PayloadType.BF16, 0x3F80, 1.0),
        (PayloadType.F32, 0xC0500000, -3.25), (PayloadType.F64, 0x401A000000000000, 6.5),
        (PayloadType.F32, 0x7F800000, math.inf), (PayloadType.NONE, 7, None),
    ],
)  # fmt: skip
def test_payload_values(kind: PayloadType, bits: int, value: Any) -> None:
    result = payload_value(kind, bits)
    assert result == value and type(result) is type(value)


def test_payload_nan() -> None:
    for kind, bits in ((PayloadType.F16, 0x7E00), (PayloadType.BF16, 0x7FC0), (PayloadType.F32, 0x7FC00000)):
        value = payload_value(kind, bits)
        assert isinstance(value, float) and math.isnan(value)


def test_the_fake_image_is_one() -> None:
    """Tests hand the writer their own class: it must have what a BankImage has."""
    assert set(FakeBankImage.__dataclass_fields__) == set(BankImage.__dataclass_fields__)
