"""Does something to a module right after it was imported, whenever the program does that, and else never."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .log import log

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """``action(module)`` now if the module was imported, else right after it will be. What it raises is only noted."""
    known = sys.modules.get(name)
    if known is not None:
        _do(name, action, known)
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def _do(name: str, action: Action, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as e:
        log("debug", f"{name} is left as it is: {type(e).__name__}: {e}")


class _Finder(importlib.abc.MetaPathFinder):
    """Programs also only ask whether a module is there, so it stays until that has been imported."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self.action = action
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, gives it that back, then does what its finder waited for."""

    def __init__(self, inner: Any, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _do(self._finder.name, self._finder.action, module)
