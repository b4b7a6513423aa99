"""What the tracer's own kernels have in common: they must not disturb the program that they run beside.

Each has code that was loaded before it is needed, a stream of the highest priority, so that it need not wait for the
blocks of a large grid that still wait for a place, and a page that host and device see, so that nobody copies or waits
for the stream.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import driver


class OwnKernel:
    """The kernel ``name`` of the text ``ptx``, in a context, with a page of ``page_bytes`` that host (``page``) and
    device (``page_on_device``) see. Nothing of it is ever freed.

    Safe while a stream is being captured into a graph. Raises DriverError, as all that is asked of it does.
    """

    def __init__(self, context: Any, ptx: str, name: str, page_bytes: int) -> None:
        cuda = driver.bindings()
        self.context = context
        with driver.relaxed_capture(), driver.current(context):
            # Loaded to the end here: a kernel that is loaded at its first launch may have to wait for all others.
            self._module = driver.call("cuModuleLoadData", ptx.encode() + b"\0")
            self._function = driver.call("cuModuleGetFunction", self._module, name.encode())
            _, greatest = driver.call("cuCtxGetStreamPriorityRange")
            flags = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._stream = driver.call("cuStreamCreateWithPriority", flags, int(greatest))
            self.page = int(driver.call("cuMemHostAlloc", page_bytes, cuda.CU_MEMHOSTALLOC_DEVICEMAP))
            self.page_on_device = int(driver.call("cuMemHostGetDevicePointer", self.page, 0))

    def idle(self) -> bool:
        """No earlier launch still runs, or waits for its turn."""
        cuda = driver.bindings()
        with driver.relaxed_capture(), driver.current(self.context):
            code = cuda.cuStreamQuery(self._stream)
            if code[0] == cuda.CUresult.CUDA_ERROR_NOT_READY:
                return False
            driver.check("cuStreamQuery", code)
        return True

    def launch(self, *words: Any, ctas: int = 1, cluster: int = 1) -> None:
        """Starts CTAs of one thread, in clusters of ``cluster`` of them. ``words``: the kernel's parameters, as ctypes
        objects."""
        arguments = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        address = ctypes.addressof(arguments)
        with driver.relaxed_capture(), driver.current(self.context):
            if cluster > 1:
                driver.call("cuLaunchKernelEx", self._clusters(ctas, cluster), self._function, address, 0)
            else:
                driver.call("cuLaunchKernel", self._function, ctas, 1, 1, 1, 1, 1, 0, self._stream, address, 0)

    def fits(self, ctas: int, cluster: int) -> bool:
        """Whether such clusters find a place where nothing else runs."""
        shape = self._clusters(ctas, cluster)
        try:
            with driver.relaxed_capture(), driver.current(self.context):
                return int(driver.call("cuOccupancyMaxActiveClusters", self._function, shape)) > 0
        except driver.DriverError as e:
            if e.code == driver.bindings().CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE:
                return False
            raise

    def _clusters(self, ctas: int, cluster: int) -> Any:
        cuda = driver.bindings()
        shape = cuda.CUlaunchAttribute()
        shape.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape.value.clusterDim.x, shape.value.clusterDim.y, shape.value.clusterDim.z = cluster, 1, 1
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX = config.blockDimY = config.blockDimZ = 1
        config.sharedMemBytes, config.hStream = 0, self._stream
        config.attrs, config.numAttrs = [shape], 1
        return config
