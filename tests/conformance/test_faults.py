"""Deliberate faults in the device operations: the table must see each of them, in the case named beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

pytest.importorskip("cutlass")

from warptrace import wire
from warptrace.device import ptx
from warptrace.emulator import EmulatorError
from warptrace.errors import WarptraceError
from warptrace.frontends.cute import lower, uniform

from .cases import BY_NAME
from .check import check
from .runners import EmulatorRunner

pytestmark = pytest.mark.dsl


@dataclass(frozen=True)
class Fault:
    """``plant`` changes the device operations for one test; ``cases``: each of them must fail then."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    cases: tuple[str, ...]


def text_fault(
    name: str,
    function: str,
    old: str,
    new: str,
    *cases: str,
    wide: bool = False,
    ring: bool = False,
    whole: bool = False,
) -> Fault:
    """Replaces a piece of the text of one of ``ptx``'s operations; ``wide``, ``ring``, ``whole``: one that only kernels
    of this form have."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(ptx, function)

        def faulty(*args: Any, **kwargs: Any) -> ptx.Asm:
            asm = original(*args, **kwargs)
            return replace(asm, text=asm.text.replace(old, new))

        together = wide or whole
        facts = ptx.KernelFacts(1, 16, not together, 16, True, wide, ring=ring, whole=together and not ring)
        event = (1, 16, "i64"), {"linked": True, "ring": ring}
        nothing: tuple[Any, Any] = (), {}
        sample = {"event": event, "wide_event": event}
        sample |= dict.fromkeys(("run_lanes", "record_lanes"), ((16,), {}))
        records = [ptx.RunRecord(3, False, "i32", False), ptx.RunRecord(4, True, "i64", False)]
        sample["run"] = (1, 16, records), {}
        sample |= dict.fromkeys(("leader", "broadcast", "lane_tag"), nothing)
        args, kwargs = sample.get(function, ((facts,), {}))
        assert old in original(*args, **kwargs).text, f"the fault '{name}' no longer applies"
        patch.setattr(ptx, function, faulty)

    return Fault(name, plant, cases)


class _Proxy:
    """A module with some functions replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _no_limit(patch: pytest.MonkeyPatch) -> None:
    """The next slot is that of the cursor, beyond the limit too."""
    patch.setattr(lower, "arith", _Proxy(lower.arith, minui=lambda slot, limit: slot))


def _no_region_test(patch: pytest.MonkeyPatch) -> None:
    """Events are stored whether the warp has a region or not."""
    arith = lower.arith

    def cmpi(predicate: Any, left: Any, right: Any) -> Any:
        if predicate == arith.CmpIPredicate.ugt:
            return arith.cmpi(arith.CmpIPredicate.eq, left, left)
        return arith.cmpi(predicate, left, right)

    patch.setattr(lower, "arith", _Proxy(arith, cmpi=cmpi))


def _payload_does_not_advance(patch: pytest.MonkeyPatch) -> None:
    """Groups with a payload leave the cursor where it was."""
    group, store = lower._Lowering._group, lower.llvm.store
    current: list[Any] = []

    def faulty_group(self: Any, events: Any) -> None:
        current.append(events)
        group(self, events)
        current.pop()

    def faulty_store(*args: Any, **kwargs: Any) -> Any:
        if current and any(e.payload != wire.PayloadType.NONE for e in current[-1].events):
            return None
        return store(*args, **kwargs)

    patch.setattr(lower._Lowering, "_group", faulty_group)
    patch.setattr(lower, "llvm", _Proxy(lower.llvm, store=faulty_store))


def _link_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A token names the slot behind that of its start."""
    token = lower._Lowering._token
    patch.setattr(lower._Lowering, "_token", lambda self, off, index: token(self, off, index + 1))


def _no_sentinel_test(patch: pytest.MonkeyPatch) -> None:
    """An END is recorded whatever its token."""
    arith = lower.arith
    patch.setattr(lower, "_is_real", lambda token: arith.cmpi(arith.CmpIPredicate.eq, token, token))


def _no_guards(patch: pytest.MonkeyPatch) -> None:
    """Lanes that hold a sentinel take part in the election of an END's leader."""
    patch.setattr(lower, "_guard_ends", lambda events, uniformity: None)


