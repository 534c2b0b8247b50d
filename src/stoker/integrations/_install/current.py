"""The settings of the installation in force in this process, for all functions that it put into place.

These functions stay in the hands of scripts after the installation is undone: they then do as those before them.
"""

from __future__ import annotations

import threading
import weakref
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
