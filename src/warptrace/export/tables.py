"""A trace as flat tables, a row a range, marker, warp or launch, with everything that a query wants beside it; and what
the host did.

:data:`TABLES` names them; ``docs/outputs.md`` tells what the columns mean. A column of texts is codes into a list of
labels, so that no text is kept once a row. :func:`table` gives any part of a table, so that writers need not hold the
whole; :func:`to_arrow` and its kin give all of it as objects of libraries that only they import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, WarptraceError
from ..report.roles import find_roles
from ..trace import RANGE_TOKEN, U8, U64, Launch, Trace
from ..wire import PayloadType
from . import host_tables
from .payload import ValueKind, texts, widen

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Bools = NDArray[np.bool_]

TABLES = ("ranges", "markers", "warps", "launches", *host_tables.FIELDS)
MAX_SIGNED = np.uint64((1 << 63) - 1)
PAYLOAD_NAMES = tuple("" if kind == PayloadType.NONE else kind.name.lower() for kind in PayloadType)
PAYLOAD_CODE = np.zeros(256, np.int32)
PAYLOAD_CODE[[int(kind) for kind in PayloadType]] = np.arange(len(PAYLOAD_NAMES))


@dataclass(frozen=True)
class Column:
    """``values``; codes into ``labels`` where there are any. ``valid``: rows that have a value (None: all)."""

    values: NDArray[Any]
    labels: tuple[str, ...] | None = None
    valid: Bools | None = None

    def objects(self) -> list[Any]:
        """As Python objects, None where there is no value."""
        if self.labels is None and self.valid is None:
            out: list[Any] = self.values.tolist()
            return out
        column = np.empty(len(self.values), object)
        column[:] = self.values.tolist() if self.labels is None else _objects(self.labels)[self.values]
        if self.valid is not None:
            column[~self.valid] = None
        out = column.tolist()
        return out


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


@dataclass(frozen=True)
class Payloads:
    """A column of payloads of mixed type: raw bits."""

    types: U8
    bits: U64

    def columns(self, name: str) -> dict[str, Column]:
        """Typed: ``_type``, ``_int`` (integers and bools that fit 64 bits with sign), ``_float``, ``_bits``."""
        kinds, values = widen(self.types, self.bits)
        large = (kinds == ValueKind.UINT) & (values > MAX_SIGNED)
        integer = (kinds != ValueKind.NONE) & (kinds != ValueKind.FLOAT) & ~large
        real = kinds == ValueKind.FLOAT
        given = kinds != ValueKind.NONE
        return {
            f"{name}_type": Column(PAYLOAD_CODE[self.types], PAYLOAD_NAMES, given),
            f"{name}_int": Column(np.where(integer, values, np.uint64(0)).view(np.int64), None, integer),
            f"{name}_float": Column(np.where(real, values, np.uint64(0)).view(np.float64), None, real),
            f"{name}_bits": Column(self.bits, None, given),
        }

    def objects(self) -> list[Any]:
        """As Python numbers; the digits as text from 2^63 up, None where there is none."""
        columns = self.columns("p")
        column = np.empty(len(self.types), object)
        for part in (columns["p_int"], columns["p_float"]):
            if part.valid is not None:
                column[part.valid] = part.values[part.valid].tolist()
        large = (self.types != 0) & (self.bits > MAX_SIGNED)
        for row in np.flatnonzero(large).tolist():
            if column[row] is None:
                column[row] = str(self.bits[row])
        out: list[Any] = column.tolist()
        return out

    def texts(self) -> list[str]:
        """As a person reads them; "" where there is none."""
        return texts(self.types, self.bits)


Table = dict[str, "Column | Payloads"]


class Tables:
    """The tables of a trace; what all rows share is made once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        roles = find_roles(trace)
        self.role_names = tuple(role.name for role in roles.roles)
        names, self.role_code = _dedupe(self.role_names)
        self.role_of_warp = self.role_code[roles.of_warp] if len(self.role_names) else np.empty(0, np.int32)
        self.role_labels = names
        self.kernel_labels, self.kernel_of_launch = _dedupe([one.kernel for one in trace.launches])
        self.site_labels, self.site_code = _dedupe([f"{site.file}:{site.line}" for site in trace.sites])
        launches = trace.launches
        self.pid = np.array([trace.processes[one.process].pid for one in launches], np.int64)
        ranks = [trace.processes[one.process].rank for one in launches]
        self.has_rank = np.array([rank is not None for rank in ranks], np.bool_)
        self.rank = np.array([rank or 0 for rank in ranks], np.int64)
        self.host_labels, self.host_of_launch = _dedupe([trace.processes[one.process].host for one in launches])
        self.device = np.array([one.device for one in launches], np.int64)
        self.host_rows = {name: host_tables.host_rows(trace, name) for name in host_tables.FIELDS}

    def rows(self, name: str) -> int:
        """How many rows a table has. Raises UsageError for a name that is none of TABLES."""
        sizes = {
            "ranges": len(self.trace.ranges), "markers": len(self.trace.markers), "warps": len(self.trace.warps),
            "launches": len(self.trace.launches), **{name: len(rows) for name, rows in self.host_rows.items()},
        }  # fmt: skip
        if name not in sizes:
            raise UsageError(f"no table {name!r}: there are {', '.join(TABLES)}")
        return sizes[name]

    def parts(self, name: str, size: int) -> Iterator[Table]:
        """A table in parts of ``size`` rows, at least one part."""
        rows = self.rows(name)
        for first in range(0, max(rows, 1), size):
            yield self.part(name, slice(first, min(first + size, rows)))

    def part(self, name: str, rows: slice | None = None) -> Table:
        """Rows of a table; all of them without ``rows``. Raises UsageError."""
        rows = slice(0, self.rows(name)) if rows is None else rows
        if name in host_tables.FIELDS:
            return self._host(name, rows)
        return {"ranges": self._ranges, "markers": self._markers, "warps": self._warps, "launches": self._launches}[
            name
        ](rows)

    # ------------------------------------------------------------------------------------------------ columns
    def _of_launch(self, launch: NDArray[Any]) -> Table:
        valid = None if self.has_rank[launch].all() and len(launch) else self.has_rank[launch]
        return {
            "host": Column(self.host_of_launch[launch], self.host_labels),
            "pid": Column(self.pid[launch]),
            "rank": Column(self.rank[launch], None, valid),
            "device": Column(self.device[launch]),
            "launch": Column(launch.astype(np.int64) + 1),
            "kernel": Column(self.kernel_of_launch[launch], self.kernel_labels),
        }

    def _of_warp(self, warp: NDArray[Any]) -> Table:
        w = self.trace.warps
        x, y, z = w.cta[warp].T
        return {
            **self._of_launch(w.launch[warp]),
            "cta_x": Column(x),
            "cta_y": Column(y),
            "cta_z": Column(z),
            "warp": Column(w.warp[warp]),
            "sm": Column(w.sm[warp]),
            "role": Column(self.role_of_warp[warp], self.role_labels),
        }

    def _ranges(self, rows: slice) -> Table:
        r = self.trace.ranges
        return {
            **self._of_warp(r.warp[rows]),
            "name": Column(r.name[rows], self.trace.strings),
            "kind": Column((r.kind[rows] != RANGE_TOKEN).astype(np.int32), ("token", "stack")),
            "depth": Column(r.depth[rows]),
            "lane": Column(r.lane[rows]),
            "start_ns": Column(r.start_ns[rows]),
            "end_ns": Column(r.end_ns[rows]),
            "duration_ns": Column(r.end_ns[rows] - r.start_ns[rows]),
            "start_cycle": Column(r.start_cycle[rows]),
            "end_cycle": Column(r.end_cycle[rows]),
            "cycles": Column(r.end_cycle[rows] - r.start_cycle[rows]),
            "start_seq": Column(r.start_seq[rows]),
            "end_seq": Column(r.end_seq[rows]),
            "payload": Payloads(r.start_type[rows], r.start_bits[rows]),
            "end_payload": Payloads(r.end_type[rows], r.end_bits[rows]),
            "site": self._sites(r.start_site[rows]),
            "end_site": self._sites(r.end_site[rows]),
        }

    def _markers(self, rows: slice) -> Table:
        m = self.trace.markers
        return {
            **self._of_warp(m.warp[rows]),
            "name": Column(m.name[rows], self.trace.strings),
            "lane": Column(m.lane[rows]),
            "ns": Column(m.ns[rows]),
            "cycle": Column(m.cycle[rows]),
            "seq": Column(m.seq[rows]),
            "payload": Payloads(m.type[rows], m.bits[rows]),
            "site": self._sites(m.site[rows]),
        }

    def _warps(self, rows: slice) -> Table:
        w = self.trace.warps
        ended = w.closed[rows] != 0
        return {
            **self._of_warp(np.arange(rows.start, rows.stop)),
            "tpc": Column(w.tpc[rows], None, w.tpc[rows] >= 0),
            "gpc": Column(w.gpc[rows], None, w.gpc[rows] >= 0),
            "start_ns": Column(w.start_ns[rows]),
            "end_ns": Column(w.end_ns[rows]),
            "start_cycle": Column(w.start_cycle[rows]),
            "cycles": Column(w.cycles[rows], None, w.cycles[rows] >= 0),
            "events": Column(w.events[rows]),
            "lost": Column(w.lost[rows]),
            "ended": Column(ended),
        }

    def _launches(self, rows: slice) -> Table:
        launches = self.trace.launches[rows]
        symbols, symbol = _dedupe([one.symbol for one in launches])
        graphs, graph = _dedupe([f"{one.graph[0]}:{one.graph[1]}" if one.graph else "" for one in launches])

        def column(values: Sequence[int]) -> Column:
            return Column(np.array(values, np.int64))

        dims = {
            f"{what}_{axis}": column([getattr(one, what)[i] for one in launches])
            for what in ("grid", "block", "cluster")
            for i, axis in enumerate("xyz")
        }
        return {
            **self._of_launch(np.arange(rows.start, rows.stop)),
            "symbol": Column(symbol, symbols),
            "kernel_id": Column(np.array([one.kernel_id for one in launches], np.uint64)),
            "context_id": column([one.context_id for one in launches]),
            "grid_id": column([one.grid_id for one in launches]),
            "graph": Column(graph, graphs, np.array([one.graph is not None for one in launches], np.bool_)),
            "stream": Column(
                np.array([one.stream or 0 for one in launches], np.uint64),
                None,
                np.array([one.stream is not None for one in launches], np.bool_),
            ),
            **dims,
            "start_ns": column([one.start_ns for one in launches]),
            "end_ns": column([one.end_ns for one in launches]),
            "duration_ns": column([one.end_ns - one.start_ns for one in launches]),
            "epoch_ns": column([self.trace.epoch_ns] * len(launches)),
            "clock_uncertainty_ns": Column(np.array([one.clock_uncertainty_ns for one in launches], np.float64)),
            "alignment_uncertainty_ns": self._alignment(launches, "uncertainty_ns"),
            "alignment_symmetric_uncertainty_ns": self._alignment(launches, "symmetric_uncertainty_ns"),
            "warps_recorded": column([one.warps_recorded for one in launches]),
            "warps_expected": column([one.warps_expected for one in launches]),
            "events": column([one.events for one in launches]),
            "lost_events": column([one.lost_events for one in launches]),
            "lost_warps": column([one.lost_warps for one in launches]),
        }

    def _alignment(self, launches: Sequence[Launch], which: str) -> Column:
        """How far a launch's device may be off against the first; nothing where it is not on the common timeline.
        ``which``: of the facts."""
        known = {(one["process"], one["device"]): one[which] for one in self.trace.meta.get("alignment", ())}
        found = [known.get((one.process, one.device)) for one in launches]
        values = np.array([0.0 if one is None else one for one in found], np.float64)
        return Column(values, None, np.array([one is not None for one in found], np.bool_))

    def _host(self, name: str, rows: slice) -> Table:
        some = self.host_rows[name][rows]
        return {
            field.name: _column(host_tables.column(self.trace, field, some), field.kind)
            for field in host_tables.FIELDS[name]
        }

    def _sites(self, sites: NDArray[Any]) -> Column:
        known = sites >= 0
        if not len(self.site_code):
            return Column(np.zeros(len(sites), np.int32), ("",), known)
        return Column(self.site_code[np.where(known, sites, 0)], self.site_labels, None if known.all() else known)


