"""Emitters of synchronisation, asynchronous copies, and instructions without effect here."""

from __future__ import annotations

from .gen import Emitter, Gen, last_type
from .isa_data import address, space_of
from .parser import Imm, Instr, Operand, Sink
from .types import TYPES

U32 = TYPES["u32"]
PRED = TYPES["pred"]


def _addr(g: Gen, op: Operand) -> str:
    """Row and offset of a shared address as two arguments."""
    a, off = address(g, op, "shared")
    return f"{a},{off}"


# -- blocking instructions: text of a whole segment ---------------------------------
def is_blocking(ins: Instr) -> bool:
    """Whether the instruction may wait for other warps, so that it is a segment of its own."""
    p = ins.parts
    if p[0] in ("bar", "barrier"):
        return "cluster" not in p and p[1] != "warp" or (p[0] == "barrier" and p[1] == "cluster" and p[2] == "wait")
    if p[0] == "mbarrier":
        return p[1] == "try_wait"
    if p[0] == "cp":
        return "wait_group" in p or "wait_all" in p
    return p[0] == "nanosleep"


def emit_blocking(g: Gen, ins: Instr, pc: int, nxt: int) -> None:
    """The body of a blocking segment, returns included."""
    p = ins.parts
    if p[0] in ("bar", "barrier"):
        if p[1] == "cluster":
            g.emit(f"return cluster_wait(w,{g.site()},{pc},{nxt})")
        else:
            _bar(g, ins, pc, nxt)
    elif p[0] == "mbarrier":
        _try_wait(g, ins, pc, nxt)
    elif p[0] == "nanosleep":
        g.emit(f"w.t+=float({g.src(ins.operands[0], U32)}[w.m].max())")
        g.emit(f"return {nxt}")
    else:
        bulk = "bulk" in p
        n = "0" if "wait_all" in p else str(getattr(ins.operands[0], "value", 0))
        g.emit(f"return wait_group(w,{bulk},{n},{'wait_all' in p},{pc},{nxt})")


def _bar(g: Gen, ins: Instr, pc: int, nxt: int) -> None:
    p = [x for x in ins.parts if x not in ("cta", "aligned", "barrier", "bar")]
    kind, ops = p[0], list(ins.operands)
    if kind == "red":
        op, d = p[1], ops.pop(0)
        pred = g.pred(ops.pop())
        ident = g.src(ops[0], U32)
        count = g.src(ops[1], U32) if len(ops) > 1 else "None"
        # two segments in one: the first pass arrives and parks, the second reads the result
        g.emit("f=w.f")
        g.emit("if f.reduced:")
        g.emit(" f.reduced=False")
        g.mask = "w.m"
        g.put_indented(d, U32 if op == "popc" else PRED, f"bar_red_value(w,{ident},'{op}')")
        g.emit(f" return {nxt}")
        g.emit(f"return bar(w,{g.site()},'red',{ident},{count},{pc},{pc},{pred})")
        return
    ident = _number(g, ops[0])
    count = _number(g, ops[1]) if len(ops) > 1 else "None"
    g.emit(f"return bar(w,{g.site()},'{kind}',{ident},{count},{pc},{nxt},None)")


def _number(g: Gen, op: Operand) -> str:
    return str(op.value) if isinstance(op, Imm) else g.src(op, U32)


def _try_wait(g: Gen, ins: Instr, pc: int, nxt: int) -> None:
    d, mem, arg = ins.operands[:3]
    parity = "parity" in ins.parts
    a = g.src(arg, U32 if parity else TYPES["u64"])
    v = g.tmp()
    g.emit(f"{v}=mbar_try(w,{g.site()},{_addr(g, mem)},{a},{parity},{pc})")
    g.emit(f"if {v} is None: return -2")
    g.put(d, PRED, v)
    g.emit(f"return {nxt}")


# -- others ---------------------------------------------------------------------------
def splits_before(ins: Instr) -> bool:
    """Whether the instruction starts a stretch, so that its effect falls at the warp's current time."""
    p = ins.parts
    if p[0] in ("atom", "red", "mbarrier", "barrier"):
        return True
    if p[0] in ("ld", "st"):
        return any(x in p for x in ("volatile", "relaxed", "acquire", "release", "mmio", "async"))
    return p[0] == "cp"


