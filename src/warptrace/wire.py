"""The wire format: every byte that device code writes and the decoder reads.

This is the only home of these numbers. Device code (PTX text), the runtime, the emulator tests and the
decoder all import them from here. ``docs/format.md`` explains them; a change here changes
:data:`CAPTURE_VERSION`.

Trace memory of one device is one allocation, the *control block*, whose address reaches a kernel as a
hidden parameter (0: not recording)::

    control + 0                    control words (CONTROL_DTYPE)
    control + BANKS_OFFSET         BANK_COUNT bank lines of 128 B (BANK_DTYPE)
    control + LOST_OFFSET          LOST_CAPACITY records of LOST_DTYPE (warps that found no room)
    control + MAILBOXES_OFFSET     MAILBOX_WAYS times MAILBOX_COUNT mailboxes, for the comparison of devices' timers
    control + ARENA_OFFSET         the banks, each `bank_bytes` (a power of two) plus slack for a region
                                   that begins just before the end

At entry a warp claims one *region* with one atomic add on its bank's ``head``. ``head`` and ``tail`` are
monotonic byte counts: a region lies at ``base + (position & mask)`` and is the warp's as long as
``position - tail + size <= mask + 1``. A region is::

    +0                             REGION_DTYPE (128 B), written at entry ("open") and exit ("close")
    +128                           main slots: events led by lane 0
    +128 + main_bytes + (k-1)*lane_bytes    lane k's block, k = 1..31: LANE_DTYPE (8 B), then its slots
                                            (only when lane_bytes > 0)

A *slot* holds one event and is ``stride`` bytes: 8 in kernels without payloads, 16 in kernels with any::

    +0  u32  %clock (low 32 bits of the SM's cycle counter)
    +4  u32  code = site | high << 16         site 1..65535 (0: the slot was never written)
    +8  u64  payload bits (stride 16; bits beyond the 32 or 64 that the site's payload has are undefined); in records
             of an anchor site the payload is the lower half, and the upper half is %globaltimer (low 32 bits, in ns),
             read right after the clock

The code's upper half is the *link* in records that end a token range: the low 16 bits of
``slot_offset_of_the_start / 8``, the offset being relative to the control block. It names the start exactly
as long as a region is at most MAX_REGION_BYTES. In records of a site that says so (``Site.high``) it is bits 32 to 47
of the clock, read with the lower 32 at once; in others it is 0, or in records stored together with one that says so
those bits too.

A cursor (one 32-bit register per lane, the offset of the lane's next slot) advances by ``stride`` for every
event the lane leads, whether there is room or not; an event is written at ``min(cursor, limit)``. So the count of
events is exact whatever the room, and nothing outside the region is ever touched. What is written from ``limit`` on,
in the last bytes of the region, is no one's: slots count up to ``capacity``.

A *ring* is a region of a kernel compiled to keep the newest events (RING_MAGIC). There ``capacity`` is a power of two
for the main slots and for each lane's block, cursors and every ``advance`` count events, modulo 2**32, and event n
(from 0) of a lane lies in slot ``n % (capacity / stride)``: the last ``capacity / stride`` of them are there. The link
of records that start or end a token range is the *tag* of the start: the low 16 bits of its number n;
where other lanes than 0 may lead (``lane_bytes`` is not 0), n's low 11 bits and the lane above them. A start carries
its own tag, so an end finds its start, or finds it overwritten, without the count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

CAPTURE_VERSION = 1
"""Version of the raw capture directory and of everything in this module."""

# ---------------------------------------------------------------------------------------------- control block
LOG2_BANKS = 7
BANK_COUNT = 1 << LOG2_BANKS
"""Claim counters. One same-address atomic a cycle is what an L2 slice does; 128 lines spread 132 SMs' claims."""
BANK_LINE_BYTES = 128
BANK_GRID_STEP = 37
SCATTER = (0x7FEB352D, 0x846CA68B)
"""Factors of the hash of a CTA that stands for its SM where only some clusters of a grid record."""
BANKS_OFFSET = 4096
LOST_OFFSET = BANKS_OFFSET + BANK_COUNT * BANK_LINE_BYTES
LOST_CAPACITY = 16384
LOST_BYTES = 64
MAILBOXES_OFFSET = LOST_OFFSET + LOST_CAPACITY * LOST_BYTES
MAILBOX_WAYS = 16
MAILBOX_WAY_BYTES = 4224
"""From a mailbox to the same one of the next way: in another part of the L2 cache (33 lines; 1 or 2 stay close)."""
MAILBOX_COUNT = 64
MAILBOX_BYTES = 64
"""What kernels of the tracer's own, on this device and others, tell each other: no part of a capture."""
ARENA_OFFSET = 2 * 1024 * 1024
"""Start of the banks, relative to the control block; lost table and mailboxes end before it."""

