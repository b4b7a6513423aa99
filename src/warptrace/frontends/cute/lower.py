"""From placeholders to device operations: runs when the DSL has traced a module, before it is hashed and compiled.

Only then is all known that makes an event cheap: whether the whole warp executes it together (lane 0 leads, no vote),
which events stand in one straight line (they share leader, room test and cursor update and use constant offsets),
whether any event has a payload (slots of 8 or of 16 bytes), and where the first event is (the claim's result is not
needed before).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm, scf

from ... import registry, wire
from ...device import ptx
from ...errors import WarptraceError
from ...selection import KernelSelection
from ...sites import KernelRecord, Site, kernel_id
from ...wire import EventKind, PayloadType
from . import anchors, balance, early, gaps, hidden
from .events import PLACEHOLDER, EventError, erase_events, payload_mismatch
from .ir_tools import (
    BRANCHES,
    TERMINATORS,
    constant,
    contained,
    emit,
    int_type,
    is_argument,
    kernels,
    plain_value,
    symbol,
    walk,
)
from .uniform import Uniformity

MAX_GROUP = 8
"""Events in a group at most: a group needs room for its last event behind the limit of the cursor."""

_STRAIGHT = (
    "arith.", "llvm.mlir.constant", "llvm.extractvalue", "llvm.bitcast", "cute.make_", "cute.get_", "cute.static",
)  # fmt: skip
"""Operations that may stand between the events of a group whose leader is elected: nothing that could make lanes part
or meet."""

_FREE = ("arith.constant", "llvm.mlir.constant", "llvm.extractvalue", "llvm.bitcast", "cute.static")
"""Operations that are no instruction."""

_BRIEF = tuple(
    f"arith.{name}"
    for name in (
        "addi", "subi", "muli", "andi", "ori", "xori", "shli", "shrui", "shrsi", "cmpi", "select", "minui", "minsi",
        "maxui", "maxsi", "extui", "extsi", "trunci", "index_cast", "index_castui", "bitcast",
    )
)  # fmt: skip
"""Operations of one integer instruction or two: what makes the payload of an event that follows another."""

MOST_BRIEF = 4
"""Brief operations between two events that share a stamp: what they take, some 20 cycles, is less than an event costs.
Anything else between two events takes time that a user may want to see."""


MOST_NARROW = 8
"""A warp that records no more events than this has them stored by lane 0: what other lanes would have to know first
costs more than it saves."""


@dataclass(frozen=True)
class Event:
    """A placeholder read back from the IR. ``site`` is its number in the kernel's table (0: not numbered yet);
    ``anchor``: its records carry %globaltimer too."""

    op: Any
    kind: EventKind
    name: str
    payload: PayloadType
    file: str
    line: int
    anchor: bool = False
    gap: gaps.Gap = gaps.Gap(True, False, False)
    site: int = 0

    @property
    def token(self) -> Any:
        """The token operand of an END."""
        return plain_value(self.op.operands[0])

    def as_site(self) -> Site:
        flags = (self.anchor, self.gap.high, self.gap.late)
        return Site(self.site, self.kind, self.name, self.payload, self.file, self.line, *flags)

    @property
    def payload_bits(self) -> Any | None:
        """The payload operand (i32 or i64), or None."""
        if self.payload == PayloadType.NONE:
            return None
        return plain_value(self.op.operands[1 if self.kind == EventKind.END else 0])


@dataclass(frozen=True)
class Group:
    """Events of one straight line. ``together``: the whole warp executes them, so lane 0 leads. ``maybe_none``: it is
    a single END whose token may be a sentinel. ``near``: for each event, whether nothing that takes time lies between
    it and the one before."""

    events: tuple[Event, ...]
    together: bool
    maybe_none: bool
    near: tuple[bool, ...]


def finalize(module: Any, arch: str, *, ring: bool = False) -> list[KernelRecord]:
    """Lowers every kernel of ``module`` that holds events. Returns their records. ``ring``: they keep their newest
    events, not their first.

    Announces each kernel to :mod:`warptrace.registry`. Raises WarptraceError if a kernel has too many sites.
    """
    with contained(module):
        lowered = _lower_kernels(module, arch, ring)
    for record in lowered:
        registry.announce(record)
    return lowered


def _lower_kernels(module: Any, arch: str, ring: bool) -> list[KernelRecord]:
    lowered = []
    selection = registry.selection()
    mixed = hidden.mixed_clusters(module)
    for kernel in kernels(module):
        if not selection.wants(symbol(kernel)) and erase_events(kernel):
            registry.announce_deselected(symbol(kernel))
            continue
        if selection.lifetimes:
            erase_events(kernel)
        _drop_ends_of_nothing(kernel)
        events = _collect(kernel)
        if events or (selection.lifetimes and selection.wants(symbol(kernel))):
            chosen = selection.of(symbol(kernel))
            ring_here, mixed_here = ring and bool(events), symbol(kernel) in mixed
            lowered.append(_lower_kernel(kernel, events, arch, chosen, ring=ring_here, mixed=mixed_here))
        else:
            registry.announce_without_events(symbol(kernel))
    hidden.rewrite_launches(module, {record.symbol: record for record in lowered})
    return lowered


def _collect(kernel: Any) -> list[Event]:
    events: list[Event] = []

    def visit(op: Any) -> None:
        if PLACEHOLDER not in op.attributes:
            return
        kind = EventKind(_int_attribute(op, PLACEHOLDER))
        payload = PayloadType(_int_attribute(op, f"{PLACEHOLDER}_payload"))
        name = str(ir.StringAttr(op.attributes[f"{PLACEHOLDER}_name"]).value)
        file = str(ir.StringAttr(op.attributes[f"{PLACEHOLDER}_file"]).value)
        line = _int_attribute(op, f"{PLACEHOLDER}_line")
        events.append(Event(op, kind, name, payload, file, line))

    walk(kernel, visit)
    return events


def _with_anchors(events: list[Event]) -> list[Event]:
    return [replace(e, anchor=a) for e, a in zip(events, anchors.choose(events), strict=True)]


def _with_gaps(kernel: Any, events: list[Event], ring: bool) -> list[Event]:
    found = gaps.analyse(kernel, {e.op: e for e in events}, ring=ring)
    return [replace(e, gap=found[e.op]) for e in events]


def _together(block: Any, uniform: Uniformity) -> bool:
    """Whether lane 0 leads the events of a block: the whole warp executes them, and no copy of them is made later."""
    return uniform.block(block) and not _pipelined(block)


def _numbered(kernel: Any, events: list[Event]) -> list[Event]:
    """The events with their site numbers: copies of one call, from an unrolled loop, are one site."""
    sites: dict[tuple[Any, ...], int] = {}
    numbered = []
    for e in events:
        key = (e.kind, e.name, e.payload, e.file, e.line, e.anchor, e.gap.late, e.gap.high)
        numbered.append(replace(e, site=sites.setdefault(key, len(sites) + 1)))
    if len(sites) > wire.MAX_SITES:
        raise WarptraceError(
            f"kernel {symbol(kernel)} has {len(sites)} event sites; at most {wire.MAX_SITES} fit a record: "
            "use fewer names, with payloads in their place"
        )
    return numbered


def _drop_ends_of_nothing(kernel: Any) -> None:
    """Erases the ENDs of what is always a sentinel."""
    dead = []

    def visit(op: Any) -> None:
        if PLACEHOLDER in op.attributes and _int_attribute(op, PLACEHOLDER) == EventKind.END:
            token = plain_value(op.operands[0])
            if not is_argument(token) and token.owner.name == "llvm.mlir.constant":  # no other constant is a token
                dead.append(op)

    walk(kernel, visit)
    for op in dead:
        op.erase()


def _check_payloads(events: list[Event]) -> None:
    """Raises EventError where the payload of an END cannot match that of its start."""
    for event in events:
        if event.kind == EventKind.END and (reason := payload_mismatch(event.token, event.payload)):
            raise EventError(f"{event.file}:{event.line}: {reason}")


def _int_attribute(op: Any, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _lower_kernel(
    kernel: Any, events: list[Event], arch: str, selection: KernelSelection, *, ring: bool, mixed: bool
) -> KernelRecord:
    _check_payloads(events)
    balance.check(kernel, {e.op: e for e in events})
    uniform = Uniformity(kernel)
    events = _numbered(kernel, _with_anchors(_with_gaps(kernel, events, ring)))
    _guard_ends(events, uniform)
    groups = _groups(kernel, {e.op: e for e in events}, uniform)
    stride = 16 if any(e.payload != PayloadType.NONE or e.anchor for e in events) else 8
    lanes = any(not g.together for g in groups)
    table = {e.site: e.as_site() for e in events}
    sites = tuple(table.values())
    most = _most_events(kernel, events)
    whole = not lanes and uniform.whole_warps()
    facts = ptx.KernelFacts(
        kernel_id=kernel_id(symbol(kernel), sites, selection, ring=ring),
        stride=stride,
        lanes=lanes,
        slack=0 if ring else max((len(g.events) for g in groups), default=0) * stride,
        clusters=_has_clusters(arch),
        wide=(ring or most is None or most > MOST_NARROW) and whole,
        selection=None if selection.everything else selection,
        ring=ring,
        whole=whole and not ring,
        mixed=mixed,
        block=uniform.packed_block() if whole and not ring else 0,
    )
    (_RingLowering if ring else _Lowering)(kernel, facts, groups, uniform).run()
    return KernelRecord(
        facts.kernel_id, symbol(kernel), symbol(kernel), arch, stride, facts.slack, lanes, most, sites,
        selection=selection, ring=ring,
    )  # fmt: skip


def _guard_ends(events: list[Event], uniform: Uniformity) -> None:
    """Puts an END into a branch of its own where some lanes of the warp may hold a sentinel and others a token: the
    leader must be one of those that end a range."""
    for event in events:
        if event.kind != EventKind.END or not _maybe_sentinel(event) or uniform.value(event.token):
            continue
        with ir.InsertionPoint(event.op), event.op.location:
            branch = scf.IfOp(_is_real(event.token))
            with ir.InsertionPoint(branch.then_block):
                end = scf.YieldOp([])
        event.op.move_before(end.operation)


def _is_real(token: Any) -> Any:
    return arith.cmpi(arith.CmpIPredicate.ne, token, constant(wire.SENTINEL_TOKEN, "i32"))


def _has_clusters(arch: str) -> bool:
    digits = "".join(c for c in arch.removeprefix("sm_") if c.isdigit())
    return digits.isdigit() and int(digits) >= 90


def _most_events(kernel: Any, events: list[Event]) -> int | None:
    """Most events that one lane can record: their number where none stands in a loop, else None."""
    if len(kernel.regions[0].blocks) > 1:
        return None
    for event in events:
        op = event.op.block.owner.operation
        while op != kernel:
            if op.name not in BRANCHES:
                return None
            op = op.block.owner.operation
    return len(events)


def _groups(kernel: Any, events: dict[Any, Event], uniform: Uniformity) -> list[Group]:
    groups: list[Group] = []

    def block(b: Any) -> None:
        together = None
        line: list[Event] = []
        near: list[bool] = []
        brief = 0  # brief operations since the last event; too many once something else was met

        def flush() -> None:
            if line:
                groups.append(Group(tuple(line), bool(together), _alone(line[0]), tuple(near)))
                line.clear()
                near.clear()

        for op in (o.operation for o in b.operations):
            event = events.get(op)
            if event is not None:
                if together is None:
                    together = _together(b, uniform)
                if len(line) == MAX_GROUP or _alone(event) or (line and _alone(line[-1])) or _pipelined(b):
                    flush()
                near.append(bool(line) and brief <= MOST_BRIEF)
                line.append(event)
                brief = 0
                continue
            if op.name not in _FREE:
                brief += 1 if op.name in _BRIEF else MOST_BRIEF + 1
            if len(op.regions):
                if _holds_event(op, events) or not together:
                    flush()
                for region in op.regions:
                    for inner in region.blocks:
                        block(inner)
            elif line and not together and not op.name.startswith(_STRAIGHT):
                flush()
        flush()

    for b in kernel.regions[0].blocks:
        block(b)
    return groups


def _holds_event(op: Any, events: dict[Any, Event]) -> bool:
    found = False

    def visit(inner: Any) -> None:
        nonlocal found
        found = found or inner in events

    walk(op, visit)
    return found


def _pipelined(block: Any) -> bool:
    """Whether the DSL will software-pipeline the loop of ``block`` (``prefetch_stages``), and so clone parts of it."""
    op = block.owner.operation
    return op.name == "scf.for" and any("prefetch" in str(a) or "pipelin" in str(a) for a in op.attributes)


def _alone(event: Event) -> bool:
    """An END whose token may be a sentinel moves the cursor or not: it cannot share constant offsets."""
    return event.kind == EventKind.END and _maybe_sentinel(event) and not _guarded(event)


def _maybe_sentinel(end: Event) -> bool:
    return is_argument(end.token) or PLACEHOLDER not in end.token.owner.attributes


def _guarded(end: Event) -> bool:
    """Whether ``_guard_ends`` put the END into a branch that only lanes with a token take."""
    branch = end.op.block.owner.operation
    if branch.name != "scf.if" or is_argument(branch.operands[0]):
        return False
    test = branch.operands[0].owner.operation
    return bool(test.name == "arith.cmpi" and plain_value(test.operands[0]) == end.token)


class _Lowering:
    """Replaces the placeholders of one kernel."""

    def __init__(
        self, kernel: Any, facts: ptx.KernelFacts, groups: list[Group], uniform: Uniformity
    ) -> None:
        self._kernel = kernel
        self._facts = facts
        self._groups = groups
        self._uniform = uniform
        self._entry = kernel.regions[0].blocks[0]
        self._broadcast = facts.lanes and any(
            e.kind == EventKind.END for g in groups if not g.together for e in g.events
        )

    def run(self) -> None:
        first = self._first_event_operation()
        self._begin()
        self._open(self._stamp_early(first) or first)
        for group in self._groups:
            self._group(group)
        for block in self._kernel.regions[0].blocks:
            operations = list(block.operations)
            if operations and operations[-1].operation.name in TERMINATORS:
                self._close(operations[-1])

    def _first_event_operation(self) -> Any | None:
        """The operation of the entry block that is, or holds, the first event. None if there is none in it (several
        blocks): then the region is opened at the kernel's begin."""
        if not self._groups:
            return self._after_set_up()
        ops = {e.op for g in self._groups for e in g.events}
        for op in self._entry.operations:
            if op.operation in ops or (len(op.operation.regions) and _holds_event(op.operation, dict.fromkeys(ops))):  # type: ignore[arg-type]
                return op
        return None

    def _after_set_up(self) -> Any | None:
        """The first loop or branch of a kernel without events, or its end: the claim's result comes meanwhile."""
        if len(self._kernel.regions[0].blocks) > 1:
            return None
        operations = list(self._entry.operations)
        return next((op for op in operations if len(op.operation.regions)), operations[-1])

    def _begin(self) -> None:
        self._hidden = hidden.add_parameters(self._kernel)
        self._control = self._hidden["control"]
        with ir.InsertionPoint.at_block_begin(self._entry), ir.Location.unknown():
            one = constant(1, "i32")
            i32 = int_type("i32")
            self._cursor = llvm.alloca(llvm.PointerType.get(), one, ir.TypeAttr.get(i32), alignment=4)
            self._slot = llvm.alloca(llvm.PointerType.get(), one, ir.TypeAttr.get(i32), alignment=4)
            self._chosen = self._select()
            self._claim = emit(ptx.entry(self._facts), {"control": self._chosen, "region": self._hidden["region"]})
            self._after_begin = self._claim["place"].owner

    def _select(self) -> Any:
        """The control pointer of warps that are wanted. Events and close need no more than the parameter itself: what
        they do depends on what ``open`` gave the warp."""
        if self._facts.selection is None:
            return self._control
        return emit(ptx.select(self._facts.selection, self._facts.clusters), {"control": self._control})["chosen"]

    def _stamp_early(self, first: Any | None) -> Any | None:
        """Reads the clock of the events that are stored later; returns the operation before which, if there are any."""
        self._stamps: dict[Any, Any] = {}
        self._sink = None
        if first is None or self._facts.ring or not self._groups:
            return None
        events = {e.op: e for g in self._groups for e in g.events}
        led_by_lane_0 = {e.op for g in self._groups if g.together for e in g.events}
        found = early.find(self._entry, first, events, led_by_lane_0)
        if found is None:
            return None
        self._sink = found.sink
        for op in found.events:
            with ir.InsertionPoint(op), op.location:
                self._stamps[op] = emit(ptx.stamp(), {})["clock"]
        return found.sink

    def _place(self, event: Event) -> Any:
        """Where an event is stored: where it stands, or where the region is opened if it came before."""
        return ir.InsertionPoint(self._sink if event.op in self._stamps else event.op)

    def _open(self, before: Any | None) -> None:
        point = ir.InsertionPoint(before) if before is not None else _after(self._after_begin)
        with point, ir.Location.unknown():
            self._kernel_id = constant(self._facts.kernel_id, "i64")
            operands = {**self._hidden, "control": self._chosen, **self._claim, "kernel": self._kernel_id}
            self._opened(emit(ptx.open_region(self._facts), operands))
            if self._facts.lanes and any(g.together for g in self._groups):
                self._lane_zero = emit(ptx.lane_zero(), {}, side_effects=False)["lead"]
            if self._facts.wide:
                self._record_lanes = emit(ptx.record_lanes(self._facts.stride), {}, side_effects=False)
                if not self._facts.ring:
                    self._run_lanes = emit(ptx.run_lanes(self._facts.stride), {}, side_effects=False)

    def _opened(self, opened: dict[str, Any]) -> None:
        """Cursor and limit, as ``open`` gave them."""
        self._limit = opened["limit"]
        self._has_region = arith.cmpi(arith.CmpIPredicate.ugt, self._limit, constant(1, "i32"))
        if self._facts.whole and not self._facts.wide:  # all lanes know the limit, one stores
            lead = emit(ptx.lane_zero(), {}, side_effects=False)["lead"]
            self._has_region = arith.andi(self._has_region, lead)
        if self._facts.wide:
            llvm.store(opened["off"], self._cursor, alignment=4)
            llvm.store(arith.minui(opened["first"], self._limit), self._slot, alignment=4)
        else:
            self._advance(opened["off"])

    def _close(self, terminator: Any) -> None:
        with ir.InsertionPoint(terminator), ir.Location.unknown():
            off = llvm.load(int_type("i32"), self._cursor, alignment=4)
            kernel = constant(self._facts.kernel_id, "i64")
            emit(ptx.close(self._facts), {**self._hidden, "kernel": kernel, "off": off, "limit": self._limit})

    @property
    def _step(self) -> int:
        """What an event moves the cursor by."""
        return self._facts.stride

    def _group(self, group: Group) -> None:
        first, last = group.events[0], group.events[-1]
        with self._place(first), first.op.location:
            off = llvm.load(int_type("i32"), self._cursor, alignment=4)
            slot = llvm.load(int_type("i32"), self._slot, alignment=4)
            lead = self._leader(group)
            store = self._has_region if lead is None else arith.andi(self._has_region, lead)
            moves = lead
            if group.maybe_none:
                real = _is_real(first.token)
                store = arith.andi(store, real)
                moves = real if lead is None else arith.andi(lead, real)
        for index, events in self._runs(group):
            if len(events) > 1:
                self._run(events, index, off, slot, store)
            else:
                self._event(events[0], index, off, slot, store)
        with self._place(last), last.op.location:
            step = constant(len(group.events) * self._step, "i32")
            if moves is not None:
                step = arith.select(moves, step, constant(0, "i32"))
            self._move(off, slot, step)
        for event in group.events:
            event.op.erase()

    def _runs(self, group: Group) -> list[tuple[int, list[Event]]]:
        """The group's events, each with those that happen at once with it, and the first's number in the group."""
        runs: list[tuple[int, list[Event]]] = []
        narrow = True
        for index, (event, near) in enumerate(zip(group.events, group.near, strict=True)):
            before, narrow = narrow, event.op in self._stamps or not self._same_in_all_lanes(event)
            if self._facts.wide and near and not before and not narrow:
                runs[-1][1].append(event)
            else:
                runs.append((index, [event]))
        return runs

    def _same_in_all_lanes(self, event: Event) -> bool:
        bits = event.payload_bits
        return bits is None or self._uniform.value(bits)

    def _run(self, events: list[Event], index: int, off: Any, slot: Any, store: Any) -> None:
        """Stores events that happen at once, where the last of them stands."""
        for number, event in enumerate(events):
            if event.kind == EventKind.START:
                with ir.InsertionPoint(event.op), event.op.location:
                    token = self._token(off, index + number)
                    plain_value(event.op.results[0]).replace_all_uses_with(token)
        operands = {**self._address(slot), "store": store}
        records = []
        for number, event in enumerate(events):
            bits, linked = event.payload_bits, event.kind == EventKind.END
            width = None if bits is None else f"i{bits.type.width}"
            records.append(ptx.RunRecord(event.site, linked, width, event.anchor, event.gap.high))
            if linked:
                operands[f"token{number}"] = event.token
            if bits is not None:
                operands[f"payload{number}"] = bits
        lanes = self._run_lanes
        words = {"clock": lanes["clock"], "iscode": lanes["code"], "last": lanes["last"], "record": lanes["record"]}
        with ir.InsertionPoint(events[-1].op), events[-1].op.location:
            emit(ptx.run(index, self._facts.stride, records), {**operands, **words})

    def _leader(self, group: Group) -> Any | None:
        """None: lane 0 leads and no other lane can store anyway (it has no region)."""
        if not group.together:
            return emit(ptx.leader(), {})["lead"]
        return self._lane_zero if self._facts.lanes else None

    def _advance(self, off: Any) -> None:
        """Sets the cursor, and the slot of the first event."""
        llvm.store(off, self._cursor, alignment=4)
        llvm.store(arith.minui(off, self._limit), self._slot, alignment=4)

    def _move(self, off: Any, slot: Any, step: Any) -> None:
        """Moves the cursor, and the slot of the next event: it is worked out in the shadow of the last store.

        The slot is not made from the cursor, which goes on counting and wraps after 2**32 bytes.
        """
        llvm.store(arith.addi(off, step), self._cursor, alignment=4)
        llvm.store(arith.minui(arith.addi(slot, step), self._limit), self._slot, alignment=4)

    def _event(self, event: Event, index: int, off: Any, slot: Any, store: Any) -> None:
        with self._place(event), event.op.location:
            self._record(event, index, slot, store, event.token if event.kind == EventKind.END else None)
            if event.kind == EventKind.START:
                plain_value(event.op.results[0]).replace_all_uses_with(self._token(off, index))

    def _record(self, event: Event, index: int, slot: Any, store: Any, token: Any | None) -> None:
        bits = event.payload_bits
        width = None if bits is None else f"i{bits.type.width}"
        operands = {**self._address(slot), "store": store, "code": constant(event.site, "i32")}
        if bits is not None:
            operands["payload"] = bits
        if token is not None:
            operands["token"] = token
        stride = self._facts.stride
        facts = {"linked": token is not None, "anchor": event.anchor, "high": event.gap.high, "ring": self._facts.ring}
        if event.op in self._stamps:
            facts["stamped"] = True
            operands["stamp"] = self._stamps[event.op]
        if not self._facts.wide:
            emit(ptx.event(index, stride, width, **facts), operands)
        elif not self._same_in_all_lanes(event):  # lane 0's counts: the others have their own
            operands["store"] = arith.andi(store, self._record_lanes["clock"])
            emit(ptx.event(index, stride, width, **facts), operands)
        else:
            lanes = self._record_lanes
            named = {"isclock": lanes["clock"], "iscode": lanes["code"], "last": lanes["last"]}
            store = arith.andi(store, lanes["word"])
            text = ptx.wide_event(index, stride, width, **facts)
            emit(text, {**operands, **named, "store": store})

    def _address(self, slot: Any) -> dict[str, Any]:
        """The operands that tell an event where its slot is."""
        return {"slot": slot, "control": self._control}

    def _token(self, off: Any, index: int) -> Any:
        slot = off if index == 0 else arith.addi(off, constant(index * self._facts.stride, "i32"))
        link = arith.andi(arith.shli(slot, constant(wire.TOKEN_SHIFT, "i32")), constant(wire.TOKEN_MASK, "i32"))
        if self._broadcast:
            link = emit(ptx.broadcast(), {"value": link})["all"]
        return link


