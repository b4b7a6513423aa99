"""The hidden kernel parameters: how a kernel finds its trace memory on every launch path.

Each kernel with events gets five more parameters (``wire.hidden_parameters``): the control block's address, the region
word, and what region headers have of the launch, its word included, which tells the stream (``wire.stream_word``). The
host code that the DSL generates fills the first two from the *host cell* of this process (see ``warptrace.wire``),
whose address it finds once through an environment variable that holds the process id too: a stale cache, an exported
object or an inherited environment meets no cell and passes zeros,
and then the kernel records nothing. It costs one load a launch; a callback into Python would cost a microsecond. The
first launch on a device meets an empty cell and calls back once, so that memory is taken on the device that really
launches; the second launch of a kernel whose number of events is not known calls back once more, so that its regions
can be cut to what the first one used. Launches are counted by one atomic add, whose old value also says whether a
launch is one of those that are wanted: exact with any number of threads.

The launch word is the handle of the launch's stream, so nothing on the host need be kept or read for it. A launch that
is captured has no stream of its own: the driver is asked (``cuStreamIsCapturing``, which waits for nothing; its address
is in the cell), and only then a callback into Python numbers the capture and the launch in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass._mlir import ir
from cutlass._mlir.dialects import arith

from ... import wire
from ...sites import KernelRecord
from .ir_tools import attribute_items, int_type, plain_value, symbol, walk

_FIELD = {name: place[1] for name, place in (wire.CELL_KERNEL_DTYPE.fields or {}).items()}
"""Offsets in a kernel's entry of the cell."""
_STREAM_TYPE = "!cuda.stream"
_CONFIGURATION = "cuda.launch_cfg"

