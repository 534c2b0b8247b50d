"""Runs an action right after a module is imported, which may be never."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder for `sys.meta_path`, which gives modules as the other finders do, with an action after each.

    Args:
        actions: by the module's name; each is run once, with the module.
    """

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        self._sought: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec that the other finders give, with the action after it; None for other modules."""
        if fullname not in self._actions or fullname in self._sought:
            return None
        self._sought.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._sought.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderBefore(spec.loader, self._actions)
        return spec


class _LoaderBefore(importlib.abc.Loader):
    """A module's own loader, and the action after it."""

    def __init__(self, inner: Any, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._inner, self._actions = inner, actions

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = module.__loader__ = self._inner  # which has more methods, for resources and sources
        self._inner.exec_module(module)
        if (action := self._actions.pop(module.__name__, None)) is not None:
            action(module)
