"""Several processes of a run, and several runs, on one timeline: real processes that leave captures of made-up GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

import warptrace

# A process of a job. It leaves the capture of a GPU on which a kernel began when the process asked it to. All GPUs of a
# machine stand apart, as real ones do; pairs of the clocks say by how much.
WORKER = '''
import os, sys, time
from pathlib import Path
from fake_device import EPOCH_NS, FakeDevice, FakeKernel, FakeWarp, write_capture
from warptrace.raw.place import place

HOST = os.environ.get("FAKE_HOST", "here")

def work(gpu, start_ns):
    behind = 91_000 * gpu + (250_000_000 if HOST != "here" else 0)
    kernel = FakeKernel(f"kernel_{gpu}")
    push, pop = kernel.push("load"), kernel.pop()
    device = FakeDevice(bank_bytes=1 << 12, slack=1 << 12, timer_ahead_ns=-behind)
    warp = FakeWarp(start_ns=start_ns)
    warp.event(push, at=100)
    warp.event(pop, at=200)
    device.launch(kernel, [warp.exit(at=2000)])
    clocks = [
        {"device": 0, "host_unix_ns": EPOCH_NS + ns, "host_monotonic_ns": ns + 77, "uncertainty_ns": 900.0,
         "globaltimer_ns": EPOCH_NS + ns - behind}
        for ns in (0, 10**9)
    ]
    facts = {**place(), "host": HOST, "boot": HOST, "clocks": clocks}
    folder = Path(os.environ["WARPTRACE_DIR"]) / f"pid_{os.getpid()}"
    write_capture(folder, [device], [kernel], pid=os.getpid(), uuid=f"GPU-{HOST}-{gpu}", facts=facts)

if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]))
'''

PROGRAMS = {
    "fork": """
import os
from worker import work
children = []
for gpu in range(2):
    child = os.fork()
    if child == 0:
        work(gpu, 10_000 * (gpu + 1))
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
""",
    "spawn": """
import multiprocessing
from worker import work
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=work, args=(gpu, 10_000 * (gpu + 1))) for gpu in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
""",
    "tree": """
import subprocess, sys
from worker import work
code = "import subprocess, sys; subprocess.run([sys.executable, 'worker.py', '1', '20000'], check=True)"
subprocess.run([sys.executable, "-c", code], check=True)
work(0, 10_000)
""",
    "launcher": """
import os, subprocess, sys
size = 2
job = []
for rank in range(size):
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "GROUP_RANK": "0"}
    command = [sys.executable, "worker.py", str(rank), str(10_000 * (rank + 1))]
    job.append(subprocess.Popen(command, env={**os.environ, **ranks}))
sys.exit(max(process.wait() for process in job))
""",
}

KINDS = ("html", "pftrace", "trace.json")
RUN = [f"iket_run.{kind}" for kind in KINDS]
ALONE = "import worker; worker.work(0, 10_000)"

Job = Callable[..., Path]


@pytest.fixture
def job(cli: Cli, tmp_path: Path) -> Job:
    """``job(how, name, *options)``: the run directory of a program of PROGRAMS, or of ALONE, without a tracer."""
    (tmp_path / "worker.py").write_text(WORKER)

    def run(how: str, name: str, *options: str, **variables: str) -> Path:
        (tmp_path / f"{how}.py").write_text(PROGRAMS.get(how, ALONE))
        command = ["env", "WARPTRACE=0", sys.executable, f"{how}.py"]
        done = cli("profile", "-o", name, "--postprocess", "all", *options, "--", *command, **variables)
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    return run


def outputs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("iket_"))


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def starts(data: dict[str, Any]) -> dict[str, int]:
    """When each kernel's first range began, in ns since the first of them."""
    found = {launch["warptrace"]["kernel"]: launch["ranges"][0]["startTs"] for launch in data["launches"]}
    return {kernel: start - min(found.values()) for kernel, start in found.items()}


# --------------------------------------------------------------------------------------------------------- one run
@pytest.mark.parametrize("how", PROGRAMS)
def test_all_processes_of_a_run_share_a_timeline(job: Job, how: str) -> None:
    folder = job(how, "run")
    assert outputs(folder) == RUN
    assert len(list((folder / "raw").glob("pid_*"))) == 2
    data = read(folder / "iket_run.trace.json")
    # 91 us between the two timers, and kernels that begin 10 us apart.
    assert starts(data) == {"kernel_0": 0, "kernel_1": pytest.approx(10_000, abs=70)}
    extension = data["warptrace"]
    pids = {int(path.name.removeprefix("pid_")) for path in (folder / "raw").glob("pid_*")}
    assert {process["pid"] for process in extension["processes"]} == pids
    assert [launch["warptrace"]["process"] for launch in data["launches"]] == [
        [process["pid"] for process in extension["processes"]].index(launch["warptrace"]["pid"])
        for launch in data["launches"]
    ]
    by_gpu = {facts["gpu"]: facts for facts in extension["alignment"]}
    first, second = by_gpu["GPU-here-0"], by_gpu["GPU-here-1"]
    assert 0 in (first["uncertaintyNs"], second["uncertaintyNs"])
    assert max(first["uncertaintyNs"], second["uncertaintyNs"]) == pytest.approx(1800, abs=5)
    assert abs(first["shiftNs"] + second["shiftNs"]) == pytest.approx(91_000, abs=2)
    assert extension["hostStart"]["uncertaintyNs"] == pytest.approx(900, abs=2)
    assert extension["problems"] == []
    ranks = sorted((process["rank"] is not None, process["rank"]) for process in extension["processes"])
    assert ranks == ([(True, 0), (True, 1)] if how == "launcher" else [(False, None)] * 2)