CONTROL_DTYPE = np.dtype(
    {
        "names": ["lost_head", "lost_events"],
        "formats": ["<u4", "<u8"],
        "offsets": [0, 8],
        "itemsize": 256,
    }
)
"""``lost_head``: entries claimed in the lost table (may exceed LOST_CAPACITY). ``lost_events``: events lost by
warps without a region, in the table and beyond it (exact)."""

BANK_TAIL_OFFSET = 32
BANK_MASK_OFFSET = 40
BANK_FAILED_OFFSET = 8
BANK_DTYPE = np.dtype(
    {
        "names": ["head", "failed_bytes", "tail", "mask", "base"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "<u4"],
        "offsets": [0, BANK_FAILED_OFFSET, BANK_TAIL_OFFSET, BANK_MASK_OFFSET, BANK_MASK_OFFSET + 4],
        "itemsize": BANK_LINE_BYTES,
    }
)
"""``head`` and ``failed_bytes`` are written by the device (bytes claimed; those of them claimed without room), the
rest by the host. ``base``: offset of the bank from the control block. ``mask``: bank bytes - 1; 0 stops recording,
also of captured graphs."""

LOST_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("lane", "<u4"),
        ("kernel_id", "<u8"),
        ("grid_id", "<u8"),
        ("cta", "<u4", 3),
        ("warp", "<u4"),
        ("advance", "<u4"),
        ("stride", "<u4"),
        ("sm", "<u4"),
        ("reserved", "<u4"),
        ("exit_globaltimer", "<u8"),
    ]
)
"""A warp (or one lane of it) that found no room: ``advance / stride`` of its events are lost (``stride`` is 1 where it
would have had a ring)."""
assert LOST_DTYPE.itemsize == LOST_BYTES

# --------------------------------------------------------------------------------------------------- regions
REGION_HEADER_BYTES = 128
REGION_ALIGN = 128
REGION_MAGIC = 0x31525457  # "WTR1"
CLOSED_MAGIC = 0x31435457  # "WTC1"
RING_MAGIC = 0x4E525457  # "WTRN", in place of REGION_MAGIC
LOST_MAGIC = 0x314C5457  # "WTL1"
LANE_HEADER_BYTES = 8
MAX_REGION_BYTES = 512 * 1024
"""A token's link is 16 bits of a count of 8-byte words: unambiguous inside 512 KiB."""

REGION_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("position", "<u4"),
        ("kernel_id", "<u8"),
        ("grid_id", "<u8"),
        ("cta", "<u4", 3),
        ("warp", "<u2"),
        ("launch_high", "<u2"),
        ("main_bytes", "<u4"),
        ("lane_bytes", "<u4"),
        ("grid", "<u4", 3),
        ("block", "<u4"),
        ("sm", "<u2"),
        ("launch_low", "<u2"),
        ("cluster", "<u4"),
        ("stride", "<u2"),
        ("launch_middle", "<u2"),
        ("capacity", "<u4"),
        ("entry_clock", "<u8"),
        ("entry_globaltimer", "<u8"),
        ("advance", "<u4"),
        ("closed", "<u4"),
        ("exit_clock", "<u8"),
        ("exit_globaltimer", "<u8"),
        ("reserved", "<u4"),
        ("lane_advance", "<u4"),
    ]
)
"""``position``: low 32 bits of the claim's position in its bank (must match where the header was found). ``warp``:
linear warp of the CTA. ``block``: see :func:`pack_block`; ``cluster``: see :func:`pack_cluster` (0: no cluster
launch). ``launch_*``: see :func:`launch_words`. ``capacity``: see :func:`pack_capacity`. ``*_clock``: %clock64 in
cycles; ``*_globaltimer``: %globaltimer in ns, read right after it. ``advance``: bytes lane 0's cursor moved;
``lane_advance``: most that any other lane's did. ``closed``: CLOSED_MAGIC once the warp has ended."""
assert REGION_DTYPE.itemsize == REGION_HEADER_BYTES

