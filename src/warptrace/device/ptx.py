"""PTX text of the device operations, from the numbers of :mod:`warptrace.wire`.

A kernel that records is woven from these operations, in this order along every path:

``select``  only where not all clusters and warps are wanted: takes the control pointer from those that are not, so that
            for them all that follows is as without a recorder.
``entry``   first in the kernel: reads the clocks and issues the claim of a region (one atomic add). Its result is
            not used before ``open``, so its 600 cycles pass beside the kernel's own set-up.
``open``    before the first operation that holds an event, or behind it where events are stamped before (``stamp``):
            writes the region header, makes cursor and limit.
``event``   straight-line: no branch, no fence, no atomic.
``close``   before the kernel's end: writes count and exit clocks; only a warp that got no region takes a branch.

Each function returns an :class:`Asm`: text with named operands in angle brackets and their types. A front end numbers
the operands its own way. All text sits in a ``{ }`` scope, so it may be duplicated by loop unrolling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import wire
from ..selection import KernelSelection

Operand = tuple[str, str]


@dataclass(frozen=True)
class Asm:
    """Inline PTX. ``outputs`` and ``inputs`` are (name, type) with type "i1", "i32" or "i64"; ``<name>`` in the text
    stands for the operand. ``outputs`` are written before all inputs are read (early clobber is needed)."""

    text: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]


@dataclass(frozen=True)
class KernelFacts:
    """What the text depends on. ``stride``: bytes a slot (8 or 16). ``lanes``: some event may be led by a lane other
    than 0. ``slack``: bytes behind the limit, where the events of a full warp go: room for the largest group.
    ``clusters``: the target has cluster registers (sm_90 and newer). ``wide``: lanes 0 to 3 store a record together, a
    word each (:func:`wide_event`); only where no other lane leads and every warp is whole. ``selection``: the clusters
    and warps that record, None: all. ``ring``: the newest events are kept (slack 0). ``whole``: no other lane leads,
    every warp has all its lanes, and it is no ring: then lanes write the header together. ``block``: its packed
    dimensions, of a whole kernel. ``mixed``: clusters of one launch may have two sizes, so each warp asks for its own;
    else host code tells."""

    kernel_id: int
    stride: int
    lanes: bool
    slack: int
    clusters: bool
    wide: bool = False
    selection: KernelSelection | None = None
    ring: bool = False
    whole: bool = False
    block: int = 0
    mixed: bool = False


def _sizes(facts: KernelFacts) -> str:
    """PTX that sets u32 ``main``, ``lane`` and ``trim`` from the u64 region word <region> (:func:`wire.region_word`).

    ``trim``: bytes at the end of main that are not to be used; in other lanes than 0, those behind the last whole slot
    of their block. Uses u32 t, pred q. Done again at exit rather than keep registers alive: the word is a constant of
    the launch, and host code has worked it out. When the device did so from the grid, each of the three times took 28
    instructions, and a kernel of 524,288 warps and 66 us took 100 us longer.
    """
    trim = f"and.b32 trim,main,{wire.TRIM_MASK}; shl.b32 trim,trim,1; "
    text = "mov.b64 {main,lane}, <region>; " + trim + f"and.b32 main,main,{-wire.REGION_ALIGN}; "
    if not facts.lanes:
        return text + "mov.u32 lane,0; "
    return text + (
        f"mov.u32 t,%laneid; setp.ne.u32 q,t,0; selp.b32 trim,{wire.lane_trim(facts.stride)},trim,q; "
    )


def _total() -> str:
    """PTX that sets u64 ``g`` to the bytes of a region of ``main`` and ``lane``; uses u32 n."""
    return f"mad.lo.u32 n,lane,31,main; add.u32 n,n,{wire.REGION_HEADER_BYTES}; cvt.u64.u32 g,n; "


_SIZE_REGS = ".reg .u32 main,lane,trim,s,t,m,v; .reg .pred q; "


def _lane_mask(spare: str = "s") -> str:
    """PTX that sets u32 ``m`` to the mask of the lanes that exist in this warp and u32 ``w`` to its linear number; uses
    u32 t and ``spare``."""
    return (
        "mov.u32 w,%tid.z; mov.u32 t,%ntid.y; mov.u32 S,%tid.y; mad.lo.u32 w,w,t,S; "
        "mov.u32 t,%ntid.x; mov.u32 S,%tid.x; mad.lo.u32 w,w,t,S; shr.u32 w,w,5; "
        "mov.u32 S,%ntid.y; mul.lo.u32 t,t,S; mov.u32 S,%ntid.z; mul.lo.u32 t,t,S; "
        "shl.b32 S,w,5; sub.u32 S,t,S; min.u32 S,S,32; sub.u32 S,32,S; mov.u32 m,-1; shr.u32 m,m,S; "
    ).replace("S", spare)


def select(selection: KernelSelection, clusters: bool) -> Asm:
    """<chosen>: <control> in the warps that are wanted, 0 in others. The same in all lanes of a warp.

    ``clusters``: the target has cluster registers; else a cluster is a CTA, as in launches without clusters. Adds and
    compares only: a warp that is not wanted pays for nothing else.
    """
    at, of = ("%clusterid", "%nclusterid") if clusters else ("%ctaid", "%nctaid")
    text = "{ .reg .pred p,q; .reg .u64 g,h; .reg .u32 x,y,z,s,t,m,w; setp.eq.u32 p,0,0; "
    if selection.clusters is not None or selection.cta_stride > 1:
        text += f"mov.u32 x,{at}.x; mov.u32 y,{at}.y; mov.u32 z,{at}.z; "
    if selection.clusters is not None:
        text += _one_of(selection.clusters, of)
    if selection.cta_stride > 1:
        text += _multiple_of(selection.cta_stride, of)
    if selection.warps is not None:
        text += _lane_mask() + f"mov.u32 t,{selection.warp_mask}; shr.u32 t,t,w; and.b32 t,t,1; "
        text += "setp.ne.and.u32 p,t,0,p; "
    return Asm(text + "selp.b64 <chosen>,<control>,0,p; }", (("chosen", "i64"),), (("control", "i64"),))


def _one_of(places: tuple[tuple[int, int, int], ...], of: str) -> str:
    """PTX that sets pred ``p`` where (x, y, z) is one of ``places``, or 0,0,0 where the grid of ``of`` does not have
    them all: some place lies outside exactly if the largest coordinates do. Uses u32 s, t, y, pred q."""
    most = [max(place[i] for place in places) for i in range(3)]
    text = f"mov.u32 t,{of}.x; setp.le.u32 p,t,{most[0]}; "
    text += "".join(f"mov.u32 t,{of}.{axis}; setp.le.or.u32 p,t,{most[i]},p; " for i, axis in ((1, "y"), (2, "z")))
    text += "or.b32 s,x,y; or.b32 s,s,z; setp.eq.and.u32 p,s,0,p; shl.b32 t,z,16; or.b32 y,y,t; "
    for px, py, pz in places:
        if max(py, pz) <= 0xFFFF:  # no grid has more in y and z
            text += f"setp.eq.u32 q,x,{px}; setp.eq.and.u32 q,y,{py | pz << 16},q; or.pred p,p,q; "
    return text


def _multiple_of(stride: int, of: str) -> str:
    """PTX that sets pred ``p`` where the linear number of (x, y, z) in the grid of ``of`` is a multiple of ``stride``.

    Without a division, which is a subroutine for 64 bits: n is a multiple of an odd d exactly if n times the inverse of
    d modulo 2^64 is at most (2^64 - 1) / d, and of d * 2^k if that holds for the product rotated by k.
    """
    twos = (stride & -stride).bit_length() - 1
    inverse = pow(stride >> twos, -1, 1 << 64)
    text = (
        f"mov.u32 t,{of}.y; mad.lo.u32 s,z,t,y; mov.u32 t,{of}.x; cvt.u64.u32 h,x; mad.wide.u32 g,s,t,h; "
        f"mov.u64 h,{inverse:#x}U; mul.lo.u64 g,g,h; "
    )
    if twos:
        text += f"shr.u64 h,g,{twos}; shl.b64 g,g,{64 - twos}; or.b64 g,g,h; "
    return text + f"mov.u64 h,{(2**64 - 1) // stride:#x}U; setp.le.u64 p,g,h; "


def entry(facts: KernelFacts) -> Asm:
    """Reads both clocks, works out the region's size and issues the claim on the warp's bank.

    The bank is ``(smid + 37 * gridid) % BANK_COUNT`` (:func:`wire.bank_of`): SMs of one launch do not share a
    counter, and small launches, which always start on the same SMs, still spread over all banks. Where only some
    clusters record, a hash of the CTA stands for the SM: every 132nd CTA may well run on one SM. The bank's constants
    are loaded beside the atomic, in a whole warp by all lanes.
    """
    place = "mov.u32 b,%smid; "
    if facts.selection is not None and facts.selection.thins:
        place = (
            "mov.u32 b,%ctaid.z; mov.u32 s,%nctaid.y; mov.u32 t,%ctaid.y; mad.lo.u32 b,b,s,t; "
            "mov.u32 s,%nctaid.x; mov.u32 t,%ctaid.x; mad.lo.u32 b,b,s,t; "
            f"shr.u32 s,b,16; xor.b32 b,b,s; mul.lo.u32 b,b,{wire.SCATTER[0]:#x}; shr.u32 s,b,15; xor.b32 b,b,s; "
            f"mul.lo.u32 b,b,{wire.SCATTER[1]:#x}; shr.u32 s,b,16; xor.b32 b,b,s; "
        )
    text = (
        "{ .reg .pred p,c; .reg .u64 a,g,x; .reg .u32 b,n; " + _SIZE_REGS + "mov.u64 <clock>,%clock64; "
        "mov.u64 <timer>,%globaltimer; "
        "mov.u32 b,%laneid; setp.ne.u64 c,<control>,0; setp.eq.and.u32 p,b,0,c; "
        + _sizes(facts)
        + "mov.u64 g,%gridid; cvt.u32.u64 n,g; "
        + place
        + f"mad.lo.u32 n,n,{wire.BANK_GRID_STEP},b; "
        f"and.b32 n,n,{wire.BANK_COUNT - 1}; mad.lo.u32 <bank>,n,{wire.BANK_LINE_BYTES},{wire.BANKS_OFFSET}; "
        + _total()
        + "cvt.u64.u32 a,<bank>; add.u64 a,a,<control>; "
        # + 0 in the lane that claims: where all lanes have the same bytes ptxas makes one claim for the warp, with a
        # vote, two shuffles and ten more instructions
        "mov.u32 b,%laneid; cvt.u64.u32 x,b; add.u64 g,g,x; "
        "mov.u64 <claim>,0; mov.u64 <tail>,0; mov.u64 <place>,0; "
        "@p atom.global.add.u64 <claim>,[a],g; "
        f"@{'c' if facts.whole else 'p'} "
        f"ld.volatile.global.v2.u64 {{<tail>,<place>}},[a+{wire.BANK_TAIL_OFFSET}]; }}"
    )
    outs = (("clock", "i64"), ("timer", "i64"), ("bank", "i32"), ("claim", "i64"), ("tail", "i64"), ("place", "i64"))
    return Asm(text, outs, (("control", "i64"), ("region", "i64")))


def open_region(facts: KernelFacts) -> Asm:
    """Uses the claim: header, cursor (<off>) and limit (<limit>), for every lane that may lead.

    Cursor and limit where nothing can be stored: (8, 1) in a warp that found no room, (8, 0) where recording is off:
    the count of events is kept all the same, and ``close`` tells the two apart by the limit.

    Of a ring: the address of its first slot (<ring>, else 1 or 0 as the limit) and its slots - 1 (<mask>); the cursor
    begins at 0.
    """
    if facts.whole:
        return _open_whole(facts)
    magic = wire.RING_MAGIC if facts.ring else wire.REGION_MAGIC
    header = (
        f"mov.u32 s,{magic}; cvt.u32.u64 t,<claim>; mov.b64 {{n,m}},<kernel>; "
        "@p st.global.v4.u32 [a],{s,t,n,m}; "
        "mov.u64 g,%gridid; mov.b64 {s,t},g; mov.u32 n,%ctaid.x; mov.u32 m,%ctaid.y; "
        "@p st.global.v4.u32 [a+16],{s,t,n,m}; "
        # parts of the launch word fill the upper halves of three fields
        "mov.b64 {n,m},<beside>; or.b32 m,m,w; "
        "mov.u32 s,%ctaid.z; @p st.global.v4.u32 [a+32],{s,m,main,lane}; "
        "mov.u32 s,%ntid.y; shl.b32 s,s,11; mov.u32 t,%ntid.x; or.b32 s,s,t; mov.u32 t,%ntid.z; shl.b32 t,t,22; "
        "or.b32 s,s,t; mov.u32 t,%nctaid.x; mov.u32 n,%nctaid.y; mov.u32 m,%nctaid.z; "
        "@p st.global.v4.u32 [a+48],{t,n,m,s}; "
        "mov.b64 {m,w},<beside>; mov.u32 t,%smid; or.b32 t,t,m; mov.b64 {n,s},<form>; mov.b64 {m,w},<room>; "
        + _own_cluster(facts, "s", "w")
        + "@p st.global.v4.u32 [a+64],{t,s,n,m}; "
        "@p st.global.v2.u64 [a+80],{<clock>,<timer>}; "
    )
    wide_ring = facts.ring and facts.wide
    text = (
        "{ .reg .pred p,r,e; .reg .u64 a,g,x; .reg .u32 n,w,b,f; " + _SIZE_REGS + "mov.u32 b,%laneid; "
        "setp.eq.u32 p,b,0; setp.ne.and.u64 p,<control>,0,p; "
        + _sizes(facts)
        + _total()
        + "mov.b64 {t,s},<place>; setp.ne.and.u32 e,t,0,p; "  # t = mask, s = base
        "sub.u64 x,<claim>,<tail>; add.u64 x,x,g; cvt.u64.u32 a,t; add.u64 a,a,1; setp.le.and.u64 r,x,a,e; "
        "cvt.u32.u64 f,<claim>; and.b32 f,f,t; add.u32 f,f,s; "  # f = the region's offset
        # bytes claimed without room, so that the host can tell a hole from a header that is still to come
        "cvt.u64.u32 a,<bank>; add.u64 a,a,<control>; @!r mov.u32 f,0; not.pred q,r; and.pred q,q,p; "
        f"@q red.global.add.u64 [a+{wire.BANK_FAILED_OFFSET}],g; "
        "and.pred p,r,r; cvt.u64.u32 a,f; add.u64 a,a,<control>; mov.u32 n,main; "
        + _lane_mask()
        + "selp.b32 b,1,0,e; "
        + ("shfl.sync.idx.b32 f,f,0,31,m; shfl.sync.idx.b32 b,b,0,31,m; " if facts.lanes or wide_ring else "")
        + header
        + (_ring(facts) if facts.ring else _cursor_and_limit(facts))
        + "}"
    )
    outs = (("ring", "i64"), ("mask", "i32")) if facts.ring else (("off", "i32"), ("limit", "i32"))
    return Asm(text, outs, _OPEN_INPUTS)


_OPEN_INPUTS = (
    ("control", "i64"), ("region", "i64"), ("beside", "i64"), ("form", "i64"), ("room", "i64"), ("kernel", "i64"),
    ("clock", "i64"), ("timer", "i64"), ("bank", "i32"), ("claim", "i64"), ("tail", "i64"), ("place", "i64"),
)  # fmt: skip


def _own_cluster(facts: KernelFacts, word: str, spare: str) -> str:
    """PTX that sets the u32 ``word`` to pack_cluster of the warp's own cluster where that has to be asked for."""
    if not facts.mixed:
        return ""
    return (
        f"mov.u32 {word},%cluster_nctaid.y; shl.b32 {word},{word},8; "
        f"mov.u32 {spare},%cluster_nctaid.x; or.b32 {word},{word},{spare}; "
        f"mov.u32 {spare},%cluster_nctaid.z; shl.b32 {spare},{spare},16; or.b32 {word},{word},{spare}; "
    )