def test_a_manifest_knows_its_rank_and_its_parent(job: Job) -> None:
    folder = job("launcher", "run")
    manifests = sorted((read(path) for path in folder.glob("raw/*/manifest.json")), key=lambda one: one["rank"])
    assert [(one["rank"], one["local_rank"], one["world_size"]) for one in manifests] == [(0, 0, 2), (1, 1, 2)]
    assert manifests[0]["parent_pid"] == manifests[1]["parent_pid"] != manifests[0]["pid"]


def test_one_process_keeps_its_name(job: Job) -> None:
    folder = job("alone", "run")
    (capture,) = (folder / "raw").glob("pid_*")
    assert outputs(folder) == [f"iket_{capture.name}.{kind}" for kind in KINDS]


def test_outputs_for_each_process(job: Job, cli: Cli) -> None:
    folder = job("tree", "run", "--per-process")
    names = sorted(path.name for path in (folder / "raw").glob("pid_*"))
    assert outputs(folder) == sorted(f"iket_{name}.{kind}" for name in names for kind in KINDS)
    assert cli("postprocess", "run", "-o", "again", "--per-process").returncode == 0
    assert outputs(folder.parent / "again") == outputs(folder)
    assert cli("postprocess", "run", "-o", "together").returncode == 0
    assert outputs(folder.parent / "together") == RUN


def test_the_summary_says_where(job: Job, cli: Cli) -> None:
    job("launcher", "run")
    done = cli("postprocess", "run")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2 processes: 2 launches recorded")
    rows = [line for line in lines if "kernel_" in line]
    assert [f"Rank {rank} (process " in row for rank, row in enumerate(rows)] == [True, True]
    assert "GPUs are on one timeline, each good to 1.80 us against the first" in lines
    assert all(row.rstrip().endswith("GPU 0 (here-0)" if i == 0 else "GPU 0 (here-1)") for i, row in enumerate(rows))


def test_load_gives_all_processes(job: Job) -> None:
    trace = warptrace.load(job("spawn", "run"))
    assert sorted(launch.kernel for launch in trace.launches) == ["kernel_0", "kernel_1"]
    assert {launch.process for launch in trace.launches} == {0, 1}


def test_load_gives_several_runs(job: Job) -> None:
    trace = warptrace.load(job("alone", "ours"), job("tree", "theirs", FAKE_HOST="there"))
    assert sorted(launch.kernel for launch in trace.launches) == ["kernel_0", "kernel_0", "kernel_1"]
    assert [process.host for process in trace.processes] == ["here", "there", "there"]


def test_perfetto_shows_ranks_on_one_timeline(job: Job) -> None:
    processor_of = pytest.importorskip("trace_processor")
    if processor_of.missing():
        pytest.skip(processor_of.missing())
    processor = processor_of.TraceProcessor(job("launcher", "run") / "iket_run.pftrace")
    assert processor.errors() == []
    pids = processor.query("select distinct int_value from args where key = 'debug.process_id'")
    assert len(pids) == 2
    groups = processor.query(
        "select track.name from track join track above on above.id = track.parent_id where above.parent_id is null"
    )
    assert len(groups) == 2
    assert [name.startswith(f"Rank {rank} (process ") for rank, (name,) in enumerate(sorted(groups))] == [True, True]
    kernels = processor.query("select name, ts from slice where name like 'kernel:%' order by ts")
    assert [name.split(",")[0] for name, _ in kernels] == ["kernel:kernel_0 [emulated]", "kernel:kernel_1 [emulated]"]
    assert kernels[1][1] - kernels[0][1] == pytest.approx(10_000, abs=70)
    ranks = "select int_value from slice join args using (arg_set_id) where key = 'debug.rank' order by ts"
    assert processor.query(ranks) == [(0,), (1,)]
    doubt = "select real_value from args where key = 'debug.alignment_uncertainty_ns' order by 1"
    assert [value for (value,) in processor.query(doubt)] == [0.0, pytest.approx(1800, abs=5)]
    aligned = processor.query("select string_value from args where key glob 'debug.aligned_*' order by key")
    assert len(aligned) == 2
    assert aligned[0][0].endswith(": shifted by 0 ns, good to 0 ns")
    assert aligned[1][0].endswith(": shifted by 91000 ns, good to 1800 ns")