LANE_DTYPE = np.dtype([("advance", "<u4"), ("closed", "<u4")])
"""``advance``: bytes the lane's cursor moved; written at exit, only by lanes that led an event."""
assert LANE_DTYPE.itemsize == LANE_HEADER_BYTES

SLOT8_DTYPE = np.dtype([("clock", "<u4"), ("code", "<u4")])
SLOT16_DTYPE = np.dtype([("clock", "<u4"), ("code", "<u4"), ("payload", "<u8")])
STRIDES = (8, 16)
MAX_SITES = 65535
SITE_MASK = 0xFFFF
LINK_SHIFT = 16
CAPACITY_SHIFT = 20

TOKEN_SHIFT = 13
"""A token is ``(slot_offset << 13) & 0xFFFF0000``: already the link, in place, so an end costs one OR."""
TOKEN_MASK = 0xFFFF0000
SENTINEL_TOKEN = 1
"""Low half not zero: no start ever yields it."""
TAG_LANE_SHIFT = 11
"""Bits of a start's number in its tag where the lane stands above them."""
TAG_BITS = 16


def tag(number: int, lane: int, *, lanes: bool) -> int:
    """Tag of the start that is event ``number`` of ``lane``; ``lanes``: the region has blocks for other lanes."""
    bits = TAG_LANE_SHIFT if lanes else TAG_BITS
    return number & (1 << bits) - 1 | (lane << TAG_LANE_SHIFT if lanes else 0)


# --------------------------------------------------------------------------------------------------- launch word
LAUNCH_WORD_BITS = 48
LAUNCH_CAPTURED = 1 << LAUNCH_WORD_BITS - 1
LAUNCH_NODE_BITS = 24
"""Host code makes a *launch word* of each launch, which region headers hold: 0 unknown; stream handle + 1 (user
addresses have 47 bits) of a launch into a stream; for one that was captured into a graph LAUNCH_CAPTURED |
capture << LAUNCH_NODE_BITS | node, both counted in the process from 1, 0 where not known."""
STREAM_LEGACY = 1
STREAM_PER_THREAD = 2
"""Handles of CUDA's own streams; 0 is the default stream, which is the legacy one for the driver API."""


def stream_word(handle: int) -> int:
    """Launch word of a launch into a stream; 0 for a handle that no word can hold."""
    word = handle + 1
    return word if 0 < word < LAUNCH_CAPTURED else 0


def captured_word(capture: int, node: int) -> int:
    """Launch word of the launch that is ``node`` of a capture; what has no room counts as not known."""
    if not 0 < capture < 1 << LAUNCH_WORD_BITS - 1 - LAUNCH_NODE_BITS:
        return LAUNCH_CAPTURED
    return LAUNCH_CAPTURED | capture << LAUNCH_NODE_BITS | (node if 0 < node < 1 << LAUNCH_NODE_BITS else 0)


def launch_text(word: int) -> str:
    """A launch word for a reader: "unknown", "stream 0x10" or "capture 2 node 3"."""
    if not word & LAUNCH_CAPTURED:
        return f"stream {word - 1:#x}" if word else "unknown"
    capture, node = divmod(word - LAUNCH_CAPTURED, 1 << LAUNCH_NODE_BITS)
    return f"capture {capture or 'unknown'} node {node or 'unknown'}"


def launch_words(headers: np.ndarray) -> np.ndarray:
    """(n,) i64 launch words of (n,) REGION_DTYPE."""
    words: np.ndarray = headers["launch_low"].astype(np.int64)
    words |= headers["launch_middle"].astype(np.int64) << 16
    words |= headers["launch_high"].astype(np.int64) << 32
    return words


def events_led(advance: np.ndarray, stride: np.ndarray | int, ring: np.ndarray | bool) -> np.ndarray:
    """Events that (n,) cursors counted, as i64, from what they advanced."""
    count: np.ndarray = advance.astype(np.int64) // np.where(ring, 1, stride)
    return count


def ring_bytes(room: int) -> int:
    """Bytes of the ring that the device makes of ``room`` bytes of slots: the largest power of two in them."""
    return 1 << room.bit_length() - 1