def _pieces(words: Sequence[Sequence[str]]) -> str:
    """PTX that sets u32 ``w0`` to ``w3`` to the row of ``words`` whose number the lane ``b`` has. Uses pred q."""
    text = "".join(f"mov.b32 w{k},{word}; " for k, word in enumerate(words[0]))
    for number, row in enumerate(words[1:], 1):
        text += f"setp.eq.u32 q,b,{number}; " + "".join(f"selp.b32 w{k},{word},w{k},q; " for k, word in enumerate(row))
    return text


def _open_whole(facts: KernelFacts) -> Asm:
    """``open`` of a whole warp: lane k writes the header's k-th 16 bytes, with one store of six lanes. Six stores of
    one lane took the store path 24 times, and the constants of the launch had to be moved to registers for them.

    All lanes get the same cursor and limit; in a wide kernel the limit, and the first slot (<first>), is 4 bytes
    further a lane. Where nothing can be stored they are (8, 1) or (8, 0).
    """
    header = (
        (str(wire.REGION_MAGIC), "position", "kernel0", "kernel1"),
        ("grid0", "grid1", "cta0", "cta1"),
        ("cta2", "warp", "main", "0"),
        ("of0", "of1", "of2", str(facts.block)),
        ("sm", "cluster", "stride", "capacity"),
        ("clock0", "clock1", "timer0", "timer1"),
    )
    further = "shl.b32 s,b,2; selp.b32 s,s,0,r; add.u32 <limit>,<limit>,s; add.u32 <first>,<off>,s; "
    names = [name for row in header for name in row if name.isidentifier() and name != "main"]
    text = (
        "{ .reg .pred p,r,e,q; .reg .u64 a,g,x; .reg .u32 main,n,m,s,t,w,b,f,limit,w0,w1,w2,w3,"
        + ",".join(names)
        + "; mov.b64 {main,n},<region>; "
        f"and.b32 main,main,{-wire.REGION_ALIGN}; add.u32 n,main,{wire.REGION_HEADER_BYTES}; cvt.u64.u32 g,n; "
        "mov.u32 b,%laneid; setp.eq.u32 p,b,0; setp.ne.and.u64 p,<control>,0,p; "
        "mov.b64 {t,s},<place>; setp.ne.u32 e,t,0; "  # t = mask, s = base
        "sub.u64 x,<claim>,<tail>; add.u64 x,x,g; cvt.u64.u32 a,t; add.u64 a,a,1; setp.le.and.u64 r,x,a,e; "
        "and.pred r,r,p; cvt.u32.u64 position,<claim>; and.b32 f,position,t; add.u32 f,f,s; selp.b32 f,f,0,r; "
        # bytes claimed without room, so that the host can tell a hole from a header that is still to come
        "cvt.u64.u32 a,<bank>; add.u64 a,a,<control>; not.pred q,r; and.pred q,q,p; "
        f"@q red.global.add.u64 [a+{wire.BANK_FAILED_OFFSET}],g; "
        # f = the region's offset, 0: none
        "shfl.sync.idx.b32 f,f,0,31,-1; setp.ne.u32 r,f,0; mad.wide.u32 a,b,16,<control>; cvt.u64.u32 x,f; "
        "add.u64 a,a,x; "
        + _lane_mask()
        + "mov.b64 {kernel0,kernel1},<kernel>; mov.u64 x,%gridid; "
        "mov.b64 {grid0,grid1},x; mov.u32 cta0,%ctaid.x; mov.u32 cta1,%ctaid.y; mov.u32 cta2,%ctaid.z; "
        # parts of the launch word fill the upper halves of three fields
        "mov.b64 {n,m},<beside>; or.b32 warp,m,w; mov.u32 sm,%smid; or.b32 sm,sm,n; mov.b64 {stride,cluster},<form>; "
        "mov.u32 of0,%nctaid.x; mov.u32 of1,%nctaid.y; mov.u32 of2,%nctaid.z; mov.b64 {capacity,limit},<room>; "
        + _own_cluster(facts, "cluster", "t")
        + "mov.b64 {clock0,clock1},<clock>; mov.b64 {timer0,timer1},<timer>; "
        + _pieces(header)
        + f"setp.lt.and.u32 q,b,{len(header)},r; @q st.global.v4.u32 [a],{{w0,w1,w2,w3}}; "
        f"add.u32 n,f,{wire.REGION_HEADER_BYTES}; add.u32 t,n,limit; "
        "selp.b32 w,1,0,e; selp.b32 <off>,n,8,r; selp.b32 <limit>,t,w,r; "
        + (further if facts.wide else "")
        + "}"
    )
    outs: tuple[Operand, ...] = (("off", "i32"), ("limit", "i32"), *((("first", "i32"),) if facts.wide else ()))
    return Asm(text, outs, _OPEN_INPUTS)