# Functions at addresses of the cell are reached through libc's bsearch, as the comparison of its key with the only
# element, which it returns where they return 0: an indirect llvm.call in the host module crashes the DSL's passes.
_HOST = f"""
llvm.mlir.global internal constant @warptrace_env("{wire.CELL_ENV}\\00")
llvm.mlir.global internal @warptrace_cell_address(0 : i64) : i64
llvm.func @getenv(!llvm.ptr) -> !llvm.ptr
llvm.func @getpid() -> i32
llvm.func @strtoull(!llvm.ptr, !llvm.ptr, i32) -> i64
llvm.func @bsearch(!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> !llvm.ptr
llvm.func @_cudaGetDevice(!llvm.ptr) -> i32
llvm.func internal @warptrace_cell() -> i64 {{
  %name = llvm.mlir.addressof @warptrace_env : !llvm.ptr
  %kept = llvm.mlir.addressof @warptrace_cell_address : !llvm.ptr
  %null = llvm.mlir.zero : !llvm.ptr
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i32) : i32
  %ten = llvm.mlir.constant(10 : i32) : i32
  %sixteen = llvm.mlir.constant(16 : i32) : i32
  %known = llvm.load volatile %kept : !llvm.ptr -> i64
  %is_known = llvm.icmp "ne" %known, %zero : i64
  llvm.cond_br %is_known, ^done(%known : i64), ^ask
^ask:
  %text = llvm.call @getenv(%name) : (!llvm.ptr) -> !llvm.ptr
  %absent = llvm.icmp "eq" %text, %null : !llvm.ptr
  llvm.cond_br %absent, ^done(%zero : i64), ^parse
^parse:
  %end = llvm.alloca %one x !llvm.ptr : (i32) -> !llvm.ptr
  %pid = llvm.call @strtoull(%text, %end, %ten) : (!llvm.ptr, !llvm.ptr, i32) -> i64
  %me = llvm.call @getpid() : () -> i32
  %me64 = llvm.zext %me : i32 to i64
  %mine = llvm.icmp "eq" %pid, %me64 : i64
  llvm.cond_br %mine, ^take, ^done(%zero : i64)
^take:
  %rest = llvm.load %end : !llvm.ptr -> !llvm.ptr
  %digits = llvm.getelementptr %rest[1] : (!llvm.ptr) -> !llvm.ptr, i8
  %address = llvm.call @strtoull(%digits, %null, %sixteen) : (!llvm.ptr, !llvm.ptr, i32) -> i64
  llvm.store volatile %address, %kept : i64, !llvm.ptr
  llvm.br ^done(%address : i64)
^done(%cell: i64):
  llvm.return %cell : i64
}}
llvm.func internal @warptrace_control(%entry_offset: i64) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %eight = llvm.mlir.constant(8 : i64) : i64
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %off = llvm.mlir.constant({wire.CELL_OFF} : i64) : i64
  %skip = llvm.mlir.constant({wire.CELL_SKIP} : i32) : i32
  %devices = llvm.mlir.constant({wire.CELL_DEVICE_COUNT} : i32) : i32
  %null = llvm.mlir.zero : !llvm.ptr
  %cell = llvm.call @warptrace_cell() : () -> i64
  %none = llvm.icmp "eq" %cell, %zero : i64
  llvm.cond_br %none, ^done(%zero : i64), ^count
^count:
  %cellp = llvm.inttoptr %cell : i64 to !llvm.ptr
  %entry = llvm.getelementptr %cellp[%entry_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %launches = llvm.getelementptr %entry[{_FIELD["launches"]}] : (!llvm.ptr) -> !llvm.ptr, i8
  %before = llvm.atomicrmw add %launches, %one32 monotonic : !llvm.ptr, i32
  %firstp = llvm.getelementptr %entry[{_FIELD["first"]}] : (!llvm.ptr) -> !llvm.ptr, i8
  %first = llvm.load volatile %firstp : !llvm.ptr -> i32
  %endp = llvm.getelementptr %entry[{_FIELD["end"]}] : (!llvm.ptr) -> !llvm.ptr, i8
  %end = llvm.load volatile %endp : !llvm.ptr -> i32
  %begun = llvm.icmp "uge" %before, %first : i32
  %unended = llvm.icmp "ult" %before, %end : i32
  %wanted = llvm.and %begun, %unended : i1
  llvm.cond_br %wanted, ^chosen, ^done(%zero : i64)
^chosen:
  %callbackp = llvm.getelementptr %cellp[{wire.CELL_CALLBACK_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
  %again = llvm.icmp "ne" %before, %first : i32
  llvm.cond_br %again, ^wonder, ^size
^wonder:
  %askp = llvm.getelementptr %entry[{_FIELD["ask"]}] : (!llvm.ptr) -> !llvm.ptr, i8
  %ask = llvm.load volatile %askp : !llvm.ptr -> i32
  %asks = llvm.icmp "ne" %ask, %zero32 : i32
  llvm.cond_br %asks, ^ask, ^size
^ask:
  %asked = llvm.load volatile %callbackp : !llvm.ptr -> i64
  %deaf = llvm.icmp "eq" %asked, %zero : i64
  llvm.cond_br %deaf, ^size, ^tell
^tell:
  %listener = llvm.inttoptr %asked : i64 to !llvm.ptr
  %unused = llvm.call @bsearch(%entry, %entry, %one, %eight, %listener)
    : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> !llvm.ptr
  llvm.br ^size
^size:
  %main = llvm.load volatile %entry : !llvm.ptr -> i32
  %skipped = llvm.icmp "eq" %main, %skip : i32
  llvm.cond_br %skipped, ^done(%zero : i64), ^device
^device:
  %number = llvm.alloca %one32 x i32 : (i32) -> !llvm.ptr
  %rc = llvm.call @_cudaGetDevice(%number) : (!llvm.ptr) -> i32
  %device = llvm.load %number : !llvm.ptr -> i32
  %valid = llvm.icmp "ult" %device, %devices : i32
  llvm.cond_br %valid, ^slot, ^done(%zero : i64)
^slot:
  %table = llvm.getelementptr %cellp[{wire.CELL_DEVICES_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
  %slotp = llvm.getelementptr %table[%device] : (!llvm.ptr, i32) -> !llvm.ptr, i64
  %value = llvm.load volatile %slotp : !llvm.ptr -> i64
  %ready = llvm.icmp "ne" %value, %zero : i64
  llvm.cond_br %ready, ^found(%value : i64), ^first
^first:
  %callback = llvm.load volatile %callbackp : !llvm.ptr -> i64
  %uncalled = llvm.icmp "eq" %callback, %zero : i64
  llvm.cond_br %uncalled, ^done(%zero : i64), ^call
^call:
  %function = llvm.inttoptr %callback : i64 to !llvm.ptr
  %ignored = llvm.call @bsearch(%slotp, %slotp, %one, %eight, %function)
    : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> !llvm.ptr
  %now = llvm.load volatile %slotp : !llvm.ptr -> i64
  llvm.br ^found(%now : i64)
^found(%control: i64):
  %usable = llvm.icmp "ugt" %control, %off : i64
  %result = llvm.select %usable, %control, %zero : i1, i64
  llvm.br ^done(%result : i64)
^done(%out: i64):
  llvm.return %out : i64
}}
llvm.func internal @warptrace_log2(%n: i64) -> i64 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %bits = llvm.mlir.constant(64 : i64) : i64
  %some = llvm.intr.umax(%n, %one) : (i64, i64) -> i64
  %less = llvm.sub %some, %one : i64
  %zeros = "llvm.intr.ctlz"(%less) <{{is_zero_poison = false}}> : (i64) -> i64
  %up = llvm.sub %bits, %zeros : i64
  llvm.return %up : i64
}}
llvm.func internal @warptrace_auto_main(%auto: i64, %all_ctas: i64, %all_warps: i64, %cluster: i64, %most_warps: i64,
                                        %named: i64, %stride: i64, %crowding: i64) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %six = llvm.mlir.constant(6 : i64) : i64
  %eleven = llvm.mlir.constant(11 : i64) : i64
  %sixteen = llvm.mlir.constant(16 : i64) : i64
  %field = llvm.mlir.constant(31 : i64) : i64
  %banks = llvm.mlir.constant({wire.LOG2_BANKS} : i64) : i64
  %floor = llvm.mlir.constant({wire.LOG2_LEAST_MAIN} : i64) : i64
  %warps = llvm.intr.umin(%all_warps, %most_warps) : (i64, i64) -> i64
  %some_named = llvm.icmp "ne" %named, %zero : i64
  %in_named = llvm.mul %named, %cluster : i64
  %of_named = llvm.intr.umin(%in_named, %all_ctas) : (i64, i64) -> i64
  %chosen = llvm.select %some_named, %of_named, %all_ctas : i1, i64
  %thinned = llvm.lshr %chosen, %stride : i64
  %share = llvm.add %thinned, %cluster : i64
  %ctas = llvm.intr.umin(%chosen, %share) : (i64, i64) -> i64
  %log_cta = llvm.call @warptrace_log2(%warps) : (i64) -> i64
  %every = llvm.mul %ctas, %warps : i64
  %log_all = llvm.call @warptrace_log2(%every) : (i64) -> i64
  %near = llvm.add %log_cta, %crowding : i64
  %near_most = llvm.intr.smin(%near, %log_all) : (i64, i64) -> i64
  %even = llvm.intr.smax(%crowding, %one) : (i64, i64) -> i64
  %over = llvm.sub %log_all, %banks : i64
  %spread = llvm.add %over, %even : i64
  %crowd = llvm.intr.smax(%near_most, %spread) : (i64, i64) -> i64
  %budget0 = llvm.lshr %auto, %one : i64
  %budget = llvm.and %budget0, %field : i64
  %least0 = llvm.lshr %auto, %six : i64
  %least = llvm.and %least0, %field : i64
  %most0 = llvm.lshr %auto, %eleven : i64
  %most = llvm.and %most0, %field : i64
  %bank0 = llvm.lshr %auto, %sixteen : i64
  %bank = llvm.and %bank0, %field : i64
  %each = llvm.sub %budget, %log_all : i64
  %raised = llvm.intr.smax(%each, %least) : (i64, i64) -> i64
  %lowered = llvm.intr.smin(%raised, %most) : (i64, i64) -> i64
  %held = llvm.sub %bank, %crowd : i64
  %fitting = llvm.intr.smin(%lowered, %held) : (i64, i64) -> i64
  %log = llvm.intr.smax(%fitting, %floor) : (i64, i64) -> i64
  %main = llvm.shl %one, %log : i64
  llvm.return %main : i64
}}
llvm.func internal @warptrace_slots(%main: i64) -> i64 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %units = llvm.mlir.constant({-wire.REGION_ALIGN} : i64) : i64
  %mask = llvm.mlir.constant({wire.TRIM_MASK} : i64) : i64
  %bytes = llvm.and %main, %units : i64
  %field = llvm.and %main, %mask : i64
  %trim = llvm.shl %field, %one : i64
  %slots = llvm.sub %bytes, %trim : i64
  llvm.return %slots : i64
}}
llvm.func internal @warptrace_ring(%room: i64) -> i64 {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %top = llvm.mlir.constant(63 : i64) : i64
  %zeros = "llvm.intr.ctlz"(%room) <{{is_zero_poison = false}}> : (i64) -> i64
  %log = llvm.sub %top, %zeros : i64
  %size = llvm.shl %one, %log : i64
  llvm.return %size : i64
}}
llvm.func internal @warptrace_room(%region: i64, %slack: i64, %spare: i64, %ring: i64) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %three = llvm.mlir.constant(3 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %place = llvm.mlir.constant({wire.CAPACITY_SHIFT} : i64) : i64
  %low = llvm.mlir.constant(4294967295 : i64) : i64
  %main = llvm.and %region, %low : i64
  %lane = llvm.lshr %region, %half : i64
  %slots = llvm.call @warptrace_slots(%main) : (i64) -> i64
  %room = llvm.sub %slots, %slack : i64
  %blocks = llvm.icmp "ne" %lane, %zero : i64
  %inner = llvm.sub %lane, %spare : i64
  %is_ring = llvm.icmp "ne" %ring, %zero : i64
  llvm.cond_br %is_ring, ^ring, ^done(%room, %inner : i64, i64)
^ring:
  %main_ring = llvm.call @warptrace_ring(%room) : (i64) -> i64
  %lane_ring = llvm.call @warptrace_ring(%inner) : (i64) -> i64
  llvm.br ^done(%main_ring, %lane_ring : i64, i64)
^done(%main_bytes: i64, %lane_bytes: i64):
  %main_words = llvm.lshr %main_bytes, %three : i64
  %lane_words = llvm.lshr %lane_bytes, %three : i64
  %placed = llvm.shl %lane_words, %place : i64
  %beside = llvm.select %blocks, %placed, %zero : i1, i64
  %capacity = llvm.or %main_words, %beside : i64
  %upper = llvm.shl %room, %half : i64
  %word = llvm.or %capacity, %upper : i64
  llvm.return %word : i64
}}
llvm.func internal @warptrace_beside(%word: i64) -> i64 {{
  %field = llvm.mlir.constant(65535 : i64) : i64
  %sixteen = llvm.mlir.constant(16 : i64) : i64
  %shift = llvm.mlir.constant(48 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %low0 = llvm.and %word, %field : i64
  %low = llvm.shl %low0, %sixteen : i64
  %high0 = llvm.lshr %word, %half : i64
  %high = llvm.shl %high0, %shift : i64
  %both = llvm.or %low, %high : i64
  llvm.return %both : i64
}}
llvm.func internal @warptrace_form(%word: i64, %stride: i64, %x: i64, %y: i64, %z: i64) -> i64 {{
  %mask = llvm.mlir.constant(4294901760 : i64) : i64
  %eight = llvm.mlir.constant(8 : i64) : i64
  %sixteen = llvm.mlir.constant(16 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %middle = llvm.and %word, %mask : i64
  %lower = llvm.or %middle, %stride : i64
  %ys = llvm.shl %y, %eight : i64
  %zs = llvm.shl %z, %sixteen : i64
  %xy = llvm.or %x, %ys : i64
  %xyz = llvm.or %xy, %zs : i64
  %upper = llvm.shl %xyz, %half : i64
  %both = llvm.or %lower, %upper : i64
  llvm.return %both : i64
}}
llvm.func internal @warptrace_region(%entry_offset: i64, %ctas: i64, %warps: i64, %cluster: i64, %least_slots: i64,
                                     %least_lane: i64, %most_warps: i64, %named: i64, %stride: i64, %crowding: i64)
    -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %half = llvm.mlir.constant(32 : i64) : i64
  %align = llvm.mlir.constant({wire.REGION_ALIGN} : i64) : i64
  %units = llvm.mlir.constant({-wire.REGION_ALIGN} : i64) : i64
  %low = llvm.mlir.constant(4294967295 : i64) : i64
  %cell = llvm.call @warptrace_cell() : () -> i64
  %none = llvm.icmp "eq" %cell, %zero : i64
  llvm.cond_br %none, ^done(%zero : i64), ^load
^load:
  %cellp = llvm.inttoptr %cell : i64 to !llvm.ptr
  %entry = llvm.getelementptr %cellp[%entry_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %value = llvm.load volatile %entry : !llvm.ptr -> i64
  %given = llvm.and %value, %low : i64
  %given_lane = llvm.lshr %value, %half : i64
  %flag = llvm.and %given, %one : i64
  %automatic = llvm.icmp "ne" %flag, %zero : i64
  llvm.cond_br %automatic, ^grid, ^whole(%given, %given_lane : i64, i64)
^grid:
  %main = llvm.call @warptrace_auto_main(%given, %ctas, %warps, %cluster, %most_warps, %named, %stride, %crowding)
    : (i64, i64, i64, i64, i64, i64, i64, i64) -> i64
  %shift = llvm.lshr %given_lane, %one : i64
  %part = llvm.lshr %main, %shift : i64
  %with = llvm.and %given_lane, %one : i64
  %blocks = llvm.mul %part, %with : i64
  llvm.br ^whole(%main, %blocks : i64, i64)
^whole(%wanted_main: i64, %lane_bytes: i64):
  %slots = llvm.call @warptrace_slots(%wanted_main) : (i64) -> i64
  %few = llvm.icmp "slt" %slots, %least_slots : i64
  %beyond = llvm.add %least_slots, %align : i64
  %behind = llvm.sub %beyond, %one : i64
  %least_main = llvm.and %behind, %units : i64
  %main_bytes = llvm.select %few, %least_main, %wanted_main : i1, i64
  %larger = llvm.intr.umax(%lane_bytes, %least_lane) : (i64, i64) -> i64
  %lanes = llvm.icmp "ne" %least_lane, %zero : i64
  %lane = llvm.select %lanes, %larger, %zero : i1, i64
  %upper = llvm.shl %lane, %half : i64
  %word = llvm.or %main_bytes, %upper : i64
  llvm.br ^done(%word : i64)
^done(%out: i64):
  llvm.return %out : i64
}}
llvm.func internal @warptrace_launch(%control: i64, %stream: !llvm.ptr) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %eight = llvm.mlir.constant(8 : i64) : i64
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %legacy = llvm.mlir.constant({wire.STREAM_LEGACY} : i64) : i64
  %captured = llvm.mlir.constant({wire.LAUNCH_CAPTURED} : i64) : i64
  %null = llvm.mlir.zero : !llvm.ptr
  %off = llvm.icmp "eq" %control, %zero : i64
  llvm.cond_br %off, ^done(%zero : i64), ^on
^on:
  %cell = llvm.call @warptrace_cell() : () -> i64
  %none = llvm.icmp "eq" %cell, %zero : i64
  llvm.cond_br %none, ^done(%zero : i64), ^kind
^kind:
  %handle = llvm.ptrtoint %stream : !llvm.ptr to i64
  %never = llvm.icmp "ule" %handle, %legacy : i64
  llvm.cond_br %never, ^plain, ^look
^look:
  %cellp = llvm.inttoptr %cell : i64 to !llvm.ptr
  %capturingp = llvm.getelementptr %cellp[{wire.CELL_CAPTURING_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
  %capturing = llvm.load volatile %capturingp : !llvm.ptr -> i64
  %deaf = llvm.icmp "eq" %capturing, %zero : i64
  llvm.cond_br %deaf, ^done(%zero : i64), ^ask
^ask:
  %function = llvm.inttoptr %capturing : i64 to !llvm.ptr
  %status = llvm.alloca %one32 x i64 : (i32) -> !llvm.ptr
  llvm.store volatile %zero, %status : i64, !llvm.ptr
  %answer = llvm.call @bsearch(%stream, %status, %one, %eight, %function)
    : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> !llvm.ptr
  %failed = llvm.icmp "eq" %answer, %null : !llvm.ptr
  llvm.cond_br %failed, ^done(%zero : i64), ^told
^told:
  %state = llvm.load volatile %status : !llvm.ptr -> i64
  %free = llvm.icmp "eq" %state, %zero : i64
  llvm.cond_br %free, ^plain, ^number
^number:
  %callbackp = llvm.getelementptr %cellp[{wire.CELL_CAPTURED_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
  %callback = llvm.load volatile %callbackp : !llvm.ptr -> i64
  %alone = llvm.icmp "eq" %callback, %zero : i64
  llvm.cond_br %alone, ^done(%captured : i64), ^call
^call:
  %numberer = llvm.inttoptr %callback : i64 to !llvm.ptr
  llvm.store volatile %captured, %status : i64, !llvm.ptr
  %ignored = llvm.call @bsearch(%stream, %status, %one, %eight, %numberer)
    : (!llvm.ptr, !llvm.ptr, i64, i64, !llvm.ptr) -> !llvm.ptr
  %word = llvm.load volatile %status : !llvm.ptr -> i64
  llvm.br ^done(%word : i64)
^plain:
  %next = llvm.add %handle, %one : i64
  %fits = llvm.icmp "ult" %next, %captured : i64
  %named = llvm.select %fits, %next, %zero : i1, i64
  llvm.br ^done(%named : i64)
^done(%out: i64):
  llvm.return %out : i64
}}
"""