def _dedupe(texts_: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Distinct texts in order of appearance (one empty text where there is none), and the code of each."""
    code: dict[str, int] = {}
    codes = [code.setdefault(text, len(code)) for text in texts_]
    return tuple(code) or ("",), np.array(codes, np.int32)


def _column(values: Sequence[Any], kind: str) -> Column:
    """Of Python objects, None where a row has no value."""
    given = np.array([value is not None for value in values], np.bool_)
    valid = None if given.all() and len(values) else given
    if kind == "text":
        labels, codes = _dedupe([value or "" for value in values])
        return Column(codes, labels, valid)
    return Column(np.array([value or 0 for value in values], kind), None, valid)


def flat(part: Table) -> dict[str, Column]:
    """The table with payloads as typed columns."""
    out: dict[str, Column] = {}
    for name, column in part.items():
        out.update(column.columns(name) if isinstance(column, Payloads) else {name: column})
    return out


# ------------------------------------------------------------------------------------------------------ libraries
def require(module: str, what: str) -> Any:
    """The module, imported. Raises WarptraceError that names the extra where it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise WarptraceError(f"{what} needs {package}: pip install 'warptrace[data]' ({error})") from None


def arrow_part(part: Table) -> pyarrow.Table:
    """Rows of a table as Arrow; texts are dictionaries."""
    pa = require("pyarrow", "an Arrow table")
    arrays = {}
    for name, column in flat(part).items():
        mask = None if column.valid is None else ~column.valid
        if column.labels is None:
            arrays[name] = pa.array(column.values, mask=mask)
        else:
            codes = pa.array(column.values.astype(np.int32), mask=mask)
            arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(column.labels, pa.string()))
    return pa.table(arrays)


