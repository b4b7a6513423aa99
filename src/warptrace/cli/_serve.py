"""A server of a fixed set of files for one browser on this machine.

It listens on 127.0.0.1 only and answers GET and HEAD of the files it was given, below a path that nobody can guess:
other users of the machine reach the port too. A request that names another host (DNS rebinding) is refused. No folder
is listed, nothing outside the set is read.
"""

from __future__ import annotations

import contextlib
import http.server
import mimetypes
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ..errors import WarptraceError

LOCAL = "127.0.0.1"
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".pftrace": "application/octet-stream"}


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files`` (path below :attr:`base` -> file). ``origin``: the one site that may read them from its own
    pages. ``policy``: the Content-Security-Policy of every answer."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, files: Mapping[str, Path], port: int = 0, *, origin: str | None = None, policy: str | None = None
    ) -> None:
        """``port`` 0: any that is free. Raises WarptraceError where it is not to be had."""
        self.files = dict(files)
        self.origin = origin
        self.policy = policy
        self.token = secrets.token_urlsafe(16)
        try:
            super().__init__((LOCAL, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise WarptraceError(f"cannot listen on {LOCAL}:{port}: {reason}") from None

    @property
    def host(self) -> str:
        """``127.0.0.1:port``."""
        return f"{LOCAL}:{self.server_address[1]}"

    @property
    def base(self) -> str:
        """The address below which the files are, without a slash at its end."""
        return f"http://{self.host}/{self.token}"

    def url(self, name: str) -> str:
        """The address of a file."""
        return f"{self.base}/{quote(name)}"

    def until_interrupted(self) -> None:
        """Serves until Ctrl-C, then closes."""
        with self, contextlib.suppress(KeyboardInterrupt):
            self.serve_forever(poll_interval=0.2)

    def find(self, path: str) -> Path | None:
        """The file that the path of a request names."""
        first, _, name = unquote(urlsplit(path).path).lstrip("/").partition("/")
        if not secrets.compare_digest(first.encode(), self.token.encode()):
            return None
        return self.files.get(name)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    server_version = "warptrace"
    sys_version = ""

    def log_message(self, *args: Any) -> None:
        """Nothing: stderr is for what the user must know."""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_OPTIONS(self) -> None:
        """What a browser asks before a page of ``origin`` may read from this machine."""
        if not self._welcome() or self.server.origin is None or self.headers.get("Origin") != self.server.origin:
            return self.send_error(403)
        self.send_response(204)
        self._headers()
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _welcome(self) -> bool:
        port = self.server.server_address[1]
        return self.headers.get("Host") in (f"{LOCAL}:{port}", f"localhost:{port}")

    def _answer(self, *, body: bool) -> None:
        if not self._welcome():
            return self.send_error(403)
        path = self.server.find(self.path)
        try:
            file = None if path is None else path.open("rb")
        except OSError:
            file = None
        if path is None or file is None:
            return self.send_error(404)
        with file:
            self.send_response(200)
            kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(path.stat().st_size))
            self._headers()
            self.end_headers()
            if body:
                self._send(file)

    def _send(self, file: Any) -> None:
        try:
            shutil.copyfileobj(file, self.wfile)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the reader went away

    def _headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.server.origin is not None:
            self.send_header("Access-Control-Allow-Origin", self.server.origin)
            self.send_header("Vary", "Origin")
        if self.server.policy is not None:
            self.send_header("Content-Security-Policy", self.server.policy)
