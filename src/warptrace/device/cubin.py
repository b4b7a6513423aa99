"""What a compiled kernel takes, read from the ELF file (cubin) that the GPU is given: no disassembler, no CUDA."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

ELF_MAGIC = b"\x7fELF"
EM_CUDA = 190

_HEADER = struct.Struct("<4sBB10xHHI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<IBBH2Q")
_ATTRIBUTE = struct.Struct("<BBH")
_PAIR = struct.Struct("<2I")

_SYMBOL_TABLE = 2
_FUNCTION = 2
_SIZED = 4
"""Attribute format whose 16-bit value is the size of a payload behind it; the others are the value itself."""
_FRAME_SIZE, _MIN_STACK_SIZE, _REGISTERS = 0x11, 0x12, 0x2F
"""Attributes of .nv.info whose payload is a pair (symbol number, value)."""


@dataclass(frozen=True)
class KernelCode:
    """``registers``: of a thread at launch, also where warps change their share later; ``stack_bytes``: local memory
    of a thread (spilled registers, arrays with run-time indices, arguments of calls; 0: nothing of that);
    ``code_bytes``: of the instructions, padding included."""

    registers: int
    stack_bytes: int
    code_bytes: int


def kernels_in(data: bytes) -> dict[str, KernelCode]:
    """The kernels of all cubins in ``data`` (a cubin, or a fat binary that holds some uncompressed), by symbol.

    What is damaged, of another kind or compressed is left out.
    """
    found: dict[str, KernelCode] = {}
    at = data.find(ELF_MAGIC)
    while at >= 0:
        with suppress(struct.error, IndexError, ValueError):  # chance bytes, or a file that is cut
            found.update(_kernels(data[at:]))
        at = data.find(ELF_MAGIC, at + len(ELF_MAGIC))
    return found


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    link: int
    size: int
    data: bytes


def _kernels(elf: bytes) -> dict[str, KernelCode]:
    sections = _sections(elf)
    code = {s.name.removeprefix(".text."): s.size for s in sections if s.name.startswith(".text.")}
    values: dict[str, dict[int, int]] = {}
    for info in (s for s in sections if s.name == ".nv.info" or s.name.startswith(".nv.info.")):
        names = _functions(sections, info.link)
        for attribute, payload in _attributes(info.data):
            if attribute in (_FRAME_SIZE, _MIN_STACK_SIZE, _REGISTERS) and len(payload) == _PAIR.size:
                number, value = _PAIR.unpack(payload)
                values.setdefault(names.get(number, ""), {})[attribute] = value
    return {
        name: KernelCode(facts[_REGISTERS], max(facts.get(_MIN_STACK_SIZE, 0), facts.get(_FRAME_SIZE, 0)), code[name])
        for name, facts in values.items()
        if _REGISTERS in facts and name in code
    }


def _sections(elf: bytes) -> list[_Section]:
    """Raises ValueError, IndexError or struct.error for what is no whole 64-bit CUDA ELF file."""
    (_, bits, order, _, machine, _, _, _, at, _, _, _, _, entry, count, names) = _HEADER.unpack_from(elf)
    if (bits, order, machine, entry) != (2, 1, EM_CUDA, _SECTION.size):
        raise ValueError("not a CUDA ELF file")
    if at + count * entry > len(elf):  # also what is too large for an offset at all
        raise ValueError("a section table beyond the end")
    rows = [_SECTION.unpack_from(elf, at + i * entry) for i in range(count)]

    def content(row: tuple[int, ...]) -> bytes:
        offset, size = row[4], row[5]
        return elf[offset : offset + size]

    strings = content(rows[names])
    return [_Section(_text(strings, row[0]), row[1], row[6], row[5], content(row)) for row in rows]


def _functions(sections: list[_Section], table: int) -> dict[int, str]:
    """Names of the functions of a symbol table, by their number in it."""
    symbols = sections[table]
    if symbols.kind != _SYMBOL_TABLE:
        return {}
    strings = sections[symbols.link].data
    found = {}
    for number in range(len(symbols.data) // _SYMBOL.size):
        name, info, *_ = _SYMBOL.unpack_from(symbols.data, number * _SYMBOL.size)
        if info & 15 == _FUNCTION:
            found[number] = _text(strings, name)
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, payload) of those that have one."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        form, attribute, value = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        if form == _SIZED:
            yield attribute, data[at : at + value]
            at += value


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode(errors="replace")
