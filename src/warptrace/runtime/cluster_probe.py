"""Which SMs of a device share clusters: where CTAs of the tracer's own ran.

CTAs of one cluster run on one GPC, which is all that a device tells of its GPCs; most programs launch too few clusters,
or none. So the tracer launches some: CTAs of one warp that write down their SM and end.

What finds no place on the device may hold up what is launched after it. A CTA of one warp finds one wherever anything
does, but a cluster needs several SMs of a GPC at once: beside a kernel that waits for another, not launched yet, it
could wait for ever, and the program with it. So this is done at the end of a recording, where nothing of the program
runs. (Done at the first launch, with other processes having their turns on the device, a kernel that waited for a later
launch once waited in vain.) CTAs without a cluster go first all the same, and only where these found a place on every
SM do clusters follow.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WarptraceError
from ..raw import CaptureWriter
from .log import log
from .own_kernels import OwnKernel

SIZES = (7, 5, 2)
"""CTAs of a cluster, a launch each. On an H200 either of the first two joins all SMs of each GPC, but for those that no
cluster of more than two ever has (8 does not: it never crosses the halves of a GPC of 16 SMs); the last shows TPCs."""
CLUSTERS = 100
FIRST = 4
"""CTAs for each SM in the launch that looks for room."""
PATIENCE_S = 0.1
"""So long the host waits for all of it: 35 us a launch where the device is free (H200), but other processes may have
their turns on it."""
LOOK_S = 20e-6
LEAST_CAPABILITY = (9, 0)
"""Older devices have no clusters, and cannot load the code."""

KERNEL = "warptrace_cluster_probe"
PTX = f""".version 7.8
.target sm_90
.address_size 64

.visible .entry {KERNEL}(.param .u64 page)
{{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [page];
  mov.u32 %r0, %ctaid.x;
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd0, %rd0, %rd1;
  mov.u32 %r1, %smid;
  add.u32 %r1, %r1, 1;
  st.volatile.u32 [%rd0], %r1;
  ret;
}}
"""
"""Each CTA writes 1 + its SM."""

U32 = NDArray[np.uint32]


@dataclass(frozen=True)
class SharedSms:
    """What clusters of ``ctas`` CTAs showed: ``sms``, sets of SMs, each connected by clusters that shared one."""

    ctas: int
    sms: list[list[int]]


def joined(clusters: Iterable[Iterable[int]]) -> list[list[int]]:
    """The SMs of all clusters, those of clusters that share one together; in order."""
    found: list[set[int]] = []
    for cluster in clusters:
        one = set(cluster)
        for other in [other for other in found if not one.isdisjoint(other)]:
            found.remove(other)
            one |= other
        found.append(one)
    return sorted(sorted(one) for one in found)


class ClusterProbe:
    """Looks at the device of a context, which has ``sms`` SMs.

    Safe while a stream is being captured into a graph, and from several threads. Raises DriverError, as ``look`` does.
    """

    def __init__(self, context: Any, sms: int) -> None:
        self._sms = sms
        self._lock = threading.Lock()
        counts = [FIRST * sms, *(CLUSTERS * size for size in SIZES)]
        self._begins = np.cumsum([0, *counts]).tolist()
        self._kernel = OwnKernel(context, PTX, KERNEL, 4 * self._begins[-1])
        words = (ctypes.c_uint32 * self._begins[-1]).from_address(self._kernel.page)
        self._page: U32 = np.ctypeslib.as_array(words)
        self._seen: list[SharedSms] | None = None

    def look(self, patience_s: float = PATIENCE_S) -> list[SharedSms] | None:
        """What clusters of each size showed, at the first time that they could run; None where they cannot now, within
        ``patience_s``, or where another thread is at it. Waits for no kernel of the program."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._seen is None and self._kernel.idle():  # no earlier try still waits for its turn
                self._seen = self._try(time.monotonic() + patience_s)
            return self._seen
        finally:
            self._lock.release()

    def _try(self, deadline: float) -> list[SharedSms] | None:
        self._page[:] = 0
        self._launch(0, 1)
        if not self._told(0, deadline) or len(np.unique(self._part(0))) < self._sms:
            return None
        parts = [part for part, size in enumerate(SIZES, 1) if self._kernel.fits(len(self._part(part)), size)]
        for part in parts:
            self._launch(part, SIZES[part - 1])
        if not all(self._told(part, deadline) for part in parts):
            return None
        rows = [self._part(part).astype(np.int64).reshape(CLUSTERS, -1) - 1 for part in parts]
        return [SharedSms(one.shape[1], joined(one.tolist())) for one in rows]

    def _part(self, number: int) -> U32:
        return self._page[self._begins[number] : self._begins[number + 1]]

    def _launch(self, part: int, cluster: int) -> None:
        address = self._kernel.page_on_device + 4 * self._begins[part]
        self._kernel.launch(ctypes.c_uint64(address), ctas=len(self._part(part)), cluster=cluster)

    def _told(self, part: int, deadline: float) -> bool:
        """Whether all CTAs of a part have written by then."""
        while not self._part(part).all():
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True


class ClusterLog:
    """Writes what clusters show of a device into a capture, once. ``probe`` makes or finds what looks."""

    def __init__(self, ordinal: int, probe: Callable[[], ClusterProbe | None], writer: CaptureWriter) -> None:
        self._ordinal = ordinal
        self._probe = probe
        self._writer = writer
        self._done = False

    def note(self, patience_s: float = PATIENCE_S) -> None:
        """Looks where nothing was seen yet. Nothing that fails here is a fault of the program's."""
        if self._done:
            return
        begun = time.monotonic()
        try:
            probe = self._probe()
            found = probe.look(patience_s) if probe is not None else []
        except WarptraceError as e:
            log("debug", f"device {self._ordinal}: which SMs share clusters is not known: {e}")
            self._done = True
            return
        if found is None:
            log("debug", f"device {self._ordinal}: no room for clusters now")
            return
        self._done = True
        if found:
            self._writer.set_clusters(self._ordinal, [(one.ctas, one.sms) for one in found])
            text = ", ".join(f"{len(one.sms)} sets by clusters of {one.ctas}" for one in found)
            log("debug", f"SMs of device {self._ordinal}: {text}, {(time.monotonic() - begun) * 1e3:.1f} ms")
