"""Wall time and output size of a whole ``profile --postprocess all``, ours and the reference profiler's.

    python benchmarks/tool_time.py [--launches 5] [--json FILE]

The program is examples/hopper_gemm.py (4096^3, 128x256 tiles), the same source for both with the import of the event
API replaced; its own time without a profiler stands beside. ``records``: ranges and markers in the JSON files, so that
sizes are those of the same content; ours is also written compressed. Needs a GPU, torch and the CuTe DSL.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import profilers
from profilers import OURS, REFERENCE, ROOT, device, dsl_version, has_reference, with_api

GEMM = ROOT / "examples" / "hopper_gemm.py"
LIMIT_S = 280
JSON = ".trace.json"
RECORDS = (b'"rangeNameIdx"', b'"markerNameIdx"')
CHUNK = 1 << 24


def plain(folder: Path, launches: int) -> float:
    """Seconds of the program alone."""
    path = with_api(GEMM, None, folder)
    begin = time.monotonic()
    subprocess.run([sys.executable, str(path), "--launches", str(launches)], check=True, timeout=LIMIT_S)
    return time.monotonic() - begin


def profiled(api: str, folder: Path, launches: int) -> dict[str, Any]:
    """Seconds of the profiler's command, and bytes of each kind of output."""
    output = folder / api
    options = ["-o", str(output), "--clobber", "profile", "--postprocess", "all"]
    words = [str(with_api(GEMM, api, folder)), "--launches", str(launches)]
    begin = time.monotonic()
    profilers.run(api, options, words, seconds=LIMIT_S)
    seconds = time.monotonic() - begin
    found: dict[str, Any] = {"seconds": round(seconds, 2), "bytes": sizes(output)}
    found["records"] = sum(records(path) for path in output.rglob(f"*{JSON}"))
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder, by kind."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            kind = "json" if path.name.endswith(JSON) else path.suffix.lstrip(".") or path.name
            found[kind] = found.get(kind, 0) + path.stat().st_size
    return dict(sorted(found.items()))


def records(path: Path) -> int:
    """Ranges and markers in a JSON file, which may be too large to be parsed."""
    count, rest, longest = 0, b"", max(map(len, RECORDS))
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            text = rest + part
            count += sum(text.count(key) for key in RECORDS)
            rest = text[1 - longest :]
            count -= sum(rest.count(key) for key in RECORDS)
    return count + sum(rest.count(key) for key in RECORDS)


def compressed(output: Path, folder: Path) -> dict[str, Any]:
    """Seconds to write our JSON again, compressed, and its bytes."""
    words = ["postprocess", str(output), "--format", "json", "--json-gz", "-o", str(folder)]
    begin = time.monotonic()
    done = subprocess.run(
        [*profilers.CLI[OURS], *words], env=profilers.environment(OURS), capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        raise RuntimeError(f"postprocess --json-gz: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return {"seconds": round(time.monotonic() - begin, 2), "bytes": sizes(folder)}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All stages; after each the results file holds what is known, for it may be the last that there is time for."""
    import warptrace

    data: dict[str, Any] = {
        "benchmark": "tool_time",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device(),
        "versions": {
            "python": platform.python_version(),
            "warptrace": warptrace.__version__,
            "nvidia-cutlass-dsl": dsl_version(),
        },
        "launches": args.launches,
        "plain_seconds": None,
        "figures": {},
        "failures": {},
    }
    with tempfile.TemporaryDirectory(prefix="tool-time-") as name:
        folder = Path(name)
        data["plain_seconds"] = round(plain(folder, args.launches), 2)
        save(data, args.json, f"the program alone: {data['plain_seconds']} s")
        for api in [OURS, REFERENCE] if has_reference() and not args.no_reference else [OURS]:
            try:
                one = data["figures"][api] = profiled(api, folder, args.launches)
                save(data, args.json, f"{api}: {one['seconds']} s, {one['records']} records, {one['bytes']}")
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                data["failures"][api] = str(error)[-3000:]
                save(data, args.json, f"error: {api}: {data['failures'][api]}")
        if OURS in data["figures"]:
            try:
                one = data["figures"][OURS]["compressed"] = compressed(folder / OURS, folder / "compressed")
                save(data, args.json, f"{OURS}, JSON compressed: {one['seconds']} s, {one['bytes']}")
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                data["failures"]["compressed"] = str(error)[-3000:]
                save(data, args.json, f"error: compressed: {data['failures']['compressed']}")
    return data


def save(data: dict[str, Any], path: Path, line: str) -> None:
    """Writes the results so far, and says what came last."""
    print(line, file=sys.stderr if line.startswith("error") else sys.stdout, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launches", type=int, default=5, metavar="N", help="of the GEMM (default: 5)")
    parser.add_argument("--json", type=Path, default=Path("tool_time.json"), metavar="FILE", help="results file")
    parser.add_argument("--no-reference", action="store_true", help="leave the reference out")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / "src"))
    return 1 if measure(args)["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
