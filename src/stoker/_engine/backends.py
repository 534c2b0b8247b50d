"""The registry of backends, by the name under which a loader asks for one, with what each can do; and the start methods
of workers.

No other file compares these names: they ask for a capability.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import NamedTuple

from stoker._engine.backend import Capabilities, JobFactory

IN_STEP = Capabilities(has_workers=False)
THREADS = Capabilities()
FORKED = Capabilities(
    own_process=True,
    lends_memory=True,
    splits_batches=True,
    can_grow=True,
    ends_stalled=True,
    shares_heap=True,
    has_stacks=True,
)
SPAWNED = FORKED._replace(shares_heap=False, has_stacks=False)


class Kind(NamedTuple):
    """A way to make a loader's batches.

    Attributes:
        name: the `worker_method` that asks for it; "serial" without workers.
        reported: what `get_worker_info().worker_method` says.
        capabilities: what its backend can do, as far as that is the same on all platforms.
    """

    name: str
    reported: str
    capabilities: Capabilities


KINDS = {
    kind.name: kind
    for kind in (
        Kind("serial", "serial", IN_STEP),
        Kind("thread", "thread", THREADS),
        Kind("process", "multiprocessing", FORKED),
    )
}

BY_REPORT = {kind.reported: kind for kind in KINDS.values()}


def kind_of(worker_method: str, num_workers: int) -> Kind:
    """Returns how batches are made with this many workers."""
    return KINDS[worker_method if num_workers else "serial"]


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
OWN = "settings"
"""The part that differs between the ranks of a job."""

Assemble = Callable[[Parts], JobFactory]
