"""Kernels annotated for the DSL's own event module: recorded beside the original calls, and left alone when off."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import annotated_kernels
import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

import warptrace
from warptrace import registry
from warptrace.frontends.cute import dsl
from warptrace.runtime.options import RuntimeOptions
from warptrace.wire import EventKind, PayloadType

try:
    theirs = cute.experimental.iket
except Exception as error:
    pytest.skip(f"this DSL has no event module here: {error}", allow_module_level=True)

SIX = ("mark", "range_push", "range_pop", "range_start", "range_end", "sentinel_token")
UNWRAPPED = SimpleNamespace(**{name: getattr(theirs, name).__wrapped__ for name in SIX})
FRONTENDS = ["default", *(["FrontendNext"] if hasattr(cute, "FrontendNext") else [])]
LOWERED = ["", "iket"]


def compiled(events, *, on, frontend="default", options=""):
    annotated_kernels.events = events
    using = cute.compile if frontend == "default" else cute.compile[cute.FrontendNext]
    return build(annotated_kernels.annotated_host, tensor(), cutlass.Int32(3), on=on, using=using, options=options)


@pytest.mark.parametrize("options", LOWERED)
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_every_call_is_a_site_of_ours_at_its_line(frontend, options):
    built = compiled(theirs, on=True, frontend=frontend, options=options)
    lines, first = inspect.getsourcelines(inspect.unwrap(annotated_kernels.annotated))
    texts = {number: text.strip() for number, text in enumerate(lines, first)}
    found = [(s.kind, s.name, s.payload, texts[s.line]) for s in built.record.sites]
    i32, none = PayloadType.I32, PayloadType.NONE
    assert found == [
        (EventKind.MARK, "begin", i32, 'events.mark("begin", n)'),
        (EventKind.PUSH, "all", none, 'events.range_push("all")'),
        (EventKind.END, "step", i32, "events.range_end(token, i)"),
        (EventKind.START, "step", i32, 'token = events.range_start("step", i)'),
        (EventKind.END, "step", i32, "events.range_end(token, n)"),
        (EventKind.POP, "", none, "events.range_pop()"),
    ]
    assert {s.file for s in built.record.sites} == {annotated_kernels.__file__}


def test_their_own_lowering_goes_on_beside_ours():
    """It marks its events with pmevent, which neither of our forms holds."""
    alone = compiled(UNWRAPPED, on=False, options="iket").ptx.count("pmevent")
    assert alone > 0
    assert compiled(theirs, on=True, options="iket").ptx.count("pmevent") == alone
    assert compiled(theirs, on=True).ptx.count("pmevent") == 0


@pytest.mark.parametrize("options", [*LOWERED, "--generate-line-info"])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_off_means_off(frontend, options, monkeypatch):
    """Byte for byte the kernel of the functions before they were wrapped: with tracing off, and switched off alone."""
    plain = compiled(UNWRAPPED, on=False, frontend=frontend, options=options)
    untraced = compiled(theirs, on=False, frontend=frontend, options=options)
    assert (untraced.ptx, untraced.cubin) == (plain.ptx, plain.cubin)
    monkeypatch.setattr(dsl, "_annotations", False)
    refused = compiled(theirs, on=True, frontend=frontend, options=options)
    assert (refused.ptx, refused.cubin, refused.records) == (plain.ptx, plain.cubin, ())


def test_names_and_signatures_stay():
    for name in SIX:
        now, before = getattr(theirs, name), getattr(UNWRAPPED, name)
        assert now is not before
        assert inspect.signature(now) == inspect.signature(before)
        assert (now.__name__, now.__module__, now.__doc__) == (before.__name__, before.__module__, before.__doc__)


def test_names_bound_before_are_wrapped_too():
    """Where tracing is armed after a program has imported the functions by name."""
    code = (
        "import cutlass\n"
        "from cutlass.cute.experimental.iket import mark\n"
        "from cutlass.cute.experimental import iket\n"
        "before = mark\n"
        "import warptrace.cute\n"
        "assert iket.mark is mark and before is mark, (before, mark)\n"
        "assert mark.__wrapped__.__module__ == mark.__module__\n"
        "print(mark.__globals__['__name__'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "cutlass.warptrace\n"), done.stderr


@pytest.mark.parametrize(("fault", "calls", "sites"), [("ImportError", True, [6]), ("NotImplementedError", False, [])])
def test_a_dsl_that_lacks_or_refuses_the_module(fault, calls, sites, tmp_path):
    """A library that looks for it in its older place finds events there, and none of its own that do nothing."""
    code = (
        "import sys, cutlass\n"
        "from importlib.abc import MetaPathFinder\n"
        "for name in [n for n in sys.modules if n.startswith('cutlass.cute.experimental')]: del sys.modules[name]\n"
        "class Refuse(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.startswith('cutlass.cute.experimental'): raise {fault}('not on this toolkit')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from warptrace.runtime import autostart; autostart.start()\n"
        "import cutlass.cute as cute, annotated_kernels as a\n"
        "from warptrace import registry\n"
        "try:\n"
        "    from cutlass.cute.experimental import iket\n"
        "except (ImportError, NotImplementedError):\n"
        "    from cutlass.cute import iket\n"
        "import cutlass.cute.iket\n"
        "assert iket.mark.__name__ == 'mark'\n"
        "a.events = iket\n"
        "g = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (256,), assumed_align=16)\n"
        "cute.compile(a.annotated_host, g, cutlass.Int32(3), options='--gpu-arch sm_90a')\n"
        "print([len(r.sites) for r in registry.records()])\n"
    )
    options = RuntimeOptions(str(tmp_path), iket_calls=calls).to_env()
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = {**os.environ, **options, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{sites}\n"), done.stderr


@pytest.mark.parametrize(("calls", "sites"), [(True, [6]), (False, [])])
def test_a_process_recorded_as_a_whole(calls, sites, tmp_path):
    """No line of the program names warptrace."""
    code = (
        "from warptrace.runtime import autostart; autostart.start()\n"
        "import cutlass, cutlass.cute as cute, annotated_kernels as a\n"
        "from warptrace import registry\n"
        "a.events = cute.experimental.iket\n"
        "g = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (256,), assumed_align=16)\n"
        "cute.compile(a.annotated_host, g, cutlass.Int32(3), options='--gpu-arch sm_90a')\n"
        "print([len(r.sites) for r in registry.records()])\n"
    )
    options = RuntimeOptions(str(tmp_path), iket_calls=calls).to_env()
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    env = {**os.environ, **options, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{sites}\n"), done.stderr


def test_a_session_and_the_next():
    found = []
    for options in ({"iket_calls": False}, {}):
        registry._records.clear()
        with warptrace.capture(buffer_size="16M", **options):
            annotated_kernels.events = theirs
            cute.compile(annotated_kernels.annotated_host, tensor(), cutlass.Int32(3), options="--gpu-arch sm_90a")
        found.append([len(r.sites) for r in registry.records()])
    assert found == [[], [6]]