def _cursor_and_limit(facts: KernelFacts) -> str:
    """PTX of open's end: <off> and <limit> from the region's offset f (0: none) and b."""
    lanes = (
        "mov.u32 s,%laneid; setp.ne.u32 q,s,0; sub.u32 s,s,1; "
        f"mad.lo.u32 s,s,lane,t; @q add.u32 n,s,{wire.LANE_HEADER_BYTES}; @q add.u32 t,s,lane; "
    )
    return (
        f"setp.ne.u32 r,f,0; add.u32 n,f,{wire.REGION_HEADER_BYTES}; add.u32 t,n,main; "
        + (lanes if facts.lanes else "")
        + f"sub.u32 t,t,{facts.slack}; sub.u32 t,t,trim; selp.b32 <off>,n,8,r; selp.b32 <limit>,t,b,r; "
    )


def _ring(facts: KernelFacts) -> str:
    """PTX of open's end: <ring> and <mask> from the region's offset f (0: none) and b."""
    lanes = (
        "mov.u32 s,%laneid; setp.ne.u32 q,s,0; sub.u32 s,s,1; mad.lo.u32 s,s,lane,n; add.u32 s,s,main; "
        f"@q add.u32 n,s,{wire.LANE_HEADER_BYTES}; @q sub.u32 t,lane,{wire.LANE_HEADER_BYTES}; "
    )
    # a wide record's lanes: 4 bytes further each
    spread = "mov.u32 s,%laneid; setp.ne.u32 q,s,0; shl.b32 s,s,2; add.u32 n,n,s; @q mov.u32 b,0; "
    return (
        f"setp.ne.u32 r,f,0; add.u32 n,f,{wire.REGION_HEADER_BYTES}; sub.u32 t,main,trim; "
        + (lanes if facts.lanes else spread if facts.wide else "")
        # 2**31 >> clz is the largest power of two
        + f"clz.b32 t,t; shr.u32 t,{(1 << 31) // facts.stride},t; sub.u32 <mask>,t,1; "
        "cvt.u64.u32 x,n; add.u64 x,x,<control>; cvt.u64.u32 g,b; selp.b64 <ring>,x,g,r; "
    )


