"""How large an HTML report is, and how fast a browser loads and moves it.

    python benchmarks/html_speed.py [--slices 1000000]

The trace is the made-up one of export_speed.py. Needs the playwright package and chromium
(Debian: `apt-get install chromium`); runs headless, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from export_speed import make_trace

from warptrace.export.html import write_html

SLICES_PER_EVENT = 5 / 9  # of the made-up loop: 4 ranges and a marker
ZOOMS = (1, 8, 64, 1024)
LEVELS = ("SMs", "CTAs", "warps", "everything")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAN = """async () => {
  const t = warptrace.timeline, out = [];
  for (let i = 0; i < 60; i++) {
    t.pan(i % 20 < 10 ? 0.03 : -0.03);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    out.push(t.frameMs);
  }
  out.sort((a, b) => a - b);
  return [out[30], out[57]];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slices", type=int, default=1_000_000)
    options = parser.parse_args()
    trace = make_trace(int(options.slices / SLICES_PER_EVENT))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        begun = time.perf_counter()
        write_html(trace, path, max_slices=2 * options.slices)
        seconds = time.perf_counter() - begun
        slices = len(trace.ranges) + len(trace.markers)
        print(f"{slices:,} slices: written in {seconds:.1f} s, {os.path.getsize(path) / 1e6:.1f} MB")
        _measure(path)


def _measure(path: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page: Any = browser.new_page(viewport={"width": 1366, "height": 768})
        begun = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        seconds = time.perf_counter() - begun
        decoding = page.evaluate("warptrace.loadMs.decode") / 1e3
        print(f"open to ready {seconds:.2f} s, of which decoding {decoding:.2f} s")
        page.keyboard.press("2")
        print("a frame while panning, ms, median (95th percentile), by rows shown and zoom:")
        for level, name in enumerate(LEVELS):
            page.select_option("#level", str(level))
            cells = []
            for zoom in ZOOMS:
                page.evaluate("(z) => { warptrace.timeline.fit(); warptrace.timeline.zoom(1 / z); }", zoom)
                median, high = page.evaluate(PAN)
                cells.append(f"{median:.1f} ({high:.1f}) at {zoom}x")
            print(f"  {name:10}  {',  '.join(cells)}")
        browser.close()


if __name__ == "__main__":
    main()
