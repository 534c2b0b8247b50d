"""The registry of backends: under which name a loader asks for one, and what it can do.

No other file compares these names: they ask for a capability.
"""

from __future__ import annotations

from typing import NamedTuple

from stoker._engine.backend import Capabilities

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