def leader() -> Asm:
    """<lead>: this lane is the first active one. VOTE + LOP3 + compare; right in any divergence, which a cached
    leader or lane 0 is not, and cheap there, which elect.sync is not (H200: it becomes REDUX and a branch)."""
    text = (
        "{ .reg .u32 m,l; activemask.b32 m; mov.u32 l,%lanemask_lt; and.b32 m,m,l; setp.eq.u32 <lead>,m,0; }"
    )
    return Asm(text, (("lead", "i1"),), ())


def broadcast() -> Asm:
    """<all>: the first active lane's <value> in every active lane. A token must name the slot that the leader wrote,
    also to a lane that leads when the range ends."""
    text = (
        "{ .reg .u32 m,l; activemask.b32 m; brev.b32 l,m; clz.b32 l,l; shfl.sync.idx.b32 <all>,<value>,l,31,m; }"
    )
    return Asm(text, (("all", "i32"),), (("value", "i32"),))


def lane_zero() -> Asm:
    """<lead>: this is lane 0, which leads wherever the whole warp is known to execute together."""
    return Asm("{ .reg .u32 l; mov.u32 l,%laneid; setp.eq.u32 <lead>,l,0; }", (("lead", "i1"),), ())


def lane_tag() -> Asm:
    """<bits>: this lane's number where it stands in a ring's token."""
    shift = wire.LINK_SHIFT + wire.TAG_LANE_SHIFT
    return Asm(f"{{ .reg .u32 l; mov.u32 l,%laneid; shl.b32 <bits>,l,{shift}; }}", (("bits", "i32"),), ())


