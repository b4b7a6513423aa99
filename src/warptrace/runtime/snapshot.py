"""Snapshots: what the kernels of running programs have recorded, read from another process.

``python -m warptrace.runtime.snapshot RAW_DIR`` maps the trace memory of every process that has a capture in RAW_DIR as
soon as it is offered (:mod:`.offer`), and waits. A line ``snap`` on its standard input takes a snapshot of all of it
into ``RAW_DIR/pid_<pid>/snapshot``, a capture of its own that the reader adds to the other, and prints what was
found as one line of JSON. Any other line, or the end of its input, ends it. What it has mapped stays readable after
the death of its owner.
"""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import wire
from ..errors import WarptraceError
from ..raw import BankImage, CaptureWriter
from ..raw.format import MANIFEST_NAME, SNAPSHOT_FOLDER
from ..raw.looks import Look, Settled, first_look, second_look, settled_losses
from . import driver
from .calibrate import ClockPair, DeviceClock
from .layout import Layout
from .offer import Offer, offer_path, offers_in

PAUSE_S = 0.05
"""Between the two looks: what a warp has stored by the first is in memory long before the second, and what a warp does
in a loop it does in between."""
POLL_S = 0.1
CLOCK_S = 0.5
"""So long the kernel that reads %globaltimer may take to begin: processes take turns on a device, so it should get one
also where the kernel that hangs fills it."""
STAGING_BYTES = 8 << 20

class Readable(Protocol):
    """Trace memory that can be read; offsets are from the control block."""

    @property
    def layout(self) -> Layout:
        """Its division."""

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of the bytes there."""


@dataclass(frozen=True)
class Source:
    """Trace memory of a device of a process. ``directory``: that of its capture; ``facts``: of the device, as
    :meth:`CaptureWriter.add_device` wants them; ``clock``: what %globaltimer reads now, None where it cannot be known.
    """

    pid: int
    ordinal: int
    directory: Path
    memory: Readable
    facts: dict[str, Any]
    clock: Callable[[], ClockPair | None]


@dataclass
class Taken:
    """What a snapshot of a source found: regions, of them of warps that had not ended (``open``), of these such that
    went on recording between the two looks (``moved``), and regions that were handed back in between (``gone``).
    ``unopened_bytes``: claimed by warps that had not come to their first event, at least."""

    pid: int
    ordinal: int
    regions: int = 0
    open: int = 0
    moved: int = 0
    gone: int = 0
    unopened_bytes: int = 0
    error: str | None = None


@dataclass
class _Work:
    """A source between the two looks."""

    source: Source
    taken: Taken
    clock: ClockPair | None = None
    lines: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, wire.BANK_DTYPE))
    looks: dict[int, Look] = field(default_factory=dict)
    lost: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, wire.LOST_DTYPE))


def take(sources: Sequence[Source], pause_s: float = PAUSE_S) -> list[Taken]:
    """Takes a snapshot of all sources and writes it beside their captures. A source that fails has an ``error``."""
    started = time.time_ns()
    works = [_Work(source, Taken(source.pid, source.ordinal)) for source in sources]
    for work in works:
        with _reported(work.taken):
            _look(work)
    time.sleep(pause_s)
    for directory in dict.fromkeys(source.directory for source in sources):
        mine = [w for w in works if w.source.directory == directory and w.taken.error is None]
        if mine:
            _write(directory, mine, started)
    return [work.taken for work in works]


class _reported:
    """Faults inside become the ``error`` of what was to be taken."""

    def __init__(self, *taken: Taken) -> None:
        self._taken = taken

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> bool:
        if not isinstance(fault, Exception):
            return False
        for taken in self._taken:
            text = str(fault) if isinstance(fault, (WarptraceError, OSError)) else f"{type(fault).__name__}: {fault}"
            taken.error = taken.error or text
        return True


def _look(work: _Work) -> None:
    """The first look."""
    memory, taken = work.source.memory, work.taken
    work.clock = work.source.clock()
    work.lines = _bank_lines(memory)
    for bank in range(wire.BANK_COUNT):
        images = list(_images(memory, bank, work.lines[bank]))
        if images:
            work.looks[bank] = first_look(images)
    taken.open = sum(look.open for look in work.looks.values())
    taken.unopened_bytes = sum(
        max(look.skipped - int(work.lines["failed_bytes"][bank]), 0) for bank, look in work.looks.items()
    )
    work.lost = _lost_rows(memory)


def _bank_lines(memory: Readable) -> NDArray[np.void]:
    """The bank lines. Raises WarptraceError where the memory is not what it should be."""
    size = wire.BANK_COUNT * wire.BANK_LINE_BYTES
    lines: NDArray[np.void] = memory.read(wire.BANKS_OFFSET, size).view(wire.BANK_DTYPE)
    if (lines["base"] != [memory.layout.base(bank) for bank in range(wire.BANK_COUNT)]).any():
        raise WarptraceError("what was mapped is not the trace memory")
    return lines


def _images(memory: Readable, bank: int, line: np.void) -> Iterator[BankImage]:
    """The bank's memory, as far as it was claimed and not handed back when the line was read."""
    layout = memory.layout
    for position, offset, size in layout.pieces(bank, int(line["tail"]), int(line["head"])):
        yield BankImage(memory.read(offset, size), position, layout.base(bank), layout.bank_bytes - 1)


