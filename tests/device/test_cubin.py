"""What is read from a cubin, on ELF files made by hand."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from warptrace.device.cubin import KernelCode, kernels_in

REGISTERS, FRAME, STACK = 0x2F, 0x11, 0x12


def strings(names: list[str]) -> tuple[bytes, dict[str, int]]:
    data, places = b"\0", {"": 0}
    for name in names:
        places[name] = len(data)
        data += name.encode() + b"\0"
    return data, places


def pair(attribute: int, symbol: int, value: int) -> bytes:
    return struct.pack("<BBHII", 4, attribute, 8, symbol, value)


def elf(code: dict[str, int], info: bytes, more: bytes = b"", machine: int = 190) -> bytes:
    """A cubin with functions of the given sizes: the symbol of the first is number 1. ``more``: attributes of the
    first kernel's own section."""
    names, name_at = strings(list(code))
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name_at[n], 0x12, 0x10, 4 + i, 0, size) for i, (n, size) in enumerate(code.items())
    )
    first = next(iter(code))
    parts = [
        ("", 0, 0, b""),
        (".strtab", 3, 0, names),
        (".symtab", 2, 1, symbols),
        (".nv.info", 0x70000000, 2, info),
        *((f".text.{n}", 1, 2, bytes(size)) for n, size in code.items()),
        (f".nv.info.{first}", 0x70000000, 2, more),
    ]
    section_names, section_at = strings([p[0] for p in parts] + [".shstrtab"])
    parts.append((".shstrtab", 3, 0, section_names))
    body, rows = b"", b""
    for name, kind, link, data in parts:
        rows += struct.pack("<IIQQQQIIQQ", section_at[name], kind, 0, 0, 64 + len(body), len(data), link, 0, 1, 0)
        body += data
    ident = b"\x7fELF\x02\x01\x01A\x08" + bytes(7)
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(parts),
                       len(parts) - 1)  # fmt: skip
    return head + body + rows


def test_registers_stack_and_code_of_each_kernel() -> None:
    info = pair(REGISTERS, 1, 168) + pair(FRAME, 1, 0) + pair(STACK, 1, 0)
    info += pair(REGISTERS, 2, 64) + pair(FRAME, 2, 152) + pair(STACK, 2, 160)
    assert kernels_in(elf({"gemm": 9856, "spill": 5120}, info)) == {
        "gemm": KernelCode(168, 0, 9856),
        "spill": KernelCode(64, 160, 5120),
    }


def test_attributes_of_other_formats_and_sizes_are_passed_over() -> None:
    other = struct.pack("<BBH", 3, REGISTERS, 7) + struct.pack("<BBH", 2, STACK, 0) + struct.pack("<BBH", 1, 0x54, 0)
    other += struct.pack("<BBHIII", 4, 0x17, 12, 1, 99, 99) + struct.pack("<BBHI", 4, REGISTERS, 4, 1)
    assert kernels_in(elf({"k": 128}, other + pair(REGISTERS, 1, 40))) == {"k": KernelCode(40, 0, 128)}


def test_attributes_may_stand_in_the_kernels_own_section() -> None:
    assert kernels_in(elf({"k": 128}, b"", pair(REGISTERS, 1, 24) + pair(STACK, 1, 8))) == {"k": KernelCode(24, 8, 128)}


def test_a_kernel_without_registers_or_code_is_left_out() -> None:
    assert kernels_in(elf({"k": 128}, pair(STACK, 1, 8))) == {}
    assert kernels_in(elf({"k": 128}, pair(REGISTERS, 9, 8))) == {}


def test_fat_binaries_hold_several() -> None:
    one, two = elf({"a": 128}, pair(REGISTERS, 1, 10)), elf({"b": 256}, pair(REGISTERS, 1, 20))
    host = elf({"c": 128}, pair(REGISTERS, 1, 30), machine=62)
    found = kernels_in(b"head" + one + b"\x7fELF pad" + host + two + b"\x7fELF")
    assert found == {"a": KernelCode(10, 0, 128), "b": KernelCode(20, 0, 256)}


WHOLE = elf({"k": 64, "other": 32}, pair(REGISTERS, 1, 40) + pair(REGISTERS, 2, 41), pair(STACK, 1, 16))


@given(st.integers(0, len(WHOLE) - 1), st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))))
@example(0, [(47, 128)])  # a section table at 2**63
def test_damage_raises_nothing(end: int, bytes_put: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, value in bytes_put:
        data[place] = value
    for text in (bytes(data), bytes(data[:end]), WHOLE[:end]):
        assert all(isinstance(code, KernelCode) for code in kernels_in(text).values())
    # The section table stands last: a file that is cut has none.
    assert kernels_in(WHOLE[:end]) == {}
    assert kernels_in(WHOLE) == {"k": KernelCode(40, 16, 64), "other": KernelCode(41, 0, 32)}
