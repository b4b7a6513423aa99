"""Call sequences: ``st.param``/``ld.param`` of call parameters, and the one function that is known, vprintf."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ExecutionError, MemoryFault
from .gen import Emitter, Gen, Site
from .memory import resolve_range, where_of
from .parser import Instr, Sym, Vec
from .types import WARP, Mask

if TYPE_CHECKING:
    from .warp import Warp

_SPEC = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")


# -- run time ---------------------------------------------------------------
def _text(w: Warp, site: Site, addr: int, lane: int) -> str:
    """A zero-terminated string at a generic address."""
    alloc, off = resolve_range(w, site, "generic", addr, 1, lane, False)
    raw = alloc.buf[off : off + 4096].tobytes()
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _argument(w: Warp, site: Site, addr: int, size: int, lane: int) -> bytes:
    alloc, off = resolve_range(w, site, "generic", addr, size, lane, False)
    return alloc.buf[off : off + size].tobytes()


def format_printf(fmt: str, take: Any, string: Any) -> str:
    """C's printf on promoted arguments: ``take(size)`` gives the next one's bytes, ``string(address)`` a %s text."""

    def one(m: re.Match[str]) -> str:
        length, kind = m.group(1) or "", m.group(2)
        spec = m.group(0)
        if kind == "%":
            return "%"
        if "*" in spec:
            raise ExecutionError(f"printf: {spec!r} is not supported")
        plain = spec[: len(spec) - 1 - len(length)]
        if kind in "eEfFgGaA":
            value = struct.unpack("<d", take(8))[0]
            return str(value.hex() if kind in "aA" else (plain + kind) % value)
        if kind in "sp":
            address = int.from_bytes(take(8), "little")
            return (plain + "s") % string(address) if kind == "s" else f"{address:#x}"
        raw = take(8 if length in ("l", "ll", "j", "z", "t") else 4)
        value = int.from_bytes(raw, "little", signed=kind in "di")
        return (plain + "c") % chr(value & 0xFF) if kind == "c" else (plain + kind.replace("u", "d")) % value

    return _SPEC.sub(one, fmt)


def vprintf(w: Warp, site: Site, names: tuple[str, str], mask: Mask | None) -> None:
    """Format for each active lane in lane order and append to the launch's output."""
    fmt, args = (w.call_params[n] for n in names)
    for lane in np.flatnonzero(w.m if mask is None else mask):
        at = int(args[lane])

        def take(size: int, lane: int = int(lane)) -> bytes:
            nonlocal at
            at = -(-at // size) * size
            raw = _argument(w, site, at, size, lane)
            at += size
            return raw

        def string(addr: int, lane: int = int(lane)) -> str:
            return _text(w, site, addr, lane)

        w.machine.printed.append(format_printf(string(int(fmt[lane])), take, string))


def call_param(w: Warp, site: Site, name: str) -> Any:
    """A call parameter or return value as it was stored; a value that nobody stored reads as 0."""
    row = w.call_params.get(name)
    if row is None:
        if not name.startswith("retval"):
            raise MemoryFault(f"call parameter {name} was not written", where_of(w, site))
        return np.zeros(WARP, np.uint64)
    return row


RUNTIME: dict[str, Any] = {"vprintf": vprintf, "call_param": call_param}


# -- emitters ---------------------------------------------------------------
def _call(g: Gen, ins: Instr) -> None:
    # call{.uni} (ret), name, (args)  or  call{.uni} name, (args)
    ops = [o for o in ins.operands if isinstance(o, (Sym, Vec))]
    name = next((o.name for o in ops if isinstance(o, Sym)), "?")
    args = ops[-1]
    if name != "vprintf" or not isinstance(args, Vec) or len(args.items) != 2:
        raise g.fail(f"call of {name}")
    names = tuple(o.name for o in args.items if isinstance(o, Sym))
    g.emit(f"vprintf(w,{g.site()},{names!r},{g.m})")


EMIT: dict[str, Emitter] = {"call": _call}