def _slot_address(stride: int, ring: bool) -> str:
    """PTX that sets u64 ``a`` to the address of <slot>."""
    return f"mad.wide.u32 a,<slot>,{stride},<ring>; " if ring else "cvt.u64.u32 a,<slot>; add.u64 a,a,<control>; "


def event(
    index: int,
    stride: int,
    payload: str | None,
    *,
    linked: bool,
    anchor: bool = False,
    high: bool = False,
    ring: bool = False,
    stamped: bool = False,
) -> Asm:
    """Stores one record at slot ``index`` behind <slot>, where <store> holds. ``ring``: <slot> is the number of a slot
    of the ring at <ring>, so that one multiply-add makes the address.

    ``linked``: <code> is the site alone and <token> is already the link in place, so one OR joins them. ``anchor``:
    the record also holds %globaltimer, beside a payload of at most 32 bits (stride 16). ``high``: the code also holds
    bits 32 to 47 of the clock; both halves are one read, and the code one more instruction. ``stamped``: the clock was
    read before (:func:`stamp`), it is <stamp>.

    A payload ("i32" or "i64") is a store of its own: one 16-byte store makes every record pay. The order was measured
    (docs/design.md): the clock before the address, so that its latency passes beside the wait for the last store's
    registers; but with a 32-bit payload the payload's store first, then clock and record.
    """
    at = index * stride
    width = {"i32": "b32", "i64": "b64", None: ""}[payload]
    address = _slot_address(stride, ring)
    code = "or.b32 c,<token>,<code>; " if linked else _HIGH_CODE if high else "mov.b32 c,<code>; "
    clock = _clock(high, stamped) + ("mov.u32 g,%globaltimer_lo; " if anchor else "")
    record = f"@<store> st.global.v2.b32 [a+{at}],{{t,c}}; "
    beside = f"@<store> st.global.{width} [a+{at + 8}],<payload>; " if payload else ""
    if anchor:
        words = "v2.b32 [a+{0}],{{<payload>,g}}" if payload else "b32 [a+{1}],g"
        beside = f"@<store> st.global.{words.format(at + 8, at + 12)}; "
    if payload == "i32" and not anchor:
        body = address + beside + clock + code + record
    else:
        body = clock + address + code + record + beside
    ins: tuple[Operand, ...] = (("slot", "i32"), ("ring" if ring else "control", "i64"), ("store", "i1"))
    ins += (("code", "i32"),)
    if linked:
        ins += (("token", "i32"),)
    if payload:
        ins += (("payload", payload),)
    if stamped:
        ins += (("stamp", "i32"),)
    return Asm("{ .reg .u64 a,x; .reg .u32 t,c,g,u; " + body + "}", (), ins)


