"""How worker processes are started: forked, as clean interpreters, or spawned one by one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import NamedTuple

from stoker._engine.backend import JobFactory


class StartMethod(NamedTuple):
    """How workers are started, and why, in words for `describe()`. Without a zygote each worker is spawned."""

    forked: bool
    why: str
    zygote: bool = True
    context: BaseContext | None = None
    """The `multiprocessing_context`."""
    once: bool = False
    """Whether a clean zygote unpickles what it is sent, once for all workers; else each worker does."""

    @property
    def rebuilds(self) -> bool:
        """Whether each worker has the user's objects to itself, unpickled by itself."""
        return not (self.forked or (self.zygote and self.once))


def choose_start_method(context: BaseContext | None) -> StartMethod:
    """The birth for a `multiprocessing_context` (an object of multiprocessing, or None for its default)."""
    if not hasattr(os, "fork"):
        return StartMethod(False, f"{sys.platform} has no fork", zygote=False)
    if context is not None:
        method = context.get_start_method()
        return StartMethod(method == "fork", f"multiprocessing_context={method!r}", context=context)
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        return StartMethod(False, f"multiprocessing's start method is {method!r}")
    return StartMethod(True, "multiprocessing's start method is 'fork'")


Parts = dict[str, object]

Assemble = Callable[[Parts], JobFactory]