def _mbarrier(g: Gen, ins: Instr) -> None:
    op, ops = ins.parts[1], list(ins.operands)
    if op == "init":
        g.emit(f"mbar_init(w,{g.site()},{_addr(g, ops[0])},{g.m},{g.src(ops[1], U32)})")
    elif op == "inval":
        g.emit(f"mbar_inval(w,{g.site()},{_addr(g, ops[0])},{g.m})")
    elif op in ("arrive", "arrive_drop"):
        _arrive(g, ins, ops)
    elif op == "expect_tx":
        g.emit(f"mbar_expect_tx(w,{g.site()},{_addr(g, ops[0])},{g.m},{g.src(ops[1], U32)})")
    elif op == "complete_tx":
        g.emit(f"mbar_complete_tx(w,{g.site()},{_addr(g, ops[0])},{g.m},{g.src(ops[1], U32)})")
    elif op == "test_wait":
        parity = "parity" in ins.parts
        arg = g.src(ops[2], U32 if parity else TYPES["u64"])
        g.put(ops[0], PRED, f"mbar_test(w,{g.site()},{_addr(g, ops[1])},{g.m},{arg},{parity})")
    elif op == "pending_count":
        raise g.fail("pending_count")
    else:
        raise g.fail("operation")


def _arrive(g: Gen, ins: Instr, ops: list[Operand]) -> None:
    # sink form: mbarrier.arrive _, [a] or, for remote ones, no destination at all
    has_dst = not hasattr(ops[0], "coords")
    d = ops.pop(0) if has_dst else Sink()
    tx = "expect_tx" in ins.parts
    count = "None"
    txs = "None"
    if tx:
        txs = g.src(ops[1], U32)
    elif len(ops) > 1:
        count = g.src(ops[1], U32)
    drop = ins.parts[1] == "arrive_drop"
    v = g.tmp()
    g.emit(f"{v}=mbar_arrive(w,{g.site()},{_addr(g, ops[0])},{g.m},{count},{txs},{drop})")
    g.put(d, TYPES["u64"], v)


def _barrier(g: Gen, ins: Instr) -> None:
    if ins.parts[1] == "warp":
        return
    g.emit(f"cluster_arrive(w,{g.site()},{g.m})")


def _cp(g: Gen, ins: Instr) -> None:
    p = ins.parts
    if p[1] == "reduce":
        _bulk_reduce(g, ins)
    elif "tensor" in p:
        _tensor(g, ins)
    elif "bulk" in p:
        _bulk(g, ins)
    elif "commit_group" in p:
        g.emit(f"commit(w,False,{g.m})")
    elif "mbarrier" in p:
        g.emit(f"cp_async_mbar(w,{g.site()},{_addr(g, ins.operands[0])},{g.m},{'noinc' in p})")
    else:
        _cp_async(g, ins)


def _cp_async(g: Gen, ins: Instr) -> None:
    ops = list(ins.operands)
    size = getattr(ops[2], "value", None)
    if size not in (4, 8, 16):
        raise g.fail("copy size")
    nsrc = "None"
    # a fourth operand is the source size, an ignore-src predicate, or a cache policy
    if len(ops) > 3 and "cache_hint" not in ins.op.replace("L2::cache_hint", "cache_hint").split(".")[-4:]:
        fourth = ops[3]
        if g.width(fourth) == 1:
            nsrc = f"where({g.pred(fourth)},{g.const(0, U32.dtype)},{g.const(size, U32.dtype)})"
        else:
            nsrc = g.src(fourth, U32)
    elif len(ops) > 4:
        nsrc = g.src(ops[3], U32)
    s, soff = address(g, ops[1], "global")
    g.emit(f"cp_async(w,{g.site()},{_addr(g, ops[0])},{s},{soff},{g.m},{size},{nsrc})")