def stamp() -> Asm:
    """<clock>: the clock, of an event that is stored later."""
    return Asm("mov.u32 <clock>,%clock;", (("clock", "i32"),), ())


def _clock(high: bool, stamped: bool) -> str:
    """PTX that sets u32 ``t`` to the lower half of the clock, and ``u`` to the upper one where ``high``."""
    return "mov.b32 t,<stamp>; " if stamped else _CLOCK64 if high else "mov.u32 t,%clock; "


_CLOCK64 = "mov.u64 x,%clock64; mov.b64 {t,u},x; "
"""Both halves of the clock at once: CS2R of 64 bits, as long as that of 32."""
_HIGH_CODE = f"mad.lo.u32 c,u,{1 << wire.LINK_SHIFT},<code>; "
"""One LEA."""


def record_lanes(stride: int) -> Asm:
    """What this lane stores of a wide record of ``stride`` bytes: <clock>, <code> or <last> (lane 0, 1, 3), and whether
    it has a <word> of it at all."""
    outs = ("clock", "code", "last")
    tests = "".join(f"setp.eq.u32 <{name}>,l,{lane}; " for name, lane in zip(outs, (0, 1, 3), strict=True))
    tests += f"setp.lt.u32 <word>,l,{stride // 4}; "
    text = "{ .reg .u32 l; mov.u32 l,%laneid; " + tests + "}"
    return Asm(text, tuple((name, "i1") for name in (*outs, "word")), ())


def wide_event(
    index: int,
    stride: int,
    payload: str | None,
    *,
    linked: bool,
    anchor: bool = False,
    high: bool = False,
    ring: bool = False,
    stamped: bool = False,
) -> Asm:
    """Stores the record of :func:`event` with one 32-bit store: lane 0 the clock, lane 1 the code, lane 2 the payload
    (its low half), lane 3 its high half or %globaltimer. <slot> is 4 bytes further in each lane, <store> holds in the
    lanes that have a word; the payload is the same in all of them. All words of a slot are stored, what they mean or
    not: memory takes sectors of 32 bytes, and where bytes of one are left out it has to be read first.

    A 64-bit store of one lane takes the store path twice: with 16 warps an SM a push and a pop went from 98 to 62
    cycles, a mark with a payload from 83 to 51 (docs/design.md). The order of the text was measured too: a clock of 32
    bits alone goes right into the word to store; else it is read first (H200, a push with payload, 96 cycles of
    arithmetic and a pop: 31 cycles more than without events, 37 with the address first).
    """
    address = _slot_address(stride, ring)
    clock = _clock(high, stamped) + ("mov.u32 g,%globaltimer_lo; " if anchor else "")
    halves = "mov.b64 {h,k},<payload>; selp.b32 h,k,h,<last>; "
    rest = {"i32": "mov.b32 h,<payload>; ", "i64": halves, None: ""}[payload]
    rest += "or.b32 c,<token>,<code>; " if linked else _HIGH_CODE if high else "mov.b32 c,<code>; "
    if payload:
        rest += "selp.b32 c,c,h,<iscode>; "
    timer = "selp.b32 c,g,c,<last>; " if anchor else ""
    choose = timer + "selp.b32 t,t,c,<isclock>; "
    if high or anchor or payload or stamped:
        body = clock + address + rest + choose
    else:
        body = rest + "mov.b32 t,c; @<isclock> mov.u32 t,%clock; " + address
    ins: tuple[Operand, ...] = (("slot", "i32"), ("ring" if ring else "control", "i64"), ("store", "i1"))
    ins += (("code", "i32"), ("isclock", "i1"))
    if linked:
        ins += (("token", "i32"),)
    if payload:
        ins += (("payload", payload), ("iscode", "i1"))
    if anchor or payload == "i64":
        ins += (("last", "i1"),)
    if stamped:
        ins += (("stamp", "i32"),)
    store = f"@<store> st.global.b32 [a+{index * stride}],t; "
    return Asm("{ .reg .u64 a,x; .reg .u32 t,c,g,h,k,u; " + body + store + "}", (), ins)


@dataclass(frozen=True)
class RunRecord:
    """A record of a run: its site, and what :func:`wide_event` has as ``linked``, ``payload``, ``anchor`` and
    ``high``."""

    site: int
    linked: bool
    payload: str | None
    anchor: bool
    high: bool = False


def run_lanes(stride: int) -> Asm:
    """What this lane stores of a run of records of ``stride`` bytes: of the record <record> the <clock>, the <code>, or
    the <last> word."""
    words = stride // 4
    tests = "".join(f"setp.eq.u32 <{name}>,w,{word}; " for name, word in (("clock", 0), ("code", 1), ("last", 3)))
    text = "{ .reg .u32 l,w; mov.u32 l,%laneid; " + f"and.b32 w,l,{words - 1}; shr.u32 <record>,l,{words // 2}; "
    return Asm(text + tests + "}", (("clock", "i1"), ("code", "i1"), ("last", "i1"), ("record", "i32")), ())


