"""Memory at an address for good that can move into a file and out of it again, while others read and write it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MAP_FIXED = 0x10
_MREMAP_MAYMOVE_FIXED = 3
_FAILED = ctypes.c_void_p(-1).value


class FixedMemory:
    """``nbytes`` of zeroed memory, page-aligned: ``address`` and ``array`` stay valid for the life of the process."""

    def __init__(self, nbytes: int) -> None:
        self._size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._in_file = False
        self.address = _private(self._size)
        self.array: NDArray[np.uint8] = _view(self.address, nbytes)

    def into_file(self, path: Path) -> None:
        """The memory becomes that of a file, which has all that is written from now on, however the process ends.

        What is written meanwhile may be lost. Raises OSError where the file cannot be made, or not be mapped.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Blocks of a file that are missing on a full disk would be a bus error on the first write.
            os.posix_fallocate(file, 0, self._size)
            os.pwrite(file, _view(self.address, self._size).data, 0)
            _map(self.address, self._size, mmap.MAP_SHARED | _MAP_FIXED, file)
        finally:
            os.close(file)
        self._in_file = True

    def out_of_file(self) -> None:
        """The memory is the process's own again, with what it holds; the file stays as it is then."""
        if not self._in_file:
            return
        self._in_file = False
        copy = _private(self._size)
        ctypes.memmove(copy, self.address, self._size)
        # Takes the place of the file at once: nobody ever meets an empty page.
        if _libc().mremap(copy, self._size, self._size, _MREMAP_MAYMOVE_FIXED, self.address) == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _view(address: int, nbytes: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _private(size: int) -> int:
    return _map(0, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _map(address: int, size: int, flags: int, file: int) -> int:
    """Address of a new mapping, to read and to write. Raises OSError."""
    at = _libc().mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
    if at == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(at)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.argtypes = (pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mremap.argtypes = (pointer, size, size, ctypes.c_int, pointer)
    libc.mmap.restype = libc.mremap.restype = pointer
    return libc
