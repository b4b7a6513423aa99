"""Random traces: nested, overlapping and zero-length ranges, several lanes, every payload type."""

from __future__ import annotations

from hypothesis import strategies as st
from traces import NO_PAYLOAD, Open, Payload, TraceScript, WarpScript

from warptrace.trace import Trace
from warptrace.wire import PAYLOAD_BITS, PayloadType

NAMES = ("load", "mma", "wait/full", "épilogue", "StackedRanges", "a" * 255)
TYPED = [kind for kind in PayloadType if kind != PayloadType.NONE]


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    """A payload of any type with any bits, the ends of the domain more often."""
    kind = draw(st.sampled_from(TYPED))
    top = (1 << PAYLOAD_BITS[kind]) - 1
    return kind, draw(st.sampled_from([0, 1, top, top >> 1, (top >> 1) + 1]) | st.integers(0, top))


maybe_payload = st.just(NO_PAYLOAD) | payloads()
steps = st.sampled_from([0, 0, 1, 32, 1000])


@st.composite
def events(draw: st.DrawFn, warp: WarpScript, lanes: tuple[int, ...]) -> int:
    """Runs random calls on a warp and closes what is open; returns the time of the last."""
    ns = warp.row["start_ns"]
    open_tokens: list[tuple[Open, Payload]] = []
    for action in draw(st.lists(st.sampled_from(("mark", "push", "pop", "switch", "start", "end")), max_size=25)):
        ns += draw(steps)
        lane = draw(st.sampled_from(lanes))
        name = draw(st.sampled_from(NAMES))
        stack = warp.stacks.get(lane, [])
        if action == "mark":
            warp.mark(ns, name, draw(maybe_payload), lane)
        elif action == "push" or (action == "switch" and not stack):
            warp.push(ns, name, draw(maybe_payload), lane)
        elif action == "switch":
            warp.switch(ns, name, draw(maybe_payload), lane)
        elif action == "pop" and stack:
            warp.pop(ns, lane)
        elif action == "start":
            payload = draw(maybe_payload)
            open_tokens.append((warp.start(ns, name, payload, lane), payload))
        elif action == "end" and open_tokens:
            opened, payload = open_tokens.pop(draw(st.integers(0, len(open_tokens) - 1)))
            warp.end(opened, ns, payload)
    for lane in lanes:
        for _ in range(len(warp.stacks.get(lane, []))):
            ns += draw(steps)
            warp.pop(ns, lane)
    for opened, payload in open_tokens:
        warp.end(opened, ns, payload)
    return ns


@st.composite
def random_traces(draw: st.DrawFn, *, lanes: tuple[int, ...] = (0, 5, 31)) -> Trace:
    """One to three launches of one to four warps each."""
    script = TraceScript()
    for _ in range(draw(st.integers(1, 3))):
        launch = script.launch(kernel_id=draw(st.integers(1, 2)))
        for number in range(draw(st.integers(1, 4))):
            start = draw(st.integers(0, 10_000))
            known = draw(st.booleans())
            warp = script.warp(
                launch, start, start, cta=(number // 2, 0, 1), warp=number % 2, sm=draw(st.integers(0, 3)),
                gpc=number % 2 if known else -1, tpc=3 if known else -1, lost=draw(st.integers(0, 2)),
                closed=draw(st.integers(0, 1)),
            )  # fmt: skip
            warp.row["end_ns"] = draw(events(warp, lanes))
            warp.row["cycles"] = (warp.row["end_ns"] - start) * 2 if warp.row["closed"] else -1
    return script.build()
