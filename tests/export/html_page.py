"""Reads the data of an HTML report back: in Python by the format's description, and with the page's own JavaScript."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warptrace.export import html

ASSETS = Path(html.__file__).parent


class Page(HTMLParser):
    """The elements of a page: ``columns`` by name, tags in order, the text of the title."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.columns: dict[str, tuple[dict[str, Any], str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.title = ""
        self._into: str | None = None
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._into = "title" if tag == "title" else None
        if "data-column" in found:
            self._into = str(found["data-name"])
            self.columns[self._into] = (json.loads(str(found["data-column"])), "")

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    def handle_data(self, data: str) -> None:
        if self._into == "title":
            self.title += data
        elif self._into is not None:
            spec, text = self.columns[self._into]
            self.columns[self._into] = (spec, text + data)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that is no column."""
        facts: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(self.columns["facts"][1], validate=True)))
        return facts

    def column(self, name: str) -> NDArray[np.int64]:
        """The values of a column."""
        spec, text = self.columns[name]
        rows, width = spec["rows"], spec["width"]
        if not rows:
            return np.empty(0, np.int64)
        if not width:
            return np.full(rows, int(spec["value"]))
        planes = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8).reshape(width, rows)
        values = np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(-1).astype(np.int64)
        return np.cumsum(values) if spec["delta"] else values


def node() -> str | None:
    """A JavaScript engine: the one in the playwright package, else the system's."""
    spec = importlib.util.find_spec("playwright")
    if spec is not None and spec.origin is not None:
        shipped = Path(spec.origin).parent / "driver" / "node"
        if shipped.exists():
            return str(shipped)
    return shutil.which("node")


DECODER = """
const readline = require('readline'), fs = require('fs'), vm = require('vm');
const scope = vm.createContext({ Blob, Response, TextDecoder, BigInt, atob, DecompressionStream });
for (const file of process.argv.slice(1)) vm.runInContext(fs.readFileSync(file, 'utf8'), scope);
scope.plain = (column) => column.low
  ? Array.from(column.low, (low, i) => (BigInt(column.high[i]) << 32n | BigInt(low)).toString())
  : Array.from(column, String);
const out = async (line) => {
  const { elements, fallback, payloads } = JSON.parse(line);
  if (payloads) return payloads.map(([type, low, high]) => scope.payloadValue(type, low, high).text);
  scope.DecompressionStream = fallback ? undefined : DecompressionStream;
  const all = await scope.decodeAll(elements.map(({ name, spec, text }) => ({ name, spec, text: () => text })));
  return Object.fromEntries(Object.entries(all).map(([name, c]) => [name, name === 'facts' ? c : scope.plain(c)]));
};
readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  let answer;
  try { answer = await out(line); } catch (error) { answer = { error: String(error && error.stack) }; }
  process.stdout.write(JSON.stringify(answer) + '\\n');
});
"""


class Engine:
    """The page's decoder, run by node: a question and an answer a line."""

    def __init__(self) -> None:
        program = node()
        assert program is not None
        scripts = [str(ASSETS / name) for name in ("inflate.js", "data.js", "format.js")]
        self._process = subprocess.Popen(
            [program, "-e", DECODER, "--", *scripts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **question: Any) -> Any:
        """The answer. Fails where the page's code does."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not isinstance(answer, dict) or "error" not in answer, answer["error"]
        return answer

    def decode(self, page: Page, *, fallback: bool = False) -> dict[str, Any]:
        """Columns (lists of decimal numbers) and facts of a page. ``fallback``: without DecompressionStream."""
        elements = [{"name": name, "spec": spec, "text": text} for name, (spec, text) in page.columns.items()]
        answer: dict[str, Any] = self.ask(elements=elements, fallback=fallback)
        return answer

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