_NOTE = f"""
llvm.func @clock_gettime(i32, !llvm.ptr) -> i32
llvm.func @pthread_self() -> i64
llvm.func @warptrace_cell() -> i64
llvm.func internal @warptrace_note(%kernel: i64, %control: i64, %word: i64) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %two32 = llvm.mlir.constant(2 : i32) : i32
  %realtime = llvm.mlir.constant(0 : i32) : i32
  %second = llvm.mlir.constant(1000000000 : i64) : i64
  %header = llvm.mlir.constant({wire.NOTES_HEADER_BYTES} : i64) : i64
  %size = llvm.mlir.constant({wire.NOTE_DTYPE.itemsize} : i64) : i64
  %off = llvm.icmp "eq" %control, %zero : i64
  llvm.cond_br %off, ^done, ^on
^on:
  %cell = llvm.call @warptrace_cell() : () -> i64
  %none = llvm.icmp "eq" %cell, %zero : i64
  llvm.cond_br %none, ^done, ^look
^look:
  %cellp = llvm.inttoptr %cell : i64 to !llvm.ptr
  %notesp = llvm.getelementptr %cellp[{wire.CELL_NOTES_OFFSET}] : (!llvm.ptr) -> !llvm.ptr, i8
  %notes = llvm.load volatile %notesp : !llvm.ptr -> i64
  %deaf = llvm.icmp "eq" %notes, %zero : i64
  llvm.cond_br %deaf, ^done, ^number
^number:
  %headp = llvm.inttoptr %notes : i64 to !llvm.ptr
  %number = llvm.atomicrmw add %headp, %one monotonic : !llvm.ptr, i64
  %capacityp = llvm.getelementptr %headp[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %capacity = llvm.load volatile %capacityp : !llvm.ptr -> i64
  %fits = llvm.icmp "ult" %number, %capacity : i64
  llvm.cond_br %fits, ^write, ^done
^write:
  %before = llvm.mul %number, %size : i64
  %offset = llvm.add %before, %header : i64
  %entry = llvm.getelementptr %headp[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %time = llvm.alloca %two32 x i64 : (i32) -> !llvm.ptr
  %rc = llvm.call @clock_gettime(%realtime, %time) : (i32, !llvm.ptr) -> i32
  %seconds = llvm.load volatile %time : !llvm.ptr -> i64
  %restp = llvm.getelementptr %time[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %rest = llvm.load volatile %restp : !llvm.ptr -> i64
  %whole = llvm.mul %seconds, %second : i64
  %ns = llvm.add %whole, %rest : i64
  %thread = llvm.call @pthread_self() : () -> i64
  %threadp = llvm.getelementptr %entry[8] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store volatile %thread, %threadp : i64, !llvm.ptr
  %kernelp = llvm.getelementptr %entry[16] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store volatile %kernel, %kernelp : i64, !llvm.ptr
  %controlp = llvm.getelementptr %entry[24] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store volatile %control, %controlp : i64, !llvm.ptr
  %wordp = llvm.getelementptr %entry[32] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store volatile %word, %wordp : i64, !llvm.ptr
  llvm.store volatile %ns, %entry : i64, !llvm.ptr
  llvm.br ^done
^done:
  llvm.return %word : i64
}}
"""
"""For launches that are noted (``note_launches``), beside the other host functions."""

