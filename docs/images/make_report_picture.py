# SPDX-License-Identifier: Apache-2.0
"""Picture of the HTML report of the GEMM that tests/fixtures keeps from an H200.

    python docs/images/make_report_picture.py docs/images/report.png

Needs chromium with chromedriver, as make_screenshot.py does (Debian: `apt-get install chromium chromium-driver`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from make_screenshot import browser, wait_for

import warptrace
from warptrace.export.html import write_html
from warptrace.flows import Flow

CAPTURE = Path(__file__).parents[2] / "tests" / "fixtures" / "h200_gemm_512"
SHOW = """
const { page, timeline, model } = warptrace, { layout } = timeline;
page.open('timeline');
layout.open(2);
for (const w of [0, 4, 8]) layout.warpOpen[model.ctaFirst[model.sms[0].ctas[0]] + w] = 1;
layout.update();
timeline.resize();
timeline.view(timeline.low + 950, timeline.low + 6650);
const load = model.flows.source.find((range) => model.ranges.warp[range] === model.ctaFirst[model.sms[0].ctas[0]]);
timeline.select({ range: load });
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("png", type=Path)
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=680)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        path = Path(folder) / "gemm.html"
        write_html(warptrace.load(CAPTURE), path, title="hopper_gemm 512x512x512", flows=[Flow("tma_issue", "ab_wait")])
        page.resize(options.width, options.height)
        page.open(path.as_uri())
        wait_for(lambda: page.script("return document.documentElement.dataset.ready === '1'"), "the page")
        page.script(SHOW)
        wait_for(lambda: page.script("return warptrace.timeline.frameMs > 0"), "the timeline")
        options.png.write_bytes(page.screenshot())
    print(f"{options.png}: {options.png.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
