"""Prints a digest of a kernel's code: before anything was wrapped, wrapped with tracing off, wrapped with no group, and
with ranges. Arguments: front end, further options of the compiler."""

import hashlib
import sys

import auto_kernels
import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

from warptrace.frontends.cute import dsl

using = cute.compile if sys.argv[1] == "default" else cute.compile[cute.FrontendNext]


def digest(on: bool) -> str:
    built = build(auto_kernels.plain_host, tensor(), cutlass.Int32(3), on=on, options=sys.argv[2], using=using)
    return hashlib.sha256(built.ptx.encode() + built.cubin).hexdigest()


plain = [cute.arch.sync_threads]  # a name of this module would be that of the wrapper, too
print(digest(True))
dsl.instrument(("waits", "barriers", "copies", "mma", "scheduler"))
assert cute.arch.sync_threads is not plain[0]
print(digest(False))
ranges = digest(True)
dsl.instrument(())
print(digest(True))
print(ranges)