def run(index: int, stride: int, records: Sequence[RunRecord]) -> Asm:
    """Stores records between which nothing happens with one stamp and one 32-bit store: lane k the k-th word of all of
    them. Operands as of :func:`wide_event`, and <record>; tokens and payloads are numbered.

    Sites that follow each other, as those of a run in the source do, give the codes by one add. Where one record holds
    more bits of the clock all do that have no link: it is the same for all lanes then.
    """
    sites = [r.site for r in records]
    if sites == list(range(sites[0], sites[0] + len(sites))):
        body = f"add.u32 c,<record>,{sites[0]}; "
    else:
        body = f"mov.u32 c,{sites[0]}; " + "".join(_of_record(j, f"mov.u32 c,{s}") for j, s in enumerate(sites) if j)
    valued = any(r.payload or r.anchor for r in records)
    if valued:
        body += "mov.u32 h,0; mov.u32 k,0; "
    ins: tuple[Operand, ...] = (("slot", "i32"), ("control", "i64"), ("store", "i1"), ("record", "i32"))
    ins += (("clock", "i1"),)
    timers = ""
    for j, record in enumerate(records):
        if record.linked:
            body += _of_record(j, f"or.b32 c,c,<token{j}>")
            ins += ((f"token{j}", "i32"),)
        if record.payload:
            words = "h" if record.payload == "i32" else "{h,k}"
            body += _of_record(j, f"mov.b{record.payload[1:]} {words},<payload{j}>")
            ins += ((f"payload{j}", record.payload),)
        if record.anchor:
            timers += _of_record(j, "mov.u32 k,%globaltimer_lo")
    high = any(r.high for r in records)
    clock = _CLOCK64 if high else "mov.u32 t,%clock; "
    if high:
        unlinked = "".join(_of_record(j, "mov.u32 u,0") for j, record in enumerate(records) if record.linked)
        clock += f"{unlinked}mad.lo.u32 c,u,{1 << wire.LINK_SHIFT},c; "
    choose = ""
    if stride == 16:  # lanes without a word of their own store zeros
        choose = "selp.b32 h,k,h,<last>; selp.b32 c,c,h,<iscode>; " if valued else "selp.b32 c,c,0,<iscode>; "
        ins += (("iscode", "i1"),) + ((("last", "i1"),) if valued else ())
    address = "cvt.u64.u32 a,<slot>; add.u64 a,a,<control>; "
    body += address + clock + timers + choose + "selp.b32 t,t,c,<clock>; "
    store = f"setp.lt.u32 q,<record>,{len(records)}; and.pred q,q,<store>; @q st.global.b32 [a+{index * stride}],t; "
    return Asm("{ .reg .u64 a,x; .reg .u32 t,c,h,k,u; .reg .pred q; " + body + store + "}", (), ins)


def _of_record(number: int, instruction: str) -> str:
    """An instruction for the lanes that store the record of this number in a run."""
    return f"setp.eq.u32 q,<record>,{number}; @q {instruction}; "


def _most_lane_advance() -> str:
    """PTX that writes the largest advance of lanes 1..31 to the header at u64 ``a``, by lane 0 under q.

    ``s`` is the end of a lane's slots; they begin LANE_HEADER_BYTES behind its block's begin. All lanes of the warp
    take part: none leaves a kernel early. Changes b, m, n, t, w.
    """
    return (
        f"sub.u32 b,s,lane; add.u32 b,b,{wire.LANE_HEADER_BYTES}; sub.u32 b,<off>,b; "
        "selp.b32 b,b,0,r; selp.b32 b,0,b,p; "
        + _lane_mask("n")
        + "redux.sync.max.u32 b,b,m; @q st.global.u32 [a+124],b; mov.u32 b,%laneid; "
    )


def close(facts: KernelFacts) -> Asm:
    """Writes the count of events and the exit clocks; a warp without a region leaves a record in the lost table."""
    if facts.ring:
        return _close_ring(facts)
    if facts.whole:
        return _close_whole(facts)
    lanes = (
        # other lanes: their block starts lane bytes before the limit (plus slack)
        f"sub.u32 n,s,lane; add.u32 f,n,{wire.LANE_HEADER_BYTES}; sub.u32 f,<off>,f; "
        "cvt.u64.u32 a,n; add.u64 a,a,<control>; "
        f"setp.ne.and.u32 q,f,0,r; not.pred e,p; and.pred q,q,e; mov.u32 t,{wire.CLOSED_MAGIC}; "
        "@q st.global.v2.u32 [a],{f,t}; "
        if facts.lanes
        else ""
    )
    first = wire.REGION_HEADER_BYTES
    text = (
        "{ .reg .pred p,r,e; .reg .u64 a,g,x,y; .reg .u32 n,f,w,b; " + _SIZE_REGS + "mov.u64 x,%clock64; "
        "mov.u64 y,%globaltimer; mov.u32 b,%laneid; setp.eq.u32 p,b,0; "
        + _sizes(facts)
        + f"setp.gt.u32 r,<limit>,1; add.u32 s,<limit>,{facts.slack}; add.u32 s,s,trim; "
        "sub.u32 n,s,main; sub.u32 f,<off>,n; "  # n = first slot, f = bytes advanced
        f"sub.u32 n,n,{first}; cvt.u64.u32 a,n; add.u64 a,a,<control>; and.pred q,p,r; mov.u32 t,{wire.CLOSED_MAGIC}; "
        "mov.b64 {n,m},x; @q st.global.v4.u32 [a+96],{f,t,n,m}; @q st.global.u64 [a+112],y; "
        + (_most_lane_advance() if facts.lanes else "")
        + lanes
        # no region although recording is on: limit 1, and the cursor began at 8
        + "setp.eq.u32 q,<limit>,1; setp.gt.and.u32 q,<off>,8,q; "
        "@!q bra WT_DONE; "
        "sub.u32 f,<off>,8; "
        + _lose(facts.stride)
    )
    return Asm(text, (), _CLOSE_INPUTS)