def _bulk(g: Gen, ins: Instr) -> None:
    p, ops = ins.parts, list(ins.operands)
    if "commit_group" in p:
        g.emit(f"commit(w,True,{g.m})")
    elif "prefetch" in p:
        return
    elif p[3] == "global":
        d, doff = address(g, ops[0], "global")
        size = g.src(ops[2], U32)
        if "cp_mask" in p:
            raise g.fail("cp_mask")
        g.emit(f"bulk_to_global(w,{g.site()},{d},{doff},{_addr(g, ops[1])},{size},{g.m},None,None)")
    else:
        src = "global" if p[4] == "global" else "shared"
        s, soff = address(g, ops[1], src)
        multi = any(x.startswith("multicast") for x in p)
        cm = f"{g.src(ops[4], TYPES['u16'])}" if multi else "None"
        g.emit(
            f"bulk_to_shared(w,{g.site()},'{src}',{_addr(g, ops[0])},{s},{soff},{g.src(ops[2], U32)},"
            f"{_addr(g, ops[3])},{g.m},{cm})"
        )


_NUMPY = {"u32": "U32_", "s32": "S32_", "u64": "U64_", "s64": "S64_", "b32": "U32_", "b64": "U64_"}
_NUMPY |= {"f32": "F32_", "f64": "F64_", "f16": "F16_"}


def _reduce_op(g: Gen, ins: Instr) -> str:
    op = next((x for x in ins.parts if x in ("add", "min", "max", "and", "or", "xor")), None)
    if op is None:
        raise g.fail("reduction")
    return op


def _bulk_reduce(g: Gen, ins: Instr) -> None:
    if "tensor" in ins.parts:
        _tensor(g, ins)
        return
    t = last_type(g, ins)
    if ins.parts[4] != "global" or t.name not in _NUMPY:
        raise g.fail("bulk reduction form")
    ops = ins.operands
    d, doff = address(g, ops[0], "global")
    size = g.src(ops[2], U32)
    args = f"{d},{doff},{_addr(g, ops[1])},{size},{g.m},'{_reduce_op(g, ins)}',{_NUMPY[t.name]}"
    g.emit(f"bulk_to_global(w,{g.site()},{args})")


def _tensor(g: Gen, ins: Instr) -> None:
    p, ops = ins.parts, list(ins.operands)
    if "prefetch" in p:
        return
    if any(x.startswith(("im2col", "tile::")) for x in p):
        raise g.fail("im2col or gather mode")
    if any(x.startswith("cta_group") for x in p):
        raise g.fail("cta_group")
    load_ = p[p.index("tensor") + 2].startswith("shared")
    mem = ops[0] if load_ else ops[1]
    other = ops[1] if load_ else ops[0]
    if not hasattr(other, "coords") or not hasattr(mem, "coords"):
        raise g.fail("operands")
    tm, tmoff = address(g, other, "generic")
    coords = ",".join(g.src(c, TYPES["s32"]) for c in other.coords)
    if load_:
        multi = any(x.startswith("multicast") for x in p)
        cm = g.src(ops[3], TYPES["u16"]) if multi else "None"
        g.emit(f"tensor_load(w,{g.site()},{_addr(g, mem)},{tm},{tmoff},({coords},),{_addr(g, ops[2])},{g.m},{cm})")
    else:
        red = f"'{_reduce_op(g, ins)}'" if p[1] == "reduce" else "None"
        g.emit(f"tensor_store(w,{g.site()},{tm},{tmoff},({coords},),{_addr(g, mem)},{g.m},{red})")


def _nothing(g: Gen, ins: Instr) -> None:
    """Ordering, hints and register allocation have no effect on sequentially consistent memory."""


def _prefetch(g: Gen, ins: Instr) -> None:
    """No effect (also of prefetch.tensormap)."""


EMIT: dict[str, Emitter] = {
    "mbarrier": _mbarrier,
    "bar": _barrier,
    "barrier": _barrier,
    "cp": _cp,
    "fence": _nothing,
    "membar": _nothing,
    "griddepcontrol": _nothing,
    "setmaxnreg": _nothing,
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "discard": _nothing,
    "applypriority": _nothing,
    "createpolicy": lambda g, ins: g.put(ins.operands[0], TYPES["u64"], g.const(0, TYPES["u64"].dtype)),
    "pmevent": _nothing,
}

__all__ = ["EMIT", "emit_blocking", "is_blocking", "space_of", "splits_before"]