_noted = False


def note_launches(on: bool) -> None:
    """Whether host code of modules traced from now on notes its launches. Without, it is what it ever was."""
    global _noted
    _noted = on


PARAMETERS = ("control", "region", "beside", "form", "room")
"""Names of the hidden parameters in device operations: see ``wire.hidden_parameters``."""


def add_parameters(kernel: Any) -> dict[str, Any]:
    """Appends PARAMETERS to a kernel's parameters; returns their values in the body."""
    i64 = int_type("i64")
    entry = kernel.regions[0].blocks[0]
    values = {name: entry.add_argument(i64, ir.Location.unknown()) for name in PARAMETERS}
    old = ir.FunctionType(ir.TypeAttr(kernel.attributes["function_type"]).value)
    new = ir.FunctionType.get([*old.inputs, *(i64 for _ in values)], list(old.results))
    kernel.attributes["function_type"] = ir.TypeAttr.get(new)
    if "arg_attrs" in kernel.attributes:
        attrs = list(ir.ArrayAttr(kernel.attributes["arg_attrs"]))
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([*attrs, *(ir.DictAttr.get({}) for _ in values)])
    return values


def mixed_clusters(module: Any) -> set[str]:
    """Symbols of the kernels that some launch gives clusters of a preferred size, or else of a smaller one."""
    configurations = set()

    def visit(op: Any) -> None:
        if op.name == f"{_CONFIGURATION}.preferred_cluster_dim":
            configurations.add(plain_value(op.operands[0]))

    walk(module.operation, visit)
    launches = _launches(module) if configurations else []
    return {name for op, name in launches if any(plain_value(o) in configurations for o in op.operands)}