_CLOSE_INPUTS = (
    ("control", "i64"), ("region", "i64"), ("room", "i64"), ("kernel", "i64"), ("off", "i32"), ("limit", "i32"),
)  # fmt: skip


def _close_whole(facts: KernelFacts) -> Asm:
    """``close`` of a whole warp: lanes 0 and 1 write what is left of the header. Only lane 0 leaves a lost record."""
    # the limit is 4 bytes further a lane where the first slot was
    piece = f"mad.lo.u32 n,b,{12 if facts.wide else 16},n; "
    text = (
        "{ .reg .pred q,r; .reg .u64 a,g,x,y; "
        ".reg .u32 n,f,w,b,s,t,m,w0,w1,w2,w3,clock0,clock1,timer0,timer1,closed; "
        # the clock is lane 0's and the timer lane 1's: both have to be here
        "bar.warp.sync -1; mov.u64 x,%clock64; mov.u64 y,%globaltimer; mov.u32 b,%laneid; "
        "mov.b64 {m,t},<room>; setp.gt.u32 r,<limit>,1; sub.u32 n,<limit>,t; "
        # n = first slot, f = bytes advanced in lane 0
        f"sub.u32 f,<off>,n; sub.u32 n,n,{wire.REGION_HEADER_BYTES}; {piece}"
        "cvt.u64.u32 a,n; add.u64 a,a,<control>; "
        f"mov.u32 closed,{wire.CLOSED_MAGIC}; mov.b64 {{clock0,clock1}},x; mov.b64 {{timer0,timer1}},y; "
        + _pieces((("f", "closed", "clock0", "clock1"), ("timer0", "timer1", "0", "0")))
        + "setp.lt.and.u32 q,b,2,r; @q st.global.v4.u32 [a+96],{w0,w1,w2,w3}; "
        # no region although recording is on: limit 1, and the cursor began at 8
        "setp.eq.u32 q,<limit>,1; setp.eq.and.u32 q,b,0,q; setp.gt.and.u32 q,<off>,8,q; @!q bra WT_DONE; "
        "sub.u32 f,<off>,8; "
        + _lose(facts.stride)
    )
    return Asm(text, (), _CLOSE_INPUTS)


def _close_ring(facts: KernelFacts) -> Asm:
    """``close`` of a ring: <off> is the count itself, and <ring> tells where the headers are."""
    lanes = (
        "selp.b32 b,<off>,0,r; selp.b32 b,0,b,p; "
        + _lane_mask("n")
        + "redux.sync.max.u32 b,b,m; @q st.global.u32 [a+124],b; mov.u32 b,%laneid; "
        f"sub.u64 a,<ring>,{wire.LANE_HEADER_BYTES}; "
        f"setp.ne.and.u32 q,f,0,r; not.pred e,p; and.pred q,q,e; mov.u32 t,{wire.CLOSED_MAGIC}; "
        "@q st.global.v2.u32 [a],{f,t}; "
    )
    text = (
        "{ .reg .pred p,r,e,q; .reg .u64 a,g,x,y; .reg .u32 n,f,w,b,s,t,m; mov.u64 x,%clock64; "
        "mov.u64 y,%globaltimer; mov.u32 b,%laneid; setp.eq.u32 p,b,0; setp.gt.u64 r,<ring>,1; mov.u32 f,<off>; "
        f"sub.u64 a,<ring>,{wire.REGION_HEADER_BYTES}; and.pred q,p,r; "
        f"mov.u32 t,{wire.CLOSED_MAGIC}; mov.b64 {{n,m}},x; "
        "@q st.global.v4.u32 [a+96],{f,t,n,m}; @q st.global.u64 [a+112],y; "
        + (lanes if facts.lanes else "")
        # no region although recording is on: 1
        + "setp.eq.u64 q,<ring>,1; setp.ne.and.u32 q,f,0,q; @!q bra WT_DONE; "
        + _lose(1)
    )
    return Asm(text, (), (("control", "i64"), ("kernel", "i64"), ("off", "i32"), ("ring", "i64")))


def _lose(stride: int) -> str:
    """PTX of close's end: counts the u32 ``f / stride`` events as lost and, where the table has room, says whose."""
    return (
        f"div.u32 n,f,{stride}; cvt.u64.u32 g,n; "
        "red.global.add.u64 [<control>+8],g; atom.global.add.u32 n,[<control>],1; "
        f"setp.ge.u32 q,n,{wire.LOST_CAPACITY}; @q bra WT_DONE; "
        + _lane_mask()
        + f"mad.wide.u32 a,n,{wire.LOST_BYTES},<control>; mov.u32 s,{wire.LOST_MAGIC}; mov.b64 {{m,t}},<kernel>; "
        f"st.global.v4.u32 [a+{wire.LOST_OFFSET}],{{s,b,m,t}}; "
        "mov.u64 g,%gridid; mov.b64 {s,t},g; mov.u32 n,%ctaid.x; mov.u32 m,%ctaid.y; "
        f"st.global.v4.u32 [a+{wire.LOST_OFFSET + 16}],{{s,t,n,m}}; "
        f"mov.u32 s,%ctaid.z; mov.u32 t,{stride}; st.global.v4.u32 [a+{wire.LOST_OFFSET + 32}],{{s,w,f,t}}; "
        f"mov.u32 s,%smid; st.global.u32 [a+{wire.LOST_OFFSET + 48}],s; "
        f"st.global.u64 [a+{wire.LOST_OFFSET + 56}],y; "
        "WT_DONE: }"
    )
