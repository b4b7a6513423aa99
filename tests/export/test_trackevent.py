"""The encoder against Perfetto's own protobuf classes: whatever goes in must be what a parser reads."""

from __future__ import annotations

import io
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warptrace.export import trackevent as te

pb: Any = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the encoder is checked with the perfetto package"
)

u64 = st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 127, 128, 16383, 16384, (1 << 63), (1 << 64) - 1])
KINDS = list(te.Kind)
FIELDS = {te.Kind.INT: "int_value", te.Kind.UINT: "uint_value", te.Kind.DOUBLE: "double_value"}
FIELDS |= {te.Kind.BOOL: "bool_value", te.Kind.STRING: "string_value_iid"}


def value_of(annotation: Any) -> tuple[te.Kind, int]:
    """Kind and the 64 bits of an annotation's value."""
    (kind,) = [kind for kind, field in FIELDS.items() if annotation.HasField(field)]
    value = getattr(annotation, FIELDS[kind])
    if kind == te.Kind.DOUBLE:
        return kind, int(np.float64(value).view(np.uint64))
    return kind, int(value) & ((1 << 64) - 1)


@st.composite
def argument_columns(draw: st.DrawFn, count: int) -> list[list[tuple[int, te.Kind, int]]]:
    columns = []
    for _ in range(draw(st.integers(0, 4))):
        rows = []
        for _ in range(count):
            kind = draw(st.sampled_from(KINDS))
            value = draw(st.integers(0, 1) if kind == te.Kind.BOOL else u64)
            # A NaN's bits may change on the way through a Python float.
            if kind == te.Kind.DOUBLE and np.isnan(np.uint64(value).view(np.float64)):
                value = 0
            rows.append((draw(st.integers(1, 300)), kind, value))
        columns.append(rows)
    return columns


@settings(deadline=None)
@given(st.data())
def test_events(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    column = st.lists(u64, min_size=count, max_size=count)
    ns, track, name = (data.draw(column) for _ in range(3))
    kind = data.draw(st.lists(st.sampled_from([te.BEGIN, te.END, te.INSTANT]), min_size=count, max_size=count))
    arguments = data.draw(argument_columns(count))
    whole = te.Group(
        te.END,
        np.arange(count),
        np.array(ns, np.uint64),
        np.array(track, np.uint64),
        np.array(name, np.uint64),
        [
            te.Argument(
                np.array([row[0] for row in rows], np.uint64),
                np.array([row[1] for row in rows], np.uint8),
                np.array([row[2] for row in rows], np.uint64),
            )
            for rows in arguments
        ],
    )
    kinds = [(one, np.flatnonzero(np.array(kind) == one)) for one in (te.BEGIN, te.END, te.INSTANT)]
    encoded = te.block([replace(whole.part(rows), kind=one) for one, rows in kinds])
    packets = pb.Trace.FromString(encoded.tobytes()).packet
    assert len(packets) == count
    for i, packet in enumerate(packets):
        event = packet.track_event
        assert (packet.timestamp, event.type, event.track_uuid) == (ns[i], kind[i], track[i])
        assert (packet.trusted_packet_sequence_id, packet.sequence_flags) == (te.SEQUENCE_ID, te.NEEDS_STATE)
        assert event.HasField("name_iid") == (kind[i] != te.END)
        assert event.name_iid == (name[i] if kind[i] != te.END else 0)
        got = [(a.name_iid, *value_of(a)) for a in event.debug_annotations]
        assert got == [rows[i] for rows in arguments if rows[i][1] != te.Kind.NONE]


@given(st.lists(st.tuples(u64, u64, st.text(max_size=80).map(lambda t: t * 4), st.integers(0, 2**31 - 1)), min_size=1))
def test_tracks(rows: list[tuple[int, int, str, int]]) -> None:
    rows = [(uuid, parent, name.encode(errors="ignore").decode(), rank) for uuid, parent, name, rank in rows]
    names = sorted({row[2] for row in rows})
    encoded = te.tracks(
        np.array([row[0] for row in rows], np.uint64),
        np.array([row[1] for row in rows], np.uint64),
        te.text_table(names),
        np.array([names.index(row[2]) for row in rows]),
        np.array([row[3] for row in rows], np.uint64),
    )
    got = [packet.track_descriptor for packet in pb.Trace.FromString(encoded.tobytes()).packet]
    assert [(t.uuid, t.parent_uuid, t.name, t.sibling_order_rank) for t in got] == rows
    assert all(t.HasField("parent_uuid") == (row[1] != 0) for t, row in zip(got, rows, strict=True))


def test_a_length_of_two_bytes() -> None:
    names = ["x" * size for size in (100, 126, 127, 128, 255, 1000)]
    index = np.arange(len(names))
    numbers = index.astype(np.uint64)
    encoded = te.tracks(numbers, numbers, te.text_table(names), index, numbers)
    assert [p.track_descriptor.name for p in pb.Trace.FromString(encoded.tobytes()).packet] == names


def test_single_messages() -> None:
    data = te.interned([(1, "a"), (300, "é")], [(2, "n")], [(3, "s")], flags=3) + te.clock_snapshot(5)
    data += te.event(7, te.BEGIN, 9, "x", te.annotation("i", -1), te.annotation("u", 1 << 63))
    data += te.event(8, te.END, 9, "", te.annotation("b", True), te.annotation("d", 0.5), te.annotation("t", "z"))
    first, clock, begin, end = pb.Trace.FromString(data).packet
    interned = first.interned_data
    assert [(e.iid, e.name) for e in interned.event_names] == [(1, "a"), (300, "é")]
    assert [(e.iid, e.name) for e in interned.debug_annotation_names] == [(2, "n")]
    assert [(e.iid, e.str) for e in interned.debug_annotation_string_values] == [(3, b"s")]
    assert first.sequence_flags == 3
    assert [(c.clock_id, c.timestamp) for c in clock.clock_snapshot.clocks] == [(6, 0), (1, 5)]
    assert clock.clock_snapshot.primary_trace_clock == 6
    assert (begin.timestamp, begin.track_event.name, begin.track_event.type) == (7, "x", te.BEGIN)
    assert [(a.name, a.int_value, a.uint_value) for a in begin.track_event.debug_annotations] == [
        ("i", -1, 0),
        ("u", 0, 1 << 63),
    ]
    assert not end.track_event.HasField("name")
    boolean, double, text = end.track_event.debug_annotations
    assert (boolean.bool_value, double.double_value, text.string_value) == (True, 0.5, "z")


@pytest.mark.parametrize("compress", [False, True])
def test_packet_file_keeps_order_across_blocks(compress: bool) -> None:
    file = io.BytesIO()
    with te.PacketFile(file, compress) as out:
        out.BLOCK_BYTES = 100
        for ns in range(200):
            out.write(te.event(ns, te.INSTANT, 1, "x"))
    packets = list(pb.Trace.FromString(file.getvalue()).packet)
    if compress:
        assert all(packet.HasField("compressed_packets") for packet in packets)
        blocks = [pb.Trace.FromString(zlib.decompress(packet.compressed_packets)) for packet in packets]
        packets = [packet for block in blocks for packet in block.packet]
    assert [packet.timestamp for packet in packets] == list(range(200))


def test_packet_file_raises_what_the_block_raised() -> None:
    with pytest.raises(KeyError), te.PacketFile(io.BytesIO(), True) as out:
        out.write(te.event(1, te.INSTANT, 1, "x"))
        raise KeyError("mine")