def _launches(module: Any) -> list[tuple[Any, str]]:
    """All launch operations, each with the symbol that it launches."""
    launches: list[tuple[Any, str]] = []

    def visit(op: Any) -> None:
        if op.name.startswith("cuda.launch"):
            names = [str(value) for value in attribute_items(op).values() if "@" in str(value)]
            launches.extend((op, name.rsplit("@", 1)[-1].strip('"')) for name in names)

    walk(module.operation, visit)
    return launches


def rewrite_launches(module: Any, records: Mapping[str, KernelRecord]) -> None:
    """Gives every launch of the kernels, by symbol, the hidden values, and the module the host functions that
    yield them."""
    launches = [(op, records[name]) for op, name in _launches(module) if name in records]
    if not launches:
        return
    with ir.Location.unknown():
        _add_host_functions(module)
    for op, record in launches:
        _rewrite(op, record)


def _rewrite(op: Any, record: KernelRecord) -> None:
    kernel_id = record.kernel_id
    offset = wire.CELL_KERNELS_OFFSET + kernel_id % wire.CELL_KERNEL_COUNT * wire.CELL_KERNEL_BYTES
    given = [plain_value(o) for o in op.operands]
    with ir.InsertionPoint(op), op.location:
        control = _call("warptrace_control", _constant(offset))
        rules, shape = record.launch_rules, _shape(op)
        region = _call("warptrace_region", _constant(offset), *shape.sizes(), *map(_constant, _size_rules(rules)))
        stream = _stream(op)
        word = _constant(0) if stream is None else _call("warptrace_launch", control, stream)
        if _noted:
            word = _call("warptrace_note", _constant(kernel_id), control, word)
        beside = _call("warptrace_beside", word)
        form = _call("warptrace_form", word, _constant(rules.stride), *shape.cluster)
        room = _call("warptrace_room", region, *map(_constant, _room_rules(rules)))
        new = ir.Operation.create(
            op.name,
            results=[r.type for r in op.results],
            operands=[*given, control, region, beside, form, room],
            attributes=attribute_items(op),
        )
    for old, fresh in zip(op.results, new.results, strict=True):
        plain_value(old).replace_all_uses_with(plain_value(fresh))
    op.erase()