# ------------------------------------------------------------------------------------------------------------ merge
def test_two_hosts_on_one_timeline(job: Job, cli: Cli) -> None:
    ours = job("alone", "ours")
    theirs = job("launcher", "theirs", FAKE_HOST="there")
    before = {path: path.stat().st_mtime_ns for run in (ours, theirs) for path in run.rglob("*")}
    done = cli("merge", "ours", "theirs", "-o", "both")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for run in (ours, theirs) for path in run.rglob("*")} == before
    both = ours.parent / "both"
    assert outputs(both) == ["iket_merged.pftrace", "iket_merged.trace.json"]
    data = read(both / "iket_merged.trace.json")
    hosts = [process["host"] for process in data["warptrace"]["processes"]]
    assert hosts == ["here", "there", "there"]
    extensions = [(launch["warptrace"], launch["ranges"][0]["startTs"]) for launch in data["launches"]]
    at = {(hosts[one["process"]], one["kernel"]): start for one, start in extensions}
    apart = [at["there", "kernel_0"] - at["here", "kernel_0"], at["there", "kernel_1"] - at["here", "kernel_0"]]
    assert apart == [pytest.approx(0, abs=70), pytest.approx(10_000, abs=70)]
    doubt = sorted(facts["uncertaintyNs"] for facts in data["warptrace"]["alignment"])
    assert doubt == [0.0, pytest.approx(1_001_800, abs=9), pytest.approx(1_001_800, abs=9)]
    assert "on there, GPU 0" in done.stdout
    record = read(both / "run.json")
    assert [Path(path).parent.parent.name for path in record["sources"]] == ["ours", "theirs", "theirs"]

    done = cli("merge", "ours", "theirs", "-o", "both", "--clobber", "--clock-uncertainty", "40us", "--format", "json")
    assert done.returncode == 0, done.stderr
    doubt = sorted(x["uncertaintyNs"] for x in read(both / "iket_merged.trace.json")["warptrace"]["alignment"])
    assert doubt[1:] == [pytest.approx(41_800, abs=9)] * 2


def test_merging_one_run_and_parts_of_it(job: Job, cli: Cli, tmp_path: Path) -> None:
    run = job("tree", "run")
    (capture, _) = sorted((run / "raw").iterdir())[:2]
    assert cli("merge", "run", f"run/raw/{capture.name}", "-o", "m", "--format", "json").returncode == 0
    assert len(read(tmp_path / "m" / "iket_merged.trace.json")["launches"]) == 2


def test_what_cannot_be_merged(job: Job, cli: Cli, tmp_path: Path) -> None:
    job("tree", "run")
    subprocess.run(["cp", "-r", "run", "copy"], cwd=tmp_path, check=True)
    files = sorted(path for path in tmp_path.rglob("*"))
    twice = cli("merge", "run", "copy", "-o", "m")
    assert twice.returncode == 2
    assert "are of the same process: name one of the two" in twice.stderr
    for target in ("run", "run/raw", "run/merged", "."):
        inside = cli("merge", "run", "-o", target, "--clobber")
        assert inside.returncode == 2, target
        assert inside.stderr.count("\n") == 1
        assert f"-o {target} is, holds or lies in the run" in inside.stderr
    empty = cli("merge", "nothing", "-o", "m")
    assert (empty.returncode, empty.stderr.count("\n")) == (1, 1)
    assert cli("merge", "run", "-o", "m", "--clock-uncertainty", "5 parsecs").returncode == 2
    assert sorted(path for path in tmp_path.rglob("*")) == files


# ---------------------------------------------------------------------------------------------- with the real tracer
@pytest.mark.dsl
def test_ranks_that_start_the_tracer(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("import cutlass")
    (tmp_path / "launcher.py").write_text(PROGRAMS["launcher"])
    command = [sys.executable, "launcher.py"]
    done = cli("profile", "-o", "run", "--postprocess", "none", "--", *command, CUTE_DSL_ARCH="sm_90a", RANK="")
    assert done.returncode == 0, done.stderr
    manifests = [read(path) for path in (tmp_path / "run").glob("raw/*/manifest.json")]
    assert sorted((one["rank"], one["local_rank"], one["world_size"]) for one in manifests) == [(0, 0, 2), (1, 1, 2)]
    assert {one["boot"] for one in manifests} == {_boot()}
    assert os.getpid() not in {one["parent_pid"] for one in manifests}


def _boot() -> str | None:
    from warptrace.raw.place import place

    boot: str | None = place()["boot"]
    return boot
