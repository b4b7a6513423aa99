"""The first kernel of a written Perfetto trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_traces import random_traces
from traces import TraceScript

from warptrace.export.perfetto import write_perfetto
from warptrace.export.perfetto_head import first_kernel
from warptrace.trace import Trace

quick = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(trace=random_traces(), compress=st.booleans())
def test_it_is_the_first_launch(trace: Trace, compress: bool, tmp_path: Path) -> None:
    write_perfetto(trace, tmp_path / "trace.pftrace", compress=compress)
    launch = trace.launches[0]
    assert first_kernel(tmp_path / "trace.pftrace") == (launch.start_ns, launch.end_ns)


def test_a_trace_without_launches_has_none(tmp_path: Path) -> None:
    write_perfetto(TraceScript().build(), tmp_path / "trace.pftrace")
    assert first_kernel(tmp_path / "trace.pftrace") is None


@quick
@given(data=st.binary(max_size=200))
def test_any_other_file_has_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(data)
    assert first_kernel(tmp_path / "other") is None


@pytest.mark.parametrize("compress", [False, True])
def test_a_trace_cut_anywhere_is_no_fault(compress: bool, tmp_path: Path) -> None:
    script = TraceScript()
    script.warp(script.launch(), 100, 900)
    write_perfetto(script.build(), tmp_path / "trace.pftrace", compress=compress)
    data = (tmp_path / "trace.pftrace").read_bytes()
    for size in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        assert first_kernel(tmp_path / "cut") in (None, (100, 900))
    assert first_kernel(tmp_path / "trace.pftrace") == (100, 900)