def _size_rules(rules: wire.LaunchRules) -> tuple[int, ...]:
    """As ``warptrace_region`` has them, behind the launch's shape."""
    chosen = (rules.warps, rules.clusters, rules.log2_stride, rules.log2_crowd)
    return rules.least_slots, rules.least_lane, *chosen


def _room_rules(rules: wire.LaunchRules) -> tuple[int, ...]:
    """As ``warptrace_room`` has them, behind the region word."""
    return rules.slack, rules.lane_spare, int(rules.ring)


UNKNOWN_CTAS = 1 << 20
"""Where the launch operation does not tell its grid: regions are small then."""


@dataclass(frozen=True)
class _Shape:
    """Of a launch, i64 each. ``cluster``: its dimensions, 1 where it has none."""

    ctas: Any
    warps: Any
    cluster: tuple[Any, ...]

    def sizes(self) -> list[Any]:
        """CTAs, warps of a CTA, CTAs of a cluster."""
        return [self.ctas, self.warps, _product(self.cluster)]


def _shape(launch: Any) -> _Shape:
    for value in map(plain_value, launch.operands):
        maker = getattr(value.owner, "operation", None)
        if maker is not None and maker.name.startswith(_CONFIGURATION):
            sizes = [plain_value(o) for o in maker.operands if str(plain_value(o).type) == "i32"]
            if len(sizes) == 6:
                block, grid = _wide(sizes[:3]), _wide(sizes[3:])
                warps = arith.shrui(arith.addi(_product(block), _constant(31)), _constant(5))
                return _Shape(_product(grid), warps, _cluster(value))
    return _Shape(_constant(UNKNOWN_CTAS), _constant(32), tuple(_constant(1) for _ in range(3)))


