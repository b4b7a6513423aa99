"""Off means off: with tracing off a kernel with calls is byte for byte the kernel without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import cutlass
import cutlass.cute as cute
import twin_with
import twin_without
from dsl_build import build, tensor

import warptrace.cute as iket
from warptrace import registry

FRONTENDS = {"default": cute.compile}
if hasattr(cute, "FrontendNext"):
    FRONTENDS["FrontendNext"] = cute.compile[cute.FrontendNext]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("frontend", ["default", "FrontendNext"])
def test_off_is_byte_identical(arch, frontend):
    if frontend not in FRONTENDS:
        pytest.skip("this DSL has no FrontendNext")
    using = FRONTENDS[frontend]
    off = build(twin_with.host, tensor(), cutlass.Int32(3), on=False, arch=arch, using=using)
    without = build(twin_without.host, tensor(), cutlass.Int32(3), on=False, arch=arch, using=using)
    assert list(off.entries) == list(without.entries)
    assert [name.split("_")[2] for name in off.entries] == ["first", "second"]
    assert off.ptx == without.ptx
    assert off.cubin == without.cubin
    assert off.records == ()


def test_symbol_names_are_the_same_on_and_off():
    off = build(twin_with.host, tensor(), cutlass.Int32(3), on=False)
    on = build(twin_with.host, tensor(), cutlass.Int32(3), quiet=False)
    assert list(on.entries) == list(off.entries) == [r.symbol for r in on.records]
    assert on.ptx != off.ptx
    assert [len(e.events) > 0 for e in on.entries.values()] == [True, True]
    # tracing leaves nothing behind
    again = build(twin_with.host, tensor(), cutlass.Int32(3), on=False)
    assert (again.ptx, again.cubin) == (off.ptx, off.cubin)


def test_a_kernel_without_events_is_the_same_on_and_off():
    off = build(twin_without.host, tensor(), cutlass.Int32(3), on=False)
    on = build(twin_without.host, tensor(), cutlass.Int32(3))
    assert (on.ptx, on.cubin) == (off.ptx, off.cubin)
    assert on.records == ()
    assert set(on.entries) <= set(registry.without_events())


def test_tracing_is_off_by_default_and_per_compile():
    assert not iket.enabled()
    with iket.tracing():
        assert iket.enabled()
        with iket.tracing(False):
            assert not iket.enabled()
        assert iket.enabled()
    assert not iket.enabled()
    with pytest.raises(KeyError), iket.tracing():
        raise KeyError
    assert not iket.enabled()


def _hashes(seed: str) -> list[str]:
    here = Path(__file__).parent
    source = Path(iket.__file__).parent.parent
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here), str(source)])}
    done = subprocess.run(
        [sys.executable, str(here / "print_hash.py")], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_cache_keys_differ_on_and_off_and_are_stable_across_processes():
    first = _hashes("1")
    on, off, on_again, *kernel_ids = first
    assert len(on) == 64
    assert on != off
    assert on == on_again
    assert len(kernel_ids) == 2 and len(set(kernel_ids)) == 2
    assert _hashes("2") == first