def _all_together(patch: pytest.MonkeyPatch) -> None:
    """The analysis takes every block for one that whole warps enter."""
    patch.setattr(uniform.Uniformity, "block", lambda self, block: True)


def _all_same(patch: pytest.MonkeyPatch) -> None:
    """The analysis takes every value for one that all lanes have."""
    patch.setattr(uniform.Uniformity, "value", lambda self, value: True)


def _no_slack(patch: pytest.MonkeyPatch) -> None:
    """No room is kept for the later events of a group."""
    facts, record = ptx.KernelFacts, lower.KernelRecord
    patch.setattr(ptx, "KernelFacts", lambda **k: facts(**{**k, "slack": 0}))
    patch.setattr(lower, "KernelRecord", lambda *a, **k: replace(record(*a, **k), slack=0))


def _no_trim(patch: pytest.MonkeyPatch) -> None:
    """What is too much of a region's main bytes counts as room."""
    patch.setattr(wire, "slot_bytes", lambda main: main & -wire.REGION_ALIGN)


def _cluster_swapped(patch: pytest.MonkeyPatch) -> None:
    """Host code packs a cluster's rows for its columns."""
    pack = wire.pack_cluster
    patch.setattr(wire, "pack_cluster", lambda x, y, z: pack(y, x, z))


def _another_capacity(patch: pytest.MonkeyPatch) -> None:
    """Host code tells a slot more than there is."""
    pack = wire.pack_capacity
    patch.setattr(wire, "pack_capacity", lambda main, lane: pack(main + 16, lane))


def _sites_shifted(patch: pytest.MonkeyPatch) -> None:
    """Records carry the number of the next site."""
    event = lower._Lowering._event

    def faulty(self: Any, e: Any, *rest: Any, **more: Any) -> None:
        event(self, replace(e, site=e.site + 1), *rest, **more)

    patch.setattr(lower._Lowering, "_event", faulty)


def _ring_without_mask(patch: pytest.MonkeyPatch) -> None:
    """The slot of a ring is the event's number."""
    patch.setattr(lower._RingLowering, "_wrapped", lambda self, off: off)


def _ring_tag_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A start's tag is the number of the next event."""
    tag, arith, constant = lower._RingLowering._tag, lower.arith, lower.constant
    patch.setattr(lower._RingLowering, "_tag", lambda self, off: tag(self, arith.addi(off, constant(1, "i32"))))


def _ring_counts_bytes(patch: pytest.MonkeyPatch) -> None:
    """The cursor of a ring moves by bytes."""
    patch.setattr(lower._RingLowering, "_step", property(lambda self: self._facts.stride))


def _ring_lines_share_a_slot(patch: pytest.MonkeyPatch) -> None:
    """All events of a line go to the slot of the first."""
    event = lower._RingLowering._event
    patch.setattr(
        lower._RingLowering, "_event", lambda self, e, index, *rest, **more: event(self, e, 0, *rest, **more)
    )