def to_arrow(trace: Trace, name: str = "ranges") -> pyarrow.Table:
    """A whole table as Arrow. Raises UsageError for an unknown name, WarptraceError where pyarrow is missing."""
    return arrow_part(Tables(trace).part(name)).replace_schema_metadata(metadata(trace))


def metadata(trace: Trace) -> dict[str, str]:
    """What all tables of a trace carry beside their columns."""
    from .. import __version__

    return {
        "warptrace_version": __version__, "epoch_ns": str(trace.epoch_ns), "emulated": str(trace.emulated).lower(),
        "problems": str(len(trace.problems)),
    }  # fmt: skip


def to_pandas(trace: Trace, name: str = "ranges") -> pandas.DataFrame:
    """A whole table as a pandas DataFrame: texts are categoricals, columns with gaps nullable. Raises as to_arrow."""
    pd = require("pandas", "a pandas DataFrame")
    columns = {}
    for title, column in flat(Tables(trace).part(name)).items():
        if column.labels is not None:
            codes = column.values if column.valid is None else np.where(column.valid, column.values, -1)
            columns[title] = pd.Categorical.from_codes(codes, list(column.labels))
        elif column.valid is None:
            columns[title] = column.values
        elif column.values.dtype.kind == "f":
            columns[title] = pd.arrays.FloatingArray(column.values, ~column.valid)
        else:
            columns[title] = pd.arrays.IntegerArray(column.values, ~column.valid)
    frame: pandas.DataFrame = pd.DataFrame(columns)
    frame.attrs.update(metadata(trace))
    return frame


def to_polars(trace: Trace, name: str = "ranges") -> polars.DataFrame:
    """A whole table as a Polars DataFrame: texts are enums, columns with gaps nullable. Raises as to_arrow."""
    pl = require("polars", "a Polars DataFrame")
    series = []
    for title, column in flat(Tables(trace).part(name)).items():
        if column.labels is None:
            one = pl.Series(title, column.values)
        else:
            labels = pl.Series(title, list(column.labels), dtype=pl.Enum(list(column.labels)))
            one = labels.gather(column.values.astype(np.uint32))
        if column.valid is not None:
            gaps = pl.Series(title, ~column.valid)
            one = one.zip_with(~gaps, pl.Series(title, [None] * len(one), dtype=one.dtype))
        series.append(one)
    frame: polars.DataFrame = pl.DataFrame(series)
    return frame
