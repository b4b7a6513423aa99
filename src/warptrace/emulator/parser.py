"""Parser for PTX text as NVVM and the CuTe DSL emit it.

`parse` turns a module into plain data: variables, kernels, and per kernel a
flat list of instructions and labels in which registers and labels of nested
``{ }`` scopes have been given names of their own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import PtxSyntaxError, Where


@dataclass(frozen=True)
class Reg:
    """A register (its unique name after scoping); ``neg`` for ``!p``."""

    name: str
    neg: bool = False


@dataclass(frozen=True)
class Imm:
    """An integer immediate, or the bits of a 0f/0d float (``fbits`` 32 or 64), or a decimal float (``fbits`` -1)."""

    value: int
    fbits: int = 0
    fvalue: float = 0.0


@dataclass(frozen=True)
class Special:
    """A special register, name without ``%`` (``tid.x``)."""

    name: str


@dataclass(frozen=True)
class Sym:
    """Address of a variable (or a label, in branches) plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Sink:
    """The ``_`` operand."""


@dataclass(frozen=True)
class Vec:
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Mem:
    """``[base + offset]``, with the coordinate vector of tensor copies."""

    base: Operand
    offset: int = 0
    coords: tuple[Operand, ...] = ()


Operand = Reg | Imm | Special | Sym | Sink | Vec | Pair | Mem


@dataclass(frozen=True)
class Instr:
    """One instruction: ``parts`` is the opcode split at dots."""

    op: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Reg | None
    line: int
    text: str


@dataclass(frozen=True)
class Label:
    """A branch target."""

    name: str
    line: int


@dataclass(frozen=True)
class Variable:
    """A declared variable: ``nbytes`` is 0 for ``extern ... []``; ``init`` the initial bytes."""

    name: str
    space: str
    nbytes: int
    align: int
    init: bytes = b""
    init_syms: tuple[tuple[int, str, int], ...] = ()
    """(byte offset, symbol, addend) of 64-bit address initialisers."""


@dataclass(frozen=True)
class Param:
    """A kernel parameter: size, alignment and byte offset in the parameter block."""

    name: str
    type: str
    nbytes: int
    align: int
    offset: int


@dataclass
class KernelDef:
    """A parsed ``.entry``."""

    name: str
    params: tuple[Param, ...]
    line: int
    regs: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instr | Label] = field(default_factory=list)
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    reqcluster: tuple[int, int, int] | None = None

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block."""
        return max((p.offset + p.nbytes for p in self.params), default=0)


@dataclass
class ModuleDef:
    """A parsed module."""

    version: str
    target: str
    variables: dict[str, Variable]
    kernels: dict[str, KernelDef]


_TYPE_BYTES = {"b8": 1, "u8": 1, "s8": 1, "pred": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2}
_TYPE_BYTES |= {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_DROP_LINES = re.compile(r"^[ \t]*\.(?:loc|file)\b[^\n]*$", re.M)
_NAME = r"[A-Za-z_$%][\w$]*"
_INSTR = re.compile(rf"(?:@(?P<neg>!?)\s*(?P<guard>{_NAME})\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<rest>.*)$", re.S)
_LABEL = re.compile(rf"\s*({_NAME})\s*:(?!:)")
_SPECIAL = re.compile(
    r"^%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|^%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|is_explicit_cluster|cluster_ctarank|cluster_nctarank"
    r"|lanemask_(?:eq|le|lt|ge|gt)|clock|clock_hi|clock64|globaltimer|globaltimer_lo|globaltimer_hi"
    r"|dynamic_smem_size|total_smem_size|aggr_smem_size|current_graph_exec|envreg\d+|pm\d+)$"
)
_VAR = re.compile(
    rf"^(?P<pre>(?:\.(?!b\d|u\d|s\d|f\d|pred|align)[\w:]+\s+)*)(?:\.align\s+(?P<align>\d+)\s+)?"
    rf"(?:\.v(?P<vec>[248])\s+)?\.(?P<type>[a-z]+\d+(?:x2)?|pred)\s+(?P<name>{_NAME})\s*(?P<dims>(?:\[[^\]]*\]\s*)*)"
    r"(?:=\s*(?P<init>.*))?$",
    re.S,
)


def _blank(m: re.Match[str]) -> str:
    """Remove a match but keep its newlines, so that line numbers stay right."""
    return "\n" * m.group(0).count("\n")


def clean(text: str) -> str:
    """The text without comments, ``.loc``/``.file`` lines and debug sections; same line numbers."""
    text = _COMMENT.sub(_blank, text)
    text = _DROP_LINES.sub("", text)
    out = text
    while True:
        m = re.search(r"^[ \t]*\.section\b[^{]*\{", out, re.M)
        if m is None:
            return out
        end = _matching(out, m.end() - 1)
        out = out[: m.start()] + "\n" * out.count("\n", m.start(), end + 1) + out[end + 1 :]


def _matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``."""
    pairs = {"{": "}", "(": ")", "[": "]"}
    close, opener, depth = pairs[text[start]], text[start], 0
    for i in range(start, len(text)):
        if text[i] == opener:
            depth += 1
        elif text[i] == close:
            depth -= 1
            if depth == 0:
                return i
    raise PtxSyntaxError(f"unbalanced {opener!r}", Where(line=text.count("\n", 0, start) + 1))