def _lost_rows(memory: Readable) -> NDArray[np.void]:
    words = memory.read(0, wire.CONTROL_DTYPE.itemsize).view(wire.CONTROL_DTYPE)
    count = min(int(words["lost_head"][0]), wire.LOST_CAPACITY)
    rows: NDArray[np.void] = memory.read(wire.LOST_OFFSET, count * wire.LOST_BYTES).view(wire.LOST_DTYPE)
    return rows


def _write(directory: Path, works: list[_Work], started: int) -> None:
    """The second look, into the snapshot's directory: whole or not at all."""
    final, partial = directory / SNAPSHOT_FOLDER, directory / f"{SNAPSHOT_FOLDER}.partial"
    with _reported(*(work.taken for work in works)):
        shutil.rmtree(partial, ignore_errors=True)
        writer = _new_writer(directory, partial, works[0].taken.pid, started)
        for work in works:
            with _reported(work.taken):
                _write_device(writer, work)
        writer.set_snapshot({"pause_ns": time.time_ns() - started, "devices": [asdict(w.taken) for w in works]})
        writer.finish(ended_unix_ns=time.time_ns())
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)


def _new_writer(directory: Path, partial: Path, pid: int, started: int) -> CaptureWriter:
    from .. import __version__

    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    return CaptureWriter(
        partial,
        pid=pid,
        argv=manifest.get("argv", []),
        host=platform.node(),
        python=platform.python_version(),
        warptrace=__version__,
        dsl=manifest.get("dsl"),
        started_unix_ns=started,
    )


def _write_device(writer: CaptureWriter, work: _Work) -> None:
    source, taken = work.source, work.taken
    writer.add_device(source.ordinal, **source.facts)
    if work.clock is not None:
        now = work.clock
        writer.add_clock(
            source.ordinal, now.host_unix_ns, now.globaltimer_ns, now.uncertainty_ns, now.host_monotonic_ns
        )

    def settled() -> Iterator[Settled]:
        for bank, look in work.looks.items():
            yield from second_look(_images(source.memory, bank, work.lines[bank]), look)

    def counted() -> Iterator[Any]:
        for part in settled():
            taken.regions += len(part.regions.headers)
            taken.moved += part.moved
            yield part.regions

    writer.write_parts(source.ordinal, counted())
    taken.gone = sum(len(look.headers) for look in work.looks.values()) - taken.regions
    if len(work.lost):
        again = source.memory.read(wire.LOST_OFFSET, work.lost.nbytes).view(wire.LOST_DTYPE)
        writer.write_lost(source.ordinal, settled_losses(work.lost, again))


# ------------------------------------------------------------------------------------------------- another process
class MappedMemory:
    """Trace memory of another process, mapped into a context of ours. Raises WarptraceError where it cannot be."""

    def __init__(self, offer: Offer) -> None:
        driver.call("cuInit", 0)
        self.ordinal = driver.device_with_uuid(offer.uuid)
        self.layout = offer.layout
        self.context = driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", self.ordinal))
        with driver.current(self.context):
            flags = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
            self.stream = driver.call("cuStreamCreate", flags)
            self._control = driver.open_shared(bytes.fromhex(offer.handle)) + offer.offset
            self._staging = driver.Staging(STAGING_BYTES)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of the bytes there."""
        with driver.current(self.context):
            return self._staging.read(self._control + offset, nbytes, self.stream)

    def facts(self) -> dict[str, Any]:
        """Of the device, for the manifest."""
        return asdict(driver.device_facts(self.ordinal)) | {"buffer_bytes": self.layout.total_bytes}


class _Watch:
    """Everything that is offered in a folder of raw captures, mapped."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        self._seen: set[Path] = set()
        self.sources: list[Source] = []
        self.failed: list[Taken] = []

    def look_around(self) -> None:
        """Maps what is new."""
        for directory in sorted(self._raw.glob("pid_*")):
            for path in offers_in(directory):
                if path not in self._seen:
                    self._seen.add(path)
                    self._map(path)

    def _map(self, path: Path) -> None:
        try:
            offer = Offer.read(path)
        except (OSError, ValueError):
            return  # withdrawn meanwhile, or not ours
        taken = Taken(offer.pid, offer.ordinal)
        with _reported(taken):
            memory = MappedMemory(offer)
            self.sources.append(
                Source(offer.pid, offer.ordinal, path.parent, memory, memory.facts(), _clock(memory))
            )
        if taken.error is not None:
            self.failed.append(taken)

    def finished(self, source: Source) -> bool:
        """Its process has ended the recording as it should, so nothing is left to see."""
        return not offer_path(source.directory, source.ordinal).exists()


def _clock(memory: MappedMemory) -> Callable[[], ClockPair | None]:
    """Reads the device's clock where that is possible: a snapshot without its time is better than none."""
    clock: DeviceClock | None = None
    with suppress(WarptraceError):
        clock = DeviceClock(memory.context)

    def now() -> ClockPair | None:
        deadline = time.monotonic() + CLOCK_S
        with suppress(WarptraceError):
            while clock is not None and (left := deadline - time.monotonic()) > 0:
                found = clock.measure(left)
                if found is not None:
                    return found
                time.sleep(0.002)  # its turn ended in the middle
        return None

    return now


def main(arguments: Sequence[str]) -> int:
    """Waits for orders on standard input."""
    watch = _Watch(Path(arguments[0]))
    while True:
        watch.look_around()
        ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if ready:
            break
    if sys.stdin.readline().strip() != "snap":
        return 0
    watch.look_around()
    taken = watch.failed + take([source for source in watch.sources if not watch.finished(source)])
    print(json.dumps([asdict(one) for one in taken]), flush=True)
    # Not through the driver's own end: it may wait for a kernel of ours that never got its turn.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
