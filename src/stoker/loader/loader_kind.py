"""What tells a loader apart from another: across ranks, in a checkpoint, and for a state computed from its number.

Ranks whose loaders differ where they have to be equal are found by the store of `torch.distributed`, without waiting.

The first rank that begins an epoch of a loader leaves its seed and length in the store; each other compares with them.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.protocol import asked, offered
from stoker._core.worker_info import current
from stoker.datasets.declared import rank_share
from stoker.loader._epoch import epoch, ranks
from stoker.loader._state import schema
from stoker.loader.record import options_of
from stoker.samplers.permutation import FORMAT_VERSION as ORDER_VERSION

if TYPE_CHECKING:
    from stoker.loader._options.loader_options import LoaderOptions
    from stoker.loader._state.schema import Place
    from stoker.loader.record import LoaderRecord


_begun: dict[str, int] = {}
"""Loaders of this process that were compared, by what is equal on all ranks."""

_parents: list[Any] = []
"""The store that this process has got by fork. Its parent uses the same connection, and would get our answers."""


def notice(record: LoaderRecord, options: LoaderOptions) -> None:
    """Warns if this rank's loader differs from that of another rank. Called at the first `iter()` of a loader."""
    if options.distributed is None or current.info is not None:  # a worker must not use the connection of its parent
        return
    difference = _difference(options)
    if difference is not None:
        record.tell_once(difference)


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
    differences = "; ".join(
        f"{schema.WORDS.get(key, key)} is {theirs[key]} there and {facts[key]} here"
        for key in facts
        if facts[key] != theirs[key]
    )
    if not differences:
        return None
    return (
        f"the loaders of rank {rank} and rank {world.rank} differ: {differences}. Ranks that share out an epoch by "
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


# Frameworks that save the state of one rank alone and load it in every rank: wrong for a stream.


_TRAINER = (
    "Lightning's Trainer writes the state of rank 0 alone. Add stoker.integrations.lightning.StokerCallback() to its "
    "callbacks: it puts the states of all ranks into the checkpoint."
)
_FABRIC = (
    "fabric.save writes the state of rank 0 alone. Gather the states of all ranks, torch.distributed."
    "all_gather_object(states, loader.state_dict()), save that list, and let each rank load its own."
)
_ACCELERATE = (
    "accelerator.save_state writes the state of rank 0 alone. Prepare the loader with "
    "stoker.integrations.accelerate.prepare(accelerator, loader), and leave out register_for_checkpointing."
)
_WRITERS = {
    "lightning.pytorch.utilities.combined_loader": _TRAINER,
    "pytorch_lightning.utilities.combined_loader": _TRAINER,
    "lightning.fabric.strategies.strategy": _FABRIC,
    "lightning_fabric.strategies.strategy": _FABRIC,
    "accelerate.checkpointing": _ACCELERATE,
}
"""Modules that call `state_dict()` of a loader for a checkpoint of one rank, and what to do instead."""


def refusal(record: LoaderRecord, options: LoaderOptions) -> str | None:
    """Returns why the caller of `state_dict()` gets no state, or None: it writes one rank's part of a stream alone."""
    if not options.is_stream or record.is_gathered or owner(options) is None:
        return None
    frame = sys._getframe(1)
    while frame.f_code.co_name == "state_dict" and frame.f_back is not None:  # ours, and those of derived classes
        frame = frame.f_back
    way = _WRITERS.get(frame.f_globals.get("__name__", ""))
    if way is None:
        return None
    return (
        f"the state of a stream describes the part that one rank reads, and {way} Every other rank would lose its "
        "place."
    )


def owner(options: LoaderOptions) -> ranks.World | None:
    """Returns the rank to which the loader's state belongs; None if all ranks have the same state, or there is one.

    Without `distributed=` each rank may read another part and have another seed.
    """
    here = None if options.distributed is not None else ranks.of_torch()
    return None if here is None or here.size == 1 else here


def with_own_seed(
    options: LoaderOptions, number: int, place: Place, theirs: dict[str, Any]
) -> tuple[Place, dict[str, Any]]:
    """Returns a place in epoch `number` and the kind from a state that may be another rank's, with this rank's seed.

    Ranks with a stream or a sampler of their own have different seeds, or they would draw the same numbers.
    """
    shares_itself = str(theirs.get("order")).startswith(("stream", "walked"))
    seed = options.seed
    if owner(options) is None or not shares_itself or seed is None or theirs.get("seed") in (None, seed):
        return place, theirs
    place = place if place.seed is None else place._replace(seed=epoch.seed_of(options, number))
    return place, {**theirs, "seed": seed}


def kind_of(options: LoaderOptions) -> dict[str, Any]:
    """Returns the facts on which the order of a loader depends: a state of another kind does not fit."""
    dataset, sampler = options.dataset, options.index_sampler
    kind: dict[str, Any] = {"seed": options.seed}
    fingerprint = offered(dataset, "fingerprint")
    if fingerprint is not None:
        kind["fingerprint"] = str(fingerprint() if callable(fingerprint) else fingerprint)
    if options.is_stream:
        shared = options.shard == "auto" and options.worker_init_fn is None
        kind |= {"order": "stream", "batch_size": options.batch_size, "drop_last": options.drop_last}
        if (share := rank_share(dataset)) is not None:
            kind |= {"num_shards": share[0], "index": share[1]}
        return kind | {"shard": "auto" if shared else "none"}
    inner, arguments = asked(sampler, "sampler"), {"batch_size": None, "drop_last": None}
    kind |= {"samples": epoch.length_if_known(dataset)} | {name: _plain(asked(sampler, name)) for name in arguments}
    if not epoch.is_computed(options):
        kind["order"] = f"walked from {_named(sampler)}" + (f" over {_named(inner)}" if inner is not None else "")
        kind["num_replicas"] = _plain(asked(sampler if inner is None else inner, "num_replicas"))
        return kind
    known = epoch.knower(options)
    kind |= {"order": f"{_named(known)}/{ORDER_VERSION}", "of": epoch.length_if_known(known)}
    kind |= {"ranks": epoch.world_of(options).size}
    return kind | {"distributed": options.distributed, "batches_per_epoch": options.batches_per_epoch}


def _named(sampler: Any) -> str:
    return type(sampler).__qualname__


def _plain(value: Any) -> int | None:
    return value if isinstance(value, bool) else operator.index(value) if isinstance(value, (int, np.integer)) else None


# Loaders whose order is a function of seed and epoch: a state of any place follows from its number.


def has_known_order(options: LoaderOptions) -> bool:
    """Returns whether the batches of a loader are a function of seed and epoch."""
    return options.auto_collation and epoch.is_computed(options)


def state_after(loader: Any, number: int, batches: int) -> dict[str, Any]:
    """Returns the state of a loader with a known order after `batches` of this rank in epoch `number`.

    Constant time: the state follows from the numbers alone.
    """
    options = options_of(loader)
    size = 1 if epoch.has_function(options.batch_sampler, "batches") else options.batch_sampler.batch_size
    position = min(batches * size * epoch.world_of(options).size, len(epoch.knower(options)))
    _, place, kind = schema.unpacked(loader.state_dict())
    return schema.packed(number, place._replace(seed=None, batches=batches, position=position), kind)
