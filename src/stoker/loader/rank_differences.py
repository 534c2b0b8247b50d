"""Ranks whose loaders differ where they have to be equal, found by the store of `torch.distributed`, without waiting.

The first rank that begins an epoch of a loader leaves its seed and length in the store; each other compares with them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from stoker._core.worker_info import current
from stoker.loader._epoch import epoch, ranks
from stoker.loader._epoch.loader_kind import kind_of

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader.record import LoaderRecord

_begun: dict[str, int] = {}
"""Loaders of this process that were compared, by what is equal on all ranks."""

_parents: list[Any] = []
"""The store that this process has got by fork. Its parent uses the same connection, and would get our answers."""


def notice(record: LoaderRecord, options: LoaderOptions) -> None:
    """Warns if this rank's loader differs from that of another rank. Called at the first `iter()` of a loader."""
    if options.distributed is None or current.info is not None:  # a worker must not use the connection of its parent
        return
    told = _difference(options)
    if told is not None:
        record.tell_once(told)


def _difference(options: LoaderOptions) -> str | None:
    """Returns how this rank's loader differs from that of another rank, or None; one request to the store.

    Loaders of different settings are told apart by these, and others by the order in which they begin. Ranks that share
    the epoch with a part of the process group are not compared.
    """
    group, store = ranks.of_torch(), _store()
    world = epoch.world_of(options)
    if group is None or store is None or group.size == 1 or world.size != group.size:
        return None
    kind = kind_of(options)
    facts = {"seed": options.seed or 0, "samples": kind.pop("samples"), "of": kind.pop("of")}
    kind.pop("seed"), kind.pop("fingerprint", None)
    name = json.dumps(kind)
    number = _begun[name] = _begun.get(name, -1) + 1
    mine = json.dumps([world.rank, facts])
    try:
        rank, theirs = json.loads(store.compare_set(f"stoker/{number}/{name}", "", mine))
    except RuntimeError:  # the rank that keeps the store has left: the loader works without the notice
        return None
    told = "; ".join(
        f"{key} is {theirs[key]} there and {facts[key]} here" for key in facts if facts[key] != theirs[key]
    )
    if not told:
        return None
    return (
        f"the loaders of rank {rank} and rank {world.rank} differ: {told}. Ranks that share out an epoch by "
        f"distributed={options.distributed!r} need the same seed= and the same samples: otherwise some samples are "
        "delivered twice and others never, or ranks make different numbers of steps."
    )


def _store() -> Any:
    """Returns the store of the default process group; None if this version of torch does not give it."""
    if ranks.of_torch() is None:
        return None
    get = getattr(sys.modules["torch.distributed.distributed_c10d"], "_get_default_store", None)
    store = None if get is None else get()
    return None if any(store is each for each in _parents) else store


def _forked() -> None:
    _parents[:] = [store] if (store := _store()) is not None else _parents


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