class _RingLowering(_Lowering):
    """The same where the newest events are kept: no slots behind each other, since the next may be the ring's first.

    The cursor counts events, and a slot is its number in the ring. A start carries its own tag (see
    :mod:`warptrace.wire`).
    """

    @property
    def _step(self) -> int:
        return 1

    def _runs(self, group: Group) -> list[tuple[int, list[Event]]]:
        return [(index, [event]) for index, event in enumerate(group.events)]

    def _opened(self, opened: dict[str, Any]) -> None:
        self._ring, self._mask = opened["ring"], opened["mask"]
        self._has_region = arith.cmpi(arith.CmpIPredicate.ugt, self._ring, constant(1, "i64"))
        self._advance(constant(0, "i32"))

    def _close(self, terminator: Any) -> None:
        with ir.InsertionPoint(terminator), ir.Location.unknown():
            off = llvm.load(int_type("i32"), self._cursor, alignment=4)
            kernel = constant(self._facts.kernel_id, "i64")
            emit(ptx.close(self._facts), {"control": self._control, "kernel": kernel, "off": off, "ring": self._ring})

    def _advance(self, off: Any) -> None:
        llvm.store(off, self._cursor, alignment=4)
        llvm.store(self._wrapped(off), self._slot, alignment=4)

    def _move(self, off: Any, slot: Any, step: Any) -> None:
        self._advance(arith.addi(off, step))

    def _wrapped(self, off: Any) -> Any:
        return arith.andi(off, self._mask)

    def _address(self, slot: Any) -> dict[str, Any]:
        return {"slot": slot, "ring": self._ring}

    def _event(self, event: Event, index: int, off: Any, slot: Any, store: Any) -> None:
        with ir.InsertionPoint(event.op), event.op.location:
            if index:
                off = arith.addi(off, constant(index, "i32"))
                slot = self._wrapped(off)
            if event.kind == EventKind.START:
                own = self._tag(off)
                everyones = emit(ptx.broadcast(), {"value": own})["all"] if self._broadcast else own
                plain_value(event.op.results[0]).replace_all_uses_with(everyones)
                self._record(event, 0, slot, store, own)
            else:
                self._record(event, 0, slot, store, event.token if event.kind == EventKind.END else None)

    def _tag(self, off: Any) -> Any:
        """The token of a start at cursor ``off``: its tag."""
        token = arith.shli(off, constant(wire.LINK_SHIFT, "i32"))
        if not self._facts.lanes:
            return token
        number = arith.andi(token, constant(((1 << wire.TAG_LANE_SHIFT) - 1) << wire.LINK_SHIFT, "i32"))
        return arith.ori(number, emit(ptx.lane_tag(), {}, side_effects=False)["bits"])


def _after(op: Any) -> Any:
    """An insertion point right after ``op``."""
    operations = list(op.operation.block.operations)
    for index, other in enumerate(operations):
        if other.operation == op.operation:
            return ir.InsertionPoint(operations[index + 1])
    raise AssertionError("operation is not in its block")