def _cluster(configuration: Any) -> tuple[Any, ...]:
    for use in configuration.uses:
        op = use.owner.operation
        if op.name == f"{_CONFIGURATION}.cluster_dim":
            return _wide([plain_value(o) for o in op.operands][1:])
    return tuple(_constant(1) for _ in range(3))


def _wide(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(arith.extui(int_type("i64"), value) for value in values)


def _product(values: Sequence[Any]) -> Any:
    x, y, z = values
    return arith.muli(arith.muli(x, y), z)


def _stream(launch: Any) -> Any | None:
    """A launch's stream as a pointer, None where the operation tells none."""
    operands = [plain_value(o) for o in launch.operands]
    for value in list(operands):  # of a launch with a configuration, that has it
        maker = getattr(value.owner, "operation", None)
        if maker is not None and maker.name.startswith(_CONFIGURATION):
            operands += [plain_value(o) for o in maker.operands]
    streams = [value for value in operands if str(value.type) == _STREAM_TYPE]
    if len(streams) != 1:
        return None
    return ir.Operation.create(
        "builtin.unrealized_conversion_cast", results=[ir.Type.parse("!llvm.ptr")], operands=streams
    ).results[0]


def _constant(value: int) -> Any:
    i64 = int_type("i64")
    return ir.Operation.create(
        "llvm.mlir.constant", results=[i64], attributes={"value": ir.IntegerAttr.get(i64, value)}
    ).results[0]


def _call(name: str, *arguments: Any) -> Any:
    return ir.Operation.create(
        "llvm.call",
        results=[int_type("i64")],
        operands=list(arguments),
        attributes={
            "callee": ir.FlatSymbolRefAttr.get(name),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(arguments), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    ).results[0]


def _add_host_functions(module: Any) -> None:
    present = {symbol(op.operation) for op in module.body.operations}
    for text in (_HOST, _NOTE) if _noted else (_HOST,):
        for op in ir.Module.parse(text).body.operations:
            if symbol(op.operation) not in present:
                present.add(symbol(op.operation))
                module.body.append(op.operation.clone())
