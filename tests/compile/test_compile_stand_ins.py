"""Kernels whose library does without the DSL's event module: its own functions that do nothing are recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")

import annotated_kernels
import cutlass
import cutlass.cute as cute
from dsl_build import build, tensor

from warptrace.frontends.cute import annotated, dsl
from warptrace.runtime.log import set_level
from warptrace.runtime.options import RuntimeOptions
from warptrace.wire import EventKind, PayloadType

SIX = ("mark", "range_push", "range_pop", "range_start", "range_end", "sentinel_token")
FRONTENDS = ["default", *(["FrontendNext"] if hasattr(cute, "FrontendNext") else [])]
I32, NONE = PayloadType.I32, PayloadType.NONE
ALL = [
    (EventKind.MARK, "begin", I32, 17), (EventKind.PUSH, "all", NONE, 18), (EventKind.END, "step", I32, 23),
    (EventKind.START, "step", I32, 24), (EventKind.END, "step", I32, 27), (EventKind.POP, "", NONE, 28),
]  # fmt: skip


def static_methods():
    class Shim:
        mark = range_push = range_start = staticmethod(lambda _name, *_args, **_kwargs: None)
        range_pop = staticmethod(lambda *_args, **_kwargs: None)
        range_end = staticmethod(lambda _token=None, *_args, **_kwargs: None)
        sentinel_token = staticmethod(lambda _name: None)

    return Shim


def methods():
    class Shim:
        def mark(self, name, payload=None): ...

        def range_push(self, name, payload=None): ...

        def range_pop(self): ...

        def range_start(self, name, payload=None): ...

        def range_end(self, token, payload=None):
            return token

        def sentinel_token(self, name): ...

    return Shim()


def any_name():
    class Shim:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    return Shim()


def namespace():
    return SimpleNamespace(**dict.fromkeys(SIX, lambda *args, **kwargs: None))


FORMS = {
    "class": static_methods,
    "instance": lambda: static_methods()(),
    "methods": methods,
    "any name": any_name,
    "namespace": namespace,
}


def compiled(form, monkeypatch, *, on=True, frontend="default", name="iket", options=""):
    monkeypatch.setattr(annotated_kernels, "events", form)
    monkeypatch.setattr(annotated_kernels, name, form, raising=False)
    using = cute.compile if frontend == "default" else cute.compile[cute.FrontendNext]
    return build(annotated_kernels.annotated_host, tensor(), cutlass.Int32(3), on=on, using=using, options=options)


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_call_is_a_site_at_its_line(form, frontend, monkeypatch, capfd):
    set_level("info")
    try:
        built = compiled(FORMS[form](), monkeypatch, frontend=frontend, name="_our_iket")
        again = compiled(annotated_kernels.events, monkeypatch, frontend=frontend, name="_our_iket")
    finally:
        set_level("warn")
    assert [(s.kind, s.name, s.payload, s.line) for s in built.record.sites] == ALL
    assert {s.file for s in built.record.sites} == {annotated_kernels.__file__}
    assert again.ptx == built.ptx
    said = "warptrace: info: calls of annotated_kernels._our_iket, which does nothing in place of " + annotated.MODULE
    assert [line.partition(", are recorded [pid ")[0] for line in capfd.readouterr().err.splitlines()] == [said]


@pytest.mark.parametrize("options", ["", "--generate-line-info"])
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_off_means_off(frontend, options, monkeypatch):
    """Byte for byte the kernel of a stand-in that was never touched: with tracing off, and switched off alone."""
    def now(form, **given):
        built = compiled(form, monkeypatch, frontend=frontend, options=options, **given)
        return built.ptx, built.cubin, built.records

    plain = now(methods(), on=False)
    form = methods()
    with monkeypatch.context() as off:
        off.setattr(dsl, "_annotations", False)
        assert now(form) == plain and "__wrapped__" not in vars(type(form).mark)
    assert now(form)[2][0].sites and "__wrapped__" in vars(type(form).mark)
    assert now(form, on=False) == plain
    monkeypatch.setattr(dsl, "_annotations", False)
    assert now(form) == plain


def test_what_only_a_stand_in_takes(monkeypatch):
    """Payloads and names that ours refuses, and tokens that it did not make, are no error where they were none."""
    form = static_methods()
    calls = SimpleNamespace(
        mark=lambda name, payload: form.mark(7, "text"),
        range_push=lambda name: form.range_push("x" * 300, object()),
        sentinel_token=lambda name: form.sentinel_token(name),
        range_start=lambda name, payload: form.range_start("", 1 << 40),
        range_end=lambda token, payload: (form.range_end(token), form.range_end("theirs", 3), form.range_end())[0],
        range_pop=lambda: form.range_pop(3),
    )
    monkeypatch.setattr(annotated_kernels, "events", calls)
    monkeypatch.setattr(annotated_kernels, "iket", form, raising=False)
    built = build(annotated_kernels.annotated_host, tensor(), cutlass.Int32(3))
    assert {(s.kind, s.name, s.payload) for s in built.record.sites} == {
        (EventKind.MARK, "7", NONE), (EventKind.PUSH, "x" * 255, NONE), (EventKind.START, "?", NONE),
        (EventKind.END, "step", NONE), (EventKind.POP, "", NONE),
    }  # fmt: skip


def test_nothing_of_another_name_is_touched(monkeypatch):
    form = static_methods()
    before = dict(vars(form))
    built = compiled(form, monkeypatch, name="tracer")
    assert built.records == () and dict(vars(form)) == before


LIBRARY = {
    "__init__.py": "",
    "_iket_noop.py": Path(__file__).with_name("no_op_iket.py").read_text(),
    "compat.py": (
        "try:\n"
        "    from cutlass.cute import iket\n"
        "except ImportError:\n"
        "    from . import _iket_noop as iket\n"
        "from ._iket_noop import range_push as begin, mark\n"
    ),
    "kernels.py": (
        "import cutlass, cutlass.cute as cute\n"
        "from .compat import begin, iket, mark\n"
        "@cute.kernel\n"
        "def kernel(g: cute.Tensor):\n"
        "    begin('all')\n"
        "    mark('here', 5)\n"
        "    iket.range_pop()\n"
        "    g[0] = cutlass.Int32(1)\n"
        "@cute.jit\n"
        "def host(g: cute.Tensor):\n"
        "    kernel(g).launch(grid=[1, 1, 1], block=[32, 1, 1])\n"
    ),
}
ARM = "from warptrace.runtime import autostart; autostart.start()\n"
RUN = (
    "import cutlass, cutlass.cute as cute\n"
    "from warptrace import registry\n"
    "g = cute.runtime.make_fake_compact_tensor(cutlass.Int32, (256,), assumed_align=16)\n"
    "cute.compile(library.kernels.host, g, options='--gpu-arch sm_90a')\n"
    "print([(s.name, s.line) for r in registry.records() for s in r.sites])\n"
)
LOAD = "import library.kernels\n"
REFUSE = (
    "import sys, cutlass\n"
    "from importlib.abc import MetaPathFinder\n"
    "for name in [n for n in sys.modules if n.startswith('cutlass.cute.experimental')]: del sys.modules[name]\n"
    "class Refuse(MetaPathFinder):\n"
    "    def find_spec(self, name, path, target=None):\n"
    "        if name.startswith('cutlass.cute.experimental'): raise NotImplementedError('not on this toolkit')\n"
    "sys.meta_path.insert(0, Refuse())\n"
)
RECORDED = [("all", 5), ("here", 6), ("", 7)]


@pytest.mark.parametrize(
    ("code", "calls", "recorded"),
    [
        (ARM + LOAD + RUN, True, RECORDED),
        (LOAD + ARM + RUN, True, RECORDED),
        (ARM + LOAD + RUN, False, []),
        (REFUSE + LOAD + ARM + RUN, True, RECORDED),
    ],
    ids=["library after", "library before", "switched off", "no module of the DSL's"],
)
def test_a_process_recorded_as_a_whole(code, calls, recorded, tmp_path):
    """No line of the library names warptrace; one name is its own, of a function that it had before."""
    folder = tmp_path / "library"
    folder.mkdir()
    for name, text in LIBRARY.items():
        (folder / name).write_text(text)
    env = {**os.environ, **RuntimeOptions(str(tmp_path / "out"), iket_calls=calls).to_env()}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, f"{recorded}\n"), done.stderr
