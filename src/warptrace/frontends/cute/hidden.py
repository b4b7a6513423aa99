"""The hidden kernel parameters: how a kernel finds its trace memory on every launch path.

Each kernel with events gets three more parameters: the control block's address, its region descriptor, and its launch
word, which tells the stream (``wire.stream_word``). The host code that the DSL generates fills the first two from the
*host cell* of this process (see ``warptrace.wire``), whose address it finds once through an environment variable that
holds the process id too: a stale cache, an exported object or an inherited environment meets no cell and passes zeros,
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

from typing import Any

from cutlass._mlir import ir

from ... import wire
from .ir_tools import attribute_items, int_type, plain_value, symbol, walk

_FIELD = {name: place[1] for name, place in (wire.CELL_KERNEL_DTYPE.fields or {}).items()}
"""Offsets in a kernel's entry of the cell."""
_STREAM_TYPE = "!cuda.stream"

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
llvm.func internal @warptrace_region(%entry_offset: i64) -> i64 {{
  %zero = llvm.mlir.constant(0 : i64) : i64
  %cell = llvm.call @warptrace_cell() : () -> i64
  %none = llvm.icmp "eq" %cell, %zero : i64
  llvm.cond_br %none, ^done(%zero : i64), ^load
^load:
  %cellp = llvm.inttoptr %cell : i64 to !llvm.ptr
  %entry = llvm.getelementptr %cellp[%entry_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %value = llvm.load volatile %entry : !llvm.ptr -> i64
  llvm.br ^done(%value : i64)
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


def add_parameters(kernel: Any) -> tuple[Any, Any, Any]:
    """Appends (control, region, launch word) to a kernel's parameters; returns their values in the body."""
    i64 = int_type("i64")
    entry = kernel.regions[0].blocks[0]
    values = tuple(entry.add_argument(i64, ir.Location.unknown()) for _ in range(3))
    old = ir.FunctionType(ir.TypeAttr(kernel.attributes["function_type"]).value)
    new = ir.FunctionType.get([*old.inputs, i64, i64, i64], list(old.results))
    kernel.attributes["function_type"] = ir.TypeAttr.get(new)
    if "arg_attrs" in kernel.attributes:
        attrs = list(ir.ArrayAttr(kernel.attributes["arg_attrs"]))
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([*attrs, *(ir.DictAttr.get({}) for _ in values)])
    return values[0], values[1], values[2]


def rewrite_launches(module: Any, kernel_ids: dict[str, int]) -> None:
    """Gives every launch of the named kernels the three values, and the module the host functions that yield them."""
    launches: list[tuple[Any, int]] = []

    def visit(op: Any) -> None:
        if op.name.startswith("cuda.launch"):
            for value in attribute_items(op).values():
                name = str(value).rsplit("@", 1)[-1].strip('"')
                if "@" in str(value) and name in kernel_ids:
                    launches.append((op, kernel_ids[name]))

    walk(module.operation, visit)
    if not launches:
        return
    with ir.Location.unknown():
        _add_host_functions(module)
    for op, kernel_id in launches:
        _rewrite(op, kernel_id)


def _rewrite(op: Any, kernel_id: int) -> None:
    offset = wire.CELL_KERNELS_OFFSET + kernel_id % wire.CELL_KERNEL_COUNT * wire.CELL_KERNEL_BYTES
    given = [plain_value(o) for o in op.operands]
    with ir.InsertionPoint(op), op.location:
        control, region = (_call(name, _constant(offset)) for name in ("warptrace_control", "warptrace_region"))
        stream = _stream(op)
        launch = _constant(0) if stream is None else _call("warptrace_launch", control, stream)
        if _noted:
            launch = _call("warptrace_note", _constant(kernel_id), control, launch)
        new = ir.Operation.create(
            op.name,
            results=[r.type for r in op.results],
            operands=[*given, control, region, launch],
            attributes=attribute_items(op),
        )
    for old, fresh in zip(op.results, new.results, strict=True):
        plain_value(old).replace_all_uses_with(plain_value(fresh))
    op.erase()


def _stream(launch: Any) -> Any | None:
    """A launch's stream as a pointer, None where the operation tells none."""
    operands = [plain_value(o) for o in launch.operands]
    for value in list(operands):  # of a launch with a configuration, that has it
        maker = getattr(value.owner, "operation", None)
        if maker is not None and maker.name.startswith("cuda.launch_cfg"):
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