# -------------------------------------------------------------------------------------------------- host cell
CELL_ENV = "WARPTRACE_CELL"
"""``<pid>:<hex address>`` of the host cell; host code of a kernel ignores another process's value."""
CELL_CALLBACK_OFFSET = 8
CELL_CAPTURING_OFFSET = 16
"""Address of the driver's ``cuStreamIsCapturing``, 0: not known."""
CELL_CAPTURED_OFFSET = 24
"""Address of a function (stream, where to put a launch word) that host code calls at a launch that is captured."""
CELL_NOTES_OFFSET = 32
"""Address of the memory in which host code that was compiled to do so notes launches, 0: none."""
CELL_DEVICES_OFFSET = 64
CELL_DEVICE_COUNT = 64
CELL_KERNELS_OFFSET = 1024
CELL_KERNEL_COUNT = 16384
CELL_KERNEL_BYTES = 32
CELL_BYTES = CELL_KERNELS_OFFSET + CELL_KERNEL_COUNT * CELL_KERNEL_BYTES
CELL_KERNEL_DTYPE = np.dtype(
    {
        "names": ["main", "lane", "launches", "ask", "first", "end"],
        "formats": ["<u4"] * 6,
        "offsets": [0, 4, 8, 12, 16, 20],
        "itemsize": CELL_KERNEL_BYTES,
    }
)
"""What host code of kernel number ``kernel_id % CELL_KERNEL_COUNT`` reads, and counts (launches, from 0) at each
launch. Launches ``first`` to ``end - 1`` are recorded. ``ask``: if not 0, every one of those but the first calls back
before it reads the size. ``main``: bytes of main slots of a warp (:func:`exact_main`), or :data:`CELL_SKIP`, or an
automatic size (:func:`auto_main`). ``lane``: bytes of each other lane's block, a multiple of 128, 0 for none; with an
automatic ``main``: ``1 | shift << 1``, that is ``main_bytes >> shift``, or 0 for none."""
NOTES_HEADER_DTYPE = np.dtype([("head", "<u8"), ("capacity", "<u8")])
"""``head`` counts the launches to be noted; those from ``capacity`` on are not."""
NOTES_HEADER_BYTES = 64
NOTE_DTYPE = np.dtype(
    {
        "names": ["unix_ns", "thread", "kernel_id", "control", "word"],
        "formats": ["<u8"] * 5,
        "offsets": [0, 8, 16, 24, 32],
        "itemsize": 48,
    }
)
"""A launch that is recorded, as host code makes it: CLOCK_REALTIME (written last), ``pthread_self``, and the kernel,
control pointer and launch word."""
NOTE_COUNT = 1 << 18
NOTES_BYTES = NOTES_HEADER_BYTES + NOTE_COUNT * NOTE_DTYPE.itemsize
CELL_OFF = 1
"""A device's word with this value: no tracing on this device (0: not asked yet)."""
CELL_SKIP = 2
"""``main`` with this value: do not record the kernel (it gets control pointer 0, which costs next to nothing)."""