FAULTS = [
    text_fault(
        "the leader is the last active lane", "leader", "%lanemask_lt", "%lanemask_gt", "odd_even", "lane_trips"
    ),
    text_fault("lane 0 always leads", "leader", "activemask.b32 m", "mov.u32 m,-1", "odd_even", "first_active_lane"),
    text_fault("every active lane leads", "leader", "and.b32 m,m,l", "mov.u32 m,0", "odd_even"),
    Fault("no limit", _no_limit, ("room_31_for_100_payload", "room_1_for_20_grouped")),
    Fault("no test for a region", _no_region_test, ("no_room_at_all", "SILENT every_call")),
    Fault("payload events do not advance the cursor", _payload_does_not_advance, ("every_call", "payload_integers")),
    Fault("token link off by one", _link_off_by_one, ("tokens_overlapping_3", "token_across_iterations_4")),
    text_fault(
        "tokens are not broadcast",
        "broadcast",
        "shfl.sync.idx.b32 <all>,<value>,l,31,m",
        "mov.b32 <all>,<value>",
        "token_ended_by_subset",
    ),
    text_fault("the link is left out", "event", "or.b32 c,<token>,<code>", "mov.b32 c,<code>", "token_ended_by_subset"),
    Fault("sentinel test dropped", _no_sentinel_test, ("token_unguarded_1", "token_merged_2")),
    Fault("ENDs with a sentinel in some lanes are not guarded", _no_guards, ("token_started_by_subset",)),
    text_fault(
        "count not written",
        "close",
        "@q st.global.v4.u32 [a+96],{f,t,n,m}",
        "@q st.global.u32 [a+100],t; @q st.global.v2.u32 [a+104],{n,m}",
        "odd_even",
    ),
    text_fault("count of a whole warp not written", "close", "mov.b32 w0,f", "mov.b32 w0,0", "only_event", whole=True),
    text_fault("a lane's count not written", "close", "@q st.global.v2.u32 [a],{f,t}; ", "", "single_lane_5_3"),
    text_fault("the warp is not closed", "close", "[a+96],{f,t,n,m}", "[a+96],{f,f,n,m}", "odd_even"),
    text_fault("the whole warp is not closed", "close", "mov.b32 w1,closed", "mov.b32 w1,f", "only_event", whole=True),
    text_fault(
        "the exit's timer is the clock", "close", "mov.u64 y,%globaltimer", "mov.u64 y,x", "only_event", whole=True
    ),
    text_fault(
        "a piece of a wide close elsewhere", "close", "mad.lo.u32 n,b,12,n", "mad.lo.u32 n,b,16,n", "loops_4", wide=True
    ),
    text_fault(
        "five pieces of a header", "open_region", "setp.lt.and.u32 q,b,6,r", "setp.lt.and.u32 q,b,5,r", "only_event",
        whole=True,
    ),
    text_fault(
        "two pieces of a header swapped", "open_region", "setp.eq.u32 q,b,1", "setp.eq.u32 q,b,2", "only_event",
        whole=True,
    ),
    text_fault("all lanes claim", "entry", "setp.eq.and.u32 p,b,0,c", "and.pred p,c,c", "only_event", whole=True),
    text_fault(
        "the claim is the lane's", "open_region", "shfl.sync.idx.b32 f,f,0,31,-1", "mov.u32 f,f", "only_event",
        whole=True,
    ),
    text_fault(
        "lane blocks one too far",
        "open_region",
        "setp.ne.u32 q,s,0; sub.u32 s,s,1; ",
        "setp.ne.u32 q,s,0; ",
        "single_lane_31_64",
        "odd_even",
    ),
    text_fault(
        "lane blocks without a header",
        "open_region",
        f"@q add.u32 n,s,{wire.LANE_HEADER_BYTES}",
        "@q mov.u32 n,s",
        "odd_even",
    ),
    text_fault("the clock is a constant", "event", "mov.u32 t,%clock", "mov.u32 t,7", "odd_even"),
    text_fault("the wide clock is a constant", "wide_event", "mov.u32 t,%clock", "mov.u32 t,7", "payload_by_lane"),
    text_fault("the payload beside its slot", "event", "[a+24],<payload>", "[a+28],<payload>", "payload_f64"),
    text_fault(
        "64-bit payloads cut",
        "event",
        "st.global.b64 [a+24],<payload>",
        "cvt.u32.u64 t,<payload>; @<store> st.global.b32 [a+24],t",
        "payload_f64",
    ),
    text_fault("grouped events share a slot", "event", "[a+16],{t,c}", "[a],{t,c}", "odd_even"),
    text_fault(
        "clock and code swapped",
        "wide_event",
        "selp.b32 t,t,c,<isclock>",
        "selp.b32 t,c,t,<isclock>",
        "payload_by_lane",
    ),
    text_fault(
        "payload halves swapped", "wide_event", "selp.b32 h,k,h,<last>", "selp.b32 h,h,k,<last>", "payload_by_lane",
    ),
    text_fault(
        "the payload in the code's place", "wide_event", "selp.b32 c,c,h,<iscode>", "mov.b32 c,h", "payload_by_lane",
    ),
    text_fault("wide records share a slot", "wide_event", "[a+16],t", "[a],t", "payload_by_lane"),
    text_fault(
        "the link is left out of wide records",
        "wide_event",
        "or.b32 c,<token>,<code>",
        "mov.b32 c,<code>",
        "tokens_in_flight_2",
    ),
    text_fault(
        "only the clock is stored", "record_lanes", "setp.lt.u32 <word>,l,4", "setp.lt.u32 <word>,l,1", "every_call"
    ),
    text_fault(
        "64-bit payloads cut in wide records", "record_lanes", "setp.lt.u32 <word>,l,4", "setp.lt.u32 <word>,l,3",
        "payload_by_lane",
    ),
    text_fault(
        "records reach into the next", "record_lanes", "setp.lt.u32 <word>,l,4", "setp.lt.u32 <word>,l,5",
        "room_31_for_100_payload",
    ),
    text_fault(
        "all lanes at lane 0's slot",
        "open_region",
        "shl.b32 s,b,2; selp.b32 s,s,0,r",
        "mov.u32 s,0",
        "every_call",
        wide=True,
    ),
    text_fault(
        "lanes without a region store",
        "open_region",
        "selp.b32 <limit>,t,w,r",
        "mov.u32 <limit>,64",
        "no_room_at_all",
        wide=True,
    ),
    text_fault("records of a run share a code", "run", "add.u32 c,<record>,", "add.u32 c,0,", "every_call"),
    text_fault("links are left out of runs", "run", "or.b32 c,c,<token", "and.b32 c,c,<token", "token_merged_7"),
    text_fault("payload halves swapped in runs", "run", "mov.b64 {h,k},", "mov.b64 {k,h},", "payload_constants"),
    text_fault("a run is one record short", "run", "setp.lt.u32 q,<record>,", "setp.lt.u32 q,1,", "every_call"),
    text_fault("the clock in the code's place of runs", "run", "selp.b32 t,t,c,", "selp.b32 t,c,t,", "every_call"),
    text_fault(
        "records of a run are taken for pairs",
        "run_lanes",
        "shr.u32 <record>,l,2",
        "shr.u32 <record>,l,1",
        "every_call",
    ),
    text_fault("payloads in the code's place of runs", "run_lanes", "<code>,w,1", "<code>,w,2", "payload_constants"),
    text_fault("no last word in runs", "run_lanes", "<last>,w,3", "<last>,w,4", "payload_constants"),
    Fault("payloads count as the same in all lanes", _all_same, ("payload_by_lane",)),
    Fault("sites shifted by one", _sites_shifted, ("every_call",)),
    Fault("every block counts as whole warps", _all_together, ("odd_even", "first_active_lane", "shape_7x9x1")),
    Fault("no slack behind a group", _no_slack, ("room_10_for_17_grouped",)),
    text_fault("trim of odd sizes left out", "open_region", "sub.u32 t,t,trim; ", "", "lanes_room_2_for_14"),
    Fault("trim of odd sizes left out of the room", _no_trim, ("room_20_for_21",)),
    text_fault(
        "a claim always finds room", "open_region", "setp.le.and.u64 r,x,a,e", "and.pred r,e,e", "no_room_at_all"
    ),
    text_fault("lost events not counted", "close", "red.global.add.u64 [<control>+8],g;", "", "no_room_at_all"),
    text_fault("lost table row of another lane", "close", "{s,b,m,t}; ", "{s,w,m,t}; ", "no_room_at_all_lanes"),
    text_fault("lost counts in bytes of 8", "close", "{s,w,f,t}", "{s,w,n,t}", "no_room_at_all"),
    Fault("cluster rows and columns swapped", _cluster_swapped, ("cluster_2x1",)),
    Fault("the header tells another capacity", _another_capacity, ("room_20_for_21", "ring_room_16_for_51")),
    text_fault("block dimensions swapped", "open_region", "mov.u32 s,%ntid.y", "mov.u32 s,%ntid.z", "shape_7x9x1"),
    text_fault("CTA x for y", "open_region", "mov.u32 m,%ctaid.y", "mov.u32 m,%ctaid.x", "shape_5x3x3_grid_2x3x2"),
    text_fault(
        "another grid's number",
        "open_region",
        "mov.u64 g,%gridid; mov.b64 {s,t},g",
        "mov.u32 s,1; mov.u32 t,0",
        "odd_even_twice",
    ),
    text_fault(
        "another grid's number of whole warps", "open_region", "mov.u64 x,%gridid", "mov.u64 x,1", "several_kernels",
        whole=True,
    ),
    Fault("a ring without its mask", _ring_without_mask, ("ring_room_16_for_17", "ring_room_8_for_20_grouped")),
    Fault("tags of a ring off by one", _ring_tag_off_by_one, ("ring_enclosing_3_room_32", "ring_lane_tokens_9_room_4")),
    Fault("a ring counts bytes", _ring_counts_bytes, ("ring_room_16_for_15", "ring_room_16_for_15_payload")),
    Fault("a line of a ring shares a slot", _ring_lines_share_a_slot, ("ring_room_8_for_20_grouped",)),
    text_fault(
        "a ring's mask is its size", "open_region", "sub.u32 <mask>,t,1", "mov.u32 <mask>,t", "ring_room_16_for_17",
        ring=True,
    ),
    text_fault(
        "a ring twice as large", "open_region", "shr.u32 t,134217728,t", "shr.u32 t,268435456,t",
        "ring_room_16_for_51_payload", "ring_anchored_9_room_2", ring=True,
    ),
    text_fault(
        "a ring half as large", "open_region", "shr.u32 t,134217728,t", "shr.u32 t,67108864,t",
        "ring_room_16_for_16_payload", ring=True,
    ),
    text_fault(
        "a ring one slot late", "open_region", "selp.b64 <ring>,x,g,r", "add.u64 x,x,16; selp.b64 <ring>,x,g,r",
        "ring_room_16_for_15_payload", ring=True,
    ),
    text_fault(
        "a lane's ring as large as the main one", "open_region", "@q sub.u32 t,lane,", "@q sub.u32 t,main,",
        "ring_lanes_room_14_for_56", ring=True,
    ),
    text_fault(
        "a ring says that it keeps the first", "open_region", str(wire.RING_MAGIC), str(wire.REGION_MAGIC),
        "ring_room_16_for_15", ring=True,
    ),
    text_fault(
        "a wide ring's lanes share a word", "open_region", "shl.b32 s,s,2; add.u32 n,n,s", "shl.b32 s,s,2",
        "ring_room_16_for_15", wide=True, ring=True,
    ),
    text_fault(
        "a ring's count off by one", "close", "mov.u32 f,<off>", "add.u32 f,<off>,1", "ring_only_event", ring=True
    ),
    text_fault(
        "a lane's count of a ring not written", "close", "@q st.global.v2.u32 [a],{f,t}; ", "",
        "ring_single_lane_5_3", ring=True,
    ),
    text_fault(
        "tags without the lane", "lane_tag", "shl.b32 <bits>,l", "mov.u32 l,0; shl.b32 <bits>,l",
        "ring_lane_tokens_9_room_4",
    ),
    text_fault(
        "starts of a ring without tags", "event", "or.b32 c,<token>,<code>", "mov.b32 c,<code>",
        "ring_lane_tokens_3_room_16", ring=True,
    ),
    text_fault(
        "starts of a wide ring without tags", "wide_event", "or.b32 c,<token>,<code>", "mov.b32 c,<code>",
        "ring_enclosing_3_room_32", wide=True, ring=True,
    ),
    text_fault("warp number without rows", "open_region", "mad.lo.u32 w,w,t,s; shr.u32", "shr.u32", "shape_32x2x2"),
]
PAIRS = [(f, c) for f in FAULTS for c in f.cases]


@pytest.mark.parametrize(("fault", "name"), PAIRS, ids=[f"{f.name}-{c}" for f, c in PAIRS])
def test_the_table_sees(fault: Fault, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    assert _failure(name) is not None


def _failure(name: str) -> str | None:
    """How the case fails, or None. Compiling it must not."""
    silent = name.startswith("SILENT ")
    case = BY_NAME[name.removeprefix("SILENT ")]
    runner = EmulatorRunner()
    runner.kernels(case)
    try:
        found = [] if silent else check(case, runner.run(case))
        if silent:
            runner.run_silent(case, events=True)
    except (AssertionError, EmulatorError, WarptraceError, LookupError) as e:
        return f"{type(e).__name__}: {e}"
    return "; ".join(itertools.islice(found, 2)) or None


if __name__ == "__main__":  # python -m conformance.test_faults, in tests/: how each fault shows
    for fault, name in PAIRS:
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            print(f"{fault.name} | {name} | {(_failure(name) or 'NOT SEEN')[:160]}", flush=True)
