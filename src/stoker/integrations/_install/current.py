"""The settings of the installation in force in this process, for all functions that it put into place.

These functions stay in the hands of scripts after the installation is undone: they then do as those before them.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Order = Literal["torch", "stoker"]

HIDDEN = "_stoker_hidden"
"""The attribute of a torch loader that holds what stands behind it."""

LOCK = threading.RLock()
"""Held while an installation is made or undone."""


class Settings(NamedTuple):
    """The arguments of `install()`, as they travel to other processes."""

    images: bool = True
    children: bool = False
    order: Order = "torch"
    num_workers: Literal["auto"] | None = None


class _InForce:
    """What is in force.

    Attributes:
        settings: None without an installation.
        was_undone: whether an installation was undone in this process: unpickled loaders then install nothing.
        loaders: loaders with one of ours behind them, by `id`.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.was_undone = False
        self.loaders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


CURRENT = _InForce()


_MISSING = object()

ORIGINAL = "_stoker_original"
"""The attribute of a function of ours that holds the function in whose place it was set."""


class Changes:
    """Sets attributes of classes, and restores them in the opposite order. Not thread safe."""

    def __init__(self) -> None:
        self._made: list[tuple[type, str, Any, Any]] = []

    def put(self, owner: type, name: str, value: Any) -> None:
        """Sets an attribute."""
        self._made.append((owner, name, vars(owner).get(name, _MISSING), value))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restores all attributes, except those that other code has replaced meanwhile: these are left to that code."""
        while self._made:
            owner, name, before, value = self._made.pop()
            if vars(owner).get(name) is not value:
                continue
            if before is not _MISSING:
                setattr(owner, name, before)
            elif name == "__new__":  # CPython: deleted, it leaves a class that takes no arguments
                owner.__new__ = _plain_new  # type: ignore[method-assign, assignment]
            else:
                delattr(owner, name)


def subclass_hook(owner: type) -> Callable[..., None]:
    """Returns the function `(subclass, **named)` that acts as `__init_subclass__` of a class does now.

    Its own or an inherited one: a class method in Python, as a script's patch or that of `Generic` up to Python 3.11,
    or one in C, as that of `object` and of `Generic` from Python 3.12 on.
    """
    found = inspect.getattr_static(owner, "__init_subclass__")

    def call(subclass: type, /, **named: Any) -> None:
        found.__get__(None, subclass)(**named)

    return call


def _plain_new(kind: type, *args: Any, **kwargs: Any) -> Any:
    return object.__new__(kind)


def original_of(owner: type, name: str) -> Any:
    """Returns the attribute that a class has, or had before an earlier installation; None if there is none."""
    found: Any = getattr(owner, name, None)
    return getattr(found, ORIGINAL, found)