def split_top(text: str, sep: str = ",") -> list[str]:
    """Split at separators that are outside every bracket; empty text gives an empty list."""
    parts, depth, last = [], 0, 0
    for i, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif ch == sep and depth == 0:
            parts.append(text[last:i].strip())
            last = i + 1
    tail = text[last:].strip()
    if tail or parts:
        parts.append(tail)
    return parts


def parse_int(text: str) -> int | None:
    """A PTX integer literal, or None."""
    t = text.strip()
    neg = False
    while t[:1] in "+-":
        neg ^= t[:1] == "-"
        t = t[1:].strip()
        if not t:
            return None
    t = t.rstrip("U")
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", t):
        v = int(t, 16)
    elif re.fullmatch(r"0[bB][01]+", t):
        v = int(t, 2)
    elif re.fullmatch(r"0[0-7]+", t):
        v = int(t, 8)
    elif re.fullmatch(r"\d+", t):
        v = int(t)
    elif t == "WARP_SZ":
        v = 32
    else:
        return None
    return -v if neg else v


def parse_immediate(text: str) -> Imm | None:
    """An immediate operand, or None when the text is not one."""
    t = text.strip()
    neg = t.startswith("-")
    body = t[1:].strip() if neg else t
    m = re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", body)
    if m:
        bits = int(m.group(1), 16) ^ (0x80000000 if neg else 0)
        return Imm(bits, 32, struct.unpack("<f", struct.pack("<I", bits))[0])
    m = re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", body)
    if m:
        bits = int(m.group(1), 16) ^ ((1 << 63) if neg else 0)
        return Imm(bits, 64, struct.unpack("<d", struct.pack("<Q", bits))[0])
    v = parse_int(t)
    if v is not None:
        return Imm(v)
    if re.fullmatch(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?", t):
        return Imm(0, -1, float(t))
    return None


class _Scope:
    """Names visible in one ``{ }`` block; inner scopes get unique names."""

    def __init__(self, parent: _Scope | None, ident: int):
        self.parent = parent
        self.ident = ident
        self.names: dict[str, str] = {}
        self.ranges: list[tuple[str, int]] = []

    def declare(self, name: str) -> str:
        if name in self.names:
            raise ValueError(f"{name} is declared twice")
        unique = name if self.parent is None else f"{name}@{self.ident}"
        self.names[name] = unique
        return unique

    def lookup(self, name: str) -> str | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass
class _Stmt:
    kind: str
    text: str
    line: int
    children: list[_Stmt] = field(default_factory=list)


def _statements(text: str, line: int) -> list[_Stmt]:
    """Cut the inside of a block into statements, labels and nested blocks."""
    out: list[_Stmt] = []
    i, n = 0, len(text)
    while i < n:
        ch = text[i]
        if ch.isspace() or ch == ";":
            line += ch == "\n"
            i += 1
            continue
        if ch == "{":
            end = _matching(text, i)
            out.append(_Stmt("block", "", line, _statements(text[i + 1 : end], line)))
            line += text.count("\n", i, end + 1)
            i = end + 1
            continue
        m = _LABEL.match(text, i)
        if m:
            out.append(_Stmt("label", m.group(1), line))
            line += text.count("\n", i, m.end())
            i = m.end()
            continue
        end = _statement_end(text, i)
        out.append(_Stmt("stmt", text[i:end].strip(), line))
        line += text.count("\n", i, end)
        i = end
    return out


def _statement_end(text: str, start: int) -> int:
    """Index of the ``;`` that ends the statement at ``start`` (strings are skipped)."""
    i, n, in_string = start, len(text), False
    while i < n:
        if text[i] == '"':
            in_string = not in_string
        elif text[i] == ";" and not in_string:
            return i
        i += 1
    return n


class _BodyParser:
    """Flattens one kernel's body."""

    def __init__(self, kernel: KernelDef):
        self.kernel = kernel
        self.scopes = 0

    def run(self, stmts: list[_Stmt]) -> None:
        self._block(stmts, None)

    def _block(self, stmts: list[_Stmt], parent: _Scope | None) -> None:
        self.scopes += 1
        scope = _Scope(parent, self.scopes)
        for s in stmts:
            if s.kind == "label" or (s.kind == "stmt" and s.text.startswith(".reg")):
                try:
                    self._declare(s, scope)
                except ValueError as e:
                    raise PtxSyntaxError(str(e), Where(self.kernel.name, s.line, s.text)) from None
        for s in stmts:
            if s.kind == "block":
                self._block(s.children, scope)
            elif s.kind == "label":
                self.kernel.body.append(Label(scope.names[s.text], s.line))
            elif s.text.startswith("."):
                self._directive(s)
            else:
                self.kernel.body.append(self._instr(s, scope))

    def _declare(self, s: _Stmt, scope: _Scope) -> None:
        if s.kind == "label":
            scope.declare(s.text)
            return
        m = re.match(r"\.reg\s+(?:\.v[248]\s+)?\.(\w+)\s+(.*)$", s.text, re.S)
        if m is None:
            raise PtxSyntaxError("cannot parse a .reg declaration", Where(line=s.line, text=s.text))
        for item in split_top(m.group(2)):
            r = re.fullmatch(rf"({_NAME})<(\d+)>", item)
            names = [f"{r.group(1)}{i}" for i in range(int(r.group(2)))] if r else [item]
            for name in names:
                self.kernel.regs[scope.declare(name)] = m.group(1)

    def _directive(self, s: _Stmt) -> None:
        word = s.text.split(None, 1)[0]
        if word in (".reg", ".param", ".pragma", ".branchtargets", ".callprototype", ".calltargets", ".alias"):
            return
        if word in (".shared", ".local", ".const", ".global", ".extern", ".shared::cta"):
            self.kernel.variables.append(parse_variable(s.text, s.line))
            return
        raise PtxSyntaxError(f"unknown directive {word} in a kernel body", Where(line=s.line, text=s.text))

    def _instr(self, s: _Stmt, scope: _Scope) -> Instr:
        m = _INSTR.match(s.text)
        where = Where(kernel=self.kernel.name, line=s.line, text=s.text)
        if m is None:
            raise PtxSyntaxError("cannot parse an instruction", where)
        guard = None
        if m.group("guard"):
            name = scope.lookup(m.group("guard"))
            if name is None:
                raise PtxSyntaxError(f"undeclared predicate {m.group('guard')}", where)
            guard = Reg(name, m.group("neg") == "!")
        op = m.group("op")
        try:
            operands = tuple(self._operand(o, scope) for o in split_top(m.group("rest")))
        except ValueError as e:
            raise PtxSyntaxError(f"cannot parse an operand: {e}", where) from None
        text = " ".join(s.text.split())
        return Instr(op, tuple(op.split(".")), operands, guard, s.line, text)

    def _operand(self, text: str, scope: _Scope) -> Operand:
        t = text.strip()
        if t == "_":
            return Sink()
        if t.startswith("{"):
            return Vec(tuple(self._operand(o, scope) for o in split_top(t[1:-1])))
        if t.startswith("["):
            return self._mem(t[1:-1], scope)
        if t.startswith("("):
            return Vec(tuple(self._operand(o, scope) for o in split_top(t[1:-1])))
        if "|" in t:
            a, b = t.split("|", 1)
            return Pair(self._operand(a, scope), self._operand(b, scope))
        if t.startswith("!"):
            inner = self._operand(t[1:], scope)
            if not isinstance(inner, Reg):
                raise ValueError(f"{t!r} negates something that is not a register")
            return Reg(inner.name, True)
        imm = parse_immediate(t)
        if imm is not None:
            return imm
        return self._name(t, scope)

    def _name(self, t: str, scope: _Scope) -> Operand:
        local = scope.lookup(t)
        if local is not None:
            return Reg(local) if local in self.kernel.regs else Sym(local)
        if _SPECIAL.match(t):
            return Special(t[1:])
        m = re.fullmatch(rf"({_NAME})\s*([+-].*)?", t)
        if m is None:
            m = re.fullmatch(rf"generic\(({_NAME})\)\s*([+-].*)?", t)
        if m is None or t.startswith("%"):
            raise ValueError(f"{t!r} is neither a register, a symbol nor an immediate")
        off = parse_int(m.group(2)) if m.group(2) else 0
        if off is None:
            raise ValueError(f"{t!r} has an offset that is not a number")
        return Sym(m.group(1), off)

    def _mem(self, text: str, scope: _Scope) -> Mem:
        parts = split_top(text)
        coords: tuple[Operand, ...] = ()
        if len(parts) > 1:
            vec = self._operand(parts[1], scope)
            coords = vec.items if isinstance(vec, Vec) else (vec,)
        t = parts[0]
        imm = parse_int(t)
        if imm is not None:
            return Mem(Imm(imm), 0, coords)
        m = re.fullmatch(rf"({_NAME})\s*(?:([+-])\s*(.*))?", t)
        if m is None:
            raise ValueError(f"address [{text}]")
        base = self._name(m.group(1), scope)
        off = 0
        if m.group(2):
            value = parse_int(m.group(3))
            if value is None:
                raise ValueError(f"address offset in [{text}]")
            off = value if m.group(2) == "+" else -value
        if isinstance(base, Sym):
            return Mem(Sym(base.name, 0), off, coords)
        return Mem(base, off, coords)


def _init_bytes(text: str, elem: int, is_float: bool) -> tuple[bytes, list[tuple[int, str, int]]]:
    out = bytearray()
    syms: list[tuple[int, str, int]] = []
    body = text.strip().rstrip(";").strip()
    for item in split_top(body[1:-1] if body.startswith("{") else body):
        imm = parse_immediate(item)
        if imm is None:
            m = re.fullmatch(rf"(?:generic\()?({_NAME})\)?\s*([+-]\s*\d+)?", item)
            if m is None:
                raise PtxSyntaxError(f"cannot parse the initialiser {item!r}")
            syms.append((len(out), m.group(1), parse_int(m.group(2) or "0") or 0))
            out += bytes(elem)
        elif is_float and imm.fbits == 0 or imm.fbits == -1:
            value = imm.fvalue if imm.fbits == -1 else float(imm.value)
            out += struct.pack("<f" if elem == 4 else "<d", value)
        else:
            out += (imm.value & ((1 << (8 * elem)) - 1)).to_bytes(elem, "little")
    return bytes(out), syms


def parse_variable(text: str, line: int) -> Variable:
    """A variable declaration statement (without its ``;``)."""
    m = _VAR.match(" ".join(text.split()))
    if m is None:
        raise PtxSyntaxError("cannot parse a variable declaration", Where(line=line, text=text[:200]))
    words = m.group("pre").replace(".", " ").split()
    space = next((w.split("::")[0] for w in words if w.split("::")[0] in ("shared", "local", "const", "global")), None)
    if space is None:
        raise PtxSyntaxError("a variable without a state space", Where(line=line, text=text[:200]))
    elem = _TYPE_BYTES[m.group("type")]
    count = int(m.group("vec") or 1)
    init = b""
    syms: list[tuple[int, str, int]] = []
    if m.group("init"):
        init, syms = _init_bytes(m.group("init"), elem, m.group("type").startswith("f"))
    for dim in re.findall(r"\[([^\]]*)\]", m.group("dims") or ""):
        size = parse_int(dim) if dim.strip() else (len(init) // elem if init else 0)
        if size is None:
            raise PtxSyntaxError("an array size that is not a number", Where(line=line, text=text[:200]))
        count *= size
    align = int(m.group("align") or elem * int(m.group("vec") or 1))
    return Variable(m.group("name"), space, elem * count, align, init, tuple(syms))


_PARAM = re.compile(
    rf"^\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s*)*(?:\.align\s+\d+\s+)?)?({_NAME})\s*(?:\[(\d+)\])?$"
)


def _params(text: str, line: int) -> tuple[Param, ...]:
    out: list[Param] = []
    offset = 0
    for item in split_top(text):
        m = _PARAM.match(" ".join(item.split()))
        if m is None:
            raise PtxSyntaxError("cannot parse a kernel parameter", Where(line=line, text=item))
        elem = _TYPE_BYTES[m.group(2)]
        nbytes = elem * int(m.group(4) or 1)
        align = int(m.group(1) or elem)
        offset = -(-offset // align) * align
        out.append(Param(m.group(3), m.group(2), nbytes, align, offset))
        offset += nbytes
    return tuple(out)


def _dims(text: str) -> tuple[int, int, int]:
    v = [parse_int(x) or 1 for x in text.split(",")] + [1, 1]
    return v[0], v[1], v[2]


_ENTRY = re.compile(rf"(?:\.(?:visible|weak|extern)\s+)?\.entry\s+({_NAME})\s*")


def _entry(text: str, m: re.Match[str]) -> tuple[KernelDef, int]:
    """Parse the entry that ``m`` starts; returns it and the index after its body."""
    pos = m.end()
    line = text.count("\n", 0, m.start()) + 1
    params: tuple[Param, ...] = ()
    if text[pos : pos + 1] == "(":
        end = _matching(text, pos)
        params = _params(text[pos + 1 : end], line)
        pos = end + 1
    brace = text.index("{", pos)
    kernel = KernelDef(m.group(1), params, line)
    for d in re.finditer(r"\.(reqntid|maxntid|reqnctapercluster)\s+([\d,\s]+)", text[pos:brace]):
        attr = "reqcluster" if d.group(1) == "reqnctapercluster" else d.group(1)
        setattr(kernel, attr, _dims(d.group(2).strip().rstrip(",")))
    end = _matching(text, brace)
    body_line = text.count("\n", 0, brace) + 1
    _BodyParser(kernel).run(_statements(text[brace + 1 : end], body_line))
    return kernel, end + 1


def _module_items(text: str) -> Iterator[tuple[str, object]]:
    pos = 0
    while True:
        while pos < len(text) and (text[pos].isspace() or text[pos] == ";"):
            pos += 1
        if pos >= len(text):
            return
        line = text.count("\n", 0, pos) + 1
        m = re.compile(r"\.(version|target|address_size)\s+([^\n]*)").match(text, pos)
        if m:
            yield m.group(1), m.group(2).strip()
            pos = m.end()
            continue
        m = _ENTRY.match(text, pos)
        if m:
            kernel, pos = _entry(text, m)
            yield "kernel", kernel
            continue
        m = re.compile(r"(?:\.\w+\s+)*\.func\b").match(text, pos)
        if m:
            pos = _skip_func(text, m.end())
            continue
        end = _statement_end(text, pos)
        stmt = text[pos:end].strip()
        if not stmt.startswith("."):
            raise PtxSyntaxError("unexpected text at module level", Where(line=line, text=stmt[:80]))
        if not stmt.startswith((".pragma", ".alias", ".callprototype")):
            yield "variable", parse_variable(stmt, line)
        pos = end + 1


def _skip_func(text: str, pos: int) -> int:
    """Skip a function declaration or definition: a ``call`` of it is refused where it is executed."""
    semi, brace = text.find(";", pos), text.find("{", pos)
    if brace != -1 and (semi == -1 or brace < semi):
        return _matching(text, brace) + 1
    return semi + 1 if semi != -1 else len(text)


def parse(ptx: str) -> ModuleDef:
    """Parse PTX text.

    Raises `PtxSyntaxError` naming the line. Functions (``.func``) are skipped.
    """
    text = clean(ptx)
    module = ModuleDef("", "", {}, {})
    for kind, value in _module_items(text):
        if isinstance(value, KernelDef):
            module.kernels[value.name] = value
        elif isinstance(value, Variable):
            module.variables[value.name] = value
        elif kind == "version":
            module.version = str(value)
        elif kind == "target":
            module.target = str(value)
    return module
