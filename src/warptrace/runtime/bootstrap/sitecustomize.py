"""Arms the tracer in a Python process before any of its own code runs.

``warptrace profile`` puts this folder first on PYTHONPATH; Python imports ``sitecustomize`` at start. The program must
not notice: the folder is taken off ``sys.path`` again, and a ``sitecustomize`` that would have been found without us
is run in our place, with its own name. A fault of ours is a line on stderr, never an exception.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _leave_path() -> None:
    """Take our folder off ``sys.path``; children find it through the environment, which stays as it is."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]


def _run_next() -> None:
    """Run the sitecustomize that comes after ours, if any. What it raises is its own and passes through."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _warn(text: str) -> None:
    # stderr is None, or closed, in a process started without one.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"warptrace: warning: not recording in pid {os.getpid()} ({sys.executable}): {text}\n")


def _sign() -> None:
    """Leave our pid in the run's folder: where nothing is recorded, the reason depends on whether we came this far."""
    with contextlib.suppress(KeyError, OSError), open(os.path.join(os.environ["WARPTRACE_DIR"], "armed"), "a") as file:
        file.write(f"{os.getpid()}\n")


def _arm() -> None:
    if os.environ.get("WARPTRACE") != "1":
        return
    try:
        importlib.import_module("warptrace.runtime.autostart").start()
        _sign()
    except ModuleNotFoundError as error:
        if error.name in ("warptrace", "warptrace.runtime", "warptrace.runtime.autostart"):
            _warn("this Python has no warptrace, or one too old: install it with this Python's pip")
        else:
            _warn(f"{error}: install it with this Python's pip")
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")


try:
    _leave_path()
    _run_next()
finally:
    _arm()