def aligned(size: int) -> int:
    """The least multiple of REGION_ALIGN that is not below ``size``."""
    return -(-size // REGION_ALIGN) * REGION_ALIGN


def exact_main(slot_bytes: int) -> int:
    """A ``main`` for exactly ``slot_bytes`` of slots (a multiple of 8).

    The region's main bytes are a multiple of 128; bits 2 to 5 hold what is too much of them, in units of 8 bytes.
    """
    main = aligned(slot_bytes)
    return main | (main - slot_bytes) // 8 << 2


TRIM_MASK = 0x3C
"""Bits of a ``main`` that hold what is too much of it; twice their value is a number of bytes."""
LOG2_LEAST_MAIN = 8


def auto_main(log2_budget: int, log2_least: int, log2_most: int, log2_bank: int) -> int:
    """A ``main`` that lets the launch's grid decide: see :func:`auto_main_bytes`."""
    return 1 | log2_budget << 1 | log2_least << 6 | log2_most << 11 | log2_bank << 16


LOG2_CROWD = 3
"""Where clusters are left out a bank holds the regions of so many of the CTAs that record, or so many times the even
share: a hash spreads them, not the SMs, and it is not as even."""


@dataclass(frozen=True)
class LaunchRules:
    """What host code has to know of a kernel to make the hidden parameters of a launch. ``stride``, ``slack`` and
    ``ring``: as in its record; ``least_lane``: bytes of each other lane's block at least, 0 where lane 0 alone leads.
    The rest is of what is recorded, so that few warps get large regions whatever the grid: ``warps`` of a CTA at most;
    ``clusters``: so many are named, 0 none; ``log2_stride``: every ``2**log2_stride``-th at most; ``log2_crowd``:
    LOG2_CROWD where clusters are left out, else 0."""

    stride: int = 8
    slack: int = 0
    ring: bool = False
    least_lane: int = 0
    warps: int = 32
    clusters: int = 0
    log2_stride: int = 0
    log2_crowd: int = 0

    @property
    def least_slots(self) -> int:
        """Bytes of main slots without which there is no region."""
        return self.stride if self.ring else self.slack

    @property
    def lane_spare(self) -> int:
        """Bytes of another lane's block that are no room: its header and, but in a ring, the slack and the trim."""
        return LANE_HEADER_BYTES + (0 if self.ring else self.slack + lane_trim(self.stride))


def lane_trim(stride: int) -> int:
    """Bytes behind the last whole slot of a lane's block."""
    return -LANE_HEADER_BYTES % stride


def least_lane_bytes(stride: int, slack: int) -> int:
    """A lane's block holds four slots at least, beside its header and the slack."""
    needed = LANE_HEADER_BYTES + 4 * stride + slack + stride
    return aligned(needed)


def region_word(
    main: int, lane: int, rules: LaunchRules, ctas: int, cta_warps: int, cluster_ctas: int = 1
) -> int:
    """The second hidden parameter of a kernel, u64: the main bytes of a region (a multiple of REGION_ALIGN; bits 2 to 5
    as :func:`exact_main`), and in the upper half those of each other lane's block. ``main`` and ``lane`` are what the
    cell has. Host code computes the same."""
    if main & 1:
        main = auto_main_bytes(main, ctas, cta_warps, rules, cluster_ctas)
        lane = main >> (lane >> 1) if lane & 1 else 0
    if slot_bytes(main) < rules.least_slots:  # of a kernel that no one announced
        main = aligned(rules.least_slots)
    lane = max(lane, rules.least_lane) if rules.least_lane else 0
    return main | lane << 32


def slot_bytes(main: int) -> int:
    """Bytes of the main slots of a region word's lower half: inverse of :func:`exact_main`."""
    return (main & -REGION_ALIGN) - ((main & TRIM_MASK) << 1)


def room_word(region: int, rules: LaunchRules) -> int:
    """The fifth hidden parameter, u64: what the header has as ``capacity``, and in the upper half the bytes of main
    slots before the slack. Host code computes the same."""
    room, lane = slot_bytes(region & 0xFFFFFFFF) - rules.slack, region >> 32
    counting, inner = room, lane - rules.lane_spare if lane else 0
    if rules.ring:
        counting, inner = ring_bytes(room), ring_bytes(inner) if lane else 0
    return pack_capacity(counting, inner) | room << 32


def hidden_parameters(
    control: int, region: int, word: int, rules: LaunchRules, cluster: tuple[int, int, int] = (1, 1, 1)
) -> tuple[int, int, int, int, int]:
    """All hidden parameters of a launch, u64 each: the control block's address, the region word, the parts of the
    launch ``word`` (:data:`LAUNCH_WORD_BITS`) that stand beside the SM and the warp in the header, stride and third
    part beside each other and the packed cluster, and the room word. So the device only has to store them."""
    low, middle, high = (word >> shift & 0xFFFF for shift in (0, 16, 32))
    beside = low << 16 | high << 48
    form = rules.stride | middle << 16 | pack_cluster(*cluster) << 32
    return control, region, beside, form, room_word(region, rules)


def auto_main_bytes(
    main: int, ctas: int, cta_warps: int, rules: LaunchRules = LaunchRules(), cluster_ctas: int = 1
) -> int:
    """Main bytes of each warp of a launch for an automatic ``main``.

    The budget shifted right by ceil(log2(warps)), kept between least and most; and such that ``1 << log2_bank`` bytes
    of a bank hold the regions of all warps that claim from it: those of one CTA, or twice the launch's even share.
    Never less than ``1 << LOG2_LEAST_MAIN``: a launch of so many warps does not fit the buffer.
    """
    budget, least, most, bank = (main >> shift & 31 for shift in (1, 6, 11, 16))
    cta_warps = min(cta_warps, rules.warps)
    if rules.clusters:
        ctas = min(ctas, rules.clusters * cluster_ctas)
    ctas = min(ctas, (ctas >> rules.log2_stride) + cluster_ctas)
    log2_cta = (max(cta_warps, 1) - 1).bit_length()
    log2_warps = (max(ctas * cta_warps, 1) - 1).bit_length()
    crowd = max(min(log2_cta + rules.log2_crowd, log2_warps), log2_warps - LOG2_BANKS + max(rules.log2_crowd, 1))
    return 1 << int(max(min(max(budget - log2_warps, least), most, bank - crowd), LOG2_LEAST_MAIN))


def bank_of(place: np.ndarray, grid_id: np.ndarray) -> np.ndarray:
    """The bank that warps claim from: ``place`` (n,) is their SM, or :func:`scattered` where only some clusters of a
    grid record; ``grid_id`` (n,) u64."""
    grid = (grid_id & np.uint64(BANK_COUNT - 1)).astype(np.int64)
    bank: np.ndarray = (place.astype(np.int64) + BANK_GRID_STEP * grid) & BANK_COUNT - 1
    return bank


def scattered(cta: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A hash of (n, 3) CTAs in their (n, 3) grids, as i64."""
    c, g = cta.astype(np.uint64), grid.astype(np.uint64)
    h: np.ndarray = (c[:, 2] * g[:, 1] + c[:, 1]) * g[:, 0] + c[:, 0]
    for factor, shift in ((1, 16), (SCATTER[0], 15), (SCATTER[1], 16)):
        h = h * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        h ^= h >> np.uint64(shift)
    return h.astype(np.int64)


def region_bytes(main_bytes: int, lane_bytes: int) -> int:
    """Bytes that a region takes from its bank."""
    return REGION_HEADER_BYTES + main_bytes + 31 * lane_bytes


class EventKind(IntEnum):
    """What one record means; a property of its site, so it costs nothing on the device."""

    MARK = 1
    PUSH = 2
    POP = 3
    START = 4
    END = 5
    SWITCH = 6
    """Ends the innermost pushed range and starts the next: one stamp."""


class PayloadType(IntEnum):
    """Payload types; the numbers are those that the reference system's JSON uses where it has the type."""

    NONE = 0
    I8 = 1
    U8 = 2
    I16 = 3
    U16 = 4
    I32 = 5
    U32 = 6
    I64 = 7
    F16 = 11
    BF16 = 12
    F32 = 13
    F64 = 14
    BOOL = 15
    U64 = 16


PAYLOAD_BITS: dict[PayloadType, int] = {
    PayloadType.NONE: 0,
    PayloadType.I8: 8,
    PayloadType.U8: 8,
    PayloadType.BOOL: 1,
    PayloadType.I16: 16,
    PayloadType.U16: 16,
    PayloadType.F16: 16,
    PayloadType.BF16: 16,
    PayloadType.I32: 32,
    PayloadType.U32: 32,
    PayloadType.F32: 32,
    PayloadType.I64: 64,
    PayloadType.U64: 64,
    PayloadType.F64: 64,
}


def pack_block(x: int, y: int, z: int) -> int:
    """Block dimensions in 32 bits, as the device packs them: x | y << 11 | z << 22 (x, y <= 1024, z <= 64)."""
    return x | y << 11 | z << 22


def unpack_block(packed: np.ndarray) -> np.ndarray:
    """Inverse of :func:`pack_block`: (n,) u32 -> (n, 3) i32."""
    p = packed.astype(np.int64)
    return np.stack([p & 0x7FF, (p >> 11) & 0x7FF, p >> 22], axis=-1).astype(np.int32)


def pack_capacity(main: int, lane: int) -> int:
    """Bytes of slots that count, of the main slots and of each other lane's block: main / 8 | lane / 8 << 20."""
    return main // 8 | lane // 8 << CAPACITY_SHIFT


def unpack_capacity(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of :func:`pack_capacity`: (n,) u32 -> (main, lane), (n,) i64 each."""
    p = packed.astype(np.int64)
    return (p & (1 << CAPACITY_SHIFT) - 1) * 8, (p >> CAPACITY_SHIFT) * 8


def pack_cluster(x: int, y: int, z: int) -> int:
    """Cluster dimensions in CTAs: x | y << 8 | z << 16."""
    return x | y << 8 | z << 16


def unpack_cluster(packed: np.ndarray) -> np.ndarray:
    """Inverse of :func:`pack_cluster`: (n,) u32 -> (n, 3) i32, 1 where the field is 0."""
    p = packed.astype(np.int64)
    out = np.stack([p & 0xFF, (p >> 8) & 0xFF, (p >> 16) & 0xFF], axis=-1)
    return np.maximum(out, 1).astype(np.int32)
