"""Registers Stoker's JPEG reader with Pillow in the processes that make samples, as soon as Pillow is there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_PLUGIN = "PIL.JpegImagePlugin"
"""Pillow loads it when it first opens an image."""


def register_jpegs() -> None:
    """Registers the reader with Pillow, now or when Pillow loads its own."""
    if _PLUGIN in sys.modules:
        _register()
    elif not any(isinstance(finder, _JpegFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _JpegFinder())


_registrations: list[Any] = []
"""Of this process: at most one. Workers keep theirs to their end."""


def _register() -> None:
    from stoker import images  # here, where Pillow is there

    if not _registrations:
        _registrations.append(images.register())


def unregister_jpegs() -> None:
    """Gives Pillow its own reader back, in this process."""
    while _registrations:
        _registrations.pop().undo()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _JpegFinder)]


class _JpegFinder(importlib.abc.MetaPathFinder):
    """Registers the reader right after Pillow's module has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != _PLUGIN:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _JpegLoader(spec.loader)
        return spec


class _JpegLoader(importlib.abc.Loader):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _register()
